"""The plan of a whole model as regions of its Relay module: as many of its kernels as TVM can launch and has a border for.

Kernels join where what lies between them is no value of the module, or lies otherwise there (heads outside, longer rows, sums
that a normalization left behind); every other border is a tensor of the module, row after row. Weights are packed as the plan has
them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from cost_model.program_time import program_seconds
from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.candidate import scheduled
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.subprogram import subprogram
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import by_content
from fuser.lower.compile import compile_sources
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import TMA
from fuser.lower.options import option_of
from fuser.lower.triton_source import generate_graph
from fuser.runtime.library import views_of
from search.compiled import CompiledProgram
from search.cover.parts import Stored
from search.cover.parts import stored_name
from search.ranked import Ranked
from search.realise import Realised
from search.regions import Choice
from search.regions import Left
from search.regions import Region
from search.tune import in_triton
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized

Pair = tuple[Kernel, KernelSchedule | None]


@dataclass(frozen=True)
class _Step:
    """A part of the plan: its kernels, what it reads and leaves, and why TVM has to compute it (or nothing)."""

    kernels: tuple[Pair, ...]
    takes: tuple[Stored, ...]
    leaves: tuple[Stored, ...]
    done: Realised
    why: str


@dataclass(frozen=True)
class Planned:
    """``regions`` are the kernels that TVM is given; ``left`` names contractions that stay with TVM. ``inside`` kernels of
    ``launches`` are in the regions; ``why`` says of the others what keeps them out, with how many."""

    regions: tuple[FusedRegion, ...]
    left: tuple[Left, ...]
    inside: int
    launches: int
    why: Mapping[str, int]

    def __str__(self) -> str:
        functions = f"{len(self.regions)} function{'s' * (len(self.regions) != 1)}"
        said = f"{self.inside} of {self.launches} kernels of the plan are in TVM's model, as {functions}"
        return said + "".join(f"; {n} left to TVM: {why}" for why, n in self.why.items())


def planned(result: Optimized) -> Planned:
    """What TVM can be given of ``result.made``."""
    made, origin = result.made, result.imported.origin
    assert made is not None
    steps = _steps(made, frozenset(origin))
    found, why, inside = list[FusedRegion](), dict[str, int](), 0
    launches = sum(map(_launched, steps))
    parts = {id(r): r for r in made.found}.values()  # compiled by themselves once, before they were joined
    known = by_content(a for one in (*parts, made.realised) for a in one.artifacts)
    whole = program_seconds(result.program, result.device)

    def apart(nodes: Iterable[str]) -> float:
        return (whole - program_seconds(result.program, result.device, frozenset(nodes))) * 1e6

    left: dict[str, str] = {}
    for group in _groups(steps, frozenset(origin), frozenset(made.params)):
        mine = [steps[i] for i in group]
        reason = next((s.why for s in mine if s.why), "")
        if not reason:
            try:
                found.append(_region(len(found), mine, steps, result, apart, known))
                inside += sum(map(_launched, mine))
                continue
            except FuserError as error:
                reason = error.message
        why[reason] = why.get(reason, 0) + sum(map(_launched, mine))
        left |= dict.fromkeys(_computed(result.program, mine), reason)
    covered = {n for r in found for n in r.region.nodes}
    contractions = [n.output for n in result.program.nodes if n.products and n.output not in covered]
    other = next(iter(why), "it is computed in another form")
    rest = tuple(Left(n, left.get(n, other)) for n in contractions)
    return Planned(tuple(found), rest, inside, launches, {w: n for w, n in why.items() if n})


def _launched(step: _Step) -> int:
    return len(step.kernels)


def _computed(program: TensorProgram, steps: Sequence[_Step]) -> list[str]:
    ends = {s[0] for step in steps for s in step.leaves}
    stop = {s[0] for step in steps for s in step.takes} - ends
    return _between(program, stop, ends & set(program.table))


def _steps(made: CompiledProgram, known: frozenset[str]) -> list[_Step]:
    graph = made.graph
    views, pairs = views_of(graph), scheduled(graph, made.schedule)
    if made.model is None:
        ends = tuple((n, 0) for n in graph.inputs), tuple((n, 0) for n in graph.outputs)
        return [_step(pairs, views, *ends, made.realised, known, made)]
    found, at = [], 0
    for part, done in zip(made.model.cover.parts, made.model.found, strict=True):
        mine = pairs[at : at + len(done.candidate.graph.kernels)]
        at += len(mine)
        found.append(_step(mine, views, part.takes, part.leaves, done, known, made))
    return found


def _step(
    pairs: Sequence[Pair],
    views: Mapping[str, LibraryKernel],
    takes: tuple[Stored, ...],
    leaves: tuple[Stored, ...],
    done: Realised,
    known: frozenset[str],
    made: CompiledProgram,
) -> _Step:
    calls = [k for k, _ in pairs if isinstance(k, LibraryKernel)]
    why = ""
    if calls:
        names = dict.fromkeys(str(dict(k.attrs).get("callee", k.op)) for k in calls)
        why = f"no kernel is generated for {', '.join(names)}"
    strange = [n for n, rows in leaves if n in made.outputs and (rows or n not in known)]
    strange += [n for n, rows in takes if n in made.inputs and (rows or n not in known)]
    if strange and not why:
        why = f"{strange[0]} is no value of the Relay module"
    return _Step(tuple(p for p in pairs if p[0].outputs[0] not in views), takes, leaves, done, why)


def _groups(steps: Sequence[_Step], known: frozenset[str], params: frozenset[str]) -> list[list[int]]:
    """Steps that are one function, in launch order: those with a tensor between them that is no value of the module, and what
    would wait for each other."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    maker = {s: i for i, step in enumerate(steps) for s in step.leaves}
    edges = [(maker[s], i, s) for i, step in enumerate(steps) for s in step.takes if s in maker and maker[s] != i]
    inside = [(b, a) for a, b, (name, rows) in edges if rows or name not in known or name in params]
    ends = [(a, b) for a, b, _ in edges] + inside  # what is one waits both ways, as does a circle
    rows, columns = zip(*ends, strict=True) if ends else ((), ())
    graph = coo_matrix(([1] * len(ends), (rows, columns)), shape=(len(steps), len(steps)))
    group = connected_components(graph, connection="strong")[1].tolist()
    return [[i for i, g in enumerate(group) if g == one] for one in dict.fromkeys(group)]


