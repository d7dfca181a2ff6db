"""Where a result comes from: machine, clocks, versions, the commit of this project."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Any

from fuser import __version__
from fuser.errors import EnvironmentError_

QUERY = {
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "clocks.max.memory": "max_memory_clock_mhz",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
}
"""What nvidia-smi is asked, and the name in results."""
WAYS_OUT = (
    "on this machine: --dry-run shows what would be measured, with predicted times; --table RESULT.json shows an earlier result; "
    "--on cpu tries a run out in Triton's interpreter"
)


def environment(info: Mapping[str, Any]) -> dict[str, Any]:
    """``info`` is what the measuring process says of its device (:func:`search.measure.machine.device_info`)."""
    return {
        **info,
        "clocks": clocks() if info.get("arch") else None,
        "python": platform.python_version(),
        "mufuser": __version__,
        "commit": commit(Path(__file__).parent.parent),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def head(where: Mapping[str, Any]) -> str:
    """The first line of a table: the machine, versions, the commit and the date of :func:`environment`."""
    versions = [f"{n} {where[n]}" for n in ("driver", "torch", "triton", "ptxas", "mufuser", "commit") if where.get(n)]
    return f"{where['device']}, {', '.join(versions)}; {where['date']}"


def clocks() -> dict[str, float] | None:
    """Clocks, limits and temperature of the GPU at this moment, as nvidia-smi reports them; None without it."""
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    text = _output(["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-i", index])
    return parse_clocks(text) if text else None


def parse_clocks(text: str) -> dict[str, float]:
    """The first line of nvidia-smi's answer to :data:`QUERY`; what it does not know is left out."""
    found = {}
    for name, value in zip(QUERY.values(), text.splitlines()[0].split(","), strict=True):
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


def commit(root: Path) -> str | None:
    """The commit that is checked out in ``root``, with ``+`` where files differ from it, or that an archive was made of; None
    outside of both."""
    if not (root / ".git").exists():
        made = root / "experiments" / "commit.txt"
        said = made.read_text().strip() if made.exists() else "$"
        return None if said.startswith("$") else said[:12]
    found = _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{found.strip()}{'+' if changed else ''}" if found else None


def _output(command: list[str]) -> str:
    """What a program prints, empty where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def need_gpu(ways_out: str = WAYS_OUT) -> None:
    """Raise :class:`EnvironmentError_` with a way out where torch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        built = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no usable NVIDIA GPU"
        raise EnvironmentError_(f"measuring needs a GPU, and {built}", ways_out)
