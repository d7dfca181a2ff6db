"""Structures of a program that need no search: all of it in one kernel, cut into kernels between contractions, and with a
reduction split over the grid. The superoptimizer finds more; these are there at once and are what fast tuning ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from fuser.errors import UnsupportedError
from fuser.ir.axes import axes_of
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.fuse import fuse_nodes
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.ir.program import accumulator
from fuser.ir.windows import windowed
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable

SEARCHED = 64
"""Most structures that are taken from the superoptimizer: the model ranks each of them with all its schedules."""

MAX_CUTS = 3
"""Most tensors at which a program is cut; chains are short."""

EVERY_CUT = 6
"""Most places to cut of which every choice is tried; beyond, the program is a deep chain of equal layers."""


def one_kernel(program: TensorProgram) -> KernelGraph:
    """The whole program in one block, divisions postponed and exponentials stable."""
    return stabilize_graph(_bare(program))


def _bare(program: TensorProgram) -> KernelGraph:
    graph = fuse(program)
    return replace(graph, kernels=tuple(postpone_divisions(b) for b in graph.blocks))


def structures(program: TensorProgram) -> tuple[KernelGraph, ...]:
    """Every structure that lowers, the one-kernel form first. Raises :class:`UnsupportedError` if there is none."""
    program = expand(program)
    found: dict[KernelGraph, None] = {}
    first: UnsupportedError | None = None
    spots = cut_points(program)
    chosen = cut_sets(spots)
    for cuts in chosen:
        try:
            boxes = windowed(program, cuts)
            bare = cut(boxes.program, cuts)
            graph = boxes.attach(stabilize_graph(bare))
        except UnsupportedError as error:
            first = first or error
            continue
        found[graph] = None
        for split in split_reductions(bare) if len(spots) <= EVERY_CUT else ():
            found[boxes.attach(split)] = None
    if not found:
        raise first or UnsupportedError(f"{program.name!r} has no operator that a kernel could do")
    stable = [g for g in found if not unstable(g)]
    return tuple(stable or found)  # an exponential of the program itself has nothing to be shifted by


def searched(program: TensorProgram, budget: float) -> tuple[KernelGraph, ...]:
    """What the superoptimizer finds and verifies in ``budget`` seconds, behind the structures that need no search; programs that
    are not one LAX subprogram have the latter alone."""
    from fuser.superopt.generate.generator import Limits
    from fuser.superopt.search import superoptimize

    found = dict.fromkeys(structures(program))
    try:
        result = superoptimize(program, Limits(budget=budget), most=SEARCHED)
    except UnsupportedError:
        return tuple(found)
    for item in result.structures:
        # an exponential that stayed bare may overflow; products of a library are for :mod:`search.libraries` to propose
        if not item.bare and len(item.graph.blocks) == len(item.graph.kernels):
            found[item.graph] = None
    return tuple(found)


def cut_sets(spots: Sequence[str]) -> list[tuple[str, ...]]:
    """Where to cut a program: nowhere first, then every set of up to :data:`MAX_CUTS` places. A deep chain is cut into equal
    parts: two, three, four, then twice as many each time, up to one for each place."""
    if len(spots) <= EVERY_CUT:
        return [c for n in range(min(len(spots), MAX_CUTS) + 1) for c in itertools.combinations(spots, n)]
    most = len(spots) + 1
    parts = [1, 2, 3, *itertools.takewhile(lambda n: n < most, (2 << i for i in itertools.count(1))), most]
    return [tuple(spots[round(most * i / n) - 1] for i in range(1, n)) for n in parts]


def cut_points(program: TensorProgram) -> tuple[str, ...]:
    """Where a program may be cut: the last element-wise result behind a contraction on which another contraction depends, and a
    normalized operand of a contraction, which a one-kernel form computes again in every block."""
    spots: list[str] = []
    for node in program.nodes:
        if op_def(node.op).kind != "contract":
            continue
        spots += [i for i in node.inputs if _normalized(program, i)]
        name = node.output
        while True:
            users = program.consumers[name]
            if len(users) != 1 or op_def(users[0].op).kind != "map" or program[users[0].output].shape != program[name].shape:
                break
            if users[0].op == "exp":  # its running maximum belongs to the kernel that sums it
                break
            name = users[0].output
        if name not in program.outputs and program.consumers[name]:
            spots.append(name)
    return tuple(dict.fromkeys(spots))


def _normalized(program: TensorProgram, name: str) -> bool:
    """Computed element by element from sums over the program's inputs, with no contraction on the way."""
    if name not in program.producers or op_def(program.producers[name].op).kind != "map":
        return False
    kinds = set()
    todo = [name]
    while todo:
        node = program.producers.get(todo.pop())
        if node is not None:
            kinds.add(op_def(node.op).kind)
            todo += node.inputs
    return "reduce" in kinds and "contract" not in kinds


