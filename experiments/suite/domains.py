"""Parts of public collections that know what their numbers are: graphs, points, boxes, images, sound, losses, measures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import whole

ROWS, WIDE = (1024, 12), (2048, 24)
TOKENS = ((8, 2), (256, 6), (512, 16))


# -- graphs, points, images, sound ----------------------------------------------------------------------------------------------


def gat(x: Tensor, left: Tensor, right: Tensor, edges: Tensor) -> Tensor:
    """Attention over edges, its softmax by maxima and sums that are scattered."""
    source, target = edges
    score = functional.leaky_relu((x @ left)[source] + (x @ right)[target], 0.2)
    most = torch.full((x.shape[0],), -1e9, device=x.device, dtype=x.dtype).scatter_reduce(0, target, score, "amax")
    weight = (score - most[target]).exp()
    total = torch.zeros_like(most).index_add(0, target, weight)
    return torch.zeros_like(x).index_add(0, target, (weight / (total[target] + 1e-9))[:, None] * x[source])


def edge_conv(mlp, x: Tensor) -> Tensor:
    """DGCNN's: the nearest of each point, their differences, the largest."""
    near = torch.cdist(x.float(), x.float()).topk(4, largest=False).indices
    b, t, c = x.shape
    around = x.gather(1, near.view(b, -1, 1).expand(-1, -1, c)).view(b, t, 4, c)
    mine = x[:, :, None].expand_as(around)
    return mlp(torch.cat((mine, around - mine), -1)).amax(2)


def gin(mlp, adjacency: Tensor, x: Tensor) -> Tensor:
    a = (adjacency > 1).to(x.dtype)
    degree = a.sum(-1, keepdim=True).clamp(min=1)
    return mlp(1.1 * x + (a @ x) / degree.sqrt())


def farthest(x: Tensor) -> Tensor:
    """Farthest points, some of them."""
    found = torch.zeros(x.shape[0], 6, dtype=torch.long, device=x.device)
    apart = torch.full(x.shape[:2], 1e10, device=x.device, dtype=x.dtype)
    last = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    each = torch.arange(x.shape[0], device=x.device)
    for i in range(6):
        found[:, i] = last
        apart = torch.minimum(apart, (x - x[each, last][:, None]).square().sum(-1))
        last = apart.argmax(-1)
    return found


