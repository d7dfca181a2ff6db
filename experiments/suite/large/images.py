"""Norms and poolings of large images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import nn
from torch.nn import functional

from experiments.suite.case import Case
from experiments.suite.case import Fn
from experiments.suite.case import fn
from experiments.suite.case import scaled


def _normed(make: Any) -> Case:
    """``make`` takes channels and sides; 0.9 GB."""

    def sized(n):
        channels, side = n(64, 8), n(384, 7)
        return make(channels, side), (torch.randn(n(24, 3), channels, side, side),)

    return scaled(sized)


def training(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)


CASES: dict[str, Case] = {
    "rms_channels": _normed(lambda c, s: Fn(lambda x: x / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt())),
    "layer_norm_images": _normed(lambda c, s: nn.LayerNorm((c, s, s))),
    "batch_norm_images": _normed(lambda c, s: nn.BatchNorm2d(c)),
    "batch_norm_training": _normed(lambda c, s: Fn(training, nn.BatchNorm2d(c))),
    "instance_norm_images": _normed(lambda c, s: nn.InstanceNorm2d(c)),
    "group_norm_images": _normed(lambda c, s: nn.GroupNorm(c // 8 or 1, c)),
    "frobenius": _normed(lambda c, s: Fn(lambda x: x / torch.norm(x, p="fro"))),
    "max_pool2": _normed(lambda c, s: nn.MaxPool2d(4, 1, 1)),
    "max_pool1": fn(lambda x: functional.max_pool1d(x, 8, 1, 4, 3), (48, 160, 32768), small=((2, 3, 40),)),
    "max_pool3": fn(lambda x: functional.max_pool3d(x, 3, 2, 1, 3), (12, 24, 112, 112, 112), small=((2, 3, 9, 9, 9),)),
    "avg_pool1": fn(lambda x: functional.avg_pool1d(x, 8, 1, 4), (48, 96, 65536), small=((2, 3, 20),)),
    "avg_pool2": fn(lambda x: functional.avg_pool2d(x, 11), (16, 64, 704, 704), small=((2, 3, 23, 23),)),
    "avg_pool3": fn(lambda x: functional.avg_pool3d(x, 3, 2, 1), (12, 24, 112, 112, 120), small=((2, 3, 9, 9, 9),)),
}
