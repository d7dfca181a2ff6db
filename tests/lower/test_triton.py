"""Generated Triton: what it computes (in Triton's interpreter, against float64), and what it looks like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.fuse import fuse
from fuser.ir.interval import ANY
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.check import check
from fuser.lower.compile import compile_kernel
from fuser.lower.reduced import reduced_extents
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from tests.builders import attention
from tests.builders import chain
from tests.builders import schedule
from tests.builders import three_gemms
from tests.interpreted import checked
from tests.operators import NUMBERS
from tests.operators import elementwise

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}


def normalized(op: str, rows: int, width: int, out: int = 32) -> TensorProgram:
    b = Builder(op)
    x, g = b.input("X", (rows, width)), b.input("G", (width,))
    y = b.rms_norm(x, g) if op == "rms_norm" else b.layer_norm(x, g, b.input("beta", (width,)))
    return b.build(Y=y @ b.input("W", (width, out)) if out else y)


def map_program(name: str) -> TensorProgram:
    """One element-wise operator on operands for which it is defined."""
    b = Builder(name, "float32")
    x, y, c = b.input("X", (48, 32)), b.input("Y", (32,)), b.input("C", (48, 1))
    positive = b.op("shift", b.op("square", x), scalar=0.5)
    args = {
        "where": (c, x, y),
        "div": (x, b.op("shift", b.op("square", y), scalar=0.5)),
    }
    attrs = NUMBERS | {
        "scale": {"scalar": 0.3},
        "shift": {"scalar": 0.3},
        "cast": {"dtype": "float32"},
        **{key: {"offset": 3} for key in ("causal_mask", "tril", "triu")},
    }
    entry = OPS[name]
    default = (x, y, c)[: entry.arity]
    if entry.arity == 1 and (name == "pow" or any(d != ANY for d in entry.domain)):
        default = (positive,)
    elif name not in args and any(d != ANY for d in entry.domain):
        default = (x, args["div"][1]) if entry.arity == 2 else (x, c, args["div"][1])
    ref = b.op(name, *args.get(name, default), **attrs.get(name, {}))
    if name == "causal_mask":
        ref = b.exp(ref)
    return b.build(Z=ref)


def scalar_condition() -> TensorProgram:
    """Conditions on a scalar and on a tile, together."""
    b = Builder("condition", "float32")
    x, y = b.input("X", (48, 32)), b.input("Y", ())
    near = b.op("logical_or", b.op("lt", y, b.op("scale", y, scalar=2)), b.op("gt", x, y))
    return b.build(Z=b.op("where", near, b.op("power", b.op("abs", x), y), x))


def rows_of_16(program: TensorProgram) -> KernelSchedule:
    return KernelSchedule(tuple((axis, 16) for axis in fuse(program).blocks[0].spatial[:1]))


def map_names() -> list[str]:
    return elementwise()


def cases() -> dict[str, tuple[TensorProgram, KernelGraph, Schedule]]:
    """Name of each case to a program, a structure and an (often ugly) schedule."""
    found: dict[str, tuple[TensorProgram, KernelGraph, Schedule]] = {}

    def add(name: str, program: TensorProgram, *kernels: KernelSchedule, structure: int = 0) -> None:
        graph = structures(program)[structure] if structure else one_kernel(program)
        found[name] = (program, graph, Schedule(kernels))

    for name in map_names():
        add(f"op {name}", map_program(name), rows_of_16(map_program(name)))
    add("condition on a scalar", scalar_condition(), rows_of_16(scalar_condition()))
    for order in ("nk", "kn", "n(k,h)", "knh"):
        add(f"chain {order}", chain(), schedule(order, m=32, n=32, k=16, h=16))
        add(f"relu chain {order}", chain(activation="relu"), schedule(order, m=32, n=32, k=16, h=16))
    add("ragged chain", chain(m=50, n=70, k=40, h=24), schedule("nk", m=32, n=32, k=16, h=16))
    add("tile 48 in two pieces", chain(n=96), schedule("n", m=32, n=48, h=32))
    add("tile 48 padded", chain(n=96), schedule("n", knobs={"pad": True}, m=32, n=48, h=32))
    add("float32", chain(dtype="float32"), schedule("nk", m=32, n=32, k=16, h=32))
    add("bfloat16", chain(dtype="bfloat16"), schedule("nk", m=32, n=32, k=16, h=32))
    add("three products", three_gemms(), schedule("hnk", m=16, n=32, h=16, k=16, p=48))
    add("attention", attention(), schedule("n", b=1, m=32, n=32))
    add("attention with a split head", attention(k=80, h=80), schedule("n", b=1, m=32, n=16))
    add("attention nk", attention(k=64), schedule("nk", b=1, m=32, n=32, k=16))
    add("causal", attention(m=96, n=96, causal=True), schedule("n", b=1, m=32, n=16))
    add("causal, more keys", attention(m=32, n=96, causal=True), schedule("n", b=1, m=16, n=32))
    add("additive mask", attention(mask=(1, 1, 80)), schedule("n", b=1, m=32, n=32))
    add("197 tokens", attention(m=197, n=197), schedule("n", b=1, m=64, n=64))
    add("one query", attention(m=1), schedule("n", b=1, n=16))
    add("eight queries in a tile of 16", attention(m=8), schedule("n", b=1, m=16, n=16))
    add("whole softmax", attention(), schedule("", b=1, m=16))
    add("rms_norm, one loop", normalized("rms_norm", 16, 256), schedule("k", m=16, n=16, k=64))
    add("layer_norm rows", normalized("layer_norm", 24, 200, 0), schedule("", m=8))
    add("layer_norm in two passes", normalized("layer_norm", 24, 200, 0), schedule("n", m=8, n=64))
    split = next(i for i, g in enumerate(structures(chain())) if any(b.splits for b in g.blocks) and len(g.blocks) == 2)
    add(
        "split reduction",
        chain(),
        schedule("n", {"n_part": 3}, m=32, n=16, h=32),
        schedule("", {"n_part": 3}, m=16, h=32),
        structure=split,
    )
    return found


CASES = cases()


def test_a_loop_over_masked_columns_ends_behind_the_diagonal() -> None:
    for name, ends in (("causal", True), ("causal, more keys", True), ("attention", False)):
        _, graph, wanted = CASES[name]
        (source,) = generate_graph(graph, wanted)
        assert source is not None
        assert ("range(tl.minimum(" in source.text) == ends


@pytest.fixture(scope="module")
def outcomes():
    """One interpreter checks all cases: starting it costs more than most of them."""
    pytest.importorskip("torch")
    return dict(zip(CASES, check([(p, Candidate(g, s)) for p, g, s in CASES.values()]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_float64(name, outcomes):
    program, _, _ = CASES[name]
    outcome = outcomes[name]
    assert outcome.message == ""
    assert outcome.error < TOLERANCE[program.tensors[0].dtype]


@pytest.mark.slow
def test_every_element_wise_operator_compiles_without_a_gpu():
    for name in map_names():
        program = map_program(name)
        (source,) = generate_graph(one_kernel(program), Schedule((rows_of_16(program),)))
        assert ".target sm_90" in compile_kernel(source, 90).ptx


def test_a_wrong_kernel_does_not_pass():
    """The check is able to fail: the same kernels for a different program."""
    program, graph, sched = CASES["relu chain nk"]
    outcome = checked(chain(), graph, sched)
    assert not outcome.passed
    assert program != chain()


def test_reduced_sizes_keep_loops_and_ragged_ends():
    program = attention(m=200, n=4096, heads=32)
    graph = one_kernel(program)
    sizes = reduced_extents(graph, Schedule((schedule("n", b=1, m=64, n=128),)))
    assert sizes == {"b": 2, "m": 136, "n": 256, "h": 32, "k": 32}


@pytest.mark.parametrize("name", ["attention", "chain n(k,h)", "rms_norm, one loop", "tile 48 in two pieces"])
def test_source_is_readable(name, golden):
    _, graph, sched = CASES[name]
    golden.check(f"triton/{name.replace(' ', '_').replace(',', '')}.py.txt", generate(graph.blocks[0], sched.kernels[0]).text)


def test_schedules_that_do_not_fit_are_refused():
    block = one_kernel(chain()).blocks[0]
    with pytest.raises(UsageError, match="axis 'n'"):
        generate(block, schedule("", n=32))
    with pytest.raises(NoValidKernelError, match="register blocks"):
        generate(block, schedule("kn", m=16, n=1, k=16))
    b = Builder("cast", "float32")
    with pytest.raises(UnsupportedError, match="int32"):
        generate(fuse(b.build(Y=b.op("cast", b.input("X", (16, 16)), dtype="int32"))).blocks[0], schedule())


@pytest.mark.parametrize("elements", [2_304_000_000, 2_000_000_000])
def test_the_last_element_of_a_large_tensor_is_found(elements: int) -> None:
    """Blocks of one axis: their numbers have 32 bits, and so have places, up to as many elements."""
    b = Builder("large", "float32")
    program = b.build(Y=b.op("relu", b.input("X", (elements,))))
    (block,) = fuse(program).blocks
    (axis,) = (a.name for a in block.axes)
    tl = SimpleNamespace(cast=lambda x, kind: kind(x), int64=np.int64, arange=lambda a, b: np.arange(a, b, dtype=np.int32))
    last = elements // 2048 - 1
    found: dict[str, Any] = {"tl": tl, "pid": np.int32(last)}
    for line in generate(block, KernelSchedule(tiles=((axis, 2048),))).text.splitlines():
        if line.strip().startswith((f"p_i_{axis} =", f"i_{axis} =")):
            exec(line.strip(), found)
    assert (found[f"i_{axis}"] == np.arange(last * 2048, last * 2048 + 2048)).all()
