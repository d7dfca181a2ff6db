"""What neighbours decide: products by warp groups, which kernels of a model can start while the one in front runs, and what stays
in L2 from call to call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.options import BACKEND
from fuser.lower.options import EVICT
from fuser.lower.options import HOIST
from fuser.lower.options import TMA
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from search.cover.neighbours import among
from search.cover.neighbours import beside
from search.ranked import Ranked
from search.ranked import Tuned
from search.space.beside import FITS
from search.space.beside import read_at_once
from search.space.beside import starts_late
from search.space.launches import chained
from search.space.stays import with_stays
from search.tune import graph_seconds
from search.tune import tune_fast
from tests.builders import attention

H200 = load_device("h200")


def product(rows: int, inner: int, columns: int, layers: int = 1) -> KernelGraph:
    """So many products one behind the other, a kernel each; weights row by row of what they sum."""
    b = Builder("products")
    x = b.input("X", (rows, inner))
    for i in range(layers):
        x = x @ b.op("transpose", b.input(f"W{i}", (columns, inner)), perm=(1, 0))
    return next(g for g in structures(b.build(Y=x)) if len(g.blocks) == layers and not any(k.splits for k in g.blocks))


def tiled(graph: KernelGraph, rows: int, columns: int, inner: int, stages: int = 2) -> Candidate:
    kernels = []
    for block in graph.blocks:
        (dot,) = (s for s in block.computes if s.contracts)
        (k,) = dot.reduce
        sizes = {a.name: inner if a.name == k else columns for a in block.axes}
        sizes |= {a: rows for a in block.by_value[dot.args[0]].axes if a != k}
        order = TilingExpr((k,) if inner < block.extents[k] else ())
        kernels.append(KernelSchedule(tuple(sorted(sizes.items())), order, (), 4, stages))
    return Candidate(graph, Schedule(tuple(kernels)))


def test_blocks_that_fill_an_sm_start_late() -> None:
    graph = product(512, 1024, 1024)
    assert starts_late(tiled(graph, 128, 128, 64, 4), H200)
    assert not starts_late(tiled(graph, 64, 64, 64, 3), H200, FITS)


def test_rows_of_weights_are_read_at_once_rather_than_bit_by_bit() -> None:
    bits = tiled(product(1, 8192, 2048), 1, 4, 4096)
    assert starts_late(bits, H200)
    several = list(read_at_once(bits, H200))
    assert several and not any(starts_late(c, H200) for c in several)
    assert {s.order.axes for c in several for s in c.schedule.kernels} == {()}
    assert not list(read_at_once(several[0], H200))


def test_what_is_summed_without_a_loop_stays_whole() -> None:
    b = Builder("products")
    product = b.input("X", (4, 1, 8192)) @ b.input("W", (4, 8192, 64))
    graph = next(g for g in structures(b.build(Y=b.sum(product, 0))) if len(g.blocks) == 1)
    schedule = KernelSchedule((("b", 4), ("k", 1), ("n", 4)), TilingExpr(("k",)), (), 4, 2)
    several = list(read_at_once(Candidate(graph, Schedule((schedule,))), H200))
    assert {s.tile["b"] for c in several for s in c.schedule.kernels} == {4}
    assert all(graph_seconds(c, H200) > 0 for c in several)


def test_a_schedule_that_starts_early_may_cost_what_that_saves() -> None:
    graph = product(512, 1024, 1024)
    large, small = tiled(graph, 128, 128, 64, 4), tiled(graph, 64, 64, 64, 3)

    def chosen(more: float) -> Candidate:
        tuned = Tuned(None, "h200", Ranked(large, 8e-6), (Ranked(small, 8e-6 + more),), 1, 2)  # type: ignore[arg-type]
        return beside(tuned, H200).winner.candidate

    assert chosen(0.3e-6) is small
    assert chosen(2e-6) is large
    measured = Tuned(None, "h200", Ranked(large, 8e-6, 9e-6), (Ranked(small, 8e-6),), 1, 2)  # type: ignore[arg-type]
    assert beside(measured, H200) is measured


def test_what_fits_stays_in_l2_and_the_rest_goes_first() -> None:
    long = tiled(product(1, 4096, 4096, layers=4), 1, 4, 4096)  # 4 x 32 MiB
    hints = {t: EVICT.of(s, t) for s in with_stays(long, H200).schedule.kernels for t in EVICT.named(s)}
    assert set(hints.values()) == {"evict_first"}  # none fits
    short = tiled(product(1, 2048, 2048, layers=10), 1, 4, 2048)  # 10 x 8 MiB
    hints = {t: EVICT.of(s, t) for s in with_stays(short, H200).schedule.kernels for t in EVICT.named(s)}
    assert len(hints) == 10
    staying = [t for t, hint in hints.items() if hint == "evict_last"]
    assert 0 < len(staying) * (2048 * 2048 * 2) <= H200.l2_bytes / 2
    few = tiled(product(1, 2048, 2048, layers=4), 1, 4, 2048)
    assert with_stays(few, H200) is few  # all of it does


def test_descriptors_have_no_hints() -> None:
    long = tiled(product(512, 4096, 4096, layers=4), 64, 64, 64)
    described = tuple(TMA.set(s, True, *(t for t in b.inputs if t.startswith("W"))) for b, s in long.blocks)
    assert not any(
        map(EVICT.named, with_stays(Candidate(long.graph, replace(long.schedule, kernels=described)), H200).schedule.kernels)
    )


@pytest.mark.parametrize(
    ("columns", "share", "taken"), [(64, 0.9, "triton"), (64, 0.7, "gluon"), (128, 0.9, "gluon"), (128, 1.0, "triton")]
)
def test_products_by_narrow_warp_groups_have_to_gain_more(columns: int, share: float, taken: str) -> None:
    graph = product(4096, 768, 3072)
    plain = Ranked(tiled(graph, 128, 128, 64, 3), 20e-6)
    narrow = tiled(graph, 64, columns, 64, 3)
    groups = Candidate(graph, Schedule(tuple(BACKEND.set(s, "gluon") for s in narrow.schedule.kernels)))
    tuned = Tuned(None, "h200", Ranked(groups, share * 20e-6), (plain,), 1, 2)  # type: ignore[arg-type]
    assert BACKEND.of(among(tuned).winner.schedule.kernels[0]) == taken


def test_attention_by_warp_groups_is_taken_at_its_price() -> None:
    program = attention(1024, 2048, 64, 64, 32)
    tuned = tune_fast(program, H200, graphs=(one_kernel(program),))
    ranked = (tuned.winner, *tuned.runners)
    groups, plain = (next(r for r in ranked if BACKEND.of(r.schedule.kernels[0]) == b) for b in ("gluon", "triton"))
    first = replace(tuned, winner=replace(groups, estimate=0.97 * plain.seconds), runners=(plain,))
    assert among(first).winner.graph is groups.graph and BACKEND.of(among(first).winner.schedule.kernels[0]) == "gluon"


def test_what_no_tensor_core_multiplies_has_no_padding() -> None:
    graph = product(1, 256, 256, layers=2)
    padded = tiled(graph, 1, 16, 256)
    first, second = padded.schedule.kernels
    wide = replace(second, tiles=tuple((a, 1024 if n == 16 else n) for a, n in second.tiles), num_warps=8)
    slim = chained(replace(padded, schedule=Schedule((first, wide))), H200).schedule.kernels[1]
    assert max(slim.tile.values()) == 256 and slim.num_warps == 4 and HOIST.of(slim)
    rows = tiled(product(512, 256, 256, layers=2), 64, 64, 64, 3)
    assert [s.tiles for s in chained(rows, H200).schedule.kernels] == [s.tiles for s in rows.schedule.kernels]
