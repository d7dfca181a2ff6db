"""Random blocks, of any shape of data flow, under random schedules compute what einsum computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.interpret.reference import interpret
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from tests.ir.blocks import graph_of

AXES = "mnkh"
MAPS = {"add": np.add, "mul": np.multiply, "maximum": np.maximum}


@st.composite
def blocks(draw: st.DrawFn) -> BlockGraph:
    """Up to eight operators on values that share axes at will; everything unused is stored, and perhaps something else."""
    stmts: list[Stmt] = []
    axes: dict[str, tuple[str, ...]] = {}

    def operand() -> str:
        if axes and draw(st.integers(0, 9)) > 2:
            return draw(st.sampled_from(list(axes)[-5:]))
        value = f"L{len(axes)}"
        axes[value] = tuple(draw(st.permutations(AXES))[: draw(st.integers(1, 3))])
        stmts.append(Stmt("load", value, axes[value], "float32", access=Access(value, tuple((a,) for a in axes[value]))))
        return value

    for i in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(["add", "mul", "maximum", "tanh", "matmul", "matmul", "sum", "max"]))
        args = tuple(operand() for _ in range(1 if op in ("tanh", "sum", "max") else 2))
        union = [a for a in AXES if any(a in axes[v] for v in args)]
        reduce: tuple[str, ...] = ()
        if op in ("matmul", "sum", "max"):
            reduce = tuple(draw(st.permutations(union))[: draw(st.integers(0, len(union) - 1))])
            if not reduce:
                op = "maximum" if op == "matmul" else "tanh"
        value = f"v{i}"
        axes[value] = tuple(a for a in union if a not in reduce)
        stmts.append(Stmt("compute", value, axes[value], "float32", op, args, reduce))
    made = [s for s in stmts if s.kind == "compute"]
    stored = [s for s in made if not any(s.value in t.args for t in stmts)]
    stored += [s for s in made if s not in stored and draw(st.integers(0, 9)) == 0]
    for s in stored:
        stmts.append(Stmt("store", s.value, s.axes, "float32", access=Access(f"o{s.value}", tuple((a,) for a in s.axes))))
    used = {a for s in stmts for a in s.related}
    return BlockGraph("random", tuple(Axis(a, draw(st.integers(1, 7))) for a in AXES if a in used), tuple(stmts)).validate()


@st.composite
def schedules(draw: st.DrawFn, block: BlockGraph) -> KernelSchedule:
    order = draw(st.permutations([a.name for a in block.axes]))
    cut = draw(st.integers(0, len(order)))
    middle = draw(st.integers(cut, len(order)))
    branches = tuple(TilingExpr(tuple(x)) for x in (order[cut:middle], order[middle:]) if x)
    expr = TilingExpr(tuple(order[:cut]), branches) if len(branches) == 2 else TilingExpr(tuple(order))
    gone = {a for a in block.spatial if draw(st.booleans())}
    return KernelSchedule(tuple((a.name, draw(st.integers(1, a.extent))) for a in block.axes), expr.without(gone))


def evaluate(block: BlockGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every statement once on whole tensors."""
    values: dict[str, Array] = {}
    out: dict[str, Array] = {}
    for s in block.stmts:
        if s.access and s.kind == "load":
            values[s.value] = inputs[s.access.tensor]
        elif s.access:
            out[s.access.tensor] = values[s.value]
        else:
            own = [block.by_value[a].axes for a in s.args]
            if s.op == "matmul":
                values[s.value] = np.einsum(",".join(map("".join, own)) + "->" + "".join(s.axes), *(values[a] for a in s.args))
                continue
            whole = tuple(s.axes) + s.reduce
            ones = np.ones([block.extents[a] for a in whole])
            spread = [
                np.einsum("".join(x) + "," + "".join(whole) + "->" + "".join(whole), values[a], ones)
                for a, x in zip(s.args, own, strict=True)
            ]
            last = tuple(range(len(s.axes), len(whole)))
            if s.op in MAPS:
                values[s.value] = MAPS[s.op](*spread)
            elif s.op == "tanh":
                values[s.value] = np.tanh(spread[0])
            else:
                values[s.value] = spread[0].sum(last) if s.op == "sum" else spread[0].max(last)
    return out


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_random_blocks(data: st.DataObject) -> None:
    block = data.draw(blocks())
    rng = np.random.default_rng(0)
    inputs = {s.value: rng.uniform(-1, 1, [block.extents[a] for a in s.axes]) for s in block.loads}
    expected = evaluate(block, inputs)
    got = interpret(graph_of(block), Schedule((data.draw(schedules(block)),)), inputs)
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-9, atol=1e-9 * (1 + np.abs(x).max()))
