"""Products of matrices in every form that users write."""

from __future__ import annotations

import torch
from torch import nn

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import fn
from experiments.suite.case import scaled


def mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def _small(*shapes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return shapes


CASES: dict[str, Case] = {
    "mm_square": fn(mm, (2048, 2048), (2048, 2048)),
    "mm_wide": fn(mm, (1024, 4096), (4096, 2048)),
    "mm_odd": fn(mm, (1013, 517), (517, 771), small=_small((13, 5), (5, 7))),
    "mm_small_k": fn(mm, (8192, 32), (32, 8192)),
    "mm_tall": fn(mm, (32768, 16), (16, 2048)),
    "mm_large_k": fn(mm, (256, 131072), (131072, 256)),
    "mm_transposed_a": fn(lambda x, y: x.T @ y, (2048, 1024), (2048, 4096), small=_small((12, 7), (12, 9))),
    "mm_transposed_b": fn(lambda x, y: x @ y.T, (1024, 2048), (4096, 2048)),
    "mm_transposed_both": fn(lambda x, y: x.T @ y.T, (2048, 1024), (4096, 2048), small=_small((12, 7), (9, 12))),
    "mv": fn(mm, (2048, 65536), (65536, 1)),
    "vector_matrix": fn(mm, (4096,), (4096, 4096)),
    "dot": fn(torch.dot, (65536,), (65536,)),
    "bmm": fn(torch.bmm, (64, 256, 512), (64, 512, 256)),
    "bmm_small": fn(torch.bmm, (4096, 32, 32), (4096, 32, 32)),
    "bmm_transposed": fn(lambda x, y: torch.bmm(x, y.transpose(1, 2)), (64, 256, 128), (64, 256, 128)),
    "tensor3_matrix": fn(mm, (16, 1024, 2048), (2048, 768)),
    "tensor4_matrix": fn(lambda x, y: torch.einsum("bijl,lk->bijk", x, y), (8, 64, 128, 256), (256, 768)),
    "broadcast": fn(mm, (8, 1, 256, 256), (4, 256, 256)),
    "einsum_attention": fn(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (8, 8, 512, 64), (8, 8, 512, 64)),
    "einsum_outer": fn(lambda x, y: torch.einsum("bi,bj->bij", x, y), (256, 256), (256, 256)),
    "diagonal_matrix": fn(lambda a, b: torch.diag(a) @ b, (4096,), (4096, 4096)),
    "matrix_diagonal": fn(lambda a, b: b * a, (4096,), (4096, 4096)),
    "symmetric": fn(lambda a, b: (a + a.T) @ b, (2048, 2048), (2048, 2048)),
    "upper_triangular": fn(lambda a, b: torch.triu(a @ b), (2048, 2048), (2048, 2048)),
    "lower_triangular": fn(lambda a, b: torch.tril(torch.tril(a) @ torch.tril(b)), (2048, 2048), (2048, 2048)),
    "mm_add": fn(torch.addmm, (1024, 1024), (1024, 1024), (1024, 1024)),
    "baddbmm": fn(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (32, 128, 128), (32, 128, 128), (32, 128, 128)),
    "chain": fn(lambda a, b, c: a @ b @ c, (1024, 256), (256, 1024), (1024, 256)),
    "gram": fn(lambda x: x @ x.T, (1024, 4096)),
    "linear": scaled(lambda n: (nn.Linear(n(4096, 8), n(4096, 6)), (torch.randn(n(1024, 5), n(4096, 8)),))),
    "linear_one_row": scaled(lambda n: (nn.Linear(n(4096, 8), n(11008, 6), bias=False), (torch.randn(1, n(4096, 8)),))),
    "linear_16_rows": scaled(lambda n: (nn.Linear(n(4096, 8), n(4096, 6)), (torch.randn(16, n(4096, 8)),))),
    "linear_one_column": scaled(lambda n: (nn.Linear(n(4096, 8), 1), (torch.randn(n(1024, 5), n(4096, 8)),))),
    "linear_channels": scaled(lambda n: (nn.Linear(n(96, 8), n(384, 6)), (torch.randn(n(8, 2), n(56, 3), n(56, 3), n(96, 8)),))),
    "matrix_power": fn(lambda a: torch.linalg.matrix_power(a / 50, 3), (1024, 1024)),
    "outer_sum": fn(lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v), *((8, 8, 1024, 64),) * 3),
    "pairwise": fn(torch.cdist, (1024, 64), (1024, 64)),
    "pairwise_by_hand": fn(lambda x, y: x.pow(2).sum(-1)[:, None] + y.pow(2).sum(-1) - 2 * x @ y.T, (2048, 128), (2048, 128)),
    "low_rank": scaled(
        lambda n: (
            Fn(
                lambda f, a, b, x: f(x) + 0.5 * b(a(x)),
                nn.Linear(n(2048, 16), n(2048, 16)),
                nn.Linear(n(2048, 16), n(16, 4), bias=False),
                nn.Linear(n(16, 4), n(2048, 16), bias=False),
            ),
            (torch.randn(n(512, 6), n(2048, 16)),),
        )
    ),
}
