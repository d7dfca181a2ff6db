"""Inputs and results that lie otherwise than row after row: images with their channels last, transposed matrices. A program has
them as they lie, and a view of them as the module sees them, so that no call copies them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.imported import Order
from fuser.frontends.imported import Result
from fuser.frontends.torch_complex import as_complex
from fuser.frontends.torch_views import order_of
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import renamed


def as_they_lie(known: Imported, examples: Sequence[Any]) -> Imported:
    """The program with the inputs whose dimensions lie in another order in that order, as the examples of its inputs do."""
    orders = {n: order for n, x in zip(known.inputs, examples, strict=True) if (order := order_of(x))}
    if not orders or (known.called is not None and any(r.base in known.inputs for r in known.called.results)):
        return known
    traced = known.traced and replace(known.traced, orders=orders)
    return replace(known, program=_seen(known.program, orders), orders=orders, traced=traced)


def as_results_lie(known: Imported) -> Imported:
    """The program with the results whose dimensions lie in another order than their own in that order, as the module's do: the
    callable returns views of them."""
    if known.called is None:
        return known
    results = known.called.results
    orders = {r.name: r.order for r in results if r.order and r.name}
    if not orders:
        return known
    lying = {n: f"{n} as it lies" for n in orders}
    traced = known.traced and replace(known.traced, turned={lying[n]: (n, order) for n, order in orders.items()})
    called = replace(known.called, results=tuple(_turned_back(r, orders, lying) for r in results))
    return replace(known, program=_turned(known.program, orders, lying), traced=traced, called=called)


def _turned_back(result: Result, orders: Mapping[str, Order], lying: Mapping[str, str]) -> Result:
    """A result as a view of what lies in an order: that itself, or what the module has as a view of it."""
    import torch

    base = result.name or result.base
    if base not in orders:
        return result
    order, views = orders[base], (as_complex(),) * result.complex if result.name else result.views
    back = (torch.ops.aten.permute.default, (tuple(order.index(i) for i in range(len(order))),), {}, None)
    return Result(base=lying[base], views=(back, *views))


def laid(values: Mapping[str, Any], orders: Mapping[str, Order], program: TensorProgram) -> dict[str, Any]:
    """Tensors by name as a program has them. Raises :class:`UsageError` for one of another shape than the example."""
    found = dict(values)
    for name, order in orders.items():
        if (x := found.get(name)) is None:  # nothing reads it
            continue
        shape = tuple(program[name].shape[order.index(i)] for i in range(len(order)))
        if tuple(x.shape) != shape:
            raise UsageError(f"{name} must be {name}{list(shape)}:{program[name].dtype}, got {tuple(x.shape)}")
        found[name] = x.permute(order) if hasattr(x, "permute") else x.transpose(order)
    return found


def _turned(program: TensorProgram, orders: Mapping[str, Order], lying: Mapping[str, str]) -> TensorProgram:
    from search.cover.rebuild import copied

    b = Builder(program.name, reserved=frozenset(program.table))
    refs = {n: b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
    for node in program.nodes:
        refs[node.output] = copied(b, program, node, [refs[i] for i in node.inputs])
    for n, order in orders.items():
        refs[n] = b.op("transpose", refs[n], perm=order, name=lying[n])
    return b.build(*(refs[n] for n in program.outputs))


def _seen(program: TensorProgram, orders: Mapping[str, Order]) -> TensorProgram:
    from search.cover.rebuild import copied

    b = Builder(program.name, reserved=frozenset(program.table))
    refs = dict[str, Ref]()
    for name in program.inputs:
        t, order = program[name], orders.get(name, ())
        x = b.input(name, tuple(t.shape[i] for i in order) or t.shape, t.dtype)
        back = tuple(order.index(i) for i in range(len(order)))
        refs[name] = b.op("transpose", x, perm=back, name=f"{name} as given") if order else x
    for node in program.nodes:  # constants of an input's extents follow what is seen of it
        attrs = renamed(node.attrs, lambda n: refs[n].name)
        refs[node.output] = copied(b, program, replace(node, attrs=tuple(attrs.items())), [refs[i] for i in node.inputs])
    return b.build(*(refs[n] for n in program.outputs))
