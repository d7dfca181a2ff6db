"""One ATen call in an exported graph, as the rules of the import see it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.composed import reshaped
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.dtypes import result_dtype
from fuser.ir.opdef import TYPES
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import WIDE

HERE = str(Path(__file__).parent)
"""The folder of what calls a module while it is traced."""
LARGE = 1 << 16
"""Elements of a constant from which it is looked at whether all are equal."""


def dtype_name(dtype: Any, what: str) -> str:
    """``torch.float16`` -> ``float16``."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UnsupportedError(f"{what} has dtype {name}, which is not supported", f"use one of {', '.join(DTYPE_BYTES)}")
    return name


def to_numpy(value: Any) -> Array:
    """A torch tensor as numpy; bfloat16 in float32."""
    import torch

    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy().copy()


@dataclass(frozen=True)
class Call:
    """One ATen call: ``args`` by schema name, with tensors of the program, torch constants and numbers as values."""

    b: Builder
    node: Any
    aten: str
    table: str
    args: dict[str, Any]
    result: Any
    """The fake tensor of the result (a list where there are several)."""
    constant: Callable[[Any, str], Ref]
    where: str

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.result.shape)

    @property
    def dtype(self) -> str:
        return dtype_name(self.result.dtype, self.where)

    def unsupported(self, what: str, hint: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.target} {what}: {self.where}", hint)

    def ref(self, value: Any, dtype: str | None = None) -> Ref:
        """A tensor of the program, in ``dtype`` if given (torch promotes operands)."""
        if not isinstance(value, Ref):
            one = once(value)
            one = one.reshape(1) if one.numel() == 1 and one is not value else one
            made = self.constant(one, f"{self.node.name}.constant")
            value = made if one is value else self.b.op("broadcast", made, shape=tuple(value.shape))
        if dtype and value.tensor.dtype != dtype:
            return self.b.op("cast", value, dtype=dtype)
        return value

    def tensor(self, name: str) -> Ref:
        return self.ref(self.args[name])

    def axis(self, dim: int, x: Ref) -> int:
        """A dimension of a tensor, counted from the front. What has none is torch's, which takes it for a row of one element."""
        if not x.shape:
            raise self.unsupported("names a dimension of a number", "give it a tensor with dimensions")
        return dim % len(x.shape)

    def filled(self, number: float) -> Ref:
        """A constant tensor of one element, for numbers that the algebra has no place for."""
        import torch

        return self.constant(torch.tensor([number], dtype=self.result.dtype), f"{self.node.name}.constant")

    def by_entry(self) -> Ref | None:
        """The table's operator: its attributes by the names of the schema, its operands the first of the other arguments. None
        where an argument is left that is not what it is by default: the entry says nothing of it."""
        entry = OPS[self.table]
        theirs = names_of(entry.torch)[self.aten]
        claimed = {theirs.get(a, a): a for a in entry.attrs}
        schema = [a for a in self.node.target._schema.arguments if a.name not in claimed]
        numbers = (int, float, bool) if entry.typed == "truth" else (int, float)
        given = [a for a in schema if is_tensor(self[a.name]) or type(self[a.name]) in numbers]
        given = given[: entry.arity] if entry.arity >= 0 else [a for a in given if is_tensor(self[a.name])]
        if any(self[a.name] != a.default_value for a in schema if a not in given):
            return None
        if entry.typed == "truth" and self.dtype != "bool":
            return None  # of bits
        values = [self[a.name] for a in given]
        attrs = {ours: self.attribute(k, ours) for k, ours in claimed.items() if self[k] is not None}
        if entry.typed == "truth":
            dtype = self.promoted(values)
            return self.b.op(self.table, *(self.operand(v, dtype) for v in values), **attrs)
        if entry.kind != "map":
            refs = [self.ref(v) for v in values]
            if not refs[0].shape and any(attrs.get(n) not in (None, ()) for n in ("dim", "dims")):
                return None  # torch takes a number for a row of one element
            whole = entry.kind == "library" and self.dtype in WIDE
            if whole and result_dtype(self.table, [r.tensor.dtype for r in refs], attrs | {"dtype": self.dtype}) != self.dtype:
                return None  # torch counts in wider numbers
            return self.b.op(self.table, *refs, dtype=self.dtype, **attrs)
        return self.b.op(self.table, *(self.operand(v, self.dtype) for v in values), dtype=self.dtype, **attrs)

    def attribute(self, name: str, ours: str) -> Any:
        """The argument of this name as an attribute: a number, a flag, an integer or several."""
        value = self.args[name]
        if is_tensor(value):
            value = number_of(value)
        kind = TYPES.get(ours, "number")
        if kind == "number" and (not isinstance(value, (int, float)) or not math.isfinite(value)):
            raise self.unsupported(f"has {name}={self.args[name]}", "give it a finite number")
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def operand(self, value: Any, dtype: str) -> Ref:
        """A tensor of the program, also of a number."""
        if is_tensor(value):
            return self.ref(value, dtype)
        import torch

        return self.constant(torch.tensor([value], dtype=getattr(torch, dtype)), f"{self.node.name}.constant")

    def promoted(self, values: list[Any]) -> str:
        """The dtype in which operands are compared."""
        import torch

        def fake(v: Any) -> Any:
            return torch.empty(v.shape, dtype=getattr(torch, v.tensor.dtype), device="meta") if isinstance(v, Ref) else v

        found = [fake(v) for v in values]
        return dtype_name(torch.result_type(*found) if len(found) == 2 else found[0].dtype, self.where)

    def reshape(self, x: Ref, shape: tuple[int, ...]) -> Ref:
        return reshaped(self.b, x, shape)

    def whole(self, value: Any) -> Any:
        """The results of a rule; None where it leaves one out that somebody reads."""
        lacking = {i for i, x in enumerate(value) if x is None} if isinstance(value, tuple) else set[int]()
        return None if lacking & fields_read(self.node) else value


