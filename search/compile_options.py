"""What ``fuser.compile`` is told besides the program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser.checks import require_number
from fuser.checks import require_type
from fuser.device import Device
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from search.buckets.asked import Buckets
from search.tuner.efforts import module_effort


@dataclass(frozen=True)
class Options:
    """The keywords of :func:`search.compile.compile_program`."""

    target: str | Device | None = None
    graph: KernelGraph | None = None
    schedule: Schedule | None = None
    effort: str | None = None
    records: str | Path | bool | None = None
    superoptimize: float = 0.0
    device: str | None = None
    capture: bool = False
    checked: bool = True
    seed: int = 0
    dtype: str | None = None
    buckets: Buckets | None = None

    def check(self) -> None:
        """Raises :class:`UsageError` for what is of another type, and for an effort that there is not."""
        require_type("effort", self.effort, str, type(None))
        module_effort(self.effort)
        for what, kinds in (
            ("records", (str, Path, bool)),
            ("target", (str, Device)),
            ("graph", (KernelGraph,)),
            ("schedule", (Schedule,)),
            ("device", (str,)),
            ("dtype", (str,)),
        ):
            require_type(what, getattr(self, what), *kinds, type(None))
        require_number("superoptimize", self.superoptimize, 0.0)
        require_number("seed", self.seed, 0, whole=True)

    def only(self, *names: str) -> dict[str, Any]:
        return {n: getattr(self, n) for n in names}
