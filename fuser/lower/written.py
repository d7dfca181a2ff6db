"""Kernels for operators that no block of a µGraph holds: those that run along an axis, convolutions of single channels, and all
whose elements follow from a few elements of their operands (:mod:`fuser.ir.elements`), several of them at once too.

A source here is of tensors that lie row after row. Where there is none for some attributes, dtype or shape, torch computes the
operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.fuse import identifier
from fuser.ir.hashing import digest
from fuser.ir.library_ops import moves
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import op as op_def
from fuser.ir.program import Tensor
from fuser.lower.element_code import body
from fuser.lower.element_tiles import recipe_of
from fuser.lower.element_tiles import tiled
from fuser.lower.triton_source import KernelSource

FLOATS = ("float32", "float16", "bfloat16")
ARGUMENTS = {"argmax": ">", "argmin": "<"}
CONVOLUTIONS = {f"conv{n}d": n for n in (1, 2, 3)}
WRITTEN = frozenset({"cumsum", *ARGUMENTS, *CONVOLUTIONS})
"""Operators that have a source of their own."""
SCATTERED = 2
"""Times that sectors may be asked for where an operator has a source of its own too."""
MOST = 64
"""Elements of a window up to which its loop is written out."""
BLOCK = 1024
"""Elements that a block of threads scans or compares at once are a few times as many."""
RESULTS = 256
"""Results of a convolution that a block has: one of each thread, so that neighbouring threads read neighbours."""
ENOUGH = 264
"""Blocks that fill a GPU."""

Made = tuple[list[str], int, int]
"""The lines of a function, its blocks, and the warps of each."""


def may_be_written(op: str) -> bool:
    """Whether an operator may have a source."""
    return op in WRITTEN or op == "elements" or op_def(op).element is not None


def written(
    kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor], places: Mapping[str, str]
) -> KernelSource | None:
    """The source of a library kernel with these attributes (numbers), if there is one for its tensors; ``places``: the tensors
    in memory behind those that are views, row after row too."""
    used = tuple(dict.fromkeys(kernel.args))
    if not used or not all(math.prod(tensors[a].shape) for a in (*used, kernel.output)):
        return None
    made, names = _of_elements(kernel, attrs, tensors), pointers(len(used))
    if made is None and kernel.op in WRITTEN:
        made, names = _of_its_own(kernel, attrs, tensors), ("x_ptr", "w_ptr", "b_ptr")[: len(used)]
    args = tuple(places.get(a, a) for a in (*used, kernel.output))
    if made is None or len({*args}) != len(args):
        return None
    body, grid, warps = made
    shown = [tensors[a] for a in (*used, kernel.output)]
    said = digest([kernel.op, sorted((k, str(v)) for k, v in attrs.items()), [[t.shape, t.dtype] for t in shown]])[:8]
    name = identifier(f"{kernel.op}_{said}")
    head = f"def {name}({', '.join(names)}, y_ptr):"
    text = "\n".join((*HEAD, head, *("    " + line if line else "" for line in body))) + "\n"
    return KernelSource(
        name, text, args, tuple(t.dtype for t in shown), tuple(t.shape for t in shown), (kernel.output,), grid, warps, 1
    )


def _of_its_own(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    x, out = tensors[kernel.args[0]], tensors[kernel.output]
    if x.dtype not in FLOATS or len({*kernel.args}) != len(kernel.args):
        return None
    if kernel.op in CONVOLUTIONS:
        return _windows(kernel, attrs, tensors)
    return _arguments(kernel.op, attrs, x, out) if kernel.op in ARGUMENTS else _scan(attrs, x, out)


def pointers(count: int) -> tuple[str, ...]:
    return tuple(f"x{i}_ptr" for i in range(count))


def _of_elements(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    """Each element from the places that it comes from."""
    if kernel.op != "elements" and op_def(kernel.op).element is None:
        return None
    try:
        recipe = recipe_of(kernel.op, kernel.args, kernel.output, attrs, tensors)
        tiling, traffic = tiled(recipe)
        if kernel.op in WRITTEN and traffic.asked > SCATTERED * traffic.fetched:
            return None
        used = tuple(dict.fromkeys(kernel.args))
        given = kernel.args if kernel.op == "elements" else used
        names = {n: pointers(len(used))[used.index(a)] for n, a in zip(recipe.inputs, given, strict=True)}
        lines = body(tiling, names, [math.prod(tensors[a].shape) for a in used], "y_ptr")
    except UnsupportedError:
        return None
    return lines, tiling.blocks, tiling.warps


HEAD = """\
import triton
import triton.language as tl


