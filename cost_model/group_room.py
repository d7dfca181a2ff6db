"""What blocks of kernels by warp groups hold: groups, rows, registers, shared memory, blocks on an SM, by the generator's rules
(:mod:`fuser.lower.gluon.choices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.execution import flattened
from cost_model.execution import persistent
from cost_model.execution import programs
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import StmtFeatures
from cost_model.group_loops import kind_of_loop
from cost_model.resources import Resources
from fuser.device import Device
from fuser.lower.gluon import choices
from fuser.lower.gluon import split
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import TMA
from fuser.lower.options import Option

THREADS = 32 * split.GROUP_WARPS
TIGHT, AROUND = 24.0, 32.0
"""Registers of a thread that can be too few without spills, and those beside its sums where only loaded tiles are multiplied: of
271 schedules for an H200 within these limits 5 spilled, of the others 110 of 117."""


@dataclass(frozen=True, eq=False)
class Held:
    """What blocks hold: ``groups`` that compute, ``parts`` of them with the same rows, ``tall`` times 64 of these each;
    ``blocks`` on an SM, bytes of ``shared`` memory of a block, ``registers`` that a thread of a group has and those that it
    ``wants``; ``ahead`` where blocks that stay load for the next place before the present one is done, ``staged`` where results
    leave by the copy engine, ``alone`` where the one group fills slots itself; ``fits`` where the generator has a form, as far as
    sizes decide."""

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
    alone: NDArray[np.bool_]
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
        rows = np.where(turned, d.cols, d.rows).astype(int)
        shares = split.parts_of(rows, groups)
        part = rows * shares // groups
        fits = fits & d.tensor & (rows * shares % groups == 0) & split.divides(part, True)
        parts, tall = shares.astype(float), np.maximum(part / split.ROWS, 1.0)
    fits = fits & ((parts == 1) | _shares_trips(f, parts)) & (not f.tree.arrays)
    once, outs = np.where(again, 2, 1), np.zeros(len(f))
    loads, least, producer = np.zeros(len(f)), np.zeros(len(f)), again.copy()
    direct = np.zeros(len(f), np.bool_)
    seen: set[str] = set()
    for s in f.stmts:
        if s.stmt.access is None or (s.stmt.value in seen and s.stmt.kind == "load"):
            continue
        seen.add(s.stmt.value)
        if s.stmt.kind == "store":
            pointed = asked(f, TMA, False, s.stmt.at.source)
            outs, direct = outs + np.where(pointed, 0.0, s.bytes), direct | pointed
        elif ringed(f, r, s):
            single = sum(x.stmt is s.stmt for x in f.stmts) == 1
            slots = np.where((s.runs > 1) | (not single), np.maximum(f.stages, 1) * parts, once)
            slots = np.where(again | (not single), slots, np.minimum(slots, s.runs))
            loads = loads + s.bytes * slots
            least = least + s.bytes * np.where(s.runs > 1, slots, 1)
            producer = producer | (s.runs > slots) | (not single)
    alone = producer & asked(f, SPECIALIZE, False)
    fits = fits & ~(alone & (again | (groups > 1)))
    producer = producer & ~alone
    handed = 4.0 * (parts - 1.0) * sum((f.product(r.lanes, s.stmt.axes) for s in _merged(f)), np.zeros(len(f)))
    room = choices.SHARED - choices.BARRIERS - handed
    ahead = again & (loads + outs <= room)
    loads = np.where(loads + outs > room, least, loads)
    staged = (loads + outs <= room) & ~direct
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
    return Held(groups.astype(float), parts, tall, blocks, shared, given, wants, needs, ahead, staged, alone, fits)


def asked(f: Features, option: Option[Any], value: Any, tensor: str = "") -> NDArray[np.bool_]:
    """Which candidates ask for this value of an option, and not only have it since nobody asks."""
    found = f.options.get(option.key(tensor))
    return np.array([x is value for x in found.tolist()]) if isinstance(found, np.ndarray) else np.full(len(f), found is value)


def _shares_trips(f: Features, parts: Counts) -> NDArray[np.bool_]:
    """Whether groups with the same rows can share out the trips of the only loop."""
    loops = {s.loops for s in f.stmts} - {()}
    if len(loops) != 1 or any(s.stmt.indexed for s in f.stmts):
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
    """Whether columns are what groups share out."""
    found = np.full(len(f), bool(r.dots))
    for d in r.dots.values():
        loaded = all(f.block.by_value[v].kind == "load" for v in (d.left, d.right))
        found = found & loaded & split.columns_divide(d.rows.astype(int), d.cols.astype(int), groups)
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
