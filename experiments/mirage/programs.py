"""Programs whose right µGraphs are mutated and rewritten."""

from __future__ import annotations

import contextlib

from fuser.errors import UnsupportedError
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from fuser.workloads import workload

SIDE = 64
"""Most programs have this extent everywhere, so that wrong accesses fit the shapes."""


def programs() -> list[TensorProgram]:
    """The workloads at one extent, so that no error shows in a shape alone, and programs of our own."""
    n = SIDE
    found = [
        workload("mcfuser/G1", batch=3, M=n, N=n, K=n, H=n),
        workload("mcfuser/S1", heads=4, M=n, N=n, K=n, H=n),
        workload("mirage/qknorm", heads=2, M=n, N=n, K=n, H=n),
        workload("mirage/rmsnorm", rows=n, D=n, N=n),
        workload("mirage/lora", rows=n, D=n, N=n, R=n),
        workload("mirage/gated-mlp", rows=n, D=n, N=n),
        workload("mirage/ntrans", rows=n, D=n),
        workload("mirage/mlp", rows=n, D=n, R=n),
        workload("mirage/moe", E=4, rows=n, D=n, F=n),
        workload("graphene/gemm-bias-relu", M=n, N=n, K=n),
        workload("graphene/lstm", M=n, N=n, K=n),
        workload("graphene/layernorm", rows=n, D=n),
    ]
    b = Builder("causal")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.attention(q, k, v, causal=True)))
    b = Builder("masked")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.attention(q, k, v, b.input("M", (n, n)))))
    b = Builder("linear_attention")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.exp(q) @ (b.exp(k).T @ v)))
    b = Builder("norm_mlp")
    x, w1, w2 = b.input("X", (n, n)), b.input("W1", (n, n)), b.input("W2", (n, n))
    found.append(b.build(Y=b.gelu(b.layer_norm(x) @ w1) @ w2))
    b = Builder("two_outputs")
    x, w, v = b.input("X", (n, n)), b.input("W", (n, n)), b.input("V", (n,))
    y = (x + v) @ w - x
    found.append(b.build(Y=y, Z=b.sum(b.relu(y) * x, 1) / 3))
    b = Builder("difference")
    x, y, w = b.input("X", (n, n)), b.input("Y", (n, n)), b.input("W", (n, n))
    e = b.exp(x - y)
    found.append(b.build(Z=(e @ w) / b.sum(e, 1, keepdims=True)))
    return found


def uneven() -> list[TensorProgram]:
    """Programs of unequal extents, with what depends on where an element lies: masks of several offsets, windows, repeated heads,
    choices, whole numbers.
    """
    found = [
        workload("mcfuser/G1", batch=2, M=48, N=80, K=64, H=32),
        workload("mcfuser/S1", heads=2, M=40, N=96, K=64, H=32),
        workload("mirage/rmsnorm", rows=24, D=128, N=48),
        workload("mirage/lora", rows=16, D=96, N=64, R=8),
        workload("graphene/layernorm", rows=12, D=100),
    ]
    b = Builder("decode")
    q, k, v = b.input("Q", (2, 12, 32)), b.input("K", (2, 96, 32)), b.input("V", (2, 96, 48))
    found.append(b.build(O=b.attention(q, k, v, causal=True)))
    b = Builder("shifted")
    q, k, v = b.input("Q", (60, 32)), b.input("K", (80, 32)), b.input("V", (80, 24))
    found.append(b.build(O=b.softmax(b.op("causal_mask", (q @ k.T) / 8, offset=37)) @ v))
    b = Builder("anchors")
    x, y, w = b.input("X", (24, 72)), b.input("Y", (24, 72)), b.input("W", (72, 20))
    e = b.exp(b.op("causal_mask", x, offset=0)) + b.exp(b.op("causal_mask", y, offset=48))
    found.append(b.build(Z=e @ w))
    b = Builder("halves")
    x, w = b.input("X", (40, 96)), b.input("W", (48, 28))
    first, second = b.op("slice", x, axis=1, start=0, stop=48), b.op("slice", x, axis=1, start=48, stop=96)
    found.append(b.build(Y=(first * b.silu(second)) @ w))
    b = Builder("pieces")
    x, y = b.input("X", (90, 40)), b.input("Y", (40, 30))
    rows = [b.op("slice", x, axis=0, start=i, stop=i + 24) for i in (0, 17, 66)]
    found.append(b.build(Z=(rows[0] * rows[1] - rows[2]) @ y))
    b = Builder("grouped")
    q, k, v = b.input("Q", (6, 20, 32)), b.input("K", (2, 50, 32)), b.input("V", (2, 50, 24))
    found.append(b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=3), b.op("repeat", v, axis=0, times=3))))
    b = Builder("choices")
    c, d, x, y = b.input("C", (36, 56), "bool"), b.input("D", (56,)), b.input("X", (36, 56)), b.input("Y", (36, 56))
    found.append(b.build(Z=b.op("where", c, x, y * 2) @ b.op("where", d, b.input("W", (44, 56)), b.input("V", (44, 56))).T))
    b = Builder("whole_numbers", "float32")
    x, w = b.input("X", (36, 56)), b.input("W", (56, 44))
    steps = b.op("cast", b.op("cast", x * 9, dtype="int32"), dtype="float32")
    found.append(b.build(Z=steps @ w))
    return found


def correct(program: TensorProgram) -> list[KernelGraph]:
    """Structures that hold by construction: as written, fused, cut, split, stable."""
    found = [fuse(program)]
    with contextlib.suppress(UnsupportedError):
        found += structures(program)
    return found
