"""What scripts do with indices, views, formats of numbers, and tensors that they write to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import scaled
from experiments.suite.more.numerics import WIDE
from experiments.suite.users import call
from experiments.suite.users import floats


def shared_exponents(x: Tensor) -> Tensor:
    """Blocks of 32 numbers with a common power of two, numbers of four bits (MX)."""
    y = x.unflatten(-1, (-1, 32 if x.shape[-1] % 32 == 0 else 8)).float()
    power = torch.exp2(torch.floor(torch.log2(y.abs().amax(-1, keepdim=True).clamp(min=2.0**-20))) - 2)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=x.device)
    found = torch.bucketize((y / power).abs(), (table[1:] + table[:-1]) / 2)
    return (table[found] * y.sign() * power).flatten(-2).to(x.dtype)


def two_bits(packed: Tensor, scale: Tensor, zero: Tensor, x: Tensor) -> Tensor:
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=packed.device)
    w = (packed.unsqueeze(1) >> shifts[:, None]) & 3
    w = w.reshape(-1, packed.shape[1]).to(x.dtype)
    w = (w.unflatten(0, (len(scale), -1)) - zero.unsqueeze(1)) * scale.unsqueeze(1)
    return functional.silu(x @ w.flatten(0, 1))


def grouped_fake(x: Tensor) -> Tensor:
    g = x.reshape(-1, 64 if x.shape[-1] % 64 == 0 else 8)
    low, high = g.amin(1, keepdim=True), g.amax(1, keepdim=True)
    scale = (high - low).clamp(min=1e-3) / 15
    zero = torch.round(-low / scale).clamp_(0, 15)
    q = torch.clamp(torch.round(g / scale) + zero, 0, 15)
    return ((q - zero) * scale).view_as(x)


def packed_signs(x: Tensor, y: Tensor) -> Tensor:
    """Hamming distances of signs, eight to a byte."""
    powers = 2 ** torch.arange(8, device=x.device)
    a, b = (((z > 0).unflatten(-1, (-1, 8)).long() * powers).sum(-1).to(torch.uint8) for z in (x, y))
    different = a[:, None] ^ b[None]
    return torch.stack([((different >> i) & 1).int() for i in range(8)]).sum((0, -1))


def clusters(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    which = ((x * x).sum(1, keepdim=True) - 2 * x @ centres.T + (centres * centres).sum(1)).argmin(1)
    total = torch.zeros_like(centres).index_add_(0, which, x)
    count = torch.zeros(len(centres), dtype=x.dtype, device=x.device).index_put_(
        (which,), torch.ones_like(x[:, 0]), accumulate=True
    )
    return torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], centres), which


def over_heads(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """vmap over heads, inside one over the batch."""

    def one(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
        return torch.softmax(q @ m @ k.T, dim=-1) @ k

    return torch.vmap(torch.vmap(one), in_dims=(0, 0, None))(x, y, w)


def odd_views(x: Tensor) -> list[Tensor]:
    a, b, c = torch.tensor_split(x, 3, dim=-1)
    y = x.movedim(0, -1).narrow(0, 1, 4).unflatten(1, (2, -1)).swapaxes(0, 2).mT
    return [a * 2, b.relu(), c.amax(-1), y.sum(-1), x.diagonal(dim1=0, dim2=1).square()]


def limited_rows(x: Tensor) -> Tensor:
    return torch.renorm(x, p=2, dim=0, maxnorm=5.0).cumprod(dim=-1).mul(2).logaddexp(x)


def filled_in(x: Tensor, seen: Tensor, prompt: Tensor) -> Tensor:
    return torch.layer_norm(x.masked_scatter(seen.unsqueeze(-1).expand_as(x), prompt), x.shape[-1:])


def loops(linears: list[nn.Module], x: Tensor) -> Tensor:
    return torch.stack([f(x[:, i]).tanh() for i, f in enumerate(linears)], dim=1).flatten(1)


def binned(table, edges: Tensor, x: Tensor) -> Tensor:
    edges = edges.sort().values
    return table(torch.bucketize(x, edges, right=True)) * x.clamp(-2, 2).unsqueeze(-1)


class InPlace(nn.Module):
    """A norm whose result is written to, here and there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y = self.norm(x)
        y[..., 0] = 0
        y[:, ::2] += 1.0
        y[:, 1, :3] *= scale
        if mask is not None:
            y[mask] = -1.0
        return y.clamp_(min=-0.5).exp_()


