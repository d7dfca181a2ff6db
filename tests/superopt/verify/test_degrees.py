from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.rewrite.splits import split_block
from fuser.superopt.rewrite.stabilize import licences
from fuser.superopt.verify.degrees import Degrees
from fuser.superopt.verify.degrees import measured_degrees
from fuser.workloads import workload


def graph_of(body: Callable[[Builder, Ref, Ref, Ref], Ref]) -> KernelGraph:
    b = Builder("test")
    graph = fuse(b.build(O=body(b, b.input("A", (16, 32)), b.input("B", (16, 32)), b.input("V", (32, 8)))))
    return replace(graph, kernels=tuple(postpone_divisions(k) for k in graph.blocks))


def exponentials(graph: KernelGraph) -> list[tuple[str, str]]:
    return [(k.name, s.value) for k in graph.blocks for s in k.computes if s.op == "exp"]


def measure(graph: KernelGraph, over: tuple[str, ...] | None = None, index: int = 0, per_part: bool = False) -> Degrees:
    kernel, value = exponentials(graph)[index]
    return measured_degrees(graph, kernel, value, np.random.default_rng(0), over, per_part)


def softmax(b: Builder, a: Ref, _: Ref, v: Ref) -> Ref:
    e = b.exp(a)
    return (e @ v) / b.sum(e, 1, keepdims=True)


def test_softmax_attention_is_invariant() -> None:
    for name in ("mcfuser/S1", "mirage/gqa-spec", "mirage/qknorm"):
        graph = fuse(workload(name))
        graph = replace(graph, kernels=tuple(postpone_divisions(k) for k in graph.blocks))
        found = measure(graph)
        assert found.invariant
        assert found.over == ("n",)
        folds = [found.values[k.name, s.value] for k in graph.blocks for s in k.computes if s.folds and "n" in s.reduce]
        assert folds == [1, 1]


REFUSED = {
    "no division": lambda b, a, c, v: b.exp(a),
    "no division behind the product": lambda b, a, c, v: b.exp(a) @ v,
    "another exponential in the denominator": lambda b, a, c, v: (b.exp(a) @ v) / b.sum(b.exp(c), 1, keepdims=True),
    "one plus the sum": lambda b, a, c, v: (b.exp(a) @ v) / (b.sum(b.exp(a), 1, keepdims=True) + 1),
    "a function of the sum": lambda b, a, c, v: b.relu(b.exp(a) @ v) / b.sum(b.exp(a), 1, keepdims=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    graph = graph_of(REFUSED[name])
    for kernel, value in exponentials(graph):
        found = measured_degrees(graph, kernel, value, np.random.default_rng(0))
        assert not (found.over and found.invariant)
    assert not any(x.granted for x in licences(graph)), "the rules agree with the measurement"


def test_a_row_shift_needs_row_sums() -> None:
    def whole(b: Builder, a: Ref, _: Ref, v: Ref) -> Ref:
        e = b.exp(a)
        return (e @ v) / b.sum(e, 0, 1, keepdims=True)

    graph = graph_of(whole)
    (block,) = graph.blocks
    rows = block.by_value[exponentials(graph)[0][1]].axes
    by_row = measure(graph, over=rows[1:])
    assert not by_row.invariant, "one shift for each row, but the sum runs over all rows"
    assert measure(graph, over=rows).invariant, "one shift for the whole matrix"
    assert measure(graph_of(softmax), over=measure(graph_of(softmax)).over).invariant


def test_degrees_of_powers_and_quotients() -> None:
    def body(b: Builder, a: Ref, c: Ref, v: Ref) -> Ref:
        e = b.exp(a)
        return b.sum(c / (e * e), 1)

    found = measure(graph_of(body), over=())
    assert -2 in found.values.values()
    assert 2 in found.values.values()


def test_partial_results_of_a_split_have_degrees_for_each_part() -> None:
    def numerator(b: Builder, a: Ref, _: Ref, v: Ref) -> Ref:
        return b.exp(a) @ v

    graph = graph_of(numerator)
    (block,) = graph.blocks
    last = [s for s in block.computes if s.folds][-1]
    head, tail = split_block(block, last.reduce[0])
    split = replace(graph, kernels=(head, tail))
    shared, apart = measure(split), measure(split, per_part=True)
    assert shared.values[head.name, last.value] == 1
    assert apart.values[head.name, last.value] == 1
    assert shared.outputs == {"O": 1}
    assert apart.outputs == {"O": None}, "parts with shifts of their own must be weighted before they are added"


def test_measured_degrees_agree_with_the_rules() -> None:
    graph = graph_of(softmax)
    (licence,) = licences(graph)
    found = measure(graph, over=licence.axes)
    (block,) = graph.blocks
    rules = dict(licence.degrees)
    assert {s.value: found.values[block.name, s.value] for s in block.computes} == {
        s.value: rules.get(s.value, 0) for s in block.computes
    }


def test_unknown_names() -> None:
    graph = graph_of(softmax)
    with pytest.raises(UsageError, match="no value 'nothing'"):
        measured_degrees(graph, graph.blocks[0].name, "nothing", np.random.default_rng(0))
    with pytest.raises(UsageError, match="no axes"):
        measure(graph, over=("zz",))


def test_degrees_are_measured_where_a_part_is_read_beside_all():
    """What something reads a part of keeps its extents: the part lies where it lies."""
    b = Builder("part", dtype="float32")
    x = b.input("X", (3, 16))
    e = b.exp(b.op("slice", x, axis=0, start=0, stop=2))
    bare = fuse(b.build(Z=b.op("max", x, axis=(0, 1)), Y=e / b.sum(e, 0, keepdims=True)))
    (block,) = bare.blocks
    (exponential,) = [s.value for s in block.computes if s.exponential]
    assert measured_degrees(bare, block.name, exponential, np.random.default_rng(0)).invariant
