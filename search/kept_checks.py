"""Checks of kernels, of which those that were passed stay in the cache folder: by what was checked, our own source, and the
versions of what ran it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
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


def kept_checks(jobs: Sequence[tuple[TensorProgram, Candidate]], seed: int) -> list[Check]:
    """The outcome of each check."""
    from fuser.lower.check import check  # what was measured needs none

    texts = [dumps([program.to_json(), c.graph.to_json(), c.schedule.to_json(), seed]) for program, c in jobs]
    return _kept(texts, lambda left: check([jobs[i] for i in left], seed))


def interpreter_begins() -> None:
    """What runs the checks starts meanwhile."""
    from fuser.lower.check import begin

    begin()


def sound_calls(candidate: Candidate, made: Sequence[KernelSource], seed: int) -> tuple[Candidate, int]:
    """The candidate with the sources of its library kernels checked, one by one, and how many of them are wrong: torch is to
    compute these. ``made`` are the sources of its blocks."""
    graph = candidate.graph
    if not any(isinstance(k, LibraryKernel) and may_be_written(k.op) for k in graph.kernels):
        return candidate, 0
    planned = plan(candidate, made)
    written = [k for k, s in zip(graph.kernels, planned.sources, strict=True) if s and isinstance(k, LibraryKernel)]
    outcomes = _kept_calls([_alone(k, planned) for k in written], seed)
    wrong = {k.output: k for k, outcome in zip(written, outcomes, strict=True) if not outcome.passed}
    called = {n: replace(k, attrs=tuple(sorted((*k.attrs, (CALLED, "wrong"))))) for n, k in wrong.items()}
    kernels = tuple(called.get(k.outputs[0], k) for k in graph.kernels)
    return replace(candidate, graph=replace(graph, kernels=kernels)), len(wrong)


def _alone(kernel: LibraryKernel, planned: Plan) -> KernelGraph:
    """A library kernel as a graph of its own, under names of its own: equal ones are checked once."""
    names = {a: f"x{i}" for i, a in enumerate(dict.fromkeys(kernel.args))} | {kernel.output: "y"}
    attrs = tuple(sorted(constants(kernel, planned.graph, planned.table).items()))
    alone = LibraryKernel(kernel.op, kernel.op, tuple(names[a] for a in kernel.args), "y", attrs)
    tensors = tuple(replace(planned.table[n], name=new) for n, new in names.items())
    return KernelGraph(kernel.op, tuple(names[a] for a in dict.fromkeys(kernel.args)), (alone,), ("y",), tensors)


def _kept_calls(graphs: Sequence[KernelGraph], seed: int) -> list[Check]:
    from fuser.lower.check import check_call

    return _kept([dumps([g.to_json(), seed]) for g in graphs], lambda left: (check_call(graphs[i], seed) for i in left))


def _kept(texts: Sequence[str], run: Callable[[Sequence[int]], Iterable[Check]]) -> list[Check]:
    """The outcomes of the checks that the texts describe; those that are not known are ``run``, by their numbers."""
    if not texts:
        return []
    from fuser.lower.checker import Check

    source = kept.source_hash("fuser.ir", "fuser.interpret", "fuser.lower")
    ran = " ".join(version_of(n) for n in ("triton", "torch", "numpy"))
    files = [cache_dir("checks") / f"{kept.text_hash(source, ran, text)}.json" for text in texts]
    found: dict[int, Check] = {}
    for i, file in enumerate(files):
        with suppress(*BAD_VALUE):
            ((largest, error, extents, method),) = kept.read(file)
            found[i] = Check(largest, error, tuple((k, v) for k, v in extents), method)
    left = [i for i in range(len(texts)) if i not in found]
    for i, outcome in zip(left, run(left) if left else (), strict=True):
        found[i] = outcome
        if outcome.passed:
            kept.write(files[i], [outcome.max_error, outcome.error, outcome.extents, outcome.method])
    return [found[i] for i in range(len(texts))]
