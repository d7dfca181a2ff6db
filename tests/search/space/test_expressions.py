"""Tiling expressions, and what rules 1 and 2 leave of them."""

from __future__ import annotations

from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.device import load_device
from fuser.errors import UnsupportedError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.tiling import TilingExpr
from fuser.superopt.verify.checking import checking_schedules
from fuser.workloads import workload
from search.space.expressions import batch_axes
from search.space.expressions import components
from search.space.expressions import expression_axes
from search.space.expressions import overwhelms
from search.space.expressions import rule1
from search.space.expressions import rule2
from search.space.expressions import sub_expression
from search.space.expressions import tiling_expressions
from search.space.expressions import too_deep
from search.space.kernels import kernel_space
from search.space.prune import distinct
from search.space.prune import expressions


def chain(gemms: int) -> BlockGraph:
    """X W1 W2 … of different widths."""
    b = Builder(f"chain{gemms}")
    x = b.input("X", (512, 32))
    for i in range(gemms):
        x = x @ b.input(f"W{i}", (32 * (i + 1), 32 * (i + 2)))
    return fuse(b.build(Y=x)).blocks[0]


def block(name: str) -> BlockGraph:
    return fuse(workload(name)).blocks[0]


def texts(expressions: tuple[TilingExpr, ...]) -> set[str]:
    return {str(e) for e in expressions}


def test_two_gemms_have_the_26_expressions_of_the_paper() -> None:
    every = tiling_expressions(block("mcfuser/G1"))
    assert len(every) == len(set(every)) == 26
    assert texts(tuple(e for e in every if e.flat)) == {"mn(k,h)", "nm(k,h)"}


def test_rules_1_and_2_give_the_numbers_of_the_paper() -> None:
    b = block("mcfuser/G1")
    first = rule1(b, tiling_expressions(b))
    assert texts(first) == {"nk", "kn", "nkh", "knh", "n(k,h)"}
    left = rule2(b, first)
    assert texts(left) == {"nk", "nkh", "n(k,h)"}
    assert texts(distinct(b, left)) == {"nk", "nkh"}


def test_the_example_of_rule_1() -> None:
    b = block("mcfuser/G1")
    assert str(sub_expression(b, TilingExpr.parse("mhnk"))) == "nk"
    assert str(sub_expression(b, TilingExpr.parse("nmhk"))) == "nk"
    assert str(sub_expression(b, TilingExpr.parse("mnkh"))) == "nkh"


def test_rule_2_names_the_intermediate() -> None:
    b = block("mcfuser/G1")
    value = b.computes[0].value
    assert overwhelms(b, TilingExpr.parse("kn")) == value
    assert overwhelms(b, TilingExpr.parse("nkh")) == ""


def test_softmax_between_two_gemms_changes_nothing_and_heads_are_a_batch() -> None:
    b = block("mcfuser/S1")
    assert batch_axes(b) == ("b",)
    assert len(tiling_expressions(b)) == 26
    assert texts(rule2(b, rule1(b, tiling_expressions(b)))) == {"nk", "nkh", "n(k,h)"}


def test_three_gemms() -> None:
    """The counts that the module's text derives by hand."""
    b = chain(3)
    every = tiling_expressions(b)
    flat = [e for e in every if e.flat]
    assert len(every) == len(set(every)) == 120 + 26 and len(flat) == 26
    assert {len(e.nest) for e in flat} == {2, 3}


@given(st.integers(1, 4))
def test_deep_expressions_are_the_permutations_and_every_expression_has_every_axis(gemms: int) -> None:
    b = chain(gemms)
    axes = expression_axes(b)
    assert len(axes) == gemms + 2
    every = tiling_expressions(b)
    assert sum(not e.flat for e in every) == factorial(len(axes))
    assert all(sorted(e.axes) == sorted(axes) for e in every)
    assert all(TilingExpr.parse(str(e), axes) == e for e in every)


