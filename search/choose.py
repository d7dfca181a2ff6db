"""Kernels for a program, chosen, compiled and checked: as one region, or by parts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from cost_model.refined import check_device
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Sized
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.triton_source import generate_graph
from fuser.pools import Children
from fuser.pools import cores
from fuser.runtime.inductor import is_tied
from fuser.runtime.places import telling
from fuser.runtime.places import within_bounds
from fuser.runtime.torch_program import run_program
from fuser.superopt.structures import searched
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdicts import accepted
from search.ahead import Ahead
from search.beside import DOUBTED
from search.beside import FAR_AHEAD
from search.beside import file_of
from search.beside import key_of
from search.beside import may_be_measured
from search.beside import measured
from search.beside import most_measured
from search.beside import read
from search.beside import write
from search.buckets.bucketed import Bucket
from search.buckets.pool import Pool
from search.buckets.pool import placed
from search.buckets.sizes import Buckets
from search.buckets.sizes import all_padded
from search.by_parts import doubt
from search.by_parts import worth_parts
from search.compiled import CompiledProgram
from search.cover.model import as_it_stands
from search.cover.model import compile_model
from search.cover.offers import Pricing
from search.cover.shown import moves_only
from search.cover.theirs import LARGEST
from search.cover.theirs import left
from search.cover.theirs import limit
from search.cover.theirs import only_theirs
from search.cover.theirs import rival
from search.cover.theirs import wholly
from search.how import USUAL
from search.how import How
from search.libraries import with_libraries
from search.ranked import Ranked
from search.ranked import Tuned
from search.realise import Realised
from search.strided import laid
from search.taken import is_model
from search.taken import made
from search.tune import tune_fast
from search.tune import wary
from search.tuner.efforts import measures
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.tasks import Task

if TYPE_CHECKING:
    from fuser.frontends.torch_whole import Traced

ENOUGH = 4
"""Cores from which on torch's compiler begins while kernels are priced."""


def check_products(program: TensorProgram) -> None:
    """Raises :class:`UnsupportedError` naming a product of float64: there are neither kernels nor rates for these."""
    for node in program.nodes:
        if node.products and "float64" in {program[n].dtype for n in (*node.inputs, node.output)}:
            what = f"{node.op} ({node.output}) of {program.name!r} multiplies float64, which no kernel here does"
            raise UnsupportedError(what, "convert the model to float32 first: module.float(), or export it so")


def compile_imported(known: Imported, spec: Device, device: str | None, how: How = USUAL) -> CompiledProgram:
    """A program as one region or by parts; or what torch's compiler makes of it, where both are to be measured and that is the
    faster."""
    shown = set(known.inputs) <= set(how.examples or ())
    if not (how.beside and shown and known.traced is not None and may_be_measured(device)):
        return _by_prices(known, spec, device, how)
    what = key_of(known), repr(how.tuning.effort), repr(spec)
    file = file_of(*what, device=device) if how.tuning.memory.records is not None else None
    before = read(file) if file is not None else None
    if before is not None and not before.ours:
        with suppress(UnsupportedError):
            found = _rival(known, spec, device, how, (before.theirs_graph or before.theirs_calls) * 1e-6)
            found.beside = before
            return found
    ahead = _begun(known, spec, device, how) if before is None else None
    try:
        found = _by_prices(known, spec, device, how, DOUBTED, ahead)
        if before is None and found.traced is None:
            return _faster(found, known, spec, how, file, ahead)
    finally:
        if ahead is not None:
            ahead.stop()
    found.beside = before
    return found


def _begun(known: Imported, spec: Device, device: str | None, how: How) -> Ahead[CompiledProgram] | None:
    """All of it by torch's compiler, begun while other processes price and compile what is chosen; None where there are few
    cores, where something is measured meanwhile, where that compiler waits for this thread, or where all is likely too large."""
    import torch
    from torch._guards import CompileContext

    large = sum(not moves_only(n) for n in known.program.nodes) > LARGEST
    if cores() < ENOUGH or measures(how.tuning.effort) or CompileContext.try_get() is not None or large:
        return None
    # the rest of this module sends its own to other processes, while what objects remember of themselves must not grow
    program, target = pickle.loads(pickle.dumps((known.program, spec)))
    gpu = torch.device(device or "cpu")
    number = gpu.index if gpu.index is not None or gpu.type == "cpu" else torch.cuda.current_device()

    def all_of_it() -> CompiledProgram:
        with nullcontext() if number is None else torch.cuda.device(number):  # each thread has a current one
            return _rival(replace(known, program=program), target, device, how, nan)

    return Ahead(all_of_it)


