"""The named programs of the papers' evaluations, as tensor programs at their published shapes.

A name is ``suite/case``, for Mirage with a batch: ``mirage/rmsnorm:8``; without one the batch is 1. The tables are data; each row
names its formula and the sizes of it, and every size can be overridden to get the same program at another size:

>>> workload("mcfuser/S6")
>>> workload("mcfuser/S6", M=32, N=48)
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from fuser.checks import require_type
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

Sizes = tuple[tuple[str, int], ...]
Formula = Callable[..., TensorProgram]

BATCHES = (1, 8)
"""The batch sizes at which the papers measure the cases that have a batch; any other positive one is accepted."""


@dataclass(frozen=True)
class Workload:
    """A row: ``sizes`` are the keyword arguments of ``formula``; those in ``batched`` are multiplied by the batch."""

    name: str
    formula: Formula
    sizes: Sizes
    batched: tuple[str, ...] = ()
    network: str = ""


def gemm_chain(b: Builder, *, batch: int, M: int, N: int, K: int, H: int) -> TensorProgram:
    """E = (A B) D with A[b,M,K], B[b,K,N], D[b,N,H]."""
    a, w, d = b.input("A", (batch, M, K)), b.input("B", (batch, K, N)), b.input("D", (batch, N, H))
    return b.build(E=(a @ w) @ d)


def attention(b: Builder, *, heads: int, M: int, N: int, K: int, H: int) -> TensorProgram:
    """O = softmax(Q Kᵀ / √K) V with Q[heads,M,K], K[heads,N,K], V[heads,N,H]."""
    q, k, v = b.input("Q", (heads, M, K)), b.input("K", (heads, N, K)), b.input("V", (heads, N, H))
    return b.build(O=b.attention(q, k, v))


def grouped_attention(b: Builder, *, heads: int, group: int, M: int, N: int, K: int, H: int) -> TensorProgram:
    """O = softmax(Q rep(K)ᵀ / √K) rep(V) with Q[heads·group,M,K], K[heads,N,K], V[heads,N,H]: ``rep`` repeats each key head for
    the ``group`` query heads that share it, as Mirage's figure 4a writes it."""
    q, k, v = b.input("Q", (heads * group, M, K)), b.input("K", (heads, N, K)), b.input("V", (heads, N, H))
    return b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=group), b.op("repeat", v, axis=0, times=group)))


def qk_norm(b: Builder, *, heads: int, M: int, N: int, K: int, H: int) -> TensorProgram:
    """O = attention(rms(Q), rms(K), V), shapes as in :func:`attention`."""
    q, k, v = b.input("Q", (heads, M, K)), b.input("K", (heads, N, K)), b.input("V", (heads, N, H))
    scale = Scalar.power(Extent("Q", 2), Fraction(-1, 2))
    return b.build(O=b.attention(b.rms_norm(q), b.rms_norm(k), v, scale=scale))


def rms_norm_linear(b: Builder, *, rows: int, D: int, N: int) -> TensorProgram:
    """Y = (rms(X) ⊙ G) W with X[rows,D], G[D], W[D,N]."""
    x, g, w = b.input("X", (rows, D)), b.input("G", (D,)), b.input("W", (D, N))
    return b.build(Y=b.rms_norm(x, g) @ w)


def lora(b: Builder, *, rows: int, D: int, N: int, R: int) -> TensorProgram:
    """Y = X W + (X A) B with X[rows,D], W[D,N], A[D,R], B[R,N]."""
    x, w = b.input("X", (rows, D)), b.input("W", (D, N))
    down, up = b.input("A", (D, R)), b.input("B", (R, N))
    return b.build(Y=x @ w + (x @ down) @ up)


def gated_mlp(b: Builder, *, rows: int, D: int, N: int) -> TensorProgram:
    """Y = silu(X W1) ⊙ (X W2) with X[rows,D], W1, W2[D,N]."""
    x, gate, up = b.input("X", (rows, D)), b.input("W1", (D, N)), b.input("W2", (D, N))
    return b.build(Y=b.silu(x @ gate) * (x @ up))


def n_trans(b: Builder, *, rows: int, D: int) -> TensorProgram:
    """Y = rms(X + α ⊙ (rms(H) − X)), all [rows,D]."""
    h, x, alpha = (b.input(n, (rows, D)) for n in ("H", "X", "alpha"))
    return b.build(Y=b.rms_norm(x + alpha * (b.rms_norm(h) - x)))


def adapter(b: Builder, *, rows: int, D: int, R: int) -> TensorProgram:
    """Y = relu(X A) B + X with X[rows,D], A[D,R], B[R,D]."""
    x, down, up = b.input("X", (rows, D)), b.input("A", (D, R)), b.input("B", (R, D))
    return b.build(Y=b.relu(x @ down) @ up + x)


