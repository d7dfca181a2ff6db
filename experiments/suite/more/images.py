"""Parts of networks on images, volumes and video, and of what is rendered."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call

IMAGE = ((8, 2), (64, 8), (56, 8), (56, 8))
SMALL = ((8, 2), (128, 8), (28, 4), (28, 4))


def conv(i: int = 8, o: int = 8, k: int = 1, **more):
    """Channels in eights where they are large; ``groups`` alike."""

    def make(n):
        groups = {"groups": n(8 * more["groups"], more["groups"])} if "groups" in more else {}
        return nn.Conv2d(n(8 * i, i), n(8 * o, o), k, **{"padding": k // 2, **more, **groups})

    return make


def bn(c: int = 8):
    return lambda n: nn.BatchNorm2d(n(8 * c, c))


def gn(c: int = 8, groups: tuple[int, int] = (16, 2)):
    return lambda n: nn.GroupNorm(n(*groups), n(8 * c, c), eps=1e-6)


def linear(i: int, o: int, **more):
    return lambda n: nn.Linear(n(8 * i, i), n(8 * o, o), **more)


def norm(c: int):
    return lambda n: nn.LayerNorm(n(8 * c, c))


def line_of(*parts):
    return lambda n: nn.Sequential(*(p(n) for p in parts))


# -- diffusion ------------------------------------------------------------------------------------------------------------------


def time_block(n1, c1, to, n2, c2, short, x: Tensor, t: Tensor) -> Tensor:
    """diffusers' ResnetBlock2D with scale and shift by time, and an output scale."""
    y = c1(functional.silu(n1(x)))
    scale, shift = to(functional.silu(t))[:, :, None, None].chunk(2, dim=1)
    y = c2(functional.silu(n2(y) * (1 + scale) + shift))
    return (short(x) + y) / math.sqrt(2.0)


def middle_attention(group, q, k, v, out, x: Tensor) -> Tensor:
    """A VAE's: one head over all pixels."""
    b, c, h, w = x.shape
    y = group(x.view(b, c, h * w)).transpose(1, 2)
    scores = torch.baddbmm(
        torch.empty(b, h * w, h * w, dtype=x.dtype, device=x.device), q(y), k(y).transpose(-1, -2), beta=0, alpha=c**-0.5
    )
    y = out(torch.bmm(scores.softmax(dim=-1), v(y)))
    return (y.transpose(-1, -2).reshape(b, c, h, w) + x) / 1.0


def down_and_up(down, up, x: Tensor) -> Tensor:
    y = down(functional.pad(x, (0, 1, 0, 1), mode="constant", value=0))
    return up(functional.interpolate(y, scale_factor=2.0, mode="nearest"))


# -- detection, segmentation ----------------------------------------------------------------------------------------------------


