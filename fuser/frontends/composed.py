"""What importers make of several operators of the op table: cuts with steps, copies, borders, and products over named axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import combinations

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref


def reshaped(b: Builder, x: Ref, shape: tuple[int, ...]) -> Ref:
    return x if x.shape == shape else b.op("reshape", x, shape=shape)


def cut(b: Builder, x: Ref, axis: int, start: int, stop: int) -> Ref:
    return x if (start, stop) == (0, x.shape[axis]) else b.op("slice", x, axis=axis, start=start, stop=stop)


def strided(b: Builder, x: Ref, axis: int, start: int, count: int, step: int) -> Ref:
    """``count`` elements, ``step`` apart: one of each group of so many side by side, and the last one of an axis that ends
    before."""
    if step == 1:
        return cut(b, x, axis, start, start + count)
    lead, n, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    at = max(start + count * step - n, 0)
    last = start + (count - 1) * step
    whole, at = (count, at) if at <= min(start, step - 1) else (count - 1, 0)
    last_one = cut(b, x, axis, last, last + 1)
    if not whole:
        return last_one
    groups = reshaped(b, cut(b, x, axis, start - at, start - at + whole * step), (*lead, whole, step, *rest))
    y = reshaped(b, cut(b, groups, axis + 1, at, at + 1), (*lead, whole, *rest))
    return y if whole == count else b.op("concat", y, last_one, axis=axis)


def tiled(b: Builder, x: Ref, times: Sequence[int]) -> Ref:
    """Whole copies along each of the last axes, the copies as an axis of their own."""
    shape = (*(1,) * (len(times) - len(x.shape)), *x.shape)
    times = (*(1,) * (len(shape) - len(times)), *times)
    split = tuple(e for extent in shape for e in (1, extent))
    copied = tuple(e for n, extent in zip(times, shape, strict=True) for e in (n, extent))
    whole = tuple(n * extent for n, extent in zip(times, shape, strict=True))
    if copied == split:
        return reshaped(b, x, whole)
    return reshaped(b, b.op("broadcast", reshaped(b, x, split), shape=copied), whole)


def bordered(b: Builder, x: Ref, borders: Sequence[tuple[int, int]], number: Callable[[], Ref]) -> Ref:
    """A border of a number before and behind each axis, the last axis first; a negative border is cut off."""
    for axis, (before, behind) in reversed([*enumerate(borders)]):
        x = cut(b, x, axis, max(-before, 0), x.shape[axis] - max(-behind, 0))
        around = [
            b.op("broadcast", number(), shape=(*x.shape[:axis], n, *x.shape[axis + 1 :])) if n > 0 else None
            for n in (before, behind)
        ]
        parts = [p for p in (around[0], x, around[1]) if p is not None]
        x = x if len(parts) == 1 else b.op("concat", *parts, axis=axis)
    return x


# Products over named axes


def einsum(b: Builder, equation: str, operands: Sequence[Ref]) -> Ref | None:
    """Products pair by pair, the least first, each a matmul of what is summed. None for a diagonal, and for an ellipsis that
    stands for axes of different numbers."""
    spec = _spelled(equation.replace(" ", ""), [len(x.shape) for x in operands])
    if spec is None:
        return None
    terms, out = spec
    named = _apart_from_ones([*zip(terms, operands, strict=True)], b)
    while len(named) > 1:
        left, right, rest = min(_pairs(named), key=lambda p: _work(*p, out))  # the first of equal ones
        named = [_pair(b, left, right, set(out).union(*(t for t, _ in rest))), *rest]
    names, x = _summed(b, *named[0], set(out))
    return _ordered(names, x, out)


Named = tuple[str, Ref]


def _apart_from_ones(named: Sequence[Named], b: Builder) -> list[Named]:
    """Operands without the axes along which they have one element, and others more: those go through all of theirs with it."""
    size: dict[str, int] = {}
    for names, x in named:
        size |= {a: max(n, size.get(a, 1)) for a, n in zip(names, x.shape, strict=True)}
    kept = [[i for i, a in enumerate(names) if x.shape[i] == size[a]] for names, x in named]
    return [
        ("".join(names[i] for i in those), reshaped(b, x, tuple(x.shape[i] for i in those)))
        for those, (names, x) in zip(kept, named, strict=True)
    ]


def _pairs(named: Sequence[Named]) -> Iterator[tuple[Named, Named, list[Named]]]:
    """Operands that may be multiplied next, from the left, and the others."""
    for i, j in combinations(range(len(named)), 2):
        yield named[i], named[j], [x for k, x in enumerate(named) if k not in (i, j)]


def _work(left: Named, right: Named, rest: Sequence[Named], out: str) -> tuple[int, int]:
    """Multiplications of a product, and elements of its result."""
    size = {a: n for names, t in (left, right) for a, n in zip(names, t.shape, strict=True)}
    later = set(out).union(*(t for t, _ in rest))
    return math.prod(size.values()), math.prod(n for a, n in size.items() if a in later)


def _spelled(spec: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """The axes of operands and result by letters, an ellipsis too."""
    left, arrow, out = spec.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    free = [a for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if a not in spec]
    hidden = {rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t}
    if len(hidden) > 1:
        return None
    dots = "".join(free[: hidden.pop()]) if hidden else ""
    if not arrow:
        out = "..." * ("..." in left) + "".join(sorted(a for a in set(left) - {",", "."} if left.count(a) == 1))
    terms, out = [t.replace("...", dots) for t in terms], out.replace("...", dots)
    right = all(len(set(t)) == len(t) == rank for t, rank in zip(terms, ranks, strict=True))
    return (terms, out) if right and len(set(out)) == len(out) and set(out) <= set("".join(terms)) else None


def _summed(b: Builder, names: str, x: Ref, kept: set[str]) -> Named:
    over = tuple(i for i, a in enumerate(names) if a not in kept)
    if not over:
        return names, x
    return "".join(a for a in names if a in kept), b.op("sum", x, axis=over, keepdims=False)


def _ordered(names: str, x: Ref, want: Sequence[str]) -> Ref:
    perm = tuple(names.index(a) for a in want)
    return x if perm == tuple(range(len(perm))) else x.transpose(*perm)


def _pair(b: Builder, left: Named, right: Named, later: set[str]) -> Named:
    """The product of two operands, summed over what they share and nobody reads later."""
    (na, x), (nb, y) = (_summed(b, n, v, later | set(other)) for (n, v), other in ((left, right[0]), (right, left[0])))
    batch = [a for a in na if a in nb and a in later]
    inner = [a for a in na if a in nb and a not in later]
    rows, columns = [a for a in na if a not in nb], [a for a in nb if a not in na]
    size = {a: n for names, t in ((na, x), (nb, y)) for a, n in zip(names, t.shape, strict=True)}

    def extent(names: Sequence[str]) -> int:
        return math.prod(size[a] for a in names)

    shape = tuple(size[a] for a in batch)
    x = reshaped(b, _ordered(na, x, [*batch, *rows, *inner]), (*shape, extent(rows), extent(inner)))
    y = reshaped(b, _ordered(nb, y, [*batch, *inner, *columns]), (*shape, extent(inner), extent(columns)))
    product = b.op("mul", x, y) if not inner else x @ y
    names = [*batch, *rows, *columns]
    return "".join(names), reshaped(b, product, tuple(size[a] for a in names))
