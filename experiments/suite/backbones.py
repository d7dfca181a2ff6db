"""Blocks of public image networks: backbones, necks, heads, restoration, generators, points and rays."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from experiments.suite.case import Case
from experiments.suite.case import N
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import last
from experiments.suite.users import whole

IMAGE = ((16, 2), (64, 8), (56, 8), (56, 8))
LATE = ((16, 2), (256, 16), (14, 6), (14, 6))
PICTURE = ((8, 2), 3, (128, 16), (128, 16))
WIDE = 64, 8
"""Channels of an image."""


def conv(i: int, o: int, kernel: int = 1, *, by: tuple[int, int] = WIDE, apart: bool = False, **more):
    """Its channels in multiples of ``by``; ``apart``: each of its own."""

    how = {"padding": kernel // 2, **more}

    def make(n: N) -> nn.Module:
        return nn.Conv2d(i * n(*by), o * n(*by), kernel, groups=i * n(*by) if apart else 1, **how)

    return make


def batch(i: int = 1, by: tuple[int, int] = WIDE):
    return lambda n: nn.BatchNorm2d(i * n(*by))


def several(*parts):
    return lambda n: nn.Sequential(*(p(n) for p in parts))


def plain(make, *given):
    return lambda n: make(*given)


# -- backbones ------------------------------------------------------------------------------------------------------------------


def fused_bottleneck(wide, norm, narrow, norm_2, x: Tensor) -> Tensor:
    """EfficientNetV2's first stages."""
    return x + norm_2(narrow(functional.silu(norm(wide(x)))))


def ghost(first, norm, cheap, norm_2, x: Tensor) -> Tensor:
    """GhostNet: half of the channels come of the other half."""
    half = functional.relu(norm(first(x)))
    return torch.cat((half, functional.relu(norm_2(cheap(half)))), 1)


def rep_vgg(wide, norm, one, norm_1, norm_0, x: Tensor) -> Tensor:
    """RepVGG while it is trained: three branches."""
    return functional.relu(norm(wide(x)) + norm_1(one(x)) + norm_0(x))


def hierarchical(a, b, c, x: Tensor) -> Tensor:
    """Res2Net's: each quarter sees the one before."""
    first, *parts = x.chunk(4, 1)
    found, before = [first], torch.zeros_like(first)
    for part, m in zip(parts, (a, b, c), strict=True):
        before = functional.relu(m(part + before))
        found.append(before)
    return torch.cat(found, 1)


def partial_stage(left, right, inner, out, x: Tensor) -> Tensor:
    """CSP's: half of the channels go past the blocks."""
    a, b = functional.silu(left(x)), functional.silu(right(x))
    return functional.silu(out(torch.cat((a, b + functional.silu(inner(b))), 1)))


def pooled_pyramid(down, up, x: Tensor) -> Tensor:
    """YOLO's SPPF."""
    x = functional.silu(down(x))
    a = functional.max_pool2d(x, 5, 1, 2)
    b = functional.max_pool2d(a, 5, 1, 2)
    return functional.silu(up(torch.cat((x, a, b, functional.max_pool2d(b, 5, 1, 2)), 1)))


def pool_mixer(norm, norm_2, mlp, x: Tensor) -> Tensor:
    """PoolFormer."""
    y = norm(x)
    x = x + functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
    return x + mlp(norm_2(x))


def partial_conv(spatial, mlp, x: Tensor) -> Tensor:
    """FasterNet: a quarter of the channels is convolved."""
    quarter = x.shape[1] // 4
    return x + mlp(torch.cat((spatial(x[:, :quarter]), x[:, quarter:]), 1))


def response_norm(depth, up, down, gain: Tensor, shift: Tensor, x: Tensor) -> Tensor:
    """ConvNeXt V2 with its global response normalization."""
    y = depth(x).permute(0, 2, 3, 1)
    y = functional.gelu(up(functional.layer_norm(y, (y.shape[-1],))))
    size = y.norm(p=2, dim=(1, 2), keepdim=True)
    y = gain * (y * size / (size.mean(-1, keepdim=True) + 1e-6)) + shift + y
    return x + down(y).permute(0, 3, 1, 2)


