"""Readable Gluon from a block graph and a schedule: the loop tree once as what a producer loads, once as what each group of warps
computes (:mod:`fuser.lower.gluon.consumer`). No templates; operators, masks and folds are written by the functions that write
them in Triton.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

from fuser.ir.fuse import identifier
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.descriptors import Descriptor
from fuser.lower.descriptors import describe
from fuser.lower.descriptors import passed
from fuser.lower.frame_code import Chain
from fuser.lower.frame_code import hoisted
from fuser.lower.frame_code import persistent
from fuser.lower.frame_code import used
from fuser.lower.given_options import check_options
from fuser.lower.gluon.across import across
from fuser.lower.gluon.across import write as write_across
from fuser.lower.gluon.choices import WIDEST
from fuser.lower.gluon.choices import at_first
from fuser.lower.gluon.choices import planned
from fuser.lower.gluon.choices import view_of
from fuser.lower.gluon.consumer import Consumer
from fuser.lower.gluon.dependents import LAUNCH
from fuser.lower.gluon.dependents import WAIT
from fuser.lower.gluon.dependents import Weights
from fuser.lower.gluon.dependents import dependents
from fuser.lower.gluon.dependents import entered
from fuser.lower.gluon.dependents import waiting
from fuser.lower.gluon.dependents import weights
from fuser.lower.gluon.merging import MERGES
from fuser.lower.gluon.merging import barriers as merging_barriers
from fuser.lower.gluon.merging import merging
from fuser.lower.gluon.places import Places
from fuser.lower.gluon.rings import ORDER
from fuser.lower.gluon.rings import TURNS
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import allocated
from fuser.lower.gluon.rings import buffer_name
from fuser.lower.gluon.rings import fill
from fuser.lower.gluon.rings import rings_among
from fuser.lower.gluon.rings import room
from fuser.lower.gluon.rings import set_up
from fuser.lower.gluon.skew import loop_rings
from fuser.lower.gluon.skew import trips_of
from fuser.lower.gluon.split import Split
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.kernel_source import KernelSource
from fuser.lower.options import FLATTEN
from fuser.lower.options import HOIST
from fuser.lower.options import ROOM
from fuser.lower.options import TMA
from fuser.lower.tiles import Tiles

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait"""
SIGMOID = """@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))"""


@dataclass(frozen=True)
class _Kernel:
    """What the functions of one kernel have in common: ``tensors`` in the order of the arguments, ``nodes`` of the loop tree."""

    name: str
    split: Split
    plan: LayoutPlan
    described: dict[Stmt, Descriptor]
    """Of what the copy engine moves."""
    tensors: tuple[str, ...]
    nodes: tuple[Node, ...]
    programs: int
    chain: Chain

    @cached_property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """In the order of the tensors."""
        return tuple(sorted(dict.fromkeys(self.described.values()), key=lambda d: self.tensors.index(d.tensor)))

    def arguments(self, w: GroupWriter) -> list[str]:
        """Their names."""
        return [w.box_argument(d) if d else w.argument(self.tensors[i]) for i, d in passed(self.tensors, self.descriptors)]

    @property
    def again(self) -> bool:
        return self.programs > 0

    @property
    def times(self) -> int:
        """How often a block goes through the nodes; 0: nobody knows."""
        return 0 if self.again else 1

    def writer(self, group: str) -> GroupWriter:
        """A writer in which all that functions share has its name already."""
        w = GroupWriter(self.split, self.plan, self.described, group)
        for a in self.arguments(w):
            w.out.name(a)
        for b in self.plan.buffers:
            buffer_name(w, b.value)
            w.out.name(f"{b.value} ring")
        for a in self.split.tiles.plans:
            w.index(a)
        return w

    def rings(self, w: GroupWriter, nodes: Sequence[Node] | None = None) -> Iterable[Ring]:
        """All rings of the loop tree, or of some of its nodes, in the order in which they are filled."""
        return {r.name: r for r in self._rings(w, self.nodes if nodes is None else nodes, self.times)}.values()

    def _rings(self, w: GroupWriter, nodes: Sequence[Node], times: int) -> Iterator[Ring]:
        yield from rings_among(w, nodes, times)
        for node in nodes:
            if isinstance(node, Loop):
                yield from loop_rings(w, node, times)
                for inner in (n for n in node.body if isinstance(n, Loop)):
                    yield from self._rings(w, (inner,), times * node.trips)

    def shared(self, w: GroupWriter) -> list[str]:
        """Names of what functions are given: tensors, buffers and barriers."""
        buffers = [buffer_name(w, b.value) for b in self.plan.buffers]
        rings = (b for r in self.rings(w) for b in r.barriers)
        return [
            *self.arguments(w),
            *buffers,
            *rings,
            *(merging_barriers(self.again) if self.split.loop else ()),
            *([ORDER] if self.split.turns > 1 else ()),
        ]


