"""What becomes of dimensions under views and copies: one rule an operator, in the terms of whoever asks. Which axes a result has,
where it is cut, and what of it is real when it is padded follow from the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol
from typing import TypeVar

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]
D = TypeVar("D")


class Terms(Protocol[D]):
    """What one dimension is to whoever asks, and what becomes of it."""

    def regrouped(self, dims: Sequence[D], shape: Shape) -> Sequence[D]:
        """The same elements, row after row, under another shape."""
        ...

    def stretched(self, dims: Sequence[D], shape: Shape) -> Sequence[D]:
        """Broadcast."""
        ...

    def repeated(self, dim: D, times: int) -> D:
        """Each element ``times`` times, side by side."""
        ...

    def part(self, dim: D, start: int, stop: int) -> D: ...

    def joined(self, operands: Sequence[Sequence[D]], axis: int, shape: Shape) -> Sequence[D]:
        """Operands behind each other along an axis."""
        ...


def regroup(of: Terms[D], xs: Sequence[Sequence[D]], _attrs: Attrs, shape: Shape) -> Sequence[D]:
    return of.regrouped(xs[0], shape)


def permute(_of: Terms[D], xs: Sequence[Sequence[D]], attrs: Attrs, _shape: Shape) -> Sequence[D]:
    return [xs[0][i] for i in attrs["perm"]]


def stretch(of: Terms[D], xs: Sequence[Sequence[D]], _attrs: Attrs, shape: Shape) -> Sequence[D]:
    return of.stretched(xs[0], shape)


def repeat(of: Terms[D], xs: Sequence[Sequence[D]], attrs: Attrs, _shape: Shape) -> Sequence[D]:
    x, at = xs[0], attrs["axis"] % len(xs[0])
    return [*x[:at], of.repeated(x[at], attrs["times"]), *x[at + 1 :]]


def take(of: Terms[D], xs: Sequence[Sequence[D]], attrs: Attrs, _shape: Shape) -> Sequence[D]:
    x, at = xs[0], attrs["axis"] % len(xs[0])
    return [*x[:at], of.part(x[at], attrs["start"], attrs["stop"]), *x[at + 1 :]]


def join(of: Terms[D], xs: Sequence[Sequence[D]], attrs: Attrs, shape: Shape) -> Sequence[D]:
    return of.joined(xs, attrs["axis"] % len(shape), shape)
