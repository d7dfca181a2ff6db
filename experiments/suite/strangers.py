"""Modules that public suites and model zoos have: cumulative and triangular products, cells, blocks of known networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import N
from experiments.suite.case import scaled
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import turned

ROWS, WIDE = (1024, 12), (2048, 24)
IMAGE = ((16, 2), (64, 8), (56, 10), (56, 10))
TOKENS = ((8, 2), (256, 6), (512, 16))


def conv(i: int, o: int, k: int = 1, **more):
    """Channels in eights where they are small."""
    return lambda n: nn.Conv2d(n(8 * i, i), n(8 * o, o), k, padding=k // 2, **_scaled_groups(n, more))


def _scaled_groups(n: N, more: dict) -> dict:
    return {**more, **({"groups": n(8 * more["groups"], more["groups"])} if "groups" in more else {})}


def bn(c: int):
    return lambda n: nn.BatchNorm2d(n(8 * c, c))


def relu(n: N) -> nn.Module:
    return nn.ReLU(inplace=True)


def silu(n: N) -> nn.Module:
    return nn.SiLU()


def grouped_half(n: N) -> nn.Module:
    return nn.Conv2d(n(128, 16), n(128, 16), 3, 2, 1, groups=n(8, 2))


def line_of(*parts):
    return lambda n: nn.Sequential(*(p(n) for p in parts))


# -- products -------------------------------------------------------------------------------------------------------------------


def triangular_product(lower: bool):
    def run(a: Tensor, b: Tensor) -> Tensor:
        cut = torch.tril if lower else torch.triu
        return cut(cut(a) @ cut(b))

    return run


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba's recurrence, step by step."""
    decay = torch.exp(delta.sigmoid().unsqueeze(-1) * -a.abs())
    push = (delta.sigmoid() * x).unsqueeze(-1) * b.unsqueeze(2)
    state = torch.zeros_like(decay[:, 0])
    found = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + push[:, t]
        found.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(found, 1)


