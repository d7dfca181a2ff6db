"""Networks of products and convolutions, and their blocks, with large batches or images."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Made
from experiments.suite.case import N
from experiments.suite.case import scaled


def mlp(*w: int) -> nn.Sequential:
    return nn.Sequential(*(x for i, o in pairwise(w[:-1]) for x in (nn.Linear(i, o), nn.ReLU())), nn.Linear(w[-2], w[-1]))


def mlp_shallow(n: N) -> Made:
    return mlp(*(n(x, 8) for x in (12288, 20480, 20480, 12288))), (torch.randn(n(128, 3), n(12288, 8)),)


def mlp_deep(n: N) -> Made:
    return mlp(*(n(x, 8) for x in (6144, *(1024,) * 14, 6144))), (torch.randn(n(1024, 3), n(6144, 8)),)


def cbr(i: int, o: int, k: int = 3, s: int = 1, p: int = 1, g: int = 1, act: Any = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, p, groups=g, bias=False), nn.BatchNorm2d(o), act())


def lenet(n: N) -> Made:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        mlp(400, 120, 84, 20),
    ), (torch.randn(n(4096, 2), 1, 32, 32),)


def alexnet(n: N) -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(256 * n(36, 1), n(4096, 8)),
        nn.ReLU(),
        nn.Dropout(0.0),
        nn.Linear(n(4096, 8), 1000),
    ), (torch.randn(n(512, 1), 3, n(224, 67), n(224, 67)),)


class Residual(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.a, self.b = cbr(i, o, 3, s), nn.Sequential(nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        self.d = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if s > 1 or i != o else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.b(self.a(x)) + self.d(x))


def resnet18(n: N) -> Made:
    w = [n(x, 4) for x in (64, 64, 128, 256, 512)]
    blocks = [Residual(w[i] if j == 0 else w[i + 1], w[i + 1], 2 if j == 0 and i else 1) for i in range(4) for j in range(2)]
    return nn.Sequential(
        cbr(3, w[0], 7, 2, 3), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w[-1], 1000)
    ), (torch.randn(n(16, 1), 3, n(224, 32), n(224, 32)),)


class DenseBlock(nn.Module):
    def __init__(self, i: int, g: int, k: int) -> None:
        super().__init__()
        self.l = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(i + j * g), nn.ReLU(), nn.Conv2d(i + j * g, g, 3, padding=1, bias=False), nn.Dropout(0.0)
            )
            for j in range(k)
        )

    def forward(self, x: Tensor) -> Tensor:
        xs = [x]
        for f in self.l:
            xs.append(f(x))
            x = torch.cat(xs, 1)
        return x


def dense_block(n: N) -> Made:
    return DenseBlock(32, 32, 6), (torch.randn(n(10, 1), 32, n(224, 8), n(224, 8)),)


def transition(n: N) -> Made:
    return nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 1, bias=False), nn.AvgPool2d(2)), (
        torch.randn(n(128, 1), 32, n(256, 8), n(256, 8)),
    )


class Inception(nn.Module):
    def __init__(self, i: int, a: int, b1: int, b3: int, c1: int, c5: int, p: int) -> None:
        super().__init__()
        self.b = nn.ModuleList(
            [
                nn.Conv2d(i, a, 1),
                nn.Sequential(nn.Conv2d(i, b1, 1), nn.Conv2d(b1, b3, 3, padding=1)),
                nn.Sequential(nn.Conv2d(i, c1, 1), nn.Conv2d(c1, c5, 5, padding=2)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(i, p, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([f(x) for f in self.b], 1)


def inception_module(n: N) -> Made:
    return Inception(n(480, 8), n(192, 4), n(96, 4), n(208, 6), n(16, 4), n(48, 3), n(64, 5)), (
        torch.randn(n(10, 1), n(480, 8), n(160, 6), n(160, 6)),
    )


class Fire(nn.Module):
    def __init__(self, i: int, s: int, e: int) -> None:
        super().__init__()
        self.s, self.a, self.b = nn.Conv2d(i, s, 1), nn.Conv2d(s, e, 1), nn.Conv2d(s, e, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.s(x))
        return torch.cat([functional.relu(self.a(x)), functional.relu(self.b(x))], 1)


def fire(n: N) -> Made:
    return Fire(3, 6, 64), (torch.randn(n(96, 1), 3, n(256, 8), n(256, 8)),)


class MBConv(nn.Module):
    def __init__(self, i: int, o: int, k: int, s: int, e: int) -> None:
        super().__init__()
        h = i * e
        self.f = nn.Sequential(
            cbr(i, h, 1, 1, 0, act=nn.ReLU6),
            cbr(h, h, k, s, k // 2, h, nn.ReLU6),
            nn.Conv2d(h, o, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        self.r = s == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x) if self.r else self.f(x)


def mbconv(n: N) -> Made:
    return MBConv(n(96, 8), n(160, 8), 5, 2, n(6, 2)), (torch.randn(n(10, 1), n(96, 8), n(224, 8), n(224, 8)),)


def mbconv_res(n: N) -> Made:
    return MBConv(n(48, 8), n(48, 8), 3, 1, n(4, 2)), (torch.randn(n(10, 1), n(48, 8), n(224, 8), n(224, 8)),)


class Shuffle(nn.Module):
    def __init__(self, i: int, o: int, g: int) -> None:
        super().__init__()
        m = o // 4
        self.g, self.a, self.b, self.c = (
            g,
            nn.Sequential(nn.Conv2d(i, m, 1, groups=g, bias=False), nn.BatchNorm2d(m), nn.ReLU()),
            nn.Sequential(nn.Conv2d(m, m, 3, padding=1, groups=m, bias=False), nn.BatchNorm2d(m)),
            nn.Sequential(nn.Conv2d(m, o, 1, groups=g, bias=False), nn.BatchNorm2d(o), nn.ReLU()),
        )
        self.s = nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o)) if i != o else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        b, c, h, w = y.shape
        y = y.view(b, self.g, c // self.g, h, w).transpose(1, 2).reshape(b, c, h, w)
        return self.c(self.b(y)) + self.s(x)


def shuffle_unit(n: N) -> Made:
    return Shuffle(n(240, 12), n(480, 24), 3), (torch.randn(n(10, 1), n(240, 12), n(192, 6), n(192, 6)),)


def twice(a: int, b: int) -> nn.Sequential:
    layers = ((nn.Conv2d(i, b, 3, padding=1), nn.BatchNorm2d(b), nn.Softmax(-1)) for i in (a, b))
    return nn.Sequential(*(x for layer in layers for x in layer))


class UNet(nn.Module):
    def __init__(self, i: int, o: int, f: int) -> None:
        super().__init__()
        self.e1, self.e2, self.mid = twice(i, f), twice(f, 2 * f), twice(2 * f, 4 * f)
        self.u2, self.d2, self.u1, self.d1, self.last = (
            nn.ConvTranspose2d(4 * f, 2 * f, 2, 2),
            twice(4 * f, 2 * f),
            nn.ConvTranspose2d(2 * f, f, 2, 2),
            twice(2 * f, f),
            nn.Conv2d(f, o, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.e1(x)
        b = self.e2(functional.max_pool2d(a, 2))
        c = self.mid(functional.max_pool2d(b, 2))
        d = self.d2(torch.cat([self.u2(c), b], 1))
        return self.last(self.d1(torch.cat([self.u1(d), a], 1)))


def unet(n: N) -> Made:
    return UNet(8, 4, n(48, 4)), (torch.randn(n(8, 1), 8, n(64, 8), n(512, 8)),)


def vgg(n: N) -> Made:
    layers, i = [], 3
    for w, k in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        w = n(w, 6)
        for _ in range(k):
            layers += [nn.Conv2d(i, w, 3, padding=1), nn.ReLU()]
            i = w
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(i * n(49, 1), n(4096, 8)), nn.ReLU(), nn.Linear(n(4096, 8), 1000)), (
        torch.randn(n(10, 1), 3, n(224, 32), n(224, 32)),
    )


def mobilenet(n: N) -> Made:
    w = [n(x, 8) for x in (32, 64, 128, 128, 256, 256, 512, 512, 512, 1024)]
    s = [1, 2, 1, 2, 1, 2, 1, 1, 2]
    layers = [cbr(3, w[0], 3, 2, 1)]
    for (a, b), t in zip(pairwise(w), s, strict=True):
        layers += [cbr(a, a, 3, t, 1, a), cbr(a, b, 1, 1, 0)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w[-1], 1000)), (
        torch.randn(n(10, 1), 3, n(224, 32), n(224, 32)),
    )


CASES: dict[str, Case] = {
    "mlp_shallow": scaled(mlp_shallow),
    "mlp_deep": scaled(mlp_deep),
    "lenet": scaled(lenet),
    "alexnet": scaled(alexnet),
    "resnet18": scaled(resnet18),
    "dense_block": scaled(dense_block),
    "transition": scaled(transition),
    "inception_module": scaled(inception_module),
    "fire": scaled(fire),
    "mbconv": scaled(mbconv),
    "mbconv_res": scaled(mbconv_res),
    "shuffle_unit": scaled(shuffle_unit),
    "unet": scaled(unet),
    "vgg": scaled(vgg),
    "mobilenet": scaled(mobilenet),
}
