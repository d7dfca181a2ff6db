"""More that users do: gathers, losses, writes in place, results of many kinds, complex, sparse and empty tensors."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

ROWS, WIDE = (1024, 12), (2048, 24)


def regions(x: Tensor, boxes: Tensor) -> Tensor:
    """The maxima of boxes of an image, by four gathers."""
    side = x.shape[-1]
    left, top = (boxes[:, i].abs().remainder(1) * (side - 2) for i in (0, 1))
    i, j = top.floor().long(), left.floor().long()
    fy, fx = top - i, left - j
    flat = x.flatten(1)
    corners = [flat[:, (i + a) * side + j + b] for a in (0, 1) for b in (0, 1)]
    weights = [(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx]
    return torch.stack([c * w for c, w in zip(corners, weights, strict=True)]).sum(0)


# -- writes in place ------------------------------------------------------------------------------------------------------------


def write_slices(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2] *= 2
    y[:, 1::2] = y[:, 1::2].relu_() + 1
    y[0].fill_(3)
    y[y > 2.5] = 2.5
    return y


def write_by_mask(x: Tensor, keep: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found.masked_scatter_(keep > 0, x.exp())
    found.index_fill_(0, torch.tensor([1, 3], device=x.device), -1.0)
    return found.clamp_(-1, 2).add_(x, alpha=0.5)


def rolling_buffer(x: Tensor, new: Tensor) -> Tensor:
    kept = torch.empty_like(x)
    kept[:, :-1] = x[:, 1:]
    kept[:, -1] = new
    return kept.mean(1)


class Momentum(nn.Module):
    """Two buffers of a batch norm in training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, training=True)


# -- results --------------------------------------------------------------------------------------------------------------------


def as_tree(x: Tensor):
    scores, places = x.softmax(-1).max(-1)
    return {"found": [scores, (places, x.shape[0])], "none": None, "flag": True, "text": "ok", "half": 0.5}


def ordered(x: Tensor) -> OrderedDict:
    return OrderedDict([("b", x.relu()), ("a", x.relu().sum(-1)), ("same", x)])


def nested(x: Tensor, more: Tensor):
    y = x + more
    return (y, [y.T, (y[:, :4], y.sum())]), {"first": y[0], "twice": y}


def mixed_dtypes(x: Tensor):
    return x > 0, x.argmax(-1), (x * 10).int(), x.double().sum(), (x > 0).any(), x.half(), x.to(torch.bfloat16)


def complex_rotary(x: Tensor) -> Tensor:
    """LLaMA's first form, of complex numbers."""
    wide = x.float()
    pairs = torch.view_as_complex(wide.reshape(*wide.shape[:-1], -1, 2))
    t, d = pairs.shape[-2:]
    angles = torch.outer(torch.arange(t, device=x.device), 10000.0 ** (-torch.arange(d, device=x.device) / d))
    turned_by = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turned_by).flatten(-2).type_as(x)


def spectral(weight_r: Tensor, weight_i: Tensor, x: Tensor) -> Tensor:
    """A Fourier layer."""
    freq = torch.fft.rfft(x.float(), dim=-1)[..., : weight_r.shape[-1]]
    mixed = torch.einsum("bct,cot->bot", freq, torch.complex(weight_r.float(), weight_i.float()))
    return torch.fft.irfft(mixed, n=x.shape[-1]).to(x.dtype)


def sparse_product(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device)
    kept = torch.sparse_coo_tensor(torch.stack((rows, rows)), x[:, 0].float(), (x.shape[0], x.shape[0]))
    return torch.sparse.mm(kept, w.float())


def empty_batch(x: Tensor) -> Tensor:
    none = x[x.shape[0] :]
    return torch.cat((none, x)) + none.sum()


def only_empty(lin, x: Tensor) -> Tensor:
    return lin(x[:0])


def to_numbers(x: Tensor):
    return x.shape[0] * 2, float(x.shape[-1]), x.mean()


