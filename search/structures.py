"""Structures of a program that need no search: all of it in one kernel, cut into kernels between contractions, and with a reduction split
over the grid. The superoptimizer finds more; these are there at once and are what fast tuning ranks."""

from __future__ import annotations

import itertools
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
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.superopt.postpone import postpone_divisions
from fuser.superopt.stabilize import stabilize

MAX_CUTS = 3
"""Most tensors at which a program is cut; chains are short."""


def one_kernel(program: TensorProgram) -> KernelGraph:
    """The whole program in one block, divisions postponed and exponentials stable."""
    graph = fuse(program)
    return replace(graph, kernels=tuple(stabilize(postpone_divisions(b)) for b in graph.blocks))


def structures(program: TensorProgram) -> tuple[KernelGraph, ...]:
    """Every structure that lowers, the one-kernel form first. Raises :class:`UnsupportedError` if there is none."""
    program = expand(program)
    found: dict[str, KernelGraph] = {}
    first: UnsupportedError | None = None
    spots = cut_points(program)
    for count in range(min(len(spots), MAX_CUTS) + 1):
        for cuts in itertools.combinations(spots, count):
            try:
                graph = cut(program, cuts)
            except UnsupportedError as error:
                first = first or error
                continue
            found.setdefault(graph.stable_hash(), graph)
            for split in split_reductions(graph):
                found.setdefault(split.stable_hash(), split)
    if not found:
        raise first or UnsupportedError(f"{program.name!r} has no operator that a kernel could do")
    return tuple(found.values())


def cut_points(program: TensorProgram) -> tuple[str, ...]:
    """Where a chain may be cut: the last element-wise result behind a contraction on which another contraction depends."""
    spots: list[str] = []
    for node in program.nodes:
        if op_def(node.op).kind != "contract":
            continue
        name = node.output
        while True:
            users = program.consumers[name]
            if len(users) != 1 or op_def(users[0].op).kind != "map" or program[users[0].output].shape != program[name].shape:
                break
            name = users[0].output
        if name not in program.outputs and program.consumers[name]:
            spots.append(name)
    return tuple(dict.fromkeys(spots))


def cut(program: TensorProgram, cuts: tuple[str, ...]) -> KernelGraph:
    """Kernels that meet at the tensors ``cuts`` in device memory."""
    if not cuts:
        return one_kernel(program)
    axes = axes_of(program)
    kernels: list[Kernel] = []
    for i, nodes in enumerate(_segments(program, cuts)):
        block = fuse_nodes(program, axes, nodes, f"{program.name}_{i}")
        if set(block.outputs) - set(cuts) - set(program.outputs):
            raise UnsupportedError(f"cutting {program.name!r} at {cuts} leaves other tensors between the kernels")
        kernels.append(stabilize(postpone_divisions(block)))
    return KernelGraph(
        program.name,
        program.inputs,
        tuple(kernels),
        program.outputs,
        tuple(program[n] for n in dict.fromkeys((*program.inputs, *program.outputs))),
    ).validate()


def _segments(program: TensorProgram, cuts: tuple[str, ...]) -> list[set[str]]:
    """Nodes of each kernel: all that a cut (or an output) needs and no earlier kernel has made; views of inputs are made again."""
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
    """For each kernel whose stored values are linear in one contraction: the same with that reduction split over the grid, and a kernel that
    adds the parts. More blocks where a fused kernel has too few (split-K)."""
    found: list[KernelGraph] = []
    for i, kernel in enumerate(graph.kernels):
        if not isinstance(kernel, BlockGraph) or any(s.rescale or s.op in ("max", "exp") for s in kernel.stmts):
            continue
        axis = _last_reduction(kernel)
        if axis:
            try:
                pair = split_block(kernel, axis)
            except UnsupportedError:
                continue  # the epilogue needs more than the sum: not a split that this simple form covers
            found.append(replace(graph, kernels=(*graph.kernels[:i], *pair, *graph.kernels[i + 1 :])).validate())
    return found


def _last_reduction(block: BlockGraph) -> str:
    """The axis of the contraction whose result is stored, if nothing else is reduced after it."""
    folds = [s for s in block.computes if s.folds]
    if not folds or len(block.stores) != 1 or len(folds[-1].reduce) != 1 or op_def(folds[-1].op).kind != "contract":
        return ""
    return folds[-1].reduce[0]


def split_block(block: BlockGraph, axis: str) -> tuple[BlockGraph, BlockGraph]:
    """The block up to its last contraction with ``axis`` split over a new grid axis, and the block that sums the partial results and goes on."""
    parts = f"{axis}_part"
    at = max(i for i, s in enumerate(block.stmts) if s.folds)
    last = block.stmts[at]
    (store,) = block.stores
    tensor = f"{store.access.tensor}_part" if store.access else f"{last.value}_part"
    dims = tuple((a,) for a in (parts, *last.axes))
    partial = replace(last, axes=(parts, *last.axes))
    # partial sums stay in fp32: rounding them would cost accuracy that the one-kernel form has
    head = BlockGraph(
        f"{block.name}_split",
        (Axis(parts, FREE), *block.axes),
        (*block.stmts[:at], partial, Stmt("store", last.value, partial.axes, "float32", access=Access(tensor, dims))),
        ((axis, parts),),
    )
    rest = block.stmts[at + 1 :]
    loads = [block.by_value[a] for s in rest for a in s.args if a in block.by_value and block.by_value[a].kind == "load"]
    needed = {a for s in rest for a in s.args} - {s.value for s in rest if s.kind == "compute"} - {last.value}
    if needed - {s.value for s in loads}:
        raise UnsupportedError(f"what follows the split of {block.name!r} needs {sorted(needed)} of the first kernel")
    load = Stmt("load", f"{last.value}_part", partial.axes, "float32", access=Access(tensor, dims))
    total = Stmt("compute", last.value, last.axes, last.dtype, "sum", (load.value,), (parts,))
    stmts = (load, total, *dict.fromkeys(s for s in loads if s not in rest), *rest)
    used = {a for s in stmts for a in (*s.axes, *s.reduce, *s.constant_axes)}
    tail = BlockGraph(f"{block.name}_sum", (Axis(parts, FREE), *(a for a in block.axes if a.name in used)), stmts)
    return head.validate(), tail.validate()
