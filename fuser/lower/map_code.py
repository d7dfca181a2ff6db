"""Element-wise operators in generated source.

What is scaled by a constant keeps the factor beside it until someone needs the product: a maximum is taken of the bare values,
and an exponential takes the factor, the base and the shift in one multiply-add. What is divided by one value a row is multiplied
by its reciprocal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import Stmt
from fuser.ir.opdef import evaluate
from fuser.ir.opdef import missing
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOATS
from fuser.ir.program import NARROW
from fuser.ir.scalar import Scalar
from fuser.lower.emitter import number_text
from fuser.lower.fold_code import LOG2E
from fuser.lower.writer import Combo
from fuser.lower.writer import Writer

LARGEST = float(np.finfo(np.float32).max)


def map_elements(w: Writer, stmt: Stmt) -> None:
    layout = w.tiles.natural(stmt)
    fills = [w.values[a].fill if a in w.values else {} for a in stmt.args]
    fill = {x: f for x in stmt.axes if (f := _fill(w, stmt, x, fills, [x in w.tiles.block.by_value[a].axes for a in stmt.args]))}
    value = w.begin(stmt.value, layout, fill=fill)
    if _only_scales(w, stmt):
        source = w.values[stmt.args[0]]
        value.layout, value.names, value.made = source.layout, source.names, source.made
        value.factor = source.factor * _constants(w, stmt)["scalar"]
        return
    value.factor = _factor(w, stmt)
    ready: dict[str, str] = {}
    for combo in w.combos(stmt.axes):
        key = w.key(stmt.axes, combo, layout)
        name = w.var(stmt.value, layout, key)
        text = _map_text(w, stmt, name, combo, layout, ready)
        w.emit(f"{name} = {text}")
        w.define(value, key, name)


def _constants(w: Writer, stmt: Stmt) -> dict[str, float]:
    return {k: float(w.tiles.block.scalar(v)) for k, v in stmt.attrs if isinstance(v, Scalar)}


def _only_scales(w: Writer, stmt: Stmt) -> bool:
    """A positive factor that maxima and exponentials take over, of a value that nothing else reads."""
    arg = w.tiles.block.by_value[stmt.args[0]]
    return (
        stmt.op == "scale"
        and _constants(w, stmt)["scalar"] > 0
        and arg.kind == "compute"
        and w.values[arg.value].dtype == "float32"
        and len(w.tiles.block.users(arg.value)) == 1
        and w.tiles.natural(stmt) == w.values[arg.value].layout
        and _takes_factor(w, stmt.value)
    )


def _takes_factor(w: Writer, value: str) -> bool:
    """Nothing needs the product: it is only compared, masked, or shifted and exponentiated."""
    users = w.tiles.block.users(value)
    return bool(users) and all(
        u.maximizes or (u.indexed and _takes_factor(w, u.value)) or (_in_log2(w, u) and u.args[0] == value) for u in users
    )


def _in_log2(w: Writer, stmt: Stmt) -> bool:
    """A difference that only exponentials read is computed in their base."""
    users = w.tiles.block.users(stmt.value)
    return stmt.kind == "compute" and stmt.subtracts and bool(users) and all(u.exponential for u in users)


def _may_be_least(w: Writer, value: str) -> bool:
    """Whether a value is made element by element of what is read in a dtype of float32's range, or is so read, or of a constant
    near the end of that: the least of it stands for what is masked, and has no product with a number above 1. What float16 was
    made of is masked with the least of that: in parts of its folds no float32 is so."""
    block = w.tiles.block
    if block.by_value[value].kind == "load" and all(s.dtype == "float16" for s in block.stores):
        return block.by_value[value].dtype == "bfloat16"
    todo, seen = [value], {value}
    while todo:
        stmt = block.by_value[todo.pop()]
        if stmt.kind == "load" and stmt.dtype in ("float32", "bfloat16"):
            return True
        if any(abs(c) * LOG2E > LARGEST for c in _constants(w, stmt).values()):
            return True
        new = set(() if stmt.folds else stmt.args) - seen
        todo += new
        seen |= new
    return False


def _factor(w: Writer, stmt: Stmt) -> float:
    """What is still to be multiplied to the result."""
    if stmt.indexed and stmt.args[0] in w.values:
        return w.values[stmt.args[0]].factor
    return 1 / LOG2E if _in_log2(w, stmt) else 1.0


def _map_text(w: Writer, stmt: Stmt, name: str, combo: Combo, layout: Sequence[str], ready: dict[str, str]) -> str:
    """The expression of the register block ``name``. ``ready`` are names of reciprocals that were computed for other blocks."""
    entry = stmt.entry
    if stmt.casts and stmt.dtype not in FLOATS:
        raise UnsupportedError(f"cast to {stmt.dtype!r} ({stmt.value}) has no Triton form")
    if not stmt.casts and not (entry.triton or entry.formula):
        raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no Triton form")
    bare = stmt.indexed or stmt.exponential or _in_log2(w, stmt)  # they do something about the factor of the first
    args = [
        _running(w, a, stmt.axes, combo, layout)
        if a in stmt.running
        else w.read(a, stmt.axes, combo, layout, factor=not (bare and i == 0))
        for i, a in enumerate(stmt.args)
    ]
    if stmt.indexed:
        return _by_place(w, stmt, args[0], combo, layout)
    if stmt.casts and w.values[stmt.args[0]].dtype == "bool":
        return f"{args[0]}.to(tl.float32)"  # a condition is one bit, of which no number is made by adding or negating
    if stmt.casts:
        return _rounded(args[0], stmt.dtype) if _as_stored(w, stmt) else args[0]
    if stmt.exponential:
        return f"tl.exp2({_times(args[0], _held_factor(w, stmt.args[0]) * LOG2E)})"
    if stmt.subtracts and stmt.value in w.tiles.guards and not stmt.running:
        args[1] = f'tl.where({args[1]} == float("-inf"), 0.0, {args[1]})'
    if _in_log2(w, stmt) and _may_be_least(w, stmt.args[0]):
        return f"({_times(args[0], _held_factor(w, stmt.args[0]))} - {args[1]}) * {number_text(LOG2E)}"
    if _in_log2(w, stmt):
        return f"{_times(args[0], _held_factor(w, stmt.args[0]) * LOG2E)} - {args[1]} * {number_text(LOG2E)}"
    if stmt.divides and set(w.values[stmt.args[1]].layout) < set(layout):
        return f"{args[0]} * {_reciprocal(w, stmt, combo, layout, ready)}"
    if entry.narrow and stmt.dtype in NARROW:
        return entry.narrow.format(*args)
    text = _text(w, stmt.op, args, _constants(w, stmt), name)
    if stmt.divides and stmt.value in w.tiles.guards:
        text = f"tl.where({args[1]} == 0.0, 0.0, {text})"
    return text


def _as_stored(w: Writer, stmt: Stmt) -> bool:
    """A cast to the dtype that a value computed here has already asks for what a reader of its tensor would find."""
    source = w.tiles.block.by_value[stmt.args[0]]
    return source.kind == "compute" and source.dtype == stmt.dtype and stmt.dtype in NARROW


def _rounded(text: str, dtype: str) -> str:
    return f"{text}.to(tl.{dtype}).to(tl.float32)"


def _text(w: Writer, op: str, args: Sequence[str], numbers: Mapping[str, float], name: str) -> str:
    """An operator on names: its text, or that of its formula, which leaves a line ``name_i`` for each step but the last."""
    entry = op_def(op)
    if entry.helper and any(s.contracts for s in w.tiles.block.computes):
        w.helpers.add(entry.helper)
        return f"{function_of(entry.helper)}({', '.join(args)})"
    if entry.triton:
        return entry.triton.format(*args, **{k: number_text(v) for k, v in numbers.items()})
    steps = entry.steps(numbers)
    done = itertools.count(1)

    def apply(inner: str, xs: list[str], attrs: Mapping[str, Any]) -> str:
        i = next(done)
        step = w.out.beside(name, str(i))
        text = _text(w, inner, xs, {k: v.value() for k, v in attrs.items() if isinstance(v, Scalar)}, step)
        if i == len(steps):
            return text
        w.emit(f"{step} = {text}")
        return step

    return evaluate(steps, args, apply)


def function_of(helper: str) -> str:
    """The name of a helper's function."""
    return helper.partition("def ")[2].partition("(")[0]


