"""Recommenders, atoms, series, plans and heads over words: products of many axes, loops of steps, and gathered tables."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import part
from experiments.suite.more.arenas import weights
from experiments.suite.more.benches import offsets_of
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole

# -- in float32 -----------------------------------------------------------------------------------------------------------------


class EvolvingInterest(nn.Module):
    """DIEN: a GRU reads what was seen; a second one moves only as far as each state is like the target."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru, self.like = nn.GRU(width, width, batch_first=True), nn.Linear(width, width, bias=False)
        self.gates, self.new = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, seen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        states, _ = self.gru(seen)
        a = torch.softmax((states @ self.like(target).unsqueeze(-1)).squeeze(-1), 1)
        h = torch.zeros_like(target)
        for t in range(states.shape[1]):
            x = states[:, t]
            u, r = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
            u = u * a[:, t, None]
            h = (1 - u) * h + u * torch.tanh(self.new(torch.cat([x, r * h], 1)))
        return h, a


def products_by_paths(net, s: Tensor, v: Tensor, way: Tensor, length: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Scalars and vectors times a direction: five ways to a scalar or vector, weighed anew for each edge, summed at atoms."""
    u = s.shape[1]
    y = functional.normalize(way, dim=-1)
    w = net(length).unflatten(-1, (5, u, u)) * u**-0.5
    a, b = s[edges[0]], v[edges[0]]
    scalar = torch.einsum("zuw,zu->zw", w[:, 0], a) + torch.einsum("zuw,zui,zi->zw", w[:, 1], b, y)
    vector = torch.einsum("zuw,zu,zi->zwi", w[:, 2], a, y) + torch.einsum("zuw,zui->zwi", w[:, 3], b)
    turned = torch.linalg.cross(b, y.unsqueeze(1).expand_as(b), dim=-1)
    vector = vector + torch.einsum("zuw,zui->zwi", w[:, 4], turned)
    return torch.zeros_like(s).index_add(0, edges[1], scalar), torch.zeros_like(v).index_add(0, edges[1], vector)


def symmetric_contraction(third: Tensor, second: Tensor, w3: Tensor, w2: Tensor, w1: Tensor, x: Tensor, kind: Tensor) -> Tensor:
    """MACE: products of three, two and one of an atom's features, with weights of its element, from the inside out."""
    y = torch.einsum("ijkp,bpc,bck->bcij", third, w3[kind], x) + torch.einsum("ijp,bpc->bcij", second, w2[kind])
    y = torch.einsum("bcij,bcj->bci", y, x) + w1[kind].unsqueeze(-1)
    return torch.einsum("bci,bci->bc", y, x)


def cayley(_) -> Tensor:
    """What two blades of three axes give: a blade and a sign."""
    table = torch.zeros(8, 8, 8)
    for a in range(8):
        for b in range(8):
            swaps = sum(bin((a >> i) & b).count("1") for i in range(1, 3))
            table[a, a ^ b, b] = (-1) ** swaps
    return table


def geometric_products(left, right, given, table: Tensor, x: Tensor) -> Tensor:
    """Clifford layers: multivectors of eight numbers, mixed over channels, multiplied, each grade by its own size."""
    paths, scale = given
    grade = torch.tensor([0, 1, 1, 2, 1, 2, 2, 3], device=x.device)
    a, b = left(x.transpose(1, 2)).transpose(1, 2), right(x.transpose(1, 2)).transpose(1, 2)
    mixed = table * paths[:, grade[:, None, None], grade[:, None], grade]
    y = torch.einsum("bni,nijk,bnk->bnj", a, mixed, b)
    sizes = torch.zeros_like(y[..., :4]).index_add(-1, grade, y.square()).sqrt()
    return x + y / (torch.sigmoid(scale) * (sizes - 1) + 1)[..., grade]


def triplets_of_edges(down, up, weight: Tensor, m: Tensor, angle: Tensor, pairs: Tensor) -> Tensor:
    """DimeNet: messages that come into an edge's start, by the angle between both, through a bilinear form."""
    x = functional.silu(down(m))[pairs[0]]
    waves = torch.cos(angle.unsqueeze(-1) * torch.arange(1, weight.shape[2] + 1, device=m.device))
    y = torch.einsum("tl,tj,ijl->ti", waves, x, weight)
    return m + functional.silu(up(torch.zeros(len(m), y.shape[1], device=m.device, dtype=m.dtype).index_add(0, pairs[1], y)))


class ManyRates(nn.Module):
    """N-HiTS: each stack sees a coarser series and says few points of the future, which a line is drawn through."""

    def __init__(self, seen: int, ahead: int, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.rates, self.ahead = rates, ahead
        self.nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(seen // r, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, seen + ahead // r)
            )
            for r in rates
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rest, said = x, x[:, -1:].expand(-1, self.ahead)
        for net, rate in zip(self.nets, self.rates, strict=True):
            theta = net(functional.max_pool1d(rest.unsqueeze(1), rate).squeeze(1))
            back, knots = theta[:, : x.shape[1]], theta[:, x.shape[1] :]
            rest = rest - back
            said = said + functional.interpolate(knots.unsqueeze(1), size=self.ahead, mode="linear").squeeze(1)
        return said, rest


def random_kernels(x: Tensor, kernels: Tensor, bias: Tensor, dilations: tuple[int, ...]) -> Tensor:
    """Rocket: for each of many short kernels the largest response, and how often it is positive."""
    x, done = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-8), []
    for k, b, d in zip(kernels, bias, dilations, strict=True):
        y = functional.conv1d(x, k - k.mean(-1, keepdim=True), b, padding=d * (k.shape[-1] // 2), dilation=d)
        done += [y.amax(-1), (y > 0).to(x.dtype).mean(-1)]
    return torch.stack(done, -1).flatten(1)


class PlannedActions(nn.Module):
    """TD-MPC 2: many plans are imagined in a latent of small simplices; the best ones, weighed, are the next plan."""

    def __init__(self, width: int, actions: int, best: int) -> None:
        super().__init__()
        self.best = best
        self.step = nn.Sequential(nn.Linear(width + actions, width), nn.LayerNorm(width), nn.Mish(), nn.Linear(width, width))
        self.reward, self.value = (
            nn.Linear(width + actions, 1),
            nn.Sequential(nn.Linear(width, width), nn.Mish(), nn.Linear(width, 1)),
        )

    def forward(self, z: Tensor, plans: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plans = torch.tanh(plans)
        z, total = z.unsqueeze(1).expand(-1, plans.shape[1], -1), torch.zeros_like(plans[..., 0, 0])
        for t in range(plans.shape[2]):
            both = torch.cat([z, plans[:, :, t]], -1)
            total = total + 0.95**t * self.reward(both).squeeze(-1)
            z = torch.softmax(self.step(both).unflatten(-1, (-1, 8)), -1).flatten(-2)
        total = total + 0.95 ** plans.shape[2] * self.value(z).squeeze(-1)
        worth, at = total.topk(self.best, 1)
        elite = plans.gather(1, at[:, :, None, None].expand(-1, -1, *plans.shape[2:]))
        w = torch.softmax(4 * (worth - worth.amax(1, keepdim=True)), 1)[:, :, None, None]
        mean = (w * elite).sum(1)
        return mean, (w * (elite - mean.unsqueeze(1)).square()).sum(1).sqrt().clamp(0.05, 2), worth


def waves_in_a_box(e: Tensor, slow: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Maxwell's equations on a staggered grid: fields are written to in place, a source shakes one row."""
    e, drag = e.clone(), 0.5 * torch.sigmoid(slow)
    x, y = torch.zeros_like(e), torch.zeros_like(e)
    for t in range(steps):
        x[:, :, :-1] -= 0.5 * (e[:, :, 1:] - e[:, :, :-1])
        y[:, :-1] += 0.5 * (e[:, 1:] - e[:, :-1])
        e[:, 1:-1, 1:-1] += drag[1:-1, 1:-1] * (y[:, 1:-1, 1:-1] - y[:, :-2, 1:-1] - x[:, 1:-1, 1:-1] + x[:, 1:-1, :-2])
        e[:, 1] += 0.1 * t * drag[1]
    return e, (x.square() + y.square()).mean((1, 2))


def shortest_ways(x: Tensor, stops: int) -> Tensor:
    """Floyd and Warshall's, by way of the first stops only."""
    d = functional.softplus(x)
    d.diagonal(dim1=1, dim2=2).zero_()
    for k in range(stops):
        d = torch.minimum(d, d[:, :, k, None] + d[:, k, None])
    return d


def student_neighbours(y: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """t-SNE: how two sorts of nearness differ, and where each point should go."""
    eye = torch.eye(len(y), dtype=torch.bool, device=y.device)
    p = torch.softmax(scores.masked_fill(eye, -torch.inf), 1)
    p = ((p + p.T) / (2 * len(y))).clamp(min=1e-12)
    near = (1 / (1 + (y[:, None] - y).square().sum(-1))).masked_fill(eye, 0.0)
    q = (near / near.sum()).clamp(min=1e-12)
    pull = (p - q) * near
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y), (p * (p / q).log()).sum()


def recursive_least_squares(x: Tensor, target: Tensor, forget: float) -> tuple[Tensor, Tensor]:
    """A filter for each series that is right about all it saw, one sample after the other."""
    p = 10 * torch.eye(x.shape[-1], device=x.device, dtype=x.dtype).expand(len(x), -1, -1)
    w, errors = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        now = x[:, t]
        px = torch.einsum("bij,bj->bi", p, now)
        gain = px / (forget + (now * px).sum(-1, keepdim=True))
        e = target[:, t] - (w * now).sum(-1)
        w = w + gain * e.unsqueeze(-1)
        p = (p - gain.unsqueeze(-1) * px.unsqueeze(-2)) / forget
        errors.append(e)
    return w, torch.stack(errors, 1)


EDGES, ATOMS = (50000, 21), (5000, 9)
FLOAT32: dict[str, Case] = {
    "evolving_interest": call(
        lambda m, x, y: m(x, y), ((4096, 3), (20, 5), (96, 6)), ((4096, 3), (96, 6)), parts=(part(EvolvingInterest, (96, 6)),)
    ),
    "products_by_paths": call(
        products_by_paths,
        *((ATOMS, 16), (ATOMS, 16, 3), (EDGES, 3), (EDGES, 8), below(ATOMS, 2, EDGES)),
        parts=(lambda _: nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 1280)),),
    ),
    "symmetric_contraction": call(
        lambda a, b, c, d, e, x, kind: symmetric_contraction(a * 0.3, b * 0.3, c, d, e, x, kind),
        *((9, 9, 9, 11), (9, 9, 4), (10, 11, (128, 5)), (10, 4, (128, 5)), (10, (128, 5)), ((1024, 7), (128, 5), 9)),
        whole(10, (1024, 7)),
    ),
    "geometric_products": call(
        geometric_products,
        *(cayley, ((16384, 5), (64, 4), 8)),
        parts=(*(wide(64, 64, (4, 4), bias=False),) * 2, weights(((64, 4), 4, 4, 4), ((64, 4), 4))),
    ),
    "triplets_of_edges": call(
        triplets_of_edges,
        *(((64, 5), (64, 5), 7), ((40000, 9), (128, 6)), ((150000, 17),), below((40000, 9), 2, (150000, 17))),
        parts=(wide(128, 64, (6, 5)), wide(64, 128, (5, 6))),
    ),
    "many_rates": call(
        lambda m, x: m(x), ((8192, 5), (768, 16)), parts=(lambda n: ManyRates(n(768, 16), n(192, 8), n(512, 8), (8, 4, 1)),)
    ),
    "random_kernels": call(
        lambda x, k, b: random_kernels(x, k, b, (1, 4, 16, 57) if x.shape[-1] > 99 else (1, 2, 3, 4)),
        *(((256, 3), 1, (1001, 31)), (4, (100, 5), 1, 9), (4, (100, 5))),
    ),
    "planned_actions": call(
        lambda m, z, p: m(z, p),
        *(((16, 2), (512, 16)), ((16, 2), (512, 9), (5, 3), 6)),
        parts=(part(PlannedActions, (512, 16), 6, (64, 3)),),
    ),
    "waves_in_a_box": call(lambda e, s: waves_in_a_box(e, s, 16), ((8, 2), (1000, 9), (1025, 11)), ((1000, 9), (1025, 11))),
    "shortest_ways": call(lambda x: shortest_ways(x, min(12, x.shape[1])), ((5, 2), (1111, 9), (1111, 9))),
    "student_neighbours": call(student_neighbours, ((4000, 11), 2), ((4000, 11), (4000, 11))),
    "recursive_least_squares": call(
        lambda x, y: recursive_least_squares(x, y, 0.98), ((4096, 3), (16, 7), (32, 4)), ((4096, 3), (16, 7))
    ),
}

# -- in float16 -----------------------------------------------------------------------------------------------------------------


def product_keys(ask, keys: Tensor, down: Tensor, up: Tensor, x: Tensor, heads: int, most: int) -> Tensor:
    """PEER, many small experts: the best pairs of halves of a key are found, their two vectors are looked up."""
    q = ask(x).unflatten(-1, (heads, 2, -1))
    a, b = torch.einsum("thsd,skd->sthk", q, keys).float().unbind(0)
    (a, i), (b, j) = a.topk(most, -1), b.topk(most, -1)
    both = (a.unsqueeze(-1) + b.unsqueeze(-2)).flatten(-2)
    s, at = both.topk(most, -1)
    which = i.gather(-1, torch.div(at, most, rounding_mode="floor")) * keys.shape[1] + j.gather(-1, at % most)
    h = functional.gelu(torch.einsum("td,thkd->thk", x, down[which])) * torch.softmax(s, -1).to(x.dtype)
    return torch.einsum("thk,thkd->td", h, up[which])


def best_spans(head, x: Tensor, allowed: Tensor, longest: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where an answer begins and ends: both sure, in order, not too long, not in the question."""
    start, end = head(x).float().masked_fill(~allowed.unsqueeze(-1), -1e4).log_softmax(1).unbind(-1)
    band = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu().tril(longest)
    s = (start.unsqueeze(2) + end.unsqueeze(1)).masked_fill(~band, -torch.inf)
    best, at = s.flatten(1).topk(most, -1)
    return best, torch.div(at, x.shape[1], rounding_mode="floor"), at % x.shape[1]


def largest_word_weights(line, norm, words, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """SPLADE: how much a text is about each word of the language, and how many words it is about."""
    y = torch.log1p(torch.relu(words(norm(functional.gelu(line(x))))))
    y = (y * real.unsqueeze(-1)).amax(1)
    return y, (y > 1).sum(-1)


def outlying_columns(w: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """LLM.int8: columns with a large number stay as they are, the others are bytes; two products are added."""
    out = x.abs().amax(0) > 3.6
    rest = x.masked_fill(out, 0.0).float()
    rows = rest.abs().amax(1, keepdim=True).clamp(min=1e-5) / 127
    q, s = torch.round(rest / rows), 0.01 * scale.float().abs()
    y = (q @ w.float().T) * rows * s
    return (y + functional.linear(x.masked_fill(~out, 0.0).float(), w.float() * s[:, None])).to(x.dtype)


def rolled_gates_in_groups(f, x: Tensor) -> tuple[Tensor, Tensor]:
    """A product, rolled; even columns gated by odd ones; running sums in groups, and how far each group got."""
    y = torch.roll(f(x), 7, -1)
    y = y[:, ::2] * functional.softsign(y[:, 1::2])
    sums = torch.cumsum(y.unflatten(1, (-1, 12)).float(), -1)
    return torch.atan(sums).flatten(1).to(x.dtype), (sums.amax(-1) - sums.amin(-1)).to(x.dtype)


def planes_then_depth(planes, points, x: Tensor) -> Tensor:
    """Planes by a depthwise kernel, channels mixed, each volume normed, the mean over depth, the strongest of each row."""
    y = functional.instance_norm(points(functional.hardswish(planes(x))))
    y = functional.hardswish(y).mean(2)
    return torch.logsumexp(y, 1) + y.amax(3, keepdim=True).squeeze(3).mean(1).unsqueeze(-1)


def bags_beside_numbers(tables, bottom, top, numbers: Tensor, ids: Tensor, *offsets: Tensor) -> Tensor:
    """Rows with any number of words for each of three features, summed or averaged; products of all pairs below the diagonal."""
    x, done = bottom(numbers), []
    for i, (table, o) in enumerate(zip(tables, offsets, strict=True)):
        mode = "mean" if i == 1 else "sum"
        done.append(functional.embedding_bag(ids[i], table.weight, o, mode=mode, include_last_offset=True))
    y = torch.stack([x, *done], 1)
    i, j = torch.tril_indices(y.shape[1], y.shape[1], -1, device=x.device)
    return torch.sigmoid(top(torch.cat([x, (y @ y.mT)[:, i, j]], 1)).squeeze(1))


def biaffine_arcs(head, child, arcs: Tensor, labels: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A parser: a score of each word as another's head, and of each label of that arc, with ones beside the features."""
    h = functional.pad(functional.leaky_relu(head(x), 0.1), (0, 1), value=1.0)
    c = functional.pad(functional.leaky_relu(child(x), 0.1), (0, 1), value=1.0)
    size = h.shape[-1] ** -0.5
    arc = torch.einsum("bxi,ij,byj->bxy", c, arcs * size, h)
    return torch.log_softmax(arc.float(), -1), torch.einsum("bxi,oij,byj->bxyo", c, labels * size, h)


BAG = ((8192, 5), (98304, 35))
FLOAT16: dict[str, Case] = {
    "product_keys": call(
        lambda f, *x: product_keys(f, *x, heads=4, most=16 if x[0].shape[1] > 99 else 3),
        *((2, (256, 6), (64, 5)), ((65536, 36), (512, 8)), ((65536, 36), (512, 8)), ((1024, 7), (512, 8))),
        parts=(lambda n: nn.Linear(n(512, 8), 8 * n(64, 5), bias=False),),
    ),
    "best_spans": call(
        lambda f, x, m: best_spans(f, x, m, *((29, 20) if x.shape[1] > 99 else (4, 3))),
        ((48, 3), (384, 13), (1024, 8)),
        lambda n: torch.arange(n(384, 13)) >= torch.randint(2, n(64, 6), (n(48, 3), 1)),
        parts=(part(nn.Linear, (1024, 8), 2),),
    ),
    "largest_word_weights": call(
        largest_word_weights,
        ((16, 2), (128, 7), (768, 16)),
        lambda n: torch.arange(n(128, 7)) < torch.randint(2, n(128, 7), (n(16, 2), 1)),
        parts=(wide(768, 768, (16, 16)), part(nn.LayerNorm, (768, 16)), wide(768, 30522, (16, 41))),
    ),
    "outlying_columns": call(
        outlying_columns,
        lambda n: torch.randint(-128, 128, (n(11008, 9), n(4096, 64))).to(torch.int8),
        *(((11008, 9),), ((512, 40), (4096, 64))),
    ),
    "rolled_gates_in_groups": call(rolled_gates_in_groups, ((8192, 5), (1024, 8)), parts=(wide(1024, 6144, (8, 48)),)),
    "planes_then_depth": call(
        planes_then_depth,
        ((8, 2), (48, 4), (24, 5), (64, 6), (72, 7)),
        parts=(
            lambda n: nn.Conv3d(n(48, 4), n(48, 4), (1, 3, 3), padding=(0, 1, 1), groups=n(48, 4)),
            part(nn.Conv3d, (48, 4), (96, 6), 1),
        ),
    ),
    "bags_beside_numbers": call(
        bags_beside_numbers,
        *(((8192, 5), 13), below((500000, 19), 3, (98304, 35)), *(offsets_of(*BAG),) * 3),
        parts=(
            lambda n: nn.ModuleList(nn.Embedding(n(500000, 19), n(128, 6)) for _ in range(3)),
            lambda n: nn.Sequential(nn.Linear(13, n(512, 8)), nn.ReLU(), nn.Linear(n(512, 8), n(128, 6)), nn.ReLU()),
            lambda n: nn.Sequential(nn.Linear(n(128, 6) + 6, n(512, 8)), nn.ReLU(), nn.Linear(n(512, 8), 1)),
        ),
    ),
    "biaffine_arcs": call(
        biaffine_arcs,
        *(((401, 7), (401, 7)), ((50, 3), (401, 7), (401, 7)), ((24, 2), (121, 5), (768, 8))),
        parts=(wide(768, 400, (8, 6)), wide(768, 400, (8, 6))),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **FLOAT16}
"""In the number format that each group is meant for."""
