"""Weights in the shape in which they are used.

Importers reach a weight through transposes, reshapes and broadcasts. Relay folds those too, but compiles and runs a function for
each: most of the time of building a large model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relay

from tvm_bridge.to_program.numbering import Key
from tvm_bridge.to_program.numbering import children_of
from tvm_bridge.to_program.numbering import key_of
from tvm_bridge.to_program.numbering import post_order

Array = np.ndarray[Any, Any]

MOVES = ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_to")


def _moved(call: Any, value: Array) -> Array | None:
    """The value of a call that only moves data, as a view; None if it is no such call, or its shape is not known."""
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in MOVES:
        return None
    shape = call.checked_type.shape
    if not all(isinstance(e, tvm.tir.IntImm) for e in shape):
        return None
    target = tuple(int(e) for e in shape)
    if call.op.name == "transpose":
        axes = call.attrs.axes
        return value.transpose(None if axes is None else [int(a) for a in axes])
    return np.broadcast_to(value, target) if call.op.name == "broadcast_to" else value.reshape(target)


def fold_weights(function: Any, params: Mapping[str, Any]) -> Any:
    """The function with its parameters ``params`` bound to their values, and moved as the function moves them.

    It must have gone through type inference. Dtypes that numpy lacks are left to Relay.
    """
    made: dict[Key, Any] = {}
    known: dict[Key, Array] = {}
    for p in function.params:
        if p.name_hint in params:
            made[key_of(p)] = relay.const(params[p.name_hint])
            if "bfloat" not in params[p.name_hint].dtype:
                known[key_of(p)] = params[p.name_hint].numpy()

    def use(expr: Any) -> Any:
        key = key_of(expr)
        if key not in made:
            made[key] = relay.const(np.asarray(known[key], order="C"))
        return made[key]

    def below(expr: Any) -> tuple[Any, ...]:
        return () if isinstance(expr, relay.Function) else children_of(expr)

    for expr in post_order(function.body, below):
        key = key_of(expr)
        if key in made:
            continue
        if isinstance(expr, relay.Call):
            source = known.get(key_of(expr.args[0])) if len(expr.args) == 1 else None
            value = None if source is None else _moved(expr, source)
            if value is not None:
                known[key] = value
                continue
            made[key] = relay.Call(use(expr.op), [use(a) for a in expr.args], expr.attrs, expr.type_args, expr.span)
        elif isinstance(expr, relay.Tuple):
            made[key] = relay.Tuple([use(e) for e in expr.fields])
        elif isinstance(expr, relay.TupleGetItem):
            made[key] = relay.TupleGetItem(use(expr.tuple_value), expr.index)
        elif isinstance(expr, relay.Let):
            made[key] = relay.Let(expr.var, use(expr.value), use(expr.body))
        elif isinstance(expr, relay.If):
            made[key] = relay.If(use(expr.cond), use(expr.true_branch), use(expr.false_branch))
        else:
            made[key] = expr
    left = [p for p in function.params if p.name_hint not in params]
    return relay.Function(left, use(function.body), function.ret_type, function.type_params, function.attrs)
