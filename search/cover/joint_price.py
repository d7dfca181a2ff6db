"""What torch's own compiler takes for operators of which it makes one kernel, or a few."""

from __future__ import annotations

import math
from collections.abc import Collection
from math import inf

from cost_model import refined
from cost_model.constants import constants_of
from fuser.device import Device
from fuser.ir.element_program import SCANS
from fuser.ir.program import WIDE
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.folds import UNROLLED
from search.cover.folds import along_rows
from search.cover.folds import at_the_end
from search.cover.folds import folds_last
from search.cover.folds import further_passes
from search.cover.folds import is_fold
from search.cover.folds import is_long
from search.cover.folds import kept_in_rows
from search.cover.folds import row_by_row
from search.cover.folds import total
from search.cover.joint import joins
from search.cover.shown import moves_only

DOUBT = 1.2
"""How many times its floor a kernel of torch's compiler is expected to take, where there are searched kernels of ours."""
WINDOWED, LOOKED_UP, JOINING, FEW = 40, 35, 10, 64
"""Instructions for an element of a window, one that is looked up, and of one that may be of several tensors; elements of a window
up to which no loop goes through them. Products of rows that were looked up in pairs and joined took an H100 162 µs for 43 MB, and
windows of 9 elements under weights 42."""
TAPS, SPECIAL = 4, 8
"""Elements that one of a resized image is made of, and instructions in whose time a thread is through with a special function. A
mean of eight functions of an image that the same kernel made larger by sigmoids of a small one took an H100 350 µs for 13 MB."""
LONG_WRITTEN = {
    **dict.fromkeys(("power", "powf"), 118),
    **dict.fromkeys(("sin", "cos"), 81),
    **dict.fromkeys(("softplus", "log_sigmoid"), 37),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), 28),
    **dict.fromkeys(("elu", "celu", "selu", "expm1", "erf", "gelu"), 28),
    **dict.fromkeys(("asinh", "acosh", "atan"), 45),
    **dict.fromkeys(("tan", "atan2"), 90),
    "mish": 60,
}
"""Instructions of functions that torch's compiler takes from a library, as the assembler has them for an H100 (and of what is
made of two of them)."""
DOUBLE, SPILLED, TOGETHER = 160, 3000, 4
"""Instructions of a function of float64 where an element of a kernel has up to so many of them, and where it has more: four of
each of a million elements took an H200 20 µs, the twelve of three rotary embeddings side by side 1138 (ours: 19)."""
DIVISIONS, DIVIDED = ("aten.remainder.", "aten.floor_divide.", "aten.fmod.", "aten.div."), 70
"""Operators that divide, and the instructions of such a division of whole numbers of 64 bits."""
NEIGHBOURS = 4
"""Elements of a row that a thread has."""
SEVERAL, MANY = 2, 16
"""Parts of a joined tensor from beyond which a kernel of torch's compiler is no match where they are turned, and at all."""
JOINED = 8
"""Parts of a joined tensor up to which a kernel of torch's compiler computes them for each element of the whole."""
SECTOR, SPLIT, COLUMNS = 32, 256, 64
"""Bytes of which one element is used by a block that has one column; elements of an axis from which blocks have one, and columns
for each multiprocessor from which they have several."""
SCANNED = 80
"""Instructions for an element of what runs along an axis: 65536 rows of 252 took an H100 43 µs, not 23."""
READS = 4
"""Loads of an element up to which torch's compiler computes it again for each that reads it."""
NEAR = 0.5
"""Of the time of memory that it takes to read again what L2 holds."""


def joint_seconds(program: TensorProgram, device: Device, doubted: bool = False) -> float | None:
    """Estimate of what torch's compiler makes of operators: it writes what is folded, then reads it again. None where it is not
    for it. ``doubted``: we have kernels of our own, whose estimates see more."""
    inner = [n for n in program.nodes if not moves_only(n)]
    if len(inner) < 2 - doubted or not all(map(joins, inner)) or (not doubted and _turned_windows(program)):
        return None
    shifts = _shifts(program)
    if shifts > MANY or (shifts > SEVERAL and any(n.op == "transpose" for n in program.nodes)):
        return None
    by_rows = row_by_row(program)
    inside = () if by_rows else [n for n in inner if n.output not in program.outputs and is_fold(program, n)]
    folds = [n for n in inside if not kept_in_rows(program, n) and not is_long(program, n)]
    ends = sum(_read(program, n) for n in program.inputs) + sum(program[n].nbytes for n in program.outputs)
    near = NEAR if ends < device.l2_bytes / 2 else 1.0
    again = [near * program[n.inputs[0]].nbytes if doubted and _normalizes(program, n) else inf for n in folds]
    moved = [ends, *(min(2 * program[n.output].nbytes, more) for n, more in zip(folds, again, strict=True))]
    moved += [0.0] if by_rows and any(total(program, n) for n in inner) else []
    moved += [0.0 for n in inner if _side_by_side(n) for i in n.inputs if i not in program.inputs]  # each is a kernel
    long_rows, kernels = further_passes(program, device.sm_count)
    moved[0] += near * long_rows  # within the same kernels
    moved += [0.0] * kernels
    moved += [SECTOR * program[n.output].elements for n in inner if _scans_across(program, n, device)]
    moved += [SECTOR * x for n in inner if is_fold(program, n) for x in _turned_beside(program, n)]
    moved += [SECTOR * program[n].elements for n in program.outputs if _leaves_turned(program, n)]
    written = _cut_apart(program)
    moved += [2 * program[n].nbytes for n in written]
    waits = constants_of(device).wait * sum(_in_turn(program, n) for n in folds)
    memory = sum(refined.memory_kernel_seconds(n, device) for n in moved) + waits
    work = constants_of(device).base + _instructions(program, frozenset(written)) / (device.fp32_flops / 2)
    return max(memory * (DOUBT if doubted else 1.0), work)


