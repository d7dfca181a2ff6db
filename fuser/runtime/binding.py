"""Kernels bound to tensors: what a call launches, with every address packed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from fuser.aten import call as call_aten
from fuser.ir.mugraph import LibraryKernel
from fuser.runtime.calls import Launch
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.library import bind_library
from fuser.runtime.library import call_of_result
from fuser.runtime.library import constants
from fuser.runtime.library import matmul_parts
from fuser.runtime.library import multiply
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
    shared = _shared(plan)
    for number, i in enumerate(plan.launched):
        kernel, loaded, source = plan.graph.kernels[i], kernels[i], plan.sources[i]
        if isinstance(kernel, LibraryKernel):
            used = {root_of(t, plan.views) for t in (*kernel.args, kernel.output)}
            if late is not None and used & held:
                found.append(_deferred(plan, kernel, table, held, late, shared.get(number)))
            else:
                found.append(_library(plan, kernel, table, shared.get(number)))
            continue
        assert source is not None
        args = [table[n] for n in source.args]
        if isinstance(loaded, LoadedKernel):
            dependent = loaded.artifact.source.pdl and may_overlap(plan, number)
            found.append(loaded.bind([t.data_ptr() for t in args], dependent))
        elif loaded is not None:
            found.append(loaded.bind([t.reshape(s) for t, s in zip(args, source.shapes, strict=True)]))
    return found


def may_overlap(plan: Plan, number: int) -> bool:
    """Whether a launched kernel may start before the one in front of it has ended (programmatic dependent launch): that one must
    be a generated kernel on the same stream, with no event between the two."""
    front = plan.streams.directly_behind(number)
    return front is not None and plan.sources[plan.launched[front]] is not None


def _value(plan: Plan, name: str, table: Mapping[str, Any]) -> Any:
    """A tensor that a library kernel uses, views included."""
    if name in plan.views:
        made = plan.views[name]
        return view(made, _value(plan, made.args[0], table))
    return table[name]


Carry = Callable[[list[Any], Any], None]
"""Carries out a library kernel: operands, and the tensor that is written."""


def _shared(plan: Plan) -> dict[int, Carry]:
    """Kernels that are results of one call of torch, on one stream, by their number: the first of them calls, the others take
    what it left, and the last one drops it."""
    calls: dict[Any, list[int]] = {}
    for number, i in enumerate(plan.launched):
        kernel = plan.graph.kernels[i]
        for call in call_of_result(kernel):
            calls.setdefault((call, plan.streams.stream[number]), []).append(number)
    found: dict[int, Carry] = {}
    for numbers in calls.values():
        held: list[Any] = []
        for number in numbers if len(numbers) > 1 else ():
            kernel = plan.graph.kernels[plan.launched[number]]
            assert isinstance(kernel, LibraryKernel)
            found[number] = _result(dict(kernel.attrs), held, number == numbers[0], number == numbers[-1])
    return found


def _result(attrs: Mapping[str, Any], held: list[Any], first: bool, last: bool) -> Carry:
    def carry(xs: list[Any], out: Any) -> None:
        if first:
            held[:] = call_aten(attrs["callee"], attrs["detail"], xs)
        out.copy_(held[attrs["field"]])
        if last:
            held.clear()

    return carry


def _library(plan: Plan, kernel: LibraryKernel, table: Mapping[str, Any], carry: Carry | None) -> Launch:
    attrs = constants(kernel, plan.graph, plan.table)
    args, out = [_value(plan, a, table) for a in kernel.args], _value(plan, kernel.output, table)
    if carry is not None:
        return lambda _: carry(args, out)
    call = bind_library(kernel.op, attrs, args, out)
    return lambda _: call()


def _deferred(
    plan: Plan,
    kernel: LibraryKernel,
    table: Mapping[str, Any],
    held: frozenset[str],
    late: Mapping[str, Any],
    carry: Carry | None,
) -> Launch:
    """A library kernel on tensors that only ``late`` has at the time of a call; what is known of their strides is worked out
    here."""
    attrs = constants(kernel, plan.graph, plan.table)
    names = (*kernel.args, kernel.output)
    operands = [_value(plan, n, table) for n in names]
    groups = matmul_parts(*operands) if kernel.contracts else [tuple(operands)]
    roots = [root_of(n, plan.views) for n in names]
    getters = [[_getter(x, r, table[r], r in held) for x, r in zip(group, roots, strict=True)] for group in groups]

    def call(_: int) -> None:
        for group in getters:
            *xs, out = [get(late) for get in group]
            if carry is not None:
                carry(xs, out)
            elif kernel.contracts:
                multiply(xs[0], xs[1], out)
            else:
                bind_library(kernel.op, attrs, xs, out)()

    return call


def _getter(x: Any, root: str, base: Any, late: bool) -> Callable[[Mapping[str, Any]], Any]:
    """Finds ``x``, a view of ``base``: itself, or the same view of the tensor that has the name ``root`` by then."""
    if not late:
        return lambda _: x
    shape, strides, offset = x.shape, x.stride(), x.storage_offset() - base.storage_offset()
    if (shape, strides, offset) == (base.shape, base.stride(), 0):
        return itemgetter(root)

    def get(values: Mapping[str, Any]) -> Any:
        now = values[root]
        return now.as_strided(shape, strides, now.storage_offset() + offset)

    return get
