"""Numbers that dynamo hands to a graph as tensors: a float that has changed between calls, and any of a module where all sizes
are open (the eps of a norm). The graph asks them for their value, which a trace has not: each value has kernels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def numbers(module: Any) -> tuple[int, ...]:
    """Which inputs of a graph of dynamo's are such numbers."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    return tuple(i for i, n in enumerate(places) if getattr(n.meta.get("grapharg"), "pass_arg_as_tensor", False) and _asked(n))


def _asked(place: Any) -> list[Any]:
    """Where an input is asked for its value."""
    return [n for n in place.users if n.op == "call_method" and n.target == "item"]


def with_numbers(module: Any, places: Sequence[int], args: Sequence[Any]) -> Any:
    """The graph for the values that these inputs have now."""
    if not places:
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    values = {asked: args[i].item() for i in places for asked in _asked(inputs[i])}
    for asked in values:
        for user in [*asked.users]:
            user.args, user.kwargs = torch.fx.node.map_arg((user.args, user.kwargs), lambda n: values.get(n, n))
        graph.erase_node(asked)
    return torch.fx.GraphModule(module, graph)
