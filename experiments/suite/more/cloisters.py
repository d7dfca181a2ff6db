"""Products and convolutions with chains behind them that nobody has named, single operators along middle axes, cells by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call

# -- a convolution, and what follows --------------------------------------------------------------------------------------------


def conv3_softmax_of_depth_most(conv, x: Tensor) -> Tensor:
    """Softmax along depth, the largest channel of each place."""
    return torch.softmax(conv(x), dim=2).amax(1)


def conv_swish_instance_std_of_rows(conv, norm, x: Tensor) -> Tensor:
    """Swish, an instance norm, each row's deviation."""
    y = conv(x)
    return norm(y * torch.sigmoid(y)).std(-1)


def up_group_silu_log_mean_exp(up, norm, x: Tensor) -> Tensor:
    """A group norm, SiLU, the logarithm of each channel's mean of exponentials."""
    y = functional.silu(norm(up(x)))
    return torch.logsumexp(y, dim=(2, 3)) - math.log(y.shape[2] * y.shape[3])


def conv1_glu_norm_pool(conv, norm, x: Tensor) -> Tensor:
    """Half of the channels gate the others, a batch norm, the largest of overlapping windows."""
    return functional.max_pool1d(norm(functional.glu(conv(x), dim=1)), 5, 3, 2)


def two_convs_product_root(first, second, x: Tensor) -> Tensor:
    """Two convolutions multiplied, a signed square root, pixels of length one."""
    y = first(x) * second(x)
    return functional.normalize(torch.sign(y) * torch.sqrt(torch.abs(y) + 1e-4), dim=1)


def depthwise_group_gelu_pointwise_most(depth, norm, point, x: Tensor) -> Tensor:
    """A depthwise convolution of an odd kernel, a group norm, GELU, a pointwise one, each channel's largest pixel."""
    return torch.amax(point(functional.gelu(norm(depth(x)))), dim=(-2, -1))


def conv_gated_by_mean_of_channels(conv, x: Tensor) -> Tensor:
    """A dilated convolution gated by the mean of its channels, averaged in overlapping windows."""
    y = conv(x)
    return functional.avg_pool2d(y * functional.hardsigmoid(y.mean(1, keepdim=True)), 3, 2, 1)


def up1_norm_snake_least(up, norm, x: Tensor) -> Tensor:
    """A batch norm, a number plus its squared sine, the least of the channels."""
    y = norm(up(x))
    return torch.min(y + torch.sin(y) ** 2, dim=1, keepdim=True)[0]


def up3_softplus_instance_scale_lse(up, norm, given, x: Tensor) -> Tensor:
    """Softplus, an instance norm, a scale, log-sum-exp of the channels."""
    return torch.logsumexp(norm(functional.softplus(up(x))) * given[0], dim=1, keepdim=True)


def conv_top_channels_mean(conv, x: Tensor) -> Tensor:
    """Mish, the mean of the five largest channels of each pixel."""
    return functional.mish(conv(x)).topk(5, dim=1).values.mean(1, keepdim=True)


def conv_running_rows_tanh(conv, x: Tensor) -> Tensor:
    """Means of all rows so far, tanh."""
    y = conv(x)
    many = torch.arange(1, y.shape[2] + 1, device=y.device, dtype=y.dtype).unsqueeze(-1)
    return torch.tanh(torch.cumsum(y, dim=2) / many)


def conv3_flattened_conv_group_pool(deep, flat, norm, x: Tensor) -> Tensor:
    """The largest along depth of a convolution in space, a flat one, ReLU, a group norm, a mean of windows."""
    return functional.avg_pool2d(norm(torch.relu(flat(torch.max(deep(x), dim=2)[0]))), (3, 2), (2, 2))


def conv_edges_lp_pool_logsigmoid(conv, x: Tensor) -> Tensor:
    """A convolution with repeated edges less a number, lengths of windows, a logarithm of sigmoids."""
    return functional.logsigmoid(functional.lp_pool2d(conv(x) - 0.3, 2.0, 3, 2))


def conv_leaky_by_largest(conv, x: Tensor) -> Tensor:
    """Leaky ReLU, divided by each image's largest number where that is above one."""
    y = functional.leaky_relu(conv(x), 0.2)
    return y / torch.amax(y, dim=(1, 2, 3), keepdim=True).clamp(min=1.0)


def up_cut_softsign_var_of_channels(up, x: Tensor) -> Tensor:
    """Edges cut off, softsign, the variance of channels."""
    return torch.var(functional.softsign(up(x)[:, :, 1:-1, 2:]), dim=1, unbiased=False)


