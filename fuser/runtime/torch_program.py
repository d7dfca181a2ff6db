"""Torch semantics of the op table: the eager form of a program, its float64 reference on a GPU, and the library kernels of a
graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.aten import call as call_aten
from fuser.errors import UnsupportedError
from fuser.ir.composites import alone
from fuser.ir.elements import Recipe
from fuser.ir.opdef import evaluate
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import numbers
from fuser.runtime.eager import eager
from fuser.runtime.forms import explicit_attention

Attention = Callable[..., Any]
"""``(q, k, v, mask or None, scale, causal) -> out``, shapes as in the op ``attention``."""


Call = Callable[[Sequence[Any], Attention], Any]
"""An operator with its attributes, of its operands."""


def apply(op: str, xs: Sequence[Any], attrs: Mapping[str, Any], attention: Attention = explicit_attention) -> Any:
    """One operator of the op table on torch tensors; constants in ``attrs`` are bound to sizes."""
    return call_of(op, attrs)(xs, attention)


def call_of(op: str, attrs: Mapping[str, Any]) -> Call:
    """As the op table says: a function of torch, the formula, or the expansion."""
    entry = op_def(op)
    if entry.kind == "opaque":
        return lambda xs, _: call_aten(attrs["callee"], attrs["detail"], xs, attrs.get("field", -1))
    if op == "elements":
        return _recipe(Recipe.read(attrs["program"]))
    if op == "attention":
        scale, causal = float(Scalar.of(attrs.get("scale", 1)).value()), bool(attrs.get("causal", False))
        return lambda xs, attention: attention(*xs[:3], xs[3] if len(xs) > 3 else None, scale, causal)
    function = eager(entry, attrs)
    if function is not None:
        return lambda xs, _: function(*xs)
    if entry.formula is not None:
        return lambda xs, _: evaluate(entry.steps(attrs), xs, apply)
    if entry.expansion is None:
        raise UnsupportedError(f"operator {op!r} has no torch form", "give its entry in the op table the column 'eager'")
    return lambda xs, _: expanded(op, xs, attrs)


def _recipe(recipe: Recipe) -> Call:
    """Operator by operator, as they stand in a recipe."""
    calls = [(n, call_of(op, attrs), inputs) for n, (op, inputs, attrs) in recipe.nodes.items()]

    def call(xs: Sequence[Any], attention: Attention) -> Any:
        values = dict(zip(recipe.inputs, xs, strict=True))
        for name, made, inputs in calls:
            values[name] = made([values[n] for n in inputs], attention)
        return values[recipe.result]

    return call


def expanded(op: str, xs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """A composite operator by operator."""
    program = alone(op, [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in xs], attrs)
    return run_program(program, dict(zip(program.inputs, xs, strict=True)))["y"]


Step = tuple[Call, tuple[str, ...], str, tuple[str, ...]]
"""Operator, operands, result, and tensors that nothing needs afterwards."""


def steps(program: TensorProgram, *, wide: bool = False) -> tuple[Step, ...]:
    """The program ready to be run, or traced: constants are bound, and each tensor is dropped as early as eager code would drop
    it. ``wide``: all of its floats are float64, and stay so."""
    return tuple(
        (_narrowing(program, node, wide) or call_of(node.op, numbers(node.attrs, program.extent)), node.inputs, node.output, dead)
        for node, dead in program.last_reads(program.outputs)
    )


def _narrowing(program: TensorProgram, node: Node, wide: bool) -> Call | None:
    """A cast of what the program itself has in float64, where that is no reference."""
    if wide or node.op != "cast" or program[node.inputs[0]].dtype != "float64":
        return None
    import torch

    dtype = getattr(torch, node.attr["dtype"])
    return lambda xs, _: xs[0].to(dtype)


def run_steps(todo: tuple[Step, ...], values: dict[str, Any], attention: Attention = explicit_attention) -> dict[str, Any]:
    """Carry out steps on ``values`` (changed in place)."""
    for call, inputs, output, dead in todo:
        values[output] = call([values[n] for n in inputs], attention)
        for name in dead:
            del values[name]
    return values


def run_program(
    program: TensorProgram, inputs: Mapping[str, Any], attention: Attention = explicit_attention, *, wide: bool = False
) -> dict[str, Any]:
    """The program operator by operator on torch tensors, in the dtype of ``inputs``; returns the outputs by name. ``wide`` as of
    :func:`steps`."""
    values = run_steps(steps(program, wide=wide), {n: inputs[n] for n in program.inputs}, attention)
    return {n: values[n] for n in program.outputs}


def reference(program: TensorProgram, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs in float64 from the values of ``inputs``."""
    doubles = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    return run_program(program, doubles, functools.partial(explicit_attention, keep_nan=True), wide=True)
