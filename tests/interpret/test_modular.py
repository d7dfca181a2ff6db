"""Arithmetic of the verifier's fields."""

from __future__ import annotations

import numpy as np

from fuser.interpret.modular import mix


def test_a_single_number_is_mixed_as_one_of_many() -> None:
    many = np.array([5, 2**63 + 7], np.uint64)
    for x, mixed in zip(many, mix(many), strict=True):
        assert mix(np.array(x)) == mixed
