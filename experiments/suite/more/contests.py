"""Chains of operators at the sizes of public contests for kernels, and what servers of language models do in half precision."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import turned
from experiments.suite.users import whole

# -- chains ---------------------------------------------------------------------------------------------------------------------


def gemm_residual_clamp_lse(f, x: Tensor) -> Tensor:
    y = f(x) * 2.0
    y = torch.clamp(y + y, -10.0, 10.0)
    y = torch.logsumexp(y, dim=1, keepdim=True)
    return y * functional.mish(y)


def gemm_group_hardtanh(f, norm, x: Tensor) -> Tensor:
    return functional.hardtanh(norm(f(x)), -2.0, 2.0)


def gemm_pool_sum_scale(f, x: Tensor) -> Tensor:
    return functional.max_pool1d(f(x).unsqueeze(1), 2).squeeze(1).sum(dim=1) * 0.5


def conv_instance_divide(conv, norm, x: Tensor) -> Tensor:
    return norm(conv(x)) / 2.0


def conv3_scaled_gate(conv, scale: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return torch.sigmoid(torch.tanh(conv(x) * scale) * bias)


def up3_pool_softmax_swish_max(up, less: Tensor, x: Tensor) -> Tensor:
    y = torch.softmax(functional.max_pool3d(up(x), 2), dim=1) - less.view(1, -1, 1, 1, 1)
    return torch.max(torch.sigmoid(y) * y, dim=1)[0]


def conv_relu_norm_of_five(conv, x: Tensor) -> Tensor:
    y = functional.leaky_relu(functional.relu(conv(x)), 0.01)
    return torch.sigmoid(functional.gelu(y)) + functional.softsign(y)


def unit_middle(x: Tensor) -> tuple[Tensor, Tensor]:
    """Standard scores over a middle axis, and its sums of squares."""
    mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5), x.pow(2).sum(dim=1)


def masked_backward_sums(x: Tensor, keep: Tensor) -> Tensor:
    return torch.cumsum((x * keep.to(x.dtype)).flip(1), dim=1).flip(1)


def hinge_of_rows(predictions: Tensor, targets: Tensor) -> Tensor:
    return torch.mean(torch.clamp(1 - predictions * (targets.to(predictions.dtype) * 2 - 1)[:, None], min=0))


def divergence_of_logits(student: Tensor, teacher: Tensor) -> Tensor:
    p = torch.softmax(teacher / 2, -1)
    return functional.kl_div(torch.log_softmax(student / 2, -1), p, reduction="batchmean") * 4


def focal_of_pixels(logits: Tensor, label: Tensor) -> Tensor:
    ce = functional.cross_entropy(logits, label, reduction="none")
    return (0.25 * (1 - torch.exp(-ce)) ** 2 * ce).mean()


def lower_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    c = torch.tril(torch.matmul(torch.tril(a), b.T))
    return c, c.sum(1)


def batch_softmax_product(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.bmm(torch.softmax(torch.baddbmm(bias, a, b, beta=1.0, alpha=0.0625), dim=-1), b.transpose(1, 2))


def long_dilated_conv(conv, norm, x: Tensor) -> Tensor:
    return functional.relu(norm(conv(x))).amax(-1)


CONV_IN = ((32, 2), (64, 4), (128, 8), (128, 9))
CHAINS: dict[str, Case] = {
    "gemm_residual_clamp_lse": call(gemm_residual_clamp_lse, ((1024, 5), (4096, 16)), parts=(wide(4096, 8192, (16, 24)),)),
    "gemm_group_hardtanh": call(
        gemm_group_hardtanh,
        ((2048, 6), (4096, 16)),
        parts=(wide(4096, 4096, (16, 32)), lambda n: nn.GroupNorm(n(16, 4), n(4096, 32))),
    ),
    "gemm_pool_sum_scale": call(gemm_pool_sum_scale, ((128, 3), (16384, 16)), parts=(wide(16384, 8192, (16, 24)),)),
    "conv_instance_divide": call(
        conv_instance_divide,
        CONV_IN,
        parts=(lambda n: nn.Conv2d(n(64, 4), n(128, 6), 3), lambda n: nn.InstanceNorm2d(n(128, 6))),
    ),
    "conv3_scaled_gate": call(
        conv3_scaled_gate,
        *(((16, 4), 1, 1, 1), ((16, 4), 1, 1, 1), ((32, 2), 3, (16, 5), (64, 6), (64, 6))),
        parts=(lambda n: nn.Conv3d(3, n(16, 4), 3),),
    ),
    "up3_pool_softmax_swish_max": call(
        up3_pool_softmax_swish_max,
        *(((16, 4),), ((16, 1), 3, (16, 3), (32, 4), (32, 4))),
        parts=(lambda n: nn.ConvTranspose3d(3, n(16, 4), 3, stride=2, padding=1, output_padding=1),),
    ),
    "conv3_five_activations": call(
        conv_relu_norm_of_five, ((16, 1), (8, 3), (16, 4), (64, 6), (64, 6)), parts=(lambda n: nn.Conv3d(n(8, 3), n(32, 4), 3),)
    ),
    "up_less_bias_tanh": call(
        lambda up, bias, x: torch.tanh(up(x) - bias),
        *(((64, 4), 1, 1), ((32, 2), (64, 3), (64, 5), (64, 6))),
        parts=(lambda n: nn.ConvTranspose2d(n(64, 3), n(64, 4), 4, stride=2, padding=1, output_padding=1),),
    ),
    "depthwise_then_pointwise_large": call(
        lambda d, p, x: p(d(x)).clamp(0, 6),
        ((32, 2), (128, 4), (112, 7), (112, 8)),
        parts=(
            lambda n: nn.Conv2d(n(128, 4), n(128, 4), (5, 3), padding=(2, 1), groups=n(128, 4), bias=False),
            lambda n: nn.Conv2d(n(128, 4), n(192, 6), 1, bias=False),
        ),
    ),
    "unit_middle": call(unit_middle, ((32, 2), (4096, 17), (256, 6))),
    "argmin_of_the_middle": call(lambda x: torch.argmin(x, dim=1), ((64, 2), (2048, 13), (511, 7))),
    "masked_backward_sums": call(
        masked_backward_sums, ((4096, 5), (8192, 33)), lambda n: torch.randint(0, 2, (n(4096, 5), n(8192, 33))).bool()
    ),
    "products_down_columns": call(lambda x: torch.cumprod(1 + 0.01 * x, dim=0), ((1024, 19), (16384, 12))),
    "group_norm_of_large_images": call(
        lambda norm, x: functional.silu(norm(x)),
        ((16, 2), (64, 8), (256, 7), (256, 6)),
        parts=(lambda n: nn.GroupNorm(8, n(64, 8)),),
    ),
    "hinge_of_rows": call(hinge_of_rows, ((32768, 7), (2048, 19)), whole(2, (32768, 7))),
    "divergence_of_logits": call(divergence_of_logits, ((4096, 5), (8192, 31)), ((4096, 5), (8192, 31))),
    "huber_of_large_batches": call(
        lambda x, y: functional.smooth_l1_loss(x, y, beta=0.5), ((16384, 9), (4096, 17)), ((16384, 9), (4096, 17))
    ),
    "triplets_of_large_batches": call(
        lambda a, p, q: functional.triplet_margin_loss(a, p, q, margin=0.3, swap=True), *(((16384, 6), (1024, 16)),) * 3
    ),
    "focal_of_pixels": call(focal_of_pixels, ((8, 1), 21, (384, 6), (384, 7)), whole(21, (8, 1), (384, 6), (384, 7))),
    "tall_by_wide": call(torch.matmul, ((16384, 40), (32, 5)), ((32, 5), (8192, 24))),
    "tall_by_itself": call(lambda a: a.T @ a / a.shape[0], ((262144, 70), (96, 7))),
    "wide_matrix_vector": call(torch.mv, ((1024, 6), (131072, 70)), ((131072, 70),)),
    "lower_product": call(lower_product, ((4096, 18), (4096, 18)), ((4096, 18), (4096, 18))),
    "batch_softmax_product": call(
        batch_softmax_product, ((64, 2), (512, 9), (256, 8)), turned((64, 2), (512, 11), (256, 8)), ((64, 2), 1, (512, 11))
    ),
    "long_dilated_conv": call(
        long_dilated_conv,
        ((16, 2), (64, 4), (65536, 40)),
        parts=(lambda n: nn.Conv1d(n(64, 4), n(128, 6), 3, dilation=4, stride=3), lambda n: nn.BatchNorm1d(n(128, 6))),
    ),
}

# -- in half precision: servers of language models ------------------------------------------------------------------------------


def rms(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def qk_norm_rope_cache(
    norm_q: Tensor, norm_k: Tensor, table: Tensor, qkv: Tensor, place: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, ...]:
    """Queries and keys normed by head and turned, keys and values written to their slots; four queries a key."""
    d, h = norm_q.shape[0], keys.shape[1]
    q, k, v = qkv.unflatten(-1, (-1, d)).split([4 * h, h, h], 1)
    cos, sin = table[place].unsqueeze(1).chunk(2, -1)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    k = turned(rms(k, norm_k))
    return turned(rms(q, norm_q)), keys.index_copy(0, slots, k), values.index_copy(0, slots, v)


def byte_gated_mlp(gate_up: Tensor, scale_1: Tensor, down: Tensor, scale_2: Tensor, x: Tensor) -> Tensor:
    """Weights of bytes with a scale for each output."""
    a, b = functional.linear(x, gate_up.to(x.dtype)).mul(scale_1.abs() * 0.01).chunk(2, -1)
    return functional.linear(functional.silu(a) * b, down.to(x.dtype)) * (scale_2.abs() * 0.01)


def ring_window_decode(q: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """One query each on a ring of keys: slots that are not written yet do not count."""
    n, (b, h, d) = keys.shape[1], q.shape
    at = torch.arange(n, device=q.device)
    old = place[:, None] - torch.remainder(place[:, None] - at, n)
    qs = q.view(b, keys.shape[2], -1, d)
    s = torch.einsum("bgrd,bngd->bgrn", qs, keys).float() * d**-0.5
    w = s.masked_fill((old < 0)[:, None, None], float("-inf")).softmax(-1).to(q.dtype)
    return torch.einsum("bgrn,bngd->bgrd", w, values).reshape(b, h, d)


def speculative_verified(draft: Tensor, target: Tensor, tokens: Tensor, dice: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Drafted tokens are kept up to the first that is refused; another is drawn from what is left."""
    p, q = target.float().softmax(-1), functional.pad(draft.float().softmax(-1), (0, 0, 0, 1))
    at = tokens.unsqueeze(-1)
    ratio = p[:, :-1].gather(-1, at).squeeze(-1) / q[:, :-1].gather(-1, at).squeeze(-1).clamp(min=1e-9)
    many = torch.cumprod((torch.sigmoid(dice.float()) < ratio).long(), 1).sum(1)
    index = many[:, None, None].expand(-1, 1, p.shape[-1])
    left = (p.gather(1, index) - q.gather(1, index)).clamp(min=0).squeeze(1)
    drawn = (left / left.sum(-1, keepdim=True) / (spread.float().square() + 0.01)).argmax(-1)
    out = torch.where(torch.arange(tokens.shape[1], device=p.device) < many[:, None], tokens, torch.full_like(tokens, -1))
    return functional.pad(out, (0, 1), value=-1).scatter(1, many[:, None], drawn[:, None]), many


