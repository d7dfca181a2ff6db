"""Operators that return what they are given, or a view of it, where torch's schemas say that it is a tensor of its own: what is
written to their result in place is written to what they were given, which a graph without side effects must be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

UNSAID = frozenset(
    {"type_as", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "meshgrid", "cartesian_prod", "sum_to_size"}
)
"""Those that may return views of what they are given."""

UNSAFE = {"unsafe_chunk": "chunk", "unsafe_split": "split", "unsafe_split_with_sizes": "split_with_sizes"}
"""Those that return views, and whose schemas say that nobody writes to them; and the same without that promise."""


@contextmanager
def aliases_said(exported: Any) -> Iterator[dict[Any, Any]]:
    """Calls of an exported program that return what they are given are views of it for the time of a conversion; of operators
    that make other views the table has what torch makes of them."""
    import torch

    table: dict[Any, Any] = {}
    changed = []
    parts = [m for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for node in (n for part in parts for n in part.graph.nodes):
        if safe := _safe(node):
            changed.append((node, node.target, node.args, node.kwargs))
            node.target = safe
        elif isinstance(found := _aliased(node), torch.fx.Node):
            changed.append((node, node.target, node.args, node.kwargs))
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, (found,), {}
        elif found:
            table[node.target] = None
    if table:
        known = torch.export.default_decompositions()
        table = {op: known[op] for op in table if op in known}
    try:
        _written_again(parts, changed)
        yield table
    finally:
        for node, target, args, kwargs in changed:
            node.target, node.args, node.kwargs = target, args, kwargs
        _written_again(parts, changed)


def _written_again(parts: list[Any], changed: list[Any]) -> None:
    for part in parts if changed else ():
        part.recompile()


def safe_views(module: Any) -> None:
    """Calls of a graph of dynamo's that ask for their views not to be written to make them without asking."""
    changed = [n for part in module.modules() if hasattr(part, "graph") for n in part.graph.nodes if _safe(n)]
    for node in changed:
        node.target = _safe(node)
    if changed:
        module.recompile()


def _safe(node: Any) -> Any:
    """What makes the same views as an operator that asks for them not to be written to."""
    import torch

    target = node.target
    if node.op == "call_method":
        return UNSAFE.get(target)
    if node.op != "call_function":
        return None
    if isinstance(target, torch._ops.OpOverload):
        name = UNSAFE.get(target._schema.name.removeprefix("aten::"))
        return getattr(getattr(torch.ops.aten, name), target._overloadname) if name else None
    name = (
        UNSAFE.get(getattr(target, "__name__", "")) if getattr(target, "__module__", "") in (None, "torch", "torch._C") else None
    )
    return getattr(torch, name) if name else None


def _aliased(node: Any) -> Any:
    """The node that a call returns as it is; True where it returns another view of a tensor among its arguments; else None. Only
    of calls whose schema says neither."""
    import torch
    from torch.utils._pytree import tree_flatten
    from torch.utils._pytree import tree_leaves

    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    if any(r.alias_info for r in target._schema.returns) or not target._can_decompose():
        return None
    flat, form = tree_flatten((node.args, node.kwargs))
    values = [x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in flat]
    results = node.meta.get("val")
    one = isinstance(results, torch.Tensor)
    given = {i: x for i, x in enumerate(values) if isinstance(x, torch.Tensor) and x.layout is torch.strided}
    if not given or not all(isinstance(n, int) for x in given.values() for n in (*x.shape, *x.stride())):
        return None
    bare = {i: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for i, x in given.items()}
    args, kwargs = form.unflatten([bare.get(i, x) for i, x in enumerate(values)])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = [x for x in tree_leaves(target(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    except Exception:  # noqa: BLE001 - an operator that cannot do without data
        return None
    by_storage = {x.untyped_storage()._cdata: i for i, x in bare.items()}
    shown = [i for x in found if (i := by_storage.get(x.untyped_storage()._cdata)) is not None]
    if not shown or any(given[i].device != r.device for i in shown for r in tree_leaves(results) if isinstance(r, torch.Tensor)):
        return None
    x, y = bare[shown[0]], found[0]
    same = one and (x.shape, x.stride(), y.storage_offset(), x.dtype) == (y.shape, y.stride(), 0, y.dtype)
    return flat[shown[0]] if same else True


@contextmanager
def true_dropout() -> Iterator[None]:
    """Torch traces dropout that is inactive as a copy; for the time of a trace here it is what it is given."""
    import torch

    op = torch.ops.aten.dropout.default
    own = dict(op.py_kernels)

    def dropout(x: Any, p: float, train: bool | None) -> Any:
        return torch.ops.aten.native_dropout(x, p, train)[0] if train and p != 0 else x

    op.py_kernels.update(dict.fromkeys(own, dropout))
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.clear()
        op.py_kernels.update(own)
        op._dispatch_cache.clear()
