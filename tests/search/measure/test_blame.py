"""Who is to blame when the measuring process hangs, dies or finds its inputs changed: the one that did it, alone, and never the
machine's own doing. The worker and its protocol are the real ones; the peers are made up."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fuser.errors import EnvironmentError_
from fuser.ir.program import TensorProgram
from fuser.runtime.plan import plan
from search.measure import worker as workers
from search.measure.compiling import CompilePool
from search.measure.measurement import Measurement
from search.measure.measurement import of_the_machine
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.session import Options
from search.measure.timing import External
from search.measure.timing import Kernels
from search.measure.worker import Worker
from tests.search.measure.test_measure import PROGRAM
from tests.search.measure.test_measure import candidate

TIMED = 3
"""The call from which on a peer is timed: one is checked, one gives a first estimate."""


def peer(program: TensorProgram, name: str, device: str) -> Any:
    """``ACTION``, ``ACTION@CALL`` or ``ACTION@CALL:FILE`` (only while the file is missing)."""
    from fuser.runtime.torch_program import run_program

    action, _, rest = name.partition("@")
    when, _, flag = rest.partition(":")
    calls = 0

    def call(inputs: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        found = run_program(program, inputs)
        if action == "slow" or calls != int(when or 1) or (flag and Path(flag).exists()):
            return found
        if flag:
            Path(flag).touch()
        return act(action, inputs, found)

    return call


def act(action: str, inputs: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:  # noqa: C901, PLR0912
    match action:
        case "exit":
            os._exit(9)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            time.sleep(60)
        case "raise":
            raise KeyError("odd")
        case "leave":
            raise SystemExit(3)
        case "memory":
            raise MemoryError
        case "full":
            raise RuntimeError("the compiler failed") from OSError(errno.ENOSPC, "No space left on device")
        case "write":
            inputs["A"].mul_(2)
        case "sort":
            inputs["B"].copy_(inputs["B"].sort(-1).values)
        case "nan":
            return {n: x * math.nan for n, x in found.items()}
        case "strange":
            return {"Z": None}
        case "fork":  # somebody keeps the pipe open
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            os._exit(9)
        case "print":
            print("not for the document")
    return found


def peers(*names: str) -> list[External]:
    return [External("tests.search.measure.test_blame:peer", n) for n in names]


@pytest.fixture
def bench(worker: Worker) -> Iterator[Bench]:
    with Records(":memory:") as records:
        yield Bench(worker, CompilePool(0), records, Options(), "run")


def statuses(worker: Worker, *names: str) -> list[str]:
    return [m.status for m in worker.run(PROGRAM, peers(*names), Options())]


@pytest.mark.slow
def test_everyone_answers_for_itself(worker: Worker) -> None:
    found = worker.run(PROGRAM, peers("fine", f"exit@{TIMED}", "fine@7", "write", "fine@8", f"raise@{TIMED}"), Options())
    assert [m.status for m in found] == ["ok", "crash", "ok", "invalid", "ok", "invalid"]
    assert [m.time_us is None for m in found] == [False, True, False, True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("action", ["exit", "segv", "hang", "write", "stop", "leave"])
def test_what_fails_only_while_it_is_timed_costs_itself_alone(worker: Worker, action: str) -> None:
    expected = {"hang": "timeout", "stop": "timeout", "write": "invalid"}.get(action, "crash")
    first, bad, last = worker.run(PROGRAM, peers("fine", f"{action}@{TIMED}", "fine@9"), Options())
    assert (first.status, bad.status, last.status) == ("ok", expected, "ok")
    assert bad.lasting
    assert bad.time_us is None
    assert all(m.time_us for m in (first, last))


def test_what_raises_is_named_and_costs_no_process(worker: Worker) -> None:
    before = worker.restarts
    found = worker.run(PROGRAM, peers("fine", "raise", f"raise@{TIMED}", "strange", "nan", "print"), Options())
    assert [m.status for m in found] == ["ok", "invalid", "invalid", "invalid", "nan", "ok"]
    assert "odd" in found[2].detail
    assert "timed" in found[2].detail
    assert worker.restarts == before


@pytest.mark.slow
@pytest.mark.parametrize("action", ["write@1", "sort@1", "write@2"])
def test_a_peer_that_writes_its_inputs_spoils_nobody(worker: Worker, action: str) -> None:
    found = worker.run(PROGRAM, peers("fine", action, "fine@8", "fine@9"), Options())
    assert [m.status for m in found] == ["ok", "invalid", "ok", "ok"]
    assert "writes what it may only read: " + ("B" if "sort" in action else "A") == found[1].detail
    assert statuses(worker, "fine") == ["ok"], "nor later batches"


@pytest.mark.slow
def test_a_signal_from_outside_is_nobodys_fault_for_good(bench: Bench, tmp_path: Path) -> None:
    flag = tmp_path / "done"
    rows = bench.measure(PROGRAM, [candidate(), *peers(f"kill@{TIMED}:{flag}", "fine")])
    assert [r.status for r in rows] == ["ok", "ok", "ok"]
    bad, good = bench.measure(PROGRAM, peers("kill@1", "fine@7"))
    assert (bad.status, good.status) == ("crash", "ok")
    assert "SIGKILL" in bad.detail
    assert {r.structure for r in bench.records.rows(kind="peer")} == {f"kill@{TIMED}:{flag}", "fine", "fine@7"}


@pytest.mark.slow
@pytest.mark.parametrize("action", ["memory", "full"])
def test_what_the_machine_lacks_is_not_kept(bench: Bench, action: str) -> None:
    rows = bench.measure(PROGRAM, peers(action, "fine", f"{action}@{TIMED}"))
    assert [r.status for r in rows] == ["resources", "ok", "resources"]
    assert [r.structure for r in bench.records.rows()] == ["fine"]


@pytest.mark.slow
def test_an_idle_process_may_be_killed_or_stopped(worker: Worker) -> None:
    assert worker.info
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        assert worker._process is not None
        worker.patience, before = 1.0, worker.patience
        os.kill(worker._process.pid or 0, number)
        try:
            assert statuses(worker, "fine", "fine@2") == ["ok", "ok"], number
        finally:
            worker.patience = before


@pytest.mark.slow
def test_a_process_killed_again_and_again_blames_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something kills every process as soon as it has a batch."""
    send = bench.worker._start

    def start_and_kill() -> Any:
        pipe = send()
        assert bench.worker._process is not None
        os.kill(bench.worker._process.pid or 0, signal.SIGKILL)
        bench.worker._process.join()
        return pipe

    with monkeypatch.context() as patch:
        patch.setattr(bench.worker, "_start", start_and_kill)
        rows = bench.measure(PROGRAM, peers("fine", "fine@2"))
        assert [r.status for r in rows] == ["crash", "crash"]
    assert len(bench.records) == 0
    assert [r.status for r in bench.measure(PROGRAM, peers("fine", "fine@2"))] == ["ok", "ok"]


