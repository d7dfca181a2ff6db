"""Expansion of composite operators into the primitive ones of the op table (bare exponentials; lowering makes them safe)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuser.frontends.builder import Builder
from fuser.frontends.builder import Ref
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar


def _mean(b: Builder, x: Ref, axis: tuple[int, ...], keepdims: bool) -> Ref:
    count = Scalar()
    for i in axis:
        count = count * Scalar.power(Extent(x.name, i % len(x.shape)), -1)
    return b.op("scale", b.op("sum", x, axis=axis, keepdims=keepdims), scalar=count)


def _softmax(b: Builder, x: Ref, axis: int = -1) -> Ref:
    e = b.op("exp", x)
    return b.op("div", e, b.op("sum", e, axis=(axis,), keepdims=True))


def _rms_norm(b: Builder, x: Ref, *gain: Ref, eps: Scalar) -> Ref:
    mean = _mean(b, b.op("square", x), (-1,), True)
    y = b.op("div", x, b.op("sqrt", b.op("shift", mean, scalar=eps)))
    return b.op("mul", y, gain[0]) if gain else y


def _layer_norm(b: Builder, x: Ref, *affine: Ref, eps: Scalar) -> Ref:
    d = b.op("sub", x, _mean(b, x, (-1,), True))
    var = _mean(b, b.op("square", d), (-1,), True)
    y = b.op("div", d, b.op("sqrt", b.op("shift", var, scalar=eps)))
    if affine:
        y = b.op("mul", y, affine[0])
    return b.op("add", y, affine[1]) if len(affine) > 1 else y


def _attention(b: Builder, q: Ref, k: Ref, v: Ref, *mask: Ref, scale: Scalar, causal: bool = False) -> Ref:
    n = len(k.shape)
    s = b.op("matmul", q, b.op("transpose", k, perm=(*range(n - 2), n - 1, n - 2)))
    s = b.op("scale", s, scalar=scale) if scale != Scalar() else s
    s = b.op("add", s, mask[0]) if mask else s
    s = b.op("causal_mask", s, offset=k.shape[-2] - q.shape[-2]) if causal else s
    return b.op("matmul", _softmax(b, s), v)


EXPANSIONS: dict[str, Callable[..., Ref]] = {
    "mean": lambda b, x, axis, keepdims=False: _mean(b, x, axis, keepdims),
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "attention": _attention,
}


def expand(program: TensorProgram) -> TensorProgram:
    """The same program with primitive operators only; names of inputs and outputs stay."""
    if not any(op_def(n.op).kind == "composite" for n in program.nodes):
        return program
    b = Builder(program.name, reserved=frozenset(program.table))
    refs: dict[str, Ref] = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    renamed: dict[str, str] = {n: n for n in program.inputs}
    for node in program.nodes:
        refs[node.output] = _emit(b, node, [refs[i] for i in node.inputs], program, renamed)
        renamed[node.output] = refs[node.output].name
    return b.build(**{name: refs[name] for name in dict.fromkeys(program.outputs)})


def _emit(b: Builder, node: Node, inputs: list[Ref], program: TensorProgram, renamed: dict[str, str]) -> Ref:
    def tie(v: Any) -> Any:
        """A constant tied to the extent of a tensor follows that tensor's new name."""
        if not isinstance(v, Scalar):
            return v
        return Scalar(
            v.coeff,
            tuple((Extent(renamed[base.tensor], base.dim) if isinstance(base, Extent) else base, e) for base, e in v.powers),
        )

    attrs = {k: tie(v) for k, v in node.attrs if k != "dtype"}
    if node.op in EXPANSIONS:
        return EXPANSIONS[node.op](b, *inputs, **attrs)
    name = node.output if node.output not in b.names else None
    return b.op(node.op, *inputs, name=name, dtype=program[node.output].dtype, **attrs)
