"""A graph of dynamo's as one of ATen operators without side effects."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from typing import Any

import torch

from fuser.frontends.torch_alias import UNSAID
from fuser.frontends.torch_alias import safe_views
from fuser.frontends.torch_alias import true_dropout
from search.torch_derivatives import within
from search.torch_fast import written_out


def functional(
    module: Any, args: Sequence[Any], kept: Callable[[Any, Sequence[Any]], list[int]]
) -> tuple[Any, list[int], Callable[..., Any], list[Callable[..., Any]]]:
    """The graph of ATen operators without side effects, which of its inputs are ``kept``, and a callable that calls what is put
    into the list behind it, with aliases and writes as they are in the module."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import TracingContext
    from torch._guards import tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    safe_views(module)
    found: list[tuple[Any, list[int], bool]] = []
    into: list[Callable[..., Any]] = []

    def inner(gm: Any, example_inputs: Any) -> Any:
        def boxed(given: list[Any]) -> Any:
            values = tuple(given)
            given.clear()
            return into[0](*values)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        found.append((gm, kept(gm, args), _as_it_is(gm, args)))
        return boxed

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())  # loops of torch ask for one
    fakes = [mode.from_tensor(x.detach(), static_shapes=True) if isinstance(x, torch.Tensor) else x for x in args]
    inner_grads = within(module)  # of numbers that have none outside
    casts = torch._C._is_any_autocast_enabled()  # the casts are in the graph: torch puts them off around it
    composites = nullcontext() if inner_grads else _composites_kept()
    with torch.set_grad_enabled(inner_grads), composites, true_dropout(), tracing(TracingContext(mode)), _levels_left():
        run = aot_module_simplified(module, fakes, fw_compiler=inner, inference_compiler=inner, decompositions=written_out())
    ((graph, constant, as_it_is),) = found

    def direct(*given: Any) -> Any:
        return into[0](*given)

    return graph, constant, direct if as_it_is and not inner_grads and not casts else run, into


@contextmanager
def _levels_left() -> Iterator[None]:
    """A trace that fails within :mod:`torch.func` leaves a level of gradients behind, which all later calls would be in."""
    levels = torch._C._functorch
    depth = levels.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        levels.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _as_it_is(graph: Any, args: Sequence[Any]) -> bool:
    """Whether torch puts nothing around a graph of ATen operators at a call (aliases, writes, random numbers), which
    takes the host as long as several launches. Only asked while torch compiles."""
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    known = context.fw_metadata if context else None
    if known is None:
        return False
    (results,) = next(n for n in graph.graph.nodes if n.op == "output").args
    more = known.num_intermediate_bases, known.tokens, getattr(known, "num_graphsafe_rng_states", 0), known.grad_enabled_mutation
    return (
        sum(n.op == "placeholder" for n in graph.graph.nodes) == len(args) == len(known.input_info)
        and len(results) == len(known.output_info)
        and not any(info.mutates_data or info.mutates_metadata for info in known.input_info)
        and all(info.output_type in (OutputType.non_alias, OutputType.unsafe_view_alias) for info in known.output_info)
        and not any(more)
        and all(type(x) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or not isinstance(x, torch.Tensor) for x in args)
    )


def _composites_kept() -> AbstractContextManager[Any]:
    """Linear layers, norms and attention stay operators, as ``torch.export`` keeps them."""
    try:
        from torch._decomp import _should_decompose_because_unsafe_op
        from torch._export.utils import _collect_all_valid_cia_ops
        from torch._export.utils import _special_op_to_preserve_cia
        from torch.export.exported_program import _override_composite_implicit_decomp
    except ImportError:  # another torch: the import knows most of what they are made of
        return nullcontext()
    may = {op for op in _collect_all_valid_cia_ops() if not _should_decompose_because_unsafe_op(op)}
    kept = [op for op in may if str(op).split(".")[1] not in UNSAID]  # torch would take it for a tensor of its own
    einsum, implicit = torch.ops.aten.einsum.default, torch._C.DispatchKey.CompositeImplicitAutograd

    def summed(equation: Any, operands: Any, **named: Any) -> Any:
        """Of one tensor it may be a view."""
        return NotImplemented if len(operands) > 1 else einsum._op_dk(implicit, equation, operands)

    return _override_composite_implicit_decomp({**dict.fromkeys(kept, _special_op_to_preserve_cia), einsum: summed})
