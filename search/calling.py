"""How what was made of a module is called: as the module is, or with its tensors alone."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.errors import UsageError
from fuser.frontends.imported import Called


def plain(called: Called | None, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether the module takes tensors in order and returns one, or a tuple of them: there is no tree to look at."""
    if called is None:
        return True
    if tuple(r.name for r in called.results) != tuple(outputs) or called.inputs != tuple(inputs):
        return False
    returns = called.returns
    if not returns.is_leaf() and not (returns.type is tuple and len(outputs) > 1 and returns.num_children == len(outputs)):
        return False
    return all(leaf.is_leaf() for part in called.arguments.children() for leaf in part.children())


def tensors_alone(called: Called, inputs: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a call gives each of the program's ``inputs`` by itself, in order or by name."""
    if any(isinstance(x, (tuple, list, dict)) for x in given) or len(given) + len(named) != len(inputs):
        return False
    return set(named) <= set(inputs) and len([n for n in called.inputs if n]) == len(inputs)


def as_module(called: Called, what: str, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by the program's names for a call as the module is called. Raises :class:`UsageError` where the arguments have
    another structure than the example's, or another value where that was no tensor."""
    from torch.utils import _pytree

    keywords = called.arguments.child(1).context or []
    if set(keywords) == set(named):
        named = {k: named[k] for k in keywords}
    leaves, tree = _pytree.tree_flatten((tuple(given), dict(named)))
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


def _shown(called: Called, leaves: Sequence[str]) -> str:
    from torch.utils import _pytree

    args, keywords = _pytree.tree_unflatten(list(leaves), called.arguments)
    return f"({', '.join([*map(str, args), *(f'{k}={v}' for k, v in keywords.items())])})"


def returned(called: Called, found: Mapping[str, Any]) -> Any:
    """What the module returns, of the program's outputs by name."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten([found[r.name] if r.name else r.value for r in called.results], called.returns)