class MambaBlock(nn.Module):
    """Projection, causal convolution along tokens, gate; the state is a cumulative sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inward = nn.LayerNorm(width), nn.Linear(width, 4 * width, bias=False)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, groups=2 * width, padding=3)
        self.rate, self.outward = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inward(self.norm(x)).chunk(2, -1)
        u = functional.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        rate = functional.softplus(self.rate(u))
        y = (u * rate).cumsum(1) / (1 + rate.cumsum(1))
        return x + self.outward(y * functional.silu(gate))


class Cell(nn.Module):
    """A recurrent cell written out, some steps of it."""

    def __init__(self, kind: str, width: int, steps: int) -> None:
        super().__init__()
        self.kind, self.steps = kind, steps
        gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
        self.x, self.h = nn.Linear(width, gates * width), nn.Linear(width, gates * width)

    def forward(self, xs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c, found = state, torch.zeros_like(state), []
        for t in range(self.steps):
            mine, before = self.x(xs[t]), self.h(h)
            if self.kind == "rnn":
                h = torch.tanh(mine + before)
            elif self.kind == "gru":
                (r, z, n), (p, q, m) = mine.chunk(3, -1), before.chunk(3, -1)
                gate = torch.sigmoid(z + q)
                h = (1 - gate) * torch.tanh(n + torch.sigmoid(r + p) * m) + gate * h
            else:
                i, f, g, o = (mine + before).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found), h


def cell(kind: str) -> Case:
    return scaled(
        lambda n: (Cell(kind, n(256, 8), n(6, 3)), (floats(n, (6, 3), (64, 4), (256, 8)), floats(n, (64, 4), (256, 8))))
    )


class CausalBlock(nn.Module):
    """MinGPT's block, with its mask as a buffer."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = functional.softmax(att.masked_fill(self.get_buffer("bias")[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))
        y = self.fc(self.ln_2(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.back(y)


# -- blocks of known networks ---------------------------------------------------------------------------------------------------


def dense_layer(n1, c1, n2, c2, x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat((x, y), 1)
    return torch.cat((both, c2(functional.relu(n2(c1(functional.relu(n1(both))))))), 1)


def squeeze_excite(wide, down, up, project, norm, x: Tensor) -> Tensor:
    y = wide(x)
    s = torch.sigmoid(up(functional.silu(down(functional.adaptive_avg_pool2d(y, 1)))))
    return x + norm(project(y * s))


def shuffle_unit(c1, n1, deep, n2, c2, n3, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    b = functional.relu(n3(c2(n2(deep(functional.relu(n1(c1(b))))))))
    y = torch.cat((a, b), 1)
    k, c, h, w = y.shape
    return y.view(k, 2, c // 2, h, w).transpose(1, 2).reshape(k, c, h, w)


def convnext(deep, norm, wide, back, gain: Tensor, x: Tensor) -> Tensor:
    y = norm(deep(x).permute(0, 2, 3, 1))
    return x + (gain * back(functional.gelu(wide(y)))).permute(0, 3, 1, 2)


def regnet(deep, short, x: Tensor) -> Tensor:
    return functional.relu(deep(x) + short(x))


def up_and_join(up, c1, n1, c2, n2, x: Tensor, skip: Tensor) -> Tensor:
    y = up(x)
    dh, dw = skip.shape[-2] - y.shape[-2], skip.shape[-1] - y.shape[-1]
    y = functional.pad(y, (dw // 2, dw - dw // 2, dh // 2, dh - dh // 2))
    return functional.relu(n2(c2(functional.relu(n1(c1(torch.cat((skip, y), 1)))))))


def shifted_windows(qkv, proj, bias: Tensor, x: Tensor) -> Tensor:
    """Swin's attention in windows that are shifted, with a bias of places."""
    b, h, w, c = x.shape
    side, heads = 7 if h % 7 == 0 else 2, bias.shape[0]
    y = torch.roll(x, (-(side // 2), -(side // 2)), (1, 2))
    y = y.view(b, h // side, side, w // side, side, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, c)
    q, k, v = qkv(y).reshape(-1, side * side, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
    att = ((q * (c // heads) ** -0.5) @ k.transpose(-2, -1) + bias).softmax(-1)
    y = proj((att @ v).transpose(1, 2).reshape(-1, side * side, c))
    y = y.view(b, h // side, w // side, side, side, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return x + torch.roll(y, (side // 2, side // 2), (1, 2))


def merge_patches(norm, reduce, x: Tensor) -> Tensor:
    parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
    return reduce(norm(torch.cat(parts, -1)))


def spatial_gate(c, x: Tensor) -> Tensor:
    """CBAM's."""
    found = torch.cat((x.mean(1, keepdim=True), x.amax(1, keepdim=True)), 1)
    return x * torch.sigmoid(c(found))


def deformed(offsets, x: Tensor) -> Tensor:
    """Samples of an image where a convolution says."""
    h, w = x.shape[-2:]
    at = torch.tanh(offsets(x))[:, :2].permute(0, 2, 3, 1) * 0.1
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype),
        torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype),
        indexing="ij",
    )
    return functional.grid_sample(x, torch.stack((xs, ys), -1) + at, align_corners=True)


CASES: dict[str, Case] = {
    # products of every shape and form
    "triangular_lower": call(triangular_product(True), ((1024, 24), (1024, 24)), ((1024, 24), (1024, 24))),
    "triangular_upper": call(triangular_product(False), ((1024, 24), (1024, 24)), ((1024, 24), (1024, 24))),
    "product_by_both_turned": call(lambda a, b: a @ b, turned((512, 16), (1024, 24)), turned((768, 8), (512, 16))),
    "product_of_scalars": call(lambda a, b: 2.5 * (a @ b) - 1, (ROWS, (512, 16)), ((512, 16), ROWS)),
    "product_4d": call(
        lambda a, b: torch.einsum("bijl,lk->bijk", a, b), ((8, 2), (32, 3), (64, 4), (256, 16)), ((256, 16), (128, 8))
    ),
    "product_batched_rows": call(
        lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((16, 2), (256, 6), (64, 16)), ((16, 2), (200, 5), (64, 16))
    ),
    "product_of_views": call(lambda a, b: a[:, 1:-1] @ b[1:-1], (ROWS, (258, 18)), ((258, 18), (512, 8))),
    "diagonal_scale": call(lambda a, b, c: torch.diag(a) @ b @ torch.diag(c), (ROWS,), (ROWS, WIDE), (WIDE,)),
    "matrix_vector_batch": call(torch.matmul, ((32, 2), (512, 8), (256, 16)), ((256, 16),)),
    "tensordot": call(lambda a, b: torch.einsum("abc,bcd->ad", a, b), ((256, 6), (16, 4), (32, 8)), ((16, 4), (32, 8), (128, 8))),
    "trilinear_form": call(
        lambda a, m, b: torch.einsum("bi,ij,bj->b", a, m, b), (ROWS, (256, 16)), ((256, 16), (256, 16)), (ROWS, (256, 16))
    ),
    "three_norms": call(lambda x: (x.norm(), x.norm(1, -1), x.norm(float("inf"), 0)), (ROWS, WIDE)),
    # along a dimension
    "cumsum_of_products": call(lambda x, y: (x * y).cumsum(-1) * 0.5, (ROWS, WIDE), (ROWS, WIDE)),
    "cumulative_max_values": call(lambda x: torch.cummax(x, 1).values, ((128, 4), WIDE)),
    "cumulative_softmax": call(lambda x: x.exp().cumsum(1) / x.exp().sum(1, keepdim=True), (ROWS, WIDE)),
    "scan_selective": call(
        selective_scan,
        ((4, 2), (16, 4), (128, 8)),
        ((4, 2), (16, 4), (128, 8)),
        ((128, 8), 4),
        ((4, 2), (16, 4), 4),
        ((4, 2), (16, 4), 4),
    ),
    "mamba_block": scaled(lambda n: (MambaBlock(n(256, 8)), (floats(n, (8, 2), (128, 6), (256, 8)),))),
    "cell_rnn": cell("rnn"),
    "cell_gru": cell("gru"),
    "cell_lstm": cell("lstm"),
    "gpt_block": scaled(lambda n: (CausalBlock(n(512, 16), n(8, 2), n(256, 8)), (floats(n, (8, 2), (256, 8), (512, 16)),))),
    # blocks
    "dense_layer": call(
        dense_layer,
        ((16, 2), (64, 8), (28, 6), (28, 6)),
        ((16, 2), (64, 8), (28, 6), (28, 6)),
        parts=(bn(16), conv(16, 8), bn(8), conv(8, 4, 3)),
    ),
    "squeeze_excite": call(
        squeeze_excite,
        IMAGE,
        parts=(
            line_of(conv(8, 32), bn(32), silu, conv(32, 32, 3, groups=32), bn(32), silu),
            conv(32, 4),
            conv(4, 32),
            conv(32, 8),
            bn(8),
        ),
    ),
    "shuffle_unit": call(
        shuffle_unit,
        ((16, 2), (128, 16), (28, 6), (28, 6)),
        parts=(conv(8, 8), bn(8), conv(8, 8, 3, groups=8), bn(8), conv(8, 8), bn(8)),
    ),
    "convnext_block": scaled(
        lambda n: (
            Fn(
                convnext,
                nn.Conv2d(n(64, 8), n(64, 8), 7, padding=3, groups=n(64, 8)),
                nn.LayerNorm(n(64, 8)),
                nn.Linear(n(64, 8), n(256, 32)),
                nn.Linear(n(256, 32), n(64, 8)),
                gain=torch.ones(n(64, 8)) * 0.1,
            ),
            (floats(n, *IMAGE),),
        )
    ),
    "regnet_block": call(
        regnet,
        IMAGE,
        parts=(
            line_of(conv(8, 16), bn(16), relu, grouped_half, bn(16), relu, conv(16, 16), bn(16)),
            line_of(lambda n: nn.Conv2d(n(64, 8), n(128, 16), 1, 2), bn(16)),
        ),
    ),
    "up_and_join": call(
        up_and_join,
        ((8, 2), (64, 8), (28, 4), (28, 4)),
        ((8, 2), (64, 8), (57, 9), (57, 9)),
        parts=(lambda n: nn.ConvTranspose2d(n(64, 8), n(64, 8), 2, 2), conv(16, 8, 3), bn(8), conv(8, 8, 3), bn(8)),
    ),
    "vgg_stage": call(
        lambda a, b, x: functional.max_pool2d(functional.relu(b(functional.relu(a(x)))), 2),
        IMAGE,
        parts=(conv(8, 16, 3), conv(16, 16, 3)),
    ),
    "inception_branches": call(
        lambda a, b, c, d, x: torch.cat([a(x), c(b(x)), d(functional.max_pool2d(x, 3, 1, 1))], 1),
        IMAGE,
        parts=(conv(8, 4), conv(8, 4), conv(4, 8, 3), conv(8, 4)),
    ),
    "swin_shifted": scaled(
        lambda n: (
            Fn(
                shifted_windows,
                nn.Linear(n(96, 8), n(288, 24)),
                nn.Linear(n(96, 8), n(96, 8)),
                bias=torch.randn(n(3, 2), n(49, 4), n(49, 4)),
            ),
            (floats(n, (8, 2), (56, 4), (56, 4), (96, 8)),),
        )
    ),
    "merge_patches": scaled(
        lambda n: (
            Fn(merge_patches, nn.LayerNorm(n(384, 32)), nn.Linear(n(384, 32), n(192, 16), bias=False)),
            (floats(n, (8, 2), (56, 4), (56, 4), (96, 8)),),
        )
    ),
    "spatial_gate": call(spatial_gate, IMAGE, parts=(lambda n: nn.Conv2d(2, 1, 7, padding=3),)),
    "deformed": call(deformed, ((8, 2), (32, 4), (28, 6), (28, 6)), parts=(conv(4, 4, 3),)),
    "conv_transposed_strided": call(
        lambda c, x: torch.tanh(c(x)),
        ((8, 2), (64, 8), (16, 4), (16, 4)),
        parts=(lambda n: nn.ConvTranspose2d(n(64, 8), n(32, 8), 4, 2, 1, bias=False),),
    ),
    "stem_pool_ceil": call(
        lambda c, x: functional.avg_pool2d(
            functional.max_pool2d(c(x), 3, 2, ceil_mode=True), 2, ceil_mode=True, count_include_pad=False
        ),
        ((8, 2), 3, (112, 16), (112, 16)),
        parts=(lambda n: nn.Conv2d(3, n(64, 8), 7, 2, 3),),
    ),
}
