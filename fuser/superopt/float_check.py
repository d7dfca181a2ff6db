"""A comparison in float64: the scheduled µGraph, interpreted, against the numpy semantics of the program."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.algebra import FloatAlgebra
from fuser.lower.reference import InterpretError
from fuser.lower.reference import interpret
from fuser.superopt.checking import checking_schedules
from fuser.superopt.flat import evaluate_flat
from fuser.superopt.reduced import Reduction
from fuser.superopt.reduced import reduction

TOLERANCE = 1e-8
"""Largest relative Frobenius error that passes."""


def float_check(
    program: TensorProgram, graph: KernelGraph, schedule: Schedule | None = None, rng: np.random.Generator | None = None
) -> float:
    """Largest relative Frobenius error of the outputs in float64, at reduced sizes (:mod:`fuser.superopt.reduced`), infinite
    where only one side is finite. Raises :class:`fuser.superopt.reduced.MismatchError` where the tensors do not fit."""
    rng = rng or np.random.default_rng(0)
    return float_error(reduction(program, graph), schedule, rng)


def float_error(tied: Reduction, schedule: Schedule | None, rng: np.random.Generator, turn: int = 0) -> float:
    """:func:`float_check` for axes that are tied already; of two turns in a row every extent differs."""
    case = tied.draw(rng, turn)
    worst = math.inf
    for inputs in _float_inputs(case.program, rng):
        wanted = case.program.evaluate(inputs)
        if not all(np.isfinite(x).all() for x in wanted.values()):
            continue
        own = {n: inputs[n] for n in case.graph.inputs}
        for chosen in checking_schedules(case.graph, schedule, tied.structure.graph if schedule else None):
            try:
                got = interpret(case.graph, chosen, own)
            except (InterpretError, UsageError):
                continue
            return max(relative_error(got[n], x) for n, x in wanted.items())
        flat = evaluate_flat(FloatAlgebra(), case.graph, {n: np.asarray(x, np.float64) for n, x in own.items()})
        return max(relative_error(flat.tensors[n], x) for n, x in wanted.items())
    return worst


def _float_inputs(program: TensorProgram, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    """Normal inputs; then positive ones, for programs with roots and quotients of inputs."""
    for positive in (False, True):
        found: dict[str, Array] = {}
        for name in program.inputs:
            t = program[name]
            x = rng.uniform(0.5, 1.5, t.shape) if positive else rng.standard_normal(t.shape)
            found[name] = rng.integers(0, 2, t.shape).astype(np.float64) if t.dtype == "bool" else x
        yield found


def relative_error(got: Array, wanted: Array) -> float:
    """Frobenius norm of the difference over that of what is wanted; infinite for another shape or a value that is not finite."""
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return math.inf
    return float(np.linalg.norm(got - wanted)) / max(float(np.linalg.norm(wanted)), 1e-300)
