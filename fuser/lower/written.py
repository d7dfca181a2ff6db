"""Kernels for operators that fold along windows or run along an axis: no block of a µGraph holds these, and torch's are slow.

A source here is of one operator on tensors that lie row after row. Where there is none for some attributes, dtype or shape, torch
computes the operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.ir.fuse import identifier
from fuser.ir.hashing import digest
from fuser.ir.library_ops import moves
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.lower.triton_source import KernelSource

FLOATS = ("float32", "float16", "bfloat16")
ARGUMENTS = {"argmax": ">", "argmin": "<"}
WINDOWS = {f"{kind}{n}d": (kind, n) for kind in ("max_pool", "avg_pool", "conv") for n in (1, 2, 3)}
POOLS_LAST = {f"{kind}{n}d_last": (kind, n) for kind in ("max_pool", "avg_pool") for n in (1, 2, 3)}
WRITTEN = frozenset({"cumsum", *ARGUMENTS, *WINDOWS, *POOLS_LAST})
"""Operators that may have a source."""
MOST = 64
"""Elements of a window up to which its loop is written out."""
BLOCK = 1024
"""Elements that a block of threads scans or compares at once are a few times as many."""
RESULTS = 256
"""Results of windows that a block has: one of each thread, so that neighbouring threads read neighbours."""
ENOUGH = 264
"""Blocks that fill a GPU."""

Made = tuple[list[str], int, int]
"""The lines of a function, its blocks, and the warps of each."""


def written(
    kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor], places: Mapping[str, str]
) -> KernelSource | None:
    """The source of a library kernel with these attributes (numbers), if there is one for its tensors; ``places``: the tensors
    in memory behind those that are views, row after row too."""
    x, out = tensors[kernel.args[0]], tensors[kernel.output]
    if kernel.op not in WRITTEN or x.dtype not in FLOATS or not math.prod(x.shape) or not math.prod(out.shape):
        return None
    if kernel.op in POOLS_LAST:
        made = _pooled_last(kernel.op, attrs, x, out)
    elif kernel.op in WINDOWS:
        made = _windows(kernel, attrs, tensors)
    else:
        made = _arguments(kernel.op, attrs, x, out) if kernel.op in ARGUMENTS else _scan(attrs, x, out)
    if made is None:
        return None
    body, grid, warps = made
    names = (*kernel.args, kernel.output)
    args, used = tuple(places.get(a, a) for a in names), [tensors[a] for a in names]
    if len({*args}) != len(args):
        return None
    said = digest([kernel.op, sorted((k, str(v)) for k, v in attrs.items()), [[t.shape, t.dtype] for t in used]])[:8]
    name = identifier(f"{kernel.op}_{said}")
    head = f"def {name}({', '.join(('x_ptr', 'w_ptr', 'b_ptr')[: len(args) - 1])}, y_ptr):"
    text = "\n".join((*HEAD, head, *("    " + line if line else "" for line in body))) + "\n"
    return KernelSource(
        name, text, args, tuple(t.dtype for t in used), tuple(t.shape for t in used), (kernel.output,), grid, warps, 1
    )


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
    """Windows of each image, or signal, alone: pooling, and convolutions of each channel by itself."""
    kind, rank = WINDOWS[kernel.op]
    x, out = tensors[kernel.args[0]], tensors[kernel.output]
    weight = tensors[kernel.args[1]] if kind == "conv" else None
    if weight is not None and (len(x.shape) != rank + 2 or attrs.get("groups", 1) != x.shape[1] or x.shape[1] == 1):
        return None
    window, steps = moves(attrs, rank, weight and weight.shape[2:])
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
    start = {"max_pool": 'float("-inf")', "avg_pool": "0.0", "conv": "0.0"}[kind]
    biased = len(kernel.args) == 3
    first = f"tl.load(b_ptr + plane % {channels}).to(tl.float32)" if biased else start
    lines.append(f"found = tl.zeros([{RESULTS}], tl.float32) + {first}")
    for number, at in enumerate(_each_place(window)):
        lines += _element(kind, number, at, size, steps, start, (math.prod(window), channels))
    if kind == "avg_pool":
        lines.append(f"found = found * {1 / math.prod(window)!r}")
    lines.append("tl.store(y_ptr + at, found, keep)")
    grid = planes * -(-inside // RESULTS) if inside >= 4 * RESULTS else -(-planes * inside // RESULTS)
    return lines, grid, 8


def _pooled_last(op: str, attrs: Mapping[str, Any], x: Tensor, out: Tensor) -> Made | None:
    """Pooling of images whose channels are the last dimension."""
    kind, rank = POOLS_LAST[op]
    window, steps = moves(attrs, rank)
    if math.prod(window) > MOST or out.dtype != x.dtype or math.prod(x.shape) >= 1 << 31 or math.prod(out.shape) >= 1 << 31:
        return None
    size, result, channels = x.shape[1:-1], out.shape[1:-1], out.shape[-1]
    lines = [
        f"at = tl.program_id(0) * {RESULTS} + tl.arange(0, {RESULTS})",
        f"keep = at < {math.prod(out.shape)}",
        f"rest = at // {channels}",
    ]
    for i, n in reversed(list(enumerate(result))):
        lines += [f"o{i} = rest % {n}", f"rest = rest // {n}"]
    lines.append(f"base = rest * {math.prod(size) * channels} + at % {channels}")
    start = 'float("-inf")' if kind == "max_pool" else "0.0"
    lines.append(f"found = tl.zeros([{RESULTS}], tl.float32) + {start}")
    for at in _each_place(window):
        lines += _element(kind, 0, at, size, steps, start, (0, 0), channels)
    if kind == "avg_pool":
        lines.append(f"found = found * {1 / math.prod(window)!r}")
    lines.append("tl.store(y_ptr + at, found, keep)")
    return lines, -(-math.prod(out.shape) // RESULTS), 8


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


def _each_place(window: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for n in window:
        found = [(*place, i) for place in found for i in range(n)]
    return found


def _element(
    kind: str,
    number: int,
    at: Sequence[int],
    size: Sequence[int],
    steps: Sequence[Sequence[int]],
    fill: str,
    weights: tuple[int, int],
    apart: int = 1,
) -> list[str]:
    """One element of the window; neighbours of an image lie ``apart`` elements from each other."""
    strides, padding, dilation = steps
    lines, masks, place = [], ["keep"], "base"
    for i, n in enumerate(size):
        shift = at[i] * dilation[i] - padding[i]
        lines.append(f"i{i} = o{i} * {strides[i]} + {shift}" if shift >= 0 else f"i{i} = o{i} * {strides[i]} - {-shift}")
        if padding[i]:
            masks.append(f"(i{i} >= 0) & (i{i} < {n})")
        place += f" + i{i} * {math.prod(size[i + 1 :]) * apart}"
    lines.append(f"x = tl.load(x_ptr + {place}, {' & '.join(masks)}, {fill}).to(tl.float32)")
    count, channels = weights
    lines.append(
        {
            "max_pool": "found = tl.maximum(found, x, propagate_nan=tl.PropagateNan.ALL)",
            "avg_pool": "found += x",
            "conv": f"found += x * tl.load(w_ptr + plane % {channels} * {count} + {number}).to(tl.float32)",
        }[kind]
    )
    return lines
