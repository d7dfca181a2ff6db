"""ATen operators that the op table's names alone do not map: rules from a call to operators of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.frontends.builder import Builder
from fuser.frontends.builder import Ref
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.scales import root_of_extent

IDENTITY = frozenset({"clone", "contiguous", "detach", "detach_", "alias", "lift_fresh", "lift_fresh_copy"})
"""Operators that return their first argument."""


def dtype_name(dtype: Any, what: str) -> str:
    """``torch.float16`` -> ``float16``."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UnsupportedError(f"{what} has dtype {name}, which is not supported", f"use one of {', '.join(DTYPE_BYTES)}")
    return name


def to_numpy(value: Any) -> Array:
    """A torch tensor as numpy; bfloat16 in float32."""
    import torch

    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy().copy()


@dataclass(frozen=True)
class Call:
    """One ATen call: ``args`` by schema name, with tensors of the program, torch constants and numbers as values."""

    b: Builder
    node: Any
    aten: str
    table: str
    args: dict[str, Any]
    result: Any
    """The fake tensor of the result (a list where there are several)."""
    constant: Callable[[Any, str], Ref]
    where: str

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.result.shape)

    @property
    def dtype(self) -> str:
        return dtype_name(self.result.dtype, self.where)

    def unsupported(self, what: str, hint: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.target} {what}: {self.where}", hint)

    def ref(self, value: Any, dtype: str | None = None) -> Ref:
        """A tensor of the program, in ``dtype`` if given (torch promotes operands)."""
        if not isinstance(value, Ref):
            value = self.constant(value, f"{self.node.name}.constant")
        if dtype and value.tensor.dtype != dtype:
            return self.b.op("cast", value, dtype=dtype)
        return value

    def tensor(self, name: str) -> Ref:
        return self.ref(self.args[name])

    def filled(self, number: float) -> Ref:
        """A constant tensor of one element, for numbers that the algebra has no place for."""
        import torch

        return self.constant(torch.tensor([number], dtype=self.result.dtype), f"{self.node.name}.constant")

    def elementwise(self) -> Ref:
        """The table's operator on all tensor arguments, in order."""
        tensors = [a for a in self.args.values() if _is_tensor(a)][: OPS[self.table].arity]
        return self.b.op(self.table, *(self.ref(t, self.dtype) for t in tensors), dtype=self.dtype)

    def reshape(self, x: Ref, shape: tuple[int, ...]) -> Ref:
        return x if x.shape == shape else self.b.op("reshape", x, shape=shape)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, (Ref, torch.Tensor))


def _number(value: Any) -> float | int | None:
    """A number, also as a constant tensor of one element."""
    import torch

    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return value if isinstance(value, (int, float)) else None


# Arithmetic


def _add(c: Call) -> Ref:
    x, y, alpha = c["self"], c["other"], c["alpha"] or 1
    if c.aten.startswith("rsub"):
        x, y = y, x
    negative = c.table == "sub" or c.aten.startswith("rsub")
    n, m = _number(y), _number(x)
    if n is not None and math.isfinite(n):
        return c.b.op("shift", c.ref(x, c.dtype), scalar=Scalar(Fraction(n) * Fraction(alpha) * (-1 if negative else 1)))
    if alpha != 1:
        y = c.b.op("scale", c.ref(y, c.dtype), scalar=alpha)
    if m is not None and math.isfinite(m):
        y = c.ref(y, c.dtype)
        return c.b.op("shift", c.b.op("neg", y) if negative else y, scalar=m)
    if not negative:
        for mask, other in ((y, x), (x, y)):
            masked = _masked(c, c.ref(other, c.dtype), mask) if not isinstance(mask, Ref) and _is_tensor(mask) else None
            if masked is not None:
                return masked
    x, y = (c.filled(v) if isinstance(v, (int, float)) else c.ref(v, c.dtype) for v in (x, y))
    return c.b.op("sub" if negative else "add", x, y, dtype=c.dtype)


def _mul(c: Call) -> Ref:
    x, y = c["self"], c["other"]
    if _number(x) is not None:
        x, y = y, x
    n = _number(y)
    if n is not None and math.isfinite(n):
        return c.b.op("scale", c.ref(x, c.dtype), scalar=n)
    x, y = c.ref(x, c.dtype), c.filled(n) if n is not None else c.ref(y, c.dtype)
    return c.b.op("square", x) if x.name == y.name else c.b.op("mul", x, y)


