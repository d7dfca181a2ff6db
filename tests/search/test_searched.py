"""Structures of the superoptimizer, lowered: every one of them becomes Triton and agrees with float64 in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.superopt.structures import searched
from search.tune import rank_graph
from tests.builders import attention
from tests.builders import chain
from tests.builders import gated_mlp
from tests.builders import lora
from tests.builders import rms_gemm
from tests.interpreted import checked

DEVICE = load_device("h200")


@pytest.mark.parametrize(
    "program",
    [pytest.param(rms_gemm(), marks=pytest.mark.slow), lora(), gated_mlp(), attention(16, 96, 16, 32), chain(32, 48, 16, 16)],
    ids=lambda p: p.name,
)
def test_structures_lower_and_agree(program):
    pytest.importorskip("torch")
    jobs = []
    for graph in searched(program, 5.0)[:16]:
        try:
            ranked, _, _ = rank_graph(graph, DEVICE, np.random.default_rng(0))
        except (NoValidKernelError, UnsupportedError):
            continue  # no schedule fits: nothing to lower
        jobs.append((program, graph, ranked[0].candidate.schedule))
    assert len(jobs) >= 4
    outcomes = [checked(*job) for job in jobs]
    wrong = [(str(g), str(s), o.error, o.message) for (_, g, s), o in zip(jobs, outcomes, strict=True) if not o.passed]
    assert not wrong
