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
from cost_model.dots import Dot
from cost_model.execution import persistent
from cost_model.execution import places_of_one
from cost_model.execution import programs
from cost_model.execution import readers
from cost_model.execution import setting
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.group_costs import COSTS
from cost_model.group_costs import Costs
from cost_model.group_loops import kind_of_loop
from cost_model.group_room import THREADS
from cost_model.group_room import Held
from cost_model.group_room import held
from cost_model.group_room import ringed
from cost_model.resources import Resources
from cost_model.resources import resources
from cost_model.work import Work
from fuser.device import Device
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.gluon import choices
from fuser.lower.options import BACKEND
from fuser.lower.options import PRECISION


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


def group_work(f: Features, r: Resources, device: Device, given: Held | None = None) -> GroupWork:
    """Counts of each candidate of a batch. ``given``: what its blocks hold, where the generator's rules do not decide it."""
    zero = np.zeros(len(f))
    sums = {k: {n.name: zero.copy() for n in fields(Part)} for k in ("streamed", "late", "plain")}
    kinds = {loops: kind_of_loop(f, r, loops) for loops in dict.fromkeys(s.loops for s in f.stmts)}
    again, rounds, halts, opening, stores, pointed, common = (zero.copy() for _ in range(7))
    trips: dict[tuple[str, ...], Counts] = {}
    own = given or held(f, r, device)
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
            part["products"] += _join(ROOF, seconds, _operand_seconds(f, r.dots[i], stmt, device) * s.often)
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


def _operand_seconds(f: Features, d: Dot, stmt: Stmt, device: Device) -> Counts:
    """What one product takes to read its operands: instructions of 64 rows, unless these are in registers, and all columns."""
    item = DTYPE_BYTES[_narrowest(f, stmt)]
    sides = d.rows * (f.block.by_value[d.left].kind == "load") + d.cols * np.ceil(d.rows / 64)
    return COSTS.operands * sides * d.inner * item / (device.smem_bandwidth_per_sm * device.clock)


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


def by_groups(f: Features, backend: str = "gluon") -> NDArray[np.bool_]:
    """Which candidates are written in Gluon."""
    return setting(f, BACKEND) == backend if BACKEND.key() in f.options else np.zeros(len(f), np.bool_)


def held_by_groups(f: Features, device: Device) -> Held:
    """What blocks hold, as if all candidates were written in Gluon."""
    return held(f, resources(f, device), device)


def priced(f: Features, w: Work, device: Device, c: Constants, given: Held | None = None) -> dict[str, Counts]:
    """:func:`times`, and what blocks hold, of candidates of a batch as if all of them were written in Gluon."""
    g = group_work(f, resources(f, device), device, given)
    held = {"resident": g.held.blocks, "registers": g.held.wants, "shared": g.held.shared}
    return times(w, g, device, c) | held


ROOF = 8.0
"""Exponent that joins resources: all but the largest."""
SPILL_RAMP, STEPS = 40.0, 4.0
CODE = 16
"""Bytes of an instruction."""


def times(w: Work, g: GroupWork, device: Device, c: Constants, p: Costs = COSTS) -> dict[str, Counts]:
    """Every part of the estimate in seconds, by the names of :func:`cost_model.refined.times`."""
    h, sm, clock = g.held, device.sm_count, device.clock
    programs = np.ceil(w.programs / sm)
    each = places_of_one(w.blocks, w.programs, sm)
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
    streams, one = g.streamed.trips > g.late.trips, np.maximum(trips, 1.0)
    barriers = barriers + np.where(streams, -p.sooner, p.refill) * g.again * h.alone
    loops = multiplied(g.streamed) * (1.0 + p.taller * (h.tall - 1.0)) + alone[0] + products + barriers
    # a slot is filled again when its last reader is done
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
    # all groups are behind their loops at about the same time, each with code of its own
    behind = (g.late.trips == 0) & (g.plain.dots == 0)
    tail = p.special_cost * g.plain.special + p.arithmetic_cost * g.plain.arithmetic
    code = CODE * p.arithmetic_cost * g.plain.arithmetic * device.fp32_flops / (2.0 * sm * THREADS)
    others = p.together * tail * (1.0 - 1.0 / h.groups) * (behind & (resident == 1))
    rest = rest + others + code / p.fetched * (behind & (code > p.cached))
    chain: Counts = loops + rest
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
    base = p.base - c.overlap * w.dependent
    return {
        "seconds": np.where(h.fits, launch + base + body, np.inf),
        "launch": launch,
        "base": base,
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
