"""One thread block of a kernel by warp groups, without a GPU: who runs when, what is under way, and what that may have broken.

Groups of warps run one at a time, in an order that a seed decides; copies into shared memory end at any time after their start,
in any order; products end when they are waited for. What must not depend on that order is checked by clocks (what each group
knows to have happened, which only barriers hand on): a slot that is read before it was filled, overwritten while somebody may
still read it, or read while a copy writes it is a fault in whatever order this run took, and so is a barrier with the wrong
count.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

from fuser.errors import NoValidKernelError

Clock = dict[Any, int]


class Hazard(NoValidKernelError):
    """A kernel whose result depends on who is faster, or that never ends."""


class _Stopped(BaseException):
    """A group's function is left because another one failed."""


def join(mine: Clock, other: Clock) -> None:
    for key, n in other.items():
        if mine.get(key, 0) < n:
            mine[key] = n


def fence_of(group: str) -> tuple[str, str]:
    """In a clock: what a group's threads did up to then, engines see."""
    return "fence", group


@dataclass(eq=False)
class Slot:
    """One buffer of a ring. ``version`` counts its fills; ``reads`` is when each group has last ended reading it, ``touched``
    when its threads have; ``open`` are products and copies that still read it; ``by`` and ``epoch``: the group whose threads
    wrote it, and when."""

    name: str
    data: Any
    dtype: str
    version: int = 0
    filling: bool = False
    by: Any = None
    epoch: int = 0
    reads: Clock = field(default_factory=dict)
    touched: Clock = field(default_factory=dict)
    open: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Barrier:
    """``phase`` counts completed phases; ``left`` arrivals and ``bytes`` are missing in the current one."""

    name: str
    count: int = 0
    left: int = 0
    bytes: int = 0
    phase: int = 0
    fenced: bool = False
    known: Clock = field(default_factory=dict)
    coming: Clock = field(default_factory=dict)

    def passed(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def arrive(self, count: int, clock: Clock) -> None:
        self.left -= count
        if self.left < 0:
            raise Hazard(f"{self.name} has more arrivals than its count of {self.count} in one phase")
        join(self.coming, clock)
        self.turn()

    def transfer(self, size: int, clock: Clock) -> None:
        self.bytes += size
        join(self.coming, clock)
        self.turn()

    def turn(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phase += 1
            self.left = self.count
            join(self.known, self.coming)


@dataclass(eq=False)
class Work:
    """What a group has started and not waited for: ``finish`` does what is left of it; it reads ``slots``."""

    what: str
    finish: Callable[[], None]
    slots: tuple[Slot, ...]
    done: bool = False

    def end(self) -> None:
        if not self.done:
            self.done = True
            self.finish()


class Group:
    """A group of warps with a function of its own, in a thread that runs when it is told to."""

    def __init__(self, machine: Machine, name: str, function: Callable[[], None]) -> None:
        self.machine, self.name, self.function = machine, name, function
        self.clock: Clock = {name: 1}
        self.products: list[Work] = []
        self.stores: list[Work] = []
        self.ready: Callable[[], bool] | None = None
        self.waits = ""
        self.ended = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.machine.stopping:
                self.function()
                self.check_end()
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            self.error = error
        self.ended = True
        self.machine.back.release()

    def check_end(self) -> None:
        for what, left in (("product", self.products), ("store", self.stores)):
            if left:
                raise Hazard(f"{self.name} ends while its {what} {left[0].what} is under way")

    def tick(self) -> None:
        self.clock[self.name] += 1


class Machine:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.eager = self.random.choice((0.1, 0.5, 0.9))
        """How likely a copy ends when something else could happen."""
        self.steady = self.random.choice((0.0, 0.5, 0.9))
        """How likely a group goes on."""
        self.groups: list[Group] = []
        self.current = Group(self, "entry", lambda: None)
        self.copies: list[Callable[[], None]] = []
        self.slots: list[Slot] = []
        self.barriers: list[Barrier] = []
        self.back = threading.Semaphore(0)
        self.stopping = False

    # -- whose turn it is ---------------------------------------------------------------------------------------------------

    def pause(self, ready: Callable[[], bool] | None = None, waits: str = "") -> None:
        """Others may go on here; the group does when ``ready`` says so."""
        me = self.current
        if not self.groups:
            while ready and not ready():
                if not self.copies:
                    raise Hazard(f"{me.name} waits for {waits}, which nobody will give it")
                self.copies.pop(self.random.randrange(len(self.copies)))()
            return
        if (ready is None or ready()) and self.random.random() < self.steady:
            return
        me.ready, me.waits = ready, waits
        self.back.release()
        me.go.acquire()
        if self.stopping:
            raise _Stopped

    def run(self, functions: list[tuple[str, Callable[[], None]]]) -> None:
        """Groups side by side until all have ended."""
        self.groups = [Group(self, name, f) for name, f in functions]
        self.current.tick()
        for g in self.groups:
            join(g.clock, self.current.clock)
            g.thread.start()
        try:
            while left := [g for g in self.groups if not g.ended]:
                self._step(left)
        finally:
            self.stopping = True
            for g in self.groups:
                if not g.ended:
                    g.go.release()
                g.thread.join()

    def _step(self, left: list[Group]) -> None:
        able = [g for g in left if g.ready is None or g.ready()]
        if self.copies and (not able or self.random.random() < self.eager):
            self.copies.pop(self.random.randrange(len(self.copies)))()
            return
        if not able:
            raise Hazard("nothing goes on: " + ", ".join(f"{g.name} waits for {g.waits}" for g in left))
        self.current = self.random.choice(able)
        self.current.go.release()
        self.back.acquire()
        if self.current.error:
            raise self.current.error

    def end(self) -> None:
        """The block has ended."""
        if not self.groups:
            self.current.check_end()
        if self.copies:
            raise Hazard("the block ends while copies into its shared memory are under way")
        for b in self.barriers:
            if b.left != b.count or b.bytes:
                raise Hazard(f"{b.name} is left in the middle of a phase: {b.left} of {b.count} arrivals are missing")

    # -- shared memory --------------------------------------------------------------------------------------------------------

    def check_read(self, slot: Slot, by_engine: bool) -> None:
        """The current group may read a slot; ``by_engine``: a product or the copy engine reads it for the group."""
        me = self.current
        if slot.filling:
            raise Hazard(f"{me.name} reads {slot.name} while a copy fills it")
        if slot.by is not None:
            if me.clock.get(slot.by, 0) < slot.epoch:
                raise Hazard(f"{me.name} reads {slot.name}, and does not know that {slot.by} has written it")
            if by_engine and me.clock.get(fence_of(slot.by), 0) < slot.epoch:
                raise Hazard(f"{slot.name} was written by threads, and no fence stands before it is read for {me.name}")
        elif slot.version == 0:
            raise Hazard(f"{me.name} reads {slot.name}, which nothing has filled")
        elif me.clock.get(slot, 0) < slot.version:
            raise Hazard(f"{me.name} reads {slot.name} without having waited until it was filled")

    def check_write(self, slot: Slot, by_engine: bool) -> None:
        """The current group may have a slot overwritten."""
        me = self.current
        if slot.filling:
            raise Hazard(f"{me.name} overwrites {slot.name} while a copy fills it")
        if slot.open:
            raise Hazard(f"{me.name} overwrites {slot.name} while {slot.open[0]} still reads it")
        for reader, epoch in slot.reads.items():
            if me.clock.get(reader, 0) < epoch:
                raise Hazard(f"{me.name} overwrites {slot.name}, and does not know that {reader} has read it")
        if slot.by is not None and me.clock.get(slot.by, 0) < slot.epoch:
            raise Hazard(f"{me.name} overwrites {slot.name}, and does not know that {slot.by} has written it")
        if slot.by is not None and not slot.reads:
            raise Hazard(f"{me.name} overwrites {slot.name}, which {slot.by} has written, before anybody has read it")
        if slot.by is None and slot.version and me.clock.get(slot, 0) < slot.version and not slot.reads:
            raise Hazard(f"{me.name} overwrites {slot.name} before anybody has read it")
        for reader, epoch in slot.touched.items():
            if by_engine and me.clock.get(fence_of(reader), 0) < epoch:
                raise Hazard(f"{slot.name} was read by threads of {reader}, and no fence stands before the next copy")

    def fence(self) -> None:
        """What the threads of the group did to shared memory comes before what engines do."""
        me = self.current
        me.clock[fence_of(me.name)] = me.clock[me.name]
        me.tick()
        for b in self.barriers:
            b.fenced = True

    # -- work under way -------------------------------------------------------------------------------------------------------

    def start(self, queue: list[Work], work: Work) -> None:
        for slot in work.slots:
            self.check_read(slot, by_engine=True)
            slot.open.append(work.what)
        queue.append(work)
        if self.random.random() < 0.5:
            work.end()

    def wait(self, queue: list[Work], left: int) -> None:
        """Until no more than so many are under way; they end in order."""
        me = self.current
        me.tick()
        while len(queue) > left:
            work = queue.pop(0)
            work.end()
            for slot in work.slots:
                slot.open.remove(work.what)
                slot.reads[me.name] = me.clock[me.name]

    def copy_in(self, slot: Slot, barrier: Barrier, size: int, write: Callable[[], None]) -> None:
        """Start a copy into a slot that tells a barrier when it has ended."""
        if not barrier.fenced:
            raise Hazard(f"no fence stands between the set-up of {barrier.name} and the first copy that arrives at it")
        self.check_write(slot, by_engine=True)
        slot.filling, slot.by = True, None
        slot.version += 1
        slot.reads, slot.touched = {}, {}
        known = dict(self.current.clock) | {slot: slot.version}

        def end() -> None:
            slot.filling = False
            write()
            barrier.transfer(-size, known)

        self.copies.append(end)

    def read(self, slot: Slot) -> Any:
        """Threads of the current group read a slot."""
        self.check_read(slot, by_engine=False)
        me = self.current
        slot.reads[me.name] = slot.touched[me.name] = me.clock[me.name]
        return slot.data

    def write(self, slot: Slot, put: Callable[[], None]) -> None:
        """Threads of the current group write a slot."""
        self.check_write(slot, by_engine=False)
        me = self.current
        slot.by, slot.epoch = me.name, me.clock[me.name]
        slot.reads, slot.touched = {}, {}
        put()

    # -- barriers -------------------------------------------------------------------------------------------------------------

    def arrive(self, barrier: Barrier, count: int, size: int = 0) -> None:
        me = self.current
        if not barrier.count:
            raise Hazard(f"{barrier.name} is used before it is set up")
        barrier.bytes += size
        barrier.arrive(count, me.clock)
        me.tick()

    def wait_for(self, barrier: Barrier, parity: int) -> None:
        me = self.current
        if not barrier.count:
            raise Hazard(f"{me.name} waits for {barrier.name}, which is not set up")
        self.pause(lambda: barrier.passed(parity), f"phase {parity} of {barrier.name} (it has completed {barrier.phase})")
        join(me.clock, barrier.known)


def zeros(shape: tuple[int, ...]) -> Any:
    """What shared memory holds before it is written: nothing that a result could be."""
    return np.full(shape, np.nan, np.float32)
