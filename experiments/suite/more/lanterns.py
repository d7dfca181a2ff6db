"""Images, films, sounds, points, series, tables and indices: half in float16, half in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import further
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import many
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call


class Unit(nn.Sequential):
    """A convolution, its norm, SiLU: what every YOLO is built of."""

    def __init__(self, i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o, 1e-3), nn.SiLU(True))


class TwoWaysDown(nn.Module):
    """YOLOv9's ADown: a mean of neighbours, then half of the channels by a stride, half by a maximum."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.first, self.second = Unit(i // 2, o // 2, 3, 2), Unit(i // 2, o // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = functional.avg_pool2d(x, 2, 1, 0, False, True).chunk(2, 1)
        return torch.cat([self.first(a), self.second(functional.max_pool2d(b, 3, 2, 1))], 1)


def averaged_shortcuts(conv, x: Tensor) -> Tensor:
    """DC-AE down: pixels become channels behind a convolution, and beside it, where groups of channels are averaged."""
    y = functional.pixel_unshuffle(conv(x), 2)
    return y + functional.pixel_unshuffle(x, 2).unflatten(1, (y.shape[1], -1)).mean(2)


class MixersLessNorms(nn.Module):
    """FastViT as it is trained: a mixer's branches less a norm, scaled; a feed-forward behind a depthwise kernel of seven."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.skip, self.scale = nn.BatchNorm2d(c), nn.BatchNorm2d(c), nn.Parameter(torch.full((2, c, 1, 1), 0.1))
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, k, 1, k // 2, groups=c, bias=False), nn.BatchNorm2d(c)) for k in (3, 1, 7)
        )
        self.net = nn.Sequential(nn.Conv2d(c, 3 * c, 1), nn.GELU(), nn.Conv2d(3 * c, c, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale[0] * (self.mix[0](x) + self.mix[1](x) + self.skip(x) - self.norm(x))
        return x + self.scale[1] * self.net(self.mix[2](x))


def gated_convolution_only(norm, up, conv, down, x: Tensor) -> Tensor:
    """MambaOut: Mamba's block without its state: a third of the channels is convolved, all are gated."""
    c = conv.weight.shape[0]
    g, i, y = torch.split(up(norm(x)), [up.out_features // 2, up.out_features // 2 - c, c], -1)
    y = conv(y.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return down(functional.gelu(g) * torch.cat((i, y), -1)) + x


def words_gate_pixels(guide, embed, conv, bias: Tensor, x: Tensor, words: Tensor, heads: int) -> Tensor:
    """YOLO-World: each head of a pixel is gated by the word that fits it best."""
    b, _, h, w = x.shape
    g = guide(words).view(b, -1, heads, guide.out_features // heads)
    y = embed(x).view(b, heads, -1, h, w)
    y = torch.einsum("bmchw,bnmc->bmhwn", y, g).max(-1)[0] / y.shape[2] ** 0.5
    y = (y + bias[None, :, None, None]).sigmoid()
    return (conv(x).view(b, heads, -1, h, w) * y.unsqueeze(2)).flatten(1, 2)


def fused_both_ways(ask, answer, outs, scale: Tensor, x: Tensor, words: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Grounding DINO: one product of pixels and words is read both ways, within bounds that hold in half precision."""
    (q, v), (k, u) = ((split(t, heads) for t in f(y).chunk(2, -1)) for f, y in ((ask, x), (answer, words)))
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = torch.clamp(s - s.amax((1, 2, 3), keepdim=True), -50000, 50000)
    t = s.mT - s.mT.amax(-1, keepdim=True)
    y, z = outs[0](joined(s.softmax(-1) @ u)), outs[1](joined(t.clamp(-50000, 50000).softmax(-1) @ v))
    return x + scale[0] * y, words + scale[1] * z


def bins_pulled_by_attractors(net, attract, score, x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """ZoeDepth: bins of depth of each pixel are finer here and pulled by attractors; a log-binomial weighs them."""
    y = net(x)
    b = functional.interpolate(bins.sigmoid(), size=x.shape[2:], mode="bilinear", align_corners=True)
    gap = functional.softplus(attract(y)).unsqueeze(2) - b.unsqueeze(1)
    b = b + (gap / (1 + 300 * gap.pow(2))).mean(1)
    p, t = functional.softplus(score(y)).float().add(1e-4).unflatten(1, (2, 2)).unbind(1)
    p, t, n = (p[:, :1] / p.sum(1, keepdim=True)), (t[:, :1] / t.sum(1, keepdim=True)) + 0.1, b.shape[1] - 1
    k = torch.arange(n + 1, device=x.device).view(1, -1, 1, 1)
    choose = torch.lgamma(torch.tensor(n + 1.0, device=x.device)) - torch.lgamma(k + 1.0) - torch.lgamma(n - k + 1.0)
    w = torch.softmax((choose + k * torch.log(p + 1e-4) + (n - k) * torch.log1p(1e-4 - p)) / t, 1).to(x.dtype)
    return (w * b).sum(1, keepdim=True), b


class Swooshes(nn.Module):
    """Zipformer: a convolution module and a feed-forward with SwooshR and SwooshL, a norm by a bias, a learned bypass."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.up, self.conv, self.out = nn.Linear(c, 2 * c), nn.Conv1d(c, c, k, padding=k // 2, groups=c), nn.Linear(c, c)
        self.wide, self.back = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.bias, self.log, self.past = (
            nn.Parameter(torch.randn(c) * 0.1),
            nn.Parameter(torch.ones(())),
            nn.Parameter(torch.rand(c)),
        )

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, -1)
        y = (a * b.sigmoid()).masked_fill(hidden.unsqueeze(-1), 0.0)
        y = self.conv(y.mT).mT
        y = x + self.out(torch.logaddexp(torch.zeros_like(y), y - 1.0) - 0.08 * y - 0.313261687)
        z = self.wide(y)
        y = y + self.back(torch.logaddexp(torch.zeros_like(z), z - 4.0) - 0.08 * z - 0.035)
        y = y * (torch.mean((y - self.bias) ** 2, -1, keepdim=True) ** -0.5 * self.log.exp())
        return x + (y - x) * self.past.clamp(0.1, 1.0)


def snakes_without_aliases(conv, alpha: Tensor, beta: Tensor, taps: Tensor, x: Tensor) -> Tensor:
    """BigVGAN: twice as many samples, a snake, a low pass, half as many again; then a dilated convolution and a skip."""
    c, kernel = x.shape[1], (taps.softmax(0)).view(1, 1, -1).expand(x.shape[1], -1, -1)
    y = 2 * functional.conv_transpose1d(functional.pad(x, (5, 5), mode="replicate"), kernel, stride=2, groups=c)[..., 15:-15]
    y = y + (beta.exp()[:, None] + 1e-9).reciprocal() * torch.sin(y * alpha.exp()[:, None]).square()
    y = functional.conv1d(functional.pad(y, (5, 6), mode="replicate"), kernel, stride=2, groups=c)
    return x + conv(y)


def gated_distances(qkv, out, gate, table: Tensor, given: Tensor, x: Tensor, heads: int) -> Tensor:
    """WavLM: a bias by distance in buckets, which each query scales through two gates of its own."""
    t, buckets = x.shape[1], len(table) // 2
    far = torch.arange(t, device=x.device)[None] - torch.arange(t, device=x.device)[:, None]
    near, some = far.abs(), buckets // 2
    grown = some + (torch.log(near.float().clamp(min=1) / some) / math.log(800 / some) * (buckets - some)).long()
    at = (far > 0).long() * buckets + torch.where(near < some, near, grown.clamp(max=buckets - 1))
    a, b = torch.sigmoid(gate(split(x, heads)).unflatten(-1, (2, 4)).sum(-1)).chunk(2, -1)
    bias = (a * (b * given.view(-1, 1, 1) - 1.0) + 2.0) * table[at].permute(2, 0, 1)
    q, k, v = (split(y, heads) for y in qkv(x).chunk(3, -1))
    return out(joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)))


def clusters_of_pixels(q, kv, out, queries: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """kMaX-DeepLab: each pixel belongs to one query only, queries move by the sums of their pixels."""
    k, v = kv(x).chunk(2, -1)
    s = q(queries) @ k.mT
    mine = functional.one_hot(s.argmax(1), s.shape[1]).to(x.dtype)
    return queries + out(functional.layer_norm(torch.einsum("bnq,bnc->bqc", mine, v), v.shape[-1:])), s


def frusta_as_places(net, gate, x: Tensor, cameras: Tensor, bins: int) -> Tensor:
    """PETR: points along each pixel's ray, as the car sees them, become its place by a network."""
    h, w = x.shape[2:]
    i = torch.arange(bins, device=x.device).float()
    depth = 1.0 + (61.2 - 1.0) / (bins * (1 + bins)) * i * (i + 1)
    vs, us, ds = torch.meshgrid(
        torch.arange(h, device=x.device) * 16.0, torch.arange(w, device=x.device) * 16.0, depth, indexing="ij"
    )
    points = torch.stack([us * ds, vs * ds, ds, torch.ones_like(ds)], -1)
    p = torch.einsum("nij,hwdj->nhwdi", cameras.float() * 0.01, points)[..., :3]
    p = ((p + 61.2) / 122.4).clamp(0, 1)
    p = torch.log(p.clamp(min=1e-5) / (1 - p).clamp(min=1e-5)).flatten(3).permute(0, 3, 1, 2).to(x.dtype)
    return x + net(p) * torch.sigmoid(gate(x))


class CodesInDepth(nn.Module):
    """Moshi's depth transformer, where each place of the few has weights of its own."""

    def __init__(self, width: int, heads: int, places: int) -> None:
        super().__init__()
        self.heads, sizes = heads, ((3 * width, width), (width, width), (8 * width, width), (width, 4 * width))
        self.qkv, self.out, self.up, self.down = (nn.Parameter(torch.randn(places, *s) * s[1] ** -0.5) for s in sizes)
        self.first, self.second = nn.RMSNorm(width, 1e-8), nn.RMSNorm(width, 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(t, self.heads) for t in torch.einsum("btw,tow->bto", self.first(x), self.qkv).chunk(3, -1))
        y = joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + torch.einsum("btw,tow->bto", y, self.out)
        a, b = torch.einsum("btw,tow->bto", self.second(x), self.up).chunk(2, -1)
        return x + torch.einsum("bti,twi->btw", functional.silu(a) * b, self.down)


FRAME, CYCLE = ((32, 1), (256, 8), (40, 6), (40, 8)), ((32, 2), (96, 6), (321, 4))
FLOAT16: dict[str, Case] = {
    "two_ways_down": call(one, ((32, 1), (256, 8), (80, 7), (80, 9)), parts=(part(TwoWaysDown, (256, 8), (256, 6)),)),
    "averaged_shortcuts": call(
        averaged_shortcuts, ((8, 1), (256, 8), (64, 6), (64, 4)), parts=(part(nn.Conv2d, (256, 8), (128, 4), 3, 1, 1),)
    ),
    "mixers_less_norms": call(one, ((32, 1), (128, 6), (64, 7), (64, 5)), parts=(part(MixersLessNorms, (128, 6)),)),
    "gated_convolution_only": call(
        *(gated_convolution_only, ((32, 1), (28, 5), (28, 6), (384, 12))),
        parts=(
            *(part(nn.LayerNorm, (384, 12), 1e-6), wide(384, 2048, (12, 64))),
            *(lambda n: nn.Conv2d(n(384, 12), n(384, 12), 7, padding=3, groups=n(384, 12)), wide(1024, 384, (32, 12))),
        ),
    ),
    "words_gate_pixels": call(
        *(many(words_gate_pixels, 8), ((8, 2),), FRAME, ((32, 1), (80, 5), (512, 6))),
        parts=(wide(512, 256, (6, 8)), part(nn.Conv2d, (256, 8), (256, 8), 1), part(nn.Conv2d, (256, 8), (256, 8), 3, 1, 1)),
    ),
    "fused_both_ways": call(
        *(many(fused_both_ways, 4), (2, (256, 8)), ((1, 1), (13294, 13), (256, 8)), ((1, 1), (195, 5), (256, 8))),
        parts=(
            *(wide(256, 2048, (8, 16)), wide(256, 2048, (8, 16))),
            lambda n: nn.ModuleList(nn.Linear(n(1024, 8), n(256, 8)) for _ in range(2)),
        ),
    ),
    "bins_pulled_by_attractors": call(
        *(bins_pulled_by_attractors, ((2, 1), (128, 6), (192, 6), (256, 8)), ((2, 1), (64, 5), (96, 3), (128, 4))),
        parts=(
            lambda n: nn.Sequential(nn.Conv2d(n(128, 6), n(128, 6), 1), nn.ReLU(), nn.Conv2d(n(128, 6), n(128, 6), 1)),
            *(part(nn.Conv2d, (128, 6), (8, 2), 1), part(nn.Conv2d, (128, 6), 4, 1)),
        ),
    ),
    "swooshes": call(
        *(lambda m, *x: m(*x), ((16, 2), (500, 9), (384, 8))),
        lambda n: torch.arange(n(500, 9)) >= torch.randint(n(200, 3), n(500, 9), (n(16, 2), 1)),
        parts=(part(Swooshes, (384, 8), (31, 5)),),
    ),
    "snakes_without_aliases": call(
        *(snakes_without_aliases, ((192, 4),), ((192, 4),), (12,), ((4, 2), (192, 4), (8192, 20))),
        parts=(lambda n: nn.Conv1d(n(192, 4), n(192, 4), 7, padding=9, dilation=3),),
    ),
    "gated_distances": call(
        *(many(gated_distances, 12), ((320, 16), (12, 2)), ((12, 2),), ((4, 2), (499, 9), (768, 16))),
        parts=(wide(768, 2304, (16, 48)), wide(768, 768, (16, 16)), wide(64, 8, (8, 8))),
    ),
    "clusters_of_pixels": call(
        *(clusters_of_pixels, ((4, 2), (128, 4), (256, 8)), ((4, 2), (8192, 20), (256, 8))),
        parts=(wide(256, 256, (8, 8)), wide(256, 512, (8, 16)), wide(256, 256, (8, 8))),
    ),
    "frusta_as_places": call(
        *(further(frusta_as_places, lambda a: (a[0][0].in_channels // 3,)), ((6, 2), (256, 6), (20, 4), (50, 5)), ((6, 2), 4, 4)),
        parts=(
            lambda n: nn.Sequential(nn.Conv2d(3 * n(64, 3), 4 * n(256, 6), 1), nn.ReLU(), nn.Conv2d(4 * n(256, 6), n(256, 6), 1)),
            part(nn.Conv2d, (256, 6), (256, 6), 1),
        ),
    ),
    "codes_in_depth": call(one, ((64, 3), (8, 4), (768, 16)), parts=(part(CodesInDepth, (768, 16), (12, 2), (8, 4)),)),
}


def looked_up_distances(books: Tensor, codes: Tensor, q: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Product quantisation: a table of distances for each query, sums of what codes read from it, the nearest few."""
    parts = q.view(len(q), books.shape[0], 1, -1)
    table = (parts - books).square().sum(-1)
    d = torch.stack([table[:, m].index_select(1, codes[:, m].int()) for m in range(codes.shape[1])], 0).sum(0)
    return torch.topk(d, most, 1, largest=False)


def matched_with_doubt(project, sure, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """LightGlue: softmax both ways and whether a point can be matched at all, as logarithms, with a bin for none."""
    x, y = (project(t) / project.out_features**0.25 for t in (a, b))
    s, i, j = x @ y.mT, sure(a), sure(b)
    match = functional.log_softmax(s, 2) + functional.log_softmax(s.mT.contiguous(), 2).mT
    match = match + functional.logsigmoid(i) + functional.logsigmoid(j).mT
    all_of = s.new_full((len(s), s.shape[1] + 1, s.shape[2] + 1), 0)
    all_of[:, :-1, :-1] = match
    all_of[:, :-1, -1], all_of[:, -1, :-1] = functional.logsigmoid(-i.squeeze(-1)), functional.logsigmoid(-j.squeeze(-1))
    best = all_of[:, :-1, :-1].max(2)
    return all_of, torch.where(best.values.exp() > 1e-9, best.indices, -1)


def oblivious_trees(picks: Tensor, cut: Tensor, warm: Tensor, leaves: Tensor, x: Tensor) -> Tensor:
    """NODE: all nodes of a depth ask one question, a soft pick of features; leaves weigh by products of soft answers."""
    f = torch.einsum("bf,ftd->btd", x, torch.softmax(picks, 0))
    at = (f - cut) * torch.exp(-warm)
    bins = torch.stack([-at, at], -1).mul(0.5).add(0.5).clamp(0, 1)
    p = bins[:, :, 0]
    for d in range(1, bins.shape[2]):
        p = (p.unsqueeze(-1) * bins[:, :, d].unsqueeze(-2)).flatten(-2)
    return torch.einsum("btl,tlo->bto", p, leaves).mean(1)


def core_of_series(first, second, x: Tensor) -> Tensor:
    """SOFTS: all series are pooled to one core, each channel of it by a softmax over series, and it is joined to each."""
    y = first(x)
    core = torch.sum(y * functional.softmax(y, 1), 1, keepdim=True).expand(-1, x.shape[1], -1)
    return functional.layer_norm(x + second(torch.cat([x, core], -1)), x.shape[-1:])


def cycles_taken_off(net, cycle: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """CycleNet: a learned cycle is taken off a series, a line foretells what is left, the cycle of that time comes back."""
    when, t = at[:, None] + torch.arange(x.shape[1] + net.out_features, device=x.device), x.shape[1]
    wave = cycle[when % len(cycle)]
    return net((x - wave[:, :t]).mT).mT + wave[:, t:]


def interactor(c: int) -> nn.Module:
    return nn.Sequential(nn.ReplicationPad1d(3), nn.Conv1d(c, c, 5), nn.LeakyReLU(0.01), nn.Conv1d(c, c, 3), nn.Tanh())


def odd_and_even(nets, x: Tensor) -> Tensor:
    """SCINet: odd and even times scale each other by exponentials, then add and take off, and are laced again."""
    a, b = x[:, ::2].mT, x[:, 1::2].mT
    a, b = a * torch.exp(nets[0](b)), b * torch.exp(nets[1](a))
    return torch.stack([a + nets[2](b), b - nets[3](a)], -1).flatten(2).mT


def matrices_and_vectors(basis, planes: Tensor, lines: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """TensoRF: a plane's value times a line's for three ways round; some make a density, the others colours."""
    p = points.tanh()
    flat = torch.stack([p[:, [0, 1]], p[:, [0, 2]], p[:, [1, 2]]]).unsqueeze(2)
    along = torch.stack([p[:, 2], p[:, 1], p[:, 0]])
    along = torch.stack([torch.zeros_like(along), along], -1).unsqueeze(2)
    y = functional.grid_sample(planes, flat, align_corners=True) * functional.grid_sample(lines, along, align_corners=True)
    y = y.squeeze(-1)
    few = y.shape[1] // 4
    return functional.softplus(y[:, :few].sum((0, 1)) - 10), torch.sigmoid(basis(y[:, few:].flatten(0, 1).T))


def surfaces_to_weights(s: Tensor, sdf: Tensor, gradient: Tensor, ray: Tensor, gap: Tensor, share: float) -> Tensor:
    """NeuS: how opaque a stretch is by a sigmoid of its distances at both ends; weights along the ray."""
    cosine = (functional.normalize(ray, dim=-1).unsqueeze(1) * functional.normalize(gradient, dim=-1)).sum(-1)
    slope = -(functional.relu(0.5 - 0.5 * cosine) * (1 - share) + functional.relu(-cosine) * share)
    gap, scale = gap.abs() * 0.02, torch.exp(s * 10).clip(1e-6, 1e6)
    before, after = (torch.sigmoid((sdf + side * slope * gap * 0.5) * scale) for side in (-1, 1))
    alpha = ((before - after + 1e-5) / (before + 1e-5)).clip(0.0, 1.0)
    return alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-7], -1), -1)[:, :-1]


def attentive_pools_of_points(place, score, out, x: Tensor, xyz: Tensor, near: Tensor) -> Tensor:
    """RandLA-Net: neighbours' places and distances beside their features, a softmax of each channel over neighbours."""
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    there, here = xyz[rows, near], xyz.unsqueeze(2).expand(-1, -1, near.shape[2], -1)
    gap = here - there
    code = torch.cat([gap.pow(2).sum(-1, keepdim=True).sqrt(), gap, here, there], -1)
    y = torch.cat([functional.leaky_relu(place(code), 0.2), x[rows, near]], -1)
    return functional.leaky_relu(out((torch.softmax(score(y), 2) * y).sum(2)), 0.2)


def ensembles_in_vectors(waves: Tensor, scales, lines, x: Tensor) -> Tensor:
    """TabM: periodic embeddings of numbers, then 32 networks that share weights and differ by vectors on both sides."""
    v = 2 * math.pi * waves * x.unsqueeze(-1)
    y = torch.cat([torch.cos(v), torch.sin(v)], -1).flatten(1).unsqueeze(1)
    for line, r, s, b in zip(lines, scales[::3], scales[1::3], scales[2::3], strict=True):
        y = functional.relu((y * r) @ line.weight.T * s + b)
    return y


def centres_to_boxes(heat, off, size, turn, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """CenterPoint: peaks of all classes, the best of each class, then of all; their offsets, sizes and turns."""
    b, c, _, w = heat.shape
    heat = torch.sigmoid(heat)
    heat = heat * (functional.max_pool2d(heat, 3, 1, 1) == heat)
    score, at = torch.topk(heat.view(b, c, -1), most)
    best, which = torch.topk(score.view(b, -1), most)
    at = at.view(b, -1).gather(1, which)
    off, size, turn = (t.flatten(2).mT.gather(1, at.unsqueeze(-1).expand(-1, -1, t.shape[1])) for t in (off, size, turn))
    centre = (torch.stack([at % w, at // w], -1) + off) * 0.8 - 54.0
    return torch.cat([centre, size.clamp(max=5).exp(), torch.atan2(turn[..., :1], turn[..., 1:])], -1), best, which // most


MAP, RAYS, SERIES = ((4, 2), 2, (180, 7), (180, 8)), ((8192, 5), (64, 6)), ((32, 2), (321, 5), (512, 8))
FLOAT32: dict[str, Case] = {
    "looked_up_distances": call(
        *(further(looked_up_distances, lambda x: (100 if len(x[1]) > 99 else 4,)), ((16, 4), (256, 9), (8, 3))),
        *(below((256, 9), (200000, 20), (16, 4)), lambda n: torch.randn(n(16, 2), n(16, 4) * n(8, 3))),
    ),
    "matched_with_doubt": call(
        *(matched_with_doubt, ((2, 2), (2048, 7), (256, 8)), ((2, 2), (2048, 5), (256, 8))),
        parts=(wide(256, 256, (8, 8)), part(nn.Linear, (256, 8), 1)),
    ),
    "oblivious_trees": call(
        *(oblivious_trees, ((128, 5), (256, 4), (6, 3)), ((256, 4), (6, 3)), ((256, 4), (6, 3))),
        *(lambda n: torch.randn(n(256, 4), 2 ** n(6, 3), 3), ((1024, 6), (128, 5))),
    ),
    "core_of_series": call(
        *(core_of_series, SERIES),
        parts=(
            lambda n: nn.Sequential(nn.Linear(n(512, 8), n(512, 8)), nn.GELU(), nn.Linear(n(512, 8), n(128, 4))),
            lambda n: nn.Sequential(nn.Linear(n(640, 12), n(512, 8)), nn.GELU(), nn.Linear(n(512, 8), n(512, 8))),
        ),
    ),
    "cycles_taken_off": call(
        *(cycles_taken_off, ((168, 5), (321, 4)), CYCLE, below((168, 5), (32, 2))), parts=(wide(96, 720, (6, 7)),)
    ),
    "odd_and_even": call(
        odd_and_even, ((64, 2), (336, 12), (64, 4)), parts=(lambda n: nn.ModuleList(interactor(n(64, 4)) for _ in range(4)),)
    ),
    "matrices_and_vectors": call(
        *(matrices_and_vectors, (3, (64, 8), (300, 9), (300, 9)), (3, (64, 8), (300, 9), 1), ((65536, 11), 3)),
        parts=(wide(144, 27, (18, 5), bias=False),),
    ),
    "surfaces_to_weights": call(further(surfaces_to_weights, lambda x: (0.7,)), (1,), RAYS, (*RAYS, 3), (RAYS[0], 3), RAYS),
    "attentive_pools_of_points": call(
        *(attentive_pools_of_points, (2, (8192, 9), (64, 4)), (2, (8192, 9), 3)),
        below((8192, 9), 2, (8192, 9), (16, 3)),
        parts=(part(nn.Linear, 10, (64, 4)), wide(128, 128, (8, 8), bias=False), wide(128, 128, (8, 6))),
    ),
    "ensembles_in_vectors": call(
        lambda scales, lines, waves, x: ensembles_in_vectors(waves, scales, lines, x),
        *(((48, 3), (16, 4)), ((256, 5), (48, 3))),
        parts=(
            weights(((32, 3), (1536, 24)), *(((32, 3), (512, 6)),) * 5),
            lambda n: nn.ModuleList(nn.Linear(i, n(512, 6), bias=False) for i in (n(1536, 24), n(512, 6))),
        ),
    ),
    "centres_to_boxes": call(
        *(further(centres_to_boxes, lambda x: (500 if x[0].shape[2] > 99 else 5,)), (*MAP[:1], (10, 3), *MAP[2:]), MAP, MAP, MAP)
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **FLOAT16}
"""In the number format that each group is meant for."""