def _instructions(program: TensorProgram, written: Collection[str]) -> float:
    """Of all threads, where each has one element and computes its places anew: what a few tensors that are joined are made of is
    computed for each element of the whole, or of all parts of it that are read, what is spread over others for each of these, and
    what is folded within a window for a power of two; what is ``written`` on the way once."""
    lanes: dict[str, float] = {}
    parts: dict[str, float] = {}
    found = 0.0
    for node in reversed(program.nodes):
        mine, folds = float(program[node.output].elements), is_fold(program, node)
        once = (folds and "kernel_size" not in node.attr) or node.output in written
        among = mine if once else max(lanes.get(node.output, 0.0), mine)
        found += _each(program, node) * among
        if _side_by_side(node):
            continue
        few = program[node.inputs[0]].elements / mine if folds else 1.0
        for i in node.inputs:
            spread = program[i].elements * (2.0 ** math.ceil(math.log2(few)) / few if UNROLLED <= few <= FEW else 1.0)
            parts[i] = parts.get(i, 0.0) + among * (node.op == "slice")
            wide = 0.0 if folds and among <= mine else among * (TAPS if node.op == "resize" else 1) / _shared(program, node, i)
            lanes[i] = max(lanes.get(i, 0.0), spread, wide, parts[i])
    return found


def _shared(program: TensorProgram, node: Node, operand: str) -> int:
    """Elements of a result for which a thread computes one of an operand once: neighbours of a row that have it in common."""
    mine, theirs = program[node.output].shape[-1:], program[operand].shape
    named = _looks_up(program, node) and operand in node.inputs[1:]
    if mine and (len(theirs) < len(program[node.output].shape) if named else theirs[-1:] == (1,)):
        return min(NEIGHBOURS, mine[0])
    return 1


def _each(program: TensorProgram, node: Node) -> float:
    """Instructions for an element of a result, what its operands are made of not among them."""
    if "kernel_size" in node.attr:
        return WINDOWED
    if node.op == "resize":
        return TAPS * LOOKED_UP
    if node.op in SCANS:
        return SCANNED
    if node.attr.get("callee", "").startswith(DIVISIONS) and program[node.output].dtype in WIDE:
        return DIVIDED
    looked_up = LOOKED_UP / (2.0 if len(node.inputs) > 1 and _shared(program, node, node.inputs[1]) > 1 else 1.0)
    places = looked_up if _looks_up(program, node) else JOINING * (node.op == "concat" and not _side_by_side(node))
    arithmetic = max(node.entry.flops + SPECIAL * node.entry.sfu, LONG_WRITTEN.get(node.op, 0))
    if _is_series(program, node):
        arithmetic = DOUBLE if sum(_is_series(program, n) for n in program.nodes) <= TOGETHER else SPILLED
    return places + (arithmetic if node.entry.kind == "map" else 0.0)


def _is_series(program: TensorProgram, node: Node) -> bool:
    return bool(node.entry.sfu) and program[node.output].dtype == "float64"


def _side_by_side(node: Node) -> bool:
    """Whether each part of a joined tensor is written to its place by itself: of many no kernel computes them all."""
    return node.op == "concat" and len(node.inputs) > JOINED


def _cut_apart(program: TensorProgram) -> list[str]:
    """What that compiler writes to memory because it is long to compute and several read it, cut otherwise: it computes it once
    where all are in one kernel, which has one shape."""
    reads: dict[str, frozenset[tuple[str, ...]]] = {n: frozenset({(n,)}) for n in program.inputs}
    found = []
    for node in program.nodes:
        mine = frozenset[tuple[str, ...]]().union(*(reads[i] for i in node.inputs))
        if node.op == "slice":
            mine = frozenset((*r, node.output) for r in mine)
        users, folds = program.consumers[node.output], is_fold(program, node)
        cut = len(users) > 1 and any(u.op == "slice" for u in users) and not moves_only(node)
        kept = len(mine) > READS and cut and not folds
        reads[node.output] = frozenset({(node.output,)}) if folds or kept else mine
        found += [node.output] * (kept and node.output not in program.outputs)
    return found


