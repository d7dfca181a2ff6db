"""Forms of products of a few rows: an axis for a single row, and the sums of several kernels split."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.superopt.rewrite.splits import split_reductions
from fuser.superopt.structures import structures


def gated(rows: int, turned: bool = False) -> TensorProgram:
    """A normalized gated MLP with the product that ends it."""
    b = Builder("gated")
    x, g = b.input("X", (rows, 12)), b.input("G", (12,))
    w, u, d = (b.input(n, (s[1], s[0]) if turned else s) for n, s in (("W", (12, 20)), ("U", (12, 20)), ("D", (20, 12))))
    h = b.rms_norm(x, g)
    return b.build(Y=(b.silu(h @ (w.T if turned else w)) * (h @ (u.T if turned else u))) @ (d.T if turned else d))


def has_row(graph: KernelGraph) -> bool:
    return any(a.extent == 1 for b in graph.blocks for a in b.axes)


@pytest.mark.parametrize("rows", [1, 3])
def test_every_form_computes_the_program(rows: int, rng: np.random.Generator) -> None:
    program = gated(rows)
    inputs = program.random_inputs(rng)
    expected = program.evaluate(inputs)["Y"]
    found = structures(program)
    assert any(map(has_row, found)) == (rows == 1)
    assert any(sum(bool(b.splits) for b in g.blocks) == 2 for g in found)  # both products by parts
    for graph in found:
        schedule = Schedule(
            tuple(
                KernelSchedule(
                    (tuple((a, 5) for a, _ in b.splits)), splits=tuple((a.name, 2) for a in b.axes if a.extent == FREE)
                )
                for b in graph.blocks
            )
        )
        np.testing.assert_allclose(interpret(graph, schedule, inputs)["Y"], expected, rtol=1e-6, atol=1e-8)


def test_rows_of_a_weight_that_are_summed_along_memory_need_no_axis() -> None:
    assert not any(map(has_row, structures(gated(1, turned=True))))


def test_many_rows_have_the_forms_that_they_had() -> None:
    b = Builder("tall")
    chain = b.build(Y=(b.input("X", (64, 32)) @ b.input("W", (32, 32))) @ b.input("V", (32, 32)))
    assert all(sum(bool(k.splits) for k in g.blocks) < 2 for g in structures(chain))


def test_the_sum_of_parts_is_not_split_again() -> None:
    found = [again for g in structures(gated(3)) for again in split_reductions(g)]
    axes = [axis for g in found for b in g.blocks for axis, _ in b.splits]
    assert axes and not any(axis.endswith("_part") for axis in axes)
