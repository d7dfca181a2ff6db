"""A comparison in float64: the scheduled µGraph, interpreted, against the numpy semantics of the program."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from fuser.agreement import agreement
from fuser.errors import UsageError
from fuser.interpret.algebra import FloatAlgebra
from fuser.interpret.flat import evaluate_flat
from fuser.interpret.reference import interpret
from fuser.interpret.statements import InterpretError
from fuser.ir.domain import input_domains
from fuser.ir.interval import ANY
from fuser.ir.interval import Domain
from fuser.ir.interval import place
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOATS
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.superopt.verify.checking import checking_schedules
from fuser.superopt.verify.conditions import conditions
from fuser.superopt.verify.magnitudes import magnitudes
from fuser.superopt.verify.magnitudes import reference
from fuser.superopt.verify.magnitudes import scaled
from fuser.superopt.verify.magnitudes import shifted
from fuser.superopt.verify.reduced import Case
from fuser.superopt.verify.reduced import Reduction

TOLERANCE = 1e-8
"""Largest relative Frobenius error that passes."""
NOISE, MOST_NOISE = 64, 1e-3
"""How many times the noise of rounding an error may be, and the largest noise that counts: beyond, a draw would say nothing."""
VANISHED = 1e-100
"""Outputs that are smaller throughout are not compared: parts of them underflow in one order of factors, and not in another."""
DRAWS = 4
"""Draws of the inputs where exponents are not all shifted by their maximum."""
SINGLE, SINGLE_MOST = 1e-4, 0.1
"""Error in float32 of a program that is well conditioned, and that with which a µGraph of it may get: it lost its values."""


def float_error(tied: Reduction, schedule: Schedule | None, rng: np.random.Generator, turn: int = 0) -> float:
    """Largest relative Frobenius error of the outputs in float64, at reduced sizes (:mod:`fuser.superopt.verify.reduced`),
    infinite where NaN or infinity differ; of two turns in a row every extent differs.

    Inputs are compared as they are drawn and at larger factors (:mod:`.magnitudes`), and several times where exponents are not
    all shifted by their maximum: what is equal in exact arithmetic may overflow where the program does not, with some inputs.
    As they are drawn they are compared in float32 too, which overflows earlier. Where the µGraph divides, it is to be finite with
    zeros too, wherever the program is.
    """
    case = tied.draw(rng, turn)
    worst = 0.0 if _finite_with_zeros(tied, schedule, case) else math.inf
    with np.errstate(all="ignore"):
        for _ in range(DRAWS if _has_exp(case) and not shifted(case.graph) else 1):
            worst = max(worst, _drawn_error(tied, schedule, case, rng))
            if not worst <= TOLERANCE:
                return worst
    return worst


def _has_exp(case: Case) -> bool:
    return any(n.exponential for n in case.program.nodes) or any(s.exponential for b in case.graph.blocks for s in b.computes)


def _drawn_error(tied: Reduction, schedule: Schedule | None, case: Case, rng: np.random.Generator) -> float:
    """The largest error for one draw of the inputs at all its factors."""
    worst = 0.0
    for inputs in _float_inputs(case.program, rng, conditions(case.program, case.graph) or ()):
        if not _single_agrees(case, inputs):
            return math.inf
        chosen = magnitudes(case.program, case.graph, inputs)
        for factor in chosen.factors:
            values = scaled(inputs, factor)
            got, wanted = _computed(tied, schedule, case, values), reference(case.program, values)
            error = max(0.0 if _vanish(got[n], x) else relative_error(got[n], x, chosen.masked) for n, x in wanted.items())
            if not error <= TOLERANCE and not error <= NOISE * _noise(case.program, values, wanted):
                return error
            worst = max(worst, min(error, TOLERANCE))
        if chosen.finite:
            break
    return worst


def _vanish(got: Array, wanted: Array) -> bool:
    """Both have nothing left but what the machine's exponents hardly hold: products of such numbers say nothing."""
    return got.shape == wanted.shape and all(bool((np.abs(x) <= VANISHED).all()) for x in (got, wanted))


