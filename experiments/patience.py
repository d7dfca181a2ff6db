"""An end to what takes too long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class _OverError(BaseException):
    """Time is over. No Exception, since what we run may catch those."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raises TimeoutError where it takes longer."""

    def ring(*_: object) -> None:
        raise _OverError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    except _OverError:
        raise TimeoutError(f"more than {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
