"""Convolutions, products and what is chained behind them at the sizes of public contests, and whole networks of such contests."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import floats


def part(make, *given, **more):
    """A layer; pairs are the real and the small size."""
    return lambda n: make(*(n(*g) if isinstance(g, tuple) else g for g in given), **more)


def weights(*shapes):
    """Parameters that a module keeps beside its layers."""
    return lambda n: nn.ParameterList(nn.Parameter(floats(n, *s)) for s in shapes)


def spread(make, *given, **more):
    """A norm with weights as training leaves them: a mean of what comes of new ones is zero."""

    def made(n) -> nn.Module:
        norm = part(make, *given, **more)(n)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.1)
        return norm

    return made


def one(m: nn.Module, x: Tensor) -> Tensor:
    return m(x)


# -- a convolution that turns back, and what follows ----------------------------------------------------------------------------


def up_norm_tanh_pool_group(up, norm, group, x: Tensor) -> Tensor:
    return group(functional.max_pool2d(torch.tanh(norm(up(x))), 2, 2))


def up_mish_add_bounded(up, x: Tensor) -> Tensor:
    return functional.hardtanh(functional.mish(up(x)) + 0.5, -1.0, 1.0) * 2


def up_add_least_gelu(up, x: Tensor) -> Tensor:
    y = torch.min(up(x) + 0.5, torch.tensor(0.0, device=x.device, dtype=x.dtype))
    return functional.gelu(y) * 2.0


def up_scaled_means(up, x: Tensor) -> Tensor:
    y = torch.mean(up(x) * 0.5, dim=[2, 3], keepdim=True)
    return torch.mean(y, dim=[2, 3], keepdim=True)


def up3_mean_softmax_tanh(up, given, x: Tensor) -> Tensor:
    y = torch.mean(up(x), dim=1, keepdim=True) + given[0]
    return torch.tanh(torch.softmax(y, dim=1)) * 2.0


def up3_add_hardswish(up, x: Tensor, more: Tensor) -> Tensor:
    y = up(x) + more
    return y * functional.hardswish(y)


def up3_two_pools_sum(up, x: Tensor) -> Tensor:
    y = functional.max_pool3d(functional.max_pool3d(up(x), 2), 3)
    return torch.sum(y, dim=1, keepdim=True)


def up3_scale_pool_mean_bounded(up, x: Tensor) -> Tensor:
    y = functional.max_pool3d(up(x) * 0.5, 2)
    return torch.clamp(functional.adaptive_avg_pool3d(y, (1, 1, 1)), min=0, max=1)


def up3_norm_two_means(up, norm, x: Tensor) -> Tensor:
    return functional.avg_pool3d(functional.avg_pool3d(norm(up(x)), 2), 2)


IMAGE, VOLUME = ((128, 2), 3, (32, 8), (32, 8)), ((128, 2), 3, (16, 4), (32, 6), (32, 6))
LOW = ((128, 2), (32, 4), (16, 5), (16, 5))
TURNED: dict[str, Case] = {
    "up_norm_tanh_pool_group": call(
        up_norm_tanh_pool_group,
        ((128, 2), (32, 4), (32, 5), (32, 5)),
        parts=(
            part(nn.ConvTranspose2d, (32, 4), (64, 8), 4, 2, 1),
            part(nn.BatchNorm2d, (64, 8)),
            part(nn.GroupNorm, (8, 2), (64, 8)),
        ),
    ),
    "up_mish_add_bounded": call(
        up_mish_add_bounded, LOW, parts=(part(nn.ConvTranspose2d, (32, 4), (64, 8), 4, 2, 1, output_padding=1),)
    ),
    "up_add_least_gelu": call(up_add_least_gelu, LOW, parts=(part(nn.ConvTranspose2d, (32, 4), (64, 8), 4, stride=2),)),
    "up_scaled_means": call(
        up_scaled_means,
        ((16, 2), (64, 4), (128, 5), (128, 5)),
        parts=(part(nn.ConvTranspose2d, (64, 4), (128, 6), 3, 2, 1, output_padding=1),),
    ),
    "up3_mean_softmax_tanh": call(
        up3_mean_softmax_tanh,
        ((16, 2), 8, (16, 3), (32, 4), (32, 4)),
        parts=(part(nn.ConvTranspose3d, 8, 16, 3, 2, 1), weights((1, 1, 1, 1, 1))),
    ),
    "up3_add_hardswish": call(
        up3_add_hardswish,
        *(((128, 2), (32, 4), (16, 3), (16, 4), (16, 4)), ((128, 2), (64, 6), (32, 6), (32, 8), (32, 8))),
        parts=(part(nn.ConvTranspose3d, (32, 4), (64, 6), 3, 2, 1, output_padding=1),),
    ),
    "up3_relu_group": call(
        lambda up, norm, x: norm(torch.relu(up(x))),
        ((16, 2), (64, 4), (8, 3), (16, 4), (16, 4)),
        parts=(part(nn.ConvTranspose3d, (64, 4), (128, 8), 3, bias=False), part(nn.GroupNorm, (8, 2), (128, 8))),
    ),
    "up3_two_pools_sum": call(
        up3_two_pools_sum,
        ((16, 1), (32, 4), (16, 4), (32, 6), (32, 6)),
        parts=(part(nn.ConvTranspose3d, (32, 4), (64, 6), 3, 2, 1),),
    ),
    "up3_bounded_halves": call(
        lambda up, x: torch.clamp(up(x), min=-1.0) / 2,
        ((16, 1), (32, 4), (16, 4), (32, 6), (32, 6)),
        parts=(part(nn.ConvTranspose3d, (32, 4), (16, 6), 3, 2, 1),),
    ),
    "up3_scale_pool_mean_bounded": call(up3_scale_pool_mean_bounded, VOLUME, parts=(part(nn.ConvTranspose3d, 3, 16, 3, 2, 1),)),
    "up3_norm_two_means": call(
        up3_norm_two_means,
        ((64, 2), 3, (32, 4), (32, 5), (32, 5)),
        parts=(part(nn.ConvTranspose3d, 3, 16, 3, 2, 1), part(nn.BatchNorm3d, 16)),
    ),
}

# -- a convolution, and what follows --------------------------------------------------------------------------------------------


def conv_bias_scale_sigmoid_group(conv, norm, given, x: Tensor) -> Tensor:
    bias, scale = given
    return norm(torch.sigmoid((conv(x) + bias) * scale))


def conv_bounded_bias_scale(conv, given, x: Tensor) -> Tensor:
    y = torch.min(conv(x), torch.tensor(0.5, device=x.device, dtype=x.dtype))
    return (y + given[0]) * 2.0


def conv_less_hardswish_pool_mish(conv, x: Tensor) -> Tensor:
    return functional.mish(functional.max_pool2d(functional.hardswish(conv(x) - 0.5), 2))


def conv_less_tanh_less_mean(conv, x: Tensor) -> Tensor:
    return functional.avg_pool2d(torch.tanh(conv(x) - 0.5) - 0.2, 2)


def conv_scaled_leaky_gelu(conv, given, x: Tensor) -> Tensor:
    return functional.gelu(functional.leaky_relu(conv(x) * given[0]))


def conv3_hardswish_softmax_mean(conv, x: Tensor) -> Tensor:
    return torch.mean(torch.softmax(torch.relu(functional.hardswish(conv(x))), dim=1), dim=[2, 3, 4])


def conv3_instance_bounded_most(conv, norm, given, x: Tensor) -> Tensor:
    y = torch.clamp(norm(conv(x) * given[0]), -1.0, 1.0) * given[0]
    return torch.max(y, dim=1)[0]


CONV, CONV3 = part(nn.Conv2d, 3, 16, 3), part(nn.Conv3d, 3, 16, 3)
FORWARD: dict[str, Case] = {
    "conv_bias_scale_sigmoid_group": call(
        conv_bias_scale_sigmoid_group, IMAGE, parts=(CONV, part(nn.GroupNorm, 8, 16), weights((16, 1, 1), (16, 1, 1)))
    ),
    "conv_bounded_bias_scale": call(conv_bounded_bias_scale, IMAGE, parts=(CONV, weights((16, 1, 1)))),
    "conv_less_hardswish_pool_mish": call(conv_less_hardswish_pool_mish, IMAGE, parts=(CONV,)),
    "conv_less_tanh_less_mean": call(conv_less_tanh_less_mean, IMAGE, parts=(CONV,)),
    "conv_scaled_leaky_gelu": call(conv_scaled_leaky_gelu, IMAGE, parts=(CONV, weights((16, 1, 1)))),
    "conv3_hardswish_softmax_mean": call(conv3_hardswish_softmax_mean, VOLUME, parts=(CONV3,)),
    "conv3_instance_bounded_most": call(
        conv3_instance_bounded_most, VOLUME, parts=(CONV3, part(nn.InstanceNorm3d, 16), weights((16, 1, 1, 1)))
    ),
}

# -- one convolution ------------------------------------------------------------------------------------------------------------

ALONE: dict[str, Case] = {
    "first_conv_of_alexnet": call(one, ((256, 2), 3, (224, 19), (224, 19)), parts=(part(nn.Conv2d, 3, (96, 5), 11, 4, 2),)),
    "conv_odd_and_dilated": call(
        one,
        ((16, 2), 3, (256, 9), (256, 9)),
        parts=(part(nn.Conv2d, 3, (64, 5), padding=(1, 2), dilation=(2, 1), kernel_size=(3, 5)),),
    ),
    "up3_odd_kernel": call(
        one,
        ((16, 1), (32, 4), (16, 3), (32, 4), (64, 5)),
        parts=(part(nn.ConvTranspose3d, (32, 4), (16, 3), kernel_size=(3, 5, 7)),),
    ),
    "up3_odd_in_groups": call(
        one,
        ((16, 1), 8, (12, 3), (24, 4), (48, 5)),
        parts=(
            lambda n: nn.ConvTranspose3d(8, 8, (3, 5, 7), (2, 2, 2), (1, 2, 3), output_padding=(1, 1, 1), groups=4, bias=False),
        ),
    ),
    "up_in_groups_dilated": call(
        one,
        ((16, 1), (32, 4), (128, 5), (256, 6)),
        parts=(lambda n: nn.ConvTranspose2d(n(32, 4), n(64, 8), (3, 5), (2, 3), (1, 2), dilation=(2, 1), groups=4, bias=False),),
    ),
    "up3_dilated": call(
        one,
        ((16, 1), (32, 4), (16, 3), (32, 4), (32, 4)),
        parts=(part(nn.ConvTranspose3d, (32, 4), (64, 5), 3, 2, 1, dilation=2, bias=False),),
    ),
    "up1_dilated": call(
        one,
        ((16, 2), (32, 4), (131072, 11)),
        parts=(part(nn.ConvTranspose1d, (32, 4), (64, 5), 3, 2, 1, dilation=2, bias=False),),
    ),
    "up_by_fives": call(
        one,
        ((16, 1), (32, 4), (64, 4), (128, 5)),
        parts=(part(nn.ConvTranspose2d, (32, 4), (64, 5), 3, 5, 1, dilation=2),),
    ),
}

# -- a product, and what follows ------------------------------------------------------------------------------------------------


def gemm_less_mean_gelu_residual(f, given, x: Tensor) -> Tensor:
    y = torch.mean(f(x) - given[0], dim=1, keepdim=True)
    return functional.gelu(torch.logsumexp(y, dim=1, keepdim=True)) + x.clone().detach()


def gemm_group_least_bias(f, norm, given, x: Tensor) -> Tensor:
    """The bias has four axes, so that each row's minimum stands along another axis than before."""
    return torch.min(norm(f(x)), dim=1, keepdim=True)[0] + given[0]


