"""Signals and microphones, series, graphs, filters of states, steps of simulations, rays, networks that make networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- signals --------------------------------------------------------------------------------------------------------------------


def channel_energies(mel: Tensor, power: Tensor) -> Tensor:
    """PCEN: energies by a smoothed gain, then first and second differences beside them."""
    e = torch.matmul(mel.abs(), power.square())
    m, smooth = e[..., 0], []
    for i in range(12):
        m = 0.9 * m + 0.1 * e[..., i]
        smooth.append(m)
    m = torch.stack(smooth, dim=-1)
    y = (e[..., :12] / (m + 1e-3) ** 0.8 + 2.0) ** 0.5 - 2.0**0.5
    kernel = torch.tensor([-2.0, -1, 0, 1, 2], device=y.device, dtype=y.dtype).view(1, 1, -1) / 10
    d = functional.conv1d(functional.pad(y.flatten(0, 1).unsqueeze(1), (2, 2), mode="replicate"), kernel).view_as(y)
    dd = functional.conv1d(functional.pad(d.flatten(0, 1).unsqueeze(1), (2, 2), mode="replicate"), kernel).view_as(y)
    return torch.stack([y, d, dd], dim=1)


def beams(mask: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """MVDR: covariances of speech and noise by masks, weights by a solution, for each frequency."""
    m = mask.sigmoid().float().unsqueeze(1)
    speech, noise = (torch.einsum("bcft,bdft->bfcd", z * w, z.conj()) / w.sum(-1).mT.unsqueeze(-1) for w in (m, 1 - m))
    noise = noise + 1e-2 * torch.eye(z.shape[1], dtype=noise.dtype, device=z.device)
    top = torch.linalg.solve(noise, speech)
    w = top[..., 0] / (torch.diagonal(top, dim1=-2, dim2=-1).sum(-1, keepdim=True).real + 1e-3)
    y = torch.einsum("bfc,bcft->bft", w.conj(), z)
    return torch.view_as_real(y), 20 * torch.log10(y.abs() + 1e-3)


def complex_of(*shape):
    return lambda n: torch.randn([s if isinstance(s, int) else n(*s) for s in shape], dtype=torch.complex64)


def delays(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """GCC-PHAT between all pairs of microphones."""
    t = x.shape[-1]
    z = torch.fft.rfft(x.float(), n=2 * t)
    i, j = torch.triu_indices(x.shape[1], x.shape[1], offset=1, device=x.device)
    cross = z[:, i] * z[:, j].conj()
    r = torch.fft.irfft(torch.polar(torch.ones_like(cross.real), torch.angle(cross)), n=2 * t)
    r = torch.cat([r[..., -most:], r[..., : most + 1]], dim=-1)
    return r, r.argmax(-1) - most


def best_order(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """SI-SNR of sources in the better of their orders."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    dot = torch.einsum("bit,bjt->bij", x, y)
    target = dot.unsqueeze(-1) * y.unsqueeze(1) / (y.square().sum(-1)[:, None, :, None] + 1e-6)
    noise = x.unsqueeze(2) - target
    ratio = 10 * torch.log10(target.square().sum(-1) / (noise.square().sum(-1) + 1e-6) + 1e-6)
    orders = torch.stack([ratio[:, 0, 0] + ratio[:, 1, 1], ratio[:, 0, 1] + ratio[:, 1, 0]], dim=-1) / 2
    best, which = orders.max(-1)
    return -best.mean(), torch.where(which[:, None, None] == 0, x, x.flip(1))


