"""The graph of torch's operators that a program was made of: what torch's compiler is given where it is to have all of it.

The program says the same in operators of ours, of which the compiler would see other ones: a sort as two, a border as copies.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from fuser.aten import moved_to
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram

if TYPE_CHECKING:
    from fuser.frontends.imported import Held


@dataclass(frozen=True)
class Traced:
    """``graph`` is a ``torch.fx.GraphModule``; ``places`` are the program's tensors by the name of their placeholder, ``held``
    the values of other placeholders; ``ends`` the node of each tensor of the program that may be a result. ``orders`` as in
    :class:`fuser.frontends.imported.Imported`; ``turned`` are tensors of the program that have another one's dimensions in
    another order. Of what is ``viewed`` the module returns views alone: what it returns itself the compiler writes to memory
    before it goes on. ``trained`` are parameters that require gradients, of which torch takes some operators apart otherwise; of
    what is ``padded`` the module returns the whole, whose rows may then be longer in memory, as the compiler has them."""

    graph: Any
    places: Mapping[str, str]
    held: Mapping[str, Any]
    ends: Mapping[str, Any]
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    turned: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    viewed: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    padded: frozenset[str] = frozenset()

    def function(self, reads: Sequence[str], makes: Sequence[str], device: Any) -> Callable[..., tuple[Any, ...]] | None:
        """The graph as a function of tensors of the program, which gives others; None where it has no such."""
        import torch

        own = [self.turned.get(n, (n, ())) for n in makes]
        if any(n not in self.ends or self.ends[n].op == "placeholder" for n, _ in own):
            return None
        graph, copies = torch.fx.Graph(), dict[Any, Any]()
        graph.graph_copy(self.graph.graph, copies)
        graph.output(tuple(copies[self.ends[n]] for n, _ in own))
        for node in reversed(graph.nodes):
            if node.op == "call_function" and not node.users:  # assertions, too
                graph.erase_node(node)
        moved_to(graph, device)
        wanted = [n.name for n, copy in copies.items() if n.op == "placeholder" and copy.users]
        if not {self.places[n] for n in wanted if n in self.places} <= set(reads):
            return None
        held = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in self.held.items()}
        every = [n.name for n in copies if n.op == "placeholder"]
        run = torch.fx.GraphModule(self.graph, graph)

        def whole(*given: Any) -> tuple[Any, ...]:
            values = dict(zip(reads, given, strict=False))
            found = run(*[self._seen(values, n) if n in self.places else held.get(n) for n in every])
            found = [x.unsqueeze(0).squeeze(0) if n in self.viewed else x for x, (n, _) in zip(found, own, strict=True)]
            return tuple([(x.permute(order) if order else x).contiguous() for x, (_, order) in zip(found, own, strict=True)])

        return whole

    def _seen(self, values: Mapping[str, Any], place: str) -> Any:
        """A tensor as the graph has it."""
        name = self.places[place]
        order, x = self.orders.get(name), values.get(name)
        return x if order is None or x is None else x.permute([order.index(i) for i in range(len(order))])


def traced_as(
    graph: Any, program: TensorProgram, values: Mapping[Any, Any], held: Mapping[str, Held], named: Mapping[str, str]
) -> Traced:
    """The graph of which an import gave ``program``: ``values`` by its nodes, what is ``held`` by placeholder, and how results
    are ``named``."""
    values = {n: x for n, x in values.items() if n.graph is graph.graph}  # others are inside of operators
    places = {n: x for n, x in values.items() if n.op == "placeholder"}
    mine = {n.name: held[n.name].name if n.name in held else n.name for n, x in places.items() if isinstance(x, Ref)}
    ends: dict[str, Any] = {}
    for node, x in values.items():
        if isinstance(x, Ref) and (name := named.get(x.name, x.name)) in program.producers:
            ends.setdefault(name, node)
    others = {n.name: x for n, x in places.items() if not isinstance(x, Ref)}
    return Traced(graph, mine, others, ends, trained=frozenset(h.name for h in held.values() if _trained(h.value)))


def _trained(x: Any) -> bool:
    return getattr(x, "requires_grad", False) is True and x.is_floating_point()
