"""Which kernel runs on which stream, and what waits for what: pure functions, used when a call is launched and when it is
captured.

Kernels of one stream run in launch order. Between streams an event orders them: it is recorded behind one kernel, and another
kernel waits for it. Stream 0 is the caller's: the others begin behind what is on it (fork), and it goes on when they are done
(join), so that to the caller a call looks like work on one stream.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

MAX_STREAMS = 2
"""A GPU has room for few kernels at once. With 4 no network of several branches took less time on an H100 than with 2 (ten of
them, 0.87 to 1.01 x as fast)."""


@dataclass(frozen=True)
class Access:
    """The device tensors that one kernel reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Streams:
    """``stream`` of each kernel, in launch order; ``waits``: the kernels on other streams for which each kernel waits (those that
    are implied by others are left out); ``forks``: kernels before which their stream waits for the caller's; ``joins``: kernels
    for which the caller's stream waits at the end; ``before``: everything that has ended when a kernel starts.
    """

    stream: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    forks: tuple[int, ...]
    joins: tuple[int, ...]
    before: tuple[frozenset[int], ...]

    @property
    def count(self) -> int:
        return 1 + max(self.stream, default=0)

    @cached_property
    def records(self) -> frozenset[int]:
        """Kernels behind which an event is recorded."""
        return frozenset(self.joins).union(*self.waits)

    def directly_behind(self, kernel: int) -> int | None:
        """The kernel in front of this one on its stream if nothing else stands between or is waited for."""
        earlier = [k for k in range(kernel) if self.stream[k] == self.stream[kernel]]
        if not earlier or self.waits[kernel] or earlier[-1] in self.records:
            return None
        return earlier[-1]


def dependences(accesses: Sequence[Access]) -> tuple[tuple[int, ...], ...]:
    """For each kernel the earlier ones whose results it reads."""
    writer: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for i, access in enumerate(accesses):
        found.append(tuple(sorted({writer[t] for t in access.reads if t in writer})))
        writer |= dict.fromkeys(access.writes, i)
    return tuple(found)


def ancestors(needs: Sequence[Sequence[int]]) -> tuple[frozenset[int], ...]:
    """For each kernel all kernels from which a path leads to it."""
    found: list[frozenset[int]] = []
    for direct in needs:
        found.append(frozenset(direct).union(*(found[d] for d in direct)))
    return tuple(found)


def assign(accesses: Sequence[Access], most: int = MAX_STREAMS, calls: Sequence[Collection[str]] = ()) -> tuple[int, ...]:
    """A stream for each kernel. A kernel goes on a stream on whose last kernel it depends, so that no order is added; else on a
    stream of its own, or where all are taken on the one with the fewest kernels. All on stream 0 where there is no kernel that
    could run beside another. Kernels that share one of their ``calls`` share a stream."""
    paths = ancestors(dependences(accesses))
    last: list[int] = []
    found: list[int] = []
    homes: dict[str, int] = {}
    for i, path in enumerate(paths):
        fitting = [s for s, k in enumerate(last) if k in path]
        mine = calls[i] if calls else ()
        if home := [homes[c] for c in mine if c in homes]:
            stream = home[0]
        elif fitting:
            # the caller's stream waits for the others at the end anyway; else behind the latest, whose branch goes on
            stream = 0 if 0 in fitting else max(fitting, key=last.__getitem__)
        elif len(last) < most:
            stream = len(last)
            last.append(i)
        else:
            stream = min(range(len(last)), key=lambda s: (found.count(s), s))
        last[stream] = i
        found.append(stream)
        homes |= {c: stream for c in mine if c not in homes}
    return tuple(found)


def synchronise(accesses: Sequence[Access], stream: Sequence[int]) -> Streams:
    """The events that make an assignment right: every kernel starts after those whose results it reads."""
    before: list[frozenset[int]] = []
    waits: list[tuple[int, ...]] = []
    forks: list[int] = []
    last: dict[int, int] = {}
    for i, direct in enumerate(dependences(accesses)):
        done: frozenset[int] = frozenset()
        if stream[i] in last:
            done = before[last[stream[i]]] | {last[stream[i]]}
        needed: list[int] = []
        for k in reversed(direct):  # a later kernel may have waited for an earlier one already
            if k not in done:
                needed.append(k)
                done |= before[k] | {k}
        if stream[i] != 0 and stream[i] not in last and not needed:
            forks.append(i)
        before.append(done)
        waits.append(tuple(sorted(needed)))
        last[stream[i]] = i
    done = before[last[0]] | {last[0]} if 0 in last else frozenset[int]()
    joins = tuple(sorted(k for s, k in last.items() if s != 0 and k not in done))
    return Streams(tuple(stream), tuple(waits), tuple(forks), joins, tuple(before))


def streams_of(
    accesses: Sequence[Access], most: int = MAX_STREAMS, joined: Sequence[bool] = (), calls: Sequence[Collection[str]] = ()
) -> Streams:
    """Streams and events for kernels in launch order. Neighbours among the ``joined`` may become one launch: they share a
    stream, and so do results of one of ``calls``, which would be made again on each."""
    groups: list[list[int]] = []
    for i in range(len(accesses)):
        if joined and i and joined[i - 1] and joined[i]:
            groups[-1].append(i)
        else:
            groups.append([i])
    merged = [Access(*(tuple(dict.fromkeys(t for i in g for t in pick(accesses[i]))) for pick in _ENDS)) for g in groups]
    whose = [{c for i in g for c in calls[i]} for g in groups] if calls else ()
    stream = [s for s, g in zip(assign(merged, most, whose), groups, strict=True) for _ in g]
    return synchronise(accesses, stream)


_ENDS = attrgetter("reads"), attrgetter("writes")
