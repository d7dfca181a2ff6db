"""The plan of layouts of a kernel: every mode's problem by its bound, solved while it can still win.

``plan_layouts`` is the solver's entry: what it returns (:class:`~fuser.ir.layout.plan.LayoutPlan`) a generator takes.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.ir.layout.named import Registers
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import Fragment
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.layout.plan import Operand
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from search.layouts import layouts as lay
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.modes import PRODUCER_REGISTERS
from search.layouts.modes import Mode
from search.layouts.modes import modes
from search.layouts.options import Maker
from search.layouts.options import problem
from search.layouts.problem import UNITS
from search.layouts.problem import Choice
from search.layouts.problem import Problem
from search.layouts.problem import bound
from search.layouts.problem import fewer
from search.layouts.problem import solve
from search.layouts.problem import together


@dataclass(frozen=True, eq=False)
class Solved:
    """The best choice and its problem; how many modes there were, and for how many the solver was asked."""

    problem: Problem
    choice: Choice
    modes: int
    asked: int


def solved(f: Facts, emits: Callable[[Mode], bool] = lambda _: True) -> Solved:
    """The best choice over all modes that ``emits`` allows. Raises :class:`NoValidKernelError` where none fits."""
    problems = [fewer(problem(f, m)) for m in modes(f) if emits(m)]
    ranked = sorted(((bound(p), i) for i, p in enumerate(problems)))
    best: tuple[Choice, Problem] | None = None
    asked = 0
    for least, i in ranked:
        if least == float("inf") or (best and least >= best[0].total):
            break
        asked += 1
        try:
            found = solve(problems[i])
        except OutOfResourcesError:
            continue
        if best is None or found.total < best[0].total:
            best = found, problems[i]
    if best is None:
        raise NoValidKernelError(
            f"no layout of {f.block.name!r} fits {f.device.title} under {f.tiles.schedule}", "use smaller tiles, or fewer warps"
        )
    return Solved(best[1], best[0], len(problems), asked)


def plan_layouts(block: BlockGraph, schedule: KernelSchedule, device: Device) -> LayoutPlan:
    """The layouts of one kernel under its schedule, chosen by predicted time. Raises :class:`NoValidKernelError` where the kernel
    has no form that layouts are chosen for, or none fits."""
    return as_plan(solved(Facts.of(block, schedule, device)))


def as_plan(s: Solved) -> LayoutPlan:
    """The choice as what a generator reads."""
    f, m = s.problem.about
    k = Maker(f, m)
    chosen = {n.name: n.options[o] for n, o in zip(s.problem.nodes, s.choice.options, strict=True)}
    picked: dict[Dims, Registers] = {dims: chosen[f"tile {'·'.join(dims)}"].value for dims in k.classes}
    buffers = [
        v for o in chosen.values() for v in (o.value if isinstance(o.value, tuple) else (o.value,)) if isinstance(v, Buffer)
    ]
    fragments = []
    for v in f.order:
        if v.kind == "store" or (v.kind == "load" and not k.in_registers(v)):
            continue
        layout = k.layout(v, picked)
        if layout is not None:
            shape = k.shape(f.dims(v))
            fragments.append(Fragment(v.value, shape, layout, lay.registers_of(layout, shape, 4)))
    operands = []
    for u in f.dots:
        for i, a in enumerate(f.tiles.sides(u)):
            loaded = f.feeds(f.block.by_value[a])
            place = chosen[f"buffer {a}"].value[1] if loaded else "shared" if i else "registers"
            operands.append(Operand(u.value, a, place if f.grouped else "registers"))
    clock = f.device.clock / 1e6
    return LayoutPlan(
        m.groups,
        m.warps,
        f.rows,
        f.tiles.plans[f.rows].tile // m.groups if f.rows else 0,
        m.producer,
        m.registers,
        PRODUCER_REGISTERS if m.producer else 0,
        m.blocks,
        f.persistent,
        tuple(buffers),
        tuple(fragments),
        tuple(operands),
        tuple(u.value for u in f.dots if f.inside(u)) if m.overlap else (),
        tuple((t, x / clock) for t, x in s.choice.clocks),
        limits(s),
    )


def limits(s: Solved) -> tuple[str, ...]:
    """What holds the choice where it is, as text."""
    p, c = s.problem, s.choice
    busy = [(x, t) for t, x in c.clocks if t in UNITS]
    chain = together(c.clocks)
    longest = max([(chain, "the chain of waits"), *busy])
    return (
        f"longest: {longest[1]}",
        f"registers: {c.registers} of {p.registers} a thread",
        f"shared memory: {c.shared} of {p.shared} B a block",
    )


def ranked_plans(
    block: BlockGraph, schedules: Sequence[KernelSchedule], device: Device
) -> list[tuple[float, KernelSchedule, LayoutPlan]]:
    """Plans of several schedules by predicted µs; those that have none are left out."""
    found = []
    for schedule in schedules:
        try:
            s = solved(Facts.of(block, schedule, device))
        except NoValidKernelError:
            continue
        found.append((s.choice.total / device.clock * 1e6, schedule, as_plan(s)))
    return sorted(found, key=lambda x: x[0])
