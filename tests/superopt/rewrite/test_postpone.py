"""Divisions are as late as the linearity of their users allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.verify.verifier import verify


def normalized(b: Builder, x: Ref, rows: int) -> Ref:
    return x / b.op("sqrt", b.sum(b.op("square", x), 1)).reshape(rows, 1)


def cosine() -> TensorProgram:
    b = Builder("cosine")
    x, z = (b.input(n, (6, 40)) for n in "XZ")
    return b.build(Y=b.sum(normalized(b, x, 6) * normalized(b, z, 6), 1))


def spread() -> TensorProgram:
    """The second quotient is smaller than what the product computes."""
    b = Builder("spread")
    x, c = b.input("X", (6, 40)), b.input("C", (40,))
    return b.build(Y=b.sum(normalized(b, x, 6) * (c / b.sum(b.op("square", c), 0)), 1))


@pytest.mark.parametrize(("program", "behind", "inside"), [(cosine(), 2, 0), (spread(), 1, 1)])
def test_quotients_leave_a_sum_unless_a_larger_tensor_is_divided_instead(
    program: TensorProgram, behind: int, inside: int
) -> None:
    graph = fuse(program)
    (block,) = (late := replace(graph, kernels=tuple(map(postpone_divisions, graph.blocks)))).blocks
    summed = next(i for i, s in enumerate(block.stmts) if s.value == "Y_top")
    divided = [i for i, s in enumerate(block.stmts) if s.kind == "compute" and s.divides]
    assert (sum(i > summed for i in divided), sum(i < summed for i in divided)) == (behind, inside)
    assert verify(program, late).accepted
