"""What a row says about the machine on which it was measured."""

from __future__ import annotations

from typing import Any

from fuser.errors import EnvironmentError_


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
