"""Sound, atoms, recommenders, critics, losses, optimizers, images, forecasts and prices in float32, as scripts have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.operators import below
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import whole


class Bands(nn.Module):
    """PQMF of Multi-band MelGAN: four bands at a quarter of the rate, and one signal of them again."""

    def __init__(self, bands: int = 4, taps: int = 62, cut: float = 0.142) -> None:
        super().__init__()
        t = torch.arange(taps + 1) - taps / 2
        window = torch.kaiser_window(taps + 1, periodic=False, beta=9.0)
        proto = torch.where(t == 0, cut, torch.sin(math.pi * cut * t) / (math.pi * t)) * window
        k = torch.arange(bands)[:, None]
        wave, turn = (2 * k + 1) * math.pi / (2 * bands) * t, (1 - 2 * (k % 2)) * math.pi / 4
        self.register_buffer("analysis", (2 * proto * torch.cos(wave + turn)).unsqueeze(1))
        self.register_buffer("synthesis", (2 * proto * torch.cos(wave - turn)).unsqueeze(0))
        self.register_buffer("pick", torch.eye(bands).unsqueeze(-1) * (torch.arange(bands) == 0))
        self.bands, self.pad = bands, nn.ConstantPad1d(taps // 2, 0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = functional.conv1d(functional.conv1d(self.pad(x), self.analysis), self.pick, stride=self.bands)
        high = functional.conv_transpose1d(low, self.pick * self.bands, stride=self.bands)
        return low, functional.conv1d(self.pad(high), self.synthesis)


def pitch_by_differences(x: Tensor, frame: int, most: int) -> tuple[Tensor, Tensor]:
    """YIN: squared differences at each lag, by their mean so far; the first that is small enough, with a parabola."""
    f = x.unfold(-1, frame + most, frame // 2)
    d = (f[..., :frame].unsqueeze(-2) - f.unfold(-1, frame, 1)).square().sum(-1)[..., 1:]
    d = d * torch.arange(1, most + 1, device=x.device) / d.cumsum(-1).clamp(min=1e-8)
    small = d < 0.15
    at = torch.where(small.any(-1), small.int().argmax(-1), d.argmin(-1)).clamp(1, most - 2).unsqueeze(-1)
    a, b, c = (d.gather(-1, at + i) for i in (-1, 0, 1))
    shift = (a - c) / (2 * (a - 2 * b + c).abs().clamp(min=1e-2))
    return 16000 / (at + 1 + shift.clamp(-1, 1)).squeeze(-1), 1 - b.squeeze(-1)


def gated_loudness(taps: Tensor, gains: Tensor, x: Tensor, block: int) -> Tensor:
    """BS.1770: a weighting filter, power in blocks that overlap, two gates, decibels."""
    y = functional.conv1d(functional.pad(x, (len(taps) - 1, 0)), taps.expand(x.shape[1], 1, -1), groups=x.shape[1])
    power = (y.square().unfold(-1, block, block // 4).mean(-1) * gains.abs()[:, None]).sum(1).clamp(min=1e-10)
    loud = -0.691 + 10 * torch.log10(power)
    heard = loud > -70
    mean = (power * heard).sum(-1, keepdim=True) / heard.sum(-1, keepdim=True).clamp(min=1)
    heard = heard & (loud > -0.691 + 10 * torch.log10(mean.clamp(min=1e-10)) - 10)
    return -0.691 + 10 * torch.log10(((power * heard).sum(-1) / heard.sum(-1).clamp(min=1)).clamp(min=1e-10))


def linear_prediction(x: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """LPC of windowed frames by Levinson and Durbin, its gain."""
    x = x * torch.hann_window(x.shape[-1], device=x.device, dtype=x.dtype)
    r = torch.stack([(x[..., : x.shape[-1] - k] * x[..., k:]).sum(-1) for k in range(order + 1)], -1)
    a, e = torch.ones_like(r[..., :1]), r[..., 0] * 1.001
    for i in range(1, order + 1):
        k = -(a * r[..., 1 : i + 1].flip(-1)).sum(-1) / e
        a = functional.pad(a, (0, 1))
        a, e = a + k.unsqueeze(-1) * a.flip(-1), e * (1 - k.square())
    return a, torch.sqrt(e)


def local_frames(net, r: Tensor) -> Tensor:
    """DeePMD's smooth descriptor: neighbours' weights go to nought at a cutoff, a network of them, a product without axes."""
    d = r.norm(dim=-1).clamp(min=0.4)
    u = ((d - 0.8) / 2.2).clamp(0, 1)
    s = (u**3 * (-6 * u**2 + 15 * u - 10) + 1) / d
    t = net(s.unsqueeze(-1)).mT @ torch.cat([s.unsqueeze(-1), (s / d).unsqueeze(-1) * r], -1) / r.shape[1]
    return (t @ t[:, : max(2, t.shape[1] // 8)].mT).flatten(1)


def hydrogen_bonds(places: Tensor) -> tuple[Tensor, Tensor]:
    """DSSP (pydssp): hydrogens from the backbone, electrostatic energies of all pairs, a soft map, turns that repeat."""
    n, ca, c, o = (4 * places).unbind(2)
    n, ca, c, o = n[:, 1:], ca[:, 1:], c[:, :-1], o[:, :-1]
    h = n + 1.01 * functional.normalize(functional.normalize(n - c, dim=-1) + functional.normalize(n - ca, dim=-1), dim=-1)
    on, ch, oh, cn = (1 / (a[:, :, None] - b[:, None]).norm(dim=-1).clamp(min=0.5) for a, b in ((o, n), (c, h), (o, h), (c, n)))
    e = functional.pad(0.084 * 332 * (on + ch - oh - cn), (1, 0, 0, 1))
    t = torch.arange(e.shape[1], device=e.device)
    bonds = (torch.sin((-0.5 - e).clamp(-1, 1) * (math.pi / 2)) + 1) / 2 * ((t[:, None] - t).abs() > 2)
    turns = bonds.diagonal(3, 1, 2)
    return bonds, turns[:, :-1] * turns[:, 1:]


def projected_slices(x: Tensor, angles: Tensor) -> Tensor:
    """Radon's transform: the image turned by each angle, and summed along its columns."""
    c, s, zero = torch.cos(angles), torch.sin(angles), torch.zeros_like(angles)
    turn = torch.stack([torch.stack([c, -s, zero], -1), torch.stack([s, c, zero], -1)], 1)
    many = x.transpose(0, 1).expand(len(angles), -1, -1, -1)
    return functional.grid_sample(many, functional.affine_grid(turn, list(many.shape), False), align_corners=False).sum(2)