@pytest.mark.slow
def test_random_kills_condemn_nobody(bench: Bench) -> None:
    """A process that is killed at any moment: every candidate comes out right, or the machine is at fault."""
    stop = threading.Event()

    def kill() -> None:
        for i in range(4):
            stop.wait(1.5 * i)
            process = bench.worker._process
            if process is not None and process.pid and not stop.is_set():
                os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for n in range(2):
            with suppress(EnvironmentError_):
                bench.measure(PROGRAM, peers(*(f"fine@{10 * n + i + 2}" for i in range(5))))
    finally:
        stop.set()
        killer.join()
    assert {r.status for r in bench.records.rows()} <= {"ok"}


@pytest.mark.slow
def test_a_process_whose_children_live_on_is_found_dead(worker: Worker) -> None:
    worker.slow_patience, before = 30.0, worker.slow_patience
    try:
        assert statuses(worker, "fork", "fine") == ["crash", "ok"]
    finally:
        worker.slow_patience = before


def test_no_process_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "serve", dies)
    with Worker("cpu") as opened, pytest.raises(EnvironmentError_, match="status 4"):
        opened.run(PROGRAM, peers("fine"), Options())


def dies(*_: object) -> None:
    os._exit(4)


@pytest.mark.slow
def test_after_an_interrupt_answers_are_not_mixed_up(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker.info
    receive = worker._receive

    def interrupted(seconds: float) -> Any:
        if receive(seconds) == ("doing", 1):
            raise KeyboardInterrupt
        return ("doing", 0)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_receive", interrupted)
        patch.setattr(worker, "_answers", lambda: True)
        with pytest.raises(KeyboardInterrupt):
            worker.run(PROGRAM, peers("nan", "fine"), Options())
    assert statuses(worker, "fine", "nan") == ["ok", "nan"]


def test_causes_are_looked_through() -> None:
    error = ValueError("x")
    error.__cause__ = RuntimeError("collect2: No space left on device")
    assert of_the_machine(error)
    assert not of_the_machine(ValueError("shape"))
    assert Measurement("ok").lasting


def test_a_kernel_that_hangs_costs_seconds_and_no_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which kernels take a tenth of a second but for one, by a clock that only the messages move."""
    now, waited = [0.0], [0.0]
    batches: list[list[Kernels]] = []

    class Pipe:
        def send(self, batch: Any) -> None:
            batches.append(list(batch.candidates))

    def messages(batch: list[Kernels]) -> Iterator[tuple[float, Any]]:
        yield 3.0, ("doing", 0)  # inputs and what they are compared with
        for i, kernel in enumerate(batch):
            yield (math.inf if kernel is bad else slow), ("doing", i + 1 if i + 1 < len(batch) else workers.SEVERAL)
        yield 20.0, ("done", [Measurement("ok", time_us=1.0)] * len(batch))

    def receive(seconds: float) -> Any:
        if not batches[-1] or batches[-1] is not current[0]:
            current[:] = [batches[-1], messages(batches[-1])]
        after, message = next(current[1])
        now[0] += min(after, seconds)
        waited[0] += seconds if after > seconds else 0.0
        return message if after <= seconds else None

    current: list[Any] = [None, None]
    slow, bad = 0.1, Kernels(plan(candidate()))
    fine = [Kernels(plan(candidate())) for _ in range(3)]
    opened = Worker("cuda")
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(opened, "_start", Pipe)
    monkeypatch.setattr(opened, "_receive", receive)

    def close() -> None:
        opened._used = False

    monkeypatch.setattr(opened, "close", close)
    assert [m.status for m in opened.run(PROGRAM, [fine[0], bad, *fine[1:]], Options())] == ["ok", "timeout", "ok", "ok"]
    assert waited[0] <= 20
    slow = 4.0  # where all are slow, nobody hangs that takes five times as long
    assert {m.status for m in opened.run(PROGRAM, fine, Options())} == {"ok"}
    slow = 15.0
    assert {m.status for m in opened.run(PROGRAM, fine, Options())} == {"ok"}
