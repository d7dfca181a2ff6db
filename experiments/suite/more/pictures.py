"""Blocks and filters of pictures, their points and boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats

MAPS = ((8, 2), (64, 8), (56, 8), (56, 8))
PHOTOS = ((8, 2), 3, (256, 16), (256, 16))


def conv(i: int = 1, o: int = 1, k: int = 1, **more):
    return lambda n: nn.Conv2d(i * n(64, 8), o * n(64, 8), k, padding=k // 2, **more)


# -- blocks ---------------------------------------------------------------------------------------------------------------------


class LiteAttention(nn.Module):
    """EfficientViT's: linear attention with ReLU, on tokens of two scales."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.dim, self.qkv = dim, nn.Conv2d(width, 3 * width, 1, bias=False)
        self.near = nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width, bias=False)
        self.mix = nn.Conv2d(3 * width, 3 * width, 1, groups=3 * width // dim, bias=False)
        self.proj = nn.Sequential(nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x)
        qkv = torch.cat([qkv, self.mix(self.near(qkv))], dim=1)
        b, _, h, w = qkv.shape
        q, k, v = qkv.reshape(b, -1, 3 * self.dim, h * w).transpose(-1, -2).chunk(3, dim=-1)
        q, k, v = functional.relu(q), functional.relu(k), functional.pad(v, (0, 1), mode="constant", value=1.0)
        y = torch.matmul(q, torch.matmul(k.transpose(-1, -2), v)).float()
        y = (y[..., :-1] / (y[..., -1:] + 1e-6)).to(x.dtype)
        return x + self.proj(y.transpose(-1, -2).reshape(b, -1, h, w))


def unfolded_transformer(local, to, layer, back, fuse, x: Tensor) -> Tensor:
    """MobileViT: tokens at the same place of all patches see each other."""
    y = to(local(x))
    b, c, h, w = y.shape
    p = y.reshape(b * c * (h // 2), 2, w // 2, 2).transpose(1, 2).reshape(b, c, h * w // 4, 4).transpose(1, 3)
    p = layer(p.reshape(b * 4, h * w // 4, c)).view(b, 4, h * w // 4, c).transpose(1, 3)
    y = p.reshape(b * c * (h // 2), w // 2, 2, 2).transpose(1, 2).reshape(b, c, h, w)
    return fuse(torch.cat((x, back(y)), dim=1))


def strip_attention(first, strips, mix, x: Tensor) -> Tensor:
    """SegNeXt: strips of three lengths, both ways, make a gate."""
    y = first(x)
    for across, down in strips:
        y = y + down(across(first(x)))
    return mix(y) * x


def strips_of(n):
    c = n(64, 8)
    return nn.ModuleList(
        nn.ModuleList(
            (
                nn.Conv2d(c, c, (1, k), padding=(0, k // 2), groups=c),
                nn.Conv2d(c, c, (k, 1), padding=(k // 2, 0), groups=c),
            )
        )
        for k in (7, 11)
    )


def biased_windows(table: Tensor, index: Tensor, qkv: Tensor, mask: Tensor) -> Tensor:
    """Swin 2: cosines with a scale for each head, a bias within bounds, a mask for windows that were shifted."""
    q, k, v = qkv
    scale = table[:, -1:].clamp(max=math.log(100.0)).exp().unsqueeze(-1)
    s = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * scale
    bias = 16 * torch.sigmoid(table[:, index.flatten()].view(-1, *index.shape))
    w = mask.shape[0]
    s = (s + bias).view(-1, w, *s.shape[1:]) + mask[None, :, None]
    return (s.flatten(0, 1).softmax(-1) @ v).transpose(1, 2).flatten(2)


def window_places(n):
    side = n(7, 3)
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    far = at[:, :, None] - at[:, None] + side - 1
    return far[0] * (2 * side - 1) + far[1]


def joint_blocks(lin_x, lin_c, out_x, out_c, x: Tensor, c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """MMDiT: words and patches have weights of their own and one attention."""
    n, w = x.shape[1:]
    shift, scale, gate = t.unsqueeze(1).chunk(3, dim=-1)
    y, d = (functional.layer_norm(z, (w,), eps=1e-6) * (1 + scale) + shift for z in (x, c))
    q, k, v = torch.cat((lin_c(d), lin_x(y)), dim=1).unflatten(-1, (3, 8 if w >= 256 else 2, -1)).permute(2, 0, 3, 1, 4)
    q, k = functional.rms_norm(q, q.shape[-1:]), functional.rms_norm(k, k.shape[-1:])
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    d, y = y.split([c.shape[1], n], dim=1)
    return x + gate * out_x(y), c + gate * out_c(d)


def normed_flow(net, weight: Tensor, scale: Tensor, shift: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Glow: an affine norm, a mixing of channels by L and U, half of the channels moves the others."""
    c, pixels = x.shape[1], x.shape[2] * x.shape[3]
    y = (x + shift.view(1, -1, 1, 1)) * torch.exp(scale.view(1, -1, 1, 1) * 0.1)
    low = weight.tril(-1) * 0.1 + torch.eye(c, device=x.device, dtype=x.dtype)
    up = weight.triu(1) * 0.1 + torch.diag_embed(torch.exp(weight.diagonal() * 0.1))
    y = torch.einsum("oi,bihw->bohw", low @ up, y)
    a, b = y.chunk(2, dim=1)
    log_s, t = net(a)[:, ::2], net(a)[:, 1::2]
    s = torch.sigmoid(log_s + 2.0)
    log_det = (scale.sum() + weight.diagonal().sum()) * 0.1 * pixels + torch.log(s).flatten(1).sum(-1)
    return torch.cat([a, b * s + t], dim=1), log_det


def dense_residuals(convs, x: Tensor) -> Tensor:
    """ESRGAN: all earlier maps are joined, results are added at a fifth."""
    found = [x]
    for i, c in enumerate(convs):
        y = c(torch.cat(found, dim=1))
        found.append(functional.leaky_relu(y, 0.2, inplace=True) if i < len(convs) - 1 else y)
    return found[-1] * 0.2 + x


def object_context(to_q, to_k, to_v, up, regions, x: Tensor) -> tuple[Tensor, Tensor]:
    """OCRNet: soft regions gather pixels, pixels ask regions."""
    p = regions(x)
    b, k, h, w = p.shape
    r = torch.bmm(p.view(b, k, -1).softmax(-1), x.flatten(2).transpose(1, 2))
    q = to_q(x).flatten(2).transpose(1, 2)
    s = torch.matmul(q, to_k(r).transpose(1, 2)) * q.shape[-1] ** -0.5
    y = torch.matmul(s.softmax(-1), to_v(r)).transpose(1, 2).reshape(b, -1, h, w)
    return torch.cat([up(y), x], dim=1).relu(), p


# -- matches and boxes ----------------------------------------------------------------------------------------------------------


def double_softmax(x: Tensor, y: Tensor, temperature: float = 0.1) -> tuple[Tensor, Tensor]:
    """LoFTR's matches: best both ways, and sure enough."""
    s = torch.einsum("nlc,nsc->nls", x / x.shape[-1] ** 0.5, y / y.shape[-1] ** 0.5) / temperature
    p = functional.softmax(s, 1) * functional.softmax(s, 2)
    mask = (p > 0.01) & (p == p.amax(2, keepdim=True)) & (p == p.amax(1, keepdim=True))
    return p, mask.sum((1, 2))


def sampled_descriptors(coarse: Tensor, points: Tensor, size: float) -> Tensor:
    at = (points.sigmoid() * 2 - 1) * size
    d = functional.grid_sample(functional.normalize(coarse, dim=1), at.unsqueeze(1), mode="bilinear", align_corners=False)
    return functional.normalize(d.squeeze(2), p=2, dim=1).transpose(1, 2)


def pooled_regions(x: Tensor, boxes: Tensor) -> Tensor:
    """RoIAlign by a grid in each box, two samples a bin."""
    c = boxes.sigmoid()
    low, high = torch.minimum(c[..., :2], c[..., 2:]), torch.maximum(c[..., :2], c[..., 2:])
    t = (torch.arange(14, device=x.device, dtype=x.dtype) + 0.5) / 14
    gx = low[..., 0:1] + (high - low)[..., 0:1] * t
    gy = low[..., 1:2] + (high - low)[..., 1:2] * t
    b, n = boxes.shape[:2]
    grid = torch.stack((gx[:, :, None, :].expand(b, n, 14, 14), gy[..., None].expand(b, n, 14, 14)), dim=-1) * 2 - 1
    y = functional.grid_sample(x, grid.flatten(1, 2), align_corners=False).unflatten(2, (n, 14))
    return functional.avg_pool2d(y.transpose(1, 2).flatten(0, 1), 2)


def matrix_suppression(masks: Tensor, scores: Tensor) -> Tensor:
    """SOLO's: masks that better ones cover lose their scores, all at once."""
    m = (masks > 0).to(masks.dtype).flatten(1)
    area = m.sum(1)
    inter = m @ m.T
    iou = (inter / (area[:, None] + area[None] - inter).clamp(min=1)).triu(diagonal=1)
    most = iou.amax(0).unsqueeze(1)
    decay = torch.exp(-2 * iou**2) / torch.exp(-2 * most**2)
    return scores.sigmoid().sort(descending=True).values * decay.amin(dim=0)


def prototype_masks(prototypes: Tensor, coefficients: Tensor, boxes: Tensor) -> Tensor:
    """YOLACT's masks: sums of prototypes, cut to boxes."""
    m = torch.einsum("bkhw,bnk->bnhw", prototypes, coefficients.tanh()).sigmoid()
    h, w = m.shape[-2:]
    x1, y1, x2, y2 = (boxes.sigmoid() * w)[..., None, None].unbind(2)
    cols = torch.arange(w, device=m.device, dtype=m.dtype)[None, None, None]
    rows = torch.arange(h, device=m.device, dtype=m.dtype)[None, None, :, None]
    inside = (cols >= x1 * 0.5) * (cols < (x1 + x2)) * (rows >= y1 * 0.5) * (rows < (y1 + y2))
    return functional.interpolate(m * inside, scale_factor=2, mode="bilinear", align_corners=False).gt(0.5)


def drawn_keypoints(points: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussians drawn at points; expected places of maps, and how they differ."""
    b, k, h, w = x.shape
    ys, xs = torch.arange(h, device=x.device, dtype=x.dtype), torch.arange(w, device=x.device, dtype=x.dtype)
    px, py = (points.sigmoid() * (w - 1)).unbind(-1)
    drawn = torch.exp(-((xs - px[..., None]) ** 2)[..., None, :] / 8) * torch.exp(-((ys - py[..., None]) ** 2)[..., None] / 8)
    p = x.flatten(2).softmax(-1).view(b, k, h, w)
    found = torch.stack([(p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)], dim=-1)
    return (x.sigmoid() - drawn).square().mean((2, 3)), (found - torch.stack([px, py], -1)).norm(dim=-1) / h


# -- filters --------------------------------------------------------------------------------------------------------------------


def guided(x: Tensor, guide: Tensor, r: int = 4, eps: float = 1e-2) -> Tensor:
    """A guided filter of box means."""

    def box(z: Tensor) -> Tensor:
        return functional.avg_pool2d(functional.pad(z, [r] * 4, mode="replicate"), 2 * r + 1, stride=1)

    mean_g, mean_x = box(guide), box(x)
    a = (box(guide * x) - mean_g * mean_x) / (box(guide * guide) - mean_g.square() + eps)
    return box(a) * guide + box(mean_x - a * mean_g)


def corners(x: Tensor) -> tuple[Tensor, Tensor]:
    """Harris' response, and the places that are greater than all around."""
    grey = (x * torch.tensor([0.299, 0.587, 0.114], device=x.device, dtype=x.dtype).view(1, 3, 1, 1)).sum(1, keepdim=True)
    d = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], device=x.device, dtype=x.dtype) / 8
    ix, iy = functional.conv2d(grey, torch.stack([d, d.T]).unsqueeze(1), padding=1).split(1, dim=1)
    g = torch.tensor([1.0, 4, 6, 4, 1], device=x.device, dtype=x.dtype) / 16
    t = torch.cat([ix * ix, iy * iy, ix * iy], dim=1)
    t = functional.conv2d(t, (g[:, None] * g).expand(3, 1, 5, 5), padding=2, groups=3)
    r = t[:, 0] * t[:, 1] - t[:, 2] ** 2 - 0.05 * (t[:, 0] + t[:, 1]) ** 2
    top = functional.max_pool2d(r.unsqueeze(1), 5, 1, 2).squeeze(1)
    return r, ((r == top) & (r > 1e-3)).sum((1, 2))


def pyramids(a: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Two images are joined level by level."""
    kernel = torch.tensor([1.0, 4, 6, 4, 1], device=a.device, dtype=a.dtype)
    kernel = (kernel[:, None] * kernel / 256).expand(3, 1, 5, 5)

    def down(z: Tensor) -> Tensor:
        return functional.conv2d(functional.pad(z, (2, 2, 2, 2), mode="reflect"), kernel, stride=2, groups=3)

    levels, m = [], mask.sigmoid().expand_as(a)
    for _ in range(3):
        sa, sb, sm = down(a), down(b), down(m)
        la, lb = (z - functional.interpolate(s, size=z.shape[-2:], mode="bilinear") for z, s in ((a, sa), (b, sb)))
        levels.append(la * m + lb * (1 - m))
        a, b, m = sa, sb, sm
    y = a * m + b * (1 - m)
    for level in reversed(levels):
        y = functional.interpolate(y, size=level.shape[-2:], mode="bilinear") + level
    return y


def morphology(x: Tensor, element: Tensor) -> dict[str, Tensor]:
    """Grey openings and gradients with an element of weights."""
    b, c, h, w = x.shape
    k = element.shape[-1]

    def dilate(z: Tensor, e: Tensor) -> Tensor:
        z = functional.pad(z, [k // 2] * 4, mode="replicate")
        return (functional.unfold(z.flatten(0, 1).unsqueeze(1), k) + e.view(1, -1, 1)).amax(1).view(b, c, h, w)

    wide, thin = dilate(x, element), -dilate(-x, element)
    return {"gradient": wide - thin, "hat": x - dilate(thin, element.flip(0, 1))}


def denoised_rows(x: Tensor, steps: int = 5) -> Tensor:
    """Chambolle's projections for total variation."""
    p, q = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(steps):
        div = p - functional.pad(p, (0, 0, 1, 0))[..., :-1, :] + q - functional.pad(q, (1, 0))[..., :-1]
        u = div - x / 0.3
        gy = functional.pad(u[..., 1:, :] - u[..., :-1, :], (0, 0, 0, 1))
        gx = functional.pad(u[..., 1:] - u[..., :-1], (0, 1))
        size = 1 + 0.25 * torch.sqrt(gx * gx + gy * gy + 1e-8)
        p, q = (p + 0.25 * gy) / size, (q + 0.25 * gx) / size
    return x - 0.3 * (p - functional.pad(p, (0, 0, 1, 0))[..., :-1, :] + q - functional.pad(q, (1, 0))[..., :-1])


def scales_of_likeness(x: Tensor, y: Tensor) -> Tensor:
    """MS-SSIM by separable windows, three scales."""
    g = torch.exp(-((torch.arange(7, device=x.device, dtype=x.dtype) - 3) ** 2) / 4.5)
    g = (g / g.sum()).expand(3, 1, 1, 7)

    def blur(z: Tensor) -> Tensor:
        return functional.conv2d(functional.conv2d(z, g, groups=3), g.mT, groups=3)

    x, y, found = x.sigmoid(), y.sigmoid(), []
    for i in range(3):
        mx, my = blur(x), blur(y)
        sx, sy, sxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
        cs = (2 * sxy + 9e-4) / (sx + sy + 9e-4)
        last = (2 * mx * my + 1e-4) / (mx * mx + my * my + 1e-4) * cs
        found.append(functional.relu((last if i == 2 else cs).mean((2, 3))))
        x, y = functional.avg_pool2d(x, 2), functional.avg_pool2d(y, 2)
    return torch.prod(torch.stack(found) ** x.new_tensor([0.3, 0.4, 0.3]).view(-1, 1, 1), dim=0).mean(-1)


CASES: dict[str, Case] = {
    "lite_attention": scaled(lambda n: (LiteAttention(n(128, 8), n(16, 4)), (floats(n, (8, 2), (128, 8), (28, 5), (28, 6)),))),
    "unfolded_transformer": call(
        unfolded_transformer,
        ((8, 2), (64, 8), (32, 4), (32, 6)),
        parts=(
            conv(k=3),
            lambda n: nn.Conv2d(n(64, 8), n(96, 16), 1, bias=False),
            lambda n: nn.TransformerEncoderLayer(n(96, 16), 4, n(192, 32), batch_first=True, norm_first=True, activation="gelu"),
            lambda n: nn.Conv2d(n(96, 16), n(64, 8), 1),
            conv(2, 1, 3),
        ),
    ),
    "strip_attention": call(
        strip_attention, MAPS, parts=(lambda n: nn.Conv2d(n(64, 8), n(64, 8), 5, padding=2, groups=n(64, 8)), strips_of, conv())
    ),
    "biased_windows": call(
        biased_windows,
        ((4, 2), (170, 26)),
        window_places,
        lambda n: tuple(floats(n, (128, 8), (4, 2), (49, 9), (32, 8)) for _ in range(3)),
        lambda n: (torch.rand(n(64, 4), n(49, 9), n(49, 9)) > 0.8).float() * -100,
    ),
    "joint_blocks": call(
        joint_blocks,
        ((2, 2), (1024, 12), (512, 16)),
        ((2, 2), (77, 5), (512, 16)),
        ((2, 2), (1536, 48)),
        parts=(
            *(lambda n: nn.Linear(n(512, 16), 3 * n(512, 16)),) * 2,
            *(lambda n: nn.Linear(n(512, 16), n(512, 16)),) * 2,
        ),
    ),
    "normed_flow": call(
        normed_flow,
        ((48, 8), (48, 8)),
        ((48, 8),),
        ((48, 8),),
        ((16, 2), (48, 8), (32, 5), (32, 6)),
        parts=(
            lambda n: nn.Sequential(
                nn.Conv2d(n(24, 4), n(128, 8), 3, padding=1), nn.ReLU(), nn.Conv2d(n(128, 8), n(48, 8), 3, padding=1)
            ),
        ),
    ),
    "dense_residuals": call(
        dense_residuals,
        ((4, 1), (64, 8), (64, 7), (64, 8)),
        parts=(
            lambda n: nn.ModuleList(
                nn.Conv2d(n(64, 8) + i * n(32, 4), n(64, 8) if i == 4 else n(32, 4), 3, 1, 1) for i in range(5)
            ),
        ),
    ),
    "object_context": call(
        object_context,
        ((4, 2), (256, 16), (64, 6), (64, 7)),
        parts=(
            lambda n: nn.Conv2d(n(256, 16), n(128, 8), 1, bias=False),
            *(lambda n: nn.Linear(n(256, 16), n(128, 8), bias=False),) * 2,
            lambda n: nn.Conv2d(n(128, 8), n(256, 16), 1),
            lambda n: nn.Conv2d(n(256, 16), n(19, 5), 1),
        ),
    ),
    "double_softmax": call(double_softmax, *(((2, 2), (1024, 9), (256, 8)),) * 2),
    "sampled_descriptors": call(sampled_descriptors, ((4, 2), (256, 8), (60, 6), (80, 7)), ((4, 2), (1000, 9), 2), 0.95),
    "pooled_regions": call(pooled_regions, ((4, 1), (128, 4), (64, 8), (64, 9)), ((4, 1), (100, 3), 4)),
    "matrix_suppression": call(matrix_suppression, ((200, 6), (100, 8), (136, 9)), ((200, 6),)),
    "prototype_masks": call(
        prototype_masks, ((4, 2), (32, 4), (138, 8), (138, 9)), ((4, 2), (64, 5), (32, 4)), ((4, 2), (64, 5), 4)
    ),
    "drawn_keypoints": call(drawn_keypoints, ((32, 2), (17, 3), 2), ((32, 2), (17, 3), (64, 8), (48, 9))),
    "guided": call(guided, PHOTOS, PHOTOS),
    "corners": call(corners, PHOTOS),
    "pyramids": call(pyramids, PHOTOS, PHOTOS, ((8, 2), 1, (256, 16), (256, 16))),
    "morphology": call(morphology, ((8, 2), 3, (128, 9), (128, 10)), (5, 5)),
    "denoised_rows": call(denoised_rows, ((8, 2), (240, 9), (320, 8))),
    "scales_of_likeness": call(scales_of_likeness, *(((8, 2), 3, (256, 40), (256, 36)),) * 2),
}
