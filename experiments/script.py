"""How a module that is started by itself ends: with the exit code and the lines that the command has, never with a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fuser import cli
from fuser.interrupts import said

INTERRUPTED = 130


def own_cache() -> None:
    """Caches of a run lie in the folder for temporary files, not among the user's, unless ``MUFUSER_CACHE`` names one."""
    os.environ.setdefault("MUFUSER_CACHE", str(Path(os.environ.get("TMPDIR", "/tmp")) / "mufuser"))


def script(main: Callable[[], int | None]) -> NoReturn:
    """Call ``main`` and exit; where it belongs to the module that Python was started with, signals and closed pipes end it as
    they end a verb."""
    if main.__module__ == "__main__":
        sys.exit(cli.script(main))
    try:
        sys.exit(cli.reported(main))
    except KeyboardInterrupt as error:
        sys.exit(said(error))
