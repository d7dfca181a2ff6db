"""Chains that testers of fusing compilers write: odd shapes and axes, towers, cells, integers, mixtures, uncommon attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import spread
from experiments.suite.more.arenas import weights
from experiments.suite.more.fountains import fanned
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.users import call
from experiments.suite.users import turned
from experiments.suite.users import whole


class Tower(nn.Module):
    """Six layers; each adds half of the last but one, gains and shifts are buffers; all means in a dict."""

    def __init__(self, width: int, depth: int = 6) -> None:
        super().__init__()
        self.steps = nn.ModuleDict(
            {f"step_{i}": nn.ModuleDict({"norm": nn.LayerNorm(width), "line": nn.Linear(width, width)}) for i in range(depth)}
        )
        self.register_buffer("gain", torch.linspace(0.5, 1.5, width))
        self.register_buffer("shift", torch.linspace(-0.3, 0.3, width))

    def forward(self, x: Tensor) -> dict[str, Tensor | dict[str, Tensor]]:
        before, means = torch.zeros_like(x), {}
        for name, step in self.steps.items():
            y = functional.gelu(step["line"](step["norm"](x) * self.gain + self.shift))
            before, x = x, x + 0.5 * before + y
            x = x * 0.7
            means[name] = y.mean(0)
        return {"hidden": x, "means": means}


class Heads(nn.Module):
    """A trunk that five heads of unlike widths share, each with another end; nested results."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Sequential(nn.Linear(inside, width), nn.SiLU()), nn.Sequential(nn.Linear(width, width), nn.RMSNorm(width))
        )
        self.heads = nn.ModuleDict({k: nn.Linear(width, v) for k, v in (("a", 3), ("b", 17), ("c", 65), ("d", 128), ("e", 1))})

    def forward(self, x: Tensor) -> dict:
        y = {k: head(h) for h in [self.trunk(x)] for k, head in self.heads.items()}
        classes = {"few": y["b"].softmax(1), "many": torch.log_softmax(y["c"], 1)}
        return {"place": torch.tanh(y["a"]), "classes": classes, "rest": (functional.normalize(y["d"], dim=1), y["e"].exp())}


def rain_between_walls(x: Tensor) -> tuple[Tensor, Tensor]:
    """What lies below the lesser of the highest on either side, for rows of heights."""
    left, right = torch.cummax(x, 1).values, torch.cummax(x.flip(1), 1).values.flip(1)
    held = torch.minimum(left, right) - x
    return held, held.sum(1) / x.shape[1]


