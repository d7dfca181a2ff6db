"""What a µGraph computes at its real size, whole array by whole array in float64: a second opinion that shares no code with the
verifier, its reduced sizes, its fields, or the interpreter of loops and tiles.

Kernels run one after the other on device memory, so that one that overwrites an input is seen. Values of integer types are cut to
them after each step; floating types are all float64. A running maximum is the largest element up to the end of each chunk of
the loop, and what is rescaled by it telescopes: Σ x · exp(d · (running − final)).
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.errors import FuserError
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import bound

Array = np.ndarray[Any, np.dtype[Any]]
EQUAL = 1e-9
"""Largest difference, relative to the largest element, of what counts as equal."""
CHUNK = 5
"""Most elements of a loop between two updates of a running maximum; there are two at least."""
COUNTS = (2, 4)
"""Numbers of parts of a split reduction, none of them the verifier's."""


class NotComputableError(FuserError):
    """A µGraph that has no value: it reads what is not there, or leaves elements unwritten."""

    code = "oracle"


@dataclass(frozen=True)
class _Value:
    array: Array
    axes: tuple[str, ...]

    def along(self, axes: tuple[str, ...]) -> Array:
        """Transposed to ``axes``, with extent 1 where the value lacks one."""
        own = [a for a in axes if a in self.axes]
        moved = self.array.transpose([self.axes.index(a) for a in own])
        return np.expand_dims(moved, tuple(i for i, a in enumerate(axes) if a not in self.axes))


def difference(program: TensorProgram, graph: KernelGraph, rng: np.random.Generator, scale: float = 1.0) -> str:
    """How the µGraph differs from its program; empty if it does not. ``scale`` multiplies the inputs of the first draw.

    Raises :class:`NotComputableError` where the µGraph has no value.
    """
    if found := interface(program, graph):
        return found
    for inputs in draws(program, rng, scale):
        wanted = evaluate_program(program, inputs)
        free = any(e == FREE for b in graph.blocks for e in b.extents.values())
        for count in COUNTS if free else (1,):
            got = evaluate_graph(graph, {n: inputs[n] for n in graph.inputs}, count)
            if changed := [n for n in graph.inputs if not np.array_equal(got[n], inputs[n], equal_nan=True)]:
                return f"the input {changed[0]!r} is overwritten"
            for name, x in wanted.items():
                if not same(x, got[name]):
                    return f"output {name!r} differs"
    return ""


def interface(program: TensorProgram, graph: KernelGraph) -> str:
    """Outputs missing or of another type than the program's, what is written twice or read as another type than its own."""
    written = {s.access.tensor: s.dtype for b in graph.blocks for s in b.stores if s.access}
    calls = {k.output for k in graph.kernels if isinstance(k, LibraryKernel)}
    for name in program.outputs:
        if name not in written and name not in calls:
            return f"output {name!r} is not written"
        types = {written.get(name, program[name].dtype), graph.table[name].dtype if name in graph.table else program[name].dtype}
        if types != {program[name].dtype}:
            return f"output {name!r} has another type"
    made = [*program.inputs, *(t for k in graph.kernels for t in k.outputs)]
    if twice := [n for n, count in Counter(made).items() if count > 1]:
        return f"{twice[0]!r} is written twice, or is an input that is overwritten"
    held = {n: program[n].dtype for n in program.inputs} | {n: t for n, t in written.items() if n not in program.inputs}
    for source, dtype in ((s.access.source, s.dtype) for b in graph.blocks for s in b.loads if s.access):
        if held.get(source, dtype) != dtype:
            return f"{source!r} is read as another type"
    return ""


def same(x: Array, y: Array) -> bool:
    """Equal shapes, the same elements finite, and those within :data:`EQUAL` of the largest."""
    if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return False
    seen = np.isfinite(x)
    return bool(np.abs(x[seen] - y[seen]).max(initial=0.0) <= EQUAL * max(1e-12, float(np.abs(x[seen]).max(initial=0.0))))


