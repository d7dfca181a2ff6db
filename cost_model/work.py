"""What one thread block of a generated kernel does: counts without any fitted constant, from which :mod:`cost_model.refined`
makes a time.

Counts are of one block, over its whole life. Everything that the compiler copies is counted as often as it is executed: a
product that several warps compute, the lanes that pad a tile, a load that an unrolled loop repeats; a load that no loop indexes
is executed once.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

import numpy as np

from cost_model import streaming
from cost_model.cuts import cuts
from cost_model.cuts import pieces
from cost_model.dots import vector
from cost_model.execution import at_once
from cost_model.execution import described
from cost_model.execution import flattened
from cost_model.execution import in_clusters
from cost_model.execution import instructions
from cost_model.execution import persistent
from cost_model.execution import programs
from cost_model.execution import readers
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from cost_model.folds import folded
from cost_model.lives import from_loads
from cost_model.lives import home
from cost_model.lives import made_by
from cost_model.lives import real
from cost_model.resources import Resources
from cost_model.resources import crowd
from cost_model.resources import resources
from cost_model.resources import unrolled
from cost_model.rows import FETCHED
from cost_model.rows import SECTOR
from cost_model.rows import moved_at_once
from cost_model.rows import partial
from cost_model.rows import sectors
from cost_model.rows import slower
from cost_model.split_products import times_of_tensor_cores
from cost_model.waits import Add
from cost_model.waits import loops
from fuser.device import Device
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.options import PRECISION
from fuser.lower.options import option_of

PARTIAL = 2.8
"""Sectors that L2 could write in the time that one takes besides of which a kernel writes a part only: of 280 schedules of norms
of images on an H100, those that write pieces of 8 and 20 bytes took 15 ps for each more than those that write rows."""
HALVES = 1.0
"""What a further part of a line costs the path into an SM that another row of a product's tile brings: on an H200 products took
1.3 times as long in boxes of 32 elements along the sum as in boxes of 64."""


@dataclass(frozen=True, eq=False)
class Work:
    """Arrays with one entry for each candidate.

    ``blocks`` are places of the grid, ``programs`` those that are launched (fewer of a persistent kernel; ``flattened``: 1 where
    its pipeline goes on from place to place), ``resident`` of them that an SM can hold, ``warps`` of a block, ``registers`` that
    a thread wants, ``crowd`` of them for whole operands and results of products on fragments, ``parted`` all where threads
    split these operands, ``shared`` bytes.

    ``wgmma``, ``mma`` and ``flat`` are seconds of contractions on one SM at its peak rate: warp-group instructions, fragment
    instructions, plain arithmetic; ``special`` and ``arithmetic`` the same for special functions and fp32 work. ``exposed``:
    seconds of contractions that no pipeline runs beside loads, the last trip of each pipeline among them. ``fragments``: bytes
    moved between shared memory and registers; ``operands``: bytes that warp groups read from it.

    ``loaded`` and ``stored``: bytes to and from L2 in whole sectors. ``common``: those of the loads that other blocks want at the
    same time; ``entered``: those of the loads, in whole lines where descriptors load, of which each is asked for by itself;
    ``bare``: those loaded outside of pipelines, the first trip of each pipeline among them. ``issued``: bytes that threads move
    by pointers, as if by instructions of full width; ``boxes``: 1 where descriptors load; ``sent``: stores by descriptors;
    ``thin``: bytes loaded in runs shorter than a line, as often as further parts of the line. ``memory``: bytes of the tensors,
    each once; ``streams``: 1 where that is all that the kernel waits for, ``in_turn``: how
    far its loads and its arithmetic stand in each other's way; ``ahead``: those under way for products.

    ``dependent``: 1 where the kernel starts before the one in front of it has ended. ``waits``: loads whose latency nothing
    hides, ``rewaits``: those that were under way before; ``streamed``: loads in loops without a contraction, which the compiler
    unrolls; ``fetched``: trips of pipelined loops, each divided by the trips that their loads run ahead, ``unbuffered``: those in
    which loads and arithmetic take turns; ``trips``: trips of all loops; ``dots``, ``folds``: executions of contractions and row
    folds; ``shuffles``: exchanges between lanes, of a thread's elements one after the other, for sums that are not along a row;
    ``passes``: exchanges through shared memory with a barrier; ``gathered``: warps of all blocks that exchange in clusters, by
    those that the device holds, for each exchange. ``slivers``, ``pieces``: 1 where the one product of a kernel, or each of
    several with the same sides, is cut into powers of two along a side, with a piece of 16 columns and without; ``parts``: 1
    where its sum is. ``longest``, ``busiest``: how much longer the busiest place for blocks, and
    the busiest SM, is at work than in the mean, beyond 1, where a causal mask ends loops.
    """

    blocks: Counts
    programs: Counts
    flattened: Counts
    resident: Counts
    warps: Counts
    registers: Counts
    crowd: Counts
    parted: Counts
    shared: Counts
    wgmma: Counts
    mma: Counts
    flat: Counts
    special: Counts
    arithmetic: Counts
    fragments: Counts
    operands: Counts
    exposed: Counts
    loaded: Counts
    entered: Counts
    bare: Counts
    stored: Counts
    common: Counts
    issued: Counts
    boxes: Counts
    sent: Counts
    thin: Counts
    waits: Counts
    rewaits: Counts
    streamed: Counts
    fetched: Counts
    unbuffered: Counts
    trips: Counts
    dots: Counts
    folds: Counts
    shuffles: Counts
    passes: Counts
    gathered: Counts
    memory: Counts
    streams: Counts
    in_turn: Counts
    ahead: Counts
    dependent: Counts
    slivers: Counts
    pieces: Counts
    parts: Counts
    longest: Counts
    busiest: Counts

    def __len__(self) -> int:
        return len(self.blocks)


def concatenate(parts: list[Work]) -> Work:
    """The candidates of several groups one after another."""
    return Work(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Work)))


def work(f: Features, device: Device, known: Resources | None = None) -> Work:
    """Counts of each candidate of a group, whose resources may be ``known``."""
    r = known or resources(f, device)
    zero = np.zeros(len(f))
    total: dict[str, Counts] = {x.name: zero.copy() for x in fields(Work)} | in_clusters(f, device)

    def add(**amounts: Counts) -> None:
        for name, amount in amounts.items():
            total[name] = total[name] + amount

    total["resident"] = resident = occupancy(f, r, device)
    together = at_once(f, resident, device)
    copies, streamed = _repeats(f, r), streaming.streams(f)
    tensors: dict[str, Counts] = {}
    for i, s in enumerate(f.stmts):
        stmt = s.stmt
        runs = _runs(f, i, s)
        if stmt.access is not None:
            _access(f, r, i, s, runs, together, add)
            extra = slower(f, stmt) * f.product(r.lanes, dict.fromkeys(stmt.axes)) * runs
            add(arithmetic=2.0 * extra * device.sm_count / device.fp32_flops)
            size = f.product(f.extent, stmt.access.axes) * DTYPE_BYTES[stmt.dtype]
            if streamed or (stmt.kind == "load" and size.max() >= streaming.COLD):
                run = _run_bytes(f, stmt)
                more = streaming.short_runs(f, stmt, run) + streaming.torn_rows(f, stmt, run)
                size = size * np.where(streamed | (size >= streaming.COLD), more, 1.0)
            if stmt.kind == "load" and any(u.kind == "compute" and not u.contracts for u in f.block.users(stmt.value)):
                lanes = f.product(r.lanes, dict.fromkeys(stmt.axes)) * copies.get(stmt.value, 1.0) * runs
                add(arithmetic=2.0 * lanes * device.sm_count / device.fp32_flops)
            tensors[stmt.access.tensor] = np.maximum(tensors.get(stmt.access.tensor, 0.0), size)
        elif i in r.dots:
            _contraction(f, r, i, runs, device, add)
        else:
            lanes_of = f.product(r.lanes, dict.fromkeys((*stmt.axes, *stmt.reduce)))
            lanes = lanes_of * copies.get(stmt.value, 1.0) * runs
            entry = stmt.entry
            add(special=entry.sfu * lanes * device.sm_count / device.sfu_rate)
            # one operation an element takes the slot of a multiply-add
            add(arithmetic=2.0 * max(entry.flops, 1.0) * lanes * device.sm_count / device.fp32_flops)
            if stmt.folds:
                folded(f, r, s, lanes_of, runs, add)
    loops(f, r, add)
    cuts(f, r, add)
    _again(f, add)
    total |= {"blocks": f.blocks, "warps": f.warps.astype(float), "boxes": np.minimum(total["boxes"], 1.0)}
    ahead = sum((np.maximum(n, 1) * f.stmts[i].bytes for i, n in _operands(f, r).items()), zero)
    total["longest"], total["busiest"] = (x - 1.0 for x in f.busiest(together, device.sm_count, persistent(f)))
    total |= {"registers": r.registers, "shared": r.shared, "ahead": ahead, "crowd": crowd(f, r)}
    parted = np.logical_or.reduce([np.zeros(len(f), np.bool_), *(d.exact & ~d.groups for d in r.dots.values())])
    total["parted"] = np.where(parted, r.registers, 0.0)
    total["memory"] = sum(tensors.values(), zero)
    total["programs"], total["flattened"] = programs(f), flattened(f).astype(float)
    repeated = [f.product(f.trips, unrolled(f, s)) for s in f.stmts]
    code = 1.0 if f.block.contracts else streaming.uncached(f, r.lanes, repeated)
    total |= {name: total[name] * code for name in ("arithmetic", "special")}
    if streamed:
        add(memory=f.blocks * streaming.read_again(f), streams=zero + 1.0, in_turn=streaming.in_loops(f))
        total["memory"] *= streaming.slower(f, r.lanes, repeated, device)
    for name, value in f.options.items():
        option = option_of(name)
        if option is not None and option.counts:
            add(**_counted(f, option.counts, value))
    return Work(**total)


def _operands(f: Features, r: Resources) -> dict[int, Counts]:
    """Buffers of what is loaded for products by tensor cores, by statement; none where no pipeline runs ahead."""
    values = {v for s in f.block.computes if s.contracts and not vector(f.block, s) for v in s.args}
    loads = (i for i, s in enumerate(f.stmts) if s.stmt.kind == "load" and s.stmt.value in values)
    none: Counts = np.zeros(len(f))
    return {i: r.pipelined.get(i, none) for i in loads}


def _counted(f: Features, counts: Callable[[Any, Any], Mapping[str, Any]], value: Any) -> dict[str, Any]:
    """What an option adds where it is set: its value, or one for each candidate, None where it is left out."""
    if not isinstance(value, np.ndarray):
        return dict(counts(f, value))
    has = np.array([v is not None for v in value]) if value.dtype == object else np.ones(len(value), np.bool_)
    if not has.any():
        return {}
    any_value = value[has.argmax()]  # counts nothing
    filled = np.array([v if some else any_value for v, some in zip(value, has, strict=True)])
    return {k: has * amount for k, amount in counts(f, filled).items()}


def occupancy(f: Features, r: Resources, device: Device) -> Counts:
    """Blocks that one SM holds at once, at least one."""
    regs = np.minimum(r.registers, device.registers_per_thread)
    by_shared = device.smem_per_sm // np.maximum(r.shared + device.smem_reserved_per_block, 1)
    by_registers = device.registers_per_sm // (np.ceil(regs / 8) * 8 * 32 * f.warps)
    by_warps = device.max_warps_per_sm // f.warps
    return np.maximum(np.minimum.reduce([by_shared, by_registers, by_warps, np.full(len(f), device.max_blocks_per_sm)]), 1.0)


def _runs(f: Features, i: int, s: StmtFeatures) -> Counts:
    """Executions of a statement in a block; a load leaves the loops that do not index it."""
    if s.stmt.kind != "load":
        return s.often
    return f.product(f.often, home(f, i)) * f.product(f.trips, unrolled(f, s))


def _repeats(f: Features, r: Resources) -> dict[str, Counts]:
    """How often warps compute the same element of a value: what follows from a contraction has its spread over warps; what goes
    from loads into an operand is computed by every warp that needs the fragment, and so is what else is made of these loads."""
    found: dict[str, Counts] = {}
    for d in r.dots.values():
        for value, across in ((d.left, d.warp_cols), (d.right, d.warp_rows)):
            operand = f.block.by_value[value]
            if operand.kind == "compute" and from_loads(f, operand):
                copies = np.where(d.tensor & ~d.groups, across, 1.0)
                for name in (operand.value, *f.block.sources[operand.value]):
                    found[name] = np.maximum(found.get(name, 1.0), copies)
    for i, s in enumerate(f.stmts):
        if i in r.dots:
            found[s.stmt.value] = np.where(r.dots[i].tensor, r.dots[i].repeat, 1.0)
        elif s.stmt.kind == "compute":
            sources = [found[a] for a in s.stmt.args if a in found and set(s.stmt.related) <= set(f.block.by_value[a].related)]
            if sources:
                found[s.stmt.value] = np.maximum.reduce([*sources, found.get(s.stmt.value, np.ones(len(f)))])
    return found


def _run_bytes(f: Features, stmt: Stmt) -> Counts:
    """Bytes of a tile that lie side by side in memory; rows of a window of some columns do not."""
    access = stmt.at
    run = np.full(len(f), float(DTYPE_BYTES[stmt.dtype]))
    whole = np.ones(len(f), bool)
    for i, dim in reversed(list(enumerate(access.dims))):
        for a in reversed(dim):
            run = np.where(whole, run * f.tile[a], run)
            whole = whole & (f.tile[a] >= f.extent[a])
        if access.window:
            whole = whole & (f.product(f.extent, dim) == access.window.seen[i])
    return run


def inner_trips(f: Features, i: int) -> Counts:
    """Trips of the innermost loop around a statement."""
    return f.product(f.often, home(f, i)[-1:])


def _access(f: Features, r: Resources, i: int, s: StmtFeatures, runs: Counts, together: Counts, add: Add) -> None:
    run = _run_bytes(f, s.stmt)
    lie = sectors(f, s.stmt, run)
    amount = s.bytes * s.fill * runs * lie * SECTOR / run
    boxes = described(f, s.stmt)
    add(issued=np.where(boxes, 0.0, instructions(s.bytes * runs, run)))
    if s.stmt.kind == "store":
        add(sent=np.where(boxes, runs, 0.0))
        torn = amount * partial(f, s.stmt, run) / lie
        apart = ODD * amount * (~boxes & bool(r.dots) & (moved_at_once(f, s.stmt) < FETCHED))
        add(stored=amount + PARTIAL * torn + apart, passes=runs if r.dots else 0.0 * runs)
        return
    add(loaded=amount, common=amount * (1.0 - 1.0 / readers(f, s.stmt, together)))
    summed = any(s.stmt.value in x.stmt.args and s.stmt.at.along(x.stmt.reduce) for x in (f.stmts[j] for j in r.dots))
    # threads ask for each part of a line by itself
    apart = (boxes & summed) | (~boxes & bool(r.dots))
    short = np.maximum(streaming.LINE / run - 1.0, 0.0)
    add(entered=amount * (1.0 + HALVES * np.where(apart, short, 0.0)))
    add(boxes=boxes * 1.0, thin=amount * short)
    plain = r.pipelined[i] == 0 if i in r.pipelined else np.ones(len(f), bool)
    add(bare=np.where(plain, amount, amount / inner_trips(f, i)))
    for d in r.dots.values():
        if s.stmt.value in (d.left, d.right):
            add(fragments=np.where(d.tensor & plain, s.bytes * runs, 0.0))
            break


def _contraction(f: Features, r: Resources, i: int, runs: Counts, device: Device, add: Add) -> None:
    d, stmt = r.dots[i], f.stmts[i].stmt
    left, right = f.block.by_value[d.left], f.block.by_value[d.right]
    item = min(DTYPE_BYTES[left.dtype], DTYPE_BYTES[right.dtype])
    dtype = left.dtype if DTYPE_BYTES[left.dtype] == item else right.dtype
    peak = device.matmul_flops(dtype, PRECISION.read(f.options)) / device.sm_count
    flops = 2.0 * f.product(r.lanes, stmt.related) * runs
    seconds = flops * d.repeat / peak * times_of_tensor_cores(f, r, i, dtype, device)
    add(wgmma=np.where(d.groups, seconds, 0.0))
    # each instruction reads its 64 rows and its columns from shared memory
    read = (d.rows * d.warp_cols * (left.kind == "load") + d.cols * np.ceil(d.rows / 64)) * d.inner * item * runs
    add(operands=np.where(d.groups, read, 0.0))
    ahead = np.zeros(len(f), np.bool_)
    for j, buffers in r.pipelined.items():
        if home(f, j) == real(f, f.stmts[i].loops):
            ahead |= buffers > 0
    # the sum of what threads split is waited for in each trip
    add(exposed=np.where(d.tensor, np.where(ahead & ~d.split, seconds / inner_trips(f, i), seconds), 0.0))
    places = runs / f.product(f.trips, home(f, i)[-1:])
    add(exposed=np.where(d.split & persistent(f) & ~flattened(f), PLACE * places, 0.0))
    add(mma=np.where(d.tensor & ~d.groups, seconds, 0.0))
    add(flat=np.where(d.tensor, 0.0, flops * device.sm_count / device.fp32_flops))
    # every warp reads the fragments of its rows and columns
    read = (d.rows * d.warp_cols * from_loads(f, left) + d.cols * d.warp_rows) * d.inner * item * runs
    add(fragments=np.where(d.tensor & ~d.groups, read, 0.0))
    add(dots=np.where(d.tensor, runs * f.product(pieces(f), stmt.related), 0.0))
    through = d.tensor & ~d.groups & (d.warp_cols > 1) & (not from_loads(f, left))
    add(passes=np.where(through, runs, 0.0), fragments=np.where(through, d.rows * d.inner * item * runs, 0.0))
    if right.kind == "compute" and not from_loads(f, right):
        # what is computed becomes columns by way of shared memory, and so do the statistics of rows that it was made with
        ways = f.product(pieces(f), stmt.reduce) * (1.0 if made_by(f, right.value, r.dots) is not None else 2.0)
        add(passes=np.where(d.tensor, runs * ways, 0.0), fragments=np.where(d.tensor, d.cols * d.inner * item * runs, 0.0))


ODD = 12.0
"""Times that what a product leaves is stored again where rows begin at odd addresses: threads have pairs of columns, and store
each by itself (8205 × 5921 elements of bfloat16 took an H100 655 µs, with rows of 5888 417)."""
PLACE = 1e-6
"""Seconds that each place of a persistent program waits besides, where nothing of the next one is under way (of 31 with one trip
each 2.3 µs more than was estimated, of long sums nothing that could be told)."""


def _again(f: Features, add: Add) -> None:
    """Rows that are read again, loop after loop, wait each time, where no product has a pipeline."""
    if any(s.stmt.contracts for s in f.stmts):
        return
    seen: set[str] = set()
    for s in f.stmts:
        if s.stmt.kind == "load" and s.loops:
            if s.stmt.value in seen:
                add(waits=(f.product(f.trips, s.loops) > 1).astype(float))
            seen.add(s.stmt.value)
