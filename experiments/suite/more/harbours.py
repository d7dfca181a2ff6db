"""Recurrences, memories and attention of language models that no other room has, and what serves them in half."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import spread
from experiments.suite.more.arenas import weights
from experiments.suite.more.benches import int32s
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.more.piers import rows_of
from experiments.suite.users import call

# -- recurrences ----------------------------------------------------------------------------------------------------------------


def since(log_decay: Tensor) -> Tensor:
    """What is left at one place of what came in at another: zero where it had not come yet."""
    sums = torch.cumsum(log_decay, -1)
    later = torch.ones(sums.shape[-1], sums.shape[-1], dtype=torch.bool, device=sums.device).triu(1)
    return torch.exp((sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf))


def conjugate_states(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, ridge: Tensor, steps: int = 8) -> Tensor:
    """MesaNet: each query is first solved against all keys before it, by conjugate gradients; no state is written down."""
    q, k, beta = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), torch.sigmoid(beta).unsqueeze(-1)
    left, keys, lam = since(functional.logsigmoid(g + 3)), k * beta, functional.softplus(ridge)[:, None] + 0.25

    def product(p: Tensor) -> Tensor:
        return (p @ k.mT * left) @ keys + lam * p

    x = q / (lam + 1)
    r = q - product(x)
    p, before = r, r.square().sum(-1, keepdim=True)
    for _ in range(steps):
        a = product(p)
        step = before / ((p * a).sum(-1, keepdim=True) + 1e-8)
        x, r = x + step * p, r - step * a
        now = r.square().sum(-1, keepdim=True)
        p, before = r + now / (before + 1e-8) * p, now
    return (x @ k.mT * left) @ (v * beta)


def levels_of_the_past(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scales: Tensor) -> Tensor:
    """Log-linear attention: the farther a key lies back, the higher its level; each query has a weight for each level."""
    t = torch.arange(q.shape[2], device=q.device)
    apart = t[:, None] ^ t
    level = ((apart.unsqueeze(-1) >> torch.arange(scales.shape[-1] - 1, device=q.device)) > 0).sum(-1)
    weight = functional.softplus(scales).gather(-1, level.expand(*scales.shape[:2], -1, -1))
    return (q @ k.mT * q.shape[-1] ** -0.5 * weight * since(functional.logsigmoid(g + 4))) @ v


def slots_in_two_passes(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    """Gated slot attention, token by token: keys and values share the gates of the slots they are written to."""
    keep = torch.sigmoid(s).pow(1 / 16).unsqueeze(-1)
    keys = values = torch.zeros(*s.shape[:2], s.shape[-1], k.shape[-1], device=q.device, dtype=q.dtype)
    out = []
    for t in range(q.shape[2]):
        f = keep[:, :, t]
        keys, values = f * keys + (1 - f) * k[:, :, t, None], f * values + (1 - f) * v[:, :, t, None]
        p = torch.softmax(torch.einsum("bhd,bhmd->bhm", q[:, :, t], keys), -1)
        out.append(torch.einsum("bhm,bhmd->bhd", p, values))
    return torch.stack(out, 2)


class RisingFloors(nn.Module):
    """HGRN: deeper layers forget less, by a floor that grows with the depth."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.floors = nn.Parameter(torch.randn(layers, width))
        self.inner = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        floors = torch.softmax(self.floors, 0)
        floors = torch.cumsum(floors, 0) - floors[0]
        for inner, outer, low in zip(self.inner, self.outer, floors, strict=True):
            i, f, g = inner(x).chunk(3, -1)
            f = low + (1 - low) * torch.sigmoid(f)
            i = functional.silu(i) * (1 - f)
            h, done = torch.zeros_like(x[:, 0]), torch.empty_like(x)
            for t in range(x.shape[1]):
                h = f[:, t] * h + i[:, t]
                done[:, t] = h
            x = x + outer(functional.rms_norm(done, done.shape[-1:]) * functional.silu(g))
        return x


