"""Modules that ``torch.export`` cannot trace as a whole (their control flow depends on values, say): compiled graph by graph, as
``torch.compile`` finds them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any

import fuser
from fuser.device import Device
from fuser.errors import LeftToTorch


@dataclass(eq=False, repr=False)
class PiecewiseModule:
    """A module whose graphs are compiled when they are called first; it is called as the module is, and returns what the module
    returns. Between the graphs the module's own Python runs. Parameters keep the values that they have at the first call."""

    module: Any
    target: Device
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        warnings.warn(f"{self.why}: its graphs are compiled one by one, when they are called first", LeftToTorch, stacklevel=4)

    @cached_property
    def _run(self) -> Any:
        import torch

        options = {"device": "cpu" if self.device == "cpu" else None, "target": self.target, "freeze": True, **self.options}
        return torch.compile(self.module, backend=fuser.torch_backend, dynamic=False, options=options)  # type: ignore[arg-type]

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        import torch

        with torch.no_grad():
            return self._run(*inputs, **named)

    def __repr__(self) -> str:
        return f"<PiecewiseModule {type(self.module).__name__}: graph by graph, for {self.target.title}; runs on {self.device}>"
