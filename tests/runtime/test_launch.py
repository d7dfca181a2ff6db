"""Launching without a GPU: what can be known of a kernel's parameters, and what is said where there is no device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.runtime import launch
from fuser.runtime.cuda_driver import INVALID_CONTEXT
from fuser.runtime.cuda_driver import CudaError
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.launch import parameters_of
from tests.runtime.kernels import artifact_of
from tests.runtime.kernels import doubling


def test_hidden_parameters_are_counted() -> None:
    artifact = artifact_of(doubling())
    # Triton's calling convention adds two scratch pointers behind those of the source
    assert parameters_of(artifact.ptx, artifact.name) == len(artifact.args) + 2
    with pytest.raises(NoValidKernelError, match="nothing"):
        parameters_of(artifact.ptx, "nothing")


def test_binding_checks_the_number_and_alignment_of_tensors() -> None:
    artifact = artifact_of(doubling())
    kernel = LoadedKernel(artifact, 0, 0, 2, 32, 0)
    with pytest.raises(FuserError, match="takes 2 tensors, got 1"):
        kernel.bind([256])
    with pytest.raises(FuserError, match="'X' starts at an address") as error:
        kernel.bind([264, 512])
    assert "copy" in (error.value.hint or "")


def test_errors_say_whether_the_process_can_go_on() -> None:
    assert CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS").sticky
    assert not CudaError("cuLaunchKernel", 1, "CUDA_ERROR_INVALID_VALUE").sticky
    assert CudaError("cuLaunchKernel", 1, "x").exit_code == 6


@pytest.mark.parametrize("flag", [False, True])
def test_the_interpreter_runs_whether_it_is_switched_on_or_not(flag: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", flag)
    source = doubling()
    tensors = [torch.full(shape, 3.0, dtype=getattr(torch, d)) for shape, d in zip(source.shapes, source.dtypes, strict=True)]
    InterpretedKernel(source).bind(tensors)()
    (out,) = [t for n, t in zip(source.args, tensors, strict=True) if n in source.outputs]
    assert bool((out == 6).all())
    assert knobs.runtime.interpret == flag


def test_a_thread_without_a_context_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Driver:
        def cuLaunchKernelEx(self, *_: Any) -> int:  # noqa: N802
            asked.append("launch")
            return 0 if "context" in asked else INVALID_CONTEXT

    monkeypatch.setattr(launch, "driver", Driver)
    monkeypatch.setattr(launch, "use_current_device", lambda: asked.append("context"))
    call = LoadedKernel(artifact_of(doubling()), 0, 0, 2, 32, 0).bind([256, 512])
    call(0)
    call(0)
    assert asked == ["launch", "context", "launch", "launch"]


LARGE = 160 << 10


@pytest.mark.parametrize(
    ("shared", "followed", "asked"),
    [(16 << 10, True, {}), (LARGE, False, {8: LARGE}), (LARGE, True, {8: LARGE, 9: 100})],
    ids=["small", "alone", "followed"],
)
def test_large_kernels_leave_memory_to_the_next(
    shared: int, followed: bool, asked: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are allowed what they need (8); where the next may start beside them, what they leave is shared memory (9)."""
    import torch

    said: dict[int, int] = {}

    class Driver:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> int:
                if name == "cuFuncSetAttribute":
                    said[args[1]] = args[2]
                return 0

            return call

    monkeypatch.setattr(launch, "_init", lambda: None)
    monkeypatch.setattr(launch, "use_current_device", lambda: None)
    monkeypatch.setattr(launch, "driver", Driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: None)
    artifact = artifact_of(doubling())
    ptx = artifact.ptx + launch.LETS_START + launch.PAST_CACHE if followed else artifact.ptx
    launch.load(replace(artifact, shared_bytes=shared, ptx=ptx))
    assert said == asked
