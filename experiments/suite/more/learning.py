"""Speech, graphs, recommenders, losses, and what agents learn by."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import whole


def linear(i: tuple[int, int], o: tuple[int, int], **more):
    return lambda n: nn.Linear(n(*i), n(*o), **more)


def mlp(*widths: tuple[int, int], act=nn.SiLU):
    def make(n):
        parts = [m for i, o in pairwise(widths) for m in (nn.Linear(n(*i), n(*o)), act())]
        return nn.Sequential(*parts[:-1])

    return make


# -- recommenders ---------------------------------------------------------------------------------------------------------------


def compressed(one, two, x: Tensor) -> Tensor:
    """xDeepFM's interactions."""
    b, f, d = x.shape
    first = functional.relu(one(torch.einsum("bhd,bmd->bhmd", x, x).reshape(b, f * f, d)))
    second = functional.relu(two(torch.einsum("bhd,bmd->bhmd", first, x).reshape(b, -1, d)))
    return torch.cat([first.sum(-1), second.sum(-1)], dim=1)


def many_tasks(a, b, up: Tensor, down: Tensor, gates: Tensor, x: Tensor) -> dict[str, Tensor]:
    """MMoE: experts are shared, each task weighs them."""
    experts = torch.einsum("beo,eok->bek", functional.relu(torch.einsum("bi,eio->beo", x, up)), down)
    weights = torch.softmax(torch.einsum("bi,tie->tbe", x, gates), dim=-1)
    mixed = (weights.unsqueeze(-1) * experts.unsqueeze(0)).sum(2)
    return {"click": a(mixed[0]).squeeze(-1).sigmoid(), "buy": (a(mixed[0]) * b(mixed[1])).squeeze(-1).sigmoid()}


def sampled_softmax(table: Tensor, log_q: Tensor, users: Tensor, items: Tensor, others: Tensor) -> Tensor:
    positive = (users * table[items]).sum(-1, keepdim=True) - log_q[items].unsqueeze(1)
    negative = users @ table[others].T - log_q[others]
    negative = torch.where(items[:, None] == others[None, :], torch.full_like(negative, -1e4), negative)
    return -functional.log_softmax(torch.cat([positive, negative], dim=1), dim=1)[:, 0].mean()


# -- losses ---------------------------------------------------------------------------------------------------------------------


def hardest_triplets(x: Tensor, y: Tensor) -> Tensor:
    dot = x @ x.t()
    square = dot.diagonal()
    far = (square.unsqueeze(0) - 2.0 * dot + square.unsqueeze(1)).clamp(min=0)
    zero = (far == 0.0).to(x.dtype)
    far = (1.0 - zero) * torch.sqrt(far + zero * 1e-4)
    same = y.unsqueeze(0) == y.unsqueeze(1)
    positive = (far * (same & ~torch.eye(len(y), dtype=torch.bool, device=y.device))).max(1, keepdim=True)[0]
    negative = (far + far.max(1, keepdim=True)[0] * same).min(1, keepdim=True)[0]
    return functional.relu(positive - negative + 0.2).mean()


def proxy_anchor(proxies: Tensor, x: Tensor, y: Tensor) -> Tensor:
    cos = functional.linear(functional.normalize(x), functional.normalize(proxies))
    mine = functional.one_hot(y, len(proxies)).bool()
    pull = torch.where(mine, torch.exp(-8 * (cos - 0.1)), 0).sum(0)
    push = torch.where(~mine, torch.exp(8 * (cos + 0.1)), 0).sum(0)
    met = (mine.sum(0) != 0).sum().clamp(min=1)
    return torch.log1p(pull).sum() / met + torch.log1p(push).sum() / len(proxies)


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """MMD with kernels of several widths."""
    z = torch.cat([x, y])
    far = ((z[None] - z[:, None]) ** 2).sum(2)
    width = far.detach().mean()
    k = torch.zeros_like(far)
    for i in range(-2, 3):
        k += torch.exp(-far / (width * 2.0**i))
    n = len(x)
    return (k[:n, :n] + k[n:, n:] - k[:n, n:] - k[n:, :n]).mean()


def sliced_distance(turn: Tensor, x: Tensor, y: Tensor) -> Tensor:
    turn = turn / turn.norm(dim=0)
    return (torch.sort(x @ turn, dim=0)[0] - torch.sort(y @ turn, dim=0)[0]).abs().pow(2).mean().sqrt()


def edge_aware(depth: Tensor, image: Tensor) -> Tensor:
    d = depth / (depth.abs().mean((2, 3), True) + 1e-3)
    dx, dy = (d[:, :, :, :-1] - d[:, :, :, 1:]).abs(), (d[:, :, :-1, :] - d[:, :, 1:, :]).abs()
    ix = (image[:, :, :, :-1] - image[:, :, :, 1:]).abs().mean(1, keepdim=True)
    iy = (image[:, :, :-1, :] - image[:, :, 1:, :]).abs().mean(1, keepdim=True)
    return (dx * torch.exp(-ix)).mean() + (dy * torch.exp(-iy)).mean()


