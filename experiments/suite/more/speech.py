"""Speech, and graphs of molecules and of what is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.learning import linear
from experiments.suite.more.learning import mlp
from experiments.suite.users import call
from experiments.suite.users import whole


def speech_stem(one, two, out, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """A quarter of the frames, by two convolutions; the mask is thinned out alike."""
    y = functional.relu(two(functional.relu(one(x.unsqueeze(1)))))
    b, c, t, f = y.size()
    y = out(y.transpose(1, 2).contiguous().view(b, t, c * f)) * math.sqrt(256)
    return y, keep[:, None, :][:, :, 2::2][:, :, 2::2]


def cepstrum(mel: Tensor, dct: Tensor, x: Tensor) -> Tensor:
    """Cepstral coefficients and how they change."""
    c = dct.T @ (mel.abs().T @ x.square() + 1e-3).log()
    steps = torch.arange(-2, 3, device=x.device, dtype=x.dtype).repeat(c.shape[1], 1, 1) / 10
    delta = functional.conv1d(functional.pad(c, (2, 2), mode="replicate"), steps, groups=c.shape[1])
    return torch.cat((c, delta), 1) - torch.cat((c, delta), 1).mean(-1, keepdim=True)


def masked_bands(x: Tensor, starts: Tensor, widths: Tensor) -> Tensor:
    """SpecAugment with what was drawn before."""
    at = torch.arange(x.shape[-1], device=x.device)
    y = x
    for i in range(starts.shape[1]):
        gone = (at >= starts[:, i : i + 1]) & (at < starts[:, i : i + 1] + widths[:, i : i + 1])
        y = y.masked_fill(gone.unsqueeze(1), 0.0)
    return y


def vocoder_block(a, b, c, d, x: Tensor) -> Tensor:
    """HiFi-GAN's residual block."""
    for wide, flat in ((a, b), (c, d)):
        x = flat(functional.leaky_relu(wide(functional.leaky_relu(x, 0.1)), 0.1)) + x
    return x


def snake(c, up, alpha: Tensor, x: Tensor) -> Tensor:
    y = up(x)
    a = torch.exp(alpha)[None, :, None]
    return torch.tanh(c(y + (1.0 / (a + 1e-9)) * torch.sin(y * a).pow(2)))


def statistics(att, to, x: Tensor) -> Tensor:
    """ECAPA's pooling: weights by frame and channel, a mean and a deviation."""
    t = x.shape[-1]
    mean, std = x.mean(dim=2, keepdim=True), torch.sqrt(x.var(dim=2, keepdim=True, unbiased=False).clamp(1e-6))
    w = to(torch.tanh(att(torch.cat([x, mean.expand(-1, -1, t), std.repeat(1, 1, t)], dim=1)))).softmax(dim=2)
    mu = torch.sum(x * w, dim=2)
    return torch.cat([mu, torch.sqrt((torch.sum((x**2) * w, dim=2) - mu**2).clamp(min=1e-4))], dim=1)


def wave_features(one, group, two, places, after, x: Tensor) -> Tensor:
    """wav2vec's first layers and its convolution of places."""
    y = functional.gelu(two(functional.gelu(group(one(x.unsqueeze(1))))))
    return after((y + functional.gelu(places(y)[..., :-1])).transpose(1, 2))


def mu_law(table: Tensor, x: Tensor) -> Tensor:
    x = x.float().clamp(-1, 1)
    coded = torch.sign(x) * torch.log1p(255.0 * torch.abs(x)) / math.log1p(255.0)
    return functional.embedding(((coded + 1) / 2 * 255 + 0.5).to(torch.long), table)


