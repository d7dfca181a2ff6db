"""Regions: which chains are candidates, which are taken, and that everything left has a reason."""

from __future__ import annotations

import math

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from search.regions import choose
from search.regions import find_chains

H200 = load_device("h200")


def encoder(sequence: int = 128, hidden: int = 128, heads: int = 2, dtype: str = "float16", layers: int = 1) -> TensorProgram:
    b = Builder("encoder", dtype)

    def linear(x: Ref, name: str, out: int) -> Ref:
        return x @ b.input(f"{name}.w", (x.shape[-1], out)) + b.input(f"{name}.b", (out,))

    x = b.input("x", (1, sequence, hidden))
    for i in range(layers):
        q, k, v = (
            linear(x, f"{i}.{n}", hidden).reshape(1, sequence, heads, hidden // heads).transpose(0, 2, 1, 3) for n in "qkv"
        )
        a = b.softmax((q @ k.T) * (hidden // heads) ** -0.5) @ v
        y = b.layer_norm(x + linear(a.transpose(0, 2, 1, 3).reshape(1, sequence, hidden), f"{i}.o", hidden))
        x = b.layer_norm(y + linear(b.gelu(linear(y, f"{i}.up", 4 * hidden)), f"{i}.down", hidden))
    return b.build(out=x)


def test_compute_bound_contractions_are_left_with_their_ratio():
    b = Builder("large")
    x, w, v = b.input("X", (8192, 8192)), b.input("W", (8192, 8192)), b.input("V", (8192, 8192))
    program = b.build(Y=(x @ w) @ v)
    found, why = find_chains(program, load_device("rtx3080"))
    assert not found
    assert why["matmul_0"].startswith("compute-bound: φ = ")


def test_attention_is_found_with_its_reshapes():
    regions, _ = find_chains(encoder(), H200)
    inner = [r for r in regions if r.kind == "attention" and len(r.contractions) == 2 and r.outputs[0].startswith("reshape")]
    assert inner
    assert {n.split("_")[0] for n in inner[0].nodes} >= {"matmul", "softmax", "transpose", "reshape"}


def test_equal_layers_give_equal_programs():
    regions, _ = find_chains(encoder(layers=3), H200)
    distinct = {r.program.stable_hash() for r in regions}
    assert len(distinct) * 3 == len(regions)


def test_the_best_savings_are_taken_and_nothing_overlaps():
    program = encoder(layers=2)
    taken, left = choose(
        program, H200, lambda p: float(len(p.nodes)), lambda r: 2.0 * len(r.nodes) if r.kind == "attention" else 0.0
    )
    nodes = [n for c in taken for n in c.region.nodes]
    assert len(nodes) == len(set(nodes))
    assert all(c.region.kind == "attention" for c in taken)
    contractions = {n.output for n in program.nodes if n.op == "matmul"}
    assert contractions == {n for c in taken for n in c.region.contractions} | {item.node for item in left}
    assert all(item.reason for item in left)


def test_a_region_that_no_kernel_fits_is_left():
    def none(program: TensorProgram) -> float:
        return math.inf

    taken, left = choose(encoder(), H200, none, lambda r: 1.0)
    assert not taken
    assert any("no kernel" in item.reason for item in left)


def test_a_result_that_is_read_elsewhere_stops_the_chain():
    b = Builder("shared")
    x, w, v = b.input("X", (64, 64)), b.input("W", (64, 64)), b.input("V", (64, 64))
    c = x @ w
    program = b.build(Y=c @ v, Z=b.relu(c))
    found, why = find_chains(program, H200)
    assert not found
    assert why["matmul_0"] == "its result is read by 2 operators"


def test_borders_keep_regions_to_tensors_that_the_model_has():
    program = encoder()
    everything, _ = find_chains(program, H200)
    nothing, why = find_chains(program, H200, frozenset(program.inputs))
    assert everything
    assert not nothing
    assert any("no counterpart" in reason for reason in why.values())


def test_slices_in_front_of_attention_are_part_of_its_kernel():
    """One product for queries, keys and values: the kernel reads three windows of it; its bias stays with the product."""
    b = Builder("gpt2")
    x, width, heads = b.input("x", (128, 128)), 128, 2
    joint = x @ b.input("w", (width, 3 * width)) + b.input("bias", (3 * width,))
    q, k, v = (
        b.op("slice", joint, axis=1, start=i * width, stop=(i + 1) * width).reshape(128, heads, width // heads).transpose(1, 0, 2)
        for i in range(3)
    )
    scores = (q @ k.transpose(0, 2, 1)) * (width // heads) ** -0.5
    program = b.build(out=(b.softmax(scores) @ v).transpose(1, 0, 2).reshape(128, width))
    regions, _ = find_chains(program, H200)
    (region,) = [r for r in regions if len(r.contractions) == 2 and any(n.startswith("slice") for n in r.nodes)]
    assert region.inputs == (joint.name,)
    # without the slices it is a candidate too
    assert any(set(r.nodes) < set(region.nodes) and len(r.contractions) == 2 for r in regions)


def test_rotary_embedding_is_part_of_attention():
    b = Builder("llama")
    shape = (2, 64, 32)
    cos, sin = b.input("cos", shape[1:]), b.input("sin", shape[1:])

    def rotated(name: str) -> Ref:
        x = b.input(name, (64, 64)).reshape(64, 2, 32).transpose(1, 0, 2)
        left, right = (b.op("slice", x, axis=2, start=i, stop=i + 16) for i in (0, 16))
        return x * cos + b.op("concat", -right, left, axis=2) * sin

    q, k, v = rotated("q"), rotated("k"), b.input("v", shape)
    program = b.build(out=b.softmax((q @ k.transpose(0, 2, 1)) * 32**-0.5) @ v)
    regions, _ = find_chains(program, H200)
    longest = max(regions, key=lambda r: len(r.nodes))
    assert set(longest.nodes) == {n.output for n in program.nodes if n.op != "reshape"}
    assert len(longest.inputs) == 5


def test_what_is_in_front_of_all_slices_is_left_to_the_kernel_before():
    """A norm that moved behind the product of queries, keys and values."""
    b = Builder("llama")
    cos, sin = b.input("cos", (64, 32)), b.input("sin", (64, 32))
    packed = b.input("x", (64, 192)) / b.op("sqrt", b.input("squares", (64, 1)) * 0.5)
    parts = [b.op("slice", packed, axis=1, start=i, stop=i + 64).reshape(64, 2, 32).transpose(1, 0, 2) for i in (0, 64, 128)]

    def rotated(x: Ref) -> Ref:
        left, right = (b.op("slice", x, axis=2, start=i, stop=i + 16) for i in (0, 16))
        return x * cos + b.op("concat", -right, left, axis=2) * sin

    q, k, v = rotated(parts[0]), rotated(parts[1]), parts[2]
    program = b.build(out=b.softmax((q @ k.transpose(0, 2, 1)) * 32**-0.5) @ v)
    longest = max(find_chains(program, H200)[0], key=lambda r: len(r.nodes))
    assert longest.inputs == (packed.name, "cos", "sin")
    assert set(longest.nodes) == {n.output for n in program.nodes if n.op not in ("div", "sqrt") and "squares" not in n.inputs}


def test_attention_takes_a_mask_of_truths():
    b = Builder("masked")
    q, k, v = (b.input(n, (4, 64, 32)) for n in "qkv")
    hidden = b.op("logical_not", b.input("keep", (1, 64), "bool"))
    scores = b.op("where", hidden, b.input("least", (), "float16"), q @ k.transpose(0, 2, 1))
    program = b.build(out=b.softmax(scores) @ v)
    longest = max(find_chains(program, H200)[0], key=lambda r: len(r.nodes))
    assert longest.kind == "attention" and set(longest.nodes) == set(program.producers)