def feedback_loops(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Comba: the state is asked with a part of the key before it is corrected; queries lose some of their key."""
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    decay, back, beta = torch.sigmoid(gates + 2).unsqueeze(-1).unbind(2)
    state = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1], device=q.device, dtype=q.dtype)
    q, out = q - d[:, None] * k, []
    for t in range(q.shape[1]):
        said = torch.einsum("bhkv,bhk->bhv", state, back[:, t] * k[:, t])
        state = decay[:, t].unsqueeze(-1) * state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t] * (v[:, t] - said))
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1), state


def triangular_softmax(q: Tensor, k: Tensor, w: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """DeltaFormer: values lose what a softmax over those before says of them, which is a triangular system."""
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    inner = torch.softmax((w @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf), -1).tril(-1)
    system = inner * torch.sigmoid(beta).unsqueeze(-1) + torch.eye(q.shape[2], device=q.device, dtype=q.dtype)
    u = torch.linalg.solve_triangular(system, v, upper=False, unitriangular=True)
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf), -1) @ u


def two_reflections(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """Gated DeltaProduct: two corrections of the state for each token, each up to a full reflection."""
    k, beta = functional.normalize(k, dim=-1), 2 * torch.sigmoid(beta)
    state, out = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], device=q.device, dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = state * torch.exp(-functional.softplus(g[:, t]))[..., None, None]
        for i in range(2):
            key = k[:, t, i]
            more = (v[:, t, i] - (key.unsqueeze(-2) @ state).squeeze(-2)) * beta[:, t, i, :, None]
            state = state + key.unsqueeze(-1) * more.unsqueeze(-2)
        out.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(out, 1)


def normalised_in_logarithms(qkvg, out, x: Tensor, head: int) -> Tensor:
    """LightNet: keys are a softmax over the time so far, by a running sum of exponentials."""
    q, k, v, g = qkvg(x).unflatten(-1, (4, -1, head)).permute(2, 0, 3, 1, 4)
    z = torch.logcumsumexp(k, 2)
    top = k.amax(2, keepdim=True)
    scores = (functional.silu(q) * torch.exp(top - z)) @ torch.exp(k - top).mT
    y = functional.layer_norm(scores.tril() @ v, (head,)) * torch.sigmoid(g)
    return out(y.transpose(1, 2).flatten(2))


def quadratic_kernels(qk, v, out, given, x: Tensor, heads: int) -> Tensor:
    """ReBased: normed features with a scale and a shift of their own, squared products, divided by their sum."""
    a, b, c, d = given
    q, k = qk(x).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    q = (q - q.mean(-1, keepdim=True)) * torch.rsqrt(q.var(-1, keepdim=True, unbiased=False) + 1e-5) * a + b
    k = (k - k.mean(-1, keepdim=True)) * torch.rsqrt(k.var(-1, keepdim=True, unbiased=False) + 1e-5) * c + d
    s = (q @ k.mT / q.shape[-1]).square().tril()
    y = s @ v(x).unflatten(-1, (heads, -1)).transpose(1, 2) / (s.sum(-1, keepdim=True) + 1e-5)
    return out(y.transpose(1, 2).flatten(2))


def reflected_paths(q: Tensor, k: Tensor, w: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """PaTH: every key is reflected by each token between it and the query; keys are written into one buffer."""
    w, beta = functional.normalize(w, dim=-1), 2 * torch.sigmoid(beta)
    keys, out = torch.zeros_like(k), []
    for t in range(q.shape[1]):
        if t:
            along = keys[:, :t] @ w[:, t, :, None] * beta[:, t, None, None]
            keys[:, :t] -= along * w[:, t, None]
        keys[:, t] = k[:, t]
        p = torch.softmax((keys[:, : t + 1] @ q[:, t, :, None]).squeeze(-1) * q.shape[-1] ** -0.5, -1)
        out.append((p.unsqueeze(1) @ v[:, : t + 1]).squeeze(1))
    return torch.stack(out, 1)


HEADS, SHORT = ((4, 1), (8, 2), (512, 7), (64, 6)), ((16, 2), (24, 5), (8, 2), (64, 4))
SLOTS, STEPS, PATHS = ((32, 2), (8, 2), (32, 5), (64, 4)), ((16, 2), (16, 4)), ((1024, 3), (32, 6), (64, 4))
FLOAT32: dict[str, Case] = {
    "conjugate_states": call(conjugate_states, HEADS, HEADS, HEADS, HEADS[:3], HEADS[:3], ((8, 2), (64, 6))),
    "levels_of_the_past": call(levels_of_the_past, HEADS, HEADS, HEADS, HEADS[:3], (*HEADS[:3], (10, 4))),
    "slots_in_two_passes": call(slots_in_two_passes, SLOTS, SLOTS, SLOTS, SLOTS),
    "rising_floors": call(lambda m, x: m(x), ((256, 2), (32, 5), (1024, 8)), parts=(part(RisingFloors, (1024, 8), (3, 2)),)),
    "feedback_loops": call(feedback_loops, SHORT, SHORT, (*SHORT[:3], (128, 5)), (*SHORT[:2], 3, SHORT[2]), (SHORT[2],)),
    "triangular_softmax": call(triangular_softmax, HEADS, HEADS, HEADS, HEADS, HEADS[:3]),
    "two_reflections": call(
        two_reflections,
        *((*STEPS, (16, 2), (64, 4)), (*STEPS, 2, (16, 2), (64, 4)), (*STEPS, 2, (16, 2), (64, 5))),
        *((*STEPS, 2, (16, 2)), (*STEPS, (16, 2))),
    ),
    "normalised_in_logarithms": call(
        lambda a, b, x: normalised_in_logarithms(a, b, x, 64 if x.shape[-1] > 99 else 4),
        ((4, 2), (600, 7), (768, 8)),
        parts=(wide(768, 3072, (8, 32), bias=False), wide(768, 768, (8, 8), bias=False)),
    ),
    "quadratic_kernels": call(
        lambda *x: quadratic_kernels(*x, heads=16 if x[-1].shape[-1] > 99 else 2),
        ((2, 1), (1024, 9), (1024, 8)),
        parts=(
            *(wide(1024, 512, (8, 16), bias=False), wide(1024, 1024, (8, 8), bias=False), wide(1024, 1024, (8, 8), bias=False)),
            weights(*(((16, 4),),) * 4),
        ),
    ),
    "reflected_paths": call(reflected_paths, PATHS, PATHS, PATHS, PATHS, PATHS[:2]),
}

# -- in float16: what serves a model --------------------------------------------------------------------------------------------


def three_bits_in_words(words: Tensor, scales: Tensor, zeros: Tensor, x: Tensor) -> Tensor:
    """HQQ: ten codes of three bits in each word, two bits are left over; zeros are floats."""
    codes = ((words.unsqueeze(1) >> (3 * torch.arange(10, device=x.device, dtype=torch.int32))[:, None]) & 7).flatten(0, 1)
    w = codes[: x.shape[1]].to(x.dtype).unflatten(0, (scales.shape[0], -1))
    return x @ ((w - 3.5 - zeros[:, None]) * (0.02 * scales.abs())[:, None]).flatten(0, 1)


def two_of_every_four(weight: Tensor, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Wanda: of four weights in a row stay the two that weigh most beside the size of their inputs."""
    worth = (weight.abs().float() * norms.abs().float()).unflatten(1, (-1, 4))
    kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(-1, worth.topk(2, -1).indices, True).flatten(1)
    return functional.linear(x, weight * kept), kept


def kept_within_deviations(logits: Tensor, temperature: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Top-nσ: tokens within some deviations of the best; one of them by noise from outside."""
    x = logits.float()
    low = x.amax(-1, keepdim=True) - 1.5 * x.std(-1, keepdim=True)
    x = torch.where(x >= low, x / (0.5 + torch.sigmoid(temperature.float())).unsqueeze(-1), -torch.inf)
    p = torch.softmax(x, -1)
    return (p / (noise.float().abs() + 0.05)).argmax(-1), p.amax(-1)


def beams_and_their_cache(logits: Tensor, scores: Tensor, cache: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best of all beams' words go on; their caches and what they said come along."""
    b, beams, words = logits.shape
    total = scores.float().unsqueeze(-1) + torch.log_softmax(logits.float(), -1)
    best, at = total.flatten(1).topk(beams, -1)
    of, word = torch.div(at, words, rounding_mode="floor"), at % words
    rows = (of + beams * torch.arange(b, device=of.device)[:, None]).flatten()
    told = torch.cat([tokens.gather(1, of.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])), word.unsqueeze(-1)], -1)
    return best, cache.index_select(1, rows), told


