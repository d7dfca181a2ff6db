"""What a µGraph does to device memory, and in which dtype: wrong whatever the values are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.errors import ProgramError
from fuser.frontends.builder import Builder
from fuser.ir.access import Window
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import TensorProgram
from fuser.superopt.verify import Rejected
from fuser.superopt.verify import verify
from search.structures import split_block


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
