"""Triton source of what runs along an axis: sums and products so far, and the place of the largest or least element; what stands
in front of them element by element is computed as they go.

A block goes through an axis tile after tile, for some neighbours that lie beside each other across it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import NamedTuple

from fuser.errors import UnsupportedError
from fuser.ir.element_program import RUNS
from fuser.ir.element_program import SCANS
from fuser.ir.elements import Recipe
from fuser.ir.elements import Tape
from fuser.ir.elements import tape_of
from fuser.ir.places import coordinate
from fuser.ir.places import split
from fuser.ir.program import FLOATS
from fuser.lower.element_code import LIMIT
from fuser.lower.element_code import Writer
from fuser.lower.pieces import next_power

HELPERS = {
    "product": """@triton.jit
def product(a, b):
    return a * b
""",
    "log_of_both": """@triton.jit
def log_of_both(a, b):
    more = tl.maximum(a, b)
    return more + tl.log(1.0 + tl.exp(tl.where(a == b, 0.0, -tl.abs(a - b))))
""",
}
"""How two parts of what has been seen are put together, by name, where Triton has no scan of its own."""
COMBINED = {"cumprod": ("product", "1.0"), "logcumsumexp": ("log_of_both", 'float("-inf")')}
"""The same by operator, and what a part of nothing is."""
BLOCK = 1024
"""Elements that a block of threads scans or compares at once are a few times as many."""
ENOUGH = 264
"""Blocks that fill a GPU."""


class Made(NamedTuple):
    """The lines of a function, its blocks, the warps of each, and how many steps of a loop are loaded ahead."""

    lines: list[str]
    grid: int
    warps: int
    stages: int = 1


@dataclass(frozen=True)
class _Tile:
    """Part of what a block goes through: ``size`` places along an axis of ``n``, for ``columns`` of ``across`` neighbours; of
    each of ``groups`` the same. ``inner``: elements between neighbours along the axis. ``wide``: places take 64 bits."""

    n: int
    groups: int
    across: int
    inner: int
    size: int
    columns: int
    wide: bool = False

    @staticmethod
    def of(shape: Sequence[int], dim: int, most: int) -> _Tile | None:
        """``most`` elements; None where too few blocks would go through a long axis: torch cuts it."""
        outer, n, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
        groups, across = (outer, inner) if inner > 1 else (1, outer)
        columns = min(next_power(across), 32 if inner > 1 else max(most // next_power(n), 1))
        while columns > (8 if inner > 1 else 1) and groups * -(-across // columns) < ENOUGH:
            columns //= 2
        made = _Tile(n, groups, across, inner, max(min(next_power(n), most // columns), 1), columns)
        if made.blocks < ENOUGH and inner > 1:  # few blocks: each has more under way
            made = replace(made, size=min(next_power(n), 4 * most // columns))
        return None if made.blocks < ENOUGH // 4 and n > 4 * BLOCK else made

    @property
    def blocks(self) -> int:
        return self.groups * -(-self.across // self.columns)

    @property
    def warps(self) -> int:
        return min(16 if self.size * self.columns > 4 * BLOCK else 8, max(1, self.size * self.columns // 512))

    @property
    def begin(self) -> list[str]:
        per = -(-self.across // self.columns)
        return [
            "pid = tl.program_id(0)",
            f"group = (pid // {per}).to(tl.int64)",
            f"x = (pid % {per} * {self.columns} + tl.arange(0, {self.columns}))[None, :].to(tl.int64)",
            f"row = tl.arange(0, {self.size})[:, None]",
            f"ok_x = x < {self.across}",
        ]

    def loop(self, tape: Tape, arguments: Mapping[str, str], fill: str, lines: Sequence[str]) -> list[str]:
        """``lines`` for each tile ``v``; once where there is but one."""
        outer, inner = ("x", frozenset("x")), ("0", frozenset[str]())
        if self.inner > 1:
            outer, inner = ("group", frozenset[str]()), ("x", frozenset("x"))
        places = {0: outer, 1: ("y", frozenset("y")), 2: inner}
        writer = Writer(tape, arguments, True, places, (self.size, self.columns), {"x": True, "y": True})
        found = writer.steps()
        several = self.size < self.n
        text = [
            "y = (at + row).to(tl.int64)" if self.wide else "y = at + row",
            f"ok_y = y < {self.n}",
            *writer.lines,
            f"v = tl.where(ok_y & ok_x, {found}, {fill})",
            *lines,
        ]
        return [f"for at in range(0, {self.n}, {self.size}):", *("    " + x for x in text)] if several else ["at = 0", *text]


def run_of(recipe: Recipe, pointers: Sequence[str]) -> Made | None:
    """A kernel of a recipe whose last operator runs along an axis; None where it is none, or torch's is better."""
    op, (given, *_), attrs = recipe.nodes[recipe.result]
    (shape, kind), (_, dtype) = recipe.tensors[given], recipe.tensors[recipe.result]
    if op not in RUNS or kind not in FLOATS or not shape or attrs.get("dim") is None:
        return None
    dim = attrs["dim"] % len(shape)
    tile = _Tile.of(shape, dim, (4 if op == "cumsum" else 2) * BLOCK)
    if tile is None or dtype != (kind if op in SCANS else "int64"):
        return None
    tile = replace(tile, wide=max(math.prod(recipe.tensors[n][0]) for n in (given, *recipe.inputs)) >= LIMIT)
    folded = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    parts = (shape[:dim], (shape[dim],), shape[dim + 1 :])
    at = [p for i, (n, part) in enumerate(zip(folded, parts, strict=True)) for p in split(coordinate(i, n), part)]
    try:
        tape = tape_of(recipe.elements, given, at)
        arguments = dict(zip(recipe.inputs, pointers, strict=True))
        made = _scan(op, tile, tape, arguments) if op in SCANS else _arguments(op, tile, tape, arguments)
    except UnsupportedError:
        return None
    return Made(made, tile.blocks, tile.warps)