def unmasked_by_confidence(logits: Tensor, tokens: Tensor, many: int) -> tuple[Tensor, Tensor]:
    """A diffusion language model's step: of the masked places those it is surest of get their words."""
    p = torch.softmax(logits.float(), -1)
    sure, word = p.max(-1)
    masked = tokens == 0
    chosen = torch.where(masked, sure, -1.0).topk(many, -1).indices
    turn = torch.zeros_like(masked).scatter(1, chosen, True) & masked
    return torch.where(turn, word, tokens), (sure * masked).sum(-1)


def patches_by_surprise(norm, out, x: Tensor, surprise: Tensor) -> tuple[Tensor, Tensor]:
    """Byte latents: a patch begins where the surprise jumps; means of patches, and each byte gets that of the one before."""
    b, t, d = x.shape
    jump = functional.pad(surprise.float().diff(dim=1) > 0.6, (1, 0), value=True)
    patch = torch.cumsum(jump, 1) - 1
    index = patch.unsqueeze(-1).expand(-1, -1, d)
    total = torch.zeros(b, t, d, device=x.device).scatter_add(1, index, x.float())
    many = torch.zeros(b, t, device=x.device).scatter_add(1, patch, torch.ones_like(surprise, dtype=torch.float32))
    means = out(norm((total / many.clamp(min=1).unsqueeze(-1)).to(x.dtype)))
    return x + functional.pad(means, (0, 0, 1, -1)).gather(1, index), patch.amax(1) + 1


