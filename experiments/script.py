"""How a module that is started by itself begins and ends: with the options that many have, and with the exit code and the lines
that the command has, never with a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import NoReturn

from fuser import cli
from fuser.interrupts import said

INTERRUPTED = 130


COMMON: Mapping[str, Mapping[str, Any]] = {
    "budget": {"type": float, "metavar": "SECONDS", "help": "time of the whole run (%(default)s)"},
    "device": {"default": "cuda", "choices": ("cuda", "cpu"), "help": "cpu: Triton's interpreter, to try a run out"},
    "known": {"type": Path, "action": "append", "default": [], "help": "rows of earlier runs, a file or folder"},
    "name": {"metavar": "NAME", "help": "of this run in its rows (%(default)s)"},
    "out": {"type": Path, "default": Path(os.environ.get("OUT", "out")), "help": "folder of the results ($OUT)"},
    "seed": {"type": int, "default": 0, "help": "of what is drawn, and of the inputs (%(default)s)"},
    "target": {"default": "h200", "help": "device that the model assumes (%(default)s)"},
    "workers": {"type": int, "help": "processes that tune and compile (cores by default)"},
}
"""Options of several programs."""


def parser(module: str, doc: str | None, /, *common: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser for a module with some of the common options."""
    p = argparse.ArgumentParser(prog=f"python -m {module}", description=" ".join((doc or "").split("\n\n")[0].split()))
    for option in common:
        p.add_argument(f"--{option}", **COMMON[option])
    p.set_defaults(**defaults)
    return p


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
