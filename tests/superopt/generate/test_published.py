"""The published structures are found by search from the plain programs, with no hint but the program."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from fuser.ir.builder import Builder
from fuser.ir.maps import block_maps
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.ir.tiling import TilingExpr
from fuser.superopt.generate.generator import Limits
from fuser.superopt.generate.generator import generate
from fuser.superopt.generate.signature import signature
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload

FIRST = 250
"""Structures must be among so many first ones: verified at the pace of the slowest workload, these take less than a minute."""


def rms(x: str, axis: str) -> str:
    return f"sqrt(shift(scale(sum/{axis}(square({x})), scalar=|{axis}.-1|^(-1)), scalar=1e-05))"


def exponentials(q: str, k: str) -> str:
    return f"exp(scale(matmul/k({k}, {q}), scalar=|k.-1|^(-1/2)))"


def flash(e: str) -> str:
    return f"kernel: O[b,m,h] = div(matmul/n(V[b,n,h], {e}), sum/n({e}))"


def decoding(e: str) -> str:
    return (
        f"kernel split n: %0[n_part,b,m,h] = matmul/n(V[b,n,h], {e}); %1[n_part,b,m] = sum/n({e})\n"
        "kernel: O[b,m,h] = div(sum/n_part(%0[n_part,b,m,h]), sum/n_part(%1[n_part,b,m]))"
    )


PLAIN = exponentials("Q[b,m,k]", "K[b,n,k]")
NORMED = exponentials(f"div(Q[b,m,k], {rms('Q[b,m,k]', 'k')})", f"div(K[b,n,k], {rms('K[b,n,k]', 'k')})")
LORA = "matmul/h(B[h,n], matmul/k(A[k,h], X[m,k])), matmul/k(W[k,n], X[m,k])"
ADAPTER = "Y[m,k] = add(X[m,k], matmul/n(B[n,k], relu("
KEYS_VALUES = "matmul/n(V[b,n,h], relu(K[b,n,k]))"
GATED = "mul(matmul/k(W2[k,n], X[m,k]), silu(matmul/k(W1[k,n], X[m,k])))"
CENTRED = "sub(X[m,k], scale(sum/k(X[m,k]), scalar=|k.-1|^(-1)))"
DEVIATION = f"sqrt(shift(scale(sum/k(square({CENTRED})), scalar=|k.-1|^(-1)), scalar=1e-05))"
MERGED = "mul(alpha[m,n], sub(div(H[m,n], {}), X[m,n]))".format(rms("H[m,n]", "n"))


@dataclass(frozen=True)
class Published:
    """A published structure: the plain program's workload and the signature, grid and tile sizes free."""

    workload: str
    signature: str


STRUCTURES = {
    "rmsnorm": Published("mirage/rmsnorm", f"kernel: Y[m,n] = div(matmul/k(W[k,n], mul(G[k], X[m,k])), {rms('X[m,k]', 'k')})"),
    "gated-mlp": Published("mirage/gated-mlp", f"kernel: Y[m,n] = {GATED}"),
    "lora": Published("mirage/lora", f"kernel: Y[m,n] = add({LORA})"),
    "lora, concatenated": Published("mirage/lora", f"kernel: Y[m,n] = add({LORA}, concat=True)"),
    "gqa": Published("mirage/gqa-spec", decoding(PLAIN)),
    "gqa, one token": Published("mirage/gqa-inc", decoding(PLAIN)),
    "mha, FlashAttention": Published("mirage/mha-prefill", flash(PLAIN)),
    "mha, FlashDecoding": Published("mirage/mha-spec", decoding(PLAIN)),
    "qknorm": Published("mirage/qknorm", decoding(NORMED)),
    "adapter": Published(
        "mirage/mlp", f"kernel split k: %0[k_part,m,n] = matmul/k(A[k,n], X[m,k])\nkernel: {ADAPTER}sum/k_part(%0[k_part,m,n]))))"
    ),
    "ntrans": Published("mirage/ntrans", f"kernel: Y[m,n] = div(add(X[m,n], {MERGED}), {rms(f'add(X[m,n], {MERGED})', 'n')})"),
    "experts, fused": Published("mirage/moe", "kernel: Y[b,m,h] = matmul/n(B[b,n,h], relu(matmul/k(A[b,k,n], X[b,m,k])))"),
    "experts, two kernels": Published(
        "mirage/moe", "kernel: %0[b,m,n] = relu(matmul/k(A[b,k,n], X[b,m,k]))\nkernel: Y[b,m,h] = matmul/n(%0[b,m,n], B[b,n,h])"
    ),
    "chain, fused": Published("mcfuser/G4", "kernel: E[1,m,h] = matmul/n(D[1,n,h], matmul/k(A[1,m,k], B[1,k,n]))"),
    "chain, reassociated": Published("mcfuser/G4", "kernel: E[1,m,h] = matmul/k(A[1,m,k], matmul/n(B[1,k,n], D[1,n,h]))"),
    "chain, last sum split": Published(
        "mcfuser/G4",
        "kernel split n: %0[n_part,m,h] = matmul/n(D[1,n,h], matmul/k(A[1,m,k], B[1,k,n]))\n"
        "kernel: E[1,m,h] = sum/n_part(%0[n_part,m,h])",
    ),
    "chain, first sum split": Published(
        "mcfuser/G4",
        "kernel split k: %0[k_part,m,n] = matmul/k(A[1,m,k], B[1,k,n])\n"
        "kernel: E[1,m,h] = matmul/n(D[1,n,h], sum/k_part(%0[k_part,m,n]))",
    ),
    "self-attention, MCFuser": Published("mcfuser/S1", flash(PLAIN)),
}