def cut(program: TensorProgram, cuts: tuple[str, ...]) -> KernelGraph:
    """Kernels that meet at the tensors ``cuts`` in device memory, with bare exponentials."""
    if not cuts:
        return _bare(program)
    axes = axes_of(program)
    kernels: list[Kernel] = []
    for i, nodes in enumerate(_segments(program, cuts)):
        block = fuse_nodes(program, axes, nodes, f"{program.name}_{i}")
        if set(block.outputs) - set(cuts) - set(program.outputs):
            raise UnsupportedError(f"cutting {program.name!r} at {cuts} leaves other tensors between the kernels")
        kernels.append(postpone_divisions(block))
    return KernelGraph(
        program.name,
        program.inputs,
        tuple(kernels),
        program.outputs,
        tuple(program[n] for n in dict.fromkeys((*program.inputs, *program.outputs))),
    ).validate()


def _segments(program: TensorProgram, cuts: tuple[str, ...]) -> list[set[str]]:
    """Nodes of each kernel: all that a cut (or an output) needs and no earlier kernel has made; views of inputs are made
    again.
    """
    segments: list[set[str]] = []
    made: set[str] = set()
    order = [n.output for n in program.nodes if n.output in cuts]
    for goal in (*order, *program.outputs):
        nodes: set[str] = set()
        todo = [goal]
        while todo:
            name = todo.pop()
            if name in made or name in nodes or name not in program.producers:
                continue
            nodes.add(name)
            todo += program.producers[name].inputs
        if goal in made:
            continue
        if goal in program.outputs and segments and goal not in order and _extends(program, nodes, segments[-1], order):
            segments[-1] |= nodes
        else:
            segments.append(nodes)
        made |= {n for n in nodes if n in cuts or op_def(program.producers[n].op).kind != "view"}
    return segments


def _extends(program: TensorProgram, nodes: set[str], last: set[str], cuts: list[str]) -> bool:
    """A further output that reads what the last segment computes belongs into the same kernel."""
    reads = {i for n in nodes for i in program.producers[n].inputs}
    return bool(reads & last) and not any(c in last for c in cuts)


def split_reductions(graph: KernelGraph) -> list[KernelGraph]:
    """For each kernel and each axis that it sums over last: the same with that sum split over the grid, and a kernel that adds
    the parts and goes on. More blocks where a fused kernel has too few (split-K, FlashDecoding's split keys)."""
    found: list[KernelGraph] = []
    for i, kernel in enumerate(graph.kernels):
        if not isinstance(kernel, BlockGraph) or kernel.splits:
            continue
        for axis in last_reductions(kernel):
            try:
                first, second = split_block(kernel, axis)
            except UnsupportedError:
                continue  # what follows the sums needs more of the first kernel than the sums
            before, after = graph.kernels[:i], graph.kernels[i + 1 :]
            chains: list[tuple[Kernel, ...]] = [(*before, first, second, *after)]
            needed = (*graph.outputs, *(t for k in after[1:] for t in k.inputs))
            if after and isinstance(after[0], BlockGraph) and (joined := join(second, after[0], needed)):
                chains.append((*before, first, joined, *after[1:]))
            for kernels in chains:
                try:
                    found.append(stabilize_graph(replace(graph, kernels=kernels).validate()))
                except UnsupportedError:
                    continue
    return found


def join(first: BlockGraph, second: BlockGraph, needed: Sequence[str] = ()) -> BlockGraph | None:
    """Two kernels as one block that computes what the first stores where the second would load it, once more in each block of
    the grid; ``None`` where the second reads it under another shape, or others need it too (``needed``: outputs, and what
    kernels behind them read)."""
    stores = {s.access.tensor: s for s in first.stores if s.access}
    loads = [s for s in second.loads if s.access and s.access.tensor in stores]
    if set(stores) & set(needed) or {s.access.tensor for s in loads if s.access} != set(stores):
        return None
    value: dict[str, str] = {}
    for s in loads:
        made = stores[s.access.tensor]  # type: ignore[union-attr]
        if s.access != made.access or s.dtype != made.dtype:
            return None
        value[s.value] = made.value
    mine = [s for s in first.stmts if s.kind != "store"]
    names = {s.value for s in mine}
    theirs = [replace(s, args=tuple(value.get(a, a) for a in s.args)) for s in second.stmts if s not in loads]
    if clash := {s.value for s in theirs if s.kind != "store"} & names:
        same = {s.value for s in theirs if s.kind == "load" and s in mine}
        if clash - same:
            return None
        theirs = [s for s in theirs if s.value not in same or s.kind == "store"]
    extents = dict(first.extents)
    if any(extents.get(a.name, a.extent) != a.extent for a in second.axes):
        return None
    axes = (*first.axes, *(a for a in second.axes if a.name not in extents))
    return BlockGraph(second.name, axes, (*mine, *theirs), (*first.splits, *second.splits)).validate()


