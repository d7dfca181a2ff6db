"""Modules that are no one graph."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import LeftToTorch  # noqa: E402
from fuser.errors import UntraceableError  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from search.piecewise import _like  # noqa: E402
from tests.functions import Fn  # noqa: E402


class Choosing(torch.nn.Module):
    """Its control flow depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        y = torch.relu(self.first(x))
        if y.sum() > 100:
            return {"y": y, "n": 1}
        return {"y": self.second(y).softmax(-1) * scale, "n": 2}


def test_control_flow_on_values_runs_graph_by_graph() -> None:
    module, x = Choosing().eval(), torch.randn(4, 8)
    with pytest.warns(LeftToTorch, match=r"Choosing is no program: torch\.export cannot trace.*one by one"):
        run = fuser.compile(module, (x,), device="cpu")
    for given, named in (((x,), {}), ((1000 * x,), {}), ((x,), {"scale": 2.0})):
        with torch.no_grad():
            got, want = run(*given, **named), module(*given, **named)
        assert got["n"] == want["n"]
        torch.testing.assert_close(got["y"], want["y"], rtol=1e-5, atol=1e-4)  # logits of thousands cancel


def test_layers_of_one_class_have_their_own_weights() -> None:
    class Layer(Choosing):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return torch.cat(tuple(super().forward(x, scale)["y"].split(2, -1)) * 2, -1)

    module, x = torch.nn.Sequential(*(Layer() for _ in range(3))).eval(), torch.randn(4, 8)
    with pytest.warns(LeftToTorch, match="Sequential is no program"):
        run = fuser.compile(module, (x,), device="cpu")
    with torch.no_grad():
        for given in (x, 2 * x):
            torch.testing.assert_close(run(given), module(given), rtol=1e-5, atol=1e-5)


def test_threads_may_compile_one_module() -> None:
    """A trace has tensors without values in it meanwhile."""
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.randn(4, 8)
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda _: fuser.compile(module, (x,), device="cpu"), range(4)))
    for run in runs:
        torch.testing.assert_close(run(x), module(x).detach())
    assert torch.nn.Module.__setattr__.__module__ == "torch.nn.modules.module"


def test_nothing_is_compiled_of_it_for_another_machine() -> None:
    with pytest.raises(UntraceableError, match="cannot trace Choosing"):
        fuser.compile(Choosing().eval(), (torch.randn(4, 8),), target="h200")


@pytest.mark.filterwarnings("ignore")
def test_what_no_trace_takes_is_named() -> None:
    scripted = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.jit.script(torch.nn.ReLU()))
    with pytest.raises(UntraceableError, match="cannot trace Sequential: 1 is TorchScript"):
        fuser.compile(scripted, (torch.randn(4, 8),), target="h200")
    whole = Fn(lambda x: x.missing)
    with pytest.raises(UntraceableError, match=r"cannot trace Fn: .*missing"):
        fuser.compile(whole, (torch.randn(4, 8),), target="h200")