def _region(
    number: int,
    mine: Sequence[_Step],
    steps: Sequence[_Step],
    result: Optimized,
    apart: Callable[[Iterable[str]], float],
    known: dict[str, KernelArtifact],
) -> FusedRegion:
    """The kernels of some steps as a region; what is compiled for it joins those that are ``known``. Raises
    :class:`FuserError` where one cannot do without a tensor descriptor."""
    made, device = result.made, result.device
    assert made is not None
    elsewhere = {s for step in steps if not any(step is m for m in mine) for s in step.takes} | {(n, 0) for n in made.outputs}
    outputs = tuple(dict.fromkeys(stored_name(s) for step in mine for s in step.leaves if s in elsewhere))
    pairs = [_plain(*p, device) for step in mine for p in step.kernels]
    written = {t for k, _ in pairs for t in k.outputs}
    inputs = tuple(dict.fromkeys(t for k, _ in pairs for t in k.inputs if t not in written))
    table = {**made.program.table, **made.graph.table}
    kernels = tuple(k for k, _ in pairs)
    graph = KernelGraph("region", inputs, kernels, outputs, tuple(table[n] for n in (*inputs, *outputs))).validate()
    schedule = Schedule(tuple(s for _, s in pairs if s is not None))
    artifacts = _artifacts(graph, schedule, device, known)
    weights = {n: made.params[n] for n in inputs if n in made.params}
    fed = set(inputs) - set(weights)
    program = replace(subprogram(made.program, _between(made.program, fed, outputs), "region"), outputs=outputs)
    nodes = tuple(_between(result.program, fed, outputs))
    region = Region(
        nodes,
        program,
        tuple((n, n) for n in program.table),
        tuple(n for n in nodes if result.program.producers[n].products),
    )
    us = sum(step.done.candidate.us for step in mine)
    weakest = max((s.done for s in mine), key=lambda d: getattr(d.verdict, "bound", 0.0))
    done = Realised(weakest.tuned, Ranked(Candidate(graph, schedule), us * 1e-6), weakest.verdict, artifacts, weakest.check)
    name = f"{region.kind.lower().replace(' ', '_')}_{number}"
    return FusedRegion(name, Choice(region, us, apart(nodes)), done, weights=weights, parts=tuple(s.done for s in mine))


def _between(program: TensorProgram, start: Iterable[str], ends: Iterable[str]) -> list[str]:
    """Results on the way to ``ends`` from ``start`` and from parameters, in order."""
    stop, seen, todo = set(start), set[str](), list(ends)
    while todo:
        name = todo.pop()
        if name not in seen and name not in stop and (node := program.producers.get(name)) is not None:
            seen.add(name)
            todo += node.inputs
    return [n.output for n in program.nodes if n.output in seen]


def _plain(kernel: Kernel, schedule: KernelSchedule | None, device: Device) -> Pair:
    """The kernel without tensor descriptors, which TVM's launcher does not have: another kernel, with a name of its own, in
    Triton if it is by warp groups."""
    if schedule is None or not isinstance(kernel, BlockGraph):
        return kernel, schedule
    mine = in_triton(kernel, schedule, device)
    mine = replace(mine, knobs=tuple(k for k in mine.knobs if option_of(k[0]) not in (TMA, SPECIALIZE)))
    return (kernel, schedule) if mine == schedule else (replace(kernel, name=f"{kernel.name}_plain"), mine)


def _artifacts(
    graph: KernelGraph, schedule: Schedule, device: Device, known: dict[str, KernelArtifact]
) -> tuple[KernelArtifact, ...]:
    """Kernels of a region: nothing overlaps in it, so that many are others than the plan's."""
    found = compile_sources(generate_graph(graph, schedule), device.arch, known=known)
    if big := [a for a in found if a.shared_bytes > device.smem_per_block]:
        raise FuserError(f"{big[0].name} needs tensor descriptors, which TVM's launcher does not have")
    return found


def program_weights(region: FusedRegion) -> dict[str, Array]:
    """The weights as the region's program has them: without the zeros at the ends of longer rows."""
    found: dict[str, Array] = {}
    for name, value in region.weights.items():
        plain = name.partition("@")[0]
        if plain in region.region.program.table:
            found[plain] = value[..., : region.region.program[plain].shape[-1]] if plain != name else value
    return found
