"""Programs of many kinds. Each has a right µGraph in text, in ``families.txt``; those of ``wrong.txt`` are edits of them.

Sizes are real ones that a verifier has to make smaller, and extents that could be mistaken for each other are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from tests.paths import MUGRAPHS


@dataclass(frozen=True)
class Family:
    """``text`` is a right µGraph of the program that ``make`` builds."""

    name: str
    make: Callable[[Builder], TensorProgram]
    text: str
    dtype: str = "float16"

    @cached_property
    def program(self) -> TensorProgram:
        return self.make(Builder(self.name, self.dtype))


def _qkv(b: Builder, rows: int, keys: int, heads: int = 2, size: int = 64) -> tuple[Ref, Ref, Ref]:
    return b.input("Q", (heads, rows, size)), b.input("K", (heads, keys, size)), b.input("V", (heads, keys, size))


def causal(b: Builder) -> TensorProgram:
    q, k, v = _qkv(b, 256, 256)
    return b.build(O=b.attention(q, k, v, causal=True))


def plain(b: Builder) -> TensorProgram:
    q, k, v = _qkv(b, 256, 256)
    return b.build(O=b.attention(q, k, v))


def decode(b: Builder) -> TensorProgram:
    q, k, v = _qkv(b, 32, 256)
    return b.build(O=b.attention(q, k, v, causal=True))


def shifted_mask(b: Builder) -> TensorProgram:
    q, k, v = _qkv(b, 256, 256)
    s = b.op("causal_mask", (q @ k.T) * 0.125, offset=100)
    return b.build(O=b.softmax(s) @ v)


def two_masks(b: Builder) -> TensorProgram:
    """One mask tied to the first corner, one to the last."""
    x, y, w = b.input("X", (32, 128)), b.input("Y", (32, 128)), b.input("W", (128, 64))
    e = b.exp(b.op("causal_mask", x, offset=0)) + b.exp(b.op("causal_mask", y, offset=96))
    return b.build(Z=e @ w)


def split_k(b: Builder) -> TensorProgram:
    x, w = b.input("X", (64, 4096)), b.input("W", (4096, 64))
    return b.build(Y=b.relu((x @ w) * (1 / 64)))


def split_gemm(b: Builder) -> TensorProgram:
    return b.build(Y=b.input("X", (64, 512)) @ b.input("W", (512, 64)))


def two_splits(b: Builder) -> TensorProgram:
    x, w, v, u = b.input("X", (32, 512)), b.input("W", (512, 32)), b.input("V", (32, 512)), b.input("U", (512, 32))
    return b.build(Y=(x @ w) * (v @ u))


def close_masks(b: Builder) -> TensorProgram:
    x, y, w = b.input("X", (128, 128)), b.input("Y", (128, 128)), b.input("W", (128, 32))
    e, f = b.exp(b.op("causal_mask", x, offset=10)), b.exp(b.op("causal_mask", y, offset=11))
    return b.build(Z=(e * 2 + f) @ w)


def one_row(b: Builder) -> TensorProgram:
    return b.build(Y=b.exp(b.op("causal_mask", b.input("Q", (1, 256)), offset=200)) @ b.input("W", (256, 32)))


def gemm(b: Builder) -> TensorProgram:
    return b.build(Y=b.input("X", (48, 128)) @ b.input("W", (128, 64)))


def turned(b: Builder) -> TensorProgram:
    return b.build(Y=b.input("X", (32, 32, 32)).transpose(1, 2, 0) @ b.input("W", (32, 32, 32)))


def softmax(b: Builder) -> TensorProgram:
    return b.build(Y=b.softmax(b.input("X", (48, 48))) @ b.input("W", (48, 48)))


def halves(b: Builder) -> TensorProgram:
    """A gate: the second half of the columns decides about the first."""
    x = b.input("X", (96, 256))
    first, second = b.op("slice", x, axis=1, start=0, stop=128), b.op("slice", x, axis=1, start=128, stop=256)
    return b.build(Y=first * b.silu(second))


def rope(b: Builder) -> TensorProgram:
    """Rotary embedding: the halves change places, one with its sign turned."""
    x, c, s = b.input("X", (48, 128)), b.input("C", (48, 64)), b.input("S", (48, 64))
    w = b.input("W", (128, 32))
    p, q = b.op("slice", x, axis=1, start=0, stop=64), b.op("slice", x, axis=1, start=64, stop=128)
    return b.build(Y=b.op("concat", p * c - q * s, q * c + p * s, axis=1) @ w)


def rms(b: Builder) -> TensorProgram:
    x, g, w = b.input("X", (64, 128)), b.input("G", (128,)), b.input("W", (128, 64))
    return b.build(Y=b.rms_norm(x, g, eps=1e-3) @ w)


def layer_norm(b: Builder) -> TensorProgram:
    x, g, h = b.input("X", (7, 100)), b.input("G", (100,)), b.input("H", (100,))
    return b.build(Y=b.layer_norm(x, g, h))


def choice(b: Builder) -> TensorProgram:
    c, x, y = b.input("C", (64, 80), "bool"), b.input("X", (64, 80)), b.input("Y", (64, 80))
    return b.build(Z=b.op("where", c, x, y) * 3)


def weights_as_condition(b: Builder) -> TensorProgram:
    """A condition that is a number: 0 where it is not met."""
    c, x, w = b.input("C", (64, 80)), b.input("X", (64, 80)), b.input("W", (80, 32))
    return b.build(Z=b.op("where", c, x, x * 2) @ w)


def padding(b: Builder) -> TensorProgram:
    """Attention scores where padded keys weigh nothing."""
    c, x, w = b.input("C", (48,), "bool"), b.input("X", (64, 48)), b.input("W", (48, 32))
    e = b.exp(x)
    return b.build(Y=b.op("where", c, e, e * 0.001) @ w)


def whole_numbers(b: Builder) -> TensorProgram:
    """What a cast to whole numbers cuts off, and a comparison kept as bool."""
    x, y = b.input("X", (40, 72), "float32"), b.input("Y", (40, 72), "float32")
    steps = b.op("cast", b.op("cast", x * 10, dtype="int32"), dtype="float32")
    return b.build(Z=b.sum(steps * y, 1))


def two_outputs(b: Builder) -> TensorProgram:
    x, w, v = b.input("X", (64, 64)), b.input("W", (64, 64)), b.input("V", (64,))
    y = x @ w + v
    return b.build(Y=y, Z=b.sum(b.relu(y) * x, 1))


def grouped(b: Builder) -> TensorProgram:
    """Query heads that share a key head with their neighbours (GQA)."""
    q, k = b.input("Q", (8, 16, 32)), b.input("K", (2, 48, 32))
    return b.build(S=q @ b.op("repeat", k, axis=0, times=4).T)


def views(b: Builder) -> TensorProgram:
    """Products of a tensor with itself whose heads lie between its rows and columns."""
    x, w = b.input("X", (32, 4 * 32)), b.input("W", (4, 32, 32))
    return b.build(Y=(x.reshape(32, 4, 32).transpose(1, 0, 2) @ w) @ x.reshape(32, 4, 32).transpose(1, 2, 0))


def activation(b: Builder) -> TensorProgram:
    x, w, v = b.input("X", (64, 64)), b.input("W", (64, 64)), b.input("V", (64, 64))
    return b.build(Y=b.gelu(x @ w) @ v)


def extremes(b: Builder) -> TensorProgram:
    x, y = b.input("X", (64, 96)), b.input("Y", (64, 96))
    top = b.op("max", x, axis=(1,), keepdims=True)
    return b.build(Z=(x - top) * b.op("maximum", x, y))


def chain(b: Builder) -> TensorProgram:
    a, c, d = b.input("A", (64, 64)), b.input("B", (64, 64)), b.input("D", (64, 64))
    return b.build(E=(a @ c) @ d)


def broadcasting(b: Builder) -> TensorProgram:
    x, r, c = b.input("X", (64, 64)), b.input("R", (64, 1)), b.input("C", (64,))
    return b.build(Y=x * r + c)


def layers(b: Builder) -> TensorProgram:
    """Weights of several layers in one tensor."""
    x, w = b.input("X", (32, 64)), b.input("W", (5, 64, 64))
    for i in (1, 3):
        x = b.relu(x @ b.op("slice", w, axis=0, start=i, stop=i + 1).reshape(64, 64))
    return b.build(Y=x)


def _families() -> Iterator[Family]:
    texts = (MUGRAPHS / "families.txt").read_text("utf-8")
    for name, text in re.findall(r"^== (\w+)\n(.*?)(?=^==|\Z)", texts, re.DOTALL | re.MULTILINE):
        make = _OTHER_NAMES.get(name) or globals()[name]
        yield Family(name, make, text, "float32" if name == "whole_numbers" else "float16")


_OTHER_NAMES = {"online": causal, "split_keys": plain, "two_kernels": two_outputs}
FAMILIES = {f.name: f for f in _families()}