def _scans_across(program: TensorProgram, node: Node, device: Device) -> bool:
    """Whether an operator runs along a long axis that is not the last, of few columns: a block of that compiler has one."""
    shape = program[node.output].shape
    if node.op not in SCANS or (dim := node.attr["dim"] % len(shape)) == len(shape) - 1:
        return False
    return shape[dim] >= SPLIT and program[node.output].elements // shape[dim] < COLUMNS * device.sm_count


def _turned_beside(program: TensorProgram, node: Node) -> list[int]:
    """Elements of large matrices that a fold of rows reads down their columns, beside others that it reads along them: a block of
    that compiler has few rows. Of a matrix of 4000 rows and its transpose an H100 took 286 µs, 512 MB at its bandwidth."""
    along, across, seen, left = False, list[int](), set[str](), list(node.inputs)
    while left:
        if (name := left.pop()) in seen:
            continue
        seen.add(name)
        large, front = min(program[name].shape[-2:], default=0) >= SPLIT, program.producers.get(name)
        if front is None or is_fold(program, front):
            along |= large
        elif front.op == "transpose" and front.attr["perm"][-1] != len(front.attr["perm"]) - 1:
            across += [program[name].elements] * large
        else:
            left += front.inputs
    return across if along else []


def _leaves_turned(program: TensorProgram, name: str) -> bool:
    """Whether a large result leaves with its rows as columns, of a kernel that folds as large rows: blocks of that have one row.
    Of 100 maps of 209 × 209 for each of three proteins that leave the maps last an H200 took 850 µs, 322 where they do not."""
    many = program[name].elements
    while (node := program.producers.get(name)) is not None and moves_only(node):
        if node.op == "transpose" and node.attr["perm"][-1] != len(node.attr["perm"]) - 1:
            rows = (n for n in program.nodes if is_fold(program, n) and folds_last(program, n))
            return program[name].nbytes * program[name].shape[-1] > SECTOR * many and any(
                program[n.inputs[0]].elements >= many for n in rows
            )
        name = node.inputs[0]
    return False


def _turned_windows(program: TensorProgram) -> bool:
    """Whether windows over images are folded, or images resized, and images turned: a kernel that does both reads each element of
    a window far from the next. Of maxima over 3 x 3 it took an H200 45 µs, not 9, and of 8 images of 256 channels that it made
    twice as large an H100 606, not 70."""
    return any("kernel_size" in n.attr or n.op == "resize" for n in program.nodes) and any(
        n.op == "transpose" for n in program.nodes
    )


def _shifts(program: TensorProgram) -> int:
    """How many parts of one joined tensor, most of it each, are put together, as in a convolution along lines. Where these are
    turned as well, a kernel of that compiler reads each part far from the next: 59 µs for 32 × 192 × 400 elements of seven taps
    and their maxima on an H100. Of many it computes what was joined again for each: 112 µs for 16 × 384 × 500 elements of 31."""
    joined = (n.output for n in program.nodes if n.op == "concat")
    users = ([u.output for u in program.consumers[n] if u.op == "slice" and _most(program, u)] for n in joined)
    return max(map(len, users), default=0)


def _most(program: TensorProgram, part: Node) -> bool:
    return 2 * program[part.output].elements > program[part.inputs[0]].elements


def _normalizes(program: TensorProgram, node: Node) -> bool:
    """Whether each row becomes another one by a few numbers of it: the compiler reads it again and keeps those alone."""
    return node.entry.kind == "composite" and along_rows(program, node)


def _in_turn(program: TensorProgram, node: Node) -> float:
    """Loads of a fold that come one after another: of rows that are looked up, and folded across. 64 rows for each of 256
    sentences took torch's compiler 61 µs on an H200."""
    whole, found = math.prod(program[node.inputs[0]].shape), math.prod(program[node.output].shape)
    apart = found > 1 and not at_the_end(program, node) and _looked_up(program, node)
    return whole / found if apart else 0.0


def _looked_up(program: TensorProgram, node: Node) -> bool:
    """Whether what an operator reads comes of places that are read first, each of its elements of one of its own."""
    seen, left, many = set[str](), list(node.inputs), program[node.inputs[0]].elements
    while left:
        if (name := left.pop()) in seen or (front := program.producers.get(name)) is None:
            continue
        seen.add(name)
        if program[front.output].elements < many:
            continue
        if _looks_up(program, front):
            return True
        left += front.inputs
    return False


def _looks_up(program: TensorProgram, node: Node) -> bool:
    """Whether an operator reads at places that are read first; what it moves may be whole numbers as well."""
    return node.entry.element is not None and any(program[i].dtype in WIDE for i in node.inputs[1:])


def _read(program: TensorProgram, name: str) -> int:
    """Bytes that are read of an input: of a table no more than what is looked up in it."""
    taken = 0
    for user in program.consumers[name]:
        some = (user.entry.element is not None or user.op == "slice") and user.inputs[0] == name
        taken += program[user.output].nbytes if some else program[name].nbytes
    return min(taken, program[name].nbytes)