def experts(b: Builder, *, E: int, rows: int, D: int, F: int) -> TensorProgram:
    """Y = relu(X A) B for each of E experts, X[E,rows,D], A[E,D,F], B[E,F,D]."""
    x, up, down = b.input("X", (E, rows, D)), b.input("A", (E, D, F)), b.input("B", (E, F, D))
    return b.build(Y=b.relu(x @ up) @ down)


def gemm(b: Builder, *, M: int, N: int, K: int) -> TensorProgram:
    """Y = A C with A[M,K], C[K,N]."""
    return b.build(Y=b.input("A", (M, K)) @ b.input("C", (K, N)))


def gemm_bias_relu(b: Builder, *, M: int, N: int, K: int) -> TensorProgram:
    """Y = relu(A C + v) with A[M,K], C[K,N], v[N]."""
    a, c, v = b.input("A", (M, K)), b.input("C", (K, N)), b.input("v", (N,))
    return b.build(Y=b.relu(a @ c + v))


def mlp(b: Builder, *, layers: int, M: int, D: int) -> TensorProgram:
    """Layers of relu(X W + v) in a row: X[M,D], W[layers,D,D], v[layers,D]."""
    x, w, v = b.input("X", (M, D)), b.input("W", (layers, D, D)), b.input("v", (layers, D))
    for i in range(layers):
        weight = b.op("slice", w, axis=0, start=i, stop=i + 1).reshape(D, D)
        bias = b.op("slice", v, axis=0, start=i, stop=i + 1).reshape(D)
        x = b.relu(x @ weight + bias)
    return b.build(Y=x)


def lstm_cell(b: Builder, *, M: int, N: int, K: int) -> TensorProgram:
    """Y = relu(X W + H U + v) with X, H[M,K], W, U[K,N], v[N]."""
    x, h, w, u = b.input("X", (M, K)), b.input("H", (M, K)), b.input("W", (K, N)), b.input("U", (K, N))
    return b.build(Y=b.relu(x @ w + h @ u + b.input("v", (N,))))


def layer_norm(b: Builder, *, rows: int, D: int) -> TensorProgram:
    """Y = layer norm of X[rows,D] with gain G[D] and bias B[D]."""
    return b.build(Y=b.layer_norm(b.input("X", (rows, D)), b.input("G", (D,)), b.input("B", (D,))))


# MCFuser, table II: b, M, N, K, H
_GEMM_CHAINS = {
    "G1": (1, 512, 256, 64, 64),
    "G2": (1, 512, 256, 64, 128),
    "G3": (1, 512, 256, 64, 256),
    "G4": (1, 512, 512, 256, 256),
    "G5": (1, 512, 512, 512, 256),
    "G6": (1, 512, 512, 1024, 256),
    "G7": (1, 512, 512, 128, 128),
    "G8": (1, 1024, 512, 128, 128),
    "G9": (1, 2048, 512, 128, 128),
    "G10": (1, 1024, 1024, 128, 128),
    "G11": (4, 1024, 1024, 128, 128),
    "G12": (8, 1024, 1024, 128, 128),
}

# MCFuser, table III: heads, M, N, K, H, network
_ATTENTION = {
    "S1": (8, 512, 512, 64, 64, "BERT small"),
    "S2": (12, 512, 512, 64, 64, "BERT base"),
    "S3": (16, 512, 512, 64, 64, "BERT large"),
    "S4": (12, 256, 256, 64, 64, "ViT base"),
    "S5": (16, 256, 256, 64, 64, "ViT large"),
    "S6": (16, 256, 256, 80, 80, "ViT huge"),
    "S7": (1, 512, 256, 64, 64, "MLP-Mixer"),
    "S8": (1, 768, 384, 64, 64, "MLP-Mixer"),
    "S9": (1, 1024, 512, 64, 64, "MLP-Mixer"),
}

# Mirage, attention at batch 1: heads, M (grouped query heads are folded into rows); 4096 keys, head size 64
_MIRAGE_ATTENTION = {
    "mha-inc": (32, 1),
    "mha-spec": (32, 32),
    "gqa-inc": (2, 8),
    "gqa-spec": (2, 256),
    "mqa-inc": (1, 32),
    "mqa-spec": (1, 1024),
    "mha-prefill": (32, 512),
    "gqa-prefill": (2, 4096),
    "mqa-prefill": (1, 16384),
}


def _sizes(**sizes: int) -> Sizes:
    return tuple(sizes.items())


