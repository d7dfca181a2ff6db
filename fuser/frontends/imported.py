"""What an import of a module gives: a program, the values of its parameters, and how the module is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from inspect import Signature
from typing import Any

from fuser.frontends.keeping import Owner
from fuser.frontends.torch_whole import Traced
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram


@dataclass(frozen=True)
class Held:
    """A tensor that a graph has besides its inputs, under its name in the module; ``fixed``: a literal."""

    name: str
    value: Any
    fixed: bool = False


def held_by(exported: Any, spec: Any) -> Held | None:
    """What an exported program holds for an input by its specification; None of a user's input."""
    if spec.kind.name == "USER_INPUT":
        return None
    if spec.target is None:
        return Held(spec.arg.name, None)
    store = exported.constants if spec.target in exported.constants else exported.state_dict
    return Held(spec.target, store[spec.target], spec.kind.name == "CONSTANT_TENSOR")


def named_apart(held: Mapping[str, Held | None]) -> dict[str, Held | None]:
    """What is held, under names that no input has: torch gives an argument ``A`` the name ``a``, as a parameter may be called."""
    users = {n for n, h in held.items() if h is None}
    return {n: replace(h, name=f"{h.name}.held") if h and h.name in users else h for n, h in held.items()}


Views = tuple[tuple[Any, tuple[Any, ...], dict[str, Any], int | None], ...]
"""Views to be taken of a tensor, in order: operator of torch, arguments behind the tensor, keyword arguments, and which of
several results."""

Order = tuple[int, ...]
"""Dimensions of a tensor in the order in which they lie, where that is another than their own."""


@dataclass(frozen=True)
class Result:
    """One result of a module: an output of the program by ``name``, or a ``value`` that no tensor decides. ``base``: the module
    returns this tensor of the program, an input (itself, or ``views`` of it) or views of what it computes; the output is a copy.
    Without a name there is no such output. ``order`` is that of the dimensions of a tensor that the module computes. Of a
    ``complex`` output the program has both parts, in a last dimension of two."""

    name: str = ""
    value: Any = None
    base: str = ""
    views: Views = ()
    order: Order = ()
    complex: bool = False


@dataclass(frozen=True)
class Called:
    """How a module is called: the trees of its arguments and results (``torch.utils._pytree``), its results in order, the
    program's input of each argument (empty where that is no tensor), the value of each argument that is none, the signature of
    its forward, and the module, which keeps what it keeps of a call. Of ``complex`` inputs the program has both parts, in a last
    dimension of two."""

    arguments: Any
    returns: Any
    results: tuple[Result, ...]
    inputs: tuple[str, ...]
    fixed: tuple[Any, ...]
    signature: Signature | None = None
    owner: Owner | None = None
    complex: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Imported:
    """A module as a program; ``inputs`` are the names of the user's inputs in the order of ``example_inputs``, flattened.

    ``params`` has the value of every other input of the program: parameters and buffers under their names in the module,
    constants under the name of the node that makes them. bfloat16 values are kept in float32. ``called`` says how the module is
    called and what it returns. ``orders``: dimensions of inputs that the program has in another order than the module. ``traced``
    is torch's graph of the same, where the program computes just what that does.
    """

    program: TensorProgram
    params: Mapping[str, Array] = field(compare=False)
    inputs: tuple[str, ...]
    called: Called | None = field(default=None, compare=False)
    orders: Mapping[str, Order] = field(default_factory=dict, compare=False)
    traced: Traced | None = field(default=None, compare=False)
