"""Shapes that torch says of an operator's results while it traces, where the operator has others when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def true_states() -> Iterator[None]:
    """Torch up to 2.11 traces an LSTM that no library of the CPU computes with last states of one dimension too many, ``[layers,
    1, batch, width]``: it squeezes another dimension than the one it has put in. Here they have the shape of the first ones."""
    from torch._decomp import decompositions

    own = getattr(decompositions, "one_layer_lstm", None)
    if own is None:
        yield
        return

    def one_layer_lstm(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        y, last = own(inp, hidden, *args, **kwargs)
        return y, tuple(s.reshape(first.shape) for s, first in zip(last, hidden, strict=True))

    setattr(decompositions, "one_layer_lstm", one_layer_lstm)  # noqa: B010 - torch's own name, for the time of a trace
    try:
        yield
    finally:
        setattr(decompositions, "one_layer_lstm", own)  # noqa: B010


def misstated(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], stated: Any) -> str:
    """Which shapes the results of an operator have that are not the ``stated`` ones; empty where all are as stated, or where
    nothing else than what has stated them can tell. Torch traces some operators by a form in Python that it never runs."""
    import torch
    from torch.utils._pytree import tree_leaves
    from torch.utils._pytree import tree_map

    keys = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)  # pyright: ignore[reportAttributeAccessIssue]
    if not any(k in getattr(target, "py_kernels", ()) for k in keys):
        return ""

    def bare(value: Any) -> Any:
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, torch.Tensor) else value

    try:
        found = target(*tree_map(bare, tuple(args)), **tree_map(bare, dict(kwargs)))
    except Exception:  # noqa: BLE001 - an operator that cannot do without data
        return ""
    shapes = [[tuple(x.shape) for x in tree_leaves(y) if isinstance(x, torch.Tensor)] for y in (found, stated)]
    return "" if shapes[0] == shapes[1] else f"{shapes[0]}, traced as {shapes[1]}"
