"""Small versions of known networks of products and attention, written by hand of torch's layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import images
from experiments.suite.case import scaled

N = Callable[[int, int], int]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(width, 3 * width, bias), nn.Linear(width, width), heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False, norm: Any = nn.LayerNorm, act: Any = nn.GELU) -> None:
        super().__init__()
        self.a, self.b, self.attention = norm(width), norm(width), Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), act(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


def vit(n: N) -> Made:
    w = n(384, 16)

    def run(patch: Any, layers: Any, norm: Any, last: Any, token: Tensor, place: Tensor, x: Tensor) -> Tensor:
        x = patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((token.expand(x.shape[0], -1, -1), x), 1) + place
        return last(norm(layers(x))[:, 0])

    parts = (
        nn.Conv2d(3, w, n(16, 4), n(16, 4)),
        nn.Sequential(Layer(w, n(6, 2)), Layer(w, n(6, 2))),
        nn.LayerNorm(w),
        nn.Linear(w, 10),
    )
    tokens = n(197, 17)
    return Fn(run, *parts, token=torch.randn(1, 1, w), place=torch.randn(1, tokens, w)), (images(n, 224, 16, batch=4),)


def swin(n: N) -> Made:
    w, s, side = n(96, 8), n(7, 2), n(28, 4)

    def run(attend: Any, norm: Any, x: Tensor) -> Tensor:
        b, h, _, c = x.shape
        y = torch.roll(norm(x), (-(s // 2), -(s // 2)), (1, 2))
        y = y.view(b, h // s, s, h // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        y = attend(y).view(b, h // s, h // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, h, c)
        return x + torch.roll(y, (s // 2, s // 2), (1, 2))

    return Fn(run, Attention(w, n(3, 2)), nn.LayerNorm(w)), (torch.randn(n(4, 1), side, side, w),)


def convnext(n: N) -> Made:
    c = n(96, 8)

    def run(f: Any, norm: Any, a: Any, b: Any, scale: Tensor, x: Tensor) -> Tensor:
        y = f(x).permute(0, 2, 3, 1)
        return x + (scale * b(functional.gelu(a(norm(y))))).permute(0, 3, 1, 2)

    parts = (nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c))
    return Fn(run, *parts, scale=torch.randn(c)), (images(n, 56, 8, c),)


def mixer(n: N) -> Made:
    t, w = n(196, 9), n(512, 16)

    def run(a: Any, f: Any, b: Any, g: Any, x: Tensor) -> Tensor:
        x = x + f(a(x).transpose(1, 2)).transpose(1, 2)
        return x + g(b(x))

    pair = lambda i, o: nn.Sequential(nn.Linear(i, o), nn.GELU(), nn.Linear(o, i))  # noqa: E731
    return Fn(run, nn.LayerNorm(w), pair(t, n(256, 12)), nn.LayerNorm(w), pair(w, n(2048, 32))), (torch.randn(n(8, 2), t, w),)


def gpt(n: N) -> Made:
    w, v, t = n(512, 16), n(8000, 20), n(256, 8)

    def run(words: Any, places: Any, layers: Any, norm: Any, last: Any, x: Tensor) -> Tensor:
        return last(norm(layers(words(x) + places(torch.arange(x.shape[1], device=x.device)))))

    words, last = nn.Embedding(v, w), nn.Linear(w, v, bias=False)
    last.weight = words.weight
    layers = nn.Sequential(*(Layer(w, n(8, 2), True) for _ in range(2)))
    return Fn(run, words, nn.Embedding(t, w), layers, nn.LayerNorm(w), last), (torch.randint(0, v, (n(4, 2), t)),)


def bert(n: N) -> Made:
    w, t = n(512, 16), n(128, 8)
    layers = [nn.TransformerEncoderLayer(w, n(8, 2), 4 * w, activation="gelu", batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(n(8000, 20), w), *layers, nn.Linear(w, 10)), (torch.randint(0, 20, (n(8, 2), t)),)


def llama(n: N) -> Made:
    w, heads, t = n(512, 16), n(8, 2), n(256, 6)
    size = w // heads

    def turned(x: Tensor) -> Tensor:
        angle = (
            torch.outer(torch.arange(x.shape[2], device=x.device), 1e4 ** (-torch.arange(0, size, 2, device=x.device) / size))
            .repeat(1, 2)
            .to(x.dtype)
        )
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-b, a), -1) * angle.sin()

    def run(*given: Any) -> Tensor:
        norm, q, k, v, o, post, gate, up, down, x = given
        h = norm(x)
        q_, k_, v_ = (f(h).view(*h.shape[:2], -1, size).transpose(1, 2) for f in (q, k, v))
        k_, v_ = (y.repeat_interleave(2, 1) for y in (turned(k_), v_))
        y = functional.scaled_dot_product_attention(turned(q_), k_, v_, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + o(y)
        h = post(x)
        return x + down(functional.silu(gate(h)) * up(h))

    line = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
    parts = (
        nn.RMSNorm(w),
        line(w, w),
        line(w, w // 2),
        line(w, w // 2),
        line(w, w),
        nn.RMSNorm(w),
        line(w, 3 * w),
        line(w, 3 * w),
        line(3 * w, w),
    )
    return Fn(run, *parts), (torch.randn(n(4, 1), t, w),)


def t5(n: N) -> Made:
    w, heads, t = n(512, 16), n(8, 2), n(128, 6)

    def run(norm: Any, q: Any, k: Any, v: Any, o: Any, bias: Any, x: Tensor) -> Tensor:
        h = norm(x)
        q_, k_, v_ = (f(h).view(*h.shape[:2], heads, -1).transpose(1, 2) for f in (q, k, v))
        place = torch.arange(x.shape[1], device=x.device)
        near = (place[None] - place[:, None]).clamp(-8, 8) + 8
        scores = q_ @ k_.transpose(-1, -2) + bias(near).permute(2, 0, 1)
        y = scores.float().softmax(-1).type_as(scores) @ v_
        return x + o(y.transpose(1, 2).reshape(x.shape))

    line = lambda: nn.Linear(w, w, bias=False)  # noqa: E731
    return Fn(run, nn.RMSNorm(w), line(), line(), line(), line(), nn.Embedding(17, heads)), (torch.randn(n(4, 1), t, w),)


def lstm_net(n: N) -> Made:
    w = n(256, 8)
    run = lambda f, g, x: g(f(x)[0][:, -1])  # noqa: E731
    return Fn(run, nn.LSTM(n(64, 6), w, 2, batch_first=True, dropout=0.2), nn.Linear(w, 10)), (
        torch.randn(n(16, 2), n(128, 4), n(64, 6)),
    )


def lstm_by_hand(n: N) -> Made:
    w = n(256, 8)

    def run(f: Any, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], w, device=x.device, dtype=x.dtype)
        for i in range(4):
            a, b, d, e = f(torch.cat((x[:, i], h), 1)).chunk(4, 1)
            c = torch.sigmoid(a) * c + torch.sigmoid(b) * torch.tanh(d)
            h = torch.sigmoid(e) * torch.tanh(c)
        return h

    return Fn(run, nn.Linear(2 * w, 4 * w)), (torch.randn(n(64, 2), 4, w),)


def vae(n: N) -> Made:
    w = n(784, 12)

    def run(e: Any, m: Any, s: Any, d: Any, x: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        h = e(x)
        mean, log = m(h), s(h)
        return torch.sigmoid(d(mean + noise * torch.exp(0.5 * log))), mean, log

    inner, z = n(400, 8), n(20, 4)
    parts = (
        nn.Sequential(nn.Linear(w, inner), nn.ReLU()),
        nn.Linear(inner, z),
        nn.Linear(inner, z),
        nn.Sequential(nn.Linear(z, inner), nn.ReLU(), nn.Linear(inner, w)),
    )
    return Fn(run, *parts), (torch.randn(n(128, 4), w), torch.randn(n(128, 4), z))


def scan(n: N) -> Made:
    d, t, s = n(256, 6), n(64, 4), n(16, 3)

    def run(inner: Any, conv: Any, to: Any, out: Any, decay: Tensor, x: Tensor) -> Tensor:
        a, gate = inner(x).chunk(2, -1)
        a = functional.silu(conv(a.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c = to(a).split(s, -1)
        weights = (c @ b.transpose(1, 2)).tril()
        return out((weights @ a + decay * a) * functional.silu(gate))

    parts = (nn.Linear(d, 2 * d), nn.Conv1d(d, d, 4, padding=3, groups=d), nn.Linear(d, 2 * s), nn.Linear(d, d))
    return Fn(run, *parts, decay=torch.randn(d)), (torch.randn(n(8, 2), t, d),)


def state_space(n: N) -> Made:
    def run(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        sums = torch.cumsum(a.permute(0, 2, 1), -1)
        t = sums.shape[-1]
        mask = torch.tril(torch.ones(t, t, dtype=torch.bool, device=x.device))
        decay = torch.exp((sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, -torch.inf))
        return torch.einsum("blhn,bshn,bhls,bshp->blhp", c, b, decay, x)

    b, t, h, s, p = n(4, 1), n(128, 6), n(8, 2), n(16, 3), n(64, 4)
    return Fn(run), (torch.randn(b, t, h, p), -torch.rand(b, t, h), torch.randn(b, t, h, s), torch.randn(b, t, h, s))


def netvlad(n: N) -> Made:
    d, k = n(512, 8), n(32, 4)

    def run(f: Any, norm: Any, centres: Tensor, x: Tensor) -> Tensor:
        b = x.shape[0]
        assigned = norm(f(x).view(-1, k)).softmax(1).view(b, -1, k)
        sums = assigned.sum(1, keepdim=True) * centres
        y = functional.normalize((assigned.transpose(1, 2) @ x).transpose(1, 2) - sums)
        return functional.normalize(y.reshape(b, -1))

    return Fn(run, nn.Linear(d, k, bias=False), nn.BatchNorm1d(k), centres=torch.randn(1, d, k)), (
        torch.randn(n(32, 2), n(100, 5), d),
    )


def experts(n: N) -> Made:
    w, e = n(256, 8), 4

    def run(gate: Any, up: Any, down: Any, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(gate(x).softmax(-1), 2)
        dense = torch.zeros(x.shape[0], e, device=x.device, dtype=x.dtype).scatter(1, chosen, weights)
        each = torch.stack([d(functional.gelu(u(x))) for u, d in zip(up, down, strict=True)], 1)
        return (dense.unsqueeze(-1) * each).sum(1)

    lists = [nn.ModuleList(nn.Linear(i, o) for _ in range(e)) for i, o in ((w, 2 * w), (2 * w, w))]
    return Fn(run, nn.Linear(w, e), *lists), (torch.randn(n(512, 6), w),)


def relu_attention(n: N) -> Made:
    w, t = n(384, 16), n(256, 6)

    def run(qkv: Any, x: Tensor) -> Tensor:
        q, k, v = (y.view(*x.shape[:2], 4, -1).transpose(1, 2) for y in qkv(x).split(w, 2))
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(
            torch.ones(t, t, device=x.device).triu(1) > 0, -math.inf
        )
        return (torch.relu(scores) @ v).transpose(1, 2).reshape(x.shape)

    return Fn(run, nn.Linear(w, 3 * w)), (torch.randn(n(8, 1), t, w),)


def graph_net(n: N) -> Made:
    nodes, w = n(512, 6), n(256, 8)
    run = lambda f, g, adjacent, x: g(adjacent.softmax(-1) @ torch.relu(f(adjacent.softmax(-1) @ x)))  # noqa: E731
    return Fn(run, nn.Linear(w, w), nn.Linear(w, 16)), (torch.randn(nodes, nodes), torch.randn(nodes, w))


def recommender(n: N) -> Made:
    w = n(64, 6)

    def run(users: Any, items: Any, f: Any, x: Tensor, y: Tensor) -> Tensor:
        a, b = users(x), items(y)
        return f(torch.cat((a, b, a * b), -1)).squeeze(-1)

    net = nn.Sequential(nn.Linear(3 * w, n(128, 8)), nn.ReLU(), nn.Linear(n(128, 8), 1), nn.Sigmoid())
    index = torch.randint(0, 20, (n(2048, 5),))
    return Fn(run, nn.Embedding(n(10000, 20), w), nn.Embedding(n(10000, 20), w), net), (index, index.flip(0))


CASES: dict[str, Case] = {
    f"net_{make.__name__}": scaled(make)
    for make in (
        vit,
        swin,
        convnext,
        mixer,
        gpt,
        bert,
        llama,
        t5,
        lstm_net,
        lstm_by_hand,
        vae,
        scan,
        state_space,
        netvlad,
        experts,
        relu_attention,
        graph_net,
        recommender,
    )
}
