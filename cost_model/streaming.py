"""What decides where a kernel has no product and the memory is what it waits for: runs of memory, warps, loops that meet in every
trip, rows that are read again, and what is held from one fold to the next. Measured on an H200 with about 200 schedules of 15
reductions, normalizations and element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost_model.execution import kept
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import Sizes
from cost_model.lives import home
from cost_model.lives import last_use
from cost_model.lives import real
from cost_model.rows import INSTRUCTIONS
from cost_model.rows import SECTOR
from cost_model.rows import moved_at_once
from cost_model.rows import row_bytes
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.rows import ROW_BYTES

LARGE = 1 << 24
"""Bytes of a tensor from which these things matter."""
COLD = 1 << 22
"""Bytes from which weights come from device memory each time, so that short runs matter to products too: of 1,134 schedules with
1 to 16 rows those that read 32 bytes side by side took 1.3 times as long."""
LINE, SHORT_RUN = 128, 0.12
"""Bytes of a line of the cache, and what each further part of one costs that another block reads: sums of columns took
12 % longer with rows of 64 bytes."""
TORN = 2.0 * SECTOR
"""Bytes that a store reads for each run of a row: the sectors in which it begins and ends. Of 48 × 36481 × 64 numbers, turned, an
H200 wrote rows of 36481 in pieces of 32 in 317 µs, of 128 in 232; 247 schedules of seven such kernels are 10 % off, not 20."""
AGAIN = 0.7
"""Bytes of device memory that a byte read again from L2 costs: the blocks of a device are in both phases at once."""
OWN, SPILLED = 36.0, 0.016
"""Registers for addresses and the like, and what a register costs that a thread does not have: a softmax of 256 elements a thread
took 1.3 times, a loss of two such rows four times as long."""
FEW_WARPS = {1: 1.1, 2: 1.04}
"""Slowdown of memory with so many warps a block."""
CODE, LONG, SPECIAL = 600.0, 0.25, 8.0
"""Instructions of a thread beyond which its code does not fit the caches of an SM, what each doubling costs, and instructions of
a special function: sines of 64 elements a thread took 1.37 times as long as those of 32."""
WRITTEN, HELD = 2.0, 2000.0
"""Instructions in which a special function is written, and those of a thread that the caches of an SM hold: 700 operators of
neurons, for eight elements a thread 9700 instructions, took an H100 69 µs; their arithmetic takes 44."""
KEPT, CROWDED = 16.0, 0.17
"""Sums that a thread keeps for each lane, beyond which its loads wait for one another, and what that costs."""
MUCH, UNROLLED = 64.0, 0.25
"""Bytes that a thread loads in a trip of a loop that is not unrolled, and the part of the trips that wait where loops are."""
ACROSS = 1.25
"""Slowdown of blocks that turn what they read in a loop, in pieces of rows that others read as well: instance norms of what a
convolution leaves channels last took 485 µs, not 339, where two kernels without loops take 332."""
SCALARS, PARTLY = 4.0, 0.2
"""Numbers of 4 bytes a thread that it loads one by one, though they lie side by side, and what each doubling beyond costs:
exponentials of an odd number of elements took 1.4 times as long with 16 a thread as with 4."""


def streams(f: Features) -> bool:
    """Whether a block has no product and reads so much that device memory decides. What is smaller lies in L2, and other things
    matter: launches, waits."""
    if f.block.contracts:
        return False
    sizes = (f.product(f.extent, s.access.axes).max(initial=0.0) * DTYPE_BYTES[s.dtype] for s in f.block.loads if s.access)
    return max(sizes, default=0.0) >= LARGE


def short_runs(f: Features, stmt: Stmt, run: Counts) -> Counts:
    """How much more of device memory is read for a tile whose rows (of ``run`` bytes) are shorter than a line."""
    if stmt.access is None or not stmt.access.axes:
        return np.ones(len(f))
    return 1.0 + SHORT_RUN * np.maximum(LINE / run - 1.0, 0.0)


def turns(block: BlockGraph) -> bool:
    """Whether rows of a tensor become columns of a result: lanes are exchanged through shared memory, and each side is moved in
    the order in which it lies."""
    along = {(frozenset(s.at.axes), s.at.axes[-1:]) for s in block.stmts if s.access is not None}
    return any(a == b and x != y for a, x in along for b, y in along)


def torn_rows(f: Features, stmt: Stmt, run: Counts) -> Counts:
    """How much more of device memory a store takes whose rows (of ``run`` bytes) begin and end within sectors: these are read
    first."""
    if stmt.kind != "store" or row_bytes(f, stmt) == SECTOR or not turns(f.block):
        return np.zeros(len(f))
    return TORN / run


def few_warps(f: Features) -> Counts:
    return np.array([FEW_WARPS.get(n, 1.0) for n in f.warps.tolist()])


def spilled(f: Features, lanes: Mapping[str, Sizes], device: Device) -> Counts:
    """Slowdown by values that are held in more registers than a thread can have: of 16 warps, 128."""
    limit = np.minimum(device.registers_per_thread, device.registers_per_sm / (32.0 * f.warps))
    return 1.0 + SPILLED * np.maximum(OWN + pressure(f, lanes) - limit, 0.0)


def latencies(f: Features, scope: tuple[str, ...]) -> Counts:
    """Trips of a loop whose loads are waited for: all of them where a thread loads much in each, a quarter where it loads little,
    since the compiler then unrolls the loop by four."""
    amount = _amount(f, scope)
    return f.product(f.trips, scope) * (amount > 0) * np.clip(amount / (32.0 * f.warps) / MUCH, UNROLLED, 1.0)


def _amount(f: Features, scope: tuple[str, ...]) -> Counts:
    """Bytes that a block loads in a trip of a loop."""
    loads = [s.bytes for i, s in enumerate(f.stmts) if s.stmt.kind == "load" and home(f, i) == scope]
    return sum(loads, np.zeros(len(f)))


def crowded(f: Features, lanes: Mapping[str, Sizes], copies: Sequence[Counts]) -> Counts:
    """Slowdown by what a thread does at once: more code than is cached (so many ``copies`` of each statement), more sums than let
    its loads run ahead, and loads of one element each where a row ends anywhere (in blocks that turn nothing)."""
    code = sums = scalars = np.zeros(len(f))
    turned = turns(f.block)
    for s, again in zip(f.stmts, copies, strict=True):
        stmt = s.stmt
        held = f.product(lanes, dict.fromkeys((*stmt.axes, *stmt.reduce))) / (32.0 * f.warps)
        runs = np.maximum(held, 1.0) * again
        if stmt.kind == "compute":
            entry = op_def(stmt.op)
            code = code + runs * (max(entry.flops, 1.0) + SPECIAL * entry.sfu)
            if stmt.folds:
                sums = np.maximum(sums, np.where(kept(f, s, held * 32.0 * f.warps), held * again, 0.0))
            continue
        item, at_once = DTYPE_BYTES[stmt.dtype], moved_at_once(f, stmt)
        code = code + runs * INSTRUCTIONS / 2 * item / at_once
        if not s.loops and not turned:
            scalars = np.maximum(scalars, np.where(at_once < ROW_BYTES, held * item / 4.0, 0.0))
    slower = 1.0 + LONG * np.log2(np.maximum(code / CODE, 1.0))
    slower = slower * np.where(sums > KEPT, 1.0 + CROWDED, 1.0)
    loops = [f.product(f.trips, s.loops) for s in f.stmts if s.stmt.kind == "load" and s.loops]
    if turned and loops:
        slower = slower * np.where(np.maximum.reduce(loops) > 1, ACROSS, 1.0)
    return slower * (1.0 + PARTLY * np.log2(np.maximum(scalars / SCALARS, 1.0)))


def uncached(f: Features, lanes: Mapping[str, Sizes], copies: Sequence[Counts]) -> Counts:
    """Slowdown of arithmetic by code that the caches of an SM do not hold: each thread goes through all that it does for each of
    its elements."""
    code = np.zeros(len(f))
    for s, again in zip(f.stmts, copies, strict=True):
        if s.stmt.kind == "compute":
            held = f.product(lanes, dict.fromkeys((*s.stmt.axes, *s.stmt.reduce))) / (32.0 * f.warps)
            entry = op_def(s.stmt.op)
            code = code + np.maximum(held, 1.0) * again * (max(entry.flops, 1.0) + WRITTEN * entry.sfu)
    return 1.0 + LONG * np.log2(np.maximum(code / HELD, 1.0))


def in_loops(f: Features) -> Counts:
    """How far loads and arithmetic of a loop stand in each other's way, where what is loaded lies in the order in which it is
    used: more where a thread loads little in a trip."""
    found = np.zeros(len(f))
    for scope in {home(f, i) for i, s in enumerate(f.stmts) if s.stmt.kind == "load"} if not turns(f.block) else ():
        amount = _amount(f, scope) / (32.0 * f.warps)
        found = np.maximum(found, np.where(f.product(f.trips, scope) > 1, 1.0 + MUCH / np.maximum(amount, 1.0), 0.0))
    return found


def slower(f: Features, lanes: Mapping[str, Sizes], copies: Sequence[Counts], device: Device) -> Counts:
    """Slowdown of memory by what its blocks and threads are."""
    return few_warps(f) * spilled(f, lanes, device) * crowded(f, lanes, copies)


def read_again(f: Features) -> Counts:
    """Bytes of device memory that what a block loads again, loop after loop, counts as."""
    seen: set[str] = set()
    total = np.zeros(len(f))
    for s in f.stmts:
        if s.stmt.kind == "load" and s.loops:
            if s.stmt.value in seen:
                total = total + AGAIN * np.where(f.product(f.trips, s.loops) > 1, s.bytes * s.fill * s.runs, 0.0)
            seen.add(s.stmt.value)
    return total


def meets(f: Features, lanes: Mapping[str, Sizes], scope: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether a loop has a fold for which lanes and warps meet in every trip, so that no load runs ahead."""
    found = np.zeros(len(f), bool)
    for s in f.stmts:
        if s.stmt.folds and real(f, s.loops)[: len(scope)] == scope:
            found |= ~kept(f, s, f.product(lanes, (*s.stmt.axes, *s.stmt.reduce)))
    return found