def generate_gluon(tiles: Tiles, name: str, chain: Chain | None = None, given: LayoutPlan | None = None) -> KernelSource:
    """Gluon source of a block under a schedule with ``backend=gluon``. ``given``: a solver's plan, which decides on stages,
    layouts and blocks on an SM.

    Raises :class:`NoValidKernelError` with the reason where a block has no form by warp groups, and as ``generate`` does.
    """
    block, schedule, chain = tiles.block, tiles.schedule, chain or Chain()
    tensors = tuple(dict.fromkeys((*block.inputs, *block.outputs)))
    capability = check_options(schedule.knob, tensors, block.name)
    split, plan = planned(tiles, given)
    described = dict(_described(split, plan))
    moved = {d.tensor for d in described.values()}
    if pointed := [s.at.source for s in block.loads if s not in described and s.at.source in moved]:
        raise refuse(
            tiles, f"{pointed[0]!r} is read in boxes and element by element", f"read {pointed[0]!r} in one of these ways"
        )
    if left := [t for t in TMA.named(schedule) if t not in moved]:
        describe(split.tiles, left[0], WIDEST)
        raise refuse(tiles, f"{left[0]!r} is no tile of two dimensions", f"leave out tma_{left[0]}")
    programs = min(persistent(split.tiles), split.places)
    nodes = hoisted(tiles.tree.body) if HOIST.of(schedule) else tiles.tree.body
    ahead = tuple(t.name for t in chain.ahead)
    kernel = _Kernel(identifier(name), split, plan, described, (*tensors, *ahead), tuple(nodes), programs, chain)
    access = {s.access.source: s for s in block.stmts if s.access}
    return KernelSource(
        kernel.name,
        _text(kernel),
        kernel.tensors,
        (*(access[t].dtype for t in tensors), *(t.dtype for t in chain.ahead)),
        (*(access[t].at.memory_shape(block.extents) for t in tensors), *(t.shape for t in chain.ahead)),
        block.outputs,
        programs or split.places,
        plan.warps,
        schedule.num_stages,
        chain.waits,
        capability,
        descriptors=kernel.descriptors,
        parameters=(("maxnreg", int(at_first(plan.consumers + plan.producer, plan.blocks))),),
        room=ROOM.of(schedule),
        backend="gluon",
    )


def _described(split: Split, plan: LayoutPlan) -> Iterator[tuple[Stmt, Descriptor]]:
    """Descriptors, with the swizzle of their buffers."""
    for s in split.tiles.block.stmts:
        if s.access and (buffer := plan.buffer.get(s.value if s.kind == "load" else f"{s.access.source}{OUT}")):
            assert isinstance(buffer.layout, MmaShared)
            yield s, replace(view_of(split.tiles, s), swizzle=(0, 32, 64, 128).index(buffer.layout.swizzle))


# -- functions


def _text(kernel: _Kernel) -> str:
    tiles, groups = kernel.split.tiles, kernel.split.groups
    consumer, helpers, constants = _consumer(kernel)
    entry, more = _entry(kernel)
    functions = [*dict.fromkeys((*helpers, *more)), consumer, _producer(kernel), entry]
    head = f"{tiles.block}\nschedule {tiles.schedule}\nloops {tiles.tree}\n{groups} groups of {kernel.plan.warps} warps"
    text = "".join(f"\n\n{f}\n" for f in functions)
    dependent = sorted({name for name in (LAUNCH, WAIT) if f"{name}()" in text})
    lines = [
        *(f"# {line}" for line in head.splitlines()),
        *(["import triton.language as tl"] * ("tl." in text)),
        *(f"from triton.language.extra.cuda import {', '.join(dependent)}" for _ in dependent[:1]),
        IMPORTS,
    ]
    return "\n".join((*lines, *([""] * bool(constants)), *constants)) + "\n" + text


