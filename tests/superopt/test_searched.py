"""Structures of the superoptimizer, lowered: every one of them becomes Triton and agrees with float64 in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.lower.check import check
from fuser.superopt.structures import searched
from search.tune import rank_graph

DEVICE = load_device("h200")


def rms_norm() -> TensorProgram:
    b = Builder("rms")
    return b.build(Y=b.rms_norm(b.input("X", (16, 64)), b.input("G", (64,))) @ b.input("W", (64, 48)))


def lora() -> TensorProgram:
    b = Builder("lora")
    x = b.input("X", (16, 64))
    return b.build(Y=x @ b.input("W", (64, 32)) + (x @ b.input("A", (64, 16))) @ b.input("B", (16, 32)))


def gated_mlp() -> TensorProgram:
    b = Builder("gated")
    x = b.input("X", (16, 64))
    return b.build(Y=b.silu(x @ b.input("W1", (64, 32))) * (x @ b.input("W2", (64, 32))))


def attention() -> TensorProgram:
    b = Builder("attention")
    return b.build(O=b.attention(b.input("Q", (2, 16, 16)), b.input("K", (2, 96, 16)), b.input("V", (2, 96, 32))))


def chain() -> TensorProgram:
    b = Builder("chain")
    return b.build(E=(b.input("A", (32, 16)) @ b.input("B", (16, 48))) @ b.input("D", (48, 16)))


@pytest.mark.parametrize("make", [rms_norm, lora, gated_mlp, attention, chain])
def test_structures_lower_and_agree(make):
    pytest.importorskip("torch")
    program = make()
    jobs = []
    for graph in searched(program, 5.0)[:16]:
        try:
            ranked, _, _ = rank_graph(graph, DEVICE, np.random.default_rng(0))
        except (NoValidKernelError, UnsupportedError):
            continue  # no schedule fits: nothing to lower
        jobs.append((program, ranked[0].candidate))
    assert len(jobs) >= 4
    outcomes = list(check(jobs))
    wrong = [
        (str(c.graph), str(c.schedule), o.error, o.message) for (_, c), o in zip(jobs, outcomes, strict=True) if not o.passed
    ]
    assert not wrong
