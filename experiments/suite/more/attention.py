"""Layers of language models and of their relatives: caches, routers, mixers, pairs of residues."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import N
from experiments.suite.users import call
from experiments.suite.users import whole

TOKENS = ((8, 2), (256, 8), (512, 16))
HEADS = ((8, 2), (8, 2), (256, 8), (64, 8))
PAIRS = (1, (128, 6), (128, 6), (64, 8))


def linear(i: int = 1, o: int = 1, **more):
    return lambda n: nn.Linear(i * n(512, 16), o * n(512, 16), **more)


def norm(n: N) -> nn.Module:
    return nn.LayerNorm(n(512, 16))


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def perceiver(norm_q, norm_kv, q, kv, out, latents: Tensor, data: Tensor) -> Tensor:
    z = latents.unsqueeze(0).expand(data.shape[0], -1, -1)
    k, v = kv(norm_kv(data)).chunk(2, dim=-1)
    q, k, v = (heads_of(y, 1 if y.shape[-1] < 32 else 4) for y in (q(norm_q(z)), k, v))
    scores = torch.einsum("... i d, ... j d -> ... i j", q, k) * q.shape[-1] ** -0.5
    attn = (scores - scores.amax(dim=-1, keepdim=True).detach()).softmax(dim=-1)
    return z + out(torch.einsum("... i j, ... j d -> ... i d", attn, v).transpose(1, 2).flatten(2))


def chunked_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Longformer's: each block of queries beside three blocks of keys."""
    b, h, t, d = q.shape
    w = 64 if t >= 128 else 2
    blocks = q.view(b, h, t // w, w, d)
    k, v = (functional.pad(x, (0, 0, w, w)).unfold(2, 3 * w, w).transpose(-1, -2) for x in (k, v))
    scores = blocks @ k.transpose(-1, -2) / math.sqrt(d)
    i, j = torch.arange(w, device=q.device)[:, None], torch.arange(3 * w, device=q.device)[None]
    at = torch.arange(t // w, device=q.device)[:, None, None] * w + j - w
    seen = ((j - i >= 0) & (j - i <= 2 * w))[None] & (at >= 0) & (at < t)
    return (scores.masked_fill(~seen, -1e4).softmax(-1) @ v).reshape(b, h, t, d)


def rotate_half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def qwen_attention(q, k, v, o, x: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (p.unsqueeze(1) for p in place)
    size = cos.shape[-1]
    q, k, v = (f(x).view(*x.shape[:-1], -1, size).transpose(1, 2) for f in (q, k, v))
    q, k = (z * cos + rotate_half(z) * sin for z in (q, k))
    b, g, t, d = k.shape
    times = q.shape[1] // g
    k, v = (z[:, :, None, :, :].expand(b, g, times, t, d).reshape(b, g * times, t, d) for z in (k, v))
    weights = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(d)
    seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
    weights = functional.softmax(torch.where(seen, weights, torch.finfo(weights.dtype).min), dim=-1)
    return o(torch.matmul(weights, v).transpose(1, 2).reshape(b, t, -1))


def position_bias(mlp, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """x-transformers' bias: a network of distances, looked up for each pair."""
    t = q.shape[-2]
    far = torch.arange(-t + 1, t, device=q.device, dtype=q.dtype)
    bias = mlp((far.sign() * (far.abs() + 1).log()).unsqueeze(-1))
    at = torch.arange(t, device=q.device)
    bias = bias[at[:, None] - at[None, :] + t - 1].permute(2, 0, 1)
    return torch.softmax(torch.einsum("bhid,bhjd->bhij", q * q.size(-1) ** -0.5, k) + bias, -1) @ v


def nystrom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    m = 32 if q.shape[-2] >= 64 else 4
    q = q * q.shape[-1] ** -0.5
    ql, kl = (x.unflatten(-2, (m, -1)).mean(-2) for x in (q, k))
    left, middle, right = (functional.softmax(a @ b.transpose(-1, -2), -1) for a, b in ((q, kl), (ql, kl), (ql, k)))
    eye = torch.eye(m, device=q.device, dtype=q.dtype)
    z = middle.transpose(-1, -2) / middle.sum(-2).amax() / middle.sum(-1).amax()
    for _ in range(4):
        mz = middle @ z
        z = 0.25 * z @ (13 * eye - mz @ (15 * eye - mz @ (7 * eye - mz)))
    return left @ z @ (right @ v)


def memory_heads(gate, memory_k: Tensor, memory_v: Tensor, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Learned keys in front of all others; heads have gates of their own."""
    k, v = (torch.cat([m.expand(len(z), -1, -1, -1), z], -2) for m, z in ((memory_k, k), (memory_v, v)))
    dots = torch.einsum("b h i d, b h j d -> b h i j", functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)) * 10
    i, j = dots.shape[-2:]
    dots = dots.masked_fill(torch.ones((i, j), device=x.device, dtype=torch.bool).triu(j - i + 1), -torch.finfo(dots.dtype).max)
    return (dots.softmax(-1) @ v) * gate(x).sigmoid().permute(0, 2, 1).unsqueeze(-1)


def cosformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.relu(), k.relu()
    angle = math.pi / 2 * torch.arange(1, q.shape[-2] + 1, device=q.device, dtype=q.dtype).view(1, 1, -1, 1) / q.shape[-2]
    q, k = (torch.cat([x * angle.sin(), x * angle.cos()], -1) for x in (q, k))
    kv = torch.einsum("...ld,...lm->...dm", k, v)
    z = 1 / torch.clamp_min(torch.einsum("...ld,...d->...l", q, k.sum(-2)), 1e-6)
    return torch.einsum("...ld,...dm,...l->...lm", q, kv, z)


def taylor_map(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Based: 1 + qk + (qk)²/2 in place of the exponential, causal."""
    s = q @ k.mT * 0.25
    weights = (1 + s + s.square() / 2).tril()
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(1e-6)


def cached_bytes(q: Tensor, keys: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """A cache of 8-bit numbers, a scale for each token and head."""
    k, v = keys.to(q.dtype) * scale[0], values.to(q.dtype) * scale[1]
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def small_bytes(*shape):
    return lambda n: torch.randint(-127, 128, [n(*s) for s in shape], dtype=torch.int8)


def paged(pages_k: Tensor, pages_v: Tensor, which: Tensor, length: Tensor, q: Tensor) -> Tensor:
    """Keys lie in pages; a table says which are a sequence's."""
    k, v = (p[which].flatten(1, 2).transpose(1, 2) for p in (pages_k, pages_v))
    scores = torch.einsum("bhd,bhkd->bhk", q, k) / q.shape[-1] ** 0.5
    gone = torch.arange(k.shape[2], device=q.device).unsqueeze(0) >= length.unsqueeze(1)
    return torch.einsum("bhk,bhkd->bhd", scores.masked_fill_(gone[:, None], float("-inf")).softmax(-1), v)


def written_cache(kv, cache: Tensor, at: Tensor, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """New keys and values are written where the call says."""
    new = kv(x).unflatten(-1, (2, cache.shape[2], -1)).permute(2, 0, 3, 1, 4)
    cache = cache.index_copy(3, at, new)
    mask = torch.arange(cache.shape[3], device=x.device) <= at[:, None]
    return functional.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask), cache


def triangle(before, a, b, after, out, gate, x: Tensor) -> Tensor:
    """AlphaFold's update of pairs along triangles."""
    y = before(x)
    left, right = (p * torch.sigmoid(g) for p, g in (f(y).chunk(2, -1) for f in (a, b)))
    return x + out(after(torch.einsum("bikc,bjkc->bijc", left, right))) * torch.sigmoid(gate(y))


def row_attention(before, qkv, gate, bias, out, x: Tensor, pair: Tensor) -> Tensor:
    """AlphaFold's attention along a row of the alignment, with a bias of pairs and a gate."""
    y = before(x)
    q, k, v = (z.unflatten(-1, (4 if x.shape[-1] > 16 else 2, -1)) for z in qkv(y).chunk(3, -1))
    logits = torch.einsum("bsqhc,bskhc->bshqk", q * q.shape[-1] ** -0.5, k) + bias(pair).permute(0, 3, 1, 2).unsqueeze(1)
    y = torch.einsum("bshqk,bskhc->bsqhc", logits.softmax(-1), v).flatten(-2) * torch.sigmoid(gate(y))
    return x + out(y)


def outer_mean(before, a, b, out, x: Tensor) -> Tensor:
    y = before(x)
    outer = torch.einsum("bsic,bsjd->bijcd", a(y), b(y)) / x.shape[1]
    return out(outer.flatten(-2))


def additive(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Fastformer: one query for all, one key for all."""
    scale = q.shape[-1] ** -0.5
    one = (torch.einsum("bhnd,hd->bhn", q, alpha) * scale).softmax(-1).unsqueeze(-1).mul(q).sum(2, keepdim=True)
    mixed = one * k
    key = (torch.einsum("bhnd,hd->bhn", mixed, beta) * scale).softmax(-1).unsqueeze(-1).mul(mixed).sum(dim=2, keepdim=True)
    return key * v + q


def hashed(x: Tensor, v: Tensor, turn: Tensor) -> Tensor:
    """Reformer: tokens are sorted by a hash, and attend within blocks of the sorted order."""
    t, d = x.shape[1:]
    turned = x @ turn
    order = torch.cat([turned, -turned], -1).argmax(-1).mul(t).add(torch.arange(t, device=x.device)).argsort(-1)
    back = order.argsort(-1)
    x, v = (y.gather(1, order[..., None].expand(-1, -1, d)).unflatten(1, (-1, 64 if t >= 64 else 4)) for y in (x, v))
    y = (x @ functional.normalize(x, dim=-1).transpose(-1, -2) * d**-0.5).softmax(-1) @ v
    return y.flatten(1, 2).gather(1, back[..., None].expand(-1, -1, d))


CASES: dict[str, Case] = {
    "perceiver": call(
        perceiver,
        ((256, 4), (512, 16)),
        ((4, 2), (2048, 12), (256, 8)),
        parts=(
            norm,
            lambda n: nn.LayerNorm(n(256, 8)),
            lambda n: nn.Linear(n(512, 16), n(256, 8), bias=False),
            lambda n: nn.Linear(n(256, 8), n(512, 16), bias=False),
            lambda n: nn.Linear(n(256, 8), n(512, 16)),
        ),
    ),
    "chunked_window": call(chunked_window, *(((2, 1), (8, 2), (1024, 8), (64, 8)),) * 3),
    "qwen_attention": call(
        qwen_attention,
        ((4, 2), (256, 6), (512, 16)),
        lambda n: tuple(f(torch.rand(1, n(256, 6), n(64, 8)) * 3) for f in (torch.cos, torch.sin)),
        parts=(
            linear(),
            lambda n: nn.Linear(n(512, 16), n(128, 8)),
            lambda n: nn.Linear(n(512, 16), n(128, 8)),
            linear(bias=False),
        ),
    ),
    "position_bias": call(
        position_bias,
        *(HEADS,) * 3,
        parts=(lambda n: nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, n(8, 2))),),
    ),
    "nystrom": call(nystrom, *(((4, 1), (8, 2), (1024, 16), (64, 8)),) * 3),
    "memory_heads": call(
        memory_heads, *((1, (8, 2), 16, (64, 8)),) * 2, TOKENS, *(HEADS,) * 3, parts=(lambda n: nn.Linear(n(512, 16), n(8, 2)),)
    ),
    "cosformer": call(cosformer, *(((4, 2), (8, 2), (1024, 8), (64, 8)),) * 3),
    "taylor_map": call(taylor_map, *(((4, 2), (8, 2), (512, 8), (16, 16)),) * 2, ((4, 2), (8, 2), (512, 8), (64, 8))),
    "cached_bytes": call(
        cached_bytes,
        ((16, 2), (8, 2), 1, (64, 8)),
        small_bytes((16, 2), (8, 2), (1024, 9), (64, 8)),
        small_bytes((16, 2), (8, 2), (1024, 9), (64, 8)),
        lambda n: torch.rand(2, n(16, 2), n(8, 2), n(1024, 9), 1) / 64,
    ),
    "paged_cache": call(
        paged,
        ((256, 6), 16, (8, 2), (64, 8)),
        ((256, 6), 16, (8, 2), (64, 8)),
        whole(6, (16, 2), (16, 3)),
        lambda n: torch.randint(1, n(256, 40), (n(16, 2),)),
        ((16, 2), (8, 2), (64, 8)),
    ),
    "written_cache": call(
        written_cache,
        (2, (8, 2), (8, 2), (512, 12), (64, 8)),
        lambda n: torch.arange(4, 7),
        ((8, 2), 3, (512, 16)),
        ((8, 2), (8, 2), 3, (64, 8)),
        parts=(linear(1, 2, bias=False),),
    ),
    "triangle": call(
        triangle,
        PAIRS,
        parts=(
            lambda n: nn.LayerNorm(n(64, 8)),
            *(lambda n: nn.Linear(n(64, 8), 2 * n(64, 8)),) * 2,
            lambda n: nn.LayerNorm(n(64, 8)),
            *(lambda n: nn.Linear(n(64, 8), n(64, 8)),) * 2,
        ),
    ),
    "row_attention": call(
        row_attention,
        (1, (32, 3), (128, 6), (128, 16)),
        PAIRS,
        parts=(
            lambda n: nn.LayerNorm(n(128, 16)),
            lambda n: nn.Linear(n(128, 16), 3 * n(128, 16), bias=False),
            lambda n: nn.Linear(n(128, 16), n(128, 16)),
            lambda n: nn.Linear(n(64, 8), n(4, 2), bias=False),
            lambda n: nn.Linear(n(128, 16), n(128, 16)),
        ),
    ),
    "outer_mean": call(
        outer_mean,
        (1, (64, 4), (96, 6), (64, 16)),
        parts=(
            lambda n: nn.LayerNorm(n(64, 16)),
            *(lambda n: nn.Linear(n(64, 16), n(16, 4)),) * 2,
            lambda n: nn.Linear(n(256, 16), n(64, 8)),
        ),
    ),
    "additive_attention": call(additive, *(HEADS,) * 3, *(((8, 2), (64, 8)),) * 2),
    "hashed_blocks": call(hashed, *(((4, 2), (512, 8), (64, 8)),) * 2, ((64, 8), (16, 2))),
}
