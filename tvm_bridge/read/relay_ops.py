"""The Relay operators that are understood: attribute schema, type rule, numpy semantics.

An attribute of the JSON is a string that is either a scalar or the index of another node, and nothing in the file says which.
The schema says it: ``int``, ``bool``, ``float`` (scalars), ``text`` (either), ``ref`` (a node, resolved to Python values).
An operator that is not in the table is not an error: the importer keeps it as it is, if the file gives its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.files import BAD_VALUE
from fuser.files import shown
from fuser.ir.opdef import TYPES
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS
from tvm_bridge.read.relay_graph import MAX_ELEMENTS
from tvm_bridge.read.relay_graph import MAX_RANK
from tvm_bridge.read.relay_graph import TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Attrs = Mapping[str, Any]


def impossible(t: TensorType) -> str:
    """What is wrong with a type that no tensor can have; empty where one can."""
    if len(t.shape) > MAX_RANK:
        return f"a tensor of rank {len(t.shape)}, more than the {MAX_RANK} that are read"
    known = [e for e in t.shape if e is not None]
    if any(e < 0 for e in known) or math.prod(max(e, 1) for e in known) > MAX_ELEMENTS:
        return f"a tensor of the impossible shape ({', '.join(shown(e) for e in t.shape)})"
    return ""


def shown_attributes(attrs: Attrs) -> str:
    """Attributes in a message, of bounded length."""
    return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in list(attrs.items())[:8]) + "}"


class TypeRuleError(Exception):
    """The operands or attributes of a call do not fit its operator; the reader adds where."""


@dataclass(frozen=True)
class Operands:
    """What a type rule sees: types, attributes, and values of small constant operands (None where unknown)."""

    types: tuple[TensorType, ...]
    attrs: Attrs
    values: tuple[Array | None, ...]

    def __getitem__(self, i: int) -> tuple[int, ...]:
        return self.types[i].dims

    @property
    def dtype(self) -> str:
        return self.types[0].dtype

    def ints(self, i: int) -> tuple[int, ...]:
        """The value of an operand that is a shape or an axis list."""
        value = self.values[i] if i < len(self.values) else None
        if value is None:
            raise TypeRuleError("its shape depends on values that are only known when the model runs")
        return tuple(int(v) for v in np.ravel(value))


Types = TensorType | tuple[TensorType, ...]
Rule = Callable[[Operands], Types]
Numpy = Callable[[Sequence[Array], Attrs, tuple[TensorType, ...]], Any]


@dataclass(frozen=True)
class RelayOp:
    """One operator; ``numpy(args, attrs, output types)`` gives an array, or a tuple where the rule gives a tuple."""

    name: str
    schema: tuple[tuple[str, str], ...]
    rule: Rule
    numpy: Numpy


TABLE: dict[str, RelayOp] = {}


def define(names: str, schema: str, rule: Rule, numpy: Numpy) -> None:
    """Enter operators (names and ``attribute:kind`` pairs separated by blanks) into the table."""
    for name in names.split():
        TABLE[name] = RelayOp(name, _pairs(schema), rule, numpy)


def _pairs(schema: str) -> tuple[tuple[str, str], ...]:
    return tuple((item.split(":")[0], item.split(":")[1]) for item in schema.split())


_entries: tuple[tuple[OpDef, ...], dict[str, tuple[OpDef, dict[str, str]]]] = ((), {})
"""The op table as it was when it was last asked, and what it says of Relay."""


def table_entries() -> dict[str, tuple[OpDef, dict[str, str]]]:
    """Element-wise operators and folds of the op table by their names in Relay, with what their attributes are called there."""
    global _entries
    if _entries[0] != (table := tuple(OPS.values())):
        chosen = (e for e in table if e.relay and (e.kind == "map" or e.over_axes))
        _entries = table, {n: (e, theirs) for e in chosen for n, theirs in names_of(e.relay).items()}
    return _entries[1]


_OVER_AXES = "axis:ref keepdims:bool exclude:bool"
_SCHEMA = {"integer": "int", "flag": "bool", "number": "float", "text": "text", "integers": "ref"}


def relay_op(name: str) -> RelayOp | None:
    """What is known of a Relay operator: here, or from the op table."""
    if name in TABLE:
        return TABLE[name]
    found = table_entries().get(name)
    if found is None:
        return None
    entry, theirs = found
    if entry.over_axes:
        return RelayOp(name, _pairs(_OVER_AXES), _reduce_type, _reduce(entry.numpy))
    schema = tuple((theirs.get(a, a), _SCHEMA[TYPES.get(a, "number")]) for a in entry.attrs)

    def numpy(args: Sequence[Array], attrs: Attrs, types: tuple[TensorType, ...]) -> Array:
        own = {a: attrs[theirs.get(a, a)] for a in entry.attrs if theirs.get(a, a) in attrs}
        return np.asarray(entry.numpy(*args, **own)).astype(numpy_dtype(types[0].dtype))

    return RelayOp(name, schema, _compare if entry.typed == "truth" else _binary, numpy)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise TypeRuleError(f"the shapes {', '.join(map(str, shapes))} do not broadcast") from None


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise TypeRuleError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def few(count: Any, most: int, what: str) -> int:
    """A count that an attribute gives, of what is made one by one."""
    if not isinstance(count, int) or not 0 <= count <= most:
        raise TypeRuleError(f"{shown(count)} {what}; at most {most} are read")
    return count


def same(o: Operands) -> TensorType:
    return o.types[0]


def _binary(o: Operands) -> TensorType:
    if len({t.dtype for t in o.types}) > 1:
        raise TypeRuleError(f"the dtypes {', '.join(t.dtype for t in o.types)} differ")
    return TensorType(broadcast(*(t.dims for t in o.types)), o.dtype)


def _compare(o: Operands) -> TensorType:
    return TensorType(broadcast(*(t.dims for t in o.types)), "bool")


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return a / b
    return np.asarray(np.trunc(a / np.where(b == 0, 1, b))).astype(a.dtype)


_BINARY: dict[str, Callable[..., Any]] = {
    "divide": _divide, "power": np.power, "mod": np.fmod, "floor_mod": np.mod, "floor_divide": np.floor_divide,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "logical_xor": np.bitwise_xor,
}  # fmt: skip
"""Operators of two operands that are others on whole numbers than the op table's, or that it lacks."""


