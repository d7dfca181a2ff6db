"""Programs, graphs and schedules that tests of many rooms build. Sizes are small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.structures import structures


def gemm(m: int = 96, n: int = 128, k: int = 64, dtype: str = "float16") -> TensorProgram:
    """Y = X W."""
    b = Builder("gemm", dtype)
    return b.build(Y=b.input("X", (m, k)) @ b.input("W", (k, n)))


def chain(
    m: int = 64, n: int = 96, k: int = 48, h: int = 32, activation: str = "",
    *, bias: bool = False, batch: tuple[int, ...] = (), dtype: str = "float16",
) -> TensorProgram:  # fmt: skip
    """E = activation(A B) D + bias; A has ``m`` rows and ``k`` columns, D ``n`` rows and ``h`` columns."""
    b = Builder("chain", dtype)
    a, w, d = b.input("A", (*batch, m, k)), b.input("B", (*batch, k, n)), b.input("D", (*batch, n, h))
    c = a @ w
    e = (b.op(activation, c) if activation else c) @ d
    return b.build(E=e + b.input("bias", (h,)) if bias else e)


def three_gemms(m: int = 48, widths: tuple[int, ...] = (32, 64, 32, 48), dtype: str = "float16") -> TensorProgram:
    """Y = X W0 W1 W2."""
    b = Builder("three", dtype)
    x = b.input("X", (m, widths[0]))
    for i, width in enumerate(widths[1:]):
        x = x @ b.input(f"W{i}", (x.shape[1], width))
    return b.build(Y=x)


def attention(
    m: int = 64, n: int = 80, k: int = 32, h: int = 32, heads: int = 2,
    *, causal: bool = False, mask: tuple[int, ...] = (), dtype: str = "float16",
) -> TensorProgram:  # fmt: skip
    """O = softmax(Q Kᵀ / √k + mask) V with ``m`` queries and ``n`` keys of width ``k``, values of width ``h``."""
    b = Builder("attention", dtype)
    q, key, v = b.input("Q", (heads, m, k)), b.input("K", (heads, n, k)), b.input("V", (heads, n, h))
    return b.build(O=b.attention(q, key, v, b.input("mask", mask) if mask else None, causal=causal))


def packed(
    batch: int, tokens: int, heads: int, width: int, causal: bool = False, dtype: str = "float16", by_head: bool = False
) -> TensorProgram:
    """Attention as networks have it: queries, keys and values are slices of one tensor (of each head's columns, ``by_head``), and
    heads lie in rows."""
    b = Builder("packed", dtype)
    return b.build(Y=_attending(b, batch, tokens, heads, width, causal, by_head))


def packed_layer(batch: int, tokens: int, heads: int, width: int) -> TensorProgram:
    """The same in front of a product with weights."""
    b = Builder("layer")
    columns = heads * width
    return b.build(Y=_attending(b, batch, tokens, heads, width) @ b.input("W", (columns, columns)))


def _attending(b: Builder, batch: int, tokens: int, heads: int, width: int, causal: bool = False, by_head: bool = False) -> Ref:
    x, columns = b.input("X", (batch, tokens, 3 * heads * width)), heads * width
    if by_head:
        parts = [
            b.op("slice", x.reshape(batch, tokens, heads, 3 * width), axis=3, start=i * width, stop=(i + 1) * width)
            for i in range(3)
        ]
    else:
        parts = [
            b.op("slice", x, axis=2, start=i * columns, stop=(i + 1) * columns).reshape(batch, tokens, heads, width)
            for i in range(3)
        ]
    q, k, v = (p.transpose(0, 2, 1, 3) for p in parts)
    return b.attention(q, k, v, causal=causal).transpose(0, 2, 1, 3).reshape(batch, tokens, columns)


def apart(program: TensorProgram) -> KernelGraph:
    """Attention in one kernel, the product behind it in another."""
    return next(
        g for g in structures(program) if len(g.blocks) == 2 and sum(bool(s.contracts) for s in g.blocks[0].computes) == 2
    )


def rms_gemm(m: int = 16, k: int = 64, n: int = 48, *, gain: bool = True, eps: float = 1e-5) -> TensorProgram:
    """Y = rms_norm(X, G) W."""
    b = Builder("rms")
    x = b.input("X", (m, k))
    normal = b.rms_norm(x, b.input("G", (k,)), eps=eps) if gain else b.rms_norm(x, eps=eps)
    return b.build(Y=normal @ b.input("W", (k, n)))


def lora(m: int = 16, k: int = 64, n: int = 32, rank: int = 16) -> TensorProgram:
    """Y = X W + (X A) B."""
    b = Builder("lora")
    x = b.input("X", (m, k))
    return b.build(Y=x @ b.input("W", (k, n)) + (x @ b.input("A", (k, rank))) @ b.input("B", (rank, n)))


def gated_mlp(m: int = 16, k: int = 64, n: int = 32) -> TensorProgram:
    """Y = silu(X W1) ⊙ (X W2)."""
    b = Builder("gated")
    x = b.input("X", (m, k))
    return b.build(Y=b.silu(x @ b.input("W1", (k, n))) * (x @ b.input("W2", (k, n))))


def postponed(program: TensorProgram) -> KernelGraph:
    """One kernel, its divisions behind the contractions, exponentials bare."""
    graph = fuse(program)
    return replace(graph, kernels=tuple(postpone_divisions(b) for b in graph.blocks))


def cut_in_two(program: TensorProgram) -> KernelGraph:
    """Two kernels that meet at one tensor, no reduction split."""
    return next(g for g in structures(program) if len(g.kernels) == 2 and not any(b.splits for b in g.blocks))


def edit(graph: KernelGraph, value: str, **changes: object) -> KernelGraph:
    """The statement that computes ``value``, changed."""

    def block(b: BlockGraph) -> BlockGraph:
        return replace(b, stmts=tuple(replace(s, **changes) if s.value == value and s.kind == "compute" else s for s in b.stmts))  # type: ignore[arg-type]

    return replace(graph, kernels=tuple(block(k) if isinstance(k, BlockGraph) else k for k in graph.kernels))


def negated(graph: KernelGraph) -> KernelGraph:
    """A wrong graph: one of its kernels' results has the other sign."""
    block = graph.blocks[0]
    store = block.stores[0]
    made = block.by_value[store.value]
    minus = replace(made, value="minus", op="neg", args=(made.value,), attrs=(), reduce=(), rescale=())
    stmts = (*(s for s in block.stmts if s is not store), minus, replace(store, value="minus"))
    return replace(graph, kernels=(replace(block, stmts=stmts), *graph.kernels[1:])).validate()


def schedule(
    order: str = "", splits: Mapping[str, int] | None = None, warps: int = 4, stages: int = 2,
    knobs: Mapping[str, object] | None = None, **tiles: int,
) -> KernelSchedule:  # fmt: skip
    """A kernel's schedule; ``tiles`` are sizes by axis."""
    parts = tuple(sorted((splits or {}).items()))
    return KernelSchedule(
        tuple(sorted(tiles.items())), TilingExpr.parse(order), parts, warps, stages, tuple((knobs or {}).items())
    )


def tiles_of_16(graph: KernelGraph, **knobs: str) -> Schedule:
    """Tiles of 16 and what else there must be; ``knobs`` are those of all kernels but the first."""
    kernels = []
    for i, block in enumerate(graph.blocks):
        counts = {a: 2 for a, e in block.extents.items() if e == FREE}
        tiles = {a: 16 for a in block.extents if a not in counts}
        loops = [a for a in tiles if a in block.reduced and tiles[a] < block.extents[a]]
        kernel = replace(schedule("".join(loops), counts), tiles=tuple(sorted(tiles.items())))
        kernels.append(replace(kernel, knobs=tuple(sorted(knobs.items())) if i else ()))
    return Schedule(tuple(kernels))
