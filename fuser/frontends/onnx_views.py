"""ONNX's views and copies: rules from a node to operators of a program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser.files import counted
from fuser.frontends.composed import cut
from fuser.frontends.composed import strided
from fuser.frontends.composed import tiled
from fuser.frontends.onnx_call import Call
from fuser.ir.builder import Ref


def _reshape(c: Call) -> Ref:
    x, wanted = c.ref(0), c.ints(1, "shape")
    assert wanted is not None
    if not c.attrs.get("allowzero"):
        wanted = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(wanted))
    if -1 in wanted:
        rest = math.prod(x.shape) // max(1, math.prod(n for n in wanted if n != -1))
        wanted = tuple(rest if n == -1 else n for n in wanted)
    return c.reshape(x, wanted)


def _flatten(c: Call) -> Ref:
    x = c.ref(0)
    at = c.attrs.get("axis", 1)
    at = at if at == len(x.shape) else c.axis(1, len(x.shape))  # behind the last one, too
    return c.reshape(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])))


def _squeeze(c: Call) -> Ref:
    x, axes = c.ref(0), c.ints(1, "axes")
    gone = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else c.axes(axes, len(x.shape))
    return c.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def _unsqueeze(c: Call) -> Ref:
    x, axes = c.ref(0), c.ints(1, "axes") or ()
    rank = len(x.shape) + len(axes)
    new, rest = c.axes(axes, rank), iter(x.shape)
    return c.reshape(x, tuple(1 if i in new else next(rest) for i in range(rank)))


def _transpose(c: Call) -> Ref:
    x = c.ref(0)
    perm = c.axes(c.attrs.get("perm", reversed(range(len(x.shape)))), len(x.shape))
    if len(perm) != len(x.shape):
        raise c.unsupported(f"orders {counted(len(perm), 'axis', 'axes')} of {len(x.shape)}", "export the model again")
    return x if perm == tuple(range(len(perm))) else x.transpose(*perm)


def _expand(c: Call) -> Ref:
    x, shape = c.ref(0), np.broadcast_shapes(c.ref(0).shape, c.ints(1, "shape") or ())
    return x if x.shape == shape else c.b.op("broadcast", x, shape=shape)


def _concat(c: Call) -> Ref:
    full = [i for i, x in enumerate(c.args) if isinstance(x, Ref) or x.size]  # a list that nothing was put into, say
    parts = [c.ref(i) for i in full]
    return parts[0] if len(parts) == 1 else c.b.op("concat", *parts, axis=c.axis(0, len(parts[0].shape)))


def _split(c: Call) -> list[Ref]:
    x = c.ref(0)
    axis = c.axis(0, len(x.shape))
    sizes = c.ints(1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // c.results)
        sizes = tuple(min(each, x.shape[axis] - i * each) for i in range(c.results))
    ends = np.cumsum((0, *sizes))
    return [cut(c.b, x, axis, int(a), int(b)) for a, b in itertools.pairwise(ends)]


def _slice(c: Call) -> Ref:
    x = c.ref(0)
    starts, ends = c.ints(1, "starts") or (), c.ints(2, "ends") or ()
    axes = c.axes(c.ints(3, "axes") or range(len(starts)), len(x.shape))
    steps = c.ints(4, "steps") or (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = range(*slice(start, end, step).indices(x.shape[axis]))
        if not at:
            raise c.unsupported("takes nothing")
        x = strided(c.b, x, axis, min(at[0], at[-1]), len(at), abs(step))
        x = c.b.op("flip", x, dims=(axis,)) if step < 0 and len(at) > 1 else x
    return x


VIEWS: dict[str, Callable[[Call], Any]] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Expand": _expand, "Tile": lambda c: tiled(c.b, c.ref(0), c.ints(1, "repeats") or ()), "Concat": _concat, "Split": _split,
    "Slice": _slice,
}  # fmt: skip
