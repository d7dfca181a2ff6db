"""Triton's two forms of one function in one process: what its compiler takes, and what its interpreter runs.

``triton.jit`` makes the one or the other, as ``TRITON_INTERPRET`` says at that moment, and Triton's own library (``tl.sum``,
``tl.sigmoid``, …) gets its form when Triton is imported. A function of the other form fails where it is used, with an empty
message. So each use says which form it needs: the library has that form while it lasts, and one thread at a time.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from fuser.errors import EnvironmentError_

_LOCK = threading.RLock()


def triton_module() -> Any:
    """Triton. Raises :class:`EnvironmentError_` where it is not installed."""
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise EnvironmentError_("Triton is not installed", "pip install 'triton>=3.6,<3.10'") from error
    return triton


@contextlib.contextmanager
def form(interpreted: bool) -> Iterator[None]:
    """Within, ``triton.jit`` and Triton's library are of the interpreter's form, or of the compiler's; afterwards as before."""
    runtime = triton_module().knobs.runtime
    with _LOCK:
        if interpreted:  # the interpreter imports Gluon, which would keep what it has put into Triton's library by then
            import_module("triton.experimental.gluon.language")
        before, names = runtime.interpret, [(n, dict(vars(n))) for n in _patched()]
        _give(interpreted)
        runtime.interpret = interpreted
        try:
            with np.errstate(all="ignore" if interpreted else None):  # a GPU does not warn of what overflows either
                yield
        finally:
            for namespace, known in names:  # the interpreter does not take back what it puts there for functions of the library
                _restore(namespace, known)
            runtime.interpret = before
            _give(before)


def _patched() -> tuple[Any, ...]:
    """Where the interpreter puts its own operators."""
    import triton.language as tl

    return tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype, tl.core.tensor_descriptor_base


def _restore(namespace: Any, known: dict[str, Any]) -> None:
    for key, value in list(vars(namespace).items()):
        if key not in known:
            delattr(namespace, key)
        elif value is not known[key]:
            setattr(namespace, key, known[key])


def _give(interpreted: bool) -> None:
    """Let every function of Triton's library have one form, wherever it has a name."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    other = JITFunction if interpreted else InterpretedFunction
    for name, module in list(sys.modules.items()):
        if module is not None and name.startswith("triton.language"):
            for key, value in list(vars(module).items()):
                if isinstance(value, other):
                    setattr(module, key, _of_form(value.fn, interpreted))


@functools.cache
def _of_form(function: Any, interpreted: bool) -> Any:
    """The one form of a plain function, always the same object: the interpreter knows some of the library's by identity."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return InterpretedFunction(function) if interpreted else JITFunction(function)
