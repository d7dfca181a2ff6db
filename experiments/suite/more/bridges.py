"""Decoders and their streams, few bits, agents, losses, solvers, optimizers, graphs and sounds as scripts have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import further
from experiments.suite.more.arenas import part
from experiments.suite.more.belfries import run
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import many
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole


class CrissCross(nn.Module):
    """CCNet: each pixel attends to its row and its column, itself counted once; two rounds with the same weights."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c, c // 4, 1), nn.Conv2d(c, c, 1)
        self.gamma = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = x.shape[2]
        none = torch.diag(torch.full((h,), float("inf"), device=x.device, dtype=x.dtype))
        for _ in range(2):
            q, k, v = self.q(x), self.k(x), self.v(x)
            column = torch.einsum("bchw,bcgw->bhwg", q, k) - none[:, None]
            row = torch.einsum("bchw,bchv->bhwv", q, k)
            p = functional.softmax(torch.cat([column, row], 3), 3)
            y = torch.einsum("bcgw,bhwg->bchw", v, p[..., :h]) + torch.einsum("bchv,bhwv->bchw", v, p[..., h:])
            x = self.gamma * y + x
        return x


class QueryFormer(nn.Module):
    """BLIP-2: learned queries see each other, an image of another width at first, then a feed-forward; norms stand behind."""

    def __init__(self, width: int, image: int, heads: int, queries: int) -> None:
        super().__init__()
        self.queries, self.heads = nn.Parameter(torch.randn(1, queries, width) * 0.02), heads
        self.own, self.q, self.kv = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(image, 2 * width)
        self.outs, self.norms = (nn.ModuleList(f(width) for _ in range(3)) for f in (lambda w: nn.Linear(w, w), nn.LayerNorm))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (split(t, self.heads) for t in (q, k, v))
        return joined(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v)

    def forward(self, image: Tensor) -> Tensor:
        x = self.queries.expand(image.shape[0], -1, -1)
        for i in range(2):
            x = self.norms[0](x + self.outs[0](self.attend(*self.own(x).chunk(3, -1))))
            if i == 0:
                x = self.norms[1](x + self.outs[1](self.attend(self.q(x), *self.kv(image).chunk(2, -1))))
            x = self.norms[2](x + self.down(functional.gelu(self.up(x))))
        return x


def two_streams_of_words(qkv, far, out, biases: Tensor, content: Tensor, query: Tensor, order: Tensor, heads: int):
    """XLNet: one stream sees itself, the other only what comes earlier in an order; distances by a shift, both add a residue."""
    t, size = content.shape[1], content.shape[-1] // heads
    f = torch.arange(t, -t, -1.0, device=content.device)[:, None] / 10000 ** (
        torch.arange(0, size, 2, device=content.device) / size
    )
    r = far(torch.cat([f.sin(), f.cos()], -1).to(content.dtype)).view(2 * t, heads, size).transpose(0, 1)
    k, v = (split(y, heads) for y in qkv(content).chunk(3, -1)[1:])
    found = []
    for x, hidden in ((content, order[:, None] > order[:, :, None]), (query, order[:, None] >= order[:, :, None])):
        q = split(qkv(x).chunk(3, -1)[0], heads)
        place = (q + biases[1][:, None]) @ r.mT
        b, h = place.shape[:2]
        place = place.reshape(b, h, 2 * t, t)[:, :, 1:].reshape(b, h, t, 2 * t - 1)[..., :t]
        s = ((q + biases[0][:, None]) @ k.mT + place) / size**0.5
        s = s - 30000.0 * hidden.unsqueeze(1).to(s.dtype)
        found.append(functional.layer_norm(x + out(joined(s.softmax(-1) @ v)), x.shape[-1:]))
    return tuple(found)