def fcos_boxes(towers, boxes, centre, classes, scale: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Distances to the sides of a box at each place, and scores weighed by centredness."""
    y = towers(x)
    h, w = x.shape[-2:]
    far = functional.relu(boxes(y) * scale).permute(0, 2, 3, 1).flatten(1, 2) * 8
    ys, xs = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    at = torch.stack((xs, ys), -1).reshape(-1, 2) * 8 + 4
    scores = (classes(y).sigmoid() * centre(y).sigmoid()).sqrt().flatten(2).transpose(1, 2)
    best, kind = scores.max(-1)
    return {"boxes": torch.cat((at - far[..., :2], at + far[..., 2:]), -1).clamp_(0, 8 * w), "scores": best, "labels": kind}


def ssd_boxes(places: Tensor, priors: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    centre = priors[:, :2] + places[..., :2] * 0.1 * priors[:, 2:]
    size = priors[:, 2:] * torch.exp(places[..., 2:] * 0.2)
    boxes = torch.cat((centre - size / 2, size), -1)
    boxes[..., 2:] += boxes[..., :2]
    p = functional.softmax(scores, -1)[..., 1:]
    return boxes.clamp(0, 1), torch.where(p > 0.05, p, torch.zeros_like(p)).amax(-1)


def pooled_pyramid(a, b, last, x: Tensor) -> Tensor:
    """PSPNet's: averages of parts, each put beside the image."""
    size = x.shape[-2:]
    found = [x]
    for parts, f in ((1, a), (2, b)):
        y = functional.relu(f(functional.adaptive_avg_pool2d(x, parts)))
        found.append(functional.interpolate(y, size=size, mode="bilinear", align_corners=True))
    return last(torch.cat(found, 1))


def semantic_head(a, b, c, last, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """A panoptic FPN's: levels come to one size and are added."""
    x = functional.relu(a(x))
    y = functional.interpolate(functional.relu(b(y)), scale_factor=2, mode="bilinear", align_corners=False)
    z = functional.interpolate(functional.relu(c(z)), scale_factor=4, mode="bilinear", align_corners=False)
    return last(x + y + z).argmax(1)


def fused_resolutions(up, n1, down, n2, x: Tensor, y: Tensor) -> list[Tensor]:
    """HRNet's exchange."""
    high = x + functional.interpolate(n1(up(y)), scale_factor=2, mode="nearest")
    low = n2(down(x)) + y
    return [functional.relu(high), functional.relu_(low)]


def deformable(values, at, weights, out, q: Tensor, places: Tensor, maps: Tensor) -> Tensor:
    """Deformable DETR's: a few samples of each head, where the query says."""
    b, n, w = q.shape
    heads, points = 4 if w > 16 else 2, 4
    side = math.isqrt(maps.shape[1])
    v = values(maps).view(b, side, side, heads, -1).permute(0, 3, 4, 1, 2).flatten(0, 1)
    offsets = at(q).view(b, n, heads, points, 2) / side
    grid = 2 * (places[:, :, None, None, :].sigmoid() + offsets) - 1
    weight = weights(q).view(b, n, heads, points).softmax(-1).transpose(1, 2).reshape(b * heads, 1, n, points)
    sampled = functional.grid_sample(v, grid.transpose(1, 2).flatten(0, 1), mode="bilinear", align_corners=False)
    return out((sampled * weight).sum(-1).view(b, w, n).transpose(1, 2).contiguous())


def soft_places(last, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keypoints as means of heat maps, and how wide these are."""
    p = last(x).flatten(2).softmax(-1).view(x.shape[0], -1, *x.shape[2:])
    ys, xs = (torch.linspace(-1, 1, s, device=x.device, dtype=x.dtype) for s in x.shape[2:])
    mean_x, mean_y = (p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)
    spread = (p * ((xs - mean_x[..., None, None]) ** 2 + (ys[:, None] - mean_y[..., None, None]) ** 2)).sum((2, 3))
    return torch.stack([mean_x, mean_y], dim=-1), spread


# -- flow, stereo, rendering ----------------------------------------------------------------------------------------------------


def correlation(x: Tensor, y: Tensor) -> list[Tensor]:
    """RAFT's: all pairs of pixels, and averages of them."""
    b, c, h, w = x.shape
    volume = torch.matmul(x.view(b, c, h * w).transpose(1, 2), y.view(b, c, h * w)) / torch.sqrt(torch.tensor(c).float())
    volume = volume.to(x.dtype).reshape(b * h * w, 1, h, w)
    levels = [volume]
    for _ in range(2):
        levels.append(functional.avg_pool2d(levels[-1], 2, stride=2))
    return levels


def convex_upsample(flow: Tensor, mask: Tensor) -> Tensor:
    n, _, h, w = flow.shape
    mask = torch.softmax(mask.view(n, 1, 9, 4, 4, h, w) * 0.25, dim=2)
    up = functional.unfold(4 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
    return torch.sum(mask * up, dim=2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 4 * h, 4 * w)


def separable_gru(z, r, q, h: Tensor, x: Tensor) -> Tensor:
    both = torch.cat([h, x], dim=1)
    gate = torch.sigmoid(z(both))
    new = torch.tanh(q(torch.cat([torch.sigmoid(r(both)) * h, x], dim=1)))
    return (1 - gate) * h + gate * new


def cost_volume(conv3, x: Tensor, y: Tensor) -> Tensor:
    """Stereo: features beside those shifted by each disparity, then a mean of disparities."""
    b, c, h, w = x.shape
    most = 12 if w > 12 else 3
    volume = x.new_zeros(b, 2 * c, most, h, w)
    for i in range(most):
        volume[:, :c, i, :, i:] = x[..., i:]
        volume[:, c:, i, :, i:] = y[..., : w - i]
    scores = conv3(volume).squeeze(1)
    return (functional.softmax(-scores, dim=1) * torch.arange(most, device=x.device, dtype=x.dtype).view(1, -1, 1, 1)).sum(1)


def finer_samples(bins: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """NeRF's second samples, by the inverse of a sum of weights."""
    weights = weights.abs() + 1e-5
    cdf = torch.cumsum(weights / weights.sum(-1, keepdim=True), -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
    bins, u = bins.sort(-1).values, u.sigmoid().contiguous()
    above = torch.searchsorted(cdf, u, right=True).clamp(max=cdf.shape[-1] - 1)
    below = (above - 1).clamp(min=0)
    (c0, c1), (b0, b1) = ((torch.gather(t, -1, i) for i in (below, above)) for t in (cdf, bins))
    gap = torch.where(c1 - c0 < 1e-5, torch.ones_like(c0), c1 - c0)
    return b0 + (u - c0) / gap * (b1 - b0)


def three_planes(net, planes: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    p = x.tanh()
    found = 0
    for i, two in enumerate(([0, 1], [1, 2], [2, 0])):
        found = found + functional.grid_sample(planes[i][None], p[None, None, :, two], align_corners=True)[0, :, 0].t()
    y = net(found)
    return functional.softplus(y[:, :1] - 1), y[:, 1:].sigmoid() * (1 + 2 * 0.001) - 0.001


def splat_covariances(quaternion: Tensor, log_scale: Tensor, mean: Tensor, view: Tensor) -> Tensor:
    """Gaussian splats as a camera sees them: inverses of 2 × 2 covariances, three numbers each."""
    r, x, y, z = functional.normalize(quaternion, dim=-1).unbind(-1)
    turn = torch.stack(
        [
            torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - r * z), 2 * (x * z + r * y)], -1),
            torch.stack([2 * (x * y + r * z), 1 - 2 * (x * x + z * z), 2 * (y * z - r * x)], -1),
            torch.stack([2 * (x * z - r * y), 2 * (y * z + r * x), 1 - 2 * (x * x + y * y)], -1),
        ],
        -2,
    )
    m = turn * log_scale.tanh().exp()[:, None, :]
    sigma = m @ m.mT
    t = mean @ view.mT
    depth = t[:, 2].abs() + 1
    j = torch.zeros(len(mean), 2, 3, dtype=mean.dtype, device=mean.device)
    j[:, 0, 0], j[:, 1, 1] = 1 / depth, 1 / depth
    j[:, 0, 2], j[:, 1, 2] = -t[:, 0] / depth**2, -t[:, 1] / depth**2
    cov = (j @ view) @ sigma @ (j @ view).mT
    a, b, c = cov[:, 0, 0] + 0.3, cov[:, 0, 1], cov[:, 1, 1] + 0.3
    return torch.stack([c, -b, a], -1) / (a * c - b * b).unsqueeze(-1)


def harmonics(sh: Tensor, d: Tensor) -> Tensor:
    """Colours of a direction, spherical harmonics of degree two."""
    x, y, z = functional.normalize(d, dim=-1).split(1, dim=-1)
    colour = 0.2820948 * sh[..., 0] - 0.4886025 * y * sh[..., 1] + 0.4886025 * z * sh[..., 2] - 0.4886025 * x * sh[..., 3]
    colour = colour + 1.0925484 * x * y * sh[..., 4] - 1.0925484 * y * z * sh[..., 5]
    colour = colour + 0.3153916 * (2.0 * z * z - x * x - y * y) * sh[..., 6] - 1.0925484 * x * z * sh[..., 7]
    return torch.clamp_min(colour + 0.5462742 * (x * x - y * y) * sh[..., 8] + 0.5, 0.0)


CASES: dict[str, Case] = {
    "time_block": call(
        time_block,
        IMAGE,
        ((8, 2), (256, 32)),
        parts=(gn(), conv(8, 16, 3), linear(32, 32), gn(16), conv(16, 16, 3), conv(8, 16)),
    ),
    "middle_attention": call(
        middle_attention,
        ((4, 2), (128, 16), (32, 4), (32, 4)),
        parts=(gn(16), *(lambda n: nn.Linear(n(128, 16), n(128, 16)),) * 4),
    ),
    "down_and_up": call(down_and_up, IMAGE, parts=(conv(8, 8, 3, stride=2, padding=0), conv(8, 8, 3))),
    "fcos_boxes": call(
        fcos_boxes,
        (1,),
        ((4, 2), (64, 8), (40, 5), (40, 5)),
        parts=(
            line_of(conv(8, 8, 3), gn(), lambda n: nn.ReLU(), conv(8, 8, 3), gn(), lambda n: nn.ReLU()),
            lambda n: nn.Conv2d(n(64, 8), 4, 3, padding=1),
            lambda n: nn.Conv2d(n(64, 8), 1, 3, padding=1),
            lambda n: nn.Conv2d(n(64, 8), n(80, 5), 3, padding=1),
        ),
    ),
    "ssd_boxes": call(ssd_boxes, ((16, 2), (8732, 9), 4), lambda n: torch.rand(n(8732, 9), 4), ((16, 2), (8732, 9), (21, 5))),
    "pooled_pyramid": call(pooled_pyramid, IMAGE, parts=(conv(8, 2), conv(8, 2), conv(12, 8, 3))),
    "semantic_head": call(
        semantic_head,
        ((4, 2), (64, 8), (64, 8), (64, 8)),
        ((4, 2), (64, 8), (32, 4), (32, 4)),
        ((4, 2), (64, 8), (16, 2), (16, 2)),
        parts=(*(line_of(conv(8, 4, 3), gn(4)),) * 3, lambda n: nn.Conv2d(n(32, 4), 19, 1)),
    ),
    "fused_resolutions": call(
        fused_resolutions,
        ((8, 2), (32, 4), (56, 8), (56, 8)),
        ((8, 2), (64, 8), (28, 4), (28, 4)),
        parts=(conv(8, 4, bias=False), bn(4), conv(4, 8, 3, stride=2, bias=False), bn(8)),
    ),
    "deformable_attention": call(
        deformable,
        ((4, 2), (300, 6), (128, 16)),
        ((4, 2), (300, 6), 2),
        ((4, 2), (1024, 16), (128, 16)),
        parts=(
            linear(16, 16),
            lambda n: nn.Linear(n(128, 16), n(32, 16)),
            lambda n: nn.Linear(n(128, 16), n(16, 8)),
            linear(16, 16),
        ),
    ),
    "soft_places": call(soft_places, ((16, 2), (64, 8), (64, 6), (48, 5)), parts=(lambda n: nn.Conv2d(n(64, 8), 17, 1),)),
    "correlation": call(correlation, *(((2, 1), (128, 8), (32, 8), (32, 8)),) * 2),
    "convex_upsample": call(convex_upsample, ((4, 2), 2, (48, 5), (64, 6)), ((4, 2), 144, (48, 5), (64, 6))),
    "separable_gru": call(
        separable_gru,
        *(((4, 2), (64, 8), (48, 5), (64, 6)),) * 2,
        parts=(lambda n: nn.Conv2d(n(128, 16), n(64, 8), (1, 5), padding=(0, 2)),) * 3,
    ),
    "cost_volume": call(
        cost_volume,
        *(((2, 1), (16, 4), (64, 5), (80, 7)),) * 2,
        parts=(lambda n: nn.Conv3d(n(32, 8), 1, 3, padding=1, bias=False),),
    ),
    "finer_samples": call(finer_samples, ((4096, 6), (64, 8)), ((4096, 6), (63, 7)), ((4096, 6), (128, 9))),
    "three_planes": call(
        three_planes,
        (3, (32, 8), (128, 8), (128, 8)),
        ((65536, 20), 3),
        parts=(lambda n: nn.Sequential(nn.Linear(n(32, 8), 64), nn.Softplus(), nn.Linear(64, 4)),),
    ),
    "splat_covariances": call(splat_covariances, ((65536, 12), 4), ((65536, 12), 3), ((65536, 12), 3), (3, 3)),
    "sphere_colours": call(harmonics, ((65536, 12), 3, 9), ((65536, 12), 3)),
}
