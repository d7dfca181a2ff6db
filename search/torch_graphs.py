"""Calls behind ``torch.compile`` that replay a CUDA graph: one launch for all kernels.

Parameters and buffers are read where they lie, so that writes to them are seen; where one has moved, the call is captured again.
Other inputs are copied into buffers of the graph, and results out of them: what a caller was given stays as it is.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

import torch

from fuser.errors import LeftToTorch
from fuser.errors import first_line

if TYPE_CHECKING:
    from fuser.runtime.capture import Captured
    from search.compiled import CompiledProgram


@dataclass(eq=False)
class Replayed:
    """A program called with its inputs in order; ``fixed`` says which of them are parameters or buffers of a module. The first
    call runs kernel by kernel, the second is captured. What cannot be captured runs kernel by kernel, and a warning says why."""

    made: CompiledProgram
    fixed: Sequence[bool]
    _captured: Captured | None = None
    _places: tuple[int, ...] = ()
    _calls: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self, *inputs: Any) -> Any:
        if self._calls < 1 or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            self._calls += 1
            return self.made(*inputs)
        with self._lock:
            places = tuple([x.data_ptr() for x, fixed in zip(inputs, self.fixed, strict=True) if fixed])
            if self._captured is None or places != self._places:
                try:
                    self._captured, self._places = self._capture(inputs), places
                except RuntimeError as error:  # a library that allocates or waits where nobody may
                    warnings.warn(f"a graph could not be captured: {first_line(error)}", LeftToTorch, stacklevel=2)
                    self._calls = -(1 << 60)
                    return self.made(*inputs)
            return self._replay(self._captured, inputs)

    def _capture(self, inputs: Sequence[Any]) -> Captured:
        named = zip(self.made.inputs, inputs, self.fixed, strict=True)
        buffers = {
            n: x if fixed else torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x) for n, x, fixed in named
        }
        return self.made.captured(**buffers)

    def _replay(self, captured: Captured, inputs: Sequence[Any]) -> Any:
        with self.made.turn():
            named = zip(self.made.inputs, inputs, self.fixed, strict=True)
            given = [(captured.inputs[n], x) for n, x, fixed in named if not fixed and n in captured.inputs]
            if given:
                torch._foreach_copy_([b for b, _ in given], [x for _, x in given])  # pyright: ignore[reportPrivateImportUsage]
            captured.replay()
            results = tuple([captured.outputs[n].clone() for n in self.made.outputs])
        return results[0] if len(results) == 1 else results
