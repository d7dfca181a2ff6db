"""Modules with the habits of users: odd shapes, tensors that do not lie in order, several results, keyword arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Keywords
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import scaled


class Output(NamedTuple):
    logits: Tensor
    hidden: Tensor
    loss: Tensor | None = None


Size = tuple[int, int] | int
"""A size, or the real and the small one."""


def sizes(n: N, shape: tuple[Size, ...]) -> list[int]:
    return [x if isinstance(x, int) else n(*x) for x in shape]


def floats(n: N, *shape: Size) -> Tensor:
    return torch.randn(sizes(n, shape))


def call(run, *given, parts=()) -> Case:
    """``run(*modules, *inputs)``; sizes are pairs (real, small), ``parts`` make modules of ``n``."""

    def make(n: N) -> Made:
        inputs = tuple(floats(n, *g) if isinstance(g, tuple) else g(n) if callable(g) else g for g in given)
        return Fn(run, *(p(n) for p in parts)), inputs

    return scaled(make)


def whole(most: int, *shape: Size):
    return lambda n: torch.randint(0, most, sizes(n, shape))


def turned(*shape: Size):
    """A matrix that lies the other way round."""
    return lambda n: floats(n, *shape).transpose(-1, -2)


def last(*shape: Size):
    return lambda n: floats(n, *shape).contiguous(memory_format=torch.channels_last)


B, T, W = (8, 2), (512, 6), (512, 16)
"""Batch, tokens, width."""
IMAGE = ((16, 2), (64, 8), (56, 8), (56, 8))


def line(i: int = 1, o: int = 1, **more):
    return lambda n: nn.Linear(i * n(*W), o * n(*W), **more)


def norm(n: N) -> nn.Module:
    return nn.LayerNorm(n(*W))


def conv(k: int = 3, o: int = 1, **more):
    return lambda n: nn.Conv2d(n(64, 8), o * n(64, 8), k, padding=k // 2, **more)


class Block(nn.Module):
    """A transformer's block with options, as they are passed on by wrappers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float | None = None, return_dict: bool = True):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (scale or (w // self.heads) ** -0.5)
        if mask is not None:
            scores = scores + (1 - mask[:, None, None]) * -10000.0
        weights = scores.softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, w))
        x = x + self.mlp(self.norm_2(x))
        return {"hidden": x, "weights": weights} if return_dict else (x, weights)


def block(*given, **keywords) -> Case:
    return scaled(lambda n: (Block(n(*W), n(8, 2)), (floats(n, B, (256, 6), W), *(g(n) for g in given), Keywords(keywords))))


