"""Run a µGraph with a schedule as one callable: generated kernels and library kernels over one workspace."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.ir.program import infer_shape
from fuser.ir.schedule import Schedule
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.triton_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.runtime.launch import Bound
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.launch import interpreted
from fuser.runtime.launch import load
from fuser.runtime.torch_program import apply

WORKSPACE_ALIGNMENT = 256
"""Bytes; what the CUDA allocator gives."""


@dataclass(frozen=True)
class Slot:
    """An intermediate tensor at ``offset`` bytes of the workspace, alive from kernel ``first`` to kernel ``last``."""

    tensor: Tensor
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Everything about a graph under a schedule but the GPU: a source for each generated kernel (None for a library kernel), the
    shapes of all device tensors, and the place of each intermediate in one workspace of ``bytes``."""

    graph: KernelGraph
    schedule: Schedule
    sources: tuple[KernelSource | None, ...]
    tensors: tuple[Tensor, ...]
    slots: tuple[Slot, ...]
    bytes: int

    @cached_property
    def table(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}


def plan(graph: KernelGraph, schedule: Schedule) -> Plan:
    """Generate every kernel and place the intermediates. Raises what :func:`generate_graph` raises, :class:`UsageError` where the
    number of kernel schedules does not fit or two kernels disagree on the shape of a tensor."""
    if len(schedule.kernels) != len(graph.blocks):
        raise UsageError(f"{graph.name!r} has {len(graph.blocks)} generated kernels, the schedule is for {len(schedule.kernels)}")
    tensors = dict(graph.table)
    sources: list[KernelSource | None] = []
    generated = iter(generate_graph(graph, schedule))
    for kernel in graph.kernels:
        if isinstance(kernel, LibraryKernel):
            shape = infer_shape(kernel.op, [tensors[a].shape for a in kernel.args], kernel_attrs(kernel))
            tensors.setdefault(kernel.output, Tensor(kernel.output, shape, tensors[kernel.args[0]].dtype))
            sources.append(None)
            continue
        source = next(generated)
        for name, dtype, shape in zip(source.args, source.dtypes, source.shapes, strict=True):
            known = tensors.setdefault(name, Tensor(name, shape, dtype))
            # a kernel may see a tensor of the program under another shape, never under another size
            if (math.prod(known.shape), known.dtype) != (math.prod(shape), dtype):
                raise UsageError(
                    f"kernel {kernel.name!r} has {name} as {shape} {dtype}, elsewhere it is {known.shape} {known.dtype}",
                    "split counts of kernels that share a tensor must agree",
                )
        sources.append(source)
    slots, total = place_in_workspace(graph, tensors)
    return Plan(graph, schedule, tuple(sources), tuple(tensors.values()), slots, total)


def kernel_attrs(kernel: LibraryKernel) -> dict[str, Any]:
    return dict(kernel.attrs)


def place_in_workspace(graph: KernelGraph, tensors: Mapping[str, Tensor]) -> tuple[tuple[Slot, ...], int]:
    """First fit by liveness, largest first: tensors that are alive at the same time never overlap. Returns the slots and the
    size in bytes."""
    live: list[tuple[Tensor, int, int]] = []
    for name in graph.intermediates:
        first = next(i for i, k in enumerate(graph.kernels) if name in k.outputs)
        last = max((i for i, k in enumerate(graph.kernels) if name in k.inputs), default=first)
        live.append((tensors[name], first, last))
    placed: list[Slot] = []
    for tensor, first, last in sorted(live, key=lambda x: (-x[0].nbytes, x[1])):
        offset = 0
        for other in sorted((s for s in placed if s.first <= last and first <= s.last), key=lambda s: s.offset):
            if offset + tensor.nbytes <= other.offset:
                break
            offset = max(offset, _aligned(other.offset + other.tensor.nbytes))
        placed.append(Slot(tensor, offset, first, last))
    total = max((_aligned(s.offset + s.tensor.nbytes) for s in placed), default=0)
    return tuple(sorted(placed, key=lambda s: (s.first, s.offset))), total


