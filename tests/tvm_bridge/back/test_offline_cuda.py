"""Compiling on a machine without a CUDA driver: each in a process of its own, since a library is loaded once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuser.errors import EnvironmentError_
from tests.paths import ROOT
from tvm_bridge.back import offline_cuda

LOAD = """
import tvm
from tvm_bridge.back import offline_cuda
known = lambda: tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None
before = known()
stood_in = offline_cuda.load(tvm)
assert known()
assert stood_in != before
assert not offline_cuda.load(tvm), "once"
assert not tvm.cuda().exist or before
print("fine")
"""


@pytest.mark.relax
def test_cuda_modules_can_be_made_without_a_driver() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "fine", done.stderr


def test_what_stands_in_is_read_off_the_library() -> None:
    names = [
        b"libcuda.so.1",
        b"libcudart.so.13",
        b"cuLaunchKernelEx",
        b"cudaMalloc",
        b"cudaFree",
        b"cuda",
        b"culprit",
        b"libc.so.6",
    ]
    found = offline_cuda.needed(b"\0" + b"\0".join(names) + b"\0")
    assert found == [("libcudart.so.13", ["cudaFree", "cudaMalloc"]), ("libcuda.so.1", ["cuLaunchKernelEx"])]


def test_a_stand_in_refuses_every_call(tmp_path: Path) -> None:
    import ctypes

    made = ctypes.CDLL(str(offline_cuda.stand_in(tmp_path, "libcudart.so.99", ["cudaMalloc"])))
    assert made.cudaMalloc(None, 1) == offline_cuda.NO_DEVICE


def test_without_a_compiler_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EnvironmentError_, match="no C compiler") as found:
        offline_cuda.compiler()
    assert "gcc" in (found.value.hint or "")
