"""Pieces of many kinds of networks: norms, gates, forms of attention and of convolution, steps of algorithms, losses of pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import fn
from experiments.suite.case import images
from experiments.suite.case import scaled


def on_tokens(run, *parts, batch: int = 8, tokens: int = 512, width: int = 512) -> Case:
    """``run(*modules, x)`` of batch × tokens × width; ``parts`` make modules for the width."""

    def make(n: N) -> Made:
        w = n(width, 16)
        return Fn(run, *(p(w) for p in parts)), (torch.randn(n(batch, 2), n(tokens, 6), w),)

    return scaled(make)


def on_images(run, *parts, size: int = 56, channels: int = 64, batch: int = 16) -> Case:
    """``run(*modules, x)`` of images; ``parts`` make modules for the number of channels."""

    def make(n: N) -> Made:
        c = n(channels, 8)
        return Fn(run, *(p(c) for p in parts)), (images(n, size, 8, c, batch),)

    return scaled(make)


def line(i: int = 1, o: int = 1, bias: bool = True):
    """A linear layer between multiples of the width."""
    return lambda w: nn.Linear(i * w, o * w, bias)


def conv(k: int = 3, o: int = 1, **more):
    """A convolution that keeps the size unless told otherwise."""
    each, groups = more.pop("each", False), more.pop("groups", 1)
    more = {"padding": more.get("dilation", 1) * (k // 2), **more}
    return lambda c: nn.Conv2d(c, o * c, k, groups=c if each else groups, **more)


def heads(x: Tensor, size: int) -> Tensor:
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


def attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return ((scores if bias is None else scores + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)


def alibi(q, k, v, x):
    t, n = x.shape[1], max(x.shape[-1] // 64, 2)
    place = torch.arange(t, device=x.device)
    slopes = 2.0 ** -torch.arange(1, n + 1, device=x.device)
    bias = (place[None] - place[:, None]).abs().neg() * slopes[:, None, None]
    return attended(*(heads(f(x), x.shape[-1] // n) for f in (q, k, v)), bias=bias.to(x.dtype))


def linear_attention(q, k, v, x):
    a, b, c = (heads(f(x), max(x.shape[-1] // 8, 2)) for f in (q, k, v))
    a, b = functional.elu(a) + 1, functional.elu(b) + 1
    y = (a @ (b.transpose(-1, -2) @ c)) / ((a * b.sum(2, keepdim=True)).sum(-1, keepdim=True) + 1e-6)
    return y.transpose(1, 2).flatten(2)


def grouped_attention(q, k, v, x):
    size = max(x.shape[-1] // 8, 2)
    a, b, c = (heads(f(x), size) for f in (q, k, v))
    return functional.scaled_dot_product_attention(a, b, c, enable_gqa=True, is_causal=True).transpose(1, 2).flatten(2)


def sliding_window(q, k, v, x):
    place = torch.arange(x.shape[1], device=x.device)
    far = (place[:, None] - place).abs() > 3
    bias = torch.zeros_like(far, dtype=x.dtype).masked_fill(far, -1e4)
    return attended(*(heads(f(x), max(x.shape[-1] // 8, 2)) for f in (q, k, v)), bias=bias)


def normed_attention(q, k, v, a, x):
    size = max(x.shape[-1] // 8, 2)
    one, two, three = (heads(f(x), size) for f in (q, k, v))
    one, two = functional.normalize(one, dim=-1), functional.normalize(two, dim=-1)
    return a(functional.scaled_dot_product_attention(one, two, three, scale=10.0).transpose(1, 2).flatten(2))


def capped_attention(q, k, v, x):
    a, b, c = (heads(f(x), max(x.shape[-1] // 8, 2)) for f in (q, k, v))
    scores = torch.tanh(a @ b.transpose(-1, -2) / 50) * 50
    return (scores.softmax(-1) @ c).transpose(1, 2).flatten(2)


def weighted_standard(f, x):
    w = f.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
    return functional.conv2d(x, w, f.bias, padding=1)


def response_norm(f, g, x):
    y = functional.gelu(f(x))
    size = y.norm(dim=1, keepdim=True)
    return g(y * (size / (size.mean(-1, keepdim=True) + 1e-6)) + y)


def block_attention(a, b, x):
    """Channels, then places, are weighted (CBAM)."""
    channels = torch.sigmoid(a(x.mean((2, 3), keepdim=True)) + a(x.amax((2, 3), keepdim=True)))
    x = x * channels
    return x * torch.sigmoid(b(torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)))


def non_local(f, g, h, x):
    a, b, c = (p(x).flatten(2) for p in (f, g, h))
    return x + (c @ (a.transpose(1, 2) @ b).softmax(-1).transpose(1, 2)).view_as(x)


def routed(x):
    """Three rounds of routing between capsules."""
    scores, v = torch.zeros(x.shape[:3], device=x.device, dtype=x.dtype), x[:, 0]
    for _ in range(3):
        s = (scores.softmax(2).unsqueeze(-1) * x).sum(1)
        n = (s * s).sum(-1, keepdim=True)
        v = s * n / (1 + n) / (n + 1e-8).sqrt()
        scores = scores + (x * v[:, None]).sum(-1)
    return v


def balanced(x):
    for _ in range(5):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp()


def nearest(codes, x):
    far = x.pow(2).sum(-1, keepdim=True) - 2 * x @ codes.T + codes.pow(2).sum(-1)
    return codes[far.argmin(-1)], far.min(-1).values.mean()


def overlaps(a, b):
    """Of each box with each: intersection over union."""
    a, b = (torch.cat((x[:, :2], x[:, :2] + x[:, 2:].abs() + 0.1), 1) for x in (a, b))
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    area = lambda x: (x[:, 2:] - x[:, :2]).prod(-1)  # noqa: E731
    return inside / (area(a)[:, None] + area(b) - inside)


def contrast(x, y):
    x, y = functional.normalize(x, dim=-1), functional.normalize(y, dim=-1)
    scores = x @ y.T / 0.07
    there = torch.arange(x.shape[0], device=x.device)
    return (functional.cross_entropy(scores, there) + functional.cross_entropy(scores.T, there)) / 2


def interact(x):
    """Products of each pair of fields (DLRM)."""
    i, j = torch.tril_indices(x.shape[1], x.shape[1], -1, device=x.device)
    return (x @ x.transpose(1, 2))[:, i, j]


def modulated(x, w, s):
    """A convolution whose weights each image scales (StyleGAN)."""
    b, c = x.shape[:2]
    w = w * s[:, None, :, None, None]
    w = w * (w.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    return functional.conv2d(x.reshape(1, b * c, *x.shape[2:]), w.flatten(0, 1), padding=1, groups=b).view(b, -1, *x.shape[2:])


def chunked_scan(x, a, b, c):
    """A state-space model: chunks by products, states from chunk to chunk by a loop."""
    y, state = [], x.new_zeros(x.shape[0], b.shape[-1], x.shape[-1])
    for i in range(0, x.shape[1], size := max(x.shape[1] // 4, 1)):
        xs, bs, cs, sums = x[:, i : i + size], b[:, i : i + size], c[:, i : i + size], a[:, i : i + size].abs().neg().cumsum(1)
        decay = (sums[:, :, None] - sums[:, None]).tril().exp().tril()
        y.append((cs @ bs.transpose(1, 2) * decay) @ xs + (cs * sums.exp()[..., None]) @ state)
        left = (sums[:, -1:] - sums).exp()[..., None]
        state = state * sums[:, -1].exp()[:, None, None] + (bs * left).transpose(1, 2) @ xs
    return torch.cat(y, 1)


def gated_wave(f, g, last, x):
    y = torch.tanh(f(x)) * torch.sigmoid(g(x))
    return x + last(y)


def on_signal(run, *parts, length: int = 4096, channels: int = 64) -> Case:
    def make(n: N) -> Made:
        c = n(channels, 8)
        return Fn(run, *(p(c) for p in parts)), (torch.randn(n(16, 2), c, n(length, 12)),)

    return scaled(make)


CASES: dict[str, Case] = {
    "swiglu": on_tokens(
        lambda a, b, c, x: c(functional.silu(a(x)) * b(x)), line(1, 3, False), line(1, 3, False), line(3, 1, False)
    ),
    "geglu": on_tokens(lambda f, g, x: g((y := f(x).chunk(2, -1))[0] * functional.gelu(y[1])), line(1, 8), line(4, 1)),
    "pre_norm_mlp": on_tokens(lambda n, f, g, x: x + g(functional.gelu(f(n(x)))), nn.LayerNorm, line(1, 4), line(4, 1)),
    "post_norm_mlp": on_tokens(lambda n, f, g, x: n(x + g(torch.relu(f(x)))), nn.LayerNorm, line(1, 4), line(4, 1)),
    "sandwich_norm": on_tokens(lambda n, f, m, x: x + m(f(n(x))), nn.RMSNorm, line(), nn.RMSNorm),
    "film": on_tokens(lambda n, f, x: n(x) * (1 + f(x.mean(1, keepdim=True)).chunk(2, -1)[0]), nn.LayerNorm, line(1, 2)),
    "dynamic_tanh": on_tokens(lambda f, x: torch.tanh(0.7 * x) * f.weight[0] + f.bias, line()),
    "attention_alibi": on_tokens(alibi, line(), line(), line()),
    "attention_linear": on_tokens(linear_attention, line(), line(), line()),
    "attention_grouped": on_tokens(grouped_attention, line(), lambda w: nn.Linear(w, w // 4), lambda w: nn.Linear(w, w // 4)),
    "attention_window": on_tokens(sliding_window, line(), line(), line()),
    "attention_normed": on_tokens(normed_attention, line(), line(), line(), line()),
    "attention_capped": on_tokens(capped_attention, line(), line(), line()),
    "attention_masked_keys": on_tokens(
        lambda f, x: f(x, x, x, key_padding_mask=x[..., 0] > 2.5)[0],
        lambda w: nn.MultiheadAttention(w, max(w // 64, 2), batch_first=True),
    ),
    "cross_pool": on_tokens(lambda f, k, x: (f.weight[:4] @ k(x).transpose(1, 2)).softmax(-1) @ x, line(), line()),
    "token_mean_classifier": on_tokens(lambda n, f, x: f(n(x).mean(1)).log_softmax(-1), nn.LayerNorm, lambda w: nn.Linear(w, 10)),
    "conformer": on_tokens(
        lambda n, f, d, b, g, x: x + g(functional.silu(b(d(functional.glu(f(n(x)), -1).transpose(1, 2)))).transpose(1, 2)),
        nn.LayerNorm,
        line(1, 2),
        lambda w: nn.Conv1d(w, w, 15, padding=7, groups=w),
        nn.BatchNorm1d,
        line(),
    ),
    "squeeze_tokens": on_tokens(lambda f, g, x: x * torch.sigmoid(g(torch.relu(f(x.mean(1)))))[:, None], line(), line()),
    "low_rank_gate": on_tokens(
        lambda f, g, x: x * torch.sigmoid(g(f(x))), lambda w: nn.Linear(w, 16), lambda w: nn.Linear(16, w)
    ),
    "weight_normed": on_tokens(lambda f, x: f(x), lambda w: parametrizations.weight_norm(nn.Linear(w, w))),
    "layer_norm_images": on_images(lambda n, x: n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm),
    "pixel_norm": on_images(lambda x: x * (x.pow(2).mean(1, keepdim=True) + 1e-8).rsqrt()),
    "style_norm": on_images(
        lambda f, x: functional.instance_norm(x) * f(x.mean((2, 3)))[:, :, None, None] + x.amax((2, 3), keepdim=True), line()
    ),
    "response_norm": on_images(response_norm, conv(1, 4), lambda c: nn.Conv2d(4 * c, c, 1)),
    "weight_standard": on_images(weighted_standard, conv()),
    "conv_grouped": on_images(lambda f, x: torch.relu(f(x)), conv(groups=8)),
    "conv_dilated": on_images(lambda f, x: torch.relu(f(x)), conv(dilation=2)),
    "conv_same": on_images(lambda f, x: f(x), lambda c: nn.Conv2d(c, c, 5, padding="same")),
    "conv_circular": on_images(lambda f, x: f(x), lambda c: nn.Conv2d(c, c, 3, padding=1, padding_mode="circular")),
    "conv_residual": on_images(lambda f, b, x: torch.relu(b(f(x)) + x), conv(bias=False), nn.BatchNorm2d),
    "conv_prelu_pair": on_images(lambda f, p, g, x: x + 0.1 * g(p(f(x))), conv(), nn.PReLU, conv()),
    "conv_1x1_pair": on_images(lambda f, g, x: g(torch.relu(f(x))), conv(1, 4), lambda c: nn.Conv2d(4 * c, c, 1)),
    "conv_1x1_bn_swish": on_images(lambda f, b, x: functional.silu(b(f(x))), conv(1, bias=False), nn.BatchNorm2d),
    "conv_depthwise_bn_relu6": on_images(lambda f, b, x: functional.relu6(b(f(x))), conv(each=True, bias=False), nn.BatchNorm2d),
    "conv_depthwise_large": on_images(lambda f, x: f(x), conv(7, each=True)),
    "conv_patches": on_images(
        lambda f, x: f(x).flatten(2).transpose(1, 2), lambda c: nn.Conv2d(c, 384, 8, 8), channels=16, size=224
    ),
    "conv_downsample": on_images(
        lambda f, b, x: torch.relu(b(f(x))), conv(3, 2, stride=2, bias=False), lambda c: nn.BatchNorm2d(2 * c)
    ),
    "conv_group_norm_silu": on_images(lambda f, g, x: f(functional.silu(g(x))), conv(), lambda c: nn.GroupNorm(4, c)),
    "conv_hard_swish_scale": on_images(
        lambda f, g, x: functional.hardswish(f(x)) * torch.sigmoid(g(x.mean((2, 3), keepdim=True))), conv(1), conv(1)
    ),
    "conv_half_resolution": on_images(lambda f, x: f(functional.interpolate(x, scale_factor=2)), conv()),
    "dilated_pyramid": on_images(
        lambda a, b, c, d, x: d(torch.cat((a(x), b(x), c(x), x.mean((2, 3), keepdim=True).expand_as(x)), 1)),
        conv(1),
        conv(dilation=2),
        conv(dilation=4),
        lambda c: nn.Conv2d(4 * c, c, 1),
    ),
    "residual_dense": on_images(
        lambda a, b, c, x: x + 0.2 * c(torch.cat((x, y := torch.relu(a(x)), torch.relu(b(torch.cat((x, y), 1)))), 1)),
        conv(),
        lambda c: nn.Conv2d(2 * c, c, 3, padding=1),
        lambda c: nn.Conv2d(3 * c, c, 1),
    ),
    "block_attention": on_images(block_attention, conv(1, bias=False), lambda c: nn.Conv2d(2, 1, 7, padding=3)),
    "non_local": on_images(non_local, conv(1), conv(1), conv(1), size=28),
    "sub_pixel": on_images(lambda f, x: functional.pixel_shuffle(f(x), 2), conv(3, 4), size=28),
    "masked_conv": on_images(
        lambda f, x: functional.conv2d(x, f.weight * torch.ones_like(f.weight[0, 0]).tril(), f.bias, padding=1), conv()
    ),
    "segment": on_images(lambda f, x: f(x).softmax(1).argmax(1), lambda c: nn.Conv2d(c, 21, 1)),
    "max_blur": on_images(lambda x: functional.avg_pool2d(functional.max_pool2d(x, 2, 1), 2)),
    "pool_concat": on_images(lambda x: torch.cat([functional.adaptive_avg_pool2d(x, n).flatten(1) for n in (1, 2, 4)], 1)),
    "wave_net": on_signal(
        gated_wave,
        lambda c: nn.Conv1d(c, c, 3, padding=2, dilation=2),
        lambda c: nn.Conv1d(c, c, 3, padding=2, dilation=2),
        lambda c: nn.Conv1d(c, c, 1),
    ),
    "causal_conv": on_signal(lambda f, x: functional.silu(f(functional.pad(x, (3, 0)))), lambda c: nn.Conv1d(c, c, 4, groups=c)),
    "temporal_block": on_signal(lambda f, b, x: torch.relu(b(f(x)) + x), lambda c: nn.Conv1d(c, c, 3, padding=1), nn.BatchNorm1d),
    "text_conv": on_signal(
        lambda a, b, c, x: torch.cat([torch.relu(f(x)).amax(-1) for f in (a, b, c)], 1),
        *(lambda c, k=k: nn.Conv1d(c, 100, k) for k in (3, 4, 5)),
        length=128,
        channels=128,
    ),
    "conv_1d_pool": on_signal(lambda f, x: functional.max_pool1d(torch.relu(f(x)), 4), lambda c: nn.Conv1d(c, c, 9, padding=4)),
    "capsules": fn(routed, (64, 256, 10, 16), small=((2, 6, 3, 4),)),
    "sinkhorn": fn(balanced, (32, 256, 256)),
    "nearest_code": fn(nearest, (1024, 64), (8192, 64), small=((9, 4), (7, 4))),
    "box_overlaps": fn(overlaps, (1024, 4), (2048, 4), small=((5, 4), (7, 4))),
    "contrast": fn(contrast, (1024, 512), (1024, 512)),
    "field_pairs": fn(interact, (2048, 27, 64), small=((3, 5, 4),)),
    "factorization": fn(lambda x: 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(-1), (4096, 39, 16)),
    "modulated_conv": fn(modulated, (8, 64, 32, 32), (64, 64, 3, 3), (8, 64), small=((2, 4, 6, 6), (3, 4, 3, 3), (2, 4))),
    "chunked_scan": fn(
        chunked_scan, (8, 256, 64), (8, 256), (8, 256, 16), (8, 256, 16), small=((2, 8, 6), (2, 8), (2, 8, 3), (2, 8, 3))
    ),
    "kernel_matrix": fn(lambda x, y: torch.exp(-(x[:, None] - y).pow(2).sum(-1)), (512, 64), (512, 64)),
    "gram_style": fn(lambda x: (y := x.flatten(2)) @ y.transpose(1, 2) / y.shape[-1], (16, 128, 64, 64)),
    "orthogonal_penalty": fn(lambda w: (w @ w.T - torch.eye(w.shape[0], device=w.device)).pow(2).sum(), (512, 1024)),
    "bilinear_pool": fn(
        lambda x, y: functional.normalize(torch.einsum("bci,bdi->bcd", x, y).flatten(1)), (16, 128, 196), (16, 128, 196)
    ),
    "relative_places": fn(
        lambda q, r: torch.einsum("bhqd,qkd->bhqk", q, r), (8, 8, 128, 64), (128, 128, 64), small=((2, 2, 5, 4), (5, 6, 4))
    ),
    "gradient_step": fn(
        lambda w, x, y: w - 0.1 * x.T @ (x @ w - y) / x.shape[0],
        (512, 64),
        (4096, 512),
        (4096, 64),
        small=((6, 3), (9, 6), (9, 3)),
    ),
    "momentum_step": fn(
        lambda p, g, m, v: (p - 1e-3 * (a := 0.9 * m + 0.1 * g) / ((b := 0.99 * v.abs() + 0.01 * g * g).sqrt() + 1e-8), a, b),
        *((4096, 1024),) * 4,
    ),
    "euler_steps": fn(lambda x, w: [x := x + 0.1 * torch.tanh(x @ w) for _ in range(4)][-1], (1024, 256), (256, 256)),
    "power_iteration": fn(
        lambda w, v: [v := functional.normalize(w.T @ (w @ v), dim=0) for _ in range(3)][-1], (1024, 1024), (1024,)
    ),
    "forward_variables": fn(
        lambda e, t: [a := e[:, 0]] and [a := (a[:, :, None] + t).logsumexp(1) + e[:, i] for i in range(1, 6)][-1],
        (256, 6, 64),
        (64, 64),
    ),
    "gru_two_ways": scaled(
        lambda n: (
            nn.GRU(n(128, 6), n(128, 8), 2, bidirectional=True, batch_first=True),
            (torch.randn(n(16, 2), n(64, 3), n(128, 6)),),
        )
    ),
    "lstm_projected": scaled(
        lambda n: (nn.LSTM(n(128, 6), n(256, 8), proj_size=n(64, 4)), (torch.randn(n(64, 3), n(16, 2), n(128, 6)),))
    ),
    "decode_cached": scaled(
        lambda n: (
            Fn(functional.scaled_dot_product_attention),
            (
                torch.randn(n(8, 2), n(16, 2), 1, n(64, 16)),
                *(torch.randn(n(8, 2), n(16, 2), n(2048, 12), n(64, 16)) for _ in range(2)),
            ),
        )
    ),
}
