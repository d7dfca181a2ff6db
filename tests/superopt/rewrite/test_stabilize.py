"""Stable exponentials: where a shift is licensed, in one kernel and across kernels, and where it is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.generate.generator import generate
from fuser.superopt.rewrite.stabilize import licences
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.verify.degrees import measured_degrees
from tests.builders import attention


def refusal(make: str) -> str:
    b = Builder(make)
    a, v, c = b.input("A", (8, 16)), b.input("V", (16, 12)), b.input("C", (8, 16))
    e = b.exp(a)
    total = b.sum(e, -1, keepdims=True)
    outputs: dict[str, Callable[[], Ref]] = {
        "no division": lambda: e,
        "sum alone": lambda: total,
        "divided by a sum of others": lambda: (e @ v) / b.sum(b.exp(c), -1, keepdims=True),
        "one is added": lambda: (e @ v) / (total + 1.0),
        "plus a sum of others": lambda: (e @ v) / (total + b.sum(b.exp(c), -1, keepdims=True)),
        "weighted denominator": lambda: (e @ v) / b.sum(e * c, -1, keepdims=True),
        "row by row, then over all rows": lambda: e / b.sum(total, 0, 1),
        "squared once": lambda: (e @ v) / (total * total),
        "a function of the sum": lambda: (e @ v) / b.op("sqrt", total),
    }
    graph = fuse(b.build(Y=outputs[make]()))
    found = licences(graph)[0]
    (stable,) = stabilize_graph(graph).blocks
    assert stable.by_value[found.exponential] == graph.blocks[0].by_value[found.exponential] or found.granted
    return found.refused


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("no division", "output Y has degree 1"),
        ("sum alone", "output Y has degree 1"),
        ("divided by a sum of others", "has degree 1"),
        ("one is added", "has operands of degrees"),
        ("weighted denominator", "need not hold the maximal term"),
        ("row by row, then over all rows", "the maximum is over"),
        ("squared once", "need not hold the maximal term"),
        ("a function of the sum", "has operands of degrees"),
    ],
)
def test_refused(make: str, why: str) -> None:
    assert why in refusal(make)


def test_terms_of_one_denominator_are_safe_under_one_maximum() -> None:
    b = Builder("terms")
    a, v, c = b.input("A", (8, 16)), b.input("V", (16, 12)), b.input("C", (8, 5))
    e, f = b.exp(a), b.exp(c)
    bare = fuse(b.build(Y=(e @ v) / (b.sum(e, -1, keepdims=True) + b.sum(f, -1, keepdims=True))))
    assert not any(found.granted for found in licences(bare))
    graph = stabilize_graph(bare)
    assert not unstable(graph)
    rng = np.random.default_rng(0)
    for large in ("A", "C"):
        x = {n: rng.standard_normal(s) * (400 if n == large else 1) for n, s in (("A", (8, 16)), ("V", (16, 12)), ("C", (8, 5)))}
        top = np.maximum(x["A"].max(1), x["C"].max(1))[:, None]
        parts = np.exp(x["A"] - top), np.exp(x["C"] - top)
        wanted = parts[0] @ x["V"] / (parts[0].sum(1) + parts[1].sum(1))[:, None]
        np.testing.assert_allclose(interpret(graph, Schedule((KernelSchedule(),)), x)["Y"], wanted, rtol=1e-9)


def test_a_sum_over_the_whole_matrix_takes_the_maximum_of_the_whole_matrix() -> None:
    b = Builder("whole")
    e = b.exp(b.input("A", (8, 16)))
    graph = fuse(b.build(Y=e / b.sum(e, 0, 1)))
    (found,) = licences(graph)
    assert found.granted
    assert set(found.axes) == set(graph.blocks[0].by_value[found.exponential].axes)
    x = np.random.default_rng(0).standard_normal((8, 16)) * 300
    got = interpret(stabilize_graph(graph), Schedule((KernelSchedule(),)), {"A": x})["Y"]
    shifted = np.exp(x - x.max())
    np.testing.assert_allclose(got, shifted / shifted.sum(), atol=1e-12)


def test_inferred_degrees_are_the_measured_ones() -> None:
    """T(λe) = λᵈ T(e) for every value of every structure of attention, λ independent for each row and each part of a split."""
    for candidate in generate(attention(6, 21, 5, 7)):
        if len(candidate.graph.blocks) < len(candidate.graph.kernels):
            continue  # libraries have no values to measure
        for licence in licences(candidate.graph):
            kernel = candidate.graph.kernels[licence.kernel]
            assert licence.granted
            assert isinstance(kernel, BlockGraph)
            # of a split, degrees hold part by part up to where the parts are added
            measured = measured_degrees(
                candidate.graph,
                kernel.name,
                licence.exponential,
                np.random.default_rng(0),
                licence.axes,
                per_part=bool(kernel.splits),
            )
            parts = {g for _, g in kernel.splits}
            for value, degree in licence.degrees:
                if parts and not parts & set(kernel.by_value[value].axes):
                    continue  # its elements lie in several parts
                assert measured.values[kernel.name, value] == degree, f"{value} in\n{candidate.graph}"
            whole = measured_degrees(candidate.graph, kernel.name, licence.exponential, np.random.default_rng(1), licence.axes)
            assert whole.invariant


def schedule(graph: KernelGraph, tile: int = 4) -> Schedule:
    found = []
    for b in graph.blocks:
        counted = {g for _, g in b.splits}
        loops = tuple(a for a in b.reduced if a not in counted)
        tiles = tuple(sorted((a.name, min(tile, a.extent)) for a in b.axes if a.extent != FREE))
        inner = tuple(a.name for a in b.axes if a.name not in b.spatial and a.name not in loops and a.name not in counted)
        free = tuple((a.name, 3) for a in b.axes if a.extent == FREE)
        found.append(KernelSchedule(tiles, TilingExpr((*loops, *inner)), free))
    return Schedule(tuple(found))


def test_every_structure_of_attention_survives_large_scores() -> None:
    program = attention(6, 21, 5, 7)
    rng = np.random.default_rng(0)
    inputs = {n: x * (40.0 if n != "V" else 1.0) for n, x in program.random_inputs(rng).items()}
    inputs = {n: np.asarray(x, np.float64) for n, x in inputs.items()}
    wanted = program.evaluate(inputs)["O"]
    splits = 0
    for candidate in generate(program):
        graph = stabilize_graph(candidate.graph)
        assert not unstable(graph)
        got = interpret(graph, schedule(graph), inputs)["O"]
        np.testing.assert_allclose(got, wanted, atol=1e-9, err_msg=str(graph))
        splits += any(candidate.splits)
    assert splits >= 4


def test_parts_carry_their_maxima() -> None:
    graph = next(c.graph for c in generate(attention(6, 21, 5, 7)) if c.splits == ("n", ""))
    stable = stabilize_graph(graph)
    first, second = stable.blocks
    assert len(first.stores) == len(graph.blocks[0].stores) + 1
    (top,) = [s for s in first.computes if s.op == "max"]
    assert "n_part" in top.axes
    assert all(s.rescale for s in first.computes if s.folds and s.value in {x.value for x in first.stores} and s.op != "max")
    # the second kernel never exponentiates but a difference to the maximum of the maxima
    (e,) = [s for s in second.computes if s.op == "exp"]
    difference = second.by_value[e.args[0]]
    assert difference.op == "sub"
    assert second.by_value[difference.args[1]].op == "max"


def test_a_refused_exponential_stays_bare_in_every_kernel() -> None:
    b = Builder("bare")
    a, v = b.input("A", (8, 16)), b.input("V", (16, 12))
    for candidate in itertools.islice(generate(b.build(Y=b.exp(a) @ v)), 5):
        graph = stabilize_graph(candidate.graph)
        assert graph == replace(candidate.graph, kernels=graph.kernels)
        assert unstable(graph)
