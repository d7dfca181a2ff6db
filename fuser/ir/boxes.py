"""Boxes of tensors through operators: which box of each operand a box of the result needs, and where a result must be cut so
that each piece comes from one part of a concatenation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fuser.errors import UnsupportedError

Range = tuple[int, int]  # elements [start, stop) of a dimension
Box = tuple[Range, ...]
Cuts = tuple[tuple[int, ...], ...]  # inner borders of each dimension, ascending


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, n) for n in shape)


def extents(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def no_cuts(rank: int) -> Cuts:
    return ((),) * rank


def union(*sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({x for s in sides for x in s}))


def ranges(span: Range, cuts: Sequence[int]) -> list[Range]:
    """A range in pieces, split at the cuts inside of it."""
    inner = [x for x in cuts if span[0] < x < span[1]]
    return list(zip([span[0], *inner], [*inner, span[1]], strict=True))


def ends(parts: Sequence[int]) -> list[Range]:
    """Where parts that lie behind each other begin and end."""
    found = list(itertools.accumulate(parts))
    return list(zip([0, *found[:-1]], found, strict=True))


def box_name(name: str, box: Box, shape: Sequence[int], view: Sequence[int] = ()) -> str:
    """As numpy writes it, ``W[3]`` or ``qkv[:,0:768]``; the whole tensor has its own name. A box of a reshaped tensor says so:
    ``q(64,2,32)[:,:,0:16]``."""
    if view:
        return box_name(f"{name}({','.join(map(str, view))})", box, view)
    texts = [
        ":" if (start, stop) == (0, n) else str(start) if stop == start + 1 else f"{start}:{stop}"
        for (start, stop), n in zip(box, shape, strict=True)
    ]
    while texts and texts[-1] == ":":
        texts.pop()
    return f"{name}[{','.join(texts)}]" if texts else name


# -- broadcasting -----------------------------------------------------------------------------------------------------------


def of_operand(box: Box, operand: Sequence[int]) -> Box:
    """The box of an operand that broadcasts to the result of an element-wise operator."""
    own = box[len(box) - len(operand) :]
    return tuple((0, 1) if n == 1 else r for r, n in zip(own, operand, strict=True))


def of_result(operand: Cuts, rank: int) -> Cuts:
    """Cuts of an operand as cuts of the result, whose rank may be larger."""
    return no_cuts(rank - len(operand)) + operand


def merged(sides: Sequence[Cuts], rank: int) -> Cuts:
    return tuple(union(*(s[d] for s in sides)) for d in range(rank))


# -- reshapes ---------------------------------------------------------------------------------------------------------------


def factors(old: Sequence[int], new: Sequence[int]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Common factors of two row-major shapes of as many elements, and which of them make up each dimension of both. Raises
    :class:`UnsupportedError` where extents do not divide each other (6·4 to 8·3)."""
    parts: list[int] = []
    sides: list[list[list[int]]] = [[[] for _ in old], [[] for _ in new]]
    todo = [[[d, n] for d, n in enumerate(shape) if n > 1] for shape in (old, new)]
    while todo[0] and todo[1]:
        a, b = todo[0][0], todo[1][0]
        step = min(a[1], b[1])
        if a[1] % step or b[1] % step:
            raise UnsupportedError(f"a reshape of {tuple(old)} to {tuple(new)} mixes extents that do not divide each other")
        for side, item, queue in ((0, a, todo[0]), (1, b, todo[1])):
            sides[side][item[0]].append(len(parts))
            item[1] //= step
            if item[1] == 1:
                queue.pop(0)
        parts.append(step)
    return parts, sides[0], sides[1]


def _split(span: Range, parts: Sequence[int]) -> list[Range] | None:
    """A range of a row-major product as ranges of its factors, if it is a box of them."""
    out: list[Range] = []
    start, stop = span
    for i in range(len(parts)):
        inner = math.prod(parts[i + 1 :])
        first, last = start // inner, (stop - 1) // inner
        out.append((first, last + 1))
        if first == last:
            start, stop = start - first * inner, stop - first * inner
        elif start % inner or stop % inner:
            return None
        else:
            return out + [(0, n) for n in parts[i + 1 :]]
    return out


def _join(spans: Sequence[Range], parts: Sequence[int]) -> Range | None:
    """Ranges of factors as one range of their row-major product, if it is one."""
    start, length, scale, full = 0, 1, 1, True
    for (first, stop), n in zip(reversed(spans), reversed(parts), strict=True):
        if stop - first > 1 and not full:
            return None
        start += first * scale
        length *= stop - first
        full = full and (first, stop) == (0, n)
        scale *= n
    return start, start + length


def through_reshape(box: Box, result: Sequence[int], operand: Sequence[int]) -> Box:
    """The box of the operand that becomes a box of a reshape's result. Raises :class:`UnsupportedError` where there is none."""
    parts, new, old = factors(result, operand)
    spans: dict[int, Range] = {}
    for span, own in zip(box, new, strict=True):
        found = _split(span, [parts[i] for i in own])
        if found is None:
            raise UnsupportedError(f"elements {span[0]} to {span[1]} of a reshape to {tuple(result)} are no box of its operand")
        spans |= dict(zip(own, found, strict=True))
    out = [_join([spans[i] for i in own], [parts[i] for i in own]) for own in old]
    if any(x is None for x in out):
        raise UnsupportedError(f"a box of a reshape to {tuple(result)} is no box of its operand {tuple(operand)}")
    return tuple(x for x in out if x is not None)


def cuts_through_reshape(cuts: Cuts, operand: Sequence[int], result: Sequence[int]) -> Cuts:
    """Cuts of a reshape's result. Raises :class:`UnsupportedError` where a cut of the operand is none of the result."""
    if not any(cuts):
        return no_cuts(len(result))
    parts, old, new = factors(operand, result)
    found: list[set[int]] = [set() for _ in result]
    for own, points in zip(old, cuts, strict=True):
        for point in points:
            inner = math.prod(parts[i] for i in own[1:])
            home = next((d for d, of in enumerate(new) if own and of and of[0] == own[0]), None)
            if home is None or point % inner:
                raise UnsupportedError(f"a part that ends at {point} is no box after a reshape to {tuple(result)}")
            found[home].add(point // inner * math.prod(parts[i] for i in new[home][1:]))
    return tuple(tuple(sorted(f)) for f in found)