def soft_histogram(x: Tensor) -> Tensor:
    centres = torch.linspace(-2, 2, 32, device=x.device, dtype=x.dtype)
    k = torch.sigmoid(10 * (x.unsqueeze(-1) - centres + 0.06)) - torch.sigmoid(10 * (x.unsqueeze(-1) - centres - 0.06))
    h = k.sum(1)
    return h.cumsum(-1) / h.sum(-1, keepdim=True)


def moving_median(x: Tensor) -> Tensor:
    return functional.pad(x.unsqueeze(1), (3, 3), mode="reflect").squeeze(1).unfold(-1, 7, 1).median(dim=-1).values - x


def merged_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Welford's, parts after parts."""
    mean, m2, n = torch.zeros_like(x[:, 0, 0]), torch.zeros_like(x[:, 0, 0]), 0
    for part in x.unbind(1):
        size, delta = part.shape[1], part.mean(1) - mean
        m2 = m2 + part.var(1, correction=0) * size + delta**2 * n * size / (n + size)
        mean, n = mean + delta * size / (n + size), n + size
    return mean, (m2 / n).sqrt()


def four_linears(n):
    return nn.ModuleList(nn.Linear(n(256, 8), n(128, 8)) for _ in range(4))


CASES: dict[str, Case] = {
    "shared_exponents": call(shared_exponents, ((4096, 6), (1024, 16))),
    "two_bits": call(
        two_bits,
        lambda n: torch.randint(0, 256, (n(256, 8), n(512, 16)), dtype=torch.uint8),
        ((16, 4), (512, 16)),
        ((16, 4), (512, 16)),
        ((64, 3), (1024, 32)),
    ),
    "grouped_fake": call(grouped_fake, ((4096, 6), (1024, 16))),
    "packed_signs": call(packed_signs, ((512, 5), (256, 16)), ((256, 4), (256, 16))),
    "clusters": call(clusters, ((8192, 20), (64, 8)), ((256, 5), (64, 8))),
    "over_heads": call(over_heads, ((8, 2), (64, 8), (64, 8)), *(((8, 2), (8, 2), (128, 6), (64, 8)),) * 2),
    "odd_views": call(odd_views, ((64, 6), (128, 8), (500, 10))),
    "limited_rows": call(limited_rows, ((2048, 7), (256, 9))),
    "filled_in": call(
        filled_in,
        ((8, 2), (256, 7), WIDE),
        lambda n: torch.rand(n(8, 2), n(256, 7)) > 0.7,
        ((2048, 14), WIDE),
    ),
    "loops": call(loops, ((2048, 5), 4, (256, 8)), parts=(four_linears,)),
    "binned": call(binned, ((31, 7),), ((1024, 4), (64, 5)), parts=(lambda n: nn.Embedding(n(32, 8), n(64, 8)),)),
    "in_place": scaled(lambda n: (InPlace(n(*WIDE)), (floats(n, (8, 2), (512, 6), WIDE),))),
    "in_place_by_keyword": scaled(
        lambda n: (
            InPlace(n(*WIDE)),
            (floats(n, (8, 2), (512, 6), WIDE), Keywords(mask=torch.rand(n(8, 2), n(512, 6)) > 0.5, scale=0.5)),
        )
    ),
    "soft_histogram": call(soft_histogram, ((64, 3), (4096, 20))),
    "moving_median": call(moving_median, ((64, 3), (4096, 20))),
    "merged_moments": call(merged_moments, ((1024, 6), 4, (1024, 9))),
}
