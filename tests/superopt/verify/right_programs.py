"""The programs of :mod:`tests.superopt.verify.right_graphs`."""

from __future__ import annotations

from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram


def grouped_attention(b: Builder) -> TensorProgram:
    q, k, v = b.input("Q", (8, 16, 32)), b.input("K", (2, 48, 32)), b.input("V", (2, 48, 32))
    return b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=4), b.op("repeat", v, axis=0, times=4)))


def repeated_columns(b: Builder) -> TensorProgram:
    x, w = b.input("X", (24, 40)), b.input("W", (120, 16))
    return b.build(Y=b.op("repeat", x, axis=1, times=3) @ w)


def repeated_rows(b: Builder) -> TensorProgram:
    x = b.input("X", (24, 40))
    return b.build(Y=b.exp(b.op("repeat", x, axis=0, times=2)) * b.input("Z", (48, 40)))


def repeated_sum(b: Builder) -> TensorProgram:
    return b.build(Y=b.sum(b.op("repeat", b.input("X", (24, 40)), axis=1, times=5), 1))


def row_sum(b: Builder) -> TensorProgram:
    return b.build(Y=b.sum(b.input("X", (48, 128)), 1))


def shifted_sum(b: Builder) -> TensorProgram:
    return b.build(Y=b.sum(b.input("X", (48, 128)) + 0.5, 1))


def mean(b: Builder) -> TensorProgram:
    return b.build(Y=b.op("mean", b.input("X", (48, 128)), axis=(1,)))


def quarters(b: Builder) -> TensorProgram:
    x = b.input("X", (24, 128))
    return b.build(Y=b.op("slice", x, axis=1, start=0, stop=32) * 2 + b.op("slice", x, axis=1, start=32, stop=64))


def steep(b: Builder) -> TensorProgram:
    return b.build(Y=b.exp(b.input("X", (32, 48)) * 1000))


def steep_softmax(b: Builder) -> TensorProgram:
    return b.build(Y=b.softmax(b.input("X", (32, 48)) * 1000))


def softmax(b: Builder) -> TensorProgram:
    return b.build(Y=b.softmax(b.input("X", (32, 48))))


def sum_of_two(b: Builder) -> TensorProgram:
    x, y, w = b.input("X", (32, 64)), b.input("Y", (32, 64)), b.input("W", (64, 48))
    return b.build(Z=(x + y) @ w)


def linear_attention(b: Builder) -> TensorProgram:
    q, k, v = (b.input(n, (2, 64, 32)) for n in "QKV")
    return b.build(O=(q @ k.T) @ v)


def exp_of_sum(b: Builder) -> TensorProgram:
    return b.build(Z=b.exp(b.input("X", (32, 48)) - b.input("Y", (48,))))


def one_row(b: Builder) -> TensorProgram:
    q, k, v = b.input("Q", (3, 1, 16)), b.input("K", (3, 37, 16)), b.input("V", (3, 37, 16))
    return b.build(O=b.attention(q, k, v))


def gated(b: Builder) -> TensorProgram:
    x, w, v = b.input("X", (32, 64)), b.input("W", (64, 48)), b.input("V", (64, 48))
    return b.build(Y=b.silu(x @ w) * (x @ v))


def variance(b: Builder) -> TensorProgram:
    x = b.input("X", (16, 60))
    c = x - b.op("mean", x, axis=(1,), keepdims=True)
    return b.build(Y=b.op("mean", b.op("square", c), axis=(1,)))


def mixed(b: Builder) -> TensorProgram:
    """Half precision outside, single inside."""
    x, w = b.input("X", (32, 64)), b.input("W", (64, 48))
    y = b.op("cast", x @ w, dtype="float32")
    return b.build(Y=b.op("cast", y / 3 + 1, dtype="float16"))


def transposed(b: Builder) -> TensorProgram:
    return b.build(Y=(b.input("A", (48, 32)) @ b.input("B", (32, 64))).T)
