"""Layers and heads of language models: decoders, recurrent mixers, routers, embeddings, what sampling needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import N
from experiments.suite.case import scaled
from experiments.suite.more.attention import TOKENS
from experiments.suite.more.attention import heads_of
from experiments.suite.more.attention import linear
from experiments.suite.more.attention import norm
from experiments.suite.more.attention import rotate_half
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole


class DecoderLayer(nn.Module):
    """BART's: tokens see those before them, in a cache, then the encoder's; norms come after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.self_attn = nn.ModuleDict({k: nn.Linear(width, width) for k in ("q", "k", "v", "out")})
        self.encoder_attn = nn.ModuleDict({k: nn.Linear(width, width) for k in ("q", "k", "v", "out")})
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, parts: nn.ModuleDict, x: Tensor, keys: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None):
        b, t, w = x.shape
        q = (parts["q"](x) * self.head_dim**-0.5).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k, v = (parts[p](keys).view(b, -1, self.heads, self.head_dim).transpose(1, 2) for p in ("k", "v"))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(b, self.heads, t, -1)
        if mask is not None:
            scores = scores + mask
        weights = functional.dropout(functional.softmax(scores, dim=-1), p=0.1, training=self.training)
        return parts["out"]((weights @ v).transpose(1, 2).reshape(b, t, w)), (k, v)

    def forward(
        self, hidden_states: Tensor, past: tuple[Tensor, Tensor], *, encoder: Tensor, encoder_mask: Tensor | None = None
    ) -> dict:
        y, present = self.attend(self.self_attn, hidden_states, hidden_states, past, None)
        x = self.norms[0](hidden_states + y)
        mask = None if encoder_mask is None else (1.0 - encoder_mask[:, None, None, :]) * torch.finfo(x.dtype).min
        x = self.norms[1](x + self.attend(self.encoder_attn, x, encoder, None, mask)[0])
        x = self.norms[2](x + self.fc2(functional.gelu(self.fc1(x))))
        return {"hidden_states": x, "present": present}


