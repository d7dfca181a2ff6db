"""A session's inputs and its comparison: what is right is taken, what is wrong is not, whatever the reference holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fuser
from fuser.agreement import ODD
from fuser.ir.program import TensorProgram
from fuser.lower.check import check_here
from fuser.runtime.torch_program import run_program
from search.measure.session import Options
from search.measure.session import Session
from search.tune import tune_fast


def program(op: str, dtype: str = "float16", **attrs: Any) -> TensorProgram:
    b = fuser.Builder(op, dtype)
    x = b.input("X", (48, 40))
    if op == "exp":
        x = b.op("scale", x, scalar=100)
    return b.build(Y=b.op(op, x, b.input("Z", (48, 40))) if op == "div" else b.op(op, x, **attrs))


@pytest.mark.parametrize(("op", "attrs"), [("sqrt", {}), ("rsqrt", {}), ("div", {}), ("exp", {}), ("scale", {"scalar": 10**6})])
def test_right_results_are_taken_and_constants_are_not(op: str, attrs: dict[str, Any]) -> None:
    p = program(op, **attrs)
    session = Session(p, Options(), "cpu")
    assert float(torch.isfinite(session.reference["Y"]).double().mean()) > 0.9
    right = run_program(p, session.check_inputs)
    assert session.compare(right).ok
    for value in (0.0, 1.0, 12344.0):
        assert session.compare({"Y": torch.full_like(right["Y"], value)}).status == "wrong"
    assert session.compare({"Y": torch.full_like(right["Y"], math.nan)}).status == "nan"
    assert session.compare(session.poisoned()).status == "nan"


def test_what_is_not_written_shows_where_everything_is_nan() -> None:
    b = fuser.Builder("nowhere")
    x = b.input("X", (8, 8))
    p = b.build(Y=b.op("sqrt", b.op("shift", b.op("neg", b.op("sigmoid", x)), scalar=-1)))
    session = Session(p, Options(), "cpu")
    assert bool(torch.isnan(session.reference["Y"]).all())
    assert float(session.poisoned()["Y"][0, 0]) == ODD
    assert session.compare(run_program(p, session.check_inputs)).ok
    assert session.compare(session.poisoned()).status == "wrong"


@pytest.mark.parametrize(("dtype", "passes"), [("float16", True), ("float32", False)])
def test_a_check_of_float32_is_ten_times_as_strict(dtype: str, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = program("relu", dtype)
    winner = tune_fast(p, fuser.load_device("h200")).winner
    assert check_here(p, winner.candidate, 0, "numpy").passed
    from fuser.lower import check

    exact = check.interpret

    def off(*given: Any, **named: Any) -> dict[str, Any]:
        factor = 1 + 5e-3 * ("dtype" in named)  # the µGraph, not its reference
        return {n: x * factor for n, x in exact(*given, **named).items()}

    monkeypatch.setattr(check, "interpret", off)
    found = check_here(p, winner.candidate, 0, "numpy")
    assert found.passed == passes
    assert bool(found.message) != passes
    assert found.error == pytest.approx(5e-3, rel=0.05)
