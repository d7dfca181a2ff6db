"""Backbones, encoders, agents, recommenders, graphs and proteins in half precision, block by block."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call


def mlp(i: int, inner: int, o: int | None = None, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(i, inner), act(), nn.Linear(inner, o or i))


def cbr(i: int, o: int, k: int | tuple[int, int] = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    """A convolution that keeps the size, a batch norm, perhaps a ReLU."""
    pad = k // 2 if isinstance(k, int) else (k[0] // 2, k[1] // 2)
    layers = (nn.Conv2d(i, o, k, padding=pad, groups=groups, bias=False), nn.BatchNorm2d(o))
    return nn.Sequential(*layers, *((nn.ReLU(),) if act else ()))


def gated_positions(qk, v, out, place, gates, x: Tensor) -> Tensor:
    """ConViT: each head mixes a softmax of content with a softmax of distances by a gate of its own."""
    (gate,), heads, side = gates, len(gates[0]), math.isqrt(x.shape[1])
    i = torch.arange(side, device=x.device)
    dx, dy = (i - i[:, None]).repeat(side, side), (i - i[:, None]).repeat_interleave(side, 0).repeat_interleave(side, 1)
    where = torch.softmax(place(torch.stack([dx, dy, dx**2 + dy**2], -1).to(x.dtype) / side).permute(2, 0, 1), -1)
    q, k = qk(x).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    what, g = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1), torch.sigmoid(gate)[:, None, None]
    p = (1 - g) * what + g * where
    p = p / p.sum(-1, keepdim=True)
    return out((p @ v(x).unflatten(-1, (heads, -1)).transpose(1, 2)).transpose(1, 2).flatten(2))


class SplitAndTransposed(nn.Module):
    """EdgeNeXt: groups of channels see more and more, then channels attend to channels, and an inverted bottleneck."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        w = width // groups
        self.convs, self.width = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1, groups=w) for _ in range(groups - 1)), w
        self.norms, self.heat = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), nn.Parameter(torch.ones(4, 1, 1))
        self.qkv, self.out, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width), mlp(width, 4 * width)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((width,), s)) for s in (0.5, 0.3))

    def forward(self, x: Tensor) -> Tensor:
        parts, done = x.split(self.width, 1), []
        for conv, p in zip(self.convs, parts, strict=False):
            done.append(conv(p + done[-1] if done else p))
        y = torch.cat([*done, parts[-1]], 1).flatten(2).mT
        q, k, v = self.qkv(self.norms[0](y)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 4, 1)
        p = torch.softmax(functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT * self.heat, -1)
        y = y + self.scales[0] * self.out((p @ v).permute(0, 3, 1, 2).flatten(2))
        y = self.scales[1] * self.mlp(self.norms[1](y))
        return x + y.mT.unflatten(-1, x.shape[2:])


