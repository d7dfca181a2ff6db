"""Load a compiled kernel and launch it with little host work.

A :class:`KernelArtifact` has its cubin, so that the CUDA driver is all that a launch needs: no compiler, no per-signature stub.
Arguments are device pointers or tensor descriptors (shapes are constants of the source), followed by the scratch pointers that
Triton's calling convention adds, which are NULL.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import OutOfResourcesError
from fuser.errors import said
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import load_source
from fuser.lower.forms import form
from fuser.lower.interpreter import host_arguments
from fuser.lower.interpreter import run
from fuser.lower.kernel_source import KernelSource
from fuser.runtime.cuda_driver import INVALID_CONTEXT
from fuser.runtime.cuda_driver import check
from fuser.runtime.cuda_driver import driver
from fuser.runtime.cuda_driver import use_device
from fuser.runtime.tensor_map import tensor_map

ALIGNMENT = 16
"""Bytes to which every pointer is aligned: kernels are compiled with that promise."""

LARGE_SHARED = 48 << 10
"""Bytes of shared memory a block beyond which a kernel has to be allowed them."""
LETS_START, PAST_CACHE = "griddepcontrol.launch_dependents", "cp.async"
"""Instructions of a kernel whose successor may start beside its last blocks, and of one that loads past the cache of an SM.
What its blocks leave of the SM's memory is for the successor's: by default the rest is cache, and blocks that need a little of it
(sums over parts) wait until an SM is empty, or crowd on the few that were. On an H200, where all large kernels did so, 136 such
schedules took 0.97 × as long in the mean, 0.66 × the one that gained most; four whose threads load by themselves took 1.09 to
1.19 × (experiments/results/h200-regret)."""
_MAX_DYNAMIC_SHARED = 8
_CARVEOUT = 9
_NUM_REGS = 4
_LOCAL_BYTES = 3
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_char * 64)]


class _Config(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def _init() -> None:
    """Torch's primary context made; the types of the driver calls."""
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentError_("torch sees no GPU", "run on a machine with an NVIDIA GPU and a CUDA build of torch")
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    lib = driver()
    lib.cuModuleLoadData.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p]
    lib.cuModuleGetFunction.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p]
    lib.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    lib.cuFuncGetAttribute.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p]
    lib.cuModuleUnload.argtypes = [ctypes.c_void_p]
    lib.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4


def use_current_device() -> None:
    """Give this thread the context of torch's current GPU."""
    import torch

    use_device(torch.cuda.current_device())


def current_stream() -> int:
    """Handle of torch's current stream."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw(torch.cuda.current_device()) if raw else torch.cuda.current_stream().cuda_stream


def parameters_of(ptx: str, name: str) -> int:
    """Number of parameters of an entry, the hidden ones too."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)", ptx, re.DOTALL)
    if not found:
        raise NoValidKernelError(f"the PTX has no entry {name}")
    return found.group(1).count(".param")


Bound = Callable[..., None]
"""A call whose arguments are packed; it takes the handle of the stream, by default torch's current one."""


@dataclass(eq=False)
class LoadedKernel:
    """A kernel in the current CUDA context. ``registers`` a thread; ``spills`` is bytes of local memory a thread."""

    artifact: KernelArtifact
    module: int
    function: int
    hidden: int
    registers: int
    spills: int

    def bind(self, pointers: Sequence[int], pdl: bool = False) -> Bound:
        """A call with these device pointers, in the order of ``artifact.args``; it launches on the stream whose handle it is
        given, by default torch's current one. One call is not for several threads at once.

        ``pdl`` lets the kernel start while the one before it drains (programmatic dependent launch); its source must then wait.
        """
        if len(pointers) != len(self.artifact.args):
            raise FuserError(f"{self.artifact.name} takes {len(self.artifact.args)} tensors, got {len(pointers)}")
        for pointer, arg in zip(pointers, self.artifact.args, strict=True):
            if pointer % ALIGNMENT:
                raise FuserError(
                    f"tensor {arg.name!r} starts at an address that is not a multiple of {ALIGNMENT} bytes", "pass a copy of it"
                )
        values = self._parameters(pointers)
        params = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        return self._launcher(values, params, pdl)

    def movable(self, pointers: Sequence[int], moving: Sequence[int], pdl: bool = False) -> Callable[[int, Sequence[int]], None]:
        """A call that takes, behind the handle of the stream, the addresses of the arguments whose numbers are ``moving``; those
        are no descriptors. The others stay as in ``pointers``."""
        values = self._parameters(pointers)
        places = [values[self._place(i)] for i in moving]
        launch = self._launcher(values, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)), pdl)

        def call(stream: int, addresses: Sequence[int]) -> None:
            for place, address in zip(places, addresses, strict=True):
                place.value = address
            launch(stream)

        return call

    def _place(self, argument: int) -> int:
        """Where an argument stands among the parameters."""
        return sum(d.parameters if d else 1 for i, d in self.artifact.passed if i < argument)

    def _parameters(self, pointers: Sequence[int]) -> list[Any]:
        """The kernel's parameters: pointers, the map, extents and strides of descriptors, and NULL for what is hidden."""
        values: list[Any] = []
        for i, d in self.artifact.passed:
            if d:
                values.append(tensor_map(d, pointers[i]))
                values += [ctypes.c_int32(n) for n in d.shape]
                values += [ctypes.c_int64(n) for n in d.strides]
            else:
                values.append(ctypes.c_void_p(pointers[i]))
        return [*values, *(ctypes.c_void_p(None) for _ in range(self.hidden))]

    def _launcher(self, values: Any, params: Any, pdl: bool) -> Bound:
        """One structure for each call: ctypes converts four arguments in place of eleven, which saves more than half of the time
        that a launch takes on the host."""
        attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, b"", (1).to_bytes(4, "little"))
        gx, gy, gz = self.artifact.grid
        config = _Config(
            gx, gy, gz, 32 * self.artifact.num_warps, 1, 1, self.artifact.shared_bytes, None, ctypes.pointer(attribute), int(pdl)
        )
        keep = (values, params, config, attribute)
        configured, function, packed = ctypes.addressof(config), self.function, ctypes.addressof(params)
        launch = driver().cuLaunchKernelEx

        def call(stream: int | None = None, _keep: Any = keep) -> None:
            config.stream = current_stream() if stream is None else stream
            error = launch(configured, function, packed, None)
            if error == INVALID_CONTEXT:
                use_current_device()
                error = launch(configured, function, packed, None)
            if error:
                check(f"launch of {self.artifact.name}", error)

        return call

    def unload(self) -> None:
        """Free the code on the device; calls bound to it must not be used any more."""
        check("cuModuleUnload", driver().cuModuleUnload(ctypes.c_void_p(self.module)))


