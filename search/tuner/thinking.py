"""Where searches think about their next generation: in a thread of this process, or in several processes, among which they are
shared out.

A process that thinks has its searches, and what it found out about prices, in its memory: it hears of measurements, and answers
with candidates. The search here stays whole. It takes over all that a thought has changed, so that it can go on elsewhere as if
nothing had been where a process dies, and depends on nothing but its own measurements, wherever it is thought of.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from dataclasses import dataclass
from dataclasses import field
from itertools import islice
from typing import Any
from typing import Protocol

from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.pools import Children
from fuser.pools import Job
from fuser.pools import cores
from search.measure.measurement import Measurement
from search.tuner.features import shares_of
from search.tuner.hunt import Hunt
from search.tuner.pool import Entry

News = tuple[Sequence[tuple[Entry, Measurement]], Sequence[tuple[Entry, Measurement]]]
"""What a search was told: :meth:`Hunt.tell`."""
NOTHING: News = ((), ())


@dataclass(frozen=True)
class Thought:
    """The next generation of a search, none where there are no more candidates, what may come behind it, and the seconds that it
    may gain."""

    entries: list[Entry]
    more: list[Entry]
    gain: float


def thought(hunt: Hunt, spare: int) -> Thought:
    """``spare`` candidates are asked for beyond the generation."""
    entries = hunt.ask()
    more = [e for e in hunt.ahead(len(entries) + spare) if e not in entries] if entries and spare else []
    return Thought(entries, more, hunt.gain)


class Thinker(Protocol):
    """Thinks of several searches, by their numbers."""

    count: int
    """Thoughts at once."""

    def begin(self, number: int, news: News, spare: int) -> None:
        """Think of a search, which was told the ``news``."""
        ...

    def waiting(self) -> list[Future[Any]]:
        """A future of each thought that is not taken, done when it is."""
        ...

    def ready(self) -> list[int]:
        """Searches whose thoughts can be taken, in the order in which they were begun."""
        ...

    def take(self, number: int) -> Thought:
        """Raises :class:`fuser.errors.DiedError` where a process died of it, and another one too."""
        ...

    def close(self) -> None:
        """What is under way is given up."""
        ...


class Here:
    """A thread of this process; ``foresee`` hears of what it found there."""

    count = 1

    def __init__(self, hunts: Sequence[Hunt], foresee: Callable[[Sequence[Candidate]], None]) -> None:
        self.hunts, self.foresee = hunts, foresee
        self._thread = ThreadPoolExecutor(1, "search")
        self._under_way: dict[int, Future[Thought]] = {}

    def begin(self, number: int, news: News, spare: int) -> None:
        self._under_way[number] = self._thread.submit(self._think, self.hunts[number], spare)

    def _think(self, hunt: Hunt, spare: int) -> Thought:
        found = thought(hunt, spare)
        self.foresee([e.candidate for e in (*found.entries, *found.more)])
        return found

    def waiting(self) -> list[Future[Any]]:
        return list(self._under_way.values())

    def ready(self) -> list[int]:
        return [number for number, future in self._under_way.items() if future.done()]

    def take(self, number: int) -> Thought:
        return self._under_way.pop(number).result()

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Heard:
    """What a process hears of its search, whose candidates are named by their places in the pool, after ``asked`` thoughts."""

    asked: int
    found: tuple[tuple[int, Measurement], ...]
    again: tuple[tuple[int, Measurement], ...]


_Slim = tuple[int, tuple[int, ...], Schedule, float, dict[str, float]]
"""A candidate of the pool without what is known here: structure, row, schedule, estimate, shares of terms."""


@dataclass(frozen=True)
class _Answer:
    """A thought by places in the pool; ``new`` came into the pool, ``drawn`` is the state of the random numbers."""

    entries: tuple[int, ...]
    more: tuple[int, ...]
    gain: float
    new: tuple[_Slim, ...]
    drawn: Any


@dataclass
class Places:
    """Candidates of a pool, which only grows, by their places in it."""

    entries: list[Entry] = field(default_factory=list)
    of: dict[Entry, int] = field(default_factory=dict)

    def grow(self, hunt: Hunt) -> list[Entry]:
        """Take what is new, and say what that is."""
        new = list(islice(hunt.pool.entries.values(), len(self.entries), None))
        self.of |= {e: i for i, e in enumerate(new, len(self.entries))}
        self.entries += new
        return new


_MINE: dict[int, tuple[Hunt, Places]] = {}
"""In a process that thinks: its searches."""


def _start() -> None:
    """What a new process loads is loaded before it is needed."""


def _think(number: int, given: bytes | _Heard, spare: int) -> _Answer | None:
    """In a process that thinks: of a search that is ``given`` whole, or one that it has; None where it has it not, or not as it
    was left."""
    if isinstance(given, bytes):
        hunt, places = pickle.loads(given), Places()
        _MINE[number] = hunt, places
    else:
        if number not in _MINE or _MINE[number][0].asked != given.asked:
            return None
        hunt, places = _MINE[number]
        found, again = ([(places.entries[i], m) for i, m in told] for told in (given.found, given.again))
        hunt.tell(found, again)
    places.grow(hunt)
    made = thought(hunt, spare)
    new = [(e.structure, e.row, e.candidate.schedule, e.estimate, shares_of(e.features)) for e in places.grow(hunt)]
    entries, more = (tuple(places.of[e] for e in x) for x in (made.entries, made.more))
    return _Answer(entries, more, made.gain, tuple(new), hunt.rng.bit_generator.state)


class Elsewhere:
    """``count`` processes, each of them for some of the searches. What a search measures first the model says: that is thought
    here, while they start."""

    def __init__(self, hunts: Sequence[Hunt], count: int) -> None:
        self.hunts, self.count = hunts, count
        self._here = Here(hunts, lambda candidates: None)
        self._children = [Children(1) for _ in range(count)]
        self._places = [Places() for _ in hunts]
        self._knows: set[int] = set()
        """Searches that are in the memory of a process."""
        self._under_way: dict[int, tuple[Job[_Answer | None], int] | None] = {}
        """Jobs, with how many spare candidates they look for; None of what is thought here."""
        self._starts = [c.submit(_start) for c in self._children]

    def begin(self, number: int, news: News, spare: int) -> None:
        hunt, places = self.hunts[number], self._places[number]
        if not hunt.asked:
            self._under_way[number] = None
            self._here.begin(number, news, spare)
            return
        if number not in self._knows:
            self._under_way[number] = self._whole(number, spare), spare
            return
        found, again = (tuple((places.of[e], m) for e, m in told) for told in news)
        self._under_way[number] = self._submit(number, _Heard(hunt.asked, found, again), spare), spare

    def _whole(self, number: int, spare: int) -> Job[_Answer | None]:
        """All of the search, written by this thread: others change it."""
        self._knows.add(number)
        self._places[number].grow(self.hunts[number])
        return self._submit(number, pickle.dumps(self.hunts[number], pickle.HIGHEST_PROTOCOL), spare)

    def _submit(self, number: int, given: bytes | _Heard, spare: int) -> Job[_Answer | None]:
        return self._children[number % self.count].submit(_think, number, given, spare)

    def waiting(self) -> list[Future[Any]]:
        return [*self._here.waiting(), *(job[0].inner for job in self._under_way.values() if job)]

    def ready(self) -> list[int]:
        here = self._here.ready()
        return [n for n, job in self._under_way.items() if (job[0].inner.done() if job else n in here)]

    def take(self, number: int) -> Thought:
        under_way = self._under_way.pop(number)
        if under_way is None:
            return self._here.take(number)
        job, spare = under_way
        answer = job.result()
        if answer is None:  # a process has taken the place of one that died
            answer = self._whole(number, spare).result()
            assert answer is not None
        hunt, places = self.hunts[number], self._places[number]
        hunt.pool.add([hunt.pool.structures[slim[0]].entry(*slim[1:]) for slim in answer.new])
        hunt.rng.bit_generator.state = answer.drawn
        hunt.asked += 1
        places.grow(hunt)
        return Thought([places.entries[i] for i in answer.entries], [places.entries[i] for i in answer.more], answer.gain)

    def close(self) -> None:
        self._here.close()
        for children in self._children:
            children.kill()


def thinkers(searches: int, lanes: int) -> int:
    """Processes worth having for so many searches of which ``lanes`` are measured or compiled at once; one core is left to this
    one, which talks to all others."""
    return max(1, min(searches, lanes, cores() - 1))


def some_ready(thinker: Thinker) -> None:
    """Wait until a thought can be taken."""
    wait(thinker.waiting(), return_when=FIRST_COMPLETED)
