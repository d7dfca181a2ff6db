"""What a program that is padded takes and gives besides its own tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from fuser.frontends.imported import Imported
from fuser.ir.ops import Array
from search.buckets.places import Dims


@dataclass(frozen=True)
class Extra:
    """An input that a call makes of its size of ``symbol``: ``table[N - n :]`` as far as the tensor ``name`` reaches, for the
    size n in a bucket of N."""

    name: str
    symbol: str
    table: Array = field(repr=False, compare=False)
    length: int

    def value(self, bucket: int, size: int) -> Array:
        return self.table[bucket - size : bucket - size + self.length]


@dataclass(frozen=True)
class Padded:
    """``known`` has the program with its ``extras`` as further inputs; ``dims`` says what is real of the user's inputs and of the
    outputs. No size may be less than ``least``."""

    known: Imported
    sizes: Mapping[str, int]
    extras: tuple[Extra, ...]
    dims: Mapping[str, Dims]
    least: Mapping[str, int]

    @property
    def imported(self) -> Imported:
        """The program alone, with all of its inputs."""
        return replace(self.known, inputs=(*self.known.inputs, *(e.name for e in self.extras)), called=None)