NO_PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "float64": (torch.nn.Linear(8, 8).double(), (torch.randn(4, 8).double(),)),
    "complex": (Fn(lambda x: torch.fft.fft(x).abs()), (torch.randn(4, 8),)),
    "empty": (Fn(lambda x, y: torch.cat([x, y]) * 2), (torch.randn(0, 8), torch.randn(3, 8))),
    "as many as there are": (Fn(lambda x: x[x > 0] + 1), (torch.randn(3, 8),)),
    "a number of a tensor": (Fn(lambda x: x * x.sum().item()), (torch.randn(3, 8),)),
    "small integers": (Fn(lambda x: x.float() / 255), (torch.ones(4, 3, dtype=torch.uint8),)),
    "written inputs": (Fn(lambda x: x.add_(1).relu()), (torch.randn(3, 8),)),
    "written parameters": (torch.nn.Embedding(10, 4, max_norm=1.0), (torch.arange(3),)),
    "sparse": (Fn(lambda x: torch.sparse.mm(x.to_sparse(), x.T)), (torch.randn(3, 8),)),
    "of TorchScript": (torch.jit.script(torch.nn.ReLU()), (torch.randn(5, 8),)),
    "statistics of a batch": (torch.nn.BatchNorm1d(8).train(), (torch.randn(5, 8),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NO_PROGRAMS)
def test_what_is_no_program_runs_all_the_same(name: str) -> None:
    module, inputs = NO_PROGRAMS[name]
    with torch.no_grad():
        want = copy.deepcopy(module)(*copy.deepcopy(inputs))
        run = fuser.compile(module, copy.deepcopy(inputs), device="cpu")
        torch.testing.assert_close(run(*copy.deepcopy(inputs)), want)


def test_what_fails_by_itself_fails_when_it_is_compiled() -> None:
    with pytest.raises(fuser.FuserError, match="cannot trace Linear"):
        fuser.compile(torch.nn.Linear(8, 8), (torch.randn(4, 9),), device="cpu")


class Counts(torch.nn.Module):
    """Its states change from call to call: a buffer that is set anew, one that is written to, a number of Python, or a tensor
    that is no state of torch's."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(8))
        self.how, self.number, self.held = how, 0, [{"calls": torch.zeros(8)}]

    def forward(self, x: Any) -> Any:
        if self.how == "set":
            self.calls = self.calls + 1
        elif self.how == "written":
            self.calls.add_(1)
        elif self.how == "in a list":
            self.held[0]["calls"].add_(1)
        else:
            self.number += 1
        return torch.tanh(x) * (self.calls + self.number + self.held[0]["calls"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["set", "written", "a number", "in a list"])
def test_states_that_change_at_each_call_do_so(how: str) -> None:
    module, x = Counts(how).eval(), torch.randn(3, 8)
    run = fuser.compile(module, (x,), device="cpu")
    assert not (module.number or module.calls.any() or module.held[0]["calls"].any()), "compiling leaves the module as it is"
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), module(x))


class Either(torch.nn.Module):
    """A buffer that one way through it writes and another one reads, and a norm's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            self.seen.add_(x.mean(0))
            return self.norm(x)
        return self.norm(x) * self.seen


@pytest.mark.filterwarnings("ignore")
def test_what_one_graph_writes_another_reads() -> None:
    """The example shows the way that reads alone; torch does not count what a norm in training writes to its statistics."""
    x = torch.ones(4, 8) + 0.1 * torch.randn(4, 8)
    module = Either().eval()
    run = fuser.compile(module, (-x,), device="cpu")
    with torch.no_grad():
        for sign in (-1, 1, -1, 1, -1):
            torch.testing.assert_close(run(sign * x), module(sign * x))
        for training in (True, False):
            module.train(training)
            run.module.train(training)
            torch.testing.assert_close(run(x), module(x))
        for part in (module, run.module):
            part.norm.weight.mul_(2)
        torch.testing.assert_close(run(-x), module(-x))


@pytest.mark.filterwarnings("ignore")
def test_modules_in_pieces_are_copied_with_their_state_and_not_pickled() -> None:
    module, x = Counts("written").eval(), torch.randn(3, 8)
    run = fuser.compile(module, (x,), device="cpu")
    run(x)
    other = copy.deepcopy(run)
    torch.testing.assert_close(other(x), run(x))
    torch.testing.assert_close(other(x), torch.tanh(x) * 3)
    with pytest.raises(UsageError, match="pickle its \\.module"):
        pickle.dumps(run)


@pytest.mark.filterwarnings("ignore")
def test_modules_in_pieces_are_made_in_inference_mode() -> None:
    with torch.inference_mode():
        module, x = Choosing().eval(), torch.randn(4, 8)
        torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x)["y"], module(x)["y"])


class Remembers(torch.nn.Module):
    """It keeps what a call computes, as a plain attribute that is there from the start, or from the first call on."""

    def __init__(self, given: bool) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(8, 4)
        if given:
            self.hidden = torch.zeros(3, 4)

    def forward(self, x: Any) -> Any:
        hidden = getattr(self, "hidden", 0.0)
        self.hidden = torch.tanh(self.cell(x) + hidden)
        return self.hidden * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("called", [True, False])
def test_what_a_module_remembers(given: bool, called: bool) -> None:
    """A call with gradients leaves a tensor with its history, which torch does not copy; a trace must leave none."""
    module, x = Remembers(given), torch.randn(3, 8)
    if called:
        module(x)
    held = dict(vars(module))
    run = fuser.compile(module, (x,), device="cpu")
    assert vars(module).keys() == held.keys() and all(vars(module)[n] is v for n, v in held.items())
    for _ in range(3):
        torch.testing.assert_close(run(x), module(x).detach())


def test_sizes_that_a_module_keeps_make_one_program() -> None:
    class Keeps(torch.nn.Module):
        width: int | None = None

        def forward(self, x: Any) -> Any:
            self.width = x.shape[-1]
            return torch.relu(x) / self.width

    module, x = Keeps(), torch.randn(3, 8)
    run = fuser.compile(module, (x,), device="cpu")
    assert type(run).__name__ == "CompiledProgram" and module.width is None
    torch.testing.assert_close(run(x), torch.relu(x) / 8)


