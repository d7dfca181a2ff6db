"""What a module returns as views: of its inputs, or of what it computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from fuser.frontends.imported import Order
from fuser.frontends.imported import Views
from fuser.frontends.torch_alias import UNSAID

ITSELF = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "to", "type_as"})
"""Operators that may return what they are given."""
LYING = 16
"""Ways in which tensors lie whose views are remembered."""


def shown(node: Any) -> tuple[Any, Views]:
    """The node of a graph of ATen operators that another one shows, and the views of it in order; the node itself where it is a
    tensor of its own. What is given lies as in the examples, what is computed row after row."""
    way: list[tuple[Any, Views]] = [(node, ())]
    while (step := _step(way[0][0])) is not None:
        origin, view = step
        way = [(origin, ()), (way[0][0], view), *way[1:]]
    for i, (base, _) in enumerate(way):
        views: Views = tuple(v for _, some in way[i + 1 :] for v in some)
        if (found := _without_copy(base, views)) is not None:
            return base, found
    return node, ()


def _step(node: Any) -> tuple[Any, Views] | None:
    """The tensor that a call shows, and how."""
    import torch

    call, field = (node.args[0], node.args[1]) if getattr(node, "target", None) is operator.getitem else (node, None)
    if not isinstance(getattr(call, "target", None), torch._ops.OpOverload) or not call.args:
        return None
    name = str(call.target).split(".")[1]
    if field is not None and name in UNSAID and isinstance(call.args[0], (list, tuple)):
        shapes = [tuple(x.meta["val"].shape) for x in call.args[0]]
        return call.args[0][field], ((among, (call.target, shapes, field), dict(call.kwargs), None),)
    if name == "einsum" and len(call.args[1]) == 1:
        return call.args[1][0], ((alone, (call.target, call.args[0]), {}, None),)
    if not _is_tensor(call.args[0]):
        return None
    if name in ITSELF:
        return (call.args[0], ()) if _returns_it(call) else None
    if not (call.target.is_view or name in UNSAID) or "as_strided" in name:
        return None
    rest = torch.fx.map_arg(tuple(call.args[1:]), _shape_alone)
    if call.kwargs and torch.fx.map_arg(call.kwargs, _shape_alone) != call.kwargs:
        return None
    return call.args[0], ((call.target, rest, dict(call.kwargs), field),)


def among(x: Any, call: Any, shapes: Sequence[Sequence[int]], at: int, **keywords: Any) -> Any:
    """What an operator on several tensors makes of one: of the others it takes the shapes."""
    others = x.new_empty(())
    return call([x if i == at else others.expand(shape) for i, shape in enumerate(shapes)], **keywords)[at]


def alone(x: Any, call: Any, equation: str) -> Any:
    """An einsum of one tensor."""
    return call(equation, [x])


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor)


def _shape_alone(node: Any) -> Any:
    """Another tensor of a view says a shape (``view_as``)."""
    import torch

    return torch.empty_like(node.meta["val"], device="meta") if _is_tensor(node) else node


def _returns_it(call: Any) -> bool:
    """Dropout that is inactive, a conversion to what a tensor is."""
    from fuser.frontends.torch_call import arguments

    x, y = call.args[0].meta["val"], call.meta["val"]
    given = arguments(call, call.args, call.kwargs)
    if given.get("copy") or (given.get("train") and given.get("p")) or given.get("memory_format"):
        return False
    return (x.dtype, x.device, x.layout) == (y.dtype, y.device, y.layout)


def seen(x: Any, views: Views) -> Any:
    """Views of a tensor."""
    for call, args, keywords, field in views:
        found = call(x, *args, **keywords)
        x = found if field is None else found[field]
    return x


def viewer(views: Views) -> Callable[[Any], Any]:
    """What :func:`seen` returns, for many calls: the views of a tensor that lies as one before are where those were, which is one
    call of torch, however many views there are and whatever else they make (all chunks, for one)."""
    import torch

    known: dict[Any, tuple[Any, Any, int] | None] = {}
    plain = torch.Tensor, torch.nn.Parameter

    def view(x: Any) -> Any:
        place = x.shape, x.stride()
        if place not in known or x.requires_grad or x.is_neg() or x.is_conj() or type(x) not in plain:
            y = seen(x, views)
            if len(known) < LYING and (y is x or _lies_in(y, x)):
                known[place] = None if y is x else (y.shape, y.stride(), y.storage_offset() - x.storage_offset())
            return y
        if (found := known[place]) is None:
            return x
        size, stride, first = found
        return x.as_strided(size, stride, x.storage_offset() + first)

    return view if views else lambda x: x


def _lies_in(y: Any, x: Any) -> bool:
    """Whether both show the same memory in the same way."""
    alike = y.dtype is x.dtype and not any(t.is_neg() or t.is_conj() for t in (x, y))
    return alike and y.untyped_storage()._cdata == x.untyped_storage()._cdata


def _without_copy(base: Any, views: Views) -> Views | None:
    """The views, none where they show what is computed as it is; None where one of them copies: of the tensor as the module has
    it, or as it is here."""
    import torch

    value: Any = getattr(base, "meta", {}).get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return () if not views else None
    there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    here = there if base.op == "placeholder" else torch.empty(value.shape, dtype=value.dtype, device="meta")
    if _viewed(there, views) is None or (y := _viewed(here, views)) is None:
        return None
    plain = (y.shape, y.stride(), y.storage_offset(), y.dtype) == (here.shape, here.stride(), 0, here.dtype)
    plain = plain and not (y.is_conj() or y.is_neg())
    return () if plain and base.op != "placeholder" else views


def _viewed(x: Any, views: Views) -> Any | None:
    """Views of a tensor of ``meta``; None where one of them copies, or torch has none of what lies so."""
    try:
        y = seen(x, views)
    except (RuntimeError, TypeError):
        return None
    return y if y.untyped_storage()._cdata == x.untyped_storage()._cdata else None


def order_of(x: Any) -> Order:
    """Dimensions of a tensor in the order in which they lie, where that is another than their own; nothing of tensors with gaps
    or repetitions."""
    if x.is_contiguous() or not x.numel():
        return ()
    order = tuple(sorted(range(x.dim()), key=lambda i: (-x.stride(i), i)))
    return order if x.permute(order).is_contiguous() else ()
