"""What a part costs: the best candidate that fast tuning finds for it. Equal parts are priced once, and what was found stays in
the cache folder, by the hash of the program, the device's numbers and our own source."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from itertools import repeat
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

from cost_model.element_time import element_seconds
from cost_model.floor import alone_seconds
from fuser import kept
from fuser.device import Device
from fuser.errors import FuserError
from fuser.files import BAD_VALUE
from fuser.ir.candidate import Candidate
from fuser.ir.composites import expand
from fuser.ir.element_program import by_elements
from fuser.ir.element_program import moves_elements
from fuser.ir.elements import Recipe
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.ir.pitched import laid
from fuser.ir.pitched import longer_axes
from fuser.ir.pitched import reaches
from fuser.ir.pitched import rows_of
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.serialize import graph_from_json
from fuser.lower.compile import cache_dir
from fuser.lower.given_options import tensor_of
from fuser.lower.written import written
from fuser.pools import started
from fuser.runtime.library import output_of
from fuser.superopt.structures import structures
from search.cover.beginnings import Moves
from search.cover.beginnings import from_the_beginning
from search.cover.beginnings import put_back
from search.cover.joint_price import joint_seconds
from search.cover.neighbours import among
from search.cover.parts import Part
from search.cover.parts import Rows
from search.cover.shown import moves_only
from search.libraries import with_libraries
from search.library_time import library_seconds
from search.ranked import INSTANT
from search.ranked import Ranked
from search.ranked import Tuned
from search.tune import graph_seconds
from search.tune import tune_fast

Laid = dict[Rows, Tuned | None]
"""What was found for a part in each choice of layouts."""
LESS = 0.9
"""Times of a block's time that a kernel of elements may take: a block begins while the kernel in front of it ends."""
OWN = 1.25
"""The same beside what torch's compiler makes, whose price sees less."""
FEW = 8
"""Programs that are priced sooner than other processes start, where none has yet."""
SLOW, HOPELESS = 1.6, 2.5
"""Times the best of a part from which a structure of it is not looked at in another layout, and times what the part is worth from
which none is. Of 2800 layouts of the parts of five modules, at most 1.05 times what those are worth, none lost a per cent."""
BEST, ENOUGH, AS_GOOD = 6, 3, 1.03
"""Candidates of a layout that are tried in another one; and how many where one of them takes about as long as the best of all."""


def priced(parts: Iterable[Part], device: Device, *given: Any, **named: Any) -> Mapping[Part, Tuned]:
    """What fast tuning finds for every part that has a kernel, as :func:`begun` takes them."""
    return begun(parts, device, *given, **named)()


def begun(
    parts: Iterable[Part],
    device: Device,
    libraries: bool = True,
    seed: int = 0,
    executor: Executor | None = None,
    known: dict[str, Tuned | None] | None = None,
    worth: Mapping[str, float] | None = None,
    coming: set[str] | None = None,
) -> Callable[[], Mapping[Part, Tuned]]:
    """Have other processes price parts, if there are any: what is returned waits for them, and gives what fast tuning finds for
    every part that has a kernel. ``libraries``: products may be left to a library, as operators for which no kernel can be
    generated always are. ``known`` are prices by the key of a part; new ones are added. ``worth``, by the hash of a part's
    program: seconds that its operators take in smaller parts. Of such a part only structures are looked at that have its products
    in one kernel, and slow ones not for long. ``coming`` are keys of parts that were begun before, and are waited for before."""
    best, coming = {} if known is None else known, set() if coming is None else coming
    parts = tuple(parts)
    jobs: dict[tuple[str, Rows], tuple[TensorProgram, Rows, dict[Rows, str]]] = {}
    for part in parts:
        if part.key not in best and part.key not in coming:
            job = jobs.setdefault((part.program.stable_hash(), part.weights), (part.program, part.weights, {}))
            job[2][part.rows] = part.key
    coming |= {key for _, _, rows in jobs.values() for key in rows.values()}
    worths = {k: (worth or {}).get(k[0]) for k in jobs}
    files = {k: _file(p, (*rows, *w, worths[k]), device, libraries, seed) for k, (p, w, rows) in jobs.items()}
    left = []
    for key, (program, _, rows) in jobs.items():
        try:
            (values,) = kept.read(files[key])
            found = [None if v is None else among(from_document(v, program, device)) for v in values]
            best |= dict(zip(rows.values(), found, strict=True))
        except (*BAD_VALUE, FuserError):  # there is none, or this program did not write it
            left.append(key)
    run = executor.map if executor and (len(left) > FEW or started(executor)) else map
    asked: dict[_Asked, dict[tuple[str, Rows], Moves]] = {}
    for key in left:
        program, weights, rows = jobs[key]
        first, moves = from_the_beginning(program, {n for several in (*rows, weights) for n, _ in several})
        asked.setdefault(_Asked(first, tuple(rows), weights, worths[key]), {})[key] = moves
    steps = [[(jobs[k][0], moves) for k, moves in keys.items()] for keys in asked.values()]
    many = len(asked)
    every = run(_of_several, asked, steps, repeat(device, many), repeat(libraries, many), repeat(seed, many))

    def done() -> Mapping[Part, Tuned]:
        for keys, found in zip(asked.values(), every, strict=True):
            for key, one in zip(keys, found, strict=True):
                best.update({jobs[key][2][rows]: tuned and among(tuned) for rows, tuned in one.items()})
                kept.write(files[key], [document(one[rows]) for rows in jobs[key][2]])
        return {part: tuned for part in parts if (tuned := best[part.key]) is not None}

    return done


