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
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
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
    assert captured == ["begin", "end"]
    assert len(found) == 3
    assert not any(r() for r in found)


def test_a_call_that_fails_ends_the_capture(captured: list[str]) -> None:
    def call() -> None:
        raise ValueError("cannot be captured")

    with pytest.raises(ValueError, match="cannot be captured"):
        capture_calls([call])
    assert captured == ["begin", "end"]
