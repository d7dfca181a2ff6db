"""Blocks of published networks of images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.users import call


def bottleneck_gates(channel, spatial, x: Tensor) -> Tensor:
    """BAM: a gate of channels and a gate of places, added before the sigmoid."""
    return x * (1 + torch.sigmoid(channel(x.mean((2, 3)))[:, :, None, None] + spatial(x)))


class ChannelResiduals(nn.Module):
    """RCAN: residual blocks with channel attention in a group with a skip."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2 * blocks + 1))
        self.squeeze = nn.ModuleList(nn.Conv2d(width, max(width // 16, 1), 1) for _ in range(blocks))
        self.excite = nn.ModuleList(nn.Conv2d(max(width // 16, 1), width, 1) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, (s, e) in enumerate(zip(self.squeeze, self.excite, strict=True)):
            h = self.convs[2 * i + 1](functional.relu(self.convs[2 * i](y)))
            y = y + h * torch.sigmoid(e(functional.relu(s(functional.adaptive_avg_pool2d(h, 1)))))
        return x + self.convs[-1](y)


class MultiScaleKernels(nn.Module):
    """MAN: three groups of channels, each with a large kernel taken apart and a gate of its own size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w = width // 3
        self.first, self.last, self.scale = (
            nn.Conv2d(width, 2 * width, 1),
            nn.Conv2d(width, width, 1),
            nn.Parameter(torch.ones(width, 1, 1)),
        )
        sizes_of = ((3, 5, 2), (5, 7, 3), (7, 9, 4))
        self.gates = nn.ModuleList(nn.Conv2d(w, w, k, padding=k // 2, groups=w) for k, _, _ in sizes_of)
        self.large = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(w, w, a, padding=a // 2, groups=w),
                nn.Conv2d(w, w, b, padding=b // 2 * d, groups=w, dilation=d),
                nn.Conv2d(w, w, 1),
            )
            for a, b, d in sizes_of
        )

    def forward(self, x: Tensor) -> Tensor:
        a, y = self.first(functional.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)).chunk(2, 1)
        a = torch.cat([large(p) * gate(p) for p, large, gate in zip(a.chunk(3, 1), self.large, self.gates, strict=True)], 1)
        return x + self.last(y * a) * self.scale


def inception_depthwise(square, across, along, norm, up, down, gamma: Tensor, x: Tensor) -> Tensor:
    """InceptionNeXt: most channels pass, the others have a square and two bands; then a feed-forward."""
    g = square.in_channels
    rest, a, b, c = x.split([x.shape[1] - 3 * g, g, g, g], 1)
    y = norm(torch.cat([rest, square(a), across(b), along(c)], 1))
    return x + gamma.view(1, -1, 1, 1) * down(functional.gelu(up(y)))


class StarBlock(nn.Module):
    """StarNet: two branches multiplied between depthwise convolutions."""

    def __init__(self, width: int, ratio: int = 3) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.BatchNorm2d(width))
        self.f, self.g = nn.Conv2d(width, ratio * width, 1), nn.Conv2d(width, ratio * width, 1)
        self.mix = nn.Sequential(nn.Conv2d(ratio * width, width, 1), nn.BatchNorm2d(width))
        self.after = nn.Conv2d(width, width, 7, 1, 3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        return x + self.after(self.mix(functional.relu6(self.f(y)) * self.g(y)))


def universal_bottleneck(n) -> nn.Module:
    """MobileNetV4: a depthwise convolution before the expansion, and one in it that halves."""
    i, h, o = n(48, 4), n(192, 8), n(96, 6)
    dw = (nn.Conv2d(i, i, 3, padding=1, groups=i, bias=False), nn.BatchNorm2d(i))
    up = (nn.Conv2d(i, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU())
    middle = (nn.Conv2d(h, h, 5, 2, 2, groups=h, bias=False), nn.BatchNorm2d(h), nn.ReLU())
    return nn.Sequential(*dw, *up, *middle, nn.Conv2d(h, o, 1, bias=False), nn.BatchNorm2d(o))


class CascadedHeads(nn.Module):
    """EfficientViT: each head gets a slice of channels, and what the head before gave."""

    def __init__(self, width: int, heads: int, key: int) -> None:
        super().__init__()
        self.d, self.key = width // heads, key
        self.qkv = nn.ModuleList(nn.Conv2d(self.d, 2 * key + self.d, 1) for _ in range(heads))
        self.local = nn.ModuleList(nn.Conv2d(key, key, k, padding=k // 2, groups=key) for k in (7, 5, 3, 3)[:heads])
        self.project = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        done, y = [], torch.zeros_like(x[:, : self.d])
        for part, qkv, local in zip(x.chunk(len(self.qkv), 1), self.qkv, self.local, strict=True):
            q, k, v = qkv(part + y).split([self.key, self.key, self.d], 1)
            q = local(q)
            w = (q.flatten(2).transpose(1, 2) @ k.flatten(2) * self.key**-0.5).softmax(-1)
            y = (v.flatten(2) @ w.transpose(1, 2)).view_as(v)
            done.append(y)
        return x + self.project(torch.cat(done, 1))


def phase_tokens(theta, amplitude, mix, project, x: Tensor) -> Tensor:
    """Wave-MLP along the rows: tokens are waves, and neighbours add by their phase."""
    p, a = theta(x), amplitude(x)
    return x + project(mix(torch.cat([a * torch.cos(p), a * torch.sin(p)], 1)))


def axial_shift(first, second, last, norm, x: Tensor) -> Tensor:
    """AS-MLP: groups of channels shift by -2 to 2 along one axis, then the other; nothing comes in at the edges."""

    def shifted(y: Tensor, axis: int) -> Tensor:
        parts = functional.pad(y, (2, 2, 2, 2)).chunk(5, 1)
        moved = torch.cat([torch.roll(p, s, axis) for p, s in zip(parts, range(-2, 3), strict=True)], 1)
        return moved[:, :, 2:-2, 2:-2]

    y = functional.gelu(norm(first(x)))
    return x + last(norm(functional.gelu(second(shifted(y, 2))) + functional.gelu(second(shifted(y, 3)))))


def adaptive_filters(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, x: Tensor) -> Tensor:
    """AFNO: a small network by blocks of channels on every frequency, then a soft threshold."""

    def product(r: Tensor, i: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        def of(t: Tensor, u: Tensor) -> Tensor:
            return torch.einsum("bhwkd,kde->bhwke", t, u)

        return of(r, w[0]) - of(i, w[1]) + b[0], of(i, w[0]) + of(r, w[1]) + b[1]

    z = torch.fft.rfft2(x.float(), dim=(1, 2), norm="ortho").unflatten(-1, (w1.shape[1], -1))
    r, i = product(z.real.to(x.dtype), z.imag.to(x.dtype), w1, b1)
    y = torch.stack(product(functional.relu(r), functional.relu(i), w2, b2), -1)
    y = torch.view_as_complex(functional.softshrink(y, 0.01).float().contiguous()).flatten(-2)
    return x + torch.fft.irfft2(y, s=x.shape[1:3], dim=(1, 2), norm="ortho").to(x.dtype)


def deeplab_decoder(reduce, refine, head, deep: Tensor, early: Tensor) -> Tensor:
    y = functional.interpolate(deep, size=early.shape[2:], mode="bilinear", align_corners=False)
    y = head(refine(torch.cat([y, reduce(early)], 1)))
    return functional.interpolate(y, scale_factor=4, mode="bilinear", align_corners=False)


def dual_attention(q, k, v, alpha: Tensor, beta: Tensor, x: Tensor) -> Tensor:
    """DANet: places attend to places, channels to channels."""
    flat = x.flatten(2)
    w = torch.softmax(torch.bmm(q(x).flatten(2).transpose(1, 2), k(x).flatten(2)), -1)
    places = torch.bmm(v(x).flatten(2), w.transpose(1, 2)).view_as(x)
    energy = torch.bmm(flat, flat.transpose(1, 2)) / math.sqrt(flat.shape[-1])
    channels = torch.bmm(torch.softmax(energy.amax(-1, keepdim=True) - energy, -1), flat).view_as(x)
    return (alpha * places + x) + (beta * channels + x)


def area_attention(qkv, place, project, x: Tensor, areas: int) -> Tensor:
    """YOLOv12: attention within stripes of an image, places by a depthwise convolution of the values."""
    b, c, h, w = x.shape
    q, k, v = (t.view(b, 4, c // 4, areas, -1).permute(0, 3, 1, 4, 2) for t in qkv(x).chunk(3, 1))
    y = functional.scaled_dot_product_attention(q, k, v).permute(0, 2, 4, 1, 3).reshape(b, c, h, w)
    return x + project(y + place(v.permute(0, 2, 4, 1, 3).reshape(b, c, h, w)))


def decomposed_positions(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    """SAM's encoder: bias of scores by products of queries with tables of distances along rows and columns."""
    at = torch.arange(side, device=q.device)
    at = at[:, None] - at[None, :] + side - 1
    r = q.unflatten(1, (side, side))
    up = torch.einsum("bhwc,hkc->bhwk", r, rows[at])
    right = torch.einsum("bhwc,wkc->bhwk", r, columns[at])
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    scores = scores.view(-1, side, side, side, side) + up[..., :, None] + right[..., None, :]
    return scores.view(-1, side * side, side * side).softmax(-1) @ v


def dpt_fusion(one, two, out, deep: Tensor, skip: Tensor) -> Tensor:
    """Depth by transformers: two residual units, a larger image, a projection."""

    def unit(f, x: Tensor) -> Tensor:
        return x + f[1](functional.relu(f[0](functional.relu(x))))

    y = unit(two, deep + unit(one, skip))
    return out(functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True))


def causal_video(norms, convs, x: Tensor) -> Tensor:
    """A video autoencoder: frames see no later ones; normed over channels, then SiLU, then a convolution; twice."""
    y = x
    for gamma, conv in zip(norms, convs, strict=True):
        y = functional.normalize(y, dim=1) * x.shape[1] ** 0.5 * gamma.weight.view(-1, 1, 1, 1)
        y = conv(functional.pad(functional.silu(y), (1, 1, 1, 1, 2, 0)))
    return x + y


def pointwise(i, o, **more):
    return lambda n: nn.Conv2d(n(*i), n(*o), 1, **more)


def three(i, o, **more):
    return lambda n: nn.Conv2d(n(*i), n(*o), 3, padding=1, **more)


def run(m, *inputs):
    return m(*inputs)


C, SIDE = (128, 16), (14, 3)
CASES: dict[str, Case] = {
    "bottleneck_gates": call(
        bottleneck_gates,
        ((32, 2), (256, 16), (56, 6), (56, 5)),
        parts=(
            lambda n: nn.Sequential(
                *(nn.Linear(n(256, 16), n(16, 4)), nn.BatchNorm1d(n(16, 4)), nn.ReLU(), nn.Linear(n(16, 4), n(256, 16)))
            ),
            lambda n: nn.Sequential(
                *(nn.Conv2d(n(256, 16), n(16, 4), 1), nn.BatchNorm2d(n(16, 4)), nn.ReLU()),
                *(nn.Conv2d(n(16, 4), n(16, 4), 3, padding=4, dilation=4), nn.BatchNorm2d(n(16, 4)), nn.ReLU()),
                nn.Conv2d(n(16, 4), 1, 1),
            ),
        ),
    ),
    "channel_residuals": call(run, ((8, 1), (64, 16), (96, 6), (96, 7)), parts=(lambda n: ChannelResiduals(n(64, 16), n(4, 1)),)),
    "multi_scale_kernels": call(run, ((4, 1), (180, 6), (64, 8), (64, 7)), parts=(lambda n: MultiScaleKernels(n(180, 6)),)),
    "inception_depthwise": call(
        inception_depthwise,
        *((C,), ((32, 2), C, (56, 6), (56, 7))),
        parts=(
            *(lambda n: nn.Conv2d(n(16, 2), n(16, 2), 3, padding=1, groups=n(16, 2)),),
            lambda n: nn.Conv2d(n(16, 2), n(16, 2), (1, 11), padding=(0, 5), groups=n(16, 2)),
            lambda n: nn.Conv2d(n(16, 2), n(16, 2), (11, 1), padding=(5, 0), groups=n(16, 2)),
            *(lambda n: nn.BatchNorm2d(n(*C)), pointwise(C, (512, 24)), pointwise((512, 24), C)),
        ),
    ),
    "star_block": call(run, ((64, 2), (96, 4), (28, 5), (28, 6)), parts=(lambda n: StarBlock(n(96, 4)),)),
    "universal_bottleneck": call(run, ((64, 2), (48, 4), (56, 6), (56, 8)), parts=(universal_bottleneck,)),
    "cascaded_heads": call(run, ((64, 2), C, SIDE, SIDE), parts=(lambda n: CascadedHeads(n(*C), n(4, 2), n(16, 4)),)),
    "phase_tokens": call(
        phase_tokens,
        ((32, 2), C, (28, 5), (28, 7)),
        parts=(
            lambda n: nn.Sequential(nn.Conv2d(n(*C), n(*C), 1), nn.BatchNorm2d(n(*C)), nn.ReLU()),
            pointwise(C, C, bias=False),
            lambda n: nn.Conv2d(2 * n(*C), n(*C), (1, 7), padding=(0, 3), groups=n(*C), bias=False),
            pointwise(C, C),
        ),
    ),
    "axial_shift": call(
        axial_shift,
        ((32, 2), (100, 10), (56, 5), (56, 6)),
        parts=(
            *(pointwise((100, 10), (100, 10)),) * 3,
            lambda n: nn.GroupNorm(1, n(100, 10)),
        ),
    ),
    "adaptive_filters": call(
        adaptive_filters,
        *((2, 8, (96, 2), (96, 2)), (2, 8, (96, 2)), (2, 8, (96, 2), (96, 2)), (2, 8, (96, 2))),
        ((4, 1), (90, 5), (180, 6), (768, 16)),
    ),
    "deeplab_decoder": call(
        deeplab_decoder,
        *(((8, 1), (256, 8), (33, 3), (33, 3)), ((8, 1), (256, 6), (129, 9), (129, 9))),
        parts=(
            lambda n: nn.Sequential(nn.Conv2d(n(256, 6), n(48, 4), 1, bias=False), nn.BatchNorm2d(n(48, 4)), nn.ReLU()),
            lambda n: nn.Sequential(
                nn.Conv2d(n(256, 8) + n(48, 4), n(128, 6), 3, padding=1, bias=False), nn.BatchNorm2d(n(128, 6)), nn.ReLU()
            ),
            pointwise((128, 6), (21, 5)),
        ),
    ),
    "dual_attention": call(
        dual_attention,
        *((1,), (1,), ((8, 2), (256, 16), (48, 4), (48, 5))),
        parts=(pointwise((256, 16), (32, 4)), pointwise((256, 16), (32, 4)), pointwise((256, 16), (256, 16))),
    ),
    "area_attention": call(
        area_attention,
        *(((16, 1), C, (40, 4), (40, 5)), 4),
        parts=(
            pointwise(C, (384, 48), bias=False),
            lambda n: nn.Conv2d(n(*C), n(*C), 7, padding=3, groups=n(*C)),
            pointwise(C, C),
        ),
    ),
    "decomposed_positions": call(
        lambda q, k, v, rows, columns: decomposed_positions(q, k, v, rows, columns, (rows.shape[0] + 1) // 2),
        *(((48, 2), (1024, 9), (64, 8)),) * 3,
        *(((63, 5), (64, 8)), ((63, 5), (64, 8))),
    ),
    "dpt_fusion": call(
        dpt_fusion,
        *(((8, 1), (256, 8), (48, 4), (48, 5)), ((8, 1), (256, 8), (48, 4), (48, 5))),
        parts=(
            *(lambda n: nn.ModuleList(three((256, 8), (256, 8))(n) for _ in range(2)),) * 2,
            pointwise((256, 8), (128, 6)),
        ),
    ),
    "causal_video": call(
        causal_video,
        ((1, 1), (128, 6), (9, 3), (96, 5), (96, 6)),
        parts=(
            lambda n: nn.ModuleList(nn.RMSNorm(n(128, 6)) for _ in range(2)),
            lambda n: nn.ModuleList(nn.Conv3d(n(128, 6), n(128, 6), 3) for _ in range(2)),
        ),
    ),
}
