"""Steps backward written by hand, ragged rows, losses of metric learning and detection, and what language models run in half."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole

# -- backward, and ragged -------------------------------------------------------------------------------------------------------


def layer_norm_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    rstd = torch.rsqrt(var + 1e-5)
    xhat, wdy = (x - mean) * rstd, dy * weight
    c1, c2 = (xhat * wdy).mean(-1, keepdim=True), wdy.mean(-1, keepdim=True)
    return (wdy - (xhat * c1 + c2)) * rstd, (dy * xhat).sum(0), dy.sum(0)


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    a, g = x.float(), dy.float()
    rstd = torch.rsqrt(a.square().mean(-1, keepdim=True) + 1e-6)
    m = g * weight.float()
    dx = rstd * (m - a * rstd * rstd * (m * a).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g * a * rstd).sum(0).to(weight.dtype)


def swiglu_backward(dc: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    x = a.float()
    s = torch.sigmoid(x)
    return dc * (s * (1 + x * (1 - s))).to(a.dtype) * b, dc * (x * s).to(a.dtype)


def geglu_backward(dc: Tensor, ab: Tensor) -> Tensor:
    a, b = ab.chunk(2, -1)
    x = a.float()
    t = torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
    inner = 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
    return torch.cat([dc * b * (0.5 * (1 + t) + inner).to(a.dtype), dc * (0.5 * x * (1 + t)).to(a.dtype)], -1)


def softmax_backward(dy: Tensor, y: Tensor, scale: float) -> Tensor:
    p = torch.softmax(y, -1)
    return scale * p * (dy - (dy * p).sum(-1, keepdim=True))


def batch_norm_relu_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    axes, n = (0, 2, 3), x.numel() // x.shape[1]
    mean, rstd = x.mean(axes, keepdim=True), torch.rsqrt(x.var(axes, keepdim=True, unbiased=False) + 1e-5)
    xhat, w = (x - mean) * rstd, weight[None, :, None, None]
    g = torch.where(xhat * w + bias[None, :, None, None] > 0, dy, torch.zeros_like(dy))
    db, dw = g.sum(axes, keepdim=True), (g * xhat).sum(axes, keepdim=True)
    return w * rstd / n * (n * g - db - xhat * dw), dw.flatten(), db.flatten()


def cross_entropy_and_gradient(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What a fused loss leaves behind: rows that are ignored add nothing."""
    x, keep = logits.float(), target != -100
    lse, many = torch.logsumexp(x, -1), keep.sum().clamp(min=1)
    safe = target.clamp(min=0)
    loss = ((lse - x.gather(1, safe[:, None]).squeeze(1)) * keep).sum() / many
    hot = torch.arange(x.shape[1], device=x.device) == safe[:, None]
    return loss, ((torch.exp(x - lse[:, None]) - hot.float()) * (keep / many)[:, None]).to(logits.dtype)


