"""Blocks of transformers with other maps, norms, residues and memories than the usual ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import scaled
from experiments.suite.more.sequences import QKV
from experiments.suite.more.sequences import TOKENS
from experiments.suite.more.sequences import heads_of
from experiments.suite.more.sequences import linear
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole


def rms(n):
    return nn.RMSNorm(n(512, 16), eps=1e-6)


def heads_for(x: Tensor) -> int:
    return 8 if x.shape[-1] >= 256 else 2


# -- maps of attention ----------------------------------------------------------------------------------------------------------


def forgetting(q: Tensor, k: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """Scores lose what forget gates sum up to between key and query."""
    total = functional.logsigmoid(f.float()).cumsum(-1)
    s = (q @ k.mT).float() / math.sqrt(q.shape[-1]) + total.unsqueeze(-1) - total.unsqueeze(-2)
    s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(s, dim=-1).to(v.dtype) @ v


def stick_breaking(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest keys take their share first; what is left goes on."""
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    t = s.shape[-1]
    past = torch.ones(t, t, dtype=torch.bool, device=q.device).tril(-1)
    log_z, log_beta = functional.logsigmoid(s).masked_fill(~past, -1e4), functional.logsigmoid(-s).masked_fill(~past, 0.0)
    after = log_beta.flip(-1).cumsum(-1).flip(-1) - log_beta
    a = torch.exp(log_z + after)
    rest = 1 - a.sum(-1)
    return a @ v + rest.unsqueeze(-1) * v, rest


def sigmoid_heads(qkv, out, slopes: Tensor, x: Tensor) -> Tensor:
    """Sigmoids in place of softmax, moved by the logarithm of the length, with slopes."""
    b, t, w = x.shape
    q, k, v = (heads_of(z, heads_for(x)) for z in qkv(x).chunk(3, -1))
    at = torch.arange(t, device=x.device)
    far = (at[None, :] - at[:, None]).to(x.dtype)
    s = q @ k.mT / math.sqrt(q.shape[-1]) + slopes.exp()[:, None, None] * far - math.log(t)
    return out((torch.sigmoid(s).tril() @ v).transpose(1, 2).reshape(b, t, w))


