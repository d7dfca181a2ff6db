"""Which whole numbers that a graph of torch's operators reads are places in tensors: only some of them may be given to it.

A graph that runs to be timed, or to be compared, must not read beside a tensor: that stops the GPU for the whole process.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from fuser.aten import moved_to

PLACED = ("copy", "clone", "view", "slice", "select", "permute", "squeeze", "expand", "alias")
"""Operators that only say where elements are."""
INDIFFERENT = "aten.eq.", "aten.ne.", "aten.lt.", "aten.le.", "aten.gt.", "aten.ge.", "aten.remainder.Scalar"
"""Operators to which any whole number is as good: comparisons, and what brings a place back into a range."""
DIVISIONS = tuple(f"aten.{n}." for n in ("div", "floor_divide", "remainder", "fmod"))
"""Operators that divide."""
VIEWED = (*(f"aten.{n}." for n in (*PLACED, "unsqueeze", "reshape", "_to_copy")), "prims.convert_element_type.")
"""Operators whose results have the same whole numbers as what they read."""


def fill_places(graph: Any, given: Sequence[Any]) -> None:
    """Random places in whole numbers that do nothing but say places, each once where there are enough, in each row at least: the
    compiler times its kernels with what it is given, and those that add up where they are told to take several times as long
    where all are told the same."""
    import torch

    for node, x in zip((n for n in graph.graph.nodes if n.op == "placeholder"), given, strict=True):
        extent = _extent(node)
        if any(_divides_by(node, u) for u in node.users) and not x.is_floating_point() and not x.any():
            x.fill_(1)
        if extent == math.inf and x.dim() and any(map(sorts, node.users)) and not x.any():
            extent = x.shape[-1]  # of equal numbers any order is right
        if extent is not None and 1 < extent < 2**62 and not x.any():
            memory, drawn = memory_of(x), torch.Generator(x.device).manual_seed(0)
            places = x if memory.numel() > extent and x.is_contiguous() else memory  # row by row, or all of them
            if places.shape[-1] <= extent:  # where a place is written twice, either number may be left there
                places.copy_(torch.rand(places.shape, device=x.device, generator=drawn).argsort(-1))
            else:
                memory.random_(0, int(extent), generator=drawn)


INDICES = {
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy"), 2),
    **dict.fromkeys(("index_fill", "index_reduce"), 2),
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl", "take", "put"), 1),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only", "nll_loss_forward", "nll_loss2d_forward"), 1),
}
"""Operators that read or write at places, and which of their arguments says these."""
BOUNDED = ("argsort", "argmax", "argmin", "remainder", "fmod", "bitwise_and")
"""Operators whose whole numbers are within bounds whatever they are given."""
BESIDE = ("topk", "sort", "max", "min", "kthvalue", "mode", "median")
"""Those of which the second result is such."""
MOST = 1 << 30
"""Bytes of what is computed on the CPU."""


def computes_places(graph: Any) -> bool:
    """Whether places in tensors are computed from numbers: of numbers that were drawn they may lie beside these."""
    return any(_drawn(i) for node in graph.graph.nodes for i in _indices(node))


def _name(node: Any) -> str:
    """Of an operator of ATen's, without its overload."""
    namespace, name, *_ = (*str(node.target).split("."), "")
    return name.rstrip("_") if namespace == "aten" else ""


def _indices(node: Any) -> list[Any]:
    at = INDICES.get(_name(node))
    if at is None or len(node.args) <= at:
        return []
    given = node.args[at] if isinstance(node.args[at], (list, tuple)) else [node.args[at]]
    return [x for x in given if hasattr(x, "op") and not str(getattr(x.meta.get("val"), "dtype", "")).endswith("bool")]


def _drawn(index: Any) -> bool:
    """Whether numbers of the caller's decide an index, other than by being places."""
    while str(index.target).startswith(VIEWED):
        index = index.args[0]
    if _bounded(index):
        return False
    todo, seen = [index], set[Any]()
    while todo:
        n = todo.pop()
        if n.op == "placeholder" and hasattr(n.meta.get("val"), "shape") and _extent(n) is None:
            return True
        todo += [x for x in n.all_input_nodes if x not in seen]
        seen.update(todo)
    return False


def _bounded(node: Any) -> bool:
    if node.target is operator.getitem:
        return node.args[1] == 1 and _name(node.args[0]) in BESIDE
    both = [*node.args[1:3], *node.kwargs.values()]
    return _name(node) in BOUNDED or (_name(node) == "clamp" and len([x for x in both if x is not None]) == 2)


def within_places(graph: Any, given: Sequence[Any]) -> list[Any] | None:
    """What a graph that computes places can be run with on a GPU, where a place beside a tensor stops the whole process: on the
    CPU that is an error. What is given, or ones for zeros among whole numbers (a count, of which the last is the place); None
    where neither will do, or too much would have to be computed."""
    import torch

    host = _of_places(graph)
    if host is None:
        return None
    whole = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
    ones = [x.new_ones(x.shape) if x.dtype in whole and not x.any() else x for x in given]
    return next(([*xs] for xs in (given, ones) if _runs(host, xs)), None)


