"""The table of reductions, and that each of them becomes a program."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from experiments.reductions import CASES  # noqa: E402
from experiments.reductions import Function  # noqa: E402
from experiments.reductions import table  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402


def test_the_slowest_comes_first_and_failures_last() -> None:
    one = {"floor": 1.0, "eager": 9.0, "eager_error": 0.0, "ours_error": 1e-7}
    rows = [
        {"name": "x", "failed": "why"},
        {"name": "a", "inductor": 4.0, "ours": 1.0, **one},
        {"name": "b", "inductor": 1.0, "ours": 4.0, **one},
    ]
    lines = table(rows).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["b", "a", "x"]
    assert lines[-1] == "1.00 x inductor in the geometric mean; 1 of 2 below 0.95"


@pytest.mark.parametrize("name", ["bce", "kl", "midmean"])
def test_a_case_leaves_nothing_to_torch(name: str) -> None:
    function, dtype, shapes = CASES[name]
    program = from_torch(Function(function).eval(), tuple(torch.empty(1, dtype=dtype).expand(s) for s in shapes)).program
    made = [n.op for n in program.nodes]
    assert "opaque" not in made
    assert ("log_sigmoid" in made) == (name == "bce")
