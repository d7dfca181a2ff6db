"""Elements, reductions, softmax, scans and losses of large matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import fn
from experiments.suite.case import scaled

ROWS = (1280, 204800)  # 1.05 GB in float32
WIDE = (20000, 20000)
SCANNED = (16384, 20000)
CUBE = (96, 2048, 2047)


def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _kl(rows: int, columns: int) -> Made:
    chances = (torch.rand(rows, columns).softmax(-1) for _ in range(2))
    return Fn(lambda a, b: functional.kl_div(a.log(), b, reduction="batchmean")), tuple(chances)


def _classes(rows: int, columns: int) -> Made:
    return Fn(functional.cross_entropy), (torch.randn(rows, columns), torch.randint(0, columns, (rows,)))


CASES: dict[str, Case] = {
    "e_relu": fn(torch.relu, ROWS),
    "e_sigmoid": fn(torch.sigmoid, ROWS),
    "e_tanh": fn(torch.tanh, ROWS),
    "e_gelu": fn(functional.gelu, ROWS),
    "e_elu": fn(functional.elu, ROWS),
    "e_hardtanh": fn(functional.hardtanh, ROWS),
    "e_softplus": fn(functional.softplus, ROWS),
    "e_mish": fn(functional.mish, ROWS),
    "e_hardsigmoid": fn(functional.hardsigmoid, ROWS),
    "e_softsign": fn(functional.softsign, ROWS),
    "e_swish": fn(lambda x: x * torch.sigmoid(x), ROWS),
    "e_new_gelu": fn(new_gelu, ROWS),
    "e_scaled": fn(lambda a: a * 2.718, (16384, 8192)),
    "softmax_rows": fn(lambda x: x.softmax(1), ROWS),
    "softmax_rows_few": fn(lambda x: x.softmax(1), (24, 2_000_003)),
    "softmax_columns": fn(lambda x: x.softmax(0), ROWS),
    "log_softmax_rows": fn(lambda x: x.log_softmax(1), ROWS),
    "logsumexp_rows": fn(lambda x: x.logsumexp(1), ROWS),
    "l1_norm": fn(lambda x: x / x.abs().sum(1, keepdim=True), ROWS),
    "l1_mean_norm": fn(lambda x: x / x.abs().mean(1, keepdim=True), (8192, 32000)),
    "l2_norm": fn(lambda x: x / x.norm(p=2, dim=1, keepdim=True), ROWS),
    "r1_max": fn(lambda x: x.max(1)[0], CUBE),
    "r1_min": fn(lambda x: x.min(1)[0], CUBE),
    "r1_mean": fn(lambda x: x.mean(1), CUBE),
    "r1_sum_kept": fn(lambda x: x.sum(1, keepdim=True), CUBE),
    "r1_argmax": fn(lambda x: x.argmax(1), CUBE),
    "r1_argmin": fn(lambda x: x.argmin(1), CUBE),
    "r1_std": fn(lambda x: x.std(1), CUBE),
    "r2_max": fn(lambda x: x.max(2)[0], CUBE),
    "r2_argmin": fn(lambda x: x.argmin(2), CUBE),
    "r0_sum": fn(lambda x: x.sum(0), CUBE),
    "r_all_mean": fn(lambda x: x.mean(), CUBE),
    "r1_prod": fn(lambda x: (1 + x * 1e-3).prod(1), CUBE),
    "cumsum_rows": fn(lambda x: x.cumsum(1), SCANNED),
    "cumsum_columns": fn(lambda x: x.cumsum(0), SCANNED),
    "cumprod_rows": fn(lambda x: (1 + 1e-3 * x).cumprod(1), SCANNED),
    "cumsum_back": fn(lambda x: x.flip(1).cumsum(1).flip(1), SCANNED),
    "cumsum_exclusive": fn(lambda x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1).cumsum(1), SCANNED),
    "cumsum_masked": fn(lambda x, m: (x * (m > 0)).cumsum(1), SCANNED, SCANNED),
    "loss_mse": fn(lambda a, b: ((a - b) ** 2).mean(), WIDE, WIDE),
    "loss_huber": fn(functional.smooth_l1_loss, WIDE, WIDE),
    "loss_kl": scaled(lambda n: _kl(n(16384, 7), n(20000, 9))),
    "loss_hinge": fn(lambda a, b: (1 - a * b).clamp(min=0).mean(), WIDE, (1, 20000)),
    "loss_hinge_rows": fn(lambda a, b: (1 - a * b).clamp(min=0).mean(), WIDE, (20000, 1)),
    "loss_triplet": fn(functional.triplet_margin_loss, *((16384, 8192),) * 3),
    "loss_cosine": fn(lambda a, b: (1 - functional.cosine_similarity(a, b, dim=1)).mean(), WIDE, WIDE),
    "loss_cross_entropy": scaled(lambda n: _classes(n(32768, 9), n(8192, 7))),
    "loss_cross_entropy_wide": scaled(lambda n: _classes(n(1024, 9), n(200000, 7))),
}