def jagged_softmax(values: Tensor, offsets: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Rows of all lengths lie one after the other; softmax down each, and its mean."""
    starts, ends = offsets[:-1], offsets[1:]
    at = starts[:, None] + torch.arange(most, device=values.device)
    real = at < ends[:, None]
    dense = values[at.clamp(max=len(values) - 1)].masked_fill(~real[..., None], float("-inf"))
    p = torch.softmax(dense, 1).masked_fill(~real[..., None], 0.0)
    lengths = (ends - starts).clamp(min=1)[:, None]
    return p, dense.masked_fill(~real[..., None], 0.0).sum(1) / lengths


def offsets_of(rows, total):
    """Sorted places from 0 to all, with no row longer than twice the mean."""

    def make(n):
        b, t = n(*rows), n(*total)
        return (torch.arange(b + 1) * (t // b) + functional.pad(torch.randint(0, t // b, (b - 1,)), (1, 1))).clamp(max=t)

    return make


# -- losses ---------------------------------------------------------------------------------------------------------------------


def multi_similarity(x: Tensor, label: Tensor) -> Tensor:
    """Pairs are mined by the hardest of the other kind, then weighed by exponentials."""
    x = functional.normalize(x)
    s, same = x @ x.T, label[:, None] == label
    eye = torch.eye(len(x), dtype=torch.bool, device=x.device)
    positive, negative = same & ~eye, ~same
    low = s.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    high = s.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    p, q = positive & (s - 0.1 < high), negative & (s + 0.1 > low)
    a = torch.log1p((torch.exp(-2 * (s - 0.5)) * p).sum(1)) / 2
    return (a + torch.log1p((torch.exp(50 * (s - 0.5)) * q).sum(1)) / 50).mean()


def lifted_structure(x: Tensor, label: Tensor) -> Tensor:
    d, same = torch.cdist(x, x), label[:, None] == label
    out = torch.logsumexp((1.0 - d).masked_fill(same, float("-inf")), 1)
    pairs = torch.relu(torch.logaddexp(out[:, None], out[None]) + d).square()
    keep = torch.triu(same, 1)
    return (pairs * keep).sum() / (2 * keep.sum().clamp(min=1))


def sub_centre_margin(weight: Tensor, x: Tensor, label: Tensor) -> Tensor:
    """Three centres for each class: the nearest counts; the true angle grows by a margin."""
    cos = functional.linear(functional.normalize(x), functional.normalize(weight, dim=1))
    cos = cos.view(len(x), -1, 3).amax(-1)
    sin = torch.sqrt((1.0 - cos.square()).clamp(0, 1))
    phi = torch.where(cos > -0.8776, cos * 0.8776 - sin * 0.4794, cos - 0.2397)
    hot = functional.one_hot(label, cos.shape[1]).to(cos.dtype)
    return functional.cross_entropy(64.0 * (hot * phi + (1 - hot) * cos), label)


def varifocal(logits: Tensor, quality: Tensor, label: Tensor) -> Tensor:
    p = torch.sigmoid(logits)
    hot = functional.one_hot(label, logits.shape[-1] + 1)[..., :-1].to(p.dtype)
    target = hot * torch.sigmoid(quality).unsqueeze(-1)
    weight = 0.75 * p.pow(2.0) * (1 - hot) + target * hot
    loss = functional.binary_cross_entropy_with_logits(logits, target, reduction="none") * weight
    return loss.mean(1).sum() / hot.sum().clamp(min=1)


def boxes(x: Tensor) -> Tensor:
    return torch.cat([x[..., :2], x[..., :2] + x[..., 2:].abs() + 0.1], -1)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    both = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return both / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both).clamp(min=1e-7)


def aligned_assignment(scores: Tensor, predicted: Tensor, truth: Tensor, label: Tensor, most: int) -> tuple[Tensor, ...]:
    """TOOD: anchors whose score and overlap agree are given to an object; of several objects the nearest wins."""
    iou = overlaps(boxes(truth)[:, :, None], boxes(predicted)[:, None])
    s = torch.sigmoid(scores).mT.gather(1, label[..., None].expand(-1, -1, scores.shape[1]))
    metric = s.pow(0.5) * iou.pow(6)
    chosen = torch.zeros_like(metric).scatter(-1, metric.topk(most, -1).indices, 1.0)
    best = functional.one_hot(iou.argmax(1), iou.shape[1]).mT.to(metric.dtype)
    mask = torch.where((chosen.sum(1) > 1)[:, None], best, chosen)
    metric = metric * mask
    ratio = (iou * mask).amax(-1, keepdim=True) / (metric.amax(-1, keepdim=True) + 1e-9)
    return mask.argmax(1), mask.sum(1) > 0, (metric * ratio).amax(1)


def hard_negatives(offsets: Tensor, scores: Tensor, target: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """SSD: three anchors without an object for each with one, the worst first."""
    real = label > 0
    near = (functional.smooth_l1_loss(offsets, target, reduction="none").sum(-1) * real).sum()
    ce = functional.cross_entropy(scores.flatten(0, 1), label.flatten(), reduction="none").view_as(label)
    rank = ce.masked_fill(real, 0.0).argsort(1, descending=True).argsort(1)
    keep = real | (rank < (3 * real.sum(1, keepdim=True)).clamp(max=label.shape[1] - 1))
    many = real.sum().clamp(min=1)
    return near / many, (ce * keep).sum() / many


def corrected_in_batch(users: Tensor, items: Tensor, often: Tensor, ids: Tensor) -> Tensor:
    """Two towers: what is often drawn counts less, and the same item twice is no negative."""
    s = functional.normalize(users) @ functional.normalize(items).T / 0.05 - torch.log(often.abs() + 1e-3)
    twice = (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool, device=s.device)
    s = s.masked_fill(twice, torch.finfo(s.dtype).min)
    return functional.cross_entropy(s, torch.arange(len(s), device=s.device))


def student_mixture(logits: Tensor, mean: Tensor, log_scale: Tensor, freedom: Tensor, x: Tensor) -> Tensor:
    df, y = functional.softplus(freedom) + 2, (x[:, None] - mean) * torch.exp(-log_scale)
    z = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df) - 0.5 * torch.log(df * math.pi) - log_scale
    each = (z - 0.5 * (df + 1) * torch.log1p(y.square() / df)).sum(-1)
    return -torch.logsumexp(torch.log_softmax(logits, -1) + each, -1).mean()


def low_rank_normal(factor: Tensor, diagonal: Tensor, x: Tensor) -> Tensor:
    """Log-densities under a covariance of a few factors and a diagonal, by Woodbury's identity."""
    d = functional.softplus(diagonal) + 0.1
    w = factor / d[:, None]
    low = torch.linalg.cholesky(torch.eye(factor.shape[1], device=x.device, dtype=x.dtype) + factor.T @ w)
    half = torch.linalg.solve_triangular(low, (x @ w).T, upper=False)
    log = 2 * low.diagonal().log().sum() + d.log().sum()
    return -0.5 * ((x.square() / d).sum(-1) - half.square().sum(0) + log + x.shape[1] * math.log(2 * math.pi))


def returns_backward(rewards: Tensor, values: Tensor, go_on: Tensor) -> Tensor:
    """TD(λ) over an imagined horizon, from its end."""
    out, last = [], values[-1]
    steps = rewards + 0.997 * torch.sigmoid(go_on) * values[1:] * 0.05
    for t in range(len(rewards) - 1, -1, -1):
        last = steps[t] + 0.997 * torch.sigmoid(go_on[t]) * 0.95 * last
        out.append(last)
    return torch.stack(out[::-1])


N768, ROIS = (768, 16), ((8, 2), (8400, 12))
FLOAT32: dict[str, Case] = {
    "layer_norm_backward": call(layer_norm_backward, *(((16384, 7), (1024, 16)),) * 2, ((1024, 16),)),
    "softmax_backward": call(lambda dy, y: softmax_backward(dy, y, 0.125), *(((16, 2), 12, (512, 9), (512, 9)),) * 2),
    "batch_norm_relu_backward": call(
        batch_norm_relu_backward, *(((64, 2), (128, 4), (56, 5), (56, 5)),) * 2, ((128, 4),), ((128, 4),)
    ),
    "jagged_softmax": call(
        lambda x, o: jagged_softmax(x, o, 2 * (len(x) // (len(o) - 1))),
        *(((65536, 24), (64, 5)), offsets_of((512, 4), (65536, 24))),
    ),
    "multi_similarity": call(multi_similarity, ((1024, 9), (512, 8)), whole(3, (1024, 9))),
    "lifted_structure": call(lifted_structure, ((512, 9), (128, 8)), whole(3, (512, 9))),
    "sub_centre_margin": call(sub_centre_margin, *(((30000, 21), (512, 8)), ((512, 6), (512, 8))), below((10000, 7), (512, 6))),
    "varifocal": call(varifocal, ((16, 2), (8400, 9), 80), ((16, 2), (8400, 9)), whole(81, (16, 2), (8400, 9))),
    "aligned_assignment": call(
        lambda *x: aligned_assignment(*x, most=10), (*ROIS, 80), (*ROIS, 4), ((8, 2), (32, 3), 4), whole(80, (8, 2), (32, 3))
    ),
    "hard_negatives": call(
        hard_negatives,
        *(((32, 2), (8732, 20), 4), ((32, 2), (8732, 20), 21), ((32, 2), (8732, 20), 4)),
        lambda n: torch.randint(-150, 21, (n(32, 2), n(8732, 20))).clamp(min=0),
    ),
    "corrected_in_batch": call(corrected_in_batch, *(((4096, 9), (128, 8)),) * 2, ((4096, 9),), below((100000, 7), (4096, 9))),
    "student_mixture": call(student_mixture, ((8192, 5), 8), *(((8192, 5), 8, (32, 4)),) * 3, ((8192, 5), (32, 4))),
    "low_rank_normal": call(low_rank_normal, ((1024, 16), (32, 4)), ((1024, 16),), ((4096, 6), (1024, 16))),
    "returns_backward": call(returns_backward, ((15, 4), (1024, 5)), ((16, 5), (1024, 5)), ((15, 4), (1024, 5))),
}

# -- in half: language models ---------------------------------------------------------------------------------------------------


def rms(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    return weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def data_dependent_shift(mu: Tensor, first: Tensor, second: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """RWKV-6: how much of the token before comes in depends on both, by a small network for each of five uses."""
    d = functional.pad(x, (0, 0, 1, -1)) - x
    low = torch.tanh((x + d * mu[5]) @ first).unflatten(-1, (5, -1)).permute(2, 0, 1, 3)
    more = torch.einsum("fbtr,frc->fbtc", low, second)
    return tuple(x + d * (mu[i] + more[i]) for i in range(5))


def normed_after(qkv, out, gate_up, down, norms, x: Tensor, angles: Tensor) -> Tensor:
    """OLMo 2: norms stand behind attention and feed-forward, and on whole queries and keys."""
    nq, nk, n1, n2 = norms
    q, k, v = qkv(x).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (-1, 2 * angles.shape[-1])).transpose(1, 2) for t in (rms(q, nq), rms(k, nk), v))
    cos, sin = torch.cos(angles).repeat(1, 2), torch.sin(angles).repeat(1, 2)

    def turned(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return t * cos + torch.cat((-b, a), -1) * sin

    y = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
    x = x + rms(out(y.transpose(1, 2).flatten(2)), n1)
    a, b = gate_up(x).chunk(2, -1)
    return x + rms(down(functional.silu(a) * b), n2)


def packed_nibbles(codes: Tensor, zeros: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    """AWQ: eight nibbles in each int32 in the order of its kernels, zeros alike, groups of 128 inputs."""
    shifts = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=x.device) * 4
    w = ((codes.unsqueeze(-1) >> shifts) & 15).flatten(1)
    z = ((zeros.unsqueeze(-1) >> shifts) & 15).flatten(1)
    group = w.shape[0] // z.shape[0]
    w = (w.unflatten(0, (-1, group)) - z[:, None]).to(x.dtype) * (scales.abs() * 0.02)[:, None]
    return x @ w.flatten(0, 1)


def int32s(*shape):
    return lambda n: torch.randint(-(2**31), 2**31, [n(*s) for s in shape]).to(torch.int32)


def all_experts(router, first: Tensor, second: Tensor, x: Tensor) -> Tensor:
    """Every expert on every token, weights of those not chosen are zero."""
    w, at = torch.topk(torch.softmax(router(x).float(), -1), 2, -1)
    w = w.new_zeros(len(x), first.shape[0]).scatter(1, at, w / w.sum(-1, keepdim=True)).to(x.dtype)
    a, b = torch.einsum("td,edf->etf", x, first).chunk(2, -1)
    return torch.einsum("etf,efd,te->td", functional.silu(a) * b, second, w)


def one_key_for_all(norm, fused, out, mlp_out, x: Tensor) -> Tensor:
    """Falcon: one key and value for all heads; attention and feed-forward read the same norm."""
    h, d = x.shape[-1], 64 if x.shape[-1] > 99 else 8
    qkv, up = fused(norm(x)).split([h + 2 * d, fused.out_features - h - 2 * d], -1)
    q, k, v = qkv.split([h, d, d], -1)
    q = q.unflatten(-1, (-1, d)).transpose(1, 2)
    k, v = (t.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for t in (k, v))
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return x + out(y) + mlp_out(functional.gelu(up))


def written_in_nibbles(k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys for a cache of four bits: two in a byte, a scale and a least for each group of 32."""
    g = k.float().unflatten(-1, (-1, 32 if k.shape[-1] > 31 else 4))
    low = g.amin(-1, keepdim=True)
    s = ((g.amax(-1, keepdim=True) - low) / 15).clamp(min=1e-5)
    q = torch.round((g - low) / s).clamp(0, 15).to(torch.uint8).flatten(-2)
    return q[..., ::2] | (q[..., 1::2] << 4), s.squeeze(-1).to(k.dtype), low.squeeze(-1).to(k.dtype)


def yarn_turned(q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """YaRN: slow waves are stretched sixteen times, fast ones not, a ramp between; then a temperature."""
    half = q.shape[-1] // 2
    i = torch.arange(half, device=q.device, dtype=torch.float32)
    base = 10000.0 ** (-i / half)
    ramp = ((i - half * 0.3) / (half * 0.4)).clamp(0, 1)
    a = at.float()[:, :, None] * (base / 16 * ramp + base * (1 - ramp))
    m = 0.1 * math.log(16) + 1
    cos, sin = ((f(a) * m).repeat(1, 1, 2)[:, :, None].to(q.dtype) for f in (torch.cos, torch.sin))

    def turned(t: Tensor) -> Tensor:
        return t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin

    return turned(q), turned(k)


def gated_inner_block(up, conv, gain: Tensor, out, x: Tensor) -> Tensor:
    """Around a selective layer: one product, a short causal convolution, and a norm gated by the other branch."""
    z, y = up(x).chunk(2, -1)
    y = functional.silu(conv(y.mT)[..., : x.shape[1]]).mT
    return x + out(rms(y * functional.silu(z), gain))


E, F = (1024, 16), (2816, 24)
BFLOAT16: dict[str, Case] = {
    "rms_norm_backward": call(rms_norm_backward, *(((8192, 7), (4096, 16)),) * 2, ((4096, 16),)),
    "swiglu_backward": call(swiglu_backward, *(((4, 2), (2048, 5), (11008, 16)),) * 3),
    "geglu_backward": call(geglu_backward, ((8192, 7), (8192, 12)), ((8192, 7), (16384, 24))),
    "cross_entropy_and_gradient": call(
        cross_entropy_and_gradient,
        ((4096, 9), (32000, 21)),
        lambda n: torch.where(torch.rand(n(4096, 9)) > 0.9, -100, torch.randint(0, n(32000, 21), (n(4096, 9),))),
    ),
    "data_dependent_shift": call(
        data_dependent_shift,
        *((6, (2048, 12)), ((2048, 12), (160, 20)), (5, (32, 4), (2048, 12)), ((4, 2), (1024, 7), (2048, 12))),
    ),
    "normed_after": call(
        normed_after,
        *(((2, 1), (1024, 7), (2048, 16)), ((1024, 7), (64, 4))),
        parts=(
            *(wide(2048, 6144, (16, 48), bias=False), wide(2048, 2048, (16, 16), bias=False)),
            *(wide(2048, 16384, (16, 64), bias=False), wide(8192, 2048, (32, 16), bias=False)),
            lambda n: nn.ParameterList(nn.Parameter(torch.rand(n(2048, 16)) + 0.5) for _ in range(4)),
        ),
    ),
    "all_experts": call(
        all_experts,
        *((8, E, F), (8, (1408, 12), E), ((512, 6), E)),
        parts=(wide(1024, 8, (16, 8), bias=False),),
    ),
    "one_key_for_all": call(
        one_key_for_all,
        ((2, 1), (1024, 9), (2048, 16)),
        parts=(
            *(lambda n: nn.LayerNorm(n(2048, 16)), wide(2048, 10368, (16, 96), bias=False)),
            *(wide(2048, 2048, (16, 16), bias=False), wide(8192, 2048, (64, 16), bias=False)),
        ),
    ),
    "yarn_turned": call(
        yarn_turned,
        *(((4, 2), (2048, 5), (32, 3), (128, 8)), ((4, 2), (2048, 5), (8, 2), (128, 8)), below((60000, 30), (4, 2), (2048, 5))),
    ),
    "gated_inner_block": call(
        lambda up, conv, out, gain, x: gated_inner_block(up, conv, gain, out, x),
        *(((4096, 24),), ((4, 2), (2048, 9), (2048, 12))),
        parts=(
            wide(2048, 8192, (12, 48), bias=False),
            lambda n: nn.Conv1d(n(4096, 24), n(4096, 24), 4, padding=3, groups=n(4096, 24)),
            wide(4096, 2048, (24, 12), bias=False),
        ),
    ),
}
FLOAT16: dict[str, Case] = {
    "packed_nibbles": call(
        packed_nibbles,
        *(int32s((4096, 16), (1376, 3)), int32s((32, 2), (1376, 3))),
        *(((32, 2), (11008, 24)), ((16, 3), (4096, 16))),
    ),
    "written_in_nibbles": call(written_in_nibbles, ((8, 2), (8, 2), (4096, 9), (128, 8))),
}
CASES: dict[str, Case] = {**FLOAT32, **BFLOAT16, **FLOAT16}
"""In the number format that each group is meant for."""