def helpers_of(lines: Sequence[str]) -> list[str]:
    """The functions that lines of a kernel name."""
    text = "\n".join(lines)
    return [source for name, source in HELPERS.items() if re.search(rf"\b{name}\b", text)]


def _scan(op: str, t: _Tile, tape: Tape, arguments: Mapping[str, str]) -> list[str]:
    """A sum, or another fold, that runs along an axis, tile after tile."""
    place = f"group * {t.n * t.across} + y * {t.inner} + x" if t.inner > 1 else f"x * {t.n} + y"
    if op == "cumsum":
        nothing, left = "0.0", f"tl.zeros([1, {t.columns}], tl.float32)"
        lines = [f"tl.store(y_ptr + ({place}), left + tl.cumsum(v, 0), ok_y & ok_x)", "left += tl.sum(v, 0)[None, :]"]
    else:
        combine, nothing = COMBINED[op]
        left = f"tl.full([1, {t.columns}], {nothing}, tl.float32)"
        lines = [
            f"tl.store(y_ptr + ({place}), {combine}(left, tl.associative_scan(v, 0, {combine})), ok_y & ok_x)",
            f"left = {combine}(left, tl.reduce(v, 0, {combine})[None, :])",
        ]
    return [*t.begin, f"left = {left}", *t.loop(tape, arguments, nothing, lines)]


def _arguments(op: str, t: _Tile, tape: Tape, arguments: Mapping[str, str]) -> list[str]:
    """The place of the largest or least element along an axis, the first of equal ones; NaN is before all. Each lane keeps its
    best, then the lanes of the best one say their places."""
    least, most, sign, fold = 'float("-inf")', 'float("inf")', ">", "max"
    first = f"where = row + tl.zeros([{t.size}, {t.columns}], tl.{'int64' if t.wide else 'int32'})"
    if op == "argmin":
        least, most, sign, fold = most, least, "<", "min"
    if t.size < t.n:
        lines = [
            f"more = (v {sign} best) | (v != v) & (best == best)",
            "best = tl.where(more, v, best)",
            "where = tl.where(more, y, where)",
        ]
        start = [
            f"best = tl.full([{t.size}, {t.columns}], {least}, tl.float32)",
            first,
        ]
    else:
        lines, start = ["best = v", first], []
    return [
        *t.begin,
        *start,
        *t.loop(tape, arguments, least, lines),
        f"key = tl.where(best != best, {most}, best)",
        f"same = tl.where(key == tl.{fold}(key, 0)[None, :], where + {t.n}, {2 * t.n})",
        f"found = tl.min(tl.where(best != best, where, same), 0)[None, :] % {t.n}",
        f"tl.store(y_ptr + (group * {t.across} + x), found.to(tl.int64), ok_x)",
    ]
