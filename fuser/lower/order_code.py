"""Kernels that order elements along an axis: their places by rank, or the first few one after another.

A rank is how many elements stand in front of one, of equal ones those at lower places, so that orders are stable; NaN is the
largest. What is compared are whole numbers, the least of them the first: of a float its bits, where those of negative ones are
turned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import FLOATS
from fuser.ir.program import Tensor
from fuser.lower.pieces import next_power
from fuser.lower.run_code import Made

WIDE = ("int64",)
KEYS = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool", *WIDE)
"""What has a key: of 64 bits, or of 32."""
FEW, WIDEST = 32, 4096
"""Most elements that are taken one after another, and longest axis that they are taken from."""
COMPARED, SHORT = 1 << 24, 64
"""Most comparisons of a kernel: beyond them torch's sorting is as fast. Along axes of so few elements it is three times as slow
(65536 × 32 elements: 234 µs on an H200, ours 77), so eight times as many."""
HELD = 2048
"""Elements that a block holds, if they are of several rows."""
BLOCKS = 512
"""From as many blocks on each is one warp."""


@dataclass(frozen=True)
class Order:
    """What is ordered: ``rows`` of ``n`` elements that are ``inner`` elements apart, the ``first`` of which are asked for."""

    dtype: str
    n: int
    rows: int
    inner: int
    first: int
    descending: bool

    @staticmethod
    def of(op: str, attrs: Mapping[str, Any], x: Tensor) -> Order:
        """Of ``argsort`` or ``argtopk``."""
        dim = attrs.get("dim", -1) % len(x.shape)
        n, inner = x.shape[dim], math.prod(x.shape[dim + 1 :])
        descending = bool(attrs.get("largest", True) if op == "argtopk" else attrs.get("descending"))
        return Order(x.dtype, n, math.prod(x.shape) // n, inner, attrs.get("k", n), descending)

    @property
    def in_turn(self) -> bool:
        """Whether the first elements are taken one after another."""
        few = self.first <= FEW and self.first < self.n <= WIDEST
        return few and self.dtype in KEYS and self.dtype not in WIDE and self.n * self.rows < 1 << 31

    @property
    def several(self) -> int:
        """Rows of a block that takes elements one after another."""
        return max(1, min(HELD // next_power(self.n), next_power(self.rows) // BLOCKS))

    @property
    def by_rank(self) -> bool:
        """Whether a kernel compares all elements of a row with all others, and that is no slower than torch."""
        most = COMPARED * (8 if self.n <= SHORT else 1)
        return not self.in_turn and self.dtype in KEYS and self.rows * self.n**2 <= most


def ordered(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    """Lines of a kernel from elements (``x_ptr``) to places in order; None where torch is faster, or the dtype has no key."""
    order = Order.of(kernel.op, attrs, tensors[kernel.args[0]])
    if tensors[kernel.output].dtype != "int64":
        return None
    return _one_by_one(order) if order.in_turn else _by_rank(order) if order.by_rank else None


def _keys(order: Order, name: str) -> list[str]:
    """Lines that turn loaded elements into keys, the first the least."""
    if order.dtype not in FLOATS:
        return [f"{name} = {'~' if order.descending else ''}{name}.to(tl.{'int64' if order.dtype in WIDE else 'int32'})"]
    return [
        f"{name} = {name}.to(tl.float32) + 0.0",  # -0.0 is 0.0
        f"{name}_bits = {name}.to(tl.int32, bitcast=True)",
        f"{name} = tl.where({name} != {name}, 0x7FFFFFFF, {name}_bits ^ (({name}_bits >> 31) & 0x7FFFFFFF))",
        *([f"{name} = ~{name}"] if order.descending else []),
    ]


def _begin(n: int, inner: int) -> str:
    """The first of the ``n`` elements of a row, ``inner`` elements apart."""
    return f"row // {inner} * {n * inner} + row % {inner}" if inner > 1 else f"row * {n}"


def _by_rank(order: Order) -> Made:
    """Each block compares some elements with all of their row, or of theirs where rows are short."""
    n, rows, inner = order.n, order.rows, order.inner
    items, beside = (8, 512) if rows * n <= 1 << 14 else (32, 128)
    beside = max(16, min(beside, next_power(n)))
    short, per = n < SHORT, -(-n // items)
    if short:
        items = max(items, 1024 // beside)
        lines = [
            f"item = tl.program_id(0) * {items} + tl.arange(0, {items})",
            f"row = item // {n}",
            f"i = item % {n}",
            f"there = item < {rows * n}",
        ]
    else:
        lines = [
            f"row = tl.program_id(0) // {per}",
            f"i = tl.program_id(0) % {per} * {items} + tl.arange(0, {items})",
            f"there = i < {n}",
        ]
    row, inside = ("base[:, None]", f"(j < {n}) & there[:, None]") if short else ("base", f"j < {n}")
    lines += [
        f"base = {_begin(n, inner)}",
        f"x = tl.load(x_ptr + base + i * {inner}, there, 0)",
        *_keys(order, "x"),
        f"rank = tl.zeros([{items}], tl.int32)",
        f"for at in range(0, {n}, {beside}):",
        f"    j = (at + tl.arange(0, {beside}))[None, :]",
        f"    z = tl.load(x_ptr + {row} + j * {inner}, {inside}, 0)",
        *("    " + line for line in _keys(order, "z")),
        "    before = (z < x[:, None]) | ((z == x[:, None]) & (j < i[:, None]))",
        f"    rank += tl.sum((before & (j < {n})).to(tl.int32), 1)",
        f"tl.store(y_ptr + {_begin(order.first, inner)} + rank * {inner}, i.to(tl.int64), there & (rank < {order.first}))",
    ]
    return Made(lines, -(-rows * n // items) if short else rows * per, 4)


def _one_by_one(order: Order) -> Made:
    """Each block holds some rows, and takes the first of each as often as is asked for: the least of keys with their places."""
    n, rows, inner, width = order.n, order.rows, order.inner, next_power(order.n)
    several = order.several
    held, blocks = several * width, -(-rows // several)
    lines = [
        f"row = tl.program_id(0) * {several} + tl.arange(0, {several})[:, None]",
        f"j = tl.arange(0, {width})[None, :]",
        f"there = (row < {rows}) & (j < {n})",
        f"x = tl.load(x_ptr + {_begin(n, inner)} + j * {inner}, there, 0)",
        *_keys(order, "x"),
        "left = tl.where(there, (x.to(tl.int64) << 32) | j, 0x7FFFFFFFFFFFFFFF)",
        f"for at in range({order.first}):",
        "    least = tl.min(left, 1)[:, None]",
        f"    tl.store(y_ptr + {_begin(order.first, inner)} + at * {inner}, least & 0xFFFFFFFF, row < {rows})",
        "    left = tl.where(left == least, 0x7FFFFFFFFFFFFFFF, left)",
    ]
    return Made(lines, blocks, 1 if held <= 256 or (blocks >= BLOCKS and held <= HELD) else 4)
