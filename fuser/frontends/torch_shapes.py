"""Shapes that torch says of an operator's results while it traces, where the operator has others when it runs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fuser.runtime.recurrent import network

MANY = 4
"""Steps of a recurrent network from which it is worth while to say the shapes of one."""


@contextmanager
def true_states() -> Iterator[None]:
    """Shapes of a recurrent network as it has them, of one of its steps, while torch traces.

    Torch computes all steps to learn the shapes (a thousand of six layers take a minute). And up to 2.11 an LSTM that no library
    of the CPU computes gets last states of one dimension too many, ``[layers, 1, batch, width]``: it squeezes another dimension
    than the one it has put in. Here they have the shape of the first ones."""
    from torch._decomp import decompositions

    own = {n: f for n in ("one_layer_lstm", "one_layer_rnn") if (f := getattr(decompositions, n, None)) is not None}

    def one_layer(layer: Any, x: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        length = x.shape[0]
        short = not isinstance(length, int) or length < MANY or _recorded(x)
        y, last = layer(x if short else x[:1], hidden, *args, **kwargs)
        if isinstance(last, tuple):
            last = tuple(s.reshape(first.shape) for s, first in zip(last, hidden, strict=True))
        return y if short else y.expand(length, *y.shape[1:]).contiguous(), last

    try:
        for name, layer in own.items():
            setattr(decompositions, name, partial(one_layer, layer))
        yield
    finally:
        for name, layer in own.items():
            setattr(decompositions, name, layer)


def _recorded(x: Any) -> bool:
    """Whether what is done to a tensor now does more than to say shapes: it has values, or each operator is written down."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return not isinstance(x, torch._subclasses.FakeTensor) or get_proxy_mode() is not None


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

    args, stated = _of_few_steps(target, args, stated)
    try:
        found = target(*tree_map(bare, tuple(args)), **tree_map(bare, dict(kwargs)))
    except Exception:  # noqa: BLE001 - an operator that cannot do without data
        return ""
    shapes = [[tuple(x.shape) for x in tree_leaves(y) if isinstance(x, torch.Tensor)] for y in (found, stated)]
    return "" if shapes[0] == shapes[1] else f"{shapes[0]}, traced as {shapes[1]}"


def _of_few_steps(target: Any, args: Sequence[Any], stated: Any) -> tuple[Sequence[Any], Any]:
    """Arguments of a recurrent network for a few of its steps, and what is stated of its results so."""
    if not network(str(target)) or target._overloadname != "input" or len(args) != len(target._schema.arguments):
        return args, stated
    time = int(args[-1])  # batch_first
    y, *states = stated
    if not isinstance(y.shape[time], int) or args[0].shape[time] != y.shape[time] or y.shape[time] <= MANY:
        return args, stated
    return (args[0].narrow(time, 0, MANY), *args[1:]), (y.narrow(time, 0, MANY), *states)