def field_aware_pairs(table, first, which: Tensor, k: int) -> Tensor:
    """FFM: each value has a vector for each other field; products of all pairs of them."""
    v = table(which).unflatten(-1, (which.shape[1], k))
    pairs = (v * v.transpose(1, 2)).sum(-1)
    return torch.sigmoid(torch.triu(pairs, 1).sum((1, 2)) + first(which).sum((1, 2)))


def several_interests(bilinear, x: Tensor, start: Tensor, many: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """MIND: behaviour is routed to a few interests, squashed; the target attends to them by a power of its products."""
    real = (torch.arange(x.shape[1], device=x.device) <= many[:, None]).unsqueeze(1)
    low = z = bilinear(x)
    b = start.expand(len(x), -1, -1)
    for i in range(3):
        w = torch.softmax(b.masked_fill(~real, -1e9), -1)
        z = w @ low
        length = z.square().sum(-1, keepdim=True)
        z = z * length / (1 + length) * torch.rsqrt(length + 1e-9)
        if i < 2:
            b = b + z @ low.mT
    p = torch.softmax((z @ target.unsqueeze(-1)).squeeze(-1).clamp(min=0).pow(2), -1)
    return z, (p.unsqueeze(1) @ z).squeeze(1)


def truncated_quantiles(now: Tensor, later: Tensor, reward: Tensor, done: Tensor, price: Tensor) -> Tensor:
    """TQC: all critics' atoms sorted, the largest dropped; a Huber loss of quantiles on what is left."""
    kept = later.flatten(1).sort(-1).values[:, : -2 * later.shape[1]]
    target = reward[:, None] + 0.99 * (1 - torch.sigmoid(done))[:, None] * (kept - price[:, None])
    d = target[:, None, None] - now.unsqueeze(-1)
    huber = torch.where(d.abs() > 1, d.abs() - 0.5, d.square() / 2)
    tau = (torch.arange(now.shape[2], device=now.device) + 0.5) / now.shape[2]
    return ((tau[:, None] - (d < 0).to(d.dtype)).abs() * huber).mean((2, 3)).sum(1).mean()


def conservative_critic(q, s: Tensor, a: Tensor, others: Tensor, log_p: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """CQL: values of actions that policy and chance take are pressed down, those of data are not."""
    many = s.unsqueeze(1).expand(-1, others.shape[1], -1)
    free = q(torch.cat([many, torch.tanh(others)], -1)).squeeze(-1) - log_p
    data = q(torch.cat([s, torch.tanh(a)], -1)).squeeze(-1)
    gap = torch.logsumexp(free, 1) - math.log(others.shape[1]) - data
    return functional.mse_loss(data, target) + 5.0 * gap.mean(), gap


def shifted_by_pixels(x: Tensor, shift: Tensor, pad: int) -> Tensor:
    """DrQ-v2: frames with repeated edges, sampled at whole pixels' shifts."""
    n, h = len(x), x.shape[-1]
    x = functional.pad(x, (pad,) * 4, mode="replicate")
    eps = 1.0 / (h + 2 * pad)
    line = torch.linspace(-1.0 + eps, 1.0 - eps, h + 2 * pad, device=x.device, dtype=x.dtype)[:h]
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).expand(n, -1, -1, -1)
    return functional.grid_sample(x, grid + shift[:, None, None] * 2.0 * eps, padding_mode="zeros", align_corners=False)


def tempered_logistic(x: Tensor, label: Tensor, t1: float = 0.8, t2: float = 1.4) -> Tensor:
    """The bi-tempered loss: a softmax with a heavy tail, normalised by iteration, and a bounded logarithm."""
    top = x.amax(-1, keepdim=True)
    first = a = x - top
    for _ in range(5):
        a = first * torch.relu(1 + (1 - t2) * a).pow(1 / (1 - t2)).sum(-1, keepdim=True).pow(1 - t2)
    z = torch.relu(1 + (1 - t2) * a).pow(1 / (1 - t2)).sum(-1, keepdim=True)
    p = torch.relu(1 + (1 - t2) * (x - top + (z.pow(t2 - 1) - 1) / (1 - t2))).pow(1 / (1 - t2))
    y = functional.one_hot(label, x.shape[-1]).to(x.dtype) * 0.9 + 0.1 / x.shape[-1]
    log = ((y + 1e-10).pow(1 - t1) - p.pow(1 - t1)) / (1 - t1)
    return (y * log - (y.pow(2 - t1) - p.pow(2 - t1)) / (2 - t1)).sum(-1).mean()


def skeletons(x: Tensor, rounds: int) -> Tensor:
    """What a soft erosion and an opening leave, round by round."""
    skeleton = torch.zeros_like(x)
    for _ in range(rounds):
        thin = torch.minimum(-functional.max_pool2d(-x, (3, 1), 1, (1, 0)), -functional.max_pool2d(-x, (1, 3), 1, (0, 1)))
        delta = functional.relu(x - functional.max_pool2d(thin, 3, 1, 1))
        skeleton, x = skeleton + functional.relu(delta - skeleton * delta), thin
    return skeleton


def centreline_dice(x: Tensor, y: Tensor, rounds: int = 6) -> Tensor:
    """clDice: how much of each mask's skeleton lies in the other mask."""
    p, t = torch.sigmoid(x), torch.sigmoid(4 * y)
    a, b = skeletons(p, rounds), skeletons(t, rounds)
    exact, whole_ = ((a * t).sum((1, 2, 3)) + 1) / (a.sum((1, 2, 3)) + 1), ((b * p).sum((1, 2, 3)) + 1) / (b.sum((1, 2, 3)) + 1)
    return 1 - (2 * exact * whole_ / (exact + whole_)).mean()


def turned_boxes_as_gaussians(boxes: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """ProbIoU of all pairs (Ultralytics' OBB): Hellinger's distance of Gaussians; boxes that a better one covers go."""
    order = score.argsort(descending=True)
    xy, size, angle = boxes[order].split((2, 2, 1), -1)
    w, h = ((size * 0.3).exp().square() / 12).unbind(-1)
    c, s = torch.cos(angle.squeeze(-1)), torch.sin(angle.squeeze(-1))
    a, b, m = w * c * c + h * s * s, w * s * s + h * c * c, (w - h) * c * s
    (x, y), own = xy.unbind(-1), (a * b - m * m).clamp(min=0)
    aa, bb, mm = a[:, None] + a, b[:, None] + b, m[:, None] + m
    dx, dy, both = x[:, None] - x, y[:, None] - y, aa * bb - mm * mm
    near = ((aa * dy**2 + bb * dx**2) * 0.25 - mm * dx * dy * 0.5) / (both + 1e-7)
    near = (near + 0.5 * torch.log(both / (4 * torch.sqrt(own[:, None] * own) + 1e-7) + 1e-7)).clamp(1e-7, 100.0)
    iou = 1 - torch.sqrt(1 - torch.exp(-near) + 1e-7)
    return order, iou.triu(1).amax(0) < 0.45


def smooth_precision(x: Tensor, group: int) -> Tensor:
    """Smooth-AP: ranks by sigmoids of differences of similarities, among all and among those of the same kind."""
    x = functional.normalize(x, dim=-1)
    s, kind = x @ x.T, torch.arange(len(x), device=x.device) // group
    up = torch.sigmoid(((s.unsqueeze(1) - s.unsqueeze(2)) / 0.01).clamp(-50, 50))
    up = up * (1 - torch.eye(len(x), device=x.device, dtype=x.dtype))
    same = (kind[:, None] == kind).to(x.dtype)
    return 1 - (((up * same.unsqueeze(1)).sum(-1) + 1) / (up.sum(-1) + 1) * same).sum(-1).mean() / group


def adan_steps(given, slopes, before, m, v, n) -> list[tuple[Tensor, ...]]:
    """Adan on a list of tensors: moments of slopes, of how they change, and of both; decay in proximal form."""
    out = []
    for p, g, old, a, b, c in zip(given, slopes, before, m, v, n, strict=True):
        d = g - old
        a, b = torch.lerp(a, g, 0.02), torch.lerp(b, d, 0.08)
        c = 0.99 * c.abs() + 0.01 * (g + 0.92 * d).square()
        out.append(((p - 1e-3 * (a / 0.6 + 0.92 * b / 0.9) / (torch.sqrt(c / 0.4) + 1e-8)) / (1 + 2e-5), a, b, c))
    return out


def adam_in_eigenbases(w: Tensor, g: Tensor, left: Tensor, right: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """SOAP: the slope turned by the bases of both its sides, Adam there, and back; second moments of both sides."""
    ql, qr = left * left.shape[0] ** -0.5, right * right.shape[0] ** -0.5
    m, turned = 0.95 * m + 0.05 * g, ql.T @ g @ qr
    v = 0.95 * v.abs() + 0.05 * turned.square()
    step = ql @ ((ql.T @ m @ qr) / (v.sqrt() + 1e-2)) @ qr.T
    return w - 3e-3 * step - 3e-5 * w, m, v, 0.95 * left + 0.05 * g @ g.T, 0.95 * right + 0.05 * g.T @ g


def two_loops(g: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """L-BFGS's direction from its last steps, newest first on the way down, oldest first on the way up."""
    y = y + 2 * s
    rho = 1 / (y * s).sum(-1)
    q, alphas = -g, []
    for i in range(len(s) - 1, -1, -1):
        alphas.append(torch.dot(s[i], q) * rho[i])
        q = q - alphas[-1] * y[i]
    r = q / (rho[-1] * torch.dot(y[-1], y[-1]))
    for i, a in enumerate(reversed(alphas)):
        r = r + s[i] * (a - torch.dot(y[i], r) * rho[i])
    return r


def scanline_costs(cost: Tensor, small: float = 0.1, large: float = 0.8) -> tuple[Tensor, Tensor]:
    """Semi-global matching along rows, both ways: a neighbour's disparity is cheap, any other has one price."""
    both = torch.stack([cost, cost.flip(-1)]).unbind(-1)
    sums = [both[0]]
    for now in both[1:]:
        old, least = functional.pad(sums[-1], (0, 0, 1, 1), value=1e4), sums[-1].amin(2, keepdim=True)
        step = torch.minimum(torch.minimum(old[:, :, :-2], old[:, :, 2:]) + small, torch.minimum(sums[-1], least + large))
        sums.append(now + step - least)
    there, back = torch.stack(sums, -1)
    total = there + back.flip(-1)
    return total, total.argmin(1)


def oriented_gradients(x: Tensor, cell: int = 8, bins: int = 9) -> Tensor:
    """HOG: the strongest channel's slope votes for two directions, cells, blocks of four that are normed twice."""
    dy, dx = functional.pad(x, (0, 0, 1, 1))[:, :, 2:] - functional.pad(x, (0, 0, 1, 1))[:, :, :-2], functional.pad(x, (1, 1))
    dx = dx[..., 2:] - dx[..., :-2]
    size, at = torch.sqrt(dx.square() + dy.square() + 1e-12).max(1, keepdim=True)
    turn = torch.remainder(torch.atan2(dy.gather(1, at), dx.gather(1, at)) / math.pi, 1.0) * bins
    apart = (turn - torch.arange(bins, device=x.device, dtype=x.dtype)[:, None, None]).abs()
    votes = functional.avg_pool2d(size * torch.relu(1 - torch.minimum(apart, bins - apart)), cell)
    blocks = votes.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).flatten(3)
    blocks = (blocks * torch.rsqrt(blocks.square().sum(-1, keepdim=True) + 1e-4)).clamp(max=0.2)
    return functional.normalize(blocks, dim=-1).flatten(1)


def best_threshold(x: Tensor) -> tuple[Tensor, Tensor]:
    """Otsu's: counts of grey levels, the threshold with the largest variance between both sides."""
    flat = x.flatten(1).long()
    p = torch.zeros(len(x), 256, device=x.device).scatter_add(1, flat, torch.ones_like(flat, dtype=torch.float32)) / flat.shape[1]
    w, m = p.cumsum(1), (p * torch.arange(256, device=x.device)).cumsum(1)
    between = (m[:, -1:] * w - m).square() / (w * (1 - w)).clamp(min=1e-6)
    t = between[:, :-1].argmax(1)
    return t, torch.where(x > t[:, None, None], 255, 0).to(torch.uint8)


def grown_labels(x: Tensor, rounds: int) -> Tensor:
    """Kornia's connected components: every pixel has a number, and takes the largest around it within the mask."""
    mask = functional.avg_pool2d(x, 5, 1, 2) > 0
    label = torch.arange(x.numel(), device=x.device, dtype=torch.float32).view(x.shape) * mask
    for _ in range(rounds):
        label = torch.where(mask, functional.max_pool2d(label, 3, 1, 1), label)
    return label


def raw_to_colours(raw: Tensor, filters: Tensor, gains: Tensor, matrix: Tensor) -> Tensor:
    """Malvar, He and Cutler's: four filters on a Bayer mosaic, chosen by parity; balance, a matrix, gamma."""
    g, h, v, d = functional.conv2d(functional.pad(raw, (2, 2, 2, 2), mode="reflect"), filters / 8).unbind(1)
    x = raw.squeeze(1)
    row, column = torch.arange(x.shape[1], device=x.device)[:, None] % 2, torch.arange(x.shape[2], device=x.device) % 2
    even, red, blue = row == column, (row == 0) & (column == 0), (row == 1) & (column == 1)
    r = torch.where(red, x, torch.where(blue, d, torch.where(row == 0, h, v)))
    b = torch.where(blue, x, torch.where(red, d, torch.where(row == 1, h, v)))
    rgb = torch.stack([r, torch.where(even, g, x), b], -1) * (1 + gains.abs())
    return ((rgb @ matrix).clamp(0, 1) + 1e-3).pow(1 / 2.2).permute(0, 3, 1, 2)


def ensemble_score(x: Tensor, y: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """The fair CRPS of an ensemble on a globe (NeuralGCM), its spread beside its error."""
    w, m = torch.softmax(area, 0)[:, None], len(x)
    skill = (x - y).abs().mean(0)
    apart = (x.unsqueeze(0) - x.unsqueeze(1)).abs().sum((0, 1)) / (2 * m * (m - 1))
    error = ((x.mean(0) - y).square() * w).sum((-2, -1)).sqrt()
    return ((skill - apart) * w).sum((-2, -1)), (x.var(0) * w).sum((-2, -1)).sqrt() / error


def american_put(spot: Tensor, strike: Tensor, deviation: Tensor, steps: int) -> Tensor:
    """Cox, Ross and Rubinstein's tree of an American put, from its leaves."""
    spot, strike, s = 100 * torch.exp(0.2 * spot), 100 * torch.exp(0.1 * strike), 0.1 + 0.3 * torch.sigmoid(deviation)
    up = torch.exp(s * steps**-0.5).unsqueeze(1)
    keep = math.exp(-0.03 / steps)
    p = (1 / keep - 1 / up) / (up - 1 / up)
    i = torch.arange(steps + 1, device=spot.device)
    value = torch.relu(strike[:, None] - spot[:, None] * up ** (2 * i - steps))
    for n in range(steps - 1, -1, -1):
        value = keep * (p * value[:, 1:] + (1 - p) * value[:, :-1])
        value = torch.maximum(value, strike[:, None] - spot[:, None] * up ** (2 * i[: n + 1] - n))
    return value.squeeze(1)


def factors_without_signs(v: Tensor, w: Tensor, h: Tensor, rounds: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """NMF by Lee and Seung's products, and what is left."""
    v, w, h = v.abs(), w.abs(), h.abs()
    for _ in range(rounds):
        h = h * (w.T @ v) / (w.T @ w @ h + 1e-6)
        w = w * (v @ h.T) / (w @ (h @ h.T) + 1e-6)
    return w, h, (v - w @ h).square().mean()


def membranes(v: Tensor, m: Tensor, h: Tensor, n: Tensor, current: Tensor, steps: int = 4) -> tuple[Tensor, ...]:
    """Hodgkin and Huxley's neurons: three gates with rates by the voltage, exponential steps."""
    v, (m, h, n) = 15 * v - 60, (torch.sigmoid(g) for g in (m, h, n))
    for _ in range(steps):
        a, b = v + 40, v + 55
        am = torch.where(a.abs() < 1e-3, 1.0, 0.1 * a / -torch.expm1(-a / 10))
        an = torch.where(b.abs() < 1e-3, 0.1, 0.01 * b / -torch.expm1(-b / 10))
        rates = ((m, am, 4 * torch.exp(-(v + 65) / 18)), (h, 0.07 * torch.exp(-(v + 65) / 20), torch.sigmoid((v + 35) / 10)))
        m, h, n = (
            a / (a + b) + (g - a / (a + b)) * torch.exp(-0.025 * (a + b))
            for g, a, b in (*rates, (n, an, 0.125 * torch.exp(-(v + 65) / 80)))
        )
        ions = 120 * m**3 * h * (v - 50) + 36 * n**4 * (v + 77) + 0.3 * (v + 54.4)
        v = v + 0.025 * (10 * current - ions)
    return v, m, h, n


def tensors(n):
    return [torch.randn(s) for s in ((n(4096, 7), n(1024, 6)), (n(1024, 6),), (n(1024, 6), n(1024, 5)), (n(512, 3), 3, 3, 16))]


RECORD, MASKS, SIDE = ((4, 2), (16384, 300)), ((8, 2), 1, (256, 20), (256, 20)), ((2048, 12), (1024, 9))
CRITICS, AREA = ((1024, 4), (5, 2), (25, 3)), ((128, 6), (64, 5))
CASES: dict[str, Case] = {
    "multiband_analysis": call(lambda m, x: m(x), ((16, 2), 1, (65536, 256)), parts=(lambda _: Bands(),)),
    "pitch_by_differences": call(lambda x: pitch_by_differences(x, *((512, 256) if x.shape[1] > 999 else (40, 20))), RECORD),
    "gated_loudness": call(
        lambda t, g, x: gated_loudness(t, g, x, 19200 if x.shape[-1] > 9999 else 40),
        *(((64, 9),), (5,), ((2, 2), 5, (240000, 200))),
    ),
    "linear_prediction": call(lambda x: linear_prediction(x, 16 if x.shape[1] > 99 else 4), ((16384, 5), (400, 24))),
    "local_frames": call(
        local_frames,
        ((4096, 5), (64, 6), 3),
        parts=(lambda n: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, n(64, 8)), nn.Tanh()),),
    ),
    "hydrogen_bonds": call(hydrogen_bonds, ((8, 2), (384, 14), 4, 3)),
    "projected_slices": call(projected_slices, (1, 1, (256, 16), (256, 16)), ((90, 4),)),
    "field_aware_pairs": call(
        lambda a, b, x: field_aware_pairs(a, b, x, a.weight.shape[1] // x.shape[1]),
        below((100000, 30), (8192, 5), (22, 4)),
        parts=(lambda n: nn.Embedding(n(100000, 30), n(22, 4) * n(4, 2)), lambda n: nn.Embedding(n(100000, 30), 1)),
    ),
    "several_interests": call(
        several_interests,
        *(((4096, 4), (50, 7), (64, 8)), ((4, 3), (50, 7)), below((50, 7), (4096, 4)), ((4096, 4), (64, 8))),
        parts=(wide(64, 64, (8, 8), bias=False),),
    ),
    "truncated_quantiles": call(truncated_quantiles, CRITICS, CRITICS, CRITICS[:1], CRITICS[:1], CRITICS[:1]),
    "conservative_critic": call(
        conservative_critic,
        *(((1024, 4), 17), ((1024, 4), 6), ((1024, 4), (30, 5), 6), ((1024, 4), (30, 5)), ((1024, 4),)),
        parts=(lambda n: nn.Sequential(nn.Linear(23, n(256, 8)), nn.ReLU(), nn.Linear(n(256, 8), 1)),),
    ),
    "shifted_by_pixels": call(
        lambda x, s: shifted_by_pixels(x, s.float(), 4),
        *(((256, 2), 9, (84, 12), (84, 12)), whole(9, (256, 2), 2)),
    ),
    "tempered_logistic": call(tempered_logistic, ((4096, 6), (1000, 9)), below((1000, 9), (4096, 6))),
    "centreline_dice": call(centreline_dice, MASKS, MASKS),
    "turned_boxes_as_gaussians": call(lambda b, s: turned_boxes_as_gaussians(b * 4, s), ((2048, 9), 5), ((2048, 9),)),
    "smooth_precision": call(lambda x: smooth_precision(x, 4), ((256, 12), (512, 8))),
    "adan_steps": call(adan_steps, *(tensors,) * 6),
    "adam_in_eigenbases": call(adam_in_eigenbases, SIDE, SIDE, (SIDE[0], SIDE[0]), (SIDE[1], SIDE[1]), SIDE, SIDE),
    "two_loops": call(two_loops, ((1048576, 40),), ((10, 3), (1048576, 40)), ((10, 3), (1048576, 40))),
    "scanline_costs": call(scanline_costs, ((2, 1), (48, 5), (256, 4), (40, 9))),
    "oriented_gradients": call(oriented_gradients, ((64, 2), 3, (128, 24), (64, 16))),
    "best_threshold": call(best_threshold, lambda n: torch.randint(0, 256, (n(16, 2), n(512, 20), n(512, 20))).to(torch.uint8)),
    "grown_labels": call(lambda x: grown_labels(x, 24 if x.shape[-1] > 99 else 6), MASKS),
    "raw_to_colours": call(raw_to_colours, ((4, 1), 1, (1080, 12), (1920, 16)), (4, 1, 5, 5), (3,), (3, 3)),
    "ensemble_score": call(ensemble_score, ((16, 4), (2, 1), (8, 2), *AREA), ((2, 1), (8, 2), *AREA), AREA[:1]),
    "american_put": call(lambda *x: american_put(*x, steps=28 if len(x[0]) > 99 else 8), *((((16384, 6),),) * 3)),
    "factors_without_signs": call(factors_without_signs, ((4096, 9), (2048, 8)), ((4096, 9), (64, 3)), ((64, 3), (2048, 8))),
    "membranes": call(membranes, *(((1048576, 20),),) * 5),
}
