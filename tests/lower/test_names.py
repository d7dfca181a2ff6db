"""Names in generated source: what the lowering adds never takes the name of a value."""

from __future__ import annotations

import pytest

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.triton_source import generate
from fuser.superopt.structures import one_kernel
from tests.interpreted import checked


def divided(name: str, kept: str, rows: int = 32) -> TensorProgram:
    """Y = X / sum(X) and something beside it that is needed afterwards."""
    b = Builder("divided")
    x = b.input("X", (rows, 32))
    other = b.op("scale", b.op("exp", x), name=kept, scalar=2.0)
    quotient = b.op("div", x, b.op("sum", b.op("square", x), axis=(1,), keepdims=True), name=name)
    return b.build(Y=quotient + other)


@pytest.mark.parametrize("kept", ["y_inv", "X_f32", "i_m", "X_ptr", "first", "lambda", "min", "pid"])
def test_values_may_have_any_name(kept: str) -> None:
    program = divided("y", kept)
    graph = one_kernel(program)
    (block,) = graph.blocks
    tiles = tuple((a.name, 16 if i == 0 else 32) for i, a in enumerate(block.axes))
    schedule = KernelSchedule(tiles, TilingExpr.parse(""), (), 4, 2)
    source = generate(block, schedule)
    compile(source.text, source.name, "exec")
    found = checked(program, graph, Schedule((schedule,)))
    assert found.passed, found


@pytest.mark.parametrize("kept", ["y_n0", "y_m0", "i_m0"])
def test_a_value_may_be_called_like_a_piece_of_another(kept: str) -> None:
    program = divided("y", kept, rows=96)
    graph = one_kernel(program)
    (block,) = graph.blocks
    first = block.axes[0].name
    schedule = KernelSchedule(((first, 48),), TilingExpr.parse(""), (), 4, 2)  # rows in pieces of 32 and 16
    found = checked(program, graph, Schedule((schedule,)))
    assert found.passed, found
