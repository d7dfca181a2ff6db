"""Library operators that move elements: what an index names, order, borders, sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import ProgramError
from fuser.ir import element_rules
from fuser.ir import element_windows
from fuser.ir.element_rules import borders
from fuser.ir.element_windows import each
from fuser.ir.elements import by_recipe
from fuser.ir.elements import by_rule
from fuser.ir.opdef import Array
from fuser.ir.opdef import Attrs
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import Shape
from fuser.ir.shapes import broadcast_shapes
from fuser.ir.shapes import first

# Elements that an index names


def _whole(index: Array) -> Array:
    return np.asarray(index).astype(np.int64)


def _indexed_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """The places that indices name in the axes ``dims``, which stand side by side, in the place of these axes."""
    x, dims = shapes[0], attrs["dims"]
    if any(j != i + 1 for i, j in itertools.pairwise(dims)):
        raise ProgramError(f"an index of the axes {dims} of {x}", "the axes of an index stand side by side")
    return (*x[: dims[0]], *broadcast_shapes(shapes[1 : 1 + len(dims)], "index"), *x[dims[-1] + 1 :])


def _selected(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, (n,) = shapes
    axis = attrs["dim"] % len(x)
    return (*x[:axis], n, *x[axis + 1 :])


def _at(indices: Sequence[Array], dims: Sequence[int]) -> tuple[Any, ...]:
    return (*(slice(None),) * dims[0], *map(_whole, indices))


def _index(x: Array, *indices: Array, dims: Sequence[int], **_: Any) -> Array:
    return x[_at(indices, dims)]


def _index_put(x: Array, values: Array, *indices: Array, dims: Sequence[int], accumulate: bool = False, **_: Any) -> Array:
    found = np.array(x)
    if accumulate:
        np.add.at(found, _at(indices, dims), values)
    else:
        found[_at(indices, dims)] = values
    return found


def _corner(x: Array, index: Array, dim: int) -> Array:
    """The part of a tensor that an index of the same rank reaches."""
    return x[tuple(slice(None) if i == dim % x.ndim else slice(n) for i, n in enumerate(index.shape))]


def _gather(x: Array, index: Array, *, dim: int, **_: Any) -> Array:
    return np.take_along_axis(_corner(x, index, dim), _whole(index), dim)


_JOINED: dict[str, Any] = {"sum": np.add, "mean": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def _scatter(x: Array, index: Array, src: Array, *, dim: int, reduce: str = "", include_self: bool = True, **_: Any) -> Array:
    """Elements of ``src`` at the places that an index of its rank names, in place of what is there or joined with it."""
    found = np.array(x)
    src = src[tuple(map(slice, index.shape))]
    at = [*np.indices(index.shape)]
    at[dim % x.ndim] = _whole(index)
    if not reduce:
        found[tuple(at)] = src
        return found
    if not include_self:
        limits = np.iinfo(found.dtype) if found.dtype.kind in "iu" else None
        least, most = (-math.inf, math.inf) if limits is None else (limits.min, limits.max)
        found[tuple(at)] = {"amax": least, "amin": most}.get(reduce, _JOINED[reduce].identity)
    _JOINED[reduce].at(found, tuple(at), src)
    if reduce == "mean":
        count = np.full(x.shape, float(include_self))
        np.add.at(count, tuple(at), 1.0)
        found = found / np.maximum(count, 1)
    return found


def _argsort(x: Array, *, dim: int, descending: bool = False, **_: Any) -> Array:
    """Places in order of the elements, those of equal ones as they stand; NaN counts as the largest."""
    if not descending:
        return np.argsort(x, dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - np.argsort(np.flip(x, dim), dim, kind="stable"), dim)


def _argtopk(x: Array, *, k: int, dim: int = -1, largest: bool = True, **_: Any) -> Array:
    return np.take(_argsort(x, dim=dim, descending=largest), range(k), dim)


def _shortened(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, k = shapes[0], attrs["k"]
    axis = attrs.get("dim", -1) % len(x)
    if not 1 <= k <= x[axis]:
        raise ProgramError(f"{k} of the {x[axis]} elements along axis {axis} of {x}")
    return (*x[:axis], k, *x[axis + 1 :])


def _masked_scatter(x: Array, mask: Array, source: Array, **_: Any) -> Array:
    found, where = np.array(x), np.broadcast_to(np.asarray(mask) != 0, x.shape)
    found[where] = np.ravel(source)[: int(where.sum())]
    return found


def _diagonal(x: Array, *, offset: int = 0, dim1: int = 0, dim2: int = 1, **_: Any) -> Array:
    return np.diagonal(x, offset, dim1, dim2)


def _diagonal_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return (
        np.broadcast_to(np.zeros(()), shapes[0])
        .diagonal(*(attrs.get(k, i) for i, k in enumerate(("offset", "dim1", "dim2"))))
        .shape
    )


# Borders and sizes of the trailing axes


def _padded_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(n + a + b for n, (a, b) in zip(shapes[0], borders(shapes[0], attrs["padding"]), strict=True))


def _padding(name: str, mode: Any, rule: Any) -> OpDef:
    def call(x: Array, *, padding: Sequence[int], **_: Any) -> Array:
        return np.pad(x, borders(x.shape, padding), mode)

    return OpDef(name, "library", 1, call, attrs=("padding",), torch=tuple(f"{name}{n}d" for n in (1, 2, 3)), shape=_padded_shape,
                 element=rule, flops=0, eager=f".{name}")  # fmt: skip


def _resized_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*shapes[0][: -len(attrs["output_size"])], *attrs["output_size"])


def _unfolded_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x, window = shapes[0], each(attrs["kernel_size"], 2, 1)
    return (*x[:-3], x[-3] * math.prod(window), math.prod(element_windows.places_of(x[-2:], attrs)))


def _folded_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    x = shapes[0]
    return (*x[:-2], x[-2] // math.prod(each(attrs["kernel_size"], 2, 1)), *attrs["output_size"])


_WINDOW = ("kernel_size", "dilation", "padding", "stride")


PLACES: tuple[OpDef, ...] = (
    OpDef("index", "library", -1, _index, attrs=("dims",), shape=_indexed_shape, flops=0,
          element=element_rules.index, eager=".index"),
    OpDef("index_put", "library", -1, _index_put, attrs=("dims", "accumulate"), optional=("accumulate",), shape=first, flops=0,
          eager=".index_put"),
    OpDef("index_select", "library", 2, lambda x, i, *, dim, **_: np.take(x, _whole(i), dim), attrs=("dim",), flops=0,
          torch=("index_select",), shape=_selected, element=element_rules.index_select, eager=".index_select"),
    OpDef("gather", "library", 2, _gather, attrs=("dim",), torch=("gather",), shape=lambda s, _: s[1], flops=0,
          element=element_rules.gather, eager=".gather"),
    OpDef("scatter", "library", 3, _scatter, attrs=("dim",), torch=("scatter.src",), shape=first, flops=0, eager=".scatter"),
    OpDef("scatter_reduce", "library", 3, _scatter, attrs=("dim", "reduce", "include_self"), optional=("include_self",),
          torch=("scatter_reduce.two",), shape=first, eager=".scatter_reduce"),
    OpDef("masked_scatter", "library", 3, _masked_scatter, torch=("masked_scatter",), shape=first, flops=0,
          eager=".masked_scatter"),
    OpDef("argsort", "library", 1, _argsort, attrs=("dim", "descending", "stable", "dtype"),
          optional=("descending", "stable", "dtype"), torch=("argsort",), shape=first, eager="argsort stable=True"),
    OpDef("argtopk", "library", 1, _argtopk, attrs=("k", "dim", "largest", "sorted", "dtype"),
          optional=("dim", "largest", "sorted", "dtype"), shape=_shortened, eager=".argtopk"),
    OpDef("diagonal", "library", 1, _diagonal, attrs=("offset", "dim1", "dim2"), optional=("offset", "dim1", "dim2"),
          torch=("diagonal",), shape=_diagonal_shape, element=element_rules.diagonal, flops=0),
    _padding("reflection_pad", "reflect", element_rules.reflection),
    _padding("replication_pad", "edge", element_rules.replication),
    OpDef("resize", "library", 1, by_rule("resize"), attrs=("output_size", "mode", "align_corners"), optional=("align_corners",),
          shape=_resized_shape, flops=8, element=element_windows.resized, eager=".resize"),
    OpDef("unfold", "library", 1, by_rule("unfold"), attrs=_WINDOW, optional=_WINDOW[1:], torch=("im2col",),
          shape=_unfolded_shape, flops=0, element=element_windows.unfold, eager="nn.functional.unfold"),
    OpDef("fold", "library", 1, by_rule("fold"), attrs=("output_size", *_WINDOW), optional=_WINDOW[1:], torch=("col2im",),
          shape=_folded_shape, element=element_windows.fold, eager="nn.functional.fold"),
    OpDef("elements", "library", -1, by_recipe, attrs=("program", "shape", "dtype"), shape=lambda _, a: tuple(a["shape"]),
          flops=0, eager=None),
)  # fmt: skip