@dataclass(frozen=True)
class _Asked:
    """A program, the choices of layouts at its border, the weights that may lie in longer rows, and what it must be worth."""

    program: TensorProgram
    rows: tuple[Rows, ...]
    weights: Rows
    worth: float | None


def _file(program: TensorProgram, more: Sequence[Any], device: Device, libraries: bool, seed: int) -> Path:
    source = kept.source_hash("fuser", "cost_model", "search")
    text = kept.text_hash(source, program.stable_hash(), repr(more), repr(device), f"{libraries} {seed}")
    return cache_dir("prices") / f"{text}.json"


def document(tuned: Tuned | None) -> dict[str, Any] | None:
    """What was found as JSON, each structure once."""
    if tuned is None:
        return None
    ranked = (tuned.winner, *tuned.runners)
    graphs = list({id(r.graph): r.graph for r in ranked}.values())
    places = {id(g): i for i, g in enumerate(graphs)}
    return {
        "graphs": [g.to_json() for g in graphs],
        "ranked": [[places[id(r.graph)], r.schedule.to_json(), r.estimate] for r in ranked],
        "structures": tuned.structures,
        "candidates": tuned.candidates,
        "notes": tuned.notes,
    }


def from_document(value: Any, program: TensorProgram, device: Device) -> Tuned:
    """What :func:`document` wrote."""
    graphs = [graph_from_json(g) for g in value["graphs"]]
    winner, *runners = (Ranked(Candidate(graphs[i], Schedule.from_json(s)), estimate) for i, s, estimate in value["ranked"])
    return Tuned(program, device.name, winner, tuple(runners), value["structures"], value["candidates"], tuple(value["notes"]))


def _of_several(
    asked: _Asked, steps: Sequence[tuple[TensorProgram, Moves]], device: Device, libraries: bool, seed: int
) -> list[Laid]:
    """The best of each of several programs, which are what is asked but for where slices begin."""
    found = _best(asked, device, libraries, seed)
    return [_elsewhere(found, p, moves) or _best(replace(asked, program=p), device, libraries, seed) for p, moves in steps]


def _elsewhere(found: Laid, program: TensorProgram, moves: Moves) -> Laid | None:
    """What was found :func:`from_the_beginning`, for the program itself; None where that has to be searched."""
    if not moves:
        return found
    mine = {rows: tuned and put_back(tuned, program, moves) for rows, tuned in found.items()}
    return None if any(tuned and not mine[rows] for rows, tuned in found.items()) else mine