def _round(x: Array) -> Array:
    """To the nearest whole number; of two, to the one that is farther from zero (numpy and torch: to the even one)."""
    whole = np.trunc(x)
    return np.asarray(np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)).astype(x.dtype)


_UNARY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("copy", "annotation.stop_fusion", "annotation.cast_hint"), np.array), "zeros_like": np.zeros_like,
    "ones_like": np.ones_like, "round": _round,
}  # fmt: skip


def _of(f: Callable[..., Any]) -> Numpy:
    return lambda a, at, out: f(*a)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype that holds a Relay dtype (bfloat16 is held in float32)."""
    return np.dtype("float32" if name == "bfloat16" else name)


def _define_elementwise() -> None:
    for rule, table in ((_binary, _BINARY), (same, _UNARY)):
        for name, f in table.items():
            define(name, "", rule, _of(f))
    define("clip", "a_min:float a_max:float", same, lambda a, at, out: np.clip(a[0], at["a_min"], at["a_max"]))
    define(
        "nn.leaky_relu",
        "alpha:float",
        same,
        lambda a, at, out: np.where(a[0] > 0, a[0], a[0] * np.asarray(at["alpha"], a[0].dtype)),
    )
    define("cast", "dtype:text", lambda o: TensorType(o[0], o.attrs["dtype"]), lambda a, at, out: cast(a[0], out[0].dtype))
    define("cast_like", "", lambda o: TensorType(o[0], o.types[1].dtype), lambda a, at, out: cast(a[0], out[0].dtype))
    define(
        "where",
        "",
        lambda o: TensorType(broadcast(o[0], o[1], o[2]), o.types[1].dtype),
        lambda a, at, out: np.where(a[0] != 0, a[1], a[2]),
    )
    define("full_like", "", same, _of(np.full_like))


def cast(x: Array, dtype: str) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(numpy_dtype(dtype))


# Reductions


def reduced_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes that a Relay reduction folds: all where none are named, as its types say (TVM's code for an empty list folds none,
    and does not run)."""
    axis = None if attrs.get("axis") == () else attrs.get("axis")
    chosen = range(rank) if axis is None else [axis_of(a, rank) for a in (axis if isinstance(axis, tuple) else (axis,))]
    # Relay ignores ``exclude`` where no axis is given
    return tuple(i for i in range(rank) if (i in chosen) != bool(attrs.get("exclude") and axis is not None))


