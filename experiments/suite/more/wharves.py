"""Whole small networks in variants that no other file has: images, volumes, words, series, sets and tables."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.more.arenas import one
from experiments.suite.more.arenas import part
from experiments.suite.more.gables import joined
from experiments.suite.more.gables import split
from experiments.suite.more.operators import below
from experiments.suite.users import call

# -- images and volumes ---------------------------------------------------------------------------------------------------------


def normed(i: int, o: int, k: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, a batch norm, ReLU."""
    conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class DualPaths(nn.Module):
    """DPN: some of a block's channels are added to a path as ResNet's are, some are laid beside it as DenseNet's are."""

    def __init__(self, c: int, more: int, inner: int, groups: int, depth: int = 3) -> None:
        super().__init__()
        self.c, wide = c, [c + more * i for i in range(depth)]
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
                *(nn.Conv2d(inner, inner, 3, 1, 1, groups=groups, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
                nn.Conv2d(inner, c + more, 1, bias=False),
            )
            for w in wide
        )

    def forward(self, x: Tensor) -> Tensor:
        added, beside = x, []
        for block in self.blocks:
            y = block(torch.cat([added, *beside], 1))
            added = added + y[:, : self.c]
            beside.append(y[:, self.c :])
        return torch.cat([added, *beside], 1)


