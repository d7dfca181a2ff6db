"""Variants of a finished schedule: the same tiles and loops with other options of the lowering.

The schedule space holds what the model can judge; how a kernel is launched, which programs run side by side and how tiles are
moved is tried on the device, one option (or a few that belong together) at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from cost_model import refined
from cost_model.features import features
from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.candidate import scheduled
from fuser.ir.mugraph import BlockGraph
from fuser.ir.ops import op as op_def
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.lower.descriptors import descriptor_able
from fuser.lower.options import OPTIONS
from fuser.lower.triton_source import KernelSource
from fuser.lower.triton_source import generate_graph

GROUPS = (4, 8, 16)
GROUPED = 8
"""The group that is tried together with descriptors."""
AHEAD = (1, 2, 4)
"""Trips of whose loads the lines are fetched ahead."""
WAVES = (1, 2, 4)
"""Persistent programs for each SM."""


@dataclass(frozen=True)
class Variant:
    """A candidate whose schedule differs from the base in one ``option`` (``tma``, ``group=8``, ``specialize persistent=1``);
    ``detail`` names the tensor where it is about one."""

    option: str
    candidate: Candidate
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.option} {self.detail}".strip()


@dataclass(frozen=True)
class _Place:
    """A kernel under its schedule. ``behind``: the kernel in front of it is generated too."""

    block: BlockGraph
    schedule: KernelSchedule
    plans: dict[str, AxisPlan]
    behind: bool

    @property
    def counters(self) -> list[tuple[str, int]]:
        """Axes of the grid and their sizes, the fastest last."""
        divided = {a: p.grid for a, p in self.plans.items() if p.grid > 1}
        wanted = [a for a in str(self.schedule.knob.get("grid_order", "")).split(".") if a in divided]
        return [(a, divided[a]) for a in (*wanted, *(a for a in divided if a not in wanted))]

    @property
    def places(self) -> int:
        found = 1
        for _, size in self.counters:
            found *= size
        return found

    @property
    def loops(self) -> bool:
        return any(plan.trips > 1 for plan in self.plans.values())

    def resident(self, device: Device) -> int:
        """Programs that an SM holds at the same time, by the model."""
        s = self.schedule
        (f,) = features(self.block, s.order, s.tile, dict(s.splits), s.num_warps, s.num_stages)
        registers, shared = int(refined.registers(f, device)[0]), int(refined.shared_memory(f, device)[0])
        return device.blocks_per_sm(32 * s.num_warps, min(registers, device.registers_per_thread), shared)

    def able(self, tensors: tuple[str, ...]) -> list[str]:
        """Those that can have a descriptor and no eviction hint."""
        return [t for t in tensors if f"evict_{t}" not in self.schedule.knob and descriptor_able(self.block, self.schedule, t)]

    @property
    def operands(self) -> tuple[str, ...]:
        """Device tensors whose tiles are multiplied as they are loaded."""
        dots = (s for s in self.block.computes if op_def(s.op).kind == "contract")
        loads = (self.block.by_value[a] for s in dots for a in s.args)
        return tuple(dict.fromkeys(s.access.source for s in loads if s.access))

    def reread(self, tensor: str) -> bool:
        """Whether several programs read the same elements of an input."""
        axes = {a for s in self.block.loads if s.access and s.access.source == tensor for a in s.axes}
        return any(a not in axes for a, _ in self.counters)


Edit = Callable[[_Place], KernelSchedule | None]
"""The kernel's new schedule, or None where the option is not for it."""


def variants(base: Candidate, device: Device) -> Iterator[Variant]:
    """Variants that the device has and the schedule allows, each with another source than the schedule itself and those before.

    Kernels with descriptors need a launcher that knows them (:mod:`fuser.runtime.launch`), which a compiled model does not have.
    """
    graph = base.graph
    places = _places(base)
    seen = {_text(generate_graph(graph, base.schedule))}
    for option, detail, edit in _edits(places, device):
        kernels = [edit(p) for p in places]
        if all(k is None for k in kernels):
            continue
        changed = Schedule(tuple(k or p.schedule for k, p in zip(kernels, places, strict=True)))
        try:
            sources = generate_graph(graph, changed)
        except FuserError:
            continue  # two options that exclude each other in this kernel
        if any(s.capability > device.arch for s in sources) or (text := _text(sources)) in seen:
            continue
        seen.add(text)
        yield Variant(option, Candidate(graph, changed), detail)


def _text(sources: tuple[KernelSource, ...]) -> tuple[Any, ...]:
    """What decides how the kernels run; names and headers differ with every option."""
    bodies = (s.text.partition("import triton\n")[2].replace(s.name, "") for s in sources)
    return tuple((t, s.grid, s.num_warps, s.num_stages, s.pdl) for t, s in zip(bodies, sources, strict=True))


