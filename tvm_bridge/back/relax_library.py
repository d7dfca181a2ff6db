"""What no kernel was generated for, as operators of Relax: each is traced as torch has it, and imported by TVM's own frontend, so
that the op table's names in torch are the only ones. TVM makes and schedules its kernels."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import UnsupportedError
from fuser.errors import said
from fuser.ir.program import Tensor
from tvm_bridge.back.recipe import Call

MODE = "TVM_CUDA_COMPILE_MODE"
"""TVM's variable for what compiles its CUDA: ``nvrtc`` (its default) or ``nvcc``."""


def need_compiler(calls: Sequence[Call]) -> None:
    """Choose what compiles TVM's CUDA source; raises :class:`EnvironmentError_` where there is nothing."""
    if MODE in os.environ:
        return
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None:
        return
    if shutil.which("nvcc") is None:
        raise EnvironmentError_(
            f"{', '.join(sorted({title(c) for c in calls}))} of the model is left to TVM, which needs a CUDA compiler for it",
            "pip install cuda-bindings nvidia-cuda-nvrtc, or put nvcc on the path",
        )
    os.environ[MODE] = "nvcc"


def title(call: Call) -> str:
    """The operator as the model has it."""
    return str(call.attrs.get("callee", call.op))


def function(call: Call, table: Mapping[str, Tensor]) -> Any:
    """A call as a function of Relax over its operands. Raises :class:`UnsupportedError` where torch or TVM does not know it."""
    operands = tuple((table[n].shape, table[n].dtype) for n in call.args)
    result = (table[call.output].shape, table[call.output].dtype)
    return _function(call.op, json.dumps(dict(call.attrs), sort_keys=True), operands, result, title(call))


@functools.lru_cache(maxsize=256)
def _function(
    op: str, attrs: str, operands: tuple[tuple[tuple[int, ...], str], ...], result: tuple[tuple[int, ...], str], name: str
) -> Any:
    try:
        import torch
    except ImportError as error:
        raise EnvironmentError_(f"{name} of the model is read through torch", "pip install 'mufuser[torch]'") from error
    from tvm.relax.frontend.torch import from_exported_program

    from fuser.runtime.torch_program import apply

    class Operator(torch.nn.Module):
        def forward(self, *xs: Any) -> Any:
            found = apply(op, xs, json.loads(attrs))
            return found.to(getattr(torch, result[1])).reshape(result[0]).contiguous()

    examples = tuple(torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in operands)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # TVM calls what torch has deprecated
            exported = torch.export.export(Operator(), examples)
            module = from_exported_program(exported, unwrap_unit_return_tuple=True)
    except Exception as error:
        raise UnsupportedError(
            f"{name} of {', '.join(f'{list(s)} {d}' for s, d in operands)} is no operator of TVM: {said(error)[:300]}",
            "run the model in torch (--runtime torch)",
        ) from error
    return module["main"]
