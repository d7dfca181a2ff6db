"""Rules for one element beside what the op table says of whole tensors, and places as whole-number expressions."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
from fuser.errors import UnsupportedError
from fuser.ir.element_program import by_elements
from fuser.ir.elements import Recipe
from fuser.ir.elements import by_element
from fuser.ir.elements import by_recipe
from fuser.ir.elements import tape_of
from fuser.ir.ops import OPS
from fuser.ir.places import atoms_of
from fuser.ir.places import coordinate
from fuser.ir.places import evaluated
from fuser.ir.places import flat
from fuser.ir.places import split
from tests.operators import ATTRS
from tests.operators import INDICES
from tests.operators import operands

RULES = sorted(n for n, e in OPS.items() if e.element is not None)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_the_operator(name: str, rng: np.random.Generator) -> None:
    whole = INDICES.get(name, {})
    xs = [rng.integers(0, whole[i], s) if i in whole else rng.standard_normal(s) for i, s in enumerate(operands(name))]
    attrs = ATTRS.get(name, {})
    np.testing.assert_allclose(by_element(OPS[name], xs, attrs), OPS[name].numpy(*xs, **attrs), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in RULES if n in INDICES])
def test_an_index_beside_its_axis_reads_nothing(name: str, rng: np.random.Generator) -> None:
    """What is there instead nobody takes for a number of the tensor."""
    x, i = rng.standard_normal((5, 4)).astype(np.float32), np.array([[1, 10**12], [-6, 5]])
    attrs = {"gather": {"dim": 0}, "index_select": {"dim": 0}, "index": {"dims": (0,)}}.get(name, {})
    i = i.reshape(-1) if name == "index_select" else i
    for table, none in ((x, np.nan), ((9 * x).astype(np.int64), np.iinfo(np.int64).min)):
        found = by_element(OPS[name], (table, i), attrs)
        assert found.reshape(-1)[0] == table[1, 0]
        wrong = found.reshape(4, -1)[1:]
        np.testing.assert_array_equal(wrong, np.full_like(wrong, none))


def test_a_program_is_one_kernel(rng: np.random.Generator) -> None:
    b = fuser.Builder("moved", "float32")
    x, y = b.input("x", (4, 6)), b.input("y", (4, 3))
    rolled = b.op("concat", b.op("slice", x, axis=1, start=4, stop=6), b.op("slice", x, axis=1, start=0, stop=4), axis=1)
    z = b.op("concat", b.op("relu", rolled), b.op("cast", y, dtype="float16"), axis=1, dtype="float32")
    program = b.build(z=b.op("maximum", z.transpose(1, 0).reshape(3, 12), b.op("broadcast", b.input("n", (12,)), shape=(3, 12))))
    (kernel,) = by_elements(program)
    given = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    found = by_recipe(*(given[n] for n in kernel.args), **dict(kernel.attrs))
    np.testing.assert_array_equal(found, program.evaluate(given)["z"])


def test_a_kernel_of_hundreds_of_loads_is_refused_as_soon_as_they_are_seen() -> None:
    """Seven steps of a butterfly read 128 elements for each of a result."""
    b = fuser.Builder("butterfly", "float32")
    y = b.input("x", (4, 128))
    for _ in range(7):
        left, right = (b.op("slice", y, axis=1, start=i, stop=i + 64) for i in (0, 64))
        both = (z.reshape(4, 64, 1) for z in (left + right, left - right))
        y = b.op("concat", *both, axis=2).reshape(4, 128)
    (kernel,) = by_elements(b.build(y=y))
    recipe = Recipe.read(dict(kernel.attrs)["program"])
    with pytest.raises(UnsupportedError, match="more than 96 loads"):
        tape_of(recipe.elements, recipe.result)


def test_exponentials_that_need_a_maximum_are_left_to_blocks() -> None:
    b = fuser.Builder("softmax", "float32")
    assert by_elements(b.build(y=b.softmax(b.input("x", (4, 6)).T))) == ()


def test_what_a_reshape_joins_another_splits_again() -> None:
    at = tuple(map(coordinate, range(4), (2, 3, 4, 5)))
    assert split(flat(split(flat(at, (2, 3, 4, 5)), (6, 20)), (6, 20)), (2, 3, 4, 5)) == at
    shuffled = {"y": ("reshape", ("t",), {"shape": (2, 6, 20)}), "t": ("transpose", ("r",), {"perm": (0, 2, 1, 3)})}
    nodes = {"r": ("reshape", ("x",), {"shape": (2, 3, 2, 20)}), "t": shuffled["t"], "y": shuffled["y"]}
    tensors = {n: (s, "float32") for n, s in zip("xrty", ((2, 6, 20), (2, 3, 2, 20), (2, 2, 3, 20), (2, 6, 20)), strict=True)}
    tape = tape_of(Recipe(("x",), nodes, tensors).elements, "y")
    assert {a.kind for s in tape.loads for a in atoms_of(s.at)} == {"coordinate", "quotient", "remainder"}
    assert len(tape.steps) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 12])
def test_quotients_and_remainders_round_down(n: int, rng: np.random.Generator) -> None:
    a, b = coordinate(0, 7), coordinate(1, 12)
    for _ in range(20):
        c, d, e = (int(x) for x in rng.integers(-9, 9, 3))
        p = a * c + b * d + e
        known = {a.terms[0][0]: np.arange(7)[:, None], b.terms[0][0]: np.arange(12)}
        want = np.arange(7)[:, None] * c + np.arange(12) * d + e
        for found, truth in (
            (p // n, want // n),
            (p % n, want % n),
            (p.at_least(3), np.maximum(want, 3)),
            (p.magnitude(), abs(want)),
        ):
            np.testing.assert_array_equal(np.broadcast_to(evaluated(found, known, np), want.shape), truth)
            assert (found.low <= truth.min(), found.high >= truth.max()) == (True, True)