def last_reductions(block: BlockGraph) -> tuple[str, ...]:
    """Axes over which something is summed that no other sum follows."""
    folds = [s for s in block.computes if s.folds]
    found: dict[str, None] = {}
    for s in folds:
        later = {v for t in folds if t is not s and s.value in _ancestors(block, t) for v in t.reduce}
        if not later and len(s.reduce) == 1 and s.op != "max":
            found[s.reduce[0]] = None
    return tuple(found)


def _ancestors(block: BlockGraph, stmt: Stmt) -> frozenset[str]:
    seen: set[str] = set()
    todo = list(stmt.args)
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo += block.by_value[value].args
    return frozenset(seen)


def split_block(block: BlockGraph, axis: str) -> tuple[BlockGraph, BlockGraph]:
    """The block up to its sums over ``axis``, each part of which another block of the grid does, and the block that adds the
    partial results and does what follows.

    Raises :class:`UnsupportedError` where what follows needs a value of the first block that is neither loaded nor such a sum.
    """
    parts = f"{axis}_part"
    sums = [s for s in block.computes if s.folds and axis in s.reduce]
    if any(s.op == "max" or len(s.reduce) > 1 or axis in s.axes for s in sums):
        raise UnsupportedError(f"the sums of {block.name!r} over {axis!r} cannot be split")
    partial = {s.value for s in sums}
    after = {s.value for s in block.computes if partial & _ancestors(block, s)}
    if after & partial:
        raise UnsupportedError(f"a sum over {axis!r} of {block.name!r} needs another one")
    head: list[Stmt] = []
    loads: list[Stmt] = []
    for s in block.stmts:
        if s.value in partial and s.kind == "compute":
            head.append(replace(s, axes=(parts, *s.axes)))
        elif s.kind != "store" and s.value not in after:
            head.append(s)
    tail = [s for s in block.stmts if (s.kind == "store" or s.value in after)]
    if any(s.kind == "store" and s.value not in after | partial for s in tail):
        raise UnsupportedError(f"{block.name!r} stores a value that is not summed over {axis!r}")
    begin: list[Stmt] = []
    for s in sums:
        stored = next((t.access for t in block.stores if t.value == s.value), None)
        tensor = f"{stored.tensor if stored else s.value}_part"
        access = Access(tensor, tuple((a,) for a in (parts, *s.axes)))
        # partial sums stay in fp32: rounding them would cost accuracy that the one-kernel form has
        head.append(Stmt("store", s.value, access.axes, accumulator(s.dtype), access=access))
        begin.append(Stmt("load", f"{s.value}_part", access.axes, accumulator(s.dtype), access=access))
        begin.append(Stmt("compute", s.value, s.axes, s.dtype, "sum", (f"{s.value}_part",), (parts,)))
    made = {s.value for s in (*begin, *tail)}
    again: set[str] = set()
    for name in dict.fromkeys(a for s in tail for a in s.args):
        if name in made:
            continue
        source = block.by_value[name]
        if source.kind == "load":
            loads.append(source)
            continue
        if any(axis in (*block.by_value[v].axes, *block.by_value[v].reduce) for v in (name, *_ancestors(block, source))):
            raise UnsupportedError(f"what follows the split of {block.name!r} needs {name!r} of the first kernel")
        again |= {name, *_ancestors(block, source)}
    # what the split has no part in is computed again: a term beside the sums, say
    loads = [s for s in block.stmts if s.kind != "store" and (s in loads or s.value in again)]
    stmts = (*begin, *loads, *tail)
    free = (Axis(parts, FREE),)

    def used(statements: Sequence[Stmt]) -> tuple[Axis, ...]:
        names = {a for s in statements for a in (*s.axes, *s.reduce, *s.constant_axes)}
        return free + tuple(a for a in block.axes if a.name in names)

    needed = live(head)
    first = BlockGraph(f"{block.name}_split", used(needed), needed, ((axis, parts),))
    return first.validate(), BlockGraph(f"{block.name}_sum", used(stmts), stmts).validate()
