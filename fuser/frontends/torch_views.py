"""What a module returns as views: of its inputs, or of what it computes."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from fuser.frontends.imported import Views

ITSELF = frozenset({"dropout", "detach", "alias"})
"""Operators that return what they are given (dropout where it is inactive)."""
LIKE = {"aten.view_as.default": "view", "aten.expand_as.default": "expand"}
"""Operators that show a tensor in the shape of another one, and those that are given the shape."""


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
    if getattr(call, "op", "") != "call_function" or not call.args:
        return None
    if (like := LIKE.get(str(call.target))) and isinstance(call.args[1].meta.get("val"), torch.Tensor):
        view = getattr(torch.ops.aten, like).default
        return call.args[0], ((view, (tuple(call.args[1].meta["val"].shape),), {}, None),)
    if call.all_input_nodes != [call.args[0]]:
        return None
    if str(call.target).split(".")[1:2] and str(call.target).split(".")[1] in ITSELF:
        return call.args[0], ()
    if not getattr(call.target, "is_view", False) or "as_strided" in str(call.target):
        return None
    return call.args[0], ((call.target, tuple(call.args[1:]), dict(call.kwargs), field),)


def part_of(node: Any, whole: Collection[Any]) -> tuple[Any, Views] | None:
    """The one of some nodes that another one shows a part of, and how; None where it shows none of them."""
    base, views = node, ()
    while base not in whole or base is node:
        if (step := _step(base)) is None:
            return None
        base, views = step[0], (*step[1], *views)
    return None if _without_copy(base, views) is None else (base, views)


def seen(x: Any, views: Views) -> Any:
    """Views of a tensor."""
    for call, args, keywords, field in views:
        found = call(x, *args, **keywords)
        x = found if field is None else found[field]
    return x


def _without_copy(base: Any, views: Views) -> Views | None:
    """The views, none where they show the tensor as it is; None where one of them copies."""
    import torch

    value: Any = getattr(base, "meta", {}).get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return () if not views else None
    x = torch.empty(value.shape, dtype=value.dtype, device="meta")
    if base.op == "placeholder":
        x = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    try:
        y = seen(x, views)
    except (RuntimeError, TypeError):  # torch's own lies so that it is a view there
        return None
    same = y.untyped_storage()._cdata == x.untyped_storage()._cdata
    plain = y.dtype == x.dtype and y.shape == x.shape and y.stride() == x.stride() and y.storage_offset() == 0
    return (() if plain else views) if same else None
