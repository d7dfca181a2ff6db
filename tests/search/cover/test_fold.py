"""What parameters alone decide, and how it lies."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from search.cover.fold import folded


def program(read: str) -> TensorProgram:
    """A table of positions, heads last, is looked up, and its heads are turned to the front; ``read`` says what for."""
    b = Builder("table", "float32")
    table = b.op("exp", b.input("T", (6, 5, 2)))
    if read == "a parameter":
        table = b.input("T2", (6, 5, 2))
    turned = table.transpose(2, 0, 1)
    x = b.input("X", (2, 6, 6 if read == "a product" else 5))
    outputs: dict[str, Ref] = {"Y": x @ turned if read == "a product" else x + turned}
    if read == "twice":
        outputs["Z"] = b.input("V", (6, 5, 2)) * table
    return b.build(**outputs)


@pytest.mark.parametrize(("read", "lies"), [("a sum", True), ("a product", False), ("twice", False), ("a parameter", False)])
def test_what_is_computed_lies_as_its_only_reader_sees_it(read: str, lies: bool, rng: np.random.Generator) -> None:
    whole = program(read)
    given = {n: rng.standard_normal(whole[n].shape) for n in whole.inputs}
    small, held = folded(whole, {n: x.astype(np.float32) for n, x in given.items() if n.startswith("T")})
    assert ("transpose" not in {n.op for n in small.nodes}) is lies
    assert all(x.flags.c_contiguous for x in held.values())
    found = small.evaluate({**{n: given[n] for n in small.inputs if n in given}, **held})
    for n, y in whole.evaluate(given).items():
        np.testing.assert_allclose(found[n], y, rtol=1e-5)
