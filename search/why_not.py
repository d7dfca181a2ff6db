"""Why a schedule is not the one that is chosen: the rule that forbids it, with its figures, or the terms of the model by which it
loses.

Rules are asked in the order in which a search applies them: what a schedule of the block is at all, the paper's rules 1 to 4,
what Triton would allocate, what compilers make wrong or slow code of, options that do not belong there, the verifier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace

from cost_model.explain import Row
from cost_model.explain import explain
from cost_model.features import schedule_features
from cost_model.groups import held_by_groups
from cost_model.resources import resources
from cost_model.shared_memory import SLACK
from cost_model.shared_memory import counted
from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.lower.given_options import check_options
from fuser.lower.given_options import tensor_of
from fuser.lower.options import BACKEND
from fuser.lower.options import FLATTEN
from fuser.lower.options import OPTIONS
from fuser.lower.options import option_of
from fuser.lower.pieces import MMA
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdicts import kept_verdict
from search.measure.measurement import Measurement
from search.measure.planned import planned
from search.ranked import INSTANT
from search.ranked import Ranked
from search.ranked import Tuned
from search.space.clusters import cluster_space
from search.space.expressions import overwhelms
from search.space.expressions import sub_expression
from search.space.expressions import tiling_expressions
from search.space.groups import by_warp_groups
from search.space.groups import group_space
from search.space.hazards import FAULTS
from search.space.hazards import faults
from search.space.hazards import slow
from search.space.kernels import MAX_PIECES
from search.space.kernels import MAX_UNROLL
from search.space.kernels import KernelSpace
from search.space.places import place_of
from search.space.polish import FEW
from search.space.prune import PADDING
from search.space.prune import padding
from search.space.schedules import ScheduleSpace
from search.tune import OTHERS
from search.tune import graph_seconds


@dataclass(frozen=True)
class Reason:
    """``rule`` is what it is called, ``text`` the figures; ``kernel`` which one breaks it."""

    rule: str
    text: str
    kernel: str = ""


@dataclass(frozen=True)
class WhyNot:
    """Of one schedule: the ``reasons`` that forbid it (none: it may be used), its estimate and that of the winner in seconds, the
    terms of both (winner first), in which place it is among those that were ranked (0: it was not), and why it was not."""

    candidate: Candidate
    reasons: tuple[Reason, ...]
    seconds: float
    winner: Ranked
    terms: tuple[Row, ...] = ()
    place: int = 0
    ranked: int = 0
    unseen: str = ""

    @property
    def wins(self) -> bool:
        return not self.reasons and self.place == 1


def why_not(tuned: Tuned, text: str, device: Device) -> WhyNot:
    """Why a program was not given a schedule, in the spelling that it is printed in. Raises :class:`UsageError` where no
    structure of the program has such kernels."""
    candidate = spelled(tuned, text)
    reasons = tuple(refusals(tuned.program, candidate, device))
    every = [tuned.winner, *tuned.runners]
    seconds = graph_seconds(candidate, device) if _binds(candidate) else math.inf
    same = next((i for i, r in enumerate(every) if r.candidate == candidate), -1)
    terms = tuple(explain([tuned.winner.candidate, candidate], device)) if _binds(candidate) and same != 0 else ()
    unseen = "" if same >= 0 or reasons else _unseen(candidate, device)
    return WhyNot(candidate, reasons, seconds, tuned.winner, terms, same + 1, len(every), unseen)


# -- which schedule is meant


def spelled(tuned: Tuned, text: str) -> Candidate:
    """The structure with the schedule that a text spells: one that was ranked with it, else the first that has such kernels."""
    text = " ".join(text.split())
    ranked = [r.candidate for r in (tuned.winner, *tuned.runners)]
    for c in ranked:
        if str(c.schedule) == text:
            return c
    graphs = {id(c.graph): c.graph for c in ranked}
    known = [*graphs.values()]
    with suppress(UnsupportedError):  # a program that is left to a library
        known += [g for g in structures(tuned.program) if g not in known]
    wrong: list[UsageError] = []
    found: list[Candidate] = []
    count = text.count(";") + 1
    for graph in sorted(known, key=lambda g: len(g.blocks) != count):  # the most telling error first
        try:
            kernels = zip(graph.blocks, Schedule.parse(text, graph.blocks).kernels, strict=True)
            found.append(Candidate(graph, Schedule(tuple(_whole(b, k) for b, k in kernels))))
        except UsageError as error:
            wrong.append(error)
    if not found:
        have = sorted({" ; ".join(_axes(b) for b in g.blocks) for g in known if g.blocks})
        hint = f"their axes: {', or '.join(have[:6])}" if have else "no kernel is generated for it: libraries do all of it"
        why = wrong[0].message if wrong else "it has none"
        raise UsageError(f"no structure of {tuned.program.name!r} has this schedule: {why}", hint)
    return next((c for c in found if c in ranked), next((c for c in found if _binds(c)), found[0]))


def _whole(block: BlockGraph, schedule: KernelSchedule) -> KernelSchedule:
    """The schedule with the tiles of axes that are not named, which are all of them."""
    parts = {g for _, g in block.splits}
    rest = {a.name: a.extent for a in block.axes if a.extent != FREE and a.name not in parts}
    return replace(schedule, tiles=tuple(sorted((rest | schedule.tile).items())))


def _axes(block: BlockGraph) -> str:
    return f"[{' '.join(a.name for a in block.axes)}]"


def _binds(candidate: Candidate) -> bool:
    try:
        for block, schedule in candidate.blocks:
            bind(block, schedule)
    except UsageError:
        return False
    return True


# -- rules


def refusals(program: TensorProgram, candidate: Candidate, device: Device) -> Iterator[Reason]:
    """Every rule that a candidate breaks. Behind one that leaves nothing to estimate come none."""
    space = ScheduleSpace(candidate.graph, device, options=True)
    said: set[str] = set()
    for (block, schedule), kernel in zip(candidate.blocks, space.kernels, strict=True):
        try:
            bind(block, schedule)
        except UsageError as error:
            yield Reason("no such schedule", error.message, block.name)
            return
        kernel = _of_backend(kernel, schedule)
        for reason in (*_tiles(kernel, schedule), *_order(kernel, schedule), *_choices(kernel, schedule)):
            yield replace(reason, kernel=block.name)
        for rule in (_memory, _unrolled, _compilers, _options):
            for reason in rule(kernel, schedule):
                said.add(reason.text)
                yield replace(reason, kernel=block.name)
    for split in space.splits:
        counts = {n for k in candidate.schedule.kernels for a, n in k.splits if a == split.name}
        if not counts <= set(split.values):
            yield Reason("split", f"{split.name} = {min(counts - set(split.values))} is not tried: {_some(split.values)} are")
    made = planned(candidate)
    if isinstance(made, Measurement) and made.detail not in said:
        yield Reason("generator", made.detail)
    verdict = kept_verdict(program, candidate.graph)
    if not verdict.accepted:
        yield Reason("verifier", str(verdict))


def _of_backend(kernel: KernelSpace, schedule: KernelSchedule) -> KernelSpace:
    """The space that schedules in the same language and form come from, where there is one."""
    if schedule.cluster:
        return cluster_space(kernel) or kernel
    return (group_space(kernel) or kernel) if BACKEND.of(schedule) == "gluon" else kernel


def _tiles(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    """Rule 3, and what else tiles have to be."""
    extents = kernel.block.extents
    for t in kernel.tiles:
        size, extent = schedule.tile.get(t.name, extents[t.name]), extents[t.name]
        if size in t.values:
            continue
        pad = padding(extent, size)
        power = extent & (extent - 1) == 0
        if pad > 0 and (power or pad >= PADDING):
            allowed = "none is allowed where the extent is a power of two" if power else f"less than {PADDING:.0%} is allowed"
            yield Reason("rule 3 (padding)", f"tiles of {size} pad {t.name} = {extent} by {pad:.1%}; {allowed}")
        elif size % MMA and all(v % MMA == 0 for v in t.values):
            yield Reason("tensor cores", f"they take tiles in multiples of {MMA}: {t.name} = {size}")
        elif size.bit_count() > MAX_PIECES:
            pieces = " + ".join(str(1 << i) for i in range(size.bit_length() - 1, -1, -1) if size >> i & 1)
            yield Reason("pieces", f"{t.name} = {size} is cut into {pieces}; at most {MAX_PIECES} powers of two are")
        else:
            yield Reason("space", f"{t.name} = {size} is not tried: {_some(t.values)} are")


def _order(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    """Rules 1 and 2."""
    block = kernel.block
    tiles = {t.name: schedule.tile.get(t.name, block.extents[t.name]) for t in kernel.tiles}
    mine = replace(schedule, knobs=kernel.given, num_stages=2, tiles=tuple(sorted(tiles.items())))
    for order in kernel.order.values:
        with suppress(UsageError):  # an order that does not loop over what these tiles divide
            made = kernel.schedule(order, tiles, dict(schedule.splits), schedule.num_warps, 2)
            if replace(made, num_stages=2) == mine:
                return
    if value := overwhelms(block, schedule.order):
        yield Reason("rule 2", f"the order {schedule.order} keeps several tiles of the intermediate {value} at once")
        return
    bound = schedule_features(block, schedule)
    dead = [a for a, t in bound.trips.items() if t[0] == 1]
    lean = schedule.order.without(dead)
    if lean != schedule.order:
        yield Reason("rule 1", f"loops of one trip leave the order: {schedule.order} is {lean or '-'}")
        return
    every = {sub_expression(block, e) for e in tiling_expressions(block)}
    says = "is the same program as another order" if schedule.order in every else "is no sub-tiling expression of it"
    yield Reason("rule 1", f"the order {schedule.order or '-'} {says}; there are {_some(kernel.order.values)}")


def _choices(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    for knob, value in ((kernel.warps, schedule.num_warps), (kernel.stages, schedule.num_stages)):
        if value not in knob.values:
            yield Reason("space", f"{knob.name} = {value} is not tried: {_some(sorted(knob.values))} are")
            return
    loops = any(t[0] > 1 for t in schedule_features(kernel.block, schedule).trips.values())
    if not loops and schedule.num_stages != (one := kernel.stages.values[0]):
        yield Reason("space", f"without a loop nothing is pipelined: stages = {one} stands for {schedule.num_stages} too")


def _memory(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    """Rule 4 on equation 1, and what Triton would allocate."""
    f, device = schedule_features(kernel.block, schedule), kernel.device
    equation, limit = float(counted(f)[0]), device.smem_per_block
    if equation > kernel.limit:
        yield Reason("rule 4 (shared memory)", f"equation 1 gives {_kib(equation)} of {SLACK} × {_kib(limit)} that are allowed")
    if BACKEND.of(schedule) == "gluon":
        held = held_by_groups(f, device)
        if not held.fits[0] and held.wants[0] > held.registers[0]:
            wants, has = int(held.wants[0]), int(held.registers[0])
            yield Reason("registers", f"a thread of its groups wants {wants} registers, and has {has}")
        elif not held.fits[0] and FLATTEN.of(schedule):
            yield Reason("space", "groups that take places of the grid in turn (flatten) have no price")
        return
    wanted = float(resources(f, device).shared[0])
    if wanted > limit:
        yield Reason("shared memory", f"a block needs {_kib(wanted)} of {_kib(limit)}, as Triton allocates it")


def _unrolled(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    f = schedule_features(kernel.block, schedule)
    if kernel.valid(f)[0] or float(counted(f)[0]) > kernel.limit:
        return
    for axis, parts in kernel.block.splits:
        if (f.grid[axis][0] - 1) * f.trips[axis][0] * f.tile[axis][0] >= f.extent[axis][0]:
            yield Reason("split", f"of {parts} = {f.grid[axis][0]} parts some have no element of {axis} = {f.extent[axis][0]}")
            return
    yield Reason("unrolled tiles", f"more than {MAX_UNROLL} tiles of an accumulator would be kept at once")


def _compilers(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    f, device = schedule_features(kernel.block, schedule), kernel.device
    if BACKEND.of(schedule) == "gluon":
        return
    compilers = {x.kind: x.compilers for x in FAULTS}
    for kind, mask in faults(f, device).items():
        if mask[0]:
            yield Reason("wrong code", f"{kind}: such schedules are compiled wrongly ({compilers[kind]})")
    for why, mask in slow(f):
        if mask[0]:
            yield Reason("slow code", f"{why}: such kernels take far longer than their estimate")


def _options(kernel: KernelSpace, schedule: KernelSchedule) -> Iterator[Reason]:
    block, device = kernel.block, kernel.device
    try:
        least = check_options(schedule.knob, {s.access.source for s in (*block.loads, *block.stores) if s.access}, block.name)
    except UsageError as error:
        yield Reason("options", error.message)
        return
    if least > device.arch:
        yield Reason("options", f"one of them needs sm_{least}, {device.title} is {device.sm}")
        return
    alone = schedule.with_knobs(**dict.fromkeys(schedule.knob)).with_knobs(**dict(kernel.always))
    place = place_of(block, alone, device, kernel.behind)
    for option in OPTIONS.values():
        for key in (k for k in schedule.knob if option_of(k) is option):
            value, tensor = schedule.knob[key], tensor_of(key)
            if (key, value) in kernel.always:
                continue
            choices = option.by_groups if option.by_groups and BACKEND.of(schedule) == "gluon" else option.choices
            if choices and all(option.at_place(place, c, tensor) != value for c in choices):
                yield Reason("options", f"{key} = {value} is not for these tiles: {option.says}")
            place = replace(place, schedule=option.set(place.schedule, value, tensor))


# -- where it was not looked at


def _unseen(candidate: Candidate, device: Device) -> str:
    space = ScheduleSpace(candidate.graph, device)
    if by_warp_groups(candidate.schedule) or any(s.cluster for s in candidate.schedule.kernels):
        return f"{OTHERS} schedules by warp groups, or in clusters, of a structure are kept, and it is not among them"
    if any(set(s.knob) - dict(k.given).keys() for s, k in zip(candidate.schedule.kernels, space.kernels, strict=True)):
        return f"options are given to the {FEW} best schedules of a structure, which it is none of"
    if space.work > INSTANT.exhaustive:
        many = f"{space.work:,} estimates, more than {INSTANT.exhaustive:,}"
        return f"its structure has {many}: a search draws {INSTANT.population} at a time, and has not come upon it"
    return f"{INSTANT.top} schedules of a structure are kept, and it is not among them"


def _kib(count: float) -> str:
    return f"{count / 1024:.4g} KiB"


def _some(values: Sequence[object], most: int = 10) -> str:
    shown = [str(v) or "-" for v in values]
    return ", ".join(shown if len(shown) <= most else [*shown[: most - 1], "…", shown[-1]])