def rotary(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * base ** (-torch.arange(half, device=x.device) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).to(x.dtype)


class Counts(nn.Module):
    """A text classifier over bags of words with lengths."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width, padding_idx=0), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Output:
        mask = (tokens != 0).unsqueeze(-1)
        hidden = (self.embedding(tokens) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return Output(self.head(hidden), hidden)


class Squeeze(nn.Module):
    """Squeeze and excitation as TIMM writes it."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.down, self.up, self.act = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """An inverted residual of MobileNetV3."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c), nn.Hardswish(inplace=True)),
            *(nn.Conv2d(4 * c, 4 * c, 5, padding=2, groups=4 * c, bias=False), nn.BatchNorm2d(4 * c), nn.Hardswish(inplace=True)),
            *(Squeeze(4 * c), nn.Conv2d(4 * c, c, 1, bias=False), nn.BatchNorm2d(c)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Stem(nn.Module):
    """A ResNet's stem and one stage, its features as a list."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True))
        self.pool, self.a, self.b = nn.MaxPool2d(3, 2, 1), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> list[Tensor]:
        first = self.stem(x)
        second = self.pool(first)
        return [first, second, functional.relu(self.b(self.a(second)) + second)]


def focal(x, y, gamma: float = 2.0, alpha: float = 0.25, reduction: str = "mean"):
    p = torch.sigmoid(x)
    loss = functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    pt = p * y + (1 - p) * (1 - y)
    loss = (alpha * y + (1 - alpha) * (1 - y)) * loss * (1 - pt) ** gamma
    return loss.mean() if reduction == "mean" else loss.sum()


def wide(x: Tensor) -> Tensor:
    """A norm in float32 of whatever comes in, as LLaMA's."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def beam(x: Tensor, temperature: float, k: int):
    values, places = (x / temperature).log_softmax(-1).topk(k)
    return values.exp(), places, values.sum(-1)


def nucleus(x: Tensor, p: float) -> Tensor:
    ordered, places = x.sort(-1, descending=True)
    gone = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1) > p
    return torch.full_like(x, -math.inf).scatter(-1, places, ordered.masked_fill(gone, -math.inf)).softmax(-1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    a, b = (torch.cat((x[:, :2], x[:, :2] + x[:, 2:].abs()), 1) for x in (a, b))
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area = [(x[:, 2:] - x[:, :2]).prod(1) for x in (a, b)]
    return shared / (area[0][:, None] + area[1] - shared + 1e-6)


def split_heads(x: Tensor, f: nn.Module, parts: int):
    return tuple(y.relu() for y in f(x).chunk(parts, -1))


def gumbel(x: Tensor, hard: bool) -> Tensor:
    y = x.softmax(-1)
    if not hard:
        return y
    return torch.zeros_like(x).scatter_(-1, y.argmax(-1, keepdim=True), 1.0) - y + y


def rank_scores(f, g, users: Tensor, items: Tensor) -> Tensor:
    return (functional.normalize(f(users), dim=-1) * functional.normalize(g(items), dim=-1)).sum(-1).sigmoid()


def embedding(words: tuple[int, int], width: tuple[int, int] = W):
    return lambda n: nn.Embedding(n(*words), n(*width))


def half_turn(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"sum": x.half() + y.half(), "brain": x.bfloat16() @ y.bfloat16().T, "same": x}


CASES: dict[str, Case] = {
    "user_block_dict": block(),
    "user_block_mask": block(lambda n: torch.ones(n(*B), n(256, 6)).tril(n(100, 2))),
    "user_block_none": block(lambda n: None, scale=0.125, return_dict=False),
    "user_linear_turned": call(lambda f, x: f(x).relu(), turned(W, (1024, 8)), parts=(line(),)),
    "user_mm_turned_both": call(lambda x, y: x @ y, turned((768, 6), (1024, 10)), turned((384, 5), (768, 6))),
    "user_conv_last": call(lambda f, x: f(x).relu(), last(*IMAGE), parts=(conv(),)),
    "user_conv_last_pool": call(lambda f, x: functional.max_pool2d(f(x).tanh(), 2), last(*IMAGE), parts=(conv(1, 2),)),
    "user_conv_sliced": call(lambda f, x: f(x[:, ::2, 1:-1, 1:-1]), ((16, 2), (128, 16), (58, 10), (58, 10)), parts=(conv(),)),
    "user_conv_batch_1": call(lambda f, g, x: g(f(x).relu()).relu(), (1, *IMAGE[1:]), parts=(conv(), conv(3, 2, stride=2))),
    "user_conv_odd": call(
        lambda f, x: functional.silu(f(x)),
        ((7, 1), (3, 3), (199, 9), (211, 11)),
        parts=(lambda n: nn.Conv2d(3, n(37, 5), (5, 3), (2, 1), (2, 0)),),
    ),
    "user_linear_batch_1": call(lambda f, g, x: g(f(x).relu()), (1, W), parts=(line(1, 4), line(4, 1))),
    "user_linear_odd": call(
        lambda f, x: torch.tanh(f(x)) * 0.5, ((333, 7), (769, 13)), parts=(lambda n: nn.Linear(n(769, 13), n(1001, 9)),)
    ),
    "user_linear_5d": call(lambda f, x: f(x), ((2, 1), (4, 2), (8, 2), (64, 3), W), parts=(line(),)),
    "user_scalar_inputs": call(lambda f, x, a, b: a * f(x) + b, (B, T, W), 0.5, 2, parts=(norm,)),
    "user_scalar_tensor": call(lambda x, t: torch.softmax(x / t.exp(), -1), (B, T, T), lambda n: torch.tensor(0.3)),
    "user_eps_as_keyword": call(lambda x, k: functional.layer_norm(x, x.shape[-1:], **k), (B, T, W), {"eps": 1e-3}),
    "user_dict_input": call(
        lambda f, d: f(d["x"]) + d["more"]["y"], lambda n: {"x": floats(n, B, W), "more": {"y": floats(n, B, W)}}, parts=(line(),)
    ),
    "user_list_input": call(lambda xs: torch.stack(xs).mean(0), lambda n: [floats(n, B, T, W) for _ in range(3)]),
    "user_same_twice": call(lambda x: (x, x + 1, x), ((1024, 6), W)),
    "user_halves": call(half_turn, ((512, 6), W), ((512, 6), W)),
    "user_wide_norm": call(lambda f, x: f(wide(x)), (B, T, W), parts=(line(bias=False),)),
    "user_named_tuple": scaled(
        lambda n: (Counts(n(30000, 30), n(256, 8), 20), (torch.randint(0, n(30000, 30), (n(256, 3), n(64, 5))),))
    ),
    "user_features": scaled(lambda n: (Stem(n(64, 8)).eval(), (torch.randn(n(8, 1), 3, n(224, 16), n(224, 16)),))),
    "user_squeeze": scaled(lambda n: (Squeeze(n(256, 8)), (torch.randn(n(16, 2), n(256, 8), n(28, 6), n(28, 6)),))),
    "user_inverted": scaled(lambda n: (Inverted(n(40, 4)), (torch.randn(n(16, 1), n(40, 4), n(28, 6), n(28, 6)),))),
    "user_focal": call(focal, ((8192, 6), (128, 5)), lambda n: torch.randint(0, 2, (n(8192, 6), n(128, 5))).float()),
    "user_focal_sum": call(
        lambda x, y: focal(x, y, 1.5, reduction="sum"), ((100, 6), (37, 5)), lambda n: torch.rand(n(100, 6), n(37, 5))
    ),
    "user_rotary": call(lambda q, k: (rotary(q, 10000.0), rotary(k, 10000.0)), (B, (16, 2), T, (64, 8)), (B, (4, 2), T, (64, 8))),
    "user_beam": call(beam, ((64, 3), (32000, 40)), 0.7, 5),
    "user_nucleus": call(nucleus, ((16, 2), (32000, 30)), 0.9),
    "user_iou": call(iou, ((1000, 9), 4), ((300, 7), 4)),
    "user_split_heads": call(lambda f, x: split_heads(x, f, 4), (B, T, W), parts=(line(1, 4),)),
    "user_gumbel_soft": call(gumbel, ((4096, 6), (128, 7)), False),
    "user_gumbel_hard": call(gumbel, ((4096, 6), (128, 7)), True),
    "user_two_towers": call(
        rank_scores, whole(9, (4096, 6)), whole(9, (4096, 6)), parts=(embedding((10000, 12)), embedding((50000, 12)))
    ),
    "user_counts_by_word": call(lambda x: functional.one_hot(x, 32).sum(1), whole(32, (256, 3), (128, 5))),
    "user_whole_mean": call(lambda x: x.float().mean(-1).round().long(), whole(200, (256, 4), (1024, 9))),
    "user_bits": call(lambda x: ((x[:, None] >> torch.arange(16, device=x.device)) & 1).bool(), whole(65536, (4096, 6))),
    "user_masked_softmax": call(
        lambda x, m: x.masked_fill(~m, torch.finfo(x.dtype).min).softmax(-1),
        (B, T, T),
        lambda n: torch.rand(n(*B), n(*T), n(*T)) > 0.3,
    ),
    "user_bool_result": call(lambda x: (x.isfinite().all(), (x > 0).any(-1), x.sign()), ((1024, 5), W)),
    "user_group_queries": call(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (2, (32, 4), (256, 6), (64, 8)),
        *((2, (8, 2), (256, 6), (64, 8)),) * 2,
    ),
    "user_attention_bias": call(
        lambda q, k, v, b: functional.scaled_dot_product_attention(q, k, v, attn_mask=b),
        *(((4, 1), (8, 2), (197, 7), (64, 8)),) * 3,
        ((8, 2), (197, 7), (197, 7)),
    ),
    "user_cross_attention": call(
        lambda m, x, y: m(x, y, y, need_weights=False)[0],
        (B, (100, 5), W),
        (B, (77, 6), W),
        parts=(lambda n: nn.MultiheadAttention(n(*W), n(8, 2), batch_first=True),),
    ),
    "user_one_query": call(
        functional.scaled_dot_product_attention, ((32, 2), (16, 2), 1, (64, 8)), *(((32, 2), (16, 2), (1024, 9), (64, 8)),) * 2
    ),
    "user_cosine_classifier": call(
        lambda f, x: 16 * functional.normalize(x, dim=1) @ functional.normalize(f.weight, dim=1).T,
        ((1024, 6), W),
        parts=(line(1, 2, bias=False),),
    ),
    "user_arcface": call(
        lambda x, y: functional.cross_entropy(
            16
            * torch.where(
                functional.one_hot(y, x.shape[1]).bool(), torch.cos(torch.acos(x.tanh() * 0.99) + 0.3), x.tanh() * 0.99
            ),
            y,
        ),
        ((1024, 6), (1000, 11)),
        whole(11, (1024, 6)),
    ),
    "user_smooth_ce_2d": call(
        lambda x, y: functional.cross_entropy(x, y, ignore_index=3, label_smoothing=0.05),
        ((8, 2), 19, (64, 5), (64, 5)),
        whole(19, (8, 2), (64, 5), (64, 5)),
    ),
    "user_ctc_like": call(lambda x: x.log_softmax(-1).logsumexp((0, 1)), ((64, 3), (50, 4), (80, 9))),
    "user_huber_masked": call(
        lambda x, y, m: (functional.huber_loss(x, y, reduction="none", delta=0.5) * m).sum() / m.sum().clamp(min=1),
        *((B, T, W),) * 2,
        lambda n: (torch.rand(n(*B), n(*T), 1) > 0.5).float(),
    ),
    "user_vae_loss": call(
        lambda x, y, m, v: functional.mse_loss(x, y, reduction="sum") - 0.5 * (1 + v - m.pow(2) - v.exp()).sum(),
        *(((128, 3), (784, 12)),) * 2,
        *(((128, 3), (20, 4)),) * 2,
    ),
    "user_info_nce": call(
        lambda x, y: functional.cross_entropy(
            functional.normalize(x) @ functional.normalize(y).T / 0.07, torch.arange(len(x), device=x.device)
        ),
        *(((512, 6), (256, 16)),) * 2,
    ),
    "user_barlow": call(
        lambda x, y: (((x - x.mean(0)) / x.std(0)).T @ ((y - y.mean(0)) / y.std(0)) / len(x)).pow(2).sum(),
        *(((1024, 9), (512, 6)),) * 2,
    ),
    "user_instance_whiten": call(
        lambda x: (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt(), IMAGE
    ),
    "user_style_mod": call(
        lambda f, g, x, z: x * (1 + f(z)[..., None, None]) + g(z)[..., None, None],
        IMAGE,
        ((16, 2), W),
        parts=(lambda n: nn.Linear(n(*W), n(64, 8)),) * 2,
    ),
    "user_position_2d": call(
        lambda a, b, x: (
            x
            + torch.cat(
                (
                    a.weight[: x.shape[2]].T[None, :, :, None].expand(*x.shape[:1], -1, -1, x.shape[3]),
                    b.weight[: x.shape[3]].T[None, :, None].expand(*x.shape[:1], -1, x.shape[2], -1),
                ),
                1,
            )
        ),
        IMAGE,
        parts=(lambda n: nn.Embedding(n(56, 8), n(32, 4)),) * 2,
    ),
    "user_depth_to_tokens": call(
        lambda f, x: f(x).flatten(2).transpose(1, 2),
        ((16, 2), 3, (224, 8), (224, 8)),
        parts=(lambda n: nn.Conv2d(3, n(768, 8), n(16, 4), n(16, 4)),),
    ),
    "user_gated_conv": call(
        lambda f, g, x: f(x) * g(x).sigmoid(),
        ((16, 2), (64, 4), (2048, 12)),
        parts=(lambda n: nn.Conv1d(n(64, 4), n(64, 4), 3, padding=1),) * 2,
    ),
    "user_gru_last": call(
        lambda r, f, x: f(r(x)[1][-1]),
        ((32, 2), (32, 3), (64, 5)),
        parts=(lambda n: nn.GRU(n(64, 5), n(128, 6), batch_first=True), lambda n: nn.Linear(n(128, 6), 10)),
    ),
    "user_lstm_state": call(
        lambda r, x, h, c: r(x, (h, c)),
        ((16, 3), (8, 2), (64, 5)),
        (1, (8, 2), (128, 6)),
        (1, (8, 2), (128, 6)),
        parts=(lambda n: nn.LSTM(n(64, 5), n(128, 6)),),
    ),
    "user_complex_free_fft": call(lambda x: torch.fft.rfft(x).abs(), ((64, 2), (1024, 8))),
    "user_no_inputs": call(lambda f: f.weight.norm(dim=1), parts=(line(),)),
    "user_constants_only": call(lambda x: (x * 2, torch.arange(7, device=x.device), 3, None, "mean"), ((512, 4), W)),
    "user_dropout_eval": call(lambda d, f, x: d(f(d(x))), (B, T, W), parts=(lambda n: nn.Dropout(0.3), line())),
    "user_empty_rows": call(lambda x: (x[:, :0].sum(1), x.mean(1)), (B, T, W)),
    "user_einsum_four": call(lambda a, b, c: torch.einsum("bik,bjk,bjd->bid", a, b, c), *((B, (128, 5), (64, 8)),) * 3),
    "user_outer_update": call(
        lambda s, k, v, g: s * g[..., None, None].sigmoid() + k[..., None] * v[..., None, :],
        (B, (8, 2), (64, 8), (64, 8)),
        *((B, (8, 2), (64, 8)),) * 2,
        (B, (8, 2)),
    ),
    "user_running_norm": call(
        lambda b, x: b(x.transpose(1, 2)).transpose(1, 2), (B, T, (64, 8)), parts=(lambda n: nn.BatchNorm1d(n(64, 8)),)
    ),
    "user_int8_linear": call(
        lambda x, w, s: functional.linear(x, w.to(x.dtype) * s[:, None]),
        ((64, 3), W),
        lambda n: torch.randint(-128, 128, (n(1024, 8), n(*W))).to(torch.int8),
        ((1024, 8),),
    ),
    "user_checkerboard": call(
        lambda x: torch.where(
            (torch.arange(x.shape[-1], device=x.device) + torch.arange(x.shape[-2], device=x.device)[:, None]) % 2 == 0, x, -x
        ),
        IMAGE,
    ),
    "user_ema": call(lambda x: torch.stack([x[:, : t + 1].mean(1) for t in range(4)], 1), (B, (16, 6), W)),
    "user_normed_diff": call(lambda x, y, p: (x - y).abs().pow(p).sum(-1).pow(1 / p), ((1024, 6), W), ((1024, 6), W), 3.0),
}
