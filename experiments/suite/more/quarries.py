"""Images, films, volumes and sounds: blocks and loops over maps that stand in no other room."""

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
from experiments.suite.more.operators import wide
from experiments.suite.users import call
from experiments.suite.users import last

# -- images ---------------------------------------------------------------------------------------------------------------------


def softly_pooled(conv, x: Tensor) -> Tensor:
    """SoftPool: pixels weigh by their exponentials within each window."""
    y = conv(x)
    e = torch.exp(y.clamp(max=10))
    return functional.avg_pool2d(y * e, 3, 2, 1) / functional.avg_pool2d(e, 3, 2, 1)


def region_proposals(conv, score, delta, features: list[Tensor], most: int) -> tuple[Tensor, Tensor]:
    """One head on all levels: anchors are made in the call, the best of each level are decoded and kept within the image."""
    boxes, scores = [], []
    for i, x in enumerate(features):
        stride, (h, w) = 8 * 2**i, x.shape[2:]
        y = functional.relu(conv(x))
        s, d = score(y).permute(0, 2, 3, 1).flatten(1), delta(y).permute(0, 2, 3, 1).reshape(len(x), -1, 4)
        ratio = torch.tensor([0.5, 1.0, 2.0], device=x.device).sqrt() * 4 * stride
        cy, cx = (torch.arange(m, device=x.device) * stride + stride / 2 for m in (h, w))
        centre = torch.stack(torch.meshgrid(cy, cx, indexing="ij"), -1).unsqueeze(2).expand(-1, -1, 3, -1).reshape(-1, 2)
        size = torch.stack([ratio, 16 * stride * stride / ratio], -1).repeat(h * w, 1)
        best, at = s.topk(min(most, s.shape[1]), 1)
        d = d.gather(1, at.unsqueeze(-1).expand(-1, -1, 4))
        middle = centre[at] + d[..., :2] * size[at]
        half = torch.exp(d[..., 2:].clamp(max=4.135)) * size[at] / 2
        limit = torch.tensor([h * stride, w * stride], device=x.device)
        boxes.append(torch.cat([(middle - half).clamp(min=0).minimum(limit), (middle + half).clamp(min=0).minimum(limit)], -1))
        scores.append(torch.sigmoid(best))
    return torch.cat(boxes, 1), torch.cat(scores, 1)


class DynamicRelu(nn.Module):
    """The larger of two lines for each channel, their slopes and heights made of the image's means."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.net = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(inplace=True), nn.Linear(c // 4, 4 * c))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        a = (2 * torch.sigmoid(self.net(y.mean((2, 3)))) - 1).unflatten(1, (-1, 4))
        a = a * a.new_tensor([1.0, 1.0, 0.5, 0.5]) + a.new_tensor([1.0, 0.0, 0.0, 0.0])
        lines = y.unsqueeze(-1) * a[:, :, None, None, :2] + a[:, :, None, None, 2:]
        return lines.amax(-1)


def energies_then_three_turns(convs, x: Tensor) -> Tensor:
    """SimAM's gate without parameters, then gates along three pairs of axes, each from a maximum and a mean of the third."""
    d = (x - x.mean((2, 3), keepdim=True)).square()
    x = x * torch.sigmoid(d / (4 * (d.sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3] - 1) + 1e-4)) + 0.5)
    total = torch.zeros_like(x)
    for conv, order in zip(convs, ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1)), strict=True):
        y = x.permute(order)
        gate = torch.sigmoid(conv(torch.cat([y.amax(1, keepdim=True), y.mean(1, keepdim=True)], 1)))
        total += (y * gate).permute(order)
    return total / 3


class CurvesOfLight(nn.Module):
    """Zero-DCE: a small network with skips says how eight curves brighten each pixel, one after the other."""

    def __init__(self, c: int) -> None:
        super().__init__()
        ways = ((3, c), (c, c), (c, c), (c, c), (2 * c, c), (2 * c, c), (2 * c, 24))
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in ways)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.sigmoid(x)
        y, done = x, []
        for conv in self.convs[:4]:
            y = torch.relu(conv(y))
            done.append(y)
        for conv, before in zip(self.convs[4:6], (2, 1), strict=True):
            y = torch.relu(conv(torch.cat([done[before], y], 1)))
        curves = torch.tanh(self.convs[6](torch.cat([done[0], y], 1)))
        for r in curves.split(3, 1):
            x = x + r * (x.square() - x)
        return x, curves.abs().mean((2, 3))


