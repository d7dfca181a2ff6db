"""Price of a kernel by warp groups (``backend=gluon``): a warp that loads, and one to four groups of four warps that compute on
rows of their own.

    time = launch + base + join(waves · turn + first, L2 and device memory) + exposed
    turn = max(join(join(chain, (N - 1) / N · SM), refills), SM)

The *chain* is what one group does in turn with one place of the grid: products and arithmetic of its rows, beside each other
where the generator lets them (``wgmma`` runs on), a handshake for every trip of a ring, waits for products, what it stores. *SM*
is what the groups of all blocks need of the SM's units, N of them: as in :mod:`cost_model.refined`, of which the counts of work
and the constants of the device are taken. *Refills*: a slot is asked for when its last reader is done, and comes a latency, its
bytes and a trip's work later, so that a ring turns around once in that time. Of what memory takes the first turn of all SMs is
exposed. What Triton's compiler does by itself (pipelines, spreading warps) is replaced by what the generator writes
(:mod:`fuser.lower.gluon`).
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from cost_model.constants import Constants
from cost_model.execution import flattened
from cost_model.execution import persistent
from cost_model.execution import programs
from cost_model.execution import readers
from cost_model.execution import setting
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from cost_model.group_costs import COSTS
from cost_model.group_costs import Costs
from cost_model.group_loops import kind_of_loop
from cost_model.resources import Dot
from cost_model.resources import Resources
from cost_model.resources import resources
from cost_model.work import Work
from fuser.device import Device
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.gluon import choices
from fuser.lower.gluon import split
from fuser.lower.options import BACKEND
from fuser.lower.options import PRECISION

THREADS = 32 * split.GROUP_WARPS
TIGHT, AROUND = 24.0, 32.0
"""Registers of a thread that can be too few without spills, and those beside its sums where only loaded tiles are multiplied: of
271 schedules for an H200 within these limits 5 spilled, of the others 110 of 117."""


@dataclass(frozen=True, eq=False)
class Held:
    """What blocks hold: ``groups`` that compute, ``parts`` of them with the same rows, ``tall`` times 64 of these each;
    ``blocks`` on an SM, bytes of ``shared`` memory of a block, ``registers`` that a thread of a group has and those that it
    ``wants``; ``ahead`` where blocks that stay load for the next place before the present one is done, ``staged`` where results
    leave by the copy engine; ``fits`` where the generator has a form, as far as sizes decide."""

    groups: Counts
    parts: Counts
    tall: Counts
    blocks: Counts
    shared: Counts
    registers: Counts
    wants: Counts
    needs: Counts
    ahead: NDArray[np.bool_]
    staged: NDArray[np.bool_]
    fits: NDArray[np.bool_]


def held(f: Features, r: Resources, device: Device) -> Held:
    """As :func:`fuser.lower.gluon.choices.choose` decides it, for candidates whose programs stay or end; of its blocks an SM of a
    smaller device holds fewer."""
    launched, again = programs(f), persistent(f)
    groups = np.maximum(f.warps // split.GROUP_WARPS, 1)
    fits = (f.warps % split.GROUP_WARPS == 0) & (groups <= split.MOST_GROUPS)
    parts, tall = np.ones(len(f)), np.ones(len(f))
    turned = _turned(f, r, groups)
    for d in r.dots.values():
        rows = np.where(turned, d.cols, d.rows)
        high = np.maximum(rows // split.ROWS, 1)
        parts = np.where((high < groups) & (groups % high == 0), groups / high, 1.0)
        tall = np.maximum(high * parts / groups, 1.0)
        part = rows * parts / groups
        fits = fits & d.tensor & (part % split.ROWS == 0) & (2.0 ** np.round(np.log2(np.maximum(part, 1))) == part)
    fits = fits & ((parts == 1) | _shares_trips(f, parts)) & (not f.tree.arrays)
    once, outs = np.where(again, 2, 1), np.zeros(len(f))
    loads, least, producer = np.zeros(len(f)), np.zeros(len(f)), again.copy()
    seen: set[str] = set()
    for s in f.stmts:
        if s.stmt.access is None or (s.stmt.value in seen and s.stmt.kind == "load"):
            continue
        seen.add(s.stmt.value)
        if s.stmt.kind == "store":
            outs = outs + s.bytes
        elif ringed(f, r, s):
            alone = sum(x.stmt is s.stmt for x in f.stmts) == 1
            slots = np.where((s.runs > 1) | (not alone), np.maximum(f.stages, 1) * parts, once)
            slots = np.where(again | (not alone), slots, np.minimum(slots, s.runs))
            loads = loads + s.bytes * slots
            least = least + s.bytes * np.where(s.runs > 1, slots, 1)
            producer = producer | (s.runs > slots) | (not alone)
    handed = 4.0 * (parts - 1.0) * sum((f.product(r.lanes, s.stmt.axes) for s in _merged(f)), np.zeros(len(f)))
    room = choices.SHARED - choices.BARRIERS - handed
    ahead = again & (loads + outs <= room)
    loads = np.where(loads + outs > room, least, loads)
    staged = loads + outs <= room
    outs = np.where(staged, outs, 0.0)
    fits = fits & (loads <= room)
    shared = loads + outs + handed + choices.BARRIERS
    wants, needs, widest = _wanted(f, r, groups, parts, turned)
    blocks = np.ones(len(f))
    for n in range(2, 9):
        enough = (choices.of_a_consumer(groups, producer, n) >= wants) & (choices.at_first(groups + producer, n) >= widest)
        fit = enough & (n * (shared + choices.DRIVER) <= choices.ON_AN_SM) & (np.ceil(f.blocks / choices.SMS) >= n)
        blocks = np.where(fit & (~again | (np.ceil(launched / choices.SMS) >= n)), n, blocks)
    given = choices.of_a_consumer(groups, producer, blocks)
    file = choices.at_first(groups + producer, blocks) * (groups + producer) * THREADS
    blocks = np.minimum(blocks, device.smem_per_sm // (shared + choices.DRIVER))
    blocks = np.minimum(blocks, device.registers_per_sm // np.maximum(file, 1))
    fits = fits & (shared <= device.smem_per_block) & (blocks >= 1)
    blocks = np.maximum(blocks, 1)
    fits = fits & (choices.at_first(groups + producer, 1) >= widest) & (needs <= given)
    if r.dots and not any(f.block.by_value[v].kind == "compute" for d in r.dots.values() for v in (d.left, d.right)):
        fits = fits & ~flattened(f)  # groups that take places in turn have no price yet
    return Held(groups.astype(float), parts, tall, blocks, shared, given, wants, needs, ahead, staged, fits)


def _shares_trips(f: Features, parts: Counts) -> NDArray[np.bool_]:
    """Whether groups with the same rows can share out the trips of the only loop."""
    loops = {s.loops for s in f.stmts} - {()}
    if len(loops) != 1 or any(s.stmt.masks for s in f.stmts):
        return np.zeros(len(f), np.bool_)
    (around,) = loops
    trips = f.product(f.trips, around)
    return (len(around) == 1) & ((trips % parts == 0) | ~persistent(f))


def _merged(f: Features) -> list[StmtFeatures]:
    """What loops accumulate: groups with the same rows merge it behind them."""
    owned = dict(f.tree.owner)
    found = {s.stmt.value: s for s in f.stmts if s.stmt.kind == "compute" and s.loops and owned.get(s.stmt.value) == s.loops[-1]}
    return list(found.values())


def ringed(f: Features, r: Resources, s: StmtFeatures) -> bool:
    """Whether the copy engine loads a tile into a ring: operands of products, and tiles of two dimensions."""
    if s.stmt.kind != "load":
        return False
    if any(s.stmt.value in (d.left, d.right) for d in r.dots.values()):
        return True
    wide = sum(bool(f.tile[a].max() > 1) for a in s.stmt.axes)
    return wide > 1 and bool(s.bytes.max() >= choices.LEAST_TILE)


def _turned(f: Features, r: Resources, groups: Counts) -> NDArray[np.bool_]:
    """Whether columns are what groups share out: three times a power of two of them, where rows are one (what
    :mod:`fuser.lower.gluon.split` does)."""
    found = np.full(len(f), bool(r.dots))
    for d in r.dots.values():
        loaded = all(f.block.by_value[v].kind == "load" for v in (d.left, d.right))
        rows, cols = d.rows.astype(int), d.cols.astype(int)
        found = found & loaded & (cols & (cols - 1) > 0) & (rows & (rows - 1) == 0) & (cols % (split.ROWS * groups) == 0)
    return found


def _wanted(f: Features, r: Resources, groups: Counts, parts: Counts, turned: NDArray[np.bool_]) -> tuple[Counts, Counts, Counts]:
    """Registers that a thread of a group wants, those without which the assembler spills, and those that the widest product asks
    for at first."""
    owned, lefts = dict(f.tree.owner), {d.left for d in r.dots.values()}
    sums, other, beside, widest = (np.zeros(len(f)) for _ in range(4))
    for i, s in enumerate(f.stmts):
        if s.stmt.kind == "store" or sum(bool(f.tile[a].max() > 1) for a in s.stmt.axes) < 2:
            continue
        if s.stmt.kind == "load" and all(u.contracts for u in f.block.users(s.stmt.value)):
            continue
        mine = np.ceil(f.product(r.lanes, dict.fromkeys(s.stmt.axes)) * parts / groups / THREADS)
        if s.stmt.value in owned:
            sums = sums + mine
        else:
            other = np.maximum(other, mine * 3 // 2)
            # the next trip's product runs beside what is made of this one's
            if i in r.dots and s.loops and (s.stmt.value in lefts or kind_of_loop(f, r, s.loops) == "late"):
                beside = np.maximum(beside, np.where(s.runs > parts, 2 * mine, 0.0))
    for d in r.dots.values():
        columns = np.where(turned, d.rows, d.cols)
        widest = np.maximum(widest, np.minimum(columns, choices.COLUMNS) // 2 + 26)
    wants = sums + other + choices.SPARE
    made = any(f.block.by_value[a].kind == "compute" for d in r.dots.values() for a in (d.left, d.right))
    # what follows a sum of products takes its registers
    return wants, sums + AROUND if r.dots and not made else np.maximum(wants - TIGHT, sums + beside), widest


@dataclass(frozen=True, eq=False)
class Part:
    """What a block does in loops of one kind, in seconds of an SM at its peak rates and in numbers: ``products``, ``special``
    functions and ``arithmetic`` of all of its groups, ``narrow``: of products for each halving of an operand's swizzle; ``dots``
    are products that are started, ``trips`` those whose slots are handed over, ``folds`` of rows over lanes."""

    products: Counts
    narrow: Counts
    special: Counts
    arithmetic: Counts
    dots: Counts
    trips: Counts
    folds: Counts


@dataclass(frozen=True, eq=False)
class GroupWork:
    """What :func:`times` needs beside :class:`cost_model.work.Work`. ``streamed``: of loops that only multiply what is loaded;
    ``late``: of those whose last products run beside the next trip's arithmetic; ``plain``: of all else. ``again``: trips of the
    first two whose slots are filled again, ``rounds``: of their rings, ``halts``: of those of other loops. ``opening``: bytes
    that have to come first; ``stores``, and loads by pointers (``pointed``), of a block; ``common``: bytes of its loads that
    other blocks want at the same time. ``longest``, ``busiest``: how much longer the busiest place for blocks, and the busiest
    SM, is at work than in the mean, where a causal mask ends loops."""

    held: Held
    streamed: Part
    late: Part
    plain: Part
    rounds: Counts
    again: Counts
    halts: Counts
    opening: Counts
    stores: Counts
    pointed: Counts
    common: Counts
    longest: Counts
    busiest: Counts

    @property
    def kinds(self) -> tuple[Part, Part, Part]:
        return self.streamed, self.late, self.plain


def group_work(f: Features, r: Resources, device: Device) -> GroupWork:
    """Counts of each candidate of a batch."""
    zero = np.zeros(len(f))
    sums = {k: {n.name: zero.copy() for n in fields(Part)} for k in ("streamed", "late", "plain")}
    kinds = {loops: kind_of_loop(f, r, loops) for loops in dict.fromkeys(s.loops for s in f.stmts)}
    again, rounds, halts, opening, stores, pointed, common = (zero.copy() for _ in range(7))
    trips: dict[tuple[str, ...], Counts] = {}
    own = held(f, r, device)
    together = np.minimum(own.blocks * device.sm_count, programs(f))
    seen: set[str] = set()
    for i, s in enumerate(f.stmts):
        kind, stmt = kinds[s.loops], s.stmt
        part = sums[kind]
        if stmt.kind == "store":
            stores = stores + s.often
        elif stmt.kind == "load" and ringed(f, r, s):
            opening = opening + s.bytes * (s.stmt.value not in seen)
            seen.add(s.stmt.value)
            trips[s.loops] = np.maximum(trips.get(s.loops, zero), s.often)
            common = common + s.bytes * s.fill * s.often * (1.0 - 1.0 / readers(f, stmt, together))
        elif stmt.kind == "load":
            pointed = pointed + s.often
        elif i in r.dots:
            flops = 2.0 * f.product(r.lanes, stmt.related) * s.often
            seconds = flops * device.sm_count / device.matmul_flops(_narrowest(f, stmt), PRECISION.read(f.options))
            part["products"] += seconds
            part["narrow"] += seconds * _narrow(f, r.dots[i])
            part["dots"] += s.often
        else:
            lanes = f.product(r.lanes, dict.fromkeys(stmt.related)) * s.often
            part["special"] += stmt.entry.sfu * lanes * device.sm_count / device.sfu_rate
            part["arithmetic"] += 2.0 * max(stmt.entry.flops, 1.0) * lanes * device.sm_count / device.fp32_flops
            part["folds"] += s.often * bool(stmt.folds)
    for loops, often in trips.items():
        sums[kinds[loops]]["trips"] += often
        if loops:
            slots = np.maximum(f.stages, 1) * own.parts
            refilled = np.maximum(often - np.where(own.ahead & (programs(f) < f.blocks), 0.0, slots), 0.0)
            if kinds[loops] == "plain":
                halts = halts + refilled / slots
            else:
                again, rounds = again + refilled, rounds + refilled / slots
    streamed, late, plain = (Part(**sums[k]) for k in sums)
    busiest = f.busiest(np.minimum(own.blocks * device.sm_count, programs(f)), device.sm_count, persistent(f), groups=True)
    return GroupWork(own, streamed, late, plain, rounds, again, halts, opening, stores, pointed, common, *busiest)


def _narrow(f: Features, d: Dot) -> Counts:
    """How often the widest swizzle, 128 bytes, is halved for loaded operands whose rows are shorter."""
    halved = np.zeros(len(f))
    for value in (d.left, d.right):
        operand = f.block.by_value[value]
        if operand.kind == "load" and operand.at.axes:
            width = f.tile[operand.at.axes[-1]] * DTYPE_BYTES[operand.dtype]
            halved = np.maximum(halved, np.log2(np.maximum(choices.SWIZZLES[0] / width, 1.0)))
    return halved


def _narrowest(f: Features, stmt: Stmt) -> str:
    """The dtype in which a product is multiplied."""
    return min((f.block.by_value[a].dtype for a in stmt.args), key=lambda d: DTYPE_BYTES[d])


def by_groups(f: Features) -> NDArray[np.bool_]:
    """Which candidates are written in Gluon."""
    return setting(f, BACKEND) == "gluon" if BACKEND.key() in f.options else np.zeros(len(f), np.bool_)


def held_by_groups(f: Features, device: Device) -> Held:
    """What blocks hold, as if all candidates were written in Gluon."""
    return held(f, resources(f, device), device)


def priced(f: Features, w: Work, device: Device, c: Constants) -> dict[str, Counts]:
    """:func:`times`, and what blocks hold, of candidates of a batch as if all of them were written in Gluon."""
    g = group_work(f, resources(f, device), device)
    held = {"resident": g.held.blocks, "registers": g.held.wants, "shared": g.held.shared}
    return times(w, g, device, c) | held


ROOF = 8.0
"""Exponent that joins resources: all but the largest."""
SPILL_RAMP, STEPS = 40.0, 4.0


def times(w: Work, g: GroupWork, device: Device, c: Constants, p: Costs = COSTS) -> dict[str, Counts]:
    """Every part of the estimate in seconds, by the names of :func:`cost_model.refined.times`."""
    h, sm, clock = g.held, device.sm_count, device.clock
    programs = np.ceil(w.programs / sm)
    each = programs * np.ceil(w.blocks / w.programs)
    resident = np.minimum(h.blocks, programs)
    waves = np.ceil(each / resident)

    def arithmetic(x: Part) -> Counts:
        return (p.special_cost * x.special + p.arithmetic_cost * x.arithmetic) / h.groups

    def multiplied(x: Part) -> Counts:
        return p.product_cost * (x.products + p.narrow * x.narrow) / h.groups

    into_sm = p.into * w.loaded / (c.sm_bandwidth * clock)
    alone = [p.alone * arithmetic(x) + p.fold * x.folds / h.parts for x in g.kinds]
    products = _join(p.beside, multiplied(g.late) + p.dot * g.late.dots / h.parts, alone[1])
    trips = g.streamed.trips + g.late.trips
    barriers = (p.handshake + p.stay * (w.programs < w.blocks)) * trips / h.parts
    loops = multiplied(g.streamed) * (1.0 + p.taller * (h.tall - 1.0)) + alone[0] + products + barriers
    # a slot is filled again when its last reader is done
    streams, one = g.streamed.trips > g.late.trips, np.maximum(trips, 1.0)
    inside = np.where(streams, loops + (h.groups - 1.0) * multiplied(g.streamed), loops)
    cycle = np.where(streams, p.streamed, p.late) + (inside + p.arrive * resident * w.loaded / (c.sm_bandwidth * clock)) / one
    fetch = g.rounds * cycle + (1.0 - np.minimum(g.again / one, 1.0)) * inside
    rest = p.merge * (h.parts - 1.0) + multiplied(g.plain) + p.tail * arithmetic(g.plain) + p.fold * g.plain.folds
    rest = (
        rest
        + p.late * g.halts
        + p.dot * g.plain.dots
        + p.handshake * g.plain.trips
        + p.store * g.stores
        + (p.drain * h.parts / h.groups + p.direct * ~h.staged) * w.stored
        + p.pointed * g.pointed
    )
    chain = loops + rest
    special, flops = (sum((getattr(x, n) for x in g.kinds), 0.0 * chain) for n in ("special", "arithmetic"))
    tensor = h.groups * sum(map(multiplied, g.kinds))
    special, flops = p.special_cost * special, p.arithmetic_cost * flops
    units = _join(ROOF, tensor, special, flops, p.operands * w.operands / (device.smem_bandwidth_per_sm * clock), into_sm)
    customers = h.groups * resident
    stays = h.ahead & (w.programs < w.blocks)
    filling = p.opening * g.opening / (c.sm_bandwidth * clock)
    first = p.first + p.start + filling * resident
    # what a block waits for at first the others of its SM hide, but for those that begin with it
    begin = np.where(stays, 0.0, p.follow + p.first + filling)
    shared = units * resident * g.busiest
    busy = _join(p.norm, chain * g.longest + begin, shared * (customers - 1.0) / customers)
    turn = np.maximum(_join(p.meet, busy, (fetch + rest) * g.longest + begin), shared)
    turns = waves * turn + np.where(stays, np.ceil(programs / resident) * first, first - p.first - filling)
    l2 = w.blocks * (w.loaded + w.stored - p.merged * g.common) / (device.l2_bandwidth * p.l2_rate)
    dram = w.memory / (device.memory_bandwidth * c.memory_rate)
    spills = 1.0 + p.spill * np.clip((h.needs - h.registers) / SPILL_RAMP, 0.0, STEPS)
    outside = _join(ROOF, l2, dram)
    body = (_join(p.memory, turns, outside) + p.exposed * outside / waves) * spills
    launch, zero = np.full(len(w), device.launch_latency), np.zeros(len(w))
    return {
        "seconds": np.where(h.fits, launch + p.base + body, np.inf),
        "launch": launch,
        "base": zero + p.base,
        "chain": chain,
        "waits": first,
        "fetch": fetch,
        "busy": loops + rest,
        "barriers": barriers + p.handshake * g.plain.trips,
        "starts": zero + p.start,
        "turns": turns,
        "roof": each * units,
        "tensor": each * tensor,
        "issue": zero,
        "special": each * special,
        "arithmetic": each * flops,
        "move": zero,
        "device_memory": dram,
        "l2": l2,
        "into_sm": each * into_sm,
        "spills": spills,
        "cuts": zero + 1.0,
        "waves": waves,
    }


def _join(p: float, *parts: Counts) -> Counts:
    return sum(x**p for x in parts) ** (1 / p)