class PageOfWords(nn.Module):
    """LayoutLM: words, corners, heights, widths and places of their boxes have embeddings that are added and normed."""

    def __init__(self, words: int, width: int, cells: int) -> None:
        super().__init__()
        self.words, self.at, self.kind = nn.Embedding(words, width, 0), nn.Embedding(512, width), nn.Embedding(2, width)
        self.x, self.y, self.h, self.w = (nn.Embedding(cells, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, 1e-12)

    def forward(self, ids: Tensor, corner: Tensor, size: Tensor) -> Tensor:
        box = torch.cat([corner, (corner + size).clamp(max=self.x.num_embeddings - 1)], -1)
        y = self.words(ids) + self.at(torch.arange(ids.shape[1], device=ids.device)).unsqueeze(0)
        y = y + self.x(box[:, :, 0]) + self.y(box[:, :, 1]) + self.x(box[:, :, 2]) + self.y(box[:, :, 3])
        y = y + self.h(box[:, :, 3] - box[:, :, 1]) + self.w(box[:, :, 2] - box[:, :, 0])
        return self.norm(y + self.kind(torch.zeros_like(ids)))


def contrastive_search(logits: Tensor, past: Tensor, next_hidden: Tensor, k: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Of the likeliest words, that whose state is least like all before it, weighed against its chance."""
    p, ids = functional.softmax(logits.float(), -1).topk(k, -1)
    a, b = past / past.norm(dim=2, keepdim=True), next_hidden / next_hidden.norm(dim=2, keepdim=True)
    like = torch.matmul(b, a.transpose(1, 2)).float().max(-1)[0]
    score = (1.0 - alpha) * p - alpha * like
    best = score.argmax(-1, keepdim=True)
    return ids.gather(1, best).squeeze(1), next_hidden.gather(1, best[..., None].expand(-1, -1, past.shape[2])).squeeze(1)


def eight_bit_floats(codes: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Weights as bytes of a sign, four bits of exponent and three of fraction, put together by shifts; then a product."""
    c = codes.int()
    power, fraction = (c >> 3) & 15, (c & 7).float()
    normal = (1 + fraction / 8) * torch.exp2((power - 7).float())
    w = torch.where(power == 0, fraction * 2.0**-9, normal) * (1 - 2 * (c >> 7).float())
    return functional.linear(x, (w * scale.float().abs().unsqueeze(1) * 0.01).to(x.dtype))


def palettes(codes: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """SqueezeLLM: each output has sixteen weights of its own, two codes of four bits lie in a byte."""
    at = torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()
    return x @ table.gather(1, at).t()


def double_q_with_priorities(net, target, states, following, actions, rewards, done, weights):
    """Dueling double Q with replay by priority: targets by the other net's choice, weighed Huber losses, new priorities."""

    def q(m, s: Tensor) -> Tensor:
        y = m(s)
        return y[:, :1] + y[:, 1:] - y[:, 1:].mean(1, keepdim=True)

    with torch.no_grad():
        best = q(net, following).argmax(1, keepdim=True)
        wanted = rewards + 0.99**3 * q(target, following).gather(1, best).squeeze(1) * (~done)
    said = q(net, states).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = functional.smooth_l1_loss(said, wanted, reduction="none")
    return (loss * weights.abs() / weights.abs().max()).mean(), (said - wanted).abs().pow(0.6) + 1e-6


def expectiles(qs, value, policy, state: Tensor, following: Tensor, action: Tensor, reward: Tensor):
    """Implicit Q-learning: an expectile of values, a target through it, and actions cloned by exponentials of advantages."""
    both = torch.stack([f(torch.cat([state, action], -1)).squeeze(-1) for f in qs])
    v, least = value(state).squeeze(-1), both.detach().min(0)[0]
    gap = least - v
    value_loss = (torch.abs(0.7 - (gap < 0).to(gap.dtype)) * gap**2).mean()
    q_loss = functional.mse_loss(both, (reward + 0.99 * value(following).squeeze(-1)).expand_as(both))
    weight = torch.exp(3.0 * gap).clamp(max=100.0)
    return value_loss, q_loss, (weight * (torch.tanh(policy(state)) - action).square().sum(-1)).mean()


def swapped_prediction(prototypes, views: Tensor) -> Tensor:
    """SwAV: each view foretells the other view's balanced codes, which three rounds of Sinkhorn's make."""
    scores = functional.normalize(views, dim=-1) @ functional.normalize(prototypes.weight, dim=-1).t()
    q = torch.exp(scores.detach().float() / 0.05).transpose(1, 2)
    q = q / q.sum((1, 2), keepdim=True)
    k, b = q.shape[1:]
    for _ in range(3):
        q = q / q.sum(2, keepdim=True) / k
        q = q / q.sum(1, keepdim=True) / b
    q = (q * b).transpose(1, 2)
    p = functional.log_softmax(scores.float() / 0.1, -1)
    return -0.5 * ((q[0] * p[1]).sum(-1).mean() + (q[1] * p[0]).sum(-1).mean())


def queue_of_negatives(queue: Tensor, q: Tensor, k: Tensor, at: int) -> tuple[Tensor, Tensor, Tensor]:
    """MoCo: one positive and a queue of negatives; the new keys take the oldest places."""
    q, k, queue = functional.normalize(q, dim=1), functional.normalize(k, dim=1), functional.normalize(queue, dim=0)
    pos, neg = torch.einsum("nc,nc->n", q, k).unsqueeze(-1), torch.einsum("nc,ck->nk", q, queue.clone().detach())
    logits = torch.cat([pos, neg], 1) / 0.07
    queue = queue.clone()
    queue[:, at : at + k.shape[0]] = k.T
    loss = functional.cross_entropy(logits.float(), torch.zeros(len(q), dtype=torch.long, device=q.device))
    return loss, (logits.argmax(1) == 0).float().mean(), queue


def matched_anchors(anchors: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """torchvision's matcher and coder: the best box of each anchor, every box its best anchors, regression targets."""
    a, g = (torch.cat([t[..., :2] * 50 + 200, t[..., :2] * 50 + 200 + t[..., 2:].abs() * 60 + 4], -1) for t in (anchors, truth))
    low, high = torch.max(g[:, None, :2], a[None, :, :2]), torch.min(g[:, None, 2:], a[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area_a, area_g = ((t[:, 2:] - t[:, :2]).prod(-1) for t in (a, g))
    iou = inter / (area_g[:, None] + area_a - inter)
    best, match = iou.max(0)
    every = match.clone()
    match[best < 0.3] = -1
    match[(best >= 0.3) & (best < 0.7)] = -2
    kept = (iou == iou.max(1, keepdim=True)[0]).any(0)
    match = torch.where(kept, every, match)
    g = g[match.clamp(min=0)]
    (sa, sg), (ca, cg) = ((t[:, 2:] - t[:, :2] for t in (a, g)), ((t[:, 2:] + t[:, :2]) / 2 for t in (a, g)))
    return match, torch.cat([10 * (cg - ca) / sa, 5 * torch.log(sg / sa)], 1)


def v_cycle(f: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Multigrid for Poisson's equation: smooth, restrict what is left, and come back; written over slices."""

    def left(u: Tensor, f: Tensor) -> Tensor:
        p = functional.pad(u, (1, 1, 1, 1))
        return f - (4 * u - p[:, :, 2:, 1:-1] - p[:, :, :-2, 1:-1] - p[:, :, 1:-1, 2:] - p[:, :, 1:-1, :-2])

    us, fs = [], [f]
    for i in range(levels):
        u = torch.zeros_like(fs[-1])
        for _ in range(2):
            u = u + 0.2 * left(u, fs[-1])
        us.append(u)
        if i + 1 < levels:
            fs.append(4 * functional.avg_pool2d(left(u, fs[-1]), 2))
    u = us[-1]
    for i in reversed(range(levels - 1)):
        u = us[i] + functional.interpolate(u, scale_factor=2, mode="bilinear", align_corners=False)
        for _ in range(2):
            u = u + 0.2 * left(u, fs[i])
    return u, left(u, f).flatten(1).norm(dim=1)


def anderson(line, x: Tensor, steps: int, m: int) -> tuple[Tensor, Tensor]:
    """A deep equilibrium: the fixed point of a layer by Anderson's mixing of the last few, a small system each step."""
    b = x.shape[0]

    def f(z: Tensor) -> Tensor:
        return functional.layer_norm(torch.tanh(0.5 * line(z)) + x, x.shape[-1:])

    xs = x.new_zeros(b, m, x.shape[1])
    fs = torch.zeros_like(xs)
    fs[:, 0] = f(xs[:, 0])
    xs[:, 1] = fs[:, 0]
    fs[:, 1] = f(xs[:, 1])
    for k in range(2, steps):
        n = min(k, m)
        g = (fs[:, :n] - xs[:, :n]).float()
        h = torch.bmm(g, g.transpose(1, 2)) + 1e-3 * torch.eye(n, device=x.device)
        alpha = torch.linalg.solve(h, torch.ones(b, n, 1, device=x.device)).squeeze(-1)
        alpha = (alpha / alpha.sum(1, keepdim=True)).to(x.dtype)
        xs[:, k % m] = torch.einsum("bn,bnd->bd", alpha, fs[:, :n])
        fs[:, k % m] = f(xs[:, k % m])
    last = (steps - 1) % m
    return fs[:, last], (fs[:, last] - xs[:, last]).norm(dim=1) / (fs[:, last].norm(dim=1) + 1e-5)


def fista(atoms: Tensor, y: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Sparse codes by accelerated proximal gradients with a fixed step and a soft threshold."""
    d = functional.normalize(atoms, dim=0)
    step, gram, right = 1.0 / (d.abs().sum(0).max() * d.abs().sum(1).max()), d.t() @ d, y @ d
    z = torch.zeros_like(right)
    w, t = z, 1.0
    for _ in range(steps):
        new = functional.softshrink(w - step * (w @ gram - right), 0.002)
        after = (1 + math.sqrt(1 + 4 * t * t)) / 2
        w, z, t = new + (t - 1) / after * (new - z), new, after
    return z, (z != 0).float().mean(1)


def value_iteration(chances: Tensor, rewards: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """A table of states and actions: expected values, the best action, again and again; then the policy and how far it moved."""
    p, v, q = torch.softmax(chances, -1), torch.zeros_like(rewards[:, 0]), rewards
    moved = v.sum()
    for _ in range(steps):
        q = rewards + 0.95 * torch.einsum("ask,k->as", p, v).t()
        new = q.max(1)[0]
        v, moved = new, (new - v).abs().max()
    return v, q.argmax(1), moved


def heston_paths(noise: Tensor, strikes: Tensor) -> tuple[Tensor, Tensor]:
    """Monte Carlo of stochastic variance with correlated noise and full truncation, antithetic halves, prices of calls."""
    z = torch.cat([noise, -noise], 1)
    v, s, dt = torch.full_like(z[0, :, 0], 0.04), torch.zeros_like(z[0, :, 0]), 1 / z.shape[0]
    for i in range(z.shape[0]):
        a, b = z[i, :, 0], -0.7 * z[i, :, 0] + math.sqrt(1 - 0.49) * z[i, :, 1]
        up = v.clamp(min=0)
        s = s + (0.02 - 0.5 * up) * dt + torch.sqrt(up * dt) * a
        v = v + 1.5 * (0.04 - up) * dt + 0.3 * torch.sqrt(up * dt) * b
    pay = torch.relu(torch.exp(s)[:, None] - (1 + 0.1 * torch.tanh(strikes)))
    return math.exp(-0.02) * pay.mean(0), pay.std(0) / math.sqrt(len(s))


def ranked_pages(edges: Tensor, wishes: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Personalised PageRank over edges: rank flows out evenly, dead ends give it back to those who wish; the best pages."""
    source, target = edges
    n, w = wishes.shape[0], torch.softmax(wishes, 0)
    out = torch.zeros(n, device=w.device, dtype=w.dtype).index_add_(0, source, torch.ones_like(source, dtype=w.dtype))
    dead, share, r = (out == 0).to(w.dtype), 1 / out.clamp(min=1), w
    for _ in range(steps):
        flow = torch.zeros_like(r).index_add_(0, target, (r * share[:, None])[source])
        r = 0.85 * (flow + w * (r * dead[:, None]).sum(0)) + 0.15 * w
    return r, r.topk(min(10, n), 0)[1]


def kaldi_features(banks: Tensor, x: Tensor, frame: int, hop: int) -> Tensor:
    """Kaldi's filter banks: frames without their mean, pre-emphasis, Povey's window, powers, logarithms, means over time off."""
    f = x.float().unfold(-1, frame, hop) * 32768.0
    f = f - f.mean(-1, keepdim=True)
    f = f - 0.97 * torch.cat([f[..., :1], f[..., :-1]], -1)
    f = f * torch.hann_window(frame, periodic=False, device=x.device).pow(0.85)
    size = 2 * (banks.shape[0] - 1)
    power = torch.fft.rfft(functional.pad(f, (0, size - frame))).abs().pow(2.0)
    y = torch.log((power @ banks.float().abs()).clamp(min=1.1921e-07))
    return (y - y.mean(1, keepdim=True)).to(x.dtype)


def adam_in_bytes(p: Tensor, g: Tensor, first: Tensor, second: Tensor, scales: Tensor):
    """Adam whose moments are bytes, with the largest of each block beside them: read, moved, and rounded again."""
    s = scales.float().abs()
    m, v = first.float() / 127 * s[0].unsqueeze(-1), (second.float() / 255).square() * s[1].unsqueeze(-1)
    g = g.float()
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    new = p.float() * (1 - 1e-5) - 1e-3 * (m / (1 - 0.9**10)) / ((v / (1 - 0.999**10)).sqrt() + 1e-8)
    a, b = m.abs().amax(-1), v.amax(-1)
    m = torch.round(m / a.clamp(min=1e-12).unsqueeze(-1) * 127).to(torch.int8)
    v = torch.round((v / b.clamp(min=1e-12).unsqueeze(-1)).sqrt() * 255).to(torch.uint8)
    return new.to(p.dtype), m, v, torch.stack([a, b])


def sorted_softly(s: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """NeuralSort: a relaxed matrix of the sorting permutation by sums of differences, and the sorted values."""
    n = s.shape[1]
    sums = (s.unsqueeze(2) - s.unsqueeze(1)).abs().sum(2)
    scaling = (n + 1 - 2 * torch.arange(1, n + 1, device=s.device)).to(s.dtype)
    p = torch.softmax((scaling[:, None] * s.unsqueeze(1) - sums.unsqueeze(1)) / tau, -1)
    return p, (p @ s.unsqueeze(-1)).squeeze(-1)


def network(i, c, o):
    """Two ReLUs; sizes are pairs of the real and the small one."""

    def make(n) -> nn.Module:
        a, b, d = (n(*s) if isinstance(s, tuple) else s for s in (i, c, o))
        return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b), nn.ReLU(), nn.Linear(b, d))

    return make


STATE = ((256, 3), (17, 4))
FLOAT32: dict[str, Case] = {
    "criss_cross": call(run, ((2, 1), (128, 8), (97, 5), (97, 6)), parts=(part(CrissCross, (128, 8)),)),
    "double_q_with_priorities": call(
        *(double_q_with_priorities, ((512, 5), (8, 4)), ((512, 5), (8, 4)), whole(4, (512, 5)), ((512, 5),)),
        *(lambda n: torch.rand(n(512, 5)) < 0.2, ((512, 5),)),
        parts=(network((8, 4), (256, 6), 5),) * 2,
    ),
    "expectiles": call(
        *(expectiles, STATE, STATE, (STATE[0], (6, 2)), STATE[:1]),
        parts=(
            lambda n: nn.ModuleList(network((23, 6), (256, 6), 1)(n) for _ in range(2)),
            *(network((17, 4), (256, 6), o) for o in (1, (6, 2))),
        ),
    ),
    "swapped_prediction": call(swapped_prediction, (2, (512, 6), (128, 8)), parts=(wide(128, 3000, (8, 7), bias=False),)),
    "matched_anchors": call(matched_anchors, ((24225, 40), 4), ((23, 3), 4)),
    "v_cycle": call(further(v_cycle, lambda x: (5 if x[0].shape[2] > 99 else 3,)), ((4, 1), 1, (512, 16), (512, 8))),
    "anderson": call(
        further(anderson, lambda x: (12 if x[1].shape[1] > 99 else 5, 3)), ((128, 2), (300, 6)), parts=(wide(300, 300, (6, 6)),)
    ),
    "fista": call(further(fista, lambda x: (15 if len(x[0]) > 99 else 3,)), ((144, 6), (441, 9)), ((2048, 4), (144, 6))),
    "value_iteration": call(
        further(value_iteration, lambda x: (20 if len(x[0]) == 8 else 3,)), ((8, 2), (625, 7), (625, 7)), ((625, 7), (8, 2))
    ),
    "heston_paths": call(heston_paths, ((32, 3), (50000, 9), 2), ((7, 3),)),
    "ranked_pages": call(
        further(ranked_pages, lambda x: (10 if len(x[1]) > 99 else 2,)), below((20000, 9), 2, (160000, 20)), ((20000, 9), (16, 2))
    ),
    "kaldi_features": call(
        further(kaldi_features, lambda x: (400, 160) if len(x[0]) > 99 else (14, 5)), ((257, 9), (80, 3)), ((8, 2), (64000, 50))
    ),
    "adam_in_bytes": call(
        *(adam_in_bytes, ((4099, 3), (256, 8)), ((4099, 3), (256, 8)), whole(100, (4099, 3), (256, 8))),
        *(lambda n: torch.randint(0, 200, (n(4099, 3), n(256, 8)), dtype=torch.uint8), (2, (4099, 3))),
    ),
    "sorted_softly": call(further(sorted_softly, lambda x: (0.5,)), ((100, 2), (200, 7))),
}
HALF: dict[str, Case] = {
    "query_former": call(
        run, ((16, 2), (257, 5), (1408, 12)), parts=(part(QueryFormer, (768, 8), (1408, 12), (12, 2), (32, 3)),)
    ),
    "two_streams_of_words": call(
        *(many(lambda *x, heads: two_streams_of_words(*x[:4], *x[4:], heads=heads), 12), (2, (12, 2), (64, 4))),
        *(((8, 2), (256, 6), (768, 8)), ((8, 2), (256, 6), (768, 8)), lambda n: torch.randn(n(8, 2), n(256, 6)).argsort(-1)),
        parts=(wide(768, 2304, (8, 24), bias=False), wide(64, 768, (4, 8), bias=False), wide(768, 768, (8, 8))),
    ),
    "page_of_words": call(
        *(run, below((30522, 13), (8, 2), (512, 6)), *(whole(m, (8, 2), (512, 6), 2) for m in (900, 100))),
        parts=(part(PageOfWords, (30522, 13), (768, 8), 1024),),
    ),
    "contrastive_search": call(
        further(contrastive_search, lambda x: (x[2].shape[1], 0.6)),
        *(((4, 2), (50257, 11)), ((4, 2), (256, 5), (768, 8)), ((4, 2), (5, 3), (768, 8))),
    ),
    "eight_bit_floats": call(
        *(eight_bit_floats, lambda n: torch.randint(0, 256, (n(2304, 7), n(1024, 12)), dtype=torch.uint8), ((2304, 7),)),
        ((96, 3), (1024, 12)),
    ),
    "palettes": call(
        *(palettes, lambda n: torch.randint(0, 256, (n(1536, 7), n(768, 6)), dtype=torch.uint8), ((1536, 7), 16)),
        ((33, 3), (1536, 12)),
    ),
    "queue_of_negatives": call(
        further(queue_of_negatives, lambda x: (len(x[1]),)), ((128, 6), (65536, 24)), ((256, 4), (128, 6)), ((256, 4), (128, 6))
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **HALF}
"""The first in float32, the others in either half."""
