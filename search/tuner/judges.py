"""What a search measures with: the GPU at hand, or a device that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser.device import Device
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from search.measure.machine import gpu_at_hand
from search.measure.measurer import Bench
from search.measure.records import Records
from search.measure.session import Options
from search.ranked import Effort
from search.tuner.campaign import Judge
from search.tuner.memory import Memory
from search.tuner.simulated import Simulated
from search.tuner.spread import Spread
from search.tuner.spread import Workers

OPTIONS = Options(rounds=5, most_rounds=21, replay_ms=6.0)
COMPILE_SECONDS = 30
"""A kernel that takes longer to compile is given up in this search."""


@contextmanager
def open_judge(
    device: Device, memory: Memory, effort: str, jobs: int | None = None, workers: Workers | None = None
) -> Iterator[Judge]:
    """What measures candidates for a device: with ``workers`` those, else this machine. Raises
    :class:`EnvironmentError_` where there is no GPU of its kind."""
    if not memory.simulated:
        require_real(device, effort)
    if workers is not None:
        seed = int(memory.simulated) if memory.simulated else None
        yield Spread(workers, device, memory.records, OPTIONS, seed)
        return
    if memory.simulated:
        yield Simulated(device, int(memory.simulated))
        return
    require_gpu(device, effort)
    records = memory.records if memory.records is not None else Records(":memory:")
    with Bench.open("cuda", records, OPTIONS, jobs, run="search") as bench:
        bench.pool.seconds = COMPILE_SECONDS
        yield bench


def require_means(memory: Memory, device: Device, effort: Effort) -> None:
    """Raises as :func:`require_gpu`, before a large model is read, where no record could take the place of measuring."""
    require_real(device, effort.name)
    if not memory.knows(device, effort):
        require_gpu(device, effort.name)


def require_real(device: Device, effort: str) -> None:
    """Raises :class:`UsageError` for a hypothetical device."""
    if device.hypothetical:
        raise UsageError(
            f"the effort {effort!r} measures, and there is no {device.title}",
            "the effort instant asks the model alone; mufuser tune --simulate SEED makes up times",
        )


def require_gpu(device: Device, effort: str) -> None:
    """Raises :class:`EnvironmentError_` unless there is a GPU of the device's kind here."""
    require_real(device, effort)
    hint = (
        "the effort instant needs none; what was measured on another machine can be brought here (mufuser records export, "
        "import): then it is taken without measuring"
    )
    try:
        found = gpu_at_hand()
    except EnvironmentError_ as error:
        raise EnvironmentError_(f"the effort {effort!r} measures on a GPU: {error.message}", f"{error.hint}; {hint}") from error
    if found is None:
        raise EnvironmentError_(f"the effort {effort!r} measures on a GPU, and there is none here", hint)
    title, arch = found
    if arch != device.arch or not _same(title, device):
        raise EnvironmentError_(
            f"the effort {effort!r} measures on {device.title}, and the GPU here is {title} (sm_{arch})",
            f"choose its own target; {hint}",
        )


def _same(title: str, device: Device) -> bool:
    """Whether a GPU is of a device's kind, as far as devices are known."""
    try:
        return load_device(title).name == device.name
    except UsageError:
        return True  # nobody knows it: whoever chose the target does