def _best(asked: _Asked, device: Device, libraries: bool, seed: int) -> Laid:
    """The best of a program in each choice of layouts: searched for the ends, of which most and least tensors lie in longer rows;
    those between take the best of what was found for these."""
    program, several, weights = asked.program, asked.rows, asked.weights
    worth = inf if asked.worth is None else asked.worth
    try:
        graphs = () if program.beyond_float32 else structures(program, bool(weights) or any(several))
        graphs = graphs if asked.worth is None else _together(program, graphs, device, worth)
    except FuserError:
        graphs = ()
    alone = _without_search(program, device, libraries, bool(graphs))
    if not graphs:
        return {rows: None if rows else alone for rows in several}
    with_calls = with_libraries(graphs) if libraries and asked.worth is None else graphs
    found: Laid = {}
    ends = {min(several, key=len), max(several, key=len)}
    for rows in sorted(ends, key=len):
        pairs = in_layouts(with_calls, rows, weights)
        try:
            best = tune_fast(program, device, INSTANT, seed, [x for _, x in pairs], worth=worth)
            found[rows] = _with_plain(best, dict(weights), device)
        except FuserError:
            found[rows] = None
            continue
        if best.winner.seconds > HOPELESS * worth:
            break  # nor will it be worth it in other layouts
        with_calls = _near(best, pairs, with_calls)
    if () in found:
        found[()] = _cheaper(found[()], alone, LESS) or by_library(program, device)
    turns = zip_longest(*((t.winner, *t.runners)[:BEST] for t in found.values() if t is not None))
    ranked = [r for turn in turns for r in turn if r is not None]
    for rows in several:
        if rows not in found:
            found[rows] = _between(program, ranked, rows, dict(weights), device)
    return found


def _cheaper(first: Tuned | None, other: Tuned | None, times: float = 1.0) -> Tuned | None:
    """The other where it takes less than so many times as long."""
    if first is None or other is None:
        return first or other
    return other if other.winner.seconds < times * first.winner.seconds else first


def _without_search(program: TensorProgram, device: Device, libraries: bool, searched: bool) -> Tuned | None:
    """Element by element, by a library call where there is nothing to search, or by what torch's compiler makes of operators."""
    joint = joint_seconds(program, device, searched) if libraries else None
    called = None if searched and joint is None else by_library(program, device, joint)
    return _cheaper(called, elementwise(program, device, searched), OWN if joint else 1.0)


def elementwise(program: TensorProgram, device: Device, searched: bool = False) -> Tuned | None:
    """A program whose elements follow from a few of its inputs, each result by one kernel; where blocks are ``searched``, what
    they do not do as well."""
    try:
        if searched and not moves_elements(program):
            return None
        kernels = by_elements(program)
        if not kernels:
            return None
        ends = (*program.inputs, *program.outputs)
        graph = KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()
        seconds = sum(element_seconds(Recipe.read(dict(k.attrs)["program"]), device) for k in kernels)
        for k in kernels:  # a dtype, or an operator, may have no Triton form
            if written(k, dict(k.attrs), graph.device_tensors, {}) is None:
                return None
    except FuserError:
        return None
    return Tuned(program, device.name, Ranked(Candidate(graph, Schedule(())), seconds), (), 1, 1)


def in_layouts(graphs: Iterable[KernelGraph], rows: Rows, weights: Rows) -> tuple[tuple[KernelGraph, KernelGraph], ...]:
    """The graphs that can have such ``rows``, each with what it is then: with longer rows of the weights too where it can take
    them."""
    ways = ((laid(g, (*rows, *weights)), g) for g in graphs)
    return tuple((g, x) for longer, g in ways if (x := longer or laid(g, rows)) is not None)


def _near(best: Tuned, pairs: Iterable[tuple[KernelGraph, KernelGraph]], graphs: Sequence[KernelGraph]) -> list[KernelGraph]:
    """The graphs that may be the best in another layout, too: of those that were searched in one, all but the slow ones."""
    least: dict[int, float] = {}
    for r in (best.winner, *best.runners):
        least[id(r.graph)] = min(r.seconds, least.get(id(r.graph), inf))
    slow = {id(g) for g, x in pairs if SLOW * best.winner.seconds < least.get(id(x), 0.0) < inf}
    return [g for g in graphs if id(g) not in slow]


