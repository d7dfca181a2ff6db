"""Kernels inside TVM: metadata and PTX as TVM reads them, launches as a fake kernel sees them."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import cast

import numpy as np
import pytest

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ProgramError
from tvm_bridge.back.embed import RegionKernels
from tvm_bridge.back.embed import check_signature
from tvm_bridge.back.embed import entry_parameters
from tvm_bridge.back.embed import launch_tags
from tvm_bridge.back.embed import launch_values
from tvm_bridge.back.embed import rename_entry
from tvm_bridge.back.embed import write_ptx
from tvm_bridge.flavour import check_distributions


@dataclass(frozen=True)
class Arg:
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Kernel:
    name: str
    args: tuple[Arg, ...]
    grid: tuple[int, int, int] = (3, 2, 1)
    num_warps: int = 4
    shared_bytes: int = 0

    @property
    def ptx(self) -> str:
        params = ",\n".join(f"\t.param .u64 .ptr .global .align 1 {self.name}_param_{i}" for i in range(len(self.args) + 2))
        body = "".join(f"\tld.param.b64 \t%rd{i}, [{self.name}_param_{i}];\n" for i in range(len(self.args)))
        return (
            f".version 8.0\n.target sm_90a\n.address_size 64\n\t// .globl\t{self.name}\n"
            f".extern .shared .align 16 .b8 global_smem[];\n\n"
            f".visible .entry {self.name}(\n{params}\n)\n.reqntid 128\n{{\n{body}\tret;\n}}\n"
        )


def two_kernels() -> RegionKernels:
    """O = f(H, W), H = f(X): the second kernel reads what the first leaves in the workspace."""
    x, h, w, o = Arg("X", (4, 8)), Arg("H", (4, 16)), Arg("W", (16, 8)), Arg("O", (4, 8))
    first = Kernel("up", (x, h), grid=(5, 6, 7), num_warps=8, shared_bytes=8192)
    second = Kernel("down", (h, w, o))
    return RegionKernels(cast(Any, (first, second)), ("X", "W"), ("O",), {"H": ((4, 16), "float32")})


SIGNATURE = ([((4, 8), "float32"), ((16, 8), "float32")], [((1, 4, 8), "float32")])


def test_metadata_and_entries_are_what_tvm_reads(tmp_path: Path) -> None:
    paths = write_ptx(tmp_path, "layer", two_kernels(), "0.19.0")
    assert [p.name for p in paths] == ["layer_0_up.ptx", "layer_1_down.ptx"]
    meta = json.loads((tmp_path / "layer_0_up.tvm_meta.json").read_text())
    assert meta == {
        "tvm_version": "0.19.0",
        "func_info": {
            "layer_0_up": {
                "name": "",
                "arg_types": ["handle"] * 4,
                "launch_param_tags": ["threadIdx.x", "blockIdx.x", "blockIdx.y", "blockIdx.z", "tir.use_dyn_shared_memory"],
            }
        },
    }
    assert "up_param" not in paths[0].read_text().replace("layer_0_up", "")
    assert entry_parameters(paths[1].read_text(), "layer_1_down") == 5


def test_launch_arguments_and_tags_match() -> None:
    up, down = two_kernels().kernels
    assert launch_values(up) == [256, 5, 6, 7, 8192]
    assert launch_values(down) == [128, 3, 2, 1]
    assert len(launch_tags(up)) == 5
    assert launch_tags(up, "tirx")[-1] == "tirx.use_dyn_shared_memory"
    assert len(launch_tags(down)) == 4


def test_only_the_entry_is_renamed() -> None:
    ptx = ".entry k(\n.param .u64 k_param_0\n) { ld.param [k_param_0]; $k: bra k_loop; %k = k_param_0x; } // kk k$"
    assert rename_entry(ptx, "k", "new") == (
        ".entry new(\n.param .u64 new_param_0\n) { ld.param [new_param_0]; $k: bra k_loop; %k = k_param_0x; } // kk k$"
    )


def change(kernels: RegionKernels, index: int, **values: Any) -> RegionKernels:
    changed = list(kernels.kernels)
    changed[index] = replace(changed[index], **values)  # type: ignore[type-var]
    return replace(kernels, kernels=tuple(changed))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(two_kernels(), kernels=()), "at least one kernel"),
        (replace(two_kernels(), intermediates={}), "takes 'H', which is no input"),
        (replace(two_kernels(), intermediates={"H": ((4, 4), "float32")}), "takes 'H' as"),
        (replace(two_kernels(), inputs=("X", "W", "O")), "different names"),
        (replace(two_kernels(), outputs=("O", "P")), "no kernel writes the output 'P'"),
        (change(two_kernels(), 0, grid=(1, 70000, 1)), "outside 1"),
        (change(two_kernels(), 0, grid=(0, 1, 1)), "outside 1"),
    ],
)
def test_kernels_that_do_not_fit_together_are_refused(broken: RegionKernels, message: str) -> None:
    with pytest.raises(FuserError, match=message):
        broken.validate()


def test_ptx_of_another_kernel_is_refused() -> None:
    class Foreign(Kernel):
        @property
        def ptx(self) -> str:
            return Kernel("other", self.args).ptx

    class Short(Kernel):
        @property
        def ptx(self) -> str:
            return Kernel(self.name, self.args[:-1]).ptx

    args = (Arg("X", (4,)), Arg("O", (4,)))
    with pytest.raises(FuserError, match="no entry 'k'"):
        RegionKernels((cast(Any, Foreign("k", args)),), ("X",), ("O",)).validate()
    with pytest.raises(FuserError, match="has 3 parameters, not 2 and two"):
        RegionKernels((cast(Any, Short("k", args)),), ("X",), ("O",)).validate()


def test_kernels_of_another_region_are_refused() -> None:
    inputs, outputs = SIGNATURE
    assert list(check_signature("s", two_kernels(), SIGNATURE)) == ["X", "W", "O"]
    assert list(check_signature("s", two_kernels(), ([*inputs, ((9,), "int32")], outputs))) == ["X", "W", "unused0", "O"]
    with pytest.raises(ProgramError, match="'W' of s is float16"):
        check_signature("s", two_kernels(), ([inputs[0], ((16, 8), "float16")], outputs))
    with pytest.raises(ProgramError, match="2 inputs and 1 outputs; its function has 1 and 1"):
        check_signature("s", two_kernels(), (inputs[:1], outputs))


def test_two_tvms_in_one_environment_are_refused() -> None:
    check_distributions(["xtc_tvm.python-bindings", "xtc-tvm-python-bindings"])
    with pytest.raises(EnvironmentError_, match="apache-tvm and xtc-tvm-python-bindings both install"):
        check_distributions(["xtc-tvm-python-bindings", "apache_tvm"])


Launch = tuple[Any, ...]


@pytest.fixture
def launches() -> Iterator[list[tuple[str, Launch]]]:
    """Fake kernels under the names that the PTX entries would have; they record their arguments and do the work on the CPU."""
    tvm = pytest.importorskip("tvm")
    seen: list[tuple[str, Launch]] = []

    def floats(pointer: Any, count: int) -> Any:
        return np.ctypeslib.as_array(ctypes.cast(pointer.value, ctypes.POINTER(ctypes.c_float)), (count,))

    def up(*args: Any) -> None:
        seen.append(("up", args))
        floats(args[1], 64)[:] = np.repeat(floats(args[0], 32), 2)

    def down(*args: Any) -> None:
        seen.append(("down", args))
        floats(args[2], 32)[:] = (floats(args[0], 64).reshape(4, 16) @ floats(args[1], 128).reshape(16, 8)).ravel()

    for name, function in (("layer_0_up", up), ("layer_1_down", down)):
        tvm.register_func(name, function, override=True)
    yield seen
    for name in ("layer_0_up", "layer_1_down"):
        tvm._ffi.registry.remove_global_func(name)


@pytest.mark.relay
def test_a_fake_kernel_sees_the_launch(launches: list[tuple[str, Launch]], rng: np.random.Generator) -> None:
    tvm = pytest.importorskip("tvm")
    from tvm_bridge.back.embed import host_module

    module = host_module("layer", two_kernels(), SIGNATURE, "llvm")
    x, w = rng.standard_normal((4, 8)).astype("float32"), rng.standard_normal((16, 8)).astype("float32")
    arrays = [tvm.nd.array(x), tvm.nd.array(w), tvm.nd.empty((1, 4, 8))]
    module["layer"](*arrays)
    (first, up), (second, down) = launches
    assert (first, second) == ("up", "down")
    address = [ctypes.cast(a.handle.contents.data, ctypes.c_void_p).value for a in arrays]
    workspace = up[1].value
    assert [getattr(a, "value", a) for a in up] == [address[0], workspace, None, None, 256, 5, 6, 7, 8192]
    assert [getattr(a, "value", a) for a in down] == [workspace, address[1], address[2], None, None, 128, 3, 2, 1]
    assert workspace not in (None, *address)
    assert np.allclose(arrays[2].numpy()[0], np.repeat(x.ravel(), 2).reshape(4, 16) @ w, atol=1e-5)
    with pytest.raises(tvm.TVMError, match="shape"):
        module["layer"](tvm.nd.empty((8, 4)), *arrays[1:])


@pytest.mark.relay
def test_the_host_function_for_cuda_takes_device_arrays_only() -> None:
    tvm = pytest.importorskip("tvm")
    from tvm_bridge.back.embed import cuda_module
    from tvm_bridge.back.embed import host_module

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    module = host_module("layer", two_kernels(), SIGNATURE, target)
    assert module.type_key == "llvm"
    with pytest.raises(tvm.TVMError, match="device_type"):
        module["layer"](*(tvm.nd.empty(s) for s in ((4, 8), (16, 8), (1, 4, 8))))
    if tvm.get_global_func("runtime.module.loadfile_ptx", allow_missing=True) is None:
        with pytest.raises(EnvironmentError_, match="built without CUDA"):
            cuda_module("layer", two_kernels(), SIGNATURE, target)


@pytest.mark.relay
def test_the_host_function_of_cuda_asks_the_device_for_its_workspace() -> None:
    """The code calls TVM's workspace pool rather than the host's heap or stack."""
    tvm = pytest.importorskip("tvm")
    from tvm_bridge.back.embed import host_module

    module = host_module("layer", two_kernels(), SIGNATURE, tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"))
    source = module.get_source("ll")
    assert "TVMBackendAllocWorkspace" in source
    assert "TVMBackendFreeWorkspace" in source


def test_a_compiled_kernel_is_embedded_and_still_assembles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from triton.backends.nvidia.compiler import get_ptxas

    from fuser.device import load_device
    from fuser.ir.builder import Builder
    from fuser.lower.compile import intermediates
    from search.realise import compile_candidate
    from search.tune import tune_fast

    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "cache"))
    b = Builder("chain")
    program = b.build(E=(b.input("A", (512, 64)) @ b.input("B", (64, 256))) @ b.input("D", (256, 64)))
    device = load_device("h200")
    winner = tune_fast(program, device, options=False).winner  # the launcher of this TVM knows no descriptors
    artifacts = compile_candidate(winner.candidate, device)
    between = {name: (arg.shape, arg.dtype) for name, arg in intermediates(winner.graph, artifacts).items()}
    kernels = RegionKernels(artifacts, program.inputs, program.outputs, between)
    paths = write_ptx(tmp_path, "mufuser_chain", kernels, "0.19.0")
    assert len(paths) == len(artifacts)
    for path, artifact in zip(paths, artifacts, strict=True):
        text = path.read_text()
        assert f".entry {path.stem}(" in text
        assert int(text.split(".reqntid")[1].split()[0].rstrip(",")) == launch_values(artifact)[0]
        cubin = path.with_suffix(".cubin")
        done = subprocess.run(
            [get_ptxas(90).path, "-arch=sm_90a", str(path), "-o", str(cubin)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert path.stem.encode() in cubin.read_bytes()