def _div(c: Call) -> Ref:
    if c["rounding_mode"]:
        raise c.unsupported("rounds its result", "leave the rounding out of the imported part")
    x, y = c["self"], c["other"]
    n, m = _number(y), _number(x)
    if n and math.isfinite(n):
        return c.b.op("scale", c.ref(x, c.dtype), scalar=Scalar.of(n).inverse())
    if m is not None and math.isfinite(m):
        return _over(c, m, c.ref(y, c.dtype))
    return c.b.op("div", c.ref(x, c.dtype), c.filled(n) if n is not None else c.ref(y, c.dtype))


def _over(c: Call, number: float, x: Ref) -> Ref:
    """number / x"""
    return c.b.op("div", c.filled(number), x)


def _pow(c: Call) -> Ref:
    x, n = c.ref(c["self"], c.dtype), _number(c["exponent"])
    if n in (0.5, -0.5):
        return c.b.op("sqrt" if n == 0.5 else "rsqrt", x)
    if n == -1:
        return _over(c, 1.0, x)
    if n not in (1, 2, 3, 4):
        raise c.unsupported(f"has the exponent {c['exponent']}", "powers 1, 2, 3, 4, -1, 1/2 and -1/2 are supported")
    square = x if n == 1 else c.b.op("square", x)
    return c.b.op("mul", square, x) if n == 3 else c.b.op("square", square) if n == 4 else square


def _gelu(c: Call) -> Ref:
    x = c.tensor("self")
    if c["approximate"] != "tanh":
        return c.b.gelu(x)
    # x σ(2u) = x (1 + tanh u) / 2 with u = sqrt(2/π) (x + 0.044715 x³)
    inner = c.b.op("shift", c.b.op("scale", c.b.op("square", x), scalar=0.044715), scalar=1)
    u = c.b.op("scale", c.b.op("mul", x, inner), scalar=2 * math.sqrt(2 / math.pi))
    return c.b.op("mul", x, c.b.op("sigmoid", u))


def _abs(c: Call) -> Ref:
    x = c.tensor("self")
    return c.b.op("maximum", x, c.b.op("neg", x))


# Products


def _matmul(c: Call) -> Ref:
    names = ("self", "other") if "other" in c.args else ("self", "mat2")
    x, y = (c.ref(c[n], c.dtype) for n in names)
    x = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    y = c.reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    return c.reshape(x @ y, c.shape)


def _linear(c: Call) -> Ref:
    x, w, bias = c.tensor("input"), c.tensor("weight"), c["bias"]
    x = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    y = x @ w.T
    return c.reshape(y if bias is None else y + c.ref(bias), c.shape)


def _addmm(c: Call) -> Ref:
    first, second = ("mat1", "mat2") if "mat1" in c.args else ("batch1", "batch2")
    x, y = c.tensor("self"), c.tensor(first) @ c.tensor(second)
    x = x if c["beta"] == 1 else c.b.op("scale", x, scalar=c["beta"])
    return (y if c["alpha"] == 1 else c.b.op("scale", y, scalar=c["alpha"])) + x


# Views and copies


def _reshape(c: Call) -> Ref:
    return c.reshape(c.ref(c["self"]), c.shape)


def _transpose(c: Call) -> Ref:
    x = c.ref(c["self"])
    n = len(x.shape)
    if c.aten == "permute":
        perm = [d % n for d in c["dims"]]
    elif c.aten == "transpose.int":
        perm = list(range(n))
        i, j = c["dim0"] % n, c["dim1"] % n
        perm[i], perm[j] = j, i
    else:
        perm = [*range(n - 2), n - 1, n - 2] if n > 1 else list(range(n))
    return x if perm == list(range(n)) else x.transpose(*perm)


def _broadcast(c: Call) -> Ref:
    x = c.ref(c["self"])
    return x if x.shape == c.shape else c.b.op("broadcast", x, shape=c.shape)


def _cast(c: Call) -> Ref:
    return c.ref(c["self"], c.dtype)


def _dropout(c: Call) -> Ref:
    if c["train"] and c["p"]:
        raise c.unsupported("is active", "call module.eval() before importing")
    return c.tensor("input")


def _repeat(c: Call) -> Ref:
    x, axis, times = c.tensor("self"), c["dim"], c["repeats"]
    if axis is None:
        x, axis = c.reshape(x, (math.prod(x.shape),)), 0
    return x if times == 1 else c.b.op("repeat", x, axis=axis % len(x.shape), times=times)


def _cut(c: Call, x: Ref, axis: int, start: int, stop: int) -> Ref:
    return x if (start, stop) == (0, x.shape[axis]) else c.b.op("slice", x, axis=axis, start=start, stop=stop)


