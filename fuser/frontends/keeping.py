"""Tensors of a call that a module keeps in attributes (the weights of an attention, to be looked at): further results of the
program, which a call sets where the module has them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.left import WAY_OUT
from fuser.frontends.left import Left
from fuser.frontends.left import attribute_of
from fuser.frontends.torch_call import aten_name
from fuser.frontends.torch_rules import IDENTITY
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS


class Owner:
    """The parts of the module that a program was made of, by name, while somebody has them: what a call keeps is set there, past
    setters, which a trace has run. No part of a copy that another process has."""

    def __init__(self, module: Any = None) -> None:
        parts = () if module is None else module.named_modules()
        self._parts = {name: weakref.ref(part) for name, part in parts}

    def __reduce__(self) -> Any:
        return Owner, ()

    def keep(self, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            part, _, own = name.rpartition(".")
            if part in self._parts and (found := self._parts[part]()) is not None:
                vars(found)[own] = value


def kept_of_calls(exported: Any, is_given: Callable[[Any], bool]) -> dict[str, Any]:
    """Attributes that the module sets to tensors that depend on what it is ``given``, with the fake tensors of a trace. Raises
    :class:`UnsupportedError` where it puts such elsewhere into what it holds."""
    from torch.utils import _pytree

    spec = exported.call_spec.out_spec
    if spec.type is not Left:
        return {}
    nodes = exported.graph.output_node().args[0]
    left = _pytree.tree_unflatten(nodes, spec)
    depend = list(
        dict.fromkeys(attribute_of(n) for n, node in zip(left.names, left.held, strict=True) if _depends(node, is_given))
    )
    if others := [n for n in depend if n not in dict(left.forms)]:
        what = f"the module keeps a tensor in {others[0]}"
        raise UnsupportedError(f"{what} that depends on its inputs: a program has no side effects", WAY_OUT)
    found = left.attributes(depend) if depend else {}
    for name, x in found.items():
        if any(node.op == "placeholder" for node in _pytree.tree_leaves(x)):  # the next call may ask whether it is the same
            raise UnsupportedError(f"the module keeps an input in {name}: a program has no side effects", WAY_OUT)
    return {n: _pytree.tree_map(lambda node: node.meta["val"], x) for n, x in found.items()}


def without_held(exported: Any, is_given: Callable[[Any], bool]) -> Any:
    """The structure of what the module returns, with tensors that it keeps itself only where they depend on what it is
    ``given``; others are taken out of its graph. Raises as :func:`kept_of_calls` does."""
    from torch.utils import _pytree

    spec = exported.call_spec.out_spec
    if spec.type is not Left:
        return spec
    attributes = kept_of_calls(exported, is_given)
    end = exported.graph.output_node()
    left = _pytree.tree_unflatten(list(end.args[0]), spec)
    held = {n: node for n, node in zip(left.names, left.held, strict=True) if attribute_of(n) in attributes}
    forms = tuple((n, form) for n, form in left.forms if n in attributes)
    kept = Left(left.result, left.ways, left.contents, tuple(held), tuple(held.values()), forms)
    leaves, form = _pytree.tree_flatten(kept if left.ways or held else left.result)
    end.args = (type(end.args[0])(leaves),)
    return form


def _depends(node: Any, is_given: Callable[[Any], bool]) -> bool:
    todo, seen = [node], {node}
    while todo:
        n = todo.pop()
        if n.op == "placeholder" and is_given(n):
            return True
        new = [x for x in n.all_input_nodes if x not in seen]
        seen.update(new)
        todo += new
    return False


COPIES = IDENTITY | names_of(OPS["cast"].torch).keys()
"""Operators that return what they are given, in whatever dtype and place is asked for."""


def writes(exported: Any) -> dict[int, Any]:
    """What a call writes to, by the number of the output that has its new values."""
    return {i: s for i, s in enumerate(exported.graph_signature.output_specs) if s.kind.name.endswith("_MUTATION")}


def changed_by_calls(exported: Any) -> list[str]:
    """Names of what a call writes to. What it sets to the values that it has already (a buffer that each call moves to the device
    of its inputs) is none of it, and no longer an output of the graph."""
    end, written = exported.graph.output_node(), writes(exported)
    own = {s.arg.name: s.target for s in exported.graph_signature.input_specs}
    if changed := [str(s.target) for i, s in written.items() if own.get(_copied(end.args[0][i]).name) != s.target]:
        return changed
    if written:
        end.args = (type(end.args[0])(x for i, x in enumerate(end.args[0]) if i not in written),)
    return []


def _copied(node: Any) -> Any:
    """The node whose values another has, of the same dtype and on the same device."""

    def alike(a: Any, b: Any) -> bool:
        return (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)

    while node.op == "call_function" and aten_name(node.target) in COPIES:
        if not alike(node.meta["val"], node.args[0].meta["val"]):
            break
        node = node.args[0]
    return node
