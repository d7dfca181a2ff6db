"""How a module that is started by itself ends: with the exit code and the lines that the command has, never with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from fuser.console import render_error
from fuser.errors import FuserError

INTERRUPTED = 130


def script(main: Callable[[], int | None]) -> NoReturn:
    """Call ``main`` and exit."""
    try:
        sys.exit(main() or 0)
    except FuserError as error:
        render_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
