"""Losses of training scripts: preferences, distillation, ranking, boxes, regions, speech; distances between sets and paths."""

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

WORDS = ((4, 2), (256, 6), (4096, 24))
CLASSES = ((1024, 7), (1000, 11))


# -- language -------------------------------------------------------------------------------------------------------------------


def smooth_with_z(logits: Tensor, y: Tensor, *, smoothing: float = 0.1, z_weight: float = 1e-3) -> tuple[Tensor, Tensor, Tensor]:
    """Label smoothing, a penalty of the normaliser, words that do not count."""
    logits, y = logits.flatten(0, 1).float(), y.flatten()
    counts = y != -100
    lse = torch.logsumexp(logits, dim=-1)
    mine = logits.gather(1, y.clamp(min=0)[:, None]).squeeze(1)
    loss = (1 - smoothing) * (lse - mine) + smoothing * (lse - logits.mean(-1))
    z = z_weight * lse.square()
    n = counts.sum().clamp(min=1)
    right = ((logits.argmax(-1) == y) & counts).sum() / n
    return torch.where(counts, loss + z, 0.0).sum() / n, torch.where(counts, z, 0.0).sum() / n, right


def some_words(n):
    y = torch.randint(0, 24, (n(4, 2), n(256, 6)))
    return torch.where(torch.rand(y.shape) > 0.8, -100, y)


