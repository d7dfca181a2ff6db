"""Whole small networks and blocks of published ones that stand in no other room: images, words, series, sounds, molecules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import part
from experiments.suite.more.operators import below
from experiments.suite.users import call
from experiments.suite.users import floats
from experiments.suite.users import sizes
from experiments.suite.users import whole


def run(m: nn.Module, *x: Any) -> Any:
    return m(*x)


def conv_bn(i: int, o: int, k: int | tuple[int, int], stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    pad = k // 2 if isinstance(k, int) else (k[0] // 2, k[1] // 2)
    layers = [nn.Conv2d(i, o, k, stride, pad, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if act else nn.Sequential(*layers)


class WideBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(i, o, 1, stride, bias=False) if i != o or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(x))
        short = self.shortcut(out) if self.shortcut is not None else x
        return self.conv2(functional.relu(self.bn2(self.conv1(out)))) + short


class WideResNet(nn.Module):
    """A wide residual network for small images: norms and activations come before each convolution."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem, c, layers = nn.Conv2d(3, 16, 3, 1, 1, bias=False), 16, []
        for i in range(3):
            o = width * 2**i
            layers += [WideBlock(c, o, 1 if i == 0 else 2), WideBlock(o, o, 1)]
            c = o
        self.layers, self.bn, self.fc = nn.Sequential(*layers), nn.BatchNorm2d(c), nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn(self.layers(self.stem(x))))
        return self.fc(functional.avg_pool2d(out, out.shape[2]).view(out.shape[0], -1))


