"""A plan of layouts for people, and as a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.files import counted
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Shared
from fuser.ir.layout.named import Slice
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.lower.decompose import decompose
from fuser.lower.gluon.choices import choose
from fuser.lower.gluon.split import shared_out
from fuser.lower.options import TMA
from fuser.lower.spec_text import shown
from fuser.lower.tiles import Tiles
from search.layouts.facts import Facts
from search.layouts.problem import MEANING
from search.layouts.problem import UNITS
from search.layouts.solve import Solved
from search.layouts.solve import as_plan
from search.layouts.solve import solved
from search.space.estimates import estimator
from search.space.groups import ranked_groups
from search.space.kernels import kernel_space


@dataclass(frozen=True, eq=False)
class Planned:
    """A kernel with its schedule, and its layouts or why it has none. ``modes`` were possible, ``asked`` of the solver;
    ``tried`` schedules were compared."""

    block: BlockGraph
    schedule: KernelSchedule
    facts: Facts | None = None
    plan: LayoutPlan | None = None
    us: float = 0.0
    modes: int = 0
    asked: int = 0
    tried: int = 1
    why: FuserError | None = None


def planned(block: BlockGraph, schedules: Sequence[KernelSchedule], device: Device) -> Planned:
    """The best plan under any of some schedules; the first one's reason where none has one."""
    best: tuple[Solved, KernelSchedule] | None = None
    why: FuserError | None = None
    for schedule in schedules:
        try:
            found = solved(Facts.of(block, schedule, device), best[0].choice.total if best else math.inf)
        except (NoValidKernelError, UnsupportedError) as error:
            why = why or error
            continue
        best = found, schedule
    if best is None:
        return Planned(block, schedules[0], why=why)
    s, schedule = best
    us = s.choice.total / device.clock * 1e6
    return Planned(block, schedule, s.problem.about[0], as_plan(s), us, s.modes, s.asked, len(schedules))


def picked(block: BlockGraph, device: Device) -> Planned | None:
    """The best kernel by warp groups of a block, and its layouts; None where Gluon's generator writes none."""
    return next(iter(short_list(block, device)), None)


def short_list(block: BlockGraph, device: Device) -> list[Planned]:
    """Kernels by warp groups of a block, best first: who computes what (groups, their rows, columns or trips of a loop, a warp
    that loads or none), of the schedules that the model ranks first, each with its best layouts."""
    try:
        ranked, _ = ranked_groups(kernel_space(block, device), estimator(device), SHORT, {})
    except NoValidKernelError:
        return []
    several = (planned(block, [s], device) for _, s in ranked)
    found = (replace(p, schedule=_said(p), tried=len(ranked)) for p in several if p.plan is not None)
    return sorted(found, key=lambda p: p.us)


SHORT = 12
"""Schedules whose layouts are solved."""


def _said(found: Planned) -> KernelSchedule:
    """The schedule, with results by pointers where the plan has them so."""
    own, plan = choose(shared_out(Tiles.of(found.block, found.schedule))), found.plan
    assert plan is not None
    pointed = [b.value.removesuffix(OUT) for b in own.buffers if b.value.endswith(OUT) and b.value not in plan.buffer]
    return TMA.set(found.schedule, False, *pointed) if pointed else found.schedule


def brief(layout: Registers | Shared) -> str:
    """A layout in a few characters."""
    if isinstance(layout, Mma):
        return f"{'wgmma' if layout.version == 3 else 'mma'} {'x'.join(map(str, layout.instruction))}, warps {_by(layout.warps)}"
    if isinstance(layout, DotOperand):
        return f"operand {layout.index} of {brief(layout.parent)}"
    if isinstance(layout, Slice):
        return f"slice {layout.dim} of {brief(layout.parent)}"
    if isinstance(layout, Blocked):
        return f"{_by(layout.size)} a thread, {_by(layout.threads)} threads, {_by(layout.warps)} warps"
    if isinstance(layout, MmaShared):
        return f"swizzle {layout.swizzle} B"
    return f"swizzle {layout.vec} x {layout.max_phase}" if isinstance(layout, Swizzled) else str(layout)


def _by(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def rows(found: Planned) -> list[tuple[str, str, str]]:
    """What was chosen, by what it is about."""
    p = found.plan
    assert p is not None
    groups = counted(p.consumers, "group") + f" of {p.warps} warps"
    shared_out = f"{p.part} of {p.divided!r} each" if p.divided else ""
    if p.loop:
        shared_out = f"{p.part} of {p.divided!r}; {p.shares} in turn take trips of {p.loop!r}"
    table = [
        ("threads", groups, shared_out),
        ("", "a producer warp loads" if p.producer else "groups load for themselves", f"{counted(p.blocks, 'block')} an SM"),
        ("registers", f"{p.registers} a thread", f"{p.producer_registers} of the producer" if p.producer else ""),
    ]
    for b in p.buffers:
        place = next((o.place for o in p.operands if o.value == b.value), "")
        stages = counted(b.stages, "stage") + (f" of {b.pieces} boxes" if b.pieces > 1 else "")
        table.append((f"buffer {b.value}", f"{_by(b.box)} {b.dtype}, {stages}", f"{brief(b.layout)}, {b.by}{_read(place, b.by)}"))
    for f in p.fragments:
        table.append((f.value, f"{_by(f.tile)}, {f.registers} registers", brief(f.layout)))
    if p.overlap:
        table.append(("under way", ", ".join(p.overlap), "while the next trip computes"))
    return table


def _read(place: str, by: str) -> str:
    return ", read from registers" if place == "registers" and by == "tma" else ""


def costs(found: Planned) -> list[tuple[str, str, str]]:
    """µs by term: units are busy beside each other, waits follow each other."""
    assert found.plan is not None
    table = []
    for term, us in sorted(found.plan.costs, key=lambda x: (x[0] not in UNITS, -x[1])):
        kind = "busy" if term in UNITS else "waits"
        table.append((kind, MEANING.get(term, term), f"{us:.3f}"))
    return table


def document(found: Planned, device: Device, gluon: Planned | None = None) -> dict[str, Any]:
    """``gluon``: the best that its generator writes."""
    about: dict[str, Any] = {"kernel": found.block.name, "schedule": str(found.schedule)}
    if found.plan is None or found.facts is None:
        return about | {"plan": None, "why": str(found.why)}
    plan = asdict(found.plan)
    for part, of in (("buffers", found.plan.buffers), ("fragments", found.plan.fragments)):
        for d, x in zip(plan[part], of, strict=True):
            d["layout"] = x.layout.gluon
    plan["costs"] = dict(found.plan.costs)
    text = shown(decompose(found.facts.tiles, found.plan, device.arch), found.plan)
    if gluon is not None:
        about |= {"gluon": {"schedule": str(gluon.schedule), "estimate_us": gluon.us}}
    return about | {
        "estimate_us": found.us,
        "modes": found.modes,
        "solved": found.asked,
        "plan": plan,
        "specs": text.splitlines(),
    }
