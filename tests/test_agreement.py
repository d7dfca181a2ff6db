"""One answer to whether an output agrees with its float64 reference: NaN, infinity and rounding have their places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fuser.agreement import LARGEST
from fuser.agreement import ODD
from fuser.agreement import agreement
from fuser.agreement import agreements
from fuser.agreement import poison
from fuser.agreement import tolerance

NAN, INF = math.nan, math.inf


def outcome(out: list[float], reference: list[float], dtype: str = "float16", limit: float = 1e-2, torch: bool = False) -> Any:
    arrays: list[Any] = [np.array(out), np.array(reference)]
    if torch:
        import torch as library

        arrays = [library.tensor(x.tolist(), dtype=library.float64) for x in arrays]
    return agreement(arrays[0], arrays[1], dtype, limit)


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize(
    ("out", "reference", "status", "said"),
    [
        ([1.0, 2.0], [1.0, 2.0], "ok", ""),
        ([1.0, 2.2], [1.0, 2.0], "wrong", "error 0.0894"),
        ([1.0, NAN], [1.0, 2.0], "nan", "1 of 2 elements are NaN where the reference is not; the first is at (1,)"),
        ([1.0, INF], [1.0, 2.0], "nan", "infinite where the reference is not"),
        # a NaN in the reference used to make every error 0
        ([5.0, 5.0], [1.0, NAN], "wrong", "a number where the reference is NaN"),
        ([5.0, NAN], [1.0, NAN], "wrong", "error 4"),
        ([1.0, NAN], [1.0, NAN], "ok", ""),
        ([1.0, INF], [1.0, NAN], "wrong", "a number where the reference is NaN"),
        ([1.0, NAN], [1.0, INF], "nan", "NaN where the reference is not"),
        ([1.0, INF], [1.0, INF], "ok", ""),
        ([1.0, -INF], [1.0, INF], "wrong", "wrong sign"),
        ([1.0, 7.0], [1.0, INF], "wrong", "overflows float16"),
        ([7.0, INF], [1.0, INF], "wrong", "error 6"),
        ([NAN, NAN], [NAN, NAN], "ok", ""),
        # what float16 rounds to infinity has to be infinite; next to its largest number either is right
        ([1.0, INF], [1.0, 1e6], "ok", ""),
        ([1.0, 65504.0], [1.0, 1e6], "wrong", "overflows float16"),
        ([1.0, -INF], [1.0, 1e6], "wrong", "wrong sign"),
        ([1.0, INF], [1.0, 65505.0], "ok", ""),
        ([1.0, INF], [1.0, 65000.0], "ok", ""),
        ([1.0, 65504.0], [1.0, 65600.0], "ok", ""),
        ([1.0, 30000.0], [1.0, 65600.0], "wrong", "error 0.5"),
        ([1.0, INF], [1.0, 40000.0], "nan", "infinite where the reference is not"),
        ([0.0, 0.0], [0.0, 0.0], "ok", ""),
        ([0.0, 1e-3], [0.0, 0.0], "wrong", "error"),
        # what is lost below the least number of float16 is not an error, what lies above it is
        ([0.0, 0.0], [1e-9, 5e-8], "ok", ""),
        ([0.0, 0.0], [1e-6, 1e-6], "wrong", "error"),
    ],
)
def test_where_nan_and_infinity_belong(out: list[float], reference: list[float], status: str, said: str, torch: bool) -> None:
    found = outcome(out, reference, torch=torch)
    assert found.status == status
    assert said in found.message
    assert bool(found.message) == (not found.ok)
    assert not math.isnan(found.error)
    assert not math.isnan(found.max_error)


@pytest.mark.parametrize("torch", [False, True])
def test_one_wrong_element_of_many_is_found(torch: bool) -> None:
    """Its share of the norm is a twentieth of the tolerance."""
    right = np.random.default_rng(0).standard_normal((400, 1000))
    off = right.copy()
    off[123, 456] += 0.3
    found = outcome(off.tolist(), right.tolist(), torch=torch)
    assert found.error < 1e-3 < 4e-2 < found.max_error
    assert found.status == "wrong" and "1 of 400000 elements are off" in found.message and "(123, 456)" in found.message
    assert outcome((right * 1.002).tolist(), right.tolist(), torch=torch).ok


def test_a_mask_that_nothing_is_left_of_and_other_shapes() -> None:
    assert agreement(np.full((2, 0), 1.0), np.full((2, 0), 1.0), "float16", 1e-2).ok
    found = agreement(np.zeros((2, 3)), np.zeros((3, 2)), "float16", 1e-2)
    assert "shape (2, 3), not (3, 2)" in found.message
    assert "(1, 2)" in agreement(np.array([[1, 1, 1], [1, 1, NAN]]), np.ones((2, 3)), "float16", 1e-2).message
    assert "at ()" in agreement(np.array(NAN), np.array(1.0), "float16", 1e-2).message


@pytest.mark.parametrize("dtype", sorted(LARGEST))
def test_numbers_near_the_end_of_every_dtype(dtype: str) -> None:
    top = LARGEST[dtype]
    assert outcome([top, 1.0], [top, 1.0], dtype).ok
    assert outcome([top, 1.0], [top, 2.0], dtype, limit=1e-6).error == pytest.approx(0, abs=1e-4)
    assert not outcome([top / 2, 1.0], [top, 1.0], dtype).ok
    assert not outcome([-top], [top], dtype).ok


def test_float32_has_a_tenth_of_the_tolerance_of_16_bits() -> None:
    assert tolerance(["float32"]) == tolerance(["float16"]) / 10
    assert tolerance(["float32", "float16"]) == tolerance(["float16"])
    assert tolerance(["float32", "bool", "int64"]) == tolerance(["float32"])
    assert outcome([1.005], [1.0], "float16", tolerance(["float16"])).ok
    assert not outcome([1.005], [1.0], "float32", tolerance(["float32"])).ok


def test_several_outputs_have_names_and_their_own_dtypes() -> None:
    reference = {"Y": np.array([1.0, 1e6]), "Z": np.array([1.0, 1e6])}
    dtypes = {"Y": "float16", "Z": "float32"}
    right = {"Y": np.array([1.0, INF]), "Z": np.array([[1.0], [1e6]])}
    assert agreements(right, reference, dtypes, 1e-3).ok
    found = agreements(right | {"Z": np.array([1.0, INF])}, reference, dtypes, 1e-3)
    assert found.message.startswith("Z: 1 of 2 elements are infinite")


def test_what_is_not_written_shows_also_where_the_reference_is_nan() -> None:
    assert math.isnan(poison({"Y": np.array([1.0, INF])}))
    assert poison({"Y": np.array([1.0, NAN])}) == ODD
    assert not outcome([1.0, ODD], [1.0, NAN]).ok