def in_turn(f: Features, lanes: Mapping[str, Sizes], scope: tuple[str, ...], runs: Counts) -> Counts:
    """Trips of a loop whose loads are waited for each time."""
    return np.zeros(len(f)) if f.block.contracts else np.where(meets(f, lanes, scope), runs, 0.0)


def held(f: Features, lanes: Mapping[str, Sizes]) -> list[tuple[int, int, Counts]]:
    """Registers a thread for each value that is held over a fold, or from its load to its store: first and last position, and how
    many. What is only folded passes through a few."""
    found = []
    for i, s in enumerate(f.stmts):
        stmt = s.stmt
        if stmt.kind == "store" or stmt.folds or not stmt.axes:
            continue
        last = last_use(f, i)
        over = any(t.stmt.folds and t.loops == s.loops for t in f.stmts[i + 1 : last])
        if not over and not (stmt.kind == "load" and _stored(f, i)):
            continue
        wide = min(DTYPE_BYTES[stmt.dtype], 4) / 4 if stmt.kind == "load" else 1.0
        found.append((i, last, wide * f.product(lanes, dict.fromkeys(stmt.axes)) / (32.0 * f.warps)))
    return found


def _stored(f: Features, i: int) -> bool:
    """What element-wise operators make of a value is stored in the same loops."""
    names = {f.stmts[i].stmt.value}
    for s in f.stmts[i + 1 :]:
        if s.loops != f.stmts[i].loops:
            continue
        if s.stmt.kind == "store" and s.stmt.value in names:
            return True
        if s.stmt.kind == "compute" and not s.stmt.folds and names & set(s.stmt.args):
            names.add(s.stmt.value)
    return False


def pressure(f: Features, lanes: Mapping[str, Sizes]) -> Counts:
    """The most registers a thread that are held at once."""
    alive = [np.zeros(len(f)) for _ in f.stmts]
    for low, high, size in held(f, lanes):
        for p in range(low, high):  # the last reader takes their place
            alive[p] = alive[p] + size
    return np.maximum.reduce(alive)
