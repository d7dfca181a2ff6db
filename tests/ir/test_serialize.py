"""µGraphs and schedules survive JSON; damaged files are refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Tensor
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.ir.tiling import TilingExpr
from tests.ir.blocks import Case
from tests.ir.blocks import gemm_chain
from tests.ir.blocks import online
from tests.ir.blocks import rms_gemm
from tests.ir.blocks import split_chain
from tests.ir.blocks import split_online
from tests.ir.blocks import two_pass

EXTENTS = {"m": 10, "n": 14, "k": 9, "h": 6, "p": 7}
CASES = [
    gemm_chain(EXTENTS, 3, "relu"),
    online(EXTENTS),
    two_pass(EXTENTS),
    rms_gemm(EXTENTS),
    split_online(EXTENTS),
    split_chain(EXTENTS),
]


def again(graph: KernelGraph) -> KernelGraph:
    return graph_from_json(json.loads(json.dumps(graph.to_json())))


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c.graph.name))
def test_round_trip(case: Case) -> None:
    copy = again(case.graph)
    assert copy == case.graph
    assert copy.stable_hash() == case.graph.stable_hash()


def test_constants_and_library_kernels_survive() -> None:
    case = gemm_chain(EXTENTS, 1)
    scalar = Scalar(Fraction(1, 3), ((Extent("k", AXIS), Fraction(-1, 2)), (80, Fraction(1, 2))))
    *rest, store = case.block.stmts
    scaled = Stmt("compute", "s", store.axes, "float32", "scale", (store.value,), attrs=(("scalar", scalar),))
    block = replace(case.block, stmts=(*rest, scaled, replace(store, value="s")))
    library = LibraryKernel("sum", "sum", ("C",), "D", (("axis", (0,)), ("keepdims", False)))
    graph = KernelGraph("g", ("A", "B"), (block, library), ("D",), (Tensor("A", (10, 9)), Tensor("B", (9, 14)))).validate()
    assert again(graph) == graph
    assert graph.stable_hash() != replace(graph, name="h").stable_hash()


def test_the_hash_tells_sizes_and_structures_apart() -> None:
    hashes = {c.graph.stable_hash() for c in CASES} | {c.graph.with_extents({"m": 11}).stable_hash() for c in CASES}
    assert len(hashes) == 2 * len(CASES)


def _drop(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != key}


@pytest.mark.parametrize("key", ["name", "kernels", "inputs", "outputs", "tensors"])
def test_missing_fields_are_named(key: str) -> None:
    with pytest.raises(ProgramError, match=key):
        graph_from_json(_drop(CASES[0].graph.to_json(), key))


def test_other_versions_are_refused() -> None:
    with pytest.raises(ProgramError, match="version"):
        graph_from_json(CASES[0].graph.to_json() | {"mugraph": 99})


def test_a_graph_that_reads_before_it_writes_is_refused() -> None:
    data = split_chain(EXTENTS).graph.to_json()
    data["kernels"].reverse()
    with pytest.raises(ProgramError, match="nothing has written"):
        graph_from_json(data)


names = st.lists(st.sampled_from(["m", "n", "k", "h", "k0", "long_name"]), min_size=1, max_size=5, unique=True)


@st.composite
def expressions(draw: st.DrawFn) -> TilingExpr:
    axes = draw(names)
    cut = draw(st.integers(0, len(axes)))
    nest, rest = tuple(axes[:cut]), axes[cut:]
    if len(rest) < 2:
        return TilingExpr((*nest, *rest))
    middle = draw(st.integers(1, len(rest) - 1))
    return TilingExpr(nest, (TilingExpr(tuple(rest[:middle])), TilingExpr(tuple(rest[middle:]))))


@given(expressions(), st.dictionaries(st.sampled_from("mnkh"), st.integers(1, 256)), st.integers(1, 8))
def test_schedules_survive(order: TilingExpr, tiles: dict[str, int], parts: int) -> None:
    tiles |= dict.fromkeys(order.axes, 16)
    one = KernelSchedule(tuple(sorted(tiles.items())), order, (("g", parts),), 8, 3, (("maxnreg", 128), ("persistent", True)))
    schedule = Schedule((one, KernelSchedule()))
    copy = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert copy == schedule
    assert copy.stable_hash() == schedule.stable_hash()
