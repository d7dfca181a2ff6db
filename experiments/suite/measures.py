"""Sequence layers, routers, recommenders, losses and numerics of public code that other files of the suite do not have."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import N
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

TOKENS = ((8, 2), (256, 8), (512, 16))
HEADS = ((8, 2), (8, 2), (256, 6), (64, 8))
ROWS = ((1024, 12), (512, 16))


def linear(i: int, o: int, **more):
    return lambda n: nn.Linear(i * n(512, 16), o * n(512, 16), **more)


# -- sequences ------------------------------------------------------------------------------------------------------------------


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys of a window alone."""
    at = torch.arange(q.shape[-2], device=q.device)
    far = at[:, None] - at
    mask = (far >= 0) & (far < 32)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def prefix(q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
    """The first keys are seen by all, others by those behind them."""
    at = torch.arange(q.shape[-2], device=q.device)
    mask = (at[:, None] >= at) | (at < length[:, None, None, None])
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def linformer(short_k: Tensor, short_v: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = torch.einsum("bhnd,nm->bhmd", k, short_k), torch.einsum("bhnd,nm->bhmd", v, short_v)
    return (torch.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5).softmax(-1) @ v


def attention_free(q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
    """AFT."""
    weights = places.exp()
    k = k.exp()
    return q.sigmoid() * (weights @ (k * v)) / (weights @ k)


def gated_unit(norm, to, out, gain: Tensor, shift: Tensor, x: Tensor) -> Tensor:
    """FLASH's gated attention unit, squared ReLU."""
    u, v, base = functional.silu(to(norm(x))).split((1024, 1024, 128) if x.shape[-1] == 512 else (32, 32, 4), -1)
    q, k = base * gain[0] + shift[0], base * gain[1] + shift[1]
    scores = functional.relu(q @ k.transpose(1, 2) / x.shape[1]).square()
    return x + out(u * (scores @ v))


def external(keys, values, x: Tensor) -> Tensor:
    weights = keys(x).softmax(1)
    return values(weights / (weights.sum(-1, keepdim=True) + 1e-9))


def relative_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """T5's buckets of distances, computed in the call."""
    at = torch.arange(q.shape[-2], device=q.device)
    far = (at[None] - at[:, None]).abs()
    large = 8 + ((far.clamp(min=8).float() / 8).log() / math.log(16) * 8).long()
    bias = table[torch.where(far < 8, far, large.clamp(max=15))].permute(2, 0, 1)
    return (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v


def segment_sums(x: Tensor, rate: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba 2's product of one chunk."""
    total = rate.cumsum(-1)
    apart = total[..., :, None] - total[..., None, :]
    keep = torch.ones(apart.shape[-2:], device=x.device, dtype=torch.bool).tril()
    decay = apart.masked_fill(~keep, float("-inf")).exp()
    return torch.einsum("bln,bsn,bhls,bshp->blhp", c, b, decay, x)


def diagonal_kernel(log_rate: Tensor, angle: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """S4D's convolution, its kernel by cosines."""
    at = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    rate = -log_rate.exp()
    kernel = ((rate[..., None] * at).exp() * torch.cos(angle[..., None] * at) * weight[..., None]).sum(1)
    size = 2 * x.shape[-1]
    found = torch.fft.irfft(torch.fft.rfft(x.float(), size) * torch.fft.rfft(kernel.float(), size), size)
    return found[..., : x.shape[-1]].to(x.dtype)


def forget_pool(to, x: Tensor) -> Tensor:
    """QRNN's pooling, step by step."""
    z, f, o = to(x).chunk(3, -1)
    z, f, o = z.tanh(), f.sigmoid(), o.sigmoid()
    state, found = torch.zeros_like(z[:, 0]), []
    for t in range(8):
        state = f[:, t] * state + (1 - f[:, t]) * z[:, t]
        found.append(o[:, t] * state)
    return torch.stack(found, 1)


def conv_lstm(gates, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, o, g = gates(torch.cat((x, h), 1)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def peephole(wx, wh, look: Tensor, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (wx(x) + wh(h)).chunk(4, -1)
    c = torch.sigmoid(f + look[0] * c) * c + torch.sigmoid(i + look[1] * c) * torch.tanh(g)
    return torch.sigmoid(o + look[2] * c) * torch.tanh(c), c


def global_layer_norm(one, act, depth, back, gain: Tensor, shift: Tensor, x: Tensor) -> Tensor:
    """Conv-TasNet's block."""
    y = depth(act(one(x)))
    mean, var = y.mean((1, 2), keepdim=True), y.var((1, 2), keepdim=True, unbiased=False)
    return x + back((y - mean) / (var + 1e-8).sqrt() * gain[:, None] + shift[:, None])


def reversible(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """A series normalized, split into trend and rest, and back (RevIN, DLinear)."""
    mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
    y = (x - mean) / std * gain + shift
    front, end = y[:, :1].expand(-1, 12, -1), y[:, -1:].expand(-1, 12, -1)
    trend = functional.avg_pool1d(torch.cat((front, y, end), 1).transpose(1, 2), 25, 1).transpose(1, 2)
    return ((y - trend) * 0.5 + trend - shift) / gain * std + mean


# -- routers, recommenders ------------------------------------------------------------------------------------------------------


def soft_experts(places: Tensor, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    """Soft MoE: slots are mixtures of tokens."""
    logits = torch.einsum("bnd,des->bnes", x, places)
    slots = torch.einsum("bnes,bnd->besd", logits.softmax(1), x)
    y = torch.einsum("besf,efd->besd", functional.gelu(torch.einsum("besd,edf->besf", slots, up)), down)
    return torch.einsum("bnes,besd->bnd", logits.flatten(2).softmax(-1).view_as(logits), y)


def switch(router, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    """One expert a token, by a dense dispatch of limited places."""
    weight, choice = router(x).softmax(-1).max(-1)
    chosen = functional.one_hot(choice, up.shape[0]).to(x.dtype)
    place = (chosen.cumsum(0) * chosen).sum(-1).long() - 1
    kept = (place < 32)[:, None] * chosen
    dispatch = kept[:, :, None] * functional.one_hot(place.clamp(max=31), 32).to(x.dtype)[:, None]
    y = torch.relu(torch.einsum("tec,td->ecd", dispatch, x) @ up) @ down
    return torch.einsum("tec,ecd->td", dispatch * weight[:, None, None], y)


def expert_choice(router, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    """Experts choose their tokens."""
    weights, chosen = router(x).softmax(-1).T.topk(16 if len(x) > 16 else 4, -1)
    y = functional.gelu(x[chosen] @ up) @ down * weights[..., None]
    return torch.zeros_like(x).index_add(0, chosen.flatten(), y.flatten(0, 1))


def crossed_features(a, b, x: Tensor) -> Tensor:
    """DCN V2."""
    first = x * a(x) + x
    return x * b(first) + first


def interactions(dense, table: Tensor, numbers: Tensor, words: Tensor) -> Tensor:
    """DLRM's dot products of all pairs of features."""
    x = functional.relu(dense(numbers))
    every = torch.cat((x[:, None], table[words]), 1)
    dots = every @ every.transpose(1, 2)
    i, j = torch.tril_indices(every.shape[1], every.shape[1], -1, device=x.device)
    return torch.cat((x, dots[:, i, j]), 1)


def interest(mlp, history: Tensor, item: Tensor, length: Tensor) -> Tensor:
    """DIN's attention of an item to what was seen before."""
    item = item[:, None].expand_as(history)
    scores = mlp(torch.cat((history, item, history - item, history * item), -1)).squeeze(-1)
    seen = torch.arange(history.shape[1], device=length.device) < length[:, None]
    return (torch.where(seen, scores, -1e4).softmax(-1)[:, None] @ history).squeeze(1)


def longest_bags(table: Tensor, words: Tensor) -> Tensor:
    return functional.embedding_bag(words, table, mode="max")


# -- numerics -------------------------------------------------------------------------------------------------------------------


def runge_kutta(rate, x: Tensor) -> Tensor:
    def f(y: Tensor) -> Tensor:
        return torch.tanh(rate(y))

    a = f(x)
    b = f(x + 0.05 * a)
    c = f(x + 0.05 * b)
    return x + 0.1 / 6 * (a + 2 * b + 2 * c + f(x + 0.1 * c))


def kalman(x: Tensor, p: Tensor, f: Tensor, h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    eye = torch.eye(p.shape[-1], device=x.device, dtype=x.dtype)
    x, p = (f @ x.unsqueeze(-1)), f @ p @ f.T + 0.1 * eye
    s = h @ p @ h.T + torch.eye(h.shape[0], device=x.device, dtype=x.dtype)
    gain = torch.linalg.solve(s.float(), (p @ h.T).transpose(-1, -2).float()).transpose(-1, -2).to(x.dtype)
    return (x + gain @ (z.unsqueeze(-1) - h @ x)).squeeze(-1), (eye - gain @ h) @ p


def lennard_jones(x: Tensor) -> Tensor:
    apart = (x[:, :, None] - x[:, None]).square().sum(-1) + 1.0
    apart = apart + torch.eye(x.shape[1], device=x.device, dtype=x.dtype) * 1e3
    inverse = (1 / apart) ** 3
    return (4 * (inverse.square() - inverse)).sum((1, 2)) / 2


def heat(x: Tensor) -> Tensor:
    for _ in range(4):
        around = x.roll(1, -1) + x.roll(-1, -1) + x.roll(1, -2) + x.roll(-1, -2)
        x = x + 0.1 * (around - 4 * x)
    return x


def bilateral(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    around = functional.unfold(functional.pad(x, (2, 2, 2, 2), mode="replicate"), 5).view(b, c, 25, h, w)
    weights = torch.exp(-(around - x.unsqueeze(2)).square().sum(1, keepdim=True) * 2)
    return (weights * around).sum(2) / weights.sum(2)


def monarch(left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """Two block-diagonal matrices with a transposition between."""
    k = left.shape[0]
    y = torch.einsum("bki,kij->bkj", x.view(len(x), k, -1), left).transpose(1, 2)
    return torch.einsum("bki,kij->bkj", y.reshape(len(x), k, -1), right).transpose(1, 2).reshape(len(x), -1)


def tensor_train(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor:
    i, j, k = a.shape[0], b.shape[1], c.shape[1]
    return torch.einsum("nijk,iap,pjbq,qkc->nabc", x.view(-1, i, j, k), a, b, c).flatten(1)


def iterative_shrinkage(dictionary: Tensor, x: Tensor) -> Tensor:
    """ISTA."""
    z = functional.softshrink(x @ dictionary, 0.1)
    for _ in range(3):
        z = functional.softshrink(z - 0.01 * (z @ dictionary.T - x) @ dictionary, 0.1)
    return z


def four_bit(codes: Tensor, table: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """A linear layer whose weights are codes of 16 numbers, a scale for each 64 (NF4)."""
    low, high = codes & 15, codes >> 4
    weight = table[torch.stack((low, high), -1).long()].view(-1, 64) * scale.view(-1, 1)
    return x @ weight.view(-1, x.shape[-1]).T


def through_eight_bits(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale


def codes(n: N) -> Tensor:
    return torch.randint(0, 256, (n(512, 16) * n(512, 64) // 2,), dtype=torch.uint8)


EXPERTS = (((8, 4), (512, 16), (256, 16)), ((8, 4), (256, 16), (512, 16)))

CASES: dict[str, Case] = {
    "paper_sliding": call(sliding, HEADS, HEADS, HEADS),
    "paper_prefix": call(prefix, HEADS, HEADS, HEADS, whole(5, (8, 2))),
    "paper_linformer": call(linformer, ((256, 6), (64, 4)), ((256, 6), (64, 4)), HEADS, HEADS, HEADS),
    "paper_attention_free": call(attention_free, TOKENS, TOKENS, TOKENS, ((256, 8), (256, 8))),
    "paper_gated_unit": call(
        gated_unit,
        (2, (128, 4)),
        (2, (128, 4)),
        TOKENS,
        parts=(
            lambda n: nn.LayerNorm(n(512, 16)),
            lambda n: nn.Linear(n(512, 16), n(2176, 68)),
            lambda n: nn.Linear(n(1024, 32), n(512, 16)),
        ),
    ),
    "paper_external": call(
        external, TOKENS, parts=(lambda n: nn.Linear(n(512, 16), 64, bias=False), lambda n: nn.Linear(64, n(512, 16), bias=False))
    ),
    "paper_relative_bias": call(relative_bias, HEADS, HEADS, HEADS, (16, (8, 2))),
    "paper_segment_sums": call(
        segment_sums,
        ((8, 2), (64, 6), (8, 2), (64, 8)),
        lambda n: -torch.rand(n(8, 2), n(8, 2), n(64, 6)),
        ((8, 2), (64, 6), (64, 8)),
        ((8, 2), (64, 6), (64, 8)),
    ),
    "paper_diagonal_kernel": call(
        diagonal_kernel, ((256, 6), 32), ((256, 6), 32), ((256, 6), 32), ((8, 2), (256, 6), (1024, 16))
    ),
    "paper_forget_pool": call(forget_pool, ((16, 2), 8, (512, 16)), parts=(linear(1, 3),)),
    "paper_conv_lstm": call(
        conv_lstm, *(((8, 2), (32, 4), (32, 6), (32, 6)),) * 3, parts=(lambda n: nn.Conv2d(n(64, 8), n(128, 16), 3, padding=1),)
    ),
    "paper_peephole": call(
        peephole, (3, (512, 16)), *(((64, 4), (512, 16)),) * 3, parts=(linear(1, 4), linear(1, 4, bias=False))
    ),
    "paper_tas_net": call(
        global_layer_norm,
        ((256, 16),),
        ((256, 16),),
        ((4, 2), (128, 8), (2048, 24)),
        parts=(
            lambda n: nn.Conv1d(n(128, 8), n(256, 16), 1),
            lambda n: nn.PReLU(),
            lambda n: nn.Conv1d(n(256, 16), n(256, 16), 3, padding=4, dilation=4, groups=n(256, 16)),
            lambda n: nn.Conv1d(n(256, 16), n(128, 8), 1),
        ),
    ),
    "paper_series": call(reversible, ((32, 2), (336, 30), (21, 3)), ((21, 3),), ((21, 3),)),
    "paper_soft_experts": call(soft_experts, ((512, 16), (8, 4), (16, 2)), *EXPERTS, TOKENS),
    "paper_switch": call(switch, *EXPERTS, ROWS, parts=(lambda n: nn.Linear(n(512, 16), n(8, 4), bias=False),)),
    "paper_expert_choice": call(expert_choice, *EXPERTS, ROWS, parts=(lambda n: nn.Linear(n(512, 16), n(8, 4), bias=False),)),
    "paper_crossed_features": call(crossed_features, ROWS, parts=(linear(1, 1), linear(1, 1))),
    "paper_interactions": call(
        interactions,
        ((10000, 24), (64, 8)),
        ((2048, 12), 13),
        whole(24, (2048, 12), (26, 5)),
        parts=(lambda n: nn.Linear(13, n(64, 8)),),
    ),
    "paper_interest": call(
        interest,
        ((256, 4), (50, 6), (64, 8)),
        ((256, 4), (64, 8)),
        whole(6, (256, 4)),
        parts=(lambda n: nn.Sequential(nn.Linear(4 * n(64, 8), n(64, 8)), nn.Sigmoid(), nn.Linear(n(64, 8), 1)),),
    ),
    "paper_longest_bags": call(longest_bags, ((10000, 24), (128, 8)), whole(24, (1024, 6), (16, 4))),
    "paper_runge_kutta": call(runge_kutta, ROWS, parts=(linear(1, 1),)),
    "paper_kalman": call(
        kalman, ((512, 4), 6), lambda n: torch.eye(6).expand(n(512, 4), 6, 6).clone(), (6, 6), (3, 6), ((512, 4), 3)
    ),
    "paper_lennard_jones": call(lennard_jones, ((16, 2), (256, 10), 3)),
    "paper_heat": call(heat, ((8, 2), (512, 12), (512, 12))),
    "paper_bilateral": call(bilateral, ((4, 2), 3, (128, 8), (128, 8))),
    "paper_monarch": call(monarch, ((32, 4), (32, 4), (32, 4)), ((32, 4), (32, 4), (32, 4)), ((1024, 6), (1024, 16))),
    "paper_tensor_train": call(tensor_train, (8, 8, (16, 4)), ((16, 4), 8, 8, (16, 4)), ((16, 4), 8, 8), ((512, 6), 512)),
    "paper_shrinkage": call(iterative_shrinkage, ((128, 8), (512, 16)), ((1024, 6), (128, 8))),
    "paper_four_bit": call(
        four_bit, codes, (16,), lambda n: torch.rand(n(512, 16) * n(512, 64) // 64), lambda n: floats(n, (16, 4), (512, 64))
    ),
    "paper_eight_bits": call(through_eight_bits, ((4096, 12), (1024, 16))),
}
