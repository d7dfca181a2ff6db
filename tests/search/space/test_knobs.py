"""Knobs: codes and values are the same thing, mutation stays inside and moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.errors import UsageError
from fuser.ir.tiling import TilingExpr
from search.space.knobs import Choice
from search.space.knobs import Knob
from search.space.knobs import Order
from search.space.knobs import Setting
from search.space.knobs import Split
from search.space.knobs import TileSize

KNOBS: tuple[Knob[Any], ...] = (
    Choice("warps", (4, 8, 2)),
    Order("order", tuple(map(TilingExpr.parse, ("nk", "nkh")))),
    TileSize("m", (16, 32, 64, 80)),
    Split("n_part", (2, 4, 8)),
    Setting("group", (None, 4, 8, 16)),
    Choice("one", (4,)),
)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda k: k.name)
def test_codes_are_values(knob: Knob[Any]) -> None:
    values = list(knob.enumerate())
    assert len(values) == len(set(values)) == knob.count
    assert [knob.encode(v) for v in values] == list(range(knob.count))


@given(st.sampled_from(KNOBS), st.integers(0, 2**32 - 1))
def test_mutation_stays_inside_and_moves(knob: Knob[Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = knob.sample(rng)
    other = knob.decode(knob.mutate_code(knob.encode(value), rng))
    assert other in set(knob.enumerate())
    assert (other == value) == (knob.count == 1)


@given(st.integers(0, 2**32 - 1))
def test_tile_sizes_mutate_mostly_to_neighbours(seed: int) -> None:
    knob, rng = TileSize("n", tuple(range(16, 513, 16))), np.random.default_rng(seed)
    steps = [abs(knob.mutate_code(16, rng) - 16) for _ in range(100)]
    assert sum(s == 1 for s in steps) > 40 and max(steps) > 1


def test_sampling_reaches_every_value() -> None:
    rng = np.random.default_rng(0)
    for knob in KNOBS:
        assert {knob.sample_code(rng) for _ in range(500)} == set(range(knob.count))


def test_a_value_that_a_knob_lacks_is_a_usage_error() -> None:
    for knob, value in ((KNOBS[0], 5), (KNOBS[2], 24), (KNOBS[4], 5)):
        with pytest.raises(UsageError, match=knob.name):
            knob.encode(value)
    with pytest.raises(UsageError, match="no value"):
        Choice("empty", ())
