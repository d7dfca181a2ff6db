"""Calls on tensors that come again: a CUDA graph in place of many launches.

A launch takes the host some 4 µs and a call of torch 10 to 30, a node of a graph hardly anything. A graph reads and writes the
very addresses that it was captured with, so it stands for a call on tensors at these addresses and for no other: nothing is
copied, and no tensor of the caller is kept alive. What torch allocates within a call lies in memory of the graph; results among
it are copied out. How torch multiplies (TF32, deterministic) stays as it was when a graph was captured.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuser.errors import FuserError
from fuser.runtime.plan import Plan

MANY = 4
"""Launches of a call from which on a graph is worth its memory."""
AFTER = 4
"""Calls on the same addresses; the last of them captures."""
MOST, ALL = 4, 32
"""Graphs that are kept at once, the latest ones, and that are captured at all: addresses that never settle are left alone."""
COUNTED = 64
"""Sets of addresses that are counted."""
LIGHT, MOST_BYTES = 1 << 25, 1 << 31
"""Most bytes of results a launch, and of all: what writes more keeps the GPU busy for longer than the host needs."""

Key = tuple[int, ...]


def worth_it(plan: Plan) -> bool:
    """Whether the host takes as long for a call as the GPU, or may."""
    written = sum(plan.table[n].nbytes for i in plan.launched for n in plan.graph.kernels[i].outputs)
    return len(plan.launched) >= MANY and written <= min(LIGHT * len(plan.launched), MOST_BYTES)


@dataclass(frozen=True, eq=False)
class Graph:
    """``made`` copies results that torch allocated, by name; each replay writes them anew."""

    replay: Callable[[], None]
    made: Callable[[], Mapping[str, Any]]


class Again:
    """The graphs of one executable, by addresses. Not for several threads at once."""

    def __init__(self, capture: Callable[[tuple[Any, ...]], Graph]) -> None:
        self._capture, self._left = capture, ALL
        self._graphs: dict[Key, Graph] = {}
        self._times: dict[Key, int] = {}

    def graph(self, key: Key, tensors: tuple[Any, ...]) -> Graph | None:
        """That of a call on these tensors, captured now if it is time; None where the call is to be launched. What cannot be
        captured is not tried again."""
        found = self._graphs.get(key)
        if found is not None or not self._left:
            return found
        times = self._times.pop(key, 0) + 1
        if times < AFTER:
            if len(self._times) >= COUNTED:
                del self._times[next(iter(self._times))]
            self._times[key] = times
            return None
        self._left -= 1
        try:
            found = self._capture(tensors)
        except (RuntimeError, FuserError):  # some calls of torch wait for the GPU, which no capture allows; or memory is short
            self._left = 0
            return None
        if len(self._graphs) >= MOST:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key] = found
        return found
