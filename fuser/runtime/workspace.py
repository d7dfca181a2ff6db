"""One workspace for all intermediates of a graph: two of them share bytes only where the order of the kernels, that of their
streams too, keeps their uses apart.

Where a tensor lies is a small integer program: offsets, and for two tensors that are alive together which of them lies above.
What is alive at once bounds it from below. Orders by size and by life are tried first; where none reaches the bound and there are
few tensors, the integer program decides (PuLP, HiGHS), else the rest is stated as a gap.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.ir.program import Tensor
from fuser.runtime.streams import Access
from fuser.runtime.streams import Streams
from fuser.solver import solve

WORKSPACE_ALIGNMENT = 256
"""Bytes; what the CUDA allocator gives."""
FEW = 60
"""Pairs of tensors alive together up to which the integer program decides."""
SECONDS = 5.0
"""Budget of the solver."""


@dataclass(frozen=True)
class Slot:
    """An intermediate tensor at ``offset`` bytes of the workspace, written by kernel ``first`` and used by all of ``uses``
    (``first`` too), in launch order; those that may begin before a user has ended are among them."""

    tensor: Tensor
    offset: int
    first: int
    uses: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return _aligned(self.tensor.nbytes)

    @property
    def end(self) -> int:
        return self.offset + self.tensor.nbytes

    def apart(self, other: Slot, streams: Streams) -> bool:
        """Whether one of the two is done with before the other is begun."""
        return _done(self, other, streams) or _done(other, self, streams)


@dataclass(frozen=True)
class Workspace:
    """``slots`` in the order of their writers, in ``bytes``; no placement takes fewer than ``bound``."""

    slots: tuple[Slot, ...] = ()
    bytes: int = 0
    bound: int = 0

    @property
    def gap(self) -> float:
        """By how much it may be larger than needed, relative to the bound."""
        return self.bytes / self.bound - 1.0 if self.bound else 0.0


def _done(a: Slot, b: Slot, streams: Streams) -> bool:
    return set(a.uses) <= streams.before[b.first]


def place(
    accesses: Sequence[Access],
    tensors: Mapping[str, Tensor],
    streams: Streams,
    early: Collection[int] = (),
    few: int = FEW,
) -> Workspace:
    """A place for each of ``tensors`` (each written by one kernel). ``early``: kernels that may begin before the one in front of
    them on their stream has ended, for which all that this one uses stays alive. ``few``: pairs of tensors alive together up to
    which the integer program is asked."""
    wanted = _lives(accesses, tensors, streams, early)
    together = [
        (i, j) for i, a in enumerate(wanted) for j, b in enumerate(wanted[:i]) if a.size and b.size and not a.apart(b, streams)
    ]
    bound = _alive(wanted, streams)
    beside: dict[int, set[int]] = {i: set() for i in range(len(wanted))}
    for i, j in together:
        beside[i].add(j)
        beside[j].add(i)
    best = min((_fitted(wanted, beside, order) for order in _orders(wanted)), key=lambda offsets: _top(wanted, offsets))
    if bound < _top(wanted, best) and len(together) <= few:
        best, bound = _solved(wanted, together, best, bound)
    placed = sorted((replace(s, offset=o) for s, o in zip(wanted, best, strict=True)), key=lambda s: (s.first, s.offset))
    return Workspace(tuple(placed), _top(wanted, best), bound)


def _lives(
    accesses: Sequence[Access], tensors: Mapping[str, Tensor], streams: Streams, early: Collection[int]
) -> tuple[Slot, ...]:
    front = {i: streams.directly_behind(i) for i in early}
    found = []
    for name, tensor in tensors.items():
        uses = [i for i, a in enumerate(accesses) if name in a.reads or name in a.writes]
        first = next(i for i in uses if name in accesses[i].writes)
        found.append(Slot(tensor, 0, first, tuple(sorted({*uses, *(i for i, f in front.items() if f in uses)}))))
    return tuple(found)


def _alive(slots: Sequence[Slot], streams: Streams) -> int:
    """The most bytes that are in use while some kernel runs."""
    most = 0
    for k in {u for s in slots for u in s.uses}:
        begun = (s for s in slots if s.first == k or s.first in streams.before[k])
        most = max(most, sum(s.size for s in begun if any(u == k or k in streams.before[u] for u in s.uses)))
    return most


def _orders(slots: Sequence[Slot]) -> list[list[int]]:
    """Orders in which tensors are given the lowest place that is free: by size, by how long they live, as they come."""
    every = range(len(slots))

    def life(i: int) -> int:
        return max(slots[i].uses) - slots[i].first + 1

    return [
        sorted(every, key=lambda i: (-slots[i].size, slots[i].first)),
        sorted(every, key=lambda i: (-slots[i].size * life(i), slots[i].first)),
        sorted(every, key=lambda i: (-life(i), -slots[i].size, slots[i].first)),
        sorted(every, key=lambda i: (slots[i].first, -slots[i].size)),
    ]


def _fitted(slots: Sequence[Slot], beside: Mapping[int, Collection[int]], order: Sequence[int]) -> list[int]:
    """The lowest place for each in turn."""
    offsets: dict[int, int] = {}
    for i in order:
        offset = 0
        for j in sorted((j for j in beside[i] if j in offsets), key=lambda j: offsets[j]):
            if offset + slots[i].size <= offsets[j]:
                break
            offset = max(offset, offsets[j] + slots[j].size)
        offsets[i] = offset
    return [offsets[i] for i in range(len(slots))]


def _top(slots: Sequence[Slot], offsets: Sequence[int]) -> int:
    return max((o + s.size for s, o in zip(slots, offsets, strict=True)), default=0)


def _solved(
    slots: Sequence[Slot], together: Sequence[tuple[int, int]], known: Sequence[int], bound: int
) -> tuple[list[int], int]:
    """Offsets by the integer program, and the bound that it has proven; those ``known`` where it finds nothing better."""
    import pulp

    most, unit = _top(slots, known) // WORKSPACE_ALIGNMENT, WORKSPACE_ALIGNMENT
    sizes = [s.size // unit for s in slots]
    problem: Any = pulp.LpProblem("workspace", pulp.LpMinimize)
    total = problem.add_variable("bytes", bound // unit, most)
    place = [problem.add_variable(f"at_{i}", 0, most - n) for i, n in enumerate(sizes)]
    problem += total
    for i, n in enumerate(sizes):
        problem += place[i] + n <= total, f"inside_{i}"
    for i, j in together:
        above = problem.add_variable(f"above_{i}_{j}", cat="Binary")
        problem += place[j] + sizes[j] <= place[i] + most * (1 - above), f"over_{i}_{j}"
        problem += place[i] + sizes[i] <= place[j] + most * above, f"under_{i}_{j}"
    solve(problem, timeLimit=SECONDS)
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return list(known), bound
    # what lies below which is what the solver has decided; the places themselves are those of whole numbers
    beside: dict[int, set[int]] = {i: set() for i in range(len(slots))}
    for i, j in together:
        beside[i].add(j)
        beside[j].add(i)
    found = _fitted(slots, beside, sorted(range(len(slots)), key=lambda i: place[i].value() or 0.0))
    proven = problem.solverModel.getInfo().mip_dual_bound
    bound = max(bound, min(math.ceil(proven - 1e-6) * unit, _top(slots, found)))
    return (found if _top(slots, found) < _top(slots, known) else list(known)), bound


def _aligned(n: int) -> int:
    return -(-n // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
