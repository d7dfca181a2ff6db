"""What is made of a module is a function: what a ``torch.nn.Module`` does that a function can do as well, and errors that say
what to do for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from typing import Self

from fuser.errors import MissingError
from fuser.errors import UsageError
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import NARROW

PARTS = ("parameters", "buffers", "modules", "children", "state_dict")
"""What a module has of its own, in methods of these and longer names."""


class AsFunction:
    """A callable that runs at one place, on tensors of certain dtypes."""

    def __init_subclass__(cls) -> None:
        """Around it torch.compile leaves a call as it is."""
        vars(cls)["__call__"]._torchdynamo_disable = True

    def _said(self) -> str:
        """Which one it is, in errors."""
        raise NotImplementedError

    def _place(self) -> str | None:
        """The device that it runs on; None where it is compiled only."""
        raise NotImplementedError

    def _dtypes(self) -> Iterable[str]:
        """Those of its inputs and weights."""
        raise NotImplementedError

    training = False
    _module = "the module that it was made of"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self(*inputs, **named)  # type: ignore[operator]

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        if mode:
            what = f"{self._said()} is for inference: its kernels have no backward"
            raise UsageError(what, "train the module that it was made of, and compile that again")
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        return self.train(requires_grad)

    def to(self, *wanted: Any, **named: Any) -> Self:
        """Itself, where it is there and so. Raises :class:`UsageError` for another device or dtype."""
        import torch

        for x in (*wanted, named.get("device"), named.get("dtype")):
            like: Any = x
            if isinstance(x, torch.dtype):
                self._only_of(str(x).removeprefix("torch."))
            elif isinstance(x, torch.Tensor):
                self.to(like.device, like.dtype)
            elif isinstance(x, str | int | torch.device) and not isinstance(x, bool):
                self._only_on(torch.device(like))
        return self

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        return self.to("cuda" if device is None else device)

    def half(self) -> Self:
        return self._only_of("float16")

    def bfloat16(self) -> Self:
        return self._only_of("bfloat16")

    def float(self) -> Self:
        return self._only_of("float32")

    def double(self) -> Self:
        return self._only_of("float64")

    def _only_on(self, device: Any) -> None:
        import torch

        place = self._place()
        own = torch.device(place) if place else None
        here = own is not None and own.type == device.type and (own.index == device.index or None in (own.index, device.index))
        if not here:
            where = f"runs on {own}" if own else "is compiled only"
            raise UsageError(
                f"{self._said()} {where}: its kernels cannot be moved to {device}",
                f"compile the module there: fuser.compile(module, inputs, device='{device}')",
            )

    def _only_of(self, dtype: str) -> Self:
        others = sorted({*self._dtypes()} & {*FLOAT_DTYPES} - {dtype})
        if others:
            way = f"module, inputs, dtype='{dtype}'" if dtype in NARROW else f"module.to(torch.{dtype}), inputs"
            raise UsageError(
                f"{self._said()} is compiled for {', '.join(others)}: its kernels cannot be converted to {dtype}",
                f"compile it so: fuser.compile({way})",
            )
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        parts = any(part in name for part in PARTS)
        way = "compile that again where they have changed" if parts else "it takes its arguments and returns what that returns"
        raise MissingError(f"{self._said()} is a function and has no {name!r}", f"ask {self._module}; {way}")
