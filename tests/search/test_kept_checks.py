"""Kernels of a choice that no block holds are checked one by one; torch computes what a wrong one would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.element_program import by_elements
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import CALLED
from fuser.ir.schedule import Schedule

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

import fuser  # noqa: E402
from fuser.lower.checker import Check  # noqa: E402
from fuser.runtime.graph_executor import Executable  # noqa: E402
from search import kept_checks  # noqa: E402

WRONG = Check(9.0, 9.0, (), "triton", "wrong")


def test_torch_computes_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("moved")
    x, w = b.input("x", (70, 40), "float32"), b.input("w", (5, 40), "float32")
    program = b.build(y=b.op("concat", x, w, axis=0).transpose(1, 0) * 0.7)
    tensors = tuple(program[n] for n in "xwy")
    candidate = Candidate(KernelGraph("g", ("x", "w"), by_elements(program), ("y",), tensors), Schedule(()))
    assert kept_checks.sound_calls(candidate, (), 0)() == (candidate, 0)
    monkeypatch.setattr(kept_checks, "kept_call", lambda graph, seed: lambda: WRONG)
    other, wrong = kept_checks.sound_calls(candidate, (), 0)()
    assert wrong == 1
    run = Executable(other.graph, other.schedule, device="cpu")
    assert run.plan.sources == (None,)
    xs = torch.randn(70, 40), torch.randn(5, 40)
    torch.testing.assert_close(run(*xs), torch.cat(xs).T * 0.7)


class Turned(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return torch.cat([x.roll(3, 1), y.flip(0)], 1) * 2, torch.matmul(x, y.t())


def test_a_model_says_what_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel of elements of a model is asked for once, and what is wrong counts."""
    asked: list[KernelGraph] = []

    def wrong(graph: KernelGraph, seed: int) -> Callable[[], Check]:
        asked.append(graph)
        return lambda: WRONG

    monkeypatch.setattr(kept_checks, "kept_call", wrong)
    xs = torch.randn(64, 64), torch.randn(64, 64)
    made = fuser.compile(Turned(), xs, target="h200")
    assert len(asked) == 1
    assert made.realised.rejected["wrong result"] == 1
    graph = made.realised.candidate.graph
    assert [k.op for k in graph.kernels if isinstance(k, LibraryKernel) and CALLED in dict(k.attrs)] == ["elements"]
