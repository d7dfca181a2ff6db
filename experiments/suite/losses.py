"""Losses as users write them: of two tensors, and of rows and their classes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import fn
from experiments.suite.case import scaled

CASES: dict[str, Case] = {
    "loss_focal": fn(
        lambda x, y: (
            functional.binary_cross_entropy_with_logits(x, (y > 0).to(x), reduction="none") * (1 - torch.sigmoid(x)).pow(2)
        ).mean(),
        *((4096, 2048),) * 2,
    ),
    "loss_dice": fn(
        lambda x, y: (
            1 - (2 * (torch.sigmoid(x) * (y > 0)).sum((1, 2)) + 1) / (torch.sigmoid(x).sum((1, 2)) + (y > 0).sum((1, 2)) + 1)
        ),
        *((32, 256, 256),) * 2,
    ),
    "loss_pinball": fn(lambda x, y: torch.maximum(0.9 * (y - x), -0.1 * (y - x)).mean(), *((4096, 2048),) * 2),
    "loss_log_cosh": fn(lambda x, y: torch.log(torch.cosh(x - y)).mean(), *((4096, 2048),) * 2),
    "loss_charbonnier": fn(lambda x, y: ((x - y).pow(2) + 1e-6).sqrt().mean((1, 2, 3)), *((32, 3, 256, 256),) * 2),
    "loss_margin_rank": fn(lambda x, y: functional.margin_ranking_loss(x, y, torch.sign(x - y), 0.5), *((4096, 512),) * 2),
    "loss_hinge_embedding": fn(
        lambda x, y: functional.hinge_embedding_loss(x, torch.where(y > 0, 1.0, -1.0)), *((4096, 512),) * 2
    ),
    "loss_multi_label": fn(lambda x, y: functional.multilabel_soft_margin_loss(x, (y > 0).to(x)), *((4096, 512),) * 2),
    "loss_kl_targets": fn(
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True),
        *((4096, 1024),) * 2,
    ),
    "loss_distill": fn(lambda x, y: functional.cross_entropy(x / 2, (y / 2).softmax(-1)) * 4, *((4096, 1000),) * 2),
    "loss_entropy": fn(lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean(), (4096, 4096)),
    "loss_similarity_map": fn(
        lambda x, y: (
            1
            - (
                (2 * (a := functional.avg_pool2d(x, 7, 1)) * (b := functional.avg_pool2d(y, 7, 1)) + 1e-4)
                / (a * a + b * b + 1e-4)
            ).mean()
        ),
        *((8, 3, 256, 256),) * 2,
    ),
}


def _targets(run) -> Case:
    def make(n: N) -> Made:
        rows, classes = n(4096, 5), n(1000, 7)
        return Fn(run, weight=torch.rand(classes)), (torch.randn(rows, classes), torch.randint(0, classes, (rows,)))

    return scaled(make)


CASES |= {
    "loss_weighted_classes": _targets(lambda w, x, y: functional.cross_entropy(x, y, w)),
    "loss_ignored": _targets(lambda w, x, y: functional.cross_entropy(x, y.masked_fill(y < 3, -100), ignore_index=-100)),
    "loss_each_class": _targets(lambda w, x, y: functional.cross_entropy(x, y, reduction="none") * w[y]),
    "loss_multi_margin": _targets(lambda w, x, y: functional.multi_margin_loss(x, y)),
    "loss_by_gather": _targets(lambda w, x, y: -x.log_softmax(-1).gather(1, y[:, None]).mean()),
    "accuracy": _targets(lambda w, x, y: (x.argmax(-1) == y).float().mean()),
    "loss_pixels": scaled(
        lambda n: (
            nn.CrossEntropyLoss(),
            (torch.randn(n(8, 2), n(21, 4), n(128, 5), n(128, 5)), torch.randint(0, n(21, 4), (n(8, 2), n(128, 5), n(128, 5)))),
        )
    ),
}
