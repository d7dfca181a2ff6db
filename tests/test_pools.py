"""A child that dies costs the job that it died of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
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
from fuser.pools import elsewhere

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


class Pickled:
    """Remembers which thread pickled it; may not be pickled at all."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.by = fails, list[int]()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        if self.fails:
            raise RecursionError("too deep")
        self.by.append(threading.get_ident())
        return Pickled, ()


def same(x: object) -> str:
    return type(x).__name__


def test_arguments_are_pickled_where_they_are_given_and_what_fails_there_is_the_jobs() -> None:
    """The pool's own thread would read what this one goes on to fill."""
    given, bad = Pickled(), Pickled(fails=True)
    with Children(2, FORK) as pool:
        jobs = [pool.submit(same, x) for x in (given, bad, 1)]
        assert (jobs[0].result(), jobs[2].result()) == ("Pickled", "int")
        with pytest.raises(RecursionError, match="too deep"):
            jobs[1].result()
        assert not pool.jobs
    assert given.by == [threading.get_ident()]


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


def surroundings(name: str) -> tuple[int, str | None, str]:
    return os.getpid(), os.environ.get(name), os.getcwd()


def test_a_child_that_stays_works_as_it_would_be_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, value, _ = elsewhere(surroundings, "MUFUSER_ODD")
    assert first != os.getpid() and value is None
    monkeypatch.setenv("MUFUSER_ODD", "1")
    monkeypatch.chdir(tmp_path)
    assert elsewhere(surroundings, "MUFUSER_ODD") == (first, "1", str(tmp_path))
    with pytest.raises(ValueError, match="9"):
        elsewhere(work, 9)
    with pytest.raises(DiedError, match="exit code 7"):
        elsewhere(work, DEADLY)
    after, value, _ = elsewhere(surroundings, "MUFUSER_ODD")
    assert (after != first, value) == (True, "1")


def test_an_interrupted_job_is_not_in_the_way_of_the_next() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without it
    try:
        with pytest.raises(KeyboardInterrupt):
            elsewhere(interrupts, os.getpid())
    finally:
        signal.signal(signal.SIGINT, before)
    assert elsewhere(work, 4) == 16


def interrupts(parent: int) -> None:
    time.sleep(0.5)  # a signal on the way into a wait is served when that ends
    os.kill(parent, signal.SIGINT)
    time.sleep(600)


def test_idle_children_end_with_a_process_that_is_killed() -> None:
    script = "import os; from fuser.pools import elsewhere; print(elsewhere(os.getpid), flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    child = int(killed.stdout)
    for _ in range(600):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1][:3]:
            return
        time.sleep(0.1)
    pytest.fail(f"{child} is still there")