def _places(base: Candidate) -> list[_Place]:
    found: list[_Place] = []
    front = None
    for kernel, mine in scheduled(base.graph, base.schedule):
        if isinstance(kernel, BlockGraph) and mine:
            block, plans = bind(kernel, mine)
            found.append(_Place(block, mine, plans, isinstance(front, BlockGraph)))
        front = kernel
    return found


def _edits(places: list[_Place], device: Device) -> Iterator[tuple[str, str, Edit]]:
    for value in ("early", "late", ""):
        yield f"pdl={value or 'none'}", "", lambda p, v=value: p.schedule.with_knobs(pdl=v or None) if p.behind else None
    for trips in AHEAD:
        yield f"prefetch={trips}", "", lambda p, n=trips: _ahead(p, n)
    yield "lazy", "", lambda p: p.schedule.with_knobs(lazy=True)
    yield "unroll", "", lambda p: p.schedule.with_knobs(unroll=True)
    for size in GROUPS:
        yield f"group={size}", "", lambda p, n=size: _grouped(p, n)
    yield "grid_order", "", _turned
    yield from _hints(places)
    if device.arch < OPTIONS["tma"].capability:
        yield from _persistent("", lambda p: p.schedule, device)
        return
    yield "tma", "", _described
    yield "tma store", "", lambda p: _described(p, stores=True)
    yield from _persistent("", lambda p: p.schedule, device)
    yield from _persistent("tma ", _described, device)
    yield "specialize", "", _specialized
    if any(p.places >= 2 * device.sm_count and "group" not in p.schedule.knob for p in places):
        yield f"group={GROUPED} tma", "", lambda p: _both(p, GROUPED, _described)
        yield from _persistent(f"group={GROUPED} tma ", lambda p: _both(p, GROUPED, _described), device)
        yield f"group={GROUPED} specialize", "", lambda p: _both(p, GROUPED, _specialized)


def _ahead(p: _Place, trips: int) -> KernelSchedule | None:
    """Prefetch while the kernel waits, which it does by itself only where it starts early or late."""
    return p.schedule.with_knobs(pdl=p.schedule.knob.get("pdl", "early"), prefetch=trips) if p.behind else None


def _grouped(p: _Place, size: int) -> KernelSchedule | None:
    return p.schedule.with_knobs(group=size) if len(p.counters) > 1 and p.counters[-2][1] >= size else None


def _turned(p: _Place) -> KernelSchedule | None:
    """The two fastest axes of the grid the other way round."""
    names = [a for a, _ in p.counters]
    return p.schedule.with_knobs(grid_order=".".join((*names[:-2], names[-1], names[-2]))) if len(names) > 1 else None


def _hints(places: list[_Place]) -> Iterator[tuple[str, str, Edit]]:
    """Keep what other programs read again, let go what they do not: all at once, then each tensor alone."""
    for hint, kept in (("evict_last", True), ("evict_first", False)):
        named = sorted({t for p in places for t in p.block.inputs if p.reread(t) == kept})

        def edit(p: _Place, only: str = "", hint: str = hint, kept: bool = kept) -> KernelSchedule | None:
            mine = [t for t in p.block.inputs if p.reread(t) == kept and only in ("", t) and not p.schedule.knob.get(f"tma_{t}")]
            return p.schedule.with_knobs(**{f"evict_{t}": hint for t in mine}) if mine else None

        yield hint, "", edit
        if len(named) > 1:
            for tensor in named:
                yield hint, tensor, lambda p, t=tensor, edit=edit: edit(p, t)


def _described(p: _Place, stores: bool = False) -> KernelSchedule | None:
    """Descriptors for all operands of contractions that can have one, and for the outputs with ``stores``."""
    loads = p.able(p.operands)
    tensors = [*loads, *(p.able(p.block.outputs) if stores else ())]
    if not tensors or (stores and tensors == loads):
        return None
    return p.schedule.with_knobs(**{f"tma_{t}": True for t in tensors})


def _specialized(p: _Place) -> KernelSchedule | None:
    found = _described(p)
    if found is None:
        return None
    return found.with_knobs(specialize=True)


def _both(p: _Place, size: int, then: Callable[[_Place], KernelSchedule | None]) -> KernelSchedule | None:
    grouped = _grouped(p, size)
    return then(replace(p, schedule=grouped)) if grouped else None


def _persistent(prefix: str, first: Edit, device: Device, flatten: bool = True) -> Iterator[tuple[str, str, Edit]]:
    """A persistent grid on top of another edit."""

    def edit(p: _Place, waves: int, flat: bool) -> KernelSchedule | None:
        base = first(p)
        programs = waves * device.sm_count
        if base is None or programs >= p.places or waves > max(p.resident(device), 1) or (flat and not p.loops):
            return None
        more = {"persistent": programs} | ({"flatten": True} if flat else {})
        return base.with_knobs(**more)

    for waves in WAVES:
        for flat in (False, True) if flatten else (False,):
            name = f"{prefix}persistent={waves}" + (" flatten" if flat else "")
            yield name, "", lambda p, w=waves, f=flat: edit(p, w, f)