def _reduce_type(o: Operands) -> TensorType:
    axes = reduced_axes(o.attrs, len(o[0]))
    return TensorType(
        tuple(1 if i in axes else e for i, e in enumerate(o[0]) if o.attrs.get("keepdims") or i not in axes), o.dtype
    )


def _reduce(f: Callable[..., Array]) -> Numpy:
    def call(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
        kept = f(a[0], axis=reduced_axes(at, a[0].ndim), keepdims=bool(at.get("keepdims")))
        return np.asarray(kept).astype(a[0].dtype)

    return call


def _variance(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    axes = reduced_axes(at, a[0].ndim)
    count = math.prod(a[0].shape[i] for i in axes)
    total = np.sum((a[0] - a[1]) ** 2, axis=axes, keepdims=bool(at.get("keepdims")))
    return (total / (count - 1 if at.get("unbiased") else count)).astype(a[0].dtype)


def _arg_reduce(f: Callable[..., Array]) -> Numpy:
    def call(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
        axes = reduced_axes(at, a[0].ndim)
        if at.get("select_last_index") or len(axes) not in (1, a[0].ndim):
            raise UnsupportedError("argmax over several axes, or of the last index, is not evaluated")
        found = f(a[0], axis=axes[0] if len(axes) == 1 else None, keepdims=bool(at.get("keepdims")))
        return np.asarray(found).astype(np.int32)

    return call


def _define_reductions() -> None:
    folds: dict[str, Callable[..., Array]] = {"prod": np.prod, "all": np.all, "any": np.any}
    for name, f in folds.items():
        define(name, _OVER_AXES, _reduce_type, _reduce(f))
    define("variance", f"{_OVER_AXES} unbiased:bool", _reduce_type, _variance)
    for name, g in (("argmax", np.argmax), ("argmin", np.argmin)):
        define(name, f"{_OVER_AXES} select_last_index:bool", lambda o: replace(_reduce_type(o), dtype="int32"), _arg_reduce(g))
    define("nn.l2_normalize", "eps:float axis:ref", same, _l2_normalize)


def _l2_normalize(a: Sequence[Array], at: Attrs, out: tuple[TensorType, ...]) -> Array:
    total = np.sum(a[0] * a[0], axis=reduced_axes({"axis": at["axis"]}, a[0].ndim), keepdims=True)
    return a[0] / np.sqrt(np.maximum(total, np.asarray(at["eps"], a[0].dtype)))


_define_elementwise()
_define_reductions()


def evaluate(name: str, args: Sequence[Array], attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[Array, ...]:
    """Numpy semantics of one call; :class:`UnsupportedError` where the operator is not in the table, or not in this form."""
    entry = relay_op(name)
    if entry is None:
        raise UnsupportedError(f"the Relay operator {name} has no numpy semantics", "evaluate this part with TVM")
    _check_extent(entry, args, attrs, types)
    try:
        with np.errstate(all="ignore"):
            found = entry.numpy(args, attrs, types)
    except (TypeRuleError, *BAD_VALUE) as error:
        raise UnsupportedError(f"this {name} is not evaluated: {error}", "evaluate this part with TVM") from None
    values = tuple(np.asarray(f) for f in (found if isinstance(found, tuple) else (found,)))
    if [v.shape for v in values[: len(types)]] != [t.shape for t in types]:
        raise UnsupportedError(f"this {name} is not evaluated: its form is another", "evaluate this part with TVM")
    return values


def _check_extent(entry: RelayOp, args: Sequence[Array], attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    """Where a file says another shape than operands and attributes give, the value could be of any size."""
    operands = Operands(tuple(TensorType(a.shape, a.dtype.name) for a in args), attrs, tuple(args))
    try:
        found = entry.rule(operands)
    except (TypeRuleError, *BAD_VALUE):
        return  # no rule for this form: its value says whether there is one
    shapes = [t.shape for t in (found if isinstance(found, tuple) else (found,))][: len(types)]
    if shapes != [t.shape for t in types]:
        raise UnsupportedError(
            f"{entry.name} gives the shapes {shapes[:4]}, not those of the file", "the model is not well typed"
        )
