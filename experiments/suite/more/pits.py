"""Images and films in bfloat16: attention within windows and regions, sweeps, codes by scale, steered blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole


def pooled_queries(qkv, short, out, norm, x: Tensor, windows: int, heads: int) -> Tensor:
    """Hiera between its stages: within units, queries are the largest of four; what goes past is pooled alike."""
    x = norm(x)
    q, k, v = qkv(x).unflatten(-1, (3, heads, -1)).unflatten(1, (-1, windows)).permute(3, 0, 4, 2, 1, 5)
    q = q.unflatten(3, (4, -1)).amax(3)
    y = functional.scaled_dot_product_attention(q, k, v)
    y = out(y.permute(0, 3, 2, 1, 4).flatten(3).flatten(1, 2))
    return short(x).unflatten(1, (4, -1)).amax(1) + y


def neighbours_that_stay_inside(qkv, out, bias: Tensor, x: Tensor, size: int) -> Tensor:
    """Neighbourhood attention: at the borders windows are moved inside, so that all pixels have as many neighbours."""
    b, h, w, c = x.shape
    q, k, v = qkv(x).unflatten(-1, (3, bias.shape[0], -1)).unbind(3)
    rows, columns = (
        (torch.arange(m, device=x.device) - size // 2).clamp(0, m - size)[:, None] + torch.arange(size, device=x.device)
        for m in (h, w)
    )
    dy, dx = (t - torch.arange(len(t), device=x.device)[:, None] + size - 1 for t in (rows, columns))
    k, v = (t[:, rows[:, None, :, None], columns[None, :, None, :]] for t in (k, v))
    s = torch.einsum("bijhd,bijpqhd->bijhpq", q, k) * q.shape[-1] ** -0.5
    s = s + bias[:, dy[:, None, :, None], dx[None, :, None, :]].permute(1, 2, 0, 3, 4)
    p = torch.softmax(s.flatten(4).float(), -1).view_as(s).to(x.dtype)
    return out(torch.einsum("bijhpq,bijpqhd->bijhd", p, v).reshape(b, h, w, c))


def routed_regions(qkv, local, out, x: Tensor, regions: int, most: int, heads: int) -> Tensor:
    """BiFormer: regions choose the regions they are most like, pixels attend to all pixels of these."""
    b, h, w, c = x.shape
    y = qkv(x).view(b, regions, h // regions, regions, w // regions, 3 * c).transpose(2, 3).reshape(b, regions**2, -1, 3 * c)
    q, k, v = y.chunk(3, -1)
    at = (q.mean(2).float() @ k.mean(2).float().mT).topk(most, -1).indices
    k, v = (t[torch.arange(b, device=x.device)[:, None, None], at].flatten(2, 3) for t in (k, v))
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(2, 3) for t in (q, k, v))
    z = (torch.softmax(q @ k.mT * c**-0.5, -1) @ v).transpose(2, 3).flatten(3)
    z = z.view(b, regions, regions, h // regions, w // regions, c).transpose(2, 3).reshape(b, h, w, c)
    past = y[..., 2 * c :].view(b, regions, regions, h // regions, w // regions, c).transpose(2, 3).reshape(b, h, w, c)
    return out(z + local(past.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


def swept_four_ways(gates, out, x: Tensor) -> Tensor:
    """Columns take from the column before, to both sides; rows likewise; the largest of the four stays."""
    best = None
    for i, g in enumerate(torch.sigmoid(gates(x)).chunk(4, 1)):
        y, g = (t.transpose(2, 3) if i > 1 else t for t in (x, g))
        y, g = (t.flip(3) if i % 2 else t for t in (y, g))
        h, done = torch.zeros_like(y[..., 0]), []
        for a, m in zip(y.unbind(3), g.unbind(3), strict=True):
            h = a + m * (h - a)
            done.append(h)
        y = torch.stack(done, 3)
        y = y.flip(3) if i % 2 else y
        y = y.transpose(2, 3) if i > 1 else y
        best = y if best is None else torch.maximum(best, y)
    return x + out(best)


def codes_of_growing_scales(codes: Tensor, x: Tensor, sides: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """VAR: what is left is shrunk, replaced by its nearest codes, enlarged and taken off, side by side."""
    rest, table, found = x.float(), codes.float(), []
    total, half = torch.zeros_like(rest), table.square().sum(1) / 2
    for side in sides:
        small = functional.interpolate(rest, size=(side, side), mode="area") if side < x.shape[2] else rest
        at = (small.permute(0, 2, 3, 1) @ table.T - half).argmax(-1)
        back = table[at].permute(0, 3, 1, 2).contiguous()
        back = functional.interpolate(back, size=x.shape[2:], mode="bicubic") if side < x.shape[2] else back
        total, rest = total + back, rest - back
        found.append(at.flatten(1))
    return total.to(x.dtype), found


class FilmBlock(nn.Module):
    """Wan: heads turn by time, height and width; six vectors of the time steer a block that asks a text in between."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Parameter(torch.randn(6, width) * width**-0.5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.told, self.back = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm_q, self.norm_k, self.norm = nn.RMSNorm(width), nn.RMSNorm(width), nn.LayerNorm(width, 1e-6)
        self.net = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width))

    def turned(self, x: Tensor, sides: tuple[int, int, int]) -> Tensor:
        d = x.shape[-1] // 2
        parts = (d - 2 * (d // 3), d // 3, d // 3)
        places = torch.meshgrid(*(torch.arange(s, device=x.device) for s in sides), indexing="ij")
        angle = torch.cat(
            [p.flatten()[:, None] * 1e4 ** (-torch.arange(m, device=x.device) / m) for p, m in zip(places, parts, strict=True)],
            -1,
        )
        y = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(y).flatten(-2).to(x.dtype)

    def forward(self, x: Tensor, text: Tensor, time: Tensor, sides: tuple[int, int, int]) -> Tensor:
        s1, c1, g1, s2, c2, g2 = (self.table + time).unsqueeze(2).unbind(1)
        y = functional.layer_norm(x, x.shape[-1:]) * (1 + c1) + s1
        q, k, v = self.qkv(y).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.norm_q(q), self.norm_k(k), v))
        y = functional.scaled_dot_product_attention(self.turned(q, sides), self.turned(k, sides), v)
        x = x + g1 * self.out(y.transpose(1, 2).flatten(2))
        q = self.ask(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.told(text).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.back(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + g2 * self.net(functional.layer_norm(x, x.shape[-1:]) * (1 + c2) + s2)


def unit(w: Tensor) -> Tensor:
    """Weights of length one for each output."""
    y = w.float()
    return (y * torch.rsqrt(y.square().sum((1, 2, 3), keepdim=True) + 1e-8)).to(w.dtype)


def magnitudes_kept(first: Tensor, second: Tensor, emb, x: Tensor, z: Tensor) -> Tensor:
    """EDM 2: nothing grows on its way: weights of length one, pixels normed, sums and activations rescaled."""
    x = x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-4).to(x.dtype)
    y = functional.conv2d(functional.silu(x) / 0.596, unit(first), padding=1)
    y = functional.silu(y * (emb(z)[..., None, None] + 1)) / 0.596
    y = functional.conv2d(y, unit(second), padding=1)
    return (torch.lerp(x, y, 0.3) / math.sqrt(0.7**2 + 0.3**2)).clamp(-256, 256)


class ManyKernelsAsOne(nn.Module):
    """UniRepLKNet as it is trained: a large depthwise kernel beside dilated ones, each with its own norm, then GELU and GRN."""

    def __init__(self, c: int, large: int) -> None:
        super().__init__()
        ways = ((large, 1), (5, 1), (3, 2), (3, 3), (3, 4))
        self.convs = nn.ModuleList(nn.Conv2d(c, c, k, 1, d * (k - 1) // 2, d, c, bias=False) for k, d in ways)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for _ in ways)
        self.up, self.down, self.gamma = nn.Linear(c, 4 * c), nn.Linear(4 * c, c), nn.Parameter(torch.randn(4 * c))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = y + norm(conv(x))
        y = functional.gelu(self.up(y.permute(0, 2, 3, 1)))
        size = y.float().norm(dim=(1, 2), keepdim=True)
        y = y + self.gamma * (y * (size / (size.mean(-1, keepdim=True) + 1e-6)).to(y.dtype))
        return x + self.down(y).permute(0, 3, 1, 2)


def text_that_looks_back(norm, q, kv, out, gate: Tensor, words: Tensor, x: Tensor, media: Tensor) -> Tensor:
    """Flamingo: a word asks only the last image before it; words before the first image get nothing; a gate for each head."""
    heads, seen = len(gate), torch.cumsum(words == 1, 1)
    ask = q(norm(x)).unflatten(-1, (heads, -1)).transpose(1, 2) * (x.shape[-1] // heads) ** -0.5
    k, v = kv(media).unflatten(-1, (2, heads, -1)).permute(3, 0, 4, 1, 2, 5).flatten(3, 4)
    of = torch.arange(1, media.shape[1] + 1, device=x.device).repeat_interleave(media.shape[2])
    mask = seen[:, None, :, None] == of
    s = (ask @ k.mT).float().masked_fill(~mask, torch.finfo(torch.float32).min)
    p = torch.softmax(s - s.amax(-1, keepdim=True), -1).to(x.dtype) * mask.any(-1, keepdim=True)
    return x + out((torch.tanh(gate)[:, None, None] * (p @ v)).transpose(1, 2).flatten(2))


FILM, MAP = ((1, 1), (1560, 24), (1536, 24)), ((8, 1), (56, 8), (56, 8), (128, 8))
BFLOAT16: dict[str, Case] = {
    "pooled_queries": call(
        lambda a, b, c, d, x: pooled_queries(a, b, c, d, x, *((49, 4) if x.shape[-1] > 99 else (2, 2))),
        ((16, 2), (3136, 16), (192, 8)),
        parts=(wide(192, 1152, (8, 48)), wide(192, 384, (8, 16)), wide(384, 384, (16, 16)), part(nn.LayerNorm, (192, 8))),
    ),
    "neighbours_that_stay_inside": call(
        lambda f, g, b, x: neighbours_that_stay_inside(f, g, b, x, (b.shape[1] + 1) // 2),
        *(((4, 2), (13, 5), (13, 5)), MAP),
        parts=(wide(128, 384, (8, 24)), wide(128, 128, (8, 8))),
    ),
    "routed_regions": call(
        lambda f, g, h, x: routed_regions(f, g, h, x, *((7, 4, 4) if x.shape[1] > 9 else (2, 2, 2))),
        MAP,
        parts=(
            *(wide(128, 384, (8, 24)), lambda n: nn.Conv2d(n(128, 8), n(128, 8), 5, padding=2, groups=n(128, 8))),
            wide(128, 128, (8, 8)),
        ),
    ),
    "swept_four_ways": call(
        swept_four_ways,
        ((32, 2), (192, 6), (32, 5), (32, 4)),
        parts=(lambda n: nn.Conv2d(n(192, 6), 4 * n(192, 6), 1), lambda n: nn.Conv2d(n(192, 6), n(192, 6), 1)),
    ),
    "codes_of_growing_scales": call(
        lambda c, x: codes_of_growing_scales(c, x, (1, 2, 3, 4, 5, 6, 8, 10, 13, 16) if x.shape[2] > 9 else (1, 2, 4)),
        *(((4096, 12), (32, 4)), ((64, 2), (32, 4), (16, 4), (16, 4))),
    ),
    "film_block": call(
        lambda m, x, text, time: m(x, text, time, (3, 20, 26) if x.shape[1] > 99 else (2, 3, 4)),
        *(FILM, ((1, 1), (512, 5), (1536, 24)), ((1, 1), 6, (1536, 24))),
        parts=(part(FilmBlock, (1536, 24), (12, 2), (8960, 32)),),
    ),
    "magnitudes_kept": call(
        lambda emb, a, b, x, z: magnitudes_kept(a, b, emb, x, z),
        *(((256, 6), (256, 6), 3, 3),) * 2,
        *(((16, 2), (256, 6), (32, 5), (32, 4)), ((16, 2), (768, 5))),
        parts=(wide(768, 256, (5, 6), bias=False),),
    ),
    "many_kernels_as_one": call(one, ((16, 1), (128, 6), (56, 9), (56, 8)), parts=(part(ManyKernelsAsOne, (128, 6), (13, 7)),)),
    "text_that_looks_back": call(
        text_that_looks_back,
        *(((8, 2),), whole(60, (8, 2), (512, 40)), ((8, 2), (512, 40), (1024, 8)), ((8, 2), (6, 3), (64, 2), (1024, 8))),
        parts=(
            *(part(nn.LayerNorm, (1024, 8)), wide(1024, 512, (8, 8), bias=False), wide(1024, 1024, (8, 16), bias=False)),
            wide(512, 1024, (8, 8), bias=False),
        ),
    ),
}
CASES: dict[str, Case] = BFLOAT16
"""In the number format that the group is meant for."""
