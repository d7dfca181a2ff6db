"""Kernels of operators that fold along windows or run along an axis, in Triton's interpreter, beside torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.ir.builder import Builder
from fuser.ir.ops import OPS

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.ir.element_program import by_elements  # noqa: E402
from fuser.ir.mugraph import KernelGraph  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from fuser.ir.program import Tensor  # noqa: E402
from fuser.ir.schedule import Schedule  # noqa: E402
from fuser.lower import element_code  # noqa: E402
from fuser.lower import run_code  # noqa: E402
from fuser.lower.compile import compile_kernel  # noqa: E402
from fuser.lower.written import written  # noqa: E402
from fuser.runtime.graph_executor import Executable  # noqa: E402
from fuser.runtime.library import output_of  # noqa: E402
from fuser.runtime.torch_program import apply  # noqa: E402
from fuser.runtime.torch_program import run_program  # noqa: E402

WHOLE = {"dtype": "int64"}
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "rows": ("cumsum", [(5, 70)], {"dim": 1}),
    "columns": ("cumsum", [(3, 40, 9)], {"dim": 1}),
    "first axis": ("cumsum", [(300,)], {"dim": 0}),
    "products so far": ("cumprod", [(3, 40, 9)], {"dim": 1}),
    "products of several tiles": ("cumprod", [(70, 2100)], {"dim": -1}),
    "logarithms of sums so far": ("logcumsumexp", [(3, 40, 9)], {"dim": 1}),
    "logarithms of several tiles": ("logcumsumexp", [(70, 2100)], {"dim": -1}),
    "several tiles": ("cumsum", [(70, 4200)], {"dim": -1}),
    "largest of rows": ("argmax", [(7, 33)], {"dim": 1, **WHOLE}),
    "least of columns": ("argmin", [(3, 40, 9)], {"dim": 1, "keepdim": True, **WHOLE}),
    "overlapping": ("max_pool2d", [(2, 3, 9, 11)], {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    "dilated": ("max_pool2d", [(1, 2, 9, 11)], {"kernel_size": (2, 3), "stride": (1, 1), "dilation": (2, 1)}),
    "large images": ("avg_pool2d", [(1, 2, 40, 37)], {"kernel_size": (2, 2), "stride": (1, 1), "padding": (1, 1)}),
    "signals": ("avg_pool1d", [(3, 2, 20)], {"kernel_size": (4,)}),
    "volumes": ("max_pool3d", [(1, 2, 4, 5, 6)], {"kernel_size": (2, 2, 2)}),
    "no batch": ("max_pool2d", [(3, 6, 6)], {"kernel_size": (2, 2)}),
    "channels last": ("avg_pool2d_last", [(2, 7, 8, 3)], {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    "with a ceiling": (
        "avg_pool2d",
        [(1, 2, 9, 8)],
        {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": True, "count_include_pad": False},
    ),
    "places": ("max_pool2d_places", [(2, 3, 9, 8)], {"kernel_size": (3, 3), "padding": (1, 1), **WHOLE}),
    "few of columns": ("argmax", [(3, 7, 40)], {"dim": 1, **WHOLE}),
    "turned": ("transpose", [(70, 3, 90)], {"perm": (2, 1, 0)}),
    "joined": ("concat", [(20, 30), (20, 7)], {"axis": 1}),
    "mirrored": ("reflection_pad", [(2, 5, 6)], {"padding": (2, 3, 1, 4)}),
    "between": ("resize", [(2, 3, 8, 7)], {"output_size": (5, 11), "mode": "cubic"}),
    "added windows": (
        "fold",
        [(2, 6, 15)],
        {"output_size": (6, 7), "kernel_size": (3, 2), "padding": (1, 0), "stride": (2, 1), "dilation": (1, 2)},
    ),
    "each channel": ("conv2d", [(2, 4, 7, 9), (8, 1, 3, 3), (8,)], {"groups": 4, "padding": (1, 1), "stride": (2, 1)}),
    "each of a signal": ("conv1d", [(2, 4, 20), (4, 1, 4)], {"groups": 4, "padding": (3,), "dilation": (1,)}),
}


def executable(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], dtype: str) -> Executable:
    names = ["x", "w", "b"][: len(shapes)]
    tensors = {n: Tensor(n, s, dtype) for n, s in zip(names, shapes, strict=True)}
    kernel = LibraryKernel("k", op, tuple(names), "y", tuple(sorted(attrs.items())))
    tensors["y"] = output_of(kernel, tensors)
    graph = KernelGraph("g", tuple(names), (kernel,), ("y",), tuple(tensors.values())).validate()
    return Executable(graph, Schedule(()), device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_torch(name: str, dtype: str) -> None:
    op, shapes, attrs = CASES[name]
    torch.manual_seed(0)
    xs = [torch.randn(s).to(getattr(torch, dtype)) for s in shapes]
    if op[:4] not in ("conv", "resi", "fold"):
        xs[0].view(-1)[3] = float("nan")
        xs[0].view(-1)[-2] = float("inf")
    run = executable(op, shapes, attrs, dtype)
    assert run.plan.sources[0] is not None
    if name in ("rows", "largest of rows", "places", "turned", "joined", "between", "each channel") and dtype == "float16":
        compile_kernel(run.plan.sources[0], 90)
    want = apply(op, [x.double() for x in xs], attrs)
    got = run(*xs)
    exact = want.dtype is torch.int64
    torch.testing.assert_close(got, want if exact else want.to(got.dtype), equal_nan=True, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["columns", "largest of rows", "turned", "overlapping"])
def test_places_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, shapes, attrs = CASES[name]
    narrow = executable(op, shapes, attrs, "float32").plan.sources[0]
    monkeypatch.setattr(element_code, "LIMIT", 1)
    monkeypatch.setattr(run_code, "LIMIT", 1)
    xs = [torch.randn(s) for s in shapes]
    run = executable(op, shapes, attrs, "float32")
    assert narrow and run.plan.sources[0] and "tl.int64" in run.plan.sources[0].text != narrow.text
    want = apply(op, xs, attrs)
    torch.testing.assert_close(run(*xs), want)
    if name == "largest of rows":
        compile_kernel(run.plan.sources[0], 90)


def test_places_in_a_large_tensor_have_64_bits() -> None:
    kernel = LibraryKernel("k", "cumsum", ("x",), "y", (("dim", 0),))
    for rows, wide in ((50000, True), (40000, False)):
        tensors = {n: Tensor(n, (rows, 50000), "float32") for n in "xy"}
        made = written(kernel, {"dim": 0}, tensors, {})
        assert made and ("y = (at + row).to(tl.int64)" in made.text) == wide


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "dtype"),
    [
        ("cumsum", [(4, 9000)], {"dim": 1}, "float32"),  # too few rows to fill a GPU
        ("cumsum", [(4, 9)], {"dim": 1}, "int64"),
        ("argmax", [(4, 9)], WHOLE, "float32"),
        ("avg_pool2d", [(1, 1, 20, 20)], {"kernel_size": (10, 10)}, "float32"),
        ("conv2d", [(2, 4, 7, 9), (4, 2, 3, 3)], {"groups": 2}, "float32"),
    ],
)
def test_torch_computes_the_others(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], dtype: str) -> None:
    assert executable(op, shapes, attrs, dtype).plan.sources == (None,)


def test_several_operators_are_one_kernel() -> None:
    b = fuser.Builder("moved")
    x, i, w = b.input("x", (6, 40), "float16"), b.input("i", (5,), "int64"), b.input("w", (9, 40), "float16")
    rows = b.op("cast", b.op("index_select", w, i, dim=0), dtype="float32")
    both = b.op("concat", b.op("relu", b.op("cast", x, dtype="float32")), rows, axis=0)
    program = b.build(y=b.op("cast", both.transpose(1, 0).reshape(2, 220), dtype="float16"))
    graph = KernelGraph("g", program.inputs, by_elements(program), ("y",), tuple(program[n] for n in ("x", "i", "w", "y")))
    run = Executable(graph.validate(), Schedule(()), device="cpu")
    (source,) = run.plan.sources
    assert source is not None
    compile_kernel(source, 90)
    torch.manual_seed(0)
    given = (torch.randn(6, 40).half(), torch.randint(0, 9, (5,)), torch.randn(9, 40).half())
    want = torch.cat((given[0].relu(), given[2][given[1]])).T.reshape(2, 220)
    torch.testing.assert_close(run(*given), want, rtol=0, atol=0)


WRAPPED: dict[str, Any] = {
    "add": lambda b, x, y: x + y,
    "sub": lambda b, x, y: x - y,
    "mul": lambda b, x, y: x * y,
    "neg": lambda b, x, _: -x,
    "abs": lambda b, x, _: b.op("abs", x),
    "square": lambda b, x, _: b.op("square", x),
    "scale": lambda b, x, _: x * 300,
    "shift": lambda b, x, _: x + -77,
    "minimum": lambda b, x, y: b.op("minimum", x, y),
    "trunc_div": lambda b, x, y: b.op("trunc_div", x, b.op("maximum", y, b.op("abs", y)) + 1),
}


@pytest.mark.parametrize("op", WRAPPED)
def test_whole_numbers_are_taken_modulo_those_of_their_dtype(op: str) -> None:
    """Whatever a kernel computes behind them in the same step."""
    torch.manual_seed(0)
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        name, info = str(dtype).removeprefix("torch."), torch.iinfo(dtype)
        b = fuser.Builder("wrapped")
        x, y = b.input("x", (300,), name), b.input("y", (300,), name)
        program = b.build(z=b.op("cast", WRAPPED[op](b, x, y), dtype="float32"))
        graph = KernelGraph("g", program.inputs, by_elements(program), ("z",), tuple(program[n] for n in ("x", "y", "z")))
        run = Executable(graph.validate(), Schedule(()), device="cpu")
        (source,) = run.plan.sources
        assert source is not None
        compile_kernel(source, 90)
        given = [torch.randint(info.min, info.max + 1, (300,), dtype=dtype) for _ in "xy"]
        given[1] = given[1].masked_fill((given[1] == -1) | (given[1] == info.max) | (given[1] == info.min), 3)
        given[0][0], given[1][0] = info.min, 5
        (want,) = run_program(program, dict(zip("xy", given, strict=True))).values()
        torch.testing.assert_close(run(*given), want, rtol=0, atol=0)


def test_a_border_of_bytes_is_the_least_of_them() -> None:
    """In a pool as well as in front of one."""
    for dtype in (torch.uint8, torch.int8):
        b = fuser.Builder("pool")
        x = b.input("x", (1, 2, 6, 6), str(dtype).removeprefix("torch."))
        program = b.build(y=b.op("max_pool2d", x, kernel_size=(2, 2), stride=(2, 2), padding=(1, 1)))
        graph = KernelGraph("g", program.inputs, by_elements(program), ("y",), tuple(program[n] for n in "xy"))
        run = Executable(graph.validate(), Schedule(()), device="cpu")
        assert run.plan.sources[0] is not None
        given = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, (1, 2, 6, 6), dtype=dtype)
        want = torch.nn.functional.max_pool2d(given.float(), 2, 2, 1).to(dtype)
        torch.testing.assert_close(run(given), want, rtol=0, atol=0)


FORMULAS = sorted(n for n, e in OPS.items() if e.kind == "map" and e.formula is not None and not e.attrs and e.arity in (1, 2))


def test_formulas_made_of_others_are_what_they_say() -> None:
    """Behind a view, as an element's kernel has them. A step that is a formula itself (an infinity in a remainder) was taken for
    the first of its own steps, so that every remainder of transposed whole numbers was 0, or its divisor."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.05, 0.95, 60), rng.uniform(-9, 9, 66)]).astype(np.float32)
    w = np.concatenate([rng.uniform(0.05, 0.95, 60), rng.uniform(-4, 4, 66)]).astype(np.float32)
    given = {"x": x.reshape(9, 14), "w": w.reshape(9, 14)}
    kernels, wanted, tensors = [], {}, {n: Tensor(n, (9, 14), "float32") for n in given}
    for op in FORMULAS:
        b = Builder(op)
        operands = [b.input(n, (9, 14), "float32").transpose(1, 0) for n in list(given)[: OPS[op].arity]]
        program = b.build(**{f"y_{op}": b.op(op, *operands)})
        kernels += by_elements(program)
        tensors[f"y_{op}"] = program[f"y_{op}"]
        with np.errstate(all="ignore"):
            wanted |= program.evaluate({n: given[n] for n in program.inputs})
    assert len(kernels) == len(FORMULAS) > 20 and {"remainder", "fmod"} <= set(FORMULAS)
    graph = KernelGraph("g", ("x", "w"), tuple(kernels), tuple(wanted), tuple(tensors.values())).validate()
    run = Executable(graph, Schedule(()), device="cpu")
    for n, source, got in zip(wanted, run.plan.sources, run(*map(torch.from_numpy, given.values())), strict=True):
        assert source is not None, n
        np.testing.assert_allclose(got.numpy(), wanted[n], rtol=2e-3, atol=2e-3, err_msg=n)


def test_logarithms_of_sums_so_far_of_what_is_infinite_or_no_number() -> None:
    x = torch.randn(4, 12) * 50
    x[0, :3], x[1, 2], x[2, 5] = -torch.inf, torch.nan, torch.inf
    run = executable("logcumsumexp", [(4, 12)], {"dim": 1}, "float32")
    torch.testing.assert_close(run(x), torch.logcumsumexp(x.double(), 1).float(), equal_nan=True)
