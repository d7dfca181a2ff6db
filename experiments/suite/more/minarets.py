"""What a stranger would try: layers of lesser known papers, statistics, decoders of codes, simulators, trees, graphs."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.aqueducts import near_identity
from experiments.suite.more.arenas import weights
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.more.viaducts import each
from experiments.suite.more.viaducts import just
from experiments.suite.users import call
from experiments.suite.users import whole


def linears(*given):
    return each(nn.Linear, *given)


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return joined(functional.scaled_dot_product_attention(split(q, heads), split(k, heads), split(v, heads)))


def list_mle(scores: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """ListMLE: the likelihood by Plackett and Luce of the order that labels want, earlier places count more."""
    s = scores.gather(1, torch.argsort(wanted, dim=1, descending=True))
    rest = torch.logcumsumexp(s.flip(1), 1).flip(1)
    discount = 1.0 / torch.log2(torch.arange(s.shape[1], device=s.device, dtype=s.dtype) + 2)
    return ((rest - s) * discount).sum(1) / discount.sum(), (rest - s).mean()


def deep_hit(logits: Tensor, when: Tensor, what: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DeepHit: chances of events and times, what has happened until then, likelihood with censoring, ranks of pairs."""
    p = torch.softmax(logits.flatten(1), 1).view_as(logits)
    until, rows = p.cumsum(2), torch.arange(len(p), device=p.device)
    event, known = (what - 1).clamp(min=0), what > 0
    alive = 1.0 - until.sum(1)[rows, when]
    likely = torch.where(known, torch.log(p[rows, event, when] + 1e-7), torch.log(alive.clamp(min=1e-4)))
    own, others = until[rows, event, when], until[:, event, when].T
    later = (when.unsqueeze(1) < when) & known.unsqueeze(1)
    return until, -likely.mean(), (later * torch.exp((others - own.unsqueeze(1)) / 0.2)).mean()


