"""Work that is begun before it is known to be wanted."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest

from search.ahead import Ahead


def test_the_result_is_waited_for() -> None:
    def work() -> int:
        time.sleep(0.05)
        return 3

    before = sys.getswitchinterval()
    several = [Ahead(work) for _ in range(3)]
    assert [begun.result() for begun in several] == [3, 3, 3]
    assert sys.getswitchinterval() == before


def test_what_the_work_raises_is_raised_where_it_is_asked_for() -> None:
    def work() -> int:
        raise ValueError("no")

    begun = Ahead(work)
    begun._thread.join()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            begun.result()


def test_what_is_given_up_ends() -> None:
    def work() -> int:
        while True:
            with suppress(Exception):  # as compilers have it around what may fail
                time.sleep(0.001)

    begun = Ahead(work)
    begun.stop()
    begun._thread.join(20.0)
    assert not begun._thread.is_alive()
    begun.stop()