def aten_name(operator: Any) -> str:
    """Of an operator of torch's: ATen's without its namespace, without the overload ``default``."""
    return str(operator).removeprefix("aten.").removesuffix(".default")


def fields_read(node: Any) -> set[int]:
    """Which of several results somebody reads; others may be empty."""
    return {u.args[1] for u in node.users if u.target is operator.getitem and u.users}


def arguments(node: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the ATen schema, defaults filled in."""
    found = {a.name: a.default_value for a in node.target._schema.arguments if a.has_default_value()}
    positional = [a.name for a in node.target._schema.arguments if not a.kwarg_only]
    return {**found, **dict(zip(positional, args, strict=False)), **kwargs}


def place_of(node: Any) -> str:
    """The line of the module that a node is from, and the submodule."""
    trace = [line.strip() for line in (node.stack_trace or "").strip().splitlines()]
    files = [i for i, line in enumerate(trace) if line.startswith("File ")]
    # the innermost line outside torch itself, and of what calls the module here, is the user's
    own = [i for i in files if "/torch/nn/" not in trace[i] and HERE not in trace[i]] or files
    place = " ".join(trace[own[-1] : own[-1] + 2]) if own else "an unknown line"
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if stack and stack[-1][0]:
        kind = stack[-1][1]
        place += f" (submodule {stack[-1][0]}, a {getattr(kind, '__name__', str(kind)).rsplit('.', 1)[-1]})"
    return place


def is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, (Ref, torch.Tensor))


def once(value: Any) -> Any:
    """A large constant with one of what repeats along an axis, by its bits: zeros to add to need no memory, places and masks that
    heads share are not read for each."""
    import torch

    if value.numel() < LARGE or value.layout is not torch.strided:
        return value
    for axis, (extent, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        first = value.narrow(axis, 0, 1)
        if extent > 1 and (step == 0 or torch.equal(_bits(value), _bits(first.expand_as(value)))):
            value = first
    return value


def _bits(value: Any) -> Any:
    import torch

    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def number_of(value: Any) -> float | int | None:
    """A number, also as a constant tensor of one element."""
    import torch

    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    return value if isinstance(value, (int, float)) else None
