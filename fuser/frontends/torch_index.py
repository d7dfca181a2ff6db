"""Indices that are tensors of one whole number (``x[t]``, ``x[costs.argmin()]``): torch reads the number to know which view that
is, and a program knows no values. Here the row is gathered, or written back to where it was."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


class SharedRowError(Exception):
    """A row that was gathered, or what it was gathered from, is written to: torch has them in the same memory."""


@contextmanager
def gathered() -> Iterator[None]:
    """Such indices become gathers meanwhile. Raises :class:`SharedRowError` at the end where that computes something else."""
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler as Handler
    from torch.overrides import TorchFunctionMode

    rows = _Rows()

    class Gathered(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            rows.before(func, args)
            func, args, kwargs = rows.instead(func, args, kwargs or {})
            return func(*args, **kwargs)

    def first(self: Any, func: Any, args: Any, kwargs: Any) -> Any:  # torch.export reads the numbers before it asks others
        mine = rows.instead(func, args, kwargs)
        if mine[0] is func:
            return theirs(self, func, args, kwargs)  # and is asked as it calls
        rows.before(func, args)
        return mine

    theirs = Handler._override
    with patch.object(Handler, "_override", first), Gathered():
        yield
    if rows.shared or any(r.written for r in rows.all):
        raise SharedRowError


@dataclass(eq=False)
class _Row:
    """A ``row`` that was gathered from a tensor, and how often both had been written to."""

    row: Any
    origin: Any
    writes: tuple[int, int]

    @staticmethod
    def of(row: Any, origin: Any) -> _Row:
        return _Row(row, origin, (row._version, origin._version))

    @property
    def written(self) -> bool:
        return (self.row._version, self.origin._version) != self.writes


class _Rows:
    """The rows that were gathered. One that is written to may only be put back, and by the next call (``x[t] += 1``)."""

    def __init__(self) -> None:
        self.all: list[_Row] = []
        self.shared = self.inside = False

    def before(self, func: Any, args: Sequence[Any]) -> None:
        """Looks at what earlier calls wrote to."""
        import torch

        if self.inside or getattr(func, "__name__", "") == "__get__":  # attributes read nothing
            return
        with self._alone():
            for r in self.all:
                back = func is torch.Tensor.__setitem__ and args[0] is r.origin and args[2] is r.row
                self.shared |= r.written and not back

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Calls of our own are not looked at."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def instead(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """A call, or another one in its place."""
        import torch

        ways = {torch.Tensor.__getitem__: self._read, torch.Tensor.__setitem__: self._written}
        if func not in ways or self.inside:
            return func, args, kwargs
        with self._alone():
            found = _of_numbers(args[0], args[1])
        return (ways[func], (args[0], *found, *args[2:]), {}) if found else (func, args, kwargs)

    def _read(self, x: Any, *how: Any) -> Any:
        with self._alone():
            row = _read(x, *how)
            self.all.append(_Row.of(row, x))
        return row

    def _written(self, x: Any, rest: tuple[Any, ...], numbers: Mapping[int, Any], value: Any) -> None:
        with self._alone():
            _written(x, rest, numbers, value)
            self.all = [_Row.of(r.row, x) if r.origin is x and r.row is value else r for r in self.all]


def _of_numbers(x: Any, index: Any) -> tuple[tuple[Any, ...], dict[int, Any]] | None:
    """The index with zeros in place of tensors of one number, and these by the dimension of ``x`` that they are for; None where
    there are none."""
    import torch

    items = index if isinstance(index, tuple) else (index,)
    if not isinstance(x, torch.Tensor) or not any(map(_is_number, items)):
        return None
    takes = [_dimensions(i) for i in items]
    for k in [k for k, i in enumerate(items) if i is Ellipsis]:
        takes[k] = x.dim() - sum(takes)
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
    """The row is taken out, changed, and put back where it was: elements that a kernel chooses among."""
    import torch

    (dim, number), *others = numbers.items()
    row = _from_the_end(number, x.shape[dim])
    part = x.index_select(dim, row)
    if others:
        _written(part, rest, dict(others), value)
    else:
        part[rest] = value
    here = torch.arange(x.shape[dim], device=x.device) == row
    x.copy_(torch.where(here.reshape(-1, *[1] * (x.dim() - dim - 1)), part, x))
