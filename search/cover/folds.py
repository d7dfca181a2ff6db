"""What torch's compiler folds: along rows, which its blocks keep, or not; and how often it reads rows that they do not keep."""

from __future__ import annotations

import math
from math import inf

from fuser.aten import operator
from fuser.ir.composites import expand
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.shown import moves_only

ROW = 4096
"""Elements of a row that a kernel of torch's compiler keeps from a fold to what follows."""
LONG = 8192
"""Elements of a row from which on it adds parts of few rows by further kernels."""
UNROLLED = 8
"""Elements of which torch's compiler writes a fold out."""
ROW_NORMS, GIVEN = ("layer_norm", "rms_norm"), "batch_norm"
"""Norms of the last axis, and that of which mean and variance are given: it folds nothing."""
CONVERSION = "aten.to."
"""What elements are converted by; torch does not say that it treats each alone."""


def row_by_row(program: TensorProgram) -> bool:
    """Whether all that is folded are rows of one number, and what they leave to one element: one kernel keeps them."""
    whole = expand(program)
    inner = [n for n in whole.nodes if not moves_only(n) and (n.entry.kind != "library" or n.entry.flops > 0)]
    folds = [n for n in inner if is_fold(whole, n)]
    folds = [n for n in folds if not total(whole, n)] or folds
    rows = {math.prod(whole[n.inputs[0]].shape[:-1]) if along_rows(whole, n) else 0 for n in folds}
    return len(rows) == 1 and 0 not in rows


def total(program: TensorProgram, node: Node) -> bool:
    """Whether an operator folds all that it reads: each row's part leaves with the row, and a kernel folds these."""
    return program[node.output].elements == 1 and is_fold(program, node)


def along_rows(program: TensorProgram, node: Node) -> bool:
    """Whether an operator folds the last axis alone, and rows that a block can keep."""
    return folds_last(program, node) and program[node.inputs[0]].shape[-1] <= ROW


def folds_last(program: TensorProgram, node: Node) -> bool:
    """Whether an operator folds the last axis alone."""
    return _axes(program, node) == [len(program[node.inputs[0]].shape) - 1]


def at_the_end(program: TensorProgram, node: Node) -> bool:
    """Whether an operator folds the last axes, what lies side by side; one that names none (a loss) does."""
    axes, rank = _axes(program, node), len(program[node.inputs[0]].shape)
    return axes == list(range(rank - len(axes), rank))


def _axes(program: TensorProgram, node: Node) -> list[int]:
    """The axes that an operator folds, as far as it says so; norms of rows fold the last."""
    rank, axes = len(program[node.inputs[0]].shape), node.attr.get("axis", node.attr.get("dim"))
    if axes is None or rank == 0:
        return [rank - 1] * (node.op in ROW_NORMS and rank > 0)
    return sorted(a % rank for a in (axes if isinstance(axes, tuple) else (axes,)))


def is_fold(program: TensorProgram, node: Node) -> bool:
    """Whether elements of the result come of many of the operands: of a few they are arithmetic within a kernel."""
    kind, many = node.entry.kind, program[node.output].elements
    if "kernel_size" not in node.attr and many < program[node.inputs[0]].elements < UNROLLED * many:
        return False
    if kind != "opaque":
        return (kind in ("reduce", "composite") and node.op != GIVEN) or (kind == "library" and node.entry.flops > 0)
    import torch

    callee = node.attr["callee"]
    return not callee.startswith(CONVERSION) and torch.Tag.pointwise not in operator(callee).tags


def kept_in_rows(program: TensorProgram, node: Node) -> bool:
    """Whether rows become others that are read element by element, or folded along them again: a block keeps them."""
    rows, todo, seen = program[node.output].shape, [node.output], set[str]()
    if not along_rows(program, node) or program[node.inputs[0]].shape != rows:
        return False
    while todo:
        if (name := todo.pop()) in seen:
            continue
        seen.add(name)
        for u in program.consumers[name]:
            within = (u.entry.kind == "map" and u.entry.element is None) or u.op == "slice"
            if not (along_rows(program, u) if is_fold(program, u) else within and program[u.output].shape[:-1] == rows[:-1]):
                return False
            if 2 * program[u.output].elements >= program[node.output].elements and not is_fold(program, u):
                todo.append(u.output)
    return True


def further_passes(program: TensorProgram, multiprocessors: int) -> tuple[float, int]:
    """Bytes of long rows that are read again, by folds of what others have left of them and by what is done with each element
    then; and kernels that put parts of rows together, where there are fewer than two rows a multiprocessor: maxima and sums of
    exponentials are two folds then, else one."""
    folds = [n for n in program.nodes if is_long(program, n)]
    if not folds:
        return 0, 0
    outputs, whole = {n.output for n in folds}, max(program[n.inputs[0]].elements for n in folds)
    few = min(program[n.inputs[0]].elements // program[n.inputs[0]].shape[-1] for n in folds) < 2 * multiprocessors
    behind, read = dict.fromkeys(program.inputs, 0), {n: frozenset((n,)) for n in program.inputs}
    passes, kernels = dict[int, float](), set[int]()
    for node in program.nodes:
        level = max((behind[i] for i in node.inputs), default=0)
        large = (i for i in node.inputs if 2 * program[i].elements >= program[node.inputs[0]].elements)
        some = node.op == "slice" and 2 * program[node.output].elements <= program[node.inputs[0]].elements
        read[node.output] = frozenset((node.output,)) if some else frozenset[str]().union(*(read[i] for i in large))
        # what two tensors are made of was written where more than these are behind it
        asked = min(sum(program[n].nbytes for n in read[node.output]) or inf, 2 * program[node.inputs[0]].nbytes)
        if node.output in outputs:
            mine = range(level, level + (2 if few and node.entry.kind == "composite" and node.entry.degree == "exp" else 1))
            passes |= {i: max(passes.get(i, 0), asked) for i in mine}
            kernels.update(mine)
            level = mine.stop
        behind[node.output] = level
        if program[node.output].elements >= whole and node.output in program.outputs:
            passes[level] = max(passes.get(level, 0), asked)
    return sum(passes.values()) - max(passes.values()), (2 * len(kernels) - 1) * few


def is_long(program: TensorProgram, node: Node) -> bool:
    """Whether an operator folds rows that are long."""
    return is_fold(program, node) and folds_last(program, node) and program[node.inputs[0]].shape[-1] >= LONG
