"""Kernels for operators that no block of a µGraph holds: those that run along an axis or order what lies along it, convolutions
of single channels, products of rows in groups, and all whose elements follow from a few elements of their operands
(:mod:`fuser.ir.elements`), several of them at once too.

A source here is of tensors that lie row after row. Where there is none for some attributes, dtype or shape, torch computes the
operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import product
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.element_program import RUNS
from fuser.ir.elements import Recipe
from fuser.ir.fuse import identifier
from fuser.ir.hashing import digest
from fuser.ir.library_ops import moves
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOATS
from fuser.ir.program import Tensor
from fuser.lower.element_code import body
from fuser.lower.element_tiles import recipe_of
from fuser.lower.element_tiles import tiled
from fuser.lower.grouped_code import counted
from fuser.lower.grouped_code import grouped
from fuser.lower.kernel_source import KernelSource
from fuser.lower.order_code import ordered
from fuser.lower.run_code import Made
from fuser.lower.run_code import helpers_of
from fuser.lower.run_code import run_of

CONVOLUTIONS = {f"conv{n}d": n for n in (1, 2, 3)}
ORDERS = {"argsort", "argtopk"}
WRITTEN = RUNS | CONVOLUTIONS.keys() | ORDERS | {"grouped_matmul", "counts"}
"""Operators that have a source of their own."""
SCATTERED = 2
"""Times that sectors may be asked for where an operator has a source of its own too."""
MOST = 64
"""Elements of a window up to which its loop is written out."""
FASTER = 16
"""Elements of a window along lines of float16 beyond which cuDNN has a faster kernel (31 of 16 × 384 lines of 500 elements: 17 µs
on an H100, where ours takes 32)."""
RESULTS = 256
"""Results of a convolution that a block has: one of each thread, so that neighbouring threads read neighbours."""
HEAD = "import triton\nimport triton.language as tl"


def may_be_written(op: str) -> bool:
    """Whether an operator may have a source."""
    return op in WRITTEN or op == "elements" or op_def(op).element is not None


def written(
    kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor], places: Mapping[str, str]
) -> KernelSource | None:
    """The source of a library kernel with these attributes (numbers), if there is one for its tensors; ``places``: the tensors
    in memory behind those that are views, row after row too."""
    used = tuple(dict.fromkeys(kernel.args))
    if not used or not all(math.prod(tensors[a].shape) for a in (*used, kernel.output)):
        return None
    made, names = _of_elements(kernel, attrs, tensors), pointers(len(used))
    if made is None and kernel.op in WRITTEN:
        made, names = _of_its_own(kernel, attrs, tensors), ("x_ptr", "w_ptr", "b_ptr")[: len(used)]
    if made is None and kernel.op == "elements":
        made = run_of(Recipe.read(attrs["program"]), pointers(len(used)))
    args = tuple(places.get(a, a) for a in (*used, kernel.output))
    if made is None or len({*args}) != len(args):
        return None
    shown = [tensors[a] for a in (*used, kernel.output)]
    said = digest([kernel.op, sorted((k, str(v)) for k, v in attrs.items()), [[t.shape, t.dtype] for t in shown]])[:8]
    name = identifier(f"{kernel.op}_{said}")
    head = f"def {name}({', '.join(names)}, y_ptr):"
    parts = (HEAD, *(h.rstrip() for h in helpers_of(made.lines)), "\n".join(("@triton.jit", head)))
    text = "\n".join(("\n\n\n".join(parts), *("    " + line if line else "" for line in made.lines))) + "\n"
    return KernelSource(
        name,
        text,
        args,
        tuple(t.dtype for t in shown),
        tuple(t.shape for t in shown),
        (kernel.output,),
        made.grid,
        made.warps,
        made.stages,
    )


def _of_its_own(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    if kernel.op == "counts":
        return counted(kernel, tensors, attrs["bins"], bool(attrs.get("so_far")))
    if kernel.op in ORDERS:
        return ordered(kernel, attrs, tensors)
    if tensors[kernel.args[0]].dtype not in FLOATS or len({*kernel.args}) != len(kernel.args):
        return None
    if kernel.op in CONVOLUTIONS:
        return _windows(kernel, attrs, tensors)
    if kernel.op == "grouped_matmul":
        return grouped(kernel, tensors, bool(attrs.get("transposed")))
    given = {n: (tensors[n].shape, tensors[n].dtype) for n in (kernel.args[0], kernel.output)}
    return run_of(Recipe((kernel.args[0],), {kernel.output: (kernel.op, (kernel.args[0],), dict(attrs))}, given), ("x_ptr",))


def pointers(count: int) -> tuple[str, ...]:
    return tuple(f"x{i}_ptr" for i in range(count))


def _of_elements(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    """Each element from the places that it comes from."""
    if kernel.op != "elements" and op_def(kernel.op).element is None:
        return None
    try:
        recipe = recipe_of(kernel.op, kernel.args, kernel.output, attrs, tensors)
        tiling, traffic = tiled(recipe)
        if kernel.op in WRITTEN and traffic.asked > SCATTERED * traffic.fetched:
            return None
        used = tuple(dict.fromkeys(kernel.args))
        given = kernel.args if kernel.op == "elements" else used
        names = {n: pointers(len(used))[used.index(a)] for n, a in zip(recipe.inputs, given, strict=True)}
        lines = body(tiling, names, [math.prod(tensors[a].shape) for a in used], "y_ptr")
    except UnsupportedError:
        return None
    return Made(lines, tiling.blocks, tiling.warps)


def _windows(kernel: LibraryKernel, attrs: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Made | None:
    """Convolutions of each channel by itself."""
    rank = CONVOLUTIONS[kernel.op]
    x, out, weight = tensors[kernel.args[0]], tensors[kernel.output], tensors[kernel.args[1]]
    if len(x.shape) != rank + 2 or attrs.get("groups", 1) != x.shape[1] or x.shape[1] == 1:
        return None
    window, steps = moves(attrs, rank, weight.shape[2:])
    if math.prod(window) > MOST or out.dtype != x.dtype or math.prod(out.shape) >= 1 << 31:
        return None
    if rank == 1 and x.dtype == "float16" and window[0] > FASTER:
        return None
    size, result = x.shape[-rank:], out.shape[-rank:]
    inside, planes, channels = math.prod(result), math.prod(out.shape[:-rank]), out.shape[-rank - 1]
    times = channels // x.shape[-rank - 1]
    lines = _results(inside, planes)
    for i, n in reversed(list(enumerate(result))):
        lines += [f"o{i} = rest % {n}", f"rest = rest // {n}"] if i else ["o0 = rest"]
    source = "plane" if times == 1 else f"(plane // {channels} * {x.shape[-rank - 1]} + plane % {channels} // {times})"
    lines.append(f"base = {source}{'.to(tl.int64)' if math.prod(x.shape) >= 1 << 31 else ''} * {math.prod(size)}")
    biased = len(kernel.args) == 3
    first = f"tl.load(b_ptr + plane % {channels}).to(tl.float32)" if biased else "0.0"
    lines.append(f"found = tl.zeros([{RESULTS}], tl.float32) + {first}")
    for number, at in enumerate(product(*map(range, window))):
        lines += _element(at, size, steps)
        lines.append(f"found += x * tl.load(w_ptr + plane % {channels} * {math.prod(window)} + {number}).to(tl.float32)")
    lines.append("tl.store(y_ptr + at, found, keep)")
    grid = planes * -(-inside // RESULTS) if inside >= 4 * RESULTS else -(-planes * inside // RESULTS)
    return Made(lines, grid, 8)


def _results(inside: int, planes: int) -> list[str]:
    """Which results a block has: some of one image, so that its weights are numbers, or of several small ones."""
    if inside >= 4 * RESULTS:
        per = -(-inside // RESULTS)
        return [
            f"plane = tl.program_id(0) // {per}",
            f"rest = tl.program_id(0) % {per} * {RESULTS} + tl.arange(0, {RESULTS})",
            f"keep = rest < {inside}",
            f"at = plane.to(tl.int64) * {inside} + rest",
        ]
    return [
        f"at = tl.program_id(0) * {RESULTS} + tl.arange(0, {RESULTS})",
        f"keep = at < {planes * inside}",
        f"rest = at % {inside}",
        f"plane = at // {inside}",
    ]


def _element(at: Sequence[int], size: Sequence[int], steps: Sequence[Sequence[int]]) -> list[str]:
    """One element of the window."""
    strides, padding, dilation = steps
    lines, masks, place = [], ["keep"], "base"
    for i, n in enumerate(size):
        shift = at[i] * dilation[i] - padding[i]
        lines.append(f"i{i} = o{i} * {strides[i]} + {shift}" if shift >= 0 else f"i{i} = o{i} * {strides[i]} - {-shift}")
        if padding[i]:
            masks.append(f"(i{i} >= 0) & (i{i} < {n})")
        place += f" + i{i} * {math.prod(size[i + 1 :])}"
    return [*lines, f"x = tl.load(x_ptr + {place}, {' & '.join(masks)}, 0.0).to(tl.float32)"]
