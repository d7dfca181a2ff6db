"""Example attributes and operands of the operators of the table, for the tests that walk it."""

from __future__ import annotations

from typing import Any

from fuser.ir.elements import Recipe
from fuser.ir.ops import OPS

_HALVES = {
    "low": ("slice", ("x",), {"axis": 2, "start": 0, "stop": 2}),
    "high": ("slice", ("x",), {"axis": 2, "start": 2, "stop": 4}),
    "less": ("neg", ("high",), {}),
    "y": ("concat", ("less", "low"), {"axis": 2}),
}
HALF_TURN = Recipe(("x",), _HALVES, {n: ((2, 3, 4 if n in "xy" else 2), "float32") for n in ("x", *_HALVES)})
"""The second half of each row, turned round, in front of the first."""

NUMBERS: dict[str, dict[str, Any]] = {
    "scale": {"scalar": 0.25},
    "shift": {"scalar": 1.5},
    "cast": {"dtype": "float16"},
    **{key: {"offset": 1} for key in ("causal_mask", "tril", "triu")},
    "powf": {"exponent": 1.7},
    "pow": {"exponent": 3.5},
    "clamp_min": {"min": 0.2},
    "clamp_max": {"max": 0.8},
    "clamp": {"min": -0.5, "max": 0.9},
    "hardtanh": {"min": -0.7, "max": 0.6},
    "leaky_relu": {"negative_slope": 0.125},
    "elu": {"alpha": 0.5},
    "celu": {"alpha": 2.0},
    "softplus": {"beta": 2.0},
    "addcmul": {"value": 0.5},
}
"""Attributes of element-wise operators that have some."""

ATTRS: dict[str, dict[str, Any]] = {
    **NUMBERS,
    **{n: {"axis": (1,), "keepdims": True} for n in ("sum", "min", "std", "logsumexp")},
    **{n: {"axis": (0, 2)} for n in ("mean", "vector_norm")},
    "var": {"axis": (0, 2), "correction": 1},
    "max": {"axis": (-1,)},
    "reshape": {"shape": (6, 4)},
    "transpose": {"perm": (2, 0, 1)},
    "broadcast": {"shape": (5, 2, 3, 4)},
    "repeat": {"axis": 1, "times": 3},
    "concat": {"axis": 1},
    "slice": {"axis": 2, "start": 1, "stop": 3},
    "softmax": {"axis": -1},
    "log_softmax": {"axis": -1},
    "attention": {"scale": 0.5, "causal": True},
    "rms_norm": {"eps": 1e-5},
    "layer_norm": {"eps": 1e-5},
    "batch_norm": {"eps": 1e-5},
    "instance_norm": {"eps": 1e-5},
    "group_norm": {"eps": 1e-5, "groups": 3},
    **{n: {"dim": 1, "keepdim": False} for n in ("prod", "argmax", "argmin", "any", "all")},
    **{n: {"dim": 1} for n in ("cumsum", "cumprod", "logcumsumexp", "index_select", "gather", "scatter", "argsort")},
    "scatter_reduce": {"dim": 1, "reduce": "mean", "include_self": False},
    **{n: {"dims": (0, 1)} for n in ("index", "index_put")},
    "argtopk": {"k": 2, "dim": 1},
    "diagonal": {"offset": 1, "dim1": 0, "dim2": 2},
    **{n: {"padding": (1, 2)} for n in ("reflection_pad", "replication_pad")},
    "resize": {"output_size": (5, 7), "mode": "linear"},
    "unfold": {"kernel_size": (2, 2)},
    "fold": {"output_size": (3, 4), "kernel_size": (2, 1)},
    "elements": {"program": HALF_TURN.text, "shape": (2, 3, 4), "dtype": "float32"},
    **{f"max_pool{n}d_places": {"kernel_size": (2,) * n, "stride": (1,) * n} for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": {"output_size": (1, 2, 3)[:n]} for kind in ("max", "avg") for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d_places": {"output_size": (1, 2, 3)[:n]} for n in (1, 2, 3)},
    "flip": {"dims": (1,)},
    "counts": {"bins": 3},
    **{
        f"{kind}_pool{n}d{last}": {"kernel_size": (2,) * n, "stride": (1,) * n}
        for kind in ("max", "avg")
        for n in (1, 2, 3)
        for last in ("", "_last")
    },
}
"""Attributes of operators for operands of three axes, 2 × 3 × 4, but for those of :data:`OPERANDS`."""

OPERANDS: dict[str, tuple[tuple[int, ...], ...]] = {
    "matmul": ((2, 3, 4), (2, 4, 5)),
    "concat": ((2, 3, 4), (2, 1, 4)),
    "rms_norm": ((2, 3, 4), (4,)),
    "layer_norm": ((2, 3, 4), (4,), (4,)),
    "attention": ((2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "batch_norm": ((2, 3, 4), (3,), (3,), (3,), (3,)),
    "group_norm": ((2, 3, 4), (3,), (3,)),
    "instance_norm": ((2, 3, 4), (3,), (3,)),
    "embedding": ((5, 4), (2, 3)),
    **{f"conv{n}d": ((2, 3, *(4,) * n), (5, 3, *(2,) * n), (5,)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ((2, 3, *(4,) * n), (3, 5, *(2,) * n), (5,)) for n in (1, 2, 3)},
    **{f"conv{n}d_last": ((2, *(4,) * n, 3), (5, *(2,) * n, 3)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d_last": ((2, *(4,) * n, 3), (3, *(2,) * n, 5)) for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d_last": ((2, *(4,) * n, 3),) for kind in ("max", "avg") for n in (1, 2, 3)},
    **{f"{kind}_pool3d{end}": ((2, 3, 4, 2),) for kind, end in (("max", ""), ("avg", ""), ("max", "_places"))},
    "index": ((2, 3, 4), (5, 1), (6,)),
    "index_put": ((2, 3, 4), (4,), (5, 1), (1,)),
    "index_select": ((2, 3, 4), (5,)),
    "gather": ((2, 3, 4), (2, 2, 3)),
    "scatter": ((2, 3, 4), (1, 2, 3), (2, 3, 4)),
    "scatter_reduce": ((2, 3, 4), (1, 2, 3), (2, 3, 4)),
    "grouped_matmul": ((5, 4), (3, 4, 6), (3,)),
    "resize": ((2, 3, 4, 3),),
    "unfold": ((2, 3, 4, 5),),
    "fold": ((2, 6, 8),),
    **{f"adaptive_{kind}_pool3d{end}": ((2, 3, 4, 2),) for kind, end in (("max", ""), ("avg", ""), ("max", "_places"))},
}

INDICES: dict[str, dict[int, int]] = {
    "embedding": {1: 5},
    "index": {1: 2, 2: 3},
    "index_put": {2: 2, 3: 3},
    **{n: {1: 3} for n in ("index_select", "gather", "scatter", "scatter_reduce")},
    "grouped_matmul": {2: 6},
    "counts": {0: 4},
}
"""Operands that are whole numbers, and below what."""


def operands(name: str) -> tuple[tuple[int, ...], ...]:
    return OPERANDS.get(name, ((2, 3, 4),) * max(1, OPS[name].arity))


def elementwise() -> list[str]:
    return sorted(n for n, e in OPS.items() if e.kind == "map")
