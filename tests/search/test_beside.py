"""What was chosen is measured beside what torch's compiler makes of a module: the faster is kept, and what was measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fuser
from fuser.device import load_device
from fuser.runtime.places import within_bounds
from search import beside
from search import choose
from search.beside import UNROLLED
from search.beside import Beside
from search.beside import most_measured
from search.cover.plan import Kernels
from search.cover.plan import Plan
from search.cover.theirs import LARGEST
from search.how import How
from search.measure import replays
from search.tuner.efforts import module_effort
from search.tuner.memory import open_memory
from search.tuner.tuning import Tuning

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("calls", "graph", "kept"),
    [
        ((10.0, 12.0), (5.0, 6.0), True),
        ((10.0, 12.0), (5.0, 4.9), False),  # a graph decides
        ((10.0, 8.0), (5.0, 5.1), False),  # unless calls are worse by more than twice as much
        ((10.0, 8.0), (5.0, 6.0), True),
        ((10.0, 9.9), (None, None), False),
        ((10.0, 10.1), (None, None), True),
    ],
)
def test_the_faster_is_kept(calls: tuple[float, float], graph: tuple[Any, Any], kept: bool) -> None:
    assert Beside(*calls, *graph).ours is kept
    assert not Beside(*calls, *graph, agree=False).ours
    assert ("ours are taken" in str(Beside(*calls, *graph))) is kept


def test_an_answer_is_kept_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    file, found = tmp_path / "one.json", Beside(3.0, 4.0, 1.0, None, agree=False)
    beside.write(file, found)
    assert beside.read(file) == found
    for odd in (Beside(3.0, float("nan")), Beside(-1.0, 2.0)):
        beside.write(file, odd)
        assert beside.read(file) is None
    file.write_text("{}")
    assert beside.read(file) is None
    assert beside.read(tmp_path / "none.json") is None


def test_graphs_are_told_apart_by_what_they_compute_and_of_what() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(4, 6)
    graphs = [make_fx(f)(t) for f, t in ((torch.sin, x), (torch.cos, x), (torch.sin, x.T), (torch.sin, x.half()))]
    graphs.append(make_fx(lambda t: t.aminmax(dim=1))(x))
    for graph, (f, t) in zip(graphs, ((torch.sin, x), (torch.cos, x), (torch.sin, x.T), (torch.sin, x.half())), strict=False):
        for n in graph.graph.nodes:
            n.meta.setdefault("val", t if n.op == "placeholder" else f(t))
    keys = [beside.key_of_graph(g) for g in graphs]
    assert len({*keys}) == len(keys)
    assert beside.key_of_graph(graphs[0]) == keys[0]


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(10, 8), torch.nn.Embedding(20, 8)

    def forward(self, ids: Any, mask: Any, bias: Any) -> Any:
        return (self.words(ids) + self.places(ids * 2 + 1)) * mask[..., None] + bias


@pytest.mark.parametrize(("places", "stay"), [([0, 9, 3], True), ([0, 10, 3], False), ([0, -1, 3], False)])
def test_places_that_there_are_not_become_zeros(places: list[int], stay: bool) -> None:
    class Words(Tokens):
        def forward(self, ids: Any, mask: Any, bias: Any) -> Any:
            return self.words(ids.view(-1)) * mask[..., None] + bias

    given = {"ids": torch.tensor(places), "mask": torch.tensor([True, False, True]), "bias": torch.full((3, 8), -torch.inf)}
    for module, kept in ((Words(), stay), (Tokens(), True)):  # of what is computed with nobody knows
        graph = torch.export.export(module, tuple(given.values())).graph_module
        found = within_bounds(graph, given)
        assert found["mask"] is given["mask"]
        assert found["bias"] is given["bias"]
        assert torch.equal(found["ids"], given["ids"] if kept else torch.zeros(3, dtype=torch.int64))
    assert within_bounds(graph, {**given, "bias": torch.full((3, 8), torch.nan)})["bias"].isfinite().all()


def test_of_large_plans_those_are_measured_that_are_mostly_short_kernels_or_a_librarys() -> None:
    """A loop over steps that Python writes out, say; of two layers of a transformer the model knows enough."""

    def part(us: float, library: int = 0, launches: int = 1) -> Kernels:
        names = tuple(f"k{i}" for i in range(launches))
        return Kernels(0, names, library, (), (), (), (), (), us, "")

    def plan(*parts: Kernels) -> Plan:
        return Plan("", "", parts, sum(p.us for p in parts))

    for parts, most in (
        ((part(3.5), part(3.9), part(9.0, library=1)), UNROLLED),
        ((part(7.0, launches=2), part(6.0)), UNROLLED),
        ((part(8.0), part(6.0), part(9.0, library=1), part(2.0)), LARGEST),
        ((), LARGEST),
    ):
        assert most_measured([plan(*parts)]) == most_measured([plan(p) for p in parts]) == most


Timer = Callable[..., dict[str, list[float]]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], list[str]]:
    """Both run, on this CPU, and the times of both are told."""

    def tell(ours: float, theirs: float) -> list[str]:
        seen: list[str] = []

        def in_turn(calls: Mapping[str, Callable[[], Any]], *_: Any) -> dict[str, list[float]]:
            for name, call in calls.items():
                call()
                seen.append(name)
            return {"ours": [ours] * 3, "theirs": [theirs] * 3}

        monkeypatch.setattr(replays, "in_turn", in_turn)
        monkeypatch.setattr(beside, "capture_calls", lambda calls, warm: SimpleNamespace(replay=calls[0]))
        return seen

    monkeypatch.setattr(choose, "may_be_measured", lambda _: True)
    return tell


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.up(x)).sum(-1)


@pytest.mark.parametrize("early", [1, 99])
@pytest.mark.parametrize("ours", [True, False])
def test_a_module_has_what_was_the_faster(
    timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch, ours: bool, early: int
) -> None:
    """Whether torch's compiler begins before our kernels are there, or after that."""
    monkeypatch.setattr(choose, "ENOUGH", early)
    module, x = Gated().eval(), torch.randn(8, 16)
    seen = timed(3.0, 4.0 if ours else 2.0)
    with torch.no_grad():
        run = fuser.compile(module, (x,), device="cpu", checked=False)
        assert seen == ["ours", "theirs", "ours", "theirs"]
        assert bool(run.graph.blocks) is ours
        assert run.beside is not None
        assert ("ours are taken" if ours else "those are taken") in " ".join(run.explain().split())
        assert "nan" not in run.explain()
        assert torch.allclose(run(x), module(x), atol=1e-3)
        instant = fuser.compile(module, (x,), device="cpu", checked=False, effort="instant")
        assert instant.beside is None
        assert len(seen) == 4


