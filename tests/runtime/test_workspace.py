"""Places of intermediates in one workspace: as few bytes as any placement takes, where there are few."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fuser.ir.program import Tensor
from fuser.runtime import workspace
from fuser.runtime.streams import Access
from fuser.runtime.streams import Streams
from fuser.runtime.streams import streams_of
from fuser.runtime.workspace import WORKSPACE_ALIGNMENT as UNIT
from fuser.runtime.workspace import Slot
from fuser.runtime.workspace import place


def chain(rng: np.random.Generator, count: int) -> tuple[list[Access], dict[str, Tensor]]:
    """Kernels that each read some earlier results, some of these long after they were made."""
    accesses = []
    for i in range(count):
        reads = {f"T{int(j)}" for j in rng.integers(max(0, i - 4), i, int(rng.integers(1, 3)))} if i else {"X"}
        accesses.append(Access(tuple(sorted(reads)), (f"T{i}",)))
    sizes = {f"T{i}": Tensor(f"T{i}", (int(rng.integers(1, 7)) * UNIT // 2,)) for i in range(count - 1)}
    return accesses, {n: t for n, t in sizes.items() if any(n in a.reads for a in accesses)}


def least(slots: tuple[Slot, ...], streams: Streams) -> int:
    """By every order in which tensors can take the lowest place that is free: one of them is best."""
    best = sum(s.size for s in slots)
    for order in permutations(slots):
        placed: list[tuple[int, Slot]] = []
        for slot in order:
            blocked = sorted((o, o + s.size) for o, s in placed if not s.apart(slot, streams))
            offset = 0
            for begin, end in blocked:
                if offset + slot.size <= begin:
                    break
                offset = max(offset, end)
            placed.append((offset, slot))
        best = min(best, max(o + s.size for o, s in placed))
    return best


@pytest.mark.parametrize("block", range(5))
def test_as_few_bytes_as_any_order(block: int) -> None:
    rng = np.random.default_rng(block)
    for _ in range(12):
        accesses, tensors = chain(rng, int(rng.integers(3, 8)))
        streams = streams_of(accesses, most=int(rng.integers(1, 3)))
        early = [i for i in range(len(accesses)) if rng.random() < 0.5]
        found = place(accesses, tensors, streams, early)
        assert found.bytes == least(found.slots, streams)
        assert found.bytes == found.bound
        assert found.gap == 0


def test_the_solver_finds_what_orders_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed largest first alone, some of these take more."""
    rng = np.random.default_rng(1)
    largest = workspace._orders
    monkeypatch.setattr(workspace, "_orders", lambda slots: largest(slots)[:1])
    better = 0
    for _ in range(40):
        accesses, tensors = chain(rng, 12)
        streams = streams_of(accesses, most=1)
        solved = place(accesses, tensors, streams)
        tried = place(accesses, tensors, streams, few=0)
        assert solved.bytes <= tried.bytes
        assert solved.bytes == solved.bound
        assert tried.gap == tried.bytes / tried.bound - 1
        better += solved.bytes < tried.bytes
        for i, a in enumerate(solved.slots):
            for b in solved.slots[:i]:
                assert a.apart(b, streams) or a.end <= b.offset or b.end <= a.offset
    assert better


def test_what_a_kernel_uses_lives_while_the_next_may_begin() -> None:
    tensors = {n: Tensor(n, (UNIT,), "int8") for n in "ABC"}
    accesses = [Access(("X",), ("A",)), Access(("A",), ("B",)), Access(("B",), ("C",)), Access(("C",), ("Y",))]
    streams = streams_of(accesses)
    assert place(accesses, tensors, streams).bytes == 2 * UNIT
    found = place(accesses, tensors, streams, early=[2])
    assert found.bytes == found.bound == 3 * UNIT
    assert {s.tensor.name: s.uses for s in found.slots} == {"A": (0, 1, 2), "B": (1, 2), "C": (2, 3)}


def test_no_intermediates_take_nothing() -> None:
    found = place([Access(("X",), ("Y",))], {}, streams_of([Access(("X",), ("Y",))]))
    assert (found.bytes, found.bound, found.gap) == (0, 0, 0.0)
