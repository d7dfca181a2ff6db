"""TVM: import Relay models, carve regions out, embed their kernels, build and run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from tvm_bridge.api import optimize as optimize
    from tvm_bridge.api import partition_and_optimize as partition_and_optimize


def __getattr__(name: str) -> Any:
    """The public functions, imported when they are first used."""
    if name in ("optimize", "partition_and_optimize"):
        from tvm_bridge import api

        return getattr(api, name)
    raise AttributeError(f"module 'tvm_bridge' has no attribute {name!r}")
