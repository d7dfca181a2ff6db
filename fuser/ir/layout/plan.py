"""Everything about a kernel by warp groups that its schedule leaves open: who computes what, and where each tile lies.

A solver chooses it, a generator reads it; tiles, loop order and options are the schedule's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Shared

OUT = " out"
"""Behind the name of a tensor: the buffer through which it leaves."""


@dataclass(frozen=True)
class Buffer:
    """A ring in shared memory for a value that is loaded, stored, or that warps hand each other.

    ``box`` is the piece that one copy moves, sizes by the value's axes (the last is contiguous); ``pieces`` boxes make up the
    tile of one stage (a box for each group's rows, or for each 128 bytes of columns); ``stages`` tiles are in the ring. ``by``
    is how it is filled or emptied: the copy engine, asynchronous copies of threads, or plain loads and stores.
    ``over``: the value whose bytes it takes once that is dead.
    """

    value: str
    dtype: str
    box: tuple[int, ...]
    pieces: int
    stages: int
    layout: Shared
    by: Literal["tma", "cp.async", "threads"]
    bytes: int
    over: str = ""


@dataclass(frozen=True)
class Fragment:
    """A value in registers of a group: its tile there, layout, and 32-bit registers a thread (0: read from shared memory, with
    no registers of its own)."""

    value: str
    tile: tuple[int, ...]
    layout: Registers
    registers: int


@dataclass(frozen=True)
class Operand:
    """Where a product of a statement (``product`` is its value) finds one of its operands."""

    product: str
    value: str
    place: Literal["shared", "registers"]


@dataclass(frozen=True)
class LayoutPlan:
    """Choices of one kernel.

    ``consumers`` groups of ``warps`` warps compute; the tile of axis ``divided`` is cut into ``part`` elements for each of them.
    As many groups as there are ``shares`` have the same, and each takes its own trips of the loop over ``loop`` (what they sum up
    is merged behind it). With ``producer`` a warp of its own issues
    the loads, else the consumers refill their buffers. ``registers`` are a consumer thread's, ``producer_registers`` a
    producer thread's; ``blocks`` are resident on an SM; a ``persistent`` block takes one tile of the grid after the other.
    ``overlap``: products that are still under way while the element-wise work of the next trip runs, by value.
    ``costs`` are µs by term, ``limits`` what a change for the better would exceed.
    """

    consumers: int
    warps: int
    divided: str
    part: int
    producer: bool
    registers: int
    producer_registers: int
    blocks: int
    persistent: bool
    buffers: tuple[Buffer, ...]
    fragments: tuple[Fragment, ...]
    operands: tuple[Operand, ...]
    overlap: tuple[str, ...] = ()
    costs: tuple[tuple[str, float], ...] = ()
    limits: tuple[str, ...] = ()
    shares: int = 1
    loop: str = ""

    @cached_property
    def buffer(self) -> Mapping[str, Buffer]:
        return {b.value: b for b in self.buffers}

    @cached_property
    def fragment(self) -> Mapping[str, Fragment]:
        return {f.value: f for f in self.fragments}

    @property
    def threads(self) -> int:
        """Of a block; the producer is one warp."""
        return 32 * (self.consumers * self.warps + self.producer)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block, without barriers."""
        return sum(b.bytes for b in self.buffers if not b.over)

    @property
    def us(self) -> float:
        return sum(us for _, us in self.costs)
