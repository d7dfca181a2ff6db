"""Small programs of every operator, in odd shapes and three dtypes, with NaN and infinity in their inputs, through
``fuser.compile`` on the CPU, against torch in float64. Every tenth runs by default, all of them where slow tests do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fuser
from fuser.agreement import agreements
from fuser.agreement import tolerance
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.domain import input_domains
from fuser.ir.interval import ANY
from fuser.ir.interval import place
from fuser.ir.ops import OPS
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram
from fuser.runtime.torch_program import reference
from tests.operators import ATTRS
from tests.operators import NUMBERS
from tests.operators import OPERANDS
from tests.operators import elementwise

Body = Callable[[Builder, Callable[..., Ref]], Ref]


def o(b: Builder, op: str, *xs: Ref, **attrs: Any) -> Ref:
    return b.op(op, *xs, **attrs)


BODIES: dict[str, Body] = {
    "add": lambda b, x: x(5, 7) + x(7),
    "sub": lambda b, x: x(5, 1) - x(5, 33),
    "mul": lambda b, x: x(3, 5, 7) * x(5, 1),
    "div": lambda b, x: x(17, 9) / x(9),
    "div by a row": lambda b, x: (n := x(17, 9)) / b.sum(b.op("square", n), 1, keepdims=True),
    "maximum": lambda b, x: o(b, "maximum", x(5, 13), x(5, 1)),
    "where": lambda b, x: o(b, "where", x(5, 13), x(5, 13), x(13)),
    "scale": lambda b, x: o(b, "scale", x(31), scalar=-0.3),
    "shift": lambda b, x: o(b, "shift", x(31, 2), scalar=0.7),
    "neg": lambda b, x: o(b, "neg", x(1, 19)),
    "exp": lambda b, x: b.exp(x(19, 3)),
    "exp of much": lambda b, x: b.exp(o(b, "scale", x(19, 3), scalar=100)),
    "sqrt": lambda b, x: o(b, "sqrt", x(6, 10)),
    "rsqrt": lambda b, x: o(b, "rsqrt", x(6, 10)) * x(6, 1),
    "square": lambda b, x: o(b, "square", x(6, 11)),
    "relu": lambda b, x: b.relu(x(21, 5)),
    "sigmoid": lambda b, x: o(b, "sigmoid", x(21, 5)),
    "silu": lambda b, x: b.silu(x(9, 9)),
    "tanh": lambda b, x: o(b, "tanh", x(9, 9)),
    "erf": lambda b, x: o(b, "erf", x(9, 9)),
    "gelu": lambda b, x: b.gelu(x(9, 9)),
    "cast": lambda b, x: b.op("cast", x(9, 9), dtype="float32"),
    "causal_mask": lambda b, x: b.exp(o(b, "causal_mask", x(2, 9, 11), offset=1)),
    "matmul": lambda b, x: x(17, 33) @ x(33, 5),
    "matmul of a batch": lambda b, x: x(2, 5, 19) @ x(2, 19, 3),
    "sum": lambda b, x: b.sum(x(7, 19), 1),
    "sum of the rows": lambda b, x: b.sum(x(19, 7), 0, keepdims=True),
    "max": lambda b, x: o(b, "max", x(7, 19), axis=(1,)),
    "max over two": lambda b, x: o(b, "max", x(3, 5, 7), axis=(1, 2), keepdims=True),
    "reshape": lambda b, x: b.relu(x(6, 10)).reshape(12, 5),
    "transpose": lambda b, x: b.relu(x(6, 10)).T,
    "broadcast": lambda b, x: o(b, "broadcast", b.exp(x(1, 9)), shape=(4, 9)),
    "repeat": lambda b, x: b.relu(o(b, "repeat", x(3, 5), axis=0, times=4)),
    "concat": lambda b, x: o(b, "concat", x(3, 16), x(3, 16), axis=1) @ x(32, 8),
    "slice": lambda b, x: b.relu(o(b, "slice", x(9, 12), axis=1, start=3, stop=10)),
    "mean": lambda b, x: (n := x(7, 19)) - o(b, "mean", n, axis=(1,), keepdims=True),
    "softmax": lambda b, x: b.softmax(x(9, 21)),
    "explicit softmax": lambda b, x: (
        (e := b.exp((n := x(9, 21)) - o(b, "max", n, axis=(1,), keepdims=True))) / b.sum(e, 1, keepdims=True)
    ),
    "rms_norm": lambda b, x: b.rms_norm(x(9, 21), x(21)),
    "layer_norm": lambda b, x: b.layer_norm(x(9, 21), x(21), x(21)),
    "attention": lambda b, x: b.attention(x(2, 9, 16), x(2, 17, 16), x(2, 17, 16), x(9, 17)),
    "causal attention": lambda b, x: b.attention(x(1, 9, 16), x(1, 9, 16), x(1, 9, 16), causal=True),
    "normalized product": lambda b, x: b.rms_norm(x(9, 32)) @ x(32, 16),
    "gated": lambda b, x: b.silu((n := x(9, 32)) @ x(32, 17)) * (n @ x(32, 17)),
    "relu chain": lambda b, x: b.relu(x(9, 17) @ x(17, 16)) @ x(16, 5),
    "quotient of sums": lambda b, x: b.sum(n := x(9, 17), 1, keepdims=True) / b.sum(b.exp(n), 1, keepdims=True),
    "too large to hold": lambda b, x: o(b, "scale", x(9, 17), scalar=10**6),
}
_shapes = {**OPERANDS, **dict.fromkeys(("min", "var", "std", "logsumexp", "log_softmax", "vector_norm"), ((2, 3, 4),))}
for _name in sorted({n for n, e in OPS.items() if e.kind == "composite"} - set(BODIES)):
    BODIES[_name] = lambda b, x, n=_name: o(b, n, *(x(*s) for s in _shapes[n]), **ATTRS[n])
for _name in sorted(set(elementwise()) - set(BODIES)):
    BODIES[_name] = lambda b, x, n=_name: o(b, n, *(x(5, 13), x(13), x(5, 1))[: OPS[n].arity], **NUMBERS.get(n, {}))
CASES = [(name, dtype) for name in BODIES for dtype in ("float16", "bfloat16", "float32")]
SPOILED: dict[str, tuple[float, ...]] = {"clean": (), "nan": (math.nan,), "infinite": (math.inf, -math.inf)}


def program(name: str, dtype: str) -> TensorProgram:
    b = Builder("attack", dtype)
    count = iter("ABCDEF")
    return b.build(Y=BODIES[name](b, lambda *shape: b.input(next(count), shape)))


def inputs_of(p: TensorProgram, spoiled: tuple[float, ...]) -> dict[str, Any]:
    rng, domains, found = np.random.default_rng(0), input_domains(p), {}
    for i, n in enumerate(p.inputs):
        x = np.asarray(place(domains.get(n, ANY), rng.standard_normal(p[n].shape)))
        flat = x.reshape(-1)
        if i == 0 and domains.get(n, ANY) == ANY:
            flat[3 : 3 + len(spoiled)] = spoiled
        found[n] = torch.from_numpy(x).to(getattr(torch, p[n].dtype))
    return found


def attacked(name: str, dtype: str) -> None:
    p = program(name, dtype)
    run = fuser.compile(p, device="cpu")
    for kind, values in SPOILED.items():
        inputs = inputs_of(p, values)
        got = run(*inputs.values())
        wanted = reference(p, inputs)
        found = agreements({"Y": got}, wanted, {"Y": p["Y"].dtype}, tolerance(t.dtype for t in p.tensors))
        assert not found.message, f"{name} {dtype} {kind}: {found.message}"


def test_every_operator_is_attacked() -> None:
    used = {n.op for name in BODIES for n in program(name, "float16").nodes}
    assert used == {n for n, e in OPS.items() if e.kind not in ("library", "opaque")}
    assert all(t.dtype in FLOAT_DTYPES for t in program("cast", "float16").tensors)


@pytest.mark.parametrize(("name", "dtype"), CASES[::10], ids=lambda x: x.replace(" ", "_"))
def test_programs(name: str, dtype: str) -> None:
    attacked(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [c for i, c in enumerate(CASES) if i % 10], ids=lambda x: x.replace(" ", "_"))
def test_further_programs(name: str, dtype: str) -> None:
    attacked(name, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tanh_near_zero_is_that_of_small_numbers(dtype: str) -> None:
    x = torch.tensor(
        [[s * m * 10.0**e for e in range(-12, 2) for m in (1.0, 2.7, 4.9)] for s in (1, -1)], dtype=getattr(torch, dtype)
    )
    b = Builder("tanh", dtype=dtype)
    run = fuser.compile(b.build(Y=b.op("tanh", b.input("X", tuple(x.shape)))), device="cpu")
    wanted = x.double().tanh()
    error = (run(x).double() - wanted).abs() / wanted.abs()
    assert error.max() < (5e-7 if dtype == "float32" else 4e-3)
    ends = torch.tensor([[math.inf, -math.inf, math.nan, 0.0] + [0.0] * (x.shape[1] - 4)] * 2, dtype=x.dtype)
    torch.testing.assert_close(run(ends), ends.tanh(), equal_nan=True, rtol=0, atol=0)


def test_whole_numbers_in_memory_are_numbers_of_bfloat16() -> None:
    class Slopes(torch.nn.Module):  # as those of ALiBi, behind a sum that torch computes
        def forward(self, x: Any, m: Any) -> Any:
            return (x[..., None] * (m * m)[:, None, :]).float()[:, :, None] + torch.ones(7, 7)

    x, m = torch.tensor([0.0625, 0.25]).bfloat16(), torch.arange(14).view(2, 7)
    torch.testing.assert_close(fuser.compile(Slopes(), (x, m), device="cpu")(x, m), Slopes()(x, m))
