"""Products, short chains, and operators on rows in sizes that are drawn: what a GPU is calibrated by."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram

SUITES = frozenset({"products", "chains", "drawn"})
"""What the names of programs in older rows, and of those of `experiments.searched`, begin with."""
Form = Callable[..., TensorProgram]


def product(name: str, m: int, k: int, n: int, epilogue: str) -> TensorProgram:
    """X[m,k] W[k,n] and what follows it."""
    b = Builder(name)
    y = b.input("X", (m, k)) @ b.input("W", (k, n))
    if epilogue != "plain":
        y = y + b.input("b", (n,))
    if epilogue in ("gelu", "relu"):
        y = b.op(epilogue, y)
    if epilogue == "residual":
        y = y + b.input("R", (m, n))
    return b.build(Y=y)


def gated(name: str, m: int, k: int, n: int) -> TensorProgram:
    """silu(X G) ⊙ (X U)."""
    b = Builder(name)
    x, g, u = b.input("X", (m, k)), b.input("G", (k, n)), b.input("U", (k, n))
    return b.build(Y=b.silu(x @ g) * (x @ u))


def normed(name: str, m: int, k: int, n: int, norm: str = "rms_norm") -> TensorProgram:
    """norm(X) W, with gain."""
    b = Builder(name)
    x, g = b.input("X", (m, k)), b.input("G", (k,))
    if norm == "rms_norm":
        return b.build(Y=b.rms_norm(x, g) @ b.input("W", (k, n)))
    return b.build(Y=b.layer_norm(x, g, b.input("B", (k,))) @ b.input("W", (k, n)) + b.input("b", (n,)))


def lora(name: str, m: int, k: int, n: int, rank: int = 16) -> TensorProgram:
    """X W + (X A) B."""
    b = Builder(name)
    x, w = b.input("X", (m, k)), b.input("W", (k, n))
    return b.build(Y=x @ w + (x @ b.input("A", (k, rank))) @ b.input("B", (rank, n)))


def mlp(name: str, m: int, k: int, n: int) -> TensorProgram:
    """gelu(X A + a) B + b + X."""
    b = Builder(name)
    x = b.input("X", (m, k))
    inner = b.gelu(x @ b.input("A", (k, n)) + b.input("a", (n,)))
    return b.build(Y=inner @ b.input("B", (n, k)) + b.input("b", (k,)) + x)


def attention(name: str, heads: int, rows: int, keys: int, size: int, causal: bool = False) -> TensorProgram:
    b = Builder(name)
    q, k, v = b.input("Q", (heads, rows, size)), b.input("K", (heads, keys, size)), b.input("V", (heads, keys, size))
    return b.build(O=b.attention(q, k, v, causal=causal))


def weighted(name: str, m: int, k: int, n: int) -> TensorProgram:
    """softmax(X W), each row by itself, and the product with V: a router's weights."""
    b = Builder(name)
    return b.build(Y=b.softmax(b.input("X", (m, k)) @ b.input("W", (k, n))) @ b.input("V", (n, k)))


def chain(name: str, m: int, k: int, n: int, h: int) -> TensorProgram:
    """(X W) V."""
    b = Builder(name)
    return b.build(Y=(b.input("X", (m, k)) @ b.input("W", (k, n))) @ b.input("V", (n, h)))


def rows(name: str, m: int, n: int, what: str) -> TensorProgram:
    """An operator on each row of X[m,n]."""
    b = Builder(name)
    x = b.input("X", (m, n))
    if what == "layer_norm":
        return b.build(Y=b.layer_norm(x, b.input("G", (n,)), b.input("B", (n,))))
    return b.build(Y=b.softmax(x) if what == "softmax" else b.rms_norm(x, b.input("G", (n,))))


def row_sums(name: str, m: int, k: int, n: int) -> TensorProgram:
    """Y = X W + b and the sums of its rows and of their squares."""
    b = Builder(name)
    y = b.input("X", (m, k)) @ b.input("W", (k, n)) + b.input("b", (n,))
    return b.build(Y=y, S=b.sum(y, 1), Q=b.sum(y * y, 1))


ROWS, WIDE, SUM = (64, 128, 256, 512, 1024), (512, 768, 1024, 2048, 3072), (256, 512, 768, 1024, 2048)
ODD = (48, 64, 80, 96, 128, 160)
"""Heads and widths, some of which are cut into powers of two."""
DRAWS: Mapping[str, tuple[Form, tuple[Sequence[Any], ...]]] = {
    "product": (product, (ROWS, (*SUM, 192), WIDE, ("plain", "gelu", "residual"))),
    "large": (product, ((1024, 2048), (1024, 2048), (2048, 4096), ("bias",))),
    "gate": (gated, (ROWS, SUM, WIDE)),
    "norm-product": (normed, (ROWS[:3], SUM, WIDE, ("rms_norm", "layer_norm"))),
    "lora": (lora, (ROWS[:3], SUM, WIDE)),
    "chain": (chain, ((256, 512, 1024), (64, 128, 192), SUM[:3], ODD)),
    "mlp": (mlp, (ROWS, (64, 96, 128, 256), SUM)),
    "router": (weighted, (ROWS, SUM[:3], (64, 128, 256))),
    "attention": (attention, ((4, 8, 12), (128, 256, 512), (256, 512, 1024), ODD)),
    "decode": (attention, ((8, 16, 32), (1, 4, 16), (1024, 4096), (64, 128))),
    "skinny": (product, ((1, 4, 16), (1024, 2048, 4096), (2048, 4096), ("plain",))),
    "rows": (rows, ((512, 4096, 16384), (512, 768, 1024, 2048), ("softmax",))),
    "norm": (rows, ((512, 4096, 16384), (768, 1024, 4096), ("layer_norm", "rms_norm"))),
    "row-sums": (row_sums, (ROWS, SUM, WIDE)),
}
"""Programs by which a GPU is calibrated, with what their sizes are drawn from: every part of the model takes much of the time of
some."""


def calibration_programs(seed: int, turn: int) -> list[TensorProgram]:
    """One program of each kind, others in each turn."""
    rng = np.random.default_rng([seed, turn, 41])
    drawn = {kind: [c[int(rng.integers(len(c)))] for c in choices] for kind, (_, choices) in DRAWS.items()}
    return [DRAWS[kind][0](f"calibrate/{kind}-{seed}.{turn}", *sizes) for kind, sizes in drawn.items()]
