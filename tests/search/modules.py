"""Small torch modules of many kinds, written as people write them: what each is, and inputs for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Any, tuple[Any, ...]]
SUITE: dict[str, Callable[[], Made]] = {}
"""Name to what makes a module and its inputs."""


def entry(f: Callable[[], Made]) -> Callable[[], Made]:
    SUITE[f.__name__.replace("_", " ")] = f
    return f


class Fn(nn.Module):
    """A function of tensors, and layers that it may use."""

    def __init__(self, f: Callable[..., Any], *layers: Any, **named: Any) -> None:
        super().__init__()
        self.f, self.layers = f, nn.ModuleList(layers)
        for name, value in named.items():
            setattr(self, name, value)

    def forward(self, *args: Any) -> Any:
        return self.f(*self.layers, *args)


def of(name: str, f: Callable[..., Any], *inputs: Any) -> None:
    """An entry that is one function."""
    layer(name, lambda: Fn(f), *inputs)


def layer(name: str, make: Callable[[], Any], *inputs: Any) -> None:
    """An entry of a module; inputs are shapes or what makes a tensor."""

    def made() -> Made:
        return make(), tuple(torch.randn(i) if isinstance(i, tuple) else i() for i in inputs)

    SUITE[name] = made


def using(layers: Callable[[], list[Any]], *inputs: Any) -> Callable[[Callable[..., Any]], None]:
    """An entry of a function of layers and inputs, under its name."""
    return lambda f: layer(f.__name__.replace("_", " "), lambda: Fn(f, *layers()), *inputs)


def ids(count: int, *shape: int) -> Callable[[], Any]:
    return lambda: torch.randint(0, count, shape)


# -- single operators -----------------------------------------------------------------------------------------------------------

of("square product", torch.matmul, (32, 32), (32, 32))
of("product of odd sizes", torch.matmul, (13, 37), (37, 5))
of("batched product", torch.bmm, (3, 8, 16), (3, 16, 12))
of("product of four dimensions", lambda a, b: torch.einsum("bijl,lk->bijk", a, b), (2, 3, 4, 8), (8, 5))
of("matrix and vector", torch.matmul, (17, 33), (33,))
of("dot product", torch.dot, (64,), (64,))
of("transposed operands", lambda a, b: torch.matmul(a.T, b.T), (24, 16), (8, 24))
of("triangular product", lambda a, b: torch.triu(torch.matmul(torch.triu(a), torch.triu(b))), (16, 16), (16, 16))
of("diagonal product", lambda a, b: torch.diag(a) @ b, (12,), (12, 8))
of("scaled matrix", lambda a: a * 3.14, (16, 24))
of(
    "activations",
    lambda x: functional.leaky_relu(x, 0.1) + functional.elu(x) + functional.softplus(x) + functional.mish(x),
    (8, 40),
)
of(
    "more activations",
    lambda x: functional.hardswish(x) + functional.selu(x) + functional.softsign(x) + functional.hardtanh(x),
    (8, 40),
)
of("gelu by tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3)))), (8, 40))
of("log softmax", lambda x: functional.log_softmax(x, 1), (8, 40))
of("softmax over rows", lambda x: functional.softmax(x, 0), (40, 8))
of("logsumexp", lambda x: torch.logsumexp(x, 1), (8, 40))
of("cumulative sum", lambda x: torch.cumsum(x, 1), (8, 40))
of("reversed cumulative sum", lambda x: torch.cumsum(x.flip(1), 1).flip(1), (8, 40))
of("masked cumulative sum", lambda x, m: torch.cumsum(x * m, 1), (8, 40), lambda: torch.rand(8, 40) > 0.5)
of("cumulative product", lambda x: torch.cumprod(x.sigmoid() + 0.5, 1), (8, 10))
of("largest and smallest", lambda x: (x.max(1).values, x.min(0).values, x.argmax(1), x.amin()), (8, 40))
of("mean and variance", lambda x: (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True) + 1e-5), (8, 40))
of("norms of vectors", lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True) + x / torch.mean(torch.abs(x), 1, True), (8, 40))
of("frobenius norm", lambda x: x / torch.norm(x, p="fro"), (8, 40))
of("product of elements", lambda x: torch.prod(x, 1), (8, 6))
of("clamp and where", lambda x, y: torch.where(x > 0, x.clamp(-1, 1), y.clamp(min=0)), (8, 40), (8, 40))
of("sorted", lambda x: torch.sort(x, -1), (4, 16))
of("largest three", lambda x: torch.topk(x.softmax(-1), 3), (4, 16))
of("gathered", lambda x, i: torch.gather(x.exp(), 1, i), (4, 16), ids(16, 4, 5))
of("scattered", lambda x, i, s: torch.zeros(4, 16).scatter_add(1, i, s) + x, (4, 16), ids(16, 4, 5), (4, 5))
of("indexed", lambda x, i: x.relu()[:, i].sum(-1), (4, 16), ids(16, 5))
of("one hot", lambda i: functional.one_hot(i, 7).float() @ torch.ones(7, 3), ids(7, 5))
of("pieces", lambda x: torch.cat([x[:, ::2].exp(), torch.stack(x.unbind(1)[:3], 1)], 1), (4, 16))
of("rolled and padded", lambda x: functional.pad(torch.roll(x, 1, -1), (1, 2)).flip(0), (4, 16))

# -- losses ---------------------------------------------------------------------------------------------------------------------

of("mean square error", functional.mse_loss, (16, 24), (16, 24))
of("cross entropy", functional.cross_entropy, (16, 10), ids(10, 16))
of("huber", functional.smooth_l1_loss, (16, 24), (16, 24))
of("divergence", lambda p, q: functional.kl_div(p.log_softmax(-1), q.softmax(-1), reduction="batchmean"), (16, 10), (16, 10))
of("cosine", lambda p, q: torch.mean(1 - functional.cosine_similarity(p, q, dim=1)), (16, 24), (16, 24))
of("hinge", lambda p, t: torch.mean(torch.clamp(1 - p * t, min=0)), (16,), lambda: torch.randint(0, 2, (16,)).float() * 2 - 1)
of("triplet", functional.triplet_margin_loss, (8, 16), (8, 16), (8, 16))
of("binary cross entropy", functional.binary_cross_entropy_with_logits, (8, 4), lambda: torch.rand(8, 4))

# -- single layers --------------------------------------------------------------------------------------------------------------

layer("batch norm", lambda: nn.BatchNorm2d(4), (2, 4, 6, 6))
layer("group norm", lambda: nn.GroupNorm(2, 4), (2, 4, 6, 6))
layer("instance norm", lambda: nn.InstanceNorm2d(4), (2, 4, 6, 6))
layer("layer norm of images", lambda: nn.LayerNorm([4, 6, 6]), (2, 4, 6, 6))
layer("local response norm", lambda: nn.LocalResponseNorm(2), (2, 4, 6, 6))
layer("pools", lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()), (2, 4, 16, 16))
layer("pool of one dimension", lambda: nn.Sequential(nn.MaxPool1d(2), nn.AvgPool1d(3, padding=1)), (2, 4, 16))
layer("convolution of one dimension", lambda: nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 16))
layer("depthwise convolution", lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1), (2, 6, 8, 8))
layer("transposed convolution", lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), (2, 4, 5, 5))
layer("convolution of three dimensions", lambda: nn.Conv3d(2, 3, 3), (1, 2, 5, 5, 5))
layer("bags", lambda: nn.EmbeddingBag(10, 8, mode="mean"), ids(10, 4, 3))
layer("bilinear", lambda: nn.Bilinear(6, 5, 4), (3, 6), (3, 5))
layer("upsampled", lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.PixelShuffle(2)), (1, 4, 4, 4))
layer("LSTM", lambda: nn.LSTM(8, 12, 2, batch_first=True), (2, 5, 8))
layer("GRU", lambda: nn.GRU(8, 12, bidirectional=True), (5, 2, 8))
layer("GRU cell", lambda: nn.GRUCell(8, 12), (2, 8), (2, 12))
layer("LSTM cell", lambda: nn.LSTMCell(8, 12), (2, 8))
layer("multi-head attention", lambda: nn.MultiheadAttention(16, 2, batch_first=True), (2, 5, 16), (2, 5, 16), (2, 5, 16))
layer("encoder layer", lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16))
layer("decoder layer", lambda: nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, norm_first=True), (2, 5, 16), (2, 7, 16))
layer("transformer", lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (2, 5, 16), (2, 7, 16))

# -- some layers with what stands behind them -----------------------------------------------------------------------------------


layer(
    "linear with epilogue",
    lambda: Fn(lambda f, x: torch.logsumexp(functional.mish(torch.clamp(f(x) * 2 + f(x), -2, 2)), 1, True), nn.Linear(20, 28)),
    (9, 20),
)


@entry
def convolution_with_epilogue() -> Made:
    bias = nn.Parameter(torch.randn(6, 1, 1))
    run = lambda conv, x: torch.tanh(conv(x) - 0.5).min(1, keepdim=True)[0] * module.bias  # noqa: E731
    module: Any = Fn(run, nn.Conv2d(3, 6, 3), bias=bias)
    return module, (torch.randn(2, 3, 8, 8),)


@using(lambda: [nn.Linear(20, 28)], (9, 20))
def linear_sum_max_mean(f: Any, x: Any) -> Any:
    x = f(x).sum(1, keepdim=True)
    x = torch.max(x, 1, keepdim=True)[0]
    return torch.logsumexp(torch.mean(x, 1, keepdim=True), 1, keepdim=True)


layer("linear group norm hardtanh", lambda: nn.Sequential(nn.Linear(16, 24), nn.GroupNorm(4, 24), nn.Hardtanh(-2, 2)), (6, 16))
layer("linear batch norm softmax", lambda: nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.Softmax(1)), (6, 16))
layer("linear with dropout", lambda: nn.Sequential(nn.Linear(16, 24), nn.Dropout(0.2), nn.GELU(), nn.LayerNorm(24)), (6, 16))


# -- networks -------------------------------------------------------------------------------------------------------------------


layer("MLP", lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)), (4, 20))
layer("deep narrow MLP", lambda: nn.Sequential(*(f() for _ in range(6) for f in (lambda: nn.Linear(16, 16), nn.Tanh))), (4, 16))


@using(lambda: [nn.Linear(i, o, bias=False) for i, o in ((16, 32), (16, 32), (32, 16))], (2, 3, 16))
def gated_MLP(gate: Any, up: Any, down: Any, x: Any) -> Any:  # noqa: N802
    return down(functional.silu(gate(x)) * up(x))


@entry
def LeNet() -> Made:  # noqa: N802
    body = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(256, 84), nn.ReLU(), nn.Linear(84, 10)), (torch.randn(2, 1, 28, 28),)


class Residual(nn.Module):
    def __init__(self, width: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.ReLU(inplace=True)
        self.down = None if stride == 1 else nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.second(self.relu(self.bn1(self.first(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


@entry
def ResNet() -> Made:  # noqa: N802
    stem = (nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks = (Residual(8, 8), Residual(8, 16, 2), Residual(16, 16))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), (torch.randn(1, 3, 32, 32),)


@entry
def VGG() -> Made:  # noqa: N802
    sizes = ((3, 4), (4, 8), (8, 8))
    body = [f for i, o in sizes for f in (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))]
    head = (nn.Flatten(), nn.Linear(128, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))
    return nn.Sequential(*body, *head), (torch.randn(1, 3, 32, 32),)


@entry
def mobile_block() -> Made:
    wide = 24
    body = (
        nn.Conv2d(4, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
        nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
        nn.Conv2d(wide, 4, 1, bias=False), nn.BatchNorm2d(4),
    )  # fmt: skip
    return Fn(lambda f, x: x + f(x), nn.Sequential(*body)), (torch.randn(1, 4, 8, 8),)


@using(lambda: [nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)], (2, 8, 6, 6))
def squeeze_and_excite(pool: Any, down: Any, up: Any, x: Any) -> Any:
    return x * torch.sigmoid(up(functional.silu(down(pool(x)))))


@entry
def UNet() -> Made:  # noqa: N802
    def pair(i: int, o: int) -> Any:
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.Softmax(-1), nn.Conv2d(o, o, 3, padding=1))

    def run(down: Any, inner: Any, up: Any, last: Any, x: Any) -> Any:
        first = down(x)
        return last(torch.cat([up(inner(functional.max_pool2d(first, 2))), first], 1))

    return Fn(run, pair(3, 4), pair(4, 8), nn.ConvTranspose2d(8, 4, 2, 2), pair(8, 2)), (torch.randn(1, 3, 8, 8),)


@using(
    lambda: [nn.Sequential(nn.BatchNorm2d(4 * i), nn.ReLU(), nn.Conv2d(4 * i, 4, 3, padding=1)) for i in (1, 2, 3)], (1, 4, 6, 6)
)
def dense_block(*args: Any) -> Any:
    found = [args[-1]]
    for f in args[:-1]:
        found.append(f(torch.cat(found, 1)))
    return torch.cat(found, 1)


@using(lambda: [nn.Conv2d(4, 8, 1, groups=2)], (1, 4, 6, 6))
def shuffled_channels(f: Any, x: Any) -> Any:
    b, c, h, w = f(x).shape
    return f(x).view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)


class NewGELU(nn.Module):
    def forward(self, x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Causal(nn.Module):
    def __init__(self, width: int, heads: int, most: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.drop = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(most, most)).view(1, 1, most, most))

    bias: torch.Tensor

    def forward(self, x: Any) -> Any:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = self.drop(functional.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1))
        return self.drop(self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c)))


class GPTBlock(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(width), nn.LayerNorm(width), Causal(width, 2, 32)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), NewGELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


layer("GPT block", GPTBlock, (2, 8, 16))


@entry
def GPT() -> Made:  # noqa: N802
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe, self.h, self.ln = nn.Embedding(20, 16), nn.Embedding(32, 16), GPTBlock(), nn.LayerNorm(16)
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, tokens: Any) -> Any:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
            return self.head(self.ln(self.h(x)))

    return Model(), (torch.randint(0, 20, (2, 8)),)


@using(lambda: [nn.Linear(16, 48)], (2, 8, 16))
def relu_attention(qkv: Any, x: Any) -> Any:
    q, k, v = qkv(x).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
    att = (q @ k.transpose(-2, -1) / math.sqrt(8)).masked_fill(torch.tril(torch.ones(8, 8)) == 0, float("-inf"))
    return (functional.relu(att) @ v).transpose(1, 2).reshape(2, 8, 16)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


@using(lambda: [nn.Linear(16, 32), nn.Linear(16, 16), nn.Linear(16, 16)], (2, 6, 16))
def rotary_attention(q: Any, k: Any, v: Any, x: Any) -> Any:
    angle = torch.outer(torch.arange(6.0), 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8)).repeat(1, 2)
    heads = [f(x).view(2, 6, -1, 8).transpose(1, 2) for f in (q, k, v)]
    q, k = (turned(h, angle.cos(), angle.sin()) for h in heads[:2])
    k, v = (h.repeat_interleave(2, 1) for h in (k, heads[2]))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 32)


@entry
def attention_with_biases() -> Made:
    def run(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
        first = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return functional.scaled_dot_product_attention(first, k, v, attn_mask=mask)

    return Fn(run), (*torch.randn(3, 1, 2, 8, 16), torch.randn(1, 2, 8, 8), torch.rand(8, 8) > 0.2)


@entry
def RMS_norm_by_hand() -> Made:  # noqa: N802
    weight = nn.Parameter(torch.rand(24))
    module = Fn(
        lambda x: module.w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x), w=weight
    )
    return module, (torch.randn(2, 5, 24),)


@entry
def vision_transformer() -> Made:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.cls, self.pos = (
                nn.Conv2d(3, 16, 4, 4),
                nn.Parameter(torch.randn(1, 1, 16)),
                nn.Parameter(torch.randn(1, 5, 16)),
            )
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True), 1)
            self.head = nn.Linear(16, 10)

        def forward(self, image: Any) -> Any:
            x = self.patch(image).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
            return self.head(self.layers(x)[:, 0])

    return Model(), (torch.randn(2, 3, 8, 8),)


def mixer_layers() -> list[Any]:
    return [nn.LayerNorm(16), nn.Linear(9, 12), nn.Linear(12, 9), nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)]


@using(mixer_layers, (2, 9, 16))
def mixer_block(n1: Any, t1: Any, t2: Any, n2: Any, c1: Any, c2: Any, x: Any) -> Any:
    x = x + t2(functional.gelu(t1(n1(x).transpose(1, 2)))).transpose(1, 2)
    return x + c2(functional.gelu(c1(n2(x))))


@using(lambda: [nn.Linear(20, 12), nn.Linear(12, 4)], (3, 2, 8))
def recurrent_cell_by_hand(cell: Any, out: Any, x: Any) -> Any:
    h = torch.zeros(x.shape[1], 12)
    for step in x:
        h = torch.tanh(cell(torch.cat((step, h), 1)))
    return out(h), h


@using(list, lambda: -torch.rand(2, 8), (2, 8, 4))
def state_space_scan(a: Any, b: Any) -> Any:
    sums = torch.cumsum(a, -1)
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(~torch.tril(torch.ones(8, 8, dtype=torch.bool)), -torch.inf)
    return torch.einsum("bij,bjd->bid", decay.exp(), b)


@using(lambda: [nn.Linear(8, 4), *(nn.ModuleList(nn.Linear(i, o) for _ in range(4)) for i, o in ((8, 16), (16, 8)))], (6, 8))
def mixture_of_experts(gate: Any, up: Any, down: Any, x: Any) -> Any:
    weights, chosen = torch.topk(gate(x).softmax(-1), 2)
    dense = torch.zeros(x.shape[0], 4).scatter(1, chosen, weights)
    each = torch.stack([d(functional.gelu(u(x))) for u, d in zip(up, down, strict=True)], 1)
    return (dense.unsqueeze(-1) * each).sum(1)


@using(lambda: [nn.Linear(12, 5)], (2, 9, 12), (5, 12))
def vector_of_residuals(f: Any, x: Any, c: Any) -> Any:
    assigned = functional.softmax(f(x), -1)
    return functional.normalize(assigned.transpose(1, 2) @ x - assigned.sum(1).unsqueeze(-1) * c, p=2.0, dim=-1)
