"""Which elements of a padded tensor are real: every dimension is a row-major product of factors, some of them a size that is only
known when the program is called."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from fuser.errors import UnsupportedError


@dataclass(frozen=True)
class Factor:
    """``extent`` elements; of a ``symbol`` only as many are real as the call says. ``zero``: the others are known to be 0."""

    extent: int
    symbol: str = ""
    zero: bool = False


Dim = tuple[Factor, ...]
Dims = tuple[Dim, ...]


def normal(dim: Iterable[Factor]) -> Dim:
    """Factors that are always whole, side by side, are one."""
    found: list[Factor] = []
    for f in dim:
        if f.symbol or not found or found[-1].symbol:
            found += [f] if f.symbol or f.extent != 1 else []
        else:
            found[-1] = Factor(found[-1].extent * f.extent)
    return tuple(found)


def whole(extent: int) -> Dim:
    return normal([Factor(extent)])


def extent(dim: Dim) -> int:
    return math.prod(f.extent for f in dim)


def symbols(dim: Dim) -> tuple[str, ...]:
    return tuple(f.symbol for f in dim if f.symbol)


def bare(dim: Dim) -> Dim:
    """Without what is known to be 0."""
    return tuple(replace(f, zero=False) for f in dim)


def zeroed(dim: Dim) -> Dim:
    return tuple(replace(f, zero=bool(f.symbol)) for f in dim)


def at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The extent at other sizes."""
    return math.prod(sizes.get(f.symbol, f.extent) if f.symbol else f.extent for f in dim)


def shape_at(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(at(d, sizes) for d in dims)


def aligned(operands: Sequence[Dims], rank: int) -> Dims:
    """The dimensions of what is computed element by element. Raises :class:`UnsupportedError` where operands differ in what is
    real."""
    found: list[Dim] = []
    for i in range(rank, 0, -1):
        here = [bare(d[-i]) for d in operands if len(d) >= i and extent(d[-i]) != 1]
        if any(d != here[0] for d in here):
            raise UnsupportedError("joins elements of which other ones are padded")
        found.append(here[0] if here else ())
    return tuple(found)


def reshaped(dims: Dims, shape: Sequence[int]) -> Dims:
    """The same elements under another shape. Raises :class:`UnsupportedError` where that divides a size that changes."""
    left = [f for d in dims for f in d]
    found: list[Dim] = []
    for size in shape:
        dim: list[Factor] = []
        while (have := math.prod(f.extent for f in dim)) != size or (left and left[0].extent == 1):
            if not left or size % have:
                raise UnsupportedError("divides a dimension that is padded")
            f, part = left.pop(0), size // have
            if part % f.extent == 0:
                dim.append(f)
            elif f.symbol or f.extent % part:
                raise UnsupportedError("divides a dimension that is padded")
            else:
                dim.append(Factor(part))
                left.insert(0, Factor(f.extent // part))
        found.append(normal(dim))
    return tuple(found)
