"""How the elements of a tape are divided over blocks of threads, and what these blocks read: sectors of memory, counted on a
few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import lru_cache
from typing import Any

import numpy as np

from fuser.ir.element_loads import for_all
from fuser.ir.elements import Elements
from fuser.ir.elements import Recipe
from fuser.ir.elements import Step
from fuser.ir.elements import Tape
from fuser.ir.elements import tape_of
from fuser.ir.opdef import OPS
from fuser.ir.places import Atom
from fuser.ir.places import Condition
from fuser.ir.places import Place
from fuser.ir.places import atoms_of
from fuser.ir.places import coordinate
from fuser.ir.places import evaluated
from fuser.ir.places import fixed
from fuser.ir.places import holds
from fuser.ir.places import split
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import Tensor
from fuser.lower.pieces import next_power

SECTOR = 32
"""Bytes that memory moves at once."""
SERIES = 105.0
"""Arithmetic of float32 in the time of a sine of float64: four of them for each of four million results took an H200 28 µs."""
SIDE = 64
"""Rows and columns of a tile that is read along one dimension and written along another."""
ENOUGH = 264
"""Blocks that fill a GPU twice."""
SAMPLES, BRANCHES = 3, 13
"""Blocks of which sectors are counted; where some loads are not made everywhere, of a concatenation, say."""
FEW, SOME, NARROW = 8, 16, 4
"""Loads for one element up to which a thread has two results of a window, eight others, and (but for those of small tensors) of
which tiles are looked at. On an H200 a maximum of 3 × 3 in steps of 2 took 24 µs with one or two results a thread and 41 with
four, in float16 22, 14, 22; a bicubic size 10.6 with one and 7.7 with eight."""
SMALL = 1 << 16
"""Bytes of a tensor that stays near each multiprocessor: a bias read for every row. To read it less often gains nothing: a
maximum of two neighbours behind a sum with one took an H100 7.0 µs in tiles and 5.9 in rows."""
SHARED = 1 / 3
"""Of what neighbours ask for: so little tiles must ask for to be better where they read no less of what lies far (strided
weights of a few taps, the same for every row)."""
ALIGNED = 4
"""Elements at whose multiples vectors begin."""


@dataclass(frozen=True)
class Tiling:
    """Blocks of ``size`` neighbours; with ``across``, a dimension of the tape's result, of so many of its last dimension by so
    many of that one. The tape's dimensions are as few as can be."""

    tape: Tape
    size: int
    warps: int
    across: int = -1

    @cached_property
    def rows(self) -> int:
        """Elements of a block along ``across``."""
        return min(SIDE, next_power(self.tape.shape[self.across])) if self.across >= 0 else 1

    @cached_property
    def columns(self) -> int:
        return min(SIDE, next_power(self.tape.shape[-1])) if self.across >= 0 else self.size

    @cached_property
    def blocks(self) -> int:
        shape = self.tape.shape
        if self.across < 0:
            return -(-math.prod(shape) // self.size)
        rest = math.prod(n for i, n in enumerate(shape[:-1]) if i != self.across)
        return rest * -(-shape[self.across] // self.rows) * -(-shape[-1] // self.columns)

    def coordinates(self, block: int) -> tuple[list[Any], Any]:
        """Of the elements of a block (rows × columns), and which of them there are."""
        shape = self.tape.shape
        if self.across < 0:
            i = block * self.size + np.arange(self.size)[None, :]
            there = i < math.prod(shape)
            return list(np.unravel_index(np.minimum(i, math.prod(shape) - 1), shape)) if shape else [], there
        per = -(-shape[-1] // self.columns), -(-shape[self.across] // self.rows)
        x = block % per[0] * self.columns + np.arange(self.columns)[None, :]
        y = block // per[0] % per[1] * self.rows + np.arange(self.rows)[:, None]
        others = [n for i, n in enumerate(shape[:-1]) if i != self.across]
        rest = iter(np.unravel_index(block // per[0] // per[1], others)) if others else iter(())
        found = [x if i == len(shape) - 1 else y if i == self.across else next(rest) for i in range(len(shape))]
        return found, (x < shape[-1]) & (y < shape[self.across])


@dataclass(frozen=True)
class Traffic:
    """Bytes: ``asked`` by all loads, warp by warp in whole sectors; of each tensor, where each block fetches each sector once.
    ``depth``: loads one of which needs what the one in front has read; ``far``: the larger of both without small tensors."""

    asked: float
    tensors: Mapping[str, float]
    depth: int
    far: float

    @property
    def fetched(self) -> float:
        return sum(self.tensors.values())


def recipe_of(op: str, args: Sequence[str], output: str, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Recipe:
    """What a library kernel computes, by rules."""
    if op == "elements":
        return Recipe.read(attrs["program"])
    used = tuple(dict.fromkeys(args))
    kept = tuple(sorted((k, _kept(v)) for k, v in attrs.items()))
    return Recipe(
        used, {output: (op, tuple(args), dict(kept))}, {n: (tensors[n].shape, tensors[n].dtype) for n in (*used, output)}
    )


def _kept(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def tiled(recipe: Recipe) -> tuple[Tiling, Traffic]:
    """How a kernel of it is divided, and what that reads. Raises :class:`fuser.errors.UnsupportedError` where it has no tape."""
    return _tiled(recipe.text)


@lru_cache(maxsize=1024)
def _tiled(text: str) -> tuple[Tiling, Traffic]:
    recipe = Recipe.read(text)
    return best_tiling(joined(recipe.elements, recipe.result))


def joined(made: Elements, name: str) -> Tape:
    """The tape of a result whose dimensions are joined where nothing asks for them apart."""
    tape = tape_of(made, name)
    groups = [[i] for i, n in enumerate(tape.shape) if n > 1] or [[]]
    places = list(_places(tape))
    kept = [groups[0]]
    for group in groups[1:]:
        front, i = kept[-1][-1], group[0]
        (outer, _), (inner, _) = (coordinate(d, tape.shape[d]).terms[0] for d in (front, i))
        if all(_times(p, outer) == _times(p, inner) * tape.shape[i] for p in places):
            kept[-1].append(i)
        else:
            kept.append(group)
    shape = tuple(math.prod(tape.shape[d] for d in g) for g in kept)
    at = [fixed(0)] * len(tape.shape)
    for i, g in enumerate(kept):
        for d, p in zip(g, split(coordinate(i, shape[i]), [tape.shape[d] for d in g]), strict=True):
            at[d] = p
    again = tape_of(Elements(made.nodes, made.tensors), name, at)
    return Tape(again.steps, shape, tape.dtype)


def _places(tape: Tape) -> Iterator[Place]:
    for s in tape.steps:
        todo: list[Any] = [s.at, s.under]
        while todo:
            p = todo.pop()
            if isinstance(p, Condition):
                todo += p.sides
            elif isinstance(p, Place):
                yield p
                for a in atoms_of(p):
                    yield from a.args


def _times(p: Place, atom: Atom) -> int:
    return dict(p.terms).get(atom, 0)


def neighbours(tape: Tape) -> Tiling:
    """A result divided by numbers of its elements."""
    count, loads = math.prod(tape.shape), len(tape.loads)
    each = 8 if loads <= SOME else 1
    if _apart(tape) > 2:  # a window: neighbouring threads read neighbours
        each = 2 if loads <= FEW or DTYPE_BYTES[tape.dtype] == 2 else 1
    while each > 1 and count < ENOUGH * 128 * each:
        each //= 2
    return Tiling(tape, 128 * each if each > 1 else 256, 4 if each > 1 else 8)


def tiles(tape: Tape) -> list[Tiling]:
    """A result divided into tiles along each dimension that is long."""
    *outer, last = tape.shape or (1,)
    return [Tiling(tape, 0, 8, i) for i, n in enumerate(outer) if n >= 8 and last >= 8]


def _apart(tape: Tape) -> int:
    """Loads of which neighbours lie some elements apart, or beside each other where no vector begins."""
    last = {a for i, n in enumerate(tape.shape[-1:], len(tape.shape) - 1) for a, _ in coordinate(i, n).terms}
    along = ((s.at, next((abs(c) for a, c in s.at.terms if a in last), 0)) for s in tape.loads)
    return sum(c > 1 or (c == 1 and at.constant % ALIGNED > 0) for at, c in along)


def best_tiling(tape: Tape) -> tuple[Tiling, Traffic]:
    """The tiling that reads least: neighbours alone where tiles gain little."""
    by_number = neighbours(tape)
    plain = by_number, traffic(by_number)
    many = sum(map(_far, tape.loads)) > NARROW
    if many and plain[1].far > SHARED * plain[1].asked:
        return plain
    ways = [plain, *((t, traffic(t)) for t in tiles(tape))]
    other = min(ways, key=lambda w: w[1].far)
    if not many and other[1].far < 0.8 * plain[1].far:
        return other
    other = min(ways, key=lambda w: w[1].asked)
    return other if other[1].asked < SHARED * plain[1].asked else plain


def traffic(tiling: Tiling) -> Traffic:
    """Counted on a few blocks."""
    tape, blocks = tiling.tape, tiling.blocks
    count = BRANCHES if any(s.kind == "load" and s.under is not True for s in tape.steps) else SAMPLES
    chosen = sorted({(2 * i + 1) * blocks // (2 * count) for i in range(count)})
    asked, fetched = dict[str, float](), dict[str, float]()
    for block in chosen:
        once: dict[str, list[Any]] = {}
        for step, at, there in _read(tiling, block):
            sectors = at * DTYPE_BYTES[step.dtype] // SECTOR
            requests = min(_requests(sectors, there), _requests(sectors.T, there.T))
            asked[step.op] = asked.get(step.op, 0.0) + requests
            once.setdefault(step.op, []).append(sectors[there])
        for name, several in once.items():
            fetched[name] = fetched.get(name, 0.0) + len(np.unique(np.concatenate(several)))
    scale = blocks / len(chosen)
    tensors = {n: x * scale * SECTOR for n, x in fetched.items()}
    far = {s.op for s in tape.loads if _far(s)}
    most = max(sum(found[n] for n in found.keys() & far) for found in (asked, fetched))
    return Traffic(sum(asked.values()) * scale * SECTOR, tensors, depth(tape), most * scale * SECTOR)


def _far(load: Step) -> bool:
    """Whether what is read lies further apart, from the first place that there may be to the last, than what stays near."""
    return (1 + sum(abs(c) * (a.high - a.low) for a, c in load.at.terms)) * DTYPE_BYTES[load.dtype] > SMALL


def depth(tape: Tape) -> int:
    """Loads one of which needs what the one in front has read."""
    deep: list[int] = []
    for s in tape.steps:
        needs = [*s.args, *(a.number for p in (s.at, s.under) for a in atoms_of(p) if a.kind == "value")]
        deep.append(max((deep[i] for i in needs), default=0) + (s.kind == "load"))
    return max(deep)


def _requests(sectors: Any, there: Any) -> float:
    """Sectors that warps of 32 neighbours ask for."""
    rows = np.where(there, sectors, -1)
    flat = rows.reshape(-1)
    flat = np.concatenate([flat, np.full(-len(flat) % 32, -1)]).reshape(-1, 32)
    flat = np.sort(flat, 1)
    return float(((flat[:, 1:] != flat[:, :-1]) & (flat[:, 1:] >= 0)).sum() + (flat[:, 0] >= 0).sum())


def _read(tiling: Tiling, block: int) -> Iterator[tuple[Step, Any, Any]]:
    """The places of each load, and where there are any; what an index names is drawn."""
    tape = tiling.tape
    coordinates, there = tiling.coordinates(block)
    known: dict[Atom, Any] = {}
    for i, (n, at) in enumerate(zip(tape.shape, coordinates, strict=True)):
        known |= {a: at for a, _ in coordinate(i, n).terms}
    named = {(a.number, a) for s in tape.steps for p in (s.at, s.under) for a in atoms_of(p) if a.kind == "value"}
    seen: list[Any] = []
    for i, s in enumerate(tape.steps):
        at: Any = 0
        if s.kind == "load":
            yield s, *_block(s, known, there, tiling.across >= 0)
        elif s.kind != "number":
            at = sum((seen[j] for j in s.args), start=0)
        seen.append(at)
        for atom in (a for number, a in named if number == i and a.low == 0):
            known[atom] = np.abs(np.asarray(at, np.int64) * 2654435761 // 64) % (atom.high + 1)


def _block(s: Step, known: Mapping[Atom, Any], there: Any, tile: bool) -> tuple[Any, Any]:
    """The places of a load and where there are any; in a tile what all rows or columns share is loaded once."""
    at = np.asarray(evaluated(s.at, known, np))
    if tile and at.ndim == 2 and 1 in at.shape:
        inside = holds(for_all(s), known, np)
        if np.ndim(inside) == 0 or np.shape(inside) == at.shape:
            over = tuple(i for i, n in enumerate(at.shape) if n == 1)
            return at, np.broadcast_to(inside, at.shape) & there.any(over, keepdims=True)
    at = np.broadcast_to(at, there.shape)
    return at, np.broadcast_to(holds(s.under, known, np), there.shape) & there


def operations(tape: Tape) -> tuple[float, float]:
    """Arithmetic in float32, and special functions, for one element: those of float64 are series."""
    index = sum(len(atoms_of(s.at)) + 1 for s in tape.steps if s.kind in ("load", "place"))
    flops, special = 2.0 * index + sum(s.kind == "choose" for s in tape.steps), 0.0
    for s in tape.steps:
        if s.kind != "apply":
            continue
        entry = OPS[s.op]
        if "float64" in {s.dtype, *(tape.steps[i].dtype for i in s.args)}:
            flops += 2.0 * entry.flops + SERIES * entry.sfu
        else:
            flops, special = flops + entry.flops, special + entry.sfu
    return flops, special
