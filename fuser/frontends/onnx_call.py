"""One node of an ONNX graph, as the rules of the import see it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.files import counted
from fuser.frontends.composed import reshaped
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array


@dataclass(frozen=True)
class Call:
    """``args`` are tensors of the program, known arrays, or None for an input that is left out; ``attrs`` those that the node
    has; ``opset`` is the version of ONNX; ``results`` the number of outputs that are read; ``constant`` makes a known array a
    tensor of the program; ``dtypes`` has those that numpy lacks, by the identity of a known array."""

    b: Builder
    op: str
    args: tuple[Any, ...]
    attrs: Mapping[str, Any]
    opset: int
    results: int
    constant: Callable[[Array], Ref]
    where: str
    dtypes: Mapping[int, str]

    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(
            f"{self.where} {what}", hint or "export the part of the model around it, or another form of this operator"
        )

    def given(self, i: int) -> bool:
        return i < len(self.args) and self.args[i] is not None

    def ref(self, i: int) -> Ref:
        """An input as a tensor of the program."""
        if not self.given(i):
            raise self.unsupported(f"lacks its input {i}")
        value = self.args[i]
        return value if isinstance(value, Ref) else self.constant(value)

    def dtype(self, i: int) -> str:
        """The dtype of an input."""
        value = self.args[i]
        return value.tensor.dtype if isinstance(value, Ref) else self.dtypes.get(id(value), str(value.dtype))

    @property
    def refs(self) -> list[Ref]:
        """All inputs."""
        return [self.ref(i) for i in range(len(self.args))]

    def filled(self, number: float, like: Ref) -> Ref:
        """A number as a tensor of one element."""
        return self.constant(np.array([number], like.tensor.dtype))

    def array(self, i: int, what: str) -> Array | None:
        """An input that must be known; None where it is left out."""
        if not self.given(i):
            return None
        if isinstance(self.args[i], Ref):
            raise self.unsupported(f"has {what} that is computed", "export with static shapes, at the sizes that you deploy")
        return self.args[i]

    def ints(self, i: int, name: str) -> tuple[int, ...] | None:
        """Integers that are an input, or in older versions an attribute."""
        found = self.array(i, name)
        if found is None:
            value = self.attrs.get(name)
            return None if value is None else tuple(value) if isinstance(value, (list, tuple)) else (int(value),)
        return tuple(int(n) for n in np.asarray(found).reshape(-1))

    def number(self, i: int, name: str) -> float | None:
        found = self.array(i, name)
        if found is None:
            return self.attrs.get(name)
        if found.size != 1:
            raise self.unsupported(f"has {name} of {found.size} elements")
        return found.reshape(-1)[0].item()  # a whole number of 64 bits keeps all of them

    def only(self, **defaults: Any) -> None:
        """These attributes have the values that the rule is for."""
        for name, wanted in defaults.items():
            value = self.attrs.get(name, wanted)
            value = value.decode() if isinstance(value, bytes) else value
            near = isinstance(wanted, float) and abs(float(value) - wanted) < 1e-5
            if not near and value != wanted:
                raise self.unsupported(f"has {name}={value}; only {wanted} is supported")

    def axis(self, default: int, rank: int) -> int:
        return self.axes((self.attrs.get("axis", default),), rank)[0]

    def axes(self, given: Iterable[int], rank: int) -> tuple[int, ...]:
        """Axes counted from the front. Raises where one of them is none of ``rank``, or is there twice."""
        given = tuple(given)
        found = tuple(a + rank if a < 0 else a for a in given)
        if any(not 0 <= a < rank for a in found) or len(set(found)) < len(found):
            raise self.unsupported(f"has the axes {list(given)} of {counted(rank, 'dimension')}", "export the model again")
        return found

    def vectors(self, places: Iterable[int], size: int) -> tuple[Ref, ...]:
        """Inputs of one number for each channel."""
        found = tuple(map(self.ref, places))
        if wrong := [x.shape for x in found if x.shape != (size,)]:
            raise self.unsupported(
                f"has parameters of the shape {wrong[0]} for {counted(size, 'channel')}", "export the model again"
            )
        return found

    def reshape(self, x: Ref, shape: tuple[int, ...]) -> Ref:
        return reshaped(self.b, x, shape)
