"""Arrays of equal content, held once, on the host and on devices."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np

from fuser.ir.ops import Array


@dataclass(eq=False, repr=False)
class Pool:
    """What several programs share of their weights."""

    _arrays: dict[str, Array] = field(default_factory=dict)
    _keys: dict[int, str] = field(default_factory=dict)
    _tensors: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def array(self, x: Array) -> Array:
        """The first array that was equal to this one."""
        if id(x) in self._keys and self._arrays[self._keys[id(x)]] is x:
            return x
        key = hashlib.sha256(f"{x.shape} {x.dtype}".encode() + np.ascontiguousarray(x).tobytes()).hexdigest()
        held = self._arrays.setdefault(key, x)
        self._keys[id(held)] = key
        return held

    def tensor(self, x: Array, dtype: str, device: str) -> Any:
        """The array as a tensor of torch."""
        x = self.array(x)
        key = self._keys[id(x)], dtype, device
        if key not in self._tensors:
            self._tensors[key] = placed(x, dtype, device)
        return self._tensors[key]


def placed(x: Array, dtype: str, device: str) -> Any:
    """An array as a tensor of torch on a device."""
    import torch

    return torch.from_numpy(np.require(x, requirements="W")).to(device=device, dtype=getattr(torch, dtype))
