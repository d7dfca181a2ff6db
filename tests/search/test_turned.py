"""Operands of products of float32 that a kernel of its own lays along their sums."""

from __future__ import annotations

import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from search.tune import tune_fast
from tests.interpreted import checked


def product(left: str, right: str, k: int = 24, dtype: str = "float32", rows: int = 136) -> TensorProgram:
    b = Builder("product", dtype)
    x = b.input("X", (k, rows) if left == "t" else (rows, k))
    w = b.input("W", (144, k) if right == "t" else (k, 144))
    return b.build(Y=(x.T if left == "t" else x) @ (w.T if right == "t" else w))


def copies(graph: KernelGraph) -> set[str]:
    return {t for b in graph.blocks for t in b.outputs if "turned" in t}


def turns(program: TensorProgram) -> list[KernelGraph]:
    return [g for g in structures(program) if copies(g)]


def attention(columns: int, width: int, dtype: str = "float32") -> TensorProgram:
    b = Builder("sdpa", dtype)
    q, k, v = (b.input(n, (2, 3, 130, s)) for n, s in (("Q", columns), ("K", columns), ("V", width)))
    return b.build(Y=b.op("attention", q, k, v, scale=0.3, causal=True))


@pytest.mark.parametrize(
    ("left", "right", "which"), [("n", "n", {"W"}), ("t", "n", {"X", "W"}), ("t", "t", {"X"}), ("n", "t", set())]
)
def test_what_lies_across_the_sum_is_turned(left: str, right: str, which: set[str]) -> None:
    found = turns(product(left, right))
    assert bool(found) == bool(which)
    assert all(copies(g) == {f"{n}_turned" for n in which} for g in found)


@pytest.mark.parametrize(
    "program",
    [product("t", "n"), product("n", "n", k=37), product("n", "t", k=37, dtype="bfloat16"), attention(16, 20)],
    ids=["both", "odd", "half", "values"],
)
def test_the_forms_compute_the_program(program: TensorProgram) -> None:
    """Rows of 37 lie in rows of 40, with zeros between them."""
    h200 = load_device("h200")
    for graph in turns(program):
        checked(program, graph, tune_fast(program, h200, graphs=(graph,)).winner.schedule)


@pytest.mark.parametrize(("right", "k", "which"), [("t", 37, {"X", "W"}), ("n", 37, {"X"}), ("n", 24, set())])
def test_rows_at_odd_addresses_are_copied_into_aligned_ones(right: str, k: int, which: set[str]) -> None:
    found = turns(product("n", right, k, "float16"))
    assert [copies(g) for g in found] == [{f"{n}_turned" for n in which}] * len(found) and bool(found) == bool(which)
    loads = [s.at for g in found for b in g.blocks for s in b.loads if s.at.source.endswith("_turned")]
    assert all(at.pitch == 40 and at.along(("k",)) for at in loads)


def test_what_few_blocks_read_half_precision_and_computed_operands_stay() -> None:
    assert not turns(product("n", "n", rows=100)) and not turns(product("n", "n", dtype="float16"))
    b = Builder("made")
    x, w = b.input("X", (200, 24)), b.input("W", (24, 144))
    assert not turns(b.build(Y=x @ b.op("exp", w)))


def test_probabilities_lie_in_memory_in_front_of_wide_results_alone() -> None:
    def kernels(program: TensorProgram) -> int:
        return max(len(g.kernels) for g in structures(program) if not copies(g) and not any(b.splits for b in g.blocks))

    assert kernels(attention(16, 256, "float16")) == 3 and kernels(attention(16, 128, "float16")) == 2
