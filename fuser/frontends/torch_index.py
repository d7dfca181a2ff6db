"""Indices that are tensors of one whole number (``x[t]``, ``x[costs.argmin()]``): torch reads the number to know which view that
is, and a program knows no values. Here the row is gathered, or written back to where it was."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def gathered() -> Iterator[None]:
    """Such indices become gathers meanwhile."""
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler as Handler
    from torch.overrides import TorchFunctionMode

    class Gathered(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            func, args, kwargs = _instead(func, args, kwargs or {})
            return func(*args, **kwargs)

    def first(self: Any, func: Any, args: Any, kwargs: Any) -> Any:  # torch.export reads the numbers before it asks others
        mine = _instead(func, args, kwargs)
        return mine if mine[0] is not func else theirs(self, func, args, kwargs)

    theirs = Handler._override
    with patch.object(Handler, "_override", first), Gathered():
        yield


def _instead(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """A call, or another one in its place."""
    import torch

    ways = {torch.Tensor.__getitem__: _read, torch.Tensor.__setitem__: _written}
    if func in ways and (found := _of_numbers(args[0], args[1])):
        return ways[func], (args[0], *found, *args[2:]), {}
    return func, args, kwargs


def _of_numbers(x: Any, index: Any) -> tuple[tuple[Any, ...], dict[int, Any]] | None:
    """The index with zeros in place of tensors of one number, and these by the dimension of ``x`` that they are for; None where
    there are none."""
    import torch

    items = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, torch.Tensor) or not any(map(_is_number, items)):
        return None
    takes = [_dimensions(i) for i in items]
    if Ellipsis in [i for i in items if not isinstance(i, torch.Tensor)]:
        takes[next(k for k, i in enumerate(items) if i is Ellipsis)] = x.dim() - sum(takes)
    if any(n < 0 for n in takes) or sum(takes) > x.dim():
        return None  # too many: torch says so
    numbers = {sum(takes[:k]): i for k, i in enumerate(items) if _is_number(i)}
    return tuple(0 if _is_number(i) else i for i in items), numbers


def _is_number(item: Any) -> bool:
    import torch

    kinds = torch.int8, torch.int16, torch.int32, torch.int64
    return isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in kinds


def _dimensions(item: Any) -> int:
    """How many dimensions an entry of an index is for."""
    import torch

    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    masks = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if masks else 1


def _from_the_end(number: Any, size: int) -> Any:
    """A row counted from the beginning, as a tensor of one element."""
    number = number.long().reshape(1)
    return (number < 0).long() * size + number


def _read(x: Any, rest: tuple[Any, ...], numbers: Mapping[int, Any]) -> Any:
    for dim, number in numbers.items():
        x = x.index_select(dim, _from_the_end(number, x.shape[dim]))
    return x[rest]


def _written(x: Any, rest: tuple[Any, ...], numbers: Mapping[int, Any], value: Any) -> None:
    """The rows are taken out, changed, and put back, the last dimension first."""
    (dim, number), *others = numbers.items()
    row = _from_the_end(number, x.shape[dim])
    part = x.index_select(dim, row)
    if others:
        _written(part, rest, dict(others), value)
    else:
        part[rest] = value
    x.index_copy_(dim, row, part)