def _faster(
    found: CompiledProgram, known: Imported, spec: Device, how: How, file: Path | None, ahead: Ahead[CompiledProgram] | None
) -> CompiledProgram:
    """What was chosen, or torch's compiler, as both run; what was chosen where the other one is too large, or does not run."""
    price, seconds = wholly(known.program, spec), found.realised.candidate.seconds
    clear = price is not None and seconds < FAR_AHEAD * price.winner.seconds
    large = sum(not moves_only(n) for n in known.program.nodes) > most_measured([found.plan])
    if (clear or large) and not measures(how.tuning.effort):
        return found
    how.say("measuring beside torch's compiler")
    stopped = (KeyboardInterrupt,) if measures(how.tuning.effort) else ()  # what a search has found is not lost
    with suppress(Exception, *stopped):  # out of memory, say
        other = _rival(known, spec, found.device, how, seconds, ahead)
        values = _values(known, how.examples or {}, found.device)
        both = partial(found.by_name, values), partial(other.by_name, values)
        assert known.traced is not None
        alike = is_tied(known.traced.graph), all(map(telling, values.values()))
        beside = measured(*both, found.device, *alike, partial(_eagerly, known, values, str(found.device)))
        if file is not None:
            write(file, beside)
        found = found if beside.ours else other
        found.beside = beside
    return found


def _eagerly(known: Imported, values: Mapping[str, Any], device: str) -> list[Any]:
    """The outputs by torch's own operators."""
    params = {n: placed(x, known.program[n].dtype, device) for n, x in known.params.items()}
    found = run_program(known.program, {**params, **laid(values, known.orders, known.program)})
    return [found[n] for n in known.program.outputs]


def _values(known: Imported, examples: Mapping[str, Any], device: str | None) -> dict[str, Any]:
    """Examples that can be run with, on the device."""
    assert known.traced is not None
    places = {place: name for place, name in known.traced.places.items() if name in examples}
    found = within_bounds(known.traced.graph, {place: examples[name] for place, name in places.items()})
    return {name: x.to(device) for name, x in {**examples, **{places[p]: x for p, x in found.items()}}.items()}


def _rival(
    known: Imported, spec: Device, device: str | None, how: How, seconds: float, ahead: Ahead[CompiledProgram] | None = None
) -> CompiledProgram:
    """All of it by torch's compiler; ``ahead``: that was begun before."""
    if (tuned := rival(known.program, spec, seconds)) is None:
        raise UnsupportedError(f"{known.program.name!r} is nothing that torch's compiler takes as a whole")
    if ahead is None:
        return _of_one(known, spec, device, how, as_it_stands(tuned), known.traced)
    found = ahead.result()
    found.realised = as_it_stands(tuned)
    return found


def _of_one(
    known: Imported, spec: Device, device: str | None, how: How, done: Realised, traced: Traced | None = None
) -> CompiledProgram:
    more = (known.called, None, how.pool, known.orders)
    return CompiledProgram(
        known.program,
        spec,
        done,
        device,
        known.params,
        known.inputs,
        how.capture,
        None,
        *more,
        traced=traced,
        examples=how.examples,
    )