def winsorised_then_tested(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Columns cut at their twentieths between two order statistics; skew, kurtosis and Jarque and Bera's number."""
    n, y = len(x), torch.sort(x, dim=0).values
    at = 0.05 * (n - 1)
    i, w = int(at), at - int(at)
    low, high = torch.lerp(y[i], y[i + 1], w), torch.lerp(y[n - 1 - i], y[n - 2 - i], w)
    z = torch.clamp(x, low, high)
    z = (z - z.mean(0)) / (z.std(0) + 1e-5)
    skew, kurtosis = z.pow(3).mean(0), z.pow(4).mean(0)
    return skew, kurtosis, n / 6 * (skew.square() + 0.25 * (kurtosis - 3).square())


def robust_locations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Huber's place of each row, from median and median deviation, in five rounds of weights."""
    place = torch.median(x, 1, keepdim=True).values
    scale = 1.4826 * torch.median((x - place).abs(), 1, keepdim=True).values + 1e-3
    w = torch.ones_like(x)
    for _ in range(5):
        w = 1.345 / torch.clamp(((x - place) / scale).abs(), min=1.345)
        place = (w * x).sum(1, keepdim=True) / w.sum(1, keepdim=True)
    return place.squeeze(1), w.mean(1)


def mixture_of_laplaces(x: Tensor, mix: Tensor, place: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Log-likelihoods of rows under several sharp peaks a column; who is to blame, on the mean."""
    s = functional.softplus(scale) + 0.1
    logs = torch.log_softmax(mix, 0) - torch.log(2 * s) - (x.unsqueeze(1) - place).abs() / s
    every = torch.logsumexp(logs, 1)
    return every.sum(1), torch.exp(logs - every.unsqueeze(1)).mean(0)


def survival_of_rows(hazards: Tensor, died: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hazards of periods: how many are alive, the expected time, and the loss of who died when."""
    h = torch.sigmoid(hazards - 3.0)
    alive = torch.cumprod(1.0 - h, 1)
    before = functional.pad(alive[:, :-1], (1, 0), value=1.0)
    loss = -torch.log((before * h).gather(1, died.unsqueeze(1)) + 1e-6).mean()
    return alive, alive.sum(1), loss


def turned_by_mobius(re: Tensor, im: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Four maps (a z + b) / (c z + d) of pairs, one after another; then length, angle, and the mean of both parts."""
    for a, b, c, d in turns.unbind(0):
        c, d = 0.2 * torch.tanh(c), d / d.norm() * 2.0
        top = a[0] * re - a[1] * im + b[0], a[0] * im + a[1] * re + b[1]
        low = c[0] * re - c[1] * im + d[0], c[0] * im + c[1] * re + d[1]
        size = low[0].square() + low[1].square() + 0.1
        re, im = (top[0] * low[0] + top[1] * low[1]) / size, (top[1] * low[0] - top[0] * low[1]) / size
    return torch.log1p(torch.hypot(re, im)), torch.sin(torch.atan2(im, re)), torch.stack([re.mean(1), im.mean(1)])


def stirred_words(words: Tensor, table: Tensor) -> Tensor:
    """Murmur's last stirring of words and their neighbours in 32 bits; three buckets each of a table, signed, added."""
    x, y = words.long(), 0.0
    x = (x * 0x9E3779B1 + torch.roll(x, 1, 1) * 0x85EBCA6B) & 0xFFFFFFFF
    for salt in (0x1B873593, 0xCC9E2D51, 0x27D4EB2F):
        h = x ^ salt
        h = ((h ^ (h >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        h = ((h ^ (h >> 13)) * 0x119DE1F3) & 0xFFFFFFFF
        h = h ^ (h >> 16)
        y = y + table[(h >> 1) % len(table)] * (1 - 2 * (h & 1)).unsqueeze(2).to(table.dtype)
    return y / 3**0.5


def congruences_as_noise(seed: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Linear congruences from seeds, six turns; uniform pairs become Gaussian noise, parity of bits drops numbers."""
    s = seed.long()
    drawn = []
    for _ in range(6):
        s = (s * 1664525 + 1013904223) % 4294967296
        drawn.append(s)
    u, v = ((t >> 8).to(x.dtype) / 16777216 for t in drawn[-2:])
    bits = drawn[3]
    for k in (16, 8, 4, 2, 1):
        bits = bits ^ (bits >> k)
    noise = torch.sqrt(-2 * torch.log(0.999 * u + 5e-4)) * torch.cos(6.2831853 * v)
    return torch.where((bits & 1) == 1, x + 0.3 * noise, 0.0), (bits & 1).sum(1)


def patches_weighed_and_folded(x: Tensor, w: Tensor) -> Tensor:
    """Overlapping patches, a softmax of places weighs each, folded back and divided by how many lay there."""
    c, h, k = *x.shape[1:3], 5
    p = functional.unfold(x, k, padding=2, stride=3).unflatten(1, (c, k * k))
    p = p * torch.softmax(p.mean(1, keepdim=True) * w.view(1, 1, -1, 1), 2)
    y, one = (functional.fold(t.flatten(1, 2), (h, x.shape[3]), k, padding=2, stride=3) for t in (p, torch.ones_like(p)))
    return y / one.clamp(min=1.0)


def minimal_gates(f, h_line, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A minimal gated unit for sixteen steps; all states and the last."""
    out, all_x = [], f(x)
    for t in range(16 if x.shape[1] > 16 else x.shape[1]):
        a, b = all_x[:, t].chunk(2, 1)
        u, v = h_line(h).chunk(2, 1)
        z = torch.sigmoid(a + u)
        h = (1 - z) * h + z * torch.tanh(b + z * v)
        out.append(h)
    return torch.stack(out, 1), h


def independent_cells(given, norm, x: Tensor) -> tuple[Tensor, Tensor]:
    """IndRNN in two layers for twelve steps: each channel hears itself only; pairs of products between."""
    first, second, w, v = given
    a, b, total = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), 0.0
    for t in range(min(12, x.shape[1])):
        a = functional.relu(x[:, t] @ w + first.sigmoid() * a)
        b = functional.relu(norm(a) @ v + second.sigmoid() * b)
        total = total + b.square().mean(1)
    return b, total


def chebyshev_neighbours(x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Largest differences of coordinates from each point to all; the four nearest speak by inverse distance."""
    d = (x.unsqueeze(1) - y).abs().amax(2)
    near, at = torch.topk(d, 4, dim=1, largest=False)
    w = functional.normalize(1.0 / (near + 0.1), p=1.0, dim=1)
    return (v[at] * w.unsqueeze(2)).sum(1), torch.exp(-d).mean(0)


def signs_of_pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Kendall's tau without sorting: soft signs of all pairs above the diagonal, and of pairs in opposite order."""
    a, b = (torch.tanh(2.0 * (t.unsqueeze(2) - t.unsqueeze(1))) for t in (x, y))
    upper = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    s = (a * b).masked_fill(~upper, 0.0)
    return s.sum((1, 2)) / upper.sum(), (s < 0).sum((1, 2))


def rational_between(f, g, given, x: Tensor) -> Tensor:
    """Padé units: a quotient of polynomials of degrees five and four by Horner, one for each of eight groups."""
    y = f(x).unflatten(1, (8, -1))
    p, q = (t.unsqueeze(2) for t in given)
    top, low = p[5], q[3].abs()
    for i in range(4, -1, -1):
        top = top * y + p[i]
    for i in range(2, -1, -1):
        low = low * y.abs() + q[i].abs()
    return g((top / (1.0 + low * y.abs())).flatten(1))


def winner_of_groups_gates(f, given, x: Tensor) -> Tensor:
    """Groups of eleven: the largest says which row of a table gates the group, its lead over the second how much."""
    y = f(x).unflatten(1, (-1, 11))
    best, at = torch.topk(y, 2, dim=2)
    row = given[0][at[:, :, 0] + 11 * torch.arange(at.shape[1], device=x.device)]
    return torch.softmax(y, 1) * torch.tanh(row * (best[:, :, :1] - best[:, :, 1:]))


def scattered_best_of_rows(f, x: Tensor) -> tuple[Tensor, Tensor]:
    """The seven largest of each row of a product, shared out, put back, less their share in whole columns."""
    top, at = torch.topk(y := f(x), 7, dim=1)
    z = torch.zeros_like(y).scatter(1, at, torch.softmax(top, 1))
    return z - 0.1 * z.mean(0), (y - top[:, -1:]).clamp(max=0.0).exp().mean(1)


def capped_cross_with_table(lines, given, x: Tensor, y: Tensor) -> Tensor:
    """Queries of twelve heads, one key and one value of another sequence; a table by distance, scores under a cap."""
    q, (k, v) = split(lines[0](x), 12), lines[1](y).chunk(2, 2)
    far = torch.arange(x.shape[1], device=x.device)[:, None] - torch.arange(y.shape[1], device=x.device)
    bias = given[0][:, (far.abs().float() + 1.5).log2().long().clamp(max=11)]
    s = 20.0 * torch.tanh((torch.einsum("bhqd,bkd->bhqk", q, k) * q.shape[3] ** -0.5 + bias) / 20.0)
    return lines[2](joined(torch.einsum("bhqk,bkd->bhqd", s.softmax(-1), v)))


def unfolded_windows_and_sinks(given, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query sees thirteen keys around it, unfolded, and four learned ones."""
    k, v = (functional.pad(t, (0, 0, 6, 6)).unfold(2, 13, 1) for t in (k, v))
    near = torch.einsum("bhtd,bhtdw->bhtw", q, k)
    p = torch.softmax(torch.cat([near, torch.einsum("bhtd,hsd->bhts", q, given[0])], 3) * q.shape[3] ** -0.5, 3)
    return torch.einsum("bhtw,bhtdw->bhtd", p[..., :13], v) + p[..., 13:] @ given[1]


def kernel_of_elus_in_three_products(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Linear attention both ways: sums over all keys, each head normed by its RMS, gated, heads beside each other."""
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    y = torch.einsum("bthd,bhde->bthe", q, torch.einsum("bthd,bthe->bhde", k, v) / k.shape[1])
    y = y / (torch.einsum("bthd,bhd->bth", q, k.mean(1)).unsqueeze(3) + 1e-3)
    return (functional.rms_norm(y, y.shape[-1:]) * functional.silu(g)).flatten(2)


def masked_middle_with_lengths(x: Tensor, lengths: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """A softmax along the second of four axes, only as far as each row goes; weighted sums and the largest share."""
    seen = (torch.arange(x.shape[1], device=x.device) <= lengths.unsqueeze(1))[:, :, None, None]
    p = torch.softmax((x * gate).masked_fill(~seen, torch.finfo(x.dtype).min), 1)
    return (p * x).sum(1), p.amax((1, 3))


def dilated_tower(convs, mixes, norms, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Seven layers of depthwise kernels ever farther apart, a pointwise product, group norms; also what each adds."""
    added = []
    for i, (c, m, n) in enumerate(zip(convs, mixes, norms, strict=True)):
        y = m(functional.gelu(n(c(functional.pad(x, (2 << i, 0))))))
        added.append(y.square().mean((1, 2)))
        x = x + y
    return x, added


def windows_as_eight_axes(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Windows in space and time, cut out as eight axes, normed inside each, scaled by channel and laid back."""
    b, t, h, w, c = x.shape
    y = x.view(b, t // 2, 2, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 5, 2, 4, 6, 7)
    var, mean = torch.var_mean(y, (4, 5, 6), keepdim=True, correction=0)
    y = (y - mean) * torch.rsqrt(var + 1e-3) * scale
    return y.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(x.shape), mean.flatten(1, 3).amax(1)


FLOAT32: dict[str, Case] = {
    "tower_with_two_shortcuts": call(lambda m, x: m(x), ((1500, 5), (384, 12)), parts=(part(Tower, (384, 12)),)),
    "rain_between_walls": call(rain_between_walls, ((384, 3), (5001, 33))),
    "winsorised_then_tested": call(winsorised_then_tested, ((9000, 50), (123, 4))),
    "robust_locations": call(robust_locations, ((700, 3), (3001, 41))),
    "mixture_of_laplaces": call(mixture_of_laplaces, ((3000, 5), (77, 6)), *(((9, 3), (77, 6)),) * 3),
    "survival_of_rows": call(survival_of_rows, ((20000, 9), (120, 12)), below((120, 12), (20000, 9))),
    "turned_by_mobius": call(turned_by_mobius, *(((900, 5), (1111, 13)),) * 2, (4, 4, 2)),
    "stirred_words": call(stirred_words, whole(1 << 20, (32, 2), (333, 9)), ((50021, 97), (192, 6))),
    "congruences_as_noise": call(congruences_as_noise, whole(1 << 31, (600, 3), (2500, 21)), ((600, 3), (2500, 21))),
    "minimal_gates": call(
        *(minimal_gates, ((96, 3), (40, 4), (200, 5)), ((96, 3), (320, 6))),
        parts=(part(nn.Linear, (200, 5), (640, 12)), part(nn.Linear, (320, 6), (640, 12), bias=False)),
    ),
    "chebyshev_neighbours": call(chebyshev_neighbours, ((1300, 9), 11), ((1700, 12), 11), ((1700, 12), (48, 5))),
    "signs_of_pairs": call(signs_of_pairs, *(((24, 2), (700, 9)),) * 2),
    "winner_of_groups_gates": call(
        *(winner_of_groups_gates, ((1000, 4), (600, 9))),
        parts=(part(nn.Linear, (600, 9), (704, 33)), weights(((704, 33), 11))),
    ),
    "scattered_best_of_rows": call(scattered_best_of_rows, ((900, 5), (512, 8)), parts=(part(nn.Linear, (512, 8), (3000, 21)),)),
    "five_axes_chosen_by_signs_lse": call(
        lambda x, y, z: torch.logsumexp(torch.where(x > y, torch.where(z > 0, x * z, y - z), x * y + z), (0, 4)),
        *(((7, 2), (33, 3), 1, (65, 4), (19, 3)), (1, (33, 3), (50, 2), 1, (19, 3)), ((7, 2), 1, (50, 2), (65, 4), 1)),
    ),
    "lower_times_upper_by_diagonals": call(
        lambda a, b: (
            (y := torch.tril(a) @ torch.triu(b, 3) * a.shape[2] ** -0.5).diagonal(1, 1, 2).cumsum(1),
            torch.tril(y, -2).abs().amax(2),
        ),
        *(((10, 2), (413, 8), (390, 7)), turned((10, 2), (413, 8), (390, 7))),
    ),
    "conv_circular_less_reflected_group_silu": call(
        lambda a, b, norm, x: functional.silu(norm(a(x) - b(x))).amax(2),
        ((6, 2), (24, 3), (97, 7), (130, 9)),
        parts=(
            lambda n: nn.Conv2d(n(24, 3), n(40, 4), (5, 3), padding=(2, 1), padding_mode="circular"),
            part(nn.Conv2d, (24, 3), (40, 4), 3, padding=1, padding_mode="reflect"),
            part(nn.GroupNorm, (5, 2), (40, 4)),
        ),
    ),
    "conv1_depthwise_less_running_most": call(
        lambda conv, x: functional.softsign(torch.cummax(y := conv(x), 2).values - y) * torch.logaddexp(x, -x),
        ((16, 2), (130, 5), (2003, 27)),
        parts=(lambda n: nn.Conv1d(n(130, 5), n(130, 5), 7, padding=12, dilation=4, groups=n(130, 5)),),
    ),
    "patches_weighed_and_folded": call(patches_weighed_and_folded, ((8, 2), (13, 3), (120, 11), (95, 14)), (25,)),
}
HALVES: dict[str, Case] = {
    "heads_of_unlike_ends": call(lambda m, x: m(x), ((2200, 5), (300, 7)), parts=(part(Heads, (300, 7), (640, 12)),)),
    "independent_cells": call(
        *(independent_cells, ((200, 3), (20, 4), (256, 6))),
        parts=(fanned((1, (256, 6)), (1, (256, 6)), *(((256, 6), (256, 6)),) * 2), part(nn.LayerNorm, (256, 6))),
    ),
    "rational_between": call(
        *(rational_between, ((3000, 5), (500, 6))),
        parts=(
            *(part(nn.Linear, (500, 6), (1504, 24)), part(nn.Linear, (1504, 24), (250, 5))),
            lambda n: nn.ParameterList(nn.Parameter(0.4 * torch.randn(k, 8)) for k in (6, 4)),
        ),
    ),
    "capped_cross_with_table": call(
        *(capped_cross_with_table, ((5, 2), (700, 9), (768, 24)), ((5, 2), (450, 7), (500, 10))),
        parts=(
            lambda n: nn.ModuleList(
                (nn.Linear(n(768, 24), n(768, 24)), nn.Linear(n(500, 10), n(128, 4)), nn.Linear(n(768, 24), n(384, 9)))
            ),
            weights((12, 12)),
        ),
    ),
    "unfolded_windows_and_sinks": call(
        *(unfolded_windows_and_sinks, *(((3, 2), (6, 2), (1001, 17), (40, 4)),) * 3),
        parts=(weights(*(((6, 2), 4, (40, 4)),) * 2),),
    ),
    "kernel_of_elus_in_three_products": call(kernel_of_elus_in_three_products, *(((4, 2), (1500, 11), (9, 2), (72, 6)),) * 4),
    "masked_middle_with_lengths": call(
        masked_middle_with_lengths, ((30, 2), (170, 9), (12, 2), (75, 5)), below((170, 9), (30, 2)), ((12, 2), 1)
    ),
    "dilated_tower": call(
        *(dilated_tower, ((9, 2), (144, 6), (1400, 19))),
        parts=(
            lambda n: nn.ModuleList(nn.Conv1d(c, c, 3, dilation=1 << i, groups=c) for c in [n(144, 6)] for i in range(7)),
            lambda n: nn.ModuleList(nn.Conv1d(n(144, 6), n(144, 6), 1) for _ in range(7)),
            lambda n: nn.ModuleList(nn.GroupNorm(3, n(144, 6)) for _ in range(7)),
        ),
    ),
    "windows_as_eight_axes": call(windows_as_eight_axes, ((3, 1), (6, 2), (56, 7), (63, 14), (96, 5)), ((96, 5),)),
    "product_of_three_shares_of_heads": call(
        lambda x, a, b: torch.softmax(torch.einsum("btd,dhr,hre->bthe", x, a, b) * (x.shape[2] * a.shape[2]) ** -0.5, 2).amax(1),
        *(((6, 2), (400, 7), (320, 9)), ((320, 9), (11, 3), (24, 4)), ((11, 3), (24, 4), (80, 5))),
    ),
    "strided_rows_turned_bmm_gate_mean": call(
        lambda x, y, b: (torch.sigmoid(z := torch.bmm(x[:, ::2].mT, y[:, 1::2]) * 0.1 + b) * z.roll(3, 2)).mean(1),
        *(((20, 2), (602, 14), (210, 6)), ((20, 2), (602, 14), (333, 7)), ((210, 6), 1)),
    ),
    "gemm_two_gates_rms_residual": call(
        lambda f, g, norm, x: x + norm(g((t := f(x).chunk(3, 1))[0] * functional.silu(t[1]) + torch.tanh(t[2]))),
        ((2500, 6), (520, 8)),
        parts=(
            *(part(nn.Linear, (520, 8), (3096, 33)), part(nn.Linear, (1032, 11), (520, 8), bias=False)),
            part(nn.RMSNorm, (520, 8)),
        ),
    ),
    "conv3_thin_kernels_group_relu_lse_depth": call(
        lambda a, b, norm, x: torch.logsumexp(functional.relu(norm(b(functional.elu(a(x))))), 2),
        ((4, 2), (30, 4), (19, 5), (61, 7), (50, 8)),
        parts=(
            lambda n: nn.Conv3d(n(30, 4), n(60, 6), (1, 3, 5), (1, 2, 1), (0, 1, 2), groups=2),
            lambda n: nn.Conv3d(n(60, 6), n(45, 4), (3, 1, 1), padding=(1, 0, 0)),
            part(nn.GroupNorm, (9, 2), (45, 4)),
        ),
    ),
    "up_in_groups_glu_unshuffled_softmax_rows": call(
        lambda up, x: torch.softmax(functional.pixel_unshuffle(functional.glu(up(x), 1), 2), 3),
        ((10, 2), (96, 6), (37, 5), (41, 6)),
        parts=(part(nn.ConvTranspose2d, (96, 6), (72, 6), 4, 2, 1, groups=3),),
    ),
    "pools_of_seven_and_thirteen_line": call(
        lambda f, norm, x: functional.hardtanh(
            norm(f(torch.cat([functional.adaptive_avg_pool1d(x, 7), functional.adaptive_max_pool1d(x, 13), x[..., ::200]], 2)))
        ).sum(1),
        ((40, 2), (256, 5), (1999, 401)),
        parts=(lambda n: nn.Linear(n(30, 23), n(200, 6)), part(nn.LayerNorm, (200, 6))),
    ),
    "bag_with_weights_norm_softplus_pairs": call(
        lambda bag, norm, at, w: (y := functional.softplus(norm(bag(at, per_sample_weights=w)))) @ y.T / y.shape[1],
        *(below((30011, 50), (1100, 6), (37, 4)), ((1100, 6), (37, 4))),
        parts=(part(nn.EmbeddingBag, (30011, 50), (264, 8), mode="sum"), part(nn.LayerNorm, (264, 8))),
    ),
    "instance_then_layer_then_rms": call(
        lambda one, two, three, x: three(two(one(x).permute(0, 2, 3, 1)).flip(1) * 0.5 + x.permute(0, 2, 3, 1)).mean(2),
        ((9, 2), (72, 5), (83, 6), (70, 7)),
        parts=(*(part(nn.InstanceNorm2d, (72, 5), affine=True), spread(nn.LayerNorm, (72, 5)), part(nn.RMSNorm, (72, 5))),),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
