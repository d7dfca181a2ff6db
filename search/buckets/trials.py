"""Trials of operators that a library computes: do results that are real change with what is padded?"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from fuser.errors import FuserError
from fuser.errors import UnsupportedError
from fuser.errors import first_line
from fuser.ir.ops import Array
from search.buckets.places import Dims
from search.buckets.places import shape_at

LARGEST = 1 << 25
"""Most elements of a trial's operands."""
ROUNDS = 2

Function = Callable[[Sequence[Array]], Array]


def tried(
    functions: Sequence[Function],
    operands: Sequence[tuple[Dims, str]],
    result: Dims,
    sizes: Sequence[Mapping[str, int]],
) -> None:
    """Compute an operator, given as ``functions`` for each of two ``sizes``, with equal elements where both reach and others
    behind; ``operands`` are what is real of them and their dtypes. Raises :class:`UnsupportedError` where results that both reach
    differ."""
    if sum(math.prod(shape_at(d, sizes[0])) for d, _ in operands) > LARGEST:
        raise UnsupportedError("is of tensors too large to be tried out with padded ones")
    rng = np.random.default_rng(0)
    least = {s: min(n, sizes[1][s]) for s, n in sizes[0].items()}
    below = max(1, min(shape_at(operands[0][0], least), default=1))  # what indices may name
    for _ in range(ROUNDS):
        real = [_drawn(rng, _factors(d, least), t, below) for d, t in operands]
        found = []
        for function, at in zip(functions, sizes, strict=True):
            xs = []
            for x, (d, t) in zip(real, operands, strict=True):
                full = _drawn(rng, _factors(d, at), t, below)
                full[tuple(map(slice, x.shape))] = x
                xs.append(full.reshape(shape_at(d, at)))
            try:
                with np.errstate(all="ignore"):
                    y = function(xs)
            except (FuserError, ValueError, IndexError, RuntimeError, TypeError) as error:
                raise UnsupportedError(f"cannot be tried out with padded operands: {first_line(error)}") from error
            found.append(y[tuple(map(slice, shape_at(result, least)))])
        if not np.allclose(found[0], found[1], 1e-4, 1e-5, equal_nan=True):
            raise UnsupportedError("computes what is real from what is padded")


def _factors(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[f.symbol] if f.symbol else f.extent for d in dims for f in d)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, below: int) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return rng.integers(0, below, shape).astype(dtype)
    return rng.standard_normal(shape).astype(np.float32)
