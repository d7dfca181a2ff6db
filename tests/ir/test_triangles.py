"""Triangles of matrices: exactly numpy's, whatever is masked, wherever the diagonal is."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.ir.elements import by_element
from fuser.ir.ops import OPS

SHAPES = ((1, 1), (4, 7), (2, 6, 3), (3, 1, 5), (2, 2, 5, 5))


@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_a_triangle_is_that_of_numpy(name: str, dtype: str, rng: np.random.Generator) -> None:
    for shape in SHAPES:
        x = rng.integers(0, 9, shape).astype(dtype)
        if x.dtype.kind == "f":
            x[rng.random(shape) < 0.5] = np.nan
            x[rng.random(shape) < 0.2] = -np.inf
        for offset in range(-shape[-2] - 1, shape[-1] + 2):
            wanted = np.tril(x, offset) if name == "tril" else np.triu(x, offset + 1)
            found = OPS[name].numpy(x, offset=offset)
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(by_element(OPS[name], (x,), {"offset": offset}), wanted)
