"""Graphs, points in space, agents, and what is recommended to whom."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.laboratory import ATOMS
from experiments.suite.more.laboratory import EDGES
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

# -- graphs ---------------------------------------------------------------------------------------------------------------------


def sampled_neighbours(pool, own, other, x: Tensor, at: Tensor) -> Tensor:
    """GraphSAGE: the largest of a few neighbours, normed."""
    y = pool(x).relu()[at].amax(1)
    return functional.normalize((own(x) + other(y)).relu(), dim=-1)


def relations_by_bases(bases: Tensor, mix: Tensor, x: Tensor, ends: Tensor, kind: Tensor) -> Tensor:
    """R-GCN: weights of relations from a few bases, messages divided by how many come."""
    w = torch.einsum("rb,bio->rio", mix, bases)
    every = torch.einsum("ni,rio->rno", x, w)
    out = x.new_zeros(x.shape[0], w.shape[-1]).index_add(0, ends[1], every[kind, ends[0]])
    many = x.new_zeros(x.shape[0]).index_add(0, ends[1], torch.ones_like(ends[1], dtype=x.dtype))
    return (out / many.clamp(min=1).unsqueeze(1)).relu()


def biased_by_paths(degree, path, qkv, x: Tensor, degrees: Tensor, paths: Tensor) -> Tensor:
    """Graphormer: degrees are added to nodes, lengths of shortest paths to scores."""
    q, k, v = qkv(x + degree(degrees)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=path(paths).permute(0, 3, 1, 2)).transpose(1, 2).flatten(2)


def gated_edges(lines, norm, x: Tensor, e: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """GatedGCN: edges gate what nodes send, and grow themselves."""
    a, b, c, d, f = lines
    i, j = ends
    e = e + norm(c(e) + d(x)[i] + f(x)[j]).relu()
    gate = e.sigmoid()
    top, low = (torch.zeros_like(x).index_add(0, i, y) for y in (gate * b(x)[j], gate))
    return x + functional.relu(a(x) + top / (low + 1e-3)), e


def all_tails(norm, conv, line, heads: Tensor, kinds: Tensor, entities: Tensor) -> Tensor:
    """ConvE: embeddings as an image, and a score of every entity."""
    y = torch.cat([heads.unflatten(-1, (8, -1)), kinds.unflatten(-1, (8, -1))], 1).unsqueeze(1)
    y = line(conv(norm(y)).relu().flatten(1)).relu()
    return torch.sigmoid(y @ entities.mT)


# -- points in space ------------------------------------------------------------------------------------------------------------


def composited_tile(centre: Tensor, inverse: Tensor, opacity: Tensor, colour: Tensor, pixels: Tensor) -> Tensor:
    """Gaussians in order over the pixels of a tile, each weakened by those before."""
    d = pixels.unsqueeze(2) - centre
    power = -0.5 * torch.einsum("tpgi,gij,tpgj->tpg", d, inverse.mT @ inverse, d)
    alpha = (opacity.sigmoid() * power.exp()).clamp(max=0.99)
    alpha = torch.where(alpha < 1 / 255, 0.0, alpha)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha], -1), -1)
    return (alpha * through[..., :-1]) @ colour.sigmoid() + through[..., -1:]


def cones(line, mean: Tensor, spread: Tensor) -> Tensor:
    """mip-NeRF: expected sines of Gaussians along rays."""
    scale = 2.0 ** torch.arange(10, device=mean.device, dtype=mean.dtype)
    y = (mean.unsqueeze(-2) * scale[:, None]).flatten(-2)
    v = (spread.square().unsqueeze(-2) * scale[:, None].square()).flatten(-2)
    return line(torch.cat([torch.sin(y), torch.cos(y)], -1) * torch.exp(-0.5 * torch.cat([v, v], -1))).relu()


def pillars(line, norm, points: Tensor, at: Tensor, side: int) -> Tensor:
    """PointPillars: the largest feature of each column, put on a map seen from above."""
    x = torch.cat([points, points[..., :3] - points[..., :3].mean(1, keepdim=True)], -1)
    y = norm(line(x).transpose(1, 2)).relu().amax(-1)
    return y.new_zeros(side * side, y.shape[1]).index_put((at,), y).T.unflatten(1, (side, side)).unsqueeze(0)


def kernel_points(kernel: Tensor, weight: Tensor, at: Tensor, near: Tensor, x: Tensor) -> Tensor:
    """KPConv: neighbours count for kernel points that they are close to."""
    d = at[near] - at.unsqueeze(1)
    share = (1 - (d.unsqueeze(2) - kernel).norm(dim=-1) / 1.5).clamp(min=0)
    return torch.einsum("nkp,nkc,pco->no", share, x[near], weight)


def ball_groups(mlp, at: Tensor, x: Tensor, many: int) -> Tensor:
    """PointNet++: the nearest within a ball around every eighth point, and the largest of their features."""
    centres = at[:, ::8]
    far, near = torch.cdist(centres, at).topk(many, largest=False)
    near = torch.where(far > 1.5, near[..., :1], near)
    rows = torch.arange(len(at), device=at.device)[:, None, None]
    y = torch.cat([at[rows, near] - centres.unsqueeze(2), x[rows, near]], -1)
    return mlp(y).amax(2)


def lifted(head, x: Tensor, cell: Tensor, side: int) -> Tensor:
    """Lift and splat: features times depths, added up on the ground."""
    depth, y = head(x).split([24, head.out_channels - 24], 1)
    y = (depth.softmax(1).unsqueeze(1) * y.unsqueeze(2)).permute(0, 2, 3, 4, 1).flatten(0, 3)
    return y.new_zeros(side * side, y.shape[1]).index_add(0, cell, y).view(side, side, -1).permute(2, 0, 1)


def seen_by_cameras(matrices: Tensor, at: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Points projected to each camera's map; mean and variance of what it shows where they are in front."""
    y = torch.einsum("vij,nj->vni", matrices, functional.pad(at, (0, 1), value=1.0))
    z = y[..., 2:].abs() + 0.5
    grid = torch.tanh(y[..., :2] / z)
    seen = (grid.abs() < 0.9).all(-1).unsqueeze(1)
    f = functional.grid_sample(x, grid.unsqueeze(1), align_corners=False).squeeze(2) * seen
    many = seen.sum(0).clamp(min=1)
    mean = f.sum(0) / many
    return mean, ((f - mean).square() * seen).sum(0) / many


