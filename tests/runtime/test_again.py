"""Which calls become CUDA graphs, and which do not; what is captured is a stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.ir.schedule import Schedule
from fuser.runtime import again
from fuser.runtime.again import AFTER
from fuser.runtime.again import ALL
from fuser.runtime.again import MOST
from fuser.runtime.again import Again
from fuser.runtime.again import Graph
from fuser.runtime.again import worth_it
from fuser.runtime.plan import plan


class Capturing:
    def __init__(self) -> None:
        self.captured: list[tuple[Any, ...]] = []

    def __call__(self, tensors: tuple[Any, ...]) -> Graph:
        self.captured.append(tensors)
        return Graph(lambda: None, dict)


def test_addresses_that_come_again_are_captured_once() -> None:
    capture = Capturing()
    mine = Again(capture)
    found = [mine.graph((1, 2), ("x", "y")) for _ in range(AFTER + 2)]
    assert found[: AFTER - 1] == [None] * (AFTER - 1)
    assert found[AFTER - 1] is not None and set(found[AFTER - 1 :]) == {found[AFTER - 1]}
    assert capture.captured == [("x", "y")]
    assert mine.graph((1, 3), ("x", "z")) is None, "it stands for these addresses alone"


def test_two_sets_in_turn_have_a_graph_each() -> None:
    """As results have whose predecessor is freed behind the next call."""
    mine = Again(Capturing())
    found = [mine.graph((i % 2,), (i % 2,)) for i in range(2 * AFTER + 2)]
    assert found[-1] is not None and found[-2] is not None and found[-1] is not found[-2]


def test_what_cannot_be_captured_is_not_tried_again() -> None:
    tried: list[Any] = []

    def fails(tensors: tuple[Any, ...]) -> Graph:
        tried.append(tensors)
        raise RuntimeError("operation not permitted when stream is capturing")

    mine = Again(fails)
    assert all(mine.graph((i,), (i,)) is None for i in (0, 1) for _ in range(3 * AFTER))
    assert len(tried) == 1


def test_long_kernels_hide_what_the_host_does() -> None:
    def of(size: int, count: int) -> KernelGraph:
        kernels = tuple(LibraryKernel(f"k{i}", "tanh", (f"T{i}",), f"T{i + 1}") for i in range(count))
        ends = (Tensor("T0", (size,), "float16"), Tensor(f"T{count}", (size,), "float16"))
        return KernelGraph("chain", ("T0",), kernels, (f"T{count}",), ends).validate()

    plans = [plan(Candidate(of(size, count), Schedule(()))) for size, count in ((64, 3), (64, 4), (1 << 25, 4))]
    assert [worth_it(p) for p in plans] == [False, True, False]


def test_addresses_that_never_settle_cost_a_bounded_number_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "COUNTED", 4)
    capture = Capturing()
    mine = Again(capture)
    for i in range(1000):
        assert mine.graph((i,), (i,)) is None
    assert len(mine._times) == 4
    for i in range(2 * ALL):
        for _ in range(AFTER):
            mine.graph((i,), (i,))
    assert len(capture.captured) == ALL
    assert len(mine._graphs) == MOST
