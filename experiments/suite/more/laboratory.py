"""Proteins and genes, particles and fields: pieces of what laboratories train."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.more.science import complex_of
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- proteins and genes ---------------------------------------------------------------------------------------------------------


def attend_at_ends(norm, qkv, bias, gate, out, z: Tensor, mask: Tensor) -> Tensor:
    """Triangular attention around the ending node: columns of pairs attend, with a bias of the third edge, and are gated."""
    z = norm(z).transpose(1, 2)
    q, k, v = qkv(z).unflatten(-1, (3, 4, -1)).permute(3, 0, 1, 4, 2, 5)
    s = torch.einsum("bihqd,bihkd->bihqk", q * q.shape[-1] ** -0.5, k)
    s = s + bias(z).permute(0, 3, 1, 2).unsqueeze(1)
    s = s.masked_fill(mask.transpose(1, 2)[:, :, None, None] < -1, -1e4)
    y = torch.einsum("bihqk,bihkd->biqhd", s.softmax(-1), v).flatten(-2)
    return out(y * gate(z).sigmoid()).transpose(1, 2)


def invariant_points(qkv, points, weight: Tensor, x: Tensor, z: Tensor, turn: Tensor, shift: Tensor) -> Tensor:
    """Attention of AlphaFold's structure module: by products, pairs, and distances of points in global coordinates."""
    q, k, v = qkv(x).unflatten(-1, (3, 4, -1)).unbind(2)
    p = points(x).unflatten(-1, (3, 4, -1, 3))
    p = torch.einsum("bnxy,bnthpy->bnthpx", turn, p) + shift[:, :, None, None, None]
    pq, pk, pv = p.unbind(2)
    far = (pq.unsqueeze(2) - pk.unsqueeze(1)).square().sum((-1, -2))
    s = torch.einsum("bihd,bjhd->bijh", q, k) * q.shape[-1] ** -0.5 + z - 0.1 * functional.softplus(weight) * far
    a = (s * math.sqrt(1 / 3)).softmax(2)
    local = torch.einsum("bijh,bjhpx->bihpx", a, pv) - shift[:, :, None, None]
    local = torch.einsum("bnyx,bnhpy->bnhpx", turn, local)
    return torch.cat([torch.einsum("bijh,bjhd->bihd", a, v).flatten(2), local.flatten(2), local.norm(dim=-1).flatten(2)], -1)


def rotations(n) -> Tensor:
    """A frame for each of the residues."""
    return torch.linalg.qr(floats(n, (2, 1), (256, 5), 3, 3)).Q


def recycled(line, norm, x: Tensor, z: Tensor) -> Tensor:
    """Distances of the last round, in bins, added to the normed pairs."""
    d = (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1, keepdim=True)
    low = torch.linspace(0.25, 20, 15, device=x.device, dtype=x.dtype).square()
    high = torch.cat([low[1:], low.new_full((1,), 1e8)])
    return norm(z) + line(((d > low) & (d < high)).to(x.dtype))


def clipped_places(line, residue: Tensor, chain: Tensor) -> Tensor:
    """Relative encoding of AlphaFold 3: one-hot of clipped distances, and whether it is the same chain."""
    same = chain.unsqueeze(-1) == chain.unsqueeze(-2)
    d = torch.where(same, (residue.unsqueeze(-1) - residue.unsqueeze(-2) + 32).clip(0, 64), 65)
    features = torch.cat([functional.one_hot(d, 66), same.unsqueeze(-1)], dim=-1)
    return line(features.to(line.weight.dtype))


def frame_errors(turn: Tensor, shift: Tensor, x: Tensor, true: Tensor) -> Tensor:
    """FAPE: every atom as every frame sees it, clamped."""
    mine = torch.einsum("bfyx,bfay->bfax", turn, x.unsqueeze(1) - shift.unsqueeze(2))
    other = torch.einsum("bfyx,bfay->bfax", turn, true.unsqueeze(1) - shift.unsqueeze(2))
    return torch.sqrt((mine - other).square().sum(-1) + 1e-4).clamp(max=10).mean((1, 2)) / 10


def local_distance_test(x: Tensor, true: Tensor) -> Tensor:
    """lDDT for each atom."""
    want, got = torch.cdist(true, true), torch.cdist(x, x)
    near = (want < 3.0) & ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    kept = sum(((want - got).abs() < t).float() for t in (0.5, 1, 2, 4)) / 4
    return (kept * near).sum(-1) / near.sum(-1).clamp(min=1)


def composed_frames(line, s: Tensor, turn: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """A backbone update: a quaternion whose first number is one, as a rotation after those before."""
    b, c, d, *t = line(s).unbind(-1)
    n = torch.rsqrt(1 + b * b + c * c + d * d)
    a, b, c, d = n, b * n, c * n, d * n
    r = [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)]
    r += [2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b)]
    r += [2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d]
    moved = torch.einsum("bnij,bnj->bni", turn, torch.stack(t, -1))
    return turn @ torch.stack(r, -1).unflatten(-1, (3, 3)), shift + moved


