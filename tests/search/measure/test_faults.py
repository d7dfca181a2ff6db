"""Kernels that write nothing or one wrong element, compilers that crash, hang or are killed: each costs itself alone, and nothing
wrong passes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from fuser.runtime.plan import Plan
from search.measure import compiling
from search.measure.compiling import Built
from search.measure.compiling import CompilePool
from search.measure.compiling import build
from search.measure.planned import planned
from search.measure.session import Options
from search.measure.session import Session
from search.measure.timing import Kernels
from search.measure.timing import prepare
from search.measure.worker import Worker
from tests.search.measure.test_measure import PROGRAM
from tests.search.measure.test_measure import candidate


def plan(last: str = "{store}", mark: str = "") -> Plan:
    """The plan of a right kernel, with another last line."""
    made = planned(candidate())
    assert isinstance(made, Plan)
    source = made.sources[0]
    assert source is not None
    *lines, store = source.text.rstrip().splitlines()
    pad = store[: len(store) - len(store.lstrip())]
    text = "\n".join([*lines, pad + last.format(store=store.strip(), place=store.strip()[9 : store.strip().rindex(", ")])])
    return replace(made, sources=(replace(source, text=f"{text}\n# {mark}\n"),))


ONE = "tl.store({place}, (E + tl.where((i_m[:, None] == 5) & (i_h[None, :] == 7), 6.0, 0.0)).to(tl.float16))"


@pytest.mark.parametrize(
    ("last", "status", "says"),
    [("{store}", "ok", ""), ("pass", "nan", "NaN"), (ONE, "wrong", "1 of 512 elements are off"), ("E = 1 / 0", "invalid", "")],
)
def test_a_kernel_that_misbehaves_is_named(last: str, status: str, says: str) -> None:
    found = prepare(Session(PROGRAM, Options(rounds=0), "cpu"), Kernels(plan(last))).result
    assert (found.status, found.time_us) == (status, None)
    assert says in found.detail


def odd(source: Any, arch: int) -> None:
    if "# dies" in source.text:
        os._exit(9)
    if "# killed" in source.text:
        os.kill(os.getpid(), signal.SIGKILL)
    if "# hangs" in source.text:
        time.sleep(60)
    if "# spins" in source.text:
        sum(range(10**14))  # in C, which looks at no signal


def built(made: Plan, arch: int, seconds: int) -> Built:
    """In a process of the pool: the real one, with a compiler that does what the text says."""
    compiling.compile_kernel = odd  # type: ignore[assignment]
    return build(made, arch, seconds)


@pytest.mark.slow
def test_a_compiler_that_crashes_hangs_or_is_killed_costs_its_candidate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "build", built)
    marks = ("fine", "dies", "hangs", "killed", "spins", "fine again")
    plans = [plan(mark=m) for m in marks]
    with CompilePool(90, 2) as pool:
        pool.seconds = 1
        for p in plans:
            pool.submit(p)
        found = [pool.result(p, 60).result for p in plans]
    assert [m.status for m in found] == ["ok", *["compile"] * 4, "ok"]
    assert "crashed" in found[1].detail and found[1].lasting
    assert "after 1 s" in found[2].detail and found[2].lasting
    assert "was killed" in found[3].detail and not found[3].lasting
    assert "did not end" in found[4].detail and found[4].lasting


@pytest.mark.slow
def test_kernels_that_never_end_or_read_far_away_cost_themselves_alone() -> None:
    """Generated kernels, by the real worker: the process that they take with them is replaced."""
    endless = "while True:\n        E = E + 0.0"
    far = "tl.store(A_ptr, tl.load(A_ptr + 70368744177664))"
    with Worker("cpu", patience=6.0) as worker:
        items = [Kernels(plan(last)) for last in ("{store}", endless, far, "{store}")]
        found = worker.run(PROGRAM, items, Options(rounds=1))
    assert [m.status for m in found] == ["ok", "timeout", "crash", "ok"]
    assert [m.time_us is None for m in found] == [False, True, True, False]
    assert found[1].lasting
