"""What a µGraph does to device memory, and in which dtype: wrong whatever the values are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuser.errors import ProgramError
from fuser.ir.access import Window
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.superopt.rewrite.splits import split_block
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verifier import verify


def chain(dtype: str = "float16") -> tuple[TensorProgram, KernelGraph]:
    """Two kernels: the product's parts, and their sum with a bias."""
    b = Builder("chain", dtype)
    x, w, v = b.input("X", (64, 96)), b.input("W", (96, 64)), b.input("V", (64,))
    program = b.build(Y=b.relu(x @ w + v))
    graph = fuse(program)
    return program, replace(graph, kernels=split_block(graph.blocks[0], "k"))


def with_stmts(block: BlockGraph, *more: Stmt) -> BlockGraph:
    return replace(block, stmts=(*block.stmts, *more))


def refused(program: TensorProgram, graph: KernelGraph, what: str) -> None:
    verdict = verify(program, graph)
    assert isinstance(verdict, Rejected), verdict
    assert what in verdict.why
    assert verdict.witness_seed == -1


def test_an_input_is_not_written() -> None:
    program, graph = chain()
    first, second = graph.blocks
    load = next(s for s in first.loads if s.value == "X")
    assert load.access is not None
    store = Stmt("store", "X", load.access.axes, "float16", access=load.access)
    refused(program, replace(graph, kernels=(with_stmts(first, store), second)), "an input")
    copy = LibraryKernel("copy", "relu", ("W",), "W")
    refused(program, replace(graph, kernels=(*graph.kernels, copy)), "an input")


def test_operators_are_applied_as_the_table_says() -> None:
    program, graph = chain()
    first, second = graph.blocks

    def changed(op: str, **more: Any) -> KernelGraph:
        stmts = tuple(replace(s, op=op, **more) if s.folds else s for s in second.stmts)
        return replace(graph, kernels=(first, replace(second, stmts=stmts)))

    (total,) = (s for s in second.computes if s.folds)
    refused(program, changed("exp"), "exp folds no axes")
    refused(program, changed("sum", args=2 * total.args), "sum takes 1 operands")
    elsewhere = (("scalar", Scalar.power(Extent("nowhere", 0), 1)),)
    scale = Stmt("compute", "scaled", total.axes, "float32", "scale", (total.value,), attrs=elsewhere)
    refused(program, replace(graph, kernels=(first, with_stmts(second, scale))), "a constant tied to 'nowhere'")


def test_a_split_into_one_part_is_a_sum() -> None:
    program, graph = chain()
    (part,) = {g for b in graph.blocks for _, g in b.splits}
    assert verify(program, graph.with_extents({part: 1})).accepted


def test_a_tensor_is_written_once_and_before_it_is_read() -> None:
    program, graph = chain()
    first, second = graph.blocks
    refused(program, replace(graph, kernels=(first, replace(first, name="again"), second)), "already written")
    refused(program, replace(graph, kernels=(with_stmts(first, first.stores[0]), second)), "already written")
    refused(program, replace(graph, kernels=(second, first)), "nothing has written")
    reads_itself = with_stmts(second, Stmt("load", "again", ("m", "n"), "float16", access=Access("Y", (("m",), ("n",)))))
    refused(program, replace(graph, kernels=(first, reads_itself)), "nothing has written")


def test_names_are_unique() -> None:
    program, graph = chain()
    first, second = graph.blocks
    refused(program, replace(graph, kernels=(first, replace(second, name=first.name))), "several kernels")
    refused(program, replace(graph, kernels=(replace(first, name=""), second)), "without a name")
    refused(program, replace(graph, kernels=(replace(first, axes=(*first.axes, first.axes[-1])), second)), "two axes")
    with pytest.raises(ProgramError, match="several tensors"):
        replace(graph, tensors=(*graph.tensors, graph.tensors[0])).validate()


