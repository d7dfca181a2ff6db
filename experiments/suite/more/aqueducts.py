"""What somebody else would ask of a compiler: products, prices, stencils, pictures, losses, decoding, blocks."""

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
from experiments.suite.more.belfries import heard
from experiments.suite.more.gables import joined
from experiments.suite.more.operators import below
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import sizes
from experiments.suite.users import whole


def positive(*shape):
    return lambda n: floats(n, *shape).abs() + 0.1


def octets(*shape):
    return lambda n: torch.randint(0, 256, sizes(n, shape), dtype=torch.uint8)


def near_identity(*shape):
    return lambda n: torch.eye(sizes(n, shape)[-1]) + 0.08 * floats(n, *shape)


def one_mode_of_three(x: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """CP by alternating least squares: one mode's new factor by a product of Khatri and Rao, columns of length one."""
    gram = (b.mT @ b) * (c.mT @ c) + 1e-2 * torch.eye(b.shape[1], dtype=b.dtype, device=b.device)
    a = torch.linalg.solve(gram, torch.einsum("ijk,jr,kr->ir", x, b, c).mT).mT
    size = torch.linalg.vector_norm(a, dim=0)
    return a / size, size


def drawdowns(x: Tensor) -> dict[str, Tensor]:
    """A backtest's report: what is won, how deep it fell and since when, Sharpe's and Sortino's ratios, a share of good days."""
    r = 0.01 * x + 2e-4
    wealth = torch.exp(torch.cumsum(torch.log1p(r), 1))
    deep = wealth / torch.cummax(wealth, 1).values - 1.0
    bad = torch.sqrt(torch.mean(torch.clamp(r, max=0.0) ** 2, 1))
    year = math.sqrt(252)
    return {
        "total": wealth[:, -1] - 1.0,
        "deepest": deep.amin(1),
        "at": deep.argmin(1),
        "pain": deep.mean(1),
        "hits": (r > 0).to(r.dtype).mean(1),
        "sharpe": r.mean(1) / r.std(1) * year,
        "sortino": r.mean(1) / bad * year,
    }


def barriers_and_averages(z: Tensor, strikes: Tensor) -> tuple[Tensor, Tensor]:
    """Monte Carlo of three exotic options: means of the path, a barrier below, the least price so far; and their errors."""
    t = z.shape[1]
    s = 100.0 * torch.exp(torch.cumsum((0.03 - 0.5 * 0.2**2) / t + 0.2 / math.sqrt(t) * z, 1))
    low, end, k = s.amin(1, keepdim=True), s[:, -1:], 100.0 + 5.0 * strikes
    asian = torch.relu(s.mean(1, keepdim=True) - k)
    out = torch.where(low > 85.0, torch.relu(end - k), 0.0)
    paid = math.exp(-0.03) * torch.cat([asian, out, end - low], 1)
    return paid.mean(0), paid.std(0) / math.sqrt(len(z))


def tails_of_portfolios(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value at risk, expected shortfall, and how much of it each holding brings, of weights that are a softmax."""
    w = torch.softmax(w, 1)
    worst = torch.topk(w @ x, max(x.shape[1] // 100, 2), dim=1, largest=False)
    brought = x.T[worst.indices].mean(1) * w
    return -worst.values[:, -1], -worst.values.mean(1), -brought


def gray_scott(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Two substances that spread and react on a torus, four steps."""

    def spread(x: Tensor) -> Tensor:
        sides = x.roll(1, -1) + x.roll(-1, -1) + x.roll(1, -2) + x.roll(-1, -2)
        return 0.2 * sides + 0.05 * (sides.roll(1, -1) - x.roll((1, 0), (-1, -2)) - x.roll((-1, 0), (-1, -2))) - 0.9 * x

    u, v = torch.sigmoid(u), 0.5 * torch.sigmoid(v)
    for _ in range(4):
        uvv = u * v * v
        u, v = u + 0.16 * spread(u) - uvv + 0.035 * (1 - u), v + 0.08 * spread(v) + uvv - 0.1 * v
    return u, v


def soft_census(a: Tensor, b: Tensor) -> Tensor:
    """UFlow's loss: each pixel's neighbours as soft signs, a soft count of those that differ, edges left out."""
    grey = torch.tensor([0.2989, 0.587, 0.114], dtype=a.dtype, device=a.device).view(1, 3, 1, 1)

    def signs(x: Tensor) -> Tensor:
        x = (x * grey).sum(1, keepdim=True) * 255.0
        d = functional.unfold(x, 7, padding=3).view(len(x), 49, *x.shape[2:]) - x
        return d / torch.sqrt(0.81 + d**2)

    d = (signs(a) - signs(b)) ** 2
    d = (d / (0.1 + d)).sum(1, keepdim=True)[..., 3:-3, 3:-3]
    return torch.sqrt(d**2 + 0.001**2).mean((1, 2, 3))


def video_planes_to_rgb(y: Tensor, uv: Tensor) -> Tensor:
    """NV12's planes of bytes to normalised pictures, by BT.709."""
    y = (y.float() - 16.0) * 1.164
    u, v = (uv.float() - 128.0).repeat_interleave(2, 1).repeat_interleave(2, 2).unbind(-1)
    x = torch.stack([y + 1.793 * v, y - 0.213 * u - 0.533 * v, y + 2.112 * u], 1).clamp(0, 255).round() / 255.0
    mean, std = (torch.tensor(s, device=x.device).view(1, 3, 1, 1) for s in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return (x - mean) / std


def film_tones(x: Tensor, cube: Tensor) -> Tensor:
    """A curve of film for light without bounds, sRGB's gamma, a cube of colours between whose points is interpolated."""
    x = x * 0.6
    x = (x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14)).clamp(0.0, 1.0)
    x = torch.where(x <= 0.0031308, 12.92 * x, 1.055 * x.clamp(min=1e-4).pow(1 / 2.4) - 0.055)
    at = (x.permute(0, 2, 3, 1) * 2 - 1).unsqueeze(1)
    y = functional.grid_sample(cube.expand(len(x), -1, -1, -1, -1), at, padding_mode="border", align_corners=True)
    return 0.8 * y.squeeze(2) + 0.2 * x


def homography_warp(x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures seen through a projective map, and which pixels come from inside."""
    h, w = x.shape[2:]
    ys, xs = torch.linspace(-1, 1, h, dtype=x.dtype, device=x.device), torch.linspace(-1, 1, w, dtype=x.dtype, device=x.device)
    v, u = torch.meshgrid(ys, xs, indexing="ij")
    p = torch.stack([u, v, torch.ones_like(u)], -1).view(1, -1, 3) @ turn.mT
    at = (p[..., :2] / p[..., 2:].clamp(min=0.1)).view(len(x), h, w, 2)
    inside = (at.abs() <= 1).all(-1, keepdim=True).permute(0, 3, 1, 2)
    return functional.grid_sample(x, at, mode="bilinear", padding_mode="zeros", align_corners=True) * inside, inside


def boxes_of_masks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of logits: the boxes around them, the mean certainty within, and overlaps of all pairs by a product."""
    m = x > 2.0
    across, down = m.any(1).int(), m.any(2).int()
    ends = [f(t).argmax(1) for t in (across, down) for f in (lambda t: t, lambda t: t.flip(1))]
    box = torch.stack([ends[0], ends[2], x.shape[2] - 1 - ends[1], x.shape[1] - 1 - ends[3]], 1).to(x.dtype)
    flat = m.flatten(1).to(x.dtype)
    area, both = flat.sum(1), flat @ flat.T
    sure = (torch.sigmoid(x) * m).sum((1, 2)) / area.clamp(min=1.0)
    return box, sure, both / (area[:, None] + area - both).clamp(min=1.0)


def generalised_means_whitened(line, given, x: Tensor) -> Tensor:
    """GeM for retrieval: powers that are learned, of the whole picture and of overlapping regions, then whitened."""
    p = 1.0 + functional.softplus(given[0]).view(1, -1, 1, 1)
    y = x.clamp(min=1e-4).pow(p)
    parts = functional.avg_pool2d(y, (y.shape[2] // 2, y.shape[3] // 2), (y.shape[2] // 4, y.shape[3] // 4)).pow(1 / p)
    all_of_it = y.mean((2, 3), keepdim=True).pow(1 / p).flatten(1)
    y = functional.normalize(all_of_it, dim=1) + functional.normalize(parts, dim=1).mean((2, 3))
    return functional.normalize(line(y), dim=1)


def sampson_consensus(f: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Many fundamental matrices, Sampson's distances of all matches, and the matrix that the most agree with."""
    a, b = (functional.pad(t, (0, 1), value=1.0) for t in (a, b))
    left, right = torch.einsum("mij,nj->mni", f, a), torch.einsum("mji,nj->mni", f, b)
    d = (b * left).sum(-1) ** 2 / (left[..., :2].square().sum(-1) + right[..., :2].square().sum(-1) + 1e-6)
    score = torch.relu(1.0 - d / 0.05).sum(1)
    best = score.argmax().unsqueeze(0)
    return score, f.index_select(0, best), d.index_select(0, best) < 0.05


def spectral_shapes(x: Tensor) -> Tensor:
    """Centroid, bandwidth, roll-off, flatness and flux of a magnitude spectrogram."""
    f = torch.linspace(0, 11025, x.shape[1], dtype=x.dtype, device=x.device).view(1, -1, 1)
    total, power = x.sum(1, keepdim=True), x * x
    centre = (f * x).sum(1, keepdim=True) / total
    wide = torch.sqrt(((f - centre) ** 2 * x).sum(1, keepdim=True) / total)
    most = torch.where(torch.cumsum(x, 1) >= 0.85 * total, f, 11025.0).amin(1, keepdim=True)
    flat = torch.exp(torch.log(power + 1e-10).mean(1, keepdim=True)) / power.mean(1, keepdim=True)
    flux = functional.pad(torch.relu(x.diff(dim=2)).square().sum(1, keepdim=True).sqrt(), (1, 0))
    return torch.cat([centre, wide, most, flat, flux], 1)


def adaptive_robust(given, x: Tensor, y: Tensor) -> Tensor:
    """Barron's general loss, its shape and scale learned for each channel."""
    shape, scale = 0.1 + 1.8 * torch.sigmoid(given[0]), 0.01 + functional.softplus(given[1])
    d, b = (x - y) / scale, 2.0 - shape
    loss = b / shape * (torch.pow(d * d / b + 1.0, 0.5 * shape) - 1.0) + torch.log(scale)
    return loss.mean((0, 2, 3))


def unlikely_words(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Unlikelihood: beside cross entropy, words that came earlier should not come again."""
    t, logp = target.shape[1], torch.log_softmax(logits, -1)
    before = target.unsqueeze(1).expand(-1, t, -1)
    again = torch.ones(t, t, dtype=torch.bool, device=logits.device).tril(-1) & (before != target.unsqueeze(2))
    again = torch.log((1.0 - logp.gather(2, before).exp()).clamp(min=1e-5)) * again
    return -logp.gather(2, target.unsqueeze(2)).mean(), -again.sum((1, 2)).mean()


def chosen_children(n: Tensor, w: Tensor, prior: Tensor, legal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """AlphaZero's choice in many trees at once: PUCT with first-play urgency, and a virtual loss where it went."""
    n = torch.floor(20 * torch.relu(n)) * (legal < 5)
    w = torch.tanh(w) * n
    p = torch.softmax(torch.where(legal < 5, prior, -1e4), 1)
    many = n.sum(1, keepdim=True)
    seen = torch.sqrt((p * (n > 0)).sum(1, keepdim=True))
    q = torch.where(n > 0, w / n.clamp(min=1), w.sum(1, keepdim=True) / many.clamp(min=1) - 0.25 * seen)
    u = (torch.log((many + 19653) / 19652) + 1.25) * p * torch.sqrt(many + 1) / (1 + n)
    best, one_more = torch.where(legal < 5, q + u, -1e4).max(1, keepdim=True).indices, torch.ones_like(many)
    return best, n.scatter_add(1, best, one_more), w.scatter_add(1, best, -one_more)


def clipped_curvature(p: list[Tensor], g: list[Tensor], m: list[Tensor], h: list[Tensor]) -> tuple:
    """Sophia on a list of tensors: momentum over an average of squares as curvature, cut at one; the share that was cut."""
    size = torch.sqrt(sum(x.square().sum() for x in g))
    g = [x * torch.clamp(1.0 / (size + 1e-6), max=1.0) for x in g]
    m = [a.lerp(b, 0.035) for a, b in zip(m, g, strict=True)]
    h = [0.99 * a.abs() + 0.01 * b * b for a, b in zip(h, g, strict=True)]
    step = [a / (2.0 * b).clamp(min=1e-12) for a, b in zip(m, h, strict=True)]
    new = [a * (1 - 1e-4) - 1e-3 * s.clamp(-1.0, 1.0) for a, s in zip(p, step, strict=True)]
    return new, m, h, sum((s.abs() >= 1).sum() for s in step)


def shares_clipped_and_masked(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers within bounds as shares of their rows, columns that do not count left out, matrices no longer than two."""
    y = torch.clamp(x, -3.0, 3.0)
    y = torch.where(keep.unsqueeze(1), y / (y.abs().sum(-1, keepdim=True) + 1e-6), 0.0)
    size = torch.linalg.matrix_norm(y, keepdim=True)
    return y * torch.clamp(0.4 / (size + 1e-6), max=1.0), size.flatten()


# -- in two bytes ---------------------------------------------------------------------------------------------------------------


def shaw_heads(tables, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Shaw's attention: distances up to a bound have keys and values of their own."""
    t, far = torch.arange(q.shape[2], device=q.device), len(tables[0]) // 2
    at = (t - t[:, None]).clamp(-far, far) + far
    s = (q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, tables[0][at])) * q.shape[-1] ** -0.5
    w = torch.softmax(s, -1)
    return w @ v + torch.einsum("bhqk,qkd->bhqd", w, tables[1][at])


def rolled_out_maps(x: Tensor) -> Tensor:
    """Rollout: maps of all layers, heads averaged, multiplied with what passes by; the class token's as a picture."""
    a = torch.softmax(x, -1).mean(2)
    a = 0.5 * (a + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))
    y = a[0]
    for layer in a[1:]:
        y = layer @ y
    side = math.isqrt(y.shape[-1] - 1)
    y = y[:, 0, 1:].reshape(-1, 1, side, side)
    return functional.interpolate(y / y.amax((2, 3), keepdim=True), scale_factor=16, mode="bilinear", align_corners=False)


def strided_and_local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sparse transformer: half of the heads see what is near, the others every 32nd token before."""
    t = torch.arange(q.shape[2], device=q.device)
    d = t[:, None] - t
    near, far = (d >= 0) & (d < 32), (d >= 0) & (d % 32 == 0)
    seen = torch.stack([near, far]).repeat_interleave(q.shape[1] // 2, 0)
    return joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=seen))


class AggregatedOnce(nn.Module):
    """VoVNet: all convolutions of a chain side by side at its end only, a gate of means, what came in."""

    def __init__(self, c: int, m: int, depth: int = 5) -> None:
        super().__init__()
        self.chain = nn.ModuleList(
            nn.Sequential(nn.Conv2d(m if i else c, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m), nn.ReLU()) for i in range(depth)
        )
        self.join = nn.Sequential(nn.Conv2d(c + depth * m, c, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.gate = nn.Conv2d(c, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.chain:
            kept.append(layer(kept[-1]))
        y = self.join(torch.cat(kept, 1))
        return x + y * functional.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))


def heun_step(first, middle, last, noise, x: Tensor, sigma: Tensor) -> Tensor:
    """EDM's sampler: scaled in and out around a network by how much noise there is, corrected by a second slope."""

    def slope(x: Tensor, s: Tensor) -> Tensor:
        root, t = torch.sqrt(s * s + 0.25), noise(torch.log(s).view(-1, 1) * 0.25)
        y = last(functional.silu(middle(functional.silu(first(x / root) + t[:, :, None, None]))))
        return (x - (0.25 / root**2 * x + 0.5 * s / root * y)) / s

    now = sigma.view(-1, 1, 1, 1)
    then = 0.7 * now
    d = slope(x, now)
    return x + (then - now) * 0.5 * (d + slope(x + (then - now) * d, then))


def green_list_then_sigma(logits: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A watermark: words that the last one's hash favours; then only logits near the largest; how green the text was."""

    def green(word: Tensor, before: Tensor) -> Tensor:
        return ((word * 2654435761) ^ (before * 40503)) % 1013 % 4 == 0

    words = torch.arange(logits.shape[1], device=logits.device)
    x = logits.float() + 2.0 * green(words, text[:, -1:])
    low = x.amax(1, keepdim=True) - 1.5 * x.std(1, keepdim=True)
    p = torch.softmax(x.masked_fill(x < low, -torch.inf), 1)
    share = green(text[:, 1:], text[:, :-1]).float().mean(1)
    return p.to(logits.dtype), p.argmax(1), (share - 0.25) * math.sqrt((text.shape[1] - 1) / (0.25 * 0.75))


HEADS = ((8, 2), (8, 2), (256, 5), (64, 4))
LIST = (((1000, 5), (768, 4)), ((768, 4),), ((2048, 7), (768, 4)), ((197, 3), 1, (768, 4)))
FLOAT32: dict[str, Case] = {
    "one_mode_of_three": call(one_mode_of_three, ((197, 5), (333, 9), (256, 8)), ((333, 9), (24, 3)), ((256, 8), (24, 3))),
    "symmetric_rank_two": call(
        lambda a, b, c: torch.tril(0.7 * (a @ b.T + b @ a.T) + 0.3 * c),
        *(((1500, 7), (333, 5)), ((1500, 7), (333, 5)), ((1500, 7), (1500, 7))),
    ),
    "least_of_turned_product": call(
        lambda x, y, bias: [f(x.T @ y + bias.unsqueeze(1), dim=0) for f in (torch.amin, torch.argmin)],
        *(((4096, 9), (333, 5)), ((4096, 9), (777, 6)), ((333, 5),)),
    ),
    "drawdowns": call(drawdowns, ((5000, 6), (1260, 30))),
    "barriers_and_averages": call(barriers_and_averages, ((65536, 50), (252, 9)), ((17, 3),)),
    "tails_of_portfolios": call(tails_of_portfolios, ((64, 3), (500, 5)), ((500, 5), (10000, 40))),
    "gray_scott": call(gray_scott, ((8, 2), (256, 7), (333, 6)), ((8, 2), (256, 7), (333, 6))),
    "soft_census": call(soft_census, ((4, 2), 3, (197, 9), (333, 10)), ((4, 2), 3, (197, 9), (333, 10))),
    "video_planes_to_rgb": call(video_planes_to_rgb, octets((2, 1), (1080, 6), (1920, 8)), octets((2, 1), (540, 3), (960, 4), 2)),
    "film_tones": call(film_tones, positive((4, 2), 3, (540, 6), (960, 7)), positive(1, 3, (33, 4), (33, 4), (33, 4))),
    "homography_warp": call(homography_warp, ((16, 2), 3, (224, 8), (320, 9)), near_identity((16, 2), 3, 3)),
    "boxes_of_masks": call(boxes_of_masks, ((200, 3), (333, 9), (500, 11))),
    "generalised_means_whitened": call(
        *(generalised_means_whitened, positive((32, 2), (512, 5), (24, 8), (33, 9))),
        parts=(part(nn.Linear, (512, 5), (256, 4)), weights(((512, 5),))),
    ),
    "sampson_consensus": call(sampson_consensus, ((1024, 6), 3, 3), ((2000, 9), 2), ((2000, 9), 2)),
    "spectral_shapes": call(spectral_shapes, positive((32, 2), (1025, 9), (431, 7))),
    "adaptive_robust": call(
        *(adaptive_robust, ((32, 2), 3, (300, 6), (333, 7)), ((32, 2), 3, (300, 6), (333, 7))),
        parts=(weights((3, 1, 1), (3, 1, 1)),),
    ),
    "unlikely_words": call(unlikely_words, ((8, 2), (77, 5), (32000, 11)), below((32000, 11), (8, 2), (77, 5))),
    "chosen_children": call(chosen_children, *(((4096, 5), (362, 9)),) * 3, whole(7, (4096, 5), (362, 9))),
    "clipped_curvature": call(clipped_curvature, *(lambda n: [floats(n, *s) for s in LIST],) * 4),
    "shares_clipped_and_masked": call(shares_clipped_and_masked, ((64, 2), (1000, 5), (1000, 7)), heard((64, 2), (1000, 7))),
    "waiting_sums_of_middle": call(
        lambda x, m: (x * m).flip(1).cumsum(1).flip(1) / m.to(x.dtype).flip(1).cumsum(1).flip(1).clamp(min=1),
        *(((32, 2), (1000, 6), (333, 5)), whole(2, (32, 2), (1000, 6), 1)),
    ),
    "means_of_windows_off_rms": call(
        lambda x: functional.rms_norm(x - functional.avg_pool1d(x, 25, 1, 12, count_include_pad=False), x.shape[-1:]),
        ((64, 2), (77, 3), (2000, 40)),
    ),
    "up_depthwise_celu_shares": call(
        lambda up, x: functional.normalize(functional.celu(up(x), 0.7), p=1.0, dim=3) * x.shape[3],
        *(((16, 2), (64, 4), (61, 6), (128, 7)),),
        parts=(lambda n: nn.ConvTranspose2d(n(64, 4), n(64, 4), (2, 5), (2, 1), (0, 2), groups=n(64, 4)),),
    ),
    "conv_uneven_instance_silu_most": call(
        lambda conv, norm, x: functional.adaptive_max_pool2d(functional.silu(norm(conv(x))), (3, 5)),
        ((16, 2), (96, 4), (197, 13), (77, 12)),
        parts=(
            lambda n: nn.Conv2d(n(96, 4), n(96, 4), (7, 1), (2, 1), groups=n(96, 4)),
            part(nn.InstanceNorm2d, (96, 4), affine=True),
        ),
    ),
}
HALVES: dict[str, Case] = {
    "shaw_heads": call(shaw_heads, HEADS, HEADS, HEADS, parts=(weights(((33, 5), (64, 4)), ((33, 5), (64, 4))),)),
    "rolled_out_maps": call(rolled_out_maps, ((12, 3), (8, 2), (12, 2), (197, 10), (197, 10))),
    "strided_and_local": call(strided_and_local, *(((4, 1), (8, 2), (1000, 40), (64, 4)),) * 3),
    "aggregated_once": call(one, ((16, 1), (256, 6), (28, 5), (28, 6)), parts=(part(AggregatedOnce, (256, 6), (128, 4)),)),
    "heun_step": call(
        *(heun_step, ((16, 2), 3, (64, 6), (64, 7)), positive((16, 2))),
        parts=(
            *(part(nn.Conv2d, 3, (96, 4), 3, padding=1), part(nn.Conv2d, (96, 4), (96, 4), 3, padding=1)),
            *(part(nn.Conv2d, (96, 4), 3, 3, padding=1), part(nn.Linear, 1, (96, 4))),
        ),
    ),
    "retrieved_patterns": call(
        lambda x, m, at=functional.scaled_dot_product_attention: functional.layer_norm(at(at(x, m, m), m, m), x.shape[-1:]),
        *(((8, 2), (197, 5), (128, 4)), ((8, 2), (4096, 9), (128, 4))),
    ),
    "columns_with_weights_of_their_own": call(
        lambda x, w: torch.einsum("bchw,wcd->bdhw", x, w).amax(2),
        ((32, 2), (64, 4), (100, 5), (77, 3)),
        ((77, 3), (64, 4), (80, 6)),
    ),
    "gemm_lesser_half_lse": call(
        lambda f, x: torch.logsumexp(torch.minimum(*f(x).tanh().chunk(2, 1)) * 4, 1, keepdim=True),
        *(((1000, 5), (1536, 9)),),
        parts=(part(nn.Linear, (1536, 9), (8192, 8)),),
    ),
    "powers_of_two": call(
        lambda x, w, scale: functional.relu(x @ (torch.exp2(-w.abs().float()) * w.sign()).to(x.dtype).T * scale),
        *(((77, 3), (4096, 9)), lambda n: torch.randint(-7, 8, (n(5504, 6), n(4096, 9)), dtype=torch.int8), ((5504, 6),)),
    ),
    "green_list_then_sigma": call(green_list_then_sigma, ((64, 3), (50257, 50)), below((50257, 50), (64, 3), (200, 9))),
    "conv3_shrunk_depth_log_softmax": call(
        lambda conv, x: functional.log_softmax(functional.softshrink(conv(x), 0.2).mean(2), 1),
        ((8, 2), (8, 3), (18, 4), (96, 9), (100, 10)),
        parts=(lambda n: nn.Conv3d(n(8, 3), n(24, 4), (3, 5, 7), (1, 2, 2), (1, 2, 3)),),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
