"""The values of a live Relay function by position: names for them that survive type inference and files."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from typing import Literal

import tvm
from tvm import relay

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError


@dataclass(frozen=True)
class ExprRef:
    """A value of ``main``: a call or a constant by its place in post-order (:func:`number`), or a parameter by its name.

    ``field`` selects one field of a call that returns a tuple.
    """

    kind: Literal["call", "var", "constant"]
    index: int | str
    field: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.index}" + ("" if self.field is None else f".{self.field}")


Key = tuple[int, int | None]
"""Address of an expression's object, and the field of a tuple."""


def key_of(expr: Any, field: int | None = None) -> Key:
    return expr.handle.value, field


def children_of(expr: Any) -> tuple[Any, ...]:
    if isinstance(expr, relay.Call):
        return expr.op, *expr.args
    if isinstance(expr, relay.Tuple):
        return tuple(expr.fields)
    if isinstance(expr, relay.TupleGetItem):
        return (expr.tuple_value,)
    if isinstance(expr, relay.Let):
        return expr.value, expr.body
    if isinstance(expr, relay.Function):
        return (expr.body,)
    if isinstance(expr, relay.If):
        return expr.cond, expr.true_branch, expr.false_branch
    return ()


def post_order(root: Any, children: Callable[[Any], Sequence[Any]] = children_of) -> Iterator[Any]:
    """Every expression below ``root`` once, operands from left to right before their user.

    The order of Relay's ``post_order_visit``..
    """
    seen: set[Key] = set()
    stack = [(root, False)]
    while stack:
        expr, expanded = stack.pop()
        key = key_of(expr)
        if expanded:
            yield expr
        elif key not in seen:
            seen.add(key)
            stack.append((expr, True))
            # An operand that an earlier sibling reaches too is visited there: push all, and skip what was seen meanwhile.
            stack.extend((child, False) for child in reversed(children(expr)))


@dataclass(frozen=True)
class Numbering:
    """The parts of a function's body in post-order: what an :class:`ExprRef` points to.

    ``bound`` maps let-bound variables to values.
    """

    function: Any
    calls: tuple[Any, ...]
    constants: tuple[Any, ...]
    bound: Mapping[Key, Any]

    @cached_property
    def call_index(self) -> dict[Key, int]:
        return {key_of(call): i for i, call in enumerate(self.calls)}

    def resolve(self, expr: Any) -> Any:
        """The expression itself, through lets and the variables that they bind."""
        while True:
            if isinstance(expr, relay.Let):
                expr = expr.body
            elif isinstance(expr, relay.Var) and key_of(expr) in self.bound:
                expr = self.bound[key_of(expr)]
            else:
                return expr

    def operands(self, expr: Any) -> tuple[Any, ...]:
        """Operands as values: without operators, nested functions and lets."""
        if isinstance(expr, relay.Call):
            return tuple(self.resolve(arg) for arg in expr.args)
        if isinstance(expr, relay.Tuple | relay.TupleGetItem):
            return tuple(self.resolve(child) for child in children_of(expr))
        if isinstance(expr, relay.Var | relay.Constant | relay.Function | tvm.ir.Op | relay.GlobalVar):
            return ()
        raise UnsupportedError(
            f"main contains a {type(expr).__name__}, around which no region can be carved",
            "give a model without control flow, or optimize its parts one by one",
        )

    def place(self, expr: Any) -> Key:
        """Identity of a value: a field of a tuple-valued call is the pair of call and field, whichever node selects it."""
        if isinstance(expr, relay.TupleGetItem):
            source = self.resolve(expr.tuple_value)
            if isinstance(source, relay.Call):
                return key_of(source, int(expr.index))
        return key_of(expr)

    def find(self, ref: ExprRef) -> Any:
        """The expression that a reference means; raises :class:`ProgramError` if there is none."""
        found: Any = None
        if ref.kind == "var":
            named = [p for p in self.function.params if p.name_hint == ref.index]
            found = named[0] if len(named) == 1 else None
        else:
            pool = self.calls if ref.kind == "call" else self.constants
            found = pool[ref.index] if isinstance(ref.index, int) and 0 <= ref.index < len(pool) else None
        if found is None:
            raise ProgramError(
                f"the module has no {ref}",
                "regions belong to the module that they were found in: carve it before any pass changes it",
            )
        return found if ref.field is None else relay.TupleGetItem(found, ref.field)


def number(mod: Any, name: str = "main") -> Numbering:
    """Number the calls and constants of a function; nested functions count, as in Relay's own visitors."""
    function = mod[name]
    nodes = list(post_order(function.body))
    return Numbering(
        function,
        tuple(e for e in nodes if isinstance(e, relay.Call)),
        tuple(e for e in nodes if isinstance(e, relay.Constant)),
        {key_of(e.var): e.value for e in nodes if isinstance(e, relay.Let)},
    )


def op_name(call: Any) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else type(call.op).__name__
