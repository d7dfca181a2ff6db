"""Elements that are picked of softmaxes: the same numbers, of a program without the softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from search.cover.picked import picked

ROWS, COLUMNS = 600, 1024


def program(make: Any, dtype: str = "float32", axis: int = 1, few: int = 2, more: bool = False) -> TensorProgram:
    """What is made of X, of which ``few`` elements of each row are picked; ``more``: all of it is a result besides."""
    b = Builder("picked")
    shape = (ROWS, COLUMNS) if axis == 1 else (COLUMNS, ROWS)
    y = make(b, b.input("X", shape, dtype))
    index = b.input("I", (ROWS, few) if axis == 1 else (few, ROWS), "int64")
    found = b.op("gather", y, index, dim=axis)
    return b.build(Z=found, Y=y) if more else b.build(Z=found)


def log_softmax(b: Builder, x: Ref) -> Ref:
    return b.op("log_softmax", x, axis=1)


def tempered(b: Builder, x: Ref) -> Ref:
    """With numbers of each row, and of all, in front and behind."""
    t = b.input("T", (ROWS, 1), "float32")
    return b.op("exp", b.op("softmax", x * t, axis=1) * 0.5 - t)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("make", [log_softmax, tempered])
def test_elements_are_picked_of_what_a_softmax_is_made_of(make: Any, dtype: str) -> None:
    before = program(make, dtype)
    after = picked(before)
    (gather,) = (n for n in after.nodes if n.op == "gather")
    assert gather.inputs[0] == "X" and not any("softmax" in n.op for n in after.nodes)
    assert after.outputs == before.outputs and after["Z"] == before["Z"]
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"X": 30 * rng.standard_normal((ROWS, COLUMNS)), "I": rng.integers(0, COLUMNS, (ROWS, 2))}
    given |= {"T": rng.standard_normal((ROWS, 1))} if "T" in before.inputs else {}
    (one,), (other,) = (p.evaluate(given).values() for p in (before, after))
    np.testing.assert_allclose(other, one, rtol=1e-12)


def test_of_columns_as_of_rows() -> None:
    after = picked(program(lambda b, x: b.op("softmax", x, axis=0), axis=0))
    assert not any(n.op == "softmax" for n in after.nodes)


@pytest.mark.parametrize(
    "other",
    [
        program(log_softmax, more=True),
        program(log_softmax, few=COLUMNS // 2),
        program(lambda b, x: b.op("log_softmax", x, axis=0)),
        program(lambda b, x: b.op("relu", x)),
        program(lambda b, x: b.op("cumsum", b.op("log_softmax", x, axis=1), dim=1)),
    ],
    ids=["all is wanted", "most is picked", "along another axis", "no softmax", "sums between"],
)
def test_what_gains_nothing_stays(other: TensorProgram) -> None:
    assert picked(other) is other


def test_what_several_pick_and_others_fold_is_never_written() -> None:
    """Elements of each row for two losses, and its entropy: no softmax is left; one that a result needs whole stays."""

    def made(whole: bool) -> TensorProgram:
        b = Builder("losses", "float32")
        x, first, second = b.input("X", (ROWS, COLUMNS)), b.input("I", (ROWS, 1), "int64"), b.input("J", (ROWS, 3), "int64")
        y = b.op("log_softmax", x, axis=1)
        entropy = b.op("sum", b.op("exp", y) * y, axis=(1,))
        more = {"W": b.op("cumsum", y, dim=1)} if whole else {}
        return b.build(A=b.op("gather", y, first, dim=1), B=b.op("exp", b.op("gather", y, second, dim=1)), E=entropy, **more)

    before = made(False)
    after, rng = picked(before), np.random.default_rng(0)
    assert not any("softmax" in n.op for n in after.nodes) and sum(n.op == "gather" for n in after.nodes) == 2
    assert {n.inputs[0] for n in after.nodes if n.op == "gather"} == {"X"}
    given = {"X": 30 * rng.standard_normal((ROWS, COLUMNS))}
    given |= {n: rng.integers(0, COLUMNS, (ROWS, k)) for n, k in (("I", 1), ("J", 3))}
    for one, other in zip(before.evaluate(given).values(), after.evaluate(given).values(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)
    needed = made(True)
    assert picked(needed) is needed


def test_large_logits_do_not_overflow_between_kernels() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import fuser

    class Picked(torch.nn.Module):
        def forward(self, x: Any, places: Any) -> Any:
            return torch.softmax(x, -1).gather(1, places)

    x = 300 * torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    places = x.topk(2, -1)[1]
    found = fuser.compile(Picked(), (x, places), device="cpu")
    torch.testing.assert_close(found(x, places).double(), Picked()(x.double(), places), rtol=1e-5, atol=1e-7)


def test_what_is_read_twice_at_each_step_is_looked_at_once() -> None:
    """A chain of 24 steps, each of which reads the one in front twice, has 2 to the 24 paths."""

    def made(b: Builder, x: Ref) -> Ref:
        y = b.op("log_softmax", x, axis=1)
        for _ in range(24):
            y = y * b.op("tanh", y)
        return y

    assert not any("softmax" in n.op for n in picked(program(made)).nodes)
