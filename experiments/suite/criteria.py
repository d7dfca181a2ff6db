"""Losses of public code on pairs, labels, boxes and orders."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call
from experiments.suite.users import whole

ROWS = ((1024, 12), (512, 16))
PAIRS = ((512, 12), (128, 8))
BOXES = ((16384, 24), 4)


def variance_covariance(a: Tensor, b: Tensor) -> Tensor:
    """VICReg."""
    near = functional.mse_loss(a, b)
    spread = sum(functional.relu(1 - (x.var(0) + 1e-4).sqrt()).mean() for x in (a, b))
    a = a - a.mean(0)
    cov = a.T @ a / (len(a) - 1)
    return near + spread + (cov.square().sum() - cov.diagonal().square().sum()) / a.shape[1]


def normed_pairs(a: Tensor, b: Tensor) -> Tensor:
    """SimCLR's NT-Xent."""
    z = functional.normalize(torch.cat((a, b)), dim=1)
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e4)
    return functional.cross_entropy(scores, torch.arange(len(z), device=z.device).roll(len(a)))


def supervised_pairs(x: Tensor, label: Tensor) -> Tensor:
    z = functional.normalize(x, dim=1)
    scores = z @ z.T / 0.1
    other = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    same = (label[:, None] == label) & other
    rest = scores - (scores.exp() * other).sum(1, keepdim=True).log()
    return -((rest * same).sum(1) / same.sum(1).clamp(min=1)).mean()


def circle(x: Tensor, label: Tensor) -> Tensor:
    z = functional.normalize(x, dim=1)
    scores, same = z @ z.T, label[:, None] == label
    near = (-16 * (scores - 0.75) * (1.25 - scores).clamp(min=0)).masked_fill(~same, -1e4)
    far = (16 * (scores - 0.25) * (scores + 0.25).clamp(min=0)).masked_fill(same, -1e4)
    return functional.softplus(near.logsumexp(1) + far.logsumexp(1)).mean()


def sorted_hinge(x: Tensor, y: Tensor) -> Tensor:
    """Lovász's."""
    errors, order = (1 - x * (2 * y - 1)).sort(-1, descending=True)
    y = y.gather(-1, order)
    left = y.sum(-1, keepdim=True) - y.cumsum(-1)
    jaccard = 1 - left / (left + y + (1 - y).cumsum(-1)).clamp(min=1e-6)
    steps = torch.cat((jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]), -1)
    return (functional.relu(errors) * steps).sum(-1).mean()


def earth_mover(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(-1).cumsum(-1) - q.softmax(-1).cumsum(-1)).square().mean(-1).sqrt().mean()


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    far = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None] - 2 * a @ b.transpose(1, 2)
    return far.amin(2).mean() + far.amin(1).mean()


def partial_likelihood(risk: Tensor, died: Tensor) -> Tensor:
    """Cox's."""
    return -((risk - risk.flip(0).logcumsumexp(0).flip(0)) * died).sum() / died.sum().clamp(min=1)


def generalized_boxes(a: Tensor, b: Tensor) -> Tensor:
    """GIoU of pairs of boxes."""
    a, b = (torch.cat((x[:, :2], x[:, :2] + x[:, 2:].abs()), 1) for x in (a, b))
    wide = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    around = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    both = wide.prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - both
    return (1 - both / (union + 1e-7) + (around.prod(1) - union) / (around.prod(1) + 1e-7)).mean()


def self_distilled(student: Tensor, teacher: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """DINO's loss, and its next centre."""
    p = ((teacher - centre) / 0.04).softmax(-1)
    return -(p * functional.log_softmax(student / 0.1, -1)).sum(-1).mean(), centre * 0.9 + teacher.mean(0) * 0.1


def listwise(scores: Tensor, gains: Tensor) -> Tensor:
    """LambdaRank's pairs."""
    apart = scores[:, :, None] - scores[:, None]
    more = gains[:, :, None] > gains[:, None]
    change = (2.0 ** gains[:, :, None] - 2.0 ** gains[:, None]).abs()
    return (functional.softplus(-apart) * change * more).sum((1, 2)).mean()


CASES: dict[str, Case] = {
    "paper_vicreg": call(variance_covariance, ROWS, ROWS),
    "paper_normed_pairs": call(normed_pairs, PAIRS, PAIRS),
    "paper_supervised_pairs": call(supervised_pairs, PAIRS, whole(6, (512, 12))),
    "paper_circle": call(circle, PAIRS, whole(6, (512, 12))),
    "paper_lovasz": call(sorted_hinge, ((8, 2), (4096, 24)), lambda n: (torch.rand(n(8, 2), n(4096, 24)) > 0.5).float()),
    "paper_earth_mover": call(earth_mover, ROWS, ROWS),
    "paper_chamfer": call(chamfer, ((8, 2), (1024, 12), 3), ((8, 2), (1024, 12), 3)),
    "paper_cox": call(partial_likelihood, ((4096, 24),), lambda n: (torch.rand(n(4096, 24)) > 0.5).float()),
    "paper_giou": call(generalized_boxes, BOXES, BOXES),
    "paper_dino": call(self_distilled, ((256, 6), (4096, 24)), ((256, 6), (4096, 24)), ((4096, 24),)),
    "paper_listwise": call(listwise, ((64, 3), (128, 8)), lambda n: torch.randint(0, 5, (n(64, 3), n(128, 8))).float()),
}
