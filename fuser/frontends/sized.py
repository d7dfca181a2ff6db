"""Models of which some sizes are open: they are imported at the sizes that are wanted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from fuser.errors import UnsupportedError
from fuser.errors import UntraceableError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.torch_call import is_tensor
from fuser.frontends.torch_export import from_torch
from fuser.frontends.torch_trace import traced

Place = tuple[str, int]
"""An input and a dimension of it."""


@dataclass(frozen=True)
class Sized:
    """``places`` has the dimensions of inputs by the name of their size, ``limits`` the least and the largest that the model
    takes (None: any). ``at`` imports it at sizes by name. ``whole`` is the model itself, where it can be called."""

    name: str
    places: Mapping[str, tuple[Place, ...]]
    limits: Mapping[str, tuple[int, int | None]]
    at: Callable[[Mapping[str, int]], Imported] = field(repr=False)
    whole: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        found = ((s, ", ".join(map(place_name, at))) for s, at in self.places.items())
        return ", ".join(s if s == at else f"{s} ({at})" for s, at in found) or "no dimension"


def place_name(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def sized_torch(exported: Any, name: str, whole: Any = None) -> Sized:
    """An exported program with symbolic sizes."""
    import torch
    from torch.utils import _pytree as pytree

    module = exported.module()
    held = {s.arg.name: s for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"}
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder" and n.name in held]
    places: dict[str, list[Place]] = {}
    for node in nodes:
        value = node.meta.get("val")
        for i, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(extent, int) and extent.node.expr.is_Symbol:
                places.setdefault(str(extent.node.expr), []).append((node.name, i))
    if missing := {str(s) for n in nodes for s in _symbols(n.meta.get("val"))} - places.keys():
        raise UnsupportedError(f"the size {min(missing)} of {name!r} is no dimension of an input", "export it otherwise")
    _check_extents(exported, name)
    ranges = {str(s): r for s, r in exported.range_constraints.items()}
    names = {s: place_name(found[0]) for s, found in places.items()}  # torch's own mean nothing to anybody
    dropped = {str(s) for node in exported.graph.nodes for s in _dropped(node)}
    limits = {names[s]: _limits(ranges.get(s), 2 if s in dropped else 1) for s in places}

    def leaf(node: Any, sizes: Mapping[str, int]) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return getattr(held[node.name].arg, "value", value)
        shape = [e if isinstance(e, int) else _size(e.node.expr, names, sizes) for e in value.shape]
        return torch.zeros(shape, dtype=value.dtype, device=value.device)

    def at(sizes: Mapping[str, int]) -> Imported:
        args, keywords = pytree.tree_unflatten([leaf(n, sizes) for n in nodes], exported.call_spec.in_spec)
        return from_torch(module, tuple(args), name, keywords)

    return Sized(name, {names[s]: tuple(p) for s, p in places.items()}, limits, at, whole)


def _symbols(value: Any) -> set[Any]:
    extents = getattr(value, "shape", ())
    return {s for e in extents if not isinstance(e, int) for s in e.node.expr.free_symbols}


def _check_extents(exported: Any, name: str) -> None:
    """Raises :class:`UnsupportedError` for an extent that follows from one size here, from another there."""
    from torch.utils import _pytree as pytree

    for node in exported.graph.nodes:
        for extent in pytree.tree_leaves([list(v.shape) for v in pytree.tree_leaves(node.meta.get("val")) if is_tensor(v)]):
            if not isinstance(extent, int) and _turns(extent.node.expr, exported.range_constraints):
                raise UnsupportedError(
                    f"an extent of {node.name} in {name!r} is another one for small sizes than for large ones: {extent}",
                    "export the module with dynamic_shapes, whose least sizes are beyond that",
                )


def _turns(extent: Any, ranges: Mapping[Any, Any]) -> bool:
    """Whether an extent is the smaller or the larger of two of which the one is less here, the other there."""
    from torch.utils._sympy.functions import Max
    from torch.utils._sympy.functions import Min
    from torch.utils._sympy.value_ranges import bound_sympy

    for choice in extent.atoms(Min, Max):
        first, *others = sorted((bound_sympy(x, ranges) for x in choice.args), key=lambda b: (b.lower, b.upper))
        if any(first.upper > b.lower for b in others) or len(others) > 1:
            return True
    return False


def _dropped(node: Any) -> set[Any]:
    """The sizes whose dimension a call takes away where it is 1: results have others then than at all other sizes."""
    if not str(node.target).startswith("aten.squeeze."):
        return set()
    x, *dims = node.args
    shape = x.meta["val"].shape
    named = range(len(shape)) if not dims else dims[0] if isinstance(dims[0], (list, tuple)) else dims
    return {s for d in named if not isinstance(shape[d], int) for s in shape[d].node.expr.free_symbols}


def _limits(found: Any, least: int) -> tuple[int, int | None]:
    """What torch knows of a size, as numbers of sympy."""
    if found is None:
        return least, None
    lower, most = found.lower, found.upper
    return max(least, int(lower)), int(most) if most.is_Integer and int(most) < 2**31 else None


def _size(expression: Any, names: Mapping[str, str], sizes: Mapping[str, int]) -> int:
    return int(expression.subs({s: sizes[names[str(s)]] for s in expression.free_symbols}))


def sized_module(
    module: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], declared: Mapping[str, tuple[Sequence[Place], int]]
) -> Sized:
    """A module whose dimensions at the ``declared`` places, by the name of their size and with its largest value, are open.
    Raises :class:`UsageError` for places that there are not, and where torch finds that a dimension is not open."""
    import torch

    try:
        names = list(inspect.signature(module.forward).bind(*inputs, **keywords).arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the example inputs do not fit {type(module).__name__}: {error}") from error
    values = dict(zip(names, inputs, strict=False)) | dict(keywords)
    shapes: dict[str, Any] = dict.fromkeys(values)
    ones: dict[str, list[int]] = {}
    for i, (size, (places, most)) in enumerate(declared.items()):
        dim = torch.export.Dim(f"size{i}", min=1, max=most)
        for name, axis in places:
            rank = len(getattr(values.get(name), "shape", ()))
            if not -rank <= axis < rank:
                hint = f"inputs: {', '.join(values)}; with tensors in tuples, export it with dynamic_shapes and pass that"
                raise UsageError(f"{size!r} names no dimension of an input tensor", hint)
            shapes[name] = {**(shapes[name] or {}), axis % rank: dim}
            ones.setdefault(name, []).extend([axis % rank] if values[name].shape[axis] == 1 else [])
    kind = type(module).__name__
    try:
        args = tuple(_doubled(x, ones.get(n, ())) for n, x in zip(names, inputs, strict=False))
        exported = traced(module, args, {n: _doubled(x, ones.get(n, ())) for n, x in keywords.items()}, kind, shapes)
    except UntraceableError as error:
        lines = [line.strip("- ") for line in str(error.__cause__).splitlines() if line.strip().startswith("- ")]
        why = f"torch.export says: {lines[0]}" if lines else error.message
        for i, size in enumerate(declared):
            why = why.replace(f"size{i}", size)
        raise UsageError(
            f"the sizes of {kind} cannot be open as {', '.join(declared)} says: {why}",
            "name all dimensions that share a size in one key, 'x:1,mask:1', or give that dimension one size",
        ) from error
    return sized_torch(exported, kind, module)


def _doubled(x: Any, axes: Sequence[int]) -> Any:
    """An example with two elements along axes of one, which torch takes for sizes that never change."""
    for axis in axes:
        x = x.expand(*(2 if i == axis else n for i, n in enumerate(x.shape)))
    return x
