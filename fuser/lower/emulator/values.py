"""Tensors of a group's registers, views of shared memory, descriptors and pointers, on numpy.

A tensor carries its layout, so that operands of one operation have to agree in it, as the compiler asks; what a product is still
adding to must not be read before it is waited for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.ir.dtypes import rounded
from fuser.ir.program import FLOATS
from fuser.lower.descriptors import Descriptor
from fuser.lower.emulator.machine import Hazard
from fuser.lower.emulator.machine import Machine
from fuser.lower.emulator.machine import Slot
from fuser.lower.emulator.machine import Work


def held(data: Any, dtype: str) -> Any:
    """Numbers as a dtype holds them; floats are kept in float32."""
    if dtype in FLOATS:
        with np.errstate(all="ignore"):
            return np.asarray(rounded(np.asarray(data, np.float32), dtype), np.float32)
    return np.asarray(data).astype(bool if dtype == "int1" else np.int64)


@dataclass(frozen=True, eq=False)
class Tensor:
    """``under``: the product that is adding to it; ``data`` is then a cell that holds the result when that has ended."""

    data: Any
    dtype: str
    layout: Any = None
    under: Work | None = None

    @property
    def now(self) -> Any:
        if self.under is not None:
            raise Hazard(f"the result of {self.under.what} is used before it is waited for")
        return self.data

    def to(self, dtype: str) -> Tensor:
        return replace(self, data=held(self.now, dtype), dtype=dtype)

    def __getitem__(self, index: tuple[Any, ...]) -> Tensor:
        layout = self.layout
        for i, x in enumerate(index):
            if x is None:
                if layout is not None and (layout[0] != "slice" or layout[1] != i):
                    raise Hazard(f"a tensor of layout {layout} gets dimension {i}, which is not the one that it lost")
                layout = layout and layout[2]
        return replace(self, data=self.now[index], layout=layout)


def dtype_of(*xs: Any) -> str:
    kinds = [x.dtype for x in xs if isinstance(x, Tensor)]
    found = next((d for d in ("float32", "float16", "bfloat16", "int64", "int32") if d in kinds), "int1")
    if found.startswith("int") and any(isinstance(x, float) for x in xs):
        return "float32"
    return "int32" if found == "int1" and any(isinstance(x, int) and not isinstance(x, bool) for x in xs) else found


def layout_of(*xs: Any) -> Any:
    """The one layout of tensors that meet."""
    found = [x.layout for x in xs if isinstance(x, Tensor) and x.layout is not None]
    if any(f != found[0] for f in found):
        raise Hazard(f"tensors of different layouts meet: {' and '.join(map(str, dict.fromkeys(found)))}")
    return found[0] if found else None


def numbers(x: Any) -> Any:
    return x.now if isinstance(x, Tensor) else x


def apply(f: Callable[..., Any], *xs: Any, dtype: str = "") -> Any:
    """An operation element by element; of numbers it is a number."""
    if not any(isinstance(x, Tensor) for x in xs):
        return f(*xs)
    kind = dtype or dtype_of(*xs)
    wide = [np.float32(x) if isinstance(x, float) else numbers(x) for x in xs]
    with np.errstate(all="ignore"):
        return Tensor(held(f(*wide), kind), kind, layout_of(*xs))


def _define(name: str, f: Callable[..., Any], dtype: str = "") -> None:
    setattr(Tensor, f"__{name}__", lambda a, b: NotImplemented if isinstance(b, Pointer) else apply(f, a, b, dtype=dtype))
    setattr(Tensor, f"__r{name}__", lambda a, b: apply(f, b, a, dtype=dtype))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
    _define(_name, getattr(operator, f"{_name}_" if _name in ("and", "or") else _name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _define(_name, getattr(operator, _name), "int1")
Tensor.__neg__ = lambda a: apply(operator.neg, a)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Pointer:
    """Elements of a device tensor by their numbers."""

    memory: Any
    dtype: str
    at: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return replace(self, at=apply(operator.add, offset, self.at))

    def to(self, dtype: str) -> Tensor:
        """As an address, which nothing here reads."""
        return Tensor(self.places(), dtype)

    def places(self) -> Any:
        return np.asarray(numbers(self.at))


@dataclass(frozen=True)
class View:
    """A slot of shared memory as somebody sees it; ``see`` makes that of its data."""

    machine: Machine
    slot: Slot
    see: Callable[[Any], Any] = lambda x: x

    @property
    def shape(self) -> tuple[int, ...]:
        return self.see(self.slot.data).shape

    def reshape(self, shape: list[int]) -> View:
        return replace(self, see=lambda x: self.see(x).reshape(shape))

    def slice(self, start: int, length: int, dim: int) -> View:
        return replace(self, see=lambda x: np.take(self.see(x), range(start, start + length), dim))

    def permute(self, order: tuple[int, ...]) -> View:
        return replace(self, see=lambda x: self.see(x).transpose(order))

    def load(self, layout: Any) -> Tensor:
        """By the threads of the group that runs."""
        self.machine.pause()
        return Tensor(np.array(self.see(self.machine.read(self.slot))), self.slot.dtype, layout)

    def store(self, x: Tensor) -> None:
        """By the threads of the group that runs."""
        self.machine.pause()
        if x.dtype != self.slot.dtype or x.now.shape != self.shape:
            raise Hazard(f"{x.dtype}{x.now.shape} is stored to a buffer of {self.slot.dtype}{self.shape}")

        def put() -> None:
            self.see(self.slot.data)[...] = x.now

        self.machine.write(self.slot, put)


@dataclass(frozen=True)
class Memory:
    """A device tensor that a descriptor describes."""

    data: Any
    dtype: str
    descriptor: Descriptor

    def box(self, starts: list[int]) -> tuple[Any, tuple[slice, ...]]:
        """The part of the tensor that is in a box, and where in the box it is."""
        d = self.descriptor
        strides = tuple(n * self.data.itemsize for n in d.strides)
        whole = np.lib.stride_tricks.as_strided(self.data[d.offset :], d.shape, strides)
        found, places = [], []
        for start, size, extent in zip(starts, d.box, d.shape, strict=True):
            lo, hi = max(start, 0), min(start + size, extent)
            found.append(slice(lo, max(hi, lo)))
            places.append(slice(lo - start, max(hi, lo) - start))
        return whole[tuple(found)], tuple(places)
