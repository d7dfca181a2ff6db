"""A graph of torch's as our pieces have it, beside what torch's compiler makes of all of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fuser.runtime.inductor import is_tied
from fuser.runtime.places import telling
from fuser.runtime.places import within_bounds
from search.beside import Beside
from search.beside import file_of
from search.beside import key_of_graph
from search.beside import may_be_measured
from search.beside import measured
from search.beside import most_measured
from search.beside import read
from search.beside import write
from search.cover.plan import Plan

Run = Callable[..., Any]


def kept_answer(graph: Any, device: Any, key: str) -> tuple[Path, Beside | None]:
    """Where the answer for a graph of ATen operators is kept, by how ours is made of it, and the answer."""
    file = file_of(key_of_graph(graph), key, device=str(device))
    return file, read(file)


def faster(
    graph: Any,
    ours: Run,
    theirs: Callable[[], Run],
    args: Sequence[Any],
    device: Any,
    file: Path | None,
    plans: Sequence[Plan] = (),
) -> Run | None:
    """What torch's compiler makes of a graph of ATen operators, where it is the faster with ``args``; None where ``ours`` stays,
    with these ``plans``. The answer is kept in a ``file``."""
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    computing = sum(n.op == "call_function" and not getattr(n.target, "is_view", False) for n in graph.graph.nodes)
    if len(places) != len(args) or computing > most_measured(plans) or not may_be_measured("cuda"):
        return None
    with suppress(Exception):  # out of memory, or nothing for a compiler
        found = within_bounds(graph, {n.name: x for n, x in zip(places, args, strict=True)})
        values = [x.detach() if isinstance(x, torch.Tensor) else x for x in found.values()]
        other = theirs()
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        both = (lambda: ours(*values)), (lambda: other(*values))
        beside = measured(*both, device, is_tied(graph), all(map(telling, tensors)), lambda: graph(*values))
        if file is not None:
            write(file, beside)
        return None if beside.ours else other
    return None


def by_torchs_compiler(module: Any, args: Sequence[Any]) -> Callable[..., Any]:
    """A graph as torch's compiler has it."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))  # what is compiled is changed
    with torch.no_grad():
        given = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        return torch._inductor.compile(torch.fx.GraphModule(module, graph), given)
