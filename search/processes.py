"""Processes of ours and Ctrl-C: a terminal sends it to all of them, and the one that the user started answers alone."""

from __future__ import annotations

import signal


def ignore_interrupts() -> None:
    """In a process that was started with interrupts held (:func:`fuser.interrupts.without_interrupts`)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