def mixed_scores(key_query: Tensor, mix: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multi-token attention: scores are convolved over queries and keys, weights are mixed between heads."""
    t = q.shape[-2]
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    late = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
    s = functional.pad(s.masked_fill(late, 0.0), (2, 2, 4, 0))
    s = functional.conv2d(s, key_query, groups=key_query.shape[0]).masked_fill(late, -1e4)
    a = torch.einsum("gh,bhqk->bgqk", mix, s.softmax(-1))
    y = a @ v
    return functional.rms_norm(y, y.shape[-1:]).transpose(1, 2).flatten(2)


class DifferentialBlock(nn.Module):
    """Pairs of maps, with a rate from four learned vectors and the depth, normed by heads."""

    def __init__(self, width: int, heads: int, depth: int = 3) -> None:
        super().__init__()
        self.heads, d = heads, width // heads // 2
        self.start = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.lambdas = nn.Parameter(torch.randn(4, d) * 0.1)
        self.subln = nn.RMSNorm(2 * d, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k = (p(x).view(b, t, 2 * self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj))
        v = self.v_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        s = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        s = torch.nan_to_num(s) + torch.triu(torch.zeros(t, t, device=x.device).float().fill_(-1e4).type_as(s), 1)
        a = functional.softmax(s, dim=-1, dtype=torch.float32).type_as(s)
        l1, l2, l3, l4 = self.lambdas.float()
        rate = torch.exp(torch.sum(l1 * l2)) - torch.exp(torch.sum(l3 * l4)) + self.start
        a = a.view(b, self.heads, 2, t, t)
        a = a[:, :, 0] - rate.type_as(a) * a[:, :, 1]
        y = self.subln(torch.matmul(a, v)) * (1 - self.start)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, w))


def tensor_products(aq, ak, av, bq, bk, bv, x: Tensor) -> Tensor:
    """Queries, keys and values are sums of outer products of two factors."""
    b, t, _ = x.shape
    h = 8 if aq.out_features == 48 else 2
    q, k, v = (
        torch.einsum("btrh,btrd->bhtd", p(x).view(b, t, -1, h), s(x).view(b, t, p.out_features // h, -1)) * h / p.out_features
        for p, s in ((aq, bq), (ak, bk), (av, bv))
    )
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def compressed_keys(mlp, gate, place: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Native sparse attention's coarse branch: blocks of keys become one, with a score for each block to choose from."""
    size = 32 if k.shape[2] >= 128 else 4
    kc, vc = (mlp(x.unflatten(2, (-1, size)).add(place).flatten(3)) for x in (k, v))
    s = torch.einsum("bhqd,bhcd->bhqc", q, kc) * q.shape[-1] ** -0.5
    ends = torch.arange(1, kc.shape[2] + 1, device=q.device) * size - 1
    seen = torch.arange(q.shape[2], device=q.device)[:, None] >= ends
    p = s.masked_fill(~seen, -1e4).softmax(-1) * seen
    chosen = p.sum(1).unflatten(1, (-1, size)).sum(2).topk(2, dim=-1).values
    return torch.einsum("bhqc,bhcd->bhqd", p, vc) * gate(q).sigmoid(), chosen


def block_mixture(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """MoBA: a query sees its own block, and the earlier ones whose mean key is nearest."""
    size = 64 if q.shape[2] >= 128 else 4
    t, blocks = q.shape[2], q.shape[2] // size
    score = torch.einsum("bhqd,bhcd->bhqc", q, k.unflatten(2, (blocks, size)).mean(3))
    own = torch.arange(t, device=q.device) // size
    which = torch.arange(blocks, device=q.device)
    score = score.masked_fill(which[None] > own[:, None], float("-inf")).masked_fill(which[None] == own[:, None], float("inf"))
    least = score.topk(2, dim=-1).values[..., -1:]
    seen = ((score >= least) & (score > float("-inf"))).repeat_interleave(size, dim=-1)
    mask = seen & torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sparsemax_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    z = s.sort(dim=-1, descending=True).values
    at = torch.arange(1, s.shape[-1] + 1, device=q.device, dtype=s.dtype)
    total = z.cumsum(-1) - 1
    support = (at * z > total).sum(-1, keepdim=True)
    p = (s - total.gather(-1, support - 1) / support.to(s.dtype)).clamp(min=0)
    return p @ v, support.squeeze(-1)


def bucketed_heads(bias, q, k, v, o, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """T5's attention whole: no scale, buckets of distances, a mask of padding; the bias goes on to the next layer."""
    b, t, _ = x.shape
    at = torch.arange(t, device=x.device)
    far = at[None, :] - at[:, None]
    bucket, far = (far > 0).long() * 16, far.abs()
    large = 8 + (torch.log(far.float().clamp(min=1) / 8) / math.log(128 / 8) * 8).long()
    bucket = bucket + torch.where(far < 8, far, torch.min(large, torch.full_like(large, 15)))
    places = bias(bucket).permute([2, 0, 1]).unsqueeze(0) + (1.0 - mask.to(x.dtype))[:, None, None, :] * -1e4
    q, k, v = (heads_of(p(x), heads_for(x)) for p in (q, k, v))
    a = functional.softmax((torch.matmul(q, k.transpose(3, 2)) + places).float(), dim=-1).type_as(q)
    return o(torch.matmul(a, v).transpose(1, 2).contiguous().view(b, t, -1)), places


def shifted_places(w_r: Tensor, u: Tensor, v_bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Transformer-XL: scores of places are shifted by a reshape, keys come with a memory."""
    b, h, t, d = q.shape
    s = k.shape[2]
    at = torch.arange(s - 1, -1, -1.0, device=q.device)
    angle = torch.outer(at, 1 / (10000 ** (torch.arange(0.0, d, 2.0, device=q.device) / d)))
    r = torch.cat([angle.sin(), angle.cos()], dim=-1).to(q.dtype) @ w_r
    ac = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    bd = torch.einsum("bhid,jd->bhij", q + v_bias[:, None], r)
    bd = torch.cat([torch.zeros(b, h, t, 1, dtype=q.dtype, device=q.device), bd], dim=-1)
    bd = bd.view(b, h, s + 1, t)[:, :, 1:].reshape(b, h, t, s)
    s = (ac + bd) * d**-0.5
    return s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1 + s.shape[-1] - t), -1e4).softmax(-1) @ v


# -- norms and residues ---------------------------------------------------------------------------------------------------------


class NormalizedBlock(nn.Module):
    """nGPT: states lie on a sphere, steps along it have learned sizes."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.alpha_a, self.alpha_m = (nn.Parameter(torch.full((width,), 0.05)) for _ in range(2))
        self.s_qk, self.s_uv = nn.Parameter(torch.ones(width // heads)), nn.Parameter(torch.ones(4 * width))

    @staticmethod
    def justnorm(x: Tensor) -> Tensor:
        return x / x.norm(p=2, dim=-1, keepdim=True)

    def forward(self, h: Tensor) -> Tensor:
        h = self.justnorm(h)
        q, k, v = (heads_of(z, self.heads) for z in self.qkv(h).chunk(3, -1))
        q, k = self.s_qk * self.justnorm(q), self.s_qk * self.justnorm(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=q.shape[-1] ** 0.5)
        y = self.justnorm(self.out(y.transpose(1, 2).flatten(2)))
        h = self.justnorm(h + self.alpha_a.abs() * (y - h))
        u, v = (self.s_uv * h.shape[-1] ** 0.5 * self.up(h)).chunk(2, -1)
        y = self.justnorm(self.down(u * functional.silu(v)))
        return self.justnorm(h + self.alpha_m.abs() * (y - h))


def hyper_connections(norm, ff, alpha_w: Tensor, beta_w: Tensor, alpha: Tensor, beta: Tensor, streams: Tensor) -> Tensor:
    """Several residual streams; weights of the tokens say how a layer reads, mixes and writes them."""
    y = norm(streams)
    mix = torch.tanh(y @ alpha_w) * 0.1 + alpha
    write = torch.tanh(y @ beta_w).squeeze(-1) * 0.1 + beta
    mixed = torch.einsum("btsm,btsd->btmd", mix, streams)
    read, rest = mixed[:, :, 0], mixed[:, :, 1:]
    return torch.einsum("btd,bts->btsd", ff(read), write) + rest


def manifold_connections(layer, gate: Tensor, base: Tensor, streams: Tensor) -> Tensor:
    """mHC: what mixes the streams is made doubly stochastic first."""
    b, t, s, d = streams.shape
    flat = functional.rms_norm(streams.flatten(2), (s * d,))
    pre, post, mix = (flat @ gate + base).split([s, s, s * s], dim=-1)
    mix = mix.view(b, t, s, s).float().exp()
    for _ in range(4):
        mix = mix / mix.sum(-1, keepdim=True)
        mix = mix / mix.sum(-2, keepdim=True)
    y = layer(torch.einsum("bts,btsd->btd", pre.sigmoid(), streams))
    return mix.to(streams.dtype) @ streams + (2 * post.sigmoid()).unsqueeze(-1) * y.unsqueeze(2)


def value_residual(norm, qkv, out, rate: Tensor, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Values are mixed with those of the first layer, the state with the embedding."""
    x = rate[0] * x + rate[1] * first.transpose(1, 2).flatten(2)
    q, k, v = (heads_of(z, heads_for(x)) for z in qkv(norm(x)).chunk(3, -1))
    v = rate[2].sigmoid() * v + (1 - rate[2].sigmoid()) * first
    q, k = functional.rms_norm(q, q.shape[-1:]), functional.rms_norm(k, k.shape[-1:])
    return x + out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)), v


def polynomial_norm(up, down, weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Powers that are normed each, in place of an activation."""

    def normed(z: Tensor) -> Tensor:
        return z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-5)

    h = up(x)
    return down(sum(w * normed(h**p) for w, p in zip(weight, (3, 2, 1), strict=True)) + bias)


def tiled_mlp(gate_up, down, x: Tensor) -> Tensor:
    """Tokens go through in parts, to save memory."""
    out = []
    for part in torch.chunk(x, 4, dim=-2):
        g, u = gate_up(part).unflatten(-1, (2, -1)).unbind(-2)
        out.append(down(functional.gelu(g, approximate="tanh").mul_(u)))
    return torch.cat(out, dim=-2)


def error_function_norm(up, down, alpha: Tensor, shift: Tensor, gain: Tensor, x: Tensor) -> Tensor:
    """No statistics: an error function of each number, and squared ReLU within."""
    return x + down(functional.relu(up(torch.erf(alpha * x + shift) * gain)).square())


def pointer_mixture(attend, switch, head, words: Tensor, x: Tensor, memory: Tensor, covered: Tensor) -> tuple[Tensor, Tensor]:
    """Words are copied from the source or made; what was read before counts against it."""
    e = torch.tanh(attend(memory).unsqueeze(1) + x.unsqueeze(2) + covered[:, None, :, None]).sum(-1)
    a = e.softmax(-1)
    p = switch(torch.cat([x, a @ memory], dim=-1)).sigmoid()
    made = p * head(x).softmax(-1)
    return torch.log(made.scatter_add(2, words[:, None].expand(a.shape), (1 - p) * a) + 1e-6), torch.min(
        a, covered[:, None]
    ).sum()


def pooled_sets(q, kv, out, norm, seeds: Tensor, x: Tensor, length: Tensor) -> Tensor:
    """A set becomes a few vectors that ask it (PMA), elements that are not there are out."""
    s = seeds.expand(len(x), -1, -1)
    k, v = kv(x).chunk(2, -1)
    q, k, v = (heads_of(z, heads_for(x)) for z in (q(s), k, v))
    gone = torch.arange(x.shape[1], device=x.device)[None] >= length[:, None]
    a = (q @ k.mT / math.sqrt(x.shape[-1])).masked_fill(gone[:, None, None], -1e4).softmax(-1)
    y = s + (a @ v).transpose(1, 2).flatten(2)
    return norm(y + functional.relu(out(y)))


def slots(norm, to_k, to_v, to_q, cell, start: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Slots compete for the inputs, three times."""
    x = norm(x)
    k, v, s = to_k(x), to_v(x), start.expand(len(x), -1, -1)
    a = None
    for _ in range(3):
        a = torch.softmax(torch.einsum("bnd,bkd->bnk", k, to_q(norm(s))) * s.shape[-1] ** -0.5, dim=-1) + 1e-6
        update = torch.einsum("bnd,bnk->bkd", v, a / a.sum(dim=1, keepdim=True))
        s = cell(update.flatten(0, 1), s.flatten(0, 1)).view_as(s)
    return s, a


CASES: dict[str, Case] = {
    "forgetting": call(forgetting, *(QKV,) * 3, QKV[:3]),
    "stick_breaking": call(stick_breaking, *(QKV,) * 3),
    "sigmoid_heads": call(sigmoid_heads, ((8, 2),), TOKENS, parts=(linear(1, 3), linear())),
    "mixed_scores": call(mixed_scores, ((8, 2), 1, 5, 5), ((8, 2), (8, 2)), *((*QKV[:2], (256, 8), QKV[3]),) * 3),
    "differential_block": scaled(lambda n: (DifferentialBlock(n(512, 32), n(4, 2)), (floats(n, *TOKENS[:2], (512, 32)),))),
    "tensor_products": call(
        tensor_products,
        TOKENS,
        parts=(
            lambda n: nn.Linear(n(512, 16), n(48, 4)),
            *(lambda n: nn.Linear(n(512, 16), n(16, 4)),) * 2,
            lambda n: nn.Linear(n(512, 16), n(384, 16)),
            *(lambda n: nn.Linear(n(512, 16), 2 * n(64, 8)),) * 2,
        ),
    ),
    "compressed_keys": call(
        compressed_keys,
        ((32, 4), (64, 8)),
        ((2, 2), (8, 2), (1024, 16), (64, 8)),
        *(((2, 2), (8, 2), (1024, 16), (64, 8)),) * 2,
        parts=(
            lambda n: nn.Sequential(nn.Linear(n(2048, 32), n(128, 16)), nn.ReLU(), nn.Linear(n(128, 16), n(64, 8))),
            lambda n: nn.Linear(n(64, 8), 1),
        ),
    ),
    "block_mixture": call(block_mixture, *(QKV,) * 3),
    "sparsemax_heads": call(sparsemax_heads, *((*QKV[:2], (256, 9), QKV[3]),) * 3),
    "bucketed_heads": call(
        bucketed_heads,
        TOKENS,
        lambda n: torch.arange(n(256, 8)) < torch.randint(2, n(256, 8), (n(4, 2), 1)),
        parts=(lambda n: nn.Embedding(32, n(8, 2)), *(linear(bias=False),) * 4),
    ),
    "shifted_places": call(
        shifted_places,
        ((64, 8), (64, 8)),
        *(((8, 2), (64, 8)),) * 2,
        ((2, 2), (8, 2), (256, 6), (64, 8)),
        *(((2, 2), (8, 2), (512, 9), (64, 8)),) * 2,
    ),
    "normalized_block": scaled(lambda n: (NormalizedBlock(n(512, 16), n(8, 2)), (floats(n, *TOKENS),))),
    "hyper_connections": call(
        hyper_connections,
        ((512, 16), 5),
        ((512, 16), 1),
        (4, 5),
        (4,),
        ((2, 2), (256, 6), 4, (512, 16)),
        parts=(rms, lambda n: nn.Sequential(linear(1, 4)(n), nn.GELU(), linear(4, 1)(n))),
    ),
    "manifold_connections": call(
        manifold_connections,
        ((2048, 64), 24),
        (24,),
        ((2, 2), (256, 6), 4, (512, 16)),
        parts=(lambda n: nn.Sequential(rms(n), linear()(n)),),
    ),
    "value_residual": call(
        value_residual, (3,), TOKENS, ((4, 2), (8, 2), (256, 8), (64, 8)), parts=(rms, linear(1, 3, bias=False), linear())
    ),
    "polynomial_norm": call(polynomial_norm, (3,), (1,), TOKENS, parts=(linear(1, 4), linear(4, 1))),
    "tiled_mlp": call(tiled_mlp, ((1, 1), (2048, 16), (512, 16)), parts=(linear(1, 8, bias=False), linear(4, 1, bias=False))),
    "error_function_norm": call(
        error_function_norm, (1,), (1,), ((512, 16),), TOKENS, parts=(linear(1, 4, bias=False), linear(4, 1, bias=False))
    ),
    "pointer_mixture": call(
        pointer_mixture,
        whole(40, (16, 2), (100, 7)),
        ((16, 2), (32, 4), (128, 8)),
        ((16, 2), (100, 7), (128, 8)),
        lambda n: torch.rand(n(16, 2), n(100, 7)),
        parts=(
            lambda n: nn.Linear(n(128, 8), n(128, 8)),
            lambda n: nn.Linear(2 * n(128, 8), 1),
            lambda n: nn.Linear(n(128, 8), n(5000, 40)),
        ),
    ),
    "pooled_sets": call(
        pooled_sets,
        ((16, 3), (512, 16)),
        ((16, 2), (400, 9), (512, 16)),
        lambda n: torch.randint(1, n(400, 9), (n(16, 2),)),
        parts=(linear(), linear(1, 2), linear(), lambda n: nn.LayerNorm(n(512, 16))),
    ),
    "slots": call(
        slots,
        ((8, 3), (64, 8)),
        ((16, 2), (1024, 12), (64, 8)),
        parts=(
            lambda n: nn.LayerNorm(n(64, 8)),
            *(lambda n: nn.Linear(n(64, 8), n(64, 8), bias=False),) * 3,
            lambda n: nn.GRUCell(n(64, 8), n(64, 8)),
        ),
    ),
}
