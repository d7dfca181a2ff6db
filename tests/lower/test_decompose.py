"""Kernels as atomic specifications: what they do is what the block does, whatever the layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Slice
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import Fragment
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.layout.plan import Operand
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.lower.decompose import Spec
from fuser.lower.decompose import Step
from fuser.lower.decompose import decompose
from fuser.lower.spec_text import shown
from fuser.lower.tiles import Tiles
from fuser.superopt.structures import structures
from fuser.workloads import workload


def block(name: str) -> BlockGraph:
    return structures(workload(name))[0].blocks[0]


def gemm(arch: int) -> tuple[Tiles, LayoutPlan]:
    """64 x 128 x 32 tiles of the product with bias and ReLU: by a warp group, or by four warps."""
    b = block("graphene/gemm-bias-relu")
    tiles = Tiles.of(b, KernelSchedule.parse("k [k=32 m=64 n=128] warps=4 stages=3", b))
    result = Mma(3, (4, 1), (16, 128, 16)) if arch == 90 else Mma(2, (2, 2), (16, 8))
    shared = MmaShared(64, 16), MmaShared(128, 16)
    if arch != 90:
        shared = Swizzled(8, 2, 4, (1, 0)), Swizzled(8, 1, 8, (1, 0))
    by = "tma" if arch == 90 else "cp.async"
    buffers = (
        Buffer("A", "float16", (64, 32), 1, 3, shared[0], by, 3 * 4096),
        Buffer("C", "float16", (32, 128), 1, 3, shared[1], by, 3 * 8192),
    )
    place = "shared" if arch == 90 else "registers"
    tile = [Fragment(v, (64, 128), result, 64) for v in ("matmul_0", "add_1", "Y")]
    fragments = (*tile, Fragment("v", (128,), Slice(0, result), 32 if arch == 90 else 16))
    operands = (Operand("matmul_0", "A", place), Operand("matmul_0", "C", place))
    return tiles, LayoutPlan(1, 4, "m", 64, arch == 90, 168, 24, 1, False, buffers, fragments, operands)


def walk(parts: tuple[Spec | Step, ...], times: int = 1) -> Iterator[tuple[Spec, Step, int]]:
    for p in parts:
        if isinstance(p, Spec):
            trips = int(p.loop.rsplit("..", 1)[1]) if p.loop else 1
            yield from ((p, s, times) for s in p.body if isinstance(s, Step))
            yield from walk(tuple(x for x in p.body if isinstance(x, Spec)), times * trips)


@pytest.mark.parametrize("arch", [80, 90])
def test_instructions_do_the_work_of_the_block(arch):
    tiles, plan = gemm(arch)
    spec = decompose(tiles, plan, arch)
    flop = moved = stored = 0
    for whole, step, times in walk(spec.body):
        assert step.atom.on(arch)
        warps = 1 if step.atom.threads.size == 128 else 4
        if whole.kind == "MatMul":
            flop += times * step.count * warps * 2 * math.prod(step.atom.mnk)
        if step.atom.name == "cp.async.16":
            moved += times * step.count * 128 * 16
        if step.atom.name.startswith("tma.load"):
            moved += times * step.count * math.prod(map(int, step.outputs[0].split("]")[0][1:].split(","))) * 2
        if step.atom.name.startswith("st.global"):
            stored += times * step.count * 128 * int(step.inputs[0].split("]")[0][1:]) * 2
    assert flop == 2 * 64 * 128 * 2048
    assert moved == (64 + 128) * 2048 * 2
    assert stored == 64 * 128 * 2
    names = {s.atom.name for _, s, _ in walk(spec.body)}
    assert ("ldmatrix.x2.trans" in names) == (arch == 80) and ("wgmma.m64n128k16.ss" in names) == (arch == 90)


@pytest.mark.parametrize("arch", [80, 90])
def test_text_fits_and_names_what_it_uses(arch):
    tiles, plan = gemm(arch)
    text = shown(decompose(tiles, plan, arch), plan)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 79
    assert text.count("{") == text.count("}")
    defined = [line.split(":")[0].strip() for line in lines if line.strip()[:1] in "%#" and ":" in line]
    assert len(defined) == len(set(defined))
    for line in lines:
        if "<<<#0" in line and "->" in line:
            used = [w.strip("(), {") for w in line.split(">>> ")[1].replace("->", ",").split(",")]
            assert {u for u in used if u} <= set(defined), line
    held = (
        "[(4,8,2,2):(2,128,8,2048)].[(2,2,8,2):(1,1024,16,4096)]"
        if arch == 80
        else "[(4,8,4):(2,128,2048)].[(2,2,16):(1,1024,8)]"
    )
    assert f"// {held} of (64,128)" in text
    swizzled = "[(64,32):(32,1)^xor(2,3,3)].fp16.SH" if arch == 90 else "[(32,128):(128,1)^xor(3,3,4)].fp16.SH"
    assert swizzled in text


def test_folds_go_over_registers_lanes_and_warps():
    b = block("graphene/layernorm")
    tiles = Tiles.of(b, KernelSchedule.parse("- [m=1 n=1024] warps=4 stages=2", b))
    layout = Blocked((8,), (32,), (4,), (0,))
    values = [s.value for s in b.stmts if s.kind != "store" and tiles.natural(s)]
    plan = LayoutPlan(1, 4, "", 0, False, 64, 0, 1, False, (), tuple(Fragment(v, (1024,), layout, 8) for v in values), ())
    steps = [(w.kind, s.atom.name, s.count) for w, s, _ in walk(decompose(tiles, plan, 90).body)]
    folds = [x[1:] for x in steps if x[0] == "Reduction<sum>"]
    assert folds[:4] == [("fold.sum", 7), ("shfl.bfly", 5), ("st.shared.u32", 1), ("ld.shared.u32", 4)]
    assert ("Move", "ld.global.v4.u32", 1) in steps  # 8 elements of 2 bytes


def test_an_operand_that_is_kept_in_registers_is_read_once():
    b = block("graphene/fmha")
    tiles = Tiles.of(b, KernelSchedule.parse("n [b=1 h=64 k=64 m=64 n=64] warps=4 stages=2", b))
    s, o = Mma(3, (4, 1), (16, 64, 16)), Mma(3, (4, 1), (16, 64, 16))
    ring = [Buffer(v, "float16", (64, 64), 1, 1, MmaShared(128, 16), "tma", 8192) for v in ("Q", "K", "V")]
    vectors = ("exp_3_max", "sum_4")
    fragments = [
        Fragment(v.value, (64,) if v.value in vectors else (64, 64), Slice(1, s) if v.value in vectors else o, 2)
        for v in b.computes
    ]
    for left in ("shared", "registers"):
        operands = (
            Operand("matmul_1", "Q", left),
            Operand("matmul_1", "K", "shared"),
            Operand("O_top", "exp_3", "registers"),
            Operand("O_top", "V", "shared"),
        )
        plan = LayoutPlan(1, 4, "m", 64, True, 240, 24, 1, False, tuple(ring), tuple(fragments), operands)
        found = [(st.atom.name, times) for _, st, times in walk(decompose(tiles, plan, 90).body)]
        assert (("ldmatrix.x4", 1) in found) == (left == "registers")
        assert (f"wgmma.m64n64k16.{'rs' if left == 'registers' else 'ss'}", 6) in found
        assert ("wgmma.m64n64k16.rs", 6) in found and DotOperand(0, o, 2).gluon
