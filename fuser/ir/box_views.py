"""Views and copies of boxes: where a result is cut, and which box of an operand a box of the result needs
(:mod:`fuser.ir.dimensions`)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from fuser.errors import UnsupportedError
from fuser.ir.boxes import Box
from fuser.ir.boxes import Cuts
from fuser.ir.boxes import Range
from fuser.ir.boxes import cuts_through_reshape
from fuser.ir.boxes import ends
from fuser.ir.boxes import merged
from fuser.ir.boxes import of_result
from fuser.ir.boxes import through_reshape
from fuser.ir.boxes import whole
from fuser.ir.program import Node

Shape = Sequence[int]


@dataclass(frozen=True)
class CutViews:
    """A dimension is the places where it is cut; ``shapes`` are those of the operands."""

    shapes: Sequence[Shape]

    def regrouped(self, dims: Cuts, shape: Shape) -> Cuts:
        return cuts_through_reshape(dims, self.shapes[0], shape)

    def stretched(self, dims: Cuts, shape: Shape) -> Cuts:
        return of_result(dims, len(shape))

    def repeated(self, dim: Sequence[int], times: int) -> tuple[int, ...]:
        return tuple(p * times for p in dim)

    def part(self, dim: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
        return tuple(p - start for p in dim if start < p < stop)

    def joined(self, operands: Sequence[Cuts], axis: int, shape: Shape) -> Cuts:
        parts = ends([s[axis] for s in self.shapes])
        points = (start + p for (start, _), x in zip(parts, operands, strict=True) for p in (0, *x[axis]))
        found = [*merged(operands, len(shape))]
        found[axis] = tuple(sorted({*points} - {0}))
        return tuple(found)


Origin = tuple[int, int, Callable[[Range], Range]]
"""An operand, a dimension of it, and what a range of the result is there."""


def _same(span: Range) -> Range:
    return span


@dataclass
class _Needs:
    """A dimension is where it comes from; of a reshape ``seen`` is the operand's box."""

    box: Box
    shapes: Sequence[Shape]
    seen: list[Box] = field(default_factory=list)

    def regrouped(self, _dims: Sequence[Origin], shape: tuple[int, ...]) -> list[Origin]:
        self.seen.append(through_reshape(self.box, shape, self.shapes[0]))
        return []

    def stretched(self, dims: Sequence[Origin], shape: Shape) -> list[Origin]:
        new = len(shape) - len(dims)
        ones = [(k, d, lambda _: (0, 1)) if n == 1 else (k, d, f) for (k, d, f), n in zip(dims, self.shapes[0], strict=True)]
        return [*[(-1, 0, _same)] * new, *ones]

    def repeated(self, dim: Origin, times: int) -> Origin:
        def divided(span: Range) -> Range:
            if span[0] % times or span[1] % times:
                raise UnsupportedError("is needed in parts")
            return span[0] // times, span[1] // times

        return dim[0], dim[1], divided

    def part(self, dim: Origin, start: int, stop: int) -> Origin:
        return dim[0], dim[1], lambda span: (span[0] + start, span[1] + start)

    def joined(self, operands: Sequence[Sequence[Origin]], axis: int, shape: Shape) -> list[Origin]:
        for dims, (start, stop) in zip(operands, ends([s[axis] for s in self.shapes]), strict=True):
            if start <= self.box[axis][0] and self.box[axis][1] <= stop:
                found = [*dims]
                found[axis] = dims[axis][0], axis, lambda span, by=start: (span[0] - by, span[1] - by)
                return found
        raise UnsupportedError("is needed across the parts that it is concatenated from")


def needed(node: Node, box: Box, shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> list[tuple[str, Box]]:
    """The operand of a view or a copy, and its box, that a box of the result needs. Raises :class:`UnsupportedError` where that
    is no box."""
    assert node.entry.dims is not None
    of = _Needs(box, shapes)
    try:
        dims = node.entry.dims(of, [[(k, d, _same) for d in range(len(s))] for k, s in enumerate(shapes)], node.attr, shape)
        if of.seen:
            return [(node.inputs[0], of.seen[0])]
        operand = max((0, *(k for k, _, _ in dims)))
        found = [*whole(shapes[operand])]
        for (k, d, there), span in zip(dims, box, strict=True):
            if k >= 0:
                found[d] = there(span)
    except UnsupportedError as error:
        raise UnsupportedError(f"operator {node.op!r} ({node.output}) {error.message}") from error
    return [(node.inputs[operand], tuple(found))]