def depends(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def counted_rows(x: Tensor) -> Tensor:
    return x[(x[:, 0] > 0).nonzero()[:, 0]].sum(0)


def unique_values(x: Tensor):
    return torch.unique((x * 2).long())


def straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def quantized(x: Tensor, w: Tensor) -> Tensor:
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    whole_x = (x / top).round().clamp(-128, 127).to(torch.int8)
    return (whole_x.float() @ w.float()).to(x.dtype) * top


def distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x.float(), y.float()).topk(3, largest=False).values


def nms_scores(boxes: Tensor, scores: Tensor) -> Tensor:
    corner, size = boxes[:, :2], boxes[:, 2:].abs() + 0.1
    low, high = corner - size / 2, corner + size / 2
    over = (torch.minimum(high[:, None], high[None]) - torch.maximum(low[:, None], low[None])).clamp(min=0).prod(-1)
    area = size.prod(-1)
    iou = over / (area[:, None] + area[None] - over)
    higher = scores[None] > scores[:, None]
    return scores * torch.exp(-((iou * higher) ** 2 / 0.5).amax(-1))


def attend_relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    t = q.shape[-2]
    at = (torch.arange(t, device=q.device)[:, None] - torch.arange(t, device=q.device)).clamp(-8, 8) + 8
    return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + table[at].permute(2, 0, 1)).softmax(-1) @ v


def cosine_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-1, -2) * 10).softmax(-1) @ v


def masked_scores(x: Tensor, keep: Tensor) -> Tensor:
    return functional.softmax(x.masked_fill(keep.unsqueeze(1) < 0, torch.finfo(x.dtype).min), -1)


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    a, b = functional.normalize(a, dim=-1), functional.normalize(b, dim=-1)
    logits = a @ b.T * 20
    at = torch.arange(a.shape[0], device=a.device)
    return (functional.cross_entropy(logits, at) + functional.cross_entropy(logits.T, at)) / 2


def dice(x: Tensor, y: Tensor) -> Tensor:
    p, t = x.softmax(1), y.sigmoid()
    return 1 - ((2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)).mean()


def ssim(x: Tensor, y: Tensor) -> Tensor:
    mx, my = functional.avg_pool2d(x, 3, 1), functional.avg_pool2d(y, 3, 1)
    vx, vy = functional.avg_pool2d(x * x, 3, 1) - mx * mx, functional.avg_pool2d(y * y, 3, 1) - my * my
    both = functional.avg_pool2d(x * y, 3, 1) - mx * my
    return 1 - ((2 * mx * my + 0.01) * (2 * both + 0.03) / ((mx * mx + my * my + 0.01) * (vx + vy + 0.03))).mean()


def perplexity(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x[:, :-1].flatten(0, 1), y[:, 1:].flatten()).exp()


def graph_norm(x: Tensor, at: Tensor) -> Tensor:
    groups = 16
    ones = torch.ones(x.shape[0], device=x.device, dtype=x.dtype)
    count = torch.zeros(groups, device=x.device, dtype=x.dtype).scatter_add(0, at, ones).clamp(min=1)
    mean = torch.zeros(groups, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, at, x) / count[:, None]
    return x - mean[at]


def bag_mean(table, at: Tensor) -> Tensor:
    return table(at).mean(1)


def band(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1], device=x.device)
    return torch.where((i[:, None] - i).abs() <= 2, x, torch.zeros_like(x)).sum(-1)


