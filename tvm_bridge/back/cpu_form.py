"""Matrix products in the form that TVM's x86 schedules are fast in.

Importers write a linear layer as a batched product of batch 1, ``x[1, M, K] @ w[1, K, N]``, for which TVM's schedule neither
tiles nor runs in parallel: 26 times slower than ``nn.dense`` for BERT's. Batched products want their second operand transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relay

from tvm_bridge.to_program.numbering import children_of
from tvm_bridge.to_program.numbering import key_of
from tvm_bridge.to_program.numbering import post_order


def _dims(expr: Any) -> tuple[int, ...] | None:
    """Extents of a tensor, or None where one is not known."""
    shape = expr.checked_type.shape
    return tuple(int(e) for e in shape) if all(isinstance(e, tvm.tir.IntImm) for e in shape) else None


def _product(call: Any, a: Any, b: Any) -> Any:
    """``nn.batch_matmul`` over the rewritten operands ``a`` and ``b``; None leaves the call as it is."""
    left, right = _dims(call.args[0]), _dims(call.args[1])
    if left is None or right is None or not str(call.checked_type.dtype).startswith("float") or call.attrs.transpose_a:
        return None
    (batch, m, k), (other, *rest) = left, right
    n = rest[0] if call.attrs.transpose_b else rest[1]
    out = str(call.attrs.out_dtype)
    if other == 1:
        weight = relay.reshape(b, rest)
        weight = weight if call.attrs.transpose_b else relay.transpose(weight, (1, 0))
        return relay.reshape(relay.nn.dense(relay.reshape(a, (batch * m, k)), weight, out_dtype=out), (batch, m, n))
    if call.attrs.transpose_b:
        return None
    return relay.nn.batch_matmul(a, relay.transpose(b, (0, 2, 1)), out_dtype=out, transpose_a=False, transpose_b=True)


def _below(expr: Any) -> Sequence[Any]:
    """Subexpressions, without those of nested functions, which keep their form."""
    return () if isinstance(expr, relay.Function) else children_of(expr)


def _rebuild(expr: Any, children: Sequence[Any]) -> Any:
    if isinstance(expr, relay.Call):
        if isinstance(expr.op, tvm.ir.Op) and expr.op.name == "nn.batch_matmul":
            changed = _product(expr, *children[1:])
            if changed is not None:
                return changed
        return relay.Call(children[0], children[1:], expr.attrs, expr.type_args, expr.span)
    if isinstance(expr, relay.Tuple):
        return relay.Tuple(children)
    if isinstance(expr, relay.TupleGetItem):
        return relay.TupleGetItem(children[0], expr.index)
    if isinstance(expr, relay.Let):
        return relay.Let(expr.var, *children)
    if isinstance(expr, relay.If):
        return relay.If(*children)
    return expr


def cpu_form(function: Any) -> Any:
    """The same function, typed as it was, with its matrix products rewritten; it must have gone through type inference."""
    made: dict[Any, Any] = {}
    for expr in post_order(function.body, _below):
        made[key_of(expr)] = _rebuild(expr, [made[key_of(child)] for child in _below(expr)])
    return relay.Function(function.params, made[key_of(function.body)], function.ret_type, function.type_params, function.attrs)