def in_gluon(text: str) -> str:
    """What is spelled differently in Triton."""
    text = text.replace("@triton.jit", "@gluon.jit").replace("tl.sigmoid(", "sigmoid(")
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", text)


def function(name: str, arguments: Sequence[str], w: GroupWriter) -> str:
    return "\n".join(("@gluon.jit", f"def {name}({', '.join(arguments)}):", *(in_gluon(line) for line in w.out.lines)))


def _counters(kernel: _Kernel, w: GroupWriter) -> Iterator[str]:
    """What a function starts with: counters of its rings."""
    for ring in kernel.rings(w):
        if ring.counted:
            first = w.part if w.part and ring.steps > 1 else f"{w.turn} * {ring.each}" if w.turn else "0"
            yield f"{ring.count} = {first}"
    if w.part and kernel.again:
        yield f"{MERGES} = 0"
    if w.turn:
        yield f"{TURNS} = 1 if {w.turn} == 0 else 0"


def _frame(kernel: _Kernel, w: GroupWriter, body: Consumer | None) -> None:
    """The places of the grid that a block computes, one or one after the other."""
    begun = None if body else weights(w, kernel.nodes, kernel.chain, kernel.programs)
    for line in (*(() if begun else waiting(w, kernel.chain, body is None)), *_counters(kernel, w)):
        w.emit(line)
    places = Places.of(w, kernel.programs)

    def go(pid: str) -> None:
        for line in (*([f"pid = {pid}"] if pid != "pid" else []), *places.decoded(w)):
            w.emit(line)
        for axis in w.tiles.plans if body else ():
            if axis not in w.tiles.looped and used(w, axis):
                w.emit_indices(axis)

    def nodes() -> None:
        if body:
            body.nodes(kernel.nodes, {} if kernel.again else dict(dependents(w, kernel.nodes, kernel.chain)))
        else:
            for line in begun.before(w) if begun else ():
                w.emit(line)
            _loads(kernel, w, kernel.nodes, kernel.times, rings_among(w, kernel.nodes, kernel.times), begun)

    if not kernel.again:
        go(places.first)
        nodes()
    elif body and FLATTEN.of(w.tiles.schedule) and not w.turn and kernel.programs < places.count:
        write_across(body, across(body, kernel.nodes), go, places)
    else:
        at = "at" if places.uneven else "pid"
        turns = kernel.split.turns if w.turn else 1
        first = f"{places.first} + {w.turn} * {kernel.programs}" if w.turn else places.first
        with w.out.indented(f"for {at} in range({first}, {places.count}, {turns * kernel.programs}):"):
            go(places.turn(at))
            if w.turn:
                w.emit(f"mbarrier.wait({ORDER}.index({w.turn}), {TURNS} % 2)")
                w.emit(f"{TURNS} += 1")
            nodes()
            for ring in kernel.rings(w) if w.turn else ():
                w.emit(f"{ring.count} += {(turns - 1) * ring.each}")


def _consumer(kernel: _Kernel) -> tuple[str, list[str], list[str]]:
    """The function of a group, with the functions and constants that it uses."""
    split, w = kernel.split, kernel.writer("0")
    if split.groups > 1:
        w.group = w.out.name("warp group")
    if split.parts > 1:
        w.part = w.out.name("part")
    if split.turns > 1:
        w.turn = w.out.name("turn")
    _frame(kernel, w, Consumer(w, kernel.again))
    if any("shared_to_global" in line for line in w.out.lines):
        w.emit("tma.store_wait(0)")
    numbers = [f"{x}: gl.constexpr" for x in (w.group, w.part, w.turn) if x and x != "0"]
    text = function("consumer", [*numbers, *kernel.shared(w)], w)
    return text, helpers_of(w) + [SIGMOID] * bool(re.search(r"\bsigmoid\(", text)), w.constants()


def helpers_of(w: GroupWriter) -> list[str]:
    return [in_gluon(h.rstrip()) for h in sorted(w.helpers, reverse=True)]


