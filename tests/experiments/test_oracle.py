"""The oracle of the mutation suite against µGraphs written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.mirage.oracle import NotComputableError
from experiments.mirage.oracle import difference
from tests.superopt.verify.corpus import RIGHT
from tests.superopt.verify.corpus import WRONG


@pytest.mark.slow
def test_the_cases_are_what_they_say() -> None:
    """In float64 at their real sizes, by code that shares nothing with the verifier."""
    for wrong in WRONG:
        try:
            assert difference(wrong.program, wrong.graph, np.random.default_rng(0), wrong.scale), f"{wrong} is right"
        except NotComputableError:
            continue
    for right in RIGHT:
        found = difference(right.program, right.graph.validate(), np.random.default_rng(0))
        assert not found, f"{right}: {found}"