def _by_prices(
    known: Imported,
    spec: Device,
    device: str | None,
    how: How,
    times: float = 1.0,
    ahead: Ahead[CompiledProgram] | None = None,
) -> CompiledProgram:
    """As the model alone decides; a plan may take so many ``times`` as long as is wanted of it else. ``ahead``: what torch's
    compiler makes of all of it was begun before."""
    check_device(spec)
    check_products(known.program)
    jobs, waiting, model = cores() if how.jobs is None else how.jobs, None, None
    runs = device if how.compiled else None
    may_leave = how.theirs and device not in (None, "cpu") and not measures(how.tuning.effort)
    theirs = wholly(known.program, spec) if may_leave else None
    most = limit(theirs) * times

    def whole(tuned: Tuned) -> CompiledProgram:
        done = as_it_stands(tuned) if tuned is theirs else made(tuned, spec, device, how)
        if theirs is not None and tuned is not theirs and left(theirs, tuned, done.artifacts):
            return whole(theirs)
        if tuned is theirs and ahead is not None:
            return _rival(known, spec, runs, how, tuned.winner.seconds, ahead)
        return _of_one(known, spec, runs, how, done, known.traced if tuned is theirs else None)

    if not is_model(known.program):
        how.say("tuning and checking one region")
        with suppress(NoValidKernelError, UnsupportedError):
            tuned = _tuned(known.program, spec, device, (None, None, 0.0), how)
            if device in (None, "cpu") or measures(how.tuning.effort) or not worth_parts(tuned, spec):
                return whole(theirs if theirs is not None and tuned.winner.seconds >= most else tuned)
            waiting = tuned
    with Children(jobs) if jobs > 1 else nullcontext() as pool:
        try:
            model = compile_model(
                known.program,
                known.params,
                Pricing(spec, device not in (None, "cpu"), how.seed, pool, ours=how.ours),
                compiled=how.compiled and device != "cpu",
                checked=how.checked,
                say=how.say,
                tuning=how.tuning,
                most=most,
            )
        except (NoValidKernelError, UnsupportedError):
            if theirs is None:
                raise
    if waiting is not None and doubt(waiting) * waiting.winner.seconds <= (model.whole.candidate.seconds if model else most):
        with suppress(NoValidKernelError, UnsupportedError):
            return whole(waiting)
    if model is None:
        assert theirs is not None
        return whole(theirs)
    if may_leave and (alone := only_theirs(known.program, spec, model.whole.candidate)) is not None:
        theirs = alone
        return whole(alone)
    more = (known.called, None, how.pool, known.orders)
    mine = model.program, spec, model.whole, runs, model.params, known.inputs, how.capture, model
    return CompiledProgram(*mine, *more, examples=how.examples)


def compile_buckets(sized: Sized, sizes: Buckets, spec: Device, device: str | None, how: How) -> tuple[Bucket, ...]:
    """The kernels of each bucket, the smallest first; they share their weights."""
    how = replace(how, pool=Pool())
    return tuple(Bucket(p, compile_imported(p.imported, spec, device, how)) for p in all_padded(sized, sizes))


def as_one(
    program: TensorProgram,
    spec: Device,
    device: str | None,
    given: tuple[KernelGraph | None, Schedule | None, float],
    how: How,
) -> Realised:
    """The program as one region."""
    check_device(spec)
    return made(_tuned(program, spec, device, given, how), spec, device, how)


def _tuned(
    program: TensorProgram,
    spec: Device,
    device: str | None,
    given: tuple[KernelGraph | None, Schedule | None, float],
    how: How,
) -> Tuned:
    """A schedule of it; ``given`` are a structure, a schedule, and seconds for the superoptimizer."""
    graph, schedule, superoptimize = given
    graphs = _graphs(program, graph, schedule, superoptimize)
    if graph is not None:
        accepted(program, graph)
    library = graph is None and schedule is None and device not in (None, "cpu")
    if library:
        graphs = with_libraries(graphs)
    if schedule is not None:
        tuned = Tuned(program, spec.name, Ranked(Candidate(graphs[0], schedule), nan), (), 1, 1)
    else:
        scope = LIBRARY if library else GENERATED
        if graph is not None or superoptimize:
            scope = f"{scope} {graph.stable_hash() if graph else f'superoptimized {superoptimize:g} s'}".strip()
        (found,) = how.tuning.tune([Task(program, partial(tuple, graphs), 1, scope)], spec, how.seed)
        tuned = found or tune_fast(program, spec, seed=how.seed, graphs=graphs)
        if superoptimize and found is None:
            tuned = wary(tuned, with_libraries(structures(program)))
    return tuned


def _graphs(
    program: TensorProgram, graph: KernelGraph | None, schedule: Schedule | None, superoptimize: float
) -> tuple[KernelGraph, ...]:
    """The structures to choose from."""
    if graph is not None:
        if set(graph.inputs) - set(program.inputs) or set(graph.outputs) != set(program.outputs):
            raise UsageError(
                f"the µGraph {graph.name!r} computes {', '.join(graph.outputs)} of {', '.join(graph.inputs)}; {program.name!r} "
                f"{', '.join(program.outputs)} of {', '.join(program.inputs)}"
            )
        return (graph,)
    found = searched(program, superoptimize) if superoptimize else structures(program)
    if schedule is None:
        return found
    fitting = tuple(g for g in found if _fits(g, schedule))
    if not fitting:
        raise UsageError(f"no structure of {program.name!r} has the schedule {schedule}", "pass its graph too")
    return fitting


def _fits(graph: KernelGraph, schedule: Schedule) -> bool:
    try:
        generate_graph(graph, schedule)
    except UsageError:
        return False
    return True
