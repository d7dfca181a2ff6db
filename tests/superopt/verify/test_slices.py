"""Slices that a µGraph reads otherwise than the program, and that come to the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.windows import windowed
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verifier import verify


def as_read(program: TensorProgram) -> KernelGraph:
    """One kernel that reads a program's slices through windows."""
    boxes = windowed(program)
    return boxes.attach(fuse(boxes.program))


def part(b: Builder, x: Ref, axis: int, start: int, stop: int) -> Ref:
    return b.op("slice", x, axis=axis, start=start, stop=stop)


def product(cuts: Sequence[int], shift: int = 0) -> TensorProgram:
    """X W as the sum of products of pieces, the columns of X moved by ``shift`` in the second piece."""
    b = Builder("pieces")
    x, w = b.input("X", (48, 120)), b.input("W", (120, 32))
    ends = (0, *cuts, 120)
    total = None
    for i, (low, high) in enumerate(itertools.pairwise(ends)):
        move = shift if i == 1 else 0
        term = part(b, x, 1, low + move, high + move) @ part(b, w, 0, low, high)
        total = term if total is None else total + term
    assert total is not None
    return b.build(Y=total)


@pytest.mark.parametrize("cuts", [(60,), (100,), (30, 60), (1, 2, 119)])
def test_a_sum_in_pieces(cuts: tuple[int, ...]) -> None:
    whole, halves = product(()), product((60,))
    pieces = as_read(product(cuts))
    for program in (whole, halves):
        assert isinstance(verdict := verify(program, pieces, rounds=2), Accepted), verdict
    assert isinstance(verdict := verify(product(cuts), fuse(whole), rounds=2), Accepted), verdict
    for graph in structures(product(cuts)):
        assert isinstance(verify(whole, graph, rounds=2), Accepted)
    for move in (-1, 1) if cuts[0] != 100 else (-1,):
        if (cuts[1] if len(cuts) > 1 else 120) + move <= 120:
            moved = as_read(product(cuts, move))
            assert isinstance(verify(whole, moved, rounds=2), Rejected)


def test_halves_and_pairs_of_columns() -> None:
    """The rows' sum over even and odd columns is the whole sum; gating pairs them, so even and odd are not halves there."""

    def columns(gate: bool, pairs: bool) -> TensorProgram:
        b = Builder("columns")
        x = b.input("X", (40, 64))
        if pairs:
            x = x.reshape(40, 32, 2)
            one, two = (part(b, x, 2, i, i + 1).reshape(40, 32) for i in (0, 1))
        else:
            one, two = part(b, x, 1, 0, 32), part(b, x, 1, 32, 64)
        return b.build(Y=b.sum(one * b.op("sigmoid", two) if gate else one + two, 1))

    for gate in (False, True):
        for pairs in (False, True):
            verdict = verify(columns(gate, False), as_read(columns(gate, pairs)), rounds=2)
            assert isinstance(verdict, Rejected if gate and pairs else Accepted), (gate, pairs, verdict)


def test_layers_of_one_weight() -> None:
    """The same weights as slices of three axes and of two."""

    def layers(flat: bool, order: Sequence[int]) -> TensorProgram:
        b = Builder("layers")
        x, w = b.input("X", (24, 32)), b.input("W", (4, 32, 32))
        for i in order:
            rows = part(b, w.reshape(128, 32), 0, 32 * i, 32 * i + 32) if flat else part(b, w, 0, i, i + 1).reshape(32, 32)
            x = b.relu(x @ rows)
        return b.build(Y=x)

    program = layers(False, (0, 1, 3))
    assert isinstance(verify(program, as_read(layers(True, (0, 1, 3)))), Accepted)
    assert isinstance(verify(program, as_read(layers(True, (0, 3, 1)))), Rejected)


def test_windows_that_are_too_large_are_not_decided() -> None:
    """A window that is cut in both dimensions needs their real extents, and these are too many."""

    def total(cut: int) -> TensorProgram:
        b = Builder("total")
        x = b.input("X", (1 << 14, 1 << 14))
        found = None
        for rows in ((0, cut), (cut, 1 << 14)):
            for columns in ((0, cut), (cut, 1 << 14)):
                piece = b.op("sum", part(b, part(b, x, 1, *columns), 0, *rows), axis=(0, 1))
                found = piece if found is None else found + piece
        assert found is not None
        return b.build(Y=found)

    verdict = verify(total(99), as_read(total(100)), rounds=1)
    assert isinstance(verdict, Unknown)
    assert "small enough" in verdict.why or "other slices" in verdict.why
