"""A batched matmul by one weight matrix is a dense: TVM's PyTorch frontend writes Linear layers on 3-D inputs as ``nn.batch_matmul`` with a batch of
one, for which its CPU schedules are an order of magnitude slower than for ``nn.dense``."""

from __future__ import annotations

from typing import Any

from tvm import IRModule
from tvm import relay
from tvm.relay.dataflow_pattern import DFPatternCallback
from tvm.relay.dataflow_pattern import is_op
from tvm.relay.dataflow_pattern import rewrite
from tvm.relay.dataflow_pattern import wildcard


class _Dense(DFPatternCallback):
    def __init__(self) -> None:
        super().__init__(require_type=True)
        self.pattern = is_op("nn.batch_matmul")(wildcard(), wildcard())

    def callback(self, pre: Any, post: Any, node_map: Any) -> Any:
        x, w = post.args
        shapes = [[int(e) for e in a.checked_type.shape] for a in pre.args]
        (batch, rows, inner), (count, *matrix) = shapes
        if count != 1 or pre.attrs.transpose_a or pre.attrs.out_dtype != pre.args[0].checked_type.dtype:
            return post
        weight = relay.reshape(w, matrix)
        if not pre.attrs.transpose_b:
            weight = relay.transpose(weight, [1, 0])
            matrix = matrix[::-1]
        product = relay.nn.dense(relay.reshape(x, [batch * rows, inner]), weight)
        return relay.reshape(product, [batch, rows, matrix[0]])


def densify(mod: Any) -> Any:
    """The module with such products in ``main`` as dense layers."""
    changed = IRModule(dict(mod.functions.items()), mod.type_definitions)
    changed = relay.transform.InferType()(changed)
    changed["main"] = rewrite(_Dense(), changed["main"])
    return relay.transform.InferType()(changed)
