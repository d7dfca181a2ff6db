"""Relay models of which some dimensions are ``Any``: which of these are one size, and the model at given sizes.

``Any`` has no name. Two of them are one size where the user says so, or where an operator fits in no other way: the types of the
model are worked out with a different small number for each, and where that does not fit, what is equal for it to fit is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Place
from fuser.frontends.sized import Sized
from fuser.frontends.sized import place_name
from fuser.ir.program import TensorProgram
from tvm_bridge.read.relay_graph import MAX_ELEMENTS
from tvm_bridge.read.relay_json import JsonNodes
from tvm_bridge.read.relay_json import read_text
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_params import read_params_typed
from tvm_bridge.read.relay_reader import GraphReader
from tvm_bridge.read.relay_typing import IllTyped
from tvm_bridge.read.relay_typing import Misfit
from tvm_bridge.to_program.relay_import import RelayModel
from tvm_bridge.to_program.relay_import import check_params
from tvm_bridge.to_program.relay_import import to_program
from tvm_bridge.to_program.relay_import import typed

Class = frozenset[Place]
_LEAST = (3, 200)
"""What stands for sizes are primes from here: small ones, which no table of positions is too short for; else ones that windows
fit into."""
_MOST = 3
"""Most places that are found equal, or a number, at one operator."""


@dataclass(frozen=True)
class _File:
    """A parsed file with its parameters, by name with dtypes."""

    nodes: JsonNodes
    params: Mapping[str, tuple[Array, str]] | None
    origin: str

    def reader(self, sizes: Mapping[Place, int]) -> GraphReader:
        return GraphReader(self.nodes, {n: v for n, (v, _) in (self.params or {}).items()}, sizes)

    def model(self, sizes: Mapping[Place, int]) -> RelayModel:
        graph, source = self.reader(sizes).read(), self.nodes.source
        if self.params is not None:
            check_params(graph, self.params, source, self.origin)
        return RelayModel(graph, {n: v for n, (v, _) in (self.params or {}).items()}, source)


@dataclass(frozen=True)
class _Ties:
    """Sizes as sets of places, a number that stands for each, and the number of those that can be no other."""

    numbers: Mapping[Class, int]
    fixed: Mapping[Class, int]

    @property
    def sizes(self) -> dict[Place, int]:
        return {p: n for c, n in {**self.numbers, **self.fixed}.items() for p in c}

    @property
    def key(self) -> Any:
        return frozenset(self.numbers), frozenset(self.fixed.items())

    def coarser(self, extents: frozenset[int]) -> Iterator[tuple[_Ties, tuple[int, int]]]:
        """With two sizes as one, or with one that is a number, of those that ``extents`` are multiples of; and which number
        becomes which."""
        near = [c for c, n in self.numbers.items() if any(e and e % n == 0 for e in extents)]
        for a, b in itertools.combinations(near, 2):
            left = {c: n for c, n in self.numbers.items() if c not in (a, b)}
            yield _Ties({**left, a | b: self.numbers[a]}, self.fixed), (self.numbers[b], self.numbers[a])
        plain = sorted(e for e in extents if e > 1 and all(e % n for n in self.numbers.values()))
        for c, number in itertools.product(near, plain):
            left = {k: n for k, n in self.numbers.items() if k != c}
            yield _Ties(left, {**self.fixed, c: number}), (self.numbers[c], number)


def _settled(file: _File, ties: _Ties) -> list[_Ties]:
    """The finest ties at which the model is well typed, where it does not say which, several; raises where there are none."""
    reader = file.reader(ties.sizes)
    try:
        reader.read()
        return [ties]
    except IllTyped as error:
        found: dict[Any, _Ties] = {}
        for next_one in _fitting(error.misfit, ties):
            with suppress(IllTyped):
                found |= {t.key: t for t in _settled(file, next_one)}
        if not found:
            raise
    finest = max(len(t.numbers) for t in found.values())
    return [t for t in found.values() if len(t.numbers) == finest]


def _fitting(misfit: Misfit, ties: _Ties) -> list[_Ties]:
    """The ties with fewest more at which a call's operands fit."""
    level: dict[Any, tuple[_Ties, dict[int, int]]] = {ties.key: (ties, {})}
    for _ in range(_MOST):
        above: dict[Any, tuple[_Ties, dict[int, int]]] = {}
        for one, changes in level.values():
            for next_one, (old, new) in one.coarser(misfit.extents):
                renamed = {k: new if n == old else n for k, n in changes.items()}
                above[next_one.key] = next_one, {**renamed, old: new}
        if fit := [t for t, changes in above.values() if misfit.fits(lambda e, c=changes: _renamed(e, c))]:
            return fit
        level = above
    return []


