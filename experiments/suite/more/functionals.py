"""Functions that join what seldom stands together: products, norms, pools and tables, and what a script does next."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import whole

MAPS = ((16, 2), (32, 8), (64, 8), (64, 8))


def conv(i: tuple[int, int] = (32, 8), o: tuple[int, int] = (64, 8), k: int = 3, **more):
    return lambda n: nn.Conv2d(n(*i), n(*o), k, **more)


# -- products and their neighbours ----------------------------------------------------------------------------------------------


def bmm_rms_gelu_sub(a: Tensor, b: Tensor, gain: Tensor, other: Tensor, *, p: float = 0.1) -> Tensor:
    z = torch.bmm(a, b)
    z = functional.rms_norm(z, (z.shape[-1],), gain, 1e-5)
    return torch.sub(functional.dropout(functional.gelu(z), p, training=False), other, alpha=0.5)


def softplus_linear(linear, x: Tensor, *, beta: float = 2.0, threshold: float = 4.0) -> Tensor:
    return functional.softplus(linear(x), beta=beta, threshold=threshold)


def rows_of_two_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """A row of one product times the same row of another."""
    return ((a @ b) * (c @ d)).sum(dim=-1).abs().sqrt()


def symmetric_and_sum(a: Tensor, c: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    out = alpha * torch.mm(a, a.T) + beta * c
    return out, out.abs().sum()


def vector_updated_and_dot(a: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    y = torch.addmv(y, a, x, beta=0.25, alpha=1.5)
    return {"y": y, "dot": torch.dot(y, x[: len(y)]), "norm": torch.linalg.vector_norm(y, ord=1)}


def triangle_vector_norm(a: Tensor, x: Tensor, *, diagonal: int = -1) -> Tensor:
    y = torch.mv(torch.tril(a, diagonal=diagonal), x) + torch.triu(a, diagonal=1).T.mv(x)
    return torch.linalg.vector_norm(y).reshape(1)


def tensordot_rsqrt(a: Tensor, b: Tensor) -> Tensor:
    return torch.rsqrt(torch.tensordot(a, b, dims=([1, 2], [0, 1])).abs() + 1.0)


def softmax_linear_dropout_bmm(linear, x: Tensor, y: Tensor) -> Tensor:
    z = functional.dropout(functional.softmax(linear(x), dim=1), p=0.3, training=False)
    return torch.transpose(torch.bmm(torch.transpose(z, 1, 2), y), 1, 2).contiguous()


def linear_batch_sigmoid_var(linear, after, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.sigmoid(after(linear(x)))
    return torch.var_mean(z, dim=0, correction=0)


# -- convolutions and their neighbours ------------------------------------------------------------------------------------------


def silu_norm_conv(conv, x: Tensor, *, eps: float = 1e-5) -> Tensor:
    """The norm is of whole images."""
    y = conv(x)
    return functional.silu(functional.layer_norm(y, y.shape[1:], eps=eps))


def instance_selu_conv(conv, gain: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return functional.instance_norm(functional.selu(conv(x)), weight=gain, bias=bias, eps=1e-4)


def shuffled_residual(first, second, x: Tensor) -> Tensor:
    """Twice as large by a shuffle of channels, beside a bilinear copy."""
    y = functional.pixel_shuffle(second(functional.leaky_relu(first(x), 0.1)), 2)
    return (y * 0.2 + functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)).clamp(-1, 1)


def relu_pool_conv(conv, x: Tensor) -> tuple[Tensor, Tensor]:
    return functional.max_pool2d(functional.relu(conv(x)), kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), return_indices=True)


def pooled_similarity(conv, x: Tensor, y: Tensor) -> Tensor:
    a, b = (functional.avg_pool2d(conv(z), 2, count_include_pad=False, padding=1) for z in (x, y))
    return functional.cosine_similarity(a, b, dim=1, eps=1e-6)


def distance_of_pools(x: Tensor, y: Tensor) -> Tensor:
    a, b = (functional.adaptive_avg_pool2d(z, (3, 5)) for z in (x, y))
    return torch.norm(a - b + 1e-6, p=3, dim=(1, 2, 3), keepdim=True)


def conv_norm_add_relu_conv(one, norm, two, x: Tensor) -> Tensor:
    """Channels are moved to the end for a norm, and back."""
    y = one(x)
    y = norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return two(functional.relu(y + y.mean(dim=(2, 3), keepdim=True)))


def sampled_affine_gelu(theta: Tensor, x: Tensor) -> Tensor:
    grid = functional.affine_grid(theta, [x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3]], align_corners=True)
    return functional.gelu(functional.grid_sample(x, grid, padding_mode="border", align_corners=True))


def cosine_pool_line(x: Tensor, w: Tensor) -> Tensor:
    y = functional.avg_pool1d(torch.cos(x), 4, 2, 1)
    return functional.conv1d(torch.where(torch.signbit(y), y * 0.25, y), w, padding="same")


# -- tables, masks, places ------------------------------------------------------------------------------------------------------


def embedding_add_tanh(table, ids: Tensor, other: Tensor) -> Tensor:
    return torch.tanh(table(ids) + other)


def gathered_and_filled(x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
    y = torch.gather(x, 1, at)
    return torch.masked_fill(y.square(), mask, -7.0).cumsum(-1)


def selected_equal(x: Tensor, at: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.index_select(x, 0, at)
    return torch.eq(y, other), torch.ne(y, other).sum(-1)


def stacked_and_floored(x: Tensor, y: Tensor, z: Tensor, by: float) -> Tensor:
    return torch.div(torch.hstack((x, y, z[:, None])), by, rounding_mode="floor")


def repeated_log_softmax(x: Tensor, times: int) -> Tensor:
    return functional.log_softmax(torch.repeat_interleave(x, times, dim=1), dim=1, dtype=torch.float32)


def normed_cosine_loss(x: Tensor, y: Tensor, target: Tensor, margin: float) -> Tensor:
    x, y = functional.normalize(x, p=3.0, dim=1), functional.normalize(y, p=1.0, dim=1)
    cos = functional.cosine_similarity(x, y, dim=1)
    return torch.where(target > 0, 1 - cos, (cos - margin).clamp(min=0)).mean()


def entropy_and_normed_softmax(logits: Tensor, target: Tensor, gain: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    loss = functional.cross_entropy(logits, target, reduction="none")
    p = functional.softmax(logits, dim=1)
    return loss, functional.layer_norm(p, (p.shape[1],), weight=gain, bias=bias)


def masked_add_gelu(x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = functional.gelu(x.masked_fill(mask, 0.0).add(y, alpha=2), approximate="tanh")
    return z.amin(dim=-1), z.std(dim=-1, correction=1), torch.count_nonzero(z, dim=-1)


def log_of_mean_exp(x: Tensor, y: Tensor) -> Tensor:
    """Bounds of information between rows that belong together and rows that do not."""
    t = x @ y.t()
    off = t.masked_fill(torch.eye(len(t), dtype=torch.bool, device=t.device), float("-inf"))
    joint, n = t.diag().mean(), len(t)
    return joint - (torch.logsumexp(off, dim=(0, 1)) - torch.log(torch.tensor(n * (n - 1.0), device=t.device)).to(t.dtype))


def row_ranks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Ranks by sorting twice, and Spearman's correlation with the first row."""
    rank = x.argsort(dim=-1, stable=True).argsort(dim=-1).to(x.dtype)
    r = (rank - rank.mean(-1, keepdim=True)) / rank.shape[-1]
    corr = (r * r[:1]).sum(-1) / (r.norm(dim=-1) * r[:1].norm(dim=-1))
    return rank, corr


