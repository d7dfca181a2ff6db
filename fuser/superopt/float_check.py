"""A comparison in float64: the scheduled µGraph, interpreted, against the numpy semantics of the program."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from fuser.agreement import agreement
from fuser.errors import UsageError
from fuser.ir.domain import input_domains
from fuser.ir.interval import ANY
from fuser.ir.interval import place
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.algebra import FloatAlgebra
from fuser.lower.reference import InterpretError
from fuser.lower.reference import interpret
from fuser.superopt.checking import checking_schedules
from fuser.superopt.conditions import conditions
from fuser.superopt.flat import evaluate_flat
from fuser.superopt.magnitudes import magnitudes
from fuser.superopt.magnitudes import reference
from fuser.superopt.magnitudes import scaled
from fuser.superopt.reduced import Case
from fuser.superopt.reduced import Reduction
from fuser.superopt.reduced import reduction

TOLERANCE = 1e-8
"""Largest relative Frobenius error that passes."""


def float_check(
    program: TensorProgram, graph: KernelGraph, schedule: Schedule | None = None, rng: np.random.Generator | None = None
) -> float:
    """Largest relative Frobenius error of the outputs in float64, at reduced sizes (:mod:`fuser.superopt.reduced`), infinite
    where NaN or infinity differ. Raises :class:`fuser.superopt.reduced.MismatchError` where the tensors do not fit."""
    rng = rng or np.random.default_rng(0)
    return float_error(reduction(program, graph), schedule, rng)


def float_error(tied: Reduction, schedule: Schedule | None, rng: np.random.Generator, turn: int = 0) -> float:
    """:func:`float_check` for axes that are tied already; of two turns in a row every extent differs.

    Inputs are compared as they are drawn and at larger factors (:mod:`.magnitudes`): what is equal in exact arithmetic may
    overflow where the program does not.
    """
    case = tied.draw(rng, turn)
    worst = 0.0
    with np.errstate(all="ignore"):
        for inputs in _float_inputs(case.program, rng, conditions(case.program, case.graph) or ()):
            chosen = magnitudes(case.program, case.graph, inputs)
            for factor in chosen.factors:
                values = scaled(inputs, factor)
                got, wanted = _computed(tied, schedule, case, values), reference(case.program, values)
                worst = max(worst, *(relative_error(got[n], x, chosen.masked) for n, x in wanted.items()))
                if not worst <= TOLERANCE:
                    return worst
            if chosen.finite:
                break
    return worst


def _computed(tied: Reduction, schedule: Schedule | None, case: Case, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The outputs of the µGraph in float64."""
    own = {n: inputs[n] for n in case.graph.inputs}
    for chosen in checking_schedules(case.graph, schedule, tied.structure.graph if schedule else None):
        try:
            return interpret(case.graph, chosen, own)
        except (InterpretError, UsageError):
            continue
    return evaluate_flat(FloatAlgebra(), case.graph, {n: np.asarray(x, np.float64) for n, x in own.items()}).tensors


def _float_inputs(program: TensorProgram, rng: np.random.Generator, zeros: Collection[str]) -> Iterator[dict[str, Array]]:
    """Normal inputs, ``zeros`` of them zero in half of their elements; then positive ones, for programs with roots and quotients
    of inputs."""
    domains = input_domains(program)
    for positive in (False, True):
        found: dict[str, Array] = {}
        for name in program.inputs:
            t = program[name]
            x = place(domains.get(name, ANY), rng.standard_normal(t.shape))
            x = rng.uniform(0.5, 1.5, t.shape) if positive else x
            bits = rng.integers(0, 2, t.shape).astype(np.float64)
            found[name] = bits if t.dtype == "bool" else x * bits if name in zeros and not positive else x
        yield found


def relative_error(got: Array, wanted: Array, masked: bool = False) -> float:
    """Frobenius norm of the difference over that of what is wanted, where that is finite; infinite for another shape, and where
    NaN or infinity do not stand where they should. With ``masked``, zero may stand for NaN: the one defined output of a row in
    which everything is masked."""
    if masked and got.shape == wanted.shape:
        got = np.where(np.isnan(wanted) & (got == 0), np.nan, got)
    found = agreement(got, wanted, "float64", math.inf)
    return found.error if found.ok else math.inf
