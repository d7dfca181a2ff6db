"""Buckets: which sizes a model is compiled for, and the one that a call takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Place
from fuser.frontends.sized import Sized
from fuser.frontends.sized import sized_module
from fuser.frontends.sized import sized_torch
from search.buckets.asked import Buckets
from search.buckets.asked import Sizes
from search.buckets.padded import Padded
from search.buckets.padding import padded

MOST = 64
"""Most sets of kernels of a model."""


def checked(buckets: Any) -> dict[str, tuple[int, ...]]:
    """The buckets by key, ascending. Raises :class:`UsageError` for what are none."""
    found: dict[str, tuple[int, ...]] = {}
    for key, sizes in buckets.items() if isinstance(buckets, Mapping) else ():
        given = (sizes,) if isinstance(sizes, int) else tuple(sizes) if isinstance(sizes, (list, tuple)) else ()
        if not isinstance(key, str) or not given or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in given):
            raise UsageError(f"buckets {key!r}: {sizes!r:.80} are no sizes", "pass positive numbers: {'x:1': (128, 256)}")
        found[key] = tuple(sorted(set(given)))
    if not found:
        raise UsageError(f"buckets={buckets!r:.80} has no sizes", "pass them by dimension: {'x:1': (128, 256)}")
    if (count := math.prod(map(len, found.values()))) > MOST:
        raise UsageError(f"these buckets are {count} sets of kernels", f"at most {MOST} are made: leave some out")
    return found


def parsed(options: Sequence[str]) -> Buckets:
    """What ``seq=128,256`` and the like say; the sizes of a name that is given again are added."""
    found: dict[str, tuple[int, ...]] = {}
    for option in options:
        key, _, sizes = (part.strip() for part in option.partition("="))
        try:
            found[key] = (*found.get(key, ()), *map(int, sizes.split(",")))
        except ValueError:
            raise UsageError(f"--buckets {option!r} names no sizes", "--buckets 'input_ids:1=128,256,512'") from None
    return found


def places_of(key: str) -> list[Place]:
    """The places that ``x:1,mask:1`` names; none where it is a name of a size."""
    found: list[Place] = []
    for part in key.split(","):
        name, colon, axis = part.strip().rpartition(":")
        try:
            found.append((name, int(axis)))
        except ValueError:
            found = []
        if not colon or not found:
            return []
    return found


def resolved(buckets: Buckets, sized: Sized) -> dict[str, tuple[int, ...]]:
    """The buckets by the model's own names of its sizes. Raises :class:`UsageError` for dimensions that are not open, that
    are open and have none, and for sizes that the model does not take."""
    found: dict[str, tuple[int, ...]] = {}
    for key, sizes in buckets.items():
        named = [s for s, at in sized.places.items() if key == s or set(at) & set(places_of(key))]
        if len(named) != 1 or named[0] in found:
            what = "is named twice" if named else "is no open dimension"
            raise UsageError(f"{key!r} {what} of {sized.name!r}", f"open: {sized}")
        least, most = sized.limits[named[0]]
        if wrong := [n for n in sizes if n < least or (most is not None and n > most)]:
            raise UsageError(f"{key} cannot be {wrong[0]} in {sized.name!r}", f"it takes {least} to {most or 'any'}")
        found[named[0]] = tuple(sizes)
    if missing := [s for s in sized.places if s not in found]:
        raise UsageError(f"the size {missing[0]} of {sized.name!r} is open and has no buckets", f"open: {sized}")
    return found


def said(sizes: Sizes) -> str:
    return ", ".join(f"{s}={n}" for s, n in sizes.items())


def all_padded(sized: Sized, buckets: Mapping[str, Sequence[int]]) -> tuple[Padded, ...]:
    """The model at all combinations of sizes, each for smaller ones too, the smallest first. Raises :class:`UnsupportedError`
    where padding would change a result."""
    known: dict[tuple[int, ...], Imported] = {}

    def at(sizes: Sizes) -> Imported:
        key = tuple(sizes[s] for s in buckets)
        if key not in known:
            known[key] = sized.at(sizes)
        return known[key]

    every = [dict(zip(buckets, c, strict=True)) for c in itertools.product(*buckets.values())]
    found = []
    for sizes in sorted(every, key=lambda c: math.prod(c.values())):
        others = _others(sizes, buckets, sized)
        made = padded(at(sizes), sizes, at(others), others)
        found.append(replace(made, least={s: max(sized.limits[s][0], made.least.get(s, 1)) for s in sizes}))
    return tuple(found)


def _others(sizes: Sizes, buckets: Mapping[str, Sequence[int]], sized: Sized) -> dict[str, int]:
    """Other sizes to hold these against: pairs of both tell which size an extent is. A size of 1 has no smaller one."""
    found: dict[str, int] = {}
    for s, n in sizes.items():
        least, most = sized.limits[s]
        near = [m for k in range(1, 9) for m in (n - k, n + k)]
        fit = [m for m in (*buckets[s], *near) if m != n and max(least, 2) <= m <= (most or m)]
        free = [m for m in fit if (n, m) not in {(sizes[t], m) for t, m in found.items()}]
        if n > 1 and not free:
            raise UnsupportedError(f"{sized.name!r} takes no size beside {said({s: n})}", "export it at that size")
        found[s] = 1 if n == 1 else free[0]
    return found


def sized_of(program: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], sizes: Buckets) -> Sized:
    """A model with open sizes: those of an exported program, or of a module those that are asked for."""
    if not hasattr(program, "named_parameters"):
        raise UsageError("buckets= is for torch.nn.Modules and exported programs", "other programs have their shapes already")
    if not hasattr(program, "forward"):
        return sized_torch(program, "torch")
    declared = {key: (places_of(key), max(of)) for key, of in sizes.items()}
    if unplaced := [key for key, (at, _) in declared.items() if not at]:
        raise UsageError(f"{unplaced[0]!r} names no dimension", "name input and dimension: 'x:1', or 'x:1,mask:1' for several")
    return sized_module(program, (inputs,) if hasattr(inputs, "shape") else tuple(inputs), keywords, declared)