def test_windows_lie_in_the_tensor_as_it_is() -> None:
    """The same box of a tensor of another shape has other strides."""
    b = Builder("rows")
    x = b.input("X", (8, 32))
    program = b.build(Y=b.relu(b.op("slice", x, axis=1, start=0, stop=16)))
    graph = fuse(program)
    assert verify(program, graph).accepted
    block = graph.blocks[0]
    load = block.loads[0]
    assert load.access is not None
    wide = replace(load, access=replace(load.access, window=Window("X", (8, 64), (0, 0))))
    wrong = replace(graph, kernels=(replace(block, stmts=(wide, *block.stmts[1:])),))
    refused(program, wrong, "a window of a tensor of shape (8, 64)")


def test_a_tensor_with_the_name_of_a_box_is_no_box() -> None:
    b = Builder("names")
    x, other = b.input("X", (8, 32)), b.input("X[0]", (1, 32))
    program = b.build(Y=b.op("slice", x, axis=0, start=0, stop=1) * other)
    with pytest.raises(Exception, match="a tensor and a box"):
        fuse(program)


def with_dtype(graph: KernelGraph, value: str, dtype: str, kinds: tuple[str, ...] = ("load", "compute", "store")) -> KernelGraph:
    """A value in another dtype wherever it stands, also in device memory."""
    blocks = [
        replace(b, stmts=tuple(replace(s, dtype=dtype) if s.value.startswith(value) and s.kind in kinds else s for s in b.stmts))
        for b in graph.blocks
    ]
    return replace(graph, kernels=tuple(blocks))


@pytest.mark.parametrize("dtype", ["int8", "bool", "int32", "uint8", "int64", "bfloat16"])
def test_intermediates_are_not_narrower_than_the_program_has_them(dtype: str) -> None:
    program, graph = chain()
    stored = graph.blocks[0].stores[0].value
    refused(program, with_dtype(graph, stored, dtype), "does not hold float16")
    refused(program, with_dtype(graph, stored, dtype, ("compute",)), "does not hold float16")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_intermediates_may_be_wider(dtype: str) -> None:
    program, graph = chain()
    assert verify(program, with_dtype(graph, graph.blocks[0].stores[0].value, dtype)).accepted
    program, graph = chain("float32")
    narrow = verify(program, with_dtype(graph, graph.blocks[0].stores[0].value, dtype))
    assert narrow.accepted == (dtype != "float16")


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "bfloat16"])
def test_outputs_and_inputs_have_the_program_s_dtype(dtype: str) -> None:
    program, graph = chain()
    tensors = tuple(replace(t, dtype=dtype) if t.name == "Y" else t for t in graph.tensors)
    refused(program, replace(graph, tensors=tensors), "another shape or dtype")
    refused(program, with_dtype(graph, graph.blocks[1].stores[0].value, dtype, ("store",)), "is float16")
    refused(program, with_dtype(graph, "X", dtype, ("load",)), "reads a tensor of float16")


def test_two_kernels_agree_on_the_dtype_between_them() -> None:
    program, graph = chain()
    (load,) = [s for s in graph.blocks[1].loads if s.access and s.access.tensor in graph.blocks[0].outputs]
    wrong = replace(graph.blocks[1], stmts=tuple(replace(s, dtype="float64") if s is load else s for s in graph.blocks[1].stmts))
    refused(program, replace(graph, kernels=(graph.blocks[0], wrong)), "reads a tensor of float32 as float64")


def without_casts(graph: KernelGraph, dtype: str) -> KernelGraph:
    """The casts to a dtype left out."""
    (block,) = graph.blocks
    names = {s.value: s.args[0] for s in block.computes if s.op == "cast" and s.attr["dtype"] == dtype}

    def source(v: str) -> str:
        return source(names[v]) if v in names else v

    stmts = (
        replace(s, args=tuple(map(source, s.args)), value=s.value if s.kind == "load" else source(s.value)) for s in block.stmts
    )
    kept = tuple(s for s, old in zip(stmts, block.stmts, strict=True) if old.kind == "store" or old.value not in names)
    return replace(graph, kernels=(replace(block, stmts=kept),))