def ladder(x: Tensor, w: Tensor) -> Tensor:
    """Values on the diagonal beside the middle, then whole strips."""
    y = torch.diag_embed(x, offset=1) + torch.diagonal_scatter(w, w[0, :-1].exp(), offset=1)
    y = torch.slice_scatter(y, y[:, :1].expand(-1, 2, -1) * 0.5, dim=1, start=1, end=3)
    return torch.select_scatter(y, x.mean(dim=-1, keepdim=True).expand(-1, y.shape[1]), dim=2, index=0)


def joined_reductions(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    low, high = torch.aminmax(x, dim=-1)
    return {
        "range": high - low,
        "above": torch.gt(x, y).float().mean(-1),
        "near": torch.isclose(x, y, atol=0.05).any(-1),
        "signs": torch.signbit(x).logical_xor(torch.signbit(y)).sum(-1),
        "product": torch.nansum(torch.where(y > 2, float("nan"), x * y), dim=-1),
    }


CASES: dict[str, Case] = {
    "bmm_rms_gelu_sub": call(
        bmm_rms_gelu_sub,
        ((16, 2), (256, 6), (192, 8)),
        ((16, 2), (192, 8), (320, 16)),
        ((320, 16),),
        ((16, 2), (256, 6), (320, 16)),
    ),
    "softplus_linear": call(softplus_linear, ((2048, 5), (384, 16)), parts=(lambda n: nn.Linear(n(384, 16), n(768, 24)),)),
    "rows_of_two_products": call(
        rows_of_two_products,
        *(((1024, 6), (256, 8)), ((256, 8), (512, 12)), ((1024, 6), (96, 16)), ((96, 16), (512, 12))),
    ),
    "symmetric_and_sum": call(symmetric_and_sum, ((768, 9), (1280, 16)), ((768, 9), (768, 9)), 0.5, -2.0),
    "vector_updated_and_dot": call(vector_updated_and_dot, ((2048, 7), (4096, 12)), ((4096, 12),), ((2048, 7),)),
    "triangle_vector_norm": call(triangle_vector_norm, ((3072, 11), (3072, 11)), ((3072, 11),)),
    "tensordot_rsqrt": call(tensordot_rsqrt, ((512, 5), (12, 3), (64, 8)), ((12, 3), (64, 8), (384, 7))),
    "softmax_linear_dropout_bmm": call(
        softmax_linear_dropout_bmm,
        ((12, 2), (384, 6), (256, 16)),
        ((12, 2), (384, 6), (160, 8)),
        parts=(lambda n: nn.Linear(n(256, 16), n(96, 8)),),
    ),
    "linear_batch_sigmoid_var": call(
        linear_batch_sigmoid_var,
        ((4096, 6), (320, 16)),
        parts=(lambda n: nn.Linear(n(320, 16), n(640, 9)), lambda n: nn.BatchNorm1d(n(640, 9))),
    ),
    "silu_norm_conv": call(silu_norm_conv, MAPS, parts=(conv(padding=1),)),
    "instance_selu_conv": call(instance_selu_conv, ((48, 8),), ((48, 8),), MAPS, parts=(conv(o=(48, 8), k=5, stride=2),)),
    "shuffled_residual": call(
        shuffled_residual,
        ((4, 1), 3, (120, 8), (160, 9)),
        parts=(lambda n: nn.Conv2d(3, n(48, 8), 5, padding=2), lambda n: nn.Conv2d(n(48, 8), 12, 3, padding=1)),
    ),
    "relu_pool_conv": call(relu_pool_conv, MAPS, parts=(conv(dilation=2, padding=1),)),
    "pooled_similarity": call(pooled_similarity, *(((8, 2), (32, 8), (48, 7), (48, 8)),) * 2, parts=(conv(o=(96, 12), k=1),)),
    "distance_of_pools": call(distance_of_pools, *(((32, 2), (128, 8), (40, 7), (56, 9)),) * 2),
    "conv_norm_add_relu_conv": call(
        conv_norm_add_relu_conv,
        ((8, 2), (32, 8), (56, 7), (56, 8)),
        parts=(conv(padding=1, groups=2), lambda n: nn.LayerNorm(n(64, 8)), conv(i=(64, 8), o=(32, 8), k=1, bias=False)),
    ),
    "sampled_affine_gelu": call(sampled_affine_gelu, ((8, 2), 2, 3), ((8, 2), (24, 3), (96, 8), (80, 9))),
    "cosine_pool_line": call(cosine_pool_line, ((16, 2), (32, 4), (4096, 24)), ((48, 6), (32, 4), 5)),
    "embedding_add_tanh": call(
        embedding_add_tanh,
        whole(40, (64, 2), (128, 5)),
        ((384, 16),),
        parts=(lambda n: nn.Embedding(n(20000, 40), n(384, 16)),),
    ),
    "gathered_and_filled": call(
        gathered_and_filled,
        ((1024, 4), (2000, 12)),
        whole(12, (1024, 4), (640, 8)),
        lambda n: torch.rand(n(1024, 4), n(640, 8)) > 0.6,
    ),
    "selected_equal": call(selected_equal, whole(5, (5000, 12), (96, 7)), whole(12, (8192, 20)), whole(5, (8192, 20), (96, 7))),
    "stacked_and_floored": call(stacked_and_floored, ((4096, 6), (200, 7)), ((4096, 6), (57, 3)), ((4096, 6),), 0.37),
    "repeated_log_softmax": call(repeated_log_softmax, ((512, 3), (300, 7), (24, 4)), 3),
    "normed_cosine_loss": call(normed_cosine_loss, *(((8192, 9), (192, 16)),) * 2, whole(2, (8192, 9)), 0.2),
    "entropy_and_normed_softmax": call(
        entropy_and_normed_softmax, ((2048, 6), (1000, 17)), whole(17, (2048, 6)), ((1000, 17),), ((1000, 17),)
    ),
    "masked_add_gelu": call(
        masked_add_gelu, *(((64, 2), (96, 4), (400, 12)),) * 2, lambda n: torch.rand(n(96, 4), n(400, 12)) > 0.5
    ),
    "log_of_mean_exp": call(log_of_mean_exp, *(((1536, 9), (128, 8)),) * 2),
    "row_ranks": call(row_ranks, ((1024, 5), (500, 11))),
    "ladder": call(ladder, ((256, 3), (96, 7)), ((97, 8), (97, 8))),
    "joined_reductions": call(joined_reductions, *(((4096, 5), (777, 13)),) * 2),
}
