"""What Ctrl-C does while a command is being loaded: it ends the process at once, for nothing has begun. Little is imported."""

from __future__ import annotations

import os
import signal


def quietly() -> None:
    """Until the command has handlers of its own (:func:`fuser.interrupts.as_process`)."""
    signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
