"""Rates of a device: what a run measured of bandwidth, matmul rate and launch time, and the limits that no kernel can beat;
the floor of a program under the limits.

What a copy and a large matmul of a library reach is no limit: a kernel that mostly reads, or whose tiles fit better, is
faster. So floors come from the vendor's peaks, or from what was measured where that is higher still.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_model.floor import contraction_flops
from cost_model.floor import nbytes
from experiments.peers import TARGET
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from search.measure.measurer import Bench
from search.measure.timing import External

COPY_ELEMENTS = 1 << 28
MATMUL_SIZE = 8192


@dataclass(frozen=True)
class Ceilings:
    """``bandwidth`` in bytes a second (read and written, a large negation), ``matmul`` in FLOP/s (fp16, a large square product of
    the library), ``launch`` in seconds (a trivial kernel inside a CUDA graph)."""

    bandwidth: float
    matmul: float
    launch: float

    @staticmethod
    def of(device: Device, *measured: Ceilings) -> Ceilings:
        """The limits of a device: the highest rates of its description and of what was measured, and the shortest launch."""
        return Ceilings(
            max(device.memory_bandwidth, device.copy_bandwidth, *(m.bandwidth for m in measured)),
            max(device.tensor_fp16, device.matmul_rate or 0.0, *(m.matmul for m in measured)),
            min(device.launch_latency, *(m.launch for m in measured)) if measured else device.launch_latency,
        )


@dataclass(frozen=True)
class Floor:
    """Seconds that the bytes, the FLOPs of the contractions and one launch need at least; they overlap at best."""

    memory: float
    arithmetic: float
    launch: float

    @property
    def us(self) -> float:
        return 1e6 * max(self.memory, self.arithmetic, self.launch)

    @property
    def bound(self) -> str:
        return max(("memory", "arithmetic", "launch"), key=lambda n: getattr(self, n))


def limits(name: str, measured: Ceilings) -> Ceilings | None:
    """The limits of the device of that name under what a run measured; none where nothing describes the device."""
    try:
        return Ceilings.of(load_device(name), measured)
    except UsageError:
        return None


def _negation(count: int) -> TensorProgram:
    b = Builder(f"ceiling/negation-{count}")
    return b.build(Y=-b.input("X", (count,)))


def _product(size: int) -> TensorProgram:
    b = Builder(f"ceiling/product-{size}")
    return b.build(Y=b.input("A", (size, size)) @ b.input("B", (size, size)))


def measure_ceilings(bench: Bench, copy_elements: int = COPY_ELEMENTS, matmul_size: int = MATMUL_SIZE) -> Ceilings:
    """As measured in this run, now or by an earlier call. Raises :class:`EnvironmentError_` where one of them cannot be run."""
    times: list[float] = []
    for program in (_negation(copy_elements), _product(matmul_size), _negation(64)):
        row = next(bench.records.rows(workload=program.name, repeat=bench.run, status="ok"), None)
        row = row or bench.measure(program, [External(TARGET, "eager")], again=True)[0]
        if not row.ok or not row.time_us:
            raise EnvironmentError_(f"{program.name} cannot be measured here: {row.status}: {row.detail}", "is the device free?")
        times.append(row.time_us / 1e6)
    return Ceilings(4 * copy_elements / times[0], 2 * matmul_size**3 / times[1], times[2])


def floor_of(program: TensorProgram, ceilings: Ceilings) -> Floor:
    """Every input is read once, every output written once."""
    return Floor(nbytes(program) / ceilings.bandwidth, contraction_flops(program) / ceilings.matmul, ceilings.launch)
