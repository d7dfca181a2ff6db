"""Small versions of known convolutional networks, written by hand of torch's layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import Made
from experiments.suite.case import images
from experiments.suite.case import scaled

N = Callable[[int, int], int]


def conv_bn(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: nn.Module | None = None) -> nn.Sequential:
    last = nn.ReLU(inplace=True) if act is None else act
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), last)


def head(i: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, classes))


class Sum(nn.Module):
    """``x + f(x)``, with a projection where shapes differ, then an activation."""

    def __init__(self, inner: nn.Module, skip: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.skip, self.last = inner, skip or nn.Identity(), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x) + self.skip(x))


def mlp(n: N) -> Made:
    w = n(1024, 12)
    return nn.Sequential(nn.Linear(n(784, 9), w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 10)), (
        torch.randn(n(128, 5), n(784, 9)),
    )


def deep_mlp(n: N) -> Made:
    sizes = [n(512, 8), *(n(256, 6),) * 6, 10]
    return nn.Sequential(*(m for i, o in itertools.pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU()))), (
        torch.randn(n(256, 5), sizes[0]),
    )


def lenet(n: N) -> Made:
    body = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)), (
        torch.randn(n(256, 2), 1, 28, 28),
    )


def alexnet(n: N) -> Made:
    c = n(64, 4)
    body = (
        nn.Conv2d(3, c, 11, 4, 2),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(c, 2 * c, 5, padding=2),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        *body,
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(72 * c, n(1024, 16)),
        nn.ReLU(True),
        nn.Linear(n(1024, 16), 10),
    ), (images(n, 224, 64),)


def vgg(n: N) -> Made:
    layers, i = [], 3
    for o in (n(64, 4), n(128, 4), n(256, 8)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
        i = o
    return nn.Sequential(*layers, head(i)), (images(n),)


def resnet(n: N) -> Made:
    def block(i: int, o: int, s: int) -> nn.Module:
        inner = nn.Sequential(conv_bn(i, o, 3, s), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        skip = None if i == o and s == 1 else nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))
        return Sum(inner, skip, nn.ReLU(inplace=True))

    c = n(64, 4)
    stem = (conv_bn(3, c, 7, 2), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, block(c, c, 1), block(c, 2 * c, 2), block(2 * c, 4 * c, 2), head(4 * c)), (images(n, 224, 32),)


def bottleneck(n: N) -> Made:
    c = n(64, 4)
    inner = nn.Sequential(conv_bn(4 * c, c, 1), conv_bn(c, c), nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c))
    return Sum(inner, None, nn.ReLU()), (images(n, 56, 8, 4 * c),)


def densenet(n: N) -> Made:
    g = n(32, 4)
    layers = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(g * (i + 1)), nn.ReLU(), nn.Conv2d(g * (i + 1), g, 3, padding=1, bias=False))
        for i in range(4)
    )

    def run(first: Any, layers: Any, last: Any, x: Tensor) -> Tensor:
        found = [first(x)]
        for f in layers:
            found.append(f(torch.cat(found, 1)))
        return last(torch.cat(found, 1))

    last = nn.Sequential(nn.BatchNorm2d(5 * g), nn.ReLU(), nn.Conv2d(5 * g, 2 * g, 1), nn.AvgPool2d(2), head(2 * g))
    return Fn(run, conv_bn(3, g), layers, last), (images(n),)


def mobilenet(n: N) -> Made:
    def block(i: int, o: int, s: int) -> nn.Module:
        e = 4 * i
        inner = nn.Sequential(
            conv_bn(i, e, 1, act=nn.ReLU6()),
            conv_bn(e, e, 3, s, e, nn.ReLU6()),
            nn.Conv2d(e, o, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        return Sum(inner) if i == o and s == 1 else inner

    c = n(32, 4)
    return nn.Sequential(
        conv_bn(3, c, 3, 2, act=nn.ReLU6()), block(c, c, 1), block(c, 2 * c, 2), block(2 * c, 2 * c, 1), head(2 * c)
    ), (images(n, 112, 16),)


class Squeeze(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, max(c // 4, 1), 1), nn.SiLU(), nn.Conv2d(max(c // 4, 1), c, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


def efficientnet(n: N) -> Made:
    c = n(32, 4)
    inner = nn.Sequential(
        conv_bn(c, 4 * c, 1, act=nn.SiLU()),
        conv_bn(4 * c, 4 * c, 5, 1, 4 * c, nn.SiLU()),
        Squeeze(4 * c),
        nn.Conv2d(4 * c, c, 1, bias=False),
        nn.BatchNorm2d(c),
    )
    return nn.Sequential(conv_bn(3, c, 3, 2, act=nn.SiLU()), Sum(inner), head(c)), (images(n, 112, 16),)


def shufflenet(n: N) -> Made:
    c = n(64, 8)

    def run(a: Any, b: Any, d: Any, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        y = torch.cat((left, d(b(a(right)))), 1)
        b_, c_, h, w = y.shape
        return y.view(b_, 2, c_ // 2, h, w).transpose(1, 2).reshape(b_, c_, h, w)

    return Fn(run, conv_bn(c, c, 1), conv_bn(c, c, 3, 1, c, nn.Identity()), conv_bn(c, c, 1)), (images(n, 56, 8, 2 * c),)


def squeezenet(n: N) -> Made:
    c = n(64, 8)

    def run(s: Any, a: Any, b: Any, x: Tensor) -> Tensor:
        y = torch.relu(s(x))
        return torch.cat((torch.relu(a(y)), torch.relu(b(y))), 1)

    return Fn(run, nn.Conv2d(2 * c, c // 2, 1), nn.Conv2d(c // 2, c, 1), nn.Conv2d(c // 2, c, 3, padding=1)), (
        images(n, 56, 8, 2 * c),
    )


def inception(n: N) -> Made:
    c = n(64, 4)
    pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(2 * c, c, 1))
    run = lambda *a: torch.cat([f(a[-1]) for f in a[:-1]], 1)  # noqa: E731
    return Fn(run, conv_bn(2 * c, c, 1), nn.Sequential(conv_bn(2 * c, c, 1), conv_bn(c, c)), conv_bn(2 * c, c, 5), pool), (
        images(n, 28, 8, 2 * c),
    )


def unet(n: N) -> Made:
    c = n(32, 4)
    pair = lambda i, o: nn.Sequential(conv_bn(i, o), conv_bn(o, o))  # noqa: E731

    def run(a: Any, b: Any, u: Any, d: Any, x: Tensor) -> Tensor:
        first = a(x)
        return d(torch.cat((u(b(functional.max_pool2d(first, 2))), first), 1))

    return Fn(run, pair(3, c), pair(c, 2 * c), nn.ConvTranspose2d(2 * c, c, 2, 2), pair(2 * c, 2)), (images(n, 128, 8),)


def autoencoder(n: N) -> Made:
    c = n(32, 4)
    down = (nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU())
    back = (nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Sigmoid())
    return nn.Sequential(*down, *back), (images(n, 64, 8),)


def discriminator(n: N) -> Made:
    c = n(64, 4)
    body = (
        nn.Conv2d(3, c, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(c, 2 * c, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * c),
        nn.LeakyReLU(0.2),
    )
    return nn.Sequential(*body, nn.Conv2d(2 * c, 1, n(16, 4)), nn.Flatten()), (images(n, 64, 16),)


def diffusion(n: N) -> Made:
    c = n(64, 8)

    def run(a: Any, b: Any, t: Any, f: Any, g: Any, x: Tensor, time: Tensor) -> Tensor:
        y = f(functional.silu(a(x))) + t(functional.silu(time))[:, :, None, None]
        return x + g(functional.silu(b(y)))

    parts = (
        nn.GroupNorm(4, c),
        nn.GroupNorm(4, c),
        nn.Linear(n(128, 6), c),
        nn.Conv2d(c, c, 3, padding=1),
        nn.Conv2d(c, c, 3, padding=1),
    )
    return Fn(run, *parts), (images(n, 32, 6, c), torch.randn(n(8, 1), n(128, 6)))


CASES: dict[str, Case] = {
    f"net_{make.__name__}": scaled(make)
    for make in (
        mlp,
        deep_mlp,
        lenet,
        alexnet,
        vgg,
        resnet,
        bottleneck,
        densenet,
        mobilenet,
        efficientnet,
        shufflenet,
        squeezenet,
        inception,
        unet,
        autoencoder,
        discriminator,
        diffusion,
    )
}