def fast_ica(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """FastICA on whitened signals: three rounds of tanh, all made orthogonal at once by products."""
    for _ in range(3):
        g = torch.tanh(w @ x)
        w = g @ x.T / x.shape[1] - (1 - g.square()).mean(1, keepdim=True) * w
        w = w / torch.sqrt((w @ w.T).abs().sum(1).max())
        for _ in range(6):
            w = 1.5 * w - 0.5 * (w @ w.T) @ w
    return w, w @ x


def best_nodes_stay(lines, x: Tensor, links: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """SAGPool on dense graphs: a convolution scores nodes, the best half stay with their edges; means beside maxima."""
    a = (links + links.mT > 1.0).to(x.dtype) + torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    root = a.sum(2).rsqrt()
    a = a * root.unsqueeze(1) * root.unsqueeze(2)
    x = torch.relu(a @ lines[0](x))
    score, at = torch.topk((a @ lines[1](x)).squeeze(2), x.shape[1] // 2, dim=1)
    x = x.gather(1, at.unsqueeze(2).expand(-1, -1, x.shape[2])) * torch.tanh(score).unsqueeze(2)
    a = a.gather(1, at.unsqueeze(2).expand(-1, -1, a.shape[2])).gather(2, at.unsqueeze(1).expand(-1, at.shape[1], -1))
    return x, a, torch.cat([x.mean(1), x.amax(1)], 1)


def lucas_kanade(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Flow by least squares in windows: slopes, their products averaged, two by two systems, the lesser eigenvalue."""
    side = torch.tensor([-0.5, 0.0, 0.5], dtype=a.dtype, device=a.device)
    x = functional.conv2d(functional.pad(a, (1, 1, 0, 0), mode="replicate"), side.view(1, 1, 1, 3))
    y = functional.conv2d(functional.pad(a, (0, 0, 1, 1), mode="replicate"), side.view(1, 1, 3, 1))
    t = b - a
    xx, xy, yy, xt, yt = functional.avg_pool2d(torch.cat([x * x, x * y, y * y, x * t, y * t], 1), 7, 1, 3).unbind(1)
    least = 0.5 * (xx + yy - torch.sqrt((xx - yy).square() + 4 * xy.square() + 1e-8))
    det = xx * yy - xy * xy + 1e-2
    return torch.stack([xy * yt - yy * xt, xy * xt - xx * yt], 1) / det.unsqueeze(1), least


def parity_checks(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """LDPC by normalised min-sum, four rounds: checks send the least of the others with the product of their signs."""
    check = torch.zeros_like(x[:, table])
    total = x
    for _ in range(4):
        v = total[:, table] - check
        size, sign = v.abs(), torch.where(v < 0, -1.0, 1.0).to(x.dtype)
        least = torch.topk(size, 2, dim=2, largest=False).values
        other = torch.where(size == least[..., :1], least[..., 1:], least[..., :1])
        check = 0.75 * other * sign * sign.prod(2, keepdim=True)
        total = x.index_add(1, table.flatten(), check.flatten(1))
    return total, ((total[:, table] < 0).sum(2) % 2).sum(1)


def carriers(x: Tensor, pilots: Tensor) -> tuple[Tensor, Tensor]:
    """OFDM: prefixes off, a transform, the channel from the first symbol, equalised; likelihoods of 16-QAM's bits."""
    x = torch.fft.fft(torch.view_as_complex(x[:, :, x.shape[2] // 17 :].contiguous()), norm="ortho")
    pilots = torch.where(pilots > 0, 1.0, -1.0).to(pilots.dtype)
    h = x[:, 0] * pilots
    y = x[:, 1:] * h.conj().unsqueeze(1) / (h.abs().square() + 0.5).unsqueeze(1)
    parts = torch.view_as_real(y)
    return torch.stack([parts, 0.6325 - parts.abs()], -1) * h.abs().square().clamp(max=4.0)[:, None, :, None, None], h.abs()


def harmonics_and_noise(pitch: Tensor, amounts: Tensor, noise: Tensor) -> Tensor:
    """DDSP: frames' pitches and amounts stretched, phases summed in float64, sines below Nyquist, and shaped noise."""
    many, time = amounts.shape[1], noise.shape[1]
    f = functional.interpolate(200 * torch.exp(0.3 * pitch).unsqueeze(1), time, mode="linear").squeeze(1)
    a = functional.interpolate(torch.softmax(amounts, 1), time, mode="linear")
    turns = (torch.cumsum(f.double() / 16000, 1) % 1.0).to(f.dtype)
    order = torch.arange(1, many + 1, device=f.device, dtype=f.dtype).view(-1, 1)
    a = a * (f.unsqueeze(1) * order < 8000)
    wave = (a / (a.sum(1, keepdim=True) + 1e-6) * torch.sin(2 * math.pi * turns.unsqueeze(1) * order)).sum(1)
    return wave + 0.01 * functional.avg_pool1d(noise.unsqueeze(1), 5, 1, 2).squeeze(1)


def cart_poles(policy, state: Tensor) -> tuple[Tensor, Tensor]:
    """Many carts at once, ten steps of Euler with a network's force; those that fell stay where they are."""
    state, won = 0.05 * state, torch.zeros_like(state[:, 0])
    for _ in range(10):
        x, dx, a, da = state.unbind(1)
        force = 10.0 * torch.tanh(policy[1](torch.tanh(policy[0](state)))).squeeze(1)
        sin, cos = torch.sin(a), torch.cos(a)
        push = (force + 0.05 * da * da * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        after = state + 0.02 * torch.stack([dx, push - 0.05 * turn * cos / 1.1, da, turn], 1)
        alive = (x.abs() < 2.4) & (a.abs() < 0.21)
        state, won = torch.where(alive.unsqueeze(1), after, state), won + alive.to(x.dtype)
    return state, won


def riccati(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Finite-horizon regulators for many systems: six steps back of Riccati's equation; gains and the closed loop."""
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
    p, gain = one, b.mT
    for _ in range(6):
        pb = p @ b
        gain = torch.linalg.solve(b.mT @ pb + torch.eye(b.shape[-1], dtype=a.dtype, device=a.device), pb.mT @ a)
        p = one + a.mT @ p @ (a - b @ gain)
    return gain, a - b @ gain


def pruned_tree(leaves: Tensor, lengths: Tensor, rates: Tensor) -> Tensor:
    """Felsenstein's likelihood of sites on a balanced tree: four bases, gamma's rates, logarithms of what was scaled."""
    x, base = functional.one_hot(leaves, 4).to(lengths.dtype).unsqueeze(2).expand(-1, -1, len(rates), -1), 0
    logs = torch.zeros_like(x[:, 0, :, 0])
    while x.shape[1] > 1:
        t = lengths[base : base + x.shape[1]].abs().unsqueeze(1) * torch.exp(rates)
        same = torch.exp(-4 / 3 * t).unsqueeze(2)
        base += x.shape[1]
        x = (same * x + 0.25 * (1 - same) * x.sum(3, keepdim=True)).unflatten(1, (-1, 2)).prod(2)
        size = x.amax(3, keepdim=True)
        x, logs = x / size, logs + torch.log(size).sum((1, 3))
    return torch.logsumexp(logs + torch.log(x.mean(3)).squeeze(1), 1) - math.log(len(rates))


def isotonic(y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Isotonic regression without a loop: the largest over starts of the least over ends of weighed means."""
    w = w.abs() + 0.1
    sums, mass = (functional.pad(t.cumsum(1), (1, 0)) for t in (w * y, w))
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / (mass[:, None, 1:] - mass[:, :-1, None])
    upper = torch.ones_like(means, dtype=torch.bool).triu()
    least = torch.cummin(means.masked_fill(~upper, math.inf).flip(2), 2).values.flip(2)
    fit = least.masked_fill(~upper, -math.inf).amax(1)
    return fit, (w * (y - fit).square()).sum(1)


def shallow_autoencoder(x: Tensor) -> tuple[Tensor, Tensor]:
    """EASE: items' products with a ridge, inverted, columns by the diagonal; scores of what was not bought."""
    x = (x > 1.0).to(x.dtype)
    g = x.T @ x + 20.0 * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    p = torch.cholesky_inverse(torch.linalg.cholesky(g))
    b = (-p / p.diagonal()).fill_diagonal_(0.0)
    return b, (x @ b).masked_fill(x > 0, -10.0)


def forest_of_tables(x: Tensor, feature: Tensor, level: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
    """Boosted trees as arrays: six times each row looks up its node's feature and threshold; leaves are summed."""
    trees = torch.arange(feature.shape[0], device=x.device)
    at = torch.zeros(x.shape[0], len(trees), dtype=torch.long, device=x.device)
    for _ in range(6):
        at = 2 * at + 1 + (x.gather(1, feature[trees, at]) > level[trees, at])
    logit = 0.1 * leaf[trees, at - feature.shape[1]].sum(1)
    return logit.sigmoid(), at


def mobile_bert(down, lines, feeds, scales, x: Tensor) -> Tensor:
    """MobileBERT: a narrow bottleneck for queries and what is fed, norms are only gains and biases, four feed-forwards."""
    gains, biases = scales

    def norm(i: int, t: Tensor) -> Tensor:
        return t * (0.1 * gains[i, : t.shape[-1]] + 1) + biases[i, : t.shape[-1]]

    narrow, shared = norm(0, down[0](x)), norm(1, down[1](x))
    y = norm(2, lines[0](attend(lines[1](shared), lines[2](shared), lines[3](x), 4)) + narrow)
    for i in range(4):
        y = norm(3 + i, feeds[2 * i + 1](torch.relu(feeds[2 * i](y))) + y)
    return norm(7, down[2](y) + x)


def funnel(lines, norms, x: Tensor) -> Tensor:
    """Funnel: queries are means of two tokens, the class token apart; keys are all; then the feed-forward on half."""
    half = torch.cat([x[:, :1], functional.avg_pool1d(x[:, 1:].mT, 2, 2, ceil_mode=True).mT], 1)
    k, v = lines[1](x).chunk(2, -1)
    y = norms[0](half + lines[2](attend(lines[0](half), k, v, 8)))
    return norms[1](y + lines[4](functional.gelu(lines[3](y))))


def factored_delays(convs, norms, x: Tensor) -> Tensor:
    """TDNN-F: three layers through a bottleneck of frames far apart, ReLU, batch norms, two thirds of what came in."""
    for i, apart in enumerate((1, 3, 3)):
        y = functional.conv1d(functional.pad(x, (apart, 0), mode="replicate"), convs[2 * i].weight, dilation=apart)
        y = functional.pad(y, (0, apart), mode="replicate")
        y = functional.conv1d(y, convs[2 * i + 1].weight, convs[2 * i + 1].bias, dilation=apart)
        x = norms[i](torch.relu(y)) + 0.66 * x
    return x


def neural_process(lines, x: Tensor, y: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
    """An attentive neural process: pairs become vectors, targets ask contexts by place, beside a mean; Gaussians."""
    r = lines[1](torch.relu(lines[0](torch.cat([x, y], 2))))
    k, q = (lines[3](torch.relu(lines[2](t))) for t in (x, asked))
    both = torch.cat([attend(q, k, r, 8), r.mean(1, keepdim=True).expand(-1, q.shape[1], -1), asked], 2)
    mean, spread = lines[5](torch.relu(lines[4](both))).chunk(2, -1)
    return mean, 0.1 + 0.9 * functional.softplus(spread)


def style_by_products(convs, x: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
    """Gatys: products of channels at two depths against those of a style, contents beside, and how uneven pixels are."""
    loss, first = x.sum() * 0, x
    for conv in convs:
        x, style = torch.relu(conv(x)), torch.relu(conv(style))
        a, b = (t.flatten(2) @ t.flatten(2).mT / t[0, 0].numel() for t in (x, style))
        loss = loss + functional.mse_loss(a, b.expand_as(a))
        x, style = functional.avg_pool2d(x, 2), functional.avg_pool2d(style, 2)
    return loss, (first.diff(dim=3).square().mean() + first.diff(dim=2).square().mean()).sqrt()


def chosen_features(lines, x: Tensor) -> tuple[Tensor, Tensor]:
    """TabNet, three steps: sparsemax of what is still free chooses features, gated layers read them, a mask of all."""
    free, kept, out, state = torch.ones_like(x), torch.zeros_like(x), 0.0, lines[0](x)
    for i in range(3):
        z = (lines[1 + i](state) * free).to(torch.promote_types(x.dtype, torch.float32))
        order = torch.sort(z, dim=1, descending=True).values
        many = torch.arange(1, z.shape[1] + 1, device=z.device, dtype=z.dtype)
        over = order.cumsum(1) - 1
        k = (many * order > over).sum(1, keepdim=True)
        mask = torch.relu(z - over.gather(1, k - 1) / k).to(x.dtype)
        free, kept = free * (1.3 - mask), kept + mask
        y = functional.glu(lines[4](mask * x), 1)
        y = 0.7071 * (y + functional.glu(lines[5](y), 1))
        out, state = out + torch.relu(y), y
    return lines[6](out), kept


def motifs_of_both_strands(conv, head, bases: Tensor) -> tuple[Tensor, Tensor]:
    """DeepBind: one-hot bases, the same kernels on the strand and its complement, largest and mean, an answer."""
    x = functional.one_hot(bases, 4).mT.to(conv.weight.dtype)
    y = torch.relu(torch.maximum(conv(x), functional.conv1d(x, conv.weight.flip(1, 2), conv.bias, padding=conv.padding)))
    pooled = torch.cat([y.amax(2), y.mean(2)], 1)
    return head(pooled), y.amax(1)


def hyper_edges(line, norm, x: Tensor, node: Tensor, edge: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A hypergraph's convolution: means of all nodes of an edge, weighed, then means of all edges of a node."""
    one, w = torch.ones_like(node, dtype=x.dtype), torch.sigmoid(weight)
    size = torch.zeros_like(weight).index_add(0, edge, one).clamp(min=1.0)
    degree = torch.zeros_like(x[:, 0]).index_add(0, node, w[edge]).clamp(min=0.1)
    y = line(x)
    e = torch.zeros(len(weight), y.shape[1], dtype=x.dtype, device=x.device).index_add(0, edge, y[node]) / size.unsqueeze(1)
    y = torch.zeros_like(y).index_add(0, node, (e * w.unsqueeze(1))[edge]) / degree.unsqueeze(1)
    return norm(functional.leaky_relu(y, 0.2)), e


def mixture_of_kernels(line, root, kernels, x: Tensor, start: Tensor, end: Tensor, offset: Tensor) -> Tensor:
    """MoNet: Gaussians of an edge's coordinates weigh eight projections of a node; means at edges' ends, ELU."""
    many = len(kernels[0])
    w = torch.exp(-0.5 * ((offset.unsqueeze(1) - kernels[0]) / (1 + kernels[1].abs())).square().sum(2))
    sent = (line(x)[start].unflatten(1, (many, -1)) * w.unsqueeze(2)).sum(1)
    count = torch.zeros_like(x[:, 0]).index_add(0, end, torch.ones_like(end, dtype=x.dtype)).clamp(min=1.0)
    return functional.elu(torch.zeros_like(sent[:1]).expand(len(x), -1).index_add(0, end, sent) / count.unsqueeze(1) + root(x))


def quotients_and_remainders(tables, lines, codes: Tensor, numbers: Tensor) -> Tensor:
    """DLRM's small tables: the product of a quotient's and a remainder's vector for each feature; a network on all."""
    small = tables[1].num_embeddings
    shift = torch.arange(codes.shape[1], device=codes.device)
    e = tables[0]((codes // small + shift) % tables[0].num_embeddings) * tables[1]((codes + 7 * shift) % small)
    return lines[2](torch.relu(lines[1](torch.cat([torch.relu(lines[0](torch.log1p(numbers.abs()))), e.flatten(1)], 1))))


def closed_form_cells(lines, x: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
    """CfC: liquid time constants in closed form; irregular times gate between two heads of a backbone, ten steps."""
    h, states = torch.zeros_like(x[:, 0]), []
    for t in range(10):
        z = 1.7159 * torch.tanh(0.666 * lines[0](torch.cat([x[:, t], h], 1)))
        one, two, a, b = lines[1](z).chunk(4, 1)
        gate = torch.sigmoid(-a * spans[:, t : t + 1].abs() + b)
        h = torch.tanh(one) * (1 - gate) + torch.tanh(two) * gate
        states.append(h)
    return torch.stack(states, 1), h


def compressed_past(lines, squeeze, norm, x: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The compressive transformer: old memories become a fourth by a convolution, newest tokens take their place."""
    keep = memory.shape[1] - x.shape[1]
    old = squeeze(memory[:, : x.shape[1]].mT).mT
    k, v = lines[1](torch.cat([past, memory, x], 1)).chunk(2, -1)
    y = norm(x + lines[2](attend(lines[0](x), k, v, 8)))
    now, then = (attend(lines[0](x), k, v, 8) for k, v in (lines[1](t).chunk(2, -1) for t in (memory[:, : x.shape[1]], old)))
    return y, torch.cat([memory[:, -keep:], x], 1), (now - then).square().mean() + old.mean()


def smoothed_within_edges(x: Tensor) -> Tensor:
    """Perona and Malik: six steps of diffusion along four directions, less across large differences."""
    for _ in range(6):
        p = functional.pad(x, (1, 1, 1, 1), mode="replicate")
        ways = (p[..., :-2, 1:-1] - x, p[..., 2:, 1:-1] - x, p[..., 1:-1, :-2] - x, p[..., 1:-1, 2:] - x)
        x = x + 0.2 * sum(d * torch.exp(-(d * d) / 0.5) for d in ways)
    return x


C, G = (256, 16), (512, 32)
NARROW, FEEDS = ((512, 128), (512, 128)), ((128, 512), (512, 128)) * 4
FLOAT32: dict[str, Case] = {
    "list_mle": call(list_mle, *(((8192, 5), (200, 12)),) * 2),
    "deep_hit": call(deep_hit, ((2048, 9), 3, (100, 8)), below((100, 8), (2048, 9)), whole(4, (2048, 9))),
    "fast_ica": call(fast_ica, ((64, 6), (65536, 200)), near_identity((64, 6), (64, 6))),
    "best_nodes_stay": call(
        best_nodes_stay, ((256, 2), (128, 8), (128, 8)), ((256, 2), *((128, 8),) * 2), parts=(linears((128, 128), (128, 1)),)
    ),
    "lucas_kanade": call(lucas_kanade, *(((8, 2), 1, (436, 12), (1024, 14)),) * 2),
    "parity_checks": call(parity_checks, ((256, 3), (1944, 24)), below((1944, 24), (972, 12), 6)),
    "carriers": call(carriers, ((64, 2), (14, 3), (1088, 34), 2), ((1024, 32),)),
    "harmonics_and_noise": call(harmonics_and_noise, ((16, 2), (250, 5)), ((16, 2), (60, 5), (250, 5)), ((16, 2), (16000, 50))),
    "cart_poles": call(cart_poles, ((65536, 8), 4), parts=(linears((4, 64), (64, 1)),)),
    "riccati": call(riccati, near_identity((1024, 2), (16, 4), (16, 4)), ((1024, 2), (16, 4), (4, 2))),
    "pruned_tree": call(pruned_tree, whole(4, (32768, 6), (16, 4)), ((30, 6),), (4,)),
    "isotonic": call(isotonic, *(((64, 3), (400, 11)),) * 2),
    "shallow_autoencoder": call(shallow_autoencoder, ((8192, 30), (1500, 12))),
    "forest_of_tables": call(
        forest_of_tables, ((20000, 9), (50, 5)), below((50, 5), (100, 4), 63), ((100, 4), 63), ((100, 4), 64)
    ),
}
HALVES: dict[str, Case] = {
    "mobile_bert": call(
        *(mobile_bert, ((16, 2), (384, 7), G)),
        parts=(linears(*NARROW, (128, 512)), linears(*((128, 128),) * 3, (512, 128)), linears(*FEEDS), weights((8, G), (8, G))),
    ),
    "funnel": call(
        *(funnel, ((16, 2), (513, 9), G)),
        parts=(linears((512, 512), (512, 1024), (512, 512), (512, 2048), (2048, 512)), each(nn.LayerNorm, 512, 512)),
    ),
    "factored_delays": call(
        *(factored_delays, ((32, 2), (1536, 96), (500, 12))),
        parts=(each(nn.Conv1d, *((1536, 160, 2), (160, 1536, 2)) * 3, bias=True), each(nn.BatchNorm1d, *(1536,) * 3)),
    ),
    "neural_process": call(
        *(neural_process, ((64, 2), (200, 7), 2), ((64, 2), (200, 7), 3), ((64, 2), (784, 9), 2)),
        parts=(linears((5, 256), (256, 256), (2, 256), (256, 256), ((514, 34), 256), (256, 6)),),
    ),
    "style_by_products": call(
        *(style_by_products, ((8, 2), 3, (256, 12), (256, 12)), (1, 3, (256, 12), (256, 12))),
        parts=(each(nn.Conv2d, (3, 64, 3, 1, 1), (64, 128, 3, 1, 1)),),
    ),
    "chosen_features": call(
        chosen_features, ((16384, 7), C), parts=(linears((256, 128), *((128, 256),) * 3, (256, 256), (128, 256), (128, 2)),)
    ),
    "hyper_edges": call(
        *(hyper_edges, ((20000, 9), C), below((20000, 9), (100000, 20)), below((5000, 5), (100000, 20)), ((5000, 5),)),
        parts=(just(nn.Linear, 256, 256), just(nn.LayerNorm, 256)),
    ),
    "mixture_of_kernels": call(
        *(mixture_of_kernels, ((10000, 9), (64, 4)), *(below((10000, 9), (60000, 20)),) * 2, ((60000, 20), 3)),
        parts=(just(nn.Linear, 64, 512), just(nn.Linear, 64, 64), weights((8, 3), (8, 3))),
    ),
    "quotients_and_remainders": call(
        *(quotients_and_remainders, whole(1000000, (8192, 5), 26), ((8192, 5), 13)),
        parts=(each(nn.Embedding, (16000, 32), (1000, 32)), linears((13, 256), ((1088, 68), 512), (512, 1))),
    ),
    "compressed_past": call(
        *(compressed_past, ((8, 2), (256, 8), G), ((8, 2), (512, 12), G), ((8, 2), (512, 6), G)),
        parts=(linears((512, 512), (512, 1024), (512, 512)), just(nn.Conv1d, 512, 512, 4, 4), just(nn.LayerNorm, 512)),
    ),
    "motifs_of_both_strands": call(
        *(motifs_of_both_strands, whole(4, (256, 3), (1000, 40))),
        parts=(just(nn.Conv1d, 4, 320, (26, 6), 1, 12), just(nn.Linear, 640, 919)),
    ),
    "closed_form_cells": call(closed_form_cells, ((512, 3), 10, C), ((512, 3), 10), parts=(linears((512, 512), (512, 1024)),)),
    "smoothed_within_edges": call(smoothed_within_edges, ((8, 1), 3, (512, 12), (768, 13))),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
