"""Replays of captured calls: parameters where they lie, inputs and results copied. A program that computes on the CPU stands for
one on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.errors import LeftToTorch  # noqa: E402
from search.torch_graphs import Replayed  # noqa: E402


class Program:
    """``Y = X * W``; a replay computes it on the buffers that were captured."""

    inputs, outputs = ("X", "W"), ("Y",)

    def __init__(self, refuses: bool = False) -> None:
        self.calls, self.captures, self.replays, self.refuses = 0, 0, 0, refuses

    def __call__(self, x: Any, w: Any) -> Any:
        self.calls += 1
        return x * w

    def captured(self, **buffers: Any) -> Any:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1
        program, made = self, {"Y": buffers["X"] * buffers["W"]}

        class Graph:
            inputs, outputs = buffers, made

            def replay(self) -> None:
                program.replays += 1
                torch.mul(buffers["X"], buffers["W"], out=made["Y"])

        return Graph()

    @contextmanager
    def turn(self) -> Iterator[None]:
        yield


def test_the_second_call_is_captured_and_what_was_returned_stays() -> None:
    program = Program()
    run, w = Replayed(program, [False, True]), torch.randn(4)  # type: ignore[arg-type]
    given = [torch.randn(3, 4), torch.randn(4, 3).T, torch.randn(1, 4).expand(3, 4)]
    kept = [run(x, w) for x in given]
    assert (program.calls, program.captures, program.replays) == (1, 1, 2)
    for x, y in zip(given, kept, strict=True):
        torch.testing.assert_close(y, x * w, rtol=0, atol=0)
    before = given[0].clone()
    w.mul_(2)
    torch.testing.assert_close(run(given[0], w), before * w, rtol=0, atol=0)
    torch.testing.assert_close(given[0], before, rtol=0, atol=0)
    assert program.captures == 1


def test_a_parameter_that_has_moved_is_captured_again() -> None:
    program, x = Program(), torch.randn(3, 4)
    run = Replayed(program, [False, True])  # type: ignore[arg-type]
    weights = [torch.randn(4) for _ in range(3)]
    for w in weights:
        torch.testing.assert_close(run(x, w), x * w, rtol=0, atol=0)
    assert program.captures == 2


def test_what_cannot_be_captured_runs_kernel_by_kernel() -> None:
    program, x, w = Program(refuses=True), torch.randn(3, 4), torch.randn(4)
    run = Replayed(program, [False, True])  # type: ignore[arg-type]
    run(x, w)
    with pytest.warns(LeftToTorch, match="could not be captured: operation not permitted"):
        run(x, w)
    torch.testing.assert_close(run(x, w), x * w, rtol=0, atol=0)
    assert program.calls == 3
