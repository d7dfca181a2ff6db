"""How large the inputs of a comparison in floats are: as drawn, and as large as the program bears.

The algebra knows no overflow: a softmax that is shifted by plus its maximum is equal to one that is not shifted. So inputs are
scaled up until the program, with its exponentials as they are written, nearly overflows in float64; what is equal and about as
robust stays finite there. A µGraph that subtracts the maximum from all its exponents has to stay finite far beyond.

The program itself is evaluated in extended precision, whose exponents reach beyond 10⁴ where the machine has it (x86). Where its
softmaxes, with their maxima, are no numbers in float64 either (a logarithm of a probability that underflows), nothing is asked. A
comparison makes a number of NaN: behind one, exponentials themselves have to be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from fuser.superopt.rewrite.maxima import with_maxima
from fuser.superopt.verify.shifts import is_shift

LARGEST = 2.0**14
SMALLEST = 2.0**-160
"""A mask times the least number of bfloat16 is an exponent from 2⁻¹¹⁸ on."""
MARGIN = 0.85
"""Of the largest factor: what is equal may overflow a little earlier."""
_MOST = 1e100
"""Largest output that says how large a factor may be: products of it stay in range."""
_STEPS = 14


@dataclass(frozen=True)
class Magnitudes:
    """``factors`` of the inputs to compare at; whether the program is ``finite`` at any of them; whether it is ``masked``."""

    factors: tuple[float, ...]
    finite: bool
    masked: bool


def magnitudes(program: TensorProgram, graph: KernelGraph, inputs: Mapping[str, Array]) -> Magnitudes:
    """Factors of these inputs: 1, and the largest at which the program can be asked for. Without the first where exponentials as
    they are written overflow there even in extended precision, and those of the µGraph, which are shifted, do not."""
    masked = any(n.masks for n in program.nodes)
    ops = {
        *(n.op for n in program.nodes),
        *(s.op for b in graph.blocks for s in b.computes),
        *(getattr(k, "op", "") for k in graph.kernels),
    }
    if not any(op_def(op).sfu for op in ops - {""}) and _finite(program.evaluate(inputs)):
        return Magnitudes((1.0,), True, masked)  # products and sums do not overflow before the program does

    decides = any(program[n.output].dtype == "bool" for n in program.nodes)
    exponentials = {n.output for n in program.nodes if n.exponential and decides}
    stable = with_maxima(program)

    def bare(factor: float) -> bool:
        return _finite(program.evaluate(scaled(inputs, factor), keep=exponentials), exponentials)

    def extended(factor: float) -> bool:
        values = scaled(inputs, factor)
        if not _finite(program.evaluate(values, dtype=np.longdouble, keep=exponentials), exponentials):
            return False
        return stable is program or _finite(stable.evaluate(values))

    found, factors = _largest(bare), [1.0]
    if found:
        factors.append(MARGIN * found)
    if found != LARGEST and shifted(graph) and (most := _largest(extended)) and most > found:
        factors = [*factors[most < 1.0 :], MARGIN * most]
    return Magnitudes(tuple(factors), bool(found), masked)


def scaled(inputs: Mapping[str, Array], factor: float) -> dict[str, Array]:
    """Inputs times a factor; what holds zeros and ones alone (masks, conditions) stays."""
    return {n: x if np.isin(x, (0, 1)).all() else x * factor for n, x in inputs.items()}


def reference(program: TensorProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in float64, computed in extended precision."""
    found = program.evaluate(inputs, dtype=np.longdouble)
    return {n: np.asarray(x, np.float64) for n, x in found.items()}


def shifted(graph: KernelGraph) -> bool:
    """There are exponentials, and the maximum is subtracted in each."""
    if any(isinstance(k, LibraryKernel) and k.entry.has_exponential for k in graph.kernels):
        return False
    found = [is_shift(b, s.args[0]) for b in graph.blocks for s in b.computes if s.exponential]
    return bool(found) and all(found)


def _finite(values: Mapping[str, Array], inside: Collection[str] = ()) -> bool:
    """All are finite, and those that are not ``inside`` the program small enough."""
    return all(np.isfinite(x).all() and (n in inside or float(np.abs(x).max(initial=0.0)) <= _MOST) for n, x in values.items())


def _largest(fits: Callable[[float], Any]) -> float:
    """The largest factor that fits, to a few parts in a thousand; 0 if there is none."""
    if fits(LARGEST):
        return LARGEST
    high = 1.0 if not fits(1.0) else LARGEST
    low = SMALLEST if high == 1.0 else 1.0
    if high == 1.0 and not fits(low):
        return 0.0
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
