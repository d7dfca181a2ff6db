"""Typed knobs: each kind knows its values and how to sample, mutate, enumerate, count and encode itself.

Every search strategy works on codes (positions among a knob's values) and never looks inside a knob. A knob has at least one
value.
"""

from __future__ import annotations

import math
from abc import ABC
from abc import abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

import numpy as np

from fuser.errors import UsageError
from fuser.ir.tiling import TilingExpr

T = TypeVar("T")


class Knob(ABC, Generic[T]):
    """A finite set of values under a name; ``ordered`` where neighbouring codes are neighbouring values."""

    name: str
    ordered: bool = False

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of values, at least 1."""

    @abstractmethod
    def decode(self, code: int) -> T:
        """The value of a code in [0, count)."""

    @abstractmethod
    def encode(self, value: T) -> int:
        """The code of a value. Raises :class:`UsageError` naming the knob where it is not one of its values."""

    def enumerate(self) -> Iterator[T]:
        return map(self.decode, range(self.count))

    def sample_code(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.count))

    def mutate_code(self, code: int, rng: np.random.Generator) -> int:
        """Another code (the same if there is but one): of an ordered knob mostly a neighbour, else any other."""
        if self.count == 1:
            return code
        if self.ordered and rng.random() < 0.7:
            near = [c for c in (code - 1, code + 1) if 0 <= c < self.count]
            return near[int(rng.integers(len(near)))]
        other = int(rng.integers(self.count - 1))
        return other + (other >= code)

    def sample(self, rng: np.random.Generator) -> T:
        return self.decode(self.sample_code(rng))

    def mutate(self, value: T, rng: np.random.Generator) -> T:
        return self.decode(self.mutate_code(self.encode(value), rng))

    def unknown(self, value: object) -> UsageError:
        return UsageError(f"{value} is not a value of the knob {self.name!r}", f"it has {self.count} values: {self}")


@dataclass(frozen=True)
class Choice(Knob[T]):
    """One of some values, the default first."""

    name: str
    values: tuple[T, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UsageError(f"the knob {self.name!r} has no value")

    @property
    def count(self) -> int:
        return len(self.values)

    def decode(self, code: int) -> T:
        return self.values[code]

    def encode(self, value: T) -> int:
        if value not in self.values:
            raise self.unknown(value)
        return self.values.index(value)

    def __str__(self) -> str:
        return f"{self.name} ∈ {{{', '.join(map(str, self.values))}}}"


class Order(Choice[TilingExpr]):
    """The sub-tiling expression of a block."""


class TileSize(Choice[int]):
    """The tile size of an axis, ascending."""

    ordered = True


class Split(Choice[int]):
    """Into how many parts a reduction is split over the grid, ascending; kernels that meet at the partial results share it."""

    ordered = True


@dataclass(frozen=True)
class PowerOfTwo(Knob[int]):
    """Powers of two from ``low`` to ``high``, both powers of two."""

    name: str
    low: int
    high: int
    ordered = True

    def __post_init__(self) -> None:
        for v in (self.low, self.high):
            if v < 1 or v & (v - 1):
                raise UsageError(f"the bound {v} of the knob {self.name!r} is no power of 2")
        if self.low > self.high:
            raise UsageError(f"the knob {self.name!r} has no value between {self.low} and {self.high}")

    @property
    def count(self) -> int:
        return self.high.bit_length() - self.low.bit_length() + 1

    def decode(self, code: int) -> int:
        return self.low << code

    def encode(self, value: int) -> int:
        if not self.low <= value <= self.high or value & (value - 1):
            raise self.unknown(value)
        return value.bit_length() - self.low.bit_length()

    def __str__(self) -> str:
        return f"{self.name} ∈ {{{self.low}, …, {self.high}}} (powers of 2)"


@dataclass(frozen=True)
class Permutation(Knob[tuple[str, ...]]):
    """An order of ``items``; codes count permutations in lexicographic order of positions, and none of them is ever listed. A
    mutation exchanges two items."""

    name: str
    items: tuple[str, ...]

    @property
    def count(self) -> int:
        return math.factorial(len(self.items))

    def decode(self, code: int) -> tuple[str, ...]:
        left, out = list(self.items), []
        for n in range(len(left), 0, -1):
            at, code = divmod(code, math.factorial(n - 1))
            out.append(left.pop(at))
        return tuple(out)

    def encode(self, value: Sequence[str]) -> int:
        if sorted(value) != sorted(self.items):
            raise self.unknown(value)
        left, code = list(self.items), 0
        for item in value:
            code += left.index(item) * math.factorial(len(left) - 1)
            left.remove(item)
        return code

    def mutate_code(self, code: int, rng: np.random.Generator) -> int:
        if len(self.items) < 2:
            return code
        value = list(self.decode(code))
        i, j = rng.choice(len(value), 2, replace=False).tolist()
        value[i], value[j] = value[j], value[i]
        return self.encode(value)

    def __str__(self) -> str:
        return f"{self.name}: an order of {', '.join(self.items)}"
