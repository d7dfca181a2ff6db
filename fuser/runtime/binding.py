"""Kernels bound to tensors: what a call launches, with every address packed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.ir.mugraph import LibraryKernel
from fuser.runtime.calls import Launch
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.library import bind_library
from fuser.runtime.library import constants
from fuser.runtime.library import root_of
from fuser.runtime.library import view
from fuser.runtime.plan import Plan

Loaded = LoadedKernel | InterpretedKernel | None
"""A kernel of a graph; None for a library kernel."""


def held_by_libraries(plan: Plan) -> frozenset[str]:
    """Inputs and outputs of the graph that library kernels use. They need the tensor, not its address alone."""
    ends = {*plan.graph.inputs, *plan.graph.outputs}
    names = {root_of(t, plan.views) for k in plan.graph.kernels if isinstance(k, LibraryKernel) for t in (*k.args, k.output)}
    return frozenset(ends & names)


def launches(
    plan: Plan,
    kernels: Sequence[Loaded],
    table: Mapping[str, Any],
    held: frozenset[str] = frozenset(),
    late: Mapping[str, Any] | None = None,
) -> list[Launch]:
    """A launch for each launched kernel of the plan, over the tensors of ``table``. Library kernels look the tensors ``held`` up
    in ``late`` at every call: then nothing here keeps them alive."""
    found: list[Launch] = []
    for number, i in enumerate(plan.launched):
        kernel, loaded, source = plan.graph.kernels[i], kernels[i], plan.sources[i]
        if isinstance(kernel, LibraryKernel):
            used = {root_of(t, plan.views) for t in (*kernel.args, kernel.output)}
            if late is not None and used & held:
                found.append(_deferred(plan, kernel, {n: table[n] for n in used - held}, late))
            else:
                found.append(_library(plan, kernel, table))
            continue
        assert source is not None
        args = [table[n] for n in source.args]
        if isinstance(loaded, LoadedKernel):
            dependent = loaded.artifact.pdl and may_overlap(plan, number)
            found.append(loaded.bind([t.data_ptr() for t in args], dependent))
        elif loaded is not None:
            found.append(loaded.bind([t.reshape(s) for t, s in zip(args, source.shapes, strict=True)]))
    return found


def may_overlap(plan: Plan, number: int) -> bool:
    """Whether a launched kernel may start before the one in front of it has ended (programmatic dependent launch): that one must
    be a generated kernel on the same stream, with no event between the two."""
    front = plan.streams.directly_behind(number)
    return front is not None and plan.sources[plan.launched[front]] is not None


def _library(plan: Plan, kernel: LibraryKernel, table: Mapping[str, Any]) -> Launch:
    def value(name: str) -> Any:
        if name in plan.views:
            made = plan.views[name]
            return view(made, value(made.args[0]))
        return table[name]

    attrs = constants(kernel, plan.graph, plan.table)
    call = bind_library(kernel.op, attrs, [value(a) for a in kernel.args], value(kernel.output))
    return lambda _: call()


def _deferred(plan: Plan, kernel: LibraryKernel, fixed: Mapping[str, Any], late: Mapping[str, Any]) -> Launch:
    def call(stream: int) -> None:
        _library(plan, kernel, {**fixed, **late})(stream)

    return call
