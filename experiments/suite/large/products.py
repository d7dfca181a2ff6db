"""Large products in float32, what follows a large linear, and attention of large batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import fn
from experiments.suite.case import scaled
from experiments.suite.products import mm

Norm = Callable[[int], nn.Module]
SQUARE = ((4096, 4096), (4096, 4096))
LESS = ((7, 7), (7, 7))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def _linear(rows: int, inner: int, out: int, after: Callable[..., Any], *norms: Norm, vector: int | None = None) -> Case:
    """``after(linear, norms…, vector, x)``, where a vector is wanted: 0 is one as wide as the result."""

    def sized(n):
        i, o = n(inner, 6), n(out, 8)
        extra = {} if vector is None else {"vector": torch.randn(vector or o)}
        return Fn(after, nn.Linear(i, o), *(make(o) for make in norms), **extra), (torch.randn(n(rows, 5), i),)

    return scaled(sized)


def _groups(count: int) -> Norm:
    return lambda o: nn.GroupNorm(min(count, o // 2), o)


def _chain(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x).sum(1, keepdim=True).max(1, keepdim=True)[0].mean(1, keepdim=True)
    return y.logsumexp(1, keepdim=True).logsumexp(1, keepdim=True)


def _max_minus_mean(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x).max(1, keepdim=True).values
    return functional.gelu(y - y.mean(1, keepdim=True))


def _clamped(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x) * 2.0
    y = (y + y).clamp(-10, 10).logsumexp(1, keepdim=True)
    return y * functional.mish(y)


def _instance(m: nn.Module, s: Tensor, x: Tensor) -> Tensor:
    return (functional.instance_norm(m(x)[:, None, None, :])[:, 0, 0] + s) * s


CASES: dict[str, Case] = {
    "mm_square": fn(mm, *SQUARE, small=LESS),
    "mm_batched": fn(torch.bmm, (96, 512, 1024), (96, 1024, 1536)),
    "mm_vector": fn(mm, (2048, 200000), (200000, 1)),
    "mm_large_k": fn(mm, (256, 524288), (524288, 256)),
    "mm_large_k_half": fn(lambda a, b: a.half() @ b.half(), (256, 262144), (262144, 256), small=((16, 32), (32, 16))),
    "mm_small_k": fn(mm, (16384, 32), (32, 16384)),
    "mm_irregular": fn(mm, (6151, 2933), (2933, 4211), small=((7, 9), (9, 5))),
    "mm_tall": fn(mm, (32768, 24), (24, 24576)),
    "mm_3d": fn(mm, (16, 1024, 1536), (1536, 768), small=((3, 4, 5), (5, 6))),
    "mm_4d": fn(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (8, 192, 384, 256), (256, 640), small=((2, 3, 4, 5), (5, 6))),
    "mm_diagonal": fn(lambda d, b: torch.diag(d) @ b, (8192,), (8192, 8192), small=((7,), (7, 9))),
    "mm_symmetric": fn(lambda a, b: (a + a.T) @ (b + b.T), *SQUARE, small=LESS),
    "mm_upper": fn(lambda a, b: torch.triu(torch.triu(a) @ torch.triu(b)), *SQUARE, small=LESS),
    "mm_lower": fn(lambda a, b: torch.tril(torch.tril(a) @ torch.tril(b)), *SQUARE, small=LESS),
    "mm_transposed_a": fn(lambda a, b: a.T @ b, (8192, 2048), (8192, 3072)),
    "mm_transposed_both": fn(lambda a, b: a.T @ b.T, (8192, 2048), (3072, 8192)),
    "linear_leaky": _linear(1024, 6144, 6144, lambda m, x: functional.leaky_relu(m(x) * 2.0, 0.1)),
    "linear_group_swish": _linear(
        1024, 6144, 6144, lambda m, g, w, x: functional.silu(functional.silu(g(m(x))) * w), _groups(128), vector=0
    ),
    "linear_bn_softmax": _linear(1024, 6144, 6144, lambda m, bn, s, x: torch.softmax(s * bn(m(x)), 1), nn.BatchNorm1d, vector=1),
    "linear_sums": _linear(1024, 6144, 6144, _chain),
    "linear_max_mean": _linear(1024, 6144, 6144, _max_minus_mean),
    "linear_lse_mish": _linear(1024, 8192, 8192, _clamped),
    "linear_mean_gelu_residual": _linear(
        1024,
        6144,
        6144,
        lambda m, s, x: functional.gelu((m(x) - s).mean(1, keepdim=True).logsumexp(1, keepdim=True)) + x,
        vector=0,
    ),
    "linear_max_pool": _linear(
        128, 32768, 16384, lambda m, x: 0.5 * functional.max_pool1d(m(x).unsqueeze(1), 2).squeeze(1).sum(1)
    ),
    "linear_bn_gelu": _linear(8192, 4096, 4096, lambda m, bn, x: torch.relu(functional.gelu(bn(m(x)))), nn.BatchNorm1d),
    "linear_swish_group": _linear(16384, 1024, 4096, lambda m, g, b, x: g(functional.silu(m(x)) + b), _groups(64), vector=0),
    "linear_instance": _linear(1024, 6144, 6144, _instance, vector=0),
    "linear_softmax": _linear(128, 16384, 16384, lambda m, x: torch.softmax(functional.dropout(m(x), 0.2, False), 1)),
    "linear_group_hardtanh": _linear(1024, 6144, 6144, lambda m, g, x: functional.hardtanh(g(m(x)), -2, 2), _groups(16)),
    "sdpa": fn(attention, *((32, 32, 512, 128),) * 3, small=((2, 2, 8, 16),) * 3),
    "sdpa_wide_heads": fn(attention, *((16, 24, 512, 768),) * 3, small=((2, 2, 8, 16),) * 3),
    "sdpa_wide_half": fn(
        lambda q, k, v: attention(q.half(), k.half(), v.half()), *((16, 24, 512, 768),) * 3, small=((2, 2, 8, 16),) * 3
    ),
}
