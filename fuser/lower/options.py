"""The lowering's options: what ``KernelSchedule.knobs`` may hold, one entry for each.

An option changes how a kernel is executed and never what it computes. All are optional; some need a newer GPU. An option of a
single tensor has the tensor's name behind an underscore (``evict_W``). An entry is all that the generator, the searches and the
model know of an option: what reads it asks the entry (``PAD.of(schedule)``), and what is handed to the compiler as it is
(``parameter``) needs no line elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from typing import Generic
from typing import TypeVar

from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.lower.layers import find_layers
from fuser.lower.places import Place
from fuser.lower.places import operands

T = TypeVar("T")


def _itself(p: Place, choice: Any, tensor: str) -> Any:
    return choice


@dataclass(frozen=True)
class Option(Generic[T]):
    """``values`` are those allowed (empty: any of ``kind``), ``default`` what the lowering does without it (None: what else it
    knows decides), ``capability`` the least compute capability, without its point; ``behind``: for kernels behind generated ones.

    *Searches* try ``choices``, the likely ones first, None for leaving it out (none: it is not searched). ``at`` gives the value
    of a choice at a place, None where it is not for it. ``given``: that of schedules whose options are not searched. It is tried
    with what it ``needs``, never where the tensor (or kernel) has an option that it ``excludes``, each with the reason.

    ``tensors``: of an option that is named after a tensor, which ones of a block it may be for: by a label the first are tried
    together, then (with ``store``, say) the second as well; ``apart``: each by itself too.

    ``parameter``: the compiler's keyword that takes the value. ``counts``: what it adds to the model's counts
    (:class:`cost_model.work.Work`, by field), given the features of a batch and its value, or its values in an array;
    ``modelled``: the model asks for it itself (:mod:`cost_model.execution`). Without either the model sees no effect. ``groups``:
    it has a meaning for kernels by warp groups (``backend=gluon``) too. ``by_groups``: what searches try of it for these, where
    that is something else; ``tried_on``: the first and the last capability for which they try it, where that are others.
    """

    name: str
    kind: type[T]
    says: str
    values: tuple[T, ...] = ()
    default: T | None = None
    capability: int = 80
    behind: bool = False
    choices: tuple[Any, ...] = ()
    at: Callable[[Place, Any, str], T | None] = _itself
    given: T | None = None
    needs: str = ""
    excludes: tuple[tuple[str, str], ...] = ()
    tensors: Callable[[BlockGraph], Mapping[str, tuple[str, ...]]] | None = None
    apart: bool = False
    parameter: str = ""
    counts: Callable[[Any, Any], Mapping[str, Any]] | None = None
    modelled: bool = False
    groups: bool = False
    by_groups: tuple[Any, ...] = ()
    tried_on: tuple[int, int] = (0, 0)

    def allows(self, value: Any) -> bool:
        return type(value) is self.kind and (not self.values or value in self.values)

    # -- in a schedule

    def key(self, tensor: str = "") -> str:
        """Its name in a schedule."""
        return f"{self.name}_{tensor}" if self.tensors else self.name

    def read(self, knobs: Mapping[str, Any], tensor: str = "") -> T:
        """Its value, or its default."""
        return knobs.get(self.key(tensor), self.default)

    def of(self, schedule: KernelSchedule, tensor: str = "") -> T:
        return self.read(schedule.knob, tensor)

    def named(self, schedule: KernelSchedule) -> tuple[str, ...]:
        """Tensors for which it is set."""
        return tuple(k.removeprefix(self.key()) for k, v in schedule.knobs if v and option_of(k) is self)

    def given_in(self, schedule: KernelSchedule) -> bool:
        return any(option_of(k) is self for k in schedule.knob)

    def set(self, schedule: KernelSchedule, value: T | None, *tensors: str) -> KernelSchedule:
        """The schedule with it, or without it for None."""
        return schedule.with_knobs(**{self.key(t): value for t in tensors or ("",)})

    # -- in a search

    @property
    def seen(self) -> bool:
        """Whether estimates depend on it."""
        return self.modelled or self.counts is not None

    def label(self, choice: Any) -> str:
        """What a choice is called: ``lazy``, ``group=8``, ``evict_last``."""
        if choice is True or str(choice).startswith(self.name):
            return self.name if choice is True else str(choice)
        return f"{self.name}={'none' if choice is None else choice}"

    def offered(self, arch: int, behind: bool) -> bool:
        """Whether searches try it for kernels at all."""
        first, last = self.tried_on if any(self.tried_on) else (self.capability, arch)
        return bool(self.choices) and first <= arch <= last and (behind or not self.behind)

    def keys(self, block: BlockGraph) -> tuple[str, ...]:
        """Its names in schedules of a block."""
        if self.tensors is None:
            return (self.name,)
        return tuple(dict.fromkeys(self.key(t) for part in self.tensors(block).values() for t in part))

    def at_place(self, p: Place, choice: Any, tensor: str = "") -> T | None:
        """The value that a choice stands for, or None where the option is not for the place (or tensor), or left out."""
        if choice is None:
            return None
        if self.by_groups and BACKEND.of(p.schedule) == "gluon":
            return self.at(p, choice, tensor) if choice in self.by_groups else None
        if not self.offered(p.device.arch, p.behind):
            return None
        if any(k in p.schedule.knob for k in rivals(self, tensor)) or not (self.groups or BACKEND.of(p.schedule) == "triton"):
            return None
        if self.needs and not OPTIONS[self.needs].given_in(p.schedule):
            return None
        return self.at(p, choice, tensor)


OPTIONS: dict[str, Option[Any]] = {}


def entry(name: str, kind: type[T], says: str, **rest: Any) -> Option[T]:
    """A new option, in the table."""
    OPTIONS[name] = made = Option(name, kind, says, **rest)
    return made


# -- what their choices stand for


def in_grid_order(schedule: KernelSchedule, axes: Iterable[str]) -> list[str]:
    """Axes of the grid, the fastest last: those that the option names, then the others as they come."""
    known = list(axes)
    wanted = [a for a in GRID_ORDER.of(schedule).split(".") if a in known]
    order = wanted + [a for a in known if a not in wanted]
    return sorted(order, key=lambda a: a == schedule.cluster)  # blocks of a cluster are neighbours


def _turned(p: Place, choice: Any, tensor: str) -> str | None:
    """The two fastest axes of the grid the other way round."""
    names = in_grid_order(p.schedule, p.divided)
    return ".".join((*names[:-2], names[-1], names[-2])) if len(names) > 1 else None


def _grouped(p: Place, choice: int, tensor: str) -> int | None:
    names = in_grid_order(p.schedule, p.divided)
    return choice if len(names) > 1 and p.divided[names[-2]] >= choice else None


def _hint(p: Place, choice: str, tensor: str) -> str | None:
    """Keep what other programs read again, let go what they do not; nothing is tried for what is written."""
    return choice if tensor in p.block.inputs and p.reread(tensor) == (choice == "evict_last") else None


def _behind_loop(p: Place, choice: bool, tensor: str) -> bool | None:
    return choice if p.late and (p.loops or BACKEND.of(p.schedule) == "triton") and not _queued(p, FLATTEN) else None


def _queued(p: Place, beside: Option[Any]) -> bool:
    return p.late_tiles and beside.of(p.schedule) and BACKEND.of(p.schedule) == "triton"


def _equal_layers(p: Place, choice: bool, tensor: str) -> bool | None:
    return choice if find_layers(p.block, p.block.stmts, {a: plan.tile for a, plan in p.plans.items()}) else None


def _kept(p: Place, choice: bool, tensor: str) -> bool | None:
    return choice if p.facts.kept(LAZY.set(p.schedule, choice)) != p.facts.kept(p.schedule) else None


def _movable(p: Place, choice: bool, tensor: str) -> bool | None:
    """Warp groups have operands moved so anyway, and results unless they are to leave by pointers."""
    if BACKEND.of(p.schedule) != "triton":
        return choice if tensor in p.block.outputs and not choice else None
    return choice if p.facts.movable(p.schedule, tensor) else None


def _programs(p: Place, choice: int, tensor: str) -> int | None:
    """So many for each SM, as far as it holds them and they are fewer than the places of the grid. Of chained products without a
    loop the least number that covers the grid as well: the compiler pipelines the loop over the one place, in which all loads are
    under way at once."""
    sms = p.device.sm_count
    if choice * sms >= p.programs and (choice // 2 * sms >= p.programs or not _chained(p)):
        return None
    return choice * sms if choice == 1 or choice <= p.facts.resident() else None  # one of them always fits


def _chained(p: Place) -> bool:
    return not p.loops and p.schedule.num_stages > 1 and sum(bool(s.contracts) for s in p.block.computes) > 1


def _shared_out(p: Place, choice: bool, tensor: str) -> bool | None:
    if BACKEND.of(p.schedule) != "triton":
        return choice if p.schedule.num_warps == ONE_GROUP and not PERSISTENT.of(p.schedule) else None
    loads = set(TMA.named(p.schedule)) & set(p.block.inputs)
    return choice if loads and p.facts.multiplies(p.schedule) else None


def _by_warps(p: Place, choice: str, tensor: str) -> str | None:
    return choice if p.block.contracts and p.facts.by_warps(BACKEND.set(p.schedule, choice)) else None


ONE_GROUP = 4
"""Warps of a group that fills its slots by itself."""

# -- the table

# without choices: it rounds tiles up, which rule 3 has ruled on
PAD = entry("pad", bool, "compute odd tiles in one padded power of two, not in pieces (80 as 128)", default=False, groups=True)
# without choices: another precision is another result
PRECISION = entry(
    "precision", str, "how tensor cores multiply float32", values=("ieee", "tf32", "tf32x3"), default="tf32x3", groups=True
)
GRID_ORDER = entry(
    "grid_order", str, "axes of the grid joined by dots, the fastest last", default="", choices=(True,), at=_turned, groups=True
)
GROUP = entry(
    "group",
    int,
    "so many tiles of the second fastest grid axis share those of the fastest in L2",
    values=(2, 4, 8, 16, 32),
    default=0,
    choices=(4, 8, 16),
    at=_grouped,
    groups=True,
)
EVICT = entry(
    "evict",
    str,
    "how long L2 keeps a tensor's lines",
    values=("evict_first", "evict_last"),
    default="",
    choices=("evict_last", "evict_first"),
    at=_hint,
    excludes=(("tma", "Triton's descriptor loads take no eviction hint"),),
    tensors=lambda block: {"": (*block.inputs, *block.outputs)},
    apart=True,
)
PDL = entry(
    "pdl",
    str,
    "start before the kernel in front has ended: when all its blocks have started (early), have left their main loop (loop) or "
    "are about to store (late)",
    values=("early", "loop", "late"),
    default="",
    capability=90,
    behind=True,
    choices=("early", "late", None),
    given="early",
    counts=lambda f, value: {"dependent": 1.0},
    groups=True,
)
UNROLL = entry(
    "unroll", bool, "equal layers of a chain one after the other, not as a loop", default=False, choices=(True,), at=_equal_layers
)
LAZY = entry(
    "lazy",
    bool,
    "sums of a loop stay apart by lane until it ends, where nothing rescales them",
    choices=(True,),
    at=_kept,
    modelled=True,
    groups=True,
)
PREFETCH = entry(
    "prefetch",
    int,
    "trips of whose loads the lines come to L2 while the kernel waits (with pdl)",
    values=(1, 2, 3, 4, 6, 8),
    default=0,
    capability=90,
    behind=True,
    choices=(1, 2, 4),
    given=2,
    needs="pdl",
)
HOIST = entry(
    "hoist",
    bool,
    "what is read behind the main loop is loaded in front of it; without a loop, what is read behind a sum",
    default=False,
    choices=(True,),
    at=_behind_loop,
    modelled=True,
    groups=True,
)
# without choices: how many blocks an SM is to hold depends on all kernels that run at the time (search/space/launches.py)
ROOM = entry(
    "room", int, "bytes of shared memory that a block takes at least, so that an SM holds fewer of them", default=0, groups=True
)
# without choices: what it costs and saves is in two kernels
AHEAD = entry(
    "ahead",
    bool,
    "the kernel in front brings the tensor to L2, when its own main loop is done",
    default=False,
    capability=90,
    behind=True,
    tensors=lambda block: {"": operands(block)},
    groups=True,
)
TMA = entry(
    "tma",
    bool,
    "move a tensor's tiles by the host's tensor descriptor, not by pointers (by warp groups False: results leave by pointers)",
    default=False,
    capability=90,
    choices=(True,),
    at=_movable,
    tensors=lambda block: {"": operands(block), "store": block.outputs},
    modelled=True,
    groups=True,
    by_groups=(False,),
)
PERSISTENT = entry(
    "persistent",
    int,
    "so many programs, each of which computes one place of the grid after another",
    default=0,
    choices=(1, 2, 4),
    at=_programs,
    modelled=True,
    groups=True,
)
FLATTEN = entry(
    "flatten",
    bool,
    "of a persistent kernel: the pipeline of one place's loop goes on into the next place's",
    default=False,
    choices=(True,),
    at=lambda p, choice, tensor: choice if p.facts.flat() and not _queued(p, HOIST) else None,
    needs="persistent",
    modelled=True,
    groups=True,
)
# Triton 3.6 makes kernels of it for sm_90 too: 29 of 32 of them gave NaN or wrong numbers on an H200
SPECIALIZE = entry(
    "specialize",
    bool,
    "some warps load by descriptors, others multiply, in the innermost loop or persistent one (by warp groups so without it)",
    capability=100,
    choices=(True,),
    at=_shared_out,
    needs="tma",
    by_groups=(False,),
)


# without choices: tiles follow from it, so that searches rank such schedules as a space of their own (search/space/clusters.py)
CLUSTER = entry(
    "cluster",
    str,
    "the axis whose tiles blocks of one cluster share out: what they fold over it they exchange through their shared memory",
    default="",
    capability=90,
    excludes=(
        ("persistent", "blocks of a cluster have one place of the grid each"),
        ("group", "blocks of a cluster are neighbours on the grid"),
        ("grid_order", "blocks of a cluster are neighbours on the grid"),
    ),
    modelled=True,
)


# kernels by warp groups are no choice: they have tiles of their own, so that searches rank them as a space of their own
BACKEND = entry(
    "backend",
    str,
    "the language: Triton, Gluon with a warp that loads and groups of four that compute (sm_90), or cp.async and mma (sm_80)",
    values=("triton", "gluon", "gluon_mma"),
    default="triton",
    capability=90,
    choices=("gluon_mma",),
    at=_by_warps,
    tried_on=(80, 89),
    modelled=True,
    groups=True,
)


# -- names in schedules


def option_of(name: str) -> Option[Any] | None:
    """The entry of a knob; ``None`` for an unknown one."""
    whole, (stem, behind, _) = OPTIONS.get(name), name.partition("_")
    found = whole or (OPTIONS.get(stem) if behind else None)
    return found if found is not None and (found.tensors is None) == (whole is not None) else None


@cache
def rivals(option: Option[Any], tensor: str) -> Mapping[str, str]:
    """Names in a schedule that an option cannot stand beside, each with the reason."""
    mine = dict(option.excludes) | {o.name: why for o in OPTIONS.values() for name, why in o.excludes if name == option.name}
    return {OPTIONS[name].key(tensor): why for name, why in mine.items()}