def windows_of_any_image(qkv, out, x: Tensor, place: Tensor, order: Tensor, window: Tensor, heads: int) -> Tensor:
    """Qwen 2.5's eyes: patches are laid in order of windows, heads turn by rows and columns, windows see only themselves."""
    back = torch.argsort(order)
    q, k, v = qkv(x[order]).unflatten(-1, (3, heads, -1)).permute(1, 2, 0, 3)
    d = q.shape[-1] // 4
    angle = place[order].unsqueeze(-1).float() * 10000.0 ** (-torch.arange(d, device=x.device) / d)
    angle = torch.cat([angle.flatten(1)] * 2, -1)
    cos, sin = angle.cos(), angle.sin()

    def turned(t: Tensor) -> Tensor:
        a, b = t.float().chunk(2, -1)
        return (t.float() * cos + torch.cat([-b, a], -1) * sin).to(t.dtype)

    mask = window[:, None] == window
    y = functional.scaled_dot_product_attention(turned(q)[None], turned(k)[None], v[None], attn_mask=mask)[0]
    return out(y.transpose(0, 1).flatten(1))[back]


def mixture_of_adapters(base, router, down: Tensor, up: Tensor, x: Tensor) -> Tensor:
    """Adapters of low rank as experts: all of them are made, two of them count."""
    best, at = router(x).float().topk(2, -1)
    gates = torch.zeros(len(x), len(down), device=x.device).scatter(1, at, torch.softmax(best, -1)).to(x.dtype)
    low = torch.einsum("td,erd->ter", x, down)
    return base(x) + torch.einsum("ter,te,eor->to", functional.silu(low), gates, up) * 0.5


def leaky_spikes(conv, norm, x: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Neurons that integrate and fire: the same current in each step, a reset by subtraction; rates and what is left."""
    current = norm(conv(x))
    charge, rate = torch.zeros_like(current), torch.zeros_like(current)
    for _ in range(steps):
        charge = charge + (current - charge) * 0.5
        spike = (charge >= 0.6).to(x.dtype)
        charge = charge - spike * 0.6
        rate = rate + spike
    return rate / steps, charge


def shuffled(n) -> Tensor:
    return torch.randperm(n(4096, 12))


CHOICES, BYTES = ((64, 3), (50257, 41)), ((16, 3), (4096, 12), (512, 8))
FLOAT16: dict[str, Case] = {
    "three_bits_in_words": call(
        three_bits_in_words,
        *(int32s((410, 2), (11008, 7)), ((64, 4), (11008, 7)), ((64, 4), (11008, 7)), ((32, 3), (4096, 20))),
    ),
    "two_of_every_four": call(two_of_every_four, ((4096, 9), (4096, 16)), ((2048, 5), (4096, 16)), ((4096, 16),)),
    "kept_within_deviations": call(kept_within_deviations, CHOICES, CHOICES[:1], CHOICES),
    "beams_and_their_cache": call(
        beams_and_their_cache,
        *(
            ((8, 2), 5, (32000, 23)),
            ((8, 2), 5),
            (2, (40, 10), (8, 2), (700, 6), (64, 4)),
            below((32000, 23), (8, 2), 5, (128, 4)),
        ),
    ),
    "unmasked_by_confidence": call(
        lambda x, t: unmasked_by_confidence(x, t, max(2, t.shape[1] // 16)),
        ((8, 2), (256, 9), (50368, 21)),
        lambda n: torch.randint(-n(9999, 9), n(50368, 21), (n(8, 2), n(256, 9))).clamp(min=0),
    ),
    "patches_by_surprise": call(
        patches_by_surprise, BYTES, BYTES[:2], parts=(part(nn.LayerNorm, (512, 8)), wide(512, 512, (8, 8)))
    ),
    "windows_of_any_image": call(
        lambda f, g, *x: windows_of_any_image(f, g, *x, heads=16 if x[0].shape[1] > 99 else 2),
        *(((4096, 12), (1280, 16)), below((64, 4), (4096, 12), 2), shuffled, rows_of((64, 3), (4096, 12))),
        parts=(wide(1280, 3840, (16, 48)), wide(1280, 1280, (16, 16))),
    ),
    "mixture_of_adapters": call(
        mixture_of_adapters,
        *((8, (16, 3), (2048, 9)), (8, (5504, 7), (16, 3)), ((4096, 6), (2048, 9))),
        parts=(wide(2048, 5504, (9, 7), bias=False), wide(2048, 8, (9, 8), bias=False)),
    ),
    "leaky_spikes": call(
        lambda f, g, x: leaky_spikes(f, g, x, 8),
        ((16, 2), (64, 4), (64, 6), (64, 7)),
        parts=(lambda n: nn.Conv2d(n(64, 4), n(128, 6), 3, padding=1, bias=False), spread(nn.BatchNorm2d, (128, 6))),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **FLOAT16}
"""In the number format that each group is meant for."""
