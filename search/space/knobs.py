"""Typed knobs: each kind knows its values and how to sample, mutate, enumerate, count and encode itself.

Every search strategy works on codes (positions among a knob's values) and never looks inside a knob. A knob has at least one
value.
"""

from __future__ import annotations

from abc import ABC
from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any
from typing import Generic
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fuser.device import Device
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.given_options import tensor_of
from fuser.lower.options import OPTIONS
from fuser.lower.options import Option
from fuser.lower.options import option_of
from fuser.lower.places import Place

T = TypeVar("T")


class Knob(ABC, Generic[T]):
    """A finite set of values under a name; ``ordered`` where neighbouring codes are neighbouring values."""

    name: str
    ordered: bool = False
    weight: float = 0.5
    """How often it is the one that a mutation changes, against others."""

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
        return int(self.sample_codes(1, rng)[0])

    def sample_codes(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.integers(self.count, size=count)

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

    def unknown(self, value: object) -> UsageError:
        return UsageError(f"{value} is not a value of the knob {self.name!r}", f"it has {counted(self.count, 'value')}: {self}")


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
    weight = 1.0


class Split(Choice[int]):
    """Into how many parts a reduction is split over the grid, ascending; kernels that meet at the partial results share it."""

    ordered = True


class Setting(Choice[Any]):
    """An option of the lowering for a kernel, named as in its schedule: what its choices stand for is decided at a place
    (:meth:`fuser.lower.options.Option.at_place`). The first is that of schedules whose options are not searched, and half of
    all samples."""

    weight = 0.25

    @property
    def option(self) -> Option[Any]:
        found = option_of(self.name)
        assert found is not None
        return found

    @cached_property
    def tensor(self) -> str:
        return tensor_of(self.name)

    def sample_codes(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.where(rng.random(count) < 0.5, 0, super().sample_codes(count, rng))

    def at(self, p: Place, code: int) -> Place:
        """The place with the option as chosen, or without it where the choice is not for it."""
        value = self.option.at_place(p, self.values[code], self.tensor)
        if value is None and self.name not in p.schedule.knob:
            return p
        return replace(p, schedule=self.option.set(p.schedule, value, self.tensor))


def settings(block: BlockGraph, device: Device, behind: bool) -> tuple[Setting, ...]:
    """A knob for each option that searches try for a block, in the order in which they are decided."""
    offered = (o for o in OPTIONS.values() if o.offered(device.arch, behind))
    return tuple(Setting(key, tuple(dict.fromkeys((o.given, None, *o.choices)))) for o in offered for key in o.keys(block))


def settled(p: Place, knobs: Sequence[Setting], codes: Iterable[int]) -> KernelSchedule:
    """The place's schedule with options as chosen, as far as they are for it. That is what repairs samples and mutants: a choice
    that other tiles have ruled out comes back with the tiles that it is for."""
    for knob, code in zip(knobs, codes, strict=True):
        p = knob.at(p, code)
    return p.schedule


def settlements(p: Place, knobs: Sequence[Setting], before: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Codes of every set of options that a place allows, each set once."""
    if len(before) == len(knobs):
        yield before
        return
    seen: set[KernelSchedule] = set()
    for code in range(knobs[len(before)].count):
        here = knobs[len(before)].at(p, code)
        if here.schedule not in seen:
            seen.add(here.schedule)
            yield from settlements(here, knobs, (*before, code))


def settings_of(p: Place, knobs: Sequence[Setting], schedule: KernelSchedule) -> tuple[int, ...]:
    """The first codes that give a schedule's options. Raises :class:`UsageError` naming an option that no choice stands for."""
    codes: list[int] = []
    for knob in knobs:
        wanted = schedule.knob.get(knob.name)
        found = (c for c in range(knob.count) if knob.at(p, c).schedule.knob.get(knob.name) == wanted)
        if (code := next(found, None)) is None:
            raise knob.unknown(wanted)
        codes.append(code)
        p = knob.at(p, code)
    if left := sorted(set(schedule.knob) - set(p.schedule.knob)):
        raise UsageError(f"the option {left[0]!r} of {p.block.name!r} is not searched")
    return tuple(codes)
