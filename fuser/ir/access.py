"""How axes index device tensors, and windows of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any


@dataclass(frozen=True)
class Window:
    """A box of a device tensor of ``shape``: what an access reads begins at the element ``starts``. With ``view`` the box is one
    of the tensor reshaped to that: every second half of the columns, say."""

    tensor: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    view: tuple[int, ...] = ()

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape in which the box lies."""
        return self.view or self.shape

    @property
    def offset(self) -> int:
        """Elements from the tensor's first one to the window's."""
        return sum(x * math.prod(self.seen[i + 1 :]) for i, x in enumerate(self.starts))


@dataclass(frozen=True)
class Access:
    """How axes index a device tensor: each dimension is the row-major product of its axes; an empty product has extent 1.

    A dimension of several axes is what a reshape leaves behind: ``(("b",), ("s",), ("head", "d"))`` reads [b, s, head·d].
    What a slice leaves behind is a ``window``: ``tensor`` then names the slice (``W[3]``), and the window says where it lies
    in which device tensor.

    With a ``pitch`` rows lie so many elements apart, and what is between two of them is zero: 197 columns in rows of 200, whose
    first elements are aligned. It is a matter of memory alone, and nothing that is computed depends on it.
    """

    tensor: str
    dims: tuple[tuple[str, ...], ...]
    window: Window | None = None
    pitch: int = 0

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for dim in self.dims for a in dim)

    def along(self, axes: Collection[str]) -> bool:
        """Whether what lies side by side differs along these axes alone; so does a single element."""
        return set(self.axes[-1:]) <= set(axes)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"tensor": self.tensor, "dims": [list(d) for d in self.dims]}
        if w := self.window:
            out["window"] = {"tensor": w.tensor, "shape": list(w.shape), "starts": list(w.starts)}
            if w.view:
                out["window"]["view"] = list(w.view)
        if self.pitch:
            out["pitch"] = self.pitch
        return out

    @property
    def source(self) -> str:
        """The device tensor in memory."""
        return self.window.tensor if self.window else self.tensor

    def shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Of what is accessed: the tensor, or the window of it."""
        return tuple(math.prod(extents[a] for a in dim) for dim in self.dims)

    def whole(self, extents: Mapping[str, int]) -> tuple[bool, ...]:
        """Of each dimension, whether it is all of the device tensor's."""
        if self.window and self.window.view:
            return (False,) * len(self.dims)
        starts = self.window.starts if self.window else (0,) * len(self.dims)
        own, source = self.shape(extents), self.source_shape(extents)
        return tuple(x == 0 and n == most for x, n, most in zip(starts, own, source, strict=True))

    def source_shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Of the device tensor."""
        return self.window.shape if self.window else self.shape(extents)

    def memory_shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Of the device tensor as it lies in memory, with what is between its rows."""
        shape = self.source_shape(extents)
        return (*shape[:-1], self.pitch) if self.pitch else shape

    def within(self, other: Access, extents: Mapping[str, int]) -> bool:
        """Whether all that is accessed is part of what another access of the same tensor has."""
        if self.source != other.source or other.window is None:
            return self.source == other.source
        mine, theirs = self.window or Window(self.source, self.shape(extents), (0,) * len(self.dims)), other.window
        if mine.seen != theirs.seen:
            return False
        ends = zip(mine.starts, self.shape(extents), theirs.starts, other.shape(extents), strict=True)
        return all(low <= start and start + n <= low + most for start, n, low, most in ends)

    def resized(self, extents: Mapping[str, int], step: int) -> Access:
        """The access at other sizes: rows begin at multiples of ``step`` elements."""
        columns = math.prod(extents[a] for a in self.dims[-1])
        return replace(self, pitch=-(-columns // step) * step)

    def strides(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Elements between neighbours along each axis, for a row-major tensor."""
        found, outer = dict[str, int](), 1
        lies = self.window.seen if self.window else self.memory_shape(extents)
        for dim, extent in zip(reversed(self.dims), reversed(lies), strict=True):
            step = outer
            for axis in reversed(dim):
                found[axis] = step
                step *= extents[axis]
            outer *= extent
        return found

    def __str__(self) -> str:
        starts = self.window.starts if self.window else (0,) * len(self.dims)
        dims = ("·".join(d) or ("1" if not self.window else "") for d in self.dims)
        places = (f"{x}+{d}" if x and d else d or str(x) for x, d in zip(starts, dims, strict=True))
        view = f"({','.join(map(str, self.window.view))})" if self.window and self.window.view else ""
        pitch = f" in rows of {self.pitch}" if self.pitch else ""
        return f"{self.source}{view}[{', '.join(places)}]{pitch}"
