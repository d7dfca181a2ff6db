"""The verifier against µGraphs written by hand: no wrong one is accepted, no right one refused."""

from __future__ import annotations

import pytest

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
