"""A product or a convolution and what stands behind it, as one finds it in models and in tests of compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import scaled


def behind_linear(
    run: Callable[..., Any], rows: int = 1024, into: int = 1024, out: int = 2048, *more: Callable[[int], nn.Module]
) -> Case:
    """``run(linear, *more, x)``; ``more`` are made for the number of columns."""

    def make(n: Callable[[int, int], int]) -> Made:
        m, i, o = n(rows, 6), n(into, 12), n(out, 8)
        return Fn(run, nn.Linear(i, o), *(f(o) for f in more)), (torch.randn(m, i),)

    return scaled(make)


def behind_conv(run: Callable[..., Any], *more: Callable[[int], nn.Module], size: int = 56, make: Any = None) -> Case:
    """``run(conv, *more, x)``; ``more`` are made for the number of channels."""
    layer = make or (lambda i, o: nn.Conv2d(i, o, 3))

    def case(n: Callable[[int, int], int]) -> Made:
        i, o, s = n(32, 4), n(64, 8), n(size, 7)
        return Fn(run, layer(i, o), *(f(o) for f in more)), (torch.randn(n(16, 2), i, s, s),)

    return scaled(case)


def behind_conv3(run: Callable[..., Any], *more: Callable[[int], nn.Module], transposed: bool = False) -> Case:
    layer = nn.ConvTranspose3d if transposed else nn.Conv3d

    def case(n: Callable[[int, int], int]) -> Made:
        i, o, s = n(16, 4), n(32, 8), n(24, 5)
        return Fn(run, layer(i, o, 3, padding=1), *(f(o) for f in more)), (torch.randn(n(4, 2), i, n(16, 4), s, s),)

    return scaled(case)


def up(i: int, o: int) -> nn.Module:
    return nn.ConvTranspose2d(i, o, 4, 2, 1)


CASES: dict[str, Case] = {
    "linear_relu": behind_linear(lambda f, x: torch.relu(f(x))),
    "linear_swish_scale": behind_linear(lambda f, x: functional.silu(f(x)) * 0.5),
    "linear_mish_mish": behind_linear(lambda f, x: functional.mish(functional.mish(f(x)))),
    "linear_gelu_softmax": behind_linear(lambda f, x: functional.gelu(f(x)).softmax(1)),
    "linear_divide_gelu": behind_linear(lambda f, x: functional.gelu(f(x) / 10)),
    "linear_sub_mul_relu": behind_linear(lambda f, x: torch.relu((f(x) - 2) * 1.5)),
    "linear_sigmoid_sum": behind_linear(lambda f, x: torch.sigmoid(f(x)).sum(1, keepdim=True)),
    "linear_max_sum_scale": behind_linear(lambda f, x: functional.max_pool1d(f(x).unsqueeze(1), 2).squeeze(1).sum(1) * 0.5),
    "linear_pool_gelu_max": behind_linear(
        lambda f, x: (functional.gelu(functional.avg_pool1d(f(x).unsqueeze(1), 4).squeeze(1)) * 2).max(1).values
    ),
    "linear_logsumexp_leaky": behind_linear(
        lambda f, x: functional.gelu(functional.leaky_relu(torch.logsumexp(f(x), 1, keepdim=True)))
    ),
    "linear_sum_max_mean_lse": behind_linear(
        lambda f, x: f(x).sum(1, keepdim=True).max(1, keepdim=True)[0].mean(1, keepdim=True).logsumexp(1)
    ),
    "linear_group_norm_leaky": behind_linear(
        lambda f, g, x: 2 * functional.leaky_relu(g(f(x))), 1024, 1024, 2048, lambda o: nn.GroupNorm(o // 4, o)
    ),
    "linear_group_norm_tanh": behind_linear(
        lambda f, g, x: functional.hardtanh(g(f(x)), -2, 2), 1024, 1024, 2048, lambda o: nn.GroupNorm(o // 4, o)
    ),
    "linear_batch_norm_softmax": behind_linear(lambda f, g, x: (g(f(x)) * 0.7).softmax(-1), 1024, 1024, 2048, nn.BatchNorm1d),
    "linear_scale_residual": behind_linear(lambda f, x: (y := f(x)) * 0.5 + y.detach()),
    "linear_residual_norm": behind_linear(lambda f, g, x: g(f(x) + x[:, : f.out_features]), 1024, 1024, 1024, nn.LayerNorm),
    "linear_norm_gelu": behind_linear(lambda f, g, x: functional.gelu(g(f(x))), 1024, 1024, 2048, nn.LayerNorm),
    "linear_max_mean_gelu": behind_linear(
        lambda f, x: functional.gelu((y := f(x).max(1, keepdim=True).values) - y.mean(1, keepdim=True))
    ),
    "linear_swish_group_min": behind_linear(
        lambda f, g, x: g(functional.silu(f(x))).min(1, keepdim=True).values, 1024, 1024, 2048, lambda o: nn.GroupNorm(o // 4, o)
    ),
    "linear_two": behind_linear(
        lambda f, g, x: torch.sigmoid(g(torch.relu(f(x)))), 1024, 1024, 2048, lambda o: nn.Linear(o, 256 if o > 100 else 5)
    ),
    "gated_mlp": behind_linear(
        lambda f, g, x: functional.silu(f(x)) * g(x), 1024, 1024, 1024, lambda o: nn.Linear(1024 if o > 100 else 12, o)
    ),
    "conv_relu_bias": behind_conv(lambda f, x: torch.relu(f(x)) + 0.5),
    "conv_relu_hardswish": behind_conv(lambda f, x: functional.hardswish(torch.relu(f(x)))),
    "conv_sub_mish": behind_conv(lambda f, x: functional.mish(f(x) - 0.5 - 0.2)),
    "conv_tanh_scale_pool": behind_conv(lambda f, x: functional.max_pool2d(torch.tanh(f(x)) * 2 + 1, 2)),
    "conv_batch_norm_scale": behind_conv(lambda f, g, x: g(f(x)) * 2, nn.BatchNorm2d),
    "conv_norm_divide": behind_conv(lambda f, g, x: g(f(x)) / 2, nn.InstanceNorm2d),
    "conv_group_scale_pool_clamp": behind_conv(
        lambda f, g, x: functional.max_pool2d(g(f(x)) * 0.9, 2).clamp(0, 1), lambda o: nn.GroupNorm(4, o)
    ),
    "conv_min_tanh_tanh": behind_conv(lambda f, x: torch.tanh(torch.tanh(f(x).min(1, keepdim=True)[0]))),
    "conv_pool_sigmoid_sum": behind_conv(lambda f, x: torch.sigmoid(functional.avg_pool2d(f(x), 4)).sum((1, 2, 3))),
    "conv_gelu_pool": behind_conv(lambda f, x: functional.adaptive_avg_pool2d(functional.gelu(f(x)), 1).flatten(1)),
    "conv_softplus_tanh_mul": behind_conv(lambda f, g, x: g((y := f(x)) * torch.tanh(functional.softplus(y))), nn.BatchNorm2d),
    "conv_group_tanh_residual_lse": behind_conv(
        lambda f, g, x: torch.logsumexp((y := f(x)) + functional.hardswish(torch.tanh(g(y))), 1, keepdim=True),
        lambda o: nn.GroupNorm(4, o),
    ),
    "conv_bn_relu_pool": behind_conv(lambda f, g, x: functional.max_pool2d(torch.relu(g(f(x))), 3, 2, 1), nn.BatchNorm2d),
    "up_bias_clamp_scale": behind_conv(lambda f, x: (f(x) + 0.1).clamp(0, 1) * 2 / 2, make=up, size=28),
    "up_pool_mean_tanh": behind_conv(
        lambda f, x: torch.tanh(functional.hardtanh(functional.max_pool2d(f(x), 2)).mean((2, 3), keepdim=True)), make=up, size=28
    ),
    "up_gelu_group": behind_conv(lambda f, g, x: g(functional.gelu(f(x))), lambda o: nn.GroupNorm(8, o), make=up, size=28),
    "up_mean_bias_lse_sum": behind_conv(
        lambda f, x: 10 * torch.logsumexp(f(x).mean((2, 3), keepdim=True) + 0.3, 1, keepdim=True).sum((2, 3)), make=up, size=28
    ),
    "up_softmax_bias_sigmoid": behind_conv(lambda f, x: torch.sigmoid((f(x).softmax(1) + 0.1) * 2), make=up, size=28),
    "up_min_sum_gelu": behind_conv(
        lambda f, x: functional.gelu(f(x).min(1, keepdim=True)[0].sum(2, keepdim=True)) + 1, make=up, size=28
    ),
    "conv3_softmax_pool": behind_conv3(lambda f, x: functional.max_pool3d(functional.max_pool3d(f(x).softmax(1), 2), 2)),
    "conv3_min_softmax": behind_conv3(lambda f, x: f(x).min(2)[0].softmax(1)),
    "conv3_group_mean": behind_conv3(lambda f, g, x: (1 + g(f(x))).mean((1, 2, 3, 4)), lambda o: nn.GroupNorm(4, o)),
    "conv3_mish_tanh": behind_conv3(lambda f, x: torch.tanh(functional.mish(f(x)))),
    "conv3_pool_lse_relu": behind_conv3(
        lambda f, x: torch.relu(torch.logsumexp(functional.max_pool3d(f(x), 2), 1, keepdim=True))
    ),
    "up3_norm_gelu_pool": behind_conv3(
        lambda f, x: functional.gelu(functional.avg_pool3d(functional.layer_norm(f(x), x.shape[-1:]), 2)), transposed=True
    ),
    "up3_scale_bn_pool": behind_conv3(
        lambda f, g, x: functional.adaptive_avg_pool3d(g(f(x) * 2), 1), nn.BatchNorm3d, transposed=True
    ),
    "up3_sum_residual_mul": behind_conv3(lambda f, x: ((y := f(x)) + y + 0.5) * y + y, transposed=True),
    "up3_swish_group_hardswish": behind_conv3(
        lambda f, g, x: functional.hardswish(g(functional.silu(f(x)))), lambda o: nn.GroupNorm(4, o), transposed=True
    ),
    "up3_leaky_max": behind_conv3(
        lambda f, x: functional.max_pool3d(functional.leaky_relu(functional.leaky_relu(f(x)) * 1.5), 2), transposed=True
    ),
    "bmm_norm_residual": scaled(
        lambda n: (
            Fn(
                lambda f, x, y: (functional.instance_norm(f(x)[:, None, None])[:, 0, 0] + y) * y,
                nn.Linear(n(1024, 6), n(1024, 5)),
            ),
            (torch.randn(n(128, 3), n(1024, 6)), torch.randn(n(128, 3), n(1024, 5))),
        )
    ),
}
