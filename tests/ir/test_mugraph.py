"""µGraphs: checks of their form, sizes, accesses, and how schedules divide their axes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import ordered
from fuser.ir.program import Tensor
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import bind
from tests.ir.blocks import compute
from tests.ir.blocks import gemm_chain
from tests.ir.blocks import load
from tests.ir.blocks import online
from tests.ir.blocks import schedule
from tests.ir.blocks import split_chain
from tests.ir.blocks import split_online
from tests.ir.blocks import store

EXTENTS = {"m": 64, "n": 96, "k": 32, "h": 48}
CHAIN = gemm_chain(EXTENTS).block


def test_axes_of_a_block() -> None:
    assert CHAIN.spatial == ("m", "h")
    assert CHAIN.reduced == ("k", "n")
    assert (CHAIN.inputs, CHAIN.outputs) == (("A", "B", "D"), ("E",))
    assert [s.key for s in CHAIN.users("C")] == ["C_E"]
    assert ordered("nhm", CHAIN.axes) == ("m", "n", "h")


def test_an_axis_that_one_output_lacks_is_not_spatial() -> None:
    block = split_online(EXTENTS).block
    assert set(block.spatial) == {"m", "g"}


@pytest.mark.parametrize(
    ("stmts", "message"),
    [
        ((load("A", "mz"), store("A", "m")), "unknown axes"),
        ((compute("B", "m", "exp", "A"), load("A", "m"), store("B", "m")), "before it is defined"),
        ((load("A", "m"), load("A", "m"), store("A", "m")), "defined twice"),
        ((load("A", "mk"), compute("B", "mk", "sum", "A", "k"), store("B", "mk")), "operands give"),
        ((load("A", "mk"), compute("B", "m", "exp", "A"), store("B", "m")), "operands give"),
        ((load("A", "mk"),), "stores nothing"),
        ((load("A", "mk"), store("A", "m")), "drops the axes"),
        ((replace(load("A", "mk"), axes=("m",)), store("A", "m")), "its access those of"),
    ],
)
def test_blocks_that_are_not_well_formed(stmts: tuple, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        BlockGraph("bad", (Axis("m", 4), Axis("k", 4)), stmts).validate()


def test_graphs_that_are_not_well_formed() -> None:
    case = split_chain(EXTENTS)
    with pytest.raises(ProgramError, match="nothing has written"):
        replace(case.graph, kernels=case.graph.kernels[::-1]).validate()
    with pytest.raises(ProgramError, match="never written"):
        replace(case.graph, outputs=("Z",)).validate()


def test_intermediates_are_what_kernels_pass_on() -> None:
    assert split_online(EXTENTS).graph.intermediates == ("Mp", "lp", "Op")
    assert gemm_chain(EXTENTS).graph.intermediates == ()


def test_new_extents_reach_program_tensors_and_constants() -> None:
    block = CHAIN
    graph = KernelGraph(
        "g", ("A", "B", "D"), (block,), ("E",), (Tensor("A", (64, 32)), Tensor("B", (32, 96)), Tensor("E", (64, 48)))
    )
    small = graph.with_extents({"m": 10, "k": 7})
    assert small.table["A"].shape == (10, 7)
    assert small.table["B"].shape == (7, 96)
    assert small.blocks[0].extents == {"m": 10, "n": 96, "k": 7, "h": 48}
    assert small.blocks[0].scalar(Scalar.power(Extent("m", AXIS), -1)) == pytest.approx(0.1)
    assert small.blocks[0].scalar(Scalar(Fraction(2), ((Extent("k", AXIS), Fraction(1, 2)),))) == pytest.approx(2 * 7**0.5)


def test_accesses_are_row_major_products() -> None:
    access = Access("X", (("b",), ("s",), ("head", "d"), ()))
    extents = {"b": 2, "s": 3, "head": 4, "d": 5}
    assert access.shape(extents) == (2, 3, 20, 1)
    assert access.strides(extents) == {"d": 1, "head": 5, "s": 20, "b": 60}
    assert str(access) == "X[b, s, head·d, 1]"


def test_text_reads_like_the_papers() -> None:
    text = str(online(EXTENTS).graph)
    assert "O[m,h] = matmul(P, V) over n rescaled by exp(1·ΔM)" in text
    assert "X[m,n] = sub(S, ~M)" in text
    assert "n split over g" in str(split_online(EXTENTS).block)


# -- schedules ----------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_plans_cover_an_axis_once(extent: int, tile: int, looped: bool) -> None:
    block = CHAIN.with_extents({"m": extent})
    _, plans = bind(block, schedule("m" if looped else "", m=tile))
    p = plans["m"]
    assert p.grid * p.trips * p.tile >= extent > (p.grid * p.trips - 1) * p.tile
    assert (p.grid if looped else p.trips) == 1
    assert p.ragged == (extent % tile != 0)


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 12))
def test_splits_cover_an_axis(extent: int, tile: int, parts: int) -> None:
    block, plans = bind(split_chain(EXTENTS | {"k": extent}).block, schedule("k", ("g", parts), k=tile))
    p = plans["k"]
    assert block.extents["g"] == plans["g"].grid == p.grid == parts
    assert p.grid * p.chunk >= extent
    assert p.split == "g" and p.chunk == p.trips * p.tile


@pytest.mark.parametrize(
    ("order", "splits", "tiles", "message"),
    [
        ("", (), {"k": 16}, "has tile 16 < 32, and no loop"),
        ("z", (), {}, "does not have"),
        ("k", (), {"k": 0}, "not positive"),
    ],
)
def test_schedules_that_do_not_fit(order: str, splits: tuple, tiles: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(CHAIN, schedule(order, *splits, **tiles))


def test_a_split_needs_its_number_of_parts() -> None:
    with pytest.raises(UsageError, match="0 parts"):
        bind(split_chain(EXTENTS).block, schedule("k", ("g", 0), k=16))
    with pytest.raises(UsageError, match="into how many parts"):
        bind(split_chain(EXTENTS).block, schedule("k", k=16))


def test_an_output_axis_that_is_summed_over_stays_whole() -> None:
    """A softmax or a norm stores the axis that it also folds: blocks cannot share a row."""
    stmts = (load("X", "mn"), compute("s", "m", "sum", "X", "n"), compute("Y", "mn", "div", "Xs"), store("Y", "mn"))
    block = BlockGraph("rows", (Axis("m", 8), Axis("n", 8)), stmts).validate()
    assert block.spatial == ("m",)
    with pytest.raises(UsageError, match="no loop"):
        bind(block, schedule("", n=4))


def test_a_mask_over_rows_of_several_axes_has_no_block() -> None:
    """It would count along the innermost axis alone."""
    b = Builder("joined")
    scores = b.op("causal_mask", b.input("X", (4, 16, 64)).reshape(64, 64), offset=0)
    program = b.build(Y=b.exp(scores) @ b.input("W", (64, 32)))
    with pytest.raises(UnsupportedError, match="several axes"):
        fuse(program)


def test_a_shift_is_by_a_maximum() -> None:
    block = online(EXTENTS).block
    stmts = tuple(replace(s, op="sum") if s.op == "max" else s for s in block.stmts)
    with pytest.raises(ProgramError, match="is no maximum"):
        replace(block, stmts=stmts).validate()


@pytest.mark.parametrize("attrs", [{"dtype": "int4"}, {"attrs": (("dtype", "m"),)}])
def test_dtypes_of_statements_are_known(attrs) -> None:
    b = Builder("p")
    graph = fuse(b.build(O=b.op("cast", b.input("X", (8, 8)), dtype="float32")))
    (block,) = graph.blocks
    stmts = tuple(replace(s, **attrs) if s.op == "cast" else s for s in block.stmts)
    with pytest.raises(ProgramError, match="unknown dtype"):
        replace(block, stmts=stmts).validate()


def test_a_cast_of_a_program_is_to_a_known_dtype() -> None:
    b = Builder("p")
    program = b.build(O=b.op("cast", b.input("X", (8, 8)), dtype="float32"))
    (node,) = program.nodes
    with pytest.raises(ProgramError, match="unknown dtype '²'"):
        replace(program, nodes=(replace(node, attrs=(("dtype", "²"),)),)).validate()


def test_inputs_have_different_names() -> None:
    b = Builder("p")
    graph = fuse(b.build(O=b.relu(b.input("X", (8, 8)))))
    with pytest.raises(ProgramError, match="several inputs"):
        replace(graph, inputs=("X", "X")).validate()
