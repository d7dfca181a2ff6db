"""Rules for one element of a result that several elements of an operand make: windows, sums so far, other sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.element_rules import At
from fuser.ir.element_rules import Attrs
from fuser.ir.element_rules import Rule
from fuser.ir.places import Place
from fuser.ir.places import Truth
from fuser.ir.places import below
from fuser.ir.places import both
from fuser.ir.places import equal
from fuser.ir.places import fixed
from fuser.ir.places import flat
from fuser.ir.places import inside
from fuser.ir.places import split

if TYPE_CHECKING:
    from fuser.ir.elements import Elements
    from fuser.ir.elements import Operand


LARGEST = 64
"""Elements of a window that are written out."""


def each(value: Any, count: int, default: int) -> tuple[int, ...]:
    """An attribute for each axis that a window moves along."""
    found = tuple(value) if isinstance(value, (list, tuple)) else () if value is None else (value,)
    return found * count if len(found) == 1 else found or (default,) * count


def _elements(window: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if math.prod(window) > LARGEST:
        raise UnsupportedError(f"a window of more than {LARGEST} elements")
    return product(*map(range, window))


def _all(truths: Sequence[Truth]) -> Truth:
    found: Truth = True
    for t in truths:
        found = both(found, t)
    return found


def _fold(e: Elements, op: str, parts: Sequence[int], dtype: str) -> int:
    found = parts[0]
    for part in parts[1:]:
        found = e.apply(op, found, part, dtype=dtype)
    return found


def _mean(e: Elements, total: int, count: Sequence[Place], times: int, dtype: str) -> int:
    """The sum over the product of what is counted along each axis."""
    if all(not c.terms for c in count):
        return e.apply("scale", total, dtype=dtype, scalar=1 / (times * math.prod(c.constant for c in count)))
    for c in count:
        total = e.apply("div", total, e.place(c), dtype=dtype)
    return total


def pooling(kind: str, rank: int, last: bool = False, places: bool = False) -> Rule:
    """The largest or the mean of a window over the trailing axes, or (``last``) those in front of the channels; ``places``: where
    the largest lies."""

    def rule(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
        (x,) = xs
        window = each(attrs["kernel_size"], rank, 1)
        strides = each(attrs.get("stride") or window, rank, 1)
        padding, dilation = each(attrs.get("padding"), rank, 0), each(attrs.get("dilation"), rank, 1)
        first = len(at) - rank - last
        size = x.shape[first : first + rank]
        begin = [p * s - a for p, s, a in zip(at[first : first + rank], strides, padding, strict=True)]
        found: list[tuple[int, Place]] = []
        for at_window in _elements(window):
            here = [b + i * d for b, i, d in zip(begin, at_window, dilation, strict=True)]
            under = _all([inside(p, 0, n) for p, n in zip(here, size, strict=True)])
            if under is False:
                continue
            part = x((*at[:first], *here, *at[first + rank :]), under)
            empty = e.number(-math.inf if kind == "max" else 0.0, x.dtype)
            found.append((e.choose(under, part, empty, x.dtype), flat(here, size)))
        if places:  # where all are -inf it is the first inside the tensor
            own = [b + ((-b).at_least(0) + (d - 1)) // d * d for b, d in zip(begin, dilation, strict=True)]
            return _where_largest(e, [(found[0][0], flat(own, size)), *found[1:]], x.dtype)
        folded = _fold(e, "maximum" if kind == "max" else "add", [v for v, _ in found], x.dtype)
        if kind == "max":
            return folded
        return _mean(e, folded, _counts(attrs, begin, window, size, padding), 1, x.dtype)

    return rule


def _counts(
    attrs: Attrs, begin: Sequence[Place], window: Sequence[int], size: Sequence[int], padding: Sequence[int]
) -> list[Place]:
    """How many elements a mean is of, along each axis: those of the window, without what hangs over the padding, or over the
    tensor."""
    if divisor := attrs.get("divisor_override"):
        return [fixed(int(divisor))]
    within = (0,) * len(size) if not attrs.get("count_include_pad", True) else padding
    return [(b + w).at_most(n + a) - b.at_least(-a) for b, w, n, a in zip(begin, window, size, within, strict=True)]


def _where_largest(e: Elements, found: Sequence[tuple[int, Place]], dtype: str, sign: str = "gt", first: bool = False) -> int:
    """The first of the largest, or least; NaN is more than all, the last one, or the ``first``."""
    best, where = found[0][0], e.place(found[0][1], "int64")
    for v, p in found[1:]:
        nan = e.apply("isnan", v, dtype="bool")
        if first:
            nan = e.apply("logical_and", nan, e.apply("eq", best, best, dtype="bool"), dtype="bool")
        more = e.apply("logical_or", e.apply(sign, v, best, dtype="bool"), nan, dtype="bool")
        best = e.apply("where", more, v, best, dtype=dtype)
        where = e.apply("where", more, e.place(p, "int64"), where, dtype="int64")
    return where


def along(kind: str) -> Rule:
    """A fold over one axis, or over all: of a few elements, which are written out."""

    def rule(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
        (x,) = xs
        dim = attrs.get("dim")
        over = range(len(x.shape)) if dim is None else (dim % len(x.shape),)
        rest = iter(at)
        kept = [next(rest) if i not in over or attrs.get("keepdim") else fixed(0) for i in range(len(x.shape))]
        found: list[tuple[int, Place]] = []
        for number, places in enumerate(_elements([x.shape[i] for i in over])):
            here = list(kept)
            for i, p in zip(over, places, strict=True):
                here[i] = fixed(p)
            found.append((x(here), fixed(number)))
        if kind.startswith("arg"):
            return _where_largest(e, found, x.dtype, "gt" if kind == "argmax" else "lt", first=True)
        values = [v for v, _ in found]
        if kind == "prod":
            return _fold(e, "mul", values, x.dtype)
        none = e.number(0.0, x.dtype)
        return _fold(e, f"logical_{kind}", [e.apply("ne", v, none, dtype="bool") for v in values], "bool")

    return rule


def adaptive(kind: str, places: bool = False) -> Rule:
    """Windows that divide the trailing axes into so many parts, of one more or less."""

    def rule(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
        (x,) = xs
        rank = len(attrs["output_size"])
        size, parts = x.shape[-rank:], attrs["output_size"]
        begin = [p * n // m for p, n, m in zip(at[-rank:], size, parts, strict=True)]
        end = [((p + 1) * n + (m - 1)) // m for p, n, m in zip(at[-rank:], size, parts, strict=True)]
        window = [
            max((i + 1) * n // m + ((i + 1) * n % m > 0) - i * n // m for i in range(m)) for n, m in zip(size, parts, strict=True)
        ]
        found = []
        for at_window in _elements(window):
            here = [b + i for b, i in zip(begin, at_window, strict=True)]
            under = _all([below(p, stop) for p, stop in zip(here, end, strict=True)])
            if under is not False and all(n % m == 0 for n, m in zip(size, parts, strict=True)):
                under = True
            part = x((*at[:-rank], *here), under)
            found.append(
                (e.choose(under, part, e.number(-math.inf if kind == "max" else 0.0, x.dtype), x.dtype), flat(here, size))
            )
        if places:
            return _where_largest(e, found, x.dtype)
        folded = _fold(e, "maximum" if kind == "max" else "add", [v for v, _ in found], x.dtype)
        return folded if kind == "max" else _mean(e, folded, [b - a for a, b in zip(begin, end, strict=True)], 1, x.dtype)

    return rule


def _moves(attrs: Attrs) -> list[tuple[int, ...]]:
    """Window, strides, padding and dilation along the two last axes."""
    return [each(attrs.get(k), 2, d) for k, d in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))]


def places_of(size: Sequence[int], attrs: Attrs) -> list[int]:
    """How often a window fits along each axis."""
    moves = zip(size, *_moves(attrs), strict=True)
    return [(n + 2 * a - d * (w - 1) - 1) // s + 1 for n, w, s, a, d in moves]


def unfold(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    """Elements of windows as rows: images × (channels · window) × places."""
    (x,) = xs
    window, strides, padding, dilation = _moves(attrs)
    size = x.shape[-2:]
    results = places_of(size, attrs)
    channel, *offset = split(at[-2], (x.shape[-3], *window))
    where = split(at[-1], results)
    here = [p * s + i * d - a for p, s, i, d, a in zip(where, strides, offset, dilation, padding, strict=True)]
    under = _all([inside(p, 0, n) for p, n in zip(here, size, strict=True)])
    return e.choose(under, x((*at[:-2], channel, *here), under), e.number(0.0, x.dtype), x.dtype)


def fold(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    """The sum of what windows say of one place: the turn of :func:`unfold`."""
    (x,) = xs
    window, strides, padding, dilation = _moves(attrs)
    results = places_of(attrs["output_size"], attrs)
    parts = []
    for offset in _elements(window):
        from_start = [p + a - i * d for p, a, i, d in zip(at[-2:], padding, offset, dilation, strict=True)]
        where = [p // s for p, s in zip(from_start, strides, strict=True)]
        under = _all(
            [both(equal(p % s, 0), inside(w, 0, m)) for p, s, w, m in zip(from_start, strides, where, results, strict=True)]
        )
        if under is False:
            continue
        row = flat((at[-3], *map(fixed, offset)), (1, *window))
        part = x((*at[:-3], row, flat(where, results)), under)
        parts.append(e.choose(under, part, e.number(0.0, x.dtype), x.dtype))
    return _fold(e, "add", parts, x.dtype)


# Other sizes


def resized(e: Elements, xs: Sequence[Operand], attrs: Attrs, at: At) -> int:
    """Between the elements around each place of the trailing axes: the nearest (``nearest``), two (``linear``) or four
    (``cubic``) along each."""
    (x,) = xs
    size, mode = tuple(attrs["output_size"]), attrs["mode"]
    taps = [_taps(e, p, n, m, mode, bool(attrs.get("align_corners")), x.dtype) for p, n, m in zip(
        at[-len(size) :], x.shape[-len(size) :], size, strict=True)]  # fmt: skip

    def along(axis: int, here: At) -> int:
        if axis == len(size):
            return x((*at[: -len(size)], *here))
        parts = [(along(axis + 1, (*here, p)), weight) for p, weight in taps[axis]]
        if len(parts) == 1:
            return parts[0][0]
        return _fold(e, "add", [e.apply("mul", v, w, dtype=x.dtype) for v, w in parts], x.dtype)

    return along(0, ())


def _taps(e: Elements, p: Place, n: int, m: int, mode: str, corners: bool, dtype: str) -> list[tuple[Place, int]]:
    """The places around one of ``m`` along an axis of ``n``, and their weights."""
    if mode == "nearest":
        return [(p * n // m, 0)]
    if mode == "nearest_exact":
        return [((p * 2 + 1) * n // (2 * m), 0)]
    if corners:
        above, per = p * (n - 1), max(m - 1, 1)
    else:
        above, per = p * (2 * n) + (n - m), 2 * m
    above = above if mode == "cubic" else above.at_least(0)
    common = math.gcd(per, above.constant, *(c for _, c in above.terms))
    if common > 1:
        above, per = Place(tuple((a, c // common) for a, c in above.terms), above.constant // common), per // common
    low, rest = above // per, above % per
    if mode == "linear":
        low = low.at_most(n - 1)
        up = e.apply("scale", e.place(rest), dtype="float32", scalar=1 / per)
        down = e.apply("shift", e.apply("neg", up, dtype="float32"), dtype="float32", scalar=1.0)
        return [(low, down), ((low + 1).at_most(n - 1), up)] if rest.high or rest.low else [(low, down)]
    t = e.apply("scale", e.place(rest), dtype="float32", scalar=1 / per)
    return [((low + (i - 1)).at_least(0).at_most(n - 1), _cubic(e, t, i)) for i in range(4)]


def _cubic(e: Elements, t: int, i: int) -> int:
    """Keys' weights with a = −3/4, of the distance from the i-th of four neighbours."""
    a = -0.75
    coefficients = [
        (0, a, -2 * a, a),
        (1, 0, -(a + 3), a + 2),
        (0, -a, 2 * a + 3, -(a + 2)),
        (0, 0, a, -a),
    ][i]  # fmt: skip
    found = e.apply("scale", t, dtype="float32", scalar=coefficients[3])
    for c in (coefficients[2], coefficients[1]):
        found = e.apply("mul", e.apply("shift", found, dtype="float32", scalar=c) if c else found, t, dtype="float32")
    return e.apply("shift", found, dtype="float32", scalar=coefficients[0]) if coefficients[0] else found


__all__ = ["LARGEST", "Rule", "adaptive", "pooling", "resized"]