def _of_places(graph: Any) -> Any | None:
    """The part of a graph that reads, or writes, at places, and what these are computed of, on the CPU; None where that is too
    much."""
    import torch
    from torch.utils._pytree import tree_leaves

    host, copies, cpu = torch.fx.Graph(), dict[Any, Any](), torch.device("cpu")
    host.graph_copy(graph.graph, copies)
    end = host.output(tuple(copies[n] for n in graph.graph.nodes if _indices(n)))
    read = {end}
    for node in reversed([*host.nodes]):
        if node in read:
            read.update(node.all_input_nodes)
        elif node.op != "placeholder":  # writes to what is given, too
            host.erase_node(node)
    values = [x for n in host.nodes for x in tree_leaves(n.meta.get("val")) if isinstance(x, torch.Tensor)]
    if sum(x.numel() * x.element_size() for x in values) > MOST:
        return None
    moved_to(host, cpu)
    found = torch.fx.GraphModule(graph, host)
    for node in host.nodes:
        held: Any = getattr(found, node.target, None) if node.op == "get_attr" else None
        if isinstance(held, torch.Tensor):
            setattr(found, node.target, held.detach().to(cpu))
    return found


def _runs(host: Any, given: Sequence[Any]) -> bool:
    try:
        host(*[x.detach().to("cpu", copy=True) for x in given])
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return False
    return True


def _divides_by(node: Any, user: Any) -> bool:
    """Whether an operator divides by a node: what a whole number divided by zero is says nothing."""
    return str(user.target).startswith(DIVISIONS) and len(user.args) > 1 and user.args[1] is node


def _extent(node: Any) -> float | None:
    """Of how many places a node of whole numbers names one; infinitely many where any is as good, None where it is computed
    with."""
    value = node.meta.get("val")
    if getattr(value, "dtype", None) not in _whole_numbers():
        return None
    most = math.inf
    for user in node.users:
        found = _extent_there(node, user)
        if found is None:
            return None
        most = min(most, found)
    return most


def _whole_numbers() -> tuple[Any, ...]:
    import torch

    return torch.int32, torch.int64


def _extent_there(node: Any, user: Any) -> float | None:
    """The same where one operator reads it."""
    name, args = str(user.target), user.args
    if name.startswith(INDIFFERENT):
        return math.inf
    if sorts(user):
        inside = [_extent(u) for u in user.users if u.target is operator.getitem and u.args[1] == 0]
        return None if None in inside else min((e for e in inside if e is not None), default=math.inf)
    if name.startswith(VIEWED) or (name.startswith("aten.where") and node is not args[0]):
        return _extent(user)
    if name.startswith(("aten.index.", "aten.index_put.", "aten.index_put_.")) and node in args[1]:
        return min(args[0].meta["val"].shape[i] for i, x in enumerate(args[1]) if x is node)
    if name.startswith(("aten.gather.", "aten.scatter", "aten.index_select.")) and node is args[2]:
        return args[0].meta["val"].shape[args[1]]
    if name.startswith("aten.embedding.") and node is args[1]:
        return args[0].meta["val"].shape[0]
    return None


def memory_of(x: Any) -> Any:
    """All of a tensor's memory: elements of a broadcast tensor lie in one place."""
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,))


def sorts(node: Any) -> bool:
    return str(node.target).startswith("aten.sort.")


def telling(x: Any) -> bool:
    """Whether something can be seen of a function by an example: numbers that are all the same have no differences."""
    return not x.is_floating_point() or x.numel() < 2 or bool(x.isfinite().all() and (x != x.flatten()[0]).any())


def within_bounds(graph: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a graph can be run with, like what is ``given`` by the names of its placeholders: whole numbers of which some are no
    places where they say places become zeros, and what is not a number random numbers. Whole numbers that are computed with
    stay: whoever gave them calls with such."""
    import torch

    found = dict(given)
    for node in graph.graph.nodes:
        x: Any = given.get(node.name)
        if node.op != "placeholder" or not isinstance(x, torch.Tensor) or x.dtype is torch.bool:
            continue
        if x.is_floating_point() or x.is_complex():
            found[node.name] = _drawn_like(x) if x.is_floating_point() and x.isnan().any() else x
        elif not _within(x, _extent(node)):
            found[node.name] = torch.zeros_like(x)
    return found


def _drawn_like(x: Any) -> Any:
    """Random numbers, none of the user's."""
    import torch

    return torch.empty_like(x).normal_(generator=torch.Generator(x.device).manual_seed(0))


def _within(x: Any, extent: float | None) -> bool:
    return extent in (None, math.inf) or not x.numel() or bool(x.min() >= 0 and x.max() < extent)
