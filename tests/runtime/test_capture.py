"""CUDA graphs of calls, on a torch whose GPU is a stand-in."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fuser.runtime.capture import capture_calls


class Result:
    """What a call returns."""


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of graphs, with nothing behind the streams."""
    said: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: said.append("wait"), synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda device, pool, name=name: said.append(f"{name} {device} {pool}"))
    begin, end = (lambda **how: said.append("begin")), (lambda: said.append("end"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(capture_begin=begin, capture_end=end))
    return said


def test_no_call_gets_the_memory_of_anothers_results(captured: list[str]) -> None:
    """The allocator gives memory that nobody holds to the next: all calls would write to one place, which L2 holds."""
    found: list[weakref.ref[Result]] = []

    def call() -> Result:
        assert all(r() for r in found)
        result = Result()
        found.append(weakref.ref(result))
        return result

    capture_calls([call] * 3)
    assert captured == ["wait", "begin", "end", "wait"]
    assert len(found) == 3
    assert not any(r() for r in found)


def test_a_call_that_fails_ends_the_capture(captured: list[str]) -> None:
    def call() -> None:
        raise ValueError("cannot be captured")

    with pytest.raises(ValueError, match="cannot be captured"):
        capture_calls([call])
    assert captured == ["wait", "begin", "end", "wait"]


def test_an_end_that_fails_gives_the_memory_back_and_hides_nothing(captured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(**how: object) -> None:
        captured.append("begin")

    def end() -> None:
        captured.append("end")
        raise RuntimeError("capture was invalidated")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(capture_begin=begin, capture_end=end))
    given_back = ["_cuda_endAllocateToPool 0 (0, 1)", "_cuda_releasePool 0 (0, 1)"]

    def interrupted() -> None:
        raise KeyboardInterrupt

    for call, kind in ((lambda: None, RuntimeError), (interrupted, KeyboardInterrupt)):
        captured.clear()
        with pytest.raises(kind):
            capture_calls([call])
        assert captured == ["wait", "begin", "end", *given_back, "wait"]


def test_what_fails_before_the_capture_is_waited_for(captured: list[str]) -> None:
    def call() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        capture_calls([call], warm=True)
    assert captured == ["wait", "wait"]