def decoder_layer(n: N):
    b, w = n(16, 2), n(512, 16)
    cache = tuple(torch.randn(b, n(8, 2), n(127, 5), w // n(8, 2)) for _ in range(2))
    more = {"encoder": torch.randn(b, n(200, 7), w), "encoder_mask": (torch.rand(b, n(200, 7)) > 0.2).float()}
    return DecoderLayer(w, n(8, 2)), (torch.randn(b, 1, w), cache, Keywords(more))


def whisper_stem(one, two, after, places: Tensor, x: Tensor) -> Tensor:
    y = functional.gelu(two(functional.gelu(one(x)))).permute(0, 2, 1)
    return after(y + places[: y.shape[1]])


def clip_head(image, text, scale: Tensor, x: Tensor, y: Tensor):
    x, y = image(x), text(y)
    x, y = x / x.norm(p=2, dim=-1, keepdim=True), y / y.norm(p=2, dim=-1, keepdim=True)
    logits = torch.matmul(y, x.t()) * scale.exp()
    target = torch.arange(len(logits), device=x.device)
    return (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.t(), target)) / 2.0, logits.t()


def layout_embeddings(words, x, y, sizes, kinds, after, ids: Tensor, box: Tensor) -> Tensor:
    left, upper, right, lower = (x(box[..., 0]), y(box[..., 1]), x(box[..., 2]), y(box[..., 3]))
    high = sizes[0]((box[:, :, 3] - box[:, :, 1]).clamp(0, 15))
    across = sizes[1]((box[:, :, 2] - box[:, :, 0]).clamp(0, 15))
    return after(words(ids) + left + upper + right + lower + high + across + kinds(torch.zeros_like(ids)))


def table(rows: Tensor | tuple[int, int], width: tuple[int, int] = (512, 16)):
    return lambda n: nn.Embedding(n(*rows), n(*width))


def wkv(decay: Tensor, first: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RWKV's time mixing in numbers that do not overflow, token by token."""
    top, bottom, most = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e4)
    out = torch.empty_like(v)
    for t in range(k.size(1)):
        p = torch.maximum(most, first + k[:, t])
        e1, e2 = torch.exp(most - p), torch.exp(first + k[:, t] - p)
        out[:, t] = (e1 * top + e2 * v[:, t]) / (e1 * bottom + e2)
        p = torch.maximum(most - decay.exp(), k[:, t])
        e1, e2 = torch.exp(most - decay.exp() - p), torch.exp(k[:, t] - p)
        top, bottom, most = e1 * top + e2 * v[:, t], e1 * bottom + e2, p
    return out


def mamba_step(wide, parts, rate, out, a: Tensor, x: Tensor, cache: tuple[Tensor, Tensor, Tensor]):
    """One token; what it leaves behind is returned."""
    kernel, conv, state = cache
    u, z = wide(x).chunk(2, dim=1)
    conv = torch.roll(conv, shifts=-1, dims=-1)
    conv[:, :, -1] = u
    u = functional.silu(torch.sum(conv * kernel, dim=-1))
    s = a.shape[1]
    dt, b, c = parts(u).split([u.shape[1] // 8, s, s], dim=-1)
    dt = functional.softplus(rate(dt))
    state = state * torch.exp(torch.einsum("bd,dn->bdn", dt, -a.exp())) + u[..., None] * torch.einsum("bd,bn->bdn", dt, b)
    y = torch.einsum("bdn,bn->bd", state, c) + 0.5 * u
    return out(y * functional.silu(z)), conv, state


class GemmaBlock(nn.Module):
    """Norms that scale by one and more, scores within bounds, a gate by tanh-GELU, norms on both sides."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scales = heads, nn.ParameterList(torch.randn(width) * 0.1 for _ in range(4))
        self.qkv, self.o = nn.Linear(width, width + 2 * (width // heads), bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def rms(self, x: Tensor, i: int) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.scales[i].float())).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        d = w // self.heads
        q, k, v = self.qkv(self.rms(x, 0)).split([w, d, d], dim=-1)
        q, k, v = q.view(b, t, -1, d).transpose(1, 2), k.view(b, t, 1, d).transpose(1, 2), v.view(b, t, 1, d).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3)) * d**-0.5
        scores = torch.tanh(scores / 50.0) * 50.0
        scores = scores + torch.triu(torch.full((t, t), -2.0e4, dtype=x.dtype, device=x.device), diagonal=1)
        y = torch.matmul(functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)
        x = x + self.rms(self.o(y.transpose(1, 2).contiguous().view(b, t, -1)), 1)
        y = self.rms(x, 2)
        return x + self.rms(self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y)), 3)


def phi_block(before, qkv, norm_q, norm_k, dense, fc1, fc2, x: Tensor) -> Tensor:
    """A part of each head turns; attention and the MLP stand side by side."""
    y = before(x)
    q, k, v = (heads_of(z, 8 if x.shape[-1] == 512 else 2) for z in qkv(y).chunk(3, -1))
    q, k = norm_q(q), norm_k(k)
    part = q.shape[-1] // 2
    rate = 1.0 / (10000 ** (torch.arange(0, part, 2, device=x.device).float() / part))
    angle = torch.outer(torch.arange(x.shape[1], device=x.device).float(), rate)
    cos, sin = (f(torch.cat((angle, angle), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
    q, k = (torch.cat((z[..., :part] * cos + rotate_half(z[..., :part]) * sin, z[..., part:]), -1) for z in (q, k))
    att = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    return dense(att) + fc2(functional.gelu(fc1(y), approximate="tanh")) + x


def head_norm(n: N) -> nn.Module:
    return nn.LayerNorm(n(64, 8))


class Experts(nn.Module):
    """Mixtral's, an expert after the other on the tokens that chose it."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.w13 = nn.ModuleList(nn.Linear(width, 2 * inner, bias=False) for _ in range(experts))
        self.w2 = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x)
        weights, chosen = torch.topk(functional.softmax(logits, dim=1, dtype=torch.float), 2, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(x)
        for i, (up, down) in enumerate(zip(self.w13, self.w2, strict=True)):
            token, rank = torch.where(chosen == i)
            a, b = up(x[token]).chunk(2, -1)
            y.index_add_(0, token, down(functional.silu(a) * b) * weights[token, rank, None])
        return y, logits


def grouped_router(weight: Tensor, bias: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek's: the best groups by their two best experts, then the best experts of these."""
    scores = functional.linear(x.float(), weight.float()).sigmoid()
    biased = scores + bias.float()
    groups = biased.view(len(x), 8, -1)
    best = groups.topk(2, dim=-1)[0].sum(dim=-1).topk(4, dim=-1, sorted=False)[1]
    kept = torch.zeros(len(x), 8, device=x.device).scatter_(1, best, 1).unsqueeze(-1).expand_as(groups).reshape(len(x), -1)
    chosen = biased.masked_fill(~kept.bool(), 0.0).topk(8, dim=-1, sorted=False)[1]
    weights = scores.gather(1, chosen)
    return chosen.sort(-1).values, (weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5).sort(-1)[0].to(x.dtype)


def pixart_block(before, qkv, out, up, down, steps: Tensor, x: Tensor, t: Tensor) -> Tensor:
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (steps[None] + t.reshape(len(t), 6, -1)).chunk(6, dim=1)
    y = before(x) * (1 + scale_a) + shift_a
    q, k, v = (heads_of(z, 8 if x.shape[-1] == 512 else 2) for z in qkv(y).chunk(3, -1))
    x = gate_a * out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) + x
    y = before(x) * (1 + scale_m) + shift_m
    return x + gate_m * down(functional.gelu(up(y), approximate="tanh"))


def gated_feed_forward(up, down, x: Tensor) -> Tensor:
    """GEGLU as diffusers has it."""
    hidden, gate = up(x).chunk(2, dim=-1)
    return down(functional.dropout(hidden * functional.gelu(gate), 0.0, False))


def hyena(to, mlp, bias: Tensor, x: Tensor) -> Tensor:
    """A filter that a network of places makes, applied by FFT between two gates."""
    t = x.shape[1]
    at = torch.linspace(0, 1, t, device=x.device, dtype=x.dtype).unsqueeze(-1)
    h = mlp(torch.cat([at, torch.sin(2 * math.pi * at), torch.cos(2 * math.pi * at)], -1)) * torch.exp(-4 * at)
    a, b, v = to(x).chunk(3, dim=-1)
    u = (b * v).transpose(1, 2)
    spectrum = torch.fft.rfft(u.float(), n=2 * t) * torch.fft.rfft(h.T.float(), n=2 * t)
    y = torch.fft.irfft(spectrum, n=2 * t)[..., :t].to(x.dtype) + u * bias.unsqueeze(-1)
    return a * y.transpose(1, 2)


def dino_block(norms, qkv, out, w12, w3, tokens: Tensor, gains: Tensor, x: Tensor) -> dict[str, Tensor]:
    """DINOv2's: a class token and registers in front, scaled branches, a packed SwiGLU."""
    x = torch.cat((tokens.unsqueeze(0).expand(x.shape[0], -1, -1), x), dim=1)
    b, t, w = x.shape
    q, k, v = qkv(norms[0](x)).reshape(b, t, 3, 8 if w == 512 else 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
    x = x + out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)) * gains[0]
    x1, x2 = w12(norms[1](x)).chunk(2, dim=-1)
    x = x + w3(functional.silu(x1) * x2) * gains[1]
    return {"class": x[:, 0], "registers": x[:, 1:5], "patches": x[:, 5:]}


def masked_head(dense, after, words, bias: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scores = functional.linear(after(functional.gelu(dense(x))), words.weight, bias)
    return functional.cross_entropy(scores.view(-1, scores.shape[-1]), y.view(-1), ignore_index=-100), scores.argmax(-1)


def ignored(n: N) -> Tensor:
    y = torch.randint(0, 60, (n(4, 2), n(64, 6)))
    return torch.where(torch.rand(y.shape) > 0.3, -100, y)


def accepted(p: Tensor, q: Tensor, tokens: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Speculative decoding: how many drafted tokens stay, and what the next is drawn from."""
    p, q = p.softmax(-1), q.softmax(-1)
    ratio = p[:, :-1].gather(-1, tokens[..., None]).squeeze(-1) / q.gather(-1, tokens[..., None]).squeeze(-1)
    count = (chance.sigmoid() < ratio).int().cumprod(dim=1).sum(dim=1)
    row = torch.arange(len(p), device=p.device)
    left = (p[row, count] - functional.pad(q, (0, 0, 0, 1))[row, count]).clamp(min=0)
    return count, left / left.sum(-1, keepdim=True)


def joint(encoder, predictor, out, x: Tensor, y: Tensor) -> Tensor:
    """A transducer's: every frame with every label."""
    return functional.log_softmax(out(torch.tanh(encoder(x).unsqueeze(2) + predictor(y).unsqueeze(1))), dim=-1)


CASES: dict[str, Case] = {
    "bart_decoder_layer": scaled(decoder_layer),
    "whisper_stem": call(
        whisper_stem,
        ((1500, 20), (384, 16)),
        ((4, 2), (80, 8), (3000, 24)),
        parts=(
            lambda n: nn.Conv1d(n(80, 8), n(384, 16), 3, padding=1),
            lambda n: nn.Conv1d(n(384, 16), n(384, 16), 3, stride=2, padding=1),
            lambda n: nn.LayerNorm(n(384, 16)),
        ),
    ),
    "clip_head": call(
        clip_head,
        lambda n: torch.tensor(2.6),
        ((1024, 8), (512, 16)),
        ((1024, 8), (512, 16)),
        parts=(linear(bias=False), linear(bias=False)),
    ),
    "layout_embeddings": call(
        layout_embeddings,
        whole(24, (8, 2), (512, 6)),
        whole(16, (8, 2), (512, 6), 4),
        parts=(
            *(table((30000, 24)), table((1024, 16)), table((1024, 16))),
            lambda n: nn.ModuleList(table((1024, 16))(n) for _ in range(2)),
            *(table((2, 2)), norm),
        ),
    ),
    "wkv": call(wkv, ((512, 16),), ((512, 16),), *(((8, 2), (12, 3), (512, 16)),) * 2),
    "mamba_step": call(
        mamba_step,
        ((1024, 32), 16),
        ((64, 2), (512, 16)),
        lambda n: tuple(floats(n, *s) for s in (((1024, 32), 4), ((64, 2), (1024, 32), 4), ((64, 2), (1024, 32), 16))),
        parts=(
            lambda n: nn.Linear(n(512, 16), n(2048, 64), bias=False),
            lambda n: nn.Linear(n(1024, 32), n(128, 4) + 32, bias=False),
            lambda n: nn.Linear(n(128, 4), n(1024, 32)),
            lambda n: nn.Linear(n(1024, 32), n(512, 16), bias=False),
        ),
    ),
    "gemma_block": scaled(lambda n: (GemmaBlock(n(512, 16), n(8, 2)), (floats(n, (4, 2), (256, 6), (512, 16)),))),
    "phi_block": call(phi_block, TOKENS, parts=(norm, linear(1, 3), head_norm, head_norm, linear(), linear(1, 4), linear(4, 1))),
    "mixtral_experts": scaled(lambda n: (Experts(n(512, 16), n(1024, 24), n(8, 4)), (floats(n, (256, 12), (512, 16)),))),
    "grouped_router": call(grouped_router, ((256, 64), (1024, 16)), ((256, 64),), ((2048, 8), (1024, 16))),
    "pixart_block": call(
        pixart_block,
        (6, (512, 16)),
        TOKENS,
        ((8, 2), (3072, 96)),
        parts=(
            lambda n: nn.LayerNorm(n(512, 16), elementwise_affine=False, eps=1e-6),
            linear(1, 3),
            linear(),
            linear(1, 4),
            linear(4, 1),
        ),
    ),
    "gated_feed_forward": call(gated_feed_forward, ((2, 2), (1024, 8), (512, 16)), parts=(linear(1, 8), linear(4, 1))),
    "hyena": call(
        hyena,
        ((256, 8),),
        ((4, 2), (1024, 8), (256, 8)),
        parts=(
            lambda n: nn.Linear(n(256, 8), 3 * n(256, 8)),
            lambda n: nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, n(256, 8), bias=False)),
        ),
    ),
    "dino_block": call(
        dino_block,
        (5, (512, 16)),
        (2, (512, 16)),
        TOKENS,
        parts=(lambda n: nn.ModuleList((norm(n), norm(n))), linear(1, 3), linear(), linear(1, 4), linear(2, 1)),
    ),
    "masked_head": call(
        masked_head, ((8192, 60),), ((4, 2), (64, 6), (512, 16)), ignored, parts=(linear(), norm, table((8192, 60)))
    ),
    "accepted": call(
        accepted,
        ((16, 2), 5, (32000, 40)),
        ((16, 2), 4, (32000, 40)),
        whole(40, (16, 2), 4),
        ((16, 2), 4),
    ),
    "transducer_joint": call(
        joint,
        ((4, 2), (100, 5), (256, 16)),
        ((4, 2), (20, 3), (256, 16)),
        parts=(*(lambda n: nn.Linear(n(256, 16), n(256, 16)),) * 2, lambda n: nn.Linear(n(256, 16), n(512, 10))),
    ),
}
