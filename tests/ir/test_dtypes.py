"""Rounding to a dtype."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fuser.ir.dtypes import MANY
from fuser.ir.dtypes import rounded


@pytest.mark.filterwarnings("ignore:overflow")
def test_halves_are_the_same_whoever_rounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(MANY) * 10.0 ** rng.integers(-9, 6, MANY)).astype(np.float32)
    x[:6] = 65519.9, 65520.0, -np.inf, 2.0**-25, 3 * 2.0**-25, 1 + 2.0**-11
    theirs: Any = rounded(x, "float16")
    monkeypatch.delitem(sys.modules, "torch")
    mine = rounded(x, "float16")
    assert theirs.dtype == mine.dtype == np.float16 and theirs.tobytes() == mine.tobytes()
    assert rounded(x.reshape(256, -1).T, "float16").flags.f_contiguous