def gemm_norm_gelu_group_mean(f, norm, group, x: Tensor) -> Tensor:
    return torch.relu(torch.mean(group(functional.gelu(norm(f(x)))), dim=1, keepdim=True))


def gemm_swish_halved_bounds(f, x: Tensor) -> Tensor:
    y = f(x)
    y = torch.clamp(y * torch.sigmoid(y) / 2.0, min=-1.0, max=1.0)
    return torch.clamp(torch.tanh(y), min=-1.0, max=1.0)


def gemm_group_swish_twice(f, norm, given, x: Tensor) -> Tensor:
    y = norm(f(x))
    y = y * torch.sigmoid(y) * given[0]
    return y * torch.sigmoid(y)


def gemm_bias_hardtanh_mish_group(f, norm, given, x: Tensor) -> Tensor:
    return norm(functional.mish(functional.hardtanh(f(x) + given[0])))


def gemm_add_four_activations(f, given, x: Tensor) -> Tensor:
    y = f(x) + given[0]
    y = functional.gelu(torch.tanh(torch.sigmoid(y) * y))
    return functional.hardtanh(y, -1, 1)


def gemm_norm_bias_swish(f, norm, given, x: Tensor) -> Tensor:
    y = (norm(f(x)) + given[0]) / 1.0
    return y * torch.sigmoid(y)