def _renamed(extent: int, changes: Mapping[int, int]) -> int:
    """An extent with other numbers for those that it is a product of."""
    found = extent
    if abs(extent) > MAX_ELEMENTS:  # no extent, but "to the end"
        return extent
    for old, new in changes.items():
        while extent and extent % old == 0:
            extent, found = extent // old, found // old * new
    return found


def _primes(least: int, count: int, nodes: JsonNodes) -> list[int]:
    """Primes that divide no number of the file."""
    numbers = {int(n) for i in range(len(nodes.nodes)) if nodes.kind(i) == "IntImm" and (n := nodes.number(i, int))}
    found: list[int] = []
    while len(found) < count:
        if all(least % d for d in range(2, math.isqrt(least) + 1)) and not any(n % least == 0 for n in numbers):
            found.append(least)
        least += 1
    return found


def _open(file: _File) -> list[Place]:
    """The dimensions of inputs that are ``Any``."""
    return [(v.name, i) for _, v in file.reader({}).declared() for i, e in enumerate(v.type.shape) if e is None]


def _sized(file: _File, tied: Sequence[Sequence[Place]], name: str) -> Sized:
    """The model of a file with open sizes. The places of each of ``tied`` are one size, as the user says."""
    places = _open(file)
    classes = [frozenset({p}) for p in places]
    for group in tied:
        joined = [c for c in classes if c & set(group)]
        classes = [*(c for c in classes if c not in joined), *([frozenset().union(*joined)] if joined else [])]
    error: FuserError | None = None
    for least in _LEAST if places else ():
        try:
            found = _settled(file, _Ties(dict(zip(classes, _primes(least, len(classes), file.nodes), strict=True)), {}))
            break
        except IllTyped as problem:
            error = error or problem
    else:
        if error:
            raise error
        found = [_Ties({}, {})]
    if len(found) > 1:
        ways = "; or ".join(", ".join(",".join(map(place_name, sorted(c))) for c in t.numbers) for t in found[:3])
        raise UsageError(
            f"{file.nodes.source}: its operators do not say which of its open dimensions are one size: {ways}",
            "name those that are in one key: --buckets 'x:0,y:0=1,8'",
        )
    ties = found[0]
    fixed = {p: n for c, n in ties.fixed.items() for p in c}

    def at(sizes: Mapping[str, int]) -> Imported:
        given = {p: sizes[s] for s, of in named.items() for p in of}
        try:
            live = to_program(file.model(given | fixed))
        except IllTyped as error:
            wanted = ", ".join(f"{s}={n}" for s, n in sizes.items())
            raise UsageError(f"{name!r} cannot be at {wanted}: {error.message}", "give other sizes") from error
        return Imported(_in_order(live.program, live.inputs), live.params, live.inputs)

    order = {p: i for i, p in enumerate(places)}
    by_place = sorted((tuple(sorted(c, key=order.__getitem__)) for c in ties.numbers), key=lambda c: order[c[0]])
    named = {place_name(c[0]): c for c in by_place}
    return Sized(name, named, dict.fromkeys(named, (1, None)), at)


def _in_order(program: TensorProgram, inputs: Sequence[str]) -> TensorProgram:
    """The program with its constants in the order of their use, which no size changes."""
    given = set(program.inputs)
    found = dict.fromkeys((*inputs, *(n for node in program.nodes for n in node.inputs if n in given)))
    return replace(program, inputs=(*found, *(n for n in program.inputs if n not in found)))


def read_sized(
    path: str | Path, params_path: str | Path | None = None, tied: Sequence[Sequence[Place]] = ()
) -> tuple[Sized, Any]:
    """A model of which some sizes are open, from its files. The places of each of ``tied`` are one size, as the user says."""
    params = read_params_typed(params_path) if params_path is not None else None
    return _sized(_File(JsonNodes(read_text(path), str(path)), params, str(params_path)), tied, Path(path).stem), None


def sized_live(text: str, params: Mapping[str, Array] | None, source: str, tied: Sequence[Sequence[Place]] = ()) -> Sized:
    """The same from the text of the JSON and from arrays."""
    return _sized(_File(JsonNodes(text, source), typed(params), f"the parameters of {source}"), tied, Path(source).stem)