def test_what_torchs_compiler_does_not_take_runs_in_torch() -> None:
    class Shifts(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x > 0) << 1  # its fake tensors have no shift of bits

    module, x = Shifts(), torch.tensor([-1.0, 2.0])
    with pytest.warns(LeftToTorch):
        run = fuser.compile(module, (x,), device="cpu")
    with pytest.warns(LeftToTorch, match="Shifts runs in torch"):
        assert torch.equal(run(x), module(x))
    assert torch.equal(run(-x), module(-x))


def test_what_torchs_compiler_stumbles_over_runs_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets errors of its own through, where a size that it does not know is compared with a tensor, say."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    class Depends(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.isnan().any():
                raise ValueError("not a number")
            return x + 1 if x.sum() > 0 else x - 1

    def stumble(self: Any) -> None:
        raise AssertionError("Expected bool")

    x = torch.tensor([-1.0, 2.0])
    with pytest.warns(LeftToTorch):
        run = fuser.compile(Depends(), (x,), device="cpu")
    with pytest.raises(ValueError, match="not a number"):
        run(x / 0 - x / 0)
    torch._dynamo.reset()
    monkeypatch.setattr(InstructionTranslator, "run", stumble)
    with pytest.warns(LeftToTorch, match=r"Depends runs in torch: its compiler does not take it \(Expected bool\)"):
        assert torch.equal(run(x), x + 1)


def test_what_the_graphs_in_front_of_a_failed_one_have_written_is_written_once() -> None:
    """Torch runs the module again, from its beginning."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            x.add_(torch.rand(3))
            return (x > 0) << 1 if x.sum() > 0 else x  # no shift of a boolean can be traced

    with pytest.warns(LeftToTorch, match="graph by graph|one by one"):
        run = fuser.compile(Counting(), (torch.ones(3),), device="cpu")
    for calls in (1, 2):
        given, wanted = torch.ones(3), torch.ones(3)
        torch.manual_seed(calls)
        wanted.add_(torch.rand(3))
        torch.manual_seed(calls)
        with pytest.warns(LeftToTorch, match="runs in torch") if calls == 1 else nullcontext():
            got = run(given)
        assert got.tolist() == [2, 2, 2] and run.module.count == calls
        torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def test_a_module_of_which_torch_has_all_goes_to_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """By arguments: others are looked at anew."""
    from search.torch_backend import Door

    module, x = Choosing().eval(), torch.randn(4, 8)
    with pytest.warns(LeftToTorch, match="one by one"):
        run = fuser.compile(module, (x,), device="cpu")
    compiler, asked = torch.compile, []

    def compiled(given: Any, **named: Any) -> Any:
        asked.append(named.get("backend"))
        return compiler(given, **{"backend": "eager", **named})

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(Door, "theirs", property(lambda _: True))
    for given in (x, x, x, 2 * torch.randn(6, 8)):
        with torch.no_grad():
            torch.testing.assert_close(run(given)["y"], module(given)["y"], rtol=1e-5, atol=1e-5)
    assert [a is None for a in asked] == [False, True]


def test_a_kernel_without_source_is_not_the_interpreters() -> None:
    """The first schedule of this sum would have one accumulator for each element of an axis."""
    p, v = torch.rand(4, 6, 64, 64), torch.rand(4, 64, 64) > 0.5
    module = Fn(lambda p, v: ((-(p * p.clamp_min(1e-9).log()).sum(1)) * v.float()).sum())
    run = fuser.compile(module, (p, v), target="h200", device="cpu")
    assert type(run).__name__ == "CompiledProgram"
    torch.testing.assert_close(run(p, v), module(p, v))


def test_what_arguments_are_like_is_known_within_lists_and_dicts() -> None:
    x = torch.randn(3, 4)
    like = _like(([x, (x.T, 2)], {"a": x}), {"b": None})
    assert like is not None and hash(like) == hash(_like(([x + 1, (x.T, 2)], {"a": -x}), {"b": None}))
    lists: list[Any] = [[x, (x, 2)], [x, (x.T, 3)], (x, (x.T, 2)), [x, x.T, 2]]
    others = [*((y, {"a": x}) for y in lists), ([x, (x.T, 2)], {"c": x})]
    assert all(_like(other, {"b": None}) != like for other in others)
    assert _like(([x, object()],), {}) is None and _like(([x.clone().requires_grad_()],), {}) is None


@pytest.mark.filterwarnings("ignore")
def test_states_are_said_to_be_those_of_a_copy() -> None:
    with pytest.warns(LeftToTorch, match=r"write to the states of its \.module, a copy"):
        fuser.compile(Counts("written").eval(), (torch.randn(3, 8),), device="cpu")
