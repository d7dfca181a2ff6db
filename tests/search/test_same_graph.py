"""Torch's compiler is given by us what ``torch.compile`` gives it: kernels are then the same, by the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional

from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.runtime import inductor  # noqa: E402
from fuser.runtime import joined  # noqa: E402
from search.views import with_views  # noqa: E402

MOVED = "aten.unsqueeze.", "aten.squeeze.", "aten.reshape.", "aten.view."


class StopError(Exception):
    """What was looked for is seen."""


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.function, self.parts = function, torch.nn.ModuleList(parts)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.parts, *inputs)


def scaled(x: Any) -> Any:
    """Bytes of rows, and the scale as a view of what is used before."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale.squeeze(-1)


def embedded(table: Any, ids: Any, x: Any) -> Any:
    return functional.cross_entropy(table(ids) @ x, ids), (table(ids) * (ids > 3).unsqueeze(-1)).mean(1)


FLOATS, IDS = torch.randn(4, 8, 6, 6), torch.arange(6)
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pooled": (
        Module(
            lambda conv, norm, x: functional.max_pool2d(torch.relu(norm(conv(x))), 2),
            torch.nn.Conv2d(8, 8, 3),
            torch.nn.BatchNorm2d(8),
        ),
        (FLOATS,),
    ),
    "groups": (Module(lambda norm, x: functional.silu(norm(x)), torch.nn.GroupNorm(2, 8)), (FLOATS,)),
    "largest": (Module(lambda x: (x.max(1).values + x.min(1).values).logsumexp(-1)), (FLOATS,)),
    "scaled": (Module(scaled), (FLOATS[:, 0],)),
    "heads": (Module(lambda x: functional.scaled_dot_product_attention(x, x, x) + 1.0), (FLOATS,)),
    "diagonal": (Module(lambda x: x.masked_fill(torch.eye(300, dtype=torch.bool), 0.0).sum(1)), (torch.randn(300, 300),)),
    "turned": (Module(lambda line, x: line(x.mT) + 1.0, torch.nn.Linear(6, 7)), (FLOATS[0],)),
    "embedded": (Module(embedded, torch.nn.Embedding(6, 8)), (IDS, torch.randn(8, 6))),
}


def said(graph: Any) -> tuple[list[tuple[Any, ...]], list[tuple[Any, bool]]]:
    """What a graph computes, step by step, whatever its values are called; of each result whether it is a view of a step's."""
    steps: list[tuple[Any, ...]] = []
    names: dict[Any, str] = {}
    ends: list[tuple[Any, bool]] = []

    def name(node: Any) -> str:
        if node in names:
            return names[node]
        value, given = node.meta["val"], sum(n.startswith("given") for n in names.values())
        return names.setdefault(node, f"given {given} {tuple(value.shape)} {value.stride()} {value.dtype}")

    def at_the_end(node: Any) -> bool:
        return str(node.target).startswith(MOVED) and all(u.op == "output" or at_the_end(u) for u in node.users)

    for node in graph.nodes:
        if node.op == "output":
            for end in node.args[0]:
                base = end
                while at_the_end(base):
                    base = base.args[0]
                ends.append((name(base), base is not end))
        elif node.op == "call_function" and not at_the_end(node):
            given = torch.fx.node.map_arg((node.args, node.kwargs), name)
            names[node] = f"step {len(steps)}"
            steps.append((str(node.target), str(given), str(node.meta.get("original_aten"))))
    return steps, ends


@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_that_of_torch_compile(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    module, given = CASES[case]
    module = module.eval()
    seen: list[Any] = []

    def see(graph: Any) -> None:
        seen.append(said(graph))
        raise StopError

    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=see, force_disable_caches=True), torch.no_grad():
        with pytest.raises(Exception, match="StopError"):
            torch.compile(module, dynamic=False)(*given)
        known = with_views(from_torch(module, given))
        values = dict(zip(known.inputs, given, strict=True)) | {n: torch.as_tensor(x) for n, x in known.params.items()}
        assert known.traced is not None
        names = known.program.inputs
        run = known.traced.function(names, known.program.outputs, "cpu")
        assert run is not None
        examples = [values[n].reshape(known.program[n].shape) for n in names]
        graph = joined._traced(run, examples, True, [n in known.traced.trained for n in names])
        with pytest.raises(Exception, match="StopError"):
            inductor._of_graph(graph, None)(*examples)
    theirs, ours = seen
    assert ours == theirs