def _with_plain(tuned: Tuned, weights: Collection[str], device: Device) -> Tuned:
    """What was found, and the best of it with weights row after row: longer rows are more to read."""
    more: list[Ranked] = []
    for r in (tuned.winner, *tuned.runners)[:BEST]:
        if rows_of(r.graph).keys() & set(weights) and (graph := laid(r.graph, [(n, 0) for n in weights])) is not None:
            with suppress(FuserError):
                candidate = _like(graph, r, weights)
                more.append(Ranked(candidate, graph_seconds(candidate, device)))
    if not more:
        return tuned
    winner, *runners = sorted((tuned.winner, *tuned.runners, *more), key=lambda r: r.seconds)
    return replace(tuned, winner=winner, runners=tuple(runners))


def _like(graph: KernelGraph, other: Ranked, moved: Collection[str]) -> Candidate:
    """The graph with another's schedules, without the options of tensors that lie otherwise: a descriptor may not fit them."""
    kernels = (s.with_knobs(**{k: None for k, _ in s.knobs if tensor_of(k) in moved}) for s in other.schedule.kernels)
    return Candidate(graph, Schedule(tuple(kernels)))


def _between(
    program: TensorProgram, ranked: Sequence[Ranked], rows: Rows, weights: Collection[str], device: Device
) -> Tuned | None:
    """The best of other layouts' candidates with ``rows``; their weights stay as they are."""
    tried: dict[Candidate, Ranked] = {}
    least = min((r.seconds for r in ranked), default=inf)
    for r in ranked:
        if len(tried) >= ENOUGH and min(x.seconds for x in tried.values()) <= AS_GOOD * least:
            break
        plain = laid(r.graph, tuple((n, 0) for n in rows_of(r.graph) if n not in weights))
        graph = laid(plain, rows) if plain else None
        if graph is None or not _covered(graph, r.candidate.schedule):
            continue
        candidate = _like(graph, r, {*rows_of(r.graph), *rows_of(graph)} - set(weights))
        if candidate not in tried:
            with suppress(FuserError):
                tried[candidate] = Ranked(candidate, graph_seconds(candidate, device))
    mine = sorted((r for r in tried.values() if r.seconds < inf), key=lambda r: r.seconds)
    return Tuned(program, device.name, mine[0], tuple(mine[1:]), 1, len(mine)) if mine else None


def _covered(graph: KernelGraph, schedule: Schedule) -> bool:
    """Whether tiles that were chosen for other layouts go on to the ends of the rows that are stored."""
    return all(
        reaches(b.extents[a], dict(s.tiles).get(a, b.extents[a]), pitch)
        for b, s in zip(graph.blocks, schedule.kernels, strict=True)
        for a, pitch in longer_axes(b).items()
    )


def _together(program: TensorProgram, graphs: Sequence[KernelGraph], device: Device, worth: float) -> tuple[KernelGraph, ...]:
    """Structures that have all products in one kernel, and could take less than ``worth`` seconds: others are cut where smaller
    parts end."""
    wanted = sum(n.contracts for n in expand(program).nodes)
    whole = (g for g in graphs if any(sum(s.contracts for s in b.computes) >= wanted for b in g.blocks))
    return tuple(g for g in whole if max((alone_seconds(b, device) for b in g.blocks), default=0.0) < worth)


def by_library(program: TensorProgram, device: Device, joint: float | None = None, how: bool | str = True) -> Tuned | None:
    """A program of one operator, and views, by a library call; of several in ``joint`` seconds, if that is given. ``how``: the
    value of :data:`JOINED`."""
    if joint is None and sum(not moves_only(n) for n in program.nodes) > 1:
        return None
    more = {JOINED: how} if joint is not None else {}
    kernels = tuple(
        LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted({**program.bound(n), **more}.items())))
        for n in program.nodes
    )
    ends = (*program.inputs, *program.outputs)
    try:
        graph = KernelGraph(program.name, program.inputs, kernels, program.outputs, tuple(program[n] for n in ends)).validate()
        seconds = sum(library_seconds(graph, k, device) for k in kernels) if joint is None else joint
        made = {n: program[n] for n in program.inputs}
        for kernel in kernels:
            made[kernel.output] = output_of(kernel, made)
    except FuserError:
        return None
    if any(made[n].dtype != program[n].dtype for n in program.outputs):  # a product of float16 that is float32, say
        return None
    return Tuned(program, device.name, Ranked(Candidate(graph, Schedule(())), seconds), (), 1, 1)
