"""Checks of kernels, of which those that were passed stay in the cache folder: by what was checked, our own source, and the
versions of what ran it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING

from fuser import kept
from fuser.files import BAD_VALUE
from fuser.installed import version_of
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import CALLED
from fuser.ir.program import TensorProgram
from fuser.lower.compile import cache_dir
from fuser.lower.kernel_source import KernelSource
from fuser.lower.written import may_be_written
from fuser.runtime.library import constants
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan

if TYPE_CHECKING:
    from fuser.lower.checker import Check


def kept_check(program: TensorProgram, candidate: Candidate, seed: int) -> Callable[[], Check]:
    """Begin a check where its outcome is not known; what is returned waits for it."""
    from fuser.lower import check  # what was measured needs none

    text = dumps([program.to_json(), candidate.graph.to_json(), candidate.schedule.to_json(), seed])
    return _kept(text, lambda: check.begun(program, candidate, seed))


def interpreter_begins() -> None:
    """What runs the checks starts meanwhile."""
    from fuser.lower.check import begin

    begin()


def sound_calls(candidate: Candidate, made: Sequence[KernelSource], seed: int) -> Callable[[], tuple[Candidate, int]]:
    """Begin to check the sources of a candidate's library kernels, one by one. What is returned waits for that, and gives the
    candidate and how many of them are wrong: torch is to compute these. ``made`` are the sources of its blocks."""
    graph = candidate.graph
    if not any(isinstance(k, LibraryKernel) and may_be_written(k.op) for k in graph.kernels):
        return lambda: (candidate, 0)
    planned = plan(candidate, made)
    written = [k for k, s in zip(graph.kernels, planned.sources, strict=True) if s and isinstance(k, LibraryKernel)]
    outcomes = [kept_call(_alone(k, planned), seed) for k in written]

    def sound() -> tuple[Candidate, int]:
        wrong = {k.output: k for k, outcome in zip(written, outcomes, strict=True) if not outcome().passed}
        called = {n: replace(k, attrs=tuple(sorted((*k.attrs, (CALLED, "wrong"))))) for n, k in wrong.items()}
        kernels = tuple(called.get(k.outputs[0], k) for k in graph.kernels)
        return replace(candidate, graph=replace(graph, kernels=kernels)), len(wrong)

    return sound


def _alone(kernel: LibraryKernel, planned: Plan) -> KernelGraph:
    """A library kernel as a graph of its own, under names of its own: equal ones are checked once."""
    names = {a: f"x{i}" for i, a in enumerate(dict.fromkeys(kernel.args))} | {kernel.output: "y"}
    attrs = tuple(sorted(constants(kernel, planned.graph, planned.table).items()))
    alone = LibraryKernel(kernel.op, kernel.op, tuple(names[a] for a in kernel.args), "y", attrs)
    tensors = tuple(replace(planned.table[n], name=new) for n, new in names.items())
    return KernelGraph(kernel.op, tuple(names[a] for a in dict.fromkeys(kernel.args)), (alone,), ("y",), tensors)


def kept_call(graph: KernelGraph, seed: int) -> Callable[[], Check]:
    """The same as :func:`kept_check` of the only library kernel of a graph."""
    from fuser.lower import check

    return _kept(dumps([graph.to_json(), seed]), lambda: check.begun_call(graph, seed))


def _kept(text: str, begun: Callable[[], Callable[[], Check]]) -> Callable[[], Check]:
    """The outcome of the check that the text describes, which is ``begun`` where it is not known."""
    from fuser.lower.checker import Check

    source = kept.source_hash("fuser.ir", "fuser.interpret", "fuser.lower")
    ran = " ".join(version_of(n) for n in ("triton", "torch", "numpy"))
    file = cache_dir("checks") / f"{kept.text_hash(source, ran, text)}.json"
    with suppress(*BAD_VALUE):
        ((largest, error, extents, method),) = kept.read(file)
        known = Check(largest, error, tuple((k, v) for k, v in extents), method)
        return lambda: known
    answer = begun()

    def outcome() -> Check:
        found = answer()
        if found.passed:
            kept.write(file, [found.max_error, found.error, found.extents, found.method])
        return found

    return outcome
