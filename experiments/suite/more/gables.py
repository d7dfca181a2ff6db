"""Language models, and what sees and serves beside them, in bfloat16: heads, places, states, experts, caches, few bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import further
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def half_turned(x: Tensor, size: int, base: float = 1e6) -> Tensor:
    """The first ``size`` numbers of each head, as Hugging Face turns them."""
    inverse = 1.0 / (base ** (torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size))
    angle = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=torch.float32), inverse)
    cos, sin = (torch.cat([t, t], -1).to(x.dtype) for t in (angle.cos(), angle.sin()))
    a, past = x[..., :size], x[..., size:]
    turned = torch.cat([-a[..., size // 2 :], a[..., : size // 2]], -1)
    return torch.cat([a * cos + turned * sin, past], -1)


class GatedHeads(nn.Module):
    """Qwen3-Next's full attention: queries bring gates for what heads give, norms are 1 + w, a quarter of a head turns."""

    def __init__(self, width: int, heads: int, groups: int, size: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.q, self.kv = nn.Linear(width, 2 * heads * size, bias=False), nn.Linear(width, 2 * groups * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)
        self.norm_q, self.norm_k = (nn.Parameter(torch.randn(size) * 0.1) for _ in range(2))

    def normed(self, x: Tensor, w: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + w.float())).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        q, gate = torch.chunk(self.q(x).view(*x.shape[:2], self.heads, 2 * self.size), 2, -1)
        k, v = self.kv(x).view(*x.shape[:2], 2 * self.groups, self.size).transpose(1, 2).chunk(2, 1)
        q, k = self.normed(q, self.norm_q).transpose(1, 2), self.normed(k, self.norm_k)
        q, k = half_turned(q, self.size // 4), half_turned(k, self.size // 4)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.out(y * torch.sigmoid(gate.flatten(2)))


def queries_by_temperature(q, out, x: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
    """Llama 4 without places: one token asks a long cache, its query grows with the logarithm of how far it is."""
    b, groups, t, d = k.shape
    scale = torch.log1p(torch.floor((at.float() + 1.0) / 8192)) * 0.1 + 1.0
    ask = (q(x).view(b, groups, -1, d) * scale[:, None, None, None]).to(x.dtype)
    s = torch.matmul(ask, k.transpose(2, 3)) * d**-0.5
    far = torch.arange(t, device=x.device) > at[:, None]
    s = s.masked_fill(far[:, None, None], torch.finfo(s.dtype).min)
    return out((torch.softmax(s, -1, dtype=torch.float32).to(x.dtype) @ v).reshape(b, -1))


def keys_tied_to_values(q, kv, place, out, x: Tensor, heads: int, groups: int) -> Tensor:
    """Grouped-tied attention: half of a value is half of its key; the other half is one turned head for all groups."""
    ask, value = split(q(x), heads), split(kv(x), groups)
    d = ask.shape[-1] // 2
    turned = half_turned(place(x).unsqueeze(1), d, 1e4)
    key = torch.cat([value[..., :d], turned.expand(-1, groups, -1, -1)], -1)
    ask = torch.cat([ask[..., :d], half_turned(ask[..., d:].contiguous(), d, 1e4)], -1)
    return out(joined(functional.scaled_dot_product_attention(ask, key, value, is_causal=True, enable_gqa=True)))


def rectified_softmax(qkv, out, x: Tensor, heads: int) -> Tensor:
    """Softpick: exponentials less one, only positive ones count above, all below; no token has to be a sink."""
    q, k, v = (split(t, heads) for t in qkv(x).chunk(3, -1))
    s = (q @ k.mT * q.shape[-1] ** -0.5).float()
    s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    m = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - m) - torch.exp(-m)
    below = torch.where(torch.isinf(s), 0.0, e.abs()).sum(-1, keepdim=True)
    return out(joined((torch.relu(e) / (below + 1e-6)).to(x.dtype) @ v))


def tokens_that_mask_others(qkv, out, x: Tensor, heads: int) -> Tensor:
    """Selective attention: what the first head gives an earlier token, later tokens take off its scores in all heads."""
    t = x.shape[1]
    q, k, v = qkv(x).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    s = torch.einsum("bhqd,bhkd->bhqk", q, k).float() / math.sqrt(q.shape[-1])
    s = torch.where(torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool)), s, float("-inf"))
    chosen = functional.relu(s[:, 0])
    chosen[..., 0] = 0
    chosen = (1 - torch.eye(t, device=x.device)) * chosen
    chosen = torch.roll(chosen, 1, -2)
    chosen[..., 0, :] = 0
    p = torch.softmax(s - torch.cumsum(chosen, -2)[:, None], -1)
    return out(joined(p.to(x.dtype) @ v))


