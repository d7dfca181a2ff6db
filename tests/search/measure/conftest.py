"""One measuring process for all tests here: torch takes seconds to load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from search.measure.worker import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker("cpu", patience=30, slow_patience=3) as opened:
        yield opened