def contact_head(line, attentions: Tensor) -> Tensor:
    """ESM's: symmetric maps of all heads, their average product taken off, a logistic regression."""
    a = attentions[..., 1:-1, 1:-1].flatten(1, 2)
    a = a + a.mT
    a = a - a.sum(-1, keepdim=True) * a.sum(-2, keepdim=True) / a.sum((-1, -2), keepdim=True)
    return line(a.permute(0, 2, 3, 1)).squeeze(-1).sigmoid()


def pooled_genes(norm, conv, weight: Tensor, x: Tensor) -> Tensor:
    """Enformer: a residual convolution, then softmax pooling of pairs, each channel by learned weights."""
    y = x + conv(torch.sigmoid(1.702 * norm(x)) * norm(x))
    y = y.unflatten(-1, (-1, 2))
    return (y * torch.einsum("bctp,cd->bdtp", y, weight).softmax(-1)).sum(-1)


def zero_inflated(decoder, z: Tensor, library: Tensor, rate: Tensor, x: Tensor) -> Tensor:
    """scVI: counts of genes are negative binomial, or drop out."""
    scale, drop = decoder(z).chunk(2, -1)
    mu, theta = library.exp() * scale.softmax(-1) + 1e-4, rate.exp()
    log = torch.log(theta + mu)
    case = theta * (theta.log() - log)
    some = case - functional.softplus(-drop) - drop + x * (mu.log() - log)
    some = some + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
    none = functional.softplus(case - drop) - functional.softplus(-drop)
    return -torch.where(x < 0.5, none, some).sum(-1)