def viterbi(scores: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    best, back = scores[:, 0], []
    for t in range(1, scores.shape[1]):
        found, where = (best.unsqueeze(2) + moves).max(dim=1)
        best = found + scores[:, t]
        back.append(where)
    value, last = best.max(dim=1)
    path = [last]
    for where in reversed(back):
        path.append(where.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    return value, torch.stack(path[::-1], dim=1)


def propagated(f, adjacency: Tensor, x: Tensor) -> Tensor:
    """APPNP over a dense graph."""
    a = (adjacency > 1).to(x.dtype) + torch.eye(len(adjacency), device=x.device, dtype=x.dtype)
    d = a.sum(-1).pow(-0.5)
    a = d[:, None] * a * d[None, :]
    h = z = f(x)
    for _ in range(3):
        z = 0.9 * (a @ z) + 0.1 * h
    return z.log_softmax(dim=-1)


def gat_v2(left, right, score: Tensor, adjacency: Tensor, x: Tensor) -> Tensor:
    to, r = (f(x).unflatten(-1, score.shape) for f in (left, right))
    e = (functional.leaky_relu(to.unsqueeze(1) + r.unsqueeze(0), 0.2) * score).sum(-1)
    e = e.masked_fill((adjacency < 0.5).unsqueeze(-1), -1e4)
    return functional.elu(torch.einsum("ijh,jhd->ihd", e.softmax(dim=1), r)).flatten(1)


def continuous_filter(weights, to, out, x: Tensor, places: Tensor) -> Tensor:
    """SchNet's."""
    far = torch.cdist(places.float(), places.float()).to(x.dtype)
    centres = torch.linspace(0, 5, 32, device=x.device, dtype=x.dtype)
    basis = torch.exp(-10 * (far.unsqueeze(-1) - centres) ** 2)
    w = weights(basis) * (0.5 * (torch.cos(far.clamp(max=5) * math.pi / 5) + 1)).unsqueeze(-1)
    y = (to(x).unsqueeze(1) * w).sum(2)
    return x + functional.softplus(out(y)) - math.log(2.0)


def equivariant(edge, move, node, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """EGNN's layer on all pairs."""
    b, n, d = h.shape
    apart = x.unsqueeze(2) - x.unsqueeze(1)
    square = apart.pow(2).sum(-1, keepdim=True)
    m = edge(torch.cat([h.unsqueeze(2).expand(b, n, n, d), h.unsqueeze(1).expand(b, n, n, d), square], dim=-1))
    x = x + (apart / (square.sqrt() + 1) * move(m)).mean(dim=2)
    return h + node(torch.cat([h, m.sum(dim=2)], dim=-1)), x


def vector_features(mix, net, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """PaiNN's mixing of scalars and vectors."""
    left, right = mix(v).chunk(2, -1)
    norm = torch.sqrt(torch.sum(left**2, dim=-2) + 1e-6)
    ds, dv, both = net(torch.cat([s, norm], dim=-1)).chunk(3, -1)
    return s + ds + both * (left * right).sum(-2), v + dv.unsqueeze(-2) * right


def many_aggregates(f, index: Tensor, x: Tensor, nodes: Tensor) -> Tensor:
    """PNA: sums, means, extremes and deviations over the edges of a node."""
    n, d = nodes.shape
    at = index.unsqueeze(-1).expand(-1, d)

    def over(y: Tensor, how: str) -> Tensor:
        return torch.zeros(n, d, dtype=x.dtype, device=x.device).scatter_reduce(0, at, y, reduce=how, include_self=False)

    mean = over(x, "mean")
    deviation = (over(x * x, "mean") - mean * mean).relu().add(1e-5).sqrt()
    degree = torch.bincount(index, minlength=n).to(x.dtype).add(1).log().unsqueeze(-1)
    every = torch.cat([mean, over(x, "amax"), over(x, "amin"), deviation], dim=-1)
    return f(torch.cat([nodes, every, every * degree, every / degree.clamp(min=0.5)], dim=-1))


def bases(basis: Tensor, mix: Tensor, own: Tensor, adjacency: Tensor, x: Tensor) -> Tensor:
    """A relational graph network: matrices of relations are mixed from a few."""
    weight = torch.einsum("rb,bio->rio", mix, basis)
    return functional.relu(torch.einsum("rnm,mi,rio->no", adjacency.softmax(-1), x, weight) + x @ own)


def rotated(head: Tensor, relation: Tensor, tails: Tensor) -> Tensor:
    """RotatE's scores of many tails."""
    re, im = head.chunk(2, dim=-1)
    c, s = torch.cos(relation), torch.sin(relation)
    turned = torch.cat([re * c - im * s, re * s + im * c], dim=-1)
    a, b = (turned.unsqueeze(1) - tails.unsqueeze(0)).chunk(2, dim=-1)
    return 12.0 - torch.stack([a, b], dim=0).norm(dim=0).sum(dim=-1)


WAVE = ((4, 2), (128, 8), (2048, 20))


NODES = ((512, 9), (64, 8))


CASES: dict[str, Case] = {
    "speech_stem": call(
        speech_stem,
        ((4, 2), (400, 19), (80, 11)),
        lambda n: torch.arange(n(400, 19)) < torch.randint(9, n(400, 19), (n(4, 2), 1)),
        parts=(
            lambda n: nn.Conv2d(1, n(64, 4), 3, 2),
            lambda n: nn.Conv2d(n(64, 4), n(64, 4), 3, 2),
            lambda n: nn.Linear(n(64 * 19, 4 * 2), n(256, 16)),
        ),
    ),
    "cepstrum": call(cepstrum, ((201, 9), (80, 6)), ((80, 6), (40, 4)), ((8, 2), (201, 9), (400, 12))),
    "masked_bands": call(masked_bands, ((16, 2), (80, 6), (1000, 18)), whole(16, (16, 2), 4), whole(5, (16, 2), 4)),
    "vocoder_block": call(
        vocoder_block,
        WAVE,
        parts=tuple(lambda n, d=d: nn.Conv1d(n(128, 8), n(128, 8), 3, padding=d, dilation=d) for d in (1, 1, 3, 1)),
    ),
    "snake": call(
        snake,
        ((64, 4),),
        WAVE,
        parts=(
            lambda n: nn.Conv1d(n(64, 4), 1, 7, padding=3),
            lambda n: nn.ConvTranspose1d(n(128, 8), n(64, 4), 8, 4, 2),
        ),
    ),
    "statistics_pooling": call(
        statistics,
        ((16, 2), (512, 8), (300, 12)),
        parts=(lambda n: nn.Conv1d(3 * n(512, 8), n(128, 8), 1), lambda n: nn.Conv1d(n(128, 8), n(512, 8), 1)),
    ),
    "wave_features": call(
        wave_features,
        ((4, 2), (16000, 120)),
        parts=(
            lambda n: nn.Conv1d(1, n(256, 8), 10, 5, bias=False),
            lambda n: nn.GroupNorm(n(256, 8), n(256, 8)),
            lambda n: nn.Conv1d(n(256, 8), n(256, 8), 3, 2, bias=False),
            lambda n: nn.Conv1d(n(256, 8), n(256, 8), 16, padding=8, groups=n(16, 2)),
            lambda n: nn.LayerNorm(n(256, 8)),
        ),
    ),
    "mu_law": call(mu_law, (256, (64, 8)), ((16, 2), (16000, 12))),
    "viterbi": call(viterbi, ((64, 3), (16, 4), (48, 6)), ((48, 6), (48, 6))),
    "propagated": call(
        propagated, ((1024, 9), (1024, 9)), ((1024, 9), (128, 8)), parts=(mlp((128, 8), (64, 8), (40, 8), act=nn.ReLU),)
    ),
    "gat_v2": call(
        gat_v2, ((4, 2), (16, 4)), ((512, 9), (512, 9)), NODES, parts=(linear((64, 8), (64, 8)), linear((64, 8), (64, 8)))
    ),
    "continuous_filter": call(
        continuous_filter,
        ((8, 2), (64, 6), (64, 8)),
        ((8, 2), (64, 6), 3),
        parts=(mlp((32, 32), (64, 8), (64, 8), act=nn.Softplus), linear((64, 8), (64, 8), bias=False), linear((64, 8), (64, 8))),
    ),
    "equivariant": call(
        equivariant,
        ((8, 2), (48, 5), (64, 8)),
        ((8, 2), (48, 5), 3),
        parts=(
            mlp((129, 17), (64, 8), (64, 8)),
            mlp((64, 8), (64, 8), (1, 1)),
            mlp((128, 16), (64, 8), (64, 8)),
        ),
    ),
    "vector_features": call(
        vector_features,
        ((2048, 6), (128, 8)),
        ((2048, 6), 3, (128, 8)),
        parts=(linear((128, 8), (256, 16), bias=False), mlp((256, 16), (128, 8), (384, 24))),
    ),
    "many_aggregates": call(
        many_aggregates,
        whole(6, (8192, 24)),
        ((8192, 24), (64, 8)),
        ((1024, 6), (64, 8)),
        parts=(linear((832, 104), (64, 8)),),
    ),
    "relations": call(bases, (4, (64, 8), (64, 8)), (8, 4), ((64, 8), (64, 8)), (8, (512, 9), (512, 9)), NODES),
    "rotated_tails": call(rotated, ((256, 3), (128, 8)), ((256, 3), (64, 4)), ((1024, 7), (128, 8))),
}
