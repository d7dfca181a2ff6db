"""What is decided for a whole kernel before its tiles are laid out: groups, producer, blocks of an SM, products under way.

The figures of registers are those that ptxas and Triton hold to: a thread has at most what the launch gives all alike, in steps
of 8; groups that compute then take over what the producer's group leaves. 240, 160 and 112 registers for two, three and four
groups follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuser.ir.layout.tensors import GROUP
from fuser.ir.layout.tensors import WARP
from search.layouts.facts import WGMMA_ROWS
from search.layouts.facts import Facts

STEP = 8
PRODUCER_REGISTERS = 24
MOST_REGISTERS = 240
"""Of a thread that can be given more than the launch gives; ``setmaxnreg`` takes no more than 255, in steps."""
MOST_GROUPS = 4
MOST_BLOCKS = 8
BARRIERS = 2048
"""Bytes for barriers and for the compiler's own use."""


@dataclass(frozen=True)
class Mode:
    """``groups`` of ``warps`` warps compute; ``registers`` of each of their threads; ``shared`` bytes of a block."""

    groups: int
    warps: int
    producer: bool
    blocks: int
    overlap: bool
    registers: int
    shared: int

    @property
    def threads(self) -> int:
        return self.groups * self.warps * WARP


def modes(f: Facts) -> Iterator[Mode]:
    """Those in which a kernel can run on the device."""
    blocks = range(1, min(MOST_BLOCKS, max(f.turns, 1)) + 1)
    for groups, warps in _groups(f):
        for producer in (True, False) if f.grouped else (False,):
            for overlap in (False, True) if f.grouped and f.trips > 1 else (False,):
                for b in blocks:
                    threads = groups * warps * WARP + (GROUP if producer else 0)
                    registers = _registers(f, groups, producer, b, threads)
                    shared = _shared(f, b)
                    if registers and shared > 0 and b * threads <= f.device.max_threads_per_sm:
                        yield Mode(groups, warps, producer, b, overlap, registers, shared)


def _groups(f: Facts) -> Iterator[tuple[int, int]]:
    """Groups and warps of each. Warp groups share the rows in powers of two of 64 at least; otherwise the schedule's warps are
    one group."""
    if not f.grouped:
        yield 1, f.tiles.schedule.num_warps
        return
    rows = f.tiles.plans[f.rows].tile
    for groups in range(1, MOST_GROUPS + 1):
        part = rows // groups
        if rows % groups == 0 and part % WGMMA_ROWS == 0 and not part & (part - 1):
            yield groups, GROUP // WARP


def _registers(f: Facts, groups: int, producer: bool, blocks: int, threads: int) -> int:
    """Of a thread that computes; 0 where so many blocks do not fit."""
    most = f.device.registers_per_sm // blocks
    given = min(most // threads // STEP * STEP, f.device.registers_per_thread // STEP * STEP)
    if given < PRODUCER_REGISTERS:
        return 0
    if not producer:
        return given
    left = threads * given - GROUP * PRODUCER_REGISTERS
    return min(left // (groups * GROUP) // STEP * STEP, MOST_REGISTERS)


def _shared(f: Facts, blocks: int) -> int:
    of_sm = f.device.smem_per_sm // blocks - f.device.smem_reserved_per_block
    return min(of_sm, f.device.smem_per_block) - (BARRIERS if f.grouped else 0)
