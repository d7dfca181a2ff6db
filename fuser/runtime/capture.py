"""CUDA graphs of calls."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import suppress
from typing import Any

from fuser.errors import UsageError
from fuser.files import counted


class Captured:
    """A call captured over fixed buffers. ``replay`` is torch's own graph replay; calling the object replays too and returns the
    outputs, and with arguments it first copies them into ``inputs`` (by name, in order).

    Every replay writes the same ``outputs``: read or copy them before the next. Calls and replays of one executable share its
    workspace, so that they belong on one stream, or on streams that wait for each other.
    """

    def __init__(self, inputs: dict[str, Any], outputs: dict[str, Any], graph: Any, keep: Any) -> None:
        self.inputs, self.outputs, self.graph, self._keep = inputs, outputs, graph, keep
        self.replay: Callable[[], None] = graph.replay
        values = tuple(outputs.values())
        self._result = values[0] if len(values) == 1 else values
        self._fixed = tuple((n, x, x.shape, x.dtype) for n, x in inputs.items())

    def __call__(self, *inputs: Any) -> Any:
        if inputs:
            self.copy(*inputs)
        self.replay()
        return self._result

    def copy(self, *inputs: Any) -> None:
        """Copy values into the input buffers, in one launch where dtypes are alike. Raises :class:`UsageError` where number,
        shape or dtype differ."""
        import torch

        fixed = self._fixed
        if len(inputs) != len(fixed):
            raise UsageError(f"captured with {counted(len(fixed), 'input')} ({', '.join(self.inputs)}), got {len(inputs)}")
        to, of = [], []
        for (name, buffer, shape, dtype), x in zip(fixed, inputs, strict=True):
            if x is buffer:
                continue
            if not isinstance(x, torch.Tensor):
                x = torch.from_dlpack(x)
            if x.shape != shape or x.dtype is not dtype:
                raise UsageError(f"{name} was captured as {tuple(shape)} {dtype}, got {tuple(x.shape)} {x.dtype}")
            to.append(buffer)
            of.append(x)
        if len(to) == 1:
            to[0].copy_(of[0])
        elif to:
            torch._foreach_copy_(to, of)  # pyright: ignore[reportPrivateImportUsage]


def capture_calls(calls: Sequence[Callable[[], Any]], warm: bool = False) -> Any:
    """A ``torch.cuda.CUDAGraph`` of the calls one after another; ``warm`` runs the first once before (lazy handles). What they
    return lives until all are captured, so that none writes to memory that an earlier one has written its results to."""
    import torch

    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            if warm:
                calls[0]()
            side.synchronize()
            _forget_workspaces()
            with _nothing_left(calls[0]):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    results = [call() for call in calls]
                except BaseException:
                    with suppress(RuntimeError):  # what was raised first says more
                        _end(graph, pool)
                    raise
                _end(graph, pool)
            _forget_workspaces()
        del results
    finally:  # a call that raises half way has begun to write
        torch.cuda.current_stream().wait_stream(side)
    return graph


@contextmanager
def _nothing_left(call: Callable[[], Any]) -> Iterator[None]:
    """Puts right what a capture leaves that fails half way: the next call of cuSOLVER's fails as well, and torch's generator
    takes itself to be captured still, so that nobody could draw numbers any more. Those to come are what they would have been."""
    import torch

    generators = torch.cuda.default_generators
    generator = generators[torch.cuda.current_device()] if generators else None  # none where torch is the CPU's
    stood = None if generator is None else generator.get_state()
    try:
        yield
    except Exception:
        if generator is not None:
            with suppress(Exception):
                call()
                torch.cuda.current_stream().synchronize()
            _free(generator, stood)
        raise


def _free(generator: Any, state: Any) -> None:
    """A generator that draws, and stands where it stood."""
    import torch

    try:
        torch.rand((), device=generator.device, generator=generator)
    except RuntimeError as error:
        if "capture" in str(error):  # a state of its own, which no graph holds
            generator.graphsafe_set_state(generator.clone_state())
    with suppress(RuntimeError):
        generator.set_state(state)


def _end(graph: Any, pool: Any) -> None:
    """Ends a capture. Where that fails torch's allocator still takes memory for it, and never frees any again: it is told."""
    import torch

    try:
        graph.capture_end()
    except RuntimeError:
        device = torch.cuda.current_device()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        raise


def _forget_workspaces() -> None:
    """cuBLAS keeps memory for each stream: a graph has its own, which nobody frees under it, and leaves none of it to others."""
    import torch

    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # CUDA's torch alone
    if forget is not None:
        forget()