def _rows() -> Iterator[Workload]:
    for case, (b, m, n, k, h) in _GEMM_CHAINS.items():
        yield Workload(f"mcfuser/{case}", gemm_chain, _sizes(batch=b, M=m, N=n, K=k, H=h))
    for case, (heads, m, n, k, h, network) in _ATTENTION.items():
        yield Workload(f"mcfuser/{case}", attention, _sizes(heads=heads, M=m, N=n, K=k, H=h), network=network)
    for case, (heads, m) in _MIRAGE_ATTENTION.items():
        yield Workload(f"mirage/{case}", attention, _sizes(heads=heads, M=m, N=4096, K=64, H=64), ("heads",))
    yield Workload("mirage/gqa-repeat", grouped_attention, _sizes(heads=2, group=8, M=32, N=4096, K=64, H=64), ("heads",))
    rows = ("rows",)
    yield Workload("mirage/qknorm", qk_norm, _sizes(heads=2, M=256, N=4096, K=64, H=64), ("heads",))
    yield Workload("mirage/rmsnorm", rms_norm_linear, _sizes(rows=2, D=4096, N=6144), rows)
    yield Workload("mirage/lora", lora, _sizes(rows=16, D=4096, N=4096, R=16), rows)
    yield Workload("mirage/gated-mlp", gated_mlp, _sizes(rows=8, D=4096, N=4096), rows)
    yield Workload("mirage/ntrans", n_trans, _sizes(rows=8, D=4096), rows)
    yield Workload("mirage/mlp", adapter, _sizes(rows=16, D=4096, R=16), rows)
    yield Workload("mirage/moe", experts, _sizes(E=8, rows=8, D=4096, F=2048), rows)
    yield Workload("graphene/gemm", gemm, _sizes(M=5376, N=5376, K=2048))
    yield Workload("graphene/gemm-bias-relu", gemm_bias_relu, _sizes(M=5376, N=5376, K=2048))
    yield Workload("graphene/mlp20", mlp, _sizes(layers=20, M=4096, D=128))
    yield Workload("graphene/lstm", lstm_cell, _sizes(M=1024, N=1024, K=1024))
    yield Workload("graphene/layernorm", layer_norm, _sizes(rows=12288, D=1024))
    yield Workload("graphene/fmha", attention, _sizes(heads=512, M=384, N=384, K=64, H=64), network="MLPerf BERT")


WORKLOADS: dict[str, Workload] = {w.name: w for w in _rows()}
"""Every case by its name without a batch, in the order of the papers' tables."""


def workload_names() -> tuple[str, ...]:
    """Every published name; cases with a batch once plainly (batch 1) and once for each further batch (``:8``)."""
    found = []
    for name, row in WORKLOADS.items():
        found.append(name)
        if row.batched:
            found += [f"{name}:{b}" for b in BATCHES if b != 1]
    return tuple(found)


def _unknown(name: str) -> UsageError:
    close = difflib.get_close_matches(name, workload_names(), n=4, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "names are suite/case, such as mcfuser/G1, or globs: 'mirage/*:8'"
    return UsageError(f"there is no workload {name!r}", hint)


def parse_name(name: str) -> tuple[Workload, int]:
    """The row and the batch of a name; :class:`UsageError` with close matches if there is none."""
    base, colon, batch = name.partition(":")
    if base not in WORKLOADS:
        raise _unknown(name)
    row = WORKLOADS[base]
    if not colon:
        return row, 1
    if not row.batched:
        raise UsageError(f"workload {base!r} has no batch, so {name!r} means nothing", f"use {base!r}")
    if not (batch.isascii() and batch.isdigit()) or int(batch) < 1:
        raise UsageError(f"the batch of {name!r} is not a positive whole number", f"such as {base}:8")
    return row, int(batch)


def canonical_name(name: str) -> str:
    """The name as records keep it: no ``:1``, no leading zeros in the batch."""
    row, batch = parse_name(name)
    return row.name if batch == 1 else f"{row.name}:{batch}"


def workload(name: str, *, dtype: str = "float16", **sizes: int) -> TensorProgram:
    """The program of that name; ``sizes`` replace sizes of its formula (after the batch is applied)."""
    require_type("the name of a workload", name, str)
    row, batch = parse_name(name)
    values = {k: v * batch if k in row.batched else v for k, v in row.sizes}
    if unknown := sorted(set(sizes) - set(values)):
        raise UsageError(f"{row.name} has no size {', '.join(unknown)}", f"its sizes are {', '.join(values)}")
    return row.formula(Builder(canonical_name(name), dtype), **(values | sizes))


def match(patterns: Iterable[str]) -> list[str]:
    """Names for several names and globs, each once, in the order asked for; :class:`UsageError` where one fits nothing."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if any(c in pattern for c in "*?["):
            names = [n for n in workload_names() if fnmatch.fnmatchcase(n, pattern)]
            if not names:
                suites = sorted({n.split("/")[0] for n in WORKLOADS})
                raise UsageError(f"no workload fits {pattern!r}", f"suites are {', '.join(suites)}")
            found |= dict.fromkeys(names)
        else:
            found[canonical_name(pattern)] = None
    return list(found)
