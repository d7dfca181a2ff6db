"""Products and short chains with the epilogues that networks give them, in their sizes, and some that are drawn: what the model
is fitted and judged on beside the papers' workloads.

    products/bert-base-down: Y = X W + b + R with X[512,3072], W[3072,768]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram

SUITES = frozenset({"products", "chains", "drawn"})
"""What the names of these programs begin with."""
Form = Callable[..., TensorProgram]
ROLES: Mapping[str, str] = {"qkv": "bias", "out": "residual", "up": "gelu", "down": "residual"}
"""What follows the products of a transformer's layer."""
ENCODERS: Mapping[str, tuple[int, int]] = {
    "bert-small": (512, 512),
    "bert-base": (512, 768),
    "bert-large": (512, 1024),
    "gpt2": (128, 768),
    "vit-b": (197, 768),
}
"""Rows and width of networks with layers of these roles, whose MLP is four times as wide."""


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


def gated_mlp(name: str, m: int, k: int, n: int) -> TensorProgram:
    """(silu(X G) ⊙ (X U)) D + X."""
    b = Builder(name)
    x, g, u, d = b.input("X", (m, k)), b.input("G", (k, n)), b.input("U", (k, n)), b.input("D", (n, k))
    return b.build(Y=(b.silu(x @ g) * (x @ u)) @ d + x)


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


CHAINS: Mapping[str, Form] = {
    "gated-mlp": gated_mlp,
    "rms-product": normed,
    "layer-norm-product": lambda name, m, k, n: normed(name, m, k, n, "layer_norm"),
    "lora": lora,
    "mlp": mlp,
    "router": weighted,
}


def programs(seed: int = 0, drawn: int = 8) -> dict[str, TensorProgram]:
    """By name, those of networks first; ``drawn`` products and as many chains by the seed."""
    found: list[TensorProgram] = []
    for title, (rows, width) in ENCODERS.items():
        sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
        found += [product(f"products/{title}-{role}", rows, *sizes[role], what) for role, what in ROLES.items()]
    found += [
        product("products/mixer-up", 196, 768, 3072, "gelu"),
        product("products/mixer-down", 196, 3072, 768, "residual"),
        product("products/llama-qkv", 128, 2048, 3072, "plain"),
        product("products/llama-down", 128, 8192, 2048, "residual"),
        gated("products/llama-gate", 128, 2048, 8192),
    ]
    rng = np.random.default_rng(seed)
    for i in range(drawn):
        m, k, n = (int(64 * rng.integers(lo, hi)) for lo, hi in ((2, 17), (16, 97), (8, 65)))
        found.append(
            product(f"products/drawn-{seed}-{i}", m, k, n, str(rng.choice(["plain", "bias", "gelu", "relu", "residual"])))
        )
    kinds = list(CHAINS)
    for i in range(drawn):
        kind = kinds[i % len(kinds)]
        m, k, n = (int(64 * rng.integers(lo, hi)) for lo, hi in ((1, 9), (4, 33), (2, 33)))
        found.append(CHAINS[kind](f"chains/{kind}-{seed}-{i}", m, k, n))
    return {p.name: p for p in found}


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


# -- programs for the superoptimizer ------------------------------------------------------------------------------------------


def scored(name: str, m: int, k: int, n: int) -> TensorProgram:
    """Y = softmax(X W)."""
    b = Builder(name)
    return b.build(Y=b.softmax(b.input("X", (m, k)) @ b.input("W", (k, n))))


def scaled_rows(name: str, m: int, k: int, n: int) -> TensorProgram:
    """Y = (X W) / Σ|X|: rows divided by a sum over what is multiplied."""
    b = Builder(name)
    x = b.input("X", (m, k))
    return b.build(Y=(x @ b.input("W", (k, n))) / (b.sum(x * x, 1, keepdims=True) + 1.0))


def normed_gate(name: str, m: int, k: int, n: int) -> TensorProgram:
    """silu(rms(X) G) ⊙ (rms(X) U)."""
    b = Builder(name)
    x = b.rms_norm(b.input("X", (m, k)), b.input("g", (k,)))
    return b.build(Y=b.silu(x @ b.input("G", (k, n))) * (x @ b.input("U", (k, n))))


def two_inputs(name: str, m: int, k: int, n: int) -> TensorProgram:
    """relu(X W + H U + v)."""
    b = Builder(name)
    x, h = b.input("X", (m, k)), b.input("H", (m, k))
    return b.build(Y=b.relu(x @ b.input("W", (k, n)) + h @ b.input("U", (k, n)) + b.input("v", (n,))))


def normed_attention(name: str, heads: int, rows: int, keys: int, size: int, causal: bool = False) -> TensorProgram:
    """Attention of normalized queries and keys."""
    b = Builder(name)
    q, k, v = b.input("Q", (heads, rows, size)), b.input("K", (heads, keys, size)), b.input("V", (heads, keys, size))
    return b.build(O=b.softmax((b.rms_norm(q) @ b.rms_norm(k).T) * 0.125) @ v)


PRODUCTS: Mapping[str, Form] = {
    **CHAINS,
    "row-sums": row_sums,
    "softmax": scored,
    "scaled-rows": scaled_rows,
    "normed-gate": normed_gate,
    "two-inputs": two_inputs,
}
ATTENTIONS: Mapping[str, Form] = {"attention": attention, "normed-attention": normed_attention}


def drawn_programs(seed: int, count: int) -> dict[str, TensorProgram]:
    """Programs of all of these kinds in turn, sizes by the seed: few rows and many, short sums and long ones."""
    rng = np.random.default_rng(seed)
    found: dict[str, TensorProgram] = {}
    for i, kind in zip(range(count), itertools.cycle((*PRODUCTS, *ATTENTIONS)), strict=False):
        name = f"drawn/{kind}-{seed}-{i}"
        if kind in ATTENTIONS:
            sizes = (int(rng.choice(x)) for x in ((4, 8, 12, 16), (1, 16, 128, 256), (256, 512, 2048), (64, 80, 128)))
            found[name] = ATTENTIONS[kind](name, *sizes)
        else:
            m = int(rng.choice([8, 16, 64, 128, 256, 512]))
            k, n = (int(64 * rng.integers(4, 65)) for _ in range(2))
            found[name] = PRODUCTS[kind](name, m, k, min(n, 1024) if kind in ("router", "softmax", "mlp", "gated-mlp") else n)
    return found
