"""Parts that differ in where slices of their inputs begin are priced once, and are what they would be by themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.device import Device
from fuser.device import load_device
from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from search.cover import prices
from search.cover.beginnings import Move
from search.cover.beginnings import from_the_beginning
from search.cover.beginnings import put_back
from search.cover.parts import Part
from search.cover.parts import parts
from search.cover.prices import priced
from search.tune import graph_seconds

H200 = load_device("h200")


def step(t: int, steps: int = 12, width: int = 64, bias: bool = True) -> TensorProgram:
    """gelu(x[:, t] W + b), as a loop over steps writes it out."""
    b = Builder("step")
    x, w = b.input("X", (32, steps, width)), b.input("W", (width, 96))
    y = b.op("reshape", b.op("slice", x, axis=1, start=t, stop=t + 1), shape=(32, width)) @ w
    return b.build(Y=b.gelu(b.op("add", y, b.input("B", (96,))) if bias else y))


def test_slices_begin_where_they_are_aligned_alike() -> None:
    first, moves = from_the_beginning(step(7))
    cut = step(7).nodes[0].output
    assert first == from_the_beginning(step(3))[0] == step(0) and moves == {cut: Move(1, 7, 7, "X", 64)}
    assert from_the_beginning(step(0)) == (step(0), {})
    assert from_the_beginning(step(7), fixed=("X",)) == (step(7), {})
    odd = [from_the_beginning(step(t, width=12))[0] for t in (1, 2, 3, 4, 5)]  # rows of 24 bytes
    assert odd[0] == odd[2] == odd[4] == step(1, width=12)
    assert odd[1] == step(2, width=12) and odd[3] == step(0, width=12)


def test_of_two_slices_both_stay() -> None:
    b = Builder("two")
    x = b.input("X", (32, 12, 64))
    left, right = (b.op("slice", x, axis=1, start=n, stop=n + 4) for n in (3, 5))
    program = b.build(Y=b.op("add", left, right))
    assert from_the_beginning(program) == (program, {})


def chunk(t: int, steps: int = 8) -> TensorProgram:
    """Keys times values of a chunk of a packed projection, as a loop over chunks writes it out."""
    b = Builder("chunk")
    x = b.input("X", (4, 16 * steps, 192))
    sides = []
    for start in (64, 128):
        own = b.op("reshape", b.op("slice", x, axis=2, start=start, stop=start + 64), shape=(4, steps, 16, 64))
        own = b.op("slice", b.op("transpose", own, perm=(1, 0, 2, 3)), axis=0, start=t, stop=t + 1)
        sides.append(b.op("reshape", own, shape=(4, 16, 64)))
    return b.build(Y=b.op("transpose", sides[0], perm=(0, 2, 1)) @ sides[1])


def test_what_all_slices_have_in_common_is_moved() -> None:
    for t in range(1, 8):
        first, moves = from_the_beginning(chunk(t))
        assert first == chunk(0) and {(m.axis, m.by, m.stride) for m in moves.values()} == {(0, t, 16 * 192)} and len(moves) == 2


def parts_of_numbers(t: int, part: int) -> TensorProgram:
    """A step of the real or the imaginary parts of complex numbers."""
    b = Builder("numbers")
    own = b.op("slice", b.input("X", (32, 12, 64, 2)), axis=3, start=part, stop=part + 1)
    own = b.op("slice", b.op("reshape", own, shape=(32, 12, 64)), axis=1, start=t, stop=t + 1)
    return b.build(Y=b.op("reshape", own, shape=(32, 64)) @ b.input("W", (64, 96)))


def test_slices_of_slices_are_moved() -> None:
    for part in (0, 1):
        first, moves = from_the_beginning(parts_of_numbers(7, part))
        assert first == parts_of_numbers(0, part) and [(m.axis, m.by, m.stride) for m in moves.values()] == [(1, 7, 128)]


def test_what_is_a_box_only_at_the_beginning_is_searched_by_itself() -> None:
    b = Builder("rows")
    rows = b.op("reshape", b.input("X", (3, 3, 16)), shape=(9, 16))
    program = b.build(Y=b.op("slice", rows, axis=0, start=1, stop=7) @ b.input("W", (16, 16)))
    first, moves = from_the_beginning(program)
    found = prices._best(prices._Asked(first, ((),), (), None), H200, True, 0)[()]
    assert moves and found is not None and put_back(found, program, moves) is None  # two of three, or three of nine


def test_what_lies_in_no_rows_stays() -> None:
    b = Builder("folded")
    x = b.op("reshape", b.op("slice", b.input("X", (32, 12, 64)), axis=1, start=0, stop=6), shape=(192, 64))
    program = b.build(Y=b.gelu(b.op("slice", x, axis=0, start=8, stop=9)))
    assert from_the_beginning(program) == (program, {})  # rows of a slice side by side are a copy


def within() -> TensorProgram:
    """A column of a slice of a column, both of which are moved by as much."""
    b = Builder("within", "float32")
    x = b.op("reshape", b.op("slice", b.input("X", (8, 4)), axis=1, start=3, stop=4), shape=(8,))
    x = b.op("slice", b.op("slice", x, axis=0, start=2, stop=7), axis=0, start=3, stop=5)
    return b.build(Y=b.op("reshape", x, shape=(1, 2)) @ b.input("W", (2, 16)))


@pytest.mark.parametrize(
    "program", [within(), chunk(3), chunk(7), parts_of_numbers(5, 0), parts_of_numbers(5, 1)], ids=lambda p: p.name
)
def test_what_was_moved_is_put_back(program: TensorProgram) -> None:
    first, moves = from_the_beginning(program)
    found = prices._best(prices._Asked(first, ((),), (), None), H200, True, 0)[()]
    assert found is not None and found.winner.graph.blocks
    back = put_back(found, program, moves)
    by_itself = prices._best(prices._Asked(program, ((),), (), None), H200, True, 0)[()]
    assert back is not None and by_itself is not None and back.winner.seconds == by_itself.winner.seconds
    assert graph_seconds(back.winner.candidate, H200) == graph_seconds(by_itself.winner.candidate, H200)
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    wanted = program.evaluate(inputs)
    for ranked in (back.winner, *back.runners[:3]):
        made = interpret(ranked.graph, ranked.schedule, inputs)
        for name, value in wanted.items():
            np.testing.assert_allclose(made[name], value, rtol=1e-6, atol=1e-9)


@st.composite
def read_in_places(draw: st.DrawFn) -> TensorProgram:
    """A product of what a few slices, transposes and reshapes leave of an input."""
    b = Builder("read", "float32")
    x = b.input("X", tuple(draw(st.lists(st.sampled_from([2, 3, 4, 6, 8]), min_size=2, max_size=4))))
    for kind in draw(st.lists(st.sampled_from(["slice", "slice", "transpose", "merge"]), min_size=1, max_size=5)):
        axis = draw(st.integers(0, len(x.shape) - 1))
        if kind == "slice" and x.shape[axis] > 1:
            start = draw(st.integers(0, x.shape[axis] - 1))
            x = b.op("slice", x, axis=axis, start=start, stop=draw(st.integers(start + 1, x.shape[axis])))
        elif kind == "transpose":
            x = b.op("transpose", x, perm=tuple(draw(st.permutations(range(len(x.shape))))))
        elif axis + 1 < len(x.shape):
            x = x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return b.build(Y=x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) @ b.input("W", (x.shape[-1], 16)))


@settings(max_examples=60, deadline=None)
@given(read_in_places())
def test_whatever_was_moved_is_put_back(program: TensorProgram) -> None:
    first, moves = from_the_beginning(program)
    found = prices._best(prices._Asked(first, ((),), (), None), H200, True, 0)[()]
    if not moves or found is None or (back := put_back(found, program, moves)) is None:
        return
    inputs = program.random_inputs(np.random.default_rng(0))
    made = interpret(back.winner.graph, back.winner.schedule, inputs)
    np.testing.assert_allclose(made["Y"], program.evaluate(inputs)["Y"], rtol=1e-6, atol=1e-6)


def test_steps_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    several: dict[int, tuple[Part, ...]] = {t: parts(step(t)) for t in (0, 3, 7)}
    asked: list[TensorProgram] = []
    real = prices._best

    def best(one: prices._Asked, device: Device, libraries: bool, seed: int) -> prices.Laid:
        asked.append(one.program)
        return real(one, device, libraries, seed)

    monkeypatch.setattr(prices, "_best", best)
    found = priced([p for ps in several.values() for p in ps], H200)
    assert len(asked) == len(set(asked)) == len({from_the_beginning(p.program)[0] for p in found})
    rng = np.random.default_rng(0)
    for t, ps in several.items():
        (whole,) = (p for p in ps if len(p.nodes) == 3 and p in found)
        tuned = found[whole]
        assert tuned.program == whole.program
        starts = {a.window.starts for b in tuned.winner.graph.blocks for s in b.loads if (a := s.at).window}
        assert {s[1] for s in starts} == {t}
        assert graph_seconds(tuned.winner.candidate, H200) == pytest.approx(tuned.winner.seconds)
        inputs = {n: rng.standard_normal(whole.program[n].shape) for n in whole.program.inputs}
        made = interpret(tuned.winner.graph, tuned.winner.schedule, inputs)
        for name, wanted in whole.program.evaluate(inputs).items():
            np.testing.assert_allclose(made[name], wanted, rtol=1e-6, atol=1e-9)
        asked_alone = prices._Asked(whole.program, ((),), (), None)
        by_itself = real(asked_alone, H200, True, 0)[()]
        assert by_itself is not None and by_itself.winner.seconds == tuned.winner.seconds


def test_calls_of_a_library_read_where_they_are_told() -> None:
    b = Builder("sorted")
    x = b.input("X", (8, 12, 64))
    program = b.build(Y=b.op("argsort", b.op("slice", x, axis=1, start=3, stop=4), dim=2, descending=False))
    first, moves = from_the_beginning(program)
    tuned = prices.by_library(first, H200)
    assert tuned is not None and moves
    back = put_back(tuned, program, moves)
    assert back is not None
    cut = back.winner.graph.kernels[0]
    assert isinstance(cut, LibraryKernel) and dict(cut.attrs)["start"] == 3