# -- agents ---------------------------------------------------------------------------------------------------------------------


def projected_returns_of_atoms(logits: Tensor, reward: Tensor, over: Tensor, best: Tensor) -> Tensor:
    """C51's target: probabilities moved by a reward, shared between the two atoms beside where they come to lie."""
    p = logits.softmax(-1).gather(1, best[:, None, None].expand(-1, 1, logits.shape[-1])).squeeze(1)
    atoms = torch.linspace(-10, 10, p.shape[-1], device=p.device, dtype=p.dtype)
    b = (reward[:, None] + 0.99 * (over[:, None] < 1).to(p.dtype) * atoms).clamp(-10, 10)
    b = ((b + 10) / 20 * (p.shape[-1] - 1)).clamp(0, p.shape[-1] - 1)
    low, high = b.floor().long(), b.ceil().long()
    low = torch.where((low == high) & (low > 0), low - 1, low)
    high = torch.where(low == high, high + 1, high)
    out = torch.zeros_like(p).scatter_add(1, low, p * (high - b))
    return out.scatter_add(1, high, p * (b - low))


def mixed_agents(first, second, bias, value, q: Tensor, state: Tensor) -> Tensor:
    """QMIX: networks of the state make weights that are not negative."""
    hidden = bias(state).unsqueeze(1)
    w = first(state).abs().unflatten(-1, (q.shape[-1], -1))
    y = functional.elu(torch.bmm(q.unsqueeze(1), w) + hidden)
    return torch.bmm(y, second(state).abs().unsqueeze(-1)).flatten(1) + value(state)


