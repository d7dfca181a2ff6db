"""The interpreter, and through it placement: any block under any schedule computes what numpy computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.errors import UsageError
from fuser.interpret.algebra import FloatAlgebra
from fuser.interpret.algebra import Tile
from fuser.interpret.algebra import guarded
from fuser.interpret.flat import evaluate_flat
from fuser.interpret.reference import interpret
from fuser.interpret.reference import interpret_in
from fuser.interpret.statements import InterpretError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import TilingExpr
from fuser.superopt.rewrite.stabilize import stabilize_graph
from tests.ir.blocks import Case
from tests.ir.blocks import compute
from tests.ir.blocks import gemm_chain
from tests.ir.blocks import graph_of
from tests.ir.blocks import load
from tests.ir.blocks import online
from tests.ir.blocks import rms_gemm
from tests.ir.blocks import schedule
from tests.ir.blocks import softmax
from tests.ir.blocks import split_chain
from tests.ir.blocks import split_online
from tests.ir.blocks import store
from tests.ir.blocks import two_pass

SMALL = {"m": 10, "n": 14, "k": 9, "h": 6, "p": 7}


def agree(case: Case, *plans: KernelSchedule) -> None:
    inputs = case.inputs(np.random.default_rng(0))
    (got,) = interpret(case.graph, Schedule(plans), inputs).values()
    np.testing.assert_allclose(got, case.expected(inputs), rtol=1e-9, atol=1e-9)


def nests(axes: Sequence[str]) -> list[TilingExpr]:
    """Every order of every subset of the axes, as a nest and with two branches from any depth."""
    found: list[TilingExpr] = []
    for size in range(len(axes) + 1):
        for p in itertools.permutations(axes, size):
            found.append(TilingExpr(p))
            for i, j in itertools.combinations(range(size), 2):
                found.append(TilingExpr(p[:i], (TilingExpr(p[i:j]), TilingExpr(p[j:]))))
    return found


@pytest.mark.parametrize(
    "case",
    [gemm_chain(SMALL, 2, "relu"), online(SMALL), two_pass(SMALL), two_pass(SMALL, True), rms_gemm(SMALL)],
    ids=lambda c: str(c.graph.name),
)
def test_every_order_of_the_loops(case: Case) -> None:
    """All nests and branches over all subsets of the axes, spatial loops included, on ragged tiles."""
    tiles = {"m": 6, "n": 5, "k": 4, "h": 4}
    tried = 0
    for order in nests([a.name for a in case.block.axes]):
        plan = KernelSchedule(tuple(sorted((a, t) for a, t in tiles.items() if a in case.block.extents)), order)
        if set(case.block.extents) - set(case.block.spatial) <= set(order.axes):
            agree(case, plan)
            tried += 1
    assert tried == {3: 33, 4: 220}[len(case.block.axes)]


EXTENT = st.integers(1, 24)


@dataclass(frozen=True)
class Trial:
    case: Case
    plans: tuple[KernelSchedule, ...]


MAKERS: dict[str, Callable[[Mapping[str, int]], Case]] = {
    "gemm": lambda e: gemm_chain(e, 1),
    "two": lambda e: gemm_chain(e, 2),
    "two-relu": lambda e: gemm_chain(e, 2, "relu"),
    "three": lambda e: gemm_chain(e, 3, "square"),
    "online": online,
    "two-pass": two_pass,
    "divide-first": lambda e: two_pass(e, divide_first=True),
    "rms": rms_gemm,
    "split-online": split_online,
    "split-chain": split_chain,
}


@st.composite
def trials(draw: st.DrawFn, name: str) -> Trial:
    """Random extents, tiles, orders and split counts for every kernel."""
    case = MAKERS[name]({a: draw(EXTENT) for a in "mnkhp"})
    parts = draw(st.integers(1, 5))
    plans: list[KernelSchedule] = []
    for block in case.graph.blocks:
        counted = {g for _, g in block.splits}
        names = [a.name for a in block.axes if a.name not in counted]
        tiles = {a: draw(st.integers(1, block.extents[a] or parts)) for a in names}
        order = draw(st.permutations(names))
        gone = {a for a in block.spatial if draw(st.booleans())}
        cut = draw(st.integers(0, len(order)))
        middle = draw(st.integers(cut, len(order)))
        branches = tuple(TilingExpr(tuple(x)) for x in (order[cut:middle], order[middle:]) if x)
        expr = TilingExpr(tuple(order[:cut]), branches) if len(branches) == 2 else TilingExpr(tuple(order))
        free = (("g", parts),) if "g" in block.extents else ()
        plans.append(KernelSchedule(tuple(sorted(tiles.items())), expr.without(gone), free))
    return Trial(case, tuple(plans))


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_schedules(name: str, data: st.DataObject) -> None:
    trial = data.draw(trials(name))
    agree(trial.case, *trial.plans)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 14, 20])
def test_parts_of_a_split_beyond_the_end_are_empty(parts: int) -> None:
    """Tiles of 4 over 14 keys make 4 tiles: with 5 and more parts some blocks have nothing to do."""
    agree(split_online(SMALL), schedule("n", ("g", parts), m=4, n=4), schedule("h", ("g", parts), m=3, h=4))
    agree(split_chain(SMALL), schedule("k", ("g", parts), m=4, k=2), schedule("gn", ("g", parts), n=4, g=2))


def test_figures_of_the_interpreter_at_larger_sizes() -> None:
    agree(online({"m": 96, "n": 200, "k": 48, "h": 40}), schedule("nk", m=32, n=64, k=16, h=40))
    agree(gemm_chain({"m": 128, "n": 100, "k": 80, "h": 72}), schedule("n(k,h)", m=64, n=32, k=32, h=16))


# -- masks and degenerate rows -------------------------------------------------------------------------------


def _program(build: Callable[[Builder], Any]) -> TensorProgram:
    b = Builder("p")
    return b.build(y=build(b))


def _both(program: TensorProgram, inputs: Mapping[str, Array], plan: KernelSchedule, stable: bool = True) -> tuple[Array, Array]:
    graph = fuse(program)
    if stable:
        graph = stabilize_graph(graph)
    return interpret(graph, Schedule((plan,)), inputs)["y"], program.evaluate(inputs)["y"]


def _attention(b: Builder, rows: int = 10, keys: int = 14, mask: bool = False, causal: bool = False) -> Any:
    q, k, v = b.input("q", (2, rows, 8)), b.input("k", (2, keys, 8)), b.input("v", (2, keys, 6))
    return b.attention(q, k, v, b.input("mask", (rows, keys)) if mask else None, causal)


ORDERS = ["n", "nh", "hn", "kn", "n(k,h)", "mn", "nm"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rows", "keys"), [(10, 14), (14, 10)])
def test_causal_attention(order: str, rows: int, keys: int, rng: np.random.Generator) -> None:
    """With more rows than keys the first rows see nothing: they are 0."""
    program = _program(lambda b: _attention(b, rows, keys, causal=True))
    tiles = {"b": 1, "m": 4, "n": 3, "k": 8 if "k" not in order else 3, "h": 6 if "h" not in order else 4}
    got, expected = _both(program, program.random_inputs(rng), schedule(order, **tiles))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    assert (np.abs(got[:, : max(rows - keys, 0)]) == 0).all()


@pytest.mark.parametrize("order", ORDERS)
def test_masked_rows_are_zero(order: str, rng: np.random.Generator) -> None:
    """A row without any key, and rows whose first tiles are masked."""
    program = _program(lambda b: _attention(b, mask=True))
    inputs = program.random_inputs(rng)
    inputs["mask"] = np.where(rng.random((10, 14)) < 0.5, -np.inf, 0)
    inputs["mask"][3] = -np.inf
    inputs["mask"][5, :9] = -np.inf
    got, expected = _both(
        program, inputs, schedule(order, b=1, m=4, n=3, k=3 if "k" in order else 8, h=6 if "h" not in order else 2)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    assert (got[:, 3] == 0).all() and np.isfinite(got).all()


def test_a_quotient_of_probabilities_is_that_of_the_program() -> None:
    """A softmax of a masked row is zero; what divides such zeros by their sum has 0 / 0."""
    b = Builder("ratio", dtype="float32")
    p, q = b.softmax(b.input("X", (4, 8))), b.softmax(b.input("Z", (4, 8)))
    graph = stabilize_graph(fuse(b.build(Y=p / (p + q), W=p)))
    x = np.zeros((4, 8))
    x[0], x[1, 0] = -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        found = evaluate_flat(FloatAlgebra(), graph, {"X": x, "Z": x}).tensors
    assert (found["W"][0] == 0).all()
    assert np.isnan(found["Y"][0]).all()
    assert np.isnan(found["Y"][1, 0])
    np.testing.assert_allclose(found["Y"][2:], 0.5)


def test_masked_rows_of_split_keys_are_zero() -> None:
    """Whole parts of a row are masked: partial maxima of -inf meet in the second kernel."""
    case = split_online(SMALL)
    first, second = case.graph.blocks
    masked: list[Stmt] = []
    for s in first.stmts:
        masked.append(replace(s, value="T") if s.value == "S" else replace(s, args=tuple(s.args)))
        if s.value == "S":
            masked += [load("B", "mn"), compute("S", "mn", "add", "TB")]
    graph = replace(case.graph, inputs=("Q", "K", "V", "B"), kernels=(replace(first, stmts=tuple(masked)), second)).validate()
    rng = np.random.default_rng(1)
    bias = np.where(rng.random((10, 14)) < 0.3, -np.inf, 0)
    bias[2], bias[4, :7], bias[6, 7:] = -np.inf, -np.inf, -np.inf
    inputs = case.inputs(rng) | {"B": bias}
    plan = Schedule((schedule("n", ("g", 4), m=4, n=2), schedule("", ("g", 4), m=4)))
    (got,) = interpret(graph, plan, inputs).values()
    scores = inputs["Q"] @ inputs["K"].T + bias
    scores[2] = 0
    expected = softmax(scores) @ inputs["V"]
    expected[2] = 0
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_what_is_guarded() -> None:
    assert guarded(online(SMALL).graph) == {("online", "X"), ("online", "R")}
    assert guarded(split_online(SMALL).graph) == {("part", "X"), ("join", "D"), ("join", "R")}
    assert not guarded(rms_gemm(SMALL).graph)  # its denominator sums no exponentials: 0/0 is NaN, as in the program


def test_large_scores_do_not_overflow(rng: np.random.Generator) -> None:
    case = online(SMALL)
    inputs = {n: x * 40 for n, x in case.inputs(rng).items()}
    (got,) = interpret(case.graph, Schedule((schedule("n", m=4, n=3),)), inputs).values()
    np.testing.assert_allclose(got, case.expected(inputs), rtol=1e-9)


# -- programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["k", "kn", "nk", "mk", ""])
def test_constants_follow_the_sizes(order: str, rng: np.random.Generator) -> None:
    """1/N of a mean stays 1/N at any size of the block."""
    program = _program(lambda b: b.op("mean", b.op("square", b.input("x", (12, 20))), axis=(-1,), keepdims=True))
    graph = fuse(program)
    for extents in ({}, {a.name: a.extent // 2 for a in graph.blocks[0].axes}):
        small = graph.with_extents(extents)
        x = rng.standard_normal(small.table["x"].shape)
        tiles = {a: 4 for a in order if a in small.extents}
        plan = KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(tuple(tiles)))
        got = interpret(small, Schedule((plan,)), {"x": x})["y"]
        np.testing.assert_allclose(got, (x**2).mean(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax"])
def test_composites(name: str, rng: np.random.Generator) -> None:
    attrs: dict[str, Any] = {"axis": -1} if name == "softmax" else {"eps": 1e-5}
    program = _program(lambda b: b.op(name, b.input("x", (6, 20)), **attrs))
    (reduced,) = fuse(program).blocks[0].reduced
    got, expected = _both(program, program.random_inputs(rng), schedule(reduced, **{reduced: 8}))
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_a_dimension_of_several_axes(rng: np.random.Generator) -> None:
    """Heads inside the last dimension, as a reshape leaves them: tiles of it are strided."""

    def build(b: Builder) -> Any:
        x, w = b.input("x", (5, 24)), b.input("w", (4, 6, 7))
        heads = b.op("transpose", b.op("reshape", x, shape=(5, 4, 6)), perm=(1, 0, 2))
        return b.op("reshape", b.op("transpose", b.op("matmul", heads, w), perm=(1, 0, 2)), shape=(5, 28))

    program = _program(build)
    got, expected = _both(program, program.random_inputs(rng), schedule("k", b=1, m=3, n=4, k=4))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_library_kernels_run_between_blocks(rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL, 1)
    first = LibraryKernel("turn", "transpose", ("At",), "A", (("perm", (1, 0)),))
    last = LibraryKernel("norm", "softmax", ("C",), "Y", (("axis", -1),))
    graph = KernelGraph("g", ("At", "B"), (first, case.block, last), ("Y",)).validate()
    a, b = rng.standard_normal((9, 10)), rng.standard_normal((9, 14))
    got = interpret(graph, Schedule((schedule("k", m=4, k=4),)), {"At": a, "B": b})["Y"]
    np.testing.assert_allclose(got, softmax(a.T @ b), rtol=1e-12)


def test_computes_in_the_dtype_that_is_asked_for(rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL)
    got = interpret(case.graph, Schedule((schedule("nk", n=4, k=4),)), case.inputs(rng), np.float32)["E"]
    assert got.dtype == np.float32


# -- what is refused -----------------------------------------------------------------------------------------


def test_an_element_written_twice_must_not_change(rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL, 1)
    *rest, last = case.block.stmts
    inputs = case.inputs(rng)
    with pytest.raises(ProgramError, match="already written"):
        graph_of(replace(case.block, stmts=(*rest, last, last)))

    def unchecked(*stmts: Stmt) -> KernelGraph:
        block = replace(case.block, stmts=(*rest, last, *stmts))
        return KernelGraph(block.name, block.inputs, (block,), block.outputs)

    same = unchecked(last)
    assert np.isfinite(interpret(same, Schedule((schedule("k", k=3),)), inputs)["C"]).all()
    changed = unchecked(compute("r", "mn", "relu", "C"), store("r", "mn", "C"))
    with pytest.raises(InterpretError, match="twice with different values"):
        interpret(changed, Schedule((schedule("k", k=3),)), inputs)


def test_an_output_that_is_only_partly_written_is_refused(rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL, 1)
    plan = schedule("k", k=4)
    _, plans = bind(case.block, plan)
    kernel = _kernel(case, plan)
    kernel.plans["m"] = replace(plans["m"], extent=8)  # a wrong plan: the last rows are left out
    with pytest.raises(InterpretError, match="28 elements of 'C' unwritten"):
        kernel.run()


def test_an_accumulator_read_too_early_is_refused() -> None:
    from fuser.ir.tiling import Init
    from fuser.ir.tiling import Loop
    from fuser.ir.tiling import LoopTree

    case = gemm_chain(SMALL, 1, "")
    kernel = _kernel(case, schedule("k", k=4))
    a, b, c, out = case.block.stmts
    assert (a.value, b.value, c.value, out.kind) == ("A", "B", "C", "store")
    kernel.tree = LoopTree((Init("C"), Loop("k", 3, (a, b, c, out))), (("C", "k"),), frozenset())
    with pytest.raises(InterpretError, match="before its loop has ended"):
        kernel.run()
    kernel.tree = LoopTree((Loop("k", 3, (a, b)), c, out), (), frozenset())
    with pytest.raises(InterpretError, match="'A' is not available"):
        kernel.run()
    kernel.tree = LoopTree((Loop("k", 3, (a, b, c)), out), (), frozenset())
    with pytest.raises(InterpretError, match="without Init"):
        kernel.run()


def _kernel(case: Case, plan: KernelSchedule) -> Any:
    from fuser.interpret import reference

    inputs = case.inputs(np.random.default_rng(0))
    return reference._Kernel(FloatAlgebra(), case.block, plan, inputs, frozenset())


def test_inputs_and_schedules_that_do_not_fit(rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL)
    inputs = case.inputs(rng)
    with pytest.raises(UsageError, match="needs the inputs"):
        interpret(case.graph, Schedule((schedule(""),)), {"A": inputs["A"]})
    with pytest.raises(UsageError, match="1 generated kernels, the schedule is for"):
        interpret(case.graph, Schedule(()), inputs)
    with pytest.raises(InterpretError, match="but the tensor has shape"):
        interpret(case.graph, Schedule((schedule(""),)), inputs | {"A": inputs["A"].T})


def test_a_library_kernels_constant_may_be_tied_to_an_intermediate(rng: np.random.Generator) -> None:
    root = Scalar.power(Extent("t", 1), Fraction(-1, 2))
    calls = (LibraryKernel("a", "relu", ("X",), "t"), LibraryKernel("b", "scale", ("t",), "Y", (("scalar", root),)))
    graph = KernelGraph("calls", ("X",), calls, ("Y",), (Tensor("X", (3, 16)), Tensor("Y", (3, 16))))
    x = rng.standard_normal((3, 16))
    np.testing.assert_array_equal(interpret(graph, Schedule(()), {"X": x})["Y"], np.maximum(x, 0) / 4)
    values = evaluate_flat(FloatAlgebra(), graph, {"X": x})
    np.testing.assert_array_equal(values.tensors["Y"], np.maximum(x, 0) / 4)


# -- another algebra -----------------------------------------------------------------------------------------


class Residues(FloatAlgebra):
    """Integers modulo a prime, for products and sums."""

    p = 2_147_483_629

    def empty(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, np.int64)

    def map(self, op: str, args: Sequence[Array], attrs: Mapping[str, Any], tile: Tile) -> Array:
        assert op == "square"
        return args[0] * args[0] % self.p

    def contract(self, op: str, spec: str, args: Sequence[Array]) -> Array:
        return np.einsum(spec, *(x.astype(object) for x in args)).astype(object) % self.p

    def fold(self, op: str, x: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(x, axis=axes) % self.p

    def combine(self, op: str, acc: Array, x: Array) -> Array:
        return (acc + x) % self.p

    def identity(self, op: str, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, np.int64)


@pytest.mark.parametrize("order", ["nk", "kn", "n(k,h)", "mhkn"])
def test_residues_agree_exactly_in_any_order(order: str, rng: np.random.Generator) -> None:
    case = gemm_chain(SMALL, 2, "square")
    inputs = {n: rng.integers(0, Residues.p, x.shape) for n, x in case.inputs(rng).items()}
    tensors = interpret_in(Residues(), case.graph, Schedule((schedule(order, m=4, n=4, k=4, h=4),)), inputs)
    a, b, d = (inputs[n].astype(object) for n in "ABD")
    assert (tensors["E"] == ((a @ b % Residues.p) ** 2 @ d) % Residues.p).all()
