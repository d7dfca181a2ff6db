"""Modules of kinds that public suites and model zoos have: cumulative and triangular products, cells, blocks of known networks,
gathers, writes in place, results of many kinds, complex and empty tensors."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

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
from experiments.suite.users import whole

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


def line(i: int, o: int, **more):
    return lambda n: nn.Linear(n(16 * i, i), n(16 * o, o), **more)


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
    return scaled(lambda n: (Cell(kind, n(256, 8), n(6, 3)), (floats(n, (6, 3), (64, 4), (256, 8)), floats(n, (64, 4), (256, 8)))))


class CausalBlock(nn.Module):
    """MinGPT's block, with its mask as a buffer."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"fc": nn.Linear(width, 4 * width), "proj": nn.Linear(4 * width, width)})
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = functional.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))
        y = self.mlp["fc"](self.ln_2(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.mlp["proj"](y)


# -- blocks of known networks ---------------------------------------------------------------------------------------------------


def dense_layer(n1, c1, n2, c2, x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat((x, y), 1)
    return torch.cat((both, c2(functional.relu(n2(c1(functional.relu(n1(both))))))), 1)


def squeeze_excite(expand, n1, deep, n2, down, up, project, n3, x: Tensor) -> Tensor:
    y = functional.silu(n1(expand(x)))
    y = functional.silu(n2(deep(y)))
    s = torch.sigmoid(up(functional.silu(down(functional.adaptive_avg_pool2d(y, 1)))))
    return x + n3(project(y * s))


def shuffle_unit(c1, n1, deep, n2, c2, n3, x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    b = functional.relu(n3(c2(n2(deep(functional.relu(n1(c1(b))))))))
    y = torch.cat((a, b), 1)
    k, c, h, w = y.shape
    return y.view(k, 2, c // 2, h, w).transpose(1, 2).reshape(k, c, h, w)


def convnext(deep, norm, wide, back, gain: Tensor, x: Tensor) -> Tensor:
    y = norm(deep(x).permute(0, 2, 3, 1))
    return x + (gain * back(functional.gelu(wide(y)))).permute(0, 3, 1, 2)


def regnet(c1, n1, group, n2, c2, n3, short, n4, x: Tensor) -> Tensor:
    y = functional.relu(n2(group(functional.relu(n1(c1(x))))))
    return functional.relu(n3(c2(y)) + n4(short(x)))


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
    b, c, h, w = x.shape
    at = torch.tanh(offsets(x))[:, :2].permute(0, 2, 3, 1) * 0.1
    ys, xs = torch.meshgrid(
        torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype),
        torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype),
        indexing="ij",
    )
    return functional.grid_sample(x, torch.stack((xs, ys), -1) + at, align_corners=True)


def regions(x: Tensor, boxes: Tensor) -> Tensor:
    """The maxima of boxes of an image, by four gathers."""
    side = x.shape[-1]
    left, top = (boxes[:, i].abs().remainder(1) * (side - 2) for i in (0, 1))
    i, j = top.floor().long(), left.floor().long()
    fy, fx = top - i, left - j
    flat = x.flatten(1)
    corners = [flat[:, (i + a) * side + j + b] for a in (0, 1) for b in (0, 1)]
    weights = [(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx]
    return sum(c * w for c, w in zip(corners, weights, strict=True))


# -- writes in place ------------------------------------------------------------------------------------------------------------


def write_slices(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2] *= 2
    y[:, 1::2] = y[:, 1::2].relu_() + 1
    y[0].fill_(3)
    y[y > 2.5] = 2.5
    return y


def write_by_mask(x: Tensor, keep: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found.masked_scatter_(keep > 0, x.exp())
    found.index_fill_(0, torch.tensor([1, 3], device=x.device), -1.0)
    return found.clamp_(-1, 2).add_(x, alpha=0.5)


def rolling_buffer(x: Tensor, new: Tensor) -> Tensor:
    kept = torch.empty_like(x)
    kept[:, :-1] = x[:, 1:]
    kept[:, -1] = new
    return kept.mean(1)


class Momentum(nn.Module):
    """Two buffers of a batch norm in training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, training=True)


# -- results --------------------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    scores: Tensor
    places: Tensor
    count: int


def as_dataclass(x: Tensor):
    scores, places = x.softmax(-1).max(-1)
    return {"found": [scores, (places, x.shape[0])], "none": None, "flag": True, "text": "ok", "half": 0.5}


def ordered(x: Tensor) -> OrderedDict:
    return OrderedDict([("b", x.relu()), ("a", x.relu().sum(-1)), ("same", x)])


def nested(x: Tensor, more: Tensor):
    y = x + more
    return (y, [y.T, (y[:, :4], y.sum())]), {"first": y[0], "twice": y}


def mixed_dtypes(x: Tensor):
    return x > 0, x.argmax(-1), (x * 10).int(), x.double().sum(), (x > 0).any(), x.half(), x.to(torch.bfloat16)


def complex_rotary(x: Tensor) -> Tensor:
    """LLaMA's first form, of complex numbers."""
    wide = x.float()
    pairs = torch.view_as_complex(wide.reshape(*wide.shape[:-1], -1, 2))
    t, d = pairs.shape[-2:]
    angles = torch.outer(torch.arange(t, device=x.device), 10000.0 ** (-torch.arange(d, device=x.device) / d))
    turned_by = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turned_by).flatten(-2).type_as(x)


def spectral(weight_r: Tensor, weight_i: Tensor, x: Tensor) -> Tensor:
    """A Fourier layer."""
    freq = torch.fft.rfft(x.float(), dim=-1)[..., : weight_r.shape[-1]]
    mixed = torch.einsum("bct,cot->bot", freq, torch.complex(weight_r.float(), weight_i.float()))
    return torch.fft.irfft(mixed, n=x.shape[-1]).to(x.dtype)


def sparse_product(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device)
    kept = torch.sparse_coo_tensor(torch.stack((rows, rows)), x[:, 0].float(), (x.shape[0], x.shape[0]))
    return torch.sparse.mm(kept, w.float())


def empty_batch(x: Tensor) -> Tensor:
    none = x[x.shape[0] :]
    return torch.cat((none, x)) + none.sum()


def only_empty(lin, x: Tensor) -> Tensor:
    return lin(x[:0])


def to_numbers(x: Tensor):
    return x.shape[0] * 2, float(x.shape[-1]), x.mean()


def depends(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def counted_rows(x: Tensor) -> Tensor:
    return x[(x[:, 0] > 0).nonzero()[:, 0]].sum(0)


def unique_values(x: Tensor):
    return torch.unique((x * 2).long())


def straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def quantized(x: Tensor, w: Tensor) -> Tensor:
    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    whole_x = (x / top).round().clamp(-128, 127).to(torch.int8)
    return (whole_x.float() @ w.float()).to(x.dtype) * top


def distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(x.float(), y.float()).topk(3, largest=False).values


def nms_scores(boxes: Tensor, scores: Tensor) -> Tensor:
    corner, size = boxes[:, :2], boxes[:, 2:].abs() + 0.1
    low, high = corner - size / 2, corner + size / 2
    over = (torch.minimum(high[:, None], high[None]) - torch.maximum(low[:, None], low[None])).clamp(min=0).prod(-1)
    area = size.prod(-1)
    iou = over / (area[:, None] + area[None] - over)
    higher = scores[None] > scores[:, None]
    return scores * torch.exp(-((iou * higher) ** 2 / 0.5).amax(-1))


def attend_relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    t = q.shape[-2]
    at = (torch.arange(t, device=q.device)[:, None] - torch.arange(t, device=q.device)).clamp(-8, 8) + 8
    return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + table[at].permute(2, 0, 1)).softmax(-1) @ v


def cosine_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-1, -2) * 10).softmax(-1) @ v


def masked_scores(x: Tensor, keep: Tensor) -> Tensor:
    return functional.softmax(x.masked_fill(keep.unsqueeze(1) < 0, torch.finfo(x.dtype).min), -1)


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    a, b = functional.normalize(a, dim=-1), functional.normalize(b, dim=-1)
    logits = a @ b.T * 20
    at = torch.arange(a.shape[0], device=a.device)
    return (functional.cross_entropy(logits, at) + functional.cross_entropy(logits.T, at)) / 2


def dice(x: Tensor, y: Tensor) -> Tensor:
    p, t = x.softmax(1), y.sigmoid()
    return 1 - ((2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)).mean()


def ssim(x: Tensor, y: Tensor) -> Tensor:
    mx, my = functional.avg_pool2d(x, 3, 1), functional.avg_pool2d(y, 3, 1)
    vx, vy = functional.avg_pool2d(x * x, 3, 1) - mx * mx, functional.avg_pool2d(y * y, 3, 1) - my * my
    both = functional.avg_pool2d(x * y, 3, 1) - mx * my
    return 1 - ((2 * mx * my + 0.01) * (2 * both + 0.03) / ((mx * mx + my * my + 0.01) * (vx + vy + 0.03))).mean()


def perplexity(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x[:, :-1].flatten(0, 1), y[:, 1:].flatten()).exp()


def graph_norm(x: Tensor, at: Tensor) -> Tensor:
    groups = 16
    ones = torch.ones(x.shape[0], device=x.device, dtype=x.dtype)
    count = torch.zeros(groups, device=x.device, dtype=x.dtype).scatter_add(0, at, ones).clamp(min=1)
    mean = torch.zeros(groups, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, at, x) / count[:, None]
    return x - mean[at]


def bag_mean(table, at: Tensor) -> Tensor:
    return table(at).mean(1)


def band(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1], device=x.device)
    return torch.where((i[:, None] - i).abs() <= 2, x, torch.zeros_like(x)).sum(-1)


CASES: dict[str, Case] = {
    # products of every shape and form
    "triangular_lower": call(triangular_product(True), ((1024, 24), (1024, 24)), ((1024, 24), (1024, 24))),
    "triangular_upper": call(triangular_product(False), ((1024, 24), (1024, 24)), ((1024, 24), (1024, 24))),
    "product_by_both_turned": call(lambda a, b: a @ b, turned((512, 16), (1024, 24)), turned((768, 8), (512, 16))),
    "product_of_scalars": call(lambda a, b: 2.5 * (a @ b) - 1, (ROWS, (512, 16)), ((512, 16), ROWS)),
    "product_4d": call(lambda a, b: torch.einsum("bijl,lk->bijk", a, b), ((8, 2), (32, 3), (64, 4), (256, 16)), ((256, 16), (128, 8))),
    "product_batched_rows": call(lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((16, 2), (256, 6), (64, 16)), ((16, 2), (200, 5), (64, 16))),
    "product_of_views": call(lambda a, b: a[:, 1:-1] @ b[1:-1], (ROWS, (258, 18)), ((258, 18), (512, 8))),
    "diagonal_scale": call(lambda a, b, c: torch.diag(a) @ b @ torch.diag(c), (ROWS,), (ROWS, WIDE), (WIDE,)),
    "matrix_vector_batch": call(lambda a, x: torch.matmul(a, x), ((32, 2), (512, 8), (256, 16)), ((256, 16),)),
    "tensordot": call(lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1])), ((256, 6), (16, 4), (32, 8)), ((16, 4), (32, 8), (128, 8))),
    "trilinear_form": call(lambda a, m, b: torch.einsum("bi,ij,bj->b", a, m, b), (ROWS, (256, 16)), ((256, 16), (256, 16)), (ROWS, (256, 16))),
    "three_norms": call(lambda x: (x.norm(), x.norm(1, -1), x.norm(float("inf"), 0)), (ROWS, WIDE)),
    # along a dimension
    "cumsum_of_products": call(lambda x, y: (x * y).cumsum(-1) * 0.5, (ROWS, WIDE), (ROWS, WIDE)),
    "cumulative_max_values": call(lambda x: torch.cummax(x, 1).values, ((128, 4), WIDE)),
    "cumulative_softmax": call(lambda x: x.exp().cumsum(1) / x.exp().sum(1, keepdim=True), (ROWS, WIDE)),
    "scan_selective": call(selective_scan, ((4, 2), (16, 4), (128, 8)), ((4, 2), (16, 4), (128, 8)), ((128, 8), 4), ((4, 2), (16, 4), 4), ((4, 2), (16, 4), 4)),
    "mamba_block": scaled(lambda n: (MambaBlock(n(256, 8)), (floats(n, (8, 2), (128, 6), (256, 8)),))),
    "cell_rnn": cell("rnn"),
    "cell_gru": cell("gru"),
    "cell_lstm": cell("lstm"),
    "gpt_block": scaled(lambda n: (CausalBlock(n(512, 16), n(8, 2), n(256, 8)), (floats(n, (8, 2), (256, 8), (512, 16)),))),
    # blocks
    "dense_layer": call(dense_layer, ((16, 2), (64, 8), (28, 6), (28, 6)), ((16, 2), (64, 8), (28, 6), (28, 6)), parts=(bn(16), conv(16, 8), bn(8), conv(8, 4, 3))),
    "squeeze_excite": call(squeeze_excite, IMAGE, parts=(conv(8, 32), bn(32), conv(32, 32, 3, groups=32), bn(32), conv(32, 4), conv(4, 32), conv(32, 8), bn(8))),
    "shuffle_unit": call(shuffle_unit, ((16, 2), (128, 16), (28, 6), (28, 6)), parts=(conv(8, 8), bn(8), conv(8, 8, 3, groups=8), bn(8), conv(8, 8), bn(8))),
    "convnext_block": scaled(lambda n: (Fn(convnext, nn.Conv2d(n(64, 8), n(64, 8), 7, padding=3, groups=n(64, 8)), nn.LayerNorm(n(64, 8)), nn.Linear(n(64, 8), n(256, 32)), nn.Linear(n(256, 32), n(64, 8)), gain=torch.ones(n(64, 8)) * 0.1), (floats(n, *IMAGE),))),
    "regnet_block": call(regnet, IMAGE, parts=(conv(8, 16), bn(16), lambda n: nn.Conv2d(n(128, 16), n(128, 16), 3, 2, 1, groups=n(8, 2)), bn(16), conv(16, 16), bn(16), lambda n: nn.Conv2d(n(64, 8), n(128, 16), 1, 2), bn(16))),
    "up_and_join": call(up_and_join, ((8, 2), (64, 8), (28, 4), (28, 4)), ((8, 2), (64, 8), (57, 9), (57, 9)), parts=(lambda n: nn.ConvTranspose2d(n(64, 8), n(64, 8), 2, 2), conv(16, 8, 3), bn(8), conv(8, 8, 3), bn(8))),
    "vgg_stage": call(lambda a, b, x: functional.max_pool2d(functional.relu(b(functional.relu(a(x)))), 2), IMAGE, parts=(conv(8, 16, 3), conv(16, 16, 3))),
    "inception_branches": call(lambda a, b, c, d, x: torch.cat([a(x), c(b(x)), d(functional.max_pool2d(x, 3, 1, 1))], 1), IMAGE, parts=(conv(8, 4), conv(8, 4), conv(4, 8, 3), conv(8, 4))),
    "swin_shifted": scaled(lambda n: (Fn(shifted_windows, nn.Linear(n(96, 8), n(288, 24)), nn.Linear(n(96, 8), n(96, 8)), bias=torch.randn(n(3, 2), n(49, 4), n(49, 4))), (floats(n, (8, 2), (56, 4), (56, 4), (96, 8)),))),
    "merge_patches": scaled(lambda n: (Fn(merge_patches, nn.LayerNorm(n(384, 32)), nn.Linear(n(384, 32), n(192, 16), bias=False)), (floats(n, (8, 2), (56, 4), (56, 4), (96, 8)),))),
    "spatial_gate": call(spatial_gate, IMAGE, parts=(lambda n: nn.Conv2d(2, 1, 7, padding=3),)),
    "deformed": call(deformed, ((8, 2), (32, 4), (28, 6), (28, 6)), parts=(conv(4, 4, 3),)),
    "regions": scaled(lambda n: (Fn(regions), (floats(n, (64, 4), (56, 8), (56, 8)), floats(n, (512, 6), 4)))),
    "depthwise_3d": call(lambda c, x: functional.gelu(c(x)), ((2, 1), (32, 4), (8, 4), (28, 6), (28, 6)), parts=(lambda n: nn.Conv3d(n(32, 4), n(32, 4), 3, padding=1, groups=n(32, 4)),)),
    "conv_transposed_strided": call(lambda c, x: torch.tanh(c(x)), ((8, 2), (64, 8), (16, 4), (16, 4)), parts=(lambda n: nn.ConvTranspose2d(n(64, 8), n(32, 8), 4, 2, 1, bias=False),)),
    "stem_pool_ceil": call(lambda c, x: functional.avg_pool2d(functional.max_pool2d(c(x), 3, 2, ceil_mode=True), 2, ceil_mode=True, count_include_pad=False), ((8, 2), 3, (112, 16), (112, 16)), parts=(lambda n: nn.Conv2d(3, n(64, 8), 7, 2, 3),)),
    # gathers, losses
    "distances_nearest": call(distances, (ROWS, (64, 8)), (ROWS, (64, 8))),
    "soft_nms": call(nms_scores, ((512, 12), 4), ((512, 12),)),
    "attend_relative": call(attend_relative, ((8, 2), (8, 2), (128, 12), (64, 8)), ((8, 2), (8, 2), (128, 12), (64, 8)), ((8, 2), (8, 2), (128, 12), (64, 8)), (17, (8, 2))),
    "attend_cosine": call(cosine_attention, *(((8, 2), (8, 2), (256, 12), (64, 8)),) * 3),
    "masked_scores": call(masked_scores, ((8, 2), (64, 4), (512, 16)), ((8, 2), (512, 16))),
    "graph_norm": call(graph_norm, ((4096, 24), (64, 8)), whole(16, (4096, 24))),
    "bag_mean": call(bag_mean, whole(64, (512, 4), (32, 6)), parts=(lambda n: nn.Embedding(n(4096, 64), n(128, 16)),)),
    "loss_contrastive": call(contrastive, ((512, 12), (256, 16)), ((512, 12), (256, 16))),
    "loss_dice_maps": call(dice, ((8, 2), (8, 4), (128, 8), (128, 8)), ((8, 2), (8, 4), (128, 8), (128, 8))),
    "loss_ssim": call(ssim, ((8, 2), 3, (128, 10), (128, 10)), ((8, 2), 3, (128, 10), (128, 10))),
    "loss_perplexity": call(perplexity, ((8, 2), (128, 6), (2048, 24)), whole(24, (8, 2), (128, 6))),
    "band_sums": call(band, ((8, 2), (512, 12), (512, 12))),
    "quantized_product": call(quantized, ((256, 8), (512, 16)), ((512, 16), (512, 8))),
    # writes in place, training
    "write_slices": call(write_slices, (ROWS, WIDE)),
    "write_by_mask": call(write_by_mask, (ROWS, WIDE), (ROWS, WIDE)),
    "write_rolling": call(rolling_buffer, ((64, 2), (128, 6), (256, 16)), ((64, 2), (256, 16))),
    "batch_norm_training": scaled(lambda n: (Momentum(n(512, 8)), (floats(n, ROWS, (512, 8)),))),
    "straight_through": call(straight_through, (ROWS, WIDE)),
    # results of many kinds
    "give_tree": call(as_dataclass, (ROWS, WIDE)),
    "give_ordered": call(ordered, (ROWS, WIDE)),
    "give_nested": call(nested, ((512, 12), (512, 12)), ((512, 12), (512, 12))),
    "give_dtypes": call(mixed_dtypes, (ROWS, WIDE)),
    "give_numbers": call(to_numbers, (ROWS, WIDE)),
    "complex_rotary": call(complex_rotary, ((8, 2), (8, 2), (256, 6), (64, 8))),
    "spectral_layer": scaled(lambda n: (Fn(spectral, real=torch.randn(n(32, 4), n(32, 4), n(64, 5)), other=torch.randn(n(32, 4), n(32, 4), n(64, 5))), (floats(n, (16, 2), (32, 4), (1024, 16)),))),
    "sparse_product": call(sparse_product, ((512, 12), (512, 12)), ((512, 12), (256, 8))),
    "empty_part": call(empty_batch, (ROWS, WIDE)),
    "empty_only": call(only_empty, ((64, 4), (256, 16)), parts=(line(16, 16),)),
    "depends_on_values": call(depends, (ROWS, WIDE)),
    "rows_that_count": call(counted_rows, (ROWS, WIDE)),
    "unique_values": call(unique_values, (ROWS, (16, 4))),
}