def test_what_is_begun_has_a_program_of_its_own(
    timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which remembers what it is asked while the other one is sent to processes."""
    timed(3.0, 4.0)
    seen: list[Any] = []
    rival, by_prices = choose._rival, choose._by_prices

    def early(known: Any, spec: Any, *rest: Any) -> Any:
        if not rest[3:]:
            seen.append((known.program, spec))
        return rival(known, spec, *rest)

    def late(known: Any, spec: Any, *rest: Any) -> Any:
        seen.append((known.program, spec))
        return by_prices(known, spec, *rest)

    monkeypatch.setattr(choose, "ENOUGH", 1)
    monkeypatch.setattr(choose, "_rival", early)
    monkeypatch.setattr(choose, "_by_prices", late)
    fuser.compile(Gated().eval(), (torch.randn(8, 16),), device="cpu", checked=False)
    (one, first), (other, second) = seen
    assert (one, first) == (other, second)
    assert one is not other
    assert first is not second
    assert not {*map(id, one.nodes)} & {*map(id, other.nodes)}


@pytest.mark.parametrize("effort", ["sure", "quick"])
def test_nothing_is_begun_while_something_is_measured_or_the_compiler_waits(
    timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch, effort: str
) -> None:
    from torch._guards import CompileContext
    from torch._guards import compile_context

    timed(3.0, 4.0)
    known, spec = fuser.from_torch(Gated().eval(), (torch.randn(8, 16),)), load_device("h200")
    monkeypatch.setattr(choose, "ENOUGH", 1)
    monkeypatch.setattr(choose, "_rival", lambda *_: None)
    how = How(tuning=Tuning(module_effort(effort)[0]))
    found = choose._begun(known, spec, "cpu", how)
    assert (found is not None) is (effort == "sure")
    with compile_context(CompileContext(None)):
        assert choose._begun(known, spec, "cpu", how) is None


def test_what_is_begun_is_on_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread begins with the first one."""
    seen: list[Any] = []

    def device(number: int) -> Any:
        seen.append((number, threading.current_thread() is threading.main_thread()))
        return nullcontext()

    known, spec = fuser.from_torch(Gated().eval(), (torch.randn(8, 16),)), load_device("h200")
    monkeypatch.setattr(choose, "ENOUGH", 1)
    monkeypatch.setattr(choose, "_rival", lambda *_: 7)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for name in ("cuda", "cuda:1", "cpu"):
        begun: Any = choose._begun(known, spec, name, How())
        assert begun.result() == 7
    assert seen == [(3, False), (1, False)]


def test_what_was_begun_is_given_up_where_no_plan_is_made(
    timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(3.0, 4.0)
    begun: list[threading.Thread] = []

    def rival(*_: Any) -> Any:
        begun.append(threading.current_thread())
        while True:
            time.sleep(0.01)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(choose, "ENOUGH", 1)
    monkeypatch.setattr(choose, "_rival", rival)
    monkeypatch.setattr(choose, "_by_prices", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fuser.compile(Gated().eval(), (torch.randn(8, 16),), device="cpu", checked=False)
    begun[0].join(20.0)
    assert not begun[0].is_alive()


@pytest.mark.parametrize("ours", [True, False])
def test_what_was_measured_is_known(
    timed: Callable[[float, float], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    x = torch.randn(8, 16)
    known, seen = fuser.from_torch(Gated().eval(), (x,)), timed(3.0, 4.0 if ours else 2.0)
    examples = dict(zip(known.inputs, (x,), strict=True))
    for records, count in ((str(tmp_path / "mine.sqlite"), 4), (str(tmp_path / "mine.sqlite"), 4), (False, 8)):
        how = How(checked=False, tuning=Tuning(memory=open_memory(records)), examples=examples, beside=True)
        run = choose.compile_imported(known, load_device("h200"), "cpu", how)
        assert bool(run.graph.blocks) is ours
        assert run.beside is not None
        assert len(seen) == count


def test_of_two_that_differ_torchs_is_taken(timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Gated().eval(), torch.randn(8, 16)
    timed(3.0, 9.0)
    monkeypatch.setattr(beside, "agree", lambda *_: False)
    with torch.no_grad():
        run = fuser.compile(module, (x,), device="cpu", checked=False)
    assert not run.graph.blocks
    assert "differ in their results" in " ".join(run.explain().split())


def test_what_does_not_run_is_left(timed: Callable[[float, float], list[str]]) -> None:
    timed(1.0, 2.0)

    def fails() -> Any:
        raise RuntimeError("CUDA error")

    def full() -> Any:
        raise torch.OutOfMemoryError("no room")

    one = torch.randn(4)
    assert not beside.measured(fails, lambda: one, "cpu").ours
    for both in ((full, lambda: one), (lambda: one, fails)):
        with pytest.raises(RuntimeError):
            beside.measured(*both, "cpu")


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_results_of_any_type_are_compared(timed: Callable[[float, float], list[str]], dtype: Any) -> None:
    timed(1.0, 2.0)
    x = torch.tensor([0, 1, 1, 0, 1] * 8).to(dtype)
    other = ~x if dtype is torch.bool else x + 1
    assert beside.measured(lambda: x, x.clone, "cpu").ours
    assert not beside.measured(lambda: other, lambda: x, "cpu").ours
    assert beside.measured(lambda: other, lambda: x, "cpu", compared=False).ours


def test_of_two_orders_of_equal_numbers_either_is_right(timed: Callable[[float, float], list[str]]) -> None:
    timed(1.0, 2.0)
    x = torch.arange(100)
    other = x.clone()
    other[:5] = x[:5].flip(0)
    assert beside.measured(lambda: other, lambda: x, "cpu", tied=True).ours


def test_where_rounding_decides_neither_is_wrong(timed: Callable[[float, float], list[str]]) -> None:
    """Both are as far from torch's own operators; what is farther than torch's compiler is wrong."""
    timed(1.0, 2.0)
    eager = torch.ones(100)
    theirs, ours, wrong = eager.clone(), eager.clone(), -eager
    theirs[:20], ours[50:70] = 0.0, 0.0
    assert not beside.measured(lambda: ours, lambda: theirs, "cpu").ours
    assert beside.measured(lambda: ours, lambda: theirs, "cpu", eager=lambda: eager).ours
    assert not beside.measured(lambda: wrong, lambda: theirs, "cpu", eager=lambda: eager).ours
    assert not beside.measured(lambda: ours, lambda: eager, "cpu", eager=lambda: eager).ours


def test_what_fails_to_be_measured_stays(timed: Callable[[float, float], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Gated().eval(), torch.randn(8, 16)
    timed(3.0, 2.0)

    def fails(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(choose, "measured", fails)
    with torch.no_grad():
        run = fuser.compile(module, (x,), device="cpu", checked=False)
    assert run.graph.blocks
    assert run.beside is None


@pytest.mark.gpu
def test_on_a_gpu_both_are_measured() -> None:
    module, x = Gated().eval().cuda(), torch.randn(4096, 16, device="cuda")
    with torch.no_grad():
        run = fuser.compile(module, (x,), records=False)
        assert run.beside is not None
        assert torch.allclose(run(x), module(x), atol=1e-2)
        behind = torch.compile(module, backend=fuser.torch_backend, dynamic=False)
        assert torch.allclose(behind(x), module(x), atol=1e-2)