class NormFree(nn.Module):
    """NFNet: weights are standardised in the call, activations have a gain, squeezes count twice; no norms at all."""

    def __init__(self, width: int, inner: int, group: int) -> None:
        super().__init__()
        ways = ((width, inner, 1), (inner, inner, group), (inner, inner, group), (inner, width, 1))
        self.shapes = [(k != 1, i // k if k > 1 else 1) for i, _, k in ways]
        self.w = nn.ParameterList(torch.randn(o, k if k > 1 else i, *((3, 3) if k > 1 else (1, 1))) for i, o, k in ways)
        self.gains = nn.ParameterList(torch.ones(o) for _, o, _ in ways)
        self.squeeze, self.skip = mlp(width, width // 2, act=nn.ReLU), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for (pad, groups), w, gain in zip(self.shapes, self.w, self.gains, strict=True):
            var, mean = torch.var_mean(w, (1, 2, 3), keepdim=True, correction=0)
            w = (w - mean) * torch.rsqrt(torch.clamp(var * w[0].numel(), min=1e-4)) * gain[:, None, None, None]
            y = functional.conv2d(functional.gelu(y) * 1.7015, w, padding=int(pad), groups=groups)
        y = 2 * torch.sigmoid(self.squeeze(y.mean((2, 3))))[..., None, None] * y
        return x + 0.2 * self.skip * y


class CheapAndFar(nn.Module):
    """GhostNet V2: half of the channels are cheap copies, all gated by long rows and columns of a smaller image."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first, self.cheap = cbr(width, out // 2), cbr(out // 2, out // 2, 3, out // 2)
        far = (cbr(width, out, act=False), cbr(out, out, (1, 5), out, act=False), cbr(out, out, (5, 1), out, act=False))
        self.far = nn.Sequential(nn.AvgPool2d(2), *far, nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, self.cheap(y)], 1) * functional.interpolate(self.far(x), size=x.shape[-2:], mode="nearest")


def asked_by_the_whole(kv, out, table, x: Tensor, q: Tensor, side: int) -> Tensor:
    """GCViT: queries come from the whole image and are the same for each window; keys are the window's, with a bias."""
    (bias,), windows = table, len(x) // len(q)
    k, v = kv(x).unflatten(-1, (2, q.shape[1], -1)).permute(2, 0, 3, 1, 4)
    i = torch.arange(side, device=x.device)
    at = torch.stack(torch.meshgrid(i, i, indexing="ij")).flatten(1)
    apart = at[:, :, None] - at[:, None] + side - 1
    near = bias[(apart[0] * (2 * side - 1) + apart[1]).flatten()].view(side**2, side**2, -1).permute(2, 0, 1)
    q = q.repeat_interleave(windows, 0) * q.shape[-1] ** -0.5
    return out((torch.softmax(q @ k.mT + near, -1) @ v).transpose(1, 2).flatten(2))


class Permutator(nn.Module):
    """The vision permutator: heights, widths and channels mixed by three lines, weighed by a softmax of their sum."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.parts, self.norm = width // side, nn.LayerNorm(width)
        self.h, self.w, self.c, self.out = (nn.Linear(width, width) for _ in range(4))
        self.weigh = mlp(width, width // 4, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        s = y.unflatten(-1, (-1, self.parts))
        h = self.h(s.transpose(1, 3).flatten(3)).unflatten(-1, (-1, self.parts)).transpose(1, 3).flatten(3)
        w = self.w(s.transpose(2, 3).flatten(3)).unflatten(-1, (-1, self.parts)).transpose(2, 3).flatten(3)
        c = self.c(y)
        a = torch.softmax(self.weigh((h + w + c).mean((1, 2))).unflatten(-1, (3, -1)), 1)[:, :, None, None].unbind(1)
        return x + self.out(h * a[0] + w * a[1] + c * a[2])


def span_convolution(q, k, v, span, kernel, x: Tensor, heads: int) -> Tensor:
    """ConvBERT: half of the heads attend, the others convolve with kernels made of a span around each word."""
    ask, around = q(x), span(x.mT).mT
    kernels = torch.softmax(kernel(around * ask).unflatten(-1, (heads, -1)), -1)
    value = v(x)
    near = functional.pad(value, (0, 0, 4, 4)).unfold(1, 9, 1).unflatten(2, (heads, -1))
    local = (near @ kernels.unsqueeze(-1)).squeeze(-1)
    a, b, c = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (ask, k(x), value))
    return torch.cat([functional.scaled_dot_product_attention(a, b, c).transpose(1, 2), local], 2).flatten(2)


def entities_and_words(qs, kv, words: Tensor, entities: Tensor, mask: Tensor, heads: int) -> list[Tensor]:
    """LUKE: words and entities have queries of their own for words and for entities."""
    n = words.shape[1]
    k, v = kv(torch.cat([words, entities], 1)).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    q = [f(x).unflatten(-1, (heads, -1)).transpose(1, 2) for f, x in zip(qs, (words, words, entities, entities), strict=True)]
    rows = [torch.cat([a @ k[:, :, :n].mT, b @ k[:, :, n:].mT], -1) for a, b in (q[:2], q[2:])]
    s = (torch.cat(rows, 2) * k.shape[-1] ** -0.5).masked_fill((mask < -1)[:, None, None], -1e4)
    y = (torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2)
    return [y[:, :n], y[:, n:]]


def hashed_characters(tables, norm, conv, last, codes: Tensor) -> Tensor:
    """CANINE: eight hashes of each character by primes, then a quarter of the places, the class in front."""
    primes = (31, 43, 59, 61, 73, 97, 103, 113)
    x = norm(torch.cat([t(((codes + 1) * p) % t.num_embeddings) for t, p in zip(tables, primes, strict=True)], -1))
    low = functional.gelu(conv(x.mT)).mT
    return last(torch.cat([x[:, :1], low[:, :-1]], 1))


def prefixes_of_vectors(x: Tensor, y: Tensor, many: Tensor, scale: float = 20.0) -> Tensor:
    """Sentence transformers: means over words, and a loss of ranks at each length of the vectors (Matryoshka)."""
    mask = (torch.arange(x.shape[1], device=x.device) <= many[:, None]).unsqueeze(-1)
    a, b = ((t * mask).sum(1, dtype=torch.float32) / mask.sum(1).clamp(min=1) for t in (x, y))
    loss, right = torch.zeros((), device=x.device), torch.arange(len(x), device=x.device)
    for part_ in (1, 2, 4, 8):
        p, q = (functional.normalize(t[:, : t.shape[1] // part_], dim=-1).to(x.dtype) for t in (a, b))
        loss = loss + functional.cross_entropy((p @ q.T).float() * scale, right)
    return loss / 4


def thresholded_guidance(x: Tensor, free: Tensor, told: Tensor, level: Tensor) -> Tensor:
    """Imagen: guidance, a clean image bounded by its own quantile, and one step of DDIM."""
    a, b = torch.sigmoid(level[:, 0].float())[:, None, None, None], torch.sigmoid(level[:, 0].float() + 1)[:, None, None, None]
    noise = free.float() + 7.5 * (told.float() - free.float())
    clean = (x.float() - (1 - a).sqrt() * noise) / a.sqrt()
    s = torch.quantile(clean.abs().flatten(1), 0.995, dim=1).clamp(1.0, 100.0)[:, None, None, None]
    clean = torch.minimum(torch.maximum(clean, -s), s) / s
    noise = (x.float() - a.sqrt() * clean) / (1 - a).sqrt()
    return (b.sqrt() * clean + (1 - b).sqrt() * noise).to(x.dtype)


def strange_patches(fine: Tensor, coarse: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
    """PatchCore: two levels smoothed and joined, the nearest patch of a memory, an image's score by its neighbourhood."""
    low = functional.interpolate(functional.avg_pool2d(coarse, 3, 1, 1), fine.shape[-2:], mode="bilinear", align_corners=False)
    x = torch.cat([functional.avg_pool2d(fine, 3, 1, 1), low], 1).flatten(2).mT
    d = x.float().square().sum(-1, keepdim=True) - 2 * (x @ bank.T).float() + bank.float().square().sum(-1)
    score, at = d.clamp(min=0).sqrt().min(-1)
    top, where = score.max(1)
    near = bank[at.gather(1, where[:, None]).squeeze(1)]
    around = (near @ bank.T).float().mul(2).sub(bank.float().square().sum(-1)).topk(4, -1).indices
    to = d.gather(1, where[:, None, None].expand(-1, -1, d.shape[-1])).squeeze(1).gather(1, around).clamp(min=0).sqrt()
    return (1 - torch.softmax(to, -1)[:, 0]) * top, score.unflatten(1, fine.shape[-2:])


def mesh_messages(edge, node, norms, x: Tensor, e: Tensor, source: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
    """MeshGraphNets: edges read both their ends, nodes the sum of edges that come in; both add what is new."""
    more = norms[0](edge(torch.cat([x[source], x[to], e], -1)))
    total = torch.zeros(x.shape, device=x.device).index_add(0, to, more.float()).to(x.dtype)
    return x + norms[1](node(torch.cat([x, total], -1))), e + more


def neighbouring_residues(first, second, dense, norms, x: Tensor, e: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """ProteinMPNN's encoder: messages of the nearest residues, a network, then the edges once more."""

    def joined(x: Tensor) -> Tensor:
        at = which.flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.cat(
            [x.unsqueeze(2).expand(-1, -1, which.shape[2], -1), e, x.gather(1, at).unflatten(1, which.shape[1:])], -1
        )

    x = norms[0](x + first(joined(x)).sum(2) / 30)
    x = norms[1](x + dense(x))
    return x, norms[2](e + second(joined(x)))


def scalars_and_directions(turn, line, back, gate, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A geometric vector perceptron: lengths of mixed vectors join the scalars, whose result gates the vectors."""
    h = turn(v.mT)
    s = line(torch.cat([s, h.float().square().sum(-2).clamp(min=1e-8).sqrt().to(s.dtype)], -1))
    return functional.relu(s), back(h).mT * torch.sigmoid(gate(s)).unsqueeze(-1)


def blocks_of_three_kinds(q: Tensor, k: Tensor, v: Tensor, drawn: Tensor) -> Tensor:
    """BigBird: blocks see both ends, their neighbours and two that were drawn; both ends see everything."""

    def seen(x: Tensor) -> Tensor:
        near = (x[:, :, :1].expand_as(x), x[:, :, -1:].expand_as(x), x.roll(1, 2), x, x.roll(-1, 2))
        return torch.cat([*near, x[:, :, drawn].flatten(3, 4)], 3)[:, :, 1:-1]

    middle = functional.scaled_dot_product_attention(q[:, :, 1:-1].contiguous(), seen(k), seen(v))
    ends = functional.scaled_dot_product_attention(q[:, :, [0, -1]].flatten(2, 3), k.flatten(2, 3), v.flatten(2, 3))
    ends = ends.unflatten(2, (2, -1))
    return torch.cat([ends[:, :, :1], middle, ends[:, :, 1:]], 2).flatten(2, 3)


def imagined_step(first, second, reward, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """MuZero: an action as a plane beside the state, a residual block, a state between nought and one, a reward from bins."""
    plane = (action.to(state.dtype) / 18)[:, None, None, None].expand(-1, 1, *state.shape[2:])
    x = functional.relu(first(torch.cat([state, plane], 1)) + state)
    x = functional.relu(second(x) + x)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    x = (x - low) / (high - low).clamp(min=1e-3)
    p = torch.softmax(reward(x).float(), -1)
    r = (p * (torch.arange(p.shape[1], device=x.device) - p.shape[1] // 2)).sum(-1)
    root = (torch.sqrt(1 + 0.004 * (r.abs() + 1.001)) - 1) / 0.002
    return x, torch.sign(r) * (root.square() - 1)


def separable_in_time(deep, flat, skip, x: Tensor, many: Tensor) -> Tensor:
    """QuartzNet: long depthwise kernels, channels, norms; what lies behind a record's end is nought before each of them."""
    mask, y = torch.arange(x.shape[2], device=x.device) <= many[:, None, None], x
    for i, (time, channels) in enumerate(zip(deep, flat, strict=True)):
        y = channels(time((functional.relu(y) if i else y) * mask) * mask)
    return functional.relu(y + skip(x * mask))


def initial_residuals(lines_, x: Tensor, source: Tensor, to: Tensor) -> Tensor:
    """GCNII: a tenth of every layer is the first one's features; lines come ever closer to the identity."""
    h, norm = x, torch.ones(len(x), device=x.device).index_add(0, to, torch.ones(len(to), device=x.device)).rsqrt()
    for i, line in enumerate(lines_):
        sent = h[source] * (norm[source] * norm[to]).unsqueeze(-1)
        h = (0.9 * torch.zeros(x.shape, device=x.device).index_add(0, to, sent) + 0.1 * x).to(x.dtype)
        h = functional.relu(torch.lerp(h, line(h), math.log(1 + 0.5 / (i + 1))))
    return h


class Impala(nn.Module):
    """IMPALA's deep network on bytes: three stages of a convolution, a pool and two residual blocks; policy and value."""

    def __init__(self, widths: tuple[int, ...], side: int, actions: int) -> None:
        super().__init__()
        conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1)  # noqa: E731
        self.first = nn.ModuleList(conv(i, o) for i, o in zip((4, *widths), widths, strict=False))
        self.inner = nn.ModuleList(nn.ModuleList(conv(w, w) for _ in range(4)) for w in widths)
        self.line, self.heads = nn.Linear(widths[-1] * (side // 8) ** 2, 256), nn.Linear(256, actions + 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.to(self.line.weight.dtype) / 255.0
        for first, (a, b, c, d) in zip(self.first, self.inner, strict=True):
            x = functional.max_pool2d(first(x), 3, 2, 1)
            x = x + b(functional.relu(a(functional.relu(x))))
            x = x + d(functional.relu(c(functional.relu(x))))
        y = self.heads(functional.relu(self.line(functional.relu(x).flatten(1))))
        return torch.log_softmax(y[:, :-1], -1), y[:, -1]


class Wukong(nn.Module):
    """Wukong's layer: a factorization machine beside a linear compression of fields, both added to what came in."""

    def __init__(self, fields: int, width: int, rank: int, machines: int) -> None:
        super().__init__()
        self.mix, self.rank = nn.Parameter(torch.randn(fields, fields - machines) * fields**-0.5), nn.Linear(fields, rank, False)
        self.norm, self.last = nn.LayerNorm(fields * rank), nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(fields * rank, 512), nn.ReLU(), nn.Linear(512, machines * width))

    def forward(self, x: Tensor) -> Tensor:
        fm = self.norm((x @ self.rank(x.mT)).flatten(1))
        machines = functional.relu(self.net(fm)).unflatten(1, (-1, x.shape[2]))
        return self.last(torch.cat([machines, self.mix.T @ x], 1) + x)


def lines(*ways: tuple[int, int], bias: bool = True):
    return tuple(wide(i, o, (max(i // 48, 8), max(o // 48, 8)), bias=bias) for i, o in ways)


def networks(*ways: tuple[int, int]):
    return tuple(lambda n, i=i, k=k: mlp(i * n(*WIDTH), k * n(*WIDTH), n(*WIDTH)) for i, k in ways)


def flat(n):
    return nn.Sequential(nn.Conv1d(n(256, 8), n(256, 8), 1, bias=False), nn.BatchNorm1d(n(256, 8)))


def spans(n):
    w = n(768, 16)
    return nn.Sequential(nn.Conv1d(w, w, 9, padding=4, groups=w, bias=False), nn.Conv1d(w, w // 2, 1))


MAP, PIXELS, TEXT = ((32, 2), (96, 8), (28, 8), (28, 6)), ((32, 2), 3, (128, 9), (128, 8)), ((16, 2), (512, 12), (768, 16))
FEW, BLOCKS = ((16, 2), (32, 3), (768, 16)), ((2, 1), (12, 2), (64, 5), (64, 4), (64, 4))
NODES, EDGES, WIDTH, RESIDUES = (8192, 9), (49152, 30), (128, 8), ((8, 2), (256, 9))
CASES: dict[str, Case] = {
    "gated_positions": call(
        gated_positions,
        ((16, 2), (196, 16), (768, 16)),
        parts=(*lines((768, 1536), (768, 768), (768, 768), bias=False), part(nn.Linear, 3, (16, 2)), weights(((16, 2),))),
    ),
    "split_and_transposed": call(one, MAP, parts=(part(SplitAndTransposed, (96, 8), (3, 2)),)),
    "norm_free_bottleneck": call(
        one, ((16, 2), (256, 16), (28, 6), (28, 6)), parts=(part(NormFree, (256, 16), (128, 8), (64, 4)),)
    ),
    "cheap_and_far": call(one, MAP, parts=(part(CheapAndFar, (96, 8), (192, 8)),)),
    "asked_by_the_whole": call(
        lambda *x: asked_by_the_whole(*x, side=math.isqrt(x[-1].shape[2])),
        *(((2048, 6), (49, 9), (96, 8)), ((128, 3), (3, 2), (49, 9), (32, 4))),
        parts=(wide(96, 192, (8, 16)), wide(96, 96, (8, 8)), weights(((169, 25), (3, 2)))),
    ),
    "permutator": call(one, ((32, 2), (14, 4), (14, 4), (392, 16)), parts=(part(Permutator, (392, 16), (14, 4)),)),
    "span_convolution": call(
        lambda *x: span_convolution(*x, heads=6 if x[-1].shape[-1] > 99 else 2),
        TEXT,
        parts=(*lines((768, 384), (768, 384), (768, 384)), spans, lambda n: nn.Linear(n(384, 8), 9 * n(6, 2))),
    ),
    "entities_and_words": call(
        lambda *x: entities_and_words(*x, heads=12 if x[-2].shape[-1] > 99 else 2),
        *(TEXT, FEW, ((16, 2), (544, 15))),
        parts=(lambda n: nn.ModuleList(nn.Linear(n(768, 16), n(768, 16)) for _ in range(4)), *lines((768, 1536))),
    ),
    "hashed_characters": call(
        hashed_characters,
        below((1114112, 99), (8, 2), (2048, 16)),
        parts=(
            *(lambda n: nn.ModuleList(nn.Embedding(n(16384, 20), n(96, 2)) for _ in range(8)), part(nn.LayerNorm, (768, 16))),
            *(lambda n: nn.Conv1d(n(768, 16), n(768, 16), 4, stride=4), part(nn.LayerNorm, (768, 16))),
        ),
    ),
    "prefixes_of_vectors": call(prefixes_of_vectors, *(((256, 5), (128, 7), (768, 16)),) * 2, below((128, 7), (256, 5))),
    "thresholded_guidance": call(thresholded_guidance, PIXELS, PIXELS, PIXELS, ((32, 2), 1)),
    "strange_patches": call(
        strange_patches, ((4, 2), (128, 5), (28, 6), (28, 6)), ((4, 2), (256, 6), (14, 3), (14, 3)), ((8192, 20), (384, 11))
    ),
    "mesh_messages": call(
        mesh_messages,
        *((NODES, WIDTH), (EDGES, WIDTH), below(NODES, EDGES), below(NODES, EDGES)),
        parts=(*networks((3, 1), (2, 1)), lambda n: nn.ModuleList(nn.LayerNorm(n(*WIDTH)) for _ in range(2))),
    ),
    "neighbouring_residues": call(
        neighbouring_residues,
        *((*RESIDUES, WIDTH), (*RESIDUES, (30, 4), WIDTH), below((256, 9), *RESIDUES, (30, 4))),
        parts=(*networks((3, 1), (3, 1), (1, 4)), lambda n: nn.ModuleList(nn.LayerNorm(n(*WIDTH)) for _ in range(3))),
    ),
    "scalars_and_directions": call(
        scalars_and_directions,
        *(((65536, 20), (128, 8)), ((65536, 20), (16, 4), 3)),
        parts=(wide(16, 32, (4, 6), bias=False), wide(160, 128, (14, 8)), wide(32, 16, (6, 4)), wide(128, 16, (8, 4))),
    ),
    "blocks_of_three_kinds": call(blocks_of_three_kinds, BLOCKS, BLOCKS, BLOCKS, below((64, 5), (64, 5), 2)),
    "imagined_step": call(
        imagined_step,
        *(((256, 2), (128, 8), 6, 6), below((18, 5), (256, 2))),
        parts=(
            *(lambda n: cbr(n(128, 8) + 1, n(128, 8), 3, act=False), lambda n: cbr(n(128, 8), n(128, 8), 3, act=False)),
            lambda n: nn.Sequential(cbr(n(128, 8), 16), nn.Flatten(), mlp(576, 32, n(601, 21), nn.ReLU)),
        ),
    ),
    "separable_in_time": call(
        separable_in_time,
        *(((16, 2), (256, 8), (800, 20)), below((800, 20), (16, 2))),
        parts=(
            lambda n: nn.ModuleList(nn.Conv1d(*(n(256, 8),) * 2, 33, 1, 16, 1, n(256, 8)) for _ in range(5)),
            lambda n: nn.ModuleList(flat(n) for _ in range(5)),
            flat,
        ),
    ),
    "initial_residuals": call(
        initial_residuals,
        *((NODES, (256, 8)), below(NODES, EDGES), below(NODES, EDGES)),
        parts=(lambda n: nn.ModuleList(nn.Linear(*(n(256, 8),) * 2, bias=False) for _ in range(4)),),
    ),
    "impala_network": call(
        one,
        lambda n: torch.randint(0, 256, (n(256, 2), 4, n(84, 16), n(84, 16))).to(torch.uint8),
        parts=(lambda n: Impala((16, 32, 32) if n(1, 0) else (4, 6, 6), n(88, 16), n(18, 5)),),
    ),
    "wukong_layer": call(one, ((8192, 4), (48, 6), (64, 8)), parts=(part(Wukong, (48, 6), (64, 8), (24, 3), (24, 2)),)),
}
