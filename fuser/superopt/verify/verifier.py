"""Is a µGraph equal to a program? Random tests over finite fields (Mirage, section 5), at reduced sizes, with loops and tiles
interpreted.

Each round draws sizes, a field with its random functions, and inputs, and compares exactly: first the values as whole arrays,
then the scheduled µGraph block by block and tile by tile. ``exp`` is a random function, which trusts no law of it; only if that
fails it is tested as a power of a random root of unity, where exp(a + b) = exp(a)·exp(b). A µGraph with a running maximum needs
that law: its maximum is some element by a random order, so that passing means that the shift cancels, whatever it is; and the
same µGraph without the shift is tested with the random function.

What is proven: :attr:`Accepted.bound`, for truly random functions; where that is 1, the verdict is :class:`Agrees`. What is not
proven stands in :attr:`Accepted.heuristic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

import numpy as np

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.errors import said
from fuser.interpret.field_algebra import FieldAlgebra
from fuser.interpret.fields import Field
from fuser.interpret.fields import Value
from fuser.interpret.fields import ZeroDenominatorError
from fuser.interpret.fields import evaluate_program
from fuser.interpret.fields import random_inputs
from fuser.interpret.flat import evaluate_flat
from fuser.interpret.modular import PRIMES
from fuser.interpret.reference import interpret_in
from fuser.interpret.statements import InterpretError
from fuser.ir.composites import expand
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.ir.windows import copies_data
from fuser.superopt.rewrite.maxima import as_written
from fuser.superopt.rewrite.maxima import exponents
from fuser.superopt.rewrite.maxima import with_maxima
from fuser.superopt.verify.bounds import round_bound
from fuser.superopt.verify.checking import checking_schedules
from fuser.superopt.verify.conditions import conditions
from fuser.superopt.verify.constants import as_numbers
from fuser.superopt.verify.constants import constant
from fuser.superopt.verify.float_check import TOLERANCE
from fuser.superopt.verify.float_check import float_error
from fuser.superopt.verify.interface import MismatchError
from fuser.superopt.verify.large import overflow
from fuser.superopt.verify.real_size import BlockTest
from fuser.superopt.verify.real_size import block_test
from fuser.superopt.verify.reduced import Case
from fuser.superopt.verify.reduced import Reduction
from fuser.superopt.verify.reduced import reduction
from fuser.superopt.verify.shifts import nested
from fuser.superopt.verify.shifts import rescaled_by_degrees
from fuser.superopt.verify.shifts import stabilized
from fuser.superopt.verify.shifts import unstabilize
from fuser.superopt.verify.verdict import Agrees
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdict import Verdict
from fuser.superopt.verify.verdict import Verified

ROUNDS = 3
DRAWS = 8
"""Draws of a round before zero denominators count as a property of the µGraph."""
_TURNS = 6
REAL_ELEMENTS = 1 << 17
"""Most elements of a tensor of the test at the real size."""


def verify(
    program: TensorProgram,
    graph: KernelGraph,
    schedule: Schedule | None = None,
    *,
    rng: np.random.Generator | None = None,
    rounds: int = ROUNDS,
    float_rounds: int = 1,
    real_size: bool = False,
    large: bool = False,
) -> Verdict:
    """Compare a µGraph with its program in ``rounds`` random tests, each at other sizes, with other primes and functions.

    With ``schedule``, the loops and divisions are those of the schedule, at reduced tile sizes; without, the verifier makes them.
    ``float_rounds`` comparisons in float64 come on top (0 for none), and with ``real_size`` a test of output blocks at the real
    size (:mod:`.real_size`). With ``large``, softmaxes are compared where their exponents are large, too (:mod:`.large`). Errors
    of the µGraph are verdicts, not exceptions.
    """
    rng = rng or np.random.default_rng(0)
    # the last bits number the rounds, of which the next has other sizes throughout
    seeds = [int(s) >> _TURNS << _TURNS | i % (1 << _TURNS) for i, s in enumerate(rng.integers(0, 2**62, rounds + float_rounds))]
    try:
        graph.validate()
    except ProgramError as error:
        return Rejected(error.message)
    program = as_written(program, graph)
    first: Verdict | None = None
    for form in _FORMS:
        if first is not None and not form.applies(program, graph, first):
            continue
        try:
            tied = form.reduction(program, graph)
            verdict = _verify(tied, schedule, seeds[:rounds])
            if isinstance(verdict, Verified | Agrees):
                verdict = _compared(tied, schedule, replace(verdict, heuristic=(*verdict.heuristic, *form.notes)), seeds[rounds:])
                if large and isinstance(verdict, Verified | Agrees) and exponents(written := with_maxima(program)):
                    verdict = _at_large_exponents(form.reduction(written, graph), verdict, seeds[rounds:])
                if isinstance(verdict, Verified | Agrees) and real_size:
                    verdict = _at_real_size(tied, schedule, verdict, rng)
                return verdict if verdict.accepted or first is None else first
        except (MismatchError, InterpretError, ProgramError, UsageError) as error:
            verdict = Rejected(error.message)
        except UnsupportedError as error:
            verdict = Unknown(error.message)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of one structure, which is not the last one
            verdict = Unknown(f"its test ended in {type(error).__name__}: {said(error)[:200]}")
        if isinstance(first, Unknown) and isinstance(verdict, Rejected):
            first = replace(verdict, witness_seed=-1)  # of another form than that of :func:`replay`
        first = first or verdict
    assert first is not None
    return first


@dataclass(frozen=True)
class _Form:
    """How program and µGraph are brought to sizes for a test, and whether that may help after a verdict."""

    reduction: Callable[[TensorProgram, KernelGraph], Reduction]
    applies: Callable[[TensorProgram, KernelGraph, Verdict], bool] = lambda *_: True
    notes: tuple[str, ...] = ()


def _at_real_extents(program: TensorProgram, graph: KernelGraph) -> Reduction:
    return replace(reduction(*as_numbers(expand(program), graph)), real=True)


def _in_place(program: TensorProgram, graph: KernelGraph) -> Reduction:
    return reduction(*as_numbers(expand(program), graph), in_place=True)


def _reads_parts(program: TensorProgram, graph: KernelGraph) -> bool:
    return copies_data(program) or any(s.access and s.access.window for b in graph.blocks for s in b.loads)


_FORMS = (
    _Form(reduction),
    _Form(
        _at_real_extents,
        lambda program, graph, before: isinstance(before, Unknown) or constant(program, graph),
        ("constants, and some extents, are those of the real size",),
    ),
    _Form(
        _in_place,
        lambda program, graph, _: _reads_parts(program, graph),
        ("slices are tested where they lie, with constants and some extents of the real size",),
    ),
)
"""What is tested until one form passes: all say the same at the real size."""


def _at_real_size(tied: Reduction, schedule: Schedule | None, verdict: Verified | Agrees, rng: np.random.Generator) -> Verdict:
    """The verdict with a test of output blocks at the real size, where that can be made."""
    try:
        found = block_test(tied, schedule, rng, REAL_ELEMENTS)
    except UnsupportedError as error:
        found = BlockTest(False, error.message, (), (), verdict.law)
    if found.differs and not (tied.real and found.cut):  # numbers of the real size mean nothing over axes that are cut
        return Rejected(f"at the real size {found.why}", -1, found.law, (*found.real, *found.cut))
    if not found.passed:
        return replace(verdict, heuristic=(*verdict.heuristic, f"not tested at the real size: {found.why}"))
    return replace(verdict, real_size=True, cut=found.cut)


def _compared(tied: Reduction, schedule: Schedule | None, verdict: Verified | Agrees, seeds: Sequence[int]) -> Verdict:
    """The verdict with the largest error of comparisons in float64."""
    error = 0.0 if seeds else math.nan
    for seed in seeds:
        error = max(error, float_error(tied, schedule, np.random.default_rng(seed), seed))
        if not error <= TOLERANCE:
            return Rejected(f"the float64 comparison differs by {error:.1e}", seed)
    return replace(verdict, float_error=error)


def _at_large_exponents(written: Reduction, verdict: Verified | Agrees, seeds: Sequence[int]) -> Verdict:
    """The verdict where softmaxes of large exponents stay what they are in the program, with their maxima ``written`` in."""
    for seed in seeds:
        if wrong := overflow(written, np.random.default_rng(seed), seed):
            return Rejected(wrong, -1)
    return verdict


def _verify(tied: Reduction, schedule: Schedule | None, seeds: list[int]) -> Verdict:
    """The rounds over finite fields; what passes has no float error yet."""
    rounds, graph = len(seeds), tied.structure.graph
    stable = stabilized(graph)
    modes = [True] if stable else [False, True] if _has_exp(graph) else [False]
    verdict: Verdict = Unknown("no round was run")
    notes = ["tested at the reduced sizes that are named; other sizes are inferred from the structure"]
    bare: _Pass | None = None
    for law in modes:
        found = _rounds(tied, schedule, seeds, law)
        if isinstance(found, _Pass):
            bare = found
            break
        # the first mode's witness is the one to show, unless only the second one means anything
        verdict = found if isinstance(verdict, Unknown) else verdict
    if stable:
        notes.append(
            "the bound is that of the µGraph without its running maximum; the maximum is tested as an arbitrary shift, "
            "by the law of exp"
        )
        plain = unstabilize(graph)
        second = _rounds(tied.with_graph(plain), schedule, seeds, False)
        if bare is None and isinstance(verdict, Unknown) and isinstance(second, _Pass):
            # the law of exp has no meaning here if exponentials are nested; then the shifts are tested by degrees
            if nested(graph) and rescaled_by_degrees(graph, plain, np.random.default_rng(seeds[0])):
                notes.append("exponentials are nested: the running maximum is tested by degrees and in float64 alone")
                bare = second
        elif bare is not None and isinstance(second, _Pass):
            bare = replace(second, law=True)
    if bare is None:
        return verdict
    if not stable and bare.law:
        notes.append(
            "accepted only with the law of exp: theorem 2 bounds this for few terms, "
            "and says nothing for sums of many exponentials"
        )
    notes += bare.notes
    primes = tuple(PRIMES[i % len(PRIMES)] for i in range(rounds))
    kind = Verified if bare.bound < 1 else Agrees
    return kind(rounds, primes, bare.law, bare.bound, tuple(dict.fromkeys(notes)), bare.sizes, math.nan)


@dataclass(frozen=True)
class _Pass:
    law: bool
    bound: float
    sizes: tuple[tuple[tuple[str, int], ...], ...]
    notes: tuple[str, ...] = ()


def _rounds(tied: Reduction, schedule: Schedule | None, seeds: list[int], law: bool) -> _Pass | Rejected | Unknown:
    bound, sizes, notes = 1.0, [], list[str]()
    for i, seed in enumerate(seeds):
        result = _round(tied, schedule, seed, law, PRIMES[i % len(PRIMES)])
        if not isinstance(result, _Outcome):
            return result
        bound *= result.bound
        sizes.append(result.case.sizes)
        notes += result.notes
    return _Pass(law, bound, tuple(sizes), tuple(dict.fromkeys(notes)))


@dataclass(frozen=True)
class _Outcome:
    case: Case
    bound: float
    notes: tuple[str, ...]


def _round(
    tied: Reduction, schedule: Schedule | None, seed: int, law: bool, primes: tuple[int, int]
) -> _Outcome | Rejected | Unknown:
    """One round, with all its randomness from ``seed``."""
    rng = np.random.default_rng(seed)
    case = tied.draw(rng, seed)
    zero = "a denominator is zero at every draw"
    deciding = conditions(case.program, case.graph)
    for draw in range(DRAWS):
        # what is a condition may be a denominator too: then it cannot be zero
        zeros = deciding if draw < DRAWS // 2 else None
        field = Field(rng, law, primes, exact=zeros is not None)
        inputs = random_inputs(case.program, rng, field, zeros or ())
        try:
            wanted = evaluate_program(case.program, inputs, field)
        except ZeroDenominatorError:
            continue
        except UnsupportedError as error:
            return Unknown(error.message)
        zero = "a denominator of the graph is zero at every draw, none of the program is"
        try:
            found = _compare(tied, schedule, case, field, inputs, wanted)
        except ZeroDenominatorError:
            continue
        except UnsupportedError as error:
            return Unknown(error.message)
        except InterpretError as error:
            return Rejected(error.message, seed, law, case.sizes)
        if found:
            return Rejected(found, seed, law, case.sizes)
        bound, notes = round_bound(case.program, case.graph, field)
        return _Outcome(case, bound, notes)
    return Rejected(zero, seed, law, case.sizes)


def _compare(
    tied: Reduction, schedule: Schedule | None, case: Case, field: Field, inputs: dict[str, Value], wanted: dict[str, Value]
) -> str:
    """How the µGraph differs; empty if it does not."""
    algebra = FieldAlgebra(field)
    own = {n: inputs[n] for n in case.graph.inputs}
    flat = evaluate_flat(FieldAlgebra(field, strict=False), case.graph, own).tensors
    for name, value in wanted.items():
        if flat[name].shape != value.shape or not field.equal(flat[name], value):
            return f"output {name!r} differs"
    error: UsageError | InterpretError | None = None
    for chosen in checking_schedules(case.graph, schedule, tied.structure.graph if schedule else None):
        try:
            tiled = interpret_in(algebra, case.graph, chosen, own)
        except (InterpretError, UsageError) as problem:
            error = error or problem
            continue
        for name, value in wanted.items():
            if not field.equal(tiled[name], value):
                orders = [str(k.order) for k in chosen.kernels]
                return f"output {name!r} differs when it is computed tile by tile, in the order {orders}"
        return ""
    raise InterpretError(f"no schedule that the verifier tries can be interpreted: {error.message if error else 'none'}")


def replay(program: TensorProgram, graph: KernelGraph, verdict: Rejected, schedule: Schedule | None = None) -> bool:
    """Run the witness of a refusal again; true if it shows a difference again, with any of the primes."""
    tied = reduction(program, graph)
    return any(isinstance(_round(tied, schedule, verdict.witness_seed, verdict.law, p), Rejected) for p in PRIMES)


def _has_exp(graph: KernelGraph) -> bool:
    return any(s.exponential for k in graph.blocks for s in k.computes) or any(
        isinstance(k, LibraryKernel) and k.entry.has_exponential for k in graph.kernels
    )
