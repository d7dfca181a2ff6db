"""Prices of parts are kept: found again to the letter, by another process too, and never of other source, devices or options."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from typing import TypeVar

import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from search.cover import offers
from search.cover import prices
from search.cover.joint_price import joint_seconds
from search.cover.parts import Part
from search.cover.parts import parts
from search.cover.prices import begun
from search.cover.prices import by_library
from search.cover.prices import priced
from search.ranked import Tuned
from search.tune import judged
from tests.builders import attention

R = TypeVar("R")
H200 = load_device("h200")
LONG = attention(1024, 2048, 64, 64, 32)


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Part, ...]:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    b = Builder("few")
    x, w, bias = b.input("X", (512, 32)), b.input("W", (32, 3072)), b.input("B", (3072,))
    return parts(b.build(Y=b.op("cumsum", b.gelu(b.op("add", x @ w, bias)), dim=1)))


def same(a: Tuned, b: Tuned) -> bool:
    return repr((a.winner, a.runners, a.structures, a.candidates, a.notes)) == repr(
        (b.winner, b.runners, b.structures, b.candidates, b.notes)
    )


def never(*_: object) -> None:
    raise AssertionError("tuned again")


def test_what_was_found_is_found_again(few: tuple[Part, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    first = priced(few, H200)
    assert any(t.runners for t in first.values())
    assert any(JOINED in dict(k.attrs) for t in first.values() for k in t.winner.graph.kernels if isinstance(k, LibraryKernel))
    monkeypatch.setattr(prices, "_best", never)
    again = priced(few, H200)
    assert again.keys() == first.keys()
    assert all(same(first[p], again[p]) for p in first)


def test_other_devices_options_and_damaged_files_are_tuned_again(
    few: tuple[Part, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = priced(few, H200)
    files = sorted((tmp_path / "prices").iterdir())
    assert len(files) == len({p.program.stable_hash() for p in few})
    files[0].write_text(files[0].read_text()[:-9])
    files[1].write_text("")
    asked: list[str] = []
    real = prices._best

    def counted(program, device, libraries, seed):
        asked.append(device.name)
        return real(program, device, libraries, seed)

    monkeypatch.setattr(prices, "_best", counted)
    again = priced(few, H200)
    assert len(asked) == 2
    assert all(same(first[p], again[p]) for p in first)
    priced(few, replace(H200, memory_bandwidth=H200.memory_bandwidth / 2))
    assert len(asked) == 2 + len(files)
    priced(few, H200, libraries=False)
    assert len(asked) == 2 + 2 * len(files)


def test_a_part_with_several_products_has_them_in_one_kernel() -> None:
    b = Builder("two")
    x, w, v = b.input("X", (512, 64)), b.input("W", (64, 512)), b.input("V", (512, 64))
    program = b.build(Y=b.relu(x @ w) @ v)
    (both,) = (p for p in parts(program, [frozenset(n.output for n in program.nodes)]) if len(p.nodes) == 3)
    (alone,) = priced([both], H200).values()
    (fused,) = priced([both], H200, worth={both.program.stable_hash(): 1.0}).values()
    assert any(len(r.graph.blocks) == 1 < len(r.graph.kernels) or len(r.graph.blocks) > 1 for r in alone.runners)
    for ranked in (fused.winner, *fused.runners):
        assert any(sum(s.op == "matmul" for s in block.computes) == 2 for block in ranked.graph.blocks)
    best = min(judged(r) for r in (alone.winner, *alone.runners) if len(r.graph.kernels) == 1)
    assert judged(fused.winner) <= best


def test_of_a_table_what_is_looked_up_is_read_and_rows_are_folded_as_they_are_read() -> None:
    def looked_up(rows: int, axis: int) -> float:
        b = Builder("looked_up", "float32")
        x = b.op("embedding", b.input("T", (rows, 128)), b.input("I", (512, 64), "int64"))
        return joint_seconds(b.build(Y=b.op("tanh", b.op("sum", b.op("square", x), axis=(axis,), keepdims=False))), H200) or 0.0

    assert looked_up(10**5, -1) == looked_up(10**7, -1)
    assert looked_up(10**5, 1) > looked_up(10**5, -1) + 15e-6  # one row behind the other


def test_folds_of_a_few_elements_are_arithmetic_within_a_kernel() -> None:
    def twice(few: int) -> float:
        b = Builder("twice", "float32")
        x = b.input("X", (1024, 2**14 // few, few))
        inner = b.op("prod", b.op("square", x), dim=-1, keepdim=False)
        return joint_seconds(b.build(Y=b.op("sum", b.op("tanh", inner), axis=(1,), keepdims=False)), H200) or 0.0

    assert twice(2) == twice(4) < twice(16)


def test_rows_and_the_sum_of_what_they_leave_are_read_once() -> None:
    def loss(total: bool) -> float:
        b = Builder("loss", "float32")
        y = b.op("sum", b.op("softmax", b.input("X", (4096, 1000)), axis=-1) * b.input("Y", (4096, 1000)), axis=(1,))
        return joint_seconds(b.build(Z=b.op("sum", y, axis=(0,)) if total else y), H200) or 0.0

    assert loss(False) < loss(True) < loss(False) + 5e-6


def test_whole_numbers_that_are_compared_are_no_places() -> None:
    def counted(dtype: str) -> float:
        b = Builder("counted", "float32")
        x, y = b.input("X", (512, 512), dtype), b.input("Y", (512, 512), dtype)
        same = b.op("cast", b.op("eq", x.reshape(512, 1, 512), y.reshape(512, 512, 1)), dtype="float32")
        return joint_seconds(b.build(Z=b.op("tanh", b.op("sum", same, axis=(1,)))), H200) or 0.0

    assert abs(counted("int64") - counted("float32")) < 5e-6


def test_what_holds_a_part_that_takes_longer_by_far_is_left() -> None:
    b = Builder("attention")
    q, k, v = (b.input(n, (8, 128, 64)) for n in "QKV")
    program = b.build(Y=b.op("scale", b.softmax(b.op("tanh", q) @ k.T) @ v, scalar=2))
    names = [n.output for n in program.nodes]
    several = parts(program, [frozenset(names[1:-1]), frozenset(names)])
    inner, outer = (p for p in several if sum(n.products for n in p.program.nodes) == 2)
    (tuned,) = priced([inner], H200).values()
    takes = tuned.winner.seconds

    def left(times: float, found: Mapping[Part, Tuned]) -> list[Part]:
        worth = {p.program.stable_hash(): takes * times for p in (inner, outer)}
        return offers._hopeful([inner, outer], worth, found)

    assert left(1.0, {inner: tuned}) == left(inf, {inner: tuned}) == [inner, outer]
    assert left(0.4, {}) == [inner, outer], "nothing is known"
    assert left(0.4, {inner: tuned}) == [inner], "which holds none"


class Elsewhere(Executor):
    """Other processes, as far as callers see: work is done when somebody waits for it."""

    def __init__(self) -> None:
        self.asked, self.done = 0, 0

    def map(self, fn: Callable[..., R], *given: Iterable[Any], timeout: float | None = None, chunksize: int = 1) -> Iterator[R]:
        work = list(zip(*given, strict=False))
        self.asked += len(work)
        return (self._do(fn, args) for args in work)

    def _do(self, fn: Callable[..., R], args: tuple[Any, ...]) -> R:
        self.done += 1
        return fn(*args)


def test_a_form_is_asked_for_while_another_is_priced(few: tuple[Part, ...]) -> None:
    """What both have in common is priced once."""
    others, known, coming = Elsewhere(), dict[str, Tuned | None](), set[str]()
    begin = partial(begun, device=H200, executor=others, known=known, coming=coming)
    first, second = begin(few[:2]), begin(few)
    assert (others.asked, others.done) == (len({p.key for p in few}), 0)
    assert first().keys() == set(few[:2])
    assert second().keys() == priced(few, H200).keys()
    assert others.done == others.asked


def test_the_compiler_s_kernels_compute_places_for_each_element() -> None:
    """Of what is looked up and joined all parts for each element of the whole, and what is folded within a window."""

    def pairs(several: int) -> float:
        b = Builder("pairs", "float16")
        x, at = b.input("X", (2048, 26, 16)), b.input("I", (325,), "int64")
        rows = [b.op("index_select", x, at, dim=1) for _ in range(2 * several)]
        made = [rows[i] * rows[i + 1] for i in range(0, 2 * several, 2)]
        y = b.op("concat", *made, axis=1) if several > 1 else made[0]
        return joint_seconds(b.build(Y=y), H200) or 0.0

    assert pairs(2) > 3 * pairs(1)

    def folded(windows: bool) -> float:
        b = Builder("windows", "float16")
        x, w = b.input("X", (8, 16, 56, 56)), b.input("W", (8, 16, 9, 3136))
        rows = b.op("unfold", x, kernel_size=(3, 3), padding=(1, 1)) if windows else b.input("R", (8, 144, 3136))
        y = b.op("sum", b.op("reshape", rows, shape=(8, 16, 9, 3136)) * w, axis=(2,), keepdims=False)
        return joint_seconds(b.build(Y=y), H200) or 0.0

    assert folded(True) > 1.1 * folded(False)


def test_rows_that_are_folded_beside_columns_are_read_by_sectors() -> None:
    def us(turned: bool, beside: bool) -> float:
        b = Builder("nearness", "float32")
        x, y = b.input("X", (4096, 4096)), b.input("Y", (4096, 4096))
        z = b.op("transpose", y, perm=(1, 0)) if turned else y
        return 1e6 * (joint_seconds(b.build(Z=b.op("sum", b.op("abs", x + z if beside else z), axis=(1,))), H200) or 0.0)

    assert us(True, True) > 3 * us(False, True)
    assert us(True, False) == us(False, False)  # whose rows are columns is read along them


def test_rows_that_leave_as_columns_of_what_folds_rows_are_written_by_sectors() -> None:
    def us(folds: bool, turned: bool) -> float:
        b = Builder("maps")
        x = b.input("x", (3, 100, 209, 209), "float32")
        y = x / b.op("sum", b.op("abs", x), axis=(3,), keepdims=True) if folds else b.op("tanh", b.op("abs", x))
        return 1e6 * (joint_seconds(b.build(Y=y.transpose(0, 2, 3, 1) if turned else y), H200) or 0.0)

    assert us(False, True) == us(False, False)
    assert us(True, False) < 70 < 110 < us(True, True)


def test_attention_step_by_step_moves_its_scores() -> None:
    b = Builder("attention", "float32")
    q, k, v = (b.input(n, (256, 400, 32)) for n in "QKV")
    found = by_library(b.build(Y=b.op("attention", q, k, v, scale=1.0)), H200)
    assert found is not None and found.winner.seconds > 5 * 256 * 400 * 400 * 4 / 4.8e12


def us(b: Builder, y: Ref) -> float:
    return 1e6 * (joint_seconds(b.build(Y=y), H200) or 0.0)


def test_what_several_read_cut_otherwise_is_written_where_it_is_long_to_compute() -> None:
    def parted(terms: int) -> float:
        b = Builder("parted", "float32")
        y = b.input("X", (8192, 1024))
        for i in range(terms):
            y = b.op("tanh", y) if terms < 5 and i else y + b.input(f"Z{i}", (1024,))
        first, rest = (b.op("slice", y, axis=0, start=s, stop=e) for s, e in ((0, 4096), (4096, 8192)))
        return us(b, b.op("concat", b.relu(rest), b.op("abs", first), axis=0))

    assert parted(5) > parted(2) + 5  # 64 MB more, twice


def test_what_is_spread_is_computed_for_each_and_once_for_neighbours() -> None:
    def pairs(front: bool, special: int = 8) -> float:
        b = Builder("pairs", "float32")
        x = b.input("X", (2048,))
        for _ in range(special):
            x = b.op("log1p", b.op("square", x))
        y = x.reshape(1, 2048) if front else x.reshape(2048, 1)
        return us(b, b.op("sum", b.op("mul", y, b.input("Z", (2048, 2048))), axis=(1,), keepdims=False))

    assert pairs(True) > 2 * pairs(True, 1)
    assert pairs(True) > 1.5 * pairs(False)


def test_resized_images_and_divisions_take_their_time() -> None:
    def attracted(resized: bool) -> float:
        b = Builder("attracted", "float16")
        x, points = b.input("X", (2, 64, 96, 128)), b.input("P", (2, 8, 1, 192, 256))
        larger = b.op("resize", x, output_size=(192, 256), mode="linear") if resized else b.input("L", (2, 64, 192, 256))
        gap = b.op("sub", points, larger.reshape(2, 1, 64, 192, 256))
        return us(b, b.op("mean", b.op("square", gap), axis=(1,), keepdims=False))

    assert attracted(True) > 3 * attracted(False)


def test_parts_of_a_long_series_are_computed_once() -> None:
    """A kernel that joins two computes both for each element; of 32 each is written to its place. What overlapping parts of one
    tensor read is written before it is read too often: a tree of 28 steps is no 2 to the power of 28."""

    def joined(many: int) -> float:
        b = Builder("series")
        x = b.input("X", (2**20,))
        parts = [b.op("power", x, b.op("scale", x, scalar=float(i + 1))) for i in range(many)]
        return joint_seconds(b.build(Y=b.op("concat", *parts, axis=0)), H200) or 0.0

    assert joined(32) < 5 * joined(8)

    def tree(steps: int) -> float:
        b = Builder("tree")
        x = b.input("X", (4096, steps + 1))
        y = b.op("exp", x)
        for n in range(steps, 0, -1):
            y = b.op("tanh", b.op("slice", y, axis=1, start=1, stop=n + 1) + b.op("slice", y, axis=1, start=0, stop=n))
        return joint_seconds(b.build(Y=y), H200) or 0.0

    assert tree(24) < 6 * tree(8)


def test_parts_that_lie_side_by_side_are_no_shifts() -> None:
    """Steps of noise that was joined are read once each; 24 shifted parts of lines are not for torch's compiler."""

    def priced(shifted: bool) -> bool:
        b = Builder("steps")
        x = b.op("concat", b.op("neg", b.input("X", (24, 4096))), b.input("Z", (24, 4096)), axis=1)
        axis, size = (1, 8000) if shifted else (0, 1)
        parts = [b.op("slice", x, axis=axis, start=i, stop=i + size) for i in range(24)]
        y = parts[0]
        for part in parts[1:]:
            y = b.op("tanh", y + part)
        return joint_seconds(b.build(Y=y), H200) is not None

    assert priced(False) and not priced(True)