def _held_factor(w: Writer, value: str) -> float:
    return w.values[value].factor if value in w.values else 1.0


def _reciprocal(w: Writer, stmt: Stmt, combo: Combo, layout: Sequence[str], ready: dict[str, str]) -> str:
    """One over the divisor, which has fewer dimensions than the quotient, spread over them."""
    v = w.values[stmt.args[1]]
    text = w.read(stmt.args[1], stmt.axes, combo, v.layout)
    if text not in ready:
        ready[text] = w.out.beside(stmt.value, f"inv_{len(ready)}" if ready else "inv")
        inverse = f"1.0 / {text}"
        if stmt.value in w.tiles.guards:
            inverse = f"tl.where({text} == 0.0, 0.0, {inverse})"
        w.emit(f"{ready[text]} = {inverse}")
    order = [a for a in layout if a in v.layout]
    name = ready[text]
    if order != list(v.layout):
        name = f"tl.permute({name}, ({', '.join(str(v.layout.index(a)) for a in order)}))" if len(order) > 1 else name
    return w.spread(name, order, layout, stmt.args[1])


def _by_place(w: Writer, stmt: Stmt, x: str, combo: Combo, layout: Sequence[str]) -> str:
    if stmt.value in w.open:
        return x
    by_axis = dict(zip(stmt.axes, combo, strict=True))
    rows, cols = stmt.attr["rows"], stmt.attr["cols"]

    def index(axis: str) -> str:
        if not axis:
            return "0"
        return w.spread(w.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout, axis)

    offset = f" + {stmt.attr['offset']}" if stmt.attr["offset"] else ""
    return stmt.entry.triton.format(x, index(cols), index(rows), offset)


