"""Torch's operators that the op table lacks (ATen's, and those that others register), as they were called: their arguments as
JSON, and the call itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def described(args: Sequence[Any], kwargs: dict[str, Any], is_tensor: Any) -> tuple[str, list[Any]]:
    """The arguments of a call with its tensors taken out, as JSON, and the tensors in order. Raises :class:`TypeError` for what
    JSON cannot say."""
    tensors: list[Any] = []

    def plain(value: Any) -> Any:
        import torch

        if is_tensor(value):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": True}  # that of the tensors
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"an argument of type {type(value).__name__}")

    return json.dumps([plain(list(args)), {k: plain(v) for k, v in kwargs.items()}]), tensors


def call(callee: str, detail: str, tensors: Sequence[Any], field: int = -1) -> Any:
    """Carry out a call on torch tensors; ``field`` picks one of several results."""
    import torch

    def real(value: Any) -> Any:
        if isinstance(value, dict):
            if "tensor" in value:
                return tensors[value["tensor"]]
            return tensors[0].device if "device" in value else getattr(torch, value["torch"])
        return [real(v) for v in value] if isinstance(value, list) else value

    args, kwargs = json.loads(detail)
    namespace, name, overload = callee.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    found = function(*[real(a) for a in args], **{k: real(v) for k, v in kwargs.items()})
    return found if field < 0 else found[field]


def evaluate(callee: str, detail: str, arrays: Sequence[Any], field: int = -1) -> Any:
    """The same on numpy arrays."""
    import torch

    found = call(callee, detail, [torch.as_tensor(a) for a in arrays], field)
    return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
