"""Parts of public model collections: variants of attention, mixers, routers, cells, layers, quantizers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from experiments.suite.case import Case
from experiments.suite.case import N
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

ROWS, WIDE = (1024, 12), (2048, 24)
TOKENS = ((8, 2), (256, 6), (512, 16))
HEADS = ((8, 2), (8, 2), (256, 6), (64, 8))
IMAGE = ((16, 2), (64, 8), (56, 8), (56, 8))


def linear(i: int, o: int, **more):
    """Widths in sixteens where they are small."""
    return lambda n: nn.Linear(n(128 * i, 4 * i), n(128 * o, 4 * o), **more)


# -- attention ------------------------------------------------------------------------------------------------------------------


def latent_attention(down, up_k, up_v, to_q, x: Tensor) -> Tensor:
    """Keys and values from one short latent (DeepSeek's)."""
    b, t, _ = x.shape
    latent = functional.rms_norm(down(x), (down.out_features,))
    q, k, v = (y.view(b, t, 4, -1).transpose(1, 2) for y in (to_q(x), up_k(latent), up_v(latent)))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)


def differential(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """Two maps of attention, one taken from the other."""
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    scale = q1.shape[-1] ** -0.5
    maps = ((a @ b.transpose(-1, -2) * scale).softmax(-1) for a, b in ((q1, k1), (q2, k2)))
    first, second = maps
    y = (first - rate.sigmoid()[:, None, None] * second) @ v
    return functional.rms_norm(y, (y.shape[-1],)) * 0.2


def sink_attention(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """A logit for no key at all (gpt-oss)."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    none = sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
    both = torch.cat((scores, none), -1)
    weights = (both - both.max(-1, keepdim=True).values).softmax(-1)
    return weights[..., :-1] @ v


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RetNet's, in parallel: scores decay with distance."""
    t = q.shape[-2]
    at = torch.arange(t, device=q.device)
    rate = 1 - torch.exp2(-5 - torch.arange(q.shape[1], device=q.device, dtype=q.dtype))
    apart = (at[:, None] - at).to(q.dtype)
    decay = torch.where(apart >= 0, rate[:, None, None] ** apart.clamp(min=0), torch.zeros((), device=q.device, dtype=q.dtype))
    return ((q @ k.transpose(-1, -2)) * decay * q.shape[-1] ** -0.5) @ v


def disentangled(q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
    """DeBERTa's: content to place as well, gathered by distance."""
    t, span = q.shape[-2], places.shape[-2] // 2
    at = torch.arange(t, device=q.device)
    apart = (at[:, None] - at).clamp(-span, span - 1) + span
    scores = q @ k.transpose(-1, -2)
    scores = scores + torch.gather(q @ places.transpose(-1, -2), -1, apart.expand(*scores.shape))
    return (scores / math.sqrt(2 * q.shape[-1])).softmax(-1) @ v


def packed_attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Sequences of several lengths side by side: each attends within itself."""
    ids = rows.cumsum(-1)
    same = ids[:, None, :, None] == ids[:, None, None, :]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=same)


def performer(q: Tensor, k: Tensor, v: Tensor, features: Tensor) -> Tensor:
    def lift(x: Tensor) -> Tensor:
        y = x @ features
        return torch.exp(y - (x * x).sum(-1, keepdim=True) / 2 - y.amax(-1, keepdim=True)) + 1e-4

    a, b = lift(q * q.shape[-1] ** -0.25), lift(k * k.shape[-1] ** -0.25)
    return (a @ (b.transpose(-1, -2) @ v)) / (a @ b.sum(-2).unsqueeze(-1))


def pooled_attention(query: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    scores = (x @ query).masked_fill(keep == 0, float("-inf"))
    return torch.einsum("bt,btc->bc", scores.softmax(-1), x)


def talking_heads(before: Tensor, after: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    weights = torch.einsum("bhqk,hg->bgqk", torch.einsum("bhqk,hg->bgqk", scores, before).softmax(-1), after)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)


def axial(x: Tensor) -> Tensor:
    rows = (x @ x.transpose(-1, -2) * x.shape[-1] ** -0.5).softmax(-1) @ x
    columns = x.transpose(1, 2)
    return rows + ((columns @ columns.transpose(-1, -2) * x.shape[-1] ** -0.5).softmax(-1) @ columns).transpose(1, 2)


# -- tokens, routers, sequences -------------------------------------------------------------------------------------------------


def merged_tokens(x: Tensor) -> Tensor:
    """ToMe: the most alike of two halves become one."""
    k = functional.normalize(x, dim=-1)
    a, b = k[:, ::2], k[:, 1::2]
    best, where = (a @ b.transpose(-1, -2)).max(-1)
    order = best.argsort(-1, descending=True)
    some = x.shape[1] // 4
    source, kept = order[:, :some, None], order[:, some:, None]
    c = x.shape[-1]
    target = where.gather(1, order[:, :some])[..., None].expand(-1, -1, c)
    moved = x[:, ::2].gather(1, source.expand(-1, -1, c))
    return torch.cat((x[:, ::2].gather(1, kept.expand(-1, -1, c)), x[:, 1::2].scatter_reduce(1, target, moved, "mean")), 1)


def top_two_experts(gate, w_in: Tensor, w_out: Tensor, x: Tensor) -> Tensor:
    """All experts computed, two of them counted."""
    weights, chosen = gate(x).softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    each = torch.zeros(*x.shape[:-1], w_in.shape[0], device=x.device, dtype=x.dtype).scatter(-1, chosen, weights)
    hidden = functional.silu(torch.einsum("td,edh->teh", x, w_in))
    return torch.einsum("teh,ehd,te->td", hidden, w_out, each)


def balance_loss(gate, x: Tensor) -> tuple[Tensor, Tensor]:
    scores = gate(x).softmax(-1)
    share = functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(x.dtype).mean(0)
    return scores.shape[-1] * (share * scores.mean(0)).sum(), torch.logsumexp(gate(x), -1).square().mean()


class Gla(nn.Module):
    """Gated linear attention, step by step over chunks."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps, self.qkvg = steps, nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, g = self.qkvg(x).chunk(4, -1)
        state = torch.zeros(x.shape[0], q.shape[-1], v.shape[-1], device=x.device, dtype=x.dtype)
        found = []
        for i in range(0, x.shape[1], x.shape[1] // self.steps):
            at = slice(i, i + x.shape[1] // self.steps)
            qs, ks, vs = q[:, at], k[:, at].softmax(-1), v[:, at]
            found.append(qs @ state + (qs @ ks.transpose(-1, -2)).tril() @ vs)
            state = state * g[:, at].mean(1).sigmoid().unsqueeze(-1) + ks.transpose(-1, -2) @ vs
        return torch.cat(found, 1)


class RwkvMix(nn.Module):
    """RWKV's channel mix with its shift of time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.k, self.r = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.v = nn.Linear(4 * width, width, bias=False)
        self.mix_k, self.mix_r = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        before = functional.pad(x, (0, 0, 1, -1))
        xk, xr = x * self.mix_k + before * (1 - self.mix_k), x * self.mix_r + before * (1 - self.mix_r)
        return torch.sigmoid(self.r(xr)) * self.v(torch.relu(self.k(xk)).square())


class MinGru(nn.Module):
    """A recurrence without products with its state, in logarithms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.hidden = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k = self.gate(x)
        keep, add = -functional.softplus(k), -functional.softplus(-k) + torch.log(functional.relu(self.hidden(x)) + 0.5)
        total = keep.cumsum(1)
        return torch.exp(total + torch.logcumsumexp(add - total, 1))


class Indrnn(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.rate = nn.Linear(width, width), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, h, all_of = self.inward(x), torch.zeros_like(x[:, 0]), []
        for t in range(8):
            h = torch.relu(y[:, t] + self.rate * h)
            all_of.append(h)
        return torch.stack(all_of, 1), h


def delta_net(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Within one chunk, by a triangular solution."""
    k, b = functional.normalize(k, dim=-1), beta.sigmoid().unsqueeze(-1)
    system = torch.eye(k.shape[-2], device=k.device, dtype=k.dtype) + (b * k @ k.transpose(-1, -2)).tril(-1)
    fresh = torch.linalg.solve_triangular(system.float(), (b * v).float(), upper=False).to(v.dtype)
    return (q @ k.transpose(-1, -2)).tril() @ fresh


# -- layers ---------------------------------------------------------------------------------------------------------------------


class Kan(nn.Module):
    """Kolmogorov and Arnold's: B-splines of each input."""

    def __init__(self, i: int, o: int, grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        self.register_buffer("knots", (torch.arange(-order, grid + order + 1) * (2 / grid) - 1).expand(i, -1).contiguous())
        self.base, self.spline = nn.Linear(i, o, bias=False), nn.Linear(i * (grid + order), o, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        knots, y = self.get_buffer("knots"), x.unsqueeze(-1)
        b = ((y >= knots[:, :-1]) & (y < knots[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (y - knots[:, : -(k + 1)]) / (knots[:, k:-1] - knots[:, : -(k + 1)]) * b[..., :-1]
            b = left + (knots[:, k + 1 :] - y) / (knots[:, k + 1 :] - knots[:, 1:-k]) * b[..., 1:]
        return self.base(functional.silu(x)) + self.spline(b.flatten(1))


class RadialKan(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(i), nn.Linear(8 * i, o)
        self.register_buffer("centres", torch.linspace(-2, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.exp(-(((self.norm(x)[..., None] - self.get_buffer("centres")) / 0.57) ** 2)).flatten(-2))


class Siren(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts[:-1]:
            x = torch.sin(30 * part(x))
        return self.parts[-1](x)


class Lora(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.a, self.b = nn.Parameter(torch.randn(rank, width) * 0.02), nn.Parameter(torch.randn(width, rank) * 0.02)
        self.size = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        """DoRA's: the weight's rows have lengths of their own."""
        weight = self.base.weight + self.b @ self.a
        return functional.linear(x, weight * (self.size / weight.norm(dim=1)).unsqueeze(1), self.base.bias)


class BitLinear(nn.Linear):
    """Ternary weights, activations of 8 bits."""

    def forward(self, x: Tensor) -> Tensor:
        scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        x = (x * scale).round().clamp(-128, 127) / scale
        mean = self.weight.abs().mean().clamp(min=1e-5)
        return functional.linear(x, (self.weight / mean).round().clamp(-1, 1) * mean)


class Int4Linear(nn.Module):
    """Two weights of four bits in a byte, scales for groups of 32."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (o, i // 2), dtype=torch.uint8))
        self.scale = nn.Parameter(torch.rand(o, i // 32) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.get_buffer("packed")
        both = torch.stack((packed & 15, packed >> 4), -1).flatten(1).to(x.dtype) - 8
        weight = (both.view(both.shape[0], -1, 32) * self.scale[..., None]).flatten(1)
        return x @ weight.T


def finite_scalar(x: Tensor) -> tuple[Tensor, Tensor]:
    """FSQ: codes of bounded numbers and their index."""
    levels = torch.tensor([8, 5, 5, 5], device=x.device)
    half = (levels - 1) * 0.5
    z = torch.tanh(x) * half.to(x.dtype)
    code = z + (z.round() - z).detach()
    basis = torch.cumprod(torch.tensor([1, 8, 5, 5], device=x.device), 0)
    return code, ((code + half.to(x.dtype)).round().to(torch.int64) * basis).sum(-1)


def residual_codes(books: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of what the codes before leave."""
    rest, chosen = x, []
    for book in books.unbind(0):
        at = torch.cdist(rest.float(), book.float()).argmin(-1)
        rest = rest - book[at]
        chosen.append(at)
    return x - rest, torch.stack(chosen, -1)


class AdaLnZero(nn.Module):
    """DiT's modulation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mod = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate = self.mod(functional.silu(c)).chunk(3, -1)
        return x + gate.unsqueeze(1) * self.mlp(self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1))


def time_embedding(mlp, t: Tensor) -> Tensor:
    half = 64
    rates = torch.exp(-math.log(10000) * torch.arange(half, device=t.device, dtype=torch.float32) / half)
    angles = t[:, None].float() * rates
    return mlp(torch.cat((angles.cos(), angles.sin()), -1).to(mlp[0].weight.dtype))


def ddim_step(x: Tensor, noise: Tensor, at: Tensor) -> Tensor:
    betas = torch.linspace(1e-4, 0.02, 1000, device=x.device)
    kept = torch.cumprod(1 - betas, 0)[at].view(-1, 1, 1, 1).to(x.dtype)
    before = (x - (1 - kept).sqrt() * noise) / kept.sqrt()
    return before.clamp(-1, 1) * 0.9 + noise * 0.1


def spectral_block(n: N) -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(n(256, 8), n(256, 8))).eval()


CASES: dict[str, Case] = {
    "zoo_latent_attention": call(
        latent_attention, TOKENS, parts=(linear(4, 1), linear(1, 4), linear(1, 4), linear(4, 4, bias=False))
    ),
    "zoo_differential": call(differential, HEADS, HEADS, HEADS, ((8, 2),)),
    "zoo_sink_attention": call(sink_attention, HEADS, HEADS, HEADS, ((8, 2),)),
    "zoo_retention": call(retention, HEADS, HEADS, HEADS),
    "zoo_disentangled": call(disentangled, HEADS, HEADS, HEADS, ((8, 2), (128, 8), (64, 8))),
    "zoo_packed_attention": call(packed_attention, HEADS, HEADS, HEADS, lambda n: (torch.rand(n(8, 2), n(256, 6)) > 0.9).long()),
    "zoo_performer": call(performer, HEADS, HEADS, HEADS, ((64, 8), (128, 8))),
    "zoo_pooled_attention": call(pooled_attention, ((512, 16),), TOKENS, lambda n: torch.ones(n(8, 2), n(256, 6)).long()),
    "zoo_talking_heads": call(talking_heads, ((8, 2), (8, 2)), ((8, 2), (8, 2)), HEADS, HEADS, HEADS),
    "zoo_axial": call(axial, ((8, 2), (32, 4), (32, 6), (64, 8))),
    "zoo_merged_tokens": call(merged_tokens, ((8, 2), (256, 8), (384, 16))),
    "zoo_top_two_experts": call(
        top_two_experts,
        ((8, 4), (256, 16), (512, 16)),
        ((8, 4), (512, 16), (256, 16)),
        (ROWS, (256, 16)),
        parts=(lambda n: nn.Linear(n(256, 16), n(8, 4), bias=False),),
    ),
    "zoo_balance_loss": call(balance_loss, (ROWS, (512, 16)), parts=(lambda n: nn.Linear(n(512, 16), n(16, 4), bias=False),)),
    "zoo_gated_linear": scaled(lambda n: (Gla(n(128, 8), n(4, 2)), (floats(n, (8, 2), (256, 8), (128, 8)),))),
    "zoo_rwkv_mix": scaled(lambda n: (RwkvMix(n(512, 16)), (floats(n, *TOKENS),))),
    "zoo_min_gru": scaled(lambda n: (MinGru(n(512, 16)), (floats(n, *TOKENS),))),
    "zoo_indrnn": scaled(lambda n: (Indrnn(n(512, 16)), (floats(n, (64, 2), (8, 8), (512, 16)),))),
    "zoo_delta_net": call(delta_net, *(((8, 2), (4, 2), (64, 6), (64, 8)),) * 3, ((8, 2), (4, 2), (64, 6))),
    "zoo_kan": scaled(lambda n: (Kan(n(64, 6), n(64, 6)), (floats(n, ROWS, (64, 6)),))),
    "zoo_radial_kan": scaled(lambda n: (RadialKan(n(128, 8), n(128, 8)), (floats(n, ROWS, (128, 8)),))),
    "zoo_siren": scaled(lambda n: (Siren(n(256, 8)), (floats(n, (16384, 24), 2) * 0.05,))),
    "zoo_dora": scaled(lambda n: (Lora(n(1024, 16), n(16, 4)), (floats(n, (512, 6), (1024, 16)),))),
    "zoo_bit_linear": scaled(lambda n: (BitLinear(n(1024, 32), n(1024, 16), bias=False), (floats(n, (512, 6), (1024, 32)),))),
    "zoo_int4_linear": scaled(lambda n: (Int4Linear(n(1024, 64), n(1024, 16)), (floats(n, (16, 4), (1024, 64)),))),
    "zoo_finite_scalar": call(finite_scalar, ((32768, 24), 4)),
    "zoo_residual_codes": call(residual_codes, (4, (256, 8), (64, 8)), ((2048, 12), (64, 8))),
    "zoo_ada_ln_zero": scaled(
        lambda n: (AdaLnZero(n(384, 16)), (floats(n, (8, 2), (256, 6), (384, 16)), floats(n, (8, 2), (384, 16))))
    ),
    "zoo_time_embedding": call(
        time_embedding,
        whole(1000, (64, 4)),
        parts=(lambda n: nn.Sequential(nn.Linear(128, n(512, 16)), nn.SiLU(), nn.Linear(n(512, 16), n(512, 16))),),
    ),
    "zoo_ddim_step": call(ddim_step, ((8, 2), 4, (64, 6), (64, 6)), ((8, 2), 4, (64, 6), (64, 6)), whole(1000, (8, 2))),
    "zoo_spectral_linear": call(lambda m, x: functional.leaky_relu(m(x), 0.1), (ROWS, (256, 8)), parts=(spectral_block,)),
}
