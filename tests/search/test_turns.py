"""Calls of modules in pieces that take turns with torch's compiler."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402


class Stages(torch.nn.Module):
    """Two graphs, and a count of calls that torch does not know; ``draws``: whether it draws random numbers."""

    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.draws = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), draws
        self.register_buffer("kept", torch.zeros(()))
        self.calls = itertools.count(1)

    def forward(self, x: Any, *, scale: Any = 1.0) -> Any:
        y = self.first(x) + (torch.rand(8) if self.draws else 0)
        y = y * 2 if y.sum() > 1e9 else y
        self.kept = self.kept + 1
        self.count()
        return {"y": torch.tanh(self.second(y)) * scale * self.kept}

    @torch._dynamo.disable
    def count(self) -> None:
        self.last = next(self.calls)


class Clock:
    """Events of which ours are so far apart, and theirs."""

    def __init__(self, ours: float, theirs: float) -> None:
        self.now, self.us, self.run = 0.0, {"ours": ours, "theirs": theirs}, "ours"

    def event(self) -> Any:
        clock, at = self, []

        class Event:
            def record(self, stream: Any) -> None:
                clock.now += clock.us[clock.run]
                at.append(clock.now)

            def query(self) -> bool:
                return True

            def elapsed_time(self, other: Any) -> float:
                return other.at() - at[0]

            def at(self) -> float:
                return at[0]

        return Event()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Calls are timed by a clock that is told what they take; which ran is written down."""
    from search import piecewise
    from search import turns

    torch._dynamo.reset()  # it keeps eight programs of a function, and then makes none
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(turns, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(piecewise, "may_be_measured", lambda _: True)
    seen: list[str] = []

    def tell(ours: float, theirs: float) -> list[str]:
        clock = Clock(ours, theirs)
        monkeypatch.setattr(turns, "event", clock.event)
        mine, begin = piecewise.PiecewiseModule._ours, turns.Turns.begin

        def begun(self: Any) -> Any:
            clock.run, timed = begin(self)
            seen.append(clock.run)
            return clock.run, timed

        monkeypatch.setattr(turns.Turns, "begin", begun)
        monkeypatch.setattr(piecewise.PiecewiseModule, "_ours", lambda self, *args: seen.append("run") or mine(self, *args))
        monkeypatch.setattr(piecewise.PiecewiseModule, "_other", property(lambda self: self.module))
        return seen

    return tell


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("ours", "theirs"), [(2.0, 1.0), (1.0, 2.0)])
def test_calls_of_a_module_in_pieces_take_turns_with_torchs_compiler(ours: float, theirs: float, timed: Any) -> None:
    """Each runs once, so that what it leaves behind is left once; the answer is kept."""
    from search.turns import ORDER

    seen = timed(ours, theirs)
    module, x = Stages().eval(), torch.randn(4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    own = copy.deepcopy(module)
    for count in range(1, len(ORDER) + 4):
        with torch.no_grad():
            torch.testing.assert_close(run(x)["y"], own(x)["y"], rtol=1e-5, atol=1e-5)
        assert run.module.last == count == int(run.module.kept)
        assert (run.beside is None) is (count < len(ORDER) + 2)
    assert [n for n in seen if n != "run"] == [name for name, _ in ORDER]
    assert run.beside.ours is (ours < theirs) and seen[-1] == ("run" if ours < theirs else "theirs")
    assert ("those are taken" in repr(run)) is (ours > theirs)
    again, before = fuser.compile(module, (x,), device="cpu"), len(seen)
    for _ in range(3):
        again(x)
    assert again.beside == run.beside and seen[before:] == ["run"] * (3 if ours < theirs else 1)
    for count, scale in enumerate((2.0, 3.0, 4.0, 5.0), 1):
        again(x, scale=scale)
        assert len(again._turns) == min(count, 3), "other arguments are others, but not without end"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["instant", "draws", "gradients"])
def test_calls_that_are_not_to_take_turns(how: str, timed: Any) -> None:
    seen = timed(1.0, 2.0)
    module, x = Stages(how == "draws").eval(), torch.randn(4, 8)
    run = fuser.compile(module, (x,), device="cpu", effort="instant" if how == "instant" else None)
    for _ in range(3):
        scale = torch.ones(1, requires_grad=how == "gradients")
        run(x, scale=scale)
    assert seen == ["run"] * 3 and run.beside is None


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_the_module_itself_is_its_own() -> None:
    """It is not called again."""

    class Fails(Stages):
        def forward(self, x: Any, *, scale: Any = 1.0) -> Any:
            found = super().forward(x)
            if self.last == 3:
                raise KeyError("the third call")
            return found

    run, x = fuser.compile(Fails().eval(), (torch.ones(4, 8),), device="cpu"), torch.ones(4, 8)
    for count in range(1, 6):
        with pytest.raises(KeyError, match="the third call") if count == 3 else nullcontext():
            run(x)
        assert run.module.last == count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settled", [True, False])
def test_where_torchs_compiler_fails_our_graphs_stay(settled: bool, timed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its turn, or where it was the faster for other arguments before."""
    from torch._dynamo.exc import TorchDynamoException

    from search.beside import Beside
    from search.turns import ORDER

    def fails(*_: Any, **__: Any) -> Any:
        raise TorchDynamoException("no kernel for this size")

    seen = timed(2.0, 1.0)
    module, x = Stages().eval(), torch.randn(4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    monkeypatch.setattr(type(run), "_other", property(lambda _: fails))
    run(x)
    if settled:
        run._asked, run.beside = 3, Beside(2.0, 1.0)
        x = torch.randn(6, 8)
    for count in range(2, len(ORDER) + 6):
        run(x)
        assert run.module.last == count
    assert seen[-1] == "run" and not run._turns.get(x.shape) and all(v is None for v in run._theirs.values())