def places_counted_by_gates(qkv, out, table: Tensor, x: Tensor, heads: int) -> Tensor:
    """CoPE: sigmoids of scores are summed from a query backwards; its place lies between two whole ones."""
    q, k, v = (split(t, heads) for t in qkv(x).chunk(3, -1))
    mask = torch.full((x.shape[1],) * 2, -torch.inf, device=x.device).triu(1)
    s = (q @ k.mT).float() * q.shape[-1] ** -0.5 + mask
    place = torch.sigmoid(s).flip(-1).cumsum(-1).flip(-1).clamp(max=table.shape[1] - 1)
    up, down = place.ceil().long(), place.floor().long()
    known = (q @ table).float()
    w = place - down
    s = s + known.gather(-1, up) * w + known.gather(-1, down) * (1 - w)
    return out(joined(torch.softmax(s, -1).to(x.dtype) @ v))


class CanonLayers(nn.Module):
    """Canon layers: each token adds its three predecessors, weighed by channel: before and within attention and network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.canon = nn.ModuleList(nn.Conv1d(m, m, 4, padding=3, groups=m) for m in (width, 3 * width, width, 8 * width))
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)

    def near(self, i: int, x: Tensor) -> Tensor:
        return x + self.canon[i](x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.near(1, self.qkv(self.near(0, self.first(x))))
        q, k, v = (split(t, self.heads) for t in y.chunk(3, -1))
        q, k = half_turned(q, q.shape[-1], 1e4), half_turned(k, k.shape[-1], 1e4)
        x = x + self.out(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        a, b = self.near(3, self.up(self.near(2, self.second(x)))).chunk(2, -1)
        return x + self.down(functional.silu(a) * b)


def trapezoids_of_states(project, a: Tensor, skip: Tensor, x: Tensor, heads: int, size: int) -> Tensor:
    """Mamba-3: a step takes part of the input before it (a trapezoid), and states turn by angles that the input says."""
    t, width = x.shape[1:]
    v, c, b, turn, dt, share = project(x).split([width, size, size, size // 2, heads, heads], -1)
    dt, share, v = functional.softplus(dt.float()).mT, torch.sigmoid(share.float()).mT, split(v, heads)
    angle = torch.cumsum(dt.unsqueeze(-1) * (math.pi * torch.tanh(turn.float())).unsqueeze(1), 2)

    def turned(y: Tensor) -> Tensor:
        p, q = functional.rms_norm(y.float(), y.shape[-1:]).unsqueeze(1).chunk(2, -1)
        return torch.cat([p * angle.cos() - q * angle.sin(), p * angle.sin() + q * angle.cos()], -1).to(x.dtype)

    total, past = torch.cumsum(-dt * torch.exp(a.float())[:, None], -1), torch.ones(t, t, device=x.device).tril(-1)
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(past.mT > 0, -torch.inf)
    w = (share * dt)[..., None, :] + functional.pad(((1 - share) * dt)[..., 1:], (0, 1))[..., None, :] * past
    return joined(((turned(c) @ turned(b).mT).float() * torch.exp(gap) * w).to(x.dtype) @ v + skip[:, None, None] * v)


def dense_ways(first, second, qkv, out, fixed: Tensor, states: Tensor) -> Tensor:
    """MUDDFormer: each token mixes all layers before, with other weights for queries, keys, values and the residue."""
    x = states[-1]
    way = second(functional.gelu(first(functional.rms_norm(x, x.shape[-1:])))).unflatten(-1, (4, -1)) + fixed
    ways = torch.einsum("btcl,lbtd->cbtd", way, states)
    y = functional.rms_norm(ways[:3], x.shape[-1:])
    q, k, v = (split(f(t), x.shape[-1] // 64 or 1) for f, t in zip(qkv, y, strict=True))
    return ways[3] + out(joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))


def remembered_phrases(key, value, conv, table: Tensor, x: Tensor, words: Tensor, prime: int) -> Tensor:
    """Engram: hashes of the last two and three words read tables; the state says how much of it comes in."""
    before = [functional.pad(words, (i, 0))[:, : words.shape[1]] for i in range(3)]
    found = []
    for i, m in enumerate((0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)):
        two = (before[0] * m) ^ (before[1] * (m >> 3 | 1))
        for j, h in enumerate((two, two ^ (before[2] * (m >> 7 | 1)))):
            found.append(functional.embedding(h % prime + (2 * i + j) * prime, table))
    e = torch.cat(found, -1)
    k, v = key(e), value(e)
    gate = (functional.rms_norm(x, x.shape[-1:]) * functional.rms_norm(k, k.shape[-1:])).float().sum(-1, keepdim=True)
    gate = gate * x.shape[-1] ** -0.5
    v = v * torch.sigmoid(gate.abs().clamp(min=1e-6).sqrt() * gate.sign()).to(x.dtype)
    near = conv(functional.pad(functional.rms_norm(v, v.shape[-1:]).mT, (9, 0))).mT
    return x + v + functional.silu(near)


def experts_of_eyes(text, image, out_text, out_image, x: Tensor, seen: Tensor, heads: int) -> Tensor:
    """CogVLM: patches have weights of their own in each layer, and attend together with words."""
    seen = seen.unsqueeze(-1)
    q, k, v = (split(t, heads) for t in torch.where(seen, image(x), text(x)).chunk(3, -1))
    q, k = half_turned(q, q.shape[-1], 1e4), half_turned(k, k.shape[-1], 1e4)
    y = joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    return x + torch.where(seen, out_image(y), out_text(y))


def mean_asks_its_patches(q, kv, out, up, down, x: Tensor, real: Tensor, heads: int) -> Tensor:
    """Molmo: the mean of four patches asks them; what is padding does not count; a gated projection to the words' width."""
    w = real.to(x.dtype).unsqueeze(-1)
    ask = (x * w).sum(1, keepdim=True) / w.sum(1, keepdim=True).clamp(min=1)
    k, v = (split(t, heads) for t in kv(x).chunk(2, -1))
    mask = (real | ~real.any(1, keepdim=True))[:, None, None]
    y = out(joined(functional.scaled_dot_product_attention(split(q(ask), heads), k, v, attn_mask=mask))).squeeze(1)
    a, b = up(y).chunk(2, -1)
    return down(functional.silu(a) * b)


