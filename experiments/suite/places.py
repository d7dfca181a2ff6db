"""Layers by shape and place: reductions of every form, indexing, order, borders, numbers of other kinds, images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import fn
from experiments.suite.case import of
from experiments.suite.case import scaled


def _filter(n: N, kernel: Tensor) -> Made:
    weight = torch.stack((kernel, kernel.T))[:, None]
    run = lambda w, x: functional.conv2d(x, w, padding=1).pow(2).sum(1).add(1e-6).sqrt()  # noqa: E731
    return Fn(run, weight=weight), (torch.randn(n(32, 2), 1, n(256, 9), n(256, 9)),)


def _pixels(n: N) -> Made:
    run = lambda m, s, x: (x.to(m.dtype) / 255 - m[:, None, None]) / s[:, None, None]  # noqa: E731
    image = torch.randint(0, 256, (n(32, 2), 3, n(224, 9), n(224, 9)), dtype=torch.uint8)
    return Fn(run, mean=torch.rand(3), scale=torch.rand(3) + 0.5), (image,)


def _sinusoids(t: Tensor, width: int) -> Tensor:
    rates = torch.exp(-math.log(1e4) * torch.arange(width // 2, device=t.device) / (width // 2)).to(t.dtype)
    angle = t[:, None] * rates
    return torch.cat((angle.sin(), angle.cos()), -1)


CASES: dict[str, Case] = {
    "softmax_long": fn(lambda x: x.softmax(-1), (16, 262144)),
    "softmax_short": fn(lambda x: x.softmax(-1), (524288, 16)),
    "softmax_middle": fn(lambda x: x.softmax(1), (64, 256, 1024)),
    "log_softmax_odd": fn(lambda x: x.log_softmax(-1), (3001, 5003)),
    "sum_columns": fn(lambda x: x.sum(0), (65536, 256)),
    "sum_short": fn(lambda x: x.sum(-1), (1048576, 8)),
    "sum_outer": fn(lambda x: x.sum((0, 2)), (256, 64, 1024)),
    "sum_squares": fn(lambda x: (x * x).sum(), (8192, 2048)),
    "mean_std": fn(lambda x: (x.mean(-1), x.std(-1)), (8192, 1024)),
    "normalize_all": fn(lambda x: (x - x.mean()) / (x.std() + 1e-5), (4096, 2048)),
    "max_all": fn(lambda x: x.max(), (4096, 4096)),
    "max_with_places": fn(lambda x: x.max(-1), (8192, 1024)),
    "min_columns": fn(lambda x: x.min(0), (4096, 2048)),
    "argmax_rows": fn(lambda x: x.argmax(-1), (8192, 4096)),
    "argmax_all": fn(torch.argmax, (2048, 2048)),
    "argmin_classes": fn(lambda x: x.argmin(1), (32, 21, 256, 256)),
    "count": fn(lambda x: (x > 0.5).sum(-1), (4096, 4096)),
    "any_row": fn(lambda x: (x > 3).any(-1), (4096, 4096)),
    "trace_of_product": fn(lambda x, y: torch.trace(x @ y), (512, 1024), (1024, 512)),
    "median": fn(lambda x: x.median(-1).values, (1024, 513)),
    "quantile": fn(lambda x: x.float().quantile(0.9, dim=-1).to(x.dtype), (256, 1000)),
    "kthvalue": fn(lambda x: x.kthvalue(3, -1).values, (1024, 512)),
    "cummax": fn(lambda x: x.cummax(1).values, (512, 4096)),
    "logcumsumexp": fn(lambda x: x.logcumsumexp(1), (512, 4096)),
    "cumsum_columns": fn(lambda x: x.cumsum(0), (4096, 1024)),
    "cumsum_short": fn(lambda x: x.cumsum(-1), (65536, 64)),
    "cumsum_mean": fn(
        lambda x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None], (16, 2048, 128)
    ),
    "integral_image": fn(lambda x: x.cumsum(-1).cumsum(-2), (16, 3, 256, 256)),
    "diff": fn(lambda x: x.diff(dim=-1).abs().mean(-1), (4096, 2048)),
    "total_variation": fn(
        lambda x: (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean(), (16, 3, 256, 256)
    ),
    "topk_large": fn(lambda x: torch.topk(x, 100, -1).values, (64, 32768), small=((2, 200),)),
    "sort_long": fn(lambda x: torch.sort(x, -1, descending=True), (64, 16384)),
    "argsort": fn(lambda x: x.argsort(-1), (1024, 1024)),
    "rank_by_pairs": fn(lambda x: (x[:, :, None] > x[:, None]).sum(1), (64, 512)),
    "masked_fill": fn(lambda x, y: x.masked_fill(y > 0, -1e4), (4096, 2048), (4096, 2048)),
    "masked_mean": fn(lambda x, y: (x * (y > 0)).sum(1) / (y > 0).sum(1), (4096, 2048), (4096, 2048)),
    "lerp": fn(torch.lerp, (2048, 4096), (2048, 4096), (2048, 4096)),
    "addcmul": fn(lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (2048, 4096), (2048, 4096), (2048, 4096)),
    "polynomial": fn(lambda x: 1 + x * (0.5 + x * (0.25 + x * (0.125 + x * 0.0625))), (4096, 4096)),
    "trigonometry": fn(lambda x: torch.sin(x) * torch.cos(x) + torch.atan2(x, x + 2), (2047, 4001)),
    "error_function": fn(lambda x: torch.erf(x) * torch.exp(-x * x), (4096, 2048)),
    "power": fn(lambda x: x.abs().pow(1.7) + x.pow(2) - x.abs().sqrt(), (4096, 2048)),
    "remainder": fn(lambda x: torch.remainder(x * 10, 3) + torch.floor(x), (4096, 2048)),
    "nan_to_num": fn(lambda x: torch.nan_to_num(x / (x > 0)), (4096, 2048)),
    "fake_quantized": fn(lambda x: (x / 0.1).round().clamp(-128, 127) * 0.1, (4096, 4096)),
    "row_quantized": fn(
        lambda x: (
            (y := x / (s := x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8),
            s,
            (y - y.round()).abs().mean(),
        ),
        (4096, 2048),
    ),
    "to_half": fn(lambda x: (x * 2).half(), (4096, 4096)),
    "broadcast_three": fn(lambda x, y, z: x * y + z, (64, 1, 1024), (1, 256, 1024), (64, 256, 1)),
    "channels_affine": fn(
        lambda x, a, b: x * a[:, None, None] + b[:, None, None],
        (32, 64, 112, 112),
        (64,),
        (64,),
        small=((2, 4, 5, 5), (4,), (4,)),
    ),
    "flip_both": fn(lambda x: x.flip(-1, -2) + x, (32, 64, 64, 64)),
    "rot90": fn(lambda x: torch.rot90(x, 1, (2, 3)), (16, 64, 128, 128)),
    "repeat_interleave": fn(lambda x: x.repeat_interleave(4, 1), (64, 256, 512)),
    "tile": fn(lambda x: x.repeat(2, 3), (1024, 2048)),
    "expand_copy": fn(lambda x: x[:, None].expand(-1, 16, -1).contiguous(), (512, 2048)),
    "concat_many": fn(lambda *x: torch.cat([y * 2 for y in x], -1), *((2048, 128),) * 8),
    "split_swish": fn(lambda x: (y := x.chunk(2, -1))[0] * torch.sigmoid(y[1]), (4096, 4096)),
    "unbind_stack": fn(lambda x: torch.stack(x.unbind(1)[::-1], 1), (512, 8, 1024)),
    "strided_slices": fn(lambda x: x[:, ::2] + x[:, 1::2], (4096, 4096)),
    "strided_twice": fn(lambda x: x[::3, :, ::2].exp(), (96, 512, 512)),
    "space_to_depth": fn(
        lambda x: x.view(x.shape[0], x.shape[1], x.shape[2] // 2, 2, -1, 2).permute(0, 1, 3, 5, 2, 4).flatten(1, 3),
        (16, 32, 128, 128),
    ),
    "windows": fn(lambda x: x.unfold(-1, 4, 2).mean(-1), (64, 64, 4096)),
    "replication_pad": of(lambda: nn.ReplicationPad2d(3), (16, 64, 56, 56)),
    "circular_pad": fn(lambda x: functional.pad(x, (2, 2, 2, 2), mode="circular"), (16, 64, 56, 56)),
    "shifted_token": fn(lambda x: x * 0.5 + functional.pad(x, (0, 0, 1, -1)) * 0.5, (16, 1024, 768)),
    "diagonal": fn(lambda x: x.diagonal(dim1=-2, dim2=-1) * 2, (128, 256, 256)),
    "block_diagonal": fn(torch.block_diag, (512, 512), (512, 256)),
    "kronecker": fn(torch.kron, (32, 32), (64, 64)),
    "global_max_pool": fn(lambda x: x.amax((2, 3)), (32, 256, 56, 56)),
    "global_mean_max": fn(lambda x: torch.cat((x.mean((2, 3)), x.amax((2, 3))), 1), (32, 256, 28, 28)),
    "avg_pool_inside": fn(lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (16, 64, 112, 112)),
    "max_pool_ceil": fn(lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True), (16, 64, 113, 113)),
    "max_unpool": fn(
        lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), (2, 2)), (16, 64, 64, 64)
    ),
    "adaptive_pool_1d": fn(lambda x: functional.adaptive_avg_pool1d(x, 8), (64, 128, 1024)),
    "grid_sample": fn(
        lambda x, g: functional.grid_sample(x, torch.tanh(g), align_corners=False), (8, 16, 64, 64), (8, 64, 64, 2)
    ),
    "bilinear_to_size": fn(lambda x: functional.interpolate(x, (96, 80), mode="bilinear", align_corners=True), (8, 32, 48, 40)),
    "trilinear": fn(lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), (2, 8, 16, 32, 32)),
    "sobel": scaled(lambda n: _filter(n, torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]))),
    "gray": fn(
        lambda x: (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True),
        (32, 3, 256, 256),
        small=((2, 3, 9, 9),),
    ),
    "pixels": scaled(_pixels),
    "signal_energy": fn(
        lambda x: (x.unfold(-1, 400, 160) * torch.hann_window(400, device=x.device, dtype=x.dtype)).pow(2).sum(-1),
        (32, 64000),
        small=((2, 1000),),
    ),
    "moving_average": fn(lambda x: functional.avg_pool1d(x[:, None], 25, 1, 12)[:, 0] - x, (512, 4096), small=((2, 30),)),
    "fourier_features": fn(
        lambda x, b: torch.cat((torch.sin(y := 6.28 * x @ b), torch.cos(y)), -1), (65536, 3), (3, 128), small=((7, 3), (3, 8))
    ),
    "sinusoids": scaled(lambda n: (Fn(lambda t: _sinusoids(t, n(256, 8))), (torch.rand(n(4096, 5)),))),
}


def _indexed(run, rows: int, width: int, count: int) -> Case:
    """A table of numbers, and random rows of it."""

    def make(n: N) -> Made:
        table, k = torch.randn(n(rows, 9), n(width, 6)), n(count, 7)
        return Fn(run), (table, torch.randint(0, table.shape[0], (k,)), torch.randn(k, table.shape[1]))

    return scaled(make)


CASES |= {
    "index_select": _indexed(lambda x, i, y: x.index_select(0, i) + y, 20000, 256, 16384),
    "index_rows": _indexed(lambda x, i, y: x[i] * y, 20000, 256, 16384),
    "index_add": _indexed(lambda x, i, y: x.index_add(0, i, y), 4096, 256, 16384),
    "index_put": _indexed(lambda x, i, y: x.index_put((i.unique(),), x.new_zeros(())), 4096, 256, 1024),
    "scatter_mean": _indexed(
        lambda x, i, y: torch.zeros_like(x).index_add(0, i, y) / torch.bincount(i, minlength=x.shape[0]).clamp(1)[:, None].to(y),
        1024,
        128,
        8192,
    ),
    "take_along": _indexed(lambda x, i, y: torch.take_along_dim(x[: y.shape[0]], y.argsort(1)[:, :3], 1), 1024, 256, 1024),
    "searchsorted": _indexed(lambda x, i, y: torch.searchsorted(x[0].sort().values, y), 16, 4096, 64),
    "message_passing": _indexed(
        lambda x, i, y: torch.relu(x + torch.zeros_like(x).index_add(0, i, x[i.flip(0)] * y)), 8192, 64, 65536
    ),
    "attend_over_edges": _indexed(
        lambda x, i, y: torch.zeros_like(x).index_add(0, i, y * torch.exp((x[i] * y).sum(-1, keepdim=True).tanh())),
        8192,
        64,
        32768,
    ),
    "one_hot_product": _indexed(lambda x, i, y: functional.one_hot(i, x.shape[0]).to(y.dtype).T @ y, 256, 128, 4096),
}


def _whole(run, *shapes: tuple[int, ...]) -> Case:
    """A function of whole numbers."""

    def case(little: bool) -> Made:
        return Fn(run), tuple(torch.randint(0, 50, tuple(min(s, 9) for s in shape) if little else shape) for shape in shapes)

    return case


CASES |= {
    "whole_sum": _whole(lambda x, y: (x + y * 2).sum(-1), (2048, 2048), (2048, 2048)),
    "whole_bits": _whole(lambda x, y: (x & y) ^ (x << 2), (2048, 2048), (2048, 2048)),
    "whole_division": _whole(lambda x, y: x // (y + 1) + x % 7, (2048, 2048), (2048, 2048)),
    "whole_compare": _whole(lambda x, y: ((x == y) | (x > 25)).float().mean(), (2048, 2048), (2048, 2048)),
    "histogram": _whole(lambda x: torch.bincount(x.flatten(), minlength=50), (1024, 1024)),
    "padding_mask": _whole(lambda x: torch.where((x > 0)[:, None] & (x > 0)[:, :, None], 0.0, -1e9), (64, 256)),
}