def predicted_score(logits: Tensor) -> tuple[Tensor, Tensor]:
    """pTM and aligned errors from bins."""
    centre = torch.linspace(0.25, 31.75, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    p, d0 = logits.softmax(-1), 1.24 * max(logits.shape[1] - 15, 4) ** (1 / 3) - 0.8
    score = (p / (1 + (centre / d0).square())).sum(-1).mean(-1).amax(-1)
    return score, (p * centre).sum(-1)


def torsions(x: Tensor) -> Tensor:
    """Sines and cosines of the angles between every four atoms in a row."""
    d = x[:, 1:] - x[:, :-1]
    u = functional.normalize(torch.linalg.cross(d[:, :-1], d[:, 1:]), dim=-1)
    cos = (u[:, :-1] * u[:, 1:]).sum(-1).clamp(-1, 1)
    sin = (functional.normalize(d[:, 1:-1], dim=-1) * torch.linalg.cross(u[:, :-1], u[:, 1:])).sum(-1)
    return torch.stack([sin, cos], -1)


def superposed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Kabsch: the best rotation, without a reflection, and what is left."""
    a, b = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    u, _, v = torch.linalg.svd(a.mT @ b)
    sign = torch.det(u @ v)
    turn = torch.cat([u[..., :2], u[..., 2:] * sign[:, None, None]], -1) @ v
    return turn, (a @ turn - b).square().sum(-1).mean(-1).sqrt()


# -- particles and fields -------------------------------------------------------------------------------------------------------


def radial_messages(filters, lift, x: Tensor, at: Tensor, ends: Tensor) -> Tensor:
    """Bessel functions of lengths with a smooth end, a filter for each edge, sums at atoms."""
    i, j = ends
    r = (at[i] - at[j]).norm(dim=-1, keepdim=True) + 0.1
    n = torch.arange(1, 9, device=x.device, dtype=x.dtype)
    t = (r / 5).clamp(max=1)
    basis = torch.sin(n * math.pi * t) / r * (1 - 28 * t**6 + 48 * t**7 - 21 * t**8)
    return x + torch.zeros_like(x).index_add(0, i, lift(x)[j] * filters(basis))


def ewald(waves: Tensor, at: Tensor, charge: Tensor) -> tuple[Tensor, Tensor]:
    """Long-range energy and forces from a sum over wave vectors."""
    phase = at @ waves.mT
    weight = torch.exp(-waves.square().sum(-1) / 4) / (waves.square().sum(-1) + 0.1)
    c, s = torch.cos(phase), torch.sin(phase)
    re, im = (charge.unsqueeze(1) * c).sum(0), (charge.unsqueeze(1) * s).sum(0)
    return (weight * (re * re + im * im)).sum(), charge.unsqueeze(1) * ((s * re - c * im) * weight) @ waves


def spins(spin: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """A sweep of an Ising model, black fields then white ones."""
    s = torch.where(spin > 0, 1.0, -1.0)
    even = torch.arange(s.shape[-1], device=s.device) + torch.arange(s.shape[-2], device=s.device)[:, None]
    for colour in (0, 1):
        near = sum(torch.roll(s, step, axis) for step in (1, -1) for axis in (-1, -2))
        flip = (chance < torch.exp(-0.8 * s * near)) & (even % 2 == colour)
        s = torch.where(flip, -s, s)
    return s, s.mean((-1, -2)).abs()


def split_step(psi: Tensor, potential: Tensor) -> tuple[Tensor, Tensor]:
    """Schroedinger's equation: half a step in space, one among waves, half a step in space."""
    kx, ky = (torch.fft.fftfreq(m, device=psi.device) * 2 * math.pi for m in psi.shape[-2:])
    half = torch.exp(-0.05j * (potential.float() + psi.abs().square()))
    kinetic = torch.exp(-0.05j * (kx[:, None].square() + ky.square()))
    y = half * torch.fft.ifft2(kinetic * torch.fft.fft2(half * psi))
    return torch.view_as_real(y), y.abs().square().sum((-1, -2))


def fluxes(x: Tensor) -> Tensor:
    """Euler's equations in a tube: slopes with a limiter, and Rusanov's fluxes."""
    u = torch.stack([x[:, 0].abs() + 1, x[:, 1] * 0.1, x[:, 2].abs() + 2], 1)
    d = u.diff(dim=-1)
    a, b = d[..., :-1], d[..., 1:]
    slope = torch.where(a * b > 0, torch.where(a.abs() < b.abs(), a, b), torch.zeros_like(a))
    left, right = u[..., 1:-2] + slope[..., :-1] / 2, u[..., 2:-1] - slope[..., 1:] / 2

    def flux(q: Tensor) -> tuple[Tensor, Tensor]:
        rho, m, e = q.unbind(1)
        v = m / rho
        p = 0.4 * (e - 0.5 * m * v).clamp(min=1e-2)
        return torch.stack([m, m * v + p, (e + p) * v], 1), (v.abs() + torch.sqrt(1.4 * p / rho)).unsqueeze(1)

    (fl, cl), (fr, cr) = flux(left), flux(right)
    f = 0.5 * (fl + fr) - 0.5 * torch.maximum(cl, cr) * (right - left)
    return u[..., 2:-2] - 0.1 * f.diff(dim=-1)


def leapfrog(a: Tensor, b: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """A network is the potential; its gradient by hand."""
    for _ in range(3):
        p = p - 0.05 * ((1 - torch.tanh(q @ a).square()) * b) @ a.mT
        q = q + 0.1 * p
        p = p - 0.05 * ((1 - torch.tanh(q @ a).square()) * b) @ a.mT
    return q, p


def smoothed_particles(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """SPH: densities by a cubic spline, then viscosity between near ones."""
    r = torch.cdist(x, x) / 0.5
    w = torch.where(r < 1, 1 - 1.5 * r**2 + 0.75 * r**3, 0.25 * (2 - r).clamp(min=0) ** 3)
    rho = w.sum(-1)
    force = torch.einsum("bij,bijd->bid", w / rho.unsqueeze(1), v.unsqueeze(1) - v.unsqueeze(2))
    return rho, v + 0.1 * force


def determinants(orbitals, weight: Tensor, x: Tensor, nuclei: Tensor) -> tuple[Tensor, Tensor]:
    """FermiNet's end: determinants of orbitals with envelopes, summed by their logarithms."""
    r = (x.unsqueeze(2) - nuclei).norm(dim=-1)
    phi = orbitals(x).unflatten(-1, (4, -1)) * torch.exp(-r).sum(-1)[..., None, None]
    sign, log = torch.linalg.slogdet(phi.transpose(1, 2) + 0.5 * torch.eye(x.shape[1], device=x.device))
    top = log.amax(1, keepdim=True)
    total = (weight * sign * torch.exp(log - top)).sum(1)
    return torch.atan(total), total.abs().clamp(min=1e-4).log() + top.squeeze(1)


def circuit(angle: Tensor, psi: Tensor) -> Tensor:
    """Turns of each qubit, then controlled signs, on a state of complex numbers; expectations of Z."""
    many = int(math.log2(psi.shape[-1]))
    state = (psi / torch.linalg.vector_norm(psi, dim=-1, keepdim=True)).view(-1, *[2] * many)
    for i in range(many):
        c, s = torch.cos(angle[i] / 2), torch.sin(angle[i] / 2)
        gate = torch.stack([torch.stack([c, -s]), torch.stack([s, c])]).to(state.dtype)
        state = torch.tensordot(state, gate, dims=([i + 1], [1])).movedim(-1, i + 1)
    p = state.abs().square().flatten(1).unflatten(1, (2, -1))
    return p[:, 0].sum(-1) - p[:, 1].sum(-1)


def gradients_by_sample(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For privacy: each sample's own gradient, clipped, then summed."""

    def loss(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (torch.tanh(x @ w + b) - y).square().mean()

    gw, gb = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, None, 0, 0))(w, b, x, y)
    long = torch.sqrt(gw.square().sum((1, 2)) + gb.square().sum(1))
    share = (0.3 / (long + 1e-6)).clamp(max=1)
    return torch.einsum("n,nij->ij", share, gw), share @ gb


R, P = (256, 5), (128, 8)
"""Residues, and features of a pair."""
ATOMS, EDGES = (4096, 6), (40000, 14)

CASES: dict[str, Case] = {
    "attend_at_ends": call(
        attend_at_ends,
        *((1, (128, 5), (128, 5), P), (1, (128, 5), (128, 5))),
        parts=(
            *(lambda n: nn.LayerNorm(n(*P)), wide(128, 384, (8, 24), bias=False), wide(128, 4, (8, 4), bias=False)),
            *(wide(128, 128, (8, 8)), wide(128, 128, (8, 8))),
        ),
    ),
    "invariant_points": call(
        invariant_points,
        *((4,), ((2, 1), R, (384, 8)), ((2, 1), R, R, 4), rotations, ((2, 1), R, 3)),
        parts=(wide(384, 192, (8, 24)), wide(384, 144, (8, 36))),
    ),
    "recycled": call(
        recycled, ((2, 1), R, 3), ((2, 1), R, R, P), parts=(lambda n: nn.Linear(15, n(*P)), lambda n: nn.LayerNorm(n(*P)))
    ),
    "clipped_places": call(clipped_places, whole(99, R), whole(3, R), parts=(lambda n: nn.Linear(67, n(*P), bias=False),)),
    "frame_errors": call(frame_errors, rotations, *(((2, 1), R, 3),) * 3),
    "local_distance_test": call(local_distance_test, *(((4, 1), (700, 9), 3),) * 2),
    "composed_frames": call(composed_frames, ((2, 1), R, (384, 8)), rotations, ((2, 1), R, 3), parts=(wide(384, 6, (8, 6)),)),
    "contact_head": call(
        contact_head, lambda n: torch.rand(n(2, 1), n(12, 2), n(20, 3), n(258, 8), n(258, 8)), parts=(wide(240, 1, (6, 1)),)
    ),
    "pooled_genes": call(
        pooled_genes,
        *(((256, 6), (256, 6)), ((4, 2), (256, 6), (3072, 10))),
        parts=(lambda n: nn.BatchNorm1d(n(256, 6)), lambda n: nn.Conv1d(n(256, 6), n(256, 6), 5, padding=2)),
    ),
    "zero_inflated": call(
        zero_inflated,
        *(((512, 4), (30, 5)), ((512, 4), 1), ((4000, 9),)),
        lambda n: torch.randint(0, 6, (n(512, 4), n(4000, 9))).float(),
        parts=(wide(30, 8000, (5, 18)),),
    ),
    "predicted_score": call(predicted_score, ((2, 1), (400, 6), (400, 6), 64)),
    "torsions": call(torsions, ((64, 2), (1201, 9), 3)),
    "superposed": call(superposed, *(((256, 3), (500, 7), 3),) * 2),
    "radial_messages": call(
        radial_messages,
        *((ATOMS, (64, 8)), (ATOMS, 3), below(ATOMS, 2, EDGES)),
        parts=(lambda n: nn.Sequential(nn.Linear(8, n(64, 8)), nn.SiLU(), wide(64, 64, (8, 8))(n)), wide(64, 64, (8, 8))),
    ),
    "ewald": call(ewald, ((500, 9), 3), ((5000, 12), 3), ((5000, 12),)),
    "spins": call(spins, ((32, 2), (256, 6), (254, 8)), lambda n: torch.rand(n(32, 2), n(256, 6), n(254, 8))),
    "split_step": call(split_step, complex_of((8, 2), (256, 8), (320, 6)), ((256, 8), (320, 6))),
    "fluxes": call(fluxes, ((256, 2), 3, (2000, 12))),
    "leapfrog": call(leapfrog, ((64, 4), (256, 8)), ((256, 8),), *(((2048, 5), (64, 4)),) * 2),
    "smoothed_particles": call(smoothed_particles, *(((8, 2), (600, 7), 3),) * 2),
    "determinants": call(determinants, (4,), ((512, 3), (16, 4), 3), ((5, 2), 3), parts=(lambda n: nn.Linear(3, 4 * n(16, 4)),)),
    "circuit": call(circuit, ((10, 3),), complex_of((64, 2), (1024, 8))),
    "gradients_by_sample": call(gradients_by_sample, ((64, 4), (32, 5)), ((32, 5),), ((256, 3), (64, 4)), ((256, 3), (32, 5))),
}
