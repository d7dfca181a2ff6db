"""Variants of a finished schedule: the same tiles and loops with other options of the lowering.

The schedule space holds what the model can judge; how a kernel is launched, which programs run side by side and how tiles are
moved is tried on the device, one option (or a few that belong together) at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import product
from typing import Any

from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.compile import neutral
from fuser.lower.kernel_source import KernelSource
from fuser.lower.options import GROUP
from fuser.lower.options import OPTIONS
from fuser.lower.options import Option
from fuser.lower.places import Place
from fuser.lower.triton_source import generate_graph
from search.space.places import places

TOGETHER = ("persistent flatten", "tma persistent", "tma persistent flatten")
"""Options that are tried together: each word is a label of :class:`Move`, or an option with all of its choices."""
GROUPED = tuple(f"group=8 {x}" for x in ("tma", *TOGETHER[1:], "specialize"))
"""Those for large grids."""


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
class Move:
    """A choice of an option for every kernel of a graph: ``edit`` is the kernel's new schedule, None where it is not for it."""

    label: str
    edit: Callable[[Place], KernelSchedule | None]
    detail: str = ""

    def then(self, other: Move) -> Move:
        def edit(p: Place) -> KernelSchedule | None:
            first = self.edit(p)
            return other.edit(replace(p, schedule=first)) if first else None

        return Move(f"{self.label} {other.label}", edit, self.detail + other.detail)


def variants(base: Candidate, device: Device) -> Iterator[Variant]:
    """Variants that the device has and the schedule allows, each with another source than the schedule itself and those before.

    Kernels with descriptors need a launcher that knows them (:mod:`fuser.runtime.launch`), which a compiled model does not have.
    """
    here = places(base, device)
    seen = {_text(generate_graph(base.graph, base.schedule))}
    for move in _tried(here, device):
        kernels = [move.edit(p) for p in here]
        if all(k is None for k in kernels):
            continue
        changed = Schedule(tuple(k or p.schedule for k, p in zip(kernels, here, strict=True)))
        try:
            sources = generate_graph(base.graph, changed)
        except FuserError:
            continue  # two options that exclude each other in this kernel
        if any(s.capability > device.arch for s in sources) or (text := _text(sources)) in seen:
            continue
        seen.add(text)
        yield Variant(move.label, Candidate(base.graph, changed), move.detail)


def _text(sources: Sequence[KernelSource]) -> tuple[Any, ...]:
    """What decides how the kernels run; names and headers differ with every option."""
    return tuple((neutral(s), s.grid) for s in sources)


def _tried(here: Sequence[Place], device: Device) -> Iterator[Move]:
    """Every option by itself, but for those that are tried only with what they need, then some together."""
    alone = {name: list(moves(o, here)) for name, o in OPTIONS.items()}
    by_label = {m.label: [m] for found in alone.values() for m in reversed(found) if not m.detail}
    for name, found in alone.items():
        if not any({name, OPTIONS[name].needs} <= set(words.split()) for words in TOGETHER):
            yield from found
    large = any(p.programs >= 2 * device.sm_count and not GROUP.given_in(p.schedule) for p in here)
    for words in (*TOGETHER, *(GROUPED if large else ())):
        for first, *rest in product(*(by_label.get(w) or alone[w] for w in words.split())):
            for other in rest:
                first = first.then(other)
            yield first


def moves(option: Option[Any], here: Sequence[Place]) -> Iterator[Move]:
    """Every choice of an option; of one that is named after tensors, for several of them at once and, where it is tried so, for
    each alone."""
    for choice in option.choices:
        label = option.label(choice)
        if option.tensors is None:
            yield Move(label, lambda p, c=choice: _edited(option, p, c, ""))
            continue
        parts = {name: None for p in here for name in option.tensors(p.block)}
        for name in parts:
            yield Move(f"{label} {name}".strip(), lambda p, c=choice, n=name: _edited(option, p, c, n))
        if option.apart:
            for tensor in sorted({t for p in here for part in option.tensors(p.block).values() for t in part}):
                yield Move(label, lambda p, c=choice, t=tensor: _edited(option, p, c, "", t), tensor)


def _edited(option: Option[Any], p: Place, choice: Any, last: str, only: str = "") -> KernelSchedule | None:
    """The schedule with a choice, and with what it needs; of tensors those of all parts up to the ``last``, which has some."""
    if option.needs and not OPTIONS[option.needs].given_in(p.schedule):
        needed = next(moves(OPTIONS[option.needs], [p])).edit(p)
        if needed is None:
            return None
        p = replace(p, schedule=needed)
    if choice is None:
        return option.set(p.schedule, None) if option.offered(p.device.arch, p.behind) else None
    found, some = p.schedule, False
    for part, tensors in (option.tensors(p.block) if option.tensors else {last: ("",)}).items():
        values = {t: option.at_place(p, choice, t) for t in tensors if only in ("", t)}
        some = any(v is not None for v in values.values())
        for tensor, value in values.items():
            found = found if value is None else option.set(found, value, tensor)
        if part == last:
            break
    return found if some else None
