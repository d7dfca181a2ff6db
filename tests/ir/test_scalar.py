"""Constants whose extents are replaced, renamed, or asked for."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import bound
from fuser.ir.scalar import numbers
from fuser.ir.scalar import renamed
from fuser.ir.scalar import tied

ROOT = Scalar.power(Extent("K", 1), Fraction(-1, 2))
ATTRS = (("axis", (0, 1)), ("scalar", ROOT))


def test_an_extent_becomes_a_size_another_extent_or_a_product_of_several() -> None:
    assert ROOT.bind(lambda _: 64) == Scalar.of(0.125)
    assert ROOT.bind(lambda e: Extent("Q", e.dim)) == Scalar.power(Extent("Q", 1), Fraction(-1, 2))
    halves = ROOT.bind(lambda _: (Extent("heads", -1), Extent("d", -1)))
    assert halves == Scalar.power(Extent("heads", -1), Fraction(-1, 2)) * Scalar.power(Extent("d", -1), Fraction(-1, 2))
    assert halves.bind(lambda e: {"heads": 4, "d": 16}[e.tensor]) == Scalar.of(0.125)


def test_attributes_that_are_no_constants_stay() -> None:
    assert bound(ATTRS, lambda _: 64) == {"axis": (0, 1), "scalar": Scalar.of(0.125)}
    assert numbers(ATTRS, lambda _: 64) == {"axis": (0, 1), "scalar": 0.125}
    assert tied(ATTRS) == (Extent("K", 1),)
    with pytest.raises(ValueError, match="not bound"):
        numbers(ATTRS)


def test_a_renamed_constant_is_in_normal_form() -> None:
    """Two that are the same are equal, whatever their tensors were called before."""
    both = Scalar.power(Extent("a", 0), 1) * Scalar.power(Extent("b", 0), -1)
    swapped = renamed((("scalar", both),), {"a": "y", "b": "x"}.__getitem__)["scalar"]
    assert swapped == Scalar.power(Extent("x", 0), -1) * Scalar.power(Extent("y", 0), 1)
    one = renamed((("scalar", both),), lambda _: "c")["scalar"]
    assert one == Scalar()
