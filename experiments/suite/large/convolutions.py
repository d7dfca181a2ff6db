"""Large convolutions, alone and with what users write behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import scaled

Norm = Callable[[int], nn.Module]
FORMS = {(2, False): nn.Conv2d, (2, True): nn.ConvTranspose2d, (3, False): nn.Conv3d, (3, True): nn.ConvTranspose3d}


def _alone(
    kind: Any, channels: tuple[int, int], kernel: Any, shape: tuple[int, ...], small: tuple[int, ...], **more: Any
) -> Case:
    return lambda little: (
        kind(*((min(c, 8) for c in channels) if little else channels), kernel, **_fewer(more, channels, little)),
        (torch.randn(small if little else shape),),
    )


def _fewer(more: dict[str, Any], channels: tuple[int, int], little: bool) -> dict[str, Any]:
    """Depthwise stays so for the 8 channels of a check."""
    return {**more, "groups": 8} if little and more.get("groups") == channels[0] else more


def _then(
    after: Callable[..., Any],
    channels: tuple[int, int],
    kernel: int,
    *images: int,
    norms: tuple[Norm, ...] = (),
    up: bool = False,
    vector: tuple[int, ...] | None = None,
    **more: int,
) -> Case:
    """``after(convolution, norms…, vector, x)``, where one is wanted: () is one number a channel."""

    batch, *sides = images

    def sized(n):
        i, o = n(channels[0], 3), n(channels[1], 8)
        make = FORMS[len(sides), up](i, o, kernel, **more)
        extra = {} if vector is None else {"vector": torch.randn(vector or (o, *(1,) * len(sides)))}
        little = (11, 11) if len(sides) == 2 else (6, 9, 9)
        x = torch.randn(n(batch, 2), i, *(n(s, t) for s, t in zip(sides, little, strict=True)))
        return Fn(after, make, *(norm(o) for norm in norms), **extra), (x,)

    return scaled(sized)


def _groups(count: int) -> Norm:
    return lambda o: nn.GroupNorm(count, o)


def _trained(channels: int) -> nn.GroupNorm:
    """With weights as training leaves them: the mean of what comes of new ones is zero."""
    norm = nn.GroupNorm(8, channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def _tanh_lse(m: nn.Module, g: nn.Module, x: Tensor) -> Tensor:
    y = m(x)
    return (y + functional.hardswish(torch.tanh(g(y)))).logsumexp(1, keepdim=True)


def _softplus_tanh(m: nn.Module, n: nn.Module, x: Tensor) -> Tensor:
    y = m(x)
    return n(torch.tanh(functional.softplus(y)) * y)


def _lse_swish(m: nn.Module, x: Tensor) -> Tensor:
    y = m(x).logsumexp(1, keepdim=True)
    return torch.clamp(y * torch.sigmoid(y + 3) / 6 - 0.1, -1, 1)


def _less_mean(m: nn.Module, n: nn.Module, x: Tensor) -> Tensor:
    y = n(m(x))
    return y - y.mean((2, 3, 4), keepdim=True)


def _residuals(m: nn.Module, b: Tensor, x: Tensor) -> Tensor:
    y = m(x)
    return (((y + b) + y) * y) + y


def _pooled_softmax(m: nn.Module, s: Tensor, x: Tensor) -> Tensor:
    y = torch.clamp(m(functional.avg_pool3d(x, 2)), 0, 1)
    return y.flatten(2).softmax(-1).sum(2) * s.flatten()


def _hinges(m: nn.Module, b: Tensor, x: Tensor) -> Tensor:
    return torch.clamp(torch.clamp(m(x) + b, 0, 1) * 2, 0, 1) / 2


def _rows_lse(m: nn.Module, b: Tensor, x: Tensor) -> Tensor:
    return (m(x).mean((2, 3), keepdim=True) + b).logsumexp(1, keepdim=True).sum((2, 3)) * 10.0


def _least(m: nn.Module, b: Tensor, x: Tensor) -> Tensor:
    return functional.gelu(m(x).min(1, keepdim=True)[0].sum(2, keepdim=True)) + b


CASES: dict[str, Case] = {
    "conv1d_dilated": _alone(nn.Conv1d, (64, 128), 3, (48, 64, 131072), (2, 8, 40), stride=3, dilation=4),
    "conv2d": _alone(nn.Conv2d, (32, 64), 5, (16, 32, 512, 512), (2, 8, 9, 9)),
    "conv2d_odd": _alone(nn.Conv2d, (48, 96), (3, 7), (8, 48, 384, 512), (2, 8, 12, 12), padding=(1, 3), dilation=(2, 1)),
    "conv3d": _alone(nn.Conv3d, (3, 48), 3, (8, 3, 64, 96, 96), (2, 3, 6, 6, 6)),
    "conv_depthwise": _alone(nn.Conv2d, (64, 64), 3, (16, 64, 384, 512), (2, 8, 9, 9), groups=64, bias=False),
    "conv_depthwise_odd": _alone(
        nn.Conv2d, (96, 96), (5, 3), (24, 96, 192, 384), (2, 8, 9, 9), groups=96, padding=(2, 1), bias=False
    ),
    "conv_separable": scaled(
        lambda n: (
            nn.Sequential(
                nn.Conv2d(n(64, 8), n(64, 8), 3, padding=1, groups=n(64, 8)),
                nn.Conv2d(n(64, 8), n(128, 12), 1),
            ),
            (torch.randn(n(12, 2), n(64, 8), n(384, 9), n(384, 9)),),
        )
    ),
    "conv_pointwise": _alone(nn.Conv2d, (64, 128), 1, (8, 64, 768, 512), (2, 8, 9, 9), bias=False),
    "up1d": _alone(nn.ConvTranspose1d, (96, 48), 5, (24, 96, 65536), (2, 8, 12), stride=2, dilation=3),
    "up2d": _alone(nn.ConvTranspose2d, (48, 48), 3, (8, 48, 512, 512), (2, 8, 9, 9)),
    "up3d_groups": _alone(
        nn.ConvTranspose3d, (32, 16), (3, 5, 5), (8, 32, 16, 32, 48), (2, 8, 3, 4, 4), stride=(1, 2, 2), groups=4
    ),
    "relu_bias": _then(lambda m, b, x: torch.relu(m(x)) + b, (48, 96), 3, 48, 160, 160, vector=()),
    "group_tanh_lse": _then(_tanh_lse, (8, 64), 3, 96, 160, 160, norms=(_groups(4),)),
    "min_tanh_tanh": _then(lambda m, x: m(x).min(1, keepdim=True)[0].tanh().tanh(), (16, 64), 3, 96, 224, 224),
    "swish_pool_mish": _then(
        lambda m, x: functional.mish(functional.max_pool2d(functional.hardswish(m(x) - 0.5), 2)), (48, 96), 3, 64, 128, 128
    ),
    "instance_div": _then(lambda m, n, x: n(m(x)) / 2.0, (48, 96), 3, 64, 128, 128, norms=(nn.InstanceNorm2d,)),
    "bn_scale": _then(lambda m, n, x: n(m(x)) * 2.0, (8, 64), 3, 96, 160, 160, norms=(nn.BatchNorm2d,)),
    "mish_mish": _then(lambda m, x: functional.mish(functional.mish(m(x))), (48, 96), 3, 48, 192, 192),
    "scale_min": _then(lambda m, x: (m(x) * 2.0).min(1, keepdim=True)[0], (48, 96), 3, 48, 192, 192),
    "group_scale_pool": _then(
        lambda m, g, s, x: functional.max_pool2d(g(m(x)) * s, 4).clamp(0, 1),
        (8, 64),
        3,
        96,
        160,
        160,
        norms=(_groups(4),),
        vector=(),
    ),
    "pool_sigmoid_sum": _then(lambda m, x: functional.avg_pool2d(m(x), 4).sigmoid().sum((1, 2, 3)), (8, 64), 3, 96, 320, 320),
    "gelu_pool": _then(
        lambda m, x: functional.adaptive_avg_pool2d(functional.gelu(m(x)), 1).flatten(1), (8, 64), 3, 96, 224, 224
    ),
    "softplus_tanh_bn": _then(_softplus_tanh, (48, 96), 3, 48, 128, 128, norms=(nn.BatchNorm2d,)),
    "up_clamps": _then(_hinges, (48, 64), 3, 48, 96, 96, up=True, stride=2, padding=1, vector=()),
    "up_rows_lse": _then(_rows_lse, (48, 96), 3, 12, 320, 320, up=True, vector=()),
    "up_sub_tanh": _then(
        lambda m, b, x: torch.tanh(m(x) - b), (48, 48), 4, 24, 192, 192, up=True, stride=2, padding=1, vector=()
    ),
    "up_softmax_sigmoid": _then(
        lambda m, b, x: torch.sigmoid((m(x).softmax(1) + b) * 2.0),
        (48, 96),
        4,
        48,
        64,
        64,
        up=True,
        stride=2,
        padding=1,
        vector=(),
    ),
    "up_min_sum": _then(_least, (48, 96), 3, 12, 112, 112, up=True, stride=2, padding=1, vector=(1, 1, 1)),
    "up_bn_pool_group": _then(
        lambda m, n, g, x: g(functional.max_pool2d(torch.tanh(n(m(x))), 2)),
        *((48, 96), 5, 128, 32, 32),
        norms=(nn.BatchNorm2d, _groups(4)),
        up=True,
        padding=1,
    ),
    "up_gelu_group": _then(lambda m, g, x: g(functional.gelu(m(x))), (48, 64), 3, 24, 160, 160, norms=(_groups(8),), up=True),
    "min_softmax3": _then(lambda m, x: m(x).min(2)[0].softmax(1), (3, 24), 3, 64, 24, 48, 48),
    "group_mean3": _then(lambda m, g, x: g(m(x)).mean((1, 2, 3, 4)), (3, 24), 3, 64, 24, 48, 48, norms=(_trained,)),
    "group_min_clamp3": _then(
        lambda m, g, x: torch.clamp(torch.clamp(g(m(x)), max=0.5), 0, 1), (3, 16), 3, 64, 24, 96, 96, norms=(_groups(8),)
    ),
    "activations_bias3": _then(
        lambda m, b, x: torch.sigmoid(functional.gelu(functional.leaky_relu(torch.relu(m(x))))) + b,
        (8, 32),
        3,
        48,
        24,
        48,
        48,
        vector=(),
    ),
    "scaled_sigmoid3": _then(lambda m, s, x: torch.sigmoid(torch.tanh(m(x) * s) * s), (3, 16), 3, 96, 16, 64, 64, vector=()),
    "softmax_pools3": _then(
        lambda m, x: functional.max_pool3d(functional.max_pool3d(m(x).softmax(1), 2), 2), (3, 16), 3, 96, 20, 56, 56
    ),
    "pools_bias_sum3": _then(
        lambda m, b, x: (functional.adaptive_avg_pool3d(functional.max_pool3d(m(x) / 2, 2), 1) + b).sum(1),
        *((8, 16), 3, 96, 16, 64, 64),
        vector=(),
    ),
    "leaky_sum_gelu3": _then(
        lambda m, s, x: functional.gelu(torch.clamp(functional.leaky_relu(m(x), 0.2) + s, -1, 1)),
        (8, 64),
        3,
        48,
        18,
        56,
        56,
        vector=(),
    ),
    "mish_tanh3": _then(lambda m, x: torch.tanh(functional.mish(m(x))), (16, 32), 3, 24, 28, 56, 56),
    "up_swish_group3": _then(
        lambda m, g, x: functional.hardswish(g(functional.silu(m(x)))),
        *((3, 16), 3, 64, 16, 28, 28),
        norms=(_groups(4),),
        up=True,
        stride=2,
        padding=1,
    ),
    "up_lse_swish3": _then(_lse_swish, (3, 16), 3, 64, 16, 28, 28, up=True, stride=2, padding=1),
    "up_layer_norm_gelu3": _then(
        lambda m, x: functional.gelu(functional.layer_norm(m(x), (2 * x.shape[-1],))),
        (24, 64),
        4,
        16,
        12,
        24,
        32,
        up=True,
        stride=2,
        padding=1,
    ),
    "up_bn_less_mean3": _then(_less_mean, (16, 32), 3, 12, 16, 32, 32, norms=(nn.BatchNorm3d,), up=True, stride=2, padding=1),
    "up_bn_pool3": _then(
        lambda m, n, x: functional.adaptive_avg_pool3d(n(m(x) * 2.0), 1),
        (32, 64),
        5,
        12,
        16,
        32,
        32,
        norms=(nn.BatchNorm3d,),
        up=True,
    ),
    "up_pool_softmax_max3": _then(
        lambda m, b, x: functional.silu(functional.max_pool3d(m(x), 2).softmax(1) - b).max(1)[0],
        *((3, 16), 3, 96, 16, 32, 32),
        up=True,
        stride=2,
        padding=1,
        vector=(),
    ),
    "up_residuals3": _then(_residuals, (24, 48), 3, 12, 16, 32, 32, up=True, stride=2, padding=1, vector=()),
    "up_pooled_softmax3": _then(_pooled_softmax, (24, 48), 3, 24, 32, 64, 64, up=True, stride=2, padding=1, vector=()),
}
