"""What servers of language models run: norms with residues and bytes, places, pages, ragged batches, samplers, experts."""

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
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import whole

ROWS, HIDDEN, VOCAB = (1024, 6), (2048, 32), (32000, 48)


def wide(i: tuple[int, int] = HIDDEN, o: tuple[int, int] = HIDDEN):
    return lambda n: nn.Linear(n(*i), n(*o), bias=False)


# -- norms and formats ----------------------------------------------------------------------------------------------------------


class AddRMSNorm(nn.Module):
    """The residue grows first, then it is normed; both are returned."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(width)), eps

    def forward(self, x: Tensor, residual: Tensor | None = None):
        orig_dtype, x = x.dtype, x.to(torch.float32)
        if residual is not None:
            x = x + residual.to(torch.float32)
            residual = x.to(orig_dtype)
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        x = x.to(orig_dtype) * self.weight
        return x if residual is None else (x, residual)


def to_e4m3(x: Tensor) -> Tensor:
    """Rounded as numbers of three bits are, by exponents."""
    exponent = torch.floor(torch.log2(x.abs().clamp(min=2.0**-9))).clamp(-6, 8)
    step = torch.exp2(exponent - 3)
    return (torch.round(x / step) * step).clamp(-448.0, 448.0)


def rms_norm_small_floats(gain: Tensor, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x + residual
    y = functional.rms_norm(h.float(), (h.shape[-1],), gain.float(), 1e-6)
    scale = y.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 448.0
    return to_e4m3(y / scale).to(x.dtype), scale, h


def gated_group_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """SiLU and a product, then bytes with a scale for each group of 128."""
    gate, up = x.chunk(2, dim=-1)
    y = (functional.silu(gate) * up).float().unflatten(-1, (-1, 128 if x.shape[-1] % 256 == 0 else 8))
    scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127
    return torch.round(y / scale).clamp(-128, 127).to(torch.int8).flatten(-2), scale.squeeze(-1)


def block_scaled_linear(w: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Weights with a scale for each square block."""
    (a, b), (r, c) = scale.shape, w.shape
    full = (w.view(a, r // a, b, c // b) * scale.exp()[:, None, :, None]).reshape(r, c)
    return functional.linear(x, full.to(x.dtype))


def gptq_linear(qweight: Tensor, qzeros: Tensor, scales: Tensor, group: Tensor, x: Tensor) -> Tensor:
    """Eight numbers in each int32, rows assigned to groups by a table."""
    wf = torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)
    zeros = torch.bitwise_right_shift(qzeros.unsqueeze(2), wf.view(1, 1, -1)).bitwise_and(15).add(1).flatten(1)
    weight = torch.bitwise_and(torch.bitwise_right_shift(qweight.unsqueeze(1), wf.view(1, -1, 1)), 15).flatten(0, 1)
    return x @ ((weight - zeros[group]) * scales[group]).to(x.dtype)


def words(*shape):
    return lambda n: torch.randint(-(2**31), 2**31, [s if isinstance(s, int) else n(*s) for s in shape]).to(torch.int32)


def lora_by_index(base, down: Tensor, up: Tensor, which: Tensor, x: Tensor) -> Tensor:
    """Each request has an adapter of its own, or none."""
    at = which.clamp(min=0)
    y = torch.bmm(torch.bmm(x, down[at].transpose(1, 2)), up[at].transpose(1, 2))
    return base(x) + torch.where((which >= 0)[:, None, None], y * 2.0, torch.zeros_like(y))


# -- places ---------------------------------------------------------------------------------------------------------------------


def interleaved_rotary(table: Tensor, places: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """GPT-J's pairs, by a cache of angles; only the first part of a head turns."""
    cos, sin = table.index_select(0, places.flatten()).chunk(2, dim=-1)
    found = []
    for x in (q, k):
        y = x.view(places.numel(), -1, 2 * table.shape[-1])
        turn, rest = y[..., : table.shape[-1]], y[..., table.shape[-1] :]
        x1, x2 = turn[..., ::2], turn[..., 1::2]
        c, s = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
        turn = torch.stack((x1 * c - x2 * s, x2 * c + x1 * s), dim=-1).flatten(-2)
        found.append(torch.cat((turn, rest), dim=-1).reshape(x.shape))
    return found[0], found[1]


def smoothed_rotary(q: Tensor, places: Tensor) -> Tensor:
    """Llama 3.1's: low frequencies are divided, those between are mixed."""
    d = q.shape[-1]
    freq = 1.0 / (500000.0 ** (torch.arange(0, d, 2, device=q.device, dtype=torch.float32) / d))
    length = 2 * math.pi / freq
    smooth = (8192 / length - 1.0) / (4.0 - 1.0)
    mixed = (1 - smooth) * freq / 8.0 + smooth * freq
    freq = torch.where(length > 8192, freq / 8.0, torch.where(length < 2048, freq, mixed))
    angle = torch.einsum("bt,f->btf", places.float(), freq)
    c, s = torch.cat((angle, angle), -1).cos()[:, :, None], torch.cat((angle, angle), -1).sin()[:, :, None]
    half = torch.cat((-q[..., d // 2 :], q[..., : d // 2]), dim=-1)
    return (q.float() * c + half.float() * s).to(q.dtype)


def sectioned_rotary(cos: Tensor, sin: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Qwen-VL's: parts of a head turn by time, height or width."""
    d = q.shape[-1]
    parts = [d // 8, 3 * d // 16, 3 * d // 16] * 2
    c, s = (torch.cat([m[i % 3] for i, m in enumerate(z.split(parts, dim=-1))], dim=-1).unsqueeze(1) for z in (cos, sin))
    turned = [torch.cat((-z[..., d // 2 :], z[..., : d // 2]), dim=-1) for z in (q, k)]
    return q * c + turned[0] * s, k * c + turned[1] * s


class PackedHeads(nn.Module):
    """Packed heads are cut, normed one by one, and turned."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = [heads // 2, heads // 4, heads // 4]
        self.q_norm, self.k_norm = nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)

    def forward(self, qkv: Tensor, *, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
        q, k, v = qkv.unflatten(-1, (sum(self.heads), -1)).split(self.heads, dim=-2)
        out = []
        for x in (self.q_norm(q), self.k_norm(k)):
            a, b = x.float().chunk(2, dim=-1)
            c, s = cos[:, None].float(), sin[:, None].float()
            out.append(torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype))
        return {"q": out[0], "k": out[1], "v": v.contiguous()}


# -- pages and ragged batches ---------------------------------------------------------------------------------------------------


def appended_pages(pages: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> Tensor:
    """New tokens are written at slots: a page and a place within it."""
    size = pages.shape[2]
    flat = pages.transpose(0, 1).reshape(2, -1, *pages.shape[3:])
    flat = flat.index_copy(1, slots, torch.stack((k, v)))
    return flat.unflatten(1, (-1, size)).transpose(0, 1)


def grouped_paged_decode(pages: Tensor, table: Tensor, length: Tensor, q: Tensor, cap: float = 30.0):
    """Groups of heads share keys in pages; scores are capped, old tokens are out of sight; log-sums are kept."""
    b, h, d = q.shape
    kv = pages.index_select(0, table.flatten()).view(b, table.shape[1], *pages.shape[1:])
    k, v = kv.permute(2, 0, 4, 1, 3, 5).flatten(3, 4).unbind(0)
    s = torch.einsum("bgrd,bgtd->bgrt", q.view(b, k.shape[1], -1, d), k).float() / math.sqrt(d)
    s = cap * torch.tanh(s / cap)
    at = torch.arange(s.shape[-1], device=q.device)[None]
    seen = (at < length[:, None]) & (at >= length[:, None] - 512)
    s = s.masked_fill(~seen[:, None, None], float("-inf"))
    lse = torch.logsumexp(s, dim=-1)
    return torch.einsum("bgrt,bgtd->bgrd", torch.exp(s - lse.unsqueeze(-1)).to(v.dtype), v).reshape(b, h, d), lse.view(b, h)


def ragged_attention(starts: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sequences lie one after the other; cumulative lengths say where they start."""
    at = torch.arange(q.shape[0], device=q.device)
    mine = torch.searchsorted(starts, at, right=True)
    seen = (mine[:, None] == mine[None, :]) & (at[:, None] >= at[None, :])
    s = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", s.masked_fill(~seen, -1e4).softmax(-1), v)


def ragged_pool(starts: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Last tokens and means of sequences that lie one after the other."""
    total = functional.pad(x.float().cumsum(0), (0, 0, 1, 0))
    mean = (total[starts[1:]] - total[starts[:-1]]) / (starts[1:] - starts[:-1]).clamp(min=1).unsqueeze(-1)
    return x[starts[1:] - 1] @ w, functional.normalize(mean, dim=-1).to(x.dtype)


def cuts(n: N) -> Tensor:
    return torch.tensor([0, *(n(*p) for p in ((37, 2), (190, 5), (201, 6), (448, 9), (600, 12)))])


def merged_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of attention over parts of the keys become one."""
    top = s.amax(dim=1, keepdim=True)
    w = torch.exp2(s - top)
    total = w.sum(dim=1)
    return (v * w.unsqueeze(-1)).sum(dim=1) / total.unsqueeze(-1), torch.log2(total) + top.squeeze(1)


def absorbed_decode(out, up_k: Tensor, up_v: Tensor, q: Tensor, q_turn: Tensor, latent: Tensor, k_turn: Tensor) -> Tensor:
    """MLA where the keys' weights are multiplied into the query: all heads see one latent."""
    q = torch.einsum("bhd,hdc->bhc", q, up_k)
    s = torch.einsum("bhc,btc->bht", q, latent) + torch.einsum("bhr,btr->bht", q_turn, k_turn)
    p = functional.softmax(s * 192**-0.5, dim=-1, dtype=torch.float32).to(q.dtype)
    return out(torch.einsum("bhc,hcd->bhd", p @ latent, up_v).flatten(1))


def indexed_tokens(iq: Tensor, ik: Tensor, weights: Tensor, q: Tensor, latent: Tensor) -> Tensor:
    """A small scorer picks the tokens that a query reads."""
    score = torch.einsum("bth,bths->bts", weights.float(), torch.relu(torch.einsum("bthd,bsd->bths", iq.float(), ik.float())))
    t, s = score.shape[1:]
    far = torch.ones(t, s, dtype=torch.bool, device=q.device).triu(s - t + 1)
    top, at = score.masked_fill(far, float("-inf")).topk(64 if s >= 128 else 4, dim=-1)
    b = torch.arange(len(q), device=q.device)[:, None, None]
    kv = latent[b, at]
    p = torch.einsum("bthc,btkc->bthk", q, kv) * q.shape[-1] ** -0.5
    return p.masked_fill((top == float("-inf")).unsqueeze(2), -1e4).softmax(-1) @ kv


def tree_attention(parents: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Drafted tokens see their ancestors and all of the past."""
    t, past = q.shape[2], k.shape[2] - q.shape[2]
    seen, node = torch.eye(t, dtype=torch.bool, device=q.device), torch.arange(t, device=q.device)
    for _ in range(4):
        node = parents[node]
        seen = seen | functional.one_hot(node, t).bool()
    mask = functional.pad(seen, (past, 0), value=True)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])


def accepted_path(logits: Tensor, tokens: Tensor, paths: Tensor) -> tuple[Tensor, Tensor]:
    """Of the drafted paths, that whose tokens are the model's own for longest."""
    own = logits.argmax(-1)
    right = own[:, paths[:, :-1]] == tokens[:, paths[:, 1:]]
    count = right.long().cumprod(-1).sum(-1)
    best, which = count.max(dim=-1)
    return best, own.gather(1, paths[which].gather(1, best.unsqueeze(1)))


CASES: dict[str, Case] = {
    "add_rms_norm": scaled(lambda n: (AddRMSNorm(n(4096, 32)), tuple(floats(n, ROWS, (4096, 32)) for _ in range(2)))),
    "rms_norm_small_floats": call(rms_norm_small_floats, ((4096, 32),), *((ROWS, (4096, 32)),) * 2),
    "gated_group_bytes": call(gated_group_bytes, (ROWS, (5632, 32))),
    "block_scaled_linear": call(block_scaled_linear, ((1536, 24), HIDDEN), ((12, 3), (16, 4)), ((64, 3), HIDDEN)),
    "gptq_linear": call(
        gptq_linear,
        words((256, 4), (1024, 16)),
        words((16, 4), (128, 2)),
        ((16, 4), (1024, 16)),
        whole(4, HIDDEN),
        ((32, 3), HIDDEN),
    ),
    "lora_by_index": call(
        lora_by_index,
        ((12, 3), (16, 4), HIDDEN),
        ((12, 3), (1024, 16), (16, 4)),
        lambda n: torch.randint(-1, 3, (n(24, 4),)),
        ((24, 4), (8, 3), HIDDEN),
        parts=(wide(o=(1024, 16)),),
    ),
    "interleaved_rotary": call(
        interleaved_rotary,
        ((4096, 20), (64, 8)),
        whole(20, (2, 2), (512, 5)),
        ((1024, 10), (2048, 64)),
        ((1024, 10), (512, 32)),
    ),
    "smoothed_rotary": call(smoothed_rotary, ((4, 2), (512, 6), (16, 2), (128, 8)), whole(40, (4, 2), (512, 6))),
    "sectioned_rotary": call(
        sectioned_rotary,
        *((3, (2, 2), (700, 6), (128, 16)),) * 2,
        ((2, 2), (14, 4), (700, 6), (128, 16)),
        ((2, 2), (2, 2), (700, 6), (128, 16)),
    ),
    "normed_rotary_heads": scaled(
        lambda n: (
            PackedHeads(n(128, 8), n(32, 8)),
            (floats(n, ROWS, (4096, 64)), Keywords(cos=floats(n, ROWS, (64, 4)), sin=floats(n, ROWS, (64, 4)))),
        )
    ),
    "appended_pages": call(
        appended_pages,
        ((256, 4), 2, (16, 4), (8, 2), (128, 8)),
        *(((64, 3), (8, 2), (128, 8)),) * 2,
        lambda n: torch.randperm(n(4096, 16))[: n(64, 3)],
    ),
    "grouped_paged_decode": call(
        grouped_paged_decode,
        ((512, 6), 2, (16, 4), (4, 2), (128, 8)),
        whole(6, (32, 3), (48, 3)),
        lambda n: torch.randint(1, n(768, 12), (n(32, 3),)),
        ((32, 3), (16, 4), (128, 8)),
    ),
    "ragged_attention": call(ragged_attention, lambda n: cuts(n)[1:-1], *(((600, 12), (12, 2), (64, 8)),) * 3),
    "ragged_pool": call(ragged_pool, cuts, ((600, 12), (1024, 16)), ((1024, 16), (256, 8))),
    "merged_states": call(merged_states, ((256, 3), 8, (32, 2), (128, 8)), ((256, 3), 8, (32, 2))),
    "absorbed_decode": call(
        absorbed_decode,
        ((16, 2), (128, 8), (512, 16)),
        ((16, 2), (512, 16), (128, 8)),
        ((16, 3), (16, 2), (128, 8)),
        ((16, 3), (16, 2), (64, 4)),
        ((16, 3), (1500, 9), (512, 16)),
        ((16, 3), (1500, 9), (64, 4)),
        parts=(wide((2048, 16)),),
    ),
    "indexed_tokens": call(
        indexed_tokens,
        ((2, 2), (48, 3), (16, 2), (64, 8)),
        ((2, 2), (1024, 9), (64, 8)),
        ((2, 2), (48, 3), (16, 2)),
        ((2, 2), (48, 3), (16, 2), (256, 8)),
        ((2, 2), (1024, 9), (256, 8)),
    ),
    "tree_attention": call(
        tree_attention,
        lambda n: (torch.arange(n(60, 7)) - 1).clamp(min=0) // 2,
        ((4, 2), (16, 2), (60, 7), (128, 8)),
        *(((4, 2), (16, 2), (1020, 12), (128, 8)),) * 2,
    ),
    "accepted_path": call(accepted_path, ((16, 2), (26, 6), VOCAB), whole(48, (16, 2), (26, 6)), whole(6, (42, 4), 5)),
}
