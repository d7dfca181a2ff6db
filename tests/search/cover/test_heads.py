"""Heads that one matrix multiplies."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
from fuser.ir.builder import Ref
from search.cover.heads import together

CASES = {  # heads of each part of 5 heads of 16, and whether they are turned by the same matrix
    "neighbours": ([(0, 3), (3, 5)], "RR", 1),
    "the first behind": ([(2, 5), (1, 2)], "RR", 1),
    "a gap between": ([(0, 2), (3, 5)], "RR", 2),
    "one twice": ([(0, 3), (0, 3)], "RR", 2),
    "two matrices": ([(0, 3), (3, 5)], "RS", 2),
    "one of three": ([(0, 2), (2, 4), (4, 5)], "RRS", 2),
}


@pytest.mark.parametrize(("parts", "matrices", "products"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("turned", [True, False])
def test_heads_side_by_side_are_one_product(
    parts: list[tuple[int, int]], matrices: str, products: int, turned: bool, rng: np.random.Generator
) -> None:
    b = fuser.Builder("heads")
    x = b.input("x", (2, 7, 80))
    right = {n: b.input(n, (16, 16)) for n in sorted(set(matrices))}

    def heads(start: int, stop: int, matrix: Ref) -> Ref:
        y = b.op("slice", x, axis=2, start=16 * start, stop=16 * stop).reshape(2, 7, stop - start, 16)
        return (b.op("transpose", y, perm=(0, 2, 1, 3)) if turned else y) @ matrix

    before = b.build(**{f"y{i}": heads(*part, right[m]) for i, (part, m) in enumerate(zip(parts, matrices, strict=True))})
    values = {n: rng.standard_normal(before[n].shape) for n in before.inputs}
    after = together(before, {n: values[n] for n in right})
    assert sum(n.contracts for n in after.nodes) == products
    for name, wanted in before.evaluate(values).items():
        np.testing.assert_allclose(after.evaluate(values)[name], wanted, rtol=1e-12)


def test_what_is_no_parameter_or_turns_inside_heads_stays() -> None:
    b = fuser.Builder("heads")
    x, r = b.input("x", (4, 64)), b.input("r", (16, 16))
    low, high = (b.op("slice", x, axis=1, start=s, stop=s + 32).reshape(4, 2, 16) for s in (0, 32))
    program = b.build(y=low @ r, z=high @ r)
    assert together(program, {}) is program
    b = fuser.Builder("inside")
    x, r = b.input("x", (16, 512)), b.input("r", (16, 16))
    low, high = (b.op("slice", x, axis=1, start=s, stop=s + 256).reshape(16, 16, 16) for s in (0, 256))
    program = b.build(y=b.op("transpose", low, perm=(0, 2, 1)) @ r, z=b.op("transpose", high, perm=(0, 2, 1)) @ r)
    assert together(program, {"r": np.eye(16)}) is program