def conv_mixer(depth, norm, one, norm_2, x: Tensor) -> Tensor:
    x = x + norm(functional.gelu(depth(x)))
    return norm_2(functional.gelu(one(x)))


def grid_attention(qkv, x: Tensor) -> Tensor:
    """MaxViT's: pixels that are far from each other."""
    b, c, h, w = x.shape
    g = 2 if h < 14 else 7
    rows = x.view(b, c, g, h // g, g, w // g).permute(0, 3, 5, 2, 4, 1).reshape(-1, g * g, c)
    q, k, v = qkv(rows).view(-1, g * g, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h // g, w // g, g, g, c)
    return y.permute(0, 5, 3, 1, 4, 2).reshape(b, c, h, w)


def covariance_attention(q: Tensor, k: Tensor, v: Tensor, heat: Tensor) -> Tensor:
    """XCiT: channels attend to channels."""
    q, k = functional.normalize(q, dim=-2), functional.normalize(k, dim=-2)
    return v @ ((k.transpose(-1, -2) @ q) * heat.view(1, -1, 1, 1)).softmax(-1)


def channel_and_place(mlp, spatial, x: Tensor) -> Tensor:
    """CBAM."""
    gate = mlp(x.mean((2, 3))) + mlp(x.amax((2, 3)))
    x = x * gate.sigmoid()[:, :, None, None]
    return x * spatial(torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)).sigmoid()


def local_gate(across, x: Tensor) -> Tensor:
    """ECA."""
    gate = across(x.mean((2, 3)).unsqueeze(1)).squeeze(1)
    return x * gate.sigmoid()[:, :, None, None]


def coordinate_gate(down, high, wide, x: Tensor) -> Tensor:
    """Coordinate attention."""
    rows, columns = x.mean(3, keepdim=True), x.mean(2, keepdim=True).transpose(2, 3)
    both = functional.hardswish(down(torch.cat((rows, columns), 2)))
    a, b = both.split((x.shape[2], x.shape[3]), 2)
    return x * high(a).sigmoid() * wide(b.transpose(2, 3)).sigmoid()


def context(where, mlp, x: Tensor) -> Tensor:
    """GCNet's global context."""
    b, c, h, w = x.shape
    weights = where(x).view(b, 1, h * w).softmax(-1)
    found = (x.view(b, c, h * w) @ weights.transpose(1, 2)).unsqueeze(-1)
    return x + mlp(found)


def selective(three, five, down, first, second, x: Tensor) -> Tensor:
    """SKNet chooses between two kernels."""
    a, b = functional.relu(three(x)), functional.relu(five(x))
    z = functional.relu(down((a + b).mean((2, 3))))
    weights = torch.stack((first(z), second(z))).softmax(0)[..., None, None]
    return a * weights[0] + b * weights[1]


def split_attention(inner, x: Tensor) -> Tensor:
    """ResNeSt's softmax over splits."""
    b, c, _, _ = x.shape
    parts = x.view(b, 2, c // 2, *x.shape[2:])
    gate = inner(parts.sum(1).mean((2, 3))).view(b, 2, c // 2).softmax(1)
    return (parts * gate[..., None, None]).sum(1)


def spectral_block(n: N) -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(n(*WIDE), n(*WIDE), 3, padding=1)).eval()


def linear(i: int, o: int, by: tuple[int, int] = WIDE, **more):
    return lambda n: nn.Linear(i * n(*by), o * n(*by), **more)


def gates(n: N) -> nn.Module:
    return nn.Sequential(nn.Linear(n(64, 8), n(16, 4)), nn.ReLU(), nn.Linear(n(16, 4), n(64, 8)))


CASES: dict[str, Case] = {
    "paper_fused_bottleneck": call(fused_bottleneck, IMAGE, parts=(conv(1, 4, 3, bias=False), batch(4), conv(4, 1), batch())),
    "paper_ghost": call(ghost, IMAGE, parts=(conv(1, 1, bias=False), batch(), conv(1, 1, 3, apart=True, bias=False), batch())),
    "paper_rep_vgg": call(rep_vgg, IMAGE, parts=(conv(1, 1, 3, bias=False), batch(), conv(1, 1, bias=False), batch(), batch())),
    "paper_res2net": call(hierarchical, IMAGE, parts=(conv(1, 1, 3, by=(16, 2)),) * 3),
    "paper_csp": call(
        partial_stage, IMAGE, parts=(conv(2, 1, by=(32, 4)),) * 2 + (conv(1, 1, 3, by=(32, 4)), conv(2, 2, by=(32, 4)))
    ),
    "paper_sppf": call(pooled_pyramid, LATE, parts=(conv(2, 1, by=(128, 8)), conv(4, 2, by=(128, 8)))),
    "paper_pool_former": call(
        pool_mixer, IMAGE, parts=(lambda n: nn.GroupNorm(1, n(*WIDE)),) * 2 + (several(conv(1, 4), plain(nn.GELU), conv(4, 1)),)
    ),
    "paper_faster_net": call(
        partial_conv,
        IMAGE,
        parts=(
            conv(1, 1, 3, by=(16, 2), bias=False),
            several(conv(1, 2, bias=False), batch(2), plain(nn.ReLU), conv(2, 1, bias=False)),
        ),
    ),
    "paper_convnext_2": call(
        response_norm,
        ((256, 32),),
        ((256, 32),),
        IMAGE,
        parts=(conv(1, 1, 7, apart=True), linear(1, 4), linear(4, 1)),
    ),
    "paper_conv_mixer": call(conv_mixer, IMAGE, parts=(conv(1, 1, 9, apart=True), batch(), conv(1, 1), batch())),
    "paper_grid_attention": call(grid_attention, IMAGE, parts=(linear(1, 3),)),
    "paper_xcit": call(covariance_attention, *(((8, 2), (8, 2), (784, 12), (48, 8)),) * 3, ((8, 2),)),
    "paper_cbam": call(channel_and_place, IMAGE, parts=(gates, plain(nn.Conv2d, 2, 1, 7, 1, 3))),
    "paper_eca": call(local_gate, IMAGE, parts=(plain(nn.Conv1d, 1, 1, 3, 1, 1),)),
    "paper_coordinates": call(
        coordinate_gate,
        IMAGE,
        parts=(lambda n: nn.Conv2d(n(64, 8), n(8, 4), 1),) + (lambda n: nn.Conv2d(n(8, 4), n(64, 8), 1),) * 2,
    ),
    "paper_context": call(
        context,
        IMAGE,
        parts=(
            lambda n: nn.Conv2d(n(64, 8), 1, 1),
            several(conv(1, 1), lambda n: nn.LayerNorm((n(64, 8), 1, 1)), plain(nn.ReLU), conv(1, 1)),
        ),
    ),
    "paper_selective": call(selective, IMAGE, parts=(conv(1, 1, 3), conv(1, 1, 5), linear(1, 1), linear(1, 1), linear(1, 1))),
    "paper_split_attention": call(
        split_attention, IMAGE, parts=(several(linear(1, 1, (32, 4)), plain(nn.ReLU), linear(1, 2, (32, 4))),)
    ),
    "paper_weight_normed": call(lambda m, x: functional.leaky_relu(m(x), 0.2), last(*IMAGE), parts=(spectral_block,)),
    "paper_labels_map": call(
        lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1),
        ((8, 2), (21, 5), (64, 6), (64, 6)),
        whole(5, (8, 2), (64, 6), (64, 6)),
    ),
    "paper_floats": call(
        lambda x: functional.normalize(x.flatten(1), dim=1) @ functional.normalize(x.flatten(1), dim=1).T,
        lambda n: floats(n, (256, 4), (3, 2), (32, 4), (32, 4)),
    ),
}
