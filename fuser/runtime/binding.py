"""Kernels bound to tensors: what a call launches, with every address packed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from itertools import compress
from operator import is_
from operator import itemgetter
from typing import Any

from fuser.aten import call as call_aten
from fuser.ir.mugraph import LibraryKernel
from fuser.lower.kernel_source import KernelSource
from fuser.runtime.calls import Launch
from fuser.runtime.calls import nothing
from fuser.runtime.joined import Piece
from fuser.runtime.launch import ALIGNMENT
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.library import bind_library
from fuser.runtime.library import call_of_result
from fuser.runtime.library import constants
from fuser.runtime.library import makes
from fuser.runtime.library import matmul_parts
from fuser.runtime.library import multiply
from fuser.runtime.library import repeated
from fuser.runtime.library import root_of
from fuser.runtime.library import taken
from fuser.runtime.library import taken_beside
from fuser.runtime.library import value_of
from fuser.runtime.plan import Plan

Loaded = LoadedKernel | InterpretedKernel | None
"""A kernel of a graph; None for a library kernel."""
ADDRESSES = 64
"""Most sets of addresses for which a kernel behind what torch allocates keeps its packed arguments."""


def held_by_libraries(plan: Plan) -> frozenset[str]:
    """Inputs and outputs of the graph that library kernels use. They need the tensor, not its address alone."""
    ends = {*plan.graph.inputs, *plan.graph.outputs}
    calls = [k for k, s in zip(plan.graph.kernels, plan.sources, strict=True) if isinstance(k, LibraryKernel) and s is None]
    names = {root_of(t, plan.views) for k in calls for t in (*k.args, k.output)}
    return frozenset(ends & names)


def launches(
    plan: Plan,
    kernels: Sequence[Loaded],
    table: Mapping[str, Any],
    held: frozenset[str] = frozenset(),
    late: dict[str, Any] | None = None,
    moving: frozenset[str] = frozenset(),
    pieces: Sequence[Piece] = (),
) -> list[Launch]:
    """A launch for each launched kernel of the plan, over the tensors of ``table``. Library kernels look the tensors ``held`` up
    in ``late`` at every call, and generated ones those that are ``moving``: then nothing here keeps them alive, and the table has
    no more than their form. What torch allocates in a call (``plan.adopted``) is among both; it is dropped behind its last
    reader. ``pieces`` are launches that are one, in place of their last."""
    found: list[Launch] = []
    shared, last = _shared(plan), _last_reads(plan)
    ends, inside = {p.numbers[-1]: p for p in pieces}, {n for p in pieces for n in p.numbers[:-1]}
    for p in pieces:
        within = {t for n in p.numbers for t in plan.graph.kernels[plan.launched[n]].outputs}.difference(p.makes)
        last[p.numbers[-1]] = tuple(name for n in p.numbers for name in last.pop(n, ()) if name not in within)
    for number, i in enumerate(plan.launched):
        kernel, loaded, source = plan.graph.kernels[i], kernels[i], plan.sources[i]
        if number in inside:
            launch = nothing
        elif number in ends:
            launch = _joined(plan, ends[number], table, held, late)
        elif source is None:
            assert isinstance(kernel, LibraryKernel)
            used = {root_of(t, plan.views) for t in (*kernel.args, kernel.output)}
            if late is not None and used & held:
                launch = _deferred(plan, kernel, table, held, late, shared.get(number))
            else:
                launch = _library(plan, kernel, table, shared.get(number))
        else:
            dependent = source.pdl and may_overlap(plan, number)
            if late is not None and moving.intersection(source.args):
                launch = _behind(loaded, source, table, moving, late, dependent)
            else:
                launch = _generated(loaded, source, [table[n] for n in source.args], dependent)
        found.append(_dropping(launch, last[number], late) if late is not None and last.get(number) else launch)
    return found


def _joined(plan: Plan, piece: Piece, table: Mapping[str, Any], held: frozenset[str], late: dict[str, Any] | None) -> Launch:
    """Several calls of torch as one."""
    names = (*piece.reads, *piece.writes)
    run, values = piece.run, [value_of(n, plan.views, table) for n in names]
    if late is None:
        return lambda _: run(*values)
    roots = [root_of(n, plan.views) for n in names]
    getters = [_getter(x, r, table[r], r in held) for x, r in zip(values, roots, strict=True)]
    makes = [(table[n], n in piece.padded) for n in piece.makes]
    # weights lie where they lie: there are many, and a call is to be short
    fixed = {x.untyped_storage().data_ptr() for x, r in zip(values, roots, strict=True) if r not in held}
    moving = [r in held for r in roots]
    as_it_is = False  # what the compiler made once it makes so at every call

    def call(_: int) -> None:
        nonlocal as_it_is
        xs = [get(late) for get in getters]
        made = run(*xs)
        if as_it_is:
            late.update(zip(piece.makes, made, strict=True))
            return
        given = [x.untyped_storage().data_ptr() for x in compress(xs, moving)]
        found = [taken_beside(x, y, given, fixed, ALIGNMENT, longer) for (y, longer), x in zip(makes, made, strict=True)]
        late.update(zip(piece.makes, found, strict=True))
        as_it_is = all(map(is_, found, made))

    return call


def _generated(loaded: Loaded, source: KernelSource, args: Sequence[Any], dependent: bool) -> Launch:
    if isinstance(loaded, LoadedKernel):
        return loaded.bind([t.data_ptr() for t in args], dependent)
    assert loaded is not None
    return loaded.bind([t.reshape(s) for t, s in zip(args, source.shapes, strict=True)])


def _behind(
    loaded: Loaded,
    source: KernelSource,
    table: Mapping[str, Any],
    moving: frozenset[str],
    late: Mapping[str, Any],
    dependent: bool,
) -> Launch:
    """A generated kernel of which some tensors are elsewhere at each call."""
    mine = [n for n in source.args if n in moving]
    if isinstance(loaded, LoadedKernel) and not {d.tensor for d in source.descriptors}.intersection(mine):
        places = [i for i, n in enumerate(source.args) if n in moving]
        launch = loaded.movable([0 if n in moving else table[n].data_ptr() for n in source.args], places, dependent)
        return lambda stream: launch(stream, [late[n].data_ptr() for n in mine])
    bound: dict[tuple[int, ...], Launch] = {}

    def call(stream: int) -> None:
        key = tuple([late[n].data_ptr() for n in mine])
        launch = bound.get(key)
        if launch is None:
            launch = _generated(loaded, source, [late[n] if n in moving else table[n] for n in source.args], dependent)
            if isinstance(loaded, LoadedKernel):  # the interpreter's would keep the tensors
                if len(bound) >= ADDRESSES:
                    bound.clear()
                bound[key] = launch
        launch(stream)

    return call


def _last_reads(plan: Plan) -> dict[int, tuple[str, ...]]:
    """What torch allocated and nothing reads behind a launch, by its number; nothing where kernels of several streams may still
    read it."""
    if plan.streams.count > 1:
        return {}
    last: dict[str, int] = {}
    for number, i in enumerate(plan.launched):
        k = plan.graph.kernels[i]
        last |= {r: number for t in (*k.inputs, *k.outputs) if (r := root_of(t, plan.views)) in plan.adopted}
    found: dict[int, tuple[str, ...]] = {}
    for name, number in last.items():
        if name not in plan.graph.outputs:
            found[number] = (*found.get(number, ()), name)
    return found


def _dropping(launch: Launch, names: Sequence[str], late: dict[str, Any]) -> Launch:
    def call(stream: int) -> None:
        launch(stream)
        for name in names:
            late.pop(name, None)

    return call


def may_overlap(plan: Plan, number: int) -> bool:
    """Whether a launched kernel may start before the one in front of it has ended (programmatic dependent launch): that one must
    be a generated kernel on the same stream, with no event between the two."""
    front = plan.streams.directly_behind(number)
    return front is not None and plan.sources[plan.launched[front]] is not None


Carry = Callable[[list[Any]], Any]
"""Carries out a library kernel of some operands; returns the result, in memory that may go at any time."""


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
    def carry(xs: list[Any]) -> Any:
        if first:
            held[:] = call_aten(attrs["callee"], attrs["detail"], xs)
        found = held[attrs["field"]]
        if last:
            held.clear()
        return found

    return carry


def _library(plan: Plan, kernel: LibraryKernel, table: Mapping[str, Any], carry: Carry | None) -> Launch:
    attrs = constants(kernel, plan.graph, plan.table)
    args, out = [value_of(a, plan.views, table) for a in kernel.args], value_of(kernel.output, plan.views, table)
    if carry is not None:
        return lambda _: out.copy_(carry(args))
    call = bind_library(kernel.op, attrs, args, out)
    return lambda _: call()


def _deferred(
    plan: Plan,
    kernel: LibraryKernel,
    table: Mapping[str, Any],
    held: frozenset[str],
    late: dict[str, Any],
    carry: Carry | None,
) -> Launch:
    """A library kernel on tensors that only ``late`` has at the time of a call; what is known of their strides is worked out
    here."""
    attrs = constants(kernel, plan.graph, plan.table)
    names = (*kernel.args, kernel.output)
    operands = [value_of(n, plan.views, table) for n in names]
    adopting = kernel.output in plan.adopted  # then torch divides a product itself, and its result has all batches
    groups = matmul_parts(*operands) if kernel.contracts and not adopting else [tuple(operands)]
    roots = [root_of(n, plan.views) for n in names]
    getters = [[_getter(x, r, table[r], r in held) for x, r in zip(group, roots, strict=True)] for group in groups]
    if adopting:
        return _adopting(kernel, attrs, getters[0][:-1], operands[-1], late, carry, kernel.output in plan.graph.outputs)
    write = None if kernel.contracts else repeated(kernel.op, attrs, operands[0], operands[-1])

    def call(_: int) -> None:
        for group in getters:
            *xs, out = [get(late) for get in group]
            if carry is not None:
                out.copy_(carry(xs))
            elif write is not None:
                write(xs, out)
            else:
                multiply(xs[0], xs[1], out)

    return call


def _adopting(
    kernel: LibraryKernel,
    attrs: Mapping[str, Any],
    getters: Sequence[Callable[[Mapping[str, Any]], Any]],
    like: Any,
    late: dict[str, Any],
    carry: Carry | None,
    fresh: bool,
) -> Launch:
    """A library kernel whose result stays where torch allocates it; ``like`` is its form."""
    name = kernel.output
    make = makes(kernel.op, attrs, like, fresh, ALIGNMENT)

    def call(_: int) -> None:
        xs = [get(late) for get in getters]
        late[name] = make(xs) if carry is None else taken(carry(xs), like, xs if fresh else (), ALIGNMENT)

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
