"""Degrees by random test: does a value T have T(λ·e) = λᵈ·T(e), for a random factor λ on an exponential e?

Degrees inferred by rules (:mod:`fuser.superopt.rewrite.stabilize`) license a running maximum; this measures them instead, over a
prime field, on every accumulator, partial result and output. The factor is independent for each index of the axes that the shift
keeps; with ``per_part`` also for each part of a split reduction, as when every block has a maximum of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fuser.errors import UsageError
from fuser.interpret.field_algebra import FieldAlgebra
from fuser.interpret.fields import Field
from fuser.interpret.fields import Value
from fuser.interpret.fields import ZeroDenominatorError
from fuser.interpret.fields import random_inputs
from fuser.interpret.flat import evaluate_flat
from fuser.interpret.modular import modular_inverse
from fuser.interpret.modular import modular_power
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.ops import Array
from fuser.superopt.verify.draw import draw_sizes
from fuser.superopt.verify.reduced import Structure
from fuser.superopt.verify.reduced import structure

LARGEST = 4
"""Degrees are looked for between −LARGEST and LARGEST."""
_DRAWS = 8


@dataclass(frozen=True)
class Degrees:
    """Measured degrees in a factor on one exponential. ``values``: of each (kernel, value); ``outputs``: of each output; None
    where no degree fits. ``over``: the axes of the exponential that the factor does not depend on."""

    exponential: str
    over: tuple[str, ...]
    values: dict[tuple[str, str], int | None]
    outputs: dict[str, int | None]

    @property
    def invariant(self) -> bool:
        """No output changes, whatever the factor: a shift by any amount per index that is kept is allowed."""
        return all(d == 0 for d in self.outputs.values())


def summed_axes(block: BlockGraph, exponential: str) -> tuple[str, ...]:
    """The axes of an exponential along which it, or what is computed from it, is folded in its block."""
    inside = {exponential}
    over: set[str] = set()
    for s in block.computes:
        if inside & set(s.args):
            inside.add(s.value)
            over |= set(s.reduce)
    return ordered(over & set(block.by_value[exponential].axes), block.axes)


def measured_degrees(
    graph: KernelGraph,
    kernel: str,
    exponential: str,
    rng: np.random.Generator,
    over: tuple[str, ...] | None = None,
    per_part: bool = False,
) -> Degrees:
    """Multiply the value ``exponential`` of a kernel by a random factor and measure how everything after it scales, at reduced
    sizes.

    ``over``: axes that the factor does not depend on (those of the maximum), by default :func:`summed_axes`. The µGraph must be
    one without running maxima (:func:`fuser.superopt.verify.shifts.unstabilize`). Raises :class:`UsageError` for unknown names or
    axes.
    """
    block = next((b for b in graph.blocks if b.name == kernel), None)
    if block is None or exponential not in block.by_value:
        raise UsageError(f"µGraph {graph.name!r} has no value {exponential!r} in a kernel {kernel!r}")
    axes = block.by_value[exponential].axes
    over = summed_axes(block, exponential) if over is None else over
    if unknown := set(over) - set(axes):
        raise UsageError(f"{exponential!r} has no axes {sorted(unknown)}", f"it has {', '.join(axes)}")
    tied = structure(graph)
    for _ in range(_DRAWS):
        sizes = draw_sizes(tied, rng, tied.masks)
        small = tied.at([tied.real[i] if i in tied.cut else n for i, n in enumerate(sizes)])
        field = Field(rng)
        try:
            return _measure(tied, small, field, rng, kernel, exponential, over, per_part)
        except ZeroDenominatorError:
            continue
    raise ZeroDenominatorError(f"a denominator of {graph.name!r} is zero at every draw")


def _measure(
    tied: Structure,
    small: KernelGraph,
    field: Field,
    rng: np.random.Generator,
    kernel: str,
    exponential: str,
    over: tuple[str, ...],
    per_part: bool,
) -> Degrees:
    algebra = FieldAlgebra(field, strict=False)
    block = next(b for b in small.blocks if b.name == kernel)
    parts = tuple((a, g) for a, g in block.splits if a in over and per_part)
    axes = block.by_value[exponential].axes
    kept = tuple(a for a in axes if a not in over) + tuple(g for _, g in parts)
    factor = rng.integers(2, field.p, [block.extents[a] for a in kept], np.int64)

    def scaled(where: str, s: Stmt, value: Value) -> Value:
        if (where, s.value) != (kernel, exponential):
            return value
        return field.apply("mul", [value, Value(_along(factor, kept, axes, parts, block))])

    inputs = random_inputs(small, rng, field)
    plain = evaluate_flat(algebra, small, inputs)
    moved = evaluate_flat(algebra, small, inputs, scaled)
    values: dict[tuple[str, str], int | None] = {}
    for b in small.blocks:
        for s in b.computes:
            key = (b.name, s.value)
            own = _aligned(tied, kernel, kept, factor, b.name, s.axes)
            values[key] = _degree(field, plain.values[key], moved.values[key], own)
    outputs: dict[str, int | None] = {}
    for name in small.outputs:
        store = next((b, s) for b in small.blocks for s in b.stores if s.access and s.access.tensor == name)
        outputs[name] = values[store[0].name, store[1].value]
        if outputs[name] != 0 and field.equal(plain.tensors[name], moved.tensors[name]):
            outputs[name] = 0
    return Degrees(exponential, over, values, outputs)


def _along(
    factor: Array, kept: tuple[str, ...], axes: tuple[str, ...], parts: tuple[tuple[str, str], ...], block: BlockGraph
) -> Array:
    """The factor shaped to broadcast against the exponential; along a split axis, that of the part in which an element lies."""
    at = dict(parts)
    index = []
    for a in kept:
        split = next((x for x, g in at.items() if g == a), None)
        if split is None:
            own, index_values = a, np.arange(block.extents[a])
        else:
            chunk = math.ceil(block.extents[split] / block.extents[a])
            own, index_values = split, np.arange(block.extents[split]) // chunk
        index.append(index_values.reshape([-1 if x == own else 1 for x in axes]))
    return factor[tuple(index)] if index else factor.reshape((1,) * len(axes))


def _aligned(
    tied: Structure, kernel: str, kept: tuple[str, ...], factor: Array, where: str, axes: tuple[str, ...]
) -> Array | None:
    """The factor shaped against a value of any kernel, if that has all of the factor's axes."""
    atoms = {tied.atoms[where, a]: i for i, a in enumerate(axes)}
    spots = [axes.index(a) if where == kernel and a in axes else atoms.get(tied.atoms[kernel, a]) for a in kept]
    if any(i is None for i in spots):
        return None
    order = sorted(range(len(kept)), key=lambda j: spots[j] or 0)
    shape = [1] * len(axes)
    for j in order:
        shape[spots[j] or 0] = factor.shape[j]
    return factor.transpose(order).reshape(shape)


def _degree(field: Field, plain: Value, moved: Value, factor: Array | None) -> int | None:
    if field.equal(plain, moved):
        return 0
    if factor is None:
        return None
    inverse = modular_inverse(factor, field.p)
    for d in range(1, LARGEST + 1):
        for sign, base in ((d, factor), (-d, inverse)):
            power = Value(modular_power(base, d, field.p))
            if field.equal(field.apply("mul", [plain, power]), moved):
                return sign
    return None
