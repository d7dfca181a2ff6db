"""Equal kernels of a chain, what may take the place of their schedules, and the descent over them: all but the GPU.

Every role in turn, those that take most time first: other tiles, stages and warps, with and without descriptors, then other
launches, each in all places of the role at once. Chains are timed in turn with the best so far, which gives way to what is
fastest (coordinate descent).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import product
from typing import Any
from typing import Protocol

from cost_model.refined import estimate
from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import first_line
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import HOIST
from fuser.lower.options import PDL
from fuser.lower.options import TMA
from fuser.lower.places import Place
from search.cover.stitch import renamed
from search.space.places import behind
from search.space.places import place_of
from search.space.variants import Move
from search.space.variants import moves

PRODUCT = (
    (64, 64, 64, 4, 4), (64, 64, 128, 4, 4), (64, 64, 128, 3, 4), (64, 64, 64, 6, 4), (64, 128, 64, 4, 4), (64, 128, 128, 3, 4),
    (128, 64, 64, 4, 4), (128, 64, 128, 3, 8), (128, 128, 64, 4, 8), (128, 128, 64, 3, 4), (64, 32, 128, 4, 4),
    (64, 32, 64, 6, 4), (64, 32, 256, 3, 4), (64, 96, 64, 4, 4), (64, 192, 64, 3, 4), (128, 96, 64, 4, 8), (128, 192, 64, 3, 8),
    (128, 256, 64, 3, 8), (64, 256, 64, 3, 8), (64, 48, 128, 4, 4), (64, 16, 128, 4, 4), (64, 16, 256, 3, 4), (64, 128, 64, 5, 8),
)  # fmt: skip
"""Of a product: tiles of rows, columns and of what is summed over, stages, warps."""
NARROW = (
    (16, 16, 256, 3, 4), (16, 32, 128, 4, 4), (16, 16, 128, 5, 4), (16, 32, 256, 3, 4), (16, 64, 128, 3, 4), (16, 64, 64, 5, 4),
    (16, 16, 512, 2, 4), (16, 32, 512, 2, 4), (16, 32, 64, 6, 2), (16, 16, 256, 4, 2), (16, 8, 512, 3, 4),
)  # fmt: skip
"""The same for few rows."""
FEW = 16
CHAINED = tuple(product((64, 128), (64, 128, 256), (2, 3), (4, 8)))
"""Of several products one behind the other: tiles of the first one's rows and columns, stages, warps."""
ROWS = tuple(product((1, 2, 4), (1 << 30, 256, 512, 1024), (1, 2, 4, 8)))
"""Without products: tiles of rows and columns, warps."""


# -- roles and what is tried in them ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Role:
    """Equal kernels by their numbers among the generated ones."""

    title: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A chain that was tried: ``label`` is what is other than in the best so far, ``schedule`` that of the role's first kernel;
    ``delta_us`` is what the chain gained (negative) or lost for each of ``count`` kernels. ``failed`` says why there is no time.
    """

    role: str
    count: int
    label: str
    schedule: str = ""
    us: float | None = None
    delta_us: float | None = None
    error: float | None = None
    predicted_us: float | None = None
    failed: str = ""


@dataclass(frozen=True)
class Timing:
    """Microseconds of a chain and of the one that it took turns with; its error against the first."""

    us: float
    base_us: float
    error: float


class Bench(Protocol):
    """What times chains. ``time`` raises :class:`FuserError` or :class:`RuntimeError` for what cannot be run or is wrong, and
    :class:`EnvironmentError_` where nothing can be any more."""

    def ahead(self, several: Sequence[Candidate]) -> None: ...

    def time(self, base: Candidate, other: Candidate) -> Timing: ...


def roles(candidate: Candidate, device: Device) -> list[Role]:
    """Kernels that differ in nothing but the names of their tensors, the role that takes most of the model's time first. What is
    there once is left out: a chain's noise is larger than its part."""
    found: dict[Any, list[int]] = {}
    for i, (block, mine) in enumerate(candidate.blocks):
        names = {t: f"t{n}" for n, t in enumerate(dict.fromkeys((*block.inputs, *block.outputs)))}
        key = (renamed(block, names, ""), mine.tiles, mine.order, mine.splits, mine.num_warps, mine.num_stages)
        found.setdefault(key, []).append(i)
    several = [p for p in found.values() if len(p) > 1]
    several.sort(key=lambda p: -len(p) * estimate(*candidate.blocks[p[0]], device)["seconds"])
    # a stitched kernel is called after what it does and the number of its part
    return [Role(f"{re.sub(r'(_[0-9]+)+$', '', candidate.blocks[p[0]][0].name)}#{p[0]}", tuple(p)) for p in several]


def everywhere(candidate: Candidate) -> Role:
    return Role("all", tuple(range(len(candidate.blocks))))


def tilings(block: BlockGraph) -> Iterator[tuple[dict[str, int], int | None, int]]:
    """Tiles by axis, stages (None: as they are) and warps that are worth a try for a kernel."""
    dots = [s for s in block.computes if s.contracts]
    if not dots:
        axes = [a for a in block.stores[0].axes if a not in dict(block.splits).values()][-2:]
        for m, n, warps in ROWS:
            yield dict(zip(axes, (m, n) if len(axes) > 1 else (n,), strict=True)), None, warps
        return
    left, right = (block.by_value[a].axes for a in dots[0].args[:2])
    rows, columns, inner = (
        max(found, key=block.extents.__getitem__, default="")
        for found in ([a for a in left if a not in right], [a for a in right if a not in left], dots[0].reduce)
    )
    if len(dots) > 1:
        for m, n, stages, warps in CHAINED:
            yield {rows: m, columns: n}, stages, warps
        return
    for m, n, k, stages, warps in NARROW if block.extents.get(rows, 1) <= FEW else PRODUCT:
        yield {rows: m, columns: n, inner: k}, stages, warps


