"""Types of a Relay file: what it says of them, what the rules of operators give, and small values that they depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.files import BAD_VALUE
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_json import JsonNodes
from tvm_bridge.read.relay_module import span_of
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import RelayOp
from tvm_bridge.read.relay_ops import TypeRuleError
from tvm_bridge.read.relay_ops import evaluate
from tvm_bridge.read.relay_ops import impossible
from tvm_bridge.read.relay_ops import relay_op
from tvm_bridge.read.relay_ops import shown_attributes

FIX = "optimize it with sizes for what is open, --buckets 'x:1=128,256', or fix it where it is imported, shape={'x': (1, 512)}"
SMALL = 1024
"""Most elements of a value that is computed while a file is read, since a shape may depend on it."""
_MAX_TUPLES = 4


class IllTyped(ModelFileError):
    """A call whose operands do not fit its operator."""

    misfit: Misfit


@dataclass(frozen=True)
class Misfit:
    """The operands of a call, and the static types that the file gives to its results, if it does."""

    entry: RelayOp
    operands: Operands
    given: tuple[Any, ...] | None

    @property
    def extents(self) -> frozenset[int]:
        """Extents of operands and results, and numbers that operands consist of."""
        o = self.operands
        numbers = {int(n) for v in o.values if v is not None and v.dtype.kind in "iu" for n in v.ravel()}
        return frozenset(numbers.union(*(t.dims for t in (*o.types, *(self.given or ())))))

    def fits(self, change: Callable[[int], int]) -> bool:
        """Whether the operands would fit if their extents, and numbers, were others."""
        o = self.operands
        try:
            types = tuple(replace(t, shape=tuple(map(change, t.dims))) for t in o.types)
            values = tuple(v if v is None or v.dtype.kind not in "iu" else _changed(v, change) for v in o.values)
            found = self.entry.rule(Operands(types, o.attrs, values))
        except (TypeRuleError, *BAD_VALUE):
            return False
        flat = found if isinstance(found, tuple) else (found,)
        return not any(map(impossible, flat)) and self.given in (None, flat)


def _changed(value: Array, change: Callable[[int], int]) -> Array:
    return np.array([change(int(n)) for n in value.ravel()], value.dtype).reshape(value.shape)


class Typing:
    """The types of a file's nodes, each read once; ``spend`` counts the work."""

    def __init__(self, file: JsonNodes, spend: Callable[[], None]) -> None:
        self.file, self.spend = file, spend
        self.types: dict[tuple[int, int], TensorType | tuple[Any, ...] | None] = {}

    def of(self, i: int, depth: int = 0) -> TensorType | tuple[Any, ...] | None:
        """A type node: a tensor, a tuple, or None where there is none."""
        if (i, depth) in self.types:
            return self.types[i, depth]
        f, kind = self.file, self.file.kind(i)
        self.spend()
        found: TensorType | tuple[Any, ...] | None = None
        if kind == "relay.TensorType":
            dims: list[int | None] = []
            for d in f.items(f.ref(i, "shape")):
                value = f.value(d)
                dims.append(value if isinstance(value, int) else None)
            found = TensorType(tuple(dims), f.text_field(i, "dtype"))
            if why := impossible(found):
                raise f.fail(i, f"has {why}")
        elif kind == "TupleType" and depth < _MAX_TUPLES:
            found = tuple(self.of(t, depth + 1) for t in f.items(f.ref(i, "fields")))
        self.types[i, depth] = found
        return found

    def result(self, i: int, op: str, operands: Operands, is_open: bool = False) -> tuple[tuple[TensorType, ...], bool]:
        """The types of a call, and whether they are a tuple's: those of the file if they are static, otherwise those of the
        operator's rule. What the file says of sizes that are open there (``is_open``) has to agree with the rule: Relay takes
        an extent that it does not know for any that fits."""
        found = self.of(self.file.ref(i, "_checked_type_"))
        given = found if isinstance(found, tuple) else (found,)
        static = bool(given) and all(isinstance(t, TensorType) and t.static for t in given)
        entry = relay_op(op)
        if static and not (is_open and entry):
            return given, isinstance(found, tuple)  # type: ignore[return-value]  # all are tensors
        where = f"{self.file.source}: {op} (node {i}{', ' + span_of(self.file, i) if span_of(self.file, i) else ''})"
        if entry is None:
            dynamic = "" if found is None else f" but {found}"
            raise ModelFileError(f"{where} has no static type in the file{dynamic}, and the operator has no type rule here",
                                 "run relay.transform.InferType()(mod) before saving" if found is None else FIX)  # fmt: skip
        try:
            types = entry.rule(operands)
            flat = types if isinstance(types, tuple) else (types,)
            if why := next(filter(None, map(impossible, flat)), ""):
                raise TypeRuleError(f"gives {why}")
            if static and flat != given:
                raise TypeRuleError(f"gives {', '.join(map(str, flat[:4]))}, and {', '.join(map(str, given[:4]))} in the file")
        except (TypeRuleError, *BAD_VALUE) as error:
            what, hint = str(error), FIX if "model runs" in str(error) else "the model is not well typed"
            if not isinstance(error, TypeRuleError):
                fit = ", ".join(map(str, operands.types[:4]))
                what = f"its attributes {shown_attributes(operands.attrs)} do not fit the operands {fit} ({error})"
                hint = "the model is not well typed, or of an unknown version"
            wrong = IllTyped(f"{where}: {what}", hint)
            wrong.misfit = Misfit(entry, operands, given if static else None)
            raise wrong from None
        return flat, isinstance(types, tuple)


def small_results(node: RelayNode, operands: Operands) -> tuple[Array, ...]:
    """Values of small constant results, as shapes and index ranges are; none where they are not known."""
    if any(t.shape and math.prod(t.dims) > SMALL for t in node.types):
        return ()
    if node.op == "shape_of" and node.args:
        known = node.types[0].dtype in ("int32", "int64", "uint32", "uint64")
        return (np.asarray(operands[0], np.int64).astype(node.types[0].dtype),) if known else ()
    present = [v for v in operands.values if v is not None]
    if len(present) < len(operands.values) or relay_op(node.op) is None:
        return ()
    try:
        return evaluate(node.op, present, node.attr, node.types)
    except (UnsupportedError, TypeRuleError, *BAD_VALUE):
        return ()  # no value: if the call is ill typed, its conversion says so