def consistent_with_data(nets, measured: Tensor, lines: Tensor) -> Tensor:
    """Magnetic resonance: a network cleans the image, then the waves that were measured are put back; three times."""
    k = torch.complex(measured[:, 0], measured[:, 1])
    x = torch.fft.ifft2(torch.where(lines, k, 0), norm="ortho")
    for net in nets:
        y = torch.stack([x.real, x.imag], 1)
        y = y + net(y)
        waves = torch.fft.fft2(torch.complex(y[:, 0], y[:, 1]), norm="ortho")
        x = torch.fft.ifft2(torch.where(lines, 0.1 * waves + 0.9 * k, waves), norm="ortho")
    return x.abs()


def cleaners(n) -> nn.Module:
    c = n(48, 5)
    return nn.ModuleList(
        nn.Sequential(
            nn.Conv2d(2, c, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(c, c, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(c, 2, 3, padding=1),
        )
        for _ in range(3)
    )


def flow_by_averages(a: Tensor, b: Tensor, steps: int) -> Tensor:
    """Horn and Schunck: a flow that is its neighbours' mean, pulled towards what brightness says."""
    mean = functional.pad((a + b) / 2, (1, 1, 1, 1), mode="replicate")
    ix, iy = (mean[:, :, 1:-1, 2:] - mean[:, :, 1:-1, :-2]) / 2, (mean[:, :, 2:, 1:-1] - mean[:, :, :-2, 1:-1]) / 2
    it, scale = b - a, 1 / (0.5 + ix.square() + iy.square())
    near = torch.tensor([[1.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 1.0]], device=a.device, dtype=a.dtype) / 12
    flow = torch.zeros_like(a).repeat(1, 2, 1, 1)
    for _ in range(steps):
        bar = functional.conv2d(functional.pad(flow, (1, 1, 1, 1), mode="replicate"), near.expand(2, 1, 3, 3), groups=2)
        pull = (ix * bar[:, :1] + iy * bar[:, 1:] + it) * scale
        flow = bar - pull * torch.cat([ix, iy], 1)
    return flow


def squared_displacements(v: Tensor, image: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """VoxelMorph: a velocity becomes a displacement by following itself again and again; an image is moved by it."""
    axes = [torch.linspace(-1, 1, m, device=v.device, dtype=v.dtype) for m in v.shape[2:]]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
    u = torch.tanh(v) * 0.2 / 2**times
    for _ in range(times):
        u = u + functional.grid_sample(u, grid + u.permute(0, 2, 3, 4, 1), padding_mode="border", align_corners=True)
    return functional.grid_sample(image, grid + u.permute(0, 2, 3, 4, 1), align_corners=True), u


class TracedSpheres(nn.Module):
    """A network says how far the nearest surface is; rays go that far, again and again."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(
            *(nn.Linear(15, width), nn.Softplus(100), nn.Linear(width, width), nn.Softplus(100), nn.Linear(width, 1))
        )

    def distance(self, p: Tensor) -> Tensor:
        waves = torch.cat([p, torch.sin(p), torch.cos(p), torch.sin(2 * p), torch.cos(2 * p)], -1)
        return p.norm(dim=-1, keepdim=True) - 1 + 0.2 * self.net(waves)

    def forward(self, origin: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
        origin, ray = 3 * functional.normalize(origin, dim=-1), functional.normalize(ray, dim=-1)
        ray = functional.normalize(0.3 * ray - origin / 3, dim=-1)
        far = torch.zeros_like(origin[:, :1])
        for _ in range(self.steps):
            far = (far + self.distance(origin + far * ray)).clamp(0, 6)
        return far, self.distance(origin + far * ray)


def dark_channel(x: Tensor, radius: int, most: int) -> Tensor:
    """Haze: the darkest of all channels around a pixel, air's light from the haziest pixels, and what lies behind it."""
    x, size = torch.sigmoid(x), 2 * radius + 1

    def dark(t: Tensor) -> Tensor:
        return -functional.max_pool2d(-t.amin(1, keepdim=True), size, 1, radius)

    at = dark(x).flatten(1).topk(most, 1).indices
    air = x.flatten(2).gather(2, at.unsqueeze(1).expand(-1, 3, -1)).mean(2)[..., None, None]
    through = functional.avg_pool2d(1 - 0.95 * dark(x / air), size, 1, radius, count_include_pad=False)
    return (x - air) / through.clamp(min=0.1) + air


def learned_front_end(given, x: Tensor, taps: int, stride: int) -> Tensor:
    """LEAF: Gabor filters of two numbers each, squares, a Gaussian of its own width for each, logarithms."""
    centre, width, pool = given
    t = torch.arange(taps, device=x.device, dtype=x.dtype) - taps // 2
    f, s = math.pi * torch.sigmoid(centre)[:, None], (taps / 12) * (0.5 + torch.sigmoid(width))[:, None]
    bell = torch.exp(-0.5 * (t / s).square()) / (s * math.sqrt(2 * math.pi))
    y = functional.conv1d(x, torch.cat([torch.cos(f * t) * bell, torch.sin(f * t) * bell]).unsqueeze(1), padding=taps // 2)
    a, b = y.chunk(2, 1)
    low = torch.exp(-0.5 * (t / (taps / 2 * (0.2 + torch.sigmoid(pool))[:, None])).square())
    low = (low / low.sum(-1, keepdim=True)).unsqueeze(1)
    return torch.log1p(1e3 * functional.conv1d(a.square() + b.square(), low, None, stride, taps // 2, groups=len(low)))


PLANE = ((8, 1), 3, (400, 15), (600, 17))
FLOAT32: dict[str, Case] = {
    "softly_pooled": call(
        softly_pooled, ((32, 2), (64, 4), (113, 9), (111, 7)), parts=(lambda n: nn.Conv2d(n(64, 4), n(96, 5), 1),)
    ),
    "region_proposals": call(
        lambda a, b, c, *x: region_proposals(a, b, c, list(x), 1000 if x[0].shape[1] > 99 else 7),
        *(((4, 1), (256, 6), (100 >> i, 8 >> i), (136 >> i, 8 >> i)) for i in range(3)),
        parts=(
            *(lambda n: nn.Conv2d(n(256, 6), n(256, 6), 3, padding=1), part(nn.Conv2d, (256, 6), 3, 1)),
            part(nn.Conv2d, (256, 6), 12, 1),
        ),
    ),
    "dynamic_relu": call(one, ((32, 2), (128, 8), (56, 5), (56, 6)), parts=(part(DynamicRelu, (128, 8)),)),
    "energies_then_three_turns": call(
        energies_then_three_turns,
        ((32, 2), (256, 6), (56, 5), (48, 7)),
        parts=(lambda _: nn.ModuleList(nn.Conv2d(2, 1, 7, padding=3, bias=False) for _ in range(3)),),
    ),
    "curves_of_light": call(one, ((4, 1), 3, (384, 9), (512, 8)), parts=(part(CurvesOfLight, (32, 4)),)),
    "consistent_with_data": call(
        consistent_with_data, ((8, 2), 2, (320, 9), (320, 10)), lambda n: torch.rand(n(320, 10)) < 0.3, parts=(cleaners,)
    ),
    "flow_by_averages": call(lambda a, b: flow_by_averages(a, b, 16), *(((8, 2), 1, (540, 9), (960, 11)),) * 2),
    "squared_displacements": call(
        lambda v, x: squared_displacements(v, x, 7),
        *(((2, 1), 3, (80, 4), (96, 5), (96, 6)), ((2, 1), 1, (80, 4), (96, 5), (96, 6))),
    ),
    "traced_spheres": call(
        lambda m, o, r: m(o, r), *(((131072, 12), 3),) * 2, parts=(lambda n: TracedSpheres(n(128, 8), n(12, 3)),)
    ),
    "dark_channel": call(lambda x: dark_channel(x, 7 if x.shape[2] > 99 else 2, x.shape[2] * x.shape[3] // 100), PLANE),
    "learned_front_end": call(
        lambda given, x: learned_front_end(given, x, *((401, 160) if x.shape[2] > 999 else (11, 4))),
        ((32, 2), 1, (16000, 50)),
        parts=(weights(*(((40, 3),),) * 3),),
    ),
}

# -- in float16 -----------------------------------------------------------------------------------------------------------------


class JoinedBottlenecks(nn.Module):
    """YOLOv8's: half of the channels goes through bottlenecks, and all that was met on the way is joined."""

    def __init__(self, i: int, o: int, many: int) -> None:
        super().__init__()
        h = o // 2
        self.first, self.last = self.unit(i, o, 1), self.unit((2 + many) * h, o, 1)
        self.units = nn.ModuleList(nn.Sequential(self.unit(h, h, 3), self.unit(h, h, 3)) for _ in range(many))

    @staticmethod
    def unit(i: int, o: int, k: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm2d(o, 1e-3), nn.SiLU(inplace=True))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1)
        y = list(self.first(x).chunk(2, 1))
        for f in self.units:
            y.append(y[-1] + f(y[-1]))
        return self.last(torch.cat(y, 1))


def selected_queries(norm, classes, boxes, memory: Tensor, places: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """DETR with two stages: the tokens that are surest of a class become queries; their boxes become sines."""
    y = norm(memory)
    best, at = classes(y).float().amax(-1).topk(most, 1)
    y = y.gather(1, at.unsqueeze(-1).expand(-1, -1, y.shape[-1]))
    p = torch.sigmoid(places.float()).clamp(1e-3, 1 - 1e-3).gather(1, at.unsqueeze(-1).expand(-1, -1, 4))
    p = torch.sigmoid(boxes(y).float() + torch.log(p / (1 - p)))
    wave = p.unsqueeze(-1) * (2 * math.pi) * 10000.0 ** (-torch.arange(64, device=p.device) / 64)
    return torch.stack([wave.sin(), wave.cos()], -1).flatten(2).to(memory.dtype), p, best


def masked_by_the_last_mask(embed, q, kv, out, x: Tensor, tokens: Tensor, pixels: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Mask2Former: a query sees only what its own mask covered before; one whose mask is empty sees all."""
    side = round(tokens.shape[1] ** 0.5)
    masks = torch.einsum("bqc,bchw->bqhw", embed(x), pixels)
    small = functional.interpolate(masks, size=(side, side), mode="bilinear", align_corners=False).flatten(2)
    hidden = small < 0
    hidden = hidden & ~hidden.all(-1, keepdim=True)
    ask = q(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = kv(tokens).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    s = (ask @ k.mT * ask.shape[-1] ** -0.5).masked_fill(hidden.unsqueeze(1), -torch.inf)
    return functional.layer_norm(x + out((torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2)), x.shape[-1:]), masks


def looked_up_costs(a: Tensor, b: Tensor, flow: Tensor, radius: int, levels: int) -> Tensor:
    """RAFT: correlations of all pairs, halved a few times; around where the flow points a square of them is read."""
    n, c, h, w = a.shape
    costs = (a.flatten(2).mT @ b.flatten(2) * c**-0.5).view(n * h * w, 1, h, w)
    ys, xs = torch.arange(h, device=a.device), torch.arange(w, device=a.device)
    at = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], -1) + flow.float().permute(0, 2, 3, 1)
    step = torch.arange(-radius, radius + 1, device=a.device).float()
    square = torch.stack(torch.meshgrid(step, step, indexing="ij"), -1)
    done = []
    for i in range(levels):
        size = torch.tensor([costs.shape[3] - 1, costs.shape[2] - 1], device=a.device)
        grid = 2 * (at.reshape(-1, 1, 1, 2) / 2**i + square) / size - 1
        done.append(functional.grid_sample(costs.float(), grid, align_corners=True).view(n, h, w, -1))
        costs = functional.avg_pool2d(costs, 2)
    return torch.cat(done, -1).permute(0, 3, 1, 2).to(a.dtype)


def non_local_means(x: Tensor, reach: int) -> Tensor:
    """Pixels become means of all around them, by how like their surroundings are."""
    y = x.float()
    total, weight = y.clone(), torch.ones_like(y[:, :1])
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dy or dx:
                moved = torch.roll(y, (dy, dx), (2, 3))
                d = functional.avg_pool2d((y - moved).square().mean(1, keepdim=True), 5, 1, 2)
                w = torch.exp(-(d - 0.1).clamp(min=0) / 0.36)
                total, weight = total + w * moved, weight + w
    return (total / weight).to(x.dtype)


def overlapping_windows(qkv, out, bias: Tensor, x: Tensor, size: int) -> Tensor:
    """HAT: queries lie in windows, their keys and values in windows half as large again."""
    b, c, h, w = x.shape
    heads, more = bias.shape[0], size // 4
    q, kv = qkv(x).split([c, 2 * c], 1)
    q = q.view(b, heads, -1, h // size, size, w // size, size).permute(0, 3, 5, 1, 4, 6, 2).flatten(4, 5).flatten(0, 2)
    kv = functional.unfold(kv, size + 2 * more, stride=size, padding=more)
    k, v = kv.view(b, 2, heads, c // heads, (size + 2 * more) ** 2, -1).permute(1, 0, 5, 2, 4, 3).flatten(1, 2)
    q = q.view(-1, heads, size * size, c // heads)
    p = torch.softmax(q @ k.mT * (c // heads) ** -0.5 + bias, -1)
    y = (p @ v).view(b, h // size, w // size, heads, size, size, -1).permute(0, 3, 6, 1, 4, 2, 5)
    return x + out(y.reshape(b, c, h, w))


def two_stacks(up, side, link, back, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """PixelCNN with gates: one stack sees all rows above, the other what is left of a pixel, and the first."""
    a = up(functional.pad(v, (1, 1, 2, 0)))[:, :, :-1]
    b = side(functional.pad(h, (2, 0)))[..., :-1] + link(functional.pad(a, (0, 0, 1, -1)))
    (s, t), (x, y) = a.chunk(2, 1), b.chunk(2, 1)
    return torch.tanh(s) * torch.sigmoid(t), h + back(torch.tanh(x) * torch.sigmoid(y))


class StreamedConvolutions(nn.Module):
    """Sounds as they come in: each layer keeps the end of what it saw, and hands it on to the next call."""

    def __init__(self, c: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(c, c, 3, dilation=d, groups=1) for d in dilations)
        self.points = nn.ModuleList(nn.Conv1d(c, c, 1) for _ in dilations)

    def forward(self, x: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        now = []
        for conv, point, before in zip(self.convs, self.points, kept, strict=True):
            y = torch.cat([before, x], 2)
            now.append(y[:, :, -before.shape[2] :])
            x = x + point(functional.elu(conv(functional.elu(y))))
        return x, now


STACK, TOKENS = ((16, 2), (64, 4), (96, 5), (96, 6)), ((8, 2), (4096, 16), (256, 8))
FLOAT16: dict[str, Case] = {
    "joined_bottlenecks": call(
        lambda m, x, y: m(x, y),
        *(((16, 1), (256, 6), (40, 3), (40, 4)), ((16, 1), (128, 4), (80, 6), (80, 8))),
        parts=(part(JoinedBottlenecks, (384, 10), (128, 8), 3),),
    ),
    "selected_queries": call(
        lambda a, b, c, x, p: selected_queries(a, b, c, x, p, 300 if x.shape[1] > 99 else 4),
        *(((16, 2), (8400, 11), (256, 8)), ((16, 2), (8400, 11), 4)),
        parts=(part(nn.LayerNorm, (256, 8)), wide(256, 80, (8, 5)), part(nn.Linear, (256, 8), 4)),
    ),
    "masked_by_the_last_mask": call(
        lambda a, b, c, d, *x: masked_by_the_last_mask(a, b, c, d, *x, heads=8 if x[0].shape[1] > 99 else 2),
        *(((8, 2), (100, 5), (256, 8)), TOKENS, ((8, 2), (256, 8), (128, 8), (128, 8))),
        parts=(wide(256, 256, (8, 8)), wide(256, 256, (8, 8)), wide(256, 512, (8, 16)), wide(256, 256, (8, 8))),
    ),
    "looked_up_costs": call(
        lambda *x: looked_up_costs(*x, radius=4 if x[0].shape[1] > 99 else 1, levels=3),
        *(((2, 1), (256, 6), (46, 8), (62, 12)), ((2, 1), (256, 6), (46, 8), (62, 12)), ((2, 1), 2, (46, 8), (62, 12))),
    ),
    "non_local_means": call(lambda x: non_local_means(x, 2), ((8, 1), 3, (512, 9), (768, 8))),
    "overlapping_windows": call(
        lambda f, g, b, x: overlapping_windows(f, g, b, x, round(b.shape[1] ** 0.5)),
        *(((6, 2), (256, 16), (576, 36)), last((2, 1), (192, 8), (128, 8), (128, 12))),
        parts=(lambda n: nn.Conv2d(n(192, 8), 3 * n(192, 8), 1), lambda n: nn.Conv2d(n(192, 8), n(192, 8), 1)),
    ),
    "two_stacks": call(
        two_stacks,
        *(STACK, STACK),
        parts=(
            *(lambda n: nn.Conv2d(n(64, 4), n(128, 8), (2, 3)), lambda n: nn.Conv2d(n(64, 4), n(128, 8), (1, 2))),
            *(part(nn.Conv2d, (128, 8), (128, 8), 1), part(nn.Conv2d, (64, 4), (64, 4), 1)),
        ),
    ),
    "streamed_convolutions": call(
        lambda m, x, *kept: m(x, list(kept)),
        ((128, 2), (256, 6), (96, 5)),
        *(((128, 2), (256, 6), 2 * d) for d in (1, 2, 4, 8)),
        parts=(lambda n: StreamedConvolutions(n(256, 6), (1, 2, 4, 8)),),
    ),
}
CASES: dict[str, Case] = {**FLOAT32, **FLOAT16}
"""In the number format that each group is meant for."""