def load(artifact: KernelArtifact) -> LoadedKernel:
    """Load a cubin into torch's context on the current device.

    Raises :class:`OutOfResourcesError` where the kernel needs more shared memory or registers than a block can have here.
    """
    import torch

    _init()
    use_current_device()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    limit = getattr(properties, "shared_memory_per_block_optin", 227 << 10)
    if artifact.shared_bytes > limit:
        raise OutOfResourcesError(
            f"{artifact.name} needs {artifact.shared_bytes} bytes of shared memory a block, the device has {limit}",
            "use smaller tiles or fewer stages",
        )
    lib = driver()
    module, function, number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    check("cuModuleLoadData", lib.cuModuleLoadData(ctypes.byref(module), artifact.cubin))
    check("cuModuleGetFunction", lib.cuModuleGetFunction(ctypes.byref(function), module, artifact.name.encode()))
    if artifact.shared_bytes > LARGE_SHARED:
        check("cuFuncSetAttribute", lib.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, artifact.shared_bytes))
        if all(x in artifact.ptx for x in (LETS_START, PAST_CACHE)):
            check("cuFuncSetAttribute", lib.cuFuncSetAttribute(function, _CARVEOUT, 100))
    check("cuFuncGetAttribute", lib.cuFuncGetAttribute(ctypes.byref(number), _NUM_REGS, function))
    registers = number.value
    check("cuFuncGetAttribute", lib.cuFuncGetAttribute(ctypes.byref(number), _LOCAL_BYTES, function))
    hidden = parameters_of(artifact.ptx, artifact.name) - artifact.parameters
    return LoadedKernel(artifact, module.value or 0, function.value or 0, hidden, registers, number.value)


@dataclass(eq=False)
class InterpretedKernel:
    """The same kernel in Triton's interpreter on CPU tensors, for machines without a GPU."""

    source: KernelSource

    def bind(self, tensors: Sequence[Any]) -> Bound:
        if self.source.gluon:
            return self._emulated(tensors)
        with form(interpreted=True):
            kernel = getattr(load_source(self.source), self.source.name)
            arguments = host_arguments(self.source, tensors)

        def call(_stream: int | None = None) -> None:
            from triton.runtime.errors import InterpreterError

            try:
                with form(interpreted=True):
                    run(self.source, kernel, arguments)
            except InterpreterError as error:
                raise NoValidKernelError(f"the interpreter cannot run {self.source.name}: {said(error)}") from error

        dynamo = sys.modules.get("torch._dynamo")  # inside of torch.compile it would trace the interpreter
        return dynamo.disable(call) if dynamo else call

    def _emulated(self, tensors: Sequence[Any]) -> Bound:
        """A kernel in Gluon, in our own emulator."""
        import torch

        from fuser.lower.emulator.language import emulate

        given = dict(zip(self.source.args, tensors, strict=True))

        def call(_stream: int | None = None) -> None:
            found = emulate(self.source, {n: t.float().numpy() for n, t in given.items() if n not in self.source.outputs})
            for name, out in found.items():
                given[name].copy_(torch.from_numpy(out).reshape(given[name].shape))

        return call
