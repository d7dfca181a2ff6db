"""Whole small networks of tutorials and papers: images, words, sounds, games, and what is recommended."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole


def conv_bn(i: int, o: int, k: int = 3, s: int = 1, act=nn.ReLU, **more) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False, **more), nn.BatchNorm2d(o), act(inplace=True))


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def lenet_of_1998(n) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10), nn.LogSoftmax(1)),
    )


def fast_style_net(n) -> nn.Module:
    """Johnson's transfer of style: reflected edges, instance norms, residuals, then larger again."""

    def layer(i: int, o: int, k: int, s: int = 1) -> list[nn.Module]:
        return [nn.ReflectionPad2d(k // 2), nn.Conv2d(i, o, k, s), nn.InstanceNorm2d(o, affine=True)]

    a, b, c = n(32, 2), n(64, 3), n(128, 4)
    body = [Residual(*layer(c, c, 3), nn.ReLU(), *layer(c, c, 3)) for _ in range(n(3, 1))]
    down = [*layer(3, a, 9), nn.ReLU(), *layer(a, b, 3, 2), nn.ReLU(), *layer(b, c, 3, 2), nn.ReLU()]
    up = [nn.Upsample(scale_factor=2), *layer(c, b, 3), nn.ReLU(), nn.Upsample(scale_factor=2), *layer(b, a, 3), nn.ReLU()]
    return nn.Sequential(*down, *body, *up, nn.ReflectionPad2d(4), nn.Conv2d(a, 3, 9))


def inverted_residuals(n) -> nn.Module:
    """A slice of MobileNetV2: each is wider inside, and adds its input where shapes agree."""

    def one(i: int, o: int, s: int, t: int) -> nn.Module:
        h = i * t
        layers = (conv_bn(i, h, 1, act=nn.ReLU6), conv_bn(h, h, 3, s, nn.ReLU6, groups=h), nn.Conv2d(h, o, 1, bias=False))
        return Residual(*layers, nn.BatchNorm2d(o)) if s == 1 and i == o else nn.Sequential(*layers, nn.BatchNorm2d(o))

    a, b, c = n(24, 2), n(32, 3), n(64, 4)
    return nn.Sequential(one(a, a, 1, 6), one(a, b, 2, 6), one(b, b, 1, 6), one(b, c, 2, 6), one(c, c, 1, 6))


def residual_denoiser(n) -> nn.Module:
    w = n(64, 4)
    body = [conv_bn(w, w) for _ in range(n(8, 2))]
    return Residual(nn.Conv2d(1, w, 3, padding=1), nn.ReLU(), *body, nn.Conv2d(w, 1, 3, padding=1))


def espcn(n) -> nn.Module:
    a, b = n(64, 4), n(32, 3)
    convs = (nn.Conv2d(3, a, 5, padding=2), nn.Tanh(), nn.Conv2d(a, b, 3, padding=1), nn.Tanh(), nn.Conv2d(b, 27, 3, padding=1))
    return nn.Sequential(*convs, nn.PixelShuffle(3), nn.Sigmoid())


def segnet(down, up, head, x: Tensor) -> Tensor:
    """Pooled places are kept for the way back."""
    kept = []
    for f in down:
        x, at = functional.max_pool2d(f(x), 2, return_indices=True)
        kept.append(at)
    for f, at in zip(up, reversed(kept), strict=True):
        x = f(functional.max_unpool2d(x, at, 2))
    return head(x).argmax(1)


def attentive_gru(embed, gru, project, context: Tensor, head, tokens: Tensor) -> Tensor:
    """A GRU both ways; words weigh by their likeness to a learnt context."""
    h, _ = gru(embed(tokens))
    score = torch.tanh(project(h)) @ context
    w = torch.softmax(score.masked_fill(tokens == 0, -1e4), dim=1)
    return head((w.unsqueeze(-1) * h).sum(1))


def character_cnn(n) -> nn.Module:
    w = n(128, 4)
    convs = [nn.Conv1d(70, w, 7), nn.ReLU(), nn.MaxPool1d(3), nn.Conv1d(w, w, 7), nn.ReLU(), nn.MaxPool1d(3)]
    convs += [nn.Conv1d(w, w, 3), nn.ReLU(), nn.Conv1d(w, w, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(n(16, 2)), nn.Flatten()]
    return nn.Sequential(*convs, nn.Linear(w * n(16, 2), n(512, 12)), nn.ReLU(), nn.Dropout(), nn.Linear(n(512, 12), 14))


class ParallelBlock(nn.Module):
    """GPT-NeoX: attention and feed-forward beside each other; a quarter of each head turns with its place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.turns = heads, max(width // heads // 4, 2)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y, rest = x[..., : self.turns], x[..., self.turns :]
        a, b = y.chunk(2, -1)
        return torch.cat([y * cos + torch.cat([-b, a], -1) * sin, rest], -1)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        angle = torch.outer(place, 10000.0 ** -(torch.arange(0, self.turns, 2, device=x.device) / self.turns)).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(3, -1)
        y = functional.scaled_dot_product_attention(self.turned(q, cos, sin), self.turned(k, cos, sin), v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2)) + self.mlp(self.norm_2(x))


def vit_with_registers(patch, layers, norm, head, extra: Tensor, place: Tensor, x: Tensor) -> Tensor:
    y = torch.cat([extra.expand(x.shape[0], -1, -1), patch(x).flatten(2).transpose(1, 2) + place], 1)
    y = norm(layers(y))
    return head(torch.cat([y[:, 0], y[:, extra.shape[1] :].mean(1)], -1))


def dlrm_small(tables, bottom, top, dense: Tensor, ids: Tensor) -> Tensor:
    x = bottom(torch.log1p(dense.abs()))
    z = torch.stack([x, *(t(ids[:, i : i + 1]) for i, t in enumerate(tables))], 1)
    pairs = torch.bmm(z, z.transpose(1, 2))
    i, j = torch.tril_indices(z.shape[1], z.shape[1], offset=-1, device=x.device)
    return torch.sigmoid(top(torch.cat([x, pairs[:, i, j]], 1)))


def deep_factorization(first, embed, deep, bias: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """DeepFM: weighted fields share vectors between pairs and a network."""
    at = ids + torch.arange(ids.shape[1], device=ids.device) * (embed.num_embeddings // ids.shape[1])
    v = embed(at) * weights.unsqueeze(-1)
    pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
    return torch.sigmoid((first(at).squeeze(-1) * weights).sum(1, keepdim=True) + pairs + deep(v.flatten(1)) + bias)


def cross_net_mixture(u: Tensor, c: Tensor, v: Tensor, gates, head, x: Tensor) -> Tensor:
    """DCN-V2: layers of crosses of low rank, by experts that a gate mixes."""
    y = x
    for i, gate in enumerate(gates):
        h = torch.tanh(torch.einsum("bd,edr->ber", y, v[i]))
        out = x.unsqueeze(1) * torch.einsum("ber,edr->bed", torch.tanh(torch.einsum("ber,ers->bes", h, c[i])), u[i])
        y = y + (gate(y).softmax(-1).unsqueeze(-1) * out).sum(1)
    return torch.sigmoid(head(y))


def matching_tower(bags, left, right, query: Tensor, starts: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """DSSM: bags of letter trigrams against every item of a batch."""
    q = functional.normalize(left(bags(query, starts)), dim=-1)
    scores = q @ functional.normalize(right(items), dim=-1).T / 0.05
    return scores, functional.cross_entropy(scores, torch.arange(len(q), device=q.device))


def next_item(embed, places, layers, norm, seen: Tensor, candidates: Tensor) -> Tensor:
    """SASRec: what was seen, in order; scores of candidates by the last state."""
    x = embed(seen) * embed.embedding_dim**0.5 + places(torch.arange(seen.shape[1], device=seen.device))
    x = x * (seen != 0).unsqueeze(-1)
    mask = torch.triu(torch.ones(seen.shape[1], seen.shape[1], dtype=torch.bool, device=seen.device), 1)
    return torch.einsum("bd,bcd->bc", norm(layers(x, mask=mask))[:, -1], embed(candidates))


def raw_audio_cnn(n) -> nn.Module:
    w = n(64, 4)
    layers = [nn.Conv1d(1, w, 80, 16), nn.BatchNorm1d(w), nn.ReLU(), nn.MaxPool1d(4)]
    for i, o in ((w, w), (w, 2 * w), (2 * w, 4 * w)):
        layers += [nn.Conv1d(i, o, 3), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * w, 35), nn.LogSoftmax(-1))


def text_line_reader(convs, lstm, head, x: Tensor) -> Tensor:
    """CRNN: columns of features, an LSTM both ways, log-probabilities for CTC."""
    y = convs(x)
    return head(lstm(y.mean(2).permute(2, 0, 1))[0]).log_softmax(-1)


def dueling_atari(convs, value, advantage, frames: Tensor) -> tuple[Tensor, Tensor]:
    h = convs(frames.float().to(next(convs.parameters()).dtype) / 255)
    a = advantage(h)
    q = value(h) + a - a.mean(1, keepdim=True)
    return q, q.max(1).values


def deconvolutional_generator(n) -> nn.Module:
    widths, layers, i = (n(256, 8), n(128, 6), n(64, 4)), [], n(100, 5)
    for k, o in enumerate(widths):
        layers += [nn.ConvTranspose2d(i, o, 4, 2 if k else 1, 1 if k else 0, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
        i = o
    return nn.Sequential(*layers, nn.ConvTranspose2d(i, 3, 4, 2, 1, bias=False), nn.Tanh())


class Hourglass(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.beside, self.before, self.after = (conv_bn(width, width) for _ in range(3))
        self.inner = Hourglass(width, depth - 1) if depth > 1 else conv_bn(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.after(self.inner(self.before(functional.max_pool2d(x, 2))))
        return self.beside(x) + functional.interpolate(y, scale_factor=2.0, mode="nearest")


def net(make, *given) -> Case:
    return call(lambda m, *x: m(*x), *given, parts=(make,))


def mlp(*pairs) -> object:
    """A network of lines and ReLUs between widths of ``n``."""

    def make(n):
        w = [n(*p) for p in pairs]
        return nn.Sequential(*(x for i, o in itertools.pairwise(w) for x in (nn.Linear(i, o), nn.ReLU())))[:-1]

    return make


def encoder(width, inside, heads: int, layers: int = 2, **more):
    def make(n):
        one = nn.TransformerEncoderLayer(n(*width), heads, n(*inside), batch_first=True, norm_first=True, **more)
        return nn.TransformerEncoder(one, layers, enable_nested_tensor=False)

    return make


def segnet_parts(up: bool):
    def make(n):
        a, b = n(64, 3), n(128, 4)
        if up:
            return nn.ModuleList((nn.Sequential(conv_bn(b, b), conv_bn(b, a)), conv_bn(a, a)))
        return nn.ModuleList((conv_bn(3, a), nn.Sequential(conv_bn(a, b), conv_bn(b, b))))

    return make


def reader_convs(n) -> nn.Module:
    a, b, c = n(64, 3), n(128, 4), n(256, 5)
    layers = [conv_bn(1, a), nn.MaxPool2d(2), conv_bn(a, b), nn.MaxPool2d(2), conv_bn(b, c), conv_bn(c, c)]
    return nn.Sequential(*layers, nn.MaxPool2d((2, 1)), conv_bn(c, c), nn.MaxPool2d((2, 1)))


def atari_convs(n) -> nn.Module:
    layers = (nn.Conv2d(4, n(32, 4), 8, 4), nn.ReLU(), nn.Conv2d(n(32, 4), n(64, 5), 4, 2), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(n(64, 5), n(64, 5), 3), nn.ReLU(), nn.Flatten())


def atari_head(outputs: int):
    return lambda n: nn.Sequential(nn.Linear(49 * n(64, 5), n(512, 8)), nn.ReLU(), nn.Linear(n(512, 8), outputs))


def hourglass(n) -> nn.Module:
    w = n(64, 4)
    stem = (conv_bn(3, w, 7, 2), Residual(conv_bn(w, w), conv_bn(w, w)))
    return nn.Sequential(*stem, Hourglass(w, n(4, 2)), conv_bn(w, w, 1), nn.Conv2d(w, 17, 1))


def parallel_gpt(n) -> nn.Module:
    w = n(256, 16)
    blocks = [ParallelBlock(w, n(8, 2)) for _ in range(n(4, 1))]
    return nn.Sequential(nn.Embedding(n(8192, 40), w), *blocks, nn.LayerNorm(w), nn.Linear(w, n(8192, 40), bias=False))


def starts_of_bags(n) -> Tensor:
    """Twelve trigrams a query."""
    return torch.arange(n(4096, 4)) * 12


def last_of_vit(n) -> nn.Module:
    return nn.Conv2d(3, n(192, 16), n(16, 4), stride=n(16, 4))


ROWS, SEEN = (4096, 5), ((256, 3), (64, 5))
CASES: dict[str, Case] = {
    "lenet_of_1998": net(lenet_of_1998, ((4096, 2), 1, 32, 32)),
    "fast_style_net": net(fast_style_net, ((4, 1), 3, (256, 16), (256, 16))),
    "inverted_residuals": net(inverted_residuals, ((64, 2), (24, 2), (56, 8), (56, 8))),
    "residual_denoiser": net(residual_denoiser, ((32, 1), 1, (96, 8), (96, 9))),
    "espcn": net(espcn, ((16, 1), 3, (180, 6), (240, 7))),
    "segnet": call(
        segnet,
        ((8, 1), 3, (160, 8), (224, 8)),
        parts=(segnet_parts(False), segnet_parts(True), lambda n: nn.Conv2d(n(64, 3), 12, 1)),
    ),
    "attentive_gru": call(
        lambda embed, gru, project, head, context, t: attentive_gru(embed, gru, project, context, head, t),
        *(((128, 12),), whole(40, (256, 2), (64, 5))),
        parts=(
            lambda n: nn.Embedding(n(20000, 40), n(128, 6), padding_idx=0),
            lambda n: nn.GRU(n(128, 6), n(64, 6), batch_first=True, bidirectional=True),
            *(wide(128, 128, (12, 12)), wide(128, 5, (12, 5))),
        ),
    ),
    "character_cnn": net(character_cnn, ((64, 2), 70, (1014, 69))),
    "parallel_gpt": net(parallel_gpt, below((8192, 40), (8, 2), (256, 6))),
    "vit_with_registers": call(
        vit_with_registers,
        *((1, 5, (192, 16)), ((196, 4), (192, 16)), ((32, 1), 3, (224, 8), (224, 8))),
        parts=(
            *(last_of_vit, encoder((192, 16), (768, 32), 2, 3, activation="gelu"), lambda n: nn.LayerNorm(n(192, 16))),
            wide(384, 1000, (32, 7)),
        ),
    ),
    "dlrm_small": call(
        dlrm_small,
        *((ROWS, 13), below((20000, 9), ROWS, 8)),
        parts=(
            lambda n: nn.ModuleList(nn.EmbeddingBag(n(20000, 9), n(64, 4), mode="sum") for _ in range(8)),
            mlp((13, 13), (512, 8), (256, 6), (64, 4)),
            mlp((100, 40), (512, 8), (256, 6), (1, 1)),
        ),
    ),
    "deep_factorization": call(
        deep_factorization,
        *((1,), below((10000, 9), ROWS, 20), (ROWS, 20)),
        parts=(
            *(lambda n: nn.Embedding(20 * n(10000, 9), 1), lambda n: nn.Embedding(20 * n(10000, 9), n(16, 3))),
            mlp((320, 60), (400, 8), (400, 6), (1, 1)),
        ),
    ),
    "cross_net_mixture": call(
        lambda gates, head, u, c, v, x: cross_net_mixture(u, c, v, gates, head, x),
        *((2, 4, (480, 9), (32, 3)), (2, 4, (32, 3), (32, 3)), (2, 4, (480, 9), (32, 3)), (ROWS, (480, 9))),
        parts=(lambda n: nn.ModuleList(nn.Linear(n(480, 9), 4) for _ in range(2)), mlp((480, 9), (256, 8), (1, 1))),
    ),
    "matching_tower": call(
        matching_tower,
        *(lambda n: torch.randint(0, n(30000, 20), (12 * n(4096, 4),)), starts_of_bags, ((4096, 4), (300, 7))),
        parts=(
            lambda n: nn.EmbeddingBag(n(30000, 20), n(128, 6), mode="mean"),
            *(mlp((128, 6), (256, 8), (128, 5)), mlp((300, 7), (256, 8), (128, 5))),
        ),
    ),
    "next_item": call(
        next_item,
        *(below((50000, 30), *SEEN), below((50000, 30), SEEN[0], 101)),
        parts=(
            *(lambda n: nn.Embedding(n(50000, 30), n(64, 8), padding_idx=0), lambda n: nn.Embedding(n(64, 5), n(64, 8))),
            *(encoder((64, 8), (256, 12), 2), lambda n: nn.LayerNorm(n(64, 8))),
        ),
    ),
    "raw_audio_cnn": net(raw_audio_cnn, ((64, 2), 1, (16000, 2400))),
    "text_line_reader": call(
        text_line_reader,
        ((64, 2), 1, (32, 16), (160, 16)),
        parts=(*(reader_convs, lambda n: nn.LSTM(n(256, 5), n(128, 4), bidirectional=True), wide(256, 97, (8, 11))),),
    ),
    "dueling_atari": call(
        dueling_atari,
        lambda n: torch.randint(0, 256, (n(512, 2), 4, 84, 84), dtype=torch.uint8),
        parts=(atari_convs, atari_head(1), atari_head(18)),
    ),
    "deconvolutional_generator": net(deconvolutional_generator, ((256, 2), (100, 5), 1, 1)),
    "hourglass": net(hourglass, ((8, 1), 3, (256, 16), (256, 16))),
}
