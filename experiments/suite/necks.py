"""Parts of public image networks behind their backbones: necks, heads, restoration, generators, points and rays."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.backbones import IMAGE
from experiments.suite.backbones import PICTURE
from experiments.suite.backbones import WIDE
from experiments.suite.backbones import batch
from experiments.suite.backbones import conv
from experiments.suite.backbones import linear
from experiments.suite.case import Case
from experiments.suite.users import call

BIG = 256, 16


# -- necks, heads, restoration, generators --------------------------------------------------------------------------------------


def top_down(a, b, smooth, small: Tensor, large: Tensor) -> Tensor:
    """A feature pyramid's step."""
    return smooth(a(large) + functional.interpolate(b(small), scale_factor=2, mode="nearest"))


def weighted_fusion(depth, norm, weights: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """EfficientDet's fusion of two levels."""
    w = weights.relu()
    w = w / (w.sum() + 1e-4)
    return norm(depth(functional.silu(w[0] * a + w[1] * functional.interpolate(b, scale_factor=2))))


def reassembled(encode, x: Tensor) -> Tensor:
    """CARAFE: kernels for each new pixel."""
    b, c, h, w = x.shape
    kernels = functional.pixel_shuffle(encode(x), 2).softmax(1)
    around = functional.unfold(x, 5, padding=2).view(b, c * 25, h, w)
    around = functional.interpolate(around, scale_factor=2).view(b, c, 25, 2 * h, 2 * w)
    return (around * kernels.unsqueeze(1)).sum(2)


def decoded_cells(x: Tensor, anchors: Tensor) -> Tensor:
    """A YOLO head's boxes."""
    b, _, h, w = x.shape
    y = x.view(b, 3, -1, h, w).permute(0, 1, 3, 4, 2).sigmoid()
    rows, columns = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    grid = torch.stack((columns, rows), -1).to(x.dtype)
    places = (y[..., :2] * 2 - 0.5 + grid) * 8
    sizes = (y[..., 2:4] * 2) ** 2 * anchors.view(1, 3, 1, 1, 2)
    return torch.cat((places, sizes, y[..., 4:]), -1).reshape(b, -1, y.shape[-1])


def simple_gates(norm, one, depth, squeeze, out, x: Tensor) -> Tensor:
    """NAFNet's first half."""
    y = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    a, b = depth(one(y)).chunk(2, 1)
    y = a * b
    return x + out(y * squeeze(y.mean((2, 3), keepdim=True)))


def transposed_attention(qkv, depth, heat: Tensor, x: Tensor) -> Tensor:
    """Restormer's attention over channels of a large image."""
    b, c, h, w = x.shape
    q, k, v = (y.view(b, 4, c // 4, h * w) for y in depth(qkv(x)).chunk(3, 1))
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    y = ((q @ k.transpose(-1, -2)) * heat.view(4, 1, 1)).softmax(-1) @ v
    return y.reshape(b, c, h, w)


def diffusion_block(norm, first, time, norm_2, second, x: Tensor, at: Tensor) -> Tensor:
    """A residual block with an embedding of the step."""
    y = first(functional.silu(norm(x))) + time(functional.silu(at))[:, :, None, None]
    return x + second(functional.silu(norm_2(y)))


def crossed(norm, q, kv, out, x: Tensor, text: Tensor) -> Tensor:
    """A spatial transformer's cross attention to a text."""
    b, c, h, w = x.shape
    rows = norm(x).view(b, c, h * w).transpose(1, 2)
    k, v = (y.view(b, -1, 4, c // 4).transpose(1, 2) for y in kv(text).chunk(2, -1))
    y = functional.scaled_dot_product_attention(q(rows).view(b, -1, 4, c // 4).transpose(1, 2), k, v)
    return x + out(y.transpose(1, 2).reshape(b, h * w, c)).transpose(1, 2).reshape(b, c, h, w)


def reflected(first, norm, second, norm_2, x: Tensor) -> Tensor:
    """CycleGAN's residual block."""
    y = functional.relu(norm(first(functional.pad(x, (1, 1, 1, 1), mode="reflect"))))
    return x + norm_2(second(functional.pad(y, (1, 1, 1, 1), mode="reflect")))


def gated_skip(gate, skip, to_one, x: Tensor, before: Tensor) -> Tensor:
    """Attention U-Net."""
    return before * to_one(functional.relu(gate(x) + skip(before))).sigmoid()


def adaptive_instance(x: Tensor, style: Tensor) -> Tensor:
    std, mean = torch.std_mean(x, (2, 3), keepdim=True)
    std_2, mean_2 = torch.std_mean(style, (2, 3), keepdim=True)
    return (x - mean) / (std + 1e-5) * std_2 + mean_2


def filter_response(gain: Tensor, shift: Tensor, least: Tensor, x: Tensor) -> Tensor:
    """FRN with its thresholded linear unit."""
    y = x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + 1e-6)
    return torch.maximum(gain.view(1, -1, 1, 1) * y + shift.view(1, -1, 1, 1), least.view(1, -1, 1, 1))


def anti_aliased(x: Tensor) -> Tensor:
    return functional.interpolate(x, (x.shape[2] // 2, x.shape[3] // 2), mode="bilinear", antialias=True)


def thin_plate(theta: Tensor, x: Tensor) -> Tensor:
    """A spatial transformer."""
    return functional.grid_sample(
        x, functional.affine_grid(theta.view(-1, 2, 3), x.shape, align_corners=False), align_corners=False
    )


# -- points and rays ------------------------------------------------------------------------------------------------------------


def rendered(density: Tensor, colour: Tensor, steps: Tensor) -> Tensor:
    """NeRF's sum along rays."""
    alpha = 1 - torch.exp(-functional.relu(density) * steps)
    clear = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10), 1), 1)[:, :-1]
    weights = alpha * clear
    return torch.cat(((weights[..., None] * colour.sigmoid()).sum(1), weights.sum(1, keepdim=True)), -1)


def ray_features(mlp, x: Tensor) -> Tensor:
    rates = 2.0 ** torch.arange(6, device=x.device, dtype=x.dtype)
    angles = (x[..., None] * rates).flatten(-2)
    return mlp(torch.cat((x, angles.sin(), angles.cos()), -1))


def point_net(one, norm, two, norm_2, x: Tensor) -> Tensor:
    return norm_2(two(functional.relu(norm(one(x))))).amax(-1)


def hashed_grid(table: Tensor, x: Tensor) -> Tensor:
    """Instant NGP's look-up of eight corners, one level."""
    scaled = x.clamp(0, 1).float() * 63
    low = scaled.floor()
    rest, low = (scaled - low).to(table.dtype), low.long()
    found = 0
    for corner in range(8):
        bits = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2 & 1], device=x.device)
        at = low + bits
        place = (at[:, 0] ^ at[:, 1] * 2654435761 ^ at[:, 2] * 805459861) % table.shape[0]
        found = found + table[place] * torch.where(bits == 1, rest, 1 - rest).prod(-1, keepdim=True)
    return found


CASES: dict[str, Case] = {
    "paper_pyramid": call(
        top_down,
        ((8, 2), (256, 16), (14, 4), (14, 4)),
        ((8, 2), (128, 8), (28, 8), (28, 8)),
        parts=(
            lambda n: nn.Conv2d(n(128, 8), n(128, 8), 1),
            lambda n: nn.Conv2d(n(256, 16), n(128, 8), 1),
            conv(1, 1, 3, by=(128, 8)),
        ),
    ),
    "paper_weighted_fusion": call(
        weighted_fusion,
        (2,),
        ((8, 2), (64, 8), (32, 8), (32, 8)),
        ((8, 2), (64, 8), (16, 4), (16, 4)),
        parts=(conv(1, 1, 3, apart=True), batch()),
    ),
    "paper_carafe": call(
        reassembled, ((4, 2), (32, 4), (32, 4), (32, 4)), parts=(lambda n: nn.Conv2d(n(32, 4), 100, 3, padding=1),)
    ),
    "paper_yolo_boxes": call(decoded_cells, ((16, 2), 255, (40, 4), (40, 4)), (3, 2)),
    "paper_nafnet": call(
        simple_gates,
        ((4, 2), (32, 4), (128, 8), (128, 8)),
        parts=(
            lambda n: nn.LayerNorm(n(32, 4)),
            conv(1, 2, by=(32, 4)),
            conv(2, 2, 3, by=(32, 4), apart=True),
            conv(1, 1, by=(32, 4)),
            conv(1, 1, by=(32, 4)),
        ),
    ),
    "paper_restormer": call(
        transposed_attention,
        (4,),
        ((4, 2), (48, 8), (64, 8), (64, 8)),
        parts=(conv(1, 3, by=(48, 8), bias=False), conv(3, 3, 3, by=(48, 8), apart=True, bias=False)),
    ),
    "paper_diffusion_block": call(
        diffusion_block,
        ((8, 2), (128, 8), (32, 6), (32, 6)),
        ((8, 2), (256, 16)),
        parts=(
            lambda n: nn.GroupNorm(n(32, 4), n(128, 8)),
            conv(1, 1, 3, by=(128, 8)),
            lambda n: nn.Linear(n(256, 16), n(128, 8)),
            lambda n: nn.GroupNorm(n(32, 4), n(128, 8)),
            conv(1, 1, 3, by=(128, 8)),
        ),
    ),
    "paper_crossed": call(
        crossed,
        ((4, 2), (256, 16), (32, 4), (32, 4)),
        ((4, 2), (77, 5), (512, 16)),
        parts=(
            lambda n: nn.GroupNorm(n(32, 4), n(*BIG)),
            linear(1, 1, BIG, bias=False),
            lambda n: nn.Linear(n(512, 16), 2 * n(*BIG), bias=False),
            linear(1, 1, BIG),
        ),
    ),
    "paper_cycle_block": call(
        reflected,
        ((2, 1), (128, 8), (64, 8), (64, 8)),
        parts=(conv(1, 1, 3, by=(128, 8), padding=0), lambda n: nn.InstanceNorm2d(n(128, 8))) * 2,
    ),
    "paper_gated_skip": call(gated_skip, IMAGE, IMAGE, parts=(conv(1, 1), conv(1, 1), lambda n: nn.Conv2d(n(64, 8), 1, 1))),
    "paper_adaptive_instance": call(adaptive_instance, IMAGE, IMAGE),
    "paper_filter_response": call(filter_response, (WIDE,), (WIDE,), (WIDE,), IMAGE),
    "paper_anti_aliased": call(anti_aliased, PICTURE),
    "paper_spatial_transformer": call(thin_plate, ((8, 2), 6), ((8, 2), (16, 3), (64, 6), (64, 6))),
    "paper_rays": call(rendered, ((4096, 12), (128, 8)), ((4096, 12), (128, 8), 3), ((4096, 12), (128, 8))),
    "paper_ray_features": call(
        ray_features,
        ((65536, 24), 3),
        parts=(lambda n: nn.Sequential(nn.Linear(39, n(128, 8)), nn.ReLU(), nn.Linear(n(128, 8), 4)),),
    ),
    "paper_point_net": call(
        point_net,
        ((16, 2), 3, (2048, 24)),
        parts=(
            lambda n: nn.Conv1d(3, n(64, 8), 1),
            lambda n: nn.BatchNorm1d(n(64, 8)),
            lambda n: nn.Conv1d(n(64, 8), n(256, 16), 1),
            lambda n: nn.BatchNorm1d(n(256, 16)),
        ),
    ),
    "paper_hashed_grid": call(hashed_grid, ((65536, 64), 2), lambda n: torch.rand(n(65536, 24), 3)),
}