def _aligned(n: int) -> int:
    return -(-n // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


class Executable:
    """A graph and a schedule as one callable on torch tensors (or anything with DLPack).

    The workspace is allocated once; ``run`` allocates nothing but the outputs, and nothing at all where they are passed in. On
    ``device="cpu"`` the kernels run in Triton's interpreter.
    """

    def __init__(
        self,
        graph: KernelGraph | Plan,
        schedule: Schedule | None = None,
        *,
        device: str = "cuda",
        artifacts: Sequence[KernelArtifact | None] | None = None,
    ) -> None:
        import torch

        if isinstance(graph, KernelGraph):
            if schedule is None:
                raise UsageError(f"{graph.name!r} needs a schedule to be run", "pick one with fuser.optimize, or pass your own")
            graph = plan(graph, schedule)
        self.plan = graph
        self.device = torch.device(device)
        self.kernels: list[LoadedKernel | InterpretedKernel | None] = []
        arch = 0
        if self.device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(self.device)
            arch = 10 * major + minor
        for i, source in enumerate(self.plan.sources):
            if source is None:
                self.kernels.append(None)
            elif self.device.type == "cuda":
                artifact = artifacts[i] if artifacts else None
                self.kernels.append(load(artifact or compile_kernel(source, arch)))
            else:
                self.kernels.append(interpreted(source))
        self.workspace = torch.empty(self.plan.bytes, dtype=torch.uint8, device=self.device)
        self.intermediates = {s.tensor.name: self._view(s) for s in self.plan.slots}

    def _view(self, slot: Slot) -> Any:
        import torch

        raw = self.workspace[slot.offset : slot.offset + slot.tensor.nbytes]
        return raw.view(getattr(torch, slot.tensor.dtype)).reshape(slot.tensor.shape)

    # -- tensors ------------------------------------------------------------------------------------------------------------

    def accept(self, name: str, value: Any) -> Any:
        """A torch tensor of the right shape and dtype on the right device, contiguous and aligned; :class:`UsageError`
        otherwise."""
        import torch

        tensor = value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
        want = self.plan.table[name]
        if tuple(tensor.shape) != want.shape or tensor.dtype != getattr(torch, want.dtype):
            raise UsageError(f"{name} must be {want}, got {tuple(tensor.shape)} {tensor.dtype}")
        if tensor.device.type != self.device.type:
            raise UsageError(
                f"{name} is on {tensor.device}, the kernels run on {self.device}", f"move it: x.to({self.device.type!r})"
            )
        if not tensor.is_contiguous() or tensor.data_ptr() % 16:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        return tensor

    def empty_outputs(self) -> dict[str, Any]:
        import torch

        return {
            n: torch.empty(self.plan.table[n].shape, dtype=getattr(torch, self.plan.table[n].dtype), device=self.device)
            for n in self.plan.graph.outputs
        }

    # -- running ------------------------------------------------------------------------------------------------------------

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        """A call without arguments over these tensors: addresses are packed once, so that calling it is only launching."""
        values = {**{n: self.accept(n, inputs[n]) for n in self.plan.graph.inputs}, **outputs, **self.intermediates}
        steps: list[Bound] = []
        knobs = iter(self.plan.schedule.kernels)
        for i, (kernel, loaded) in enumerate(zip(self.plan.graph.kernels, self.kernels, strict=True)):
            if isinstance(kernel, LibraryKernel):
                steps.append(_library(kernel, values))
                continue
            pdl = bool(next(knobs).knob.get("pdl", False)) and i > 0
            source = self.plan.sources[i]
            assert source is not None
            args = [values[n] for n in source.args]
            if isinstance(loaded, LoadedKernel):
                steps.append(loaded.bind([t.data_ptr() for t in args], pdl))
            elif loaded is not None:
                steps.append(loaded.bind([t.reshape(s) for t, s in zip(args, source.shapes, strict=True)]))
        if len(steps) == 1:
            return _holding(steps[0], values)

        def call() -> None:
            for step in steps:
                step()

        return _holding(call, values)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name for inputs by name; ``outputs`` are written in place where given."""
        if missing := [n for n in self.plan.graph.inputs if n not in inputs]:
            raise UsageError(f"{self.plan.graph.name!r} needs the inputs {', '.join(missing)}")
        found = dict(outputs) if outputs is not None else self.empty_outputs()
        self.bind(inputs, found)()
        return found

    def __call__(self, *inputs: Any) -> Any:
        """Inputs in the program's order; returns the output, or a tuple of them."""
        found = self.run(dict(zip(self.plan.graph.inputs, inputs, strict=True)))
        values = tuple(found[n] for n in self.plan.graph.outputs)
        return values[0] if len(values) == 1 else values

    def capture(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Captured:
        """The call as a CUDA graph over fixed buffers: copy new values into ``inputs``, call ``replay``, read ``outputs``."""
        import torch

        fixed = {n: self.accept(n, inputs[n]) for n in self.plan.graph.inputs}
        found = dict(outputs) if outputs is not None else self.empty_outputs()
        call = self.bind(fixed, found)
        graph = capture_calls([call], warm=True)
        torch.cuda.synchronize()
        return Captured(fixed, found, graph, call)


@dataclass(eq=False)
class Captured:
    """A captured call: ``replay`` costs what torch's own graph replay costs."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    graph: Any
    call: Bound

    @property
    def replay(self) -> Callable[[], None]:
        return self.graph.replay


def capture_calls(calls: Sequence[Callable[[], Any]], warm: bool = False) -> Any:
    """A ``torch.cuda.CUDAGraph`` of the calls one after another; ``warm`` runs the first once before (lazy handles)."""
    import torch

    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        if warm:
            calls[0]()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for call in calls:
                call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    return graph


def _holding(call: Bound, values: Mapping[str, Any]) -> Bound:
    """The call with a reference to its tensors, so that none is freed before the call is."""
    call.__dict__["tensors"] = dict(values)
    return call


def _library(kernel: LibraryKernel, values: Mapping[str, Any]) -> Bound:
    import torch

    args, out = [values[a] for a in kernel.args], values[kernel.output]
    if kernel.op == "matmul":

        def matmul() -> None:
            torch.matmul(*args, out=out)

        return matmul
    attrs = kernel_attrs(kernel)

    def other() -> None:
        out.copy_(apply(kernel.op, args, attrs))

    return other
