"""A structure under a schedule: what determines one program for the GPU. Times, kernels and measurements hold one of these."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fuser.errors import UsageError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A µGraph and its schedule."""

    graph: KernelGraph
    schedule: Schedule

    @property
    def blocks(self) -> tuple[tuple[BlockGraph, KernelSchedule], ...]:
        """Every generated kernel with its schedule, in launch order."""
        return scheduled_blocks(self.graph, self.schedule)

    def once(self, make: Callable[[Candidate], T]) -> T:
        """``make`` of this candidate. The result stays with it, also on the way to another process."""
        name = f"{make.__module__}.{make.__qualname__}"
        if name not in self.__dict__:
            self.__dict__[name] = make(self)
        return self.__dict__[name]


def paired(graph: KernelGraph, values: Sequence[T]) -> tuple[tuple[Kernel, T | None], ...]:
    """Every kernel of a graph with its own of ``values``, which are for the generated kernels in launch order; None for a
    library's. Raises :class:`UsageError` where their numbers differ."""
    if len(values) != len(graph.blocks):
        raise UsageError(f"{graph.name!r} has {len(graph.blocks)} generated kernels, the schedule is for {len(values)}")
    rest = iter(values)
    return tuple((k, next(rest) if isinstance(k, BlockGraph) else None) for k in graph.kernels)


def scheduled(graph: KernelGraph, schedule: Schedule) -> tuple[tuple[Kernel, KernelSchedule | None], ...]:
    """Every kernel with its schedule, None for a library's."""
    return paired(graph, schedule.kernels)


def scheduled_blocks(graph: KernelGraph, schedule: Schedule) -> tuple[tuple[BlockGraph, KernelSchedule], ...]:
    """The generated kernels alone."""
    return tuple((k, s) for k, s in scheduled(graph, schedule) if isinstance(k, BlockGraph) and s is not None)
