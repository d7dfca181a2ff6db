"""Constants that a µGraph writes in other words than its program."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import KernelGraph
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verifier import verify
from tests.builders import edit


def _scaled(graph: KernelGraph, scalar: Scalar | float) -> KernelGraph:
    """Another constant in the first scaling of a µGraph."""
    s = next(s for s in graph.blocks[0].computes if s.op == "scale")
    return edit(graph, s.value, attrs=(("scalar", Scalar.of(scalar) if isinstance(scalar, float) else scalar),))


def test_constants_are_those_of_the_real_size() -> None:
    """The same number in other words is the same; a number of another size is not, whatever the test's sizes are."""
    b = Builder("attention")
    q, k, v = b.input("Q", (2, 256, 64)), b.input("K", (2, 64, 64)), b.input("V", (2, 64, 48))
    program = b.build(O=b.attention(q, k, v))
    for graph in (fuse(program), *structures(program)):
        if graph.blocks[0].splits:
            continue
        same = (0.125, Scalar.power(Extent("n", AXIS), Fraction(-1, 2)), Scalar.power(Extent("m", AXIS), Fraction(-3, 8)))
        for right in same:
            assert isinstance(verdict := verify(program, _scaled(graph, right)), Accepted), f"{right}: {verdict}"
        other = (0.25, Scalar.power(Extent("m", AXIS), Fraction(-1, 2)), Scalar.power(Extent("k", AXIS), Fraction(-1)))
        for wrong in (*other, *(float(n) ** -0.5 for n in (5, 7, 9, 11, 63, 65)), 0.125 * (1 + 1e-12)):
            assert isinstance(verify(program, _scaled(graph, wrong)), Rejected), wrong
        break


@pytest.mark.parametrize("width", [64, 80, 128, 96])
def test_roots_of_constants(width: int) -> None:
    """Queries and keys are scaled by a fourth root each, which is the square root of their product."""
    b = Builder("attention")
    q, k = b.input("Q", (32, width)), b.input("K", (24, width))
    program = b.build(S=(q @ k.T) * Scalar.power(width, Fraction(-1, 2)))
    for exponent, right in ((-4, True), (-3, False)):
        b = Builder("rooted")
        q, k = (b.input(n, (rows, width)) * Scalar.power(width, Fraction(1, exponent)) for n, rows in (("Q", 32), ("K", 24)))
        assert verify(program, fuse(b.build(S=q @ k.T))).accepted == right
    assert verify(program, _scaled(fuse(program), width**-0.5)).accepted, "the nearest double"


def test_constants_that_count() -> None:
    """Five repetitions are a factor of five; the mean of as many is none."""
    b = Builder("repeats")
    program = b.build(Y=b.sum(b.op("repeat", b.input("X", (24, 40)), axis=1, times=5), 1))
    for factor in (5, 4, 7):
        b = Builder("factor")
        assert verify(program, fuse(b.build(Y=b.sum(b.input("X", (24, 40)), 1) * factor))).accepted == (factor == 5)