def conv_bias_softmax_of_rows_by_columns(conv, given, x: Tensor) -> Tensor:
    """A bias, softmax along rows times softmax along columns, the sum of channels."""
    y = conv(x) + given[0]
    return (torch.softmax(y, dim=2) * torch.softmax(y, dim=3)).sum(1) * y.shape[2]


def up_clamp_three_norms(up, batch, group, x: Tensor) -> Tensor:
    """Bounds, then a batch norm, a group norm and a layer norm without weights."""
    y = group(batch(torch.clamp(up(x), -1.5, 1.5)))
    return functional.layer_norm(y, y.shape[1:])


CONVOLVED: dict[str, Case] = {
    "conv3_softmax_of_depth_most": call(
        *(conv3_softmax_of_depth_most, ((32, 2), 3, (18, 5), (45, 7), (51, 6))),
        parts=(part(nn.Conv3d, 3, (24, 5), 3, [1, 2, 2]),),
    ),
    "conv_swish_instance_std_of_rows": call(
        *(conv_swish_instance_std_of_rows, ((96, 2), (24, 3), (45, 7), (37, 9))),
        parts=(part(nn.Conv2d, (24, 3), (40, 4), [3, 5]), part(nn.InstanceNorm2d, (40, 4))),
    ),
    "up_group_silu_log_mean_exp": call(
        *(up_group_silu_log_mean_exp, ((64, 2), (96, 4), (23, 3), (19, 4))),
        parts=(part(nn.ConvTranspose2d, (96, 4), (48, 8), 4, 2, 1), part(nn.GroupNorm, (6, 2), (48, 8))),
    ),
    "conv1_glu_norm_pool": call(
        *(conv1_glu_norm_pool, ((48, 2), (80, 5), (1501, 17))),
        parts=(part(nn.Conv1d, (80, 5), (384, 8), 5, 2), part(nn.BatchNorm1d, (192, 4))),
    ),
    "two_convs_product_root": call(
        *(two_convs_product_root, ((32, 2), (128, 4), (28, 5), (29, 6))),
        parts=(part(nn.Conv2d, (128, 4), (200, 6), 3, padding=1), part(nn.Conv2d, (128, 4), (200, 6), 1)),
    ),
    "depthwise_group_gelu_pointwise_most": call(
        *(depthwise_group_gelu_pointwise_most, ((64, 2), (144, 6), (31, 8), (33, 6))),
        parts=(
            lambda n: nn.Conv2d(n(144, 6), n(144, 6), (7, 5), padding=(3, 2), groups=n(144, 6)),
            *(part(nn.GroupNorm, (12, 3), (144, 6)), part(nn.Conv2d, (144, 6), (320, 7), 1)),
        ),
    ),
    "conv_gated_by_mean_of_channels": call(
        *(conv_gated_by_mean_of_channels, ((16, 1), (64, 4), (99, 9), (101, 11))),
        parts=(part(nn.Conv2d, (64, 4), (72, 5), 3, padding=3, dilation=3),),
    ),
    "up1_norm_snake_least": call(
        *(up1_norm_snake_least, ((16, 2), (192, 6), (1023, 11))),
        parts=(part(nn.ConvTranspose1d, (192, 6), (96, 5), 10, 5, 3), part(nn.BatchNorm1d, (96, 5))),
    ),
    "up3_softplus_instance_scale_lse": call(
        *(up3_softplus_instance_scale_lse, ((16, 2), (20, 4), (7, 2), (18, 3), (22, 4))),
        parts=(
            part(nn.ConvTranspose3d, (20, 4), (36, 6), 3, 2, 1),
            *(part(nn.InstanceNorm3d, (36, 6)), weights(((36, 6), 1, 1, 1))),
        ),
    ),
    "conv_top_channels_mean": call(
        conv_top_channels_mean, ((16, 2), (48, 4), (57, 6), (63, 7)), parts=(part(nn.Conv2d, (48, 4), (100, 9), 3, 1, 1),)
    ),
    "conv_running_rows_tanh": call(
        conv_running_rows_tanh, ((64, 2), (12, 3), (130, 9), (67, 7)), parts=(part(nn.Conv2d, (12, 3), (28, 4), 3),)
    ),
    "conv3_flattened_conv_group_pool": call(
        *(conv3_flattened_conv_group_pool, ((24, 1), (6, 3), (11, 5), (60, 9), (52, 10))),
        parts=(
            part(nn.Conv3d, (6, 3), (32, 4), [5, 3, 3], bias=False),
            *(part(nn.Conv2d, (32, 4), (64, 8), 3), part(nn.GroupNorm, (16, 2), (64, 8))),
        ),
    ),
    "conv_edges_lp_pool_logsigmoid": call(
        *(conv_edges_lp_pool_logsigmoid, ((128, 2), (16, 3), (49, 8), (35, 7))),
        parts=(part(nn.Conv2d, (16, 3), (33, 5), 3, padding=1, padding_mode="replicate"),),
    ),
    "conv_leaky_by_largest": call(
        conv_leaky_by_largest, ((200, 2), 3, (64, 9), (96, 8)), parts=(part(nn.Conv2d, 3, (20, 4), 5, 2, bias=False),)
    ),
    "up_cut_softsign_var_of_channels": call(
        *(up_cut_softsign_var_of_channels, ((48, 2), (60, 4), (27, 4), (21, 5))),
        parts=(part(nn.ConvTranspose2d, (60, 4), (44, 5), 5, 3),),
    ),
    "conv_bias_softmax_of_rows_by_columns": call(
        *(conv_bias_softmax_of_rows_by_columns, ((40, 2), (32, 4), (56, 6), (48, 7))),
        parts=(part(nn.Conv2d, (32, 4), (17, 3), 3, padding=1), weights(((17, 3), 1, 1))),
    ),
    "up_clamp_three_norms": call(
        *(up_clamp_three_norms, ((256, 2), (128, 4), (7, 3), (7, 4))),
        parts=(
            part(nn.ConvTranspose2d, (128, 4), (64, 6), 3, 2, 1, 1),
            *(part(nn.BatchNorm2d, (64, 6)), part(nn.GroupNorm, (8, 2), (64, 6))),
        ),
    ),
}

