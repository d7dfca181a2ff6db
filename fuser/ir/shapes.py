"""Shape rules of the op table: from the shapes of the operands and the attributes to that of the result. All raise
:class:`ProgramError` where the shapes do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import ProgramError

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]


def broadcast_shapes(shapes: Sequence[Shape], what: str) -> Shape:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise ProgramError(f"{what}: the shapes {', '.join(map(str, shapes))} do not broadcast") from None


def first(shapes: Sequence[Shape], _attrs: Attrs) -> Shape:
    return shapes[0]


def given(_shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs["shape"])


def folded(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    axes = {int(i) % len(x) for i in attrs["axis"]}
    return tuple(1 if i in axes else e for i, e in enumerate(x) if attrs.get("keepdims") or i not in axes)


def matmul(shapes: Sequence[Shape], _attrs: Attrs) -> Shape:
    a, b = shapes
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ProgramError(f"matmul of {a} and {b}: the contracted extents {a[-1:]} and {b[-2:-1]} differ")
    return (*broadcast_shapes([a[:-2], b[:-2]], "matmul"), a[-2], b[-1])


def reshape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, shape = shapes[0], tuple(attrs["shape"])
    if math.prod(shape) != math.prod(x):
        raise ProgramError(f"reshape of {x} to {shape}: the numbers of elements differ")
    return shape


def transpose(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, perm = shapes[0], tuple(attrs["perm"])
    if sorted(perm) != list(range(len(x))):
        raise ProgramError(f"transpose of {x} by {perm}: not a permutation")
    return tuple(x[i] for i in perm)


def broadcast(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if broadcast_shapes([shapes[0], tuple(attrs["shape"])], "broadcast") != tuple(attrs["shape"]):
        raise ProgramError(f"broadcast of {shapes[0]} to {attrs['shape']}")
    return tuple(attrs["shape"])


def repeat(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    axis = attrs["axis"] % len(x)
    return (*x[:axis], x[axis] * attrs["times"], *x[axis + 1 :])


def slice_of(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    axis = attrs["axis"] % len(x)
    if not 0 <= attrs["start"] < attrs["stop"] <= x[axis]:
        raise ProgramError(f"slice [{attrs['start']}:{attrs['stop']}] of an axis of extent {x[axis]}")
    return (*x[:axis], attrs["stop"] - attrs["start"], *x[axis + 1 :])


def concat(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    axis = attrs["axis"] % len(x)
    if any(len(s) != len(x) or s[:axis] + s[axis + 1 :] != x[:axis] + x[axis + 1 :] for s in shapes):
        raise ProgramError(f"concat of {shapes} along {axis}: the other extents differ")
    return (*x[:axis], sum(s[axis] for s in shapes), *x[axis + 1 :])


def attention(shapes: Sequence[Shape], _attrs: Attrs) -> Shape:
    q, k, v = shapes[:3]
    if q[-1] != k[-1] or k[-2] != v[-2]:
        raise ProgramError(f"attention of {q}, {k}, {v}: head sizes or key counts differ")
    return (*broadcast_shapes([q[:-2], k[:-2], v[:-2]], "attention"), q[-2], v[-1])


BY_KIND: dict[str, Callable[[Sequence[Shape], Attrs], Shape]] = {"reduce": folded, "opaque": given}
"""The rules of kinds of operators; element-wise operators broadcast."""