class SqueezedResNeXt(nn.Module):
    """SE-ResNeXt: a bottleneck of grouped convolutions, its channels scaled before the sum."""

    def __init__(self, c: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(c, c // 2, 1), conv_bn(c // 2, c // 2, 3, 1, groups), conv_bn(c // 2, c, 1, act=False))
        self.fc1, self.fc2 = nn.Conv2d(c, c // 16, 1), nn.Conv2d(c // 16, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        s = self.fc2(functional.relu(self.fc1(y.mean((2, 3), keepdim=True))))
        return functional.relu(y * torch.sigmoid(s) + x)


class PoseHead(nn.Module):
    """Simple baselines of pose: three transposed convolutions, heat maps, peaks moved a quarter towards the higher neighbour."""

    def __init__(self, i: int, c: int, joints: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k in range(3):
            up = nn.ConvTranspose2d(i if k == 0 else c, c, 4, 2, 1, bias=False)
            layers += [up, nn.BatchNorm2d(c), nn.ReLU(inplace=True)]
        self.up, self.final = nn.Sequential(*layers), nn.Conv2d(c, joints, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heat = self.final(self.up(x))
        b, j, h, w = heat.shape
        best, at = heat.view(b, j, -1).max(2, keepdim=True)
        px, py = at % w, at // w
        flat = heat.view(b, j, -1)
        right, left = (flat.gather(2, py * w + (px + d).clamp(0, w - 1)) for d in (1, -1))
        down, up = (flat.gather(2, (py + d).clamp(0, h - 1) * w + px) for d in (1, -1))
        where = torch.cat([px, py], 2).to(x.dtype) + 0.25 * torch.sign(torch.cat([right - left, down - up], 2))
        return heat, where * (best > 0), best.squeeze(-1)


class TiedLstm(nn.Module):
    """A language model of two LSTM layers whose decoder is its embedding; it returns its state."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(words, width), nn.LSTM(width, width, 2), nn.Linear(width, words)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, hidden = self.rnn(self.encoder(tokens), hidden)
        y = self.decoder(y)
        return functional.log_softmax(y.view(-1, y.shape[-1]), dim=1), hidden


class Translator(nn.Module):
    """Sequence to sequence with Bahdanau's attention: the decoder's steps are a loop over what was said before."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.cell = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.wa, self.ua, self.va, self.out = (nn.Linear(width, o) for o in (width, width, 1, words))

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        keys, hidden = self.encoder(self.source(source))
        hidden, mask, outputs, maps = hidden[0], source == 0, [], []
        for t in range(target.shape[1]):
            scores = self.va(torch.tanh(self.wa(hidden).unsqueeze(1) + self.ua(keys))).squeeze(-1)
            weights = functional.softmax(scores.masked_fill(mask, -1e4), dim=-1)
            context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
            hidden = self.cell(torch.cat([self.target(target[:, t]), context], 1), hidden)
            outputs.append(self.out(hidden))
            maps.append(weights)
        return {"logits": torch.stack(outputs, 1), "attention": torch.stack(maps, 1)}


class NeuralFactors(nn.Module):
    """NeuMF: products of one pair of embeddings beside a network of another pair, one score."""

    def __init__(self, users: int, items: int, c: int) -> None:
        super().__init__()
        self.user_mf, self.item_mf = nn.Embedding(users, c), nn.Embedding(items, c)
        self.user_mlp, self.item_mlp = nn.Embedding(users, 4 * c), nn.Embedding(items, 4 * c)
        widths = [8 * c, 4 * c, 2 * c, c]
        self.mlp = nn.ModuleList(nn.Linear(widths[i], widths[i + 1]) for i in range(3))
        self.predict = nn.Linear(2 * c, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        y = torch.cat((self.user_mlp(user), self.item_mlp(item)), -1)
        for layer in self.mlp:
            y = functional.relu(layer(y))
        return torch.sigmoid(self.predict(torch.cat((self.user_mf(user) * self.item_mf(item), y), -1))).view(-1)


class JumpingKnowledge(nn.Module):
    """Three GraphSAGE layers with norms, the largest of all layers for each node, means over graphs, classes."""

    def __init__(self, i: int, c: int, graphs: int) -> None:
        super().__init__()
        self.graphs, w = graphs, [i, c, c, c]
        self.own = nn.ModuleList(nn.Linear(w[k], c) for k in range(3))
        self.near = nn.ModuleList(nn.Linear(w[k], c, bias=False) for k in range(3))
        self.norms, self.head = nn.ModuleList(nn.BatchNorm1d(c) for _ in range(3)), nn.Linear(c, 10)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        count = torch.zeros(len(x), device=x.device, dtype=x.dtype).index_add_(0, target, torch.ones_like(target, dtype=x.dtype))
        layers = []
        for own, near, norm in zip(self.own, self.near, self.norms, strict=True):
            total = torch.zeros_like(x).index_add_(0, target, x[source])
            x = functional.relu(norm(own(x) + near(total / count.clamp(min=1).unsqueeze(-1))))
            layers.append(x)
        y = torch.stack(layers, -1).max(-1)[0]
        pooled = torch.zeros(self.graphs, y.shape[1], device=y.device, dtype=y.dtype).index_add_(0, batch, y)
        size = torch.zeros_like(pooled).index_add_(0, batch, torch.ones_like(y)).clamp(min=1)
        return functional.log_softmax(self.head(pooled / size), -1)


class SetOfAtoms(nn.Module):
    """A molecule's bonds make matrices, a GRU takes in messages, Set2Set reads the atoms; padded molecules."""

    def __init__(self, c: int, bonds: int, steps: int = 3) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(bonds, 2 * c), nn.ReLU(), nn.Linear(2 * c, c * c))
        self.gru, self.lstm, self.steps = nn.GRUCell(c, c), nn.LSTMCell(2 * c, c), steps
        self.head = nn.Sequential(nn.Linear(2 * c, c), nn.ReLU(), nn.Linear(c, 1))

    def forward(self, x: Tensor, bonds: Tensor, near: Tensor, mask: Tensor) -> Tensor:
        b, n, c = x.shape
        a = self.edge(bonds).view(b, n, -1, c, c)
        rows = torch.arange(b, device=x.device)[:, None, None]
        for _ in range(self.steps):
            m = torch.einsum("bnkij,bnkj->bni", a, x[rows, near])
            x = self.gru(functional.relu(m).reshape(b * n, c), x.reshape(b * n, c)).view(b, n, c)
        q, h, s = x.new_zeros(b, 2 * c), x.new_zeros(b, c), x.new_zeros(b, c)
        for _ in range(self.steps):
            h, s = self.lstm(q, (h, s))
            e = (x * h.unsqueeze(1)).sum(-1).masked_fill(~mask, -1e4)
            q = torch.cat([h, (e.softmax(-1).unsqueeze(-1) * x).sum(1)], -1)
        return self.head(q).squeeze(-1)


class Burgers(nn.Module):
    """A physics-informed network of tanh: value, slopes and curvature go forward together to the residual of Burgers' law."""

    def __init__(self, c: int, depth: int = 5) -> None:
        super().__init__()
        self.lines, self.last = nn.ModuleList(nn.Linear(2 if i == 0 else c, c) for i in range(depth)), nn.Linear(c, 1)

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.cat([x, t], 1)
        ux, ut = torch.zeros_like(u), torch.zeros_like(u)
        ux[:, 0], ut[:, 1] = 1.0, 1.0
        uxx = torch.zeros_like(u)
        for line in self.lines:
            y = torch.tanh(line(u))
            zx, zt, zxx = (functional.linear(v, line.weight) for v in (ux, ut, uxx))
            d = 1 - y**2
            u, ux, ut, uxx = y, d * zx, d * zt, d * zxx - 2 * y * d * zx**2
        u, (ux, ut, uxx) = self.last(u), (functional.linear(v, self.last.weight) for v in (ux, ut, uxx))
        f = ut + u * ux - (0.01 / math.pi) * uxx
        return u, (f**2).mean()


class OneLayerManyTimes(nn.Module):
    """ALBERT: small embeddings are widened, one layer is used again and again; the first word is pooled."""

    def __init__(self, words: int, small: int, width: int, heads: int, times: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, small) for n in (words, 512, 2))
        self.norm, self.widen, self.heads, self.times = nn.LayerNorm(small, 1e-12), nn.Linear(small, width), heads, times
        self.q, self.k, self.v, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.ffn, self.out, self.pool = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, width)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        b, t = ids.shape
        x = self.words(ids) + self.kinds(kinds) + self.places(torch.arange(t, device=ids.device))
        x = self.widen(self.norm(x))
        extended = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for _ in range(self.times):
            q, k, v = (f(x).view(b, t, self.heads, -1).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
            s = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + extended
            y = torch.matmul(functional.softmax(s, dim=-1), v).transpose(2, 1).flatten(2)
            x = self.norm1(x + self.dense(y))
            x = self.norm2(self.out(functional.gelu(self.ffn(x), approximate="tanh")) + x)
        return x, torch.tanh(self.pool(x[:, 0]))


class GroupedWords(nn.Module):
    """SqueezeBERT: tokens lie behind channels, lines are grouped convolutions of one, norms turn back and forth."""

    def __init__(self, c: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.ModuleList(nn.Conv1d(c, c, 1, groups=groups) for _ in range(3))
        self.post, self.norm1, self.norm2 = nn.Conv1d(c, c, 1), nn.LayerNorm(c), nn.LayerNorm(c)
        self.up, self.down = nn.Conv1d(c, 4 * c, 1, groups=groups), nn.Conv1d(4 * c, c, 1, groups=groups)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, c, t = x.shape
        q, k, v = (f(x).view(b, self.heads, -1, t) for f in self.qkv)
        s = torch.matmul(q.permute(0, 1, 3, 2), k) / math.sqrt(c // self.heads)
        p = torch.softmax(s.masked_fill(~mask[:, None, None], -1e4), -1)
        y = torch.matmul(p, v.permute(0, 1, 3, 2)).permute(0, 1, 3, 2).reshape(b, c, t)
        x = self.norm1((x + self.post(y)).permute(0, 2, 1)).permute(0, 2, 1)
        y = self.down(functional.gelu(self.up(x)))
        return self.norm2((x + y).permute(0, 2, 1)).permute(0, 2, 1)


class TokensOfTokens(nn.Module):
    """T2T-ViT: overlapping windows become tokens, a narrow transformer, an image again; twice, then a projection."""

    def __init__(self, c: int, width: int) -> None:
        super().__init__()
        self.splits = nn.ModuleList([nn.Unfold(7, stride=4, padding=2), *(nn.Unfold(3, stride=2, padding=1) for _ in range(2))])
        self.norms = nn.ModuleList(nn.LayerNorm(i) for i in (147, 9 * c))
        self.qkvs = nn.ModuleList(nn.Linear(i, 3 * c, bias=False) for i in (147, 9 * c))
        self.outs = nn.ModuleList(nn.Linear(c, c) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.LayerNorm(c), nn.Linear(c, c), nn.GELU(), nn.Linear(c, c)) for _ in range(2))
        self.project = nn.Linear(9 * c, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.splits[0](x).transpose(1, 2)
        for i in range(2):
            q, k, v = self.qkvs[i](self.norms[i](x)).chunk(3, -1)
            y = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
            x = v + self.outs[i](y)
            x = x + self.mlps[i](x)
            b, n, c = x.shape
            side = round(math.sqrt(n))
            x = self.splits[i + 1](x.transpose(1, 2).reshape(b, c, side, side)).transpose(1, 2)
        return self.project(x)


class ProjectedByConvolutions(nn.Module):
    """CvT: queries, keys and values by depthwise convolutions and norms, keys and values of a quarter of the places."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(c), nn.LayerNorm(c)
        self.convs = nn.ModuleList(conv_bn(c, c, 3, s, c, act=False) for s in (1, 2, 2))
        self.lines = nn.ModuleList(nn.Linear(c, c) for _ in range(3))
        self.out, self.mlp = nn.Linear(c, c), nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        rows = x.flatten(2).transpose(1, 2)
        y = self.norm1(rows).transpose(1, 2).reshape(b, c, h, w)
        q, k, v = (
            line(conv(y).flatten(2).transpose(1, 2)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for conv, line in zip(self.convs, self.lines, strict=True)
        )
        s = torch.einsum("bhlk,bhtk->bhlt", q, k) * c**-0.5
        y = torch.einsum("bhlt,bhtv->bhlv", s.softmax(-1), v).transpose(1, 2).flatten(2)
        rows = rows + self.out(y)
        return (rows + self.mlp(self.norm2(rows))).transpose(1, 2).reshape(b, c, h, w)


class Mogrifier(nn.Module):
    """An LSTM whose input and state gate each other in turn, five times, before every step."""

    def __init__(self, i: int, c: int) -> None:
        super().__init__()
        self.cell, self.q, self.r = nn.LSTMCell(i, c), nn.Linear(c, i), nn.Linear(i, c)

    def forward(self, x: Tensor) -> Tensor:
        h, c, out = x.new_zeros(len(x), self.r.out_features), x.new_zeros(len(x), self.r.out_features), []
        for y in x.unbind(1):
            for k in range(5):
                if k % 2 == 0:
                    y = 2 * torch.sigmoid(self.q(h)) * y
                else:
                    h = 2 * torch.sigmoid(self.r(y)) * h
            h, c = self.cell(y, (h, c))
            out.append(h)
        return torch.stack(out, 1)


def butterflies(turns: Tensor, x: Tensor) -> Tensor:
    """A product of sparse factors: at each distance of a power of two, pairs are mixed by matrices of two by two."""
    b, n = x.shape
    for i in range(turns.shape[0]):
        y = x.view(b, n >> (i + 1), 2, 1 << i)
        x = torch.einsum("gjoi,bgij->bgoj", turns[i].view(n >> (i + 1), 1 << i, 2, 2), y).reshape(b, n) * 0.7
    return x


def heard(*shape):
    """All but what is behind a length."""

    def make(n) -> Tensor:
        b, t = sizes(n, shape)
        return torch.arange(t) < torch.randint(2, t + 1, (b, 1))

    return make


def states(n) -> tuple[Tensor, Tensor]:
    return floats(n, 2, (20, 2), (200, 8)), floats(n, 2, (20, 2), (200, 8))


NODES, ATOMS, TEXT = (6000, 11), ((64, 2), (29, 5)), ((8, 2), (128, 6))
FLOAT32: dict[str, Case] = {
    "wide_resnet": call(run, ((128, 2), 3, (32, 8), (32, 8)), parts=(part(WideResNet, (32, 4), (10, 3)),)),
    "pose_head": call(run, ((8, 1), (256, 8), (8, 3), (6, 2)), parts=(part(PoseHead, (256, 8), (256, 4), (17, 3)),)),
    "tied_lstm": call(run, below((10000, 13), (35, 4), (20, 2)), states, parts=(part(TiedLstm, (10000, 13), (200, 8)),)),
    "translator": call(
        run, *(below((4000, 11), (64, 2), s) for s in ((20, 5), (10, 3))), parts=(part(Translator, (4000, 11), (256, 8)),)
    ),
    "neural_factors": call(
        *(run, below((6040, 9), (4096, 5)), below((3706, 8), (4096, 5))),
        parts=(part(NeuralFactors, (6040, 9), (3706, 8), (16, 4)),),
    ),
    "jumping_knowledge": call(
        *(run, (NODES, (75, 5)), below(NODES, 2, (24000, 24)), below((128, 3), NODES)),
        parts=(part(JumpingKnowledge, (75, 5), (128, 6), (128, 3)),),
    ),
    "set_of_atoms": call(
        *(run, (*ATOMS, (48, 4)), (*ATOMS, (4, 2), 5), below((29, 5), *ATOMS, (4, 2)), heard(*ATOMS)),
        parts=(part(SetOfAtoms, (48, 4), 5),),
    ),
    "burgers": call(run, ((20000, 7), 1), ((20000, 7), 1), parts=(part(Burgers, (20, 6), (8, 3)),)),
    "mogrifier": call(run, ((64, 2), (20, 4), (128, 5)), parts=(part(Mogrifier, (128, 5), (256, 6)),)),
    "butterflies": call(
        *(butterflies, lambda n: torch.randn(n(10, 3), 2 ** n(9, 2), 2, 2)),
        lambda n: torch.randn(n(2048, 5), 2 ** n(10, 3)),
    ),
}
HALF: dict[str, Case] = {
    "squeezed_resnext": call(
        run,
        ((32, 1), (256, 16), (28, 6), (28, 5)),
        parts=(lambda n: nn.Sequential(*(SqueezedResNeXt(n(256, 16), n(32, 2)) for _ in range(2))),),
    ),
    "one_layer_many_times": call(
        *(run, below((30000, 13), *TEXT), whole(2, *TEXT), heard(*TEXT)),
        parts=(part(OneLayerManyTimes, (30000, 13), (128, 4), (768, 8), (12, 2), (4, 2)),),
    ),
    "grouped_words": call(
        run, ((16, 2), (768, 8), (128, 6)), heard((16, 2), (128, 6)), parts=(part(GroupedWords, (768, 8), (12, 2), (4, 2)),)
    ),
    "tokens_of_tokens": call(run, ((8, 1), 3, (224, 16), (224, 16)), parts=(part(TokensOfTokens, (64, 4), (384, 6)),)),
    "projected_by_convolutions": call(
        run, ((16, 1), (192, 8), (28, 6), (28, 6)), parts=(part(ProjectedByConvolutions, (192, 8), (3, 2)),)
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **HALF}
"""The first in float32, the others in either half."""
