"""Torch's operators that the op table lacks (ATen's, and those that others register), as they were called: their arguments as
JSON, and the call itself."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from collections.abc import Sequence
from operator import itemgetter
from typing import Any


def described(args: Sequence[Any], kwargs: dict[str, Any], kind: Callable[[Any], str]) -> tuple[str, list[Any]]:
    """The arguments of a call with its tensors taken out, as JSON, and the tensors in order. A tensor is of a ``kind``,
    ``tensor`` or ``complex``, which is given with both parts in a last dimension. Raises :class:`TypeError` for what JSON
    cannot say."""
    tensors: list[Any] = []

    def plain(value: Any) -> Any:
        import torch

        if name := kind(value):
            tensors.append(value)
            return {name: len(tensors) - 1}
        if isinstance(value, complex):
            return {"number": [value.real, value.imag]}
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
    """Carry out a call on torch tensors; ``field`` picks one of several results. Of complex ones it is a view of both parts."""
    found = _prepared(callee, detail)(tensors)
    if isinstance(found, (list, tuple)) and field < 0:
        return [real_view(x) for x in found]
    return real_view(found if field < 0 else found[field])


def real_view(x: Any) -> Any:
    """A complex tensor with a last dimension of both parts; others as they are, without a lazy sign."""
    import torch

    if not isinstance(x, torch.Tensor) or not (x.is_complex() or x.is_neg()):
        return x
    x = x.resolve_conj().resolve_neg()
    return torch.view_as_real(x) if x.is_complex() else x


def of_parts(x: Any) -> Any:
    """A complex tensor of a last dimension of two."""
    import torch

    even = x.stride(-1) == 1 and all(s % 2 == 0 for s in x.stride()[:-1]) and x.storage_offset() % 2 == 0
    return torch.view_as_complex(x if even else x.contiguous())


def moved_to(graph: Any, device: Any) -> None:
    """Lets a graph of torch's operators make on a device what it makes on another."""
    import torch
    from torch.fx.node import map_aggregate

    for node in graph.nodes:
        node.args = map_aggregate(node.args, lambda x: device if isinstance(x, torch.device) else x)
        node.kwargs = map_aggregate(node.kwargs, lambda x: device if isinstance(x, torch.device) else x)


def operator(callee: str) -> Any:
    """Torch's operator of a name with its overload."""
    import torch

    namespace, name, overload = callee.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


UNCHECKED = {f"aten.{n}.default": f"aten.{n}_ex.default" for n in ("linalg_solve", "linalg_inv", "linalg_cholesky")}
"""Operators that wait for the GPU to say whether a matrix is singular, by those that do not: within a CUDA graph nobody can wait,
and as behind torch.compile what is computed of such a matrix is not finite, or means nothing."""
BY_STRIDES = "aten.as_strided"
"""Operators that say where elements lie in a tensor's memory."""


def _from_its_first(function: Callable[..., Any], x: Any, *args: Any, storage_offset: int | None = None, **kwargs: Any) -> Any:
    """A call that counts from where memory begins, of a tensor that a program has row after row from its first element on, and
    that may lie in the midst of others."""
    strides = next(i for i, a in enumerate(args) if isinstance(a, list)) + 2  # behind sizes and strides
    if len(args) > strides:
        args, storage_offset = args[:strides], args[strides]
    return function(x, *args, storage_offset=x.storage_offset() + (storage_offset or 0), **kwargs)


@functools.cache
def _prepared(callee: str, detail: str) -> Callable[[Sequence[Any]], Any]:
    """The call, read once."""
    args, kwargs = json.loads(detail)
    function = operator(callee)
    if callee.startswith(BY_STRIDES):
        function = functools.partial(_from_its_first, function)
    if callee in UNCHECKED:
        function = _unless_captured(function, operator(UNCHECKED[callee]))
    first, named = [_reader(a) for a in args], {k: _reader(v) for k, v in kwargs.items()}
    return lambda tensors: function(*[f(tensors) for f in first], **{k: f(tensors) for k, f in named.items()})


def _unless_captured(checked: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A call that is another one, with its first result, while a CUDA graph is captured."""
    import torch

    def either(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return other(x, *args, **kwargs)[0]
        return checked(x, *args, **kwargs)

    return either


def _reader(value: Any) -> Callable[[Sequence[Any]], Any]:
    """An argument, of the tensors of a call."""
    import torch

    if isinstance(value, list):
        each = [_reader(v) for v in value]
        return lambda tensors: [f(tensors) for f in each]
    if not isinstance(value, dict):
        return lambda _: value
    if "tensor" in value:
        return itemgetter(value["tensor"])
    if "complex" in value:
        return lambda tensors: of_parts(tensors[value["complex"]])
    if "number" in value:
        return lambda _: complex(*value["number"])
    if "device" in value:
        return lambda tensors: tensors[0].device
    known = getattr(torch, value["torch"])
    return lambda _: known


def evaluate(callee: str, detail: str, arrays: Sequence[Any], field: int = -1) -> Any:
    """The same on numpy arrays."""
    import numpy as np
    import torch

    tensors = [torch.from_numpy(np.require(a, requirements="W")) for a in arrays]  # torch warns of what it could not write to
    found = call(callee, detail, tensors, field)
    return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
