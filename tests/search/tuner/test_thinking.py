"""Searches that are thought of in several processes, each of which has its own in its memory."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from fuser.pools import FORK
from fuser.pools import SPAWN
from fuser.pools import Children
from search.measure.measurement import Turn
from search.tuner import thinking
from search.tuner.campaign import Campaign
from search.tuner.hunt import Hunt
from search.tuner.judges import OPTIONS
from search.tuner.simulated import Simulated
from search.tuner.spread import Asked
from search.tuner.spread import Spread
from search.tuner.spread import Workers
from search.tuner.thinking import Elsewhere
from search.tuner.thinking import thinkers
from tests.builders import chain
from tests.search.tuner.cases import H200
from tests.search.tuner.cases import PROGRAM
from tests.search.tuner.cases import hunt
from tests.search.tuner.test_spread import Here

PROGRAMS = (PROGRAM, chain(512, 128, 64, 64))


def searches() -> list[Hunt]:
    return [hunt(p, seed=i, generations=3, patience=9) for i, p in enumerate(PROGRAMS)]


def found(hunts: Sequence[Hunt]) -> list[Any]:
    """All that a search has come to: its pool in order, what was measured in order, what comes next."""
    return [
        (
            [(s, str(schedule)) for s, schedule in h.pool.entries],
            [(str(e.candidate.schedule), s) for e, s in h.times.items()],
            [e.features for e in h.times],
            h.history,
            h.failures,
            h.asked,
            h.rng.bit_generator.state,
            [str(e.candidate.schedule) for e in h.ask()],
        )
        for h in hunts
    ]


def judge(spread: type[Spread] = Spread) -> Spread:
    return spread(Workers(Here(), 1), H200, None, OPTIONS, simulated=3)


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    """What the searches come to in this process."""
    hunts = searches()
    Campaign(hunts, judge(), processes=1).run()
    return found(hunts)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have nothing to load."""
    monkeypatch.setattr(thinking, "Children", lambda count: Children(count, FORK))


def test_a_search_ends_the_same_wherever_it_is_thought_of(alone: list[Any]) -> None:
    hunts = searches()
    campaign = Campaign(hunts, judge(), processes=2)
    campaign.run()
    assert campaign.why == "converged"
    assert found(hunts) == alone


@pytest.mark.usefixtures("forked")
def test_what_a_dead_process_thought_of_goes_on_in_another(alone: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    class Kills(Spread):
        told = 0

        def begin(self, turn: Turn[Any], searches: int = 1) -> Asked:
            self.told += 1
            if self.told == 4:
                assert isinstance(campaign._thinker, Elsewhere)
                for child in campaign._thinker._children:
                    assert child._pool is not None
                    for process in child._pool._processes.values():
                        process.kill()
            return super().begin(turn, searches)

    hunts = searches()
    campaign = Campaign(hunts, judge(Kills), processes=2)
    campaign.run()
    assert found(hunts) == alone
    assert not capfd.readouterr().err


def dies(number: int, given: Any, spare: int) -> Any:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return THINK(number, given, spare)


THINK = thinking._think


@pytest.mark.usefixtures("forked")
def test_a_search_of_which_processes_die_ends_with_its_best_so_far(
    alone: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thinking, "_think", dies)
    hunts = searches()
    campaign = Campaign(hunts, judge(), processes=2)
    campaign.run()
    others = found(hunts)
    assert others[0] == alone[0]
    assert hunts[1].why == "died"
    assert hunts[1].best is not None
    assert len(hunts[1].history) == 1
    assert "SIGKILL; its search ends with the best so far" in capfd.readouterr().err


@pytest.mark.usefixtures("forked")
def test_ctrl_c_keeps_what_was_told_and_ends_the_processes() -> None:
    class Stopped(Spread):
        told = 0

        def begin(self, turn: Turn[Any], searches: int = 1) -> Asked:
            self.told += 1
            if self.told == 5:
                raise KeyboardInterrupt
            return super().begin(turn, searches)

    hunts = searches()
    campaign = Campaign(hunts, judge(Stopped), processes=2)
    campaign.run()
    assert campaign.why == "interrupted"
    assert all(h.best for h in hunts)
    assert sum(len(h.history) for h in hunts) in range(2, 5)
    assert isinstance(campaign._thinker, Elsewhere)
    assert not any(c.open for c in campaign._thinker._children)


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_what_travels_arrives(context: Any) -> None:
    here, there = hunt(), hunt()
    generation = here.ask()
    measured = Simulated(H200, 3).compare(Turn(PROGRAM, tuple(e.candidate for e in generation), ()))[0]
    told = tuple(enumerate(measured))
    first = there.ask()
    here.tell(list(zip(generation, measured, strict=True)))
    with Children(1, context) as child:
        places = thinking.Places()
        places.grow(there)
        named = tuple((places.of[e], m) for e, (_, m) in zip(first, told, strict=True))
        assert child.submit(thinking._think, 7, thinking._Heard(1, named, ()), 0).result() is None, "it has no such search"
        there.tell(list(zip(first, measured, strict=True)))
        answer = child.submit(thinking._think, 7, pickle.dumps(there), 2).result()
    assert answer is not None
    expected = thinking.thought(here, 2)
    mine = thinking.Places()
    mine.grow(here)
    assert answer.entries == tuple(mine.of[e] for e in expected.entries)
    assert answer.more == tuple(mine.of[e] for e in expected.more)
    assert answer.gain == expected.gain
    assert answer.drawn == here.rng.bit_generator.state


def test_few_searches_or_cores_think_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "cores", lambda: 8)
    assert [thinkers(*x) for x in ((1, 4), (16, 1), (3, 4), (16, 4), (16, 16))] == [1, 1, 3, 4, 7]
    monkeypatch.setattr(thinking, "cores", lambda: 2)
    assert thinkers(16, 16) == 1