def _running(w: Writer, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str]) -> str:
    """The running maximum as a shift: 0 where nothing was seen yet, so that exp(-inf - 0) is 0."""
    v = w.values[value]
    name = v.names[w.key(axes, combo, v.layout)]
    if not w.inside(value):
        w.emit(f'{w.out.beside(name, "shift")} = tl.where({name} == float("-inf"), 0.0, {name})')
    return w.spread(w.out.beside(name, "shift"), [a for a in want if a in v.layout], want, value)


def _times(text: str, factor: float) -> str:
    return text if math.isclose(factor, 1.0, rel_tol=1e-12) else f"{text} * {number_text(factor)}"


def _keeps_zero(op: str, attrs: Mapping[str, Any]) -> bool:
    """Of one operand that is zero the result is zero."""
    entry = op_def(op)
    if entry.indexed:
        return entry.hidden == 0
    if entry.arity != 1 or entry.numpy is missing:
        return False
    with np.errstate(all="ignore"):
        return bool(entry.numpy(np.zeros(1), **attrs)[0] == 0)


def _fill(w: Writer, stmt: Stmt, axis: str, fills: list[dict[str, str]], has: list[bool]) -> str:
    """What an element-wise operator leaves in lanes outside of the tensor, if that is known."""
    states = [f.get(axis, "") for f in fills]
    if states[0] == "zero" and _keeps_zero(stmt.op, _constants(w, stmt)):
        return "zero"
    if stmt.multiplies and "zero" in states and all(s == "zero" or not h for s, h in zip(states, has, strict=True)):
        return "zero"
    if stmt.entry.fraction == "sum" and all(s == "zero" for s in states) and all(has):
        return "zero"
    if stmt.subtracts and states[0] == "neginf" and not has[1]:
        return "neginf"
    if stmt.exponential and states[0] == "neginf":
        return "zero"
    return ""