@given(st.integers(2, 3))
def test_rule_1_binds_only_what_repeats_nothing(gemms: int) -> None:
    """Loops that a sub-expression lacks are those of the output; m, which every GEMM has, is always bound."""
    b = chain(gemms)
    for e in tiling_expressions(b):
        bound = set(e.axes) - set(sub_expression(b, e).axes)
        assert "m" in bound and bound <= set(b.spatial)


@given(st.lists(st.frozensets(st.sampled_from("abcde")), max_size=6))
def test_components_partition_by_shared_elements(needs: list[frozenset[str]]) -> None:
    parts = components(needs)
    assert sorted(map(sorted, (n for p in parts for n in p))) == sorted(map(sorted, (n for n in needs if n)))
    unions = [frozenset[str]().union(*p) for p in parts]
    assert all(not a & b for i, a in enumerate(unions) for b in unions[:i])


def test_a_single_gemm_and_row_reductions() -> None:
    assert texts(rule1(block("graphene/gemm"), tiling_expressions(block("graphene/gemm")))) == {"k"}
    norm = block("graphene/layernorm")
    assert texts(rule1(norm, tiling_expressions(norm))) == {"n"}


def test_two_independent_reductions_may_run_one_after_the_other() -> None:
    assert "(k,r)" in texts(tuple(sub_expression(block("graphene/lstm"), e) for e in tiling_expressions(block("graphene/lstm"))))


def test_products_without_a_loop_in_common_are_not_interleaved() -> None:
    """Of two that share no axis there are 5,040 orders and more, 20 s of work for one of 3 x 4 x 5 beside another; of two of the
    same rows there are few."""
    b = Builder("two")
    x, y = b.input("X", (64, 32)) @ b.input("W", (32, 48)), b.input("Y", (16, 80)) @ b.input("V", (80, 24))
    apart = fuse(b.build(A=x, B=y)).blocks[0]
    assert "without a loop in common" in too_deep(apart)
    assert expressions(apart)[0] == (TilingExpr(),)
    b = Builder("siblings")
    x = b.input("X", (64, 32))
    assert not too_deep(fuse(b.build(A=x @ b.input("W", (32, 48)), B=x @ b.input("V", (32, 24)))).blocks[0])


def test_long_chains_are_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedError, match="8 loops"):
        tiling_expressions(chain(6))


def sinkhorn(times: int) -> KernelGraph:
    """A matrix whose rows and columns are divided by their sums in turn."""
    b = Builder("sinkhorn")
    x = b.exp(b.input("X", (48, 32)))
    for _ in range(times):
        x = x / b.sum(x, 1, keepdims=True)
        x = x / b.sum(x, 0, keepdims=True)
    return fuse(b.build(Y=x))


def test_axes_that_are_folded_in_turn_many_times_are_whole() -> None:
    """A loop over one would do all in front of each fold again: 170,000 statements where 600 are written."""
    graph = sinkhorn(50)
    (many,), (once,) = graph.blocks, sinkhorn(1).blocks
    assert not too_deep(once)
    assert too_deep(many)
    assert expressions(many)[0] == (TilingExpr(),)
    space = kernel_space(many, load_device("h200"))
    assert {t.values for t in space.tiles} == {(48,), (32,)}
    (checked,) = next(checking_schedules(graph)).kernels
    assert not checked.order.axes


def test_axes_that_no_tile_is_smaller_than_have_no_loop() -> None:
    """Of two batched products of 3 × 3 and sums behind them: 9516 orders of seven loops without that."""
    b = Builder("frames", "float32")
    x, w = b.input("X", (3, 65, 3, 3)), b.input("W", (3, 65, 3, 65))
    v, u = b.input("V", (3, 65, 3, 3)), b.input("U", (3, 65, 3, 65))
    apart = b.op("square", b.op("sub", x @ w, v @ u))
    (block,) = fuse(b.build(Y=b.op("sum", b.op("sum", apart, axis=(2,)), axis=(1,)))).blocks
    assert 3 not in {block.extents[a] for a in expression_axes(block)}
    assert len(distinct(block, expressions(block)[0])) < 40