def test_long_chains_are_parts_of_a_few_sizes() -> None:
    b = Builder("chain")
    y = b.input("X", (64, 64))
    for _ in range(60):
        y = b.op("tanh", y)
    sizes = {len(p.nodes) for p in parts(b.build(Y=y)) if p.writes == ("Y",)}
    assert sizes == {1, 2, 4, 8, 16, 48}


def test_long_rows_are_read_again_by_what_needs_their_fold() -> None:
    def seconds(make: Callable[[Builder, Any], Any], rows: int) -> float:
        b = Builder("long", "float32")
        return joint_seconds(b.build(Y=make(b, b.input("X", (rows, 32000)))), H200, doubted=True) or 0.0

    def summed(b: Builder, x: Any) -> Any:
        return b.op("sum", b.op("square", x), axis=(1,))

    def twice(b: Builder, x: Any) -> Any:
        return b.op("sum", b.op("square", x - b.op("mean", x, axis=(1,), keepdims=True)), axis=(1,))

    assert seconds(twice, 2048) > 1.8 * seconds(summed, 2048)
    few = seconds(lambda b, x: b.op("logsumexp", x, axis=(1,)), 64)
    assert seconds(summed, 64) + 4e-6 < few < seconds(summed, 64) + 12e-6  # maxima too, and what puts their parts together


