"""What networks on images put in the place of a convolution or of attention, and filters written by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.images import IMAGE
from experiments.suite.more.images import SMALL
from experiments.suite.more.images import bn
from experiments.suite.more.images import conv
from experiments.suite.more.images import line_of
from experiments.suite.more.images import linear
from experiments.suite.more.images import norm
from experiments.suite.users import call
from experiments.suite.users import whole


def upfirdn(kernel: Tensor, x: Tensor) -> Tensor:
    """StyleGAN's: zeros between pixels, a filter, every second pixel."""
    b, c, h, w = x.shape
    y = functional.pad(x.reshape(b, c, h, 1, w, 1), [0, 1, 0, 0, 0, 1]).reshape(b, c, 2 * h, 2 * w)
    y = functional.pad(y, [2, 1, 2, 1])
    f = torch.outer(kernel, kernel)
    y = functional.conv2d(y, (f / f.abs().sum()).flip([0, 1])[None, None].repeat(c, 1, 1, 1) * 4, groups=c)
    return (functional.leaky_relu(y, 0.2) * math.sqrt(2)).clamp(-256, 256)[:, :, ::2, ::2]


def noisy_layer(c, noise: Tensor, strength: Tensor, bias: Tensor, style: Tensor, x: Tensor) -> Tensor:
    y = torch.addcmul(c(x * style[:, :, None, None]), noise, strength)
    return functional.leaky_relu(y + bias.view(1, -1, 1, 1), negative_slope=0.2).mul_(math.sqrt(2))


def batch_deviation(x: Tensor) -> Tensor:
    """A discriminator's extra channel: how far images of a group differ."""
    n, c, h, w = x.shape
    groups = 4 if n % 4 == 0 else 2
    y = x.reshape(groups, -1, 1, c, h, w)
    y = (y - y.mean(dim=0)).square().mean(dim=0).add(1e-8).sqrt().mean(dim=[2, 3, 4])
    return torch.cat([x, y.reshape(-1, 1, 1, 1).repeat(groups, 1, h, w)], dim=1)


def spade(shared, gamma, beta, x: Tensor, segments: Tensor) -> Tensor:
    plane = functional.one_hot(segments, 8).permute(0, 3, 1, 2).to(x.dtype)
    plane = functional.interpolate(plane, size=x.size()[2:], mode="nearest")
    y = functional.relu(shared(plane))
    return functional.instance_norm(x) * (1 + gamma(y)) + beta(y)


