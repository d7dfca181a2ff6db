"""Products with few terms as multiplications and additions."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.few_terms import written_out
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verifier import verify
from search.tune import tune_fast
from tests.interpreted import checked


def product(terms: int, dtype: str = "float32", turned: bool = False) -> TensorProgram:
    b = Builder("points", dtype)
    x, r = b.input("X", (5, 40, terms)), b.input("R", (5, 6, terms) if turned else (5, terms, 6))
    return b.build(Y=x @ (r.transpose(0, 2, 1) if turned else r) + b.input("T", (5, 1, 6)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("turned", [False, True])
def test_they_are_the_same(dtype: str, turned: bool) -> None:
    program, rng = product(3, dtype, turned), np.random.default_rng(0)
    made = written_out(program)
    assert made is not None and not any(n.contracts for n in made.nodes)
    values = program.random_inputs(rng)
    np.testing.assert_allclose(made.evaluate(values)["Y"], program.evaluate(values)["Y"], rtol=1e-12)
    (graph,) = (g for g in structures(program) if not any(s.contracts for b in g.blocks for s in b.computes))
    assert isinstance(verify(program, graph), Accepted)
    checked(program, graph, tune_fast(program, load_device("h100"), graphs=(graph,)).winner.schedule)


@pytest.mark.parametrize("terms", [1, 5])
def test_others_stay(terms: int) -> None:
    assert written_out(product(terms)) is None


def test_beside_slices_of_the_program() -> None:
    b = Builder("beside", "float32")
    x, r = b.input("X", (5, 40, 3)), b.input("R", (5, 3, 6))
    program = b.build(Y=(x @ r) * b.op("slice", x, axis=2, start=1, stop=2))
    (graph,) = (g for g in structures(program) if not any(s.contracts for k in g.blocks for s in k.computes))
    checked(program, graph, tune_fast(program, load_device("h100"), graphs=(graph,)).winner.schedule)
