"""Layouts as shape:stride with hierarchical dimensions (Graphene, sections 3.1 to 3.3; the algebra is CuTe's).

A layout is a function from coordinates to offsets: the dot product of coordinates and strides, counted in elements, plus
``base``, and then exchanged by a :class:`Swizzle`. A dimension may be a tuple of dimensions: it is still addressed by one
coordinate, which counts the first of them fastest. A whole layout takes one number in the same way.

Every operation is checked by what it promises: ``compose(a, b)(i) == a(b(i))``; ``complement`` with its layout covers every
offset once; an operation that shape:stride cannot express raises :class:`~fuser.errors.ProgramError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

from fuser.errors import ProgramError

IntTuple = int | tuple["IntTuple", ...]
Mode = tuple[int, int]
"""Size and stride of a dimension that has no dimensions in it."""


def flat(t: IntTuple) -> tuple[int, ...]:
    """The numbers of a nested tuple in order."""
    return (t,) if isinstance(t, int) else tuple(x for part in t for x in flat(part))


def size(t: IntTuple) -> int:
    return math.prod(flat(t))


def text(t: IntTuple) -> str:
    """As Graphene writes it, without blanks."""
    return str(t) if isinstance(t, int) else f"({','.join(map(text, t))})"


@dataclass(frozen=True)
class Swizzle:
    """Exchange of offsets: the ``bits`` bits from ``base`` on become their exclusive or with those ``shift`` further up. It is
    its own inverse. Of 2-byte elements (3, 3, 3) is the swizzle of 128 bytes, (2, 3, 3) of 64, (1, 3, 3) of 32."""

    bits: int = 0
    base: int = 0
    shift: int = 0

    def __post_init__(self) -> None:
        if min(self.bits, self.base) < 0 or self.shift < self.bits:
            raise ProgramError(f"{self} is no swizzle", "not negative, and a shift of at least as many bits")

    def __call__(self, offset: int) -> int:
        return offset ^ ((offset >> self.shift) & (((1 << self.bits) - 1) << self.base))

    def __str__(self) -> str:
        return f"xor({self.bits},{self.base},{self.shift})"


PLAIN = Swizzle()


@dataclass(frozen=True)
class Layout:
    """``shape`` and ``stride`` are nested alike; a plain number is a layout of one dimension."""

    shape: IntTuple
    stride: IntTuple
    base: int = 0
    swizzle: Swizzle = PLAIN

    def __post_init__(self) -> None:
        if not _alike(self.shape, self.stride) or min(flat(self.shape), default=1) < 1:
            raise ProgramError(
                f"[{text(self.shape)}:{text(self.stride)}] is no layout", "positive sizes, strides nested as they are"
            )

    # -- what it is

    @property
    def rank(self) -> int:
        return 1 if isinstance(self.shape, int) else len(self.shape)

    @cached_property
    def size(self) -> int:
        return size(self.shape)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """Its dimensions without hierarchy, the fastest first."""
        return tuple(zip(flat(self.shape), flat(self.stride), strict=True))

    @property
    def span(self) -> int:
        """One more than the largest offset that the strides give (CuTe's cosize), from the base on."""
        return 1 + sum((n - 1) * d for n, d in self.modes if d > 0)

    @property
    def plain(self) -> bool:
        """Nothing is exchanged or moved."""
        return not (self.swizzle.bits or self.base)

    def __getitem__(self, dim: int) -> Layout:
        """One of its dimensions, as a layout without base and swizzle."""
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            return Layout(self.shape, self.stride)
        return Layout(self.shape[dim], self.stride[dim])

    @property
    def dims(self) -> tuple[Layout, ...]:
        return tuple(self[i] for i in range(self.rank))

    # -- as a function

    def linear(self, *at: IntTuple) -> int:
        """The dot product of coordinates and strides: one coordinate for each dimension, or one for all."""
        where: IntTuple = at[0] if len(at) == 1 else at
        return _dot(where, self.shape, self.stride)

    def __call__(self, *at: IntTuple) -> int:
        """The offset at coordinates, or at a place in the order of the whole."""
        return self.swizzle(self.base + self.linear(*at))

    def offsets(self) -> Iterator[int]:
        """All of them, in order."""
        return map(self, range(self.size))

    def __str__(self) -> str:
        exchanged = f"^{self.swizzle}" if self.swizzle.bits else ""
        return f"[{text(self.shape)}:{text(self.stride)}{f'+{self.base}' if self.base else ''}{exchanged}]"


def _alike(a: IntTuple, b: IntTuple) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(_alike, a, b))