def with_coordinates(c, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    ys = torch.arange(h, dtype=x.dtype, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w) / (h - 1) * 2 - 1
    xs = torch.arange(w, dtype=x.dtype, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w) / (w - 1) * 2 - 1
    return functional.relu6(c(torch.cat([x, xs, ys, (xs.pow(2) + ys.pow(2)).sqrt()], dim=1)), inplace=True)


def involution(reduce, span, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    groups = 4 if c > 8 else 2
    kernel = span(functional.relu(reduce(x))).view(b, groups, 9, h, w).unsqueeze(2)
    around = functional.unfold(x, 3, padding=1).view(b, groups, c // groups, 9, h, w)
    return (kernel * around).sum(dim=3).view(b, c, h, w)


def mixed_kernels(router, weights: Tensor, x: Tensor) -> Tensor:
    """CondConv: each image has a kernel of its own, mixed from those of experts."""
    b, c, h, w = x.shape
    route = torch.sigmoid(router(functional.adaptive_avg_pool2d(x, 1).flatten(1)))
    mine = torch.matmul(route, weights.flatten(1)).view(b * weights.shape[1], c, 3, 3)
    return functional.conv2d(x.reshape(1, b * c, h, w), mine, padding=1, groups=b).view(b, -1, h, w)


def lambda_layer(q, k, v, places, x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    q = q(x).view(b, 4, -1, h * w)
    k, v = k(x).view(b, -1, h * w).softmax(dim=-1), v(x).view(b, -1, h * w)
    content = torch.einsum("bkm,bvm->bkv", k, v)
    y = torch.einsum("bhkn,bkv->bhvn", q, content)
    local = places(v.view(b, 1, -1, h, w)).flatten(3)
    return (y + torch.einsum("bhkn,bkvn->bhvn", q, local)).reshape(b, -1, h, w)


def halo(qkv, out, x: Tensor) -> Tensor:
    """Blocks of queries see their keys and a rim around."""
    b, c, h, w = x.shape
    side, rim = (14, 2) if h % 14 == 0 else (4, 1)
    q, k, v = qkv(x).chunk(3, 1)
    q = functional.unfold(q, side, stride=side).view(b, c, side * side, -1).permute(0, 3, 2, 1)
    k, v = (
        functional.unfold(z, side + 2 * rim, stride=side, padding=rim).view(b, c, (side + 2 * rim) ** 2, -1).permute(0, 3, 2, 1)
        for z in (k, v)
    )
    y = ((q * c**-0.5) @ k.transpose(-1, -2)).softmax(-1) @ v
    return out(functional.fold(y.permute(0, 3, 2, 1).flatten(1, 2), (h, w), side, stride=side))


def outlook(v, attn, out, x: Tensor) -> Tensor:
    """VOLO's: weights of nine neighbours by one linear layer, put together by fold."""
    b, h, w, c = x.shape
    heads = 4 if c > 8 else 2
    values = functional.unfold(v(x).permute(0, 3, 1, 2), 3, padding=1)
    values = values.reshape(b, heads, c // heads, 9, h * w).permute(0, 1, 4, 3, 2)
    weights = attn(x).reshape(b, h * w, heads, 9, 9).permute(0, 2, 1, 3, 4)
    y = ((weights * (c // heads) ** -0.5).softmax(dim=-1) @ values).permute(0, 1, 4, 3, 2).reshape(b, c * 9, h * w)
    return out(functional.fold(y, output_size=(h, w), kernel_size=3, padding=1).permute(0, 2, 3, 1))


def focal_modulation(f, first, second, h, out, x: Tensor) -> Tensor:
    c = x.shape[-1]
    q, context, gates = torch.split(f(x).permute(0, 3, 1, 2), (c, c, 3), 1)
    total = 0
    for i, layer in enumerate((first, second)):
        context = functional.gelu(layer(context))
        total = total + context * gates[:, i : i + 1]
    whole_image = functional.gelu(context.mean(2, keepdim=True).mean(3, keepdim=True))
    total = total + whole_image * gates[:, 2:]
    return out((q * h(total)).permute(0, 2, 3, 1).contiguous())


def recursive_gates(to, depth, a, b, last, x: Tensor) -> Tensor:
    """HorNet's."""
    c = x.shape[1]
    y, rest = torch.split(to(x), (c // 4, c + c // 2 + c // 4), dim=1)
    one, two, three = torch.split(depth(rest) * 0.3, (c // 4, c // 2, c), dim=1)
    y = a(y * one) * two
    return last(b(y) * three)


def large_kernel(to, near, far, point, out, scale: Tensor, x: Tensor) -> Tensor:
    """VAN's attention by two depthwise convolutions."""
    u = functional.gelu(to(x))
    return x + scale[:, None, None] * (out(u * point(far(near(u)))) + x)


def levit(qkv, nq, out, bias: Tensor, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    y = nq(qkv(x).flatten(0, 1)).view(b, n, 4, -1)
    d = y.shape[-1] // 4
    q, k, v = y.split([d, d, 2 * d], dim=3)
    q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
    y = ((q @ k) * d**-0.5 + bias).softmax(dim=-1) @ v
    return out(functional.hardswish(y.transpose(1, 2).reshape(b, n, -1)))


def reduced_keys(q, kv, reduce, after, out, x: Tensor) -> Tensor:
    """PVT's: keys of a smaller image."""
    b, n, c = x.shape
    side, heads = math.isqrt(n), 2
    small = after(reduce(x.permute(0, 2, 1).reshape(b, c, side, side)).reshape(b, c, -1).permute(0, 2, 1))
    k, v = kv(small).reshape(b, -1, 2, heads, c // heads).permute(2, 0, 3, 1, 4)
    q = q(x).reshape(b, n, heads, c // heads).permute(0, 2, 1, 3)
    weights = (q @ k.transpose(-2, -1)) * (c // heads) ** -0.5
    return out((weights.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c))


def shifted_in_time(c, n, x: Tensor) -> Tensor:
    """TSM: an eighth of the channels comes from the frame before, one from that behind."""
    nt, ch, h, w = x.size()
    y = x.view(nt // 4, 4, ch, h, w)
    fold = ch // 8
    out = torch.zeros_like(y)
    out[:, :-1, :fold] = y[:, 1:, :fold]
    out[:, 1:, fold : 2 * fold] = y[:, :-1, fold : 2 * fold]
    out[:, :, 2 * fold :] = y[:, :, 2 * fold :]
    return functional.relu(n(c(out.view(nt, ch, h, w))) + x)


def octave(hh, hl, lh, ll, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    up = hh(high) + functional.interpolate(lh(low), scale_factor=2)
    return up, ll(low) + hl(functional.avg_pool2d(high, 2, 2))


def mixed_operators(sep, dil, n1, n2, alpha: Tensor, x: Tensor) -> Tensor:
    """DARTS: a sum of all operators, weighed."""
    weights = functional.softmax(alpha, dim=-1)
    parts = [
        torch.zeros_like(x),
        functional.max_pool2d(x, 3, stride=1, padding=1),
        functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False),
        x,
        n1(sep(functional.relu(x))),
        n2(dil(functional.relu(x))),
    ]
    return sum(w * p for w, p in zip(weights, parts, strict=True))


def wavelet(c, x: Tensor) -> Tensor:
    """Haar's there and back around a convolution."""
    a, b, d, e = x[:, :, 0::2, 0::2], x[:, :, 1::2, 0::2], x[:, :, 0::2, 1::2], x[:, :, 1::2, 1::2]
    y = torch.cat([a + b + d + e, -a - b + d + e, -a + b - d + e, a - b - d + e], 1) / 2
    y1, y2, y3, y4 = functional.relu(c(y)).chunk(4, dim=1)
    out = torch.zeros_like(x)
    out[:, :, 0::2, 0::2] = y1 - y2 - y3 + y4
    out[:, :, 1::2, 0::2] = y1 - y2 + y3 - y4
    out[:, :, 0::2, 1::2] = y1 + y2 - y3 - y4
    out[:, :, 1::2, 1::2] = y1 + y2 + y3 + y4
    return out / 2


def jpeg(dct: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Blocks of eight by eight, their cosines rounded and turned back."""
    b, h, w = x.shape
    blocks = (x.sigmoid() * 255 - 128).unfold(1, 8, 8).unfold(2, 8, 8)
    coefficients = torch.einsum("ij,bhwjk,lk->bhwil", dct, blocks, dct) / table
    coefficients = (coefficients.round() + (coefficients - coefficients.round()) ** 3) * table
    y = torch.einsum("ji,bhwjk,kl->bhwil", dct, coefficients, dct)
    return (y.permute(0, 1, 3, 2, 4).reshape(b, h, w) + 128).clamp(0, 255)


def cosines() -> Tensor:
    k = torch.arange(8.0)
    return torch.cos((2 * k[None] + 1) * k[:, None] * math.pi / 16) * torch.where(k == 0, 0.125**0.5, 0.5)[:, None]


def hue(x: Tensor) -> Tensor:
    """RGB to HSV, with kornia's choices."""
    x = x.sigmoid()
    most, which = x.max(1)
    span = most - x.amin(1)
    r, g, b = ((most - c) for c in x.unbind(1))
    safe = torch.where(span == 0, torch.ones_like(span), span)
    h = torch.stack((b - g, (r - b) + 2.0 * safe, (g - r) + 4.0 * safe), dim=1) / safe.unsqueeze(1)
    h = torch.gather(h, dim=1, index=which.unsqueeze(1)).squeeze(1)
    return torch.stack((2.0 * math.pi * ((h / 6.0) % 1.0), span / (most + 1e-6), most), dim=1)


def local_binary(x: Tensor) -> Tensor:
    """A bit for each neighbour that is brighter, and how often each pattern is met."""
    h, w = x.shape[-2:]
    y = functional.pad(x, (1, 1, 1, 1), mode="reflect")
    code = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for bit, (i, j) in enumerate(((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))):
        code += (y[..., i : i + h, j : j + w] >= x).long() << bit
    counts = torch.zeros(len(x), 256, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(1, code.flatten(1), torch.ones_like(code.flatten(1)))


def perceptual(lin, x: Tensor, y: Tensor) -> Tensor:
    """LPIPS, one layer."""
    x, y = (z / (z.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-10) for z in (x, y))
    return lin((x - y) ** 2).mean([2, 3], keepdim=True)


def depthwise(c: int, k: int, **more):
    return conv(c, c, k, groups=c, **more)


CASES: dict[str, Case] = {
    "upfirdn": call(upfirdn, lambda n: torch.tensor([1.0, 3.0, 3.0, 1.0]), IMAGE),
    "noisy_layer": call(
        noisy_layer, ((8, 2), 1, (56, 8), (56, 8)), (1,), ((64, 8),), ((8, 2), (64, 8)), IMAGE, parts=(conv(8, 8, 3, bias=False),)
    ),
    "batch_deviation": call(batch_deviation, ((16, 4), (64, 8), (32, 4), (32, 4))),
    "spade": call(
        spade,
        IMAGE,
        whole(8, (8, 2), (112, 12), (112, 12)),
        parts=(lambda n: nn.Conv2d(8, n(64, 8), 3, padding=1), conv(8, 8, 3), conv(8, 8, 3)),
    ),
    "with_coordinates": call(with_coordinates, IMAGE, parts=(lambda n: nn.Conv2d(n(64, 8) + 3, n(64, 8), 1),)),
    "involution": call(involution, IMAGE, parts=(conv(8, 2), lambda n: nn.Conv2d(n(16, 2), n(36, 18), 1))),
    "mixed_kernels": call(mixed_kernels, (4, (64, 8), (64, 8), 3, 3), IMAGE, parts=(lambda n: nn.Linear(n(64, 8), 4),)),
    "lambda_layer": call(
        lambda_layer,
        SMALL,
        parts=(
            lambda n: nn.Conv2d(n(128, 8), 4 * n(16, 4), 1, bias=False),
            lambda n: nn.Conv2d(n(128, 8), n(16, 4), 1, bias=False),
            lambda n: nn.Conv2d(n(128, 8), n(32, 2), 1, bias=False),
            lambda n: nn.Conv3d(1, n(16, 4), (1, 7, 7), padding=(0, 3, 3)),
        ),
    ),
    "halo_attention": call(halo, ((8, 2), (64, 8), (28, 8), (28, 8)), parts=(conv(8, 24, bias=False), conv(8, 8))),
    "outlook": call(
        outlook,
        ((4, 2), (28, 4), (28, 4), (64, 8)),
        parts=(linear(8, 8, bias=False), lambda n: nn.Linear(n(64, 8), 81 * n(4, 2)), linear(8, 8)),
    ),
    "focal_modulation": call(
        focal_modulation,
        ((8, 2), (28, 6), (28, 6), (64, 8)),
        parts=(
            lambda n: nn.Linear(n(64, 8), 2 * n(64, 8) + 3),
            depthwise(8, 3, bias=False),
            depthwise(8, 5, bias=False),
            conv(8, 8),
            linear(8, 8),
        ),
    ),
    "recursive_gates": call(recursive_gates, IMAGE, parts=(conv(8, 16), depthwise(14, 7), conv(2, 4), conv(4, 8), conv(8, 8))),
    "large_kernel": call(
        large_kernel,
        ((64, 8),),
        IMAGE,
        parts=(conv(8, 8), depthwise(8, 5), depthwise(8, 7, padding=9, dilation=3), conv(8, 8), conv(8, 8)),
    ),
    "levit": call(
        levit,
        (4, (196, 6), (196, 6)),
        ((16, 2), (196, 6), (128, 8)),
        parts=(
            lambda n: nn.Linear(n(128, 8), 4 * 4 * n(16, 4), bias=False),
            lambda n: nn.BatchNorm1d(4 * 4 * n(16, 4)),
            lambda n: nn.Linear(4 * 2 * n(16, 4), n(128, 8)),
        ),
    ),
    "reduced_keys": call(
        reduced_keys,
        ((4, 2), (3136, 64), (64, 8)),
        parts=(
            linear(8, 8),
            linear(8, 16),
            lambda n: nn.Conv2d(n(64, 8), n(64, 8), n(8, 2), stride=n(8, 2)),
            norm(8),
            linear(8, 8),
        ),
    ),
    "shifted_in_time": call(shifted_in_time, ((16, 8), (64, 8), (28, 5), (28, 5)), parts=(conv(8, 8, 3, bias=False), bn())),
    "octave": call(
        octave,
        ((8, 2), (32, 4), (56, 8), (56, 8)),
        ((8, 2), (32, 4), (28, 4), (28, 4)),
        parts=(conv(4, 4, 3), conv(4, 4, 3), conv(4, 4, 3), conv(4, 4, 3)),
    ),
    "mixed_operators": call(
        mixed_operators,
        (6,),
        ((8, 2), (32, 4), (32, 6), (32, 6)),
        parts=(
            line_of(depthwise(4, 3, bias=False), conv(4, 4, bias=False)),
            line_of(depthwise(4, 3, bias=False, padding=2, dilation=2), conv(4, 4, bias=False)),
            bn(4),
            bn(4),
        ),
    ),
    "wavelet": call(wavelet, ((8, 2), (16, 2), (112, 8), (112, 8)), parts=(conv(8, 8, 3),)),
    "jpeg": call(jpeg, lambda n: cosines(), lambda n: torch.rand(8, 8) * 40 + 10, ((16, 2), (256, 16), (256, 16))),
    "hue": call(hue, ((16, 2), 3, (224, 8), (224, 8))),
    "local_binary": call(local_binary, ((16, 2), (128, 8), (128, 8))),
    "perceptual": call(perceptual, *(((8, 2), (128, 8), (56, 6), (56, 6)),) * 2, parts=(lambda n: nn.Conv2d(n(128, 8), 1, 1),)),
}