class Imagined(nn.Module):
    """Dreamer's recurrent state: discrete latents by their largest, unmixed, over a few steps, then returns."""

    def __init__(self, wide: int, classes: int, actions: int) -> None:
        super().__init__()
        self.classes = classes
        self.into, self.cell = nn.Linear(8 * classes + actions, wide), nn.GRUCell(wide, wide)
        self.norm, self.prior = nn.LayerNorm(wide), nn.Linear(wide, 8 * classes)
        self.reward, self.value = nn.Linear(wide, 1), nn.Linear(wide, 1)

    def forward(self, h: Tensor, z: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        rewards, values = [], []
        for a in actions.unbind(1):
            h = self.cell(functional.silu(self.norm(self.into(torch.cat([z, a], -1)))), h)
            p = 0.99 * self.prior(h).unflatten(-1, (8, -1)).softmax(-1) + 0.01 / self.classes
            z = (functional.one_hot(p.argmax(-1), self.classes).to(p.dtype) + p - p.detach()).flatten(1)
            rewards.append(self.reward(h))
            values.append(self.value(h))
        back, out = values[-1], []
        for r, v in zip(reversed(rewards), reversed(values), strict=True):
            back = r + 0.99 * (0.05 * v + 0.95 * back)
            out.insert(0, back)
        return torch.cat(out, 1), h


def two_hot(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """DreamerV3: a loss on the two bins beside a target, and what is expected, both squeezed by logarithms."""
    bins = torch.linspace(-5, 5, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    t = torch.sign(target) * torch.log1p(target.abs())
    below = (bins <= t[..., None]).sum(-1).clamp(1, len(bins) - 1) - 1
    share = (t - bins[below]) / (bins[below + 1] - bins[below])
    hot = functional.one_hot(below, len(bins)) * (1 - share)[..., None]
    hot = hot + functional.one_hot(below + 1, len(bins)) * share[..., None]
    y = (logits.softmax(-1) * bins).sum(-1)
    return -(hot * logits.log_softmax(-1)).sum(-1), torch.sign(y) * torch.expm1(y.abs())


def decisions(table, lines, norm, layer, out, when: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Decision transformer: returns, states and actions in turn, a causal layer, actions read from states."""
    t = table(when)
    x = norm(torch.stack([f(g) + t for f, g in zip(lines, given, strict=True)], 2).flatten(1, 2))
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
    return torch.tanh(out(layer(x, src_mask=mask, is_causal=True)[:, 1::3]))


def soft_target(actor, first, second, s: Tensor, noise: Tensor, reward: Tensor) -> tuple[Tensor, Tensor]:
    """SAC: a squashed action, the smaller of two critics, less the entropy's price."""
    mean, log_std = actor(s).chunk(2, -1)
    log_std = -5 + 3.5 * (torch.tanh(log_std) + 1)
    u = mean + log_std.exp() * noise
    log_p = (-0.5 * noise.square() - log_std - 2 * (0.6931 - u - functional.softplus(-2 * u))).sum(-1, keepdim=True)
    x = torch.cat([s, torch.tanh(u)], -1)
    return reward + 0.99 * (torch.minimum(first(x), second(x)) - 0.2 * log_p), log_p


def critic(n) -> nn.Module:
    w = n(256, 8)
    return nn.Sequential(nn.Linear(n(48, 6) + n(12, 3), w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


def retraced(q: Tensor, reward: Tensor, ratio: Tensor) -> Tensor:
    """Targets from the end of a few steps, by ratios that are cut."""
    c = 0.95 * ratio.exp().clamp(max=1)
    delta = reward + 0.99 * q[:, 1:] - q[:, :-1]
    out, back = [], torch.zeros_like(reward[:, 0])
    for i in reversed(range(reward.shape[1])):
        back = delta[:, i] + 0.99 * c[:, i] * back
        out.append(back + q[:, i])
    return torch.stack(out[::-1], 1)


# -- recommendations ------------------------------------------------------------------------------------------------------------


def history_attention(table, mlp, target: Tensor, past: Tensor, many: Tensor) -> Tensor:
    """DIN: what was seen, weighed by a network of it and the candidate, without softmax."""
    t, h = table(target).unsqueeze(1), table(past)
    t = t.expand_as(h)
    w = mlp(torch.cat([t, h, t - h, t * h], -1)).squeeze(-1)
    w = w * (torch.arange(h.shape[1], device=h.device) < many[:, None])
    return (w.unsqueeze(1) @ h).squeeze(1)


def pointwise_attention(norm, into, post, out, x: Tensor, bias: Tensor) -> Tensor:
    """HSTU: SiLU in place of softmax, a norm after, gates."""
    u, v, q, k = functional.silu(into(norm(x))).unflatten(-1, (4, 4, -1)).permute(2, 0, 3, 1, 4)
    a = functional.silu(q @ k.mT + bias) / x.shape[1]
    y = (torch.tril(a) @ v).transpose(1, 2).flatten(2)
    return x + out(post(y) * u.transpose(1, 2).flatten(2))


def sampled_by_batch(a, b, users: Tensor, items: Tensor, often: Tensor, ids: Tensor) -> Tensor:
    """Two towers: other users' items are negatives, corrected by how frequent they are; the same item is none."""
    x, y = functional.normalize(a(users), dim=-1), functional.normalize(b(items), dim=-1)
    s = x @ y.mT / 0.05 - functional.logsigmoid(often)
    same = (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    return functional.cross_entropy(s.masked_fill(same, -1e4), torch.arange(len(ids), device=ids.device))


def excited_fields(squeeze, excite, weight: Tensor, x: Tensor) -> Tensor:
    """FiBiNET: fields weighed by their means, then bilinear products of all pairs."""
    w = excite(squeeze(x.mean(-1)).relu()).relu()
    v = x * w.unsqueeze(-1)
    i, j = torch.triu_indices(x.shape[1], x.shape[1], offset=1, device=x.device)
    return torch.cat([((y @ weight)[:, i] * y[:, j]).flatten(1) for y in (x, v)], -1)


def masked_features(norm, line, masks, x: Tensor) -> Tensor:
    """MaskNet: features multiplied by what a network makes of all of them, in parallel and averaged."""
    y = norm(x).flatten(1)
    return torch.stack([functional.relu(line(m(x.flatten(1)) * y)) for m in masks]).mean(0)


def double_bilinear(a, b, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """FinalMLP: two networks joined by a bilinear form for each head."""
    u, v = a(x).relu().unflatten(-1, (4, -1)), b(y).relu().unflatten(-1, (4, -1))
    both = torch.einsum("bhi,hij,bhj->bh", u, weight, v)
    return torch.sigmoid((both + u.mean(-1) - v.mean(-1)).sum(-1))


POINTS = (8192, 16)

CASES: dict[str, Case] = {
    "sampled_neighbours": call(
        sampled_neighbours,
        *((POINTS, (128, 8)), below(POINTS, POINTS, (15, 3))),
        parts=(wide(128, 256, (8, 9)), wide(128, 100, (8, 7)), wide(256, 100, (9, 7), bias=False)),
    ),
    "relations_by_bases": call(
        relations_by_bases,
        *(((8, 2), (64, 6), (64, 5)), ((20, 3), (8, 2)), (ATOMS, (64, 6)), below(ATOMS, 2, EDGES), below((20, 3), EDGES)),
    ),
    "biased_by_paths": call(
        biased_by_paths,
        *(((32, 2), (100, 5), (256, 16)), whole(20, (32, 2), (100, 5)), whole(20, (32, 2), (100, 5), (100, 5))),
        parts=(lambda n: nn.Embedding(20, n(256, 16)), lambda _: nn.Embedding(20, 8), wide(256, 768, (16, 48))),
    ),
    "gated_edges": call(
        gated_edges,
        *((ATOMS, (96, 6)), (EDGES, (96, 6)), below(ATOMS, 2, EDGES)),
        parts=(lambda n: nn.ModuleList(nn.Linear(n(96, 6), n(96, 6)) for _ in range(5)), lambda n: nn.BatchNorm1d(n(96, 6))),
    ),
    "all_tails": call(
        all_tails,
        *(((128, 3), (200, 24)), ((128, 3), (200, 24)), ((14541, 9), (200, 24))),
        parts=(
            *(lambda _: nn.BatchNorm2d(1), lambda n: nn.Conv2d(1, n(32, 3), 3)),
            lambda n: nn.Linear(n(32, 3) * 14 * (n(200, 24) // 8 - 2), n(200, 24)),
        ),
    ),
    "composited_tile": call(
        composited_tile, *(((128, 6), 2), ((128, 6), 2, 2), ((128, 6),), ((128, 6), 3), ((64, 2), (256, 4), 2))
    ),
    "cones": call(cones, *(((1024, 3), (64, 4), 3),) * 2, parts=(wide(60, 256, (60, 8)),)),
    "pillars": call(
        pillars,
        *((POINTS, (20, 3), 4), lambda n: torch.randperm(256 * 256)[: n(*POINTS)], 256),
        parts=(wide(7, 64, (7, 5), bias=False), lambda n: nn.BatchNorm1d(n(64, 5))),
    ),
    "kernel_points": call(
        kernel_points, *((15, 3), (15, (64, 5), (64, 6)), (ATOMS, 3), below(ATOMS, ATOMS, (24, 3)), (ATOMS, (64, 5)))
    ),
    "ball_groups": call(
        ball_groups,
        *(((8, 2), (1024, 16), 3), ((8, 2), (1024, 16), (32, 4)), 5),
        parts=(lambda n: nn.Sequential(nn.Linear(3 + n(32, 4), n(64, 8)), nn.ReLU(), wide(64, 128, (8, 6))(n)),),
    ),
    "lifted": call(
        lifted,
        *(((6, 1), (128, 6), (16, 3), (44, 4)), below((16384, 16384), (101376, 288)), 128),
        parts=(lambda n: nn.Conv2d(n(128, 6), 24 + n(64, 4), 1),),
    ),
    "seen_by_cameras": call(seen_by_cameras, ((6, 4), 3, 4), ((20000, 11), 3), ((6, 4), (32, 3), (64, 6), (112, 7))),
    "projected_returns_of_atoms": call(
        projected_returns_of_atoms, ((1024, 4), (18, 3), 51), ((1024, 4),), ((1024, 4),), below((18, 3), (1024, 4))
    ),
    "mixed_agents": call(
        mixed_agents,
        *(((4096, 5), (10, 3)), ((4096, 5), (160, 7))),
        parts=(wide(160, 320, (7, 12)), wide(160, 32, (7, 4)), wide(160, 32, (7, 4)), wide(160, 1, (7, 1))),
    ),
    "imagined": call(
        lambda m, *x: m(*x),
        *(((512, 3), (256, 8)), ((512, 3), (256, 32)), ((512, 3), 3, 6)),
        parts=(lambda n: Imagined(n(256, 8), n(32, 4), 6),),
    ),
    "two_hot": call(two_hot, ((4096, 5), (255, 11)), ((4096, 5),)),
    "decisions": call(
        decisions,
        whole(99, (32, 2), (20, 3)),
        lambda n: tuple(floats(n, (32, 2), (20, 3), w) for w in (1, 17, 6)),
        parts=(
            *(lambda n: nn.Embedding(99, n(128, 8)), lambda n: nn.ModuleList(nn.Linear(w, n(128, 8)) for w in (1, 17, 6))),
            lambda n: nn.LayerNorm(n(128, 8)),
            lambda n: nn.TransformerEncoderLayer(n(128, 8), 2, n(512, 16), batch_first=True, norm_first=True),
            lambda n: nn.Linear(n(128, 8), 6),
        ),
    ),
    "soft_target": call(
        soft_target, *(((1024, 4), (48, 6)), ((1024, 4), (12, 3)), ((1024, 4), 1)), parts=(wide(48, 24, (6, 6)), critic, critic)
    ),
    "retraced": call(retraced, ((2048, 4), 17), ((2048, 4), 16), ((2048, 4), 16)),
    "history_attention": call(
        history_attention,
        *(below((60000, 9), (512, 3)), below((60000, 9), (512, 3), (100, 5)), below((100, 5), (512, 3))),
        parts=(
            lambda n: nn.Embedding(n(60000, 9), n(64, 4)),
            lambda n: nn.Sequential(wide(256, 80, (16, 6))(n), nn.Sigmoid(), wide(80, 1, (6, 1))(n)),
        ),
    ),
    "pointwise_attention": call(
        pointwise_attention,
        *(((16, 2), (200, 5), (256, 8)), ((200, 5), (200, 5))),
        parts=(
            *(lambda n: nn.LayerNorm(n(256, 8)), wide(256, 1024, (8, 32), bias=False)),
            *(lambda n: nn.LayerNorm(n(256, 8)), wide(256, 256, (8, 8))),
        ),
    ),
    "sampled_by_batch": call(
        sampled_by_batch,
        *(((2048, 5), (128, 8)), ((2048, 5), (96, 6)), ((2048, 5),), whole(500, (2048, 5))),
        parts=(wide(128, 64, (8, 4)), wide(96, 64, (6, 4))),
    ),
    "excited_fields": call(
        excited_fields,
        *(((16, 4), (16, 4)), ((2048, 3), (26, 4), (16, 4))),
        parts=(wide(26, 8, (4, 2), bias=False), wide(8, 26, (2, 4), bias=False)),
    ),
    "masked_features": call(
        masked_features,
        ((2048, 3), (26, 3), (16, 4)),
        parts=(
            *(lambda n: nn.LayerNorm(n(16, 4)), wide(416, 256, (12, 5))),
            lambda n: nn.ModuleList(
                nn.Sequential(wide(416, 832, (12, 8))(n), nn.ReLU(), wide(832, 416, (8, 12))(n)) for _ in range(3)
            ),
        ),
    ),
    "double_bilinear": call(
        double_bilinear,
        *(((4, 4), (32, 3), (32, 3)), ((4096, 5), (200, 7)), ((4096, 5), (150, 6))),
        parts=(wide(200, 128, (7, 12)), wide(150, 128, (6, 12))),
    ),
}
