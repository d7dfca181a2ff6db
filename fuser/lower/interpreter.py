"""What Triton's interpreter (``TRITON_INTERPRET=1``) needs to run generated kernels on CPU tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from fuser.lower.triton_source import KernelSource

INLINE = frozenset({"gdc_wait", "gdc_launch_dependents", "prefetch_l2"})
"""Functions of generated modules that are inline assembly and compute nothing."""


def prepare(module: ModuleType) -> None:
    """Make a generated module run in the interpreter."""
    _count_with_scalars()
    for name in INLINE & vars(module).keys():
        setattr(module, name, _nothing)


def _nothing(*_: Any) -> None:
    """What waiting for earlier kernels and prefetching are where one kernel runs after another."""


@functools.cache
def _count_with_scalars() -> None:
    """A loop may start at the number of the program: the interpreter has that as an array of one element, which NumPy from 2.4 on
    does not take for a number."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None:
        return

    @functools.wraps(patch)
    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched  # type: ignore[assignment]


def host_arguments(source: KernelSource, tensors: Sequence[Any]) -> list[Any]:
    """Torch tensors as Triton's own launcher and interpreter take them: Triton's descriptor objects where the kernel has them."""
    if not source.descriptors:
        return list(tensors)
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = []
    for name, tensor in zip(source.args, tensors, strict=True):
        d = source.described.get(name)
        if d is not None:
            base = tensor.reshape(-1)[d.offset :]
            tensor = TensorDescriptor(base, list(d.shape), list(d.strides), list(d.box))
        found.append(tensor)
    return found
