"""Modules that keep tensors of a call in attributes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402


class Layer(torch.nn.Module):
    """It keeps the weights of its attention, and more in a tuple and a dictionary; a mask that it makes depends on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)
        self.attention: Any = None

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.mask = torch.ones(x.shape[-2], x.shape[-2]).tril()
        self.attention = ((q @ k.transpose(-1, -2)) * self.mask).softmax(-1)
        self.seen = {"last": (self.attention[:, -1], v)}
        return self.attention @ v


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x)
        self.out = x
        return x


def kept(module: Any) -> list[Any]:
    return [module.out, *(t for m in module.layers for t in (m.attention, *m.seen["last"]))]


def test_what_a_module_keeps_to_be_looked_at_is_there_after_a_call() -> None:
    """Compiling leaves the module as it is; its attributes are set by each call, as the module itself sets them."""
    torch.manual_seed(0)
    module, x = Stack().eval(), torch.randn(2, 4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    assert type(run).__name__ == "CompiledProgram"
    assert [m.attention for m in module.layers] == [None, None] and not hasattr(module, "out")
    for given in (x, -x):
        other = copy.deepcopy(module)
        with torch.no_grad():
            torch.testing.assert_close(run(given), other(given))
        for got, want in zip(kept(module), kept(other), strict=True):
            torch.testing.assert_close(got, want)
    assert torch.equal(run(x), module.out), "the result and what is kept of it are alike"
    before = module.out
    again = pickle.loads(pickle.dumps(run.program))
    assert again == run.program and module.out is before


def test_a_program_outlives_its_module() -> None:
    run = fuser.compile(Stack().eval(), (torch.zeros(2, 4, 8),), device="cpu")
    assert run(torch.zeros(2, 4, 8)).shape == (2, 4, 8)


class Cached(torch.nn.Module):
    """What it keeps of a call it reads in the next, or looks whether it is there, or how large."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = torch.nn.Linear(8, 8), how
        self.last: Any = torch.zeros(4, 8) if how == "read" else None
        self.list: Any = []

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        if self.how == "appended":
            self.list.append(y)
        elif self.how == "a constant":
            y = y * torch.tensor(1.0 if self.last is None else 2.0)
        elif self.how == "strides":
            y = y * (1 if self.last is None or self.last.is_contiguous() else 2)
            self.last = y.T
            return y
        elif self.how == "the input":
            y = y * 2 if self.last is x else y
            self.last = x
            return y
        elif self.how == "another attribute" and self.last is not None:
            self.other = y
            return y
        elif self.how == "read":
            y = y + self.last
        elif self.last is not None:
            y = y * 2 if self.how == "there" else y + self.last.shape[0] * self.last.mean()
        first, self.last = self.last is None, y
        return {"first" if first else "later": y} if self.how == "names" else y.relu()


WAYS = [
    *("read", "there", "read when there", "appended", "a constant", "strides", "the input", "another attribute", "names"),
]


@pytest.mark.parametrize("how", WAYS)
def test_what_the_next_call_reads_is_no_further_result(how: str) -> None:
    module, x = Cached(how).eval(), torch.randn(4, 8)
    held = dict(vars(module))
    with pytest.raises(UnsupportedError, match=r"(keeps last of a call|changes list at each call|keeps an input in last)"):
        from_torch(module, (x,))
    assert vars(module) == held


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", WAYS)
def test_it_runs_in_pieces(how: str) -> None:
    module, x = Cached(how).eval(), torch.randn(4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    with torch.no_grad():
        for given in (x, x, -x, x):
            torch.testing.assert_close(run(given), module(given))


class Scales(torch.nn.Module):
    """It sets an attribute that no one else may set, and one by a setter."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Layer()

    @property
    def out(self) -> Any:
        return self.__dict__["out"]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 10 if name == "scaled" else value)

    def forward(self, x: Any) -> Any:
        self.scaled = y = self.part(x)
        self.__dict__["out"] = y + 1
        return y


def test_setters_run_once_and_parts_may_be_gone() -> None:
    module, x = Scales().eval(), torch.randn(2, 4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    y = run(x)
    torch.testing.assert_close(module.scaled, 10 * y)
    torch.testing.assert_close(module.out, y + 1)
    del module.part
    torch.testing.assert_close(run(x), y)


class Placed(torch.nn.Module):
    """Each call moves a buffer to where its inputs are."""

    def __init__(self, how: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(32.0).reshape(4, 8))
        self.linear = torch.nn.Linear(8, 8)
        self.how = how

    def forward(self, x: Any) -> Any:
        self.positions = self.how(self.positions, x)
        return self.linear(x) + self.positions


@pytest.mark.parametrize("how", [lambda p, x: p.to(x.device), lambda p, x: p.to(x.dtype), lambda p, x: p.to(x).contiguous()])
def test_a_buffer_that_stays_as_it_is_is_not_written_to(how: Callable[[Any, Any], Any]) -> None:
    module, x = Placed(how).eval(), torch.randn(4, 8)
    exported = torch.export.export(module, (x,))
    before = str(exported.graph)
    for given in (module, exported):
        known = from_torch(given, (x,))
        assert known.inputs == ("x",) and len(known.program.outputs) == 1
    assert str(exported.graph) == before
    torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x), module(x))


def test_one_that_changes_is() -> None:
    with pytest.raises(UnsupportedError, match="writes to positions"):
        from_torch(Placed(lambda p, x: (p + 1).to(x.device)).eval(), (torch.randn(4, 8),))
