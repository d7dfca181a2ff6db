"""Vectors over bits: what is linear under exclusive or. A vector is a number, its bits are its components."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence

from fuser.errors import ProgramError


def log2(n: int, what: str = "a size") -> int:
    """Raises :class:`ProgramError` where ``n`` is no power of two."""
    if n < 1 or n & (n - 1):
        raise ProgramError(f"{what} of {n} is no power of two")
    return n.bit_length() - 1


def rank(vectors: Iterable[int]) -> int:
    """Dimensions of the space that vectors span: there are 2 ** rank different sums of them."""
    leading: dict[int, int] = {}
    for v in vectors:
        while v:
            top = v.bit_length()
            if top not in leading:
                leading[top] = v
                break
            v ^= leading[top]
    return len(leading)


def image(vectors: Sequence[int], at: int) -> int:
    """The sum of the vectors whose bit is set in ``at``."""
    found = 0
    for i, v in enumerate(vectors):
        if at >> i & 1:
            found ^= v
    return found


def inverse(vectors: Sequence[int]) -> tuple[int, ...]:
    """Vectors ``w`` with ``image(w, image(vectors, x)) == x``. Raises :class:`ProgramError` where two ``x`` have one image."""
    pivots: list[tuple[int, int, int]] = []  # the bit, the vector that alone has it, how it is summed from the given ones
    for i, v in enumerate(vectors):
        sums = 1 << i
        for bit, w, s in pivots:
            if v >> bit & 1:
                v, sums = v ^ w, sums ^ s
        if not v:
            raise ProgramError("a layout that gives one place to several elements has no inverse")
        top = v.bit_length() - 1
        pivots = [(b, w ^ v, s ^ sums) if w >> top & 1 else (b, w, s) for b, w, s in pivots]
        pivots.append((top, v, sums))
    found = [0] * max((v.bit_length() for v in vectors), default=0)
    for bit, _, s in pivots:
        found[bit] = s
    return tuple(found)
