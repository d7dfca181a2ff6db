"""The verifier against µGraphs written by hand: no wrong one is accepted, no right one refused."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.mirage.oracle import NotComputableError
from experiments.mirage.oracle import difference
from fuser.superopt.verify.verifier import verify
from tests.superopt.verify.corpus import RIGHT
from tests.superopt.verify.corpus import WRONG
from tests.superopt.verify.corpus import Case


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_wrong_ones_are_refused(case: Case) -> None:
    assert not (verdict := verify(case.program, case.graph)).accepted, f"{verdict}\n{case.graph}"


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_right_ones_are_accepted(case: Case) -> None:
    assert (verdict := verify(case.program, case.graph)).accepted, f"{verdict}\n{case.graph}"


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