def _finite_with_zeros(tied: Reduction, schedule: Schedule | None, case: Case) -> bool:
    """Fields say x/x = 1. With inputs that are zero in half of their elements, all zero, and all one (so that differences are
    zero), as far as the program's domain has them, the µGraph's outputs are finite wherever the program's are, and do not hang on
    its last bits."""
    if not any(d != ANY for b in case.graph.blocks for s in b.computes for d in op_def(s.op).domain):
        return True
    domains, rng = input_domains(case.program), np.random.default_rng(0)
    for number in (None, 0.0, 1.0):
        values: dict[str, Array] = {}
        for name in case.program.inputs:
            t, domain = case.program[name], domains.get(name, ANY)
            x, bits = rng.standard_normal(t.shape), rng.integers(0, 2, t.shape).astype(np.float64)
            wanted = np.full(t.shape, number) if number is not None else np.where(bits, place(domain, x), 0.0)
            values[name] = bits if t.dtype == "bool" else np.where(_inside(domain, wanted), wanted, place(domain, x))
        with np.errstate(all="ignore"):
            got, rounded = _computed(tied, schedule, case, values), _rounded(case.program, values)
            exact, other = reference(case.program, values), reference(case.program, _disturbed(case.program, values))
            for name, x in exact.items():
                most = MOST_NOISE * np.abs(x)
                held = np.isfinite(x) & (np.abs(rounded[name] - x) <= most) & ((x == 0) | (np.abs(other[name] - x) <= most))
                if got[name].shape == x.shape and (held & ~np.isfinite(got[name])).any():
                    return False
    return True


def _disturbed(program: TensorProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs, floats off by about their last bits: equal ones less their mean are rounding errors, and these by their own
    deviation are numbers of one size, whatever they are."""
    rng, eps = np.random.default_rng(1), np.finfo(np.float64).eps
    off = {n: 1 + eps * rng.standard_normal(x.shape) for n, x in inputs.items() if program[n].dtype in FLOATS}
    return {n: x * off.get(n, 1) for n, x in inputs.items()}


def _inside(domain: Domain, x: Array) -> Array:
    return (x >= domain.lo) & (x <= domain.hi) & ((x != 0) | (not domain.nonzero))


def _noise(program: TensorProgram, inputs: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """How far rounding alone moves the outputs of the program: relative error, large where sums cancel; at most
    :data:`MOST_NOISE`."""
    values = _rounded(program, inputs)
    return min(MOST_NOISE, max(relative_error(values[n], x, True) for n, x in wanted.items()))


def _rounded(program: TensorProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors of the program where the result of every operator is off by about its last bit (Monte Carlo arithmetic)."""
    rng = np.random.default_rng(0)

    def apply(node: Node, xs: list[Array]) -> Array:
        exact = np.asarray(node.entry.numpy(*xs, **program.bound(node)))
        off = 1 + np.finfo(np.float64).eps * rng.standard_normal(exact.shape)
        return exact * off if node.entry.kind in ("map", "contract", "reduce") else exact

    return program.run({n: np.asarray(inputs[n], np.float64) for n in program.inputs}, apply)


def _single_agrees(case: Case, inputs: Mapping[str, Array]) -> bool:
    """Where the program's outputs are finite in float32, the µGraph's are too, and roughly the same."""
    if any(t.dtype == "float64" for t in case.program.tensors):
        return True
    wanted = case.program.evaluate(inputs, dtype=np.float32)
    own = {n: np.asarray(inputs[n], np.float32) for n in case.graph.inputs}
    got = evaluate_flat(FloatAlgebra(np.float32), case.graph, own).tensors
    exact = case.program.evaluate(inputs)
    for name, x in wanted.items():
        held = np.isfinite(exact[name])  # where exponentials as they are written overflow, shifted ones do not
        if got[name].shape != held.shape:
            return False
        error = relative_error(x[held], exact[name][held])
        if error <= SINGLE and not relative_error(got[name][held], exact[name][held], True) <= SINGLE_MOST:
            return False
    return True


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
