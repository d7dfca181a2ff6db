"""What Triton makes of a schedule: how a contraction is spread over warps, shared memory, registers.

The rules follow what the compiler does (read from its intermediate code, held by tests that compile kernels):

* lanes of a tile are padded to powers of two, and to at least 16 where they take part in a contraction;
* from sm_90 on, a contraction of 64 rows or more with whole warp groups uses ``wgmma``: its operands are read from shared
  memory. All others use
  ``mma`` on fragments that each warp reads for itself;
* a loaded operand has a buffer in shared memory from its load to its last use. In an innermost loop it is pipelined and has
  ``stages`` buffers for
  ``wgmma``, one less for ``mma``, and for ``wgmma`` of float32, whose operands threads read to split them: the rows stay in
  registers, the columns return to shared memory as two tiles;
* warps of chained contractions all stand along the rows of the last one, or along its columns where it is wider than tall. Along
  the rows, what is
  less than 16 rows a warp is computed several times over; along the columns, a computed operand has to pass through shared
  memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_model import streaming
from cost_model.dots import LEAST
from cost_model.dots import Dot
from cost_model.dots import dots_of
from cost_model.dots import lanes_of
from cost_model.execution import described
from cost_model.execution import persistent
from cost_model.features import BufferFeatures
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import Sizes
from cost_model.features import StmtFeatures
from cost_model.lives import from_loads
from cost_model.lives import home
from cost_model.lives import last_use
from cost_model.lives import life
from cost_model.lives import made_by
from cost_model.lives import made_here
from cost_model.lives import read_together
from cost_model.lives import real
from cost_model.lives import span
from cost_model.rows import FETCHED
from cost_model.rows import moved_at_once
from cost_model.spreads import hoisted
from fuser.device import Device
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.lower.layers import find_layers

BASE_REGISTERS = 36.0
"""Registers for addresses, counters and masks."""
LOADED = 0.5
"""Registers for each element a thread loads outside of the pipeline: two of them share a register, some are stored before all
are there.
"""
ELASTIC = 248.0
"""Registers beyond which loads wait for each other instead of asking for more."""
FLAT = 0.4
"""Registers for each element of an element-wise result, which is used up bit by bit."""
BESIDE = 0.6
"""Registers for each element of what another product multiplies that is loaded at the same time."""
SPLIT = 0.9
"""Registers for each element of an operand that is split and of its product: of 289 products and attentions compiled for an H200
without spills, nine tenths have 0.83 to 1.21 times what is said with it."""
FOLDED = 3.0
"""Registers for each element of a row statistic: old and new value, scale, copies in lanes of a row."""


@dataclass(frozen=True, eq=False)
class Resources:
    """``lanes``: padded tile of each axis. ``dots``: by position in ``f.stmts``. ``pipelined``: positions of the loads that a
    loop fetches ahead, with the number of buffers. ``shared``: bytes of a block; ``registers``: 32-bit registers a thread that a
    kernel wants, which may be more than there are."""

    lanes: dict[str, Sizes]
    dots: dict[int, Dot]
    pipelined: dict[int, Counts]
    shared: Counts
    registers: Counts


@lru_cache(maxsize=4)
def resources(f: Features, device: Device) -> Resources:
    """Resources of each candidate of a group, which several prices of it ask for."""
    lanes = lanes_of(f)
    dots = dots_of(f, lanes, device)
    pipelined = _pipelined(f, lanes, dots)
    return Resources(lanes, dots, pipelined, _shared(f, lanes, dots, pipelined), _registers(f, lanes, dots, pipelined))


def _feeds(f: Features, i: int) -> tuple[int, ...]:
    """Positions of the contractions that a loaded value reaches in its own loop, through element-wise operators or directly."""
    loops = home(f, i)
    reached, found = {f.stmts[i].stmt.value}, []
    for j in range(i + 1, len(f.stmts)):
        s = f.stmts[j]
        if s.stmt.kind != "compute" or not reached & set(s.stmt.args) or real(f, s.loops)[: len(loops)] != loops:
            continue
        if s.stmt.contracts:
            if real(f, s.loops) == loops:
                found.append(j)
        elif not s.stmt.folds:
            reached.add(s.stmt.value)
    return tuple(found)


@lru_cache(maxsize=1024)
def layers_of(block: BlockGraph) -> Mapping[str, int]:
    """The layer that each value of a chain of equal layers belongs to: lowering makes them a loop, which fetches the operands of
    later layers ahead."""
    found = find_layers(block, block.stmts)
    return {s.value: i for i in range(found.count) for s in found.group(i)} if found else {}


def _pipelined(f: Features, lanes: dict[str, Sizes], dots: dict[int, Dot]) -> dict[int, Counts]:
    """Buffers of each load in an innermost loop (without any, in that of a persistent kernel) that feeds a contraction there; a
    load of less than 4 bytes a thread is not fetched ahead (the gains of a norm, say: 42 kernels with such vectors took 1.4 times
    their estimate on an H200 when they were counted as fetched ahead, and take 1.05 times that since).
    """
    found: dict[int, Counts] = {}
    loops = [home(f, i) for i in range(len(f.stmts))]
    within = persistent(f)
    for i, s in enumerate(f.stmts):
        if s.stmt.kind != "load" or any(o[: len(loops[i])] == loops[i] and len(o) > len(loops[i]) for o in loops):
            continue
        if not loops[i] and not within.any():
            continue
        users = _feeds(f, i)
        if not users:
            continue
        groups = np.zeros(len(f), bool)
        tensor = np.zeros(len(f), bool)
        for j in users:
            tensor |= dots[j].tensor
            groups |= dots[j].groups & ~dots[j].split & (s.stmt.value in (dots[j].left, dots[j].right))
        wide = (_bytes(f, lanes, s.stmt) >= 4 * 32 * f.warps) & (moved_at_once(f, s.stmt) >= FETCHED)
        buffers = np.where(groups, f.stages, np.maximum(f.stages - 1, 1)) * f.product(f.trips, unrolled(f, s))
        wide = wide & ~_apart(f, i)
        found[i] = np.where(tensor & wide & (f.stages > 1) & (bool(loops[i]) | within), buffers, 0.0)
    return found


def _apart(f: Features, i: int) -> NDArray[np.bool_]:
    """Whether a load is multiplied, and summed in its own loop too, in pieces: compilers mostly fetch the last one alone ahead
    (4 of 6 kernels looked at; attention of normalized keys with heads of 80 took an H200 1.4 times its estimate).
    """
    loops, load = f.stmts[i].loops, f.stmts[i].stmt.value
    sums = (s.stmt for s in f.stmts[i + 1 :] if s.stmt.folds and not s.stmt.contracts and s.loops == loops)
    mine = (s for s in sums if from_loads(f, f.block.by_value[s.args[0]]) and load in f.block.sources[s.value])
    sides = [f.tile[a] for s in mine for a in s.reduce]
    return np.logical_or.reduce([np.zeros(len(f), bool), *((n & (n - 1) > 0) & (n % LEAST == 0) for n in sides)])


def unrolled(f: Features, s: StmtFeatures) -> list[str]:
    """Unrolled loops that give a statement copies inside its innermost real loop (or the block), for a load those that index
    it.
    """
    real_ones = [i for i, a in enumerate(s.loops) if a not in f.tree.arrays and (s.stmt.kind != "load" or a in s.stmt.axes)]
    inner = s.loops[real_ones[-1] + 1 :] if real_ones else s.loops
    return [a for a in inner if a in f.tree.arrays and a in s.stmt.axes]


def _bytes(f: Features, lanes: dict[str, Sizes], stmt: Stmt) -> Counts:
    return f.product(lanes, dict.fromkeys(stmt.axes)) * DTYPE_BYTES[stmt.dtype]


Held = tuple[int, int, Counts]
"""Bytes that are alive from one statement to another."""


def _shared(f: Features, lanes: dict[str, Sizes], dots: dict[int, Dot], pipelined: dict[int, Counts]) -> Counts:
    """Bytes of shared memory: the most that is alive at once."""
    alive = [np.zeros(len(f)) for _ in f.stmts]
    layered, last = layers_of(f.block), len(f.stmts) - 1
    # a descriptor stores the result of one place while the next one's loads and products are under way
    stores = [described(f, s.stmt) for s in f.stmts if s.stmt.kind == "store"]
    ahead = persistent(f) & np.logical_or.reduce(stores) & (len(dots) == 1)
    for i, s in enumerate(f.stmts):
        if s.stmt.kind == "load":
            size = _bytes(f, lanes, s.stmt)
            if i in pipelined:
                low, high = span(f, i, home(f, i))
                _hold(alive, (low, high, size * pipelined[i]))
                _hold(alive, (high + 1, last, size * pipelined[i] * ahead))
            plain = pipelined[i] == 0 if i in pipelined else np.ones(len(f), bool)
            _hold(alive, *_of_load(f, i, size, plain, dots, layered))
        elif i in dots:
            held = tuple(_of_product(f, i, dots))
            _hold(alive, *held, *((i + 1, last, amount * ahead) for _, _, amount in held))
        elif s.stmt.folds:
            kept = f.product(lanes, s.stmt.axes)
            across = dots[min(dots)].warp_cols if dots else np.clip(f.warps / kept, 1, f.warps)
            _hold(alive, (i, i, np.where(across > 1, kept * across * 4, 0.0)))
        elif s.stmt.kind == "store" and dots:
            # rows of a warp become rows of the tensor in pieces of at most 128 bytes a thread; of warp groups, twice that in fp32
            wide = dots[max(dots)].groups & (DTYPE_BYTES[s.stmt.dtype] > 2)
            tile = _bytes(f, lanes, s.stmt)
            pieces = np.minimum(tile, np.where(wide, 256.0, 128.0) * 32 * f.warps)
            _hold(alive, (i, i, np.where(described(f, s.stmt), tile, pieces)))
    return np.maximum.reduce(alive)


def _hold(alive: list[Counts], *held: Held) -> None:
    for low, high, amount in held:
        for p in range(low, high + 1):
            alive[p] = alive[p] + amount


def _of_load(
    f: Features, i: int, size: Counts, plain: NDArray[np.bool_], dots: dict[int, Dot], layered: Mapping[str, int]
) -> Iterator[Held]:
    """What a load holds besides the buffers of a pipeline; ``plain`` where it has none."""
    s = f.stmts[i]
    reading = [j for j, d in dots.items() if s.stmt.value in (d.left, d.right)]
    readers = [dots[j] for j in reading]
    if not readers:
        if _feeds(f, i):
            yield i, i, np.where(plain & (size > 512), size, 0.0)
        return
    groups = np.logical_or.reduce([d.groups for d in readers])
    if s.stmt.value in layered:
        buffers = np.where(groups, f.stages, np.maximum(f.stages - 1, 1))
        yield i, len(f.stmts) - 1, size * buffers if layered[s.stmt.value] == 0 else 0.0 * size
        return
    tensor = np.logical_or.reduce([d.tensor for d in readers])
    # fragments that several statements read are made at once; the buffer is free again
    once = read_together(f, i)
    moved = len(home(f, i)) < len(real(f, s.loops))
    copies = f.product(f.trips, unrolled(f, s)) if moved else 1.0
    end = span(f, i, real(f, s.loops)[: len(home(f, i)) + 1])[1] if moved else last_use(f, i)
    yield i, i, np.where(plain & tensor & ~groups & once, size, 0.0)
    # what threads split goes to registers first; rows that stay lie as two tiles
    stays = not all(made_here(f, j, s.stmt.value) for j in reading)
    tiles = np.where(np.logical_or.reduce([d.split for d in readers]), 2.0 * stays, 1.0)
    yield i, end, np.where(plain & tensor & (groups | (not once)), size * copies * tiles, 0.0)


def _of_product(f: Features, i: int, dots: dict[int, Dot]) -> Iterator[Held]:
    """What a product holds: operands that were computed, for warps that did not compute them, and columns that threads split."""
    d, loops = dots[i], real(f, f.stmts[i].loops)
    yield i, i, np.where(d.split, 2.0 * d.inner * d.cols * DTYPE_BYTES["float32"], 0.0)
    for value, across in ((d.left, d.warp_cols), (d.right, d.warp_rows)):
        operand = f.block.by_value[value]
        if from_loads(f, operand):
            continue
        right = value == d.right
        size = (d.inner * d.cols if right else d.rows * d.inner) * DTYPE_BYTES[operand.dtype]
        made = made_by(f, value, dots)
        moved = right | (across > 1) & ~d.groups
        low, high = i, i
        if made is not None and real(f, f.stmts[made].loops) != loops:
            # warps of another loop stand as its own shape asks
            moved = moved | (dots[made].warp_rows != d.warp_rows) | (across > 1)
            if real(f, f.stmts[made].loops)[: len(loops)] != loops:
                low, high = span(f, i, loops)
        yield low, high, np.where(d.tensor & moved, size, 0.0)
    yield i, i, np.where(d.tensor, 0.0, d.inner * 4)


def crowd(f: Features, r: Resources) -> Counts:
    """Registers a thread of the results of products on fragments and of their operands over the whole depth of a tile: compilers
    load those ahead, step after step, and spill what they have no room for."""
    found, results, threads = np.zeros(len(f)), np.zeros(len(f)), 32.0 * f.warps
    for d in r.dots.values():
        item = min(DTYPE_BYTES[f.block.by_value[v].dtype] for v in (d.left, d.right))
        mine = d.tensor & ~d.groups
        operands = (d.rows * d.warp_cols + d.cols * d.warp_rows) * d.inner * item / (4.0 * threads)
        results = results + np.where(mine, d.rows * d.cols / threads, 0.0)
        found = np.maximum(found, np.where(mine, operands, 0.0))
    return found + results


def _registers(f: Features, lanes: dict[str, Sizes], dots: dict[int, Dot], pipelined: dict[int, Counts]) -> Counts:
    """32-bit registers a thread: the most that is alive at once of accumulators, operands and what is loaded or computed, in
    fp32.
    """
    n = len(f.stmts)
    alive = [np.full(len(f), BASE_REGISTERS) for _ in range(n)]
    loading: dict[int, Counts] = {}
    threads = 32.0 * f.warps
    held: dict[str, BufferFeatures] = {b.value: b for b in f.buffers}
    layered = layers_of(f.block)
    seen: set[str] = set()
    for i, s in enumerate(f.stmts):
        stmt = s.stmt
        size = f.product(lanes, dict.fromkeys(stmt.axes)) / threads
        if i in dots:
            d = dots[i]
            # fragments of one step of 16; without tensor cores the whole product
            step = np.where(d.groups, 0.0, np.minimum(8.0 * (d.rows * d.warp_cols + d.cols * d.warp_rows) / threads, 32.0))
            alive[i] = alive[i] + np.where(d.tensor, step, FLAT * f.product(lanes, stmt.related) / threads)
            # both parts of the rows (of what stays, one), columns on their way, and what is added to the sum
            parts = ((1.0 + made_here(f, i, d.left)) * d.rows * d.warp_cols + d.cols) * d.inner + d.rows * d.cols * d.repeat
            alive[i] = alive[i] + np.where(d.exact, SPLIT * parts / threads, 0.0)
            # what several products of one operand without tensor cores multiply is loaded at once
            beside = (f.stmts[j] for j, x in dots.items() if j != i and x.left == d.left and f.stmts[j].loops == s.loops)
            others = (f.product(lanes, x.stmt.related) for x in beside)
            alive[i] = alive[i] + np.where(d.tensor, 0.0, BESIDE * sum(others, np.zeros(len(f))) / threads)
            if f.block.by_value[d.left].kind != "load":
                alive[i] = alive[i] + np.where(d.tensor & (d.warp_cols == 1), 0.5 * d.rows * d.inner / threads, 0.0)
            size = size * d.repeat
        if stmt.folds:
            if stmt.value in seen:
                continue
            seen.add(stmt.value)
            size = size * held[stmt.value].tiles * (1.0 if i in dots else FOLDED)
            low, high = life(f, i)
            for p in range(low, high + 1):
                # an operand of a contraction has become its fp16 form by then
                alive[p] = alive[p] + size * (0.0 if p == high and p in dots and p != i else 1.0)
        elif stmt.kind == "load":
            ahead = pipelined[i] > 0 if i in pipelined else (f.stages > 1) & (stmt.value in layered)
            loading[i] = np.where(ahead, 0.0, LOADED * size)
            early = hoisted(f, i)
            for p in range(i if early.any() else 0):
                alive[p] = alive[p] + np.where(early, size * DTYPE_BYTES[stmt.dtype] / 4, 0.0)
        elif stmt.kind == "compute":
            alive[i] = alive[i] + (0.0 if dots else FLAT * size)
    if not dots and streaming.streams(f):
        for low, high, size in streaming.held(f, lanes):
            for p in range(low + 1, high):
                alive[p] = alive[p] + size
    # a load takes what is free: it is done in pieces where there is little
    return np.maximum.reduce(alive + [np.minimum(alive[i] + x, ELASTIC) for i, x in loading.items()])