ROWS, SQUARE = ((1024, 5), (8192, 16)), part(nn.Linear, (8192, 16), (8192, 24))
PRODUCTS: dict[str, Case] = {
    "gemm_less_mean_gelu_residual": call(
        gemm_less_mean_gelu_residual, ((128, 5), (1024, 16)), parts=(part(nn.Linear, (1024, 16), (512, 8)), weights(((512, 8),)))
    ),
    "gemm_group_least_bias": call(
        gemm_group_least_bias, ROWS, parts=(SQUARE, part(nn.GroupNorm, (512, 4), (8192, 24)), weights((1, (8192, 24), 1, 1)))
    ),
    "gemm_norm_gelu_group_mean": call(
        gemm_norm_gelu_group_mean,
        ((128, 5), (512, 16)),
        parts=(
            part(nn.Linear, (512, 16), (1024, 24)),
            part(nn.BatchNorm1d, (1024, 24)),
            spread(nn.GroupNorm, (8, 4), (1024, 24)),
        ),
    ),
    "gemm_swish_halved_bounds": call(gemm_swish_halved_bounds, ROWS, parts=(SQUARE,)),
    "gemm_least_of_a_constant": call(
        lambda f, given, x: torch.min(f(x), given[0]) - given[0], ((128, 5), 10), parts=(part(nn.Linear, 10, 5), weights(()))
    ),
}
PRODUCTS_BFLOAT16: dict[str, Case] = {
    "gemm_group_swish_twice": call(
        gemm_group_swish_twice, ROWS, parts=(SQUARE, part(nn.GroupNorm, (256, 4), (8192, 24)), weights(((8192, 24),)))
    ),
    "gemm_bias_hardtanh_mish_group": call(
        gemm_bias_hardtanh_mish_group, ROWS, parts=(SQUARE, part(nn.GroupNorm, (256, 4), (8192, 24)), weights(((8192, 24),)))
    ),
    "gemm_norm_bias_swish": call(gemm_norm_bias_swish, ROWS, parts=(SQUARE, part(nn.BatchNorm1d, (8192, 24)), weights((1,)))),
    "product_of_odd_sizes": call(torch.matmul, ((8205, 13), (2949, 11)), ((2949, 11), (5921, 17))),
}
PRODUCTS_FLOAT16: dict[str, Case] = {
    "gemm_add_four_activations": call(gemm_add_four_activations, ROWS, parts=(SQUARE, weights(((8192, 24),)))),
}