class ChunkedLoss(nn.Module):
    """The head and the loss part by part, so that no more than a part of the logits is there."""

    def __init__(self, width: int, words: int, parts: int = 4) -> None:
        super().__init__()
        self.lm_head, self.parts = nn.Linear(width, words, bias=False), parts

    def forward(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        entropy = []
        for h, y in zip(hidden.flatten(0, 1).chunk(self.parts), labels.flatten().chunk(self.parts), strict=True):
            logits = self.lm_head(h).float()
            logits = 20.0 * torch.tanh(logits / 20.0)
            total = total + functional.cross_entropy(logits, y, ignore_index=-100, reduction="sum")
            p = logits.softmax(-1)
            entropy.append(torch.logsumexp(logits, -1) - (p * logits).sum(-1))
        return total / (labels != -100).sum().clamp(min=1), torch.cat(entropy)


def jensen_shannon(student: Tensor, teacher: Tensor, beta: float, temperature: float) -> Tensor:
    """With a weight for each side, as generalised distillation has it."""
    log_q, log_p = (functional.log_softmax(x / temperature, dim=-1) for x in (student, teacher))
    pair = torch.stack([log_q + math.log1p(-beta), log_p + math.log(beta)])
    mixed = torch.logsumexp(pair, dim=0)
    to_p = functional.kl_div(mixed, log_p, reduction="none", log_target=True)
    to_q = functional.kl_div(mixed, log_q, reduction="none", log_target=True)
    return (beta * to_p + (1 - beta) * to_q).sum(-1).mean()


def total_distance(p: Tensor, q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    far = 0.5 * torch.abs(p.softmax(-1) - q.softmax(-1)).sum(-1)
    return (far * mask).sum() / mask.sum().clamp(min=1), far.max()


def distilled_states(project, student: Tensor, teacher: Tensor, weight: float = 0.5) -> dict[str, Tensor]:
    """Hidden states by cosine, and relations between tokens by KL."""
    s = project(student)
    cos = 1 - functional.cosine_similarity(s.float(), teacher.float(), dim=-1).mean()
    a, b = (functional.log_softmax(x @ x.mT / x.shape[-1] ** 0.5, dim=-1) for x in (s, teacher))
    relation = functional.kl_div(a, b, reduction="batchmean", log_target=True) / a.shape[1]
    return {"loss": weight * cos + (1 - weight) * relation, "cosine": cos, "relation": relation}


def log_probs(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean log-probabilities of sequences, and their lengths."""
    y, logits = y[:, 1:], logits[:, :-1]
    mask = y != -100
    each = logits.log_softmax(-1).gather(2, y.masked_fill(~mask, 0).unsqueeze(2)).squeeze(2)
    return (each * mask).sum(-1) / mask.sum(-1).clamp(min=1), mask.sum(-1)


def odds_ratio(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
    """ORPO's: chosen ones are the first half of the batch."""
    mean, _ = log_probs(logits, y)
    good, bad = mean.chunk(2)
    odds = (good - bad) - (torch.log1p(-torch.exp(good)) - torch.log1p(-torch.exp(bad)))
    ratio = functional.logsigmoid(odds)
    return {"loss": (-good - 0.1 * ratio).mean(), "odds": odds.mean(), "margin": (good - bad).detach()}


def simple_preference(logits: Tensor, y: Tensor, beta: float = 2.0, gamma: float = 0.5) -> tuple[Tensor, Tensor]:
    """SimPO's, with smoothed labels, beside CPO's likelihood of what was chosen."""
    good, bad = log_probs(logits, y)[0].chunk(2)
    x = beta * (good - bad - gamma / beta)
    loss = -functional.logsigmoid(x) * 0.95 - functional.logsigmoid(-x) * 0.05
    return loss.mean() - good.mean() * 0.2, (good > bad).float().mean()


def human_utility(policy: Tensor, reference: Tensor, wanted: Tensor, estimate: Tensor) -> Tensor:
    """KTO's: gains and losses count apart."""
    ratio = policy - reference
    zero = estimate.mean().clamp(min=0).detach()
    gain, loss = 1 - torch.sigmoid(0.1 * (ratio - zero)), 1 - torch.sigmoid(0.1 * (zero - ratio))
    return torch.where(wanted, 1.0 * gain, 1.33 * loss).nanmean()


def sequence_ratio(new: Tensor, old: Tensor, mask: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """GSPO's: one ratio for a sequence, advantages within its group."""
    groups = rewards.view(-1, 4)
    gain = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    length = mask.sum(-1).clamp(min=1)
    ratio = torch.exp(((new - old) * mask).sum(-1) / length)
    clipped = ratio.clamp(1 - 3e-2, 1 + 4e-2)
    loss = -torch.minimum(ratio * gain, clipped * gain)
    return loss.mean(), (ratio != clipped).float().mean()


def sigmoid_pairs_by_parts(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """SigLIP's over shards that go round: only one shard has pairs that belong together."""
    image, loss = functional.normalize(image, dim=-1), 0.0
    for i, part in enumerate(functional.normalize(text, dim=-1).chunk(4)):
        logits = image[: len(part)] @ part.T * scale.exp() + bias
        sign = 2 * torch.eye(len(part), device=logits.device, dtype=logits.dtype) - 1 if i == 0 else -1.0
        loss = loss - functional.logsigmoid(sign * logits).sum() / len(part)
    return loss


# -- classes and ranks ----------------------------------------------------------------------------------------------------------


def asymmetric(logits: Tensor, y: Tensor) -> Tensor:
    """Many labels: easy negatives are moved away and count less."""
    p = logits.sigmoid()
    q = (1 - p + 0.05).clamp(max=1)
    loss = y * torch.log(p.clamp(min=1e-6)) + (1 - y) * torch.log(q.clamp(min=1e-6))
    with torch.no_grad():
        weight = torch.pow(1 - p * y - q * (1 - y), 1 * y + 4 * (1 - y))
    return -(loss * weight).sum(-1).mean()


def seesaw(counts: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Rare classes are spared, by counts and by how wrong the scores are."""
    hot = functional.one_hot(y, logits.shape[1]).to(logits.dtype)
    counts = counts.exp() + 1
    ratio = counts[None, :] / counts[:, None]
    weights = torch.where(ratio < 1.0, ratio.pow(0.8), torch.ones_like(ratio))[y]
    p = logits.softmax(1).detach()
    mine = p.gather(1, y[:, None]).clamp(min=0.01)
    ratio = p / mine
    weights = weights * torch.where(ratio > 1.0, ratio.square(), 1.0)
    return functional.cross_entropy(logits + weights.log() * (1 - hot), y, reduction="none").mean()


def margins_by_rarity(margins: Tensor, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    cos = functional.normalize(x, dim=1) @ functional.normalize(w, dim=0)
    hot = torch.zeros_like(cos).scatter_(1, y.view(-1, 1), 1.0)
    shifted = torch.where(hot.bool(), cos - margins.sigmoid()[None] * 0.5, cos)
    p = torch.softmax(30 * shifted, 1)
    return functional.nll_loss(torch.log(p + 1e-6) + 0.5 * (1 - p), y)


def balanced_entropy(prior: Tensor, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits moved by log-priors; the first terms of a series in the wrong part (PolyLoss)."""
    log_p = torch.log_softmax(logits + prior.log_softmax(0), dim=-1)
    mine = log_p.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return (-mine + 2.0 * (1 - mine.exp())).mean(), log_p.argmax(-1).eq(y).float().mean()


def approximate_gain(scores: Tensor, relevance: Tensor) -> Tensor:
    """NDCG, with ranks by sums of sigmoids."""
    far = (scores.unsqueeze(1) - scores.unsqueeze(2)) / 0.5
    rank = 0.5 + torch.sigmoid(far).sum(-1)
    gain = torch.exp2(relevance.to(scores.dtype)) - 1
    ideal = torch.sort(gain, dim=-1, descending=True).values
    discount = torch.log2(torch.arange(gain.shape[-1], device=gain.device, dtype=scores.dtype) + 2)
    return 1 - ((gain / torch.log2(1 + rank)).sum(-1) / (ideal / discount).sum(-1).clamp(min=1e-3)).mean()


def lambda_pairs(scores: Tensor, relevance: Tensor) -> Tensor:
    """LambdaRank's: pairs weighed by what swapping them would change."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    discount = 1 / torch.log2(rank.to(scores.dtype) + 2)
    gain = torch.exp2(relevance.to(scores.dtype))
    change = ((gain[:, :, None] - gain[:, None]) * (discount[:, :, None] - discount[:, None])).abs()
    above = relevance[:, :, None] > relevance[:, None]
    loss = functional.softplus(scores[:, None] - scores[:, :, None]) * change
    return loss.masked_fill(~above, 0).sum((1, 2)).div(above.sum((1, 2)).clamp(min=1)).mean()


# -- boxes and regions ----------------------------------------------------------------------------------------------------------


def complete_overlap(pred: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """CIoU: overlap, distance of centres, and aspect."""
    (px, py, pw, ph), (tx, ty, tw, th) = (z.unbind(-1) for z in (pred, truth))
    pw, ph, tw, th = (z.exp() for z in (pw, ph, tw, th))
    across = (torch.min(px + pw / 2, tx + tw / 2) - torch.max(px - pw / 2, tx - tw / 2)).clamp(0)
    down = (torch.min(py + ph / 2, ty + th / 2) - torch.max(py - ph / 2, ty - th / 2)).clamp(0)
    inter = across * down
    iou = inter / (pw * ph + tw * th - inter + 1e-6)
    cw = torch.max(px + pw / 2, tx + tw / 2) - torch.min(px - pw / 2, tx - tw / 2)
    ch = torch.max(py + ph / 2, ty + th / 2) - torch.min(py - ph / 2, ty - th / 2)
    centre = ((px - tx) ** 2 + (py - ty) ** 2) / (cw**2 + ch**2 + 1e-6)
    v = 4 / math.pi**2 * (torch.atan(tw / th) - torch.atan(pw / ph)) ** 2
    alpha = v / (v - iou + 1 + 1e-6)
    return (1 - iou + centre + alpha.detach() * v).mean(), iou


def quality_and_distribution(logits: Tensor, quality: Tensor, corners: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised focal losses of scores that are overlaps, and of edges that are distributions."""
    p, q = logits.sigmoid(), quality.sigmoid()
    score = functional.binary_cross_entropy_with_logits(logits, q, reduction="none") * (q - p).abs().pow(2.0)
    bins = corners.shape[-1]
    at = target.sigmoid() * (bins - 1.01)
    left = at.long()
    log_p = corners.log_softmax(-1)
    near = [-log_p.gather(-1, (left + i)[..., None]).squeeze(-1) for i in (0, 1)]
    edges = near[0] * (left + 1 - at) + near[1] * (at - left)
    return score.sum() / q.sum(), (edges.mean(-1) * q.amax(-1)).sum() / len(q)


def focal_tversky(logits: Tensor, y: Tensor, alpha: float = 0.7, gamma: float = 0.75) -> Tensor:
    p = logits.softmax(1)
    hot = functional.one_hot(y, logits.shape[1]).permute(0, 3, 1, 2).to(p.dtype)
    hit, missed, false = ((a * b).sum((0, 2, 3)) for a, b in ((p, hot), (1 - p, hot), (p, 1 - hot)))
    return torch.pow((1 - (hit + 1) / (hit + alpha * missed + (1 - alpha) * false + 1)).clamp(min=0), gamma).mean()


def boundary(logits: Tensor, y: Tensor) -> Tensor:
    """Borders by pools on both sides, nearness by one more."""
    p, t = logits.sigmoid(), y.to(logits.dtype)
    edges = [functional.max_pool2d(1 - z, 3, 1, 1) - (1 - z) for z in (p, t)]
    wide_p, wide_t = (functional.max_pool2d(z, 5, 1, 2) for z in edges)
    precision = (edges[0] * wide_t).sum((2, 3)) / (edges[0].sum((2, 3)) + 1e-5)
    recall = (edges[1] * wide_p).sum((2, 3)) / (edges[1].sum((2, 3)) + 1e-5)
    return (1 - 2 * precision * recall / (precision + recall + 1e-5)).mean()


# -- sets and paths -------------------------------------------------------------------------------------------------------------


def soft_dtw(x: Tensor, y: Tensor, gamma: float = 0.5) -> Tensor:
    """By diagonals, of which each needs the two before it."""
    far = (x.unsqueeze(2) - y.unsqueeze(1)).square().sum(-1)
    t = far.shape[1]
    far = torch.stack([functional.pad(far[:, i], (i, t - 1 - i), value=1e4) for i in range(t)], dim=1)
    before = torch.full_like(far[:, :, 0], 1e4)
    last = torch.where(torch.arange(t, device=x.device) == 0, far[:, :, 0], before)
    for k in range(1, 2 * t - 1):
        moved = functional.pad(last[:, :-1], (1, 0), value=1e4)
        corner = functional.pad(before[:, :-1], (1, 0), value=1e4)
        least = -gamma * torch.logsumexp(torch.stack([last, moved, corner]) / -gamma, dim=0)
        before, last = last, (far[:, :, k] + least).clamp(max=1e4)
    return last[:, -1]


def log_transport(x: Tensor, y: Tensor, epsilon: float = 0.1) -> tuple[Tensor, Tensor]:
    """Sinkhorn's potentials, in logarithms."""
    cost = 1 - functional.normalize(x, dim=-1) @ functional.normalize(y, dim=-1).mT
    n, m = cost.shape[-2:]
    f, g = torch.zeros_like(cost[..., 0]), torch.zeros_like(cost[:, 0])
    for _ in range(5):
        f = -epsilon * torch.logsumexp((g.unsqueeze(-2) - cost) / epsilon - math.log(m), dim=-1)
        g = -epsilon * torch.logsumexp((f.unsqueeze(-1) - cost) / epsilon - math.log(n), dim=-2)
    plan = torch.exp((f.unsqueeze(-1) + g.unsqueeze(-2) - cost) / epsilon) / (n * m)
    return (plan * cost).sum((-2, -1)), plan


def poincare(x: Tensor, y: Tensor) -> Tensor:
    """Distances in a ball, after points were brought within it."""

    def inside(z: Tensor) -> Tensor:
        norm = z.norm(dim=-1, keepdim=True).clamp(min=1e-3)
        return torch.tanh(norm / 4) * z / norm

    x, y = inside(x), inside(y)
    far = (x[:, None] - y[None]).square().sum(-1)
    ratio = 1 + 2 * far / ((1 - x.square().sum(-1))[:, None] * (1 - y.square().sum(-1)))
    return torch.acosh(ratio.clamp(min=1 + 1e-3))


CASES: dict[str, Case] = {
    "smooth_with_z": call(smooth_with_z, WORDS, some_words),
    "chunked_loss": scaled(
        lambda n: (ChunkedLoss(n(512, 16), n(8192, 24)), (floats(n, (4, 2), (256, 6), (512, 16)), some_words(n)))
    ),
    "jensen_shannon": call(jensen_shannon, WORDS, WORDS, 0.3, 2.0),
    "total_distance": call(total_distance, WORDS, WORDS, lambda n: (torch.rand(n(4, 2), n(256, 6)) > 0.3).float()),
    "distilled_states": call(
        distilled_states,
        ((8, 2), (256, 6), (384, 12)),
        ((8, 2), (256, 6), (768, 16)),
        parts=(lambda n: nn.Linear(n(384, 12), n(768, 16)),),
    ),
    "odds_ratio": call(odds_ratio, WORDS, some_words),
    "simple_preference": call(simple_preference, WORDS, some_words),
    "human_utility": call(human_utility, *(((8192, 9),),) * 2, lambda n: torch.rand(n(8192, 9)) > 0.5, ((8192, 9),)),
    "sequence_ratio": call(
        sequence_ratio,
        *(((64, 8), (1024, 9)),) * 2,
        lambda n: (torch.arange(n(1024, 9)) < torch.randint(1, n(1024, 9), (n(64, 8), 1))).float(),
        ((64, 8),),
    ),
    "sigmoid_pairs_by_parts": call(
        sigmoid_pairs_by_parts, *(((2048, 12), (512, 16)),) * 2, lambda n: torch.tensor(1.5), lambda n: torch.tensor(-3.0)
    ),
    "asymmetric_labels": call(asymmetric, CLASSES, lambda n: (torch.rand(n(1024, 7), n(1000, 11)) > 0.9).float()),
    "seesaw": call(seesaw, ((1000, 11),), CLASSES, whole(11, (1024, 7))),
    "margins_by_rarity": call(
        margins_by_rarity, ((1000, 11),), ((1024, 7), (256, 8)), ((256, 8), (1000, 11)), whole(11, (1024, 7))
    ),
    "balanced_entropy": call(balanced_entropy, ((1000, 11),), CLASSES, whole(11, (1024, 7))),
    "approximate_gain": call(approximate_gain, ((64, 3), (200, 7)), whole(5, (64, 3), (200, 7))),
    "lambda_pairs": call(lambda_pairs, ((64, 3), (200, 7)), whole(5, (64, 3), (200, 7))),
    "complete_overlap": call(complete_overlap, *(((16, 2), (8400, 9), 4),) * 2),
    "quality_and_distribution": call(
        quality_and_distribution,
        *(((8400, 9), (80, 5)),) * 2,
        ((8400, 9), 4, (16, 6)),
        ((8400, 9), 4),
    ),
    "focal_tversky": call(focal_tversky, ((8, 2), (6, 3), (192, 9), (192, 8)), whole(3, (8, 2), (192, 9), (192, 8))),
    "boundary_pools": call(boundary, ((8, 2), (4, 2), (192, 9), (192, 8)), whole(2, (8, 2), (4, 2), (192, 9), (192, 8))),
    "soft_dtw": call(soft_dtw, *(((256, 3), (16, 4), (32, 5)),) * 2),
    "log_transport": call(log_transport, ((32, 2), (196, 6), (128, 8)), ((32, 2), (77, 5), (128, 8))),
    "poincare": call(poincare, ((1024, 6), (32, 4)), ((768, 7), (32, 4))),
}
