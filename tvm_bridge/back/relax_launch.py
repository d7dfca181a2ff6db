"""A generated kernel as TVM 0.27 has it: its code in a CUDA module, and a host function that launches it.

A CUDA module of TVM has for each entry the types of its parameters and the tags of a launch. Calling it takes the
parameters, then one number for each tag that has one: threads of a block, blocks, bytes of dynamic shared memory (the last).
Programmatic dependent launch is a tag without a number. A tensor descriptor is a parameter that is passed by value: the host
function encodes it on its stack with the address of the tensor. Its extents and strides follow it, as in Triton's convention.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from typing import Literal

from fuser.ir.program import Tensor
from fuser.lower.descriptors import Descriptor
from fuser.runtime.tensor_map import L2_PROMOTION_128B
from search.buckets.places import Dims
from tvm_bridge.back.recipe import Launch
from tvm_bridge.flavour import import_tvm

Code = Literal["cubin", "ptx"]

DEPENDENT = "tirx.use_programtic_dependent_launch"
"""TVM's spelling."""
SHARED = "tirx.use_dyn_shared_memory"
TENSOR_MAP = 1
"""TVM's number of the extra tag of an argument that is a tensor map."""

ELEMENTS = {3: "int32", 6: "float16", 7: "float32", 9: "bfloat16"}
"""Element types by the driver's numbers."""
OPAQUE = 8
"""TVM's number of functions that are fused with nothing."""


def tags(launch: Launch) -> list[str]:
    """How an entry is launched."""
    shared = [SHARED] if launch.artifact.shared_bytes else []
    return ["threadIdx.x", "blockIdx.x", "blockIdx.y", "blockIdx.z", *([DEPENDENT] if launch.dependent else []), *shared]


def numbers(launch: Launch) -> list[int]:
    """The numbers of the tags that have one."""
    shared = launch.artifact.shared_bytes
    return [launch.threads, *launch.artifact.grid, *([shared] if shared else [])]


def parameters(launch: Launch) -> list[tuple[str, int]]:
    """Type and extra tag of every parameter of the entry."""
    found: list[tuple[str, int]] = []
    for _, d in launch.artifact.passed:
        if d:
            found += [("handle", TENSOR_MAP), *[("int32", 0)] * len(d.shape), *[("int64", 0)] * len(d.strides)]
        else:
            found.append(("handle", 0))
    return found + [("int32", 0)] * len(launch.artifact.source.sizes) + [("handle", 0)] * launch.hidden


def metadata(launch: Launch, version: str) -> str:
    """What TVM keeps beside the code of an entry, as JSON."""
    types = parameters(launch)
    info = {
        "name": launch.entry,
        "arg_types": [t for t, _ in types],
        "launch_param_tags": tags(launch),
        "arg_extra_tags": [tag for _, tag in types],
    }
    return json.dumps({"tvm_version": version, "func_info": {launch.entry: info}})


def cuda_module(launch: Launch, code: Code = "cubin") -> Any:
    """The code of a kernel as a module of TVM. Nothing is loaded on a device before its first call."""
    tvm = import_tvm()
    about = tvm.get_global_func("runtime.LoadMetaDataFromJSON")(metadata(launch, str(tvm.__version__)))
    data = launch.artifact.cubin if code == "cubin" else launch.artifact.ptx.encode()
    return tvm.get_global_func("ffi.Module.create.cuda")(data, code, about, {})


def host_function(name: str, launch: Launch, table: Mapping[str, Tensor], dims: Mapping[str, Dims]) -> Any:
    """A function of TensorIR over the launch's inputs and outputs that launches the kernel; sizes that are open are those of its
    tensors."""
    T: Any = import_module("tvm.script.ir_builder.tirx")
    with import_module("tvm.script.ir_builder").IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": OPAQUE})
        ends = (*launch.inputs, *launch.outputs)
        sizes: dict[str, Any] = {}
        shapes = {n: open_shape(table[n], dims.get(n), sizes) or (1,) for n in ends}
        buffers = {n: T.arg(f"a{i}", T.buffer(shapes[n], table[n].dtype)) for i, n in enumerate(ends)}
        with T.sblock("root"):
            for s in launch.artifact.source.sizes:
                most = max(f.extent for n in ends for d in dims.get(n, ()) for f in d if f.symbol == s)
                with T.Assert(sizes[s] <= most, f"{s} is at most {most}"):
                    pass
            T.reads(*(_whole(buffers[n], shapes[n]) for n in launch.inputs))
            T.writes(*(_whole(buffers[n], shapes[n]) for n in launch.outputs))
            given: list[Any] = []
            for i, d in launch.artifact.passed:
                data = buffers[launch.args[i]].data
                given += [data] if d is None else _described(T, d, data)
            given += [T.Cast("int32", sizes[s]) for s in launch.artifact.source.sizes]
            given += [T.reinterpret("handle", T.uint64(0)) for _ in range(launch.hidden)]
            T.evaluate(T.call_packed(launch.entry, *given, *(T.int32(n) for n in numbers(launch))))
    return builder.get()


def open_shape(tensor: Tensor, dims: Dims | None, sizes: dict[str, Any]) -> tuple[Any, ...]:
    """The shape of a tensor, its open sizes as the variables ``sizes``, which are made here."""
    tirx: Any = import_module("tvm.tirx")
    found: list[Any] = []
    for dim, extent in zip(dims or (), tensor.shape, strict=False):
        whole = math.prod(f.extent for f in dim if not f.symbol)
        names = [f.symbol for f in dim if f.symbol]
        for s in names:
            if s not in sizes:
                sizes[s] = tirx.Var(f"size{len(sizes)}", "int64")
        value = functools.reduce(lambda a, s: a * sizes[s], names[1:], sizes[names[0]]) if names else extent
        found.append(value * whole if names and whole > 1 else value)
    return tuple(found) if dims is not None else tensor.shape


def _whole(buffer: Any, shape: tuple[Any, ...]) -> Any:
    return buffer[tuple(slice(0, n) for n in shape)]


def _described(T: Any, d: Descriptor, data: Any) -> list[Any]:
    """The parameters that a descriptor is: the map, which is encoded here, extents and strides."""
    tirx: Any = import_module("tvm.tirx")
    room = T.bind(tirx.tvm_stack_alloca("tensormap", 1))
    start = T.handle_add_byte_offset(data, d.offset * d.itemsize) if d.offset else data
    ones = (1,) * len(d.shape)
    strides = [n * d.itemsize for n in reversed(d.strides[:-1])]
    sizes = [*reversed(d.shape), *strides, *reversed(d.part), *ones]
    T.evaluate(
        tirx.tensormap_encode_tiled(
            room,
            start,
            *(T.int64(n) for n in sizes),
            descriptor_dtype=ELEMENTS[d.data_type],
            rank=len(d.shape),
            swizzle=d.swizzle,
            l2_promotion=L2_PROMOTION_128B,
        )
    )
    return [room, *(T.int32(n) for n in d.shape), *(T.int64(n) for n in d.strides)]
