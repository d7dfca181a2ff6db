"""From streams and bound kernels to one call: the order in which launches and events are issued, for a call and for a capture."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import Protocol

from fuser.runtime.streams import Streams

Launch = Callable[[int], None]
"""Takes the handle of a stream; a library kernel goes on torch's current stream."""


@dataclass(frozen=True)
class Action:
    """What is issued on ``stream``: ``fork``, wait for the start of the call; ``wait``, wait for ``kernel``; ``launch`` it; or
    ``record`` its end. A ``begin`` on the caller's stream is what forks wait for; its event, of no kernel, is number -1."""

    kind: Literal["begin", "fork", "wait", "launch", "record"]
    stream: int
    kernel: int = -1


def actions(streams: Streams) -> tuple[Action, ...]:
    """Everything in the order in which it is issued: events are recorded before they are waited for."""
    found = [Action("begin", 0)] if streams.forks else []
    for k, stream in enumerate(streams.stream):
        if k in streams.forks:
            found.append(Action("fork", stream))
        found += [Action("wait", stream, w) for w in streams.waits[k]]
        found.append(Action("launch", stream, k))
        if k in streams.records:
            found.append(Action("record", stream, k))
    found += [Action("wait", 0, k) for k in streams.joins]
    return tuple(found)


class Gpu(Protocol):
    """What a call needs of the GPU apart from launches."""

    def current(self) -> Any:
        """The caller's stream: ``cuda_stream`` is its handle, and it can ``wait_event``."""

    def stream(self) -> Any: ...

    def event(self) -> Any:
        """Can ``record(stream)``."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes a stream torch's current one."""
        ...


class TorchGpu:
    """Streams and events of torch on one device."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def current(self) -> Any:
        import torch

        return torch.cuda.current_stream(self.device)

    def stream(self) -> Any:
        import torch

        return torch.cuda.Stream(self.device)

    def event(self) -> Any:
        import torch

        return torch.cuda.Event()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        import torch

        return torch.cuda.stream(stream)


class Lanes:
    """The streams beside the caller's and the events of one graph, made once."""

    def __init__(self, streams: Streams, gpu: Gpu) -> None:
        self.gpu, self.order = gpu, actions(streams)
        self.beside = [gpu.stream() for _ in range(streams.count - 1)]
        self.events = {a.kernel: gpu.event() for a in self.order if a.kind in ("begin", "record")}

    def call(self, launches: Sequence[Launch], library: Sequence[bool]) -> Callable[[], None]:
        """One call of ``launches``; those that ``library`` names go on torch's current stream, whatever handle they are given."""
        issue = tuple(self._issue(a, launches, library) for a in self.order)
        gpu = self.gpu

        def call() -> None:
            main = gpu.current()
            handle = main.cuda_stream
            for step in issue:
                step(main, handle)

        return call

    def _issue(self, action: Action, launches: Sequence[Launch], library: Sequence[bool]) -> Callable[[Any, int], None]:
        side = self.beside[action.stream - 1] if action.stream else None
        k = action.kernel
        if action.kind == "launch":
            return self._launch(launches[k], side, library[k])
        event = self.events[k]
        if action.kind in ("fork", "wait"):
            return lambda main, _: (side or main).wait_event(event)
        return lambda main, _: event.record(side or main)

    def _launch(self, launch: Launch, side: Any, library: bool) -> Callable[[Any, int], None]:
        if side is None:
            return lambda _, handle: launch(handle)
        if not library:
            number = side.cuda_stream
            return lambda *_: launch(number)
        on = self.gpu.on

        def call(*_: Any) -> None:
            with on(side):
                launch(0)

        return call


def nothing(_: int) -> None:
    """Of a kernel that another launch does."""


def in_turn(launches: Sequence[Launch], current: Callable[[], int]) -> Callable[[], None]:
    """One call of ``launches`` on the caller's stream alone, whose handle ``current`` gives."""
    every = tuple(x for x in launches if x is not nothing)
    if len(every) == 1:
        (only,) = every
        return lambda: only(current())

    def call() -> None:
        handle = current()
        for launch in every:
            launch(handle)

    return call


def where_captured(beside: Callable[[], None], alone: Callable[[], None], capturing: Callable[[], bool]) -> Callable[[], None]:
    """Calls of a library on several streams where they are captured, else one behind the other: the host takes longer to call
    them than most of them run, and longer still to change streams (a call of four convolutions beside one another took 917 µs,
    86 of them on an H200)."""

    def call() -> None:
        (beside if capturing() else alone)()

    return call