def scale_free(x: Tensor, y: Tensor) -> Tensor:
    seen = (y > 0.1).to(x.dtype)
    g = (torch.log(x.abs() + 1e-3) - torch.log(y.abs() + 1e-3)) * seen
    n = seen.sum((1, 2)).clamp(min=1.0)
    return 10 * torch.sqrt((g**2).sum((1, 2)) / n - 0.85 * (g.sum((1, 2)) / n) ** 2 + 1e-3).mean()


def adaptive_wing(x: Tensor, y: Tensor) -> Tensor:
    far = (y - x).abs()
    a = 14 / (1 + 0.5 ** (2.1 - y)) * (2.1 - y) * 0.5 ** (1.1 - y) * 2
    c = 0.5 * a - 14 * torch.log1p(torch.pow(torch.tensor(0.5, dtype=x.dtype, device=x.device), 2.1 - y))
    return torch.where(far < 0.5, 14 * torch.log(1 + far ** (2.1 - y)), a * far - c).mean()


def matching_costs(logits: Tensor, boxes: Tensor, labels: Tensor, truth: Tensor) -> Tensor:
    """DETR's costs of giving each query to each object."""

    def corners(b: Tensor) -> Tensor:
        cx, cy, w, h = b.sigmoid().unbind(-1)
        return torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)

    p = logits.flatten(0, 1).sigmoid()
    negative = 0.75 * p**2 * -(1 - p + 1e-4).log()
    positive = 0.25 * (1 - p) ** 2 * -(p + 1e-4).log()
    a, b = corners(boxes.flatten(0, 1)), corners(truth)
    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = [(z[:, 2] - z[:, 0]) * (z[:, 3] - z[:, 1]) for z in (a, b)]
    union = area[0][:, None] + area[1] - shared
    hull = (torch.max(a[:, None, 2:], b[:, 2:]) - torch.min(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    giou = shared / union - (hull - union) / hull
    far = torch.cdist(boxes.flatten(0, 1).float(), truth.float(), p=1)
    return (5 * far + 2 * (positive[:, labels] - negative[:, labels]) - 2 * giou).view(*logits.shape[:2], -1)


def alignments(logits: Tensor, labels: Tensor) -> Tensor:
    """CTC's recursion over frames."""
    p = logits.log_softmax(-1).gather(2, labels[:, None].expand(-1, logits.shape[1], -1))
    same = torch.zeros_like(labels, dtype=torch.bool)
    same[:, 2:] = labels[:, 2:] == labels[:, :-2]
    alpha = torch.full_like(p[:, 0], -1e4)
    alpha[:, :2] = p[:, 0, :2]
    for t in range(1, p.shape[1]):
        one = functional.pad(alpha, (1, 0), value=-1e4)[:, :-1]
        two = functional.pad(alpha, (2, 0), value=-1e4)[:, :-2].masked_fill(same, -1e4)
        alpha = torch.logsumexp(torch.stack((alpha, one, two)), dim=0) + p[:, t]
    return -torch.logaddexp(alpha[:, -1], alpha[:, -2]).mean()


def evidence(logits: Tensor, y: Tensor) -> Tensor:
    a = functional.softplus(logits) + 1
    total = a.sum(1, keepdim=True)
    target = functional.one_hot(y, a.shape[1])
    fit = (target * (torch.digamma(total) - torch.digamma(a))).sum(1)
    b = target + (1 - target) * a
    rest = torch.lgamma(b.sum(1)) - torch.lgamma(b).sum(1) - math.lgamma(a.shape[1])
    return (fit + 0.1 * (rest + ((b - 1) * (torch.digamma(b) - torch.digamma(b.sum(1, keepdim=True)))).sum(1))).mean()


def mixture_density(net, x: Tensor, y: Tensor) -> Tensor:
    pi, mu, log_s = net(x).unflatten(-1, (3, -1)).unbind(1)
    s = log_s.clamp(-3, 3)
    log_p = -0.5 * ((y - mu) / s.exp()) ** 2 - s - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(functional.log_softmax(pi, -1) + log_p, -1).mean()


def logistic_mixture(x: Tensor, weight: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """PixelCNN++: chances of one of 256 grey values."""
    x = x.tanh().unsqueeze(1)
    s = log_scale.clamp(min=-3.0)
    centre, inverse = x - mean, torch.exp(-s)
    plus, minus = inverse * (centre + 1.0 / 255.0), inverse * (centre - 1.0 / 255.0)
    delta = torch.sigmoid(plus) - torch.sigmoid(minus)
    middle = inverse * centre
    rest = torch.where(delta > 1e-4, delta.clamp(min=1e-4).log(), middle - s - 2 * functional.softplus(middle) - 4.8481164)
    log_p = torch.where(x < -0.999, plus - functional.softplus(plus), torch.where(x > 0.999, -functional.softplus(minus), rest))
    return -torch.logsumexp(log_p + functional.log_softmax(weight, 1), 1).mean()


# -- flows and agents -----------------------------------------------------------------------------------------------------------


def coupling(net, x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x[:, ::2], x[:, 1::2]
    s, t = net(a).chunk(2, dim=1)
    s = 2.0 * torch.tanh(s / 2.0)
    b = b * s.exp() + t
    return torch.stack((a, b), dim=2).view_as(x).flip(1), s.sum(dim=1)


def spline(x: Tensor, w: Tensor, h: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """A rational-quadratic spline of eight bins, and the logarithm of its slope."""
    w, h = (functional.pad((0.001 + 0.992 * z.softmax(-1)).cumsum(-1), (1, 0)) * 6 - 3 for z in (w, h))
    w[..., -1], h[..., -1] = 3.0, 3.0
    d = 0.001 + functional.softplus(d)
    inside = (x >= -3) & (x < 3)
    clipped = x.clamp(-2.99, 2.99)
    i = (torch.searchsorted(w.contiguous(), clipped.unsqueeze(-1).contiguous(), right=True) - 1).clamp(0, 7)
    x0, y0 = w.gather(-1, i).squeeze(-1), h.gather(-1, i).squeeze(-1)
    dx, dy = w.diff(dim=-1).gather(-1, i).squeeze(-1), h.diff(dim=-1).gather(-1, i).squeeze(-1)
    d0, d1 = d.gather(-1, i).squeeze(-1), d[..., 1:].gather(-1, i).squeeze(-1)
    t, slope = (clipped - x0) / dx, dy / dx
    both = t * (1 - t)
    below = slope + (d0 + d1 - 2 * slope) * both
    y = y0 + dy * (slope * t.square() + d0 * both) / below
    log = 2 * slope.log() + (d1 * t.square() + 2 * slope * both + d0 * (1 - t).square()).log() - 2 * below.log()
    return torch.where(inside, y, x), torch.where(inside, log, torch.zeros_like(log)).sum(-1)


def v_trace(values: Tensor, rewards: Tensor, log_ratio: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    rho = log_ratio.exp()
    clipped = rho.clamp(max=1.0)
    after = torch.cat([values[1:], last.unsqueeze(0)], dim=0)
    delta = clipped * (rewards + 0.99 * after - values)
    acc, found = torch.zeros_like(last), []
    for t in reversed(range(values.shape[0])):
        acc = delta[t] + 0.99 * rho[t].clamp(max=1.0) * acc
        found.insert(0, acc)
    vs = torch.stack(found) + values
    return vs, clipped * (rewards + 0.99 * torch.cat([vs[1:], last[None]]) - values)


def projected_returns(p: Tensor, rewards: Tensor, done: Tensor) -> Tensor:
    """C51: chances move with the reward, and are shared out to the atoms on both sides."""
    b, n = p.shape
    z = torch.linspace(-10, 10, n, device=p.device)
    at = ((rewards.unsqueeze(1) + 0.99 * (1 - done.unsqueeze(1)) * z).clamp(-10, 10) + 10) / (20 / (n - 1))
    low, high = at.floor().long(), at.ceil().long()
    low = torch.where((high > 0) & (low == high), low - 1, low)
    high = torch.where((low < n - 1) & (low == high), high + 1, high)
    offset = torch.arange(b, device=p.device).mul(n).unsqueeze(1)
    p, found = p.float().softmax(-1), torch.zeros(b * n, device=p.device)
    found.index_add_(0, (low + offset).view(-1), (p * (high - at)).view(-1))
    found.index_add_(0, (high + offset).view(-1), (p * (at - low)).view(-1))
    return found.view(b, n)


def squashed(net, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """SAC's policy and the logarithm of its density."""
    mu, log_std = net(x).chunk(2, dim=-1)
    log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
    action = mu + log_std.exp() * noise
    log_p = (-0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    return torch.tanh(action), log_p - (2 * (math.log(2) - action - functional.softplus(-2 * action))).sum(-1)


def quantile_heads(cos, value, advantage, x: Tensor, tau: Tensor) -> Tensor:
    """IQN with duelling heads."""
    angle = math.pi * torch.arange(1, 65, device=x.device, dtype=x.dtype)
    z = x.unsqueeze(1) * functional.relu(cos(torch.cos(tau.sigmoid().unsqueeze(-1) * angle)))
    v, a = value(z), advantage(z)
    return (v + a - a.mean(dim=-1, keepdim=True)).mean(1).argmax(-1)


def group_policy(logits: Tensor, tokens: Tensor, old: Tensor, reference: Tensor, rewards: Tensor, keep: Tensor) -> Tensor:
    """GRPO's loss."""
    log_p = logits.float().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    r = rewards.float().view(-1, 4)
    advantage = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio = torch.exp(log_p - log_p.detach() - 0.1 * old.tanh())
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    kl = torch.exp(reference.tanh()) - reference.tanh() - 1
    return -(((gain - 0.04 * kl) * keep).sum(1) / keep.sum(1).clamp(min=1.0)).mean()


CASES: dict[str, Case] = {
    "compressed_interactions": call(
        compressed,
        ((512, 4), (26, 5), (16, 8)),
        parts=(lambda n: nn.Conv1d(n(676, 25), n(64, 6), 1), lambda n: nn.Conv1d(n(64, 6) * n(26, 5), n(64, 6), 1)),
    ),
    "many_tasks": call(
        many_tasks,
        ((8, 4), (256, 16), (128, 16)),
        ((8, 4), (128, 16), (64, 16)),
        (2, (256, 16), (8, 4)),
        ((2048, 6), (256, 16)),
        parts=(linear((64, 16), (1, 1)), linear((64, 16), (1, 1))),
    ),
    "sampled_softmax": call(
        sampled_softmax, ((20000, 30), (64, 8)), ((20000, 30),), ((2048, 6), (64, 8)), whole(30, (2048, 6)), whole(30, (1024, 9))
    ),
    "hardest_triplets": call(hardest_triplets, ((512, 8), (128, 8)), whole(3, (512, 8))),
    "proxy_anchor": call(proxy_anchor, ((1000, 9), (128, 8)), ((512, 6), (128, 8)), whole(9, (512, 6))),
    "discrepancy": call(discrepancy, *(((256, 5), (64, 8)),) * 2),
    "sliced_distance": call(sliced_distance, ((128, 8), (256, 6)), *(((1024, 9), (128, 8)),) * 2),
    "edge_aware": call(edge_aware, ((8, 2), 1, (192, 7), (320, 9)), ((8, 2), 3, (192, 7), (320, 9))),
    "scale_free_depth": call(scale_free, *(((8, 2), (192, 7), (320, 9)),) * 2),
    "adaptive_wing": call(adaptive_wing, *(lambda n: torch.rand(n(8, 2), n(68, 3), n(64, 6), n(64, 6)),) * 2),
    "matching_costs": call(matching_costs, ((8, 2), (300, 5), (91, 7)), ((8, 2), (300, 5), 4), whole(7, (60, 4)), ((60, 4), 4)),
    "alignments": call(alignments, ((32, 2), (12, 4), (80, 8)), whole(8, (32, 2), (41, 5))),
    "evidence": call(evidence, ((4096, 6), (100, 5)), whole(5, (4096, 6))),
    "mixture_density": call(
        mixture_density,
        ((8192, 9), (64, 8)),
        ((8192, 9), 1),
        parts=(lambda n: nn.Sequential(nn.Linear(n(64, 8), n(128, 8)), nn.Tanh(), nn.Linear(n(128, 8), 24)),),
    ),
    "logistic_mixture": call(logistic_mixture, ((16, 2), (64, 6), (64, 6)), *(((16, 2), 5, (64, 6), (64, 6)),) * 3),
    "coupling": call(coupling, ((8192, 6), (64, 16)), parts=(mlp((32, 8), (256, 16), (256, 16), (64, 16), act=nn.ReLU),)),
    "spline": call(spline, ((4096, 6), (16, 3)), *(((4096, 6), (16, 3), 8),) * 2, ((4096, 6), (16, 3), 9)),
    "v_trace": call(v_trace, *(((16, 5), (1024, 6)),) * 3, ((1024, 6),)),
    "projected_returns": call(
        projected_returns, ((1024, 6), (51, 11)), ((1024, 6),), lambda n: (torch.rand(n(1024, 6)) > 0.9).float()
    ),
    "squashed_policy": call(
        squashed, ((4096, 6), (64, 8)), ((4096, 6), (17, 3)), parts=(mlp((64, 8), (256, 16), (256, 16), (34, 6), act=nn.ReLU),)
    ),
    "quantile_heads": call(
        quantile_heads,
        ((128, 3), (512, 16)),
        ((128, 3), (32, 4)),
        parts=(linear((64, 64), (512, 16)), linear((512, 16), (1, 1)), linear((512, 16), (18, 5))),
    ),
    "group_policy": call(
        group_policy,
        ((16, 4), (64, 5), (8000, 20)),
        whole(20, (16, 4), (64, 5)),
        ((16, 4), (64, 5)),
        ((16, 4), (64, 5)),
        ((16, 4),),
        lambda n: (torch.rand(n(16, 4), n(64, 5)) > 0.2).float(),
    ),
}
