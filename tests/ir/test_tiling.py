"""Tiling expressions, and the loop trees of the paper's figures 4 and 5. What a tree computes is tested in tests/interpret."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import UsageError
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import Node
from fuser.ir.tiling import TilingExpr
from tests.ir.blocks import gemm_chain
from tests.ir.blocks import online
from tests.ir.blocks import placed
from tests.ir.blocks import rms_gemm
from tests.ir.blocks import schedule
from tests.ir.blocks import two_pass

EXTENTS = {"m": 256, "n": 256, "k": 128, "h": 128, "p": 128, "q": 128}
CHAIN = gemm_chain(EXTENTS).block
TILES = {"m": 64, "n": 64, "k": 32, "h": 64}


@pytest.mark.parametrize(
    ("order", "tree"),
    [
        ("mhnk", "m(h(n(k(L_A,L_B,C_C),L_D,C_E),S_E))"),  # figure 4
        ("mn(k,h)", "m(n(k(L_A,L_B,C_C),h(L_D,C_E)),h(S_E))"),  # figure 5, flat
        ("nk", "n(k(L_A,L_B,C_C),L_D,C_E),S_E"),  # m and h bound to blockIdx
        ("n(k,h)", "n(k(L_A,L_B,C_C),h(L_D,C_E)),h(S_E)"),
        ("nkh", "n(k(L_A,L_B,C_C),h(L_D,C_E)),h(S_E)"),  # the same program as n(k,h)
        ("kn", "k(L_A,n(L_B,C_C)),n(L_D,C_E),S_E"),  # C is complete after k: a second loop over n
        ("khn", "k(L_A,n(L_B,C_C)),h(n(L_D,C_E),S_E)"),  # h inside k would add to C once for every h
        ("nhk", "n(h(k(L_A,L_B,C_C),L_D,C_E)),h(S_E)"),  # C again for every h
    ],
)
def test_chain(order: str, tree: str) -> None:
    assert str(placed(CHAIN, order, **TILES)) == tree


def test_a_loop_of_one_trip_is_dead_and_its_statements_hoist() -> None:
    assert str(placed(CHAIN, "mhnk", **TILES | {"k": 128})) == "m(L_A,h(n(L_B,C_C,L_D,C_E),S_E))"  # L_A leaves n and h
    assert str(placed(CHAIN, "nk", **TILES | {"k": 128})) == "L_A,n(L_B,C_C,L_D,C_E),S_E"
    assert str(placed(CHAIN, "nk", **TILES | {"n": 256})) == "k(L_A,L_B,C_C),L_D,C_E,S_E"
    assert str(placed(CHAIN, "mhnk", m=256, n=256, k=128, h=128)) == "L_A,L_B,C_C,L_D,C_E,S_E"


def test_owners_and_families_of_accumulators() -> None:
    nk, kn, flat = (placed(CHAIN, o, **TILES) for o in ("nk", "kn", "n(k,h)"))
    assert dict(nk.owner) == {"C": "k", "E": "n"} and not nk.arrays
    assert dict(kn.owner) == {"C": "k", "E": "n"} and kn.arrays == {"n"}  # C keeps a tile for every trip over n
    assert flat.arrays == {"h"}
    assert [n for n, _ in nk.walk() if isinstance(n, Init)] == [Init("E"), Init("C")]


@pytest.mark.parametrize(
    ("order", "tree"),
    [
        ("n", "L_Q,n(L_K,C_S,C_M,C_X,C_P,C_l,L_V,C_O),C_R,S_R"),  # FlashAttention
        ("nk", "n(k(L_Q,L_K,C_S),C_M,C_X,C_P,C_l,L_V,C_O),C_R,S_R"),
        ("n(k,h)", "n(k(L_Q,L_K,C_S),C_M,C_X,C_P,C_l,h(L_V,C_O)),h(C_R,S_R)"),
        ("hnk", "h(n(k(L_Q,L_K,C_S),C_M,C_X,C_P,C_l,L_V,C_O),C_R,S_R)"),
    ],
)
def test_online_softmax(order: str, tree: str) -> None:
    tiles = TILES | {"k": 32 if "k" in order else 128}
    assert str(placed(online(EXTENTS).block, order, **tiles)) == tree


@pytest.mark.parametrize(
    ("order", "tree"),
    [
        ("n", "L_Q,n(L_K,C_S,C_M),n(L_K,C_S,C_X,C_P,C_l,L_V,C_O),C_R,S_R"),
        ("nk", "n(k(L_Q,L_K,C_S),C_M),n(k(L_Q,L_K,C_S),C_X,C_P,C_l,L_V,C_O),C_R,S_R"),  # S again in the second pass
        ("kn", "k(L_Q,n(L_K,C_S)),n(C_M),n(C_X,C_P,C_l,L_V,C_O),C_R,S_R"),  # S is kept
    ],
)
def test_softmax_in_two_passes(order: str, tree: str) -> None:
    tiles = TILES | {"k": 32 if "k" in order else 128}
    assert str(placed(two_pass(EXTENTS).block, order, **tiles)) == tree


def test_norm_and_product_share_a_loop() -> None:
    tree = placed(rms_gemm(EXTENTS).block, "k", m=64, n=64, k=32)
    assert str(tree) == "k(L_X,C_s,C_t,L_G,C_Y,L_W,C_Z),C_r,C_R,S_R"


def test_three_products() -> None:
    block = gemm_chain(EXTENTS, 3).block
    assert str(placed(block, "hnk", p=64, **TILES)) == "h(n(k(L_A,L_B,C_C),L_D,C_E),L_F,C_G),S_G"
    assert str(placed(block, "nk(h,p)", p=64, **TILES)).startswith("n(k(L_A,L_B,C_C),h(L_D,C_E)),")


# -- properties of every tree -------------------------------------------------------------------------------------------------

CASES = [gemm_chain(EXTENTS, 3, "relu"), online(EXTENTS), two_pass(EXTENTS), two_pass(EXTENTS, True), rms_gemm(EXTENTS)]
BLOCKS = [CHAIN, *(c.block for c in CASES)]


@st.composite
def orders(draw: st.DrawFn, block: BlockGraph) -> KernelSchedule:
    """Any nest, any branches, any loop left out that may be; any tile size."""
    sizes = {a.name: draw(st.sampled_from([a.extent, a.extent // 2, a.extent // 3, 48])) for a in block.axes}
    order = draw(st.permutations([a.name for a in block.axes]))
    cut = draw(st.integers(0, len(order)))
    nest, rest = tuple(order[:cut]), tuple(order[cut:])
    middle = draw(st.integers(0, len(rest)))
    branches = tuple(TilingExpr(part) for part in (rest[:middle], rest[middle:]) if part)
    expr = TilingExpr(nest, branches) if len(branches) == 2 else TilingExpr((*nest, *rest))
    gone = {a for a in block.spatial if draw(st.booleans())}
    return KernelSchedule(tuple(sorted(sizes.items())), expr.without(gone))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_every_tree_is_well_formed(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(BLOCKS))
    plan = data.draw(orders(block))
    bound, plans = bind(block, plan)
    tree = place(bound, plan.order, plans)
    live = {a for a, p in plans.items() if p.trips > 1}
    placed_stmts: Counter[str] = Counter()
    for node, loops in tree.walk():
        axes = [lp.axis for lp in loops]
        assert len(set(axes)) == len(axes), f"a loop inside itself: {tree}"
        if isinstance(node, Init):
            continue
        placed_stmts[node.key] += 1
        related = node.related if node.kind == "compute" else frozenset(node.axes)
        assert related & live <= set(axes), f"{node.key} misses a loop: {tree}"
        over = [i for i, a in enumerate(axes) if a in node.reduce]
        if node.folds and over:
            assert set(axes[over[0] :]) <= node.related, f"{node.key} adds the same again: {tree}"
    assert set(placed_stmts) == {s.key for s in block.stmts}
    assert all(placed_stmts[s.key] == 1 for s in block.stores)
    _inits_stand_before_loops(tree.body)


def _inits_stand_before_loops(nodes: tuple[Node, ...]) -> None:
    for i, n in enumerate(nodes):
        if isinstance(n, Init):
            after = next(x for x in nodes[i:] if not isinstance(x, Init))
            assert isinstance(after, Loop)
            assert n.value in {s.value for s, _ in LoopTree((after,), (), frozenset()).walk() if isinstance(s, Stmt)}
        if isinstance(n, Loop):
            assert n.body and n.trips > 1
            _inits_stand_before_loops(n.body)


def test_the_same_order_gives_the_same_tree() -> None:
    plan = schedule("mn(k,h)", **TILES)
    bound, plans = bind(CHAIN, plan)
    assert place(bound, plan.order, plans) == place(bound, plan.order, plans)


# -- expressions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["mhnk", "mn(k,h)", "(k,h)", "k0.k1(n.m,h)", "m(nk,hp)", "b0", "", "m(n(k,h),p)"])
def test_text_and_back(text: str) -> None:
    assert str(TilingExpr.parse(text)) == text


def test_every_deep_and_flat_expression_of_a_chain_reads_back() -> None:
    deep = [TilingExpr(p) for p in itertools.permutations("mnkh")]
    flat = [TilingExpr(p, (TilingExpr(("k",)), TilingExpr(("h",)))) for p in itertools.permutations("mn")]
    assert len({str(e) for e in deep + flat}) == 26  # the count of the paper's figure 7
    assert [TilingExpr.parse(str(e)) for e in deep + flat] == deep + flat


def test_loops_that_are_bound_or_dead_go() -> None:
    flat = TilingExpr.parse("mn(k,h)")
    assert str(flat.without("m")) == "n(k,h)"
    assert str(flat.without("k")) == "mnh"
    assert str(flat.without("kh")) == "mn"
    assert list(flat.paths()) == [("m", "n", "k"), ("m", "n", "h")]


@pytest.mark.parametrize("text", ["mn(k,h", "mm", "m(k,h))", "m(n,m)"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        TilingExpr.parse(text)
