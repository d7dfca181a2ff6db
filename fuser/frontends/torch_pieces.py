"""ATen operators as torch itself makes them of others."""

from __future__ import annotations

from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.torch_nodes import as_function
from fuser.frontends.torch_rules import IDENTITY
from fuser.runtime.recurrent import network

BATCHED = frozenset(
    {"_add_batch_dim", "_remove_batch_dim", "_vmap_increment_nesting", "_vmap_decrement_nesting", "lazy_load_decompositions"}
)
"""Calls that ``torch.vmap`` leaves in a graph."""


def autocasts(node: Any) -> bool:
    """Whether operators inside of a call have their operands cast by torch, which the graph does not say."""
    return str(node.target) == "wrap_with_autocast" and node.args[2] is not False


def mutates(node: Any) -> bool:
    """Whether a call of a graph writes to what it is given."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def to_be_decomposed(graph: Any) -> bool:
    """Whether a trace writes in place, casts unsaid, or adds dimensions for ``torch.vmap``, which the operators behind do not
    see."""
    return bool(_transforms(graph) & BATCHED) or any(mutates(n) or autocasts(n) for n in graph.nodes)


def without_derivatives(exported: Any, name: str) -> None:
    """Raises :class:`UnsupportedError` where a trace takes derivatives by ``torch.func``, which it does when it runs: what it
    holds of them lies nowhere, and torch dies of decomposing it."""
    import torch

    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    held = any(isinstance(x, torch.Tensor) and wrapped(x) for x in exported.constants.values())
    if held or not _transforms(exported.graph) <= BATCHED:
        raise UnsupportedError(
            f"{name} takes derivatives by torch.func, which a trace of it leaves for when it runs",
            "call what fuser.compile makes of it where there is a GPU (it is compiled graph by graph), or use "
            "torch.compile(module, backend='mufuser')",
        )


def _transforms(graph: Any) -> set[str]:
    """What ``torch.func`` has left in a graph, and in parts of it."""
    parts = [m.graph for m in graph.owning_module.modules() if hasattr(m, "graph")] if graph.owning_module else [graph]
    calls = (n.target for part in parts for n in part.nodes if n.op == "call_function")
    return {f.__name__ for f in calls if getattr(f, "__module__", "") == "torch._functorch.predispatch"}


def by_strides(node: Any) -> bool:
    """Whether a call takes elements from where they lie in memory, of what does not lie row after row as it does in a program,
    or need not: what a caller gives."""
    if not str(node.target).startswith("aten.as_strided"):
        return False
    given = root = node.args[0]
    while root.op == "call_function" and _same_memory(root):
        root = root.args[0]
    x = given.meta["val"]
    return root.op == "placeholder" or not x.is_contiguous() or x.storage_offset() != 0


def _same_memory(node: Any) -> bool:
    """Whether a program has no operator for a call: copies, and views, of what it is given."""
    schema = getattr(node.target, "_schema", None)
    name = str(node.target).split(".")[-2:][0]
    return name in {*IDENTITY, "dropout"} or (
        schema is not None and bool(schema.returns) and schema.returns[0].alias_info is not None
    )


def _steps(node: Any) -> int:
    """How often a recurrent network computes a cell; 0 of other calls, and where it is not said."""
    from fuser.frontends.torch_call import arguments

    if not network(str(node.target)):
        return 0
    given = arguments(node, node.args, node.kwargs)
    x = getattr(given.get("input"), "meta", {}).get("val")
    if x is None or "batch_first" not in given:
        return 0
    length = x.shape[1 if given["batch_first"] and len(x.shape) == 3 else 0]
    return int(length) * int(given["num_layers"]) * (1 + bool(given["bidirectional"]))


def pieces(node: Any, most: int) -> Any:
    """A graph over the tensors among the arguments of a call, in order, which does the same by other operators; None where
    torch knows none, or where a recurrent network has more steps than ``most`` (to trace a thousand takes minutes)."""
    import torch
    from torch._decomp import decomposition_table
    from torch.fx.experimental.proxy_tensor import make_fx

    target = node.target
    if _steps(node) > most:
        return None
    table = {target: made} if (made := decomposition_table.get(target)) else {}
    if not table and not target._can_decompose():
        return None
    call, operands = as_function(node, target)
    known = [x.meta.get("val") for x in operands]
    if not all(isinstance(v, torch._subclasses.FakeTensor) for v in known):
        return None
    try:
        with known[0].fake_mode, torch.no_grad():
            found = make_fx(call, decomposition_table=table)(*known)
            if any(map(mutates, found.graph.nodes)):
                found = make_fx(torch.func.functionalize(found))(*known)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # what torch's own rules raise for what they lack
        return None
    calls = [n for n in found.graph.nodes if n.op == "call_function"]
    for n in calls:
        n.meta.setdefault("stack_trace", node.stack_trace)
    return None if any(n.target is target for n in calls) else found
