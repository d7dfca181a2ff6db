"""Calls and values of a graph of torch's operators: whether they draw random numbers, and what a program has no place for."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.frontends.torch_call import arguments
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.elements import WHOLE
from fuser.ir.elements import whole_constants
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import is_number
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.scalar import numbers


def draws(node: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers: those whose dropout is inactive do not."""
    import torch

    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = arguments(node, args, kwargs)
    inactive = any(given.get(n) is False for n in ("train", "training")) or any(
        given.get(n) == 0 for n in ("dropout", "dropout_p", "p")
    )
    return not inactive


def as_function(node: Any, call: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """A call with the arguments of a node, as a function of those among them that are nodes, in order; and these."""
    import torch
    from torch.utils import _pytree as pytree

    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.fx.Node)]

    def function(*operands: Any) -> Any:
        given = list(flat)
        for i, x in zip(places, operands, strict=True):
            given[i] = x
        args, kwargs = pytree.tree_unflatten(given, spec)
        return call(*args, **kwargs)

    return function, [flat[i] for i in places]


def needed(nodes: Sequence[Any]) -> set[Any]:
    """Nodes that decide the results."""
    found = {n for n in nodes if n.op == "output"}
    for node in reversed(nodes):
        if node in found:
            found.update(node.all_input_nodes)
    return found


def sound(value: Ref, builder: Builder, before: int) -> bool:
    """Whether the operators behind the first so many make a value as torch does. Kernels compute in float32: of whole numbers and
    bits they move some, compare some, and compute what is exact."""
    if value.tensor.dtype in FLOAT_DTYPES:
        return True

    def exact(node: Node) -> bool:
        given = {builder.tensor(n).dtype for n in node.inputs}
        # what is rounded where it is stored may be another number if it is not
        rounded = node.op == "cast" and not given.isdisjoint(NARROW)
        constants = (float(v) for k, v in numbers(node.attrs).items() if is_number(k) and v is not None)
        return value.tensor.dtype != "bool" and node.op in WHOLE and whole_constants(constants) and not rounded

    def moved(entry: OpDef) -> bool:
        return entry.kind in ("view", "data", "library") or (entry.indexed and not entry.hidden)

    return all(moved(n.entry) or n.entry.typed == "truth" or exact(n) for n in builder.since(before))


def leaves(value: Any) -> list[Any]:
    """Results of a graph, in order; numbers and None among them."""
    if isinstance(value, (tuple, list)):
        return [leaf for v in value for leaf in leaves(v)]
    return [value]


def no_dense(name: str, value: Any) -> UnsupportedError:
    return UnsupportedError(f"{name} is no dense tensor: its layout is {value.layout}", "convert it in front: x.to_dense()")


def _settled(extent: Any) -> Any:
    """An extent that export knows and has a symbol for (``bincount``'s of as many as ``minlength``), as a number."""
    return extent if isinstance(extent, int) or not extent.node.expr.is_Integer else int(extent.node.expr)


def static(name: str, shape: Any) -> tuple[int, ...]:
    shape = tuple(map(_settled, shape))
    for i, extent in enumerate(shape):
        if not isinstance(extent, int):
            if re.search(r"\bu\d", str(extent)):
                raise ProgramError(f"dimension {i} of {name!r} depends on values", "export the part of the module around it")
            raise ProgramError(
                f"dimension {i} of {name!r} is dynamic ({extent}): shapes must be static",
                "give its sizes (--buckets, buckets= in Python), or export without dynamic_shapes",
            )
        if extent < 1:
            raise ProgramError(f"dimension {i} of {name!r} is empty", "give example inputs of the sizes that you deploy")
    return shape


def is_empty(name: str, result: Any) -> bool:
    """Whether there is nothing to compute of a tensor. Raises :class:`UnsupportedError` for one that is no dense one of fixed
    sizes."""
    import torch

    if all(isinstance(e, int) for e in result.shape) and 0 in result.shape:
        return True
    static(name, result.shape)
    if result.layout is not torch.strided:
        raise no_dense(name, result)
    return False
