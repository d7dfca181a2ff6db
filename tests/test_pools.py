"""A child that dies costs the job that it died of."""

from __future__ import annotations

import os
import signal
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

import fuser.pools
from fuser.errors import DiedError
from fuser.pools import APART
from fuser.pools import FORK
from fuser.pools import SPAWN
from fuser.pools import Children
from fuser.pools import alone

ROOT = Path(fuser.pools.__file__).parents[1]
DEADLY, KILLED = 3, 5


def work(x: int) -> int:
    if x == DEADLY:
        os._exit(7)
    if x == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if x == 9:
        raise ValueError(x)
    return x * x


def test_there_is_no_other_pool() -> None:
    packages = ("fuser", "cost_model", "search", "tvm_bridge")
    files = {f.relative_to(ROOT).as_posix() for p in packages for f in (ROOT / p).rglob("*.py")}
    assert {f for f in files if "ProcessPoolExecutor(" in (ROOT / f).read_text()} == {"fuser/pools.py"}


@pytest.mark.parametrize("context", [SPAWN, APART, FORK])
def test_what_a_child_dies_of_is_found_and_all_else_is_done(context: BaseContext) -> None:
    with Children(2, context) as children:
        jobs = [children.submit(work, x) for x in range(10)]
        found = [j.result() if x not in (DEADLY, KILLED, 9) else None for x, j in enumerate(jobs)]
        assert found == [x * x if x not in (DEADLY, KILLED, 9) else None for x in range(10)]
        with pytest.raises(DiedError, match="died of work: exit code 7") as death:
            jobs[DEADLY].result()
        assert not death.value.outside
        with pytest.raises(DiedError, match="SIGKILL") as death:
            jobs[KILLED].result()
        assert death.value.outside
        with pytest.raises(ValueError, match="9"):
            jobs[9].result()
        assert list(children.map(work, [1, 2])) == [1, 4]


def test_work_that_is_done_in_a_process_of_its_own() -> None:
    assert alone(work, 4) == 16
    with pytest.raises(DiedError, match="exit code 7"):
        alone(work, DEADLY)


def test_work_that_takes_too_long_by_itself_is_killed() -> None:
    with Children(1, FORK, seconds=0.5) as children:
        jobs = [children.submit(work, DEADLY), children.submit(signal.pause)]
        children.count = 2  # both are done again by themselves
        with pytest.raises(DiedError, match="died of pause: SIGKILL"):
            jobs[1].result()
