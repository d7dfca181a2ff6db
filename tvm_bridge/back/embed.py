"""Compiled kernels as a TVM module: PTX beside its metadata, and a host function that launches it.

TVM's CUDA module takes PTX text and a JSON that names each kernel's parameters and launch arguments. The host function, one per
region, passes device pointers, Triton's two scratch pointers (null), the block and grid sizes, and the bytes of dynamic shared
memory. Nothing here needs a GPU; loading the PTX needs a TVM that was built with CUDA.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.lower.compile import KernelArg
from fuser.lower.compile import KernelArtifact

SCRATCH_POINTERS = 2
"""Triton's entries end in a global and a profile scratch pointer; a kernel that needs neither gets null."""

WARP = 32
"""Threads of a warp."""

MAX_GRID = (2**31 - 1, 65535, 65535)

Signature = tuple[Sequence[tuple[tuple[int, ...], str]], Sequence[tuple[tuple[int, ...], str]]]
"""Shape and dtype of each input and of each output of a region's function."""


@dataclass(frozen=True)
class RegionKernels:
    """The kernels that compute a region, in launch order.

    ``inputs`` and ``outputs`` name tensors in the order of the region's function; ``intermediates`` maps the name of each
    tensor that lives in device memory between two kernels to its shape and dtype, ``weights`` that of each constant, which the
    function takes behind its inputs where it is built for a GPU.
    """

    kernels: tuple[KernelArtifact, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    intermediates: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    weights: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def validate(self) -> RegionKernels:
        """Check that every argument has a source, every output a writer, and every launch fits; returns itself."""
        if not self.kernels:
            raise ProgramError("a region needs at least one kernel")
        names = (*self.inputs, *self.outputs, *self.intermediates, *self.weights)
        known = set(names)
        if len(known) != len(names):
            raise ProgramError("the inputs, outputs and intermediates of a region must have different names")
        used: set[str] = set()
        for kernel in self.kernels:
            for arg in kernel.args:
                if arg.name not in known:
                    raise ProgramError(
                        f"kernel {kernel.name!r} takes {arg.name!r}, which is no input, output, weight or intermediate"
                    )
                if (found := self.intermediates.get(arg.name)) and (math.prod(found[0]), found[1]) != _size(arg):
                    raise ProgramError(f"kernel {kernel.name!r} takes {arg.name!r} as {arg.dtype}{list(arg.shape)}, not {found}")
                used.add(arg.name)
            if any(not 1 <= extent <= limit for extent, limit in zip(kernel.grid, MAX_GRID, strict=True)):
                raise UnsupportedError(f"the grid {kernel.grid} of kernel {kernel.name!r} is outside 1 … {MAX_GRID}")
            parameters = entry_parameters(kernel.ptx, kernel.name)
            if parameters != len(kernel.args) + SCRATCH_POINTERS:
                raise UnsupportedError(
                    f"the PTX of kernel {kernel.name!r} has {parameters} parameters, "
                    f"not {len(kernel.args)} and two scratch pointers",
                    "leave out tensor descriptors (tma_…), pass sizes as constants, and compile with a supported Triton",
                )
        if missing := [name for name in self.outputs if name not in used]:
            raise ProgramError(f"no kernel writes the output {missing[0]!r} of the region")
        return self


def _size(arg: KernelArg) -> tuple[int, str]:
    return math.prod(arg.shape), arg.dtype


def entry_parameters(ptx: str, name: str) -> int:
    """How many parameters the entry ``name`` has; raises :class:`UnsupportedError` if there is no such entry."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
    if found is None:
        raise UnsupportedError(
            f"the PTX has no entry {name!r}", "compile the kernel again: name and PTX belong to different kernels"
        )
    return len(re.findall(r"\.param\b", found[1]))


def entry_name(symbol: str, index: int, kernel: KernelArtifact) -> str:
    """Name of a kernel inside a model. An exported library has one name space, so the region's symbol is part of it."""
    return f"{symbol}_{index}_{kernel.name}"


def rename_entry(ptx: str, old: str, new: str) -> str:
    """The same PTX with its entry, and the parameters named after it, renamed."""
    return re.sub(rf"(?<![\w$.%]){re.escape(old)}(?=_param_\d+\b|(?![\w$]))", new, ptx)


def launch_tags(kernel: KernelArtifact, prefix: str = "tir") -> list[str]:
    """TVM's names of the launch arguments, in the order of :func:`launch_values`; ``prefix`` is ``tirx`` from TVM 0.27."""
    shared = [f"{prefix}.use_dyn_shared_memory"] if kernel.shared_bytes else []
    return ["threadIdx.x", "blockIdx.x", "blockIdx.y", "blockIdx.z", *shared]


def launch_values(kernel: KernelArtifact) -> list[int]:
    """Threads of a block, grid, and bytes of dynamic shared memory if there are any."""
    return [WARP * kernel.num_warps, *kernel.grid, *([kernel.shared_bytes] if kernel.shared_bytes else [])]


def metadata(entry: str, kernel: KernelArtifact, version: str, prefix: str = "tir") -> dict[str, Any]:
    """What TVM keeps beside the PTX, in ``NAME.tvm_meta.json``."""
    info = {
        "name": "",
        "arg_types": ["handle"] * (len(kernel.args) + SCRATCH_POINTERS),
        "launch_param_tags": launch_tags(kernel, prefix),
    }
    return {"tvm_version": version, "func_info": {entry: info}}


def write_ptx(directory: Path, symbol: str, kernels: RegionKernels, version: str, prefix: str = "tir") -> list[Path]:
    """Write ``ENTRY.ptx`` and ``ENTRY.tvm_meta.json`` for each kernel, the form that ``tvm.runtime.load_module`` reads."""
    paths: list[Path] = []
    for index, kernel in enumerate(kernels.validate().kernels):
        entry = entry_name(symbol, index, kernel)
        path = directory / f"{entry}.ptx"
        path.write_text(rename_entry(kernel.ptx, kernel.name, entry))
        meta = metadata(entry, kernel, version, prefix)
        path.with_name(f"{entry}.tvm_meta.json").write_text(json.dumps(meta))
        paths.append(path)
    return paths


def check_signature(
    symbol: str, kernels: RegionKernels, signature: Signature, bound: bool = False
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name to shape and dtype of the region's tensors; raises :class:`ProgramError` where a kernel expects other sizes.

    Buffers are contiguous, so that shapes may differ as long as the number of elements does not. The function may have more
    inputs than the kernels: constants that the program simplified away (a mask of zeros) come last and are not used. ``bound``:
    it takes the kernels' weights too.
    """
    inputs, outputs = signature
    weights = [*kernels.weights] if bound else []
    extra = [f"unused{i}" for i in range(len(inputs) - len(kernels.inputs) - len(weights))]
    names = [*kernels.inputs, *extra, *weights, *kernels.outputs]
    if len(names) != len(inputs) + len(outputs):
        raise ProgramError(
            f"the kernels of {symbol} have {len(kernels.inputs)} inputs and {len(kernels.outputs)} outputs; "
            f"its function has {len(inputs)} and {len(outputs)}"
        )
    found = dict(zip(names, [*inputs, *outputs], strict=True))  # in the order of the function's parameters
    found |= {n: t for n, t in kernels.weights.items() if n not in found}
    for kernel in kernels.kernels:
        for arg in kernel.args:
            if arg.name not in found:
                continue
            shape, dtype = found[arg.name]
            if (math.prod(shape), dtype) != _size(arg):
                raise ProgramError(
                    f"{arg.name!r} of {symbol} is {dtype}{list(shape)} in the model, "
                    f"but {arg.dtype}{list(arg.shape)} in kernel {kernel.name!r}"
                )
    return found


def host_function(symbol: str, kernels: RegionKernels, signature: Signature) -> Any:
    """A TIR function ``symbol(inputs…, outputs…)`` that launches the kernels one after the other.

    Intermediates are allocated from the device's workspace pool and share memory where their lives do not meet.
    """
    from tvm import tir

    tensors = check_signature(symbol, kernels.validate(), signature, bound=True)
    buffers = {name: tir.decl_buffer(shape, dtype, name=name) for name, (shape, dtype) in tensors.items()}
    handles = [tir.Var(f"{name}_handle", "handle") for name in buffers]
    pointers = {name: buffer.data for name, buffer in buffers.items()}
    scratch = {name: tir.decl_buffer(shape, dtype, name=name) for name, (shape, dtype) in kernels.intermediates.items()}
    pointers |= {name: buffer.data for name, buffer in scratch.items()}
    null = tir.call_intrin("handle", "tir.reinterpret", tir.const(0, "uint64"))
    launches = [
        tir.Evaluate(
            tir.call_packed(
                entry_name(symbol, index, kernel),
                *(pointers[arg.name] for arg in kernel.args),
                *(null for _ in range(SCRATCH_POINTERS)),
                *(tir.const(value, "int32") for value in launch_values(kernel)),
            )
        )
        for index, kernel in enumerate(kernels.kernels)
    ]
    body: Any = tir.SeqStmt([*launches]) if len(launches) > 1 else launches[0]
    for buffer in scratch.values():
        body = tir.Allocate(buffer.data, buffer.dtype, buffer.shape, tir.const(True, "bool"), body)
    function = tir.PrimFunc(handles, body, buffer_map=dict(zip(handles, buffers.values(), strict=True)))
    return function.with_attr("global_symbol", symbol).with_attr("tir.noalias", True)


def host_module(symbol: str, kernels: RegionKernels, signature: Signature, target: Any) -> Any:
    """The host function compiled for ``target``; with a CUDA target it demands device arrays."""
    import tvm

    function = host_function(symbol, kernels, signature)
    with tvm.transform.PassContext(opt_level=3):
        return tvm.build(tvm.IRModule({symbol: function}), target=target)


def cuda_module(symbol: str, kernels: RegionKernels, signature: Signature, target: Any) -> Any:
    """Host function and PTX in one module. Raises :class:`EnvironmentError_` on a TVM without CUDA."""
    import tvm

    if tvm.get_global_func("runtime.module.loadfile_ptx", allow_missing=True) is None:
        raise EnvironmentError_(
            "this TVM was built without CUDA and cannot load PTX", "build TVM with USE_CUDA=ON, or use target llvm"
        )
    module = host_module(symbol, kernels, signature, target)
    with tempfile.TemporaryDirectory() as folder:
        for path in write_ptx(Path(folder), symbol, kernels, str(tvm.__version__)):
            module.import_module(tvm.runtime.load_module(str(path)))
    return module
