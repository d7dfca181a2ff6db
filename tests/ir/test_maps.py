"""Mirage's maps follow from axes and schedule; the published ones come out as written."""

from __future__ import annotations

import shutil

import pytest

from fuser.errors import EnvironmentError_
from fuser.ir.fuse import fuse
from fuser.ir.maps import block_maps
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.schedule import Schedule
from fuser.ir.text import describe
from fuser.ir.text import dot
from fuser.ir.text import mermaid
from fuser.ir.text import svg
from tests.ir.blocks import gemm_chain
from tests.ir.blocks import rms_gemm
from tests.ir.blocks import schedule
from tests.ir.blocks import split_online

EXTENTS = {"m": 64, "n": 96, "k": 32, "h": 32}


def test_rmsnorm_has_the_published_maps() -> None:
    maps = block_maps(rms_gemm(EXTENTS).block, schedule("k", n=32, k=8))
    assert (maps.imap("X"), maps.fmap("X")) == ("(-,-,-)", "1")
    assert (maps.imap("W"), maps.fmap("W")) == ("(1,-,-)", "0")
    assert maps.omap("R") == "(1,-,-)"
    assert maps.loops == (("k", 4),)


def test_split_keys_are_a_grid_dimension_and_a_loop() -> None:
    graph = split_online(EXTENTS).graph
    schedules = (schedule("n", ("g", 4), m=16, n=8), schedule("", ("g", 4), m=16))
    first, second = (block_maps(b, s) for b, s in zip(graph.blocks, schedules, strict=True))
    assert [first.imap(t) for t in "QKV"] == ["(0,-,-)", "(-,0,-)", "(-,0,-)"]
    assert [first.fmap(t) for t in "QKV"] == ["-", "0", "0"]
    assert first.omap("Op") == "(1,0,-)"  # partial results lie side by side along the split
    assert (second.imap("Op"), second.omap("R")) == ("(1,-,-)", "(0,-,-)")


def test_nested_loops_give_fmaps_with_an_entry_each() -> None:
    maps = block_maps(gemm_chain(EXTENTS).block, schedule("nk", m=16, n=16, k=8, h=16))
    assert maps.loops == (("n", 6), ("k", 4))
    assert [maps.fmap(t) for t in "ABD"] == ["(-,1)", "(1,0)", "(0,-)"]
    assert maps.fmap("E") == "(-,-)"  # accumulated in both
    assert str(maps).splitlines()[0] == "grid (x=m:4, y=h:2) for (n:6, k:4)"


def test_a_loop_over_an_output_axis_concatenates() -> None:
    maps = block_maps(gemm_chain(EXTENTS).block, schedule("n(k,h)", m=16, n=16, k=8, h=16))
    assert maps.loops == (("n", 6), ("k", 4), ("h", 2))
    assert maps.fmap("E") == "(-,-,1)"


def _copy(dims: tuple[tuple[str, ...], ...], extents: dict[str, int]) -> BlockGraph:
    axes = tuple(a for d in dims for a in d)
    return BlockGraph(
        "copy",
        tuple(Axis(a, e) for a, e in extents.items()),
        (
            Stmt("load", "X", axes, "float32", access=Access("X", dims)),
            Stmt("compute", "Y", axes, "float32", "square", ("X",)),
            Stmt("store", "Y", axes, "float32", access=Access("Y", dims)),
        ),
    ).validate()


def test_more_than_three_divided_axes_share_z() -> None:
    block = _copy((("a",), ("b",), ("c",), ("d",)), {"a": 4, "b": 4, "c": 4, "d": 4})
    maps = block_maps(block, schedule("", a=2, b=2, c=2, d=1))
    assert maps.folded == ("c", "d")
    assert maps.grid == ((("a",), 2), (("b",), 2), (("c", "d"), 8))
    assert maps.imap("X") == "(0,1,2·3)"
    assert "share z" in str(maps)


def test_axes_of_one_dimension_map_to_it() -> None:
    maps = block_maps(_copy((("s",), ("h", "d")), {"h": 4, "s": 8, "d": 16}), schedule("d", h=1, d=4))
    assert (maps.imap("X"), maps.fmap("X")) == ("(1,-,-)", "1")


def test_programs_get_maps() -> None:
    from fuser.ir.builder import Builder

    b = Builder("mlp")
    x, w = b.input("x", (32, 64)), b.input("w", (64, 48))
    graph = fuse(b.build(y=b.op("relu", b.op("matmul", x, w))))
    maps = block_maps(graph.blocks[0], schedule("k", m=16, n=16, k=16))
    assert (maps.imap("x"), maps.imap("w"), maps.omap("y")) == ("(0,-,-)", "(-,1,-)", "(0,1,-)")


def test_text_shows_axes_maps_and_loops() -> None:
    text = describe(gemm_chain(EXTENTS).graph, Schedule((schedule("nk", m=16, n=16, k=8, h=20),)))
    assert "  n: 96 = grid 1 × loop 6 × tile 16" in text
    assert "  h: 32 = grid 2 × loop 1 × tile 20, ragged" in text
    assert "    B: imap (-,-,-) fmap (1,0)" in text
    assert "  n(k(L_A,L_B,C_C),L_D,C_E),S_E" in text
    lines = text.splitlines()
    at = lines.index("    for n in 0..6:")
    assert lines[at - 1 : at + 3] == ["    E = identity", "    for n in 0..6:", "      C = identity", "      for k in 0..4:"]
    assert describe(gemm_chain(EXTENTS).graph) == str(gemm_chain(EXTENTS).graph)


def test_diagrams_join_kernels_through_device_tensors() -> None:
    graph = split_online(EXTENTS).graph
    plan = Schedule((schedule("n", ("g", 4), m=16, n=8), schedule("", ("g", 4), m=16)))
    chart = mermaid(graph, plan)
    assert chart.startswith("flowchart TD\n") and chart.count("subgraph") == 2
    assert '-->|"imap (-,0,-) fmap 0"|' in chart and '-->|"running"|' in chart
    vertex = next(line.split("[(")[0].strip() for line in chart.splitlines() if '[("Op")]' in line)
    assert sum(line.endswith(f" {vertex}") for line in chart.splitlines()) == 1  # written once
    assert sum(line.startswith(f"  {vertex} -->") for line in chart.splitlines()) == 1  # read once
    drawing = dot(graph, plan)
    assert drawing.count("{") == drawing.count("}") == 3
    assert drawing.count("->") == chart.count("-->")


def test_names_with_quotes_stay_one_label() -> None:
    block = _copy((("a",),), {"a": 4})
    load, square, store = block.stmts
    from dataclasses import replace

    named = replace(block, stmts=(replace(load, value='X"2'), replace(square, args=('X"2',)), store))
    from tests.ir.blocks import graph_of

    assert all(line.count('"') % 2 == 0 for line in mermaid(graph_of(named)).splitlines())
    assert all(line.replace('\\"', "").count('"') % 2 == 0 for line in dot(graph_of(named)).splitlines())


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws() -> None:
    assert "<svg" in svg(gemm_chain(EXTENTS).graph)


def test_without_graphviz_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentError_, match="Graphviz"):
        svg(gemm_chain(EXTENTS).graph)
