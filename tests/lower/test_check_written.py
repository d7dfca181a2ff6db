"""Kernels that no block holds are checked as well, a few of their blocks of threads, at their own size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fuser.ir.builder import Builder
from fuser.ir.element_program import by_elements
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.kernel_source import KernelSource

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from fuser.lower import check_written as checking  # noqa: E402
from fuser.lower.check_written import check_written  # noqa: E402


def moved(rows: int = 70) -> TensorProgram:
    """Rows that are joined, turned and scaled."""
    b = Builder("moved")
    x, i, w = b.input("x", (rows, 40), "float32"), b.input("i", (5,), "int64"), b.input("w", (9, 40), "float16")
    read = b.op("cast", b.op("index_select", w, i, dim=0), dtype="float32")
    return b.build(y=b.op("concat", x, read, axis=0).transpose(1, 0) * 0.7)


def whole() -> TensorProgram:
    b = Builder("whole")
    x, y = b.input("x", (33, 17), "int32"), b.input("y", (17,), "int8")
    return b.build(z=b.op("cast", x * 3 + b.op("cast", y, dtype="int32"), dtype="int8"))


def summed() -> TensorProgram:
    b = Builder("summed")
    return b.build(y=b.op("cumsum", b.op("relu", b.input("x", (300, 9), "float32")), dim=0))


def placed() -> TensorProgram:
    b = Builder("placed")
    return b.build(y=b.op("argmax", b.input("x", (7, 33), "float16"), dim=1, dtype="int64"))


PROGRAMS = {f.__name__: f for f in (moved, whole, summed, placed)}


def graph_of(program: TensorProgram) -> KernelGraph:
    tensors = tuple(program[n] for n in (*program.inputs, *program.outputs))
    return KernelGraph("g", program.inputs, by_elements(program), program.outputs, tensors).validate()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_right_passes(name: str) -> None:
    found = check_written(graph_of(PROGRAMS[name]()), 0)
    assert found.passed and found.method == "triton", found
    assert found.max_error < 1e-5


def with_text(old: str, new: str) -> Callable[[KernelSource], KernelSource]:
    def change(source: KernelSource) -> KernelSource:
        assert old in source.text
        return replace(source, text=source.text.replace(old, new))

    return change


WRONG: dict[str, tuple[str, Callable[[KernelSource], KernelSource], str]] = {
    "another scale": ("moved", with_text("0.7", "0.71"), "Frobenius"),
    "another place": ("moved", with_text("tl.load(x0_ptr + ", "tl.load(x0_ptr + 1 + "), "Frobenius"),
    "a block too few": ("moved", lambda s: replace(s, grid=s.grid - 1), "not written"),
    "a mask too narrow": ("whole", with_text("ok_x = i < 561", "ok_x = i < 401"), "not written"),
    "another factor": ("whole", with_text("v0 * 3", "v0 * 2"), "elements are wrong"),
    "a sum not taken": ("summed", with_text("tl.cumsum(v, 0)", "v"), "Frobenius"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, change, message = WRONG[name]
    real = checking.written

    def written(*given: Any) -> KernelSource | None:
        source = real(*given)
        return source and change(source)

    monkeypatch.setattr(checking, "written", written)
    found = check_written(graph_of(PROGRAMS[program]()), 0)
    assert not found.passed and message in found.message, found


def test_a_large_one_runs_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    real = checking._run

    def run(source: KernelSource, inputs: Any, blocks: Any) -> Any:
        ran.extend(blocks)
        assert source.grid > 100
        return real(source, inputs, blocks)

    monkeypatch.setattr(checking, "_run", run)
    assert check_written(graph_of(moved(20000)), 0).passed
    assert 3 <= len(ran) <= checking.BLOCKS
    monkeypatch.setattr(checking, "LARGEST", 1000)
    assert check_written(graph_of(moved(20000)), 0).method == "none"
