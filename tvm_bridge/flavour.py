"""Which TVM is installed, and what it can do.

The last TVM with Relay is 0.19; later ones have Relax only. Both install the package ``tvm``, so they exclude each other in one
environment.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal

from fuser.errors import EnvironmentError_

RELAY_HINT = "install the Relay flavour, `pip install 'mufuser[relay]'`, in an environment of its own"

RELAX_VERSION = "0.27"
RELAX_HINT = "install the Relax flavour, `pip install 'mufuser[relax]'`, in an environment of its own"


class RelayMissing(EnvironmentError_):
    """There is no TVM with Relay in this environment, or it cannot be used."""


@dataclass(frozen=True)
class Flavour:
    """Which TVM is installed."""

    name: Literal["relay", "relax"]
    version: str


def check_distributions(names: Sequence[str]) -> None:
    """Raise :class:`EnvironmentError_` if more than one distribution provides the package ``tvm``."""
    unique = sorted({re.sub(r"[-_.]+", "-", name).lower() for name in names})
    if len(unique) > 1:
        raise EnvironmentError_(
            f"{' and '.join(unique)} both install the package 'tvm': their files overwrite each other",
            f"uninstall both (`pip uninstall {' '.join(unique)}`), then install the one that you need; two need two environments",
        )


@functools.cache
def detect() -> Flavour:
    """The TVM of this environment; raises :class:`EnvironmentError_` if there is none, or more than one."""
    check_distributions(importlib.metadata.packages_distributions().get("tvm", ()))
    if importlib.util.find_spec("tvm") is None:
        raise RelayMissing("no TVM is installed in this environment", RELAY_HINT)
    # Relay otherwise tries to download schedules for the operators that stay, at every build.
    os.environ.setdefault("TOPHUB_LOCATION", "NONE")
    tvm = import_tvm()
    return Flavour("relay" if importlib.util.find_spec("tvm.relay") is not None else "relax", str(tvm.__version__))


def import_tvm() -> Any:
    """``import tvm``, with an error that names the way out."""
    try:
        import tvm
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvironmentError_(f"TVM is installed but cannot be imported: {error}", RELAY_HINT) from error
    return tvm


def require_relay() -> Flavour:
    """The flavour, which must be Relay."""
    found = detect()
    if found.name != "relay":
        raise RelayMissing(f"TVM {found.version} has no Relay (the last one with it is 0.19)", RELAY_HINT)
    return found


def require_relax() -> str:
    """The version of the installed TVM, which must be one with Relax that we know. TVM is not imported."""
    names = importlib.metadata.packages_distributions().get("tvm", ())
    check_distributions(names)
    if not names or importlib.util.find_spec("tvm") is None:
        raise EnvironmentError_("a library for TVM's virtual machine needs TVM 0.27, and no TVM is installed here", RELAX_HINT)
    found = importlib.metadata.version(names[0])
    if not found.startswith(RELAX_VERSION):
        raise EnvironmentError_(f"a library for TVM's virtual machine needs TVM {RELAX_VERSION}, not {found}", RELAX_HINT)
    return found