# -- a product, and what follows ------------------------------------------------------------------------------------------------


def gemm_capped_largest_of_groups(f, x: Tensor) -> Tensor:
    """Scores capped at thirty, the largest of each eight, less their mean."""
    y = 30.0 * torch.tanh(f(x) / 30.0)
    y = y.unflatten(-1, (-1, 8)).amax(-1)
    return y - y.mean(-1, keepdim=True)


def gemm_prelu_softmax_entropy(f, act, x: Tensor) -> tuple[Tensor, Tensor]:
    """PReLU with a slope of each column, the entropy of each row's softmax beside its largest logarithm."""
    y = torch.log_softmax(act(f(x)), dim=1)
    return -(y.exp() * y).sum(1), y.amax(1)


def bmm_bias_elu_softmax_of_middle(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Products in a batch with a bias, ELU, softmax along rows."""
    return torch.softmax(functional.elu(torch.baddbmm(bias, x, y, beta=1.0, alpha=x.shape[-1] ** -0.5)), dim=1)


def gemm_norm_residual_running_share(f, norm, x: Tensor) -> Tensor:
    """A layer norm, a residual, magnitudes summed so far as shares of all."""
    y = torch.abs(norm(f(x)) + x)
    return torch.cumsum(y, dim=-1) / y.sum(-1, keepdim=True)


def gemm_squared_relu_shares(f, given, x: Tensor) -> Tensor:
    """Squares of what is positive, as shares of a row, scaled by column."""
    y = torch.square(torch.relu(f(x)))
    return y / (y.sum(1, keepdim=True) + 1e-3) * given[0]


def gemm_pair_gated_less_least(f, g, x: Tensor) -> Tensor:
    """Sigmoids of one product times tanh of another, less the row's least, GELU."""
    y = torch.sigmoid(f(x)) * torch.tanh(g(x))
    return functional.gelu(y - torch.min(y, dim=1, keepdim=True)[0])


def gemm_batch_norm_cosine_classes(f, norm, given, x: Tensor) -> Tensor:
    """A batch norm, cosines with prototypes, their log-softmax at a temperature."""
    y = functional.normalize(norm(f(x)), dim=1) @ functional.normalize(given[0], dim=1).t()
    return torch.log_softmax(16.0 * y, dim=-1)


MULTIPLIED: dict[str, Case] = {
    "gemm_capped_largest_of_groups": call(
        gemm_capped_largest_of_groups, ((513, 5), (1536, 12)), parts=(wide(1536, 4096, (12, 24)),)
    ),
    "gemm_prelu_softmax_entropy": call(
        gemm_prelu_softmax_entropy, ((777, 5), (640, 9)), parts=(wide(640, 1999, (9, 13)), part(nn.PReLU, (1999, 13)))
    ),
    "bmm_bias_elu_softmax_of_middle": call(
        bmm_bias_elu_softmax_of_middle, ((48, 2), 1, (333, 6)), ((48, 2), (129, 5), (200, 7)), ((48, 2), (200, 7), (333, 6))
    ),
    "gemm_norm_residual_running_share": call(
        *(gemm_norm_residual_running_share, ((1024, 4), (1000, 10))),
        parts=(wide(1000, 1000, (10, 10)), part(nn.LayerNorm, (1000, 10))),
    ),
    "gemm_squared_relu_shares": call(
        gemm_squared_relu_shares, ((300, 4), (2048, 12)), parts=(wide(2048, 5000, (12, 15)), weights(((5000, 15),)))
    ),
    "gemm_pair_gated_less_least": call(
        *(gemm_pair_gated_less_least, ((64, 3), (3000, 14))),
        parts=(wide(3000, 1500, (14, 9)), wide(3000, 1500, (14, 9), bias=False)),
    ),
    "gemm_batch_norm_cosine_classes": call(
        *(gemm_batch_norm_cosine_classes, ((512, 4), (768, 10))),
        parts=(wide(768, 256, (10, 6), bias=False), part(nn.BatchNorm1d, (256, 6)), weights(((1003, 7), (256, 6)))),
    ),
}

# -- one operator ---------------------------------------------------------------------------------------------------------------


def pools_of_odd_boxes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes that overlap along two axes and leave gaps along none."""
    return functional.max_pool3d(x, (3, 2, 5), (2, 1, 3), (1, 0, 2)), functional.avg_pool3d(x, (3, 2, 5), (2, 1, 3), (1, 0, 2))


def padded_in_space(x: Tensor) -> Tensor:
    """Mirrored edges in space times repeated ones."""
    at = (1, 2, 3, 1, 2, 0)
    return functional.pad(x, at, mode="reflect") * functional.pad(x, at, mode="replicate")


def rolled_flipped_laced(x: Tensor) -> Tensor:
    """An image moved round along two axes laced with its mirror image."""
    return torch.stack([torch.roll(x, (-7, 3), (1, 3)), torch.flip(x, (1, 2))], 2).flatten(1, 2)


def lengths_of_odd_axes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Norms of order three, one and infinity, each over other axes."""
    norm = torch.linalg.vector_norm
    return norm(x, ord=3, dim=(1, 3)), norm(x, ord=1, dim=(0, 2)), norm(x, ord=math.inf, dim=2)


def least_and_product_where_scattered(x: Tensor, at: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The least, and the product, of all rows that go to a place."""
    least = start.scatter_reduce(1, at, x, "amin", include_self=True)
    return least, torch.ones_like(start).scatter_reduce(1, at, 1 + 0.1 * x, "prod")


def windows_of_both_axes(x: Tensor) -> Tensor:
    """The largest of windows along one axis, then the mean of windows along the other."""
    return x.unfold(1, 16 if x.shape[1] > 99 else 3, 5).amax(-1).unfold(2, 4, 3).mean(-1)


def aligned_without_frames(x: Tensor, words: Tensor, frames: Tensor, letters: Tensor) -> Tensor:
    """Connectionist temporal classification of whole batches, each utterance's own lengths."""
    p = torch.log_softmax(x.float(), -1)
    return functional.ctc_loss(p, words, frames, letters, reduction="none", zero_infinity=True) / letters


def medians_of_middle(x: Tensor) -> Tensor:
    """Medians along a middle axis, as if large numbers were missing."""
    return torch.nanmedian(x.masked_fill(x > 1.5, math.nan), dim=1).values


# -- cells by hand ---------------------------------------------------------------------------------------------------------------


class SimpleUnits(nn.Module):
    """SRU: one product for all times, then only numbers by numbers from step to step, with a highway."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line, self.v = nn.Linear(width, 3 * width), nn.Parameter(torch.randn(2, width) * 0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, f, r = self.line(x).chunk(3, -1)
        c, done = torch.zeros_like(x[0]), []
        for t in range(x.shape[0]):
            forget, reset = torch.sigmoid(f[t] + self.v[0] * c), torch.sigmoid(r[t] + self.v[1] * c)
            c = forget * c + (1 - forget) * u[t]
            done.append(reset * torch.tanh(c) + (1 - reset) * x[t])
        return torch.stack(done), c


class NormedCells(nn.Module):
    """An LSTM by hand with layer norms of both products and of the cell, twelve steps."""

    def __init__(self, i: int, h: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(i, 4 * h, bias=False), nn.Linear(h, 4 * h, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(m) for m in (4 * h, 4 * h, h))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        done = []
        for x_t in x.unbind(1):
            i, f, g, o = (self.norms[0](self.x(x_t)) + self.norms[1](self.h(h))).chunk(4, 1)
            c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norms[2](c))
            done.append(h)
        return torch.stack(done, 1), (h, c)


FLOAT32: dict[str, Case] = {
    "normed_cells": call(
        lambda m, *x: m(*x),
        *(((256, 2), 12, (300, 5)), ((256, 2), (512, 6)), ((256, 2), (512, 6))),
        parts=(part(NormedCells, (300, 5), (512, 6)),),
    ),
    "running_product_of_middle": call(lambda x: torch.cumprod(1 + 0.01 * x, dim=1), ((37, 3), (511, 9), (129, 5))),
    "running_sum_of_depth": call(lambda x: torch.cumsum(x, 2), ((4, 2), (16, 3), (33, 5), (56, 4), (40, 3))),
    "sorted_middle": call(lambda x: torch.sort(x, dim=1, descending=True, stable=True), ((64, 2), (257, 9), (96, 5))),
    "two_largest_channels": call(lambda x: torch.topk(x, 2, dim=1), ((32, 2), (1000, 9), (33, 4), (17, 3))),
    "places_of_extremes": call(lambda x: (torch.argmax(x, 2), torch.argmin(x, 1, True)), ((24, 2), (65, 5), (129, 7), (31, 3))),
    "pools_of_odd_boxes": call(pools_of_odd_boxes, ((4, 1), (24, 3), (21, 5), (48, 6), (59, 7))),
    "pool_1d_without_edges": call(lambda x: functional.avg_pool1d(x, 7, 3, 3, True, False), ((32, 2), (100, 5), (4099, 23))),
    "most_of_uneven_boxes": call(
        lambda x: functional.adaptive_max_pool3d(x, (5, 7, 3)), ((4, 1), (24, 3), (19, 6), (45, 8), (37, 5))
    ),
    "padded_in_space": call(padded_in_space, ((2, 1), (24, 3), (17, 4), (45, 5), (51, 6))),
    "stretched_lines": call(
        lambda x: functional.interpolate(x, scale_factor=1.77, mode="linear", align_corners=True), ((16, 2), (80, 3), (4001, 11))
    ),
    "lengths_of_odd_axes": call(lengths_of_odd_axes, ((17, 3), (96, 4), (45, 5), (130, 7))),
    "least_and_product_where_scattered": call(
        *(least_and_product_where_scattered, ((32, 2), (3000, 9), (48, 4)), below((500, 4), (32, 2), (3000, 9), (48, 4))),
        ((32, 2), (500, 4), (48, 4)),
    ),
    "windows_of_both_axes": call(windows_of_both_axes, ((32, 2), (1001, 19), (130, 10))),
    "aligned_without_frames": call(
        *(aligned_without_frames, ((160, 12), (32, 2), (61, 5))),
        lambda n: torch.randint(1, n(61, 5), (n(32, 2), n(40, 3))),
        *(lambda n: torch.randint(n(120, 9), n(161, 13), (n(32, 2),)), lambda n: torch.randint(1, n(41, 4), (n(32, 2),))),
    ),
    "medians_of_middle": call(medians_of_middle, ((64, 2), (101, 9), (300, 5))),
    "pairs_of_rows_once": call(lambda x: functional.pdist(x.float()), ((700, 7), (48, 5))),
}
FLOAT16: dict[str, Case] = {
    "simple_units": call(one, ((32, 4), (64, 3), (768, 8)), parts=(part(SimpleUnits, (768, 8)),)),
    "rolled_flipped_laced": call(rolled_flipped_laced, ((16, 2), (56, 9), (75, 5), (96, 6))),
    "five_axes_with_three": call(
        lambda x, w: torch.einsum("abcde,dfe->abcf", x, w),
        ((6, 2), (17, 3), (133, 4), (12, 3), (20, 5)),
        ((12, 3), (96, 6), (20, 5)),
    ),
    "triangles_of_tall_and_wide": call(
        lambda x, y: torch.tril(x, -3) @ torch.triu(y, 5).mT, ((24, 2), (555, 9), (333, 11)), ((24, 2), (401, 12), (333, 11))
    ),
}
CASES: dict[str, Case] = {**CONVOLVED, **MULTIPLIED, **FLOAT32, **FLOAT16}
"""Groups of chains are meant for any number format, the others for the one of their name."""