def decode_boxes(anchors: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    size, centre = anchors[:, 2:].exp(), anchors[:, :2]
    d = deltas * torch.tensor([0.1, 0.1, 0.2, 0.2], device=deltas.device, dtype=deltas.dtype)
    mid, wide = d[..., :2] * size + centre, d[..., 2:].clamp(max=4.0).exp() * size
    boxes = torch.cat((mid - wide / 2, mid + wide / 2), -1).clamp(0, 10)
    return boxes, (boxes[..., 2:] - boxes[..., :2]).prod(-1) > 0.5


def distribution_boxes(x: Tensor) -> Tensor:
    """Distances as distributions (YOLO's), and boxes of them."""
    b, c, h, w = x.shape
    bins = c // 4
    d = (x.view(b, 4, bins, h * w).softmax(2) * torch.arange(bins, device=x.device, dtype=x.dtype)[:, None]).sum(2)
    ys, xs = torch.meshgrid(torch.arange(h, device=x.device) + 0.5, torch.arange(w, device=x.device) + 0.5, indexing="ij")
    at = torch.stack((xs, ys)).flatten(1).to(x.dtype)
    return torch.cat((at - d[:, :2], at + d[:, 2:]), 1)


def centre_peaks(x: Tensor) -> dict[str, Tensor]:
    heat = x.sigmoid()
    kept = heat * (functional.max_pool2d(heat, 3, 1, 1) == heat).to(x.dtype)
    scores, at = kept.flatten(1).topk(8)
    area = x.shape[-1] * x.shape[-2]
    return {"scores": scores, "classes": at // area, "row": (at % area) // x.shape[-1], "column": (at % area) % x.shape[-1]}


def mel_spectrum(mel: Tensor, window: Tensor, x: Tensor) -> Tensor:
    bands = (mel.shape[0] - 1) * 2
    found = torch.stft(x, bands, bands // 4, window=window, center=True, return_complex=True).abs().square()
    return torch.log((mel.abs().T @ found).clamp(min=1e-5))


def overlap_and_add(frames: Tensor, window: Tensor) -> Tensor:
    """Frames half over each other."""
    y, hop = frames * window, frames.shape[-1] // 2
    return functional.pad(y[..., :hop].flatten(1), (0, hop)) + functional.pad(y[..., hop:].flatten(1), (hop, 0))


def fourier_mix(x: Tensor) -> Tensor:
    return torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real.to(x.dtype)


def complex_gain(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(gain.float().abs(), gain.float())
    return torch.view_as_real(z).flatten(-2), z.abs()


def blurred_edges(x: Tensor, kernel: Tensor) -> Tensor:
    c = x.shape[1]
    y = functional.conv2d(functional.pad(x, (2, 2, 2, 2), mode="reflect"), kernel.expand(c, 1, 5, 5), groups=c)
    return (x - y).abs().amax(1, keepdim=True)


def warped(x: Tensor, flow: Tensor) -> Tensor:
    h, w = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    at = torch.stack((xs, ys)).to(x.dtype) + flow
    at = torch.stack((2 * at[:, 0] / (w - 1) - 1, 2 * at[:, 1] / (h - 1) - 1), -1)
    return functional.grid_sample(x, at, padding_mode="border", align_corners=True)


def as_bytes(x: Tensor) -> Tensor:
    """Normalized floats back to pixels."""
    return (x * 58.4 + 116).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def from_bytes(x: Tensor) -> Tensor:
    mean = torch.tensor([123.7, 116.3, 103.5], device=x.device)
    return ((x.float() - mean) / 57.0).permute(0, 3, 1, 2)


# -- losses and the rest --------------------------------------------------------------------------------------------------------


def sigmoid_pairs(a: Tensor, b: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """SigLIP's."""
    logits = functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T * scale.exp() + bias
    signs = 2 * torch.eye(a.shape[0], device=a.device, dtype=a.dtype) - 1
    return -functional.logsigmoid(signs * logits).sum() / a.shape[0]


def preference(chosen: Tensor, rejected: Tensor, at: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """DPO's, of summed log-probabilities."""
    sums = [x.log_softmax(-1).gather(-1, y[..., None]).squeeze(-1).sum(-1) for x, y in ((chosen, at), (rejected, other))]
    margin = 0.1 * (sums[0] - sums[1])
    return -functional.logsigmoid(margin).mean(), (margin > 0).float().mean()


def advantages(rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """GAE, from the last step to the first."""
    found, last = [], torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1] - 1)):
        last = rewards[:, t] + 0.99 * values[:, t + 1] - values[:, t] + 0.94 * last
        found.append(last)
    out = torch.stack(found[::-1], 1)
    return out, (out - out.mean()) / (out.std() + 1e-8)


def clipped_policy(new: Tensor, old: Tensor, gain: Tensor) -> Tensor:
    ratio = (new - old).exp()
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + 0.01 * (new.exp() * new).mean()


def centre_kernel(x: Tensor, y: Tensor) -> Tensor:
    """CKA of two sets of features."""
    x, y = x - x.mean(0), y - y.mean(0)
    return (y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm())


def coral(a: Tensor, b: Tensor) -> Tensor:
    return (torch.cov(a.T) - torch.cov(b.T)).square().sum() / (4 * a.shape[1] ** 2)


def quantile_huber(x: Tensor, y: Tensor) -> Tensor:
    at = (torch.arange(x.shape[1], device=x.device, dtype=x.dtype) + 0.5) / x.shape[1]
    apart = y[:, None] - x[:, :, None]
    hub = torch.where(apart.abs() <= 1, 0.5 * apart**2, apart.abs() - 0.5)
    return ((at[:, None] - (apart.detach() < 0).to(x.dtype)).abs() * hub).sum(1).mean()


def calibration(x: Tensor, y: Tensor) -> Tensor:
    """Expected calibration error over ten bins."""
    p = x.softmax(-1)
    sure, said = p.max(-1)
    right = (said == y).to(x.dtype)
    bins = torch.linspace(0, 1, 11, device=x.device, dtype=x.dtype)
    inside = ((sure[:, None] > bins[:-1]) & (sure[:, None] <= bins[1:])).to(x.dtype)
    share = inside.mean(0)
    mean = inside.sum(0).clamp(min=1)
    return (((inside * right[:, None]).sum(0) / mean - (inside * sure[:, None]).sum(0) / mean).abs() * share).sum()


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2].mul_(2).add_(1)
    y[y < 0] = 0
    y[:, -1] = y[:, 0]
    return y.clamp_(max=3)


def by_word_starts(x: Tensor, starts: Tensor) -> Tensor:
    """Means of sub-words, by cumulative sums."""
    ids = (starts > 0).cumsum(1)
    sums = torch.zeros(x.shape[0], x.shape[1] + 1, x.shape[2], device=x.device, dtype=x.dtype)
    sums = sums.scatter_add(1, ids[..., None].expand_as(x), x)
    counts = torch.zeros(x.shape[0], x.shape[1] + 1, device=x.device, dtype=x.dtype).scatter_add(
        1, ids, torch.ones_like(x[..., 0])
    )
    return sums / counts.clamp(min=1)[..., None]


def nested_einsum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.einsum("bxi,byj,ijk->bxyk", a, b, c)


def sampled(logits: Tensor) -> tuple[Tensor, Tensor]:
    """A few largest kept, the rest at minus infinity, and the entropy."""
    least = torch.topk(logits, 8).values[..., -1:]
    kept = torch.where(logits < least, torch.full_like(logits, float("-inf")), logits)
    p = kept.softmax(-1)
    return p, torch.special.entr(p).sum(-1)


CASES: dict[str, Case] = {
    "zoo_gat": call(gat, ((2048, 12), (128, 8)), ((128, 8),), ((128, 8),), whole(12, 2, (8192, 40))),
    "zoo_edge_conv": call(
        edge_conv, ((8, 2), (256, 8), (32, 4)), parts=(lambda n: nn.Sequential(nn.Linear(n(64, 8), n(64, 8)), nn.ReLU()),)
    ),
    "zoo_gin": call(
        gin,
        ((8, 2), (256, 8), (256, 8)),
        ((8, 2), (256, 8), (128, 8)),
        parts=(lambda n: nn.Sequential(nn.Linear(n(128, 8), n(128, 8)), nn.ReLU(), nn.Linear(n(128, 8), n(128, 8))),),
    ),
    "zoo_farthest": call(farthest, ((8, 2), (1024, 12), 3)),
    "zoo_decode_boxes": call(decode_boxes, ((8192, 12), 4), ((8, 2), (8192, 12), 4)),
    "zoo_distribution_boxes": call(distribution_boxes, ((8, 2), 64, (40, 4), (40, 4))),
    "zoo_centre_peaks": call(centre_peaks, ((8, 2), (20, 3), (64, 6), (64, 6))),
    "zoo_mel_spectrum": call(mel_spectrum, ((201, 17), (80, 8)), ((400, 32),), ((8, 2), (16000, 128))),
    "zoo_overlap_and_add": call(overlap_and_add, ((8, 2), (128, 6), (512, 16)), ((512, 16),)),
    "zoo_fourier_mix": call(fourier_mix, TOKENS),
    "zoo_complex_gain": call(complex_gain, (ROWS, (1024, 16)), ((512, 8),)),
    "zoo_blurred_edges": call(blurred_edges, ((8, 2), 3, (224, 10), (224, 10)), (1, 1, 5, 5)),
    "zoo_warped": call(warped, ((8, 2), (16, 3), (64, 6), (64, 6)), ((8, 2), 2, (64, 6), (64, 6))),
    "zoo_as_bytes": call(as_bytes, ((8, 2), 3, (224, 8), (224, 8))),
    "zoo_from_bytes": call(from_bytes, lambda n: torch.randint(0, 256, (n(8, 2), n(224, 8), n(224, 8), 3), dtype=torch.uint8)),
    "zoo_sigmoid_pairs": call(sigmoid_pairs, ((512, 12), (512, 16)), ((512, 12), (512, 16)), (), ()),
    "zoo_preference": call(
        preference,
        ((8, 2), (64, 6), (4096, 24)),
        ((8, 2), (64, 6), (4096, 24)),
        whole(24, (8, 2), (64, 6)),
        whole(24, (8, 2), (64, 6)),
    ),
    "zoo_advantages": call(advantages, ((256, 12), (17, 5)), ((256, 12), (17, 5))),
    "zoo_clipped_policy": call(clipped_policy, ((8192, 24),), ((8192, 24),), ((8192, 24),)),
    "zoo_centre_kernel": call(centre_kernel, (ROWS, (256, 16)), (ROWS, (128, 8))),
    "zoo_coral": call(coral, (ROWS, (128, 8)), (ROWS, (128, 8))),
    "zoo_quantile_huber": call(quantile_huber, ((256, 6), (64, 8)), ((256, 6), (64, 8))),
    "zoo_calibration": call(calibration, ((4096, 24), (100, 8)), whole(8, (4096, 24))),
    "zoo_in_place": call(in_place, (ROWS, WIDE)),
    "zoo_word_means": call(by_word_starts, TOKENS, lambda n: (torch.rand(n(8, 2), n(256, 6)) > 0.6).long()),
    "zoo_nested_einsum": call(nested_einsum, ((8, 2), (64, 6), (32, 4)), ((8, 2), (64, 6), (32, 4)), ((32, 4), (32, 4), (16, 4))),
    "zoo_sampled": call(sampled, ((32, 4), (32000, 24))),
}
