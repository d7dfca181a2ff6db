"""The plan of layouts of a kernel: every mode's problem by its bound, solved while it can still win.

``plan_layouts`` is the solver's entry: what it returns (:class:`~fuser.ir.layout.plan.LayoutPlan`) a generator takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace

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
from search.layouts import written
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.modes import PRODUCER_REGISTERS
from search.layouts.modes import modes
from search.layouts.options import Maker
from search.layouts.options import problem
from search.layouts.problem import MEANING
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


def solved(f: Facts, below: float = math.inf) -> Solved:
    """The best choice over all modes that takes less than ``below`` clocks. Raises :class:`NoValidKernelError` where there is
    none."""
    every = written.problems(f) if f.written else (p for m in modes(f) if (p := problem(f, m)) is not None)
    problems = [fewer(p) for p in every]
    ranked = sorted((bound(p), i) for i, p in enumerate(problems))
    best: tuple[Choice, Problem] | None = None
    asked = 0
    for least, i in ranked:
        if least == math.inf or least >= below:
            break
        asked += 1
        try:
            found = solve(problems[i])
        except OutOfResourcesError:
            continue
        if found.total < below:
            best, below = (found, problems[i]), found.total
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
    clock = f.device.clock / 1e6
    costs = tuple((t, x / clock) for t, x in s.choice.clocks)
    if f.written:
        plan = written.as_plan(s.problem, s.choice.options)
        return replace(plan, costs=(*costs, *plan.costs), limits=limits(s, dict(plan.costs)))
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
        for i, a in enumerate(f.sides[u]):
            loaded = f.feeds(f.block.by_value[a])
            place = chosen[f"buffer {a}"].value[1] if loaded else "shared" if i else "registers"
            operands.append(Operand(u.value, a, place if f.grouped else "registers"))
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
        costs,
        limits(s, {t: us for t, us in costs if t in UNITS}),
    )


def limits(s: Solved, busy: Mapping[str, float]) -> tuple[str, ...]:
    """What holds the choice where it is, as text; ``busy``: µs of units."""
    p, c = s.problem, s.choice
    waits = together(tuple((t, x) for t, x in c.clocks if t != "others")) / s.problem.about[0].device.clock * 1e6
    longest = max([(waits, "the work of a group"), *((us, MEANING[t]) for t, us in busy.items())])
    return (
        f"longest: {longest[1]}",
        f"registers: {c.registers} of {p.registers} a thread",
        f"shared memory: {c.shared} of {p.shared} B a block",
    )
