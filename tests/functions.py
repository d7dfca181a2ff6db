"""Functions as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Fn(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)