def _slice(c: Call) -> Ref:
    x = c.tensor("self")
    axis = c["dim"] % len(x.shape)
    if c.aten == "narrow":
        return _cut(c, x, axis, c["start"] % x.shape[axis], c["start"] % x.shape[axis] + c["length"])
    if c["step"] != 1:
        raise c.unsupported(f"has the step {c['step']}", "slices with a step of 1 are supported")
    start, stop, _ = slice(c["start"], c["end"]).indices(x.shape[axis])
    return _cut(c, x, axis, start, stop)


def _select(c: Call) -> Ref:
    x = c.tensor("self")
    axis = c["dim"] % len(x.shape)
    i = c["index"] % x.shape[axis]
    return c.reshape(_cut(c, x, axis, i, i + 1), c.shape)


def _split(c: Call) -> list[Ref]:
    """split, chunk, unbind: the extents of the results say where."""
    x = c.tensor("self")
    axis = (c["dim"] or 0) % len(x.shape)
    parts: list[Ref] = []
    start = 0
    for part in c.result:
        stop = start + (1 if len(part.shape) < len(x.shape) else part.shape[axis])
        parts.append(c.reshape(_cut(c, x, axis, start, stop), tuple(part.shape)))
        start = stop
    return parts


def _concat(c: Call) -> Ref:
    parts = [c.ref(t, c.dtype) for t in c["tensors"]]
    axis = (c["dim"] or 0) % len(c.shape)
    if c.aten == "stack":
        parts = [c.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return parts[0] if len(parts) == 1 else c.b.op("concat", *parts, axis=axis)


def _filled_like(c: Call) -> Any:
    """A constant of which a tensor gives only the shape."""
    import torch

    number = c["fill_value"] if "fill_value" in c.args else int("ones" in c.aten)
    return torch.full(c.shape, number, dtype=c.result.dtype)


# Folds and composites


def _fold(c: Call) -> Ref:
    x = c.ref(c["self"], c.dtype)
    axes = c["dim"] if isinstance(c["dim"], (list, tuple)) else [] if c["dim"] is None else [c["dim"]]
    axis = tuple(sorted(d % len(x.shape) for d in axes)) or tuple(range(len(x.shape)))
    return c.b.op(c.table, x, axis=axis, keepdims=bool(c["keepdim"]))


def _softmax(c: Call) -> Ref:
    x = c.ref(c["self"], c.dtype)
    return c.b.softmax(x, c["dim"] % len(x.shape))


def _norm(c: Call) -> Any:
    x, gain, bias = c.tensor("input"), c["weight"], c["bias"]
    result = c.result[0] if isinstance(c.result, (list, tuple)) else c.result
    dtype = dtype_name(result.dtype, c.where)
    size = math.prod(c["normalized_shape"])
    lead = x.shape[: len(x.shape) - len(c["normalized_shape"])]
    vectors = [c.reshape(c.ref(v, dtype), (size,)) for v in (gain, bias if gain is not None else None) if v is not None]
    eps = c["eps"] if c["eps"] is not None else 2.0 ** -(23 if dtype == "float32" else 10 if dtype == "float16" else 7)
    name = "rms_norm" if "rms_norm" in c.aten else "layer_norm"
    y = c.b.op(name, c.reshape(c.ref(x, dtype), (*lead, size)), *vectors, eps=eps)
    y = y if gain is not None or bias is None else y + c.reshape(c.ref(bias, dtype), (size,))
    y = c.reshape(y, x.shape)
    return y if result is c.result else (y, None, None)


def causal_offset(keep: Array) -> int | None:
    """The offset of a causal mask ``keep`` (…, rows, columns), leading extents 1: true where column <= row + offset."""
    if keep.ndim < 2 or math.prod(keep.shape[:-2]) != 1:
        return None
    keep = keep.reshape(keep.shape[-2:])
    offset = int(keep[0].sum()) - 1
    rows, cols = np.indices(keep.shape)
    return offset if not keep.all() and np.array_equal(keep, cols <= rows + offset) else None


def _masked(c: Call, x: Ref, mask: Any) -> Ref | None:
    """x + mask for a causal mask of 0 and -inf, given as a constant."""
    value = to_numpy(mask)
    if value.dtype == bool or not np.all((value == 0) | (value == -np.inf)):
        return None
    offset = causal_offset(value == 0)
    if offset is None or x.shape[-2:] != value.shape[-2:] or x.shape != c.shape:
        return None
    return c.b.op("causal_mask", x, offset=offset)


def _masked_fill(c: Call) -> Ref:
    import torch

    x, mask, number = c.ref(c["self"], c.dtype), c["mask"], _number(c["value"])
    if number is None:
        return c.b.op("where", c.ref(mask), c.ref(c["value"], c.dtype), x, dtype=c.dtype)
    if number == -math.inf and not isinstance(mask, Ref):
        additive = torch.zeros(mask.shape, dtype=c.result.dtype).masked_fill(mask.cpu(), -math.inf)
        causal = _masked(c, x, additive)
        return causal if causal is not None else c.b.op("add", x, c.ref(additive))
    return c.b.op("where", c.ref(mask), c.filled(number), x, dtype=c.dtype)


def _where(c: Call) -> Ref:
    """where(condition, self, other), numbers included."""
    mask, yes, no = c["condition"], c["self"], c["other"]
    if not isinstance(mask, Ref) and _number(no) == -math.inf and isinstance(yes, Ref):
        args = {"self": yes, "mask": mask.logical_not(), "value": -math.inf}
        return _masked_fill(Call(c.b, c.node, c.aten, c.table, args, c.result, c.constant, c.where))
    values = [c.filled(n) if (n := _number(v)) is not None else c.ref(v, c.dtype) for v in (yes, no)]
    return c.b.op("where", c.ref(mask), *values, dtype=c.dtype)


def _attention(c: Call) -> Ref:
    import torch

    if c["dropout_p"]:
        raise c.unsupported("has dropout", "call module.eval(), and pass dropout_p=0.0 when not training")
    q, k, v, mask = c.tensor("query"), c.tensor("key"), c.tensor("value"), c["attn_mask"]
    if c["enable_gqa"] and q.shape[-3] != k.shape[-3]:
        k, v = (c.b.op("repeat", t, axis=len(t.shape) - 3, times=q.shape[-3] // t.shape[-3]) for t in (k, v))
    rows, cols, d = q.shape[-2], k.shape[-2], q.shape[-1]
    extent = Extent(q.name, len(q.shape) - 1)
    scale = Scalar.power(extent, Fraction(-1, 2))
    if c["scale"] is not None:
        scale = root_of_extent(c["scale"], extent, d, c.dtype) or Scalar.of(c["scale"])
    offset = 0 if c["is_causal"] else None
    if mask is not None and not isinstance(mask, Ref):
        keep = to_numpy(mask) if mask.dtype == torch.bool else None
        value = to_numpy(mask)
        if keep is None and np.all((value == 0) | (value == -np.inf)):
            keep = value == 0
        offset = causal_offset(keep) if keep is not None and keep.shape[-2:] == (rows, cols) else None
        if offset is not None:
            mask = None
        elif mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=c.result.dtype).masked_fill(~mask.cpu(), -math.inf)
    elif mask is not None and mask.tensor.dtype == "bool":
        mask = c.b.op("where", mask, c.filled(0.0), c.filled(-math.inf), dtype=c.dtype)
    mask = None if mask is None else c.ref(mask, c.dtype)
    # the operator's causal mask ends with the last key, torch's begins with the first
    if offset is None or (offset == cols - rows and mask is None):
        return c.b.attention(q, k, v, mask, causal=offset is not None, scale=scale)
    s = c.b.op("scale", q @ k.T, scalar=scale)
    s = s if mask is None else s + mask
    return c.b.softmax(c.b.op("causal_mask", s, offset=offset)) @ v


RULES: dict[str, Callable[[Call], Any]] = {
    # by the op table's name
    "add": _add, "sub": _add, "mul": _mul, "div": _div, "where": _where, "gelu": _gelu, "matmul": _matmul, "sum": _fold,
    "max": _fold, "mean": _fold, "reshape": _reshape, "transpose": _transpose, "broadcast": _broadcast, "repeat": _repeat,
    "concat": _concat, "slice": _slice, "cast": _cast, "softmax": _softmax, "rms_norm": _norm, "layer_norm": _norm,
    "attention": _attention,
    # by ATen's, without an entry in the table
    "rsub.Tensor": _add, "rsub.Scalar": _add, "reciprocal": lambda c: _over(c, 1.0, c.tensor("self")),
    "pow.Tensor_Scalar": _pow, "abs": _abs, "linear": _linear, "addmm": _addmm, "baddbmm": _addmm, "dropout": _dropout,
    "select.int": _select, "split.Tensor": _split, "split_with_sizes": _split, "chunk": _split, "unbind.int": _split,
    "masked_fill.Scalar": _masked_fill, "masked_fill.Tensor": _masked_fill, "ones_like": _filled_like,
    "zeros_like": _filled_like, "full_like": _filled_like, "new_ones": _filled_like, "new_zeros": _filled_like,
    "new_full": _filled_like,
}  # fmt: skip
"""Rules by the name in the op table, or by ATen's name (looked up first)."""
