"""A small encoder traced by torch, and its attention and MLP regions found by plain walks over the Relay graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from tvm import relay

from tvm_bridge.back.carve import ExprRef
from tvm_bridge.back.carve import Numbering
from tvm_bridge.back.carve import RegionSpec
from tvm_bridge.back.carve import number
from tvm_bridge.back.carve import op_name


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, inner: int, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused, self.root = heads, fused, math.sqrt(hidden // heads)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.fused:
            o = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            o = torch.softmax(q @ k.transpose(-1, -2) / self.root, -1) @ v
        y = self.norm1(x + self.o(o.transpose(1, 2).reshape(x.shape)))
        return self.norm2(y + self.down(nn.functional.gelu(self.up(y))))


def encoder(
    layers: int = 1, seed: int = 0, fused: bool = False
) -> tuple[Any, dict[str, Any], dict[str, np.ndarray[Any, Any]], Any]:
    """Relay module, its parameters, an input, and torch's own result."""
    torch.manual_seed(seed)
    net = nn.Sequential(*(Layer(32, 2, 64, fused) for _ in range(layers))).eval()
    x = torch.randn(1, 32, 32)
    with torch.no_grad():
        expected = net(x).numpy()
        mod, params = relay.frontend.from_pytorch(torch.jit.trace(net, x, check_trace=False), [("x", tuple(x.shape))])
    return mod, params, {"x": x.numpy()}, expected


def _operands(numbering: Numbering, index: int) -> set[int]:
    """Calls whose results the call takes, also as a field of a tuple."""
    sources = [a.tuple_value if isinstance(a, relay.TupleGetItem) else a for a in numbering.calls[index].args]
    return {numbering.call_index.get((a.handle.value, None), -1) for a in sources}


def _between(numbering: Numbering, start: int, end: int) -> frozenset[int]:
    """Calls from which ``start`` is reached backwards from ``end``, both included."""
    users: set[int] = {start}
    for index in range(start, end + 1):
        if users & _operands(numbering, index):
            users.add(index)
    return frozenset(users)


def _ref(numbering: Numbering, expr: Any) -> ExprRef:
    index = numbering.call_index.get((expr.handle.value, None))
    return ExprRef("var", expr.name_hint) if index is None else ExprRef("call", index)


def _previous(numbering: Numbering, start: int, name: str) -> int:
    return next(i for i in range(start, -1, -1) if op_name(numbering.calls[i]) == name)


def _feeds(numbering: Numbering, start: int, name: str) -> int:
    """First call named ``name`` on the way from ``start`` to the output."""
    reached = {start}
    for index in range(start + 1, len(numbering.calls)):
        if reached & _operands(numbering, index):
            if op_name(numbering.calls[index]) == name:
                return index
            reached.add(index)
    raise AssertionError(name)


def regions(mod: Any) -> list[RegionSpec]:
    """``attention0``, ``mlp0``, ``attention1``, …: without the projections around them."""
    n = number(mod)
    found: list[RegionSpec] = []
    names = [op_name(c) for c in n.calls]
    for layer, softmax in enumerate(i for i, name in enumerate(names) if name == "nn.softmax"):
        first, second = _previous(n, softmax, "nn.batch_matmul"), _feeds(n, softmax, "nn.batch_matmul")
        calls = _between(n, first, second)
        q, k, v = *n.calls[first].args, n.calls[second].args[1]
        found.append(RegionSpec(f"attention{layer}", calls, tuple(_ref(n, e) for e in (q, k, v)), (ExprRef("call", second),)))
    for layer, erf in enumerate(i for i, name in enumerate(names) if name == "erf"):
        first, second = _previous(n, erf, "nn.batch_matmul"), _feeds(n, erf, "nn.batch_matmul")
        x, w1, w2 = *n.calls[first].args, n.calls[second].args[1]
        calls = _between(n, first, second)
        found.append(RegionSpec(f"mlp{layer}", calls, tuple(_ref(n, e) for e in (x, w1, w2)), (ExprRef("call", second),)))
    return found