def find(program: TensorProgram, text: str, limits: Limits | None = None) -> KernelGraph:
    for candidate in itertools.islice(generate(program, limits), FIRST):
        if signature(candidate.graph).text == text:
            return candidate.graph
    raise AssertionError(f"not found among the first {FIRST} structures of {program.name}: {text}")


@pytest.mark.parametrize("name", STRUCTURES)
def test_published_structure_is_found_stable_and_verified(name: str) -> None:
    published = STRUCTURES[name]
    program = workload(published.workload)
    graph = stabilize_graph(find(program, published.signature))
    assert not unstable(graph)
    assert isinstance(verify(program, graph, rounds=1), Accepted)


def schedule(block: BlockGraph, loops: str, **tiles: int) -> KernelSchedule:
    sizes = {a.name: tiles.get(a.name, a.extent) for a in block.axes if a.extent}
    splits = tuple((a.name, 4) for a in block.axes if not a.extent)
    return KernelSchedule(tuple(sorted(sizes.items())), TilingExpr.parse(loops), splits)


def arrangement(block: BlockGraph, chosen: KernelSchedule) -> list[tuple[str, tuple[str, ...]]]:
    """Operators of a kernel by where they stand under a schedule: each loop with those in it, sorted, and runs of those in none,
    whose axis is empty."""
    bound, plans = bind(block, chosen)

    def inside(node: Node) -> list[str]:
        if isinstance(node, Loop):
            return [op for n in node.body for op in inside(n)]
        return [node.op] if isinstance(node, Stmt) and node.kind == "compute" else []

    places = [(n.axis if isinstance(n, Loop) else "", inside(n)) for n in place(bound, chosen.order, plans).body]
    grouped = ((axis, sorted(op for _, ops in run for op in ops)) for axis, run in itertools.groupby(places, lambda p: p[0]))
    return [(axis, tuple(ops)) for axis, ops in grouped if ops]


def test_rmsnorm_accumulates_in_one_loop_and_divides_in_the_epilogue() -> None:
    (block,) = find(workload("mirage/rmsnorm:8"), STRUCTURES["rmsnorm"].signature).blocks
    chosen = schedule(block, "k", m=16, n=128, k=64)
    inside, behind = ("matmul", "mul", "square", "sum"), ("div", "scale", "shift", "sqrt")
    assert arrangement(block, chosen) == [("k", inside), ("", behind)]
    maps = block_maps(block, chosen)
    assert (maps.imap("X"), maps.fmap("X")) == ("(-,-,-)", "1")
    assert (maps.imap("W"), maps.fmap("W")) == ("(1,-,-)", "0")
    assert maps.omap("Y") == "(1,-,-)"


def test_gated_mlp_has_two_accumulators_in_one_loop() -> None:
    (block,) = find(workload("mirage/gated-mlp:8"), STRUCTURES["gated-mlp"].signature).blocks
    chosen = schedule(block, "k", m=64, n=128, k=64)
    assert arrangement(block, chosen) == [("k", ("matmul", "matmul")), ("", ("mul", "silu"))]
    maps = block_maps(block, chosen)
    assert [maps.imap(t) for t in ("X", "W1", "W2")] == ["(-,-,-)", "(1,-,-)", "(1,-,-)"]
    assert [maps.fmap(t) for t in ("X", "W1", "W2")] == ["1", "0", "0"]


