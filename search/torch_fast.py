"""Torch's fast path of its transformer layers: one operator for a layer, which only torch computes. Dynamo takes it where a model
is called without gradients; here it is what the layer says elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

LAYER = torch.ops.aten._transformer_encoder_layer_fwd.default
KEYS = 1
"""The kind of a mask of ``[batch, keys]``; others end with ``[queries, keys]``."""


def written_out() -> dict[Any, Any]:
    """The operators of the fast path with what they are made of, as a trace wants it."""
    return {LAYER: encoder_layer}


def encoder_layer(*args: Any, **named: Any) -> Any:
    """An encoder layer: attention and two products, each behind or before a norm. Padded rows have the numbers of any other."""
    names = [a.name for a in LAYER._schema.arguments]
    p = SimpleNamespace(**{"mask": None, "mask_type": None, **dict(zip(names, args, strict=False)), **named})
    x = p.src
    if x.is_nested or x.dim() != 3:
        return NotImplemented
    mask = p.mask
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask
        mask = mask[:, None, None, :] if p.mask_type == KEYS else mask

    def attended(x: Any) -> Any:
        heads = functional.linear(x, p.qkv_weight, p.qkv_bias).unflatten(-1, (3, p.num_heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
        return functional.linear(found.transpose(1, 2).flatten(2), p.proj_weight, p.proj_bias)

    def widened(x: Any) -> Any:
        inner = functional.linear(x, p.ffn_weight_1, p.ffn_bias_1)
        return functional.linear(functional.gelu(inner) if p.use_gelu else inner.relu(), p.ffn_weight_2, p.ffn_bias_2)

    def normed(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (p.embed_dim,), weight, bias, p.eps)

    first, second = (p.norm_weight_1, p.norm_bias_1), (p.norm_weight_2, p.norm_bias_2)
    if p.norm_first:
        x = x + attended(normed(x, *first))
        return x + widened(normed(x, *second))
    x = normed(x + attended(x), *first)
    return normed(x + widened(x), *second)