def _dot(at: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    if isinstance(shape, int):
        if not isinstance(at, int):
            raise ProgramError(f"{text(at)} is no coordinate of {shape} elements", "one number for each dimension")
        return at * flat(stride)[0]
    assert isinstance(stride, tuple)
    if isinstance(at, int):  # the first dimension counts fastest; the last one takes what is left
        parts: list[int] = []
        for n in shape[:-1]:
            at, rest = divmod(at, size(n))
            parts.append(rest)
        at = (*parts, at) if shape else ()
    if len(at) != len(shape):
        raise ProgramError(f"{text(at)} has {len(at)} coordinates where {text(shape)} has {len(shape)}")
    return sum(map(_dot, at, shape, stride))


# -- making layouts


def columns(shape: IntTuple) -> Layout:
    """The first dimension is contiguous."""
    return Layout(shape, _strides(shape, 1))


def rows(shape: IntTuple) -> Layout:
    """The last dimension is contiguous; within a dimension of several, too, the last of them."""
    if isinstance(shape, int):
        return Layout(shape, 1)
    done, strides = 1, []
    for n in reversed(shape):
        strides.append(_scaled(rows(n).stride, done))
        done *= size(n)
    return Layout(shape, tuple(reversed(strides)))


def _strides(shape: IntTuple, first: int) -> IntTuple:
    if isinstance(shape, int):
        return first
    found = []
    for n in shape:
        found.append(_strides(n, first))
        first *= size(n)
    return tuple(found)


def _scaled(t: IntTuple, by: int) -> IntTuple:
    return t * by if isinstance(t, int) else tuple(_scaled(x, by) for x in t)


def joined(*dims: Layout, base: int = 0, swizzle: Swizzle = PLAIN) -> Layout:
    """A layout with these as its dimensions."""
    return Layout(tuple(d.shape for d in dims), tuple(d.stride for d in dims), base, swizzle)


def _of(modes: tuple[Mode, ...]) -> Layout:
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes)) if modes else Layout(1, 0)


# -- algebra


def coalesce(a: Layout) -> Layout:
    """The same function of one number, with the fewest dimensions."""
    kept: list[Mode] = []
    for n, d in a.modes:
        if n == 1:
            continue
        if kept and kept[-1][0] * kept[-1][1] == d:
            kept[-1] = (kept[-1][0] * n, kept[-1][1])
        else:
            kept.append((n, d))
    return replace(_of(tuple(kept)), base=a.base, swizzle=a.swizzle)


def compose(a: Layout, b: Layout) -> Layout:
    """The layout with ``b``'s shape that takes ``i`` to ``a(b(i))``: what ``b`` picks out of ``a``."""
    if not b.plain:
        raise ProgramError(f"{b} exchanges places of {a}", "a swizzle belongs to the outer layout")
    modes = coalesce(Layout(a.shape, a.stride)).modes
    filled = [0] * len(modes)
    found = _composed(modes, b, filled)
    if any(most >= n for (n, _), most in zip(modes[:-1], filled, strict=False)):
        raise ProgramError(f"dimensions of {b} meet in one of {a}, and carry", "a layout of places no two of which are one")
    return replace(found, base=a.base, swizzle=a.swizzle)


def _composed(modes: tuple[Mode, ...], b: Layout, filled: list[int]) -> Layout:
    """``filled`` gathers the largest coordinate in each dimension of the outer layout."""
    if isinstance(b.shape, tuple):
        return joined(*(_composed(modes, d, filled) for d in b.dims))
    assert isinstance(b.stride, int)
    parts = _picked(modes, b.shape, b.stride)
    for at, count, step in parts:
        filled[at] += (count - 1) * step
    return _of(tuple((count, step * modes[at][1]) for at, count, step in parts)) if parts else Layout(b.shape, 0)


def _picked(modes: tuple[Mode, ...], count: int, step: int) -> list[tuple[int, int, int]]:
    """``count`` elements of a flat layout, every ``step``-th: (dimension, elements, step in it)."""
    if count == 1 or step == 0:
        return []
    found: list[tuple[int, int, int]] = []
    left, every = count, step
    for at, (n, _) in enumerate(modes[:-1]):
        if (left - 1) * every < n:  # all of them within this dimension
            return [*found, (at, left, every)]
        if every % n == 0:
            every //= n
            continue
        if n % every or left % (n // every):
            raise ProgramError(
                f"every {step}th of {count} elements of {_of(modes)} has no strides", "take sizes that divide each other"
            )
        found.append((at, n // every, every))
        left //= n // every
        every = 1
        if left == 1:
            return found
    return [*found, (len(modes) - 1, left, every)]


def complement(a: Layout, within: int) -> Layout:
    """The offsets between those of ``a``: (a, complement) takes every number below ``within`` (rounded up) once."""
    at, found = 1, []
    for n, d in sorted((m for m in a.modes if m[0] > 1), key=lambda m: m[1]):
        if d < at or d % at:
            raise ProgramError(f"{a} leaves no regular rest", "strides that divide each other, no element twice")
        found.append((d // at, at))
        at = n * d
    return coalesce(_of((*found, (-(-within // at), at))))


def right_inverse(a: Layout) -> Layout:
    """The longest layout with ``a(r(i)) == i``."""
    steps, order = 1, []
    for n, d in a.modes:
        order.append((d, n, steps))
        steps *= n
    at, found = 1, []
    for d, n, place in sorted(x for x in order if x[1] > 1):
        if d != at:
            break
        found.append((n, place))
        at *= n
    return coalesce(_of(tuple(found)))


def left_inverse(a: Layout) -> Layout:
    """The layout with ``l(a(i)) == i`` for every place of ``a``, no two of which have one offset."""
    if not a.plain:
        raise ProgramError(f"{a} has no inverse of strides", "as bases it has one: fuser.ir.layout.linear")
    return right_inverse(joined(a, complement(a, 1)))


def divide(a: Layout, tile: Layout) -> Layout:
    """CuTe's logical divide: first dimension the elements of a tile, second the tiles; a tile that does not divide it reaches
    over its end."""
    return compose(a, joined(tile, complement(tile, a.size)))


def product(a: Layout, of: Layout) -> Layout:
    """CuTe's logical product: ``a`` repeated where its complement has room, as often and in the order that ``of`` says."""
    return joined(a, compose(complement(a, a.size * of.span), of))