def test_group_query_attention_splits_the_keys_and_adds_the_parts() -> None:
    graph = stabilize_graph(find(workload("mirage/gqa-spec"), STRUCTURES["gqa"].signature))
    first, second = graph.blocks
    assert first.splits == (("n", "n_part"),)
    chosen = schedule(first, "n", b=1, m=256, n=128)
    maps = block_maps(first, chosen)
    # the key heads over one grid dimension, the parts of the keys over another; each block walks its share of keys
    grid = [axes for axes, _ in maps.grid]
    part, head = grid.index(("n_part",)), grid.index(("b",))
    for tensor, dims in (("Q", ("-", "0")), ("K", ("1", "0")), ("V", ("1", "0"))):
        entries = maps.imap(tensor).strip("()").split(",")
        assert (entries[part], entries[head]) == dims
    ((axis, body),) = (row for row in arrangement(first, chosen) if row[0])
    assert axis == "n"
    assert body == ("exp", "matmul", "matmul", "max", "scale", "sub", "sum")
    assert len(first.stores) == 3  # the partial output, the partial sum, and their maximum
    assert {"exp", "max", "sum", "div"} <= {s.op for s in second.computes}
    assert {a for s in second.computes for a in s.reduce} == {"n_part"}


# Programs that no paper shows, and what a person would have written.


def three_gemms() -> TensorProgram:
    b = Builder("three")
    a, w1, w2, w3 = b.input("A", (512, 64)), b.input("B", (64, 256)), b.input("C", (256, 128)), b.input("D", (128, 96))
    return b.build(E=((a @ w1) @ w2) @ w3)


def norm_gemm_gelu() -> TensorProgram:
    b = Builder("norm-gemm-gelu")
    x, g, c, w = b.input("X", (512, 768)), b.input("G", (768,)), b.input("C", (768,)), b.input("W", (768, 3072))
    return b.build(Y=b.gelu(b.layer_norm(x, g, c) @ w))


def linear_attention() -> TensorProgram:
    b = Builder("linear-attention")
    q, k, v = b.input("Q", (8, 512, 64)), b.input("K", (8, 1024, 64)), b.input("V", (8, 1024, 80))
    scores = b.relu(q) @ b.relu(k).T
    return b.build(O=(scores @ v) / b.sum(scores, -1, keepdims=True))


def cross_attention() -> TensorProgram:
    b = Builder("cross-attention")
    q, k, v = b.input("Q", (8, 512, 64)), b.input("K", (8, 77, 64)), b.input("V", (8, 77, 128))
    return b.build(O=b.attention(q, k, v))


def gated_ffn() -> TensorProgram:
    b = Builder("gated-ffn")
    x, w1, w2, w3 = b.input("X", (64, 512)), b.input("W1", (512, 1376)), b.input("W2", (512, 1376)), b.input("W3", (1376, 512))
    return b.build(Y=(b.silu(x @ w1) * (x @ w2)) @ w3)


OURS = {
    "three GEMMs, right to left": (
        three_gemms,
        "kernel: E[m,p] = matmul/k(A[m,k], matmul/n(B[k,n], matmul/h(C[n,h], D[h,p])))",
    ),
    "LayerNorm, GEMM and GELU in one kernel, the rows divided after the product": (
        norm_gemm_gelu,
        f"kernel: Y[m,n] = gelu(add(div(matmul/k(W[k,n], mul(G[k], {CENTRED})), {DEVIATION}), matmul/k(C[k], W[k,n])))",
    ),
    "linear attention without the score matrix": (
        linear_attention,
        f"kernel: O[b,m,h] = div(matmul/k({KEYS_VALUES}, relu(Q[b,m,k])), matmul/k(relu(Q[b,m,k]), sum/n(relu(K[b,n,k]))))",
    ),
    "cross-attention": (cross_attention, flash(PLAIN)),
    "gated MLP with its down-projection, cut before it": (
        gated_ffn,
        f"kernel: %0[m,n] = {GATED}\nkernel: Y[m,h] = matmul/n(%0[m,n], W3[n,h])",
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_programs_of_our_own(name: str) -> None:
    make, text = OURS[name]
    program = make()
    assert isinstance(verify(program, stabilize_graph(find(program, text, Limits(block_ops=11))), rounds=1), Accepted)