def _producer(kernel: _Kernel) -> str:
    w = kernel.writer("0")
    _frame(kernel, w, None)
    return function("producer", kernel.shared(w), w)


def _loads(
    kernel: _Kernel, w: GroupWriter, nodes: Sequence[Node], times: int, rings: Sequence[Ring], begun: Weights | None = None
) -> None:
    """Everything that the copy engine loads among nodes, in their order; ``rings`` are theirs. ``begun``: with what it begins
    before it waits."""
    first = {r.loads[0]: r for r in rings}
    for node in nodes:
        if isinstance(node, Stmt) and node in first:
            for line in fill(w, first[node]):
                w.emit(line)
        elif isinstance(node, Loop) and (pair := next((r for r in loop_rings(w, node, times) if r.behind), None)):
            _paired(w, node, pair)
        elif isinstance(node, Loop) and kernel.rings(w, node.body):
            trips = _filled(kernel, w, node, times)
            if begun and node is begun.loop:
                for line in begun.rest(w):
                    w.emit(line)
                trips = f"{begun.slots}, {trips}"
            with _looped(w, node, trips):
                _loads(kernel, w, node.body, times * node.trips, loop_rings(w, node, times))


def _filled(kernel: _Kernel, w: GroupWriter, node: Loop, times: int) -> str:
    """How many trips the producer loads for: all, or as many as there are slots, where the group fills them again."""
    trips = trips_of(w, node)
    own = {r.stages for r in loop_rings(w, node, times) if r.loop}
    return f"min({max(own)}, {trips})" if own else trips


@contextmanager
def _looped(w: GroupWriter, node: Loop, trips: str) -> Iterator[None]:
    with w.out.indented(f"for {w.trip(node.axis)} in range({trips}):"):
        w.loops.append(node.axis)
        yield
        w.loops.pop()


def _paired(w: GroupWriter, node: Loop, pair: Ring) -> None:
    """The loads of a loop of which some come a trip late."""
    trips, lag = w.out.name(f"trips of {node.axis}"), pair.steps
    w.emit(f"{trips} = {trips_of(w, node)}")
    now = [s for s in pair.loads if s not in pair.behind]
    for some, loads in ((f"{lag}", now), (f"{lag}, {trips}", pair.loads), (f"{trips}, {trips} + {lag}", pair.behind)):
        with _looped(w, node, some):
            for line in fill(w, pair, loads):
                w.emit(line)


def _entry(kernel: _Kernel) -> tuple[str, list[str]]:
    """The kernel itself, with the functions that it uses."""
    w, plan = kernel.writer("0"), kernel.plan
    for ring in kernel.rings(w):
        for line in allocated(w, ring):
            w.emit(line)
    for b in plan.buffers:
        if b.value.endswith((OUT, " part")):
            for line in room(w, b):
                w.emit(line)
    if kernel.split.loop:
        for line in merging(kernel.split, kernel.again):
            w.emit(line)
    if kernel.split.turns > 1:
        for line in set_up(ORDER, kernel.split.turns, 1):
            w.emit(line)
    w.emit("fence_async_shared()")
    for line in entered(w, kernel.chain, kernel.programs):
        w.emit(line)
    given = kernel.shared(w)
    split = kernel.split
    if not plan.producer:
        w.emit(f"producer({', '.join(given)})")
    if not plan.producer and plan.consumers == 1:
        w.emit(f"consumer({', '.join(given)})")
        return function(kernel.name, kernel.arguments(w), w), helpers_of(w)
    with w.out.indented("gl.warp_specialize(["):
        for turn, part, g in itertools.product(range(split.turns), range(split.parts), range(split.groups)):
            numbers = [str(g)] * (split.groups > 1) + [str(part)] * (split.parts > 1) + [str(turn)] * (split.turns > 1)
            w.emit(f"(consumer, ({', '.join(numbers + given)})),")
        if plan.producer:
            w.emit(f"(producer, ({', '.join(given)})),")
    warps = [plan.warps] * (plan.consumers - 1) + [1] * plan.producer
    registers = [plan.registers] * (plan.consumers - 1) + [plan.producer_registers] * plan.producer
    w.emit(f"], {warps}, {registers})")
    return function(kernel.name, kernel.arguments(w), w), helpers_of(w)
