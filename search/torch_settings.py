"""What ``torch.compile(model, backend="mufuser", options=...)`` is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

from fuser.checks import require_type
from fuser.device import load_device
from fuser.errors import UsageError
from search.tuner.efforts import module_effort


@dataclass(frozen=True)
class Settings:
    """``options=`` of ``torch.compile``.

    ``device``: ``cpu`` runs kernels for tensors of the CPU in Triton's interpreter (slow; else torch runs them). ``target``: the
    device to tune for, by default the GPU at hand. ``freeze``: parameters keep the values that they have at the first call with
    them, and buffers until somebody writes to them; by default later writes to both are seen. ``shapes``: sizes for which a graph
    with symbolic sizes is compiled at most; torch runs further ones. ``checked``, ``effort`` and ``records``: as for
    ``fuser.compile``. ``cudagraphs``: from the second call on a CUDA graph is replayed (on a GPU): parameters and buffers are
    read where they lie, other inputs are copied in, and results out.
    """

    device: str | None = None
    target: str | None = None
    freeze: bool = False
    shapes: int = 8
    checked: bool = True
    effort: str | None = None
    records: str | bool | None = None
    cudagraphs: bool = False


def settings_of(options: Mapping[str, Any]) -> Settings:
    known = [f.name for f in fields(Settings)]
    if unknown := [k for k in options if k not in known]:
        raise UsageError(f"the backend mufuser has no option {unknown[0]!r}", f"options: {', '.join(known)}")
    settings = Settings(**options)
    if settings.device not in (None, "cpu"):
        raise UsageError(
            f"the backend mufuser cannot be told to run on {settings.device!r}",
            "kernels run where the tensors are; device='cpu' is for Triton's interpreter",
        )
    if not isinstance(settings.shapes, int) or settings.shapes < 1:
        raise UsageError(f"shapes={settings.shapes!r} is no number of sizes", "pass 1 or more")
    require_type("effort", settings.effort, str, type(None))
    module_effort(settings.effort)
    if isinstance(settings.target, str):
        load_device(settings.target)
    return settings
