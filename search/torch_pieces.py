"""A graph of ATen operators as pieces that are compiled, and torch's own calls for what lies between them.

What belongs to no piece: random numbers, results whose shape depends on values, empty tensors, dtypes without a name here,
tensors of another device, operators of higher order. A piece for which there is no kernel runs in torch as it stands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from itertools import pairwise
from operator import itemgetter
from typing import Any

from fuser.aten import of_parts
from fuser.aten import real_view
from fuser.errors import first_line
from fuser.frontends.imported import Result
from fuser.frontends.imported import Views
from fuser.frontends.torch_complex import is_complex
from fuser.frontends.torch_export import from_graph
from fuser.frontends.torch_nodes import draws
from fuser.frontends.torch_views import seen
from fuser.frontends.torch_views import shown
from fuser.frontends.torch_views import viewer
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.runtime.library import WHOLE
from fuser.runtime.library import joined_as
from search.compile import compile_program
from search.compiled import CompiledProgram
from search.strided import as_they_lie
from search.torch_graphs import Replayed
from search.views import shared

AFTER = "after"
"""The argument by which a node needs another, while a graph is divided."""


@dataclass(frozen=True)
class Piece:
    """What stands for a graph: ``run`` takes its inputs in order and returns its results; ``made`` has its kernels (None where
    torch runs it, and ``why``: empty where there is simply nothing to do)."""

    run: Callable[..., Sequence[Any]]
    made: CompiledProgram | None = None
    why: str = ""


@dataclass(frozen=True)
class Givens:
    """What is known of placeholders: ``held`` never change, and have a value by name; ``replayed``: calls replay CUDA graphs
    (None: they do not), in which those named are read where they lie; ``examples`` are values of a call."""

    held: Mapping[str, Any] = field(default_factory=dict)
    replayed: frozenset[str] | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)

    def of(self, names: Mapping[str, str]) -> Givens:
        """For another graph, whose placeholders have ``names`` in this one."""
        replayed = None if self.replayed is None else frozenset(k for k, v in names.items() if v in self.replayed)
        held, examples = ({k: of[v] for k, v in names.items() if v in of} for of in (self.held, self.examples))
        return Givens(held, replayed, examples)


def pieces(module: Any, givens: Givens, name: str, where: Any, options: Mapping[str, Any]) -> tuple[Any, list[Piece]]:
    """A callable on the inputs of an ATen graph (``torch.fx.GraphModule`` with fake tensors) that returns a tuple of its results,
    and its pieces. ``where`` is the device of its kernels."""
    import torch

    if _all_taken(module, where):
        piece = compiled(module, givens, name, options)
        return piece.run, [piece]
    whole = _partitioned(module, where)
    found: list[Piece] = []
    for node in whole.graph.nodes:
        if node.op != "call_module":
            continue
        inner = whole.get_submodule(node.target)
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        names = {p.name: a.name for p, a in zip(places, node.args, strict=True) if a.op == "placeholder"}
        piece = compiled(inner, givens.of(names), f"{name}_{len(found)}", options)
        single = not isinstance(_output(inner).args[0], (tuple, list))
        found.append(piece)
        setattr(whole, node.target, _Call(torch, piece.run, single))
    return whole.forward, found


def worth(module: Any, found: Sequence[Piece], where: Any) -> bool:
    """Whether the pieces of a graph are to stand for it, rather than torch's compiler for all of it: it would draw other random
    numbers than torch; and what is left between pieces is faster as it has it, but no product is."""
    if drawing(module):
        return True
    alone = _all_taken(module, where)
    return any(_ours(p.made) and (alone or any(n.products for n in p.made.program.nodes)) for p in found if p.made is not None)


def drawing(module: Any) -> bool:
    """Whether an operator of a graph draws random numbers."""
    import torch

    calls = (n for n in module.graph.nodes if isinstance(n.target, torch._ops.OpOverload))
    return any(draws(n, n.args, n.kwargs) for n in calls)


def _ours(made: CompiledProgram) -> bool:
    """Whether not all of a program is left to torch's compiler."""
    return any(joined_as(k) != WHOLE for k in made.graph.kernels)


