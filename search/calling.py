"""How what was made of a module is called: as the module is, or with its tensors alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from fuser.aten import of_parts
from fuser.aten import real_view
from fuser.errors import UsageError
from fuser.frontends.imported import Called
from fuser.frontends.imported import Order
from fuser.frontends.imported import Result
from fuser.frontends.left import given_back
from fuser.frontends.left import leaves_behind
from fuser.frontends.opened import opened
from fuser.frontends.opened import opens
from fuser.frontends.torch_views import viewer
from fuser.ir.program import TensorProgram

Asked = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments of a call, in order and by name, as they were given."""
Leaf = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""Makes a result of the program's outputs, and of inputs, by name."""


def plain(called: Called | None, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether the module takes tensors in order and returns one, or a tuple of them: there is no tree to look at."""
    if called is None:
        return True
    if called.complex or any(r.complex for r in called.results):
        return False
    if tuple(r.name for r in called.results) != tuple(outputs) or called.inputs != tuple(inputs):
        return False
    returns = called.returns
    if not returns.is_leaf() and not (
        returns.type is tuple and len(outputs) > 1 and all(c.is_leaf() for c in returns.children())
    ):
        return False
    return all(leaf.is_leaf() for part in called.arguments.children() for leaf in part.children())


def tensors_alone(called: Called, inputs: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a call gives each of the program's ``inputs`` by itself, in order or by name."""
    if any(isinstance(x, (tuple, list, dict)) for x in given) or len(given) + len(named) != len(inputs):
        return False
    if leaves_behind(called.returns) or (opens(called.arguments) and opened(alone := tuple(given)) is not alone):
        return False
    return set(named) <= set(inputs) and len([n for n in called.inputs if n]) == len(inputs)


def as_module(called: Called, what: str, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by the program's names for a call as the module is called. Raises :class:`UsageError` where the arguments have
    another structure than the example's, or another value where that was no tensor."""
    from torch.utils import _pytree

    keywords = called.arguments.child(1).context or []
    if set(keywords) == set(named):
        named = {k: named[k] for k in keywords}
    values = (tuple(given), dict(named))
    leaves, tree = _pytree.tree_flatten(opened(values) if opens(called.arguments) else values)
    if tree != called.arguments:
        raise UsageError(
            f"{what} is called otherwise than with its example inputs",
            f"it was compiled for {_shown(called, [n or repr(v) for n, v in zip(called.inputs, called.fixed, strict=True)])}",
        )
    found: dict[str, Any] = {}
    for i, (name, fixed, leaf) in enumerate(zip(called.inputs, called.fixed, leaves, strict=True)):
        if name:
            found[name] = leaf
        elif leaf is not fixed and leaf != fixed:
            raise UsageError(f"argument {i} of {what} was {fixed!r} when it was compiled, got {leaf!r}", "compile it again")
    return found


def real_parts(
    called: Called | None, program: TensorProgram, given: Mapping[str, Any], orders: Mapping[str, Order] | None = None
) -> Mapping[str, Any]:
    """Tensors by name as a program has them: both parts of complex numbers. Raises :class:`UsageError` for other numbers, and
    where ``orders`` say how all lie, for other shapes."""
    if called is None or not called.complex:
        return given
    import torch

    found = dict(given)
    for name in called.complex & given.keys():
        x, inner = given[name], program[name]
        x = x if isinstance(x, torch.Tensor) else torch.from_dlpack(x)
        order, dtype = (orders or {}).get(name), getattr(torch, inner.dtype).to_complex()
        shape = tuple(inner.shape[order.index(i)] for i in range(len(order))) if order else inner.shape
        if x.dtype != dtype or (orders is not None and tuple(x.shape) != shape[:-1]):
            said = str(dtype).removeprefix("torch.")
            raise UsageError(f"{name} must be {name}{list(shape[:-1])}:{said}, got {tuple(x.shape)} {x.dtype}")
        found[name] = real_view(x)
    return found


def rearranged(called: Called | None, what: str, given: Sequence[Any], named: Mapping[str, Any]) -> Asked | None:
    """The arguments of a call as those of the example were given, in order or by name, without those that have their default;
    None where they are so, or where the module takes none such. Raises :class:`UsageError` for one that the example had not."""
    form = called.signature if called is not None else None
    if called is None or form is None or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in form.parameters.values()):
        return None
    try:
        values = dict(form.bind(*given, **named).arguments)
    except TypeError:
        return None
    ordered, keywords = called.arguments.children()
    names: list[str] = list(keywords.context or ())
    first = list(form.parameters)[: ordered.num_children]
    for name in [n for n in values if n not in (*first, *names)]:
        value, default = values.pop(name), form.parameters[name].default
        if value is not default and (hasattr(value, "shape") or value != default):
            raise UsageError(
                f"{what} was compiled with {name}={default!r}, got {_short(value)}", "give it with the example inputs"
            )
    if not {*first, *names} <= values.keys():
        return None
    again = tuple(values[n] for n in first), {n: values[n] for n in names}
    same = len(again[0]) == len(given) and again[1].keys() == named.keys()
    return None if same else again


def _short(value: Any) -> str:
    return f"a {type(value).__name__}" if hasattr(value, "shape") else repr(value)[:80]


def _shown(called: Called, leaves: Sequence[str]) -> str:
    from torch.utils import _pytree

    args, keywords = _pytree.tree_unflatten(list(leaves), called.arguments)
    return f"({', '.join([*map(str, args), *(f'{k}={v}' for k, v in keywords.items())])})"


def returned(called: Called, found: Mapping[str, Any], asked: Asked, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """What the module returns, of the program's outputs by name, and of the inputs that were ``given``; what it changes of what
    was ``asked`` with is changed."""
    from torch.utils import _pytree

    tree = _pytree.tree_unflatten(leaves_of(called, found, given), called.returns)
    return given_back(tree, asked, called.owner) if leaves_behind(called.returns) or opens(called.returns) else tree


def leaves_of(called: Called, found: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
    """The leaves of what the module returns."""
    return [make(found, given) for make in leaf_makers(called)]


def leaf_makers(called: Called) -> list[Leaf]:
    """What makes each leaf of what the module returns."""
    return [_leaf(r) for r in called.results]


def _leaf(result: Result) -> Leaf:
    name, base, value = result.name, result.base, result.value
    if name:
        return (lambda found, _: of_parts(found[name])) if result.complex else lambda found, _: found[name]
    if base:
        view = viewer(result.views)
        return lambda found, given: view(given[base] if base in given else found[base])
    if hasattr(value, "new_empty"):  # a tensor without elements: another one each time
        return lambda *_: value.new_empty(value.shape)
    return lambda *_: value


def copied_into(called: Called, values: Any, out: Any) -> Any:
    """What a module returns, copied into ``out``: a tensor, or as many as it returns. Raises :class:`UsageError` for others."""
    from torch.utils import _pytree

    if leaves_behind(called.returns) or opens(called.returns):
        raise UsageError(
            "the module returns objects, or changes what it is given, which is not written into out=", "leave it out"
        )
    leaves, into = _pytree.tree_leaves(values), list(out) if isinstance(out, tuple | list) else [out]
    places = [i for i, r in enumerate(called.results) if r.name or r.base]
    shapes = [(x.shape, x.dtype) for x in (leaves[i] for i in places)]
    if isinstance(out, Mapping) or [(getattr(y, "shape", None), getattr(y, "dtype", None)) for y in into] != shapes:
        wanted = ", ".join(f"{tuple(shape)} {dtype}" for shape, dtype in shapes)
        raise UsageError("what the module returns, views among it, does not fit into out=", f"pass tensors for {wanted}")
    for i, y in zip(places, into, strict=True):
        leaves[i] = y.copy_(leaves[i])
    return _pytree.tree_unflatten(leaves, called.returns)
