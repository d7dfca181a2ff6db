"""What a row says about the machine on which it was measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.interrupts import without_interrupts


def device_info(device: str) -> dict[str, Any]:
    """What a row says about the machine: device name and limits, versions of compiler, torch and driver."""
    import torch
    import triton

    info: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
    if device != "cuda":
        return {"device": "cpu-interpreter", "arch": 0, **info}
    p = torch.cuda.get_device_properties(0)
    return {
        "device": p.name,
        "arch": 10 * p.major + p.minor,
        "sm_count": p.multi_processor_count,
        "memory_gib": round(p.total_memory / 2**30),
        "l2_bytes": p.L2_cache_size,
        "cuda": torch.version.cuda,
        "driver": _driver_version(),
        "ptxas": triton.knobs.nvidia.ptxas.version,  # type: ignore[attr-defined]
        **info,
    }


QUERY = {
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "clocks_throttle_reasons.active": "throttled",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
}
"""What nvidia-smi is asked about the moment, and its name in a row. What holds the clocks back is a mask of bits: 1 is idleness,
4 the power limit, 8, 20, 40 and 80 (hexadecimal) are heat and the board's own brakes."""


EVERY = 2.0
"""Seconds between two questions."""


class Conditions:
    """Clocks, heat and what holds the clocks back, asked for in the background: an answer is there for the batch after the next.
    Nothing where there is no nvidia-smi."""

    def __init__(self) -> None:
        self._asked: subprocess.Popen[str] | None = None
        self._when = -EVERY
        self._command = shutil.which("nvidia-smi")
        self.now: dict[str, str] = {}

    def ask(self) -> dict[str, str]:
        """The latest answer; asks again."""
        if self._command is None:
            return {}
        if self._asked is not None and self._asked.poll() is not None:
            self.now = parse_conditions(self._asked.communicate()[0]) or self.now
            self._asked = None
        if self._asked is None and time.monotonic() - self._when > EVERY:
            self._when = time.monotonic()
            index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
            query = [f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-i", index]
            with suppress(OSError), without_interrupts():
                self._asked = subprocess.Popen(
                    [self._command, *query], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
        return self.now

    def close(self) -> None:
        if self._asked is not None:
            self._asked.kill()
            self._asked.communicate()
            self._asked = None


def parse_conditions(text: str) -> dict[str, str]:
    """The first line of nvidia-smi's answer to :data:`QUERY`; what it does not know is left out."""
    values = [v.strip() for v in (text.splitlines() or [""])[0].split(",")]
    if len(values) != len(QUERY):
        return {}
    return {name: v for name, v in zip(QUERY.values(), values, strict=True) if v and not v.startswith("[")}


def gpu_at_hand(device: str | None = None) -> tuple[str, int] | None:
    """Name and architecture of a GPU; None where there is none. Raises :class:`EnvironmentError_` without torch."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentError_(
            "running kernels needs torch", "pip install 'mufuser[torch]', or only compile: target='h200', or `mufuser tune`"
        ) from error
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(device or "cuda")
    return properties.name, 10 * properties.major + properties.minor


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
        return next((w for w in words if w[:1].isdigit() and "." in w), "")
    except OSError:
        return ""
