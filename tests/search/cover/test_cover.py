"""The cover of a model: what parts there are, and that the integer program takes the cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from search.cover.ilp import _problem
from search.cover.ilp import cover
from search.cover.ilp import given
from search.cover.layouts import with_layouts
from search.cover.parts import Part
from search.cover.parts import parts
from search.cover.parts import stored_name
from search.cover.shown import moves_only


def random_program(rng: np.random.Generator, size: int, width: int = 16) -> TensorProgram:
    """Products, element-wise operators, normalizations and views of square matrices, some read several times."""
    b = Builder("random")
    made: list[Ref] = [b.input("X", (width, width)), b.input("W", (width, width))]
    for _ in range(size):
        x, y = (made[int(i)] for i in rng.integers(max(0, len(made) - 4), len(made), 2))
        kind = rng.choice(["matmul", "add", "relu", "softmax", "transpose", "gelu", "turned"])
        if kind == "turned":  # read through a view alone: it may be stored as that shows it
            made.append(b.op("transpose", x @ y, perm=(1, 0)))
        elif kind in ("matmul", "add"):
            made.append(b.op(str(kind), x, y))
        elif kind == "softmax":
            made.append(b.op("softmax", x, axis=-1))
        else:
            made.append(b.op("transpose", x, perm=(1, 0)) if kind == "transpose" else b.op(str(kind), x))
    return _live(b.build(**{f"Y{i}": r for i, r in enumerate(made[-2:]) if r.name not in ("X", "W")}))


def _live(program: TensorProgram) -> TensorProgram:
    needed = set(program.outputs)
    for node in reversed(program.nodes):
        if node.output in needed:
            needed |= set(node.inputs)
    return replace(
        program,
        nodes=tuple(n for n in program.nodes if n.output in needed),
        tensors=tuple(t for t in program.tensors if t.name in needed or t.name in program.inputs),
    ).validate()


def cheapest(program: TensorProgram, found: Sequence[Part], seconds: dict[Part, float]) -> float:
    """By trying every choice of parts that computes each operator once, and of copies that make what these lack."""
    copies = [p for p in found if not p.nodes]
    every = list(dict.fromkeys(n for p in found for n in p.nodes))
    results = {(n, 0) for n in program.outputs}
    best = float("inf")

    def runs(chosen: Sequence[Part]) -> bool:
        known, left = given(program), list(chosen)
        while ready := [p for p in left if set(p.takes) <= known]:
            known |= {s for p in ready for s in p.leaves}
            left = [p for p in left if p not in ready]
        return not left

    def copied(chosen: list[Part], cost: float) -> None:
        nonlocal best
        there = given(program) | {s for p in chosen for s in p.leaves}
        lack = ({s for p in chosen for s in p.takes} | results) - there
        if cost >= best:
            return
        if not lack:
            best = cost if runs(chosen) else best
            return
        wanted = min(lack)
        for copy in copies:
            if wanted in copy.leaves:
                copied([*chosen, copy], cost + seconds[copy])

    def visit(chosen: list[Part], done: set[str], cost: float) -> None:
        if cost >= best:
            return
        todo = next((n for n in every if n not in done), None)
        if todo is None:
            copied(chosen, cost)
            return
        for part in found:
            if todo in part.nodes and not done & set(part.nodes):
                visit([*chosen, part], done | set(part.nodes), cost + seconds[part])

    visit([], set(), 0.0)
    return best


def stored_as_views(program: TensorProgram, found: Sequence[Part]) -> list[Part]:
    """Parts that leave a result in memory as a view shows it."""
    return [p for p in found if p.nodes and any(moves_only(program.producers[w]) for w in p.writes)]


@pytest.mark.parametrize("block", range(8))
def test_as_cheap_as_every_choice(block: int) -> None:
    rng = np.random.default_rng(block)
    offered = chosen = 0
    for _ in range(25):
        program = random_program(rng, int(rng.integers(2, 9)))
        found = parts(program)
        seconds = {p: float(rng.integers(1, 20)) * 1e-6 + 1e-6 * len(p.nodes) ** 0.5 for p in found}
        result = cover(program, found, seconds)
        assert result.seconds == pytest.approx(cheapest(program, found, seconds), rel=1e-3)
        assert 0 <= result.gap <= 1e-4
        offered += len(stored_as_views(program, found))
        chosen += len(stored_as_views(program, result.parts))
    assert offered > chosen > 0, "both layouts of a result were taken"


@pytest.mark.parametrize("block", range(8))
def test_as_cheap_as_every_choice_of_layouts(block: int) -> None:
    """Rows of 19 columns may be stored in rows of 24; conversions have a price."""
    rng = np.random.default_rng(100 + block)
    chosen = converted = 0
    for _ in range(26):
        program = random_program(rng, int(rng.integers(2, 9)), width=19)
        found = with_layouts(program, parts(program), {"W"} if rng.random() < 0.5 else ())
        dear = float(rng.choice([0.1, 1.0]))  # conversions that pay, and some that hardly do
        seconds = {p: float(rng.integers(1, 20)) * 1e-6 * (1.0 if p.nodes else dear) for p in found}
        result = cover(program, found, seconds)
        assert result.seconds == pytest.approx(cheapest(program, found, seconds), rel=1e-3)
        chosen += any(pitch for p in result.parts for _, pitch in p.leaves)
        converted += any(not p.nodes for p in result.parts)
    assert chosen > 0
    assert 0 < converted < 26


def test_of_nothing_there_is_an_empty_cover() -> None:
    b = Builder("nothing")
    x = b.input("x", (4, 4))
    nothing = replace(b.build(y=x.T), nodes=(), outputs=("x",))
    assert cover(nothing, [], {}).parts == ()


def test_without_time_there_is_the_cheapest_cover_or_none() -> None:
    """What the solver had of the relaxation when its time was up is none."""
    for seed in range(10):
        program = random_program(np.random.default_rng(seed), 8)
        found = parts(program)
        seconds = {p: 1e-6 * (1 + len(p.nodes)) for p in found}
        try:
            hasty = cover(program, found, seconds, limit=0.0)
        except NoValidKernelError as error:
            assert "no cover in its time" in error.message
        else:
            assert hasty.seconds == pytest.approx(cover(program, found, seconds).seconds)


def test_what_must_be_among_them_is() -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        program = random_program(rng, 6)
        found = parts(program)
        seconds = {p: float(rng.integers(1, 20)) * 1e-6 for p in found}
        best = cover(program, found, seconds)
        for part in best.parts:
            assert cover(program, found, seconds, among=(part,)).seconds == pytest.approx(best.seconds, rel=1e-3)
        for part in (p for p in found if p.nodes and p not in best.parts):
            try:
                other = cover(program, found, seconds, among=(part,))
            except NoValidKernelError:
                continue
            assert part in other.parts
            assert other.seconds >= best.seconds * (1 - 1e-3)


def test_the_integer_program_of_a_small_model(golden: Any, tmp_path: Path) -> None:
    """Two layouts of the heads, an epilogue, a residual: what the solver is given, to the letter."""
    b = Builder("heads")
    x, w, v = b.input("X", (8, 64)), b.input("W", (64, 64)), b.input("V", (16, 16))
    heads = b.op("transpose", b.op("reshape", b.gelu(x @ w), shape=(8, 4, 16)), perm=(1, 0, 2))
    program = b.build(Y=b.op("softmax", heads @ v, axis=-1) + heads)
    found = parts(program)
    seconds = {p: 1e-6 * (2 + i % 5) for i, p in enumerate(found)}
    golden.check("cover/heads.lp", lp_text(program, found, seconds, tmp_path))


def test_the_integer_program_of_layouts(golden: Any, tmp_path: Path) -> None:
    """Two products through rows of 19 columns, which may lie in rows of 24, and back."""
    b = Builder("narrow")
    x, w, v = b.input("X", (32, 64)), b.input("W", (64, 19)), b.input("V", (19, 64))
    program = b.build(Y=b.relu(x @ w) @ v)
    found = with_layouts(program, parts(program), ("W", "V"))
    seconds = {p: 1e-6 * (2 + i % 5) for i, p in enumerate(found)}
    golden.check("cover/narrow.lp", lp_text(program, found, seconds, tmp_path))


def lp_text(program: TensorProgram, found: Sequence[Part], seconds: dict[Part, float], folder: Path) -> str:
    """What the solver is given, and what its columns are."""
    _problem(program, found, seconds).problem.writeLP(str(folder / "cover.lp"))
    columns = [
        f"\\* x_{i}: {' '.join(p.nodes) or 'copy'} from {' '.join(map(stored_name, p.takes))} "
        f"to {' '.join(map(stored_name, p.leaves))} *\\"
        for i, p in enumerate(found)
    ]
    return "\n".join(columns) + "\n" + (folder / "cover.lp").read_text()


def test_what_cannot_hold_together_is_named() -> None:
    program = chain()
    product, epilogue = (n.output for n in program.nodes[:2])
    found = [p for p in parts(program) if p.nodes != (epilogue,)]
    (alone,) = (p for p in found if p.nodes == (product,))
    says = rf"these cannot hold together: {product} is computed once; {epilogue} is computed once; one of 1 given parts is chosen"
    with pytest.raises(NoValidKernelError, match=says):
        cover(program, found, dict.fromkeys(found, 1e-6), among=(alone,))


def test_a_result_in_no_row_after_row_is_named() -> None:
    b = Builder("narrow")
    x, w = b.input("X", (32, 64)), b.input("W", (64, 19))
    program = b.build(Y=b.relu(x @ w))
    found = [p for p in with_layouts(program, parts(program), ("W",)) if p.nodes and ("Y", 24) in p.leaves]
    with pytest.raises(NoValidKernelError, match=r"'Y' of 'narrow' is wanted row after row, and all that makes it leaves Y@24"):
        cover(program, found, dict.fromkeys(found, 1e-6))


def test_every_part_computes_what_the_model_does() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        program = random_program(rng, 7)
        inputs = program.random_inputs(rng)
        values = program.evaluate(inputs, keep=[n.output for n in program.nodes]) | inputs
        for part in parts(program):
            names = dict(part.names)
            got = part.program.evaluate({names[n]: values[n] for n in part.reads})
            for name in part.writes:
                np.testing.assert_allclose(got[names[name]], values[name], rtol=1e-9)


def chain() -> TensorProgram:
    b = Builder("layer")
    x, w, v = b.input("X", (64, 32)), b.input("W", (32, 64)), b.input("V", (64, 32))
    y = b.gelu(x @ w)
    return b.build(Y=b.op("layer_norm", (y @ v) + x, eps=1e-5))


def test_epilogues_and_rows_are_candidates() -> None:
    ops = {tuple(n.op for n in p.program.nodes) for p in parts(chain())}
    assert {("matmul",), ("matmul", "gelu"), ("matmul", "add"), ("layer_norm",), ("add", "layer_norm")} <= ops


def test_a_view_that_alone_is_read_may_be_stored() -> None:
    b = Builder("heads")
    x, w = b.input("X", (8, 64)), b.input("W", (64, 64))
    heads = b.op("transpose", b.op("reshape", x @ w, shape=(8, 4, 16)), perm=(1, 0, 2))
    program = b.build(Y=b.op("softmax", heads, axis=-1))
    made = {p.writes for p in parts(program) if any(n.op == "matmul" for n in p.program.nodes) and len(p.nodes) == 1}
    assert made == {(program.nodes[0].output,), (program.nodes[2].output,)}


def test_what_comes_back_is_not_one_step() -> None:
    b = Builder("diamond")
    x, w = b.input("X", (16, 16)), b.input("W", (16, 16))
    y = b.relu(x)
    program = b.build(Y=y + (y @ w))
    first, product, last = (n.output for n in program.nodes)
    assert not any({first, last} <= set(p.nodes) and product not in p.nodes for p in parts(program))


def test_what_nothing_can_compute_is_named() -> None:
    program = chain()
    found = [p for p in parts(program) if not any(n.op == "layer_norm" for n in p.program.nodes)]
    with pytest.raises(NoValidKernelError, match=r"layer_norm\(…\) of 'layer'"):
        cover(program, found, dict.fromkeys(found, 1e-6))


@pytest.mark.parametrize(("depth", "wanted"), [(2048, True), (512, False)])
def test_a_norm_may_join_a_long_product_whose_rows_others_read(depth: int, wanted: bool) -> None:
    b = Builder("norm")
    rows = b.input("X", (32, depth)) @ b.input("W", (depth, 64)) + b.input("R", (32, 64))
    norm = b.op("layer_norm", rows, b.input("G", (64,)), b.input("B", (64,)), eps=1e-5)
    found = parts(b.build(Y=b.op("relu", rows), Z=b.op("gelu", norm)))
    assert any({rows.name, norm.name} == set(p.writes) for p in found) == wanted


def test_a_maximum_that_others_read_leaves_beside_the_sum_of_its_row() -> None:
    """Not so a sum of columns: no kernel of rows has it."""
    b = Builder("rows", "float32")
    x, few = b.input("X", (64, 512)), b.input("F", (64, 1))
    top = b.op("max", x, axis=(1,), keepdims=True)
    across = b.op("sum", b.op("square", x), axis=(0,), keepdims=True)
    total = b.op("sum", b.op("exp", x - top) + across, axis=(1,), keepdims=True)
    program = b.build(Y=b.op("log", total) + few, Z=top * few, W=b.op("exp", across))
    kept = [p for p in parts(program) if len(p.writes) > 1 and {"max", "exp", "sum"} <= {n.op for n in p.program.nodes}]
    assert any(program.producers[w].op == "max" for p in kept for w in p.writes)
    assert all(across.name not in p.writes for p in kept)
