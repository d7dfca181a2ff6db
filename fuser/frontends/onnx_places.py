"""ONNX's lookups, orders and scatters: rules from a node to operators of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.files import counted
from fuser.frontends.composed import cut
from fuser.frontends.onnx_call import Call
from fuser.ir.builder import Ref
from fuser.ir.ops import Array


def _counted(c: Call, i: int, n: int) -> Ref:
    """Indices as they count from the front: known ones here, others by what is added to the negative ones. Those that name none
    of ``n`` stay so."""
    if not isinstance(c.args[i], Ref):
        known = np.asarray(c.args[i]).astype(np.int64)
        return c.constant(np.where(known < 0, known + n, known))
    index = c.ref(i)
    zero, extent = (c.constant(np.array([x], index.tensor.dtype)) for x in (0, n))
    return c.reshape(c.b.op("where", c.b.op("lt", index, zero), index + extent, index), index.shape)


def _known(c: Call, index: Array, n: int) -> Array:
    """Known indices of ``n`` elements, from the front."""
    index = np.asarray(index).astype(np.int64)
    if index.size and not -n <= index.min() <= index.max() < n:
        wrong = int(index.min()) if index.min() < -n else int(index.max())
        raise c.unsupported(f"has the index {wrong} of an axis of {n}")
    return index % n


def _gather(c: Call) -> Ref:
    x = c.ref(0)
    axis = c.axis(0, len(x.shape))
    if isinstance(c.args[1], Ref):
        if axis == 0 and len(x.shape) == 2:
            return c.b.op("embedding", x, _counted(c, 1, x.shape[0]), dtype=x.tensor.dtype)
        return c.b.op("index", x, c.ref(1), dims=(axis,))
    index = _known(c, c.args[1], x.shape[axis])
    run = index.reshape(-1)
    if run.size and np.array_equal(run, run[0] + np.arange(run.size)):
        part = cut(c.b, x, axis, int(run[0]), int(run[-1]) + 1)
        return c.reshape(part, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
    return c.b.op("index", x, c.constant(index), dims=(axis,))


def _along(c: Call, axis: int) -> Ref:
    """Indices along an axis, in a tensor of as many dimensions that is no larger along the others."""
    x, shape = c.ref(0), tuple(c.args[1].shape)
    if len(shape) != len(x.shape) or any(n > x.shape[i] for i, n in enumerate(shape) if i != axis):
        raise c.unsupported(f"has the indices {shape} of {x.shape} along the axis {axis}", "export the model again")
    return _counted(c, 1, x.shape[axis])


def _gather_elements(c: Call) -> Ref:
    x = c.ref(0)
    axis = c.axis(0, len(x.shape))
    return c.b.op("gather", x, _along(c, axis), dim=axis)


def _columns(c: Call) -> list[Ref]:
    """Places as an index of each leading axis."""
    x = c.ref(0)
    if isinstance(c.args[1], Ref):
        places = c.ref(1)
        *lead, count = places.shape
        return [c.reshape(cut(c.b, places, len(lead), i, i + 1), tuple(lead)) for i in range(count)]
    return [c.constant(_known(c, c.args[1][..., i], x.shape[i])) for i in range(c.args[1].shape[-1])]


def _gather_nd(c: Call) -> Ref:
    """By places one after the other along the leading axes."""
    c.only(batch_dims=0)
    places = _columns(c)
    return c.b.op("index", c.ref(0), *places, dims=tuple(range(len(places))))


def _scatter_elements(c: Call) -> Ref:
    x = c.ref(0)
    axis = c.axis(0, len(x.shape))
    reduce = c.attrs.get("reduction", b"none").decode()
    joined = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    index, src = _along(c, axis), c.ref(2)
    if src.shape != index.shape:
        raise c.unsupported(f"has the indices {index.shape} for the elements {src.shape}", "export the model again")
    if reduce == "none":
        return c.b.op("scatter", x, index, src, dim=axis)
    return c.b.op("scatter_reduce", x, index, src, dim=axis, reduce=joined[reduce])


def _scatter_nd(c: Call) -> Ref:
    places = _columns(c)
    reduce = c.attrs.get("reduction", b"none")
    if reduce not in (b"none", b"add"):
        raise c.unsupported(f"joins by {reduce.decode()}")
    return c.b.op("index_put", c.ref(0), c.ref(2), *places, dims=tuple(range(len(places))), accumulate=reduce == b"add")


def _top_k(c: Call) -> tuple[Ref, Ref]:
    """Of equal elements the one in front comes first, which torch's own does not promise."""
    x, (k,) = c.ref(0), c.ints(1, "k") or (1,)
    axis = c.axis(-1, len(x.shape))
    if not 0 < k <= x.shape[axis]:
        raise c.unsupported(f"takes {k} of {counted(x.shape[axis], 'element')}", "export the model again")
    order = c.b.op("argsort", x, dim=axis, descending=bool(c.attrs.get("largest", 1)), dtype="int64")
    places = cut(c.b, order, axis, 0, k)
    return c.b.op("gather", x, places, dim=axis), places


def _one_hot(c: Call) -> Ref:
    """Whether an index is that of each place along a new axis."""
    index, depth, values = c.ref(0), int(c.number(1, "depth") or 0), c.array(2, "values")
    assert values is not None
    axis = c.axis(-1, len(index.shape) + 1)
    lead, rest = index.shape[:axis], index.shape[axis:]
    at = np.arange(depth, dtype=index.tensor.dtype).reshape(depth, *(1,) * len(rest))
    wanted = c.reshape(_counted(c, 0, depth), (*lead, 1, *rest))
    hit = c.b.op("eq", c.b.op("broadcast", wanted, shape=(*lead, depth, *rest)), c.constant(at))
    off, on = (c.constant(np.asarray(values)[i : i + 1]) for i in (0, 1))
    return c.b.op("where", hit, on, off)


PLACES: dict[str, Callable[[Call], Any]] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd, "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements, "ScatterND": _scatter_nd, "TopK": _top_k, "OneHot": _one_hot,
}  # fmt: skip