def retiled(p: Place, tiles: Mapping[str, int], stages: int | None, warps: int) -> KernelSchedule:
    """The schedule with other tiles of axes that are divided or looped over; without descriptors, which tiles decide on."""
    mine = TMA.set(p.schedule, None, *TMA.named(p.schedule))
    free = {*p.block.spatial, *mine.order.axes}
    new = {a: min(tiles.get(a, n), p.block.extents[a]) if a in free else n for a, n in mine.tiles}
    return replace(mine, tiles=tuple(new.items()), num_stages=stages or mine.num_stages, num_warps=warps)


def shapes(base: Candidate, role: Role) -> Iterator[tuple[str, tuple[Move, ...]]]:
    """Tilings of a role, each with descriptors for its operands and without."""
    block = base.blocks[role.places[0]][0]
    for tiles, stages, warps in tilings(block):
        sizes = {a: min(n, block.extents[a]) for a, n in tiles.items() if a}
        text = " ".join([*(f"{a}{n}" for a, n in sizes.items()), *([f"s{stages}"] if stages else []), f"w{warps}"])
        tile = Move(text, lambda p, t=sizes, s=stages, w=warps: retiled(p, t, s, w))
        yield text, (tile,)
        yield f"{text} tma", (tile, _descriptors())


def launches() -> Iterator[tuple[str, tuple[Move, ...]]]:
    """When kernels start, and when they read what their epilogue needs."""
    hoisted = (next(moves(HOIST, ())), Move("in place", lambda p: HOIST.set(p.schedule, None)))
    for start, reads in product(moves(PDL, ()), hoisted):
        yield f"{start.label} {reads.label}", (start, reads)


def _descriptors() -> Move:
    """Of :func:`search.space.variants.moves` that for all operands: which they are, depends on the kernel."""
    return Move("tma", lambda p: next((m.edit(p) for m in moves(TMA, (p,)) if m.label == "tma"), None))


def exchanged(base: Candidate, role: Role, edits: Sequence[Move], device: Device) -> Candidate:
    """The chain with one edit after the other in all places of a role that it is for. Raises :class:`FuserError` where tiles do
    not fit."""
    kernels, follows = list(base.schedule.kernels), behind(base.graph)
    for i in role.places:
        for move in edits:
            kernels[i] = move.edit(place_of(base.blocks[i][0], kernels[i], device, follows[i])) or kernels[i]
    return Candidate(base.graph, Schedule(tuple(kernels)))


# -- coordinate descent -------------------------------------------------------------------------------------------------------


def descend(
    start: Candidate, device: Device, bench: Bench, more: Callable[[], bool]
) -> Iterator[tuple[Role, Candidate, list[Row]]]:
    """After each step the role that it was about, the best chain so far, and the rows of the step. ``more`` says whether there is
    time for another chain."""
    best, whole = start, everywhere(start)
    for role in (whole, *roles(start, device)):
        kinds = [[*launches(), ("tma", (_descriptors(),))]] if role is whole else [list(shapes(best, role)), list(launches())]
        rows: list[Row] = []
        for alternatives in kinds:
            best, found = exchange(best, role, alternatives, device, bench, more)
            rows += found
        yield role, best, rows
        if not more():
            return


def exchange(
    base: Candidate,
    role: Role,
    alternatives: Sequence[tuple[str, tuple[Move, ...]]],
    device: Device,
    bench: Bench,
    more: Callable[[], bool],
) -> tuple[Candidate, list[Row]]:
    """Time every alternative that differs from the others beside ``base``; the fastest chain, and a row for each."""
    rows: list[Row] = []
    made: dict[Schedule, tuple[str, Candidate]] = {}
    for label, edits in alternatives:
        try:
            candidate = exchanged(base, role, edits, device)
            made.setdefault(candidate.schedule, (label, candidate))
        except FuserError as problem:
            rows.append(Row(role.title, len(role.places), label, failed=_why(problem)))
    made.pop(base.schedule, None)
    bench.ahead([candidate for _, candidate in made.values()])
    best, ratio = base, 1.0
    for label, candidate in made.values():
        if not more():
            break
        row = Row(role.title, len(role.places), label, str(candidate.schedule.kernels[role.places[0]]))
        try:
            timing = bench.time(base, candidate)
            seconds = estimate(*candidate.blocks[role.places[0]], device)["seconds"]
        except EnvironmentError_:
            raise
        except (FuserError, RuntimeError, TimeoutError) as problem:
            rows.append(replace(row, failed=_why(problem)))
            continue
        delta = (timing.us - timing.base_us) / len(role.places)
        rows.append(replace(row, us=timing.us, delta_us=delta, error=timing.error, predicted_us=1e6 * seconds))
        # the clock may be another one for each pair
        if timing.us < ratio * timing.base_us:
            best, ratio = candidate, timing.us / timing.base_us
    return best, rows


def _why(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {first_line(problem, 100)}"
