"""Sectors and wavefronts: by algebra as by counting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.layout.accesses import bits_wavefronts
from fuser.ir.layout.accesses import device_access
from fuser.ir.layout.accesses import sectors
from fuser.ir.layout.accesses import shared_access
from fuser.ir.layout.accesses import touched
from fuser.ir.layout.accesses import wavefronts
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.bits import image
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import offsets_of
from fuser.ir.layout.linear import to_memory
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared

sizes = st.sampled_from((1, 2, 3, 4, 8, 32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(sizes, st.integers(-3, 70)), min_size=1, max_size=3), st.integers(0, 40), st.sampled_from((1, 2, 4, 8)))
def test_sectors_are_counted_exactly(modes, base, element):
    base += sum(3 * (n - 1) for n, d in modes if d < 0)
    access = Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes), base)
    assert sectors(access, element) == touched((o * element for o in access.offsets()), element)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 511), min_size=5, max_size=5), st.sampled_from((2, 4, 8, 16)))
def test_wavefronts_are_counted_exactly(lanes, vector):
    lanes = [x * vector for x in lanes]
    assert bits_wavefronts(lanes, vector) == wavefronts([image(lanes, i) for i in range(32)], vector)


@pytest.mark.parametrize(
    "registers, swizzle, conflicts",
    [
        (Blocked((1, 8), (4, 8), (4, 1), (1, 0)), 128, 0),  # eight threads a row of 128 bytes
        (Blocked((1, 8), (4, 8), (4, 1), (1, 0)), 0, 0),
        (Blocked((1, 8), (32, 1), (4, 1), (1, 0)), 0, 7),  # down a column: all of a phase in one bank, but for the swizzle
        (Blocked((1, 8), (32, 1), (4, 1), (1, 0)), 128, 0),
        (Mma(3, (4, 1), (16, 64, 16)), 0, 7),
        (Mma(3, (4, 1), (16, 64, 16)), 128, 0),
        (DotOperand(0, Mma(2, (4, 1), (16, 8)), 2), 0, 7),
        (DotOperand(0, Mma(2, (4, 1), (16, 8)), 2), 32, 0),
    ],
)
def test_what_a_swizzle_is_for(registers, swizzle, conflicts):
    bases, shared = bases_of(registers, (64, 64)), MmaShared(swizzle, 16)
    found = shared_access(bases, shared, 2)
    _, lane, _ = to_memory(bases, offsets_of(shared, (64, 64)))
    assert found.conflicts == conflicts
    assert found.wavefronts == wavefronts([2 * image(lane, i) for i in range(32)], found.vector)


def test_rows_that_are_not_aligned_take_narrow_accesses_and_more_sectors():
    bases = bases_of(Blocked((1, 8), (4, 8), (4, 1), (1, 0)), (64, 64))
    assert device_access(bases, (64, 1), 2) == (16, 16)
    assert device_access(bases, (197, 1), 2)[0] == 2
    assert device_access(bases, (200, 1), 2) == (16, 16 + 2)  # rows of 400 bytes begin within a sector
    assert device_access(bases, (1, 64), 2) == (2, 8)


def test_drawn_accesses_of_device_memory_touch_what_their_lanes_do():
    r = random.Random(0)
    for _ in range(30):
        t = r.randrange(6)
        bases = bases_of(Blocked((1, 1 << r.randrange(4)), (1 << t, 32 >> t), (4, 1), (1, 0)), (64, 64))
        pitch, element = r.choice([64, 72, 100, 197]), r.choice([2, 4])
        vector, found = device_access(bases, (pitch, 1), element)
        lanes = [[sum(v[d] for i, v in enumerate(bases.lane) if lane >> i & 1) for d in (0, 1)] for lane in range(32)]
        assert found == touched((element * (i * pitch + j) for i, j in lanes), vector)