def bank_of_sines(low: Tensor, band: Tensor, x: Tensor) -> Tensor:
    """SincNet: band-pass filters from two numbers each, then what follows them."""
    n = torch.arange(1, 41, device=x.device, dtype=x.dtype) * (2 * math.pi / 160)
    lo = 0.3 + low.abs()
    hi = (lo + 0.5 + band.abs()).clamp(max=40.0)
    window = 0.54 - 0.46 * torch.cos(torch.linspace(0, math.pi, 40, device=x.device, dtype=x.dtype))
    left = (torch.sin(hi * n) - torch.sin(lo * n)) / (n / 2) * window.flip(0)
    kernel = torch.cat([left.flip(1), 2 * (hi - lo), left], dim=1) / (2 * (hi - lo))
    y = functional.conv1d(x, kernel.unsqueeze(1), stride=2, padding=40).abs()
    return functional.leaky_relu(functional.layer_norm(functional.max_pool1d(y, 3), [y.shape[1], y.shape[2] // 3]), 0.2)


# -- series ---------------------------------------------------------------------------------------------------------------------


class PatchForecast(nn.Module):
    """Series normed by their own statistics, cut to patches, a layer for all channels, and the statistics put back."""

    def __init__(self, length: int, patch: int, width: int, ahead: int) -> None:
        super().__init__()
        self.patch, tokens = patch, (length - patch) // (patch // 2) + 2
        self.embed, self.place = nn.Linear(patch, width), nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, activation="gelu")
        self.head = nn.Linear(tokens * width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        y = ((x - mean) / std).transpose(1, 2)
        y = functional.pad(y, (0, self.patch // 2), mode="replicate").unfold(-1, self.patch, self.patch // 2)
        b, c = y.shape[:2]
        y = self.layer((self.embed(y) + self.place).flatten(0, 1))
        return self.head(y.flatten(1)).view(b, c, -1).transpose(1, 2) * std + mean


def gated_residual_network(a, c, b, gate, norm, x: Tensor, context: Tensor) -> Tensor:
    """The temporal fusion transformer's."""
    y = functional.elu(a(x) + c(context).unsqueeze(1))
    return norm(x + functional.glu(gate(b(y)), dim=-1))


def doubly_residual(blocks, x: Tensor) -> dict[str, Tensor]:
    """N-BEATS: bases of trends and seasons, each block explains what is left."""
    t = x.shape[-1]
    at = torch.arange(t + t // 2, device=x.device, dtype=x.dtype) / t
    trend = torch.stack([at**i for i in range(4)])
    season = torch.cat([f(2 * math.pi * i * at)[None] for i in range(1, 5) for f in (torch.cos, torch.sin)])
    ahead, left = 0.0, x
    for block, basis in zip(blocks, (trend, season), strict=True):
        y = block(left) @ basis
        left, ahead = left - y[:, :t], ahead + y[:, t:]
    return {"forecast": ahead, "residual": left}


# -- graphs ---------------------------------------------------------------------------------------------------------------------


def dense_graph_attention(w: Tensor, a: Tensor, adjacency: Tensor, edges: Tensor, x: Tensor) -> Tensor:
    """Heads of attention on a dense adjacency with features of edges, averaged."""
    h = torch.einsum("bni,hio->bhno", x, w)
    src, dst = (h * a[0, :, None]).sum(-1), (h * a[1, :, None]).sum(-1)
    e = functional.leaky_relu(src.unsqueeze(-1) + dst.unsqueeze(-2) + edges.unsqueeze(1), 0.2)
    linked = (adjacency > 0) | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    p = e.masked_fill(~linked.unsqueeze(1), -9e3).softmax(-1)
    return functional.elu(torch.matmul(p, h).mean(1))


def personalized_steps(lift, adjacency: Tensor, x: Tensor) -> Tensor:
    """APPNP: predictions go round on a normalised graph and come home."""
    a = ((adjacency + adjacency.mT) > 0.5).to(x.dtype) + torch.eye(len(adjacency), device=x.device, dtype=x.dtype)
    d = a.sum(-1).rsqrt()
    a = d[:, None] * a * d
    h = z = lift(x)
    for _ in range(4):
        z = 0.9 * a @ z + 0.1 * h
    return functional.log_softmax(z, dim=-1)


def pooled_graph(assign, embed, adjacency: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """DiffPool, with its two losses."""
    a = adjacency.sigmoid()
    a = (a + a.mT) / 2
    d = a.sum(-1, keepdim=True).clamp(min=1)
    s = torch.softmax(assign(a @ x / d), dim=-1)
    z = functional.relu(embed(a @ x / d))
    link = torch.norm(a - s @ s.mT, p=2) / a.numel()
    entropy = (-s * torch.log(s + 1e-6)).sum(-1).mean()
    return s.mT @ z, s.mT @ a @ s, link, entropy


def capsule_moments(pose: Tensor, activation: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules by expectation and maximisation of Gaussians."""
    votes = torch.einsum("biuv,ijvw->bijuw", pose, w).flatten(3)
    r = torch.full_like(votes[..., 0], 1 / votes.shape[2])
    act = activation.sigmoid()
    mu, a = votes, act
    for step in range(2):
        weight = (r * act.unsqueeze(-1)).unsqueeze(-1)
        total = weight.sum(1, keepdim=True) + 1e-4
        mu = (weight * votes).sum(1, keepdim=True) / total
        var = (weight * (votes - mu).square()).sum(1, keepdim=True) / total + 1e-2
        cost = ((beta[0] + 0.5 * var.log()) * total).sum(-1).squeeze(1)
        a = torch.sigmoid((step + 1.0) * (beta[1] - cost / votes.shape[1]))
        log_p = -0.5 * ((votes - mu).square() / var + var.log()).sum(-1)
        r = torch.softmax(log_p + torch.log(a + 1e-4).unsqueeze(1), dim=2)
    return mu.squeeze(1), a


# -- states and simulations -----------------------------------------------------------------------------------------------------


def unscented(mean: Tensor, factor: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A filter by points around the mean, for angles and distances."""
    n = mean.shape[-1]
    cov = (factor @ factor.mT / n).float() + 0.1 * torch.eye(n, device=mean.device)
    root = torch.linalg.cholesky(cov * n).mT
    points = torch.cat([mean.float().unsqueeze(1) + root, mean.float().unsqueeze(1) - root], dim=1)
    seen = torch.stack([torch.hypot(points[..., 0], points[..., 1]), torch.atan2(points[..., 1], points[..., 0].abs() + 1)], -1)
    z = seen.mean(1, keepdim=True)
    s = (seen - z).mT @ (seen - z) / (2 * n) + 0.1 * torch.eye(2, device=mean.device)
    gain = torch.linalg.solve(s, (seen - z).mT @ (points - mean.float().unsqueeze(1)) / (2 * n)).mT
    return mean + (gain @ (y.float().unsqueeze(-1) - z.mT)).squeeze(-1), cov - gain @ s @ gain.mT


def resampled(particles: Tensor, log_w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Particles are weighed and drawn at even steps."""
    log_w = log_w - 0.5 * (particles - y.unsqueeze(1)).square().sum(-1)
    w = torch.exp((log_w - torch.logsumexp(log_w, dim=-1, keepdim=True)).float())
    n = w.shape[-1]
    steps = ((torch.arange(n, device=w.device) + 0.37) / n).expand_as(w).contiguous()
    at = torch.searchsorted(w.cumsum(-1), steps).clamp(max=n - 1)
    return particles.gather(1, at.unsqueeze(-1).expand_as(particles)), 1 / w.square().sum(-1)


def bodies(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three leapfrog steps of gravity, and the energy."""
    m = mass.exp()

    def pull(x: Tensor) -> Tensor:
        far = x.unsqueeze(0) - x.unsqueeze(1)
        return torch.einsum("ijk,ij->ik", far, m * (far.square().sum(-1) + 0.5).pow(-1.5)) / len(x)

    a = pull(x)
    for _ in range(3):
        v = v + 0.005 * a
        x = x + 0.01 * v
        a = pull(x)
        v = v + 0.005 * a
    far = torch.sqrt((x[:, None] - x[None]).square().sum(-1) + 0.5)
    potential = -0.5 * (m[:, None] * m[None] / far).triu(1).sum() / len(x)
    return x, v, 0.5 * (m * v.square().sum(-1)).sum() + potential


def dormand(first, second, x: Tensor) -> tuple[Tensor, Tensor]:
    """An embedded pair of Runge and Kutta's: a step and how wrong it is, of a network's flow."""
    table = ((1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9), (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729))
    ks, h = [], 0.25
    for i in range(5):
        y = x + h * sum(a * k for a, k in zip(table[i - 1], ks, strict=True)) if i else x
        ks.append(second(torch.tanh(first(y))))
    high = x + h * (35 / 384 * ks[0] + 500 / 1113 * ks[2] + 125 / 192 * ks[3] - 2187 / 6784 * ks[4])
    low = x + h * (ks[0] / 6 + 2 / 3 * ks[2] + ks[3] / 6)
    wrong = (high - low).abs() / (1e-3 + 1e-2 * torch.maximum(x.abs(), high.abs()))
    return high, wrong.square().mean(-1).sqrt()


def waves(ez: Tensor, hx: Tensor, hy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maxwell's equations on Yee's grid, written in place."""
    ez, hx, hy = ez.clone(), hx.clone(), hy.clone()
    for _ in range(3):
        hx[:, :, :-1] -= 0.5 * (ez[:, :, 1:] - ez[:, :, :-1])
        hy[:, :-1] += 0.5 * (ez[:, 1:] - ez[:, :-1])
        ez[:, 1:, 1:] += 0.5 * (hy[:, 1:, 1:] - hy[:, :-1, 1:] - hx[:, 1:, 1:] + hx[:, 1:, :-1])
        ez[:, 4, 4] += 0.1
    return ez, hx, hy


# -- networks of networks -------------------------------------------------------------------------------------------------------


def made_weights(hyper, x: Tensor, task: Tensor) -> Tensor:
    """A network makes the weights of two layers for each task."""
    i, o = x.shape[-1], 2 * x.shape[-1]
    w1, b1, w2, b2 = hyper(task).split([i * o, o, o * i, i], dim=-1)
    y = torch.baddbmm(b1.unsqueeze(1), x, w1.view(-1, i, o) / i**0.5)
    return torch.baddbmm(b2.unsqueeze(1), functional.gelu(y), w2.view(-1, o, i) / o**0.5) + x


def inner_step(w: Tensor, b: Tensor, x: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """MAML: each task's own step of gradient descent, then its queries."""
    p = (torch.einsum("tni,io->tno", x, w) + b).softmax(-1)
    d = (p - functional.one_hot(y, p.shape[-1]).to(p.dtype)) / x.shape[1]
    fast_w, fast_b = w - 0.4 * torch.einsum("tni,tno->tio", x, d), b - 0.4 * d.sum(1)
    return torch.log_softmax(torch.bmm(query, fast_w) + fast_b.unsqueeze(1), dim=-1)


def wavelet_kan(base, norm, scale: Tensor, shift: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Kolmogorov and Arnold's networks of Mexican hats."""
    z = (x.unsqueeze(1) - shift) / (scale.abs() + 0.5)
    hat = 2 / (math.sqrt(3) * math.pi**0.25) * (1 - z * z) * torch.exp(-0.5 * z * z)
    return norm((hat * weight).sum(-1) + base(functional.silu(x)))


def branch_and_trunk(branch, trunk, bias: Tensor, u: Tensor, at: Tensor) -> Tensor:
    """DeepONet, with harmonic features of the places."""
    k = torch.arange(1, 4, device=at.device, dtype=at.dtype)
    e = torch.cat([at, *(f(at.unsqueeze(-1) * k * math.pi).flatten(-2) for f in (torch.sin, torch.cos))], dim=-1)
    return torch.einsum("bk,nk->bn", branch(u), trunk(e)) + bias


# -- rays -----------------------------------------------------------------------------------------------------------------------


class Field(nn.Module):
    """NeRF whole: encodings, a network with a skip, compositing, and finer samples by the inverse of the weights' sum."""

    def __init__(self, width: int, levels: int = 6) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(levels))
        i = 3 + 6 * levels
        self.first = nn.Sequential(nn.Linear(i, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(width + i, width), nn.ReLU(), nn.Linear(width, 4))

    def encode(self, x: Tensor) -> Tensor:
        y = (x[..., None, :] * self.bands[:, None]).flatten(-2)
        return torch.cat([x, torch.sin(y), torch.cos(y)], dim=-1)

    def forward(self, origins: Tensor, directions: Tensor, z: Tensor) -> dict[str, Tensor]:
        d = functional.normalize(directions, dim=-1)
        z = z.sigmoid().cumsum(-1) / z.shape[-1] * 4 + 0.5
        e = self.encode(origins[:, None] + d[:, None] * z[..., None])
        raw = self.second(torch.cat([self.first(e), e], dim=-1))
        gap = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e2)], dim=-1)
        alpha = 1 - torch.exp(-functional.softplus(raw[..., 3] - 1) * gap)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], dim=-1), dim=-1)[:, :-1]
        w = alpha * clear
        rgb = (w[..., None] * raw[..., :3].sigmoid()).sum(1) + (1 - w.sum(-1, keepdim=True))
        cdf = functional.pad(torch.cumsum((w + 1e-3) / (w + 1e-3).sum(-1, keepdim=True), dim=-1), (1, 0))[:, :-1].contiguous()
        u = torch.linspace(0.02, 0.98, 8, device=z.device, dtype=z.dtype).expand(len(z), 8).contiguous()
        at = (torch.searchsorted(cdf, u, right=True) - 1).clamp(min=0)
        return {"rgb": rgb, "depth": (w * z).sum(-1), "finer": torch.sort(z.gather(1, at), dim=-1).values}


CASES: dict[str, Case] = {
    "channel_energies": call(channel_energies, ((64, 8), (257, 9)), ((32, 2), (257, 9), (200, 14))),
    "beams": call(beams, ((4, 2), (257, 5), (200, 9)), complex_of((4, 2), (6, 3), (257, 5), (200, 9))),
    "delays": call(delays, ((8, 2), (6, 3), (4096, 40)), lambda n: n(32, 4)),
    "best_order": call(best_order, *(((32, 2), 2, (16000, 50)),) * 2),
    "bank_of_sines": call(bank_of_sines, *(((80, 6), 1),) * 2, ((16, 2), 1, (3200, 121))),
    "patch_forecast": scaled(
        lambda n: (PatchForecast(n(336, 24), n(16, 4), n(128, 8), n(96, 6)), (floats(n, (32, 2), (336, 24), (21, 3)),))
    ),
    "gated_residual_network": call(
        gated_residual_network,
        ((64, 2), (168, 6), (160, 8)),
        ((64, 2), (160, 8)),
        parts=(
            *(lambda n: nn.Linear(n(160, 8), n(160, 8)),) * 3,
            lambda n: nn.Linear(n(160, 8), 2 * n(160, 8)),
            lambda n: nn.LayerNorm(n(160, 8)),
        ),
    ),
    "doubly_residual": call(
        doubly_residual,
        ((1024, 4), (128, 8)),
        parts=(
            lambda n: nn.ModuleList(
                nn.Sequential(nn.Linear(n(128, 8), n(256, 12)), nn.ReLU(), nn.Linear(n(256, 12), k)) for k in (4, 8)
            ),
        ),
    ),
    "dense_graph_attention": call(
        dense_graph_attention,
        ((4, 2), (64, 6), (64, 5)),
        (2, (4, 2), (64, 5)),
        *(((16, 2), (128, 7), (128, 7)),) * 2,
        ((16, 2), (128, 7), (64, 6)),
    ),
    "personalized_steps": call(
        personalized_steps,
        ((2000, 12), (2000, 12)),
        ((2000, 12), (500, 10)),
        parts=(lambda n: nn.Sequential(nn.Linear(n(500, 10), n(64, 8)), nn.ReLU(), nn.Linear(n(64, 8), n(16, 4))),),
    ),
    "pooled_graph": call(
        pooled_graph,
        ((16, 2), (256, 9), (256, 9)),
        ((16, 2), (256, 9), (64, 8)),
        parts=(lambda n: nn.Linear(n(64, 8), n(32, 4)), lambda n: nn.Linear(n(64, 8), n(64, 8))),
    ),
    "capsule_moments": call(
        capsule_moments, ((16, 2), (288, 6), 4, 4), ((16, 2), (288, 6)), ((288, 6), (16, 3), 4, 4), lambda n: torch.rand(2)
    ),
    "unscented": call(unscented, ((4096, 3), 4), ((4096, 3), 4, 4), ((4096, 3), 2)),
    "resampled": call(resampled, ((64, 2), (2048, 12), 3), ((64, 2), (2048, 12)), ((64, 2), 3)),
    "bodies": call(bodies, *(((768, 7), 3),) * 2, ((768, 7),)),
    "dormand": call(
        dormand,
        ((1024, 5), (64, 6)),
        parts=(lambda n: nn.Linear(n(64, 6), n(256, 12)), lambda n: nn.Linear(n(256, 12), n(64, 6))),
    ),
    "waves": call(waves, *(((4, 2), (256, 9), (320, 8)),) * 3),
    "made_weights": call(
        made_weights,
        ((16, 2), (256, 5), (32, 4)),
        ((16, 2), (64, 8)),
        parts=(lambda n: nn.Linear(n(64, 8), n(4192, 76)),),
    ),
    "inner_step": call(
        inner_step,
        ((256, 8), 5),
        (5,),
        ((32, 2), (25, 6), (256, 8)),
        whole(5, (32, 2), (25, 6)),
        ((32, 2), (75, 7), (256, 8)),
    ),
    "wavelet_kan": call(
        wavelet_kan,
        *(((64, 6), (96, 8)),) * 3,
        ((512, 5), (96, 8)),
        parts=(lambda n: nn.Linear(n(96, 8), n(64, 6), bias=False), lambda n: nn.BatchNorm1d(n(64, 6))),
    ),
    "branch_and_trunk": call(
        branch_and_trunk,
        (1,),
        ((256, 4), (100, 8)),
        ((4096, 9), 2),
        parts=(
            lambda n: nn.Sequential(nn.Linear(n(100, 8), n(128, 16)), nn.Tanh(), nn.Linear(n(128, 16), n(128, 16))),
            lambda n: nn.Sequential(nn.Linear(14, n(128, 16)), nn.Tanh(), nn.Linear(n(128, 16), n(128, 16)), nn.Tanh()),
        ),
    ),
    "field_whole": scaled(
        lambda n: (Field(n(128, 8)), (*(floats(n, (1024, 5), 3) for _ in range(2)), floats(n, (1024, 5), (48, 7))))
    ),
}
