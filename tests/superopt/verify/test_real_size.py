"""Tests at the real size, in blocks of the outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import structures
from fuser.superopt.verify.real_size import ELEMENTS
from fuser.superopt.verify.real_size import BlockTest
from fuser.superopt.verify.real_size import block_test
from fuser.superopt.verify.reduced import reduction
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload
from tests.builders import edit
from tests.builders import postponed


def verify_blocks(
    program: TensorProgram, graph: KernelGraph, schedule: Schedule | None = None, most: int = ELEMENTS
) -> BlockTest:
    return block_test(reduction(program, graph), schedule, np.random.default_rng(0), most)


def test_real_size_by_output_blocks() -> None:
    program = workload("mirage/rmsnorm")
    graph = postponed(program)
    schedule = Schedule((KernelSchedule((("k", 256), ("m", 2), ("n", 64)), TilingExpr.parse("k")),))
    found = verify_blocks(program, graph, schedule)
    assert found.passed, found.why
    assert dict(found.real)["k"] == 4096
    assert dict(found.cut) == {"n": 128}
    scale = next(s for s in graph.blocks[0].computes if s.op == "scale")
    assert not verify_blocks(
        program, edit(graph, scale.value, attrs=(("scalar", scale.attr["scalar"].inverse()),)), schedule
    ).passed
    bounded = verify_blocks(program, graph, schedule, most=1 << 12)
    assert bounded.passed
    assert dict(bounded.cut)["k"] == 5 * 256


def test_a_verdict_says_whether_the_real_size_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    program = workload("mirage/rmsnorm")
    graph = postponed(program)
    assert "real size" not in str(verify(program, graph))
    verdict = verify(program, graph, real_size=True)
    assert isinstance(verdict, Accepted)
    assert verdict.real_size
    assert dict(verdict.cut) == {"n": 16}
    assert str(verdict).endswith("tested at the real size too (but n=16)")
    scale = next(s for s in graph.blocks[0].computes if s.op == "scale")
    wrong = edit(graph, scale.value, attrs=(("scalar", scale.attr["scalar"].inverse()),))
    passed = replace(verdict, real_size=False, cut=())
    monkeypatch.setattr("fuser.superopt.verify.verifier._verify", lambda *_: passed)
    refused = verify(program, wrong, float_rounds=0, real_size=True)
    assert isinstance(refused, Rejected)
    assert refused.why.startswith("at the real size output")


@pytest.mark.parametrize("name", ["mcfuser/G4", "mirage/gqa-spec", "graphene/layernorm"])
def test_structures_hold_at_their_real_size(name: str) -> None:
    program = workload(name)
    for graph in structures(program):
        found = verify_blocks(program, graph, most=1 << 16)
        assert found.passed, f"{found.why}\n{graph}"