# -- networks -------------------------------------------------------------------------------------------------------------------


class UnrolledCell(nn.Module):
    """A recurrent network by hand, for a number of steps: input and state lie beside each other."""

    def __init__(self, i: int, h: int, o: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(i + h, h), nn.Linear(h, o)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        done = []
        for t in range(x.shape[0]):
            h = torch.tanh(self.inner(torch.cat((x[t], h), dim=1)))
            done.append(self.out(h))
        return torch.stack(done)


def deep_and_narrow(n) -> nn.Module:
    widths = [n(8192, 12), *(n(1024, 8),) * n(16, 3), n(8192, 12)]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class ConvolutionalVit(nn.Module):
    """Patches by a convolution, all of them as one token, encoders, and a head at the class token."""

    def __init__(self, width: int, heads: int, layers: int, side: int, classes: int) -> None:
        super().__init__()
        self.conv, self.project = nn.Conv2d(3, width, 4, 4), nn.Linear(width * (side // 4) ** 2, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers))
        self.token, self.head = nn.Parameter(torch.zeros(1, 1, width)), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.conv(x).flatten(1)).unsqueeze(1)
        y = torch.cat((self.token.expand(len(x), -1, -1), y), dim=1)
        for layer in self.layers:
            y = layer(y)
        return self.head(y[:, 0])


def regnet_stages(n) -> nn.Module:
    layers, before = [], 3
    for width in (n(64, 4), n(128, 6), n(256, 8)):
        for i in (before, width):
            layers += [nn.Conv2d(i, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2, 2))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class ProjectedResidual(nn.Module):
    """A basic block of ResNet whose input is projected."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.conv_1, self.norm_1 = nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.conv_2, self.norm_2 = nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_2(self.conv_2(functional.relu(self.norm_1(self.conv_1(x)))))
        return functional.relu(y + self.down(x))


def final_state_of_chunks(a: Tensor, b: Tensor, c: Tensor, x: Tensor, block: int) -> Tensor:
    """A state-space layer by chunks: only the state that is left behind; ``c`` is not needed."""
    x, a, b, _ = (t.unflatten(1, (-1, block)) for t in (x, a, b, c))
    sums = torch.cumsum(a.permute(0, 3, 1, 2), dim=-1)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, torch.exp(sums[..., -1:] - sums), x)
    total = torch.cumsum(functional.pad(sums[..., -1], (1, 0)), -1)
    steps = total[..., :, None] - total[..., None, :]
    mask = torch.ones(steps.shape[-2:], dtype=torch.bool, device=x.device).tril()
    states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
    return torch.einsum("bhzc,bchpn->bzhpn", torch.exp(steps.masked_fill(~mask, -torch.inf)), states)[:, -1]


HEADS = ((64, 2), (128, 8), 8, 16)
NETS: dict[str, Case] = {
    "unrolled_cell": call(
        lambda m, x, h: m(x, h),
        *(((64, 3), (8, 2), (1024, 8)), ((8, 2), (256, 6))),
        parts=(part(UnrolledCell, (1024, 8), (256, 6), (128, 4)),),
    ),
    "deep_and_narrow": call(one, ((1024, 3), (8192, 12)), parts=(deep_and_narrow,)),
    "convolutional_vit": call(
        one, ((10, 2), 3, (32, 8), (32, 8)), parts=(part(ConvolutionalVit, (128, 16), 4, (6, 1), (32, 8), (1000, 7)),)
    ),
    "regnet_stages": call(one, ((8, 1), 3, (224, 16), (224, 16)), parts=(regnet_stages,)),
    "projected_residual": call(one, ((10, 1), 3, (224, 7), (224, 7)), parts=(part(ProjectedResidual, 3, (64, 4)),)),
    "final_state_of_chunks": call(
        lambda a, *more: final_state_of_chunks(-a.abs() * 0.1, *more, block=min(64, a.shape[1] // 2)),
        *(HEADS[:3], HEADS, HEADS, ((64, 2), (128, 8), 8, 64)),
    ),
}
FLOAT32: dict[str, Case] = {**TURNED, **FORWARD, **ALONE, **PRODUCTS, **NETS}
BFLOAT16: dict[str, Case] = PRODUCTS_BFLOAT16
FLOAT16: dict[str, Case] = PRODUCTS_FLOAT16
CASES: dict[str, Case] = {**FLOAT32, **BFLOAT16, **FLOAT16}
"""In the number format that each group is meant for."""