def draws(program: TensorProgram, rng: np.random.Generator, scale: float = 1.0) -> Iterator[dict[str, Array]]:
    """Normal inputs, positive ones (for roots and quotients), negative ones (for folds that start at zero); whole numbers where
    the type says so, and zeros among what is a condition.
    """
    conditions = {n.inputs[0] for n in program.nodes if n.chooses}
    for sign in (0, 1, -1):
        found: dict[str, Array] = {}
        for name in program.inputs:
            t = program[name]
            if t.dtype not in FLOAT_DTYPES:
                found[name] = rng.integers(0, 2 if t.dtype == "bool" else 5, t.shape).astype(np.float64)
            else:
                found[name] = sign * rng.uniform(0.5, 1.5, t.shape) if sign else rng.standard_normal(t.shape) * scale
            if name in conditions:
                found[name] *= rng.integers(0, 2, t.shape)
        yield found


def evaluate_program(program: TensorProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The program's outputs in float64, with values of integer types cut to them."""
    values = dict(inputs)
    for node in program.nodes:
        values[node.output] = typed(
            _apply(node.op, [values[n] for n in node.inputs], program.bound(node)), program[node.output].dtype
        )
    return {n: values[n] for n in program.outputs}


def evaluate_graph(graph: KernelGraph, inputs: Mapping[str, Array], count: int = 2) -> dict[str, Array]:
    """Device memory after all kernels, with ``count`` parts of the first split reduction."""
    memory = {n: x.copy() for n, x in inputs.items()}
    free = {a.name: None for b in graph.blocks for a in b.axes if a.extent == FREE}
    parts = {a: count + i for i, a in enumerate(free)}  # another number for each split
    for k in graph.kernels:
        if isinstance(k, LibraryKernel):
            memory[k.output] = _library(k, memory)
        else:
            own = {a.name: parts[a.name] for a in k.axes if a.extent == FREE}
            memory |= _Block(k.with_extents(own), memory).run()
    return memory


def _library(kernel: LibraryKernel, memory: Mapping[str, Array]) -> Array:
    attrs = bound(kernel.attrs, lambda e: memory[e.tensor].shape[e.dim])
    try:
        return _apply(kernel.op, [memory[n] for n in kernel.args], attrs)
    except ValueError as error:
        raise NotComputableError(f"{kernel}: {error}") from error


def typed(x: Array, dtype: str) -> Array:
    """Values as a type holds them: truth values, whole numbers that wrap; floating types as they are."""
    if dtype in FLOAT_DTYPES:
        return x
    if dtype == "bool":
        return (x != 0).astype(np.float64)
    with np.errstate(all="ignore"):
        whole = np.nan_to_num(np.trunc(x), nan=0.0, posinf=2.0**31, neginf=-(2.0**31)).astype(np.int64)
    return whole.astype(dtype).astype(np.float64)


def _apply(op: str, args: list[Array], attrs: Mapping[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        found = np.asarray(op_def(op).numpy(*args, **attrs), np.float64)
        if op == "div":  # what is masked everywhere is zero
            found = np.where((args[0] == 0) & (args[1] == 0), 0.0, found)
    return found


class _Block:
    """One kernel as whole arrays."""

    def __init__(self, block: BlockGraph, memory: Mapping[str, Array]) -> None:
        self.block, self.memory, self.extents = block, memory, block.extents
        self.values: dict[str, _Value] = {}
        self.running: dict[str, _Value] = {}  # a fold at each element of its loop
        self.inside: dict[str, _Value] = {}  # what a value is while a fold that it reads is not finished
        self.again: set[str] = set()  # values that need finished folds over an axis of theirs: computed in a second loop

    def run(self) -> dict[str, Array]:
        out: dict[str, Array] = {}
        for s in self.block.stmts:
            if s.kind == "store":
                x = self.stored(s)
                if s.at.tensor in out and not np.array_equal(out[s.at.tensor], x, equal_nan=True):
                    raise NotComputableError(f"{s.at.tensor!r} is written twice with different values")
                out[s.at.tensor] = x
                continue
            x = self.load(s) if s.kind == "load" else self.fold(s) if s.folds else self.map(s, self.finished)
            self.values[s.value] = _Value(typed(x, s.dtype), s.axes)
            if s.kind == "compute" and not s.folds:
                self.while_running(s)
        return out

    def while_running(self, s: Stmt) -> None:
        """A value in the loop of the folds that it reads, where it differs from what it is behind them."""
        found = [self.block.by_value[a] for a in s.args if a not in s.running]
        if any(a.value in self.again or set(a.reduce) & set(s.axes) for a in found):
            self.again.add(s.value)
        elif s.running or any(a in self.inside for a in s.args):
            self.inside[s.value] = _Value(typed(self.map(s, self.operand), s.dtype), s.axes)

    def finished(self, _: Stmt, name: str) -> _Value:
        return self.values[name]

    def load(self, s: Stmt) -> Array:
        if s.at.source not in self.memory:
            raise NotComputableError(f"{s} reads what nothing has written")
        x, box, shape = self.memory[s.at.source], s.at.window, s.at.shape(self.extents)
        if x.shape != s.at.source_shape(self.extents):
            raise NotComputableError(f"{s} reads a tensor of shape {x.shape}")
        if box:
            x = x.reshape(box.seen)[tuple(slice(at, at + n) for at, n in zip(box.starts, shape, strict=True))]
        axes = s.at.axes
        return x.reshape([self.extents[a] for a in axes]).transpose([axes.index(a) for a in s.axes])

    def stored(self, s: Stmt) -> Array:
        axes = s.at.axes
        full = np.broadcast_to(self.operand(s, s.value).along(axes), [self.extents[a] for a in axes])
        return typed(full, s.dtype).reshape(s.at.shape(self.extents))

    def operand(self, s: Stmt, name: str) -> _Value:
        if name not in s.running:
            return self.inside.get(name, self.values[name])
        if name not in self.running:
            raise NotComputableError(f"{s} reads {name!r} while it is accumulated, which is no running maximum")
        return self.running[name]

    def map(self, s: Stmt, read: Callable[[Stmt, str], _Value]) -> Array:
        axes = s.axes
        args = [read(s, a) for a in s.args]
        if extra := {a for v in args for a in v.axes} - set(axes):  # a running maximum outside of its loop
            raise NotComputableError(f"{s} reads a running maximum outside of the loop over {sorted(extra)}")
        attrs = bound(s.attrs, lambda e: self.extents[e.tensor])
        arrays = [v.along(axes) for v in args]
        if s.masks:
            for name in ("rows", "cols"):
                at = axes.index(attrs[name]) if attrs[name] in axes else -1
                count = self.extents.get(attrs[name], 1) if at >= 0 else 1
                attrs[name] = np.arange(count).reshape([-1 if i == at else 1 for i in range(max(len(axes), 1))])
        x = _apply(s.op, arrays, attrs)
        if s.op == "sub":  # a maximum of nothing shifts nothing
            x = np.where(np.isneginf(np.broadcast_to(arrays[0], x.shape)), -np.inf, x)
        return np.broadcast_to(x, [self.extents[a] for a in axes])

    def fold(self, s: Stmt) -> Array:
        second = any(a in self.again for a in s.args)  # in a second loop maxima are finished: nothing moves, nothing is rescaled
        args = [self.values[a] if second else self.operand(s, a) for a in s.args]
        for r in () if second else s.rescale:
            args.append(self.factor(s, r.maximum, r.degree))
        split = [(a, g) for a, g in self.block.splits if a in s.reduce]
        if not split:
            self.cumulate(s, args)
            return self.whole(s, args, s.axes)
        if len(split) > 1:
            raise NotComputableError(f"{s} sums over two split axes")
        (axis, part), pieces = split[0], []
        self.cumulate(s, args, part)
        for cut in self.parts(axis, part):
            inner = [_Value(v.array[tuple(cut.get(a, slice(None)) for a in v.axes)], v.axes) for v in args]
            pieces.append(self.whole(s, inner, s.axes, {part}))
        return np.concatenate(pieces, s.axes.index(part))

    def parts(self, axis: str, part: str) -> list[dict[str, slice]]:
        extent, count = self.extents[axis], self.extents[part]
        chunk = math.ceil(extent / count)
        return [{axis: slice(i * chunk, (i + 1) * chunk), part: slice(i, i + 1)} for i in range(count)]

    def whole(self, s: Stmt, args: list[_Value], axes: tuple[str, ...], single: set[str] = frozenset()) -> Array:  # type: ignore[assignment]
        known = {a for v in args for a in v.axes}
        if absent := set(s.reduce) - known:
            raise NotComputableError(f"{s} sums over {sorted(absent)}, which no operand has")
        kept = tuple(a for a in axes if a in known)
        with np.errstate(all="ignore"):
            if s.maximizes:
                x, own = args[0].array, args[0].axes
                for v in args[1:]:
                    union = tuple(dict.fromkeys((*own, *v.axes)))
                    x, own = _Value(x, own).along(union) * v.along(union), union
                x = np.max(x, axis=tuple(own.index(a) for a in s.reduce), initial=-np.inf)
                found = _Value(x, tuple(a for a in own if a not in s.reduce))
            else:
                letter = dict(zip(sorted(known), string.ascii_letters, strict=False))
                spec = ",".join("".join(letter[a] for a in v.axes) for v in args)
                x = np.einsum(f"{spec}->{''.join(letter[a] for a in kept)}", *(v.array for v in args), optimize=True)
                found = _Value(x, kept)
        shape = [1 if a in single else self.extents[a] for a in axes]
        return np.broadcast_to(found.along(axes), shape)

    def cumulate(self, s: Stmt, args: list[_Value], part: str = "") -> None:
        """What a maximum or a sum has reached at the end of each chunk, from the start of the loops (of their part), which are
        nested in the order of the axes."""
        if len(args) != 1 or (part and len(s.reduce) > 1):
            return
        (x,) = args
        reached = np.maximum.accumulate if s.maximizes else np.add.accumulate
        axes = (*(a for a in x.axes if a not in s.reduce), *(a for a in x.axes if a in s.reduce))
        whole = x.along(axes)
        flat = whole.reshape(*whole.shape[: len(axes) - len(s.reduce)], -1)
        extent = flat.shape[-1]
        step = math.ceil(extent / self.extents[part]) if part else extent
        array = np.empty_like(flat)
        for first in range(0, extent, step):
            last = min(first + step, extent)
            with np.errstate(all="ignore"):
                top = reached(flat[..., first:last], -1)
            chunk = max(1, min(CHUNK, (last - first) // 2))
            ends = [min((i // chunk + 1) * chunk, last - first) - 1 for i in range(last - first)]
            array[..., first:last] = top[..., ends]
        self.running[s.value] = _Value(array.reshape(whole.shape), axes)

    def factor(self, s: Stmt, maximum: str, degree: int) -> _Value:
        """exp(degree · (running − final)); 1 where nothing was seen."""
        if maximum not in self.running:
            raise NotComputableError(f"{s} is rescaled by {maximum!r}, which is no running maximum")
        run, final = self.running[maximum], self.values[maximum]
        if not set(run.axes) - set(final.axes) <= set(s.reduce):
            raise NotComputableError(f"{s} is rescaled by the maximum of another loop")
        axes = tuple(dict.fromkeys((*final.axes, *run.axes)))
        old = run.along(axes)
        with np.errstate(all="ignore"):
            return _Value(np.where(np.isneginf(old), 1.0, np.exp(degree * (old - final.along(axes)))), axes)