def switched_heads(qk, pick_v, pick_o, given, x: Tensor, heads: int, most: int) -> Tensor:
    """SwitchHead: values and outputs of each head come from a few of its experts, by sigmoids; one map for each head."""
    values, outs = given

    def few(pick: nn.Module) -> Tensor:
        s = torch.sigmoid(pick(x).float()).unflatten(-1, (heads, -1))
        best, at = s.topk(most, -1)
        return torch.zeros_like(s).scatter(-1, at, best).to(x.dtype)

    q, k = (split(t, heads) for t in qk(x).chunk(2, -1))
    v = torch.einsum("btw,hewd,bthe->bhtd", x, values, few(pick_v)) * x.shape[-1] ** -0.5
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.einsum("bhtd,bthe,hedw->btw", y, few(pick_o), outs) * (heads * v.shape[-1]) ** -0.5


def scaled_before_experts(router, up_shared, down_shared, given, x: Tensor) -> Tensor:
    """Llama 4: a sigmoid scales what goes into the one expert chosen; all get all tokens, zeros where not chosen."""
    up, down = given
    logits = router(x)
    best, at = torch.topk(logits, 1, -1)
    scores = torch.full_like(logits, -torch.inf).scatter_(1, at, best).transpose(0, 1)
    routed = x.repeat(len(up), 1) * torch.sigmoid(scores.float()).to(x.dtype).reshape(-1, 1)
    gate, y = torch.bmm(routed.view(len(up), -1, x.shape[-1]), up * up.shape[1] ** -0.5).chunk(2, -1)
    y = torch.bmm(y * functional.silu(gate), down * down.shape[1] ** -0.5).sum(0)
    a, b = up_shared(x).chunk(2, -1)
    return down_shared(functional.silu(a) * b).add_(y)


