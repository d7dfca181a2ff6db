"""The process that checks kernels: one for many checks, another where it has ended."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fuser.device import load_device
from fuser.ir.added import packed
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.program import TensorProgram
from fuser.lower.check import check
from fuser.lower.checker import CHECKERS
from fuser.lower.checker import CheckerEnded
from fuser.lower.checker import Checkers
from fuser.workloads import workload
from search.taken import is_model
from search.tune import tune_fast
from tests.interpreted import checked


def _asked() -> tuple[TensorProgram, Candidate]:
    program = workload("mcfuser/G1", M=32, N=32, K=16, H=16)
    return program, Candidate(fuse(program), tune_fast(program, load_device("h200"), graphs=[fuse(program)]).winner.schedule)


def _line(**more: Any) -> str:
    program, candidate = _asked()
    asked = {"program": program.to_json(), "graph": candidate.graph.to_json(), "schedule": candidate.schedule.to_json()}
    return json.dumps({**asked, "seed": 0, "entries": base64.b64encode(packed()).decode(), **more})


def test_one_process_checks_again_and_another_takes_its_place() -> None:
    asked = _asked()
    first = next(check([asked]))
    there = CHECKERS._there[0]
    assert first.passed
    assert next(check([asked])) == first
    assert CHECKERS._there[0] is there
    os.kill(there.process.pid, signal.SIGKILL)
    there.process.wait()
    assert next(check([asked])) == first


def test_one_that_ends_as_it_is_asked_is_asked_anew() -> None:
    """As one does that idled long enough: it is still there, and reads no more."""
    asked = _asked()
    assert next(check([asked])).passed
    there = CHECKERS._there[0]
    os.kill(there.process.pid, signal.SIGSTOP)  # it takes the job without reading it
    end = threading.Timer(1.0, os.kill, (there.process.pid, signal.SIGKILL))
    end.start()
    assert next(check([asked])).passed
    assert there not in CHECKERS._there
    end.join()


def test_no_answer_in_time_ends_the_process() -> None:
    checkers = Checkers(1)
    with pytest.raises(CheckerEnded, match="no answer within 0 s"):
        checkers.ask(_line(), 0.0)
    assert not checkers._there
    with pytest.raises(CheckerEnded, match="KeyError"):
        checkers.ask("{}", 60.0)
    checkers.close()


def test_one_that_cannot_start_is_tried_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkers = Checkers(2)
    monkeypatch.setattr("fuser.lower.checker.sys.executable", "/bin/false")
    several = [checkers.put(_line(seed=i), 60.0) for i in range(3)]
    for question in several:
        with pytest.raises(CheckerEnded, match="no output"):
            checkers.answer(question)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr("fuser.lower.checker.sys.executable", str(silent))
    monkeypatch.setattr("fuser.lower.checker.STARTING", 0.1)
    with pytest.raises(CheckerEnded, match="no answer"):
        checkers.ask(_line(), 60.0)
    checkers.close()


def test_several_answer_at_a_time_each_its_own() -> None:
    checkers = Checkers(2)
    questions = [checkers.put(_line(seed=i), 60.0) for i in range(6)]
    assert len(checkers._there) == 2
    assert checkers.put(_line(seed=3), 60.0) is questions[3], "it is being answered"
    later = [json.loads(checkers.answer(q)) for q in reversed(questions)]
    alone = [json.loads(checkers.ask(_line(seed=i), 60.0)) for i in reversed(range(6))]
    assert later == alone
    assert len({a["error"] for a in alone}) == 6
    checkers.close()


def test_each_thread_gets_its_answers() -> None:
    checkers = Checkers(2)
    found: dict[int, list[str]] = {}

    def ask(first: int) -> None:
        questions = [checkers.put(_line(seed=first + i), 60.0) for i in range(3)]
        found[first] = [checkers.answer(q) for q in questions]

    threads = [threading.Thread(target=ask, args=(i,)) for i in (0, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [found[0], found[3]] == [[checkers.ask(_line(seed=i + first), 60.0) for i in range(3)] for first in (0, 3)]
    checkers.close()


def test_what_is_interrupted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    checkers = Checkers(1)
    wanted = checkers.ask(_line(), 60.0)
    first, second = (checkers.put(_line(seed=i), 60.0) for i in (1, 2))
    listen = checkers._listen

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkers, "_listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkers.answer(first)
    monkeypatch.setattr(checkers, "_listen", listen)
    assert not checkers._there
    assert not checkers._waiting
    assert checkers.ask(_line(), 60.0) == wanted
    assert not second.over
    assert json.loads(checkers.answer(second))["error"] < 1e-2, "who asks after all is told"
    checkers.close()


def test_a_forked_process_has_its_own() -> None:
    checkers = Checkers(1)
    os.register_at_fork(after_in_child=checkers.forked)
    wanted = checkers.ask(_line(), 60.0)
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            code = int(checkers.ask(_line(), 60.0) != wanted)
            checkers.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not checkers._there[0].ended
    checkers.close()


def test_weights_that_make_a_softmax_a_choice_are_drawn_smaller() -> None:
    """What is rounded between two kernels decides otherwise there, in each of them."""
    b = Builder("packed")
    y = b.input("X", (96, 512)) @ b.input("W", (512, 48))
    q, k, v = (b.op("slice", y, axis=1, start=16 * i, stop=16 * i + 16) for i in range(3))
    program = b.build(Z=b.softmax(q @ k.T) @ v)
    winner = tune_fast(program, load_device("h200")).winner.candidate
    assert checked(program, winner.graph, winner.schedule).passed


def test_an_attention_between_two_linear_layers_is_a_model() -> None:
    b = Builder("layer")
    x, w, v = (b.input(n, (64, 64)) for n in "XWV")
    y = b.op("attention", *[(x @ w).reshape(1, 64, 64)] * 3)
    assert not is_model(b.build(Z=y))
    assert is_model(b.build(Z=y.reshape(64, 64) @ v))