def paged_keys_in_bytes(pages: Tensor, scales: Tensor, table: Tensor, lengths: Tensor, q: Tensor) -> Tensor:
    """Keys and values lie in pages of bytes with a scale for each head; they are gathered, and attended to."""
    kv = (pages[table].to(q.dtype) * (scales[table].abs() * 0.02).unsqueeze(-1)).flatten(1, 2)
    k, v = kv.permute(2, 0, 3, 1, 4)
    mask = torch.arange(k.shape[2], device=q.device)[None] <= lengths[:, None]
    return functional.scaled_dot_product_attention(q.unsqueeze(2), k, v, attn_mask=mask[:, None, None]).squeeze(2)


def split_keys_decode(q: Tensor, k: Tensor, v: Tensor, parts: int) -> Tensor:
    """Flash decoding: parts of the keys by themselves, then merged by their sums."""
    b, g, n, d = k.shape
    qs, ks, vs = q.view(b, g, 1, -1, d), k.view(b, g, parts, n // parts, d), v.view(b, g, parts, n // parts, d)
    s = (qs @ ks.transpose(-1, -2)).float() * d**-0.5
    total = torch.logsumexp(s, -1, keepdim=True)
    part = torch.exp(s - total).to(q.dtype) @ vs
    return (part.float() * torch.softmax(total, 2)).sum(2).to(q.dtype).reshape(q.shape)


def logits_pipeline(logits: Tensor, bias: Tensor, seen: Tensor, warm: Tensor, chosen: Tensor, most: int) -> tuple[Tensor, ...]:
    """Cap, bias, what was seen is less likely, a temperature for each, the best few only; log-probabilities of a choice."""
    x = 30 * torch.tanh((logits.float() + bias.float()) / 30)
    x = torch.where(seen, torch.where(x > 0, x / 1.2, x * 1.2), x) / (0.5 + torch.sigmoid(warm.float())).unsqueeze(-1)
    p = torch.log_softmax(x.masked_fill(x < x.topk(most, -1).values[:, -1:], float("-inf")), -1)
    raw = torch.log_softmax(logits.float(), -1)
    return p.exp(), raw.gather(-1, chosen[:, None]).squeeze(-1), (raw > raw.gather(-1, chosen[:, None])).sum(-1)


def qkv_adapters(f, down: Tensor, up: Tensor, x: Tensor, adapter: Tensor, scale: Tensor) -> Tensor:
    """Each row of a batch has its own low-rank addition to queries, keys and values."""
    low = torch.einsum("bd,bkdr->bkr", x, down[adapter])
    return f(x) + (torch.einsum("bkr,bkrd->bkd", low, up[adapter]) * scale[adapter][:, None, None]).flatten(1)


def capacity_router(router, x: Tensor, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two experts a token while there is room: places by running sums, tokens copied into rows of experts."""
    p = torch.softmax(router(x.float().to(router.weight.dtype)).float(), -1)
    w, e = p.topk(2, -1)
    hot = functional.one_hot(e.T.flatten(), p.shape[-1])
    at = ((torch.cumsum(hot, 0) - 1) * hot).sum(-1)
    keep = at < capacity
    row = torch.where(keep, e.T.flatten() * capacity + at, p.shape[-1] * capacity)
    room = x.new_zeros(p.shape[-1] * capacity + 1, x.shape[-1]).index_copy(0, row, x.repeat(2, 1))
    room = torch.where((torch.arange(len(room), device=x.device) < len(room) - 1)[:, None], room, torch.zeros_like(room))
    w = w / w.sum(-1, keepdim=True) * keep.view(2, -1).T
    return room[:-1].unflatten(0, (-1, capacity)), w, (hot.float().mean(0) * p.mean(0)).sum() * p.shape[-1]


def expert_buffers(first: Tensor, second: Tensor, room: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Products of all experts at once, then each token takes its two rows."""
    a, b = torch.bmm(room, first).chunk(2, -1)
    y = torch.bmm(functional.silu(a) * b, second).flatten(0, 1)
    return (y[rows] * torch.softmax(weights.float(), -1).to(y.dtype).unsqueeze(-1)).sum(1)


def add_norm_to_bytes(weight: Tensor, x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    """A residual, its norm, and bytes with a scale for each token."""
    y = x.float() + residual.float()
    z = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    s = z.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return torch.round(z / s).clamp(-128, 127).to(torch.int8), s, y.to(x.dtype)


def chunked_prefill(q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> Tensor:
    """A chunk of queries that begins at its own place of the cache."""
    at = start[:, None] + torch.arange(q.shape[2], device=q.device)
    mask = torch.arange(k.shape[2], device=q.device) <= at[..., None]
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])


def image_tokens_in_place(embed, norm, project, ids: Tensor, features: Tensor, side: int) -> Tensor:
    """Four patches become one token; those stand where the text has its image's word, in order."""
    x = features.unflatten(1, (side // 2, 2, side // 2, 2)).permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
    y = project(norm(x)).flatten(0, 1)
    here = ids == 3
    at = (torch.cumsum(here.flatten().long(), 0) - 1).clamp(0, len(y) - 1).view_as(ids)
    return torch.where(here.unsqueeze(-1), y[at], embed(ids))


def greedy_head(norm: Tensor, head, x: Tensor, last_of: Tensor) -> tuple[Tensor, Tensor]:
    """States at the ends of packed sequences, a norm, scores of words; the best, and how likely."""
    y = head(rms(x[last_of], norm)).float()
    return y.amax(-1), torch.logsumexp(y, -1)


SERVED: dict[str, Case] = {
    "qk_norm_rope_cache": call(
        qk_norm_rope_cache,
        *(((128, 8),), ((128, 8),), ((4096, 20), (128, 8)), ((2048, 7), (6144, 96)), below((4096, 20), (2048, 7))),
        lambda n: torch.randperm(n(16384, 20))[: n(2048, 7)],
        *(((16384, 20), (8, 2), (128, 8)),) * 2,
    ),
    "byte_gated_mlp": call(
        byte_gated_mlp,
        lambda n: torch.randint(-128, 128, (n(28672, 48), n(4096, 16)), dtype=torch.int8),
        ((28672, 48),),
        lambda n: torch.randint(-128, 128, (n(4096, 16), n(14336, 24)), dtype=torch.int8),
        *(((4096, 16),), ((16, 3), (4096, 16))),
    ),
    "ring_window_decode": call(
        ring_window_decode,
        *(((32, 3), (32, 4), (128, 8)), *(((32, 3), (4096, 9), (8, 2), (128, 8)),) * 2, below((9000, 20), (32, 3))),
    ),
    "speculative_verified": call(
        speculative_verified,
        *(
            ((32, 3), 4, (32000, 19)),
            ((32, 3), 5, (32000, 19)),
            below((32000, 19), (32, 3), 4),
            ((32, 3), 4),
            ((32, 3), (32000, 19)),
        ),
    ),
    "paged_keys_in_bytes": call(
        paged_keys_in_bytes,
        lambda n: torch.randint(-128, 128, (n(4096, 12), 16, 2, n(8, 2), n(128, 8)), dtype=torch.int8),
        *(
            ((4096, 12), 16, 2, (8, 2)),
            below((4096, 12), (32, 2), (96, 3)),
            below((1536, 48), (32, 2)),
            ((32, 2), (8, 2), (128, 8)),
        ),
    ),
    "split_keys_decode": call(
        lambda q, k, v: split_keys_decode(q, k, v, 8),
        ((4, 2), (32, 4), (128, 8)),
        *(((4, 2), (8, 2), (16384, 16), (128, 8)),) * 2,
    ),
    "logits_pipeline": call(
        logits_pipeline,
        *(((128, 3), (50304, 33)), ((50304, 33),), lambda n: torch.rand(n(128, 3), n(50304, 33)) > 0.9, ((128, 3),)),
        *(below((50304, 33), (128, 3)), 20),
    ),
    "qkv_adapters": call(
        qkv_adapters,
        *((8, 3, (4096, 16), (16, 4)), (8, 3, (16, 4), (4096, 16)), ((64, 5), (4096, 16)), whole(8, (64, 5)), (8,)),
        parts=(wide(4096, 12288, (16, 48), bias=False),),
    ),
    "capacity_router": call(
        lambda f, x: capacity_router(f, x, x.shape[0] // f.out_features * 2),
        ((4096, 16), (2048, 24)),
        parts=(wide(2048, 16, (24, 4), bias=False),),
    ),
    "expert_buffers": call(
        expert_buffers,
        *(((8, 2), (1024, 12), (2816, 16)), ((8, 2), (1408, 8), (1024, 12)), ((8, 2), (512, 6), (1024, 12))),
        *(below((4096, 12), (2048, 5), 2), ((2048, 5), 2)),
    ),
    "add_norm_to_bytes": call(add_norm_to_bytes, ((4096, 16),), ((4096, 5), (4096, 16)), ((4096, 5), (4096, 16))),
    "chunked_prefill": call(
        chunked_prefill,
        ((4, 2), (32, 4), (256, 5), (128, 8)),
        *(((4, 2), (8, 2), (4096, 20), (128, 8)),) * 2,
        below((3840, 15), (4, 2)),
    ),
    "image_tokens_in_place": call(
        lambda embed, norm, project, ids, f: image_tokens_in_place(embed, norm, project, ids, f, 24 if f.shape[1] > 99 else 4),
        *(
            lambda n: torch.where(
                torch.rand(n(8, 2), n(1024, 9)) > 0.8, 3, torch.randint(4, n(32000, 20), (n(8, 2), n(1024, 9)))
            ),
        ),
        ((8, 2), (576, 16), (1024, 6)),
        parts=(
            *(lambda n: nn.Embedding(n(32000, 20), n(2048, 12)), lambda n: nn.LayerNorm(4 * n(1024, 6))),
            lambda n: nn.Sequential(wide(4096, 2048, (24, 12))(n), nn.GELU(), wide(2048, 2048, (12, 12))(n)),
        ),
    ),
    "greedy_head": call(
        lambda head, norm, x, at: greedy_head(norm, head, x, at),
        *(((4096, 16),), ((2048, 19), (4096, 16)), below((2048, 19), (64, 5))),
        parts=(wide(4096, 32000, (16, 40), bias=False),),
    ),
}
CASES: dict[str, Case] = {**CHAINS, **SERVED}
