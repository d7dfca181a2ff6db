"""Structures of a program that need no search: all of it in one kernel, cut into kernels between contractions, with a reduction
split over the grid, and with operands laid anew first. The superoptimizer finds more; these are there at once and are
what fast tuning ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from fuser.errors import UnsupportedError
from fuser.ir.axes import axes_of
from fuser.ir.axes import views_apart
from fuser.ir.composites import expand
from fuser.ir.fuse import fuse
from fuser.ir.fuse import fuse_nodes
from fuser.ir.libraries import products
from fuser.ir.merge import merged
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.rows import pitch_of
from fuser.ir.windows import windowed
from fuser.superopt.rewrite.few_rows import of_few_rows
from fuser.superopt.rewrite.few_terms import written_out
from fuser.superopt.rewrite.maxima import softmaxes
from fuser.superopt.rewrite.maxima import with_maxima
from fuser.superopt.rewrite.maxima import without_maximum
from fuser.superopt.rewrite.postpone import postpone_divisions
from fuser.superopt.rewrite.splits import split_folds
from fuser.superopt.rewrite.splits import split_reductions
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.rewrite.turn import aligned
from fuser.superopt.rewrite.turn import turned

SEARCHED = 64
"""Most structures that are taken from the superoptimizer: the model ranks each of them with all its schedules."""

MAX_CUTS = 3
"""Most tensors at which a program is cut; chains are short."""

FEW_AXES = 4
"""Axes of a kernel without products up to which it is offered with none of them merged, too."""

WIDE = 256
"""Columns from which probabilities (a softmax of what was contracted) may lie in memory: blocks that compute them again for each
tile of columns, or hold all columns, take longer."""

EVERY_CUT = 6
"""Most places to cut of which every choice is tried; beyond, the program is a deep chain of equal layers."""


def one_kernel(program: TensorProgram) -> KernelGraph:
    """The whole program in one block, divisions postponed and exponentials stable."""
    return stabilize_graph(_bare(program))


def _bare(program: TensorProgram) -> KernelGraph:
    graph = fuse(program)
    return replace(graph, kernels=tuple(postpone_divisions(b) for b in graph.blocks))


@lru_cache(64)
def structures(program: TensorProgram, longer: bool = True) -> tuple[KernelGraph, ...]:
    """Every structure that lowers, the one-kernel form first. ``longer``: tensors may lie in longer rows. Raises
    :class:`UnsupportedError` if there is none."""
    program = views_apart(expand(program))
    found: dict[KernelGraph, None] = {}
    further: dict[KernelGraph, None] = {}
    first: UnsupportedError | None = None
    spots = cut_points(program)
    chosen = cut_sets(spots)
    whole = all(not n.contracts for n in program.nodes)
    rows = {n.inputs[0] for n in program.nodes if n.contracts}
    for cuts in chosen:
        try:
            boxes = windowed(program, cuts)
            bare = cut(boxes.program, cuts)
            plain = boxes.attach(stabilize_graph(bare))
            # of chains no GPU has run such a form; what one kernel writes another may read by other axes
            if len(rows) <= 1:
                fixed = boxes.windows if whole else {*boxes.windows, *_between(bare)}
                bare = replace(bare, kernels=tuple(merged(b, fixed) for b in bare.blocks))
            graph = boxes.attach(stabilize_graph(bare))
        except UnsupportedError as error:
            first = first or error
            continue
        found[graph] = None
        if not whole and graph != plain and products(plain):
            found[plain] = None  # a library sees tensors in the shapes that they have
        for split in split_folds(bare) if whole else split_reductions(bare) if len(spots) <= EVERY_CUT else ():
            found[boxes.attach(split)] = None
        odd = longer and any(pitch_of(program[n]) for n in (*program.inputs, *program.outputs))
        if whole and odd and all(len(b.axes) <= FEW_AXES for b in plain.blocks):
            found[plain] = None  # longer rows are those of the tensors as they are
        if len(spots) <= EVERY_CUT:
            further |= {boxes.attach(g): None for g in of_few_rows(bare)}
    found |= further
    if (apart := written_out(program)) is not None:
        with suppress(UnsupportedError):
            found |= dict.fromkeys(structures(apart, longer))
    if not found:
        raise first or UnsupportedError(f"{program.name!r} has no operator that a kernel could do")
    found |= {g: None for one in tuple(found) for lay in (turned, aligned) if (g := lay(one))}
    if stable := [g for g in found if not unstable(g)]:
        return tuple(stable)
    # an exponential of the program itself has nothing to be shifted by
    lacking = {g: without_maximum(program, g) for g in found}
    if right := [g for g, names in lacking.items() if not names]:
        return tuple(right)
    names = {n for found in lacking.values() for n in found} & softmaxes(program).keys()
    return structures(with_maxima(program, names or None), longer)


def _between(graph: KernelGraph) -> set[str]:
    """What one kernel writes and another reads, results of the whole too."""
    return {t for k in graph.kernels for t in k.outputs} & {t for k in graph.kernels for t in k.inputs}


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
    """Where a program may be cut: the last element-wise result behind a contraction that something else depends on (a result of
    the program, too), and a normalized operand of a contraction, which a one-kernel form computes again in every block (also
    probabilities of what was contracted, where the result is wide)."""
    spots: list[str] = []
    for node in program.nodes:
        if not node.contracts:
            continue
        wide = program[node.output].shape[-1] >= WIDE
        spots += [i for i in node.inputs if _normalized(program, i, wide)]
        name = node.output
        while True:
            users = program.consumers[name]
            if len(users) != 1 or users[0].entry.kind != "map" or program[users[0].output].shape != program[name].shape:
                break
            if users[0].exponential:  # its running maximum belongs to the kernel that sums it
                break
            name = users[0].output
        if program.consumers[name]:
            spots.append(name)
    return tuple(dict.fromkeys(spots))


def _normalized(program: TensorProgram, name: str, wide: bool) -> bool:
    """Computed element by element from sums over the program's inputs, with no contraction on the way; for a ``wide`` result also
    from sums of exponentials behind one."""
    if name not in program.producers or program.producers[name].entry.kind != "map":
        return False
    kinds, exponential = set(), False
    todo, seen = [name], {name}
    while todo:
        node = program.producers.get(todo.pop())
        if node is not None:
            kinds.add(node.entry.kind)
            exponential = exponential or node.exponential
            todo += set(node.inputs) - seen
            seen.update(node.inputs)
    return "reduce" in kinds and ("contract" not in kinds or (wide and exponential))


def cut(program: TensorProgram, cuts: tuple[str, ...]) -> KernelGraph:
    """Kernels that meet at the tensors ``cuts`` in device memory, with bare exponentials."""
    if not cuts:
        return _bare(program)
    axes = axes_of(program)
    kernels: list[Kernel] = []
    for i, nodes in enumerate(_segments(program, cuts)):
        block = fuse_nodes(program, axes, nodes, f"{program.name}_{i}")
        # a view is made again by each kernel, and what it shows is no output of the one that computes it
        between = {*block.outputs, *(n for n in block.inputs if n not in program.inputs)}
        if between - set(cuts) - set(program.outputs):
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
        made |= {n for n in nodes if n in cuts or program.producers[n].entry.kind != "view"}
    return segments


def _extends(program: TensorProgram, nodes: set[str], last: set[str], cuts: list[str]) -> bool:
    """A further output that reads what the last segment computes belongs into the same kernel."""
    reads = {i for n in nodes for i in program.producers[n].inputs}
    return bool(reads & last) and not any(c in last for c in cuts)