@triton.jit
def _more(v, i, w, j):
    first = (v > w) | (v != v) & (w == w) | ((v == w) | (v != v) & (w != w)) & (i < j)
    return tl.where(first, v, w), tl.where(first, i, j)


@triton.jit
def _less(v, i, w, j):
    first = (v < w) | (v != v) & (w == w) | ((v == w) | (v != v) & (w != w)) & (i < j)
    return tl.where(first, v, w), tl.where(first, i, j)


@triton.jit""".splitlines()


@dataclass(frozen=True)
class _Tile:
    """Part of what a block goes through: ``size`` places along an axis of ``n``, for ``columns`` of ``across`` neighbours that
    lie ``step`` elements apart; ``along`` from one place to the next. Of each of ``groups`` the same."""

    n: int
    groups: int
    across: int
    along: int
    step: int
    size: int
    columns: int

    @staticmethod
    def of(shape: Sequence[int], dim: int, most: int) -> _Tile | None:
        """``most`` elements; None where too few blocks would go through a long axis: torch cuts it."""
        outer, n, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
        groups, across, along, step = (outer, inner, inner, 1) if inner > 1 else (1, outer, 1, n)
        columns = min(_power(across), 32 if inner > 1 else max(most // _power(n), 1))
        while columns > (8 if inner > 1 else 1) and groups * -(-across // columns) < ENOUGH:
            columns //= 2
        made = _Tile(n, groups, across, along, step, max(min(_power(n), most // columns), 1), columns)
        return None if made.blocks < ENOUGH // 4 and n > 4 * BLOCK else made

    @property
    def blocks(self) -> int:
        return self.groups * -(-self.across // self.columns)

    @property
    def begin(self) -> list[str]:
        per = -(-self.across // self.columns)
        return [
            "pid = tl.program_id(0)",
            f"group = (pid // {per}).to(tl.int64)",
            f"col = pid % {per} * {self.columns} + tl.arange(0, {self.columns})",
            f"row = tl.arange(0, {self.size})",
            f"base = group * {self.n * self.across} + col.to(tl.int64) * {self.step}",
        ]

    def loop(self, fill: str, lines: Sequence[str]) -> list[str]:
        """``lines`` for each tile ``x``; once where there is but one."""
        several = self.size < self.n
        body = [
            f"inside = (at + row < {self.n})[:, None] & (col < {self.across})[None, :]",
            f"place = base[None, :] + (at + row)[:, None] * {self.along}",
            f"x = tl.load(x_ptr + place, inside, {fill}).to(tl.float32)",
            *lines,
        ]
        return [f"for at in range(0, {self.n}, {self.size}):", *("    " + x for x in body)] if several else ["at = 0", *body]


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _scan(attrs: Mapping[str, Any], x: Tensor, out: Tensor) -> Made | None:
    """A sum that runs along an axis, tile after tile."""
    if out.dtype != x.dtype or not x.shape or (t := _Tile.of(x.shape, attrs["dim"] % len(x.shape), 4 * BLOCK)) is None:
        return None
    store = "tl.store(y_ptr + place, left + tl.cumsum(x, 0), inside)"
    lines = [
        *t.begin,
        f"left = tl.zeros([1, {t.columns}], tl.float32)",
        *t.loop("0.0", (store, "left += tl.sum(x, 0)[None, :]")),
    ]
    return lines, t.blocks, min(8, max(1, t.size * t.columns // 512))


def _arguments(op: str, attrs: Mapping[str, Any], x: Tensor, out: Tensor) -> Made | None:
    """The place of the largest or least element along an axis: each lane keeps its best, then the best of the lanes."""
    if out.dtype != "int64" or not x.shape or attrs.get("dim") is None:
        return None
    t = _Tile.of(x.shape, attrs["dim"] % len(x.shape), 2 * BLOCK)
    if t is None:
        return None
    worst, better = ('float("-inf")', "_more") if op == "argmax" else ('float("inf")', "_less")
    each = (f"best, where = {better}(best, where, x, tl.where(inside, (at + row)[:, None], {t.n}))",)
    lines = [
        *t.begin,
        f"best = tl.full([{t.size}, {t.columns}], {worst}, tl.float32)",
        f"where = tl.full([{t.size}, {t.columns}], {t.n}, tl.int32)",
        *t.loop(worst, each),
        f"_, found = tl.reduce((best, where), 0, {better})",
        f"tl.store(y_ptr + group * {t.across} + col, found.to(tl.int64), col < {t.across})",
    ]
    return lines, t.blocks, min(8, max(1, t.size * t.columns // 256))


def _windows(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    """Convolutions of each channel by itself."""
    rank = CONVOLUTIONS[kernel.op]
    x, out, weight = tensors[kernel.args[0]], tensors[kernel.output], tensors[kernel.args[1]]
    if len(x.shape) != rank + 2 or attrs.get("groups", 1) != x.shape[1] or x.shape[1] == 1:
        return None
    window, steps = moves(attrs, rank, weight.shape[2:])
    if math.prod(window) > MOST or out.dtype != x.dtype or math.prod(out.shape) >= 1 << 31:
        return None
    size, result = x.shape[-rank:], out.shape[-rank:]
    inside, planes, channels = math.prod(result), math.prod(out.shape[:-rank]), out.shape[-rank - 1]
    times = channels // x.shape[-rank - 1]
    lines = _results(inside, planes)
    for i, n in reversed(list(enumerate(result))):
        lines += [f"o{i} = rest % {n}", f"rest = rest // {n}"] if i else ["o0 = rest"]
    source = "plane" if times == 1 else f"(plane // {channels} * {x.shape[-rank - 1]} + plane % {channels} // {times})"
    lines.append(f"base = {source}{'.to(tl.int64)' if math.prod(x.shape) >= 1 << 31 else ''} * {math.prod(size)}")
    biased = len(kernel.args) == 3
    first = f"tl.load(b_ptr + plane % {channels}).to(tl.float32)" if biased else "0.0"
    lines.append(f"found = tl.zeros([{RESULTS}], tl.float32) + {first}")
    for number, at in enumerate(product(*map(range, window))):
        lines += _element(at, size, steps)
        lines.append(f"found += x * tl.load(w_ptr + plane % {channels} * {math.prod(window)} + {number}).to(tl.float32)")
    lines.append("tl.store(y_ptr + at, found, keep)")
    grid = planes * -(-inside // RESULTS) if inside >= 4 * RESULTS else -(-planes * inside // RESULTS)
    return lines, grid, 8


def _results(inside: int, planes: int) -> list[str]:
    """Which results a block has: some of one image, so that its weights are numbers, or of several small ones."""
    if inside >= 4 * RESULTS:
        per = -(-inside // RESULTS)
        return [
            f"plane = tl.program_id(0) // {per}",
            f"rest = tl.program_id(0) % {per} * {RESULTS} + tl.arange(0, {RESULTS})",
            f"keep = rest < {inside}",
            f"at = plane.to(tl.int64) * {inside} + rest",
        ]
    return [
        f"at = tl.program_id(0) * {RESULTS} + tl.arange(0, {RESULTS})",
        f"keep = at < {planes * inside}",
        f"rest = at % {inside}",
        f"plane = at // {inside}",
    ]


def _element(at: Sequence[int], size: Sequence[int], steps: Sequence[Sequence[int]]) -> list[str]:
    """One element of the window."""
    strides, padding, dilation = steps
    lines, masks, place = [], ["keep"], "base"
    for i, n in enumerate(size):
        shift = at[i] * dilation[i] - padding[i]
        lines.append(f"i{i} = o{i} * {strides[i]} + {shift}" if shift >= 0 else f"i{i} = o{i} * {strides[i]} - {-shift}")
        if padding[i]:
            masks.append(f"(i{i} >= 0) & (i{i} < {n})")
        place += f" + i{i} * {math.prod(size[i + 1 :])}"
    return [*lines, f"x = tl.load(x_ptr + {place}, {' & '.join(masks)}, 0.0).to(tl.float32)"]
