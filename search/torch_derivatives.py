"""Derivatives that a module computes itself, when it is called: forces of a potential, sensitivities. Kernels have no backward:
torch runs what they are taken of, but where ``torch.func`` takes them, which leaves operators like others."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import torch

from fuser.errors import GradientError

FORWARD = ("_jvp_increment_nesting", "_make_dual", "_enter_dual_level")
"""Functions of a graph that take derivatives along with values. To bring such a graph to ATen fails, and leaves torch within."""


def derives(module: Any) -> bool:
    """Whether a graph of dynamo's computes derivatives that only torch can, or what it computes has gradients though the call has
    none. Those of ``torch.func.grad`` are operators like others once the graph is brought to ATen."""
    if any(_name(n) in (*FORWARD, "requires_grad_") for n in module.graph.nodes):
        return True
    if any(n.target is torch.autograd.grad for n in module.graph.nodes):
        return True
    modes = [n.args[0] for n, level in _levels(module) if n.target is torch._C._set_grad_enabled and not level]
    return bool(modes) and modes[0] is True and not torch.is_grad_enabled()


def within(module: Any) -> bool:
    """Whether a graph has derivatives by ``torch.func``: what they are taken of has to be operators that have some."""
    return any(level for _, level in _levels(module))


def _levels(module: Any) -> Iterator[tuple[Any, int]]:
    """Nodes, and how many derivatives by ``torch.func`` each is in, which set and reset the mode themselves."""
    level = 0
    for node in module.graph.nodes:
        level += (_name(node) == "_grad_increment_nesting") - (_name(node) == "_grad_decrement_nesting")
        yield node, level


def _name(node: Any) -> Any:
    return getattr(node.target, "__name__", node.target)


def asked_for(x: Any) -> bool:
    """Whether a tensor with gradients is, or comes from, one that is no parameter: somebody wants the gradient of it."""
    if x.grad_fn is None:
        return x.is_leaf and x.requires_grad and not isinstance(x, torch.nn.Parameter)
    todo, seen = [x.grad_fn], {x.grad_fn}
    while todo:
        node = todo.pop()
        if (leaf := getattr(node, "variable", None)) is not None and not isinstance(leaf, torch.nn.Parameter):
            return True
        new = {f for f, _ in node.next_functions if f is not None} - seen
        seen |= new
        todo += new
    return False


class _NoBackward(torch.autograd.Function):
    """The identity, of which there is no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, anchor: Any) -> Any:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise GradientError(
            "the backend mufuser is for inference: its kernels have no backward", "train with another backend, such as inductor"
        )


def without_backward(x: Any, anchor: Any, args: Sequence[Any]) -> Any:
    """A result that depends on something with a gradient: asking for that gradient is an error, not silence."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or any(x is a for a in args):
        return x
    return _NoBackward.apply(x, anchor)
