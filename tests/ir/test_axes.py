"""Axes: operators tie them, equal extents do not, reshapes split and join them."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.errors import UnsupportedError
from fuser.interpret.reference import interpret
from fuser.ir.axes import axes_of
from fuser.ir.axes import views_apart
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule


def access(stmt: Stmt) -> Access:
    assert stmt.access is not None
    return stmt.access


def test_a_chain_has_the_axes_of_the_paper():
    b = Builder("chain")
    a, w, v = b.input("A", (3, 8, 4)), b.input("B", (3, 4, 6)), b.input("D", (3, 6, 5))
    program = b.build(E=(a @ w) @ v)
    found = axes_of(program)
    assert [x.name for x in found.axes] == ["b", "m", "n", "h", "k"]
    assert found.values["E"] == (("b",), ("m",), ("h",))


def test_equal_extents_alone_tie_nothing():
    b = Builder("square")
    x, w = b.input("X", (8, 8)), b.input("W", (8, 8))
    program = b.build(Y=x @ w)
    found = axes_of(program)
    assert len(found.axes) == 3


def test_an_input_read_in_two_ways_has_axes_for_each():
    b = Builder("gram")
    x = b.input("X", (8, 4))
    block = fuse(b.build(Y=x @ x.T)).blocks[0]
    assert [access(s).dims for s in block.loads] == [(("m",), ("k",)), (("n",), ("k",))]


def test_a_view_of_an_input_that_is_read_in_two_ways_is_one_for_each(rng: np.random.Generator):
    b = Builder("gram")
    x = b.input("X", (2, 3, 8, 4)).transpose(0, 2, 1, 3).reshape(2, 8, 12)
    program = b.build(Y=x @ x.transpose(0, 2, 1))
    with pytest.raises(UnsupportedError, match="one axis in two dimensions"):
        axes_of(program)
    apart = views_apart(program)
    (kernel,) = fuse(program).blocks
    assert len(kernel.loads) == 2
    assert fuse(apart).blocks == fuse(program).blocks
    inputs = {"X": rng.standard_normal((2, 3, 8, 4))}
    np.testing.assert_array_equal(apart.evaluate(inputs)["Y"], program.evaluate(inputs)["Y"])
    assert views_apart(apart) is apart


def test_one_input_of_two_operators_is_loaded_once():
    b = Builder("rms")
    x, w = b.input("X", (8, 32)), b.input("W", (32, 16))
    block = fuse(b.build(Y=b.rms_norm(x) @ w)).blocks[0]
    assert [s.value for s in block.loads] == ["X", "W"]


def test_heads_split_off_by_a_reshape_become_strides_of_an_access():
    b = Builder("heads")
    q, k, v = (b.input(n, (1, 16, 12)) for n in "QKV")
    q, k, v = (t.reshape(1, 16, 3, 4).transpose(0, 2, 1, 3) for t in (q, k, v))
    out = b.attention(q, k, v).transpose(0, 2, 1, 3).reshape(1, 16, 12)
    program = b.build(O=out)
    graph = fuse(program)
    assert str(graph.blocks[0].loads[0].access) == "Q[1, m, b·k]"
    assert access(graph.blocks[0].loads[0]).strides(graph.blocks[0].extents) == {"b": 4, "k": 1, "m": 12}
    inputs = program.random_inputs(np.random.default_rng(0))
    found = interpret(graph, Schedule((KernelSchedule(),)), inputs)["O"]
    np.testing.assert_allclose(found, program.evaluate(inputs)["O"], rtol=1e-9)


def test_query_heads_become_rows_of_their_key_head():
    b = Builder("gqa")
    q, k, v = b.input("Q", (8, 2, 4)), b.input("K", (2, 10, 4)), b.input("V", (2, 10, 4))
    rows = q.reshape(2, 8, 4)  # four query heads a key head, two tokens each
    program = b.build(O=b.attention(rows, k, v).reshape(8, 2, 4))
    block = fuse(program).blocks[0]
    assert access(block.loads[0]).axes == (*access(block.stores[0]).axes[:-1], "k")


def test_reshapes_that_do_not_factor_are_refused_with_the_reason():
    b = Builder("odd")
    x = b.input("X", (6, 4))
    with pytest.raises(UnsupportedError, match="do not divide"):
        fuse(b.build(Y=b.relu(b.relu(x).reshape(4, 6)) * b.input("Z", (4, 6))))


def test_copies_cannot_be_part_of_a_block():
    b = Builder("cat")
    x = b.input("X", (6, 4))
    with pytest.raises(UnsupportedError, match="concat"):
        fuse(b.build(Y=b.relu(b.op("concat", x, x, axis=0))))


def test_repeated_key_heads_are_read_once():
    b = Builder("repeat")
    q, k, v = b.input("Q", (8, 6, 4)), b.input("K", (2, 10, 4)), b.input("V", (2, 10, 4))
    program = b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=4), b.op("repeat", v, axis=0, times=4)))
    graph = fuse(program)
    query, key = (access(s).axes for s in graph.blocks[0].loads[:2])
    assert len(query) == 4 and len(key) == 3  # the group of a query head is no axis of the keys
    inputs = program.random_inputs(np.random.default_rng(0))
    found = interpret(graph, Schedule((KernelSchedule(),)), inputs)["O"]
    np.testing.assert_allclose(found, program.evaluate(inputs)["O"], rtol=1e-9)