def voted_keys(q: Tensor, k: Tensor, v: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """SnapKV: the last queries of a prompt vote, votes are pooled along tokens; the best keys and the last ones stay."""
    n = q.shape[2]
    s = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
    s[..., -n:] += torch.full((n, n), torch.finfo(s.dtype).min, device=q.device, dtype=s.dtype).triu(1)
    votes = torch.softmax(s, -1, dtype=torch.float32).to(q.dtype)[..., :-n].sum(-2)
    at = functional.avg_pool1d(votes, 5, 1, 2).float().topk(most, -1).indices.unsqueeze(-1).expand(-1, -1, -1, q.shape[-1])
    k, v = (torch.cat([t[:, :, :-n].gather(2, at), t[:, :, -n:]], 2) for t in (k, v))
    return k, v


def pages_by_bounds(q: Tensor, k: Tensor, v: Tensor, page: int, most: int) -> Tensor:
    """Quest: the least and the largest of each page's keys bound its scores; only the best pages are attended to."""
    pages = k.unflatten(2, (-1, page))
    bound = torch.maximum(q.unsqueeze(3) * pages.amin(3).unsqueeze(2), q.unsqueeze(3) * pages.amax(3).unsqueeze(2))
    at = bound.float().sum(-1).squeeze(2).topk(most, -1).indices[..., None, None].expand(-1, -1, -1, page, q.shape[-1])
    k, v = pages.gather(2, at).flatten(2, 3), v.unflatten(2, (-1, page)).gather(2, at).flatten(2, 3)
    return functional.scaled_dot_product_attention(q, k, v)


def centred_keys_as_bytes(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """SageAttention: keys lose their mean, blocks of queries and keys are whole numbers to 127 with a scale each."""

    def as_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.float().unflatten(2, (-1, block))
        scale = y.abs().amax((-1, -2), keepdim=True) / 127 + 1e-7
        y = torch.round(y / scale).to(torch.int8).flatten(2, 3)
        return y.to(x.dtype), scale.flatten(2).repeat_interleave(block, 2)

    (a, i), (b, j) = as_bytes(q), as_bytes(k - k.mean(2, keepdim=True))
    s = (a.float() @ b.float().mT) * (i.unsqueeze(-1) * j.unsqueeze(-2) * q.shape[-1] ** -0.5)
    return torch.softmax(s, -1).to(v.dtype) @ v


def low_rank_beside_nibbles(given, scale: Tensor, codes: Tensor, x: Tensor) -> Tensor:
    """SVDQuant: outliers move to the weight, a part of low rank takes them; four bits for what is left and for inputs."""
    smooth, down, up, bias = given
    y = x / (smooth.abs() + 0.5)
    parts = y.unflatten(-1, (scale.shape[1], -1))
    step = parts.abs().amax(-1, keepdim=True) / 7 + 1e-6
    parts = (torch.round(parts / step).clamp(-8, 7) * step).flatten(-2)
    w = torch.stack([codes & 15, codes >> 4], -1).flatten(1).to(torch.int8) - 8
    w = (w.unflatten(1, (scale.shape[1], -1)).to(x.dtype) * scale.unsqueeze(-1) * 0.01).flatten(1)
    return functional.linear(parts, w, bias) + (y @ down) @ up * down.shape[0] ** -0.5


def additive_codes(books: Tensor, scale: Tensor, bias: Tensor, codes: Tensor, x: Tensor) -> Tensor:
    """AQLM: eight weights are the sum of an entry of each of two books; a scale for each output."""
    at = codes.long() + torch.arange(len(books), device=x.device) * books.shape[1]
    w = functional.embedding_bag(at.flatten(0, 1), books.flatten(0, 1), mode="sum").view(len(codes), -1)
    return functional.linear(x, w * scale.unsqueeze(-1), bias)


def super_blocks(scale: Tensor, least: Tensor, six: Tensor, codes: Tensor, x: Tensor) -> Tensor:
    """GGUF's Q4_K: 256 weights of four bits, eight scales and minima of six bits in twelve bytes, two floats for all."""
    d, m, e = six.view(-1, 3, 4).unbind(1)
    s = torch.cat([d & 0x3F, (e & 0x0F) | ((d >> 2) & 0x30)], -1)
    low = torch.cat([m & 0x3F, (e >> 4) | ((m >> 2) & 0x30)], -1)
    q = codes.view(-1, 4, 1, 32) >> torch.tensor([0, 4], device=x.device, dtype=torch.uint8).view(1, 1, 2, 1)
    w = (scale * s * 1e-3).unsqueeze(-1) * (q & 15).view(-1, 8, 32) - (least * low * 1e-3).unsqueeze(-1)
    return x @ w.view(-1, x.shape[-1]).to(x.dtype).T


def layers_contrasted(head, x: Tensor, early: Tensor, least: float) -> Tensor:
    """DoLa: what the last layer says less what that early layer said which differs most from it, among likely words."""
    last, before = torch.log_softmax(head(x).float(), -1), torch.log_softmax(head(early).float(), -1)
    p, q = last.exp().unsqueeze(0), before.exp()
    m = torch.log(0.5 * (p + q))
    far = (q * (before - m)).sum(-1) + (p * (last.unsqueeze(0) - m)).sum(-1)
    base = before.gather(0, far.argmax(0)[None, :, None].expand(1, -1, before.shape[-1]))[0]
    return (last - base).masked_fill(last < last.amax(-1, keepdim=True) + math.log(least), -1e3)


def many(run, real: int = 16):
    """With so many heads; two for a check."""
    return lambda *given: run(*given, heads=real if max(given[-1].shape) > 99 else 2)


TEXT, LONG, CAT = ((2, 1), (512, 6), (1024, 16)), ((1, 1), (1024, 6), (2048, 16)), ((1, 1), (16, 2), (1024, 8), (64, 4))
HEADS, PAST = (wide(1024, 3072, (16, 48)), wide(1024, 1024, (16, 16))), ((1, 1), (32, 2), (4096, 20), (128, 8))
PAGED, STATES = ((2, 1), (16, 2), (8192, 24), (128, 8)), ((2, 2), (8, 2), (16384, 7), (128, 4))


def drawn(kind: torch.dtype, *shape):
    """Any bits at all."""
    least, most = torch.iinfo(kind).min, torch.iinfo(kind).max
    return lambda n: torch.randint(least, most, [n(*m) if isinstance(m, tuple) else m for m in shape], dtype=kind)


BFLOAT16: dict[str, Case] = {
    "gated_heads": call(lambda m, x: m(x), LONG, parts=(part(GatedHeads, (2048, 16), (16, 2), (2, 1), (256, 8)),)),
    "queries_by_temperature": call(
        *(queries_by_temperature, ((2, 2), (5120, 16)), STATES, STATES, below((16384, 7), (2, 2))),
        parts=(wide(5120, 5120, (16, 16)), wide(5120, 5120, (16, 16))),
    ),
    "keys_tied_to_values": call(
        further(keys_tied_to_values, lambda a: (16, 4) if a[-1].shape[-1] > 99 else (4, 2)),
        *(LONG,),
        parts=(wide(2048, 2048, (16, 16)), wide(2048, 512, (16, 8)), wide(2048, 64, (16, 2)), wide(2048, 2048, (16, 16))),
    ),
    "rectified_softmax": call(many(rectified_softmax), TEXT, parts=HEADS),
    "tokens_that_mask_others": call(many(tokens_that_mask_others), TEXT, parts=HEADS),
    "places_counted_by_gates": call(many(places_counted_by_gates), ((64, 8), (64, 5)), TEXT, parts=HEADS),
    "canon_layers": call(lambda m, x: m(x), ((4, 1), (1024, 7), (768, 16)), parts=(part(CanonLayers, (768, 16), (12, 2)),)),
    "trapezoids_of_states": call(
        further(trapezoids_of_states, lambda a: (24, 64) if a[-1].shape[-1] > 99 else (2, 4)),
        *(((24, 2),), ((24, 2),), ((4, 1), (256, 6), (1536, 16))),
        parts=(wide(1536, 1744, (16, 30), bias=False),),
    ),
    "dense_ways": call(
        *(dense_ways, (4, (8, 3)), ((8, 3), (2, 1), (1024, 6), (1024, 16))),
        parts=(
            *(wide(1024, 32, (16, 4), bias=False), wide(32, 32, (4, 12), bias=False)),
            *(lambda n: nn.ModuleList(nn.Linear(n(1024, 16), n(1024, 16)) for _ in range(3)), HEADS[1]),
        ),
    ),
    "remembered_phrases": call(
        lambda *a: remembered_phrases(*a, prime=len(a[3]) // 8),
        *(((160088, 88), (128, 2)), ((4, 1), (1024, 6), (1024, 16)), below((32000, 50), (4, 1), (1024, 6))),
        parts=(HEADS[1], HEADS[1], lambda n: nn.Conv1d(n(1024, 16), n(1024, 16), 4, dilation=3, groups=n(1024, 16))),
    ),
    "experts_of_eyes": call(
        *(many(experts_of_eyes), TEXT, lambda n: torch.arange(n(512, 6)).expand(n(2, 1), -1) % n(300, 5) < n(256, 3)),
        parts=(HEADS[0], HEADS[0], HEADS[1], HEADS[1]),
    ),
    "mean_asks_its_patches": call(
        *(many(mean_asks_its_patches), ((720, 5), 4, (2048, 16))),
        lambda n: torch.arange(4) < torch.randint(0, 5, (n(720, 5), 1)),
        parts=(
            *(wide(2048, 1024, (16, 16)), wide(2048, 2048, (16, 32)), HEADS[1], wide(1024, 8192, (16, 32))),
            wide(4096, 2048, (16, 8)),
        ),
    ),
    "switched_heads": call(
        further(switched_heads, lambda a: (8, 2) if a[-1].shape[-1] > 99 else (2, 2)),
        ((2, 1), (1024, 6), (1024, 16)),
        parts=(
            *(HEADS[1], wide(1024, 32, (16, 6), bias=False), wide(1024, 32, (16, 6), bias=False)),
            weights(((8, 2), (4, 3), (1024, 16), (64, 4)), ((8, 2), (4, 3), (64, 4), (1024, 16))),
        ),
    ),
    "scaled_before_experts": call(
        *(scaled_before_experts, ((256, 5), (1024, 16))),
        parts=(
            *(wide(1024, 16, (16, 3), bias=False), wide(1024, 2048, (16, 16)), wide(1024, 1024, (8, 16))),
            weights(((16, 3), (1024, 16), (2048, 16)), ((16, 3), (1024, 8), (1024, 16))),
        ),
    ),
    "voted_keys": call(
        *(further(voted_keys, lambda x: (992 if x[0].shape[2] > 9 else 5,)), ((1, 1), (32, 2), (32, 3), (128, 8)), PAST, PAST),
    ),
    "pages_by_bounds": call(
        further(pages_by_bounds, lambda x: (16, 128) if x[0].shape[3] > 99 else (4, 3)),
        *(((2, 1), (16, 2), 1, (128, 8)), PAGED, PAGED),
    ),
    "centred_keys_as_bytes": call(further(centred_keys_as_bytes, lambda x: (64 if x[0].shape[2] > 99 else 4,)), CAT, CAT, CAT),
    "low_rank_beside_nibbles": call(
        *(low_rank_beside_nibbles, ((3072, 6), (48, 2)), drawn(torch.uint8, (3072, 6), (1536, 8)), ((512, 5), (3072, 16))),
        parts=(weights(((3072, 16),), ((3072, 16), (32, 3)), ((32, 3), (3072, 6)), ((3072, 6),)),),
    ),
    "additive_codes": call(
        *(additive_codes, (2, 256, 8), ((4096, 6),), ((4096, 6),), drawn(torch.uint8, (4096, 6), (512, 2), 2)),
        ((16, 3), (4096, 16)),
    ),
    "super_blocks": call(
        *(super_blocks, ((65536, 3), 1), ((65536, 3), 1), drawn(torch.uint8, (65536, 3), 12)),
        *(drawn(torch.uint8, (65536, 3), 128), ((16, 3), (4096, 256))),
    ),
    "layers_contrasted": call(
        *(further(layers_contrasted, lambda a: (0.1,)), ((8, 3), (1024, 16)), ((8, 2), (8, 3), (1024, 16))),
        parts=(wide(1024, 32000, (16, 11), bias=False),),
    ),
}
CASES: dict[str, Case] = BFLOAT16
"""In the number format that the group is meant for."""
