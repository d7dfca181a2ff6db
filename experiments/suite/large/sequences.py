"""Attention, recurrences, state spaces and experts with large batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import scaled


class Vlad(nn.Module):
    def __init__(self, k: int, d: int, ghost: int) -> None:
        super().__init__()
        self.w, self.bn, self.w2 = (
            nn.Parameter(torch.randn(d, k + ghost) / d**0.5),
            nn.BatchNorm1d(k + ghost),
            nn.Parameter(torch.randn(1, d, k) / d**0.5),
        )
        self.k, self.d = k, d

    def forward(self, x: Tensor) -> Tensor:
        m = x.shape[1]
        a = self.bn(x.reshape(-1, self.d) @ self.w).softmax(1)[:, : self.k].view(-1, m, self.k)
        s = a.sum(1, keepdim=True) * self.w2
        v = torch.matmul(a.transpose(1, 2), x).transpose(1, 2) - s
        return functional.normalize(functional.normalize(v).reshape(-1, self.k * self.d))


def vlad(n: N) -> Made:
    return Vlad(n(32, 4), n(512, 6), n(16, 2)), (torch.randn(n(2048, 2), n(128, 5), n(512, 6)),)


class Recurrent(nn.Module):
    def __init__(self, i: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.r, self.f = nn.LSTM(i, hidden, layers, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return self.f(self.r(x, (h, c))[0][:, -1])


def lstm(n: N) -> Made:
    state = (n(6, 2), n(16, 2), n(256, 6))
    return Recurrent(n(128, 6), state[2], state[0]), (
        torch.randn(n(16, 2), n(256, 4), n(128, 6)),
        *(torch.randn(state) for _ in range(2)),
    )


def gru_two_ways(n: N) -> Made:
    return nn.GRU(n(128, 6), n(256, 6), n(4, 2), bidirectional=True), (
        torch.randn(n(256, 4), n(16, 2), n(128, 6)),
        torch.randn(n(8, 4), n(16, 2), n(256, 6)),
    )


class Attention(nn.Module):
    def __init__(self, d: int, h: int, t: int, relu: bool = False) -> None:
        super().__init__()
        self.a, self.p, self.h, self.relu = nn.Linear(d, 3 * d), nn.Linear(d, d), h, relu
        self.register_buffer("m", torch.tril(torch.ones(t, t)).view(1, 1, t, t))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.h, c // self.h).transpose(1, 2) for y in self.a(x).split(c, 2))
        s = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(c // self.h))
        s = s.masked_fill(self.m[:, :, :t, :t] == 0, float("-inf"))
        s = functional.relu(s) if self.relu else s.softmax(-1)
        y = (s @ v).transpose(1, 2).contiguous().view(b, t, c)
        return y if self.relu else self.p(y)


class Block(nn.Module):
    def __init__(self, d: int, h: int, t: int) -> None:
        super().__init__()
        self.l1, self.l2, self.a, self.u, self.d = (
            nn.LayerNorm(d),
            nn.LayerNorm(d),
            Attention(d, h, t),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a(self.l1(x))
        y = self.u(self.l2(x))
        return x + self.d(0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3)))))


def gpt_block(n: N) -> Made:
    return Block(n(768, 12), n(8, 2), n(512, 6)), (torch.randn(n(96, 2), n(512, 6), n(768, 12)),)


def causal(n: N) -> Made:
    return Attention(n(768, 12), n(8, 2), n(512, 6)), (torch.randn(n(96, 2), n(512, 6), n(768, 12)),)


def relu_attention(n: N) -> Made:
    return Attention(n(768, 12), n(12, 2), n(1024, 6), True), (torch.randn(n(16, 2), n(1024, 6), n(768, 12)),)


class VisionAttention(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.a, self.n = nn.MultiheadAttention(d, h), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        x = x.view(b, c, h * w).permute(2, 0, 1)
        y, _ = self.a(x, x, x)
        return self.n(y + x).permute(1, 2, 0).view(b, c, h, w)


def vision_attention(n: N) -> Made:
    return VisionAttention(n(128, 8), n(4, 2)), (torch.randn(n(2, 1), n(128, 8), n(112, 4), n(112, 4)),)


class Vit(nn.Module):
    def __init__(self, d: int, depth: int, heads: int, patch: int, size: int) -> None:
        super().__init__()
        self.p, self.e, self.c, self.pos = (
            patch,
            nn.Linear(3 * patch * patch, d),
            nn.Parameter(torch.randn(1, 1, d)),
            nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, d)),
        )
        self.t = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0), depth, enable_nested_tensor=False
        )
        self.h = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, 10))

    def forward(self, x: Tensor) -> Tensor:
        p = self.p
        x = x.unfold(2, p, p).unfold(3, p, p).reshape(x.shape[0], -1, p * p * 3)
        x = torch.cat((self.c.expand(x.shape[0], -1, -1), self.e(x)), 1) + self.pos
        return self.h(self.t(x)[:, 0])


def vit(n: N) -> Made:
    return Vit(n(512, 8), n(6, 1), n(8, 2), n(16, 4), n(224, 8)), (torch.randn(n(8, 2), 3, n(224, 8), n(224, 8)),)


def decays(x: Tensor) -> Tensor:
    """Sums between any two places, from the lower."""
    t = x.size(-1)
    c = x.cumsum(-1)
    s = c[..., :, None] - c[..., None, :]
    return s.masked_fill(~torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool)), -torch.inf)


class Ssd(nn.Module):
    def __init__(self, b: int, l: int, h: int, s: int, k: int, final: bool = False) -> None:
        super().__init__()
        self.k, self.final = k, final
        self.A, self.B, self.C = (
            nn.Parameter(-torch.rand(b, l, h)),
            nn.Parameter(torch.randn(b, l, h, s)),
            nn.Parameter(torch.randn(b, l, h, s)),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, l, h, p = x.shape
        c = l // self.k
        X, A, B, C = (t.reshape(b, c, self.k, *t.shape[2:]) for t in (x, self.A, self.B, self.C))
        A = A.permute(0, 3, 1, 2)
        acs = A.cumsum(-1)
        y = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, torch.exp(decays(A)), X)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, torch.exp(acs[..., -1:] - acs), X)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        new = torch.einsum("bhzc,bchpn->bzhpn", torch.exp(decays(functional.pad(acs[..., -1], (1, 0)))), states)
        if self.final:
            return new[:, -1]
        off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, new[:, :-1], torch.exp(acs))
        return (y + off).reshape(b, l, h, p)


def ssd(n: N) -> Made:
    b, l, h, p, s, k = n(512, 2), n(256, 16), n(8, 2), n(64, 3), n(16, 4), n(64, 8)
    return Ssd(b, l, h, s, k), (torch.randn(b, l, h, p),)


def ssd_final(n: N) -> Made:
    b, l, h, p, s, k = n(512, 2), n(256, 16), n(8, 2), n(64, 3), n(16, 4), n(64, 8)
    return Ssd(b, l, h, s, k, True), (torch.randn(b, l, h, p),)


class SoftExperts(nn.Module):
    def __init__(self, d: int, e: int) -> None:
        super().__init__()
        self.g, self.up, self.down = (
            nn.Linear(d, e),
            nn.Parameter(torch.randn(e, d, 2 * d) / d**0.5),
            nn.Parameter(torch.randn(e, 2 * d, d) / d**0.5),
        )

    def forward(self, x: Tensor) -> Tensor:
        w = self.g(x).softmax(-1)
        y = functional.silu(torch.einsum("td,edh->teh", x, self.up))
        return torch.einsum("teh,ehd,te->td", y, self.down, w)


def soft_moe(n: N) -> Made:
    return SoftExperts(n(512, 8), n(8, 2)), (torch.randn(n(4096, 5), n(512, 8)),)


CASES: dict[str, Case] = {
    "vlad": scaled(vlad),
    "lstm": scaled(lstm),
    "gru_two_ways": scaled(gru_two_ways),
    "gpt_block": scaled(gpt_block),
    "causal": scaled(causal),
    "relu_attention": scaled(relu_attention),
    "vision_attention": scaled(vision_attention),
    "vit": scaled(vit),
    "ssd": scaled(ssd),
    "ssd_final": scaled(ssd_final),
    "soft_moe": scaled(soft_moe),
}