class Signatures(nn.Module):
    """SigNet: both images through one network with response norms, how far apart they are, and a contrastive loss."""

    def __init__(self, c: int, height: int, width: int) -> None:
        super().__init__()
        norm = {"alpha": 1e-4, "beta": 0.75, "k": 2.0}
        self.net = nn.Sequential(
            *(nn.Conv2d(1, c, 11), nn.ReLU(inplace=True), nn.LocalResponseNorm(5, **norm), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(c, 2 * c, 5, padding=2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5, **norm), nn.MaxPool2d(3, 2)),
            *(nn.Dropout2d(0.3), nn.Conv2d(2 * c, 3 * c, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.AdaptiveAvgPool2d((height, width)), nn.Flatten(), nn.Linear(3 * c * height * width, 128), nn.ReLU(inplace=True)),
        )

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
        far = functional.pairwise_distance(self.net(a), self.net(b), keepdim=True)
        return far, torch.mean(torch.where(same > 0, far.pow(2), torch.clamp(1.0 - far, min=0.0).pow(2)))


class GatedSkips(nn.Module):
    """A U-Net of three levels whose skips pass gates that the level below asks; softmax of its classes."""

    def __init__(self, c: int, classes: int) -> None:
        super().__init__()
        sizes = (c, 2 * c, 4 * c)
        self.down = nn.ModuleList(
            nn.Sequential(normed(i, o, 3), normed(o, o, 3)) for i, o in zip((3, c, 2 * c), sizes, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * o, o, 2, 2) for o in sizes[:2])
        self.ask = nn.ModuleList(nn.Conv2d(o, o // 2, 1) for o in sizes[:2])
        self.key = nn.ModuleList(nn.Conv2d(o, o // 2, 1, bias=False) for o in sizes[:2])
        self.gate = nn.ModuleList(nn.Conv2d(o // 2, 1, 1) for o in sizes[:2])
        self.back, self.head = nn.ModuleList(normed(2 * o, o, 3) for o in sizes[:2]), nn.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, net in enumerate(self.down):
            x = net(functional.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in (1, 0):
            x, skip = self.up[i](x), kept[i]
            skip = skip * torch.sigmoid(self.gate[i](functional.relu(self.ask[i](x) + self.key[i](skip))))
            x = self.back[i](torch.cat([skip, x], 1))
        return torch.softmax(self.head(x), 1)


class ScaledResiduals(nn.Module):
    """EDSR: residuals of a tenth and no norms, pixels by three in a shuffle."""

    def __init__(self, c: int, depth: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, c, 3, 1, 1), nn.Conv2d(c, c, 3, 1, 1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(True), nn.Conv2d(c, c, 3, 1, 1)) for _ in range(depth)
        )
        self.tail = nn.Sequential(nn.Conv2d(c, 9 * c, 3, 1, 1), nn.PixelShuffle(3), nn.Conv2d(c, 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = first = self.first(x - 0.45)
        for block in self.body:
            y = y + block(y).mul(0.1)
        return self.tail(self.last(y) + first) + 0.45


def bicubic_then_three(first, second, third, x: Tensor) -> Tensor:
    """SRCNN: a bicubic image of twice the size, then kernels of nine, five and five."""
    x = functional.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
    return third(functional.relu(second(functional.relu(first(x))))).clamp(0.0, 1.0)


class Quantised(nn.Module):
    """VQ-VAE whole: two strides down, the nearest code of each place, two back up, and its three losses."""

    def __init__(self, c: int, codes: int, d: int) -> None:
        super().__init__()
        self.code = nn.Embedding(codes, d)
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 4, 2, 1), nn.ReLU()),
            *(nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(), nn.Conv2d(c, d, 1)),
        )
        self.decode = nn.Sequential(
            *(nn.Conv2d(d, c, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ReLU()),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.encode(x).permute(0, 2, 3, 1).contiguous()
        flat, book = z.view(-1, z.shape[-1]), self.code.weight
        d = torch.sum(flat**2, 1, keepdim=True) + torch.sum(book**2, 1) - 2 * torch.matmul(flat, book.t())
        q = self.code(torch.argmin(d, 1)).view(z.shape)
        loss = torch.mean((q.detach() - z) ** 2) * 0.25 + torch.mean((q - z.detach()) ** 2)
        y = self.decode((z + (q - z).detach()).permute(0, 3, 1, 2).contiguous())
        return y, loss, functional.mse_loss(y, x)


class Clips(nn.Module):
    """C3D in small: boxes of three, pools that leave time alone at first, two wide layers."""

    def __init__(self, c: int, wide: int) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv3d(i, o, 3, padding=1) for i, o in ((3, c), (c, 2 * c), (2 * c, 4 * c), (4 * c, 4 * c)))
        self.fc, self.out = nn.Linear(4 * c * 2 * 3 * 3, wide), nn.Linear(wide, 101)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool3d(functional.relu(self.conv[0](x)), (1, 2, 2), (1, 2, 2))
        x = functional.max_pool3d(functional.relu(self.conv[1](x)), 2, 2)
        x = functional.relu(self.conv[3](functional.relu(self.conv[2](x))))
        x = functional.adaptive_avg_pool3d(functional.max_pool3d(x, 2, 2, (0, 1, 1)), (2, 3, 3)).flatten(1)
        return functional.log_softmax(self.out(functional.dropout(functional.relu(self.fc(x)), 0.5, self.training)), -1)


class Medical(nn.Module):
    """V-Net in small: kernels of five in space, PReLU, strides down and up, residuals at each level."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv3d(1, c, 5, padding=2), nn.Conv3d(2 * c, 2 * c, 5, padding=2)
        self.down, self.up = nn.Conv3d(c, 2 * c, 2, 2), nn.ConvTranspose3d(2 * c, c, 2, 2)
        self.last, self.out = nn.Conv3d(2 * c, 2 * c, 5, padding=2), nn.Conv3d(2 * c, 2, 1)
        self.acts = nn.ModuleList(nn.PReLU(w) for w in (c, 2 * c, 2 * c, c, 2 * c))
        self.norms = nn.ModuleList(nn.BatchNorm3d(w) for w in (c, 2 * c, 2 * c, c, 2 * c))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.acts[0](self.norms[0](self.first(x)) + x)
        y = self.acts[1](self.norms[1](self.down(skip)))
        y = self.acts[2](self.norms[2](self.deep(y)) + y)
        y = torch.cat([self.acts[3](self.norms[3](self.up(y))), skip], 1)
        y = self.out(self.acts[4](self.norms[4](self.last(y)) + y))
        return functional.softmax(y.permute(0, 2, 3, 4, 1).reshape(len(x), -1, 2), -1)


class MiddleFlow(nn.Module):
    """Xception's middle: three times ReLU, a depthwise kernel, a pointwise one, a norm; and what came in."""

    def __init__(self, c: int, depth: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            layers: list[nn.Module] = []
            for _ in range(3):
                layers += [nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1, groups=c, bias=False), nn.Conv2d(c, c, 1, bias=False)]
                layers += [nn.BatchNorm2d(c, eps=1e-3)]
            self.blocks.append(nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Efficient(nn.Module):
    """ENet: pixels of a stride beside their largest, then bottlenecks with PReLU whose kernels are dilated or split in two."""

    def __init__(self, c: int) -> None:
        super().__init__()
        m = c // 4
        kernels = (
            *([nn.Conv2d(m, m, 3, padding=p, dilation=p, bias=False)] for p in (1, 2, 4)),
            [nn.Conv2d(m, m, (5, 1), padding=(2, 0), bias=False), nn.Conv2d(m, m, (1, 5), padding=(0, 2), bias=False)],
        )
        self.first, self.acts = nn.Conv2d(3, c - 3, 3, 2, 1, bias=False), nn.ModuleList(nn.PReLU(c) for _ in range(5))
        self.norm = nn.BatchNorm2d(c)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(c, m, 1, bias=False), nn.BatchNorm2d(m), nn.PReLU(m), *k, nn.BatchNorm2d(m), nn.PReLU(m)),
                *(nn.Conv2d(m, c, 1, bias=False), nn.BatchNorm2d(c), nn.Dropout2d(0.1)),
            )
            for k in kernels
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.acts[0](self.norm(torch.cat([self.first(x), functional.max_pool2d(x, 3, 2, 1)], 1)))
        for block, act in zip(self.blocks, self.acts[1:], strict=True):
            x = act(x + block(x))
        return x


class TwoRates(nn.Module):
    """BiSeNet's fusion: details beside context that its own mean refines, gates of what both are, added, made larger."""

    def __init__(self, c: int, classes: int) -> None:
        super().__init__()
        self.refine = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c), nn.Sigmoid())
        self.join = normed(2 * c, c, 1)
        self.gate = nn.Sequential(nn.Conv2d(c, c // 4, 1), nn.ReLU(), nn.Conv2d(c // 4, c, 1), nn.Sigmoid())
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, details: Tensor, context: Tensor) -> dict[str, Tensor]:
        context = context * self.refine(context) + context.mean((2, 3), keepdim=True)
        context = functional.interpolate(context, size=details.shape[2:], mode="bilinear", align_corners=False)
        y = self.join(torch.cat([details, context], 1))
        y = y + y * self.gate(functional.adaptive_avg_pool2d(y, 1))
        out = functional.interpolate(self.head(y), scale_factor=4, mode="bilinear", align_corners=True)
        return OrderedDict(out=out, mask=out.max(1, keepdim=True).values)


class BottleneckHeads(nn.Module):
    """BoTNet: a bottleneck whose middle is attention with learned rows and columns in place of a kernel."""

    def __init__(self, c: int, heads: int, height: int, width: int) -> None:
        super().__init__()
        m = c // 4
        self.heads, self.qkv = heads, nn.Conv2d(m, 3 * m, 1, bias=False)
        self.rows, self.columns = nn.Parameter(torch.randn(m, height, 1)), nn.Parameter(torch.randn(m, 1, width))
        self.first, self.norm = normed(c, m, 1), nn.BatchNorm2d(m)
        self.last = nn.Sequential(nn.Conv2d(m, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        b, m, h, w = y.shape
        q, k, v = self.qkv(y).view(b, 3, self.heads, m // self.heads, h * w).unbind(1)
        place = (self.rows + self.columns).view(1, self.heads, -1, h * w)
        s = (q.transpose(-2, -1) @ (k + place)) * (m // self.heads) ** -0.5
        y = (v @ torch.softmax(s, -1).transpose(-2, -1)).reshape(b, m, h, w)
        return functional.relu(x + self.last(functional.relu(self.norm(y))))


# -- words, series, sets and tables ---------------------------------------------------------------------------------------------


class Highways(nn.Module):
    """A tower of highway layers: how much of each comes through is a gate's to say."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.plain, self.gate = (nn.ModuleList(nn.Linear(width, width) for _ in range(depth)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for plain, gate in zip(self.plain, self.gate, strict=True):
            t = torch.sigmoid(gate(x) - 2.0)
            x = t * functional.relu(plain(x)) + (1.0 - t) * x
        return x


class Hops(nn.Module):
    """End-to-end memory: sentences as weighed sums of words, three looks at them, the layers' tables shared."""

    def __init__(self, words: int, width: int, hops: int = 3) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(words, width, padding_idx=0) for _ in range(hops + 1))

    def forward(self, story: Tensor, question: Tensor) -> Tensor:
        t, d = story.shape[2], self.tables[0].embedding_dim
        j, k = torch.arange(1, t + 1, device=story.device) / t, torch.arange(1, d + 1, device=story.device) / d
        w = ((1 - j[:, None]) - k * (1 - 2 * j[:, None])).to(self.tables[0].weight.dtype)
        u = (self.tables[0](question) * w[: question.shape[1]]).sum(1)
        for asked, told in zip(self.tables, self.tables[1:], strict=False):
            m, c = ((table(story) * w).sum(2) for table in (asked, told))
            u = u + (torch.softmax((m * u.unsqueeze(1)).sum(2), -1).unsqueeze(2) * c).sum(1)
        return functional.log_softmax(u @ self.tables[-1].weight.t() * d**-0.5, -1)


class Matched(nn.Module):
    """NeuMF: users and things multiplied number by number beside a network of both, one sigmoid."""

    def __init__(self, users: int, things: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(m, w) for m in (users, things) for w in (width, 4 * width))
        self.net = nn.Sequential(
            *(nn.Linear(8 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 2 * width), nn.ReLU()),
            *(nn.Linear(2 * width, width), nn.ReLU()),
        )
        self.out = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, thing: Tensor) -> Tensor:
        a, b, c, d = (table(i) for table, i in zip(self.tables, (user, user, thing, thing), strict=True))
        return torch.sigmoid(self.out(torch.cat([a * c, self.net(torch.cat([b, d], -1))], -1))).squeeze(-1)


class Induced(nn.Module):
    """A set transformer's block: a few points of its own attend to the set, the set attends to them."""

    def __init__(self, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.heads, self.points = heads, nn.Parameter(torch.randn(1, points, width))
        self.lines = nn.ModuleList(nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def attend(self, i: int, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (line(t) for line, t in zip(self.lines[i], (x, y, y), strict=False))
        a = torch.softmax(split(q, self.heads) @ split(k, self.heads).mT / math.sqrt(q.shape[-1]), -1)
        h = self.norms[2 * i](q + joined(a @ split(v, self.heads)))
        return self.norms[2 * i + 1](h + functional.relu(self.lines[i][3](h)))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(1, x, self.attend(0, self.points.expand(len(x), -1, -1), x))


class LongAndShort(nn.Module):
    """LSTNet: a convolution over all series, a GRU of its times, one of every sixth of them, a line of the last few."""

    def __init__(self, series: int, width: int, skip: int) -> None:
        super().__init__()
        self.conv, self.gru, self.far = nn.Conv2d(1, width, (6, series)), nn.GRU(width, width), nn.GRU(width, width // 4)
        self.out, self.last, self.skip = nn.Linear(width + skip * (width // 4), series), nn.Linear(12, 1), skip

    def forward(self, x: Tensor) -> Tensor:
        c = functional.relu(self.conv(x.unsqueeze(1))).squeeze(3)
        b, w, t = c.shape
        _, near = self.gru(c.permute(2, 0, 1).contiguous())
        s = c[:, :, -(t // self.skip) * self.skip :].contiguous().view(b, w, -1, self.skip)
        _, far = self.far(s.permute(2, 0, 3, 1).contiguous().view(-1, b * self.skip, w))
        y = self.out(torch.cat([near.squeeze(0), far.view(b, -1)], 1))
        return torch.sigmoid(y + self.last(x[:, -12:].permute(0, 2, 1)).squeeze(2))


FLOAT32: dict[str, Case] = {
    "signatures_of_two": call(
        lambda m, a, b, same: m(a, b, same),
        *(((32, 2), 1, (155, 40), (220, 44)), ((32, 2), 1, (155, 40), (220, 44)), ((32, 2), 1)),
        parts=(part(Signatures, (48, 4), (8, 2), (12, 2)),),
    ),
    "bicubic_then_three": call(
        *(bicubic_then_three, ((16, 1), 1, (83, 7), (97, 8))),
        parts=(
            *(part(nn.Conv2d, 1, (64, 4), 9, padding=4), part(nn.Conv2d, (64, 4), (32, 3), 5, padding=2)),
            part(nn.Conv2d, (32, 3), 1, 5, padding=2),
        ),
    ),
    "codes_between_strides": call(one, ((64, 2), 3, (64, 8), (64, 12)), parts=(part(Quantised, (128, 6), (512, 9), (64, 4)),)),
    "bottlenecks_split_and_dilated": call(one, ((8, 1), 3, (256, 20), (384, 18)), parts=(part(Efficient, (64, 8)),)),
    "hops_of_memory": call(
        lambda m, *x: m(*x),
        *(below((5003, 19), (128, 2), (50, 4), (11, 5)), below((5003, 19), (128, 2), (9, 3))),
        parts=(part(Hops, (5003, 19), (64, 6)),),
    ),
    "factors_beside_a_network": call(
        lambda m, *x: m(*x),
        *(below((100003, 9), (16384, 6)), below((20011, 7), (16384, 6))),
        parts=(part(Matched, (100003, 9), (20011, 7), (16, 2)),),
    ),
    "induced_points": call(one, ((32, 2), (1000, 9), (256, 8)), parts=(part(Induced, (256, 8), (8, 2), (24, 3)),)),
    "long_and_short": call(one, ((128, 2), (101, 23), (137, 5)), parts=(part(LongAndShort, (137, 5), (100, 8), 6),)),
}
HALVES: dict[str, Case] = {
    "dual_paths": call(one, ((32, 1), (256, 8), (28, 5), (28, 6)), parts=(part(DualPaths, (256, 8), (24, 3), (96, 4), (32, 2)),)),
    "gated_skips": call(one, ((8, 1), 3, (128, 8), (192, 12)), parts=(part(GatedSkips, (32, 4), (21, 3)),)),
    "scaled_residuals": call(one, ((8, 1), 3, (48, 5), (56, 4)), parts=(part(ScaledResiduals, (64, 4)),)),
    "clips_of_sixteen": call(one, ((4, 1), 3, (16, 4), (56, 12), (56, 12)), parts=(part(Clips, (32, 3), (1024, 9)),)),
    "medical_volumes": call(one, ((2, 1), 1, (32, 4), (48, 6), (64, 4)), parts=(part(Medical, (16, 2)),)),
    "middle_flow": call(one, ((16, 1), (728, 6), (19, 5), (19, 4)), parts=(part(MiddleFlow, (728, 6)),)),
    "two_rates": call(
        lambda m, *x: m(*x),
        *(((4, 1), (128, 8), (64, 6), (128, 8)), ((4, 1), (128, 8), (16, 2), (32, 3))),
        parts=(part(TwoRates, (128, 8), (19, 3)),),
    ),
    "bottleneck_heads": call(
        one, ((32, 1), (1024, 16), (14, 3), (14, 4)), parts=(part(BottleneckHeads, (1024, 16), (4, 2), (14, 3), (14, 4)),)
    ),
    "highways": call(one, ((2048, 5), (512, 8)), parts=(part(Highways, (512, 8), (5, 2)),)),
}
CASES: dict[str, Case] = {**FLOAT32, **HALVES}
"""In float32, and in either of the formats of two bytes."""
