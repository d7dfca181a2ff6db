"""Inputs that lie otherwise than row after row: images with their channels last, transposed matrices. A program has them as they
lie, and a view of them as the module sees them, so that no call copies them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram

Order = tuple[int, ...]


def as_they_lie(known: Imported, examples: Sequence[Any]) -> Imported:
    """The program with the inputs whose dimensions lie in another order in that order, as the examples of its inputs do."""
    orders = {n: order for n, x in zip(known.inputs, examples, strict=True) if (order := order_of(x))}
    if not orders or (known.called is not None and any(r.base in known.inputs for r in known.called.results)):
        return known
    traced = known.traced and replace(known.traced, orders=orders)
    return replace(known, program=_seen(known.program, orders), orders=orders, traced=traced)


def order_of(x: Any) -> Order:
    """Dimensions of a tensor in the order in which they lie, where that is another than their own; nothing of tensors with gaps
    or repetitions."""
    if x.is_contiguous() or not x.numel():
        return ()
    order = tuple(sorted(range(x.dim()), key=lambda i: (-x.stride(i), i)))
    return order if x.permute(order).is_contiguous() else ()


def laid(values: Mapping[str, Any], orders: Mapping[str, Order], program: TensorProgram) -> dict[str, Any]:
    """Tensors by name as a program has them. Raises :class:`UsageError` for one of another shape than the example."""
    found = dict(values)
    for name, order in orders.items():
        x, shape = values.get(name), tuple(program[name].shape[order.index(i)] for i in range(len(order)))
        if x is None:
            continue
        if tuple(x.shape) != shape:
            raise UsageError(f"{name} must be {name}{list(shape)}:{program[name].dtype}, got {tuple(x.shape)}")
        found[name] = x.permute(order) if hasattr(x, "permute") else x.transpose(order)
    return found


def _seen(program: TensorProgram, orders: Mapping[str, Order]) -> TensorProgram:
    from search.cover.rebuild import copied

    b = Builder(program.name, reserved=frozenset(program.table))
    refs = {}
    for name in program.inputs:
        t, order = program[name], orders.get(name, ())
        x = b.input(name, tuple(t.shape[i] for i in order) or t.shape, t.dtype)
        back = tuple(order.index(i) for i in range(len(order)))
        refs[name] = b.op("transpose", x, perm=back, name=f"{name} as given") if order else x
    for node in program.nodes:
        refs[node.output] = copied(b, program, node, [refs[i] for i in node.inputs])
    return b.build(*(refs[n] for n in program.outputs))
