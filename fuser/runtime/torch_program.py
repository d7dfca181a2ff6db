"""Torch semantics of the op table: the eager form of a program, its float64 reference on a GPU, and the library kernels of a
graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from fuser.aten import call as call_aten
from fuser.errors import UnsupportedError
from fuser.ir.composites import alone
from fuser.ir.opdef import evaluate
from fuser.ir.opdef import own_attributes
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import numbers
from fuser.runtime.eager import eager

Attention = Callable[..., Any]
"""``(q, k, v, mask or None, scale, causal) -> out``, shapes as in the op ``attention``."""


def explicit_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool, keep_nan: bool = False) -> Any:
    """Matmul, softmax, matmul; a fully masked row gives zero. With ``keep_nan`` a NaN that is not of such a row stays one, at
    the cost of another pass."""
    import torch

    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = _causal(scores, scores.shape[-1] - scores.shape[-2])
    p = torch.softmax(scores, -1)
    if mask is not None or causal:
        p = p.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0) if keep_nan else torch.nan_to_num(p, nan=0.0)
    return torch.matmul(p, v)


def _causal(x: Any, offset: int) -> Any:
    import torch

    keep = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(offset)
    return x.masked_fill(~keep, -math.inf)


def _number(value: Any) -> float:
    return value.value() if isinstance(value, Scalar) else float(value)


def apply(op: str, xs: list[Any], attrs: Mapping[str, Any], attention: Attention = explicit_attention) -> Any:
    """One operator of the op table on torch tensors; constants in ``attrs`` are bound to sizes."""
    import torch
    from torch.nn import functional

    x = xs[0]
    if op == "opaque":
        return call_aten(attrs["callee"], attrs["detail"], xs, attrs.get("field", -1))
    if op == "scale":
        return x * _number(attrs["scalar"])
    if op == "shift":
        return x + _number(attrs["scalar"])
    if op == "cast":
        # a reference in float64 stays in float64
        return x if x.dtype == torch.float64 else x.to(getattr(torch, attrs["dtype"]))
    if op == "where":
        return torch.where(x != 0, xs[1], xs[2])
    if op == "causal_mask":
        return _causal(x, int(attrs.get("offset", 0)))
    if op == "matmul":
        return torch.matmul(*xs)
    if op in ("sum", "mean"):
        return getattr(torch, op)(x, dim=tuple(attrs["axis"]), keepdim=bool(attrs.get("keepdims")))
    if op == "max":
        return torch.amax(x, dim=tuple(attrs["axis"]), keepdim=bool(attrs.get("keepdims")))
    if op == "reshape":
        return x.reshape(tuple(attrs["shape"]))
    if op == "transpose":
        return x.permute(tuple(attrs["perm"]))
    if op == "broadcast":
        return x.expand(tuple(attrs["shape"]))
    if op == "repeat":
        return torch.repeat_interleave(x, attrs["times"], dim=attrs["axis"])
    if op == "concat":
        return torch.cat(xs, dim=attrs["axis"])
    if op == "slice":
        return x.narrow(attrs["axis"], attrs["start"], attrs["stop"] - attrs["start"])
    if op == "softmax":
        return torch.softmax(x, attrs.get("axis", -1))
    if op == "rms_norm":
        return functional.rms_norm(x, (x.shape[-1],), xs[1] if len(xs) > 1 else None, _number(attrs.get("eps", 1e-5)))
    if op == "layer_norm":
        gain, bias = (*xs[1:], None, None)[:2]
        return functional.layer_norm(x, (x.shape[-1],), gain, bias, _number(attrs.get("eps", 1e-5)))
    if op == "attention":
        mask = xs[3] if len(xs) > 3 else None
        return attention(*xs[:3], mask, _number(attrs.get("scale", 1)), bool(attrs.get("causal", False)))
    return _by_entry(op, xs, attrs)


def _by_entry(op: str, xs: list[Any], attrs: Mapping[str, Any]) -> Any:
    """As the op table says: a function of torch, the formula, or the expansion."""
    entry = op_def(op)
    function = eager(entry) if entry.kind in ("map", "composite", "library") else None
    if function is not None:
        return function(*xs, **{k: v for k, v in numbers(own_attributes(entry, attrs)).items() if k != "dtype"})
    if entry.formula is not None:
        return evaluate(entry.steps(attrs), xs, apply)
    if entry.expansion is None:
        raise UnsupportedError(f"operator {op!r} has no torch form", "give its entry in the op table the column 'eager'")
    return expanded(op, xs, attrs)


def expanded(op: str, xs: list[Any], attrs: Mapping[str, Any]) -> Any:
    """A composite operator by operator."""
    program = alone(op, [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in xs], attrs)
    return run_program(program, dict(zip(program.inputs, xs, strict=True)))["y"]


Step = tuple[str, tuple[str, ...], str, dict[str, Any], tuple[str, ...]]
"""Operator, operands, result, attributes as plain numbers, and tensors that nothing needs afterwards."""


def steps(program: TensorProgram) -> tuple[Step, ...]:
    """The program ready to be run, or traced: constants are bound, and each tensor is dropped as early as eager code would drop
    it."""
    return tuple(
        (node.op, node.inputs, node.output, numbers(node.attrs, program.extent), dead)
        for node, dead in program.last_reads(program.outputs)
    )


def run_steps(todo: tuple[Step, ...], values: dict[str, Any], attention: Attention = explicit_attention) -> dict[str, Any]:
    """Carry out steps on ``values`` (changed in place)."""
    for op, inputs, output, attrs, dead in todo:
        values[output] = apply(op, [values[n] for n in inputs], attrs, attention)
        for name in dead:
            del values[name]
    return values


def run_program(program: TensorProgram, inputs: Mapping[str, Any], attention: Attention = explicit_attention) -> dict[str, Any]:
    """The program operator by operator on torch tensors, in the dtype of ``inputs``; returns the outputs by name."""
    values = run_steps(steps(program), {n: inputs[n] for n in program.inputs}, attention)
    return {n: values[n] for n in program.outputs}


def reference(program: TensorProgram, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs in float64 from the values of ``inputs``."""
    doubles = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    return run_program(program, doubles, functools.partial(explicit_attention, keep_nan=True))