CASES: dict[str, Case] = {
    # gathers, losses
    "regions": scaled(lambda n: (Fn(regions), (floats(n, (64, 4), (56, 8), (56, 8)), floats(n, (512, 6), 4)))),
    "depthwise_3d": call(
        lambda c, x: functional.gelu(c(x)),
        ((2, 1), (32, 4), (8, 4), (28, 6), (28, 6)),
        parts=(lambda n: nn.Conv3d(n(32, 4), n(32, 4), 3, padding=1, groups=n(32, 4)),),
    ),
    "distances_nearest": call(distances, (ROWS, (64, 8)), (ROWS, (64, 8))),
    "soft_nms": call(nms_scores, ((512, 12), 4), ((512, 12),)),
    "attend_relative": call(
        attend_relative,
        ((8, 2), (8, 2), (128, 12), (64, 8)),
        ((8, 2), (8, 2), (128, 12), (64, 8)),
        ((8, 2), (8, 2), (128, 12), (64, 8)),
        (17, (8, 2)),
    ),
    "attend_cosine": call(cosine_attention, *(((8, 2), (8, 2), (256, 12), (64, 8)),) * 3),
    "masked_scores": call(masked_scores, ((8, 2), (64, 4), (512, 16)), ((8, 2), (512, 16))),
    "graph_norm": call(graph_norm, ((4096, 24), (64, 8)), whole(16, (4096, 24))),
    "bag_mean": call(bag_mean, whole(64, (512, 4), (32, 6)), parts=(lambda n: nn.Embedding(n(4096, 64), n(128, 16)),)),
    "loss_contrastive": call(contrastive, ((512, 12), (256, 16)), ((512, 12), (256, 16))),
    "loss_dice_maps": call(dice, ((8, 2), (8, 4), (128, 8), (128, 8)), ((8, 2), (8, 4), (128, 8), (128, 8))),
    "loss_ssim": call(ssim, ((8, 2), 3, (128, 10), (128, 10)), ((8, 2), 3, (128, 10), (128, 10))),
    "loss_perplexity": call(perplexity, ((8, 2), (128, 6), (2048, 24)), whole(24, (8, 2), (128, 6))),
    "band_sums": call(band, ((8, 2), (512, 12), (512, 12))),
    "quantized_product": call(quantized, ((256, 8), (512, 16)), ((512, 16), (512, 8))),
    # writes in place, training
    "write_slices": call(write_slices, (ROWS, WIDE)),
    "write_by_mask": call(write_by_mask, (ROWS, WIDE), (ROWS, WIDE)),
    "write_rolling": call(rolling_buffer, ((64, 2), (128, 6), (256, 16)), ((64, 2), (256, 16))),
    "batch_norm_training": scaled(lambda n: (Momentum(n(512, 8)), (floats(n, ROWS, (512, 8)),))),
    "straight_through": call(straight_through, (ROWS, WIDE)),
    # results of many kinds
    "give_tree": call(as_tree, (ROWS, WIDE)),
    "give_ordered": call(ordered, (ROWS, WIDE)),
    "give_nested": call(nested, ((512, 12), (512, 12)), ((512, 12), (512, 12))),
    "give_dtypes": call(mixed_dtypes, (ROWS, WIDE)),
    "give_numbers": call(to_numbers, (ROWS, WIDE)),
    "complex_rotary": call(complex_rotary, ((8, 2), (8, 2), (256, 6), (64, 8))),
    "spectral_layer": scaled(
        lambda n: (
            Fn(spectral, real=torch.randn(n(32, 4), n(32, 4), n(64, 5)), other=torch.randn(n(32, 4), n(32, 4), n(64, 5))),
            (floats(n, (16, 2), (32, 4), (1024, 16)),),
        )
    ),
    "sparse_product": call(sparse_product, ((512, 12), (512, 12)), ((512, 12), (256, 8))),
    "empty_part": call(empty_batch, (ROWS, WIDE)),
    "empty_only": call(only_empty, ((64, 4), (256, 16)), parts=(lambda n: nn.Linear(n(256, 16), n(256, 16)),)),
    "depends_on_values": call(depends, (ROWS, WIDE)),
    "rows_that_count": call(counted_rows, (ROWS, WIDE)),
    "unique_values": call(unique_values, (ROWS, (16, 4))),
}
