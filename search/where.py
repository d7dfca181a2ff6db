"""Where a compiled program runs."""

from __future__ import annotations

from importlib.util import find_spec

from fuser.device import Device
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from search.measure.machine import gpu_at_hand

WITHOUT_GPU = "h200"
"""The device for which the interpreter's kernels are tuned where no target is given."""


def where_to_run(device: str | None, target: str | Device | None, name: str) -> tuple[str | None, Device]:
    """Where the callable runs (None: nowhere, it is only compiled), and the device that kernels are made for."""
    spec = load_device(target) if isinstance(target, str) else target
    if device is not None and device.split(":")[0] not in ("cuda", "cpu"):
        raise UsageError(f"{name!r} cannot run on the device {device!r}", "use device='cuda' or 'cpu'")
    if device == "cpu":
        return device, spec or load_device(WITHOUT_GPU)
    if device is None and spec is not None and find_spec("torch") is None:
        return None, spec
    if spec is not None and spec.hypothetical:
        if device is not None:
            raise UsageError(f"{name!r} cannot run on {spec.title}: it is no GPU", "leave out device=, or use device='cpu'")
        return None, spec
    gpu = gpu_at_hand(device)
    if gpu is None:
        if device is None and spec is not None:
            return None, spec
        raise EnvironmentError_(
            f"there is no GPU here on which {name!r} could run",
            "device='cpu' runs Triton's interpreter (slow); target='h200', or another of `mufuser devices`, compiles offline",
        )
    title, arch = gpu
    if spec is None:
        try:
            spec = load_device(title)
        except UsageError as error:
            raise UsageError(
                f"there is no device specification for the GPU at hand, {title} (sm_{arch})",
                "pass target= (--target): a similar device, or the path of a device file with its numbers",
            ) from error
    if spec.arch == arch:
        return device or "cuda", spec
    if device is not None:
        raise UsageError(
            f"kernels for {spec.title} ({spec.sm}) do not run on {title} (sm_{arch})", "leave out device= or target="
        )
    return None, spec
