"""The process that checks kernels: one for many checks, another where it has ended."""

from __future__ import annotations

import os
import signal
import threading

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.lower.check import check
from fuser.lower.checker import CHECKER
from fuser.lower.checker import Checker
from fuser.lower.checker import CheckerEnded
from fuser.workloads import workload
from search.taken import is_model
from search.tune import tune_fast
from tests.interpreted import checked


def test_one_process_checks_again_and_another_takes_its_place() -> None:
    program = workload("mcfuser/G1", M=32, N=32, K=16, H=16)
    candidate = Candidate(fuse(program), tune_fast(program, load_device("h200"), graphs=[fuse(program)]).winner.schedule)
    first = next(check([(program, candidate)]))
    process = CHECKER._process
    assert first.passed
    assert process is not None
    assert next(check([(program, candidate)])) == first
    assert CHECKER._process is process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert next(check([(program, candidate)])) == first


def test_one_that_ends_as_it_is_asked_is_asked_anew() -> None:
    """As one does that idled long enough: it is still there, and reads no more."""
    program = workload("mcfuser/G1", M=32, N=32, K=16, H=16)
    candidate = Candidate(fuse(program), tune_fast(program, load_device("h200"), graphs=[fuse(program)]).winner.schedule)
    assert next(check([(program, candidate)])).passed
    process = CHECKER._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # it takes the job without reading it
    end = threading.Timer(1.0, os.kill, (process.pid, signal.SIGKILL))
    end.start()
    assert next(check([(program, candidate)])).passed
    assert CHECKER._process is not process
    end.join()


def test_no_answer_in_time_ends_the_process() -> None:
    checker = Checker()
    with pytest.raises(CheckerEnded, match="no answer within 0 s"):
        checker.ask("{}", 0.0)
    assert checker._process is None
    with pytest.raises(CheckerEnded, match="KeyError"):
        checker.ask("{}", 60.0)
    checker.close()


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