def rounded(*dtypes: str, dtype: str = "float32") -> TensorProgram:
    b = Builder("rounded", dtype)
    y = b.input("X", (32, 64)) @ b.input("W", (64, 48)) * 10
    for d in dtypes:
        y = b.op("cast", y, dtype=d)
    return b.build(Y=b.op("cast", b.relu(y), dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int8", "bool"])
def test_a_cast_that_changes_values_stays(dtype: str) -> None:
    program = rounded(dtype)
    graph = fuse(program)
    assert verify(program, graph).accepted
    assert not verify(program, without_casts(graph, dtype)).accepted
    assert not verify(rounded(), graph).accepted
    for other in {"float16", "bfloat16", "int32", "int8", "bool"} - {dtype}:
        assert not verify(program, fuse(rounded(other))).accepted, other


def test_a_cast_that_changes_nothing_may_go() -> None:
    program = rounded("float32", "float64")
    assert verify(program, without_casts(fuse(program), "float64")).accepted
    half = rounded("float32", dtype="float16")
    assert verify(half, without_casts(fuse(half), "float32")).accepted, "computed in half precision, as the product is"


def test_rounding_commutes_with_what_is_linear() -> None:
    b = Builder("late")
    q, k, v = (b.input(n, (64, 32)) for n in "QKV")
    p = b.softmax(b.op("cast", q @ k.T, dtype="float32"))
    program = b.build(O=b.op("cast", p, dtype="float16") @ v)
    for graph in structures(program):
        assert verify(program, graph).accepted, graph


def conditional(condition: str, dtype: str = "float16") -> TensorProgram:
    b = Builder("conditional")
    x, y, c = b.input("X", (32, 64)), b.input("Y", (32, 64)), b.input("C", (32, 64), dtype)
    forms = {
        "input": lambda: c,
        "twice": lambda: c * 2,
        "square": lambda: b.op("square", c),
        "difference": lambda: c - x,
        "relu": lambda: b.relu(c),
        "sum": lambda: b.sum(c, 1, keepdims=True),
    }
    return b.build(Z=b.op("where", forms[condition](), x, y) * 3)


@pytest.mark.parametrize("condition", ["input", "twice", "square", "difference", "relu", "sum"])
def test_a_condition_fails_somewhere(condition: str) -> None:
    program = conditional(condition)
    graph = fuse(program)
    assert verify(program, graph).accepted
    (block,) = graph.blocks
    where = next(s for s in block.computes if s.op == "where")
    for chosen in where.args[1:]:
        stmts = (replace(s, args=tuple(chosen if a == where.value else a for a in s.args)) for s in block.stmts)
        wrong = replace(graph, kernels=(replace(block, stmts=tuple(s for s in stmts if s.value != where.value)),))
        assert not verify(program, wrong).accepted
        assert not verify(program, wrong, float_rounds=0).accepted
    swapped = replace(where, args=(where.args[0], where.args[2], where.args[1]))
    wrong = replace(graph, kernels=(replace(block, stmts=tuple(swapped if s is where else s for s in block.stmts)),))
    assert not verify(program, wrong).accepted


def test_true_rewritings_of_conditions_are_accepted() -> None:
    assert verify(conditional("input"), fuse(conditional("twice"))).accepted
    assert verify(conditional("input", "bool"), fuse(conditional("input", "bool"))).accepted
    assert not verify(conditional("input"), fuse(conditional("relu"))).accepted


def test_a_condition_may_guard_its_own_division() -> None:
    b = Builder("guarded")
    x, c = b.input("X", (32, 64)), b.input("C", (32, 64))
    program = b.build(Z=b.op("where", c, x / c, x))
    graph = fuse(program)
    assert verify(program, graph).accepted
    b = Builder("other")
    x, c = b.input("X", (32, 64)), b.input("C", (32, 64))
    assert not verify(program, fuse(b.build(Z=b.op("where", c, x / c, c)))).accepted


def test_a_choice_carries_what_is_masked() -> None:
    b = Builder("masked choice")
    x, y, c = b.input("X", (32, 32)), b.input("Y", (32, 32)), b.input("C", (32, 32), "bool")
    program = b.build(Z=b.softmax(b.op("where", c, b.op("causal_mask", x, offset=0), y)))
    assert verify(program, fuse(program)).accepted
    b = Builder("other")
    x, y, c = b.input("X", (32, 32)), b.input("Y", (32, 32)), b.input("C", (32, 32), "bool")
    assert not verify(program, fuse(b.build(Z=b.softmax(b.op("where", c, x, b.op("causal_mask", y, offset=0)))))).accepted