def _Call(torch: Any, run: Callable[..., Any], single: bool) -> Any:  # noqa: N802 - it makes a module
    class Call(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            results = run(*args)
            return results[0] if single else results

    return Call()


def _output(module: Any) -> Any:
    return next(n for n in module.graph.nodes if n.op == "output")


# -- what belongs to a piece ----------------------------------------------------------------------------------------------------


def taken(node: Any, where: Any) -> bool:
    """Whether a piece can hold a node: an operator without randomness, on plain tensors of one device that are not empty."""
    import torch

    if node.target is operator.getitem:
        return taken(node.args[0], where)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target._schema.is_mutable or draws(node, node.args, node.kwargs):
        return False
    return all(_plain(v, where) for n in (node, *node.all_input_nodes) for v in _values(n))


def _values(node: Any) -> list[Any]:
    """Of several results those that are read; others may be empty."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [value[i] for i in sorted({u.args[1] for u in node.users if u.target is operator.getitem})]
    return [value]


def _plain(value: Any, where: Any) -> bool:
    import torch

    if value is None or isinstance(value, (bool, int, float)):
        return True
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    known = str(value.dtype.to_real()).removeprefix("torch.") in DTYPE_BYTES and not value.is_quantized
    sizes = all(isinstance(n, int) and n > 0 for n in value.shape)
    return known and sizes and value.device == where and not value.is_neg()


def _all_taken(module: Any, where: Any) -> bool:
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    ends = [n for n in module.graph.nodes if n.op == "placeholder" and n.users]
    return all(taken(n, where) for n in nodes) and all(_plain(v, where) for n in ends for v in _values(n))


def _partitioned(module: Any, where: Any) -> Any:
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Taken(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return taken(node, where)

    _chain([n for n in module.graph.nodes if _drawing(n)])
    partitioner = CapabilityBasedPartitioner(module, Taken(), allows_single_node_partition=True)
    whole = partitioner.fuse_partitions(partitioner.propose_partitions())
    _unchain(whole)
    return whole


def _drawing(node: Any) -> bool:
    """Whether a node draws random numbers, or holds graphs that may."""
    import torch

    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and draws(node, node.args, node.kwargs)


def _chain(nodes: Sequence[Any]) -> None:
    """Lets each node need the one before it: partitions, and the order that they are brought to, then keep the order of these,
    and random numbers are those that torch draws of the same seed."""
    for before, node in pairwise(nodes):
        node.kwargs = {**node.kwargs, AFTER: before}


def _unchain(module: Any) -> None:
    for node in module.graph.nodes:
        node.kwargs = {k: v for k, v in node.kwargs.items() if k != AFTER}
    module.recompile()


# -- one piece ------------------------------------------------------------------------------------------------------------------


def compiled(module: Any, givens: Givens, name: str, options: Mapping[str, Any]) -> Piece:
    """Kernels for a graph, or torch's own run of it where there are none. Whatever fails is the ``why`` of that."""
    single = not isinstance(_output(module).args[0], (tuple, list))
    eager = Piece((lambda *args: (module(*args),)) if single else module.forward)
    if all(n.op != "call_function" or n.target is operator.getitem or n.target.is_view for n in module.graph.nodes):
        return eager
    try:
        ends = _ends(_leaves(_output(module).args[0]))
        bases = list(dict.fromkeys(e.base for e in ends if e.computed))
        known, results = from_graph(_returning(module, bases), givens.held, name)
        if givens.replayed is None:
            lying = {n.name: n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"}
            known = as_they_lie(known, [real_view(lying[n]) for n in known.inputs])
        tensors = [real_view(givens.examples.get(n)) for n in known.inputs]
        made = compile_program(known, tensors, **options)
    except Exception as error:  # noqa: BLE001 - torch runs a graph that cannot be compiled, whatever the reason
        return Piece(eager.run, None, first_line(error))
    if not any(isinstance(k, BlockGraph) or joined_as(k) for k in made.graph.kernels):
        return eager
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    names = {n.name: i for i, n in enumerate(places)}
    taken_in = itemgetter(*[names[n] for n in known.inputs]) if known.inputs else None
    one = len(known.inputs) == 1
    call = made
    if givens.replayed is not None and made.device not in (None, "cpu"):
        call = Replayed(made, [n in givens.replayed for n in known.inputs])
    gets = [_getter(e, places, bases, results, made.outputs) for e in ends]
    parts = any(is_complex(n.meta.get("val")) for n in places if n.name in known.inputs)

    def run(*args: Any) -> tuple[Any, ...]:
        given = () if taken_in is None else (taken_in(args),) if one else taken_in(args)
        given = tuple(map(real_view, given)) if parts else given
        found = call(*given)
        if not isinstance(found, tuple):
            found = (found,)
        return tuple([get(args, found) for get in gets])

    return Piece(run, made)


@dataclass(frozen=True)
class _End:
    """A result of a graph: ``views`` of the node ``base``; what is no node is ``base`` itself."""

    base: Any
    views: Views
    node: Any

    @property
    def computed(self) -> bool:
        return getattr(self.base, "op", "placeholder") != "placeholder"


def _ends(values: Sequence[Any]) -> list[_End]:
    """Results: views of what is given, of what is wanted as a whole, and views that have elements in common."""
    found = [_End(*shown(v), v) if hasattr(v, "op") else _End(v, (), v) for v in values]
    kept = {e.base for e in found if e.computed and not e.views}
    for base in {e.base for e in found if e.computed and e.views} - kept:
        if shared(_in_order(base), [e.views for e in found if e.base is base]):
            kept.add(base)
    return [e if not e.computed or e.base in kept else _End(e.node, (), e.node) for e in found]


def _in_order(node: Any) -> Any:
    """A tensor without memory like a node's, row after row."""
    import torch

    value = node.meta["val"]
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _returning(module: Any, nodes: Sequence[Any]) -> Any:
    """The same graph with other results."""
    import torch

    graph, copies = torch.fx.Graph(), {}
    graph.graph_copy(module.graph, copies)
    graph.output(tuple(copies[n] for n in nodes))
    return torch.fx.GraphModule(module, graph)


def _getter(
    end: _End, places: Sequence[Any], bases: Sequence[Any], results: Sequence[Result], outputs: Sequence[str]
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """Finds a result among arguments and outputs of the kernels, with the strides that torch gives it."""
    import torch

    if not hasattr(end.base, "op"):
        return lambda args, found: end.base
    views = end.views
    if not end.computed:
        i, view = places.index(end.base), viewer(views)
        return lambda args, found: view(args[i])
    result = results[bases.index(end.base)]
    if not result.name:
        return lambda args, found: result.value
    k = outputs.index(result.name)
    if result.complex:
        views = ((of_parts, (), {}, None), *views)
    wanted = end.node.meta["val"]
    ours = seen(_in_order(end.base), end.views)
    view = viewer(views)
    if _same_strides(ours, wanted) or not _dense(wanted):
        return (lambda args, found: view(found[k])) if views else (lambda args, found: found[k])
    shape, strides = tuple(wanted.shape), tuple(wanted.stride())

    def strided(args: Sequence[Any], found: Sequence[Any]) -> Any:
        x = view(found[k])
        return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device).copy_(x)

    return strided


def _same_strides(a: Any, b: Any) -> bool:
    return all(s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1)


def _dense(x: Any) -> bool:
    """Strides of a tensor that leave nothing out and hold nothing twice."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(x.shape, x.stride(), strict=True) if n > 1):
        if stride != step:
            return False
        step *= extent
    return True
