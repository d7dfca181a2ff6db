"""Rules for one element of a result (column ``element`` of the op table): views, borders, indices; of windows
:mod:`fuser.ir.element_windows`."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.ir.places import Place
from fuser.ir.places import Truth
from fuser.ir.places import below
from fuser.ir.places import both
from fuser.ir.places import fixed
from fuser.ir.places import flat
from fuser.ir.places import inside
from fuser.ir.places import split
from fuser.ir.places import value

if TYPE_CHECKING:
    from fuser.ir.elements import Elements
    from fuser.ir.elements import Operand

At = tuple[Place, ...]
Attrs = Mapping[str, Any]
Rule = Callable[["Elements", Sequence["Operand"], Attrs, At], int]


def _with(at: Sequence[Place], axis: int, p: Place) -> At:
    return (*at[:axis], p, *at[axis + 1 :])


# Views and copies


def reshape(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    (x,), shape = xs, tuple(attrs["shape"])
    if [n for n in shape if n > 1] == [n for n in x.shape if n > 1]:  # no division, which only holds inside of the tensor
        longer = iter([p for p, n in zip(at, shape, strict=True) if n > 1])
        return x([next(longer) if n > 1 else fixed(0) for n in x.shape])
    return x(split(flat(at, shape), x.shape))


def transpose(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    return xs[0]([at[attrs["perm"].index(i)] for i in range(len(at))])


def broadcast(_: Elements, xs: Sequence[Operand], _attrs: Attrs, at: At) -> int:
    (x,) = xs
    mine = at[len(at) - len(x.shape) :]
    return x([fixed(0) if n == 1 else p for p, n in zip(mine, x.shape, strict=True)])


def repeat(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    axis = attrs["axis"] % len(at)
    return xs[0](_with(at, axis, at[axis] // attrs["times"]))


def sliced(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    axis = attrs["axis"] % len(at)
    return xs[0](_with(at, axis, at[axis] + attrs["start"]))


def concat(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    """The last part, or where the place is in front of it the one before, and so on."""
    axis = attrs["axis"] % len(at)
    starts, stop = [], 0
    for x in xs:
        starts.append(stop)
        stop += x.shape[axis]
    parts = []
    for x, start in zip(xs, starts, strict=True):
        here = inside(at[axis], start, start + x.shape[axis])
        if here is not False:
            parts.append((start + x.shape[axis], x(_with(at, axis, at[axis] - start), here), x.dtype))
    _, found, dtype = parts[-1]
    for end, part, _ in reversed(parts[:-1]):
        found = e.choose(below(at[axis], end), part, found, dtype)
    return found


def flip(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    dims = {d % len(at) for d in attrs["dims"]}
    return xs[0]([-p + (n - 1) if i in dims else p for i, (p, n) in enumerate(zip(at, xs[0].shape, strict=True))])


def diagonal(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    (x,) = xs
    rank, offset = len(x.shape), attrs.get("offset", 0)
    first, second = attrs.get("dim1", 0) % rank, attrs.get("dim2", 1) % rank
    rest = iter(at[:-1])
    places = {first: at[-1] + max(-offset, 0), second: at[-1] + max(offset, 0)}
    return x([places[i] if i in places else next(rest) for i in range(rank)])


def triangle(hidden: float, above: bool = False) -> Rule:
    """``hidden`` beyond column = row + offset, or (``above``) up to there. What is not loaded there cannot be NaN."""

    def rule(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
        (x,) = xs
        end = at[-2] + int(attrs.get("offset", 0)) + 1
        none = e.number(hidden, x.dtype)
        if above:
            return e.choose(below(at[-1], end), none, x(at), x.dtype)
        seen = below(at[-1], end)
        return e.choose(seen, x(at, seen), none, x.dtype)

    return rule


# Borders


def borders(x: Sequence[int], padding: Sequence[int]) -> list[tuple[int, int]]:
    """What stands before and behind each axis: torch names the last one first."""
    pairs = [*zip(padding[::2], padding[1::2], strict=True)][::-1]
    return [(0, 0)] * (len(x) - len(pairs)) + pairs


def reflection(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    """Counted from either end as if the axis were a mirror."""
    (x,) = xs
    moved = [p - a for p, (a, _) in zip(at, borders(x.shape, attrs["padding"]), strict=True)]
    return x([-((-p.magnitude() + (n - 1)).magnitude()) + (n - 1) for p, n in zip(moved, x.shape, strict=True)])


def replication(_: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    (x,) = xs
    moved = [p - a for p, (a, _) in zip(at, borders(x.shape, attrs["padding"]), strict=True)]
    return x([p.at_least(0).at_most(n - 1) for p, n in zip(moved, x.shape, strict=True)])


# Elements that an index names


def _named(e: Elements, index: Operand, at: Sequence[Place], extent: int, wraps: bool = False) -> tuple[Place, Truth]:
    """The place that an element of a tensor of whole numbers names along an axis, and whether there is one: what names none is
    taken for the nearest, so that nothing outside of a tensor is read."""
    mine = at[len(at) - len(index.shape) :]
    found = index([fixed(0) if n == 1 else p for p, n in zip(mine, index.shape, strict=True)])
    if wraps:
        other = e.apply("add", found, e.number(extent, index.dtype), dtype=index.dtype)
        less = e.apply("lt", found, e.number(0, index.dtype), dtype="bool")
        found = e.apply("where", less, other, found, dtype=index.dtype)
    return e.read(found, extent), inside(value(found, *_bounds(index.dtype)), 0, extent)


def _bounds(dtype: str) -> tuple[int, int]:
    """The least and the largest whole number of a dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _looked_up(e: Elements, x: Operand, at: At, there: Truth) -> int:
    """The element, or what says that there is none: NaN, the least of whole numbers, the largest of those without a sign."""
    none = math.nan if "float" in x.dtype else 1 if x.dtype == "bool" else _bounds(x.dtype)[x.dtype[0] == "u"]
    return e.choose(there, x(at), e.number(none, x.dtype), x.dtype)


def index(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    x, *indices = xs
    dims = attrs["dims"]
    first, rank = dims[0], max(len(i.shape) for i in indices)
    inner = at[first : first + rank]
    named = [_named(e, i, inner, x.shape[d], wraps=True) for i, d in zip(indices, dims, strict=True)]
    places, there = [p for p, _ in named], reduce(both, [t for _, t in named])
    return _looked_up(e, x, (*at[:first], *places, *at[first + rank :]), there)


def index_select(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    x, i = xs
    axis = attrs["dim"] % len(at)
    place, there = _named(e, i, (at[axis],), x.shape[axis])
    return _looked_up(e, x, _with(at, axis, place), there)


def gather(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    x, i = xs
    axis = attrs["dim"] % len(at)
    place, there = _named(e, i, at, x.shape[axis])
    return _looked_up(e, x, _with(at, axis, place), there)


def embedding(e: Elements, xs: Sequence[Operand], _: Attrs, at: At) -> int:
    table, i = xs
    rank = len(i.shape)
    place, there = _named(e, i, at[:rank], table.shape[0])
    return _looked_up(e, table, (place, *at[rank:]), there)