def test_scans_of_few_columns_read_sectors() -> None:
    def scanned(rows: int, columns: int) -> float:
        b = Builder("scanned", "float32")
        x = b.input("X", (2**24 // (rows * columns), rows, columns))
        return joint_seconds(b.build(Y=b.op("exp", b.op("cumsum", x, dim=1))), H200) or 0.0

    assert scanned(8192, 256) > 1.5 * scanned(512, 1024)


def test_rows_become_others_within_a_block() -> None:
    """A sum so far along rows that are short is read where it is made; what is folded across them goes to memory."""

    def most(axis: int) -> float:
        b = Builder("so_far", "float32")
        y = b.op("cumsum", b.input("X", (2**16, 256)), dim=1)
        found = joint_seconds(b.build(A=b.op("max", y, axis=(1,)), B=b.op("sum", b.op("square", y), axis=(axis,))), H200)
        assert found is not None
        return found

    assert most(1) < 0.9 * most(0)


def test_what_follows_a_long_softmax_element_by_element_is_its_last_pass() -> None:
    def seconds(make: Callable[[Builder, Any], Any]) -> float:
        b = Builder("long", "float32")
        found = joint_seconds(b.build(Y=make(b, b.input("X", (4096, 32000)))), H200, doubted=True)
        assert found is not None
        return found

    alone = seconds(lambda b, x: b.op("softmax", x, axis=-1))
    assert seconds(lambda b, x: b.op("exp", b.op("softmax", x, axis=-1))) < 1.05 * alone


def test_folds_of_half_precision_are_read_as_it_lies() -> None:
    """Twice over rows that are converted first: not at the size of what they are converted to."""

    def seconds(dtype: str) -> float:
        b = Builder("converted", "float32")
        x = b.op("cast", b.input("X", (2048, 32000), dtype), dtype="float32")
        y = b.op("sum", b.op("square", x - b.op("mean", x, axis=(1,), keepdims=True)), axis=(1,))
        found = joint_seconds(b.build(Y=y), H200, doubted=True)
        assert found is not None
        return found

    assert seconds("float16") < 0.6 * seconds("float32")
