"""Element-wise operators in generated source.

What is scaled by a constant keeps the factor beside it until someone needs the product: a maximum is taken of the bare values,
and an exponential takes the factor, the base and the shift in one multiply-add. What is divided by one value a row is multiplied
by its reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Scalar
from fuser.lower.fold_code import LOG2E
from fuser.lower.fold_code import FoldCode
from fuser.lower.tile_code import Combo
from fuser.lower.tile_code import Value


class MapCode(FoldCode):
    """What is computed element by element."""

    def map(self, stmt: Stmt) -> None:
        layout = self.natural(stmt)
        fills = [self.values[a].fill if a in self.values else {} for a in stmt.args]
        fill = {x: f for x in stmt.axes if (f := _fill(stmt, x, fills, [x in self.block.by_value[a].axes for a in stmt.args]))}
        value = self.values.setdefault(stmt.value, Value(layout))
        value.fill, value.made = fill, set()
        if self.only_scales(stmt):
            source = self.values[stmt.args[0]]
            value.layout, value.names, value.made = source.layout, source.names, source.made
            value.factor = source.factor * self.constants(stmt)["scalar"]
            return
        value.factor = self.factor(stmt)
        ready: dict[str, str] = {}
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            name = self.var(stmt.value, layout, key)
            text = self.map_text(stmt, combo, layout, ready)
            self.emit(f"{name} = {text}")
            self.fp32.pop(name, None)
            value.names[key] = name
            value.made.add(key)

    def constants(self, stmt: Stmt) -> dict[str, float]:
        return {k: float(self.block.scalar(v)) for k, v in stmt.attrs if isinstance(v, Scalar)}

    def only_scales(self, stmt: Stmt) -> bool:
        """A positive factor that maxima and exponentials take over, of a value that nothing else reads."""
        arg = self.block.by_value[stmt.args[0]]
        return (
            stmt.op == "scale"
            and self.constants(stmt)["scalar"] > 0
            and arg.kind == "compute"
            and self.values[arg.value].dtype == "float32"
            and len(self.block.users(arg.value)) == 1
            and self.natural(stmt) == self.values[arg.value].layout
            and self.takes_factor(stmt.value)
        )

    def takes_factor(self, value: str) -> bool:
        """Nothing needs the product: it is only compared, masked, or shifted and exponentiated."""
        users = self.block.users(value)
        return bool(users) and all(
            u.op == "max" or (u.op == "causal_mask" and self.takes_factor(u.value)) or (self.in_log2(u) and u.args[0] == value)
            for u in users
        )

    def in_log2(self, stmt: Stmt) -> bool:
        """A difference that only exponentials read is computed in their base."""
        users = self.block.users(stmt.value)
        return stmt.kind == "compute" and stmt.op == "sub" and bool(users) and all(u.op == "exp" for u in users)

    def factor(self, stmt: Stmt) -> float:
        """What is still to be multiplied to the result."""
        if stmt.op == "causal_mask" and stmt.args[0] in self.values:
            return self.values[stmt.args[0]].factor
        return 1 / LOG2E if self.in_log2(stmt) else 1.0

    def map_text(self, stmt: Stmt, combo: Combo, layout: Sequence[str], ready: dict[str, str]) -> str:
        """The expression of one register block. ``ready`` are names of reciprocals that were computed for other blocks."""
        entry = op_def(stmt.op)
        if stmt.op == "cast" and stmt.dtype not in ("float16", "bfloat16", "float32"):
            raise UnsupportedError(f"cast to {stmt.dtype!r} ({stmt.value}) has no Triton form")
        if stmt.op not in ("cast", "causal_mask") and not entry.triton:
            raise UnsupportedError(f"operator {stmt.op!r} ({stmt.value}) has no Triton form")
        bare = stmt.op in ("causal_mask", "exp") or self.in_log2(stmt)  # they do something about the factor of the first
        args = [
            self.running(a, stmt.axes, combo, layout)
            if a in stmt.running
            else self.read(a, stmt.axes, combo, layout, factor=not (bare and i == 0))
            for i, a in enumerate(stmt.args)
        ]
        if stmt.op == "causal_mask":
            return self.causal(stmt, args[0], combo, layout)
        if stmt.op == "cast":
            return args[0]
        if stmt.op == "exp":
            return f"tl.exp2({_times(args[0], self.held_factor(stmt.args[0]) * LOG2E)})"
        if stmt.op == "sub" and stmt.value in self.guards and not stmt.running:
            args[1] = f'tl.where({args[1]} == float("-inf"), 0.0, {args[1]})'
        if self.in_log2(stmt):
            return f"{_times(args[0], self.held_factor(stmt.args[0]) * LOG2E)} - {args[1]} * {_number(LOG2E)}"
        if stmt.op == "div" and set(self.values[stmt.args[1]].layout) < set(layout):
            return f"{args[0]} * {self.reciprocal(stmt, combo, layout, ready)}"
        text = entry.triton.format(*args, **{k: _number(v) for k, v in self.constants(stmt).items()})
        if stmt.op == "div" and stmt.value in self.guards:
            text = f"tl.where({args[1]} == 0.0, 0.0, {text})"
        return text

    def held_factor(self, value: str) -> float:
        return self.values[value].factor if value in self.values else 1.0

    def reciprocal(self, stmt: Stmt, combo: Combo, layout: Sequence[str], ready: dict[str, str]) -> str:
        """One over the divisor, which has fewer dimensions than the quotient, spread over them."""
        v = self.values[stmt.args[1]]
        text = self.read(stmt.args[1], stmt.axes, combo, v.layout)
        if text not in ready:
            ready[text] = self.beside(stmt.value, f"inv_{len(ready)}" if ready else "inv")
            inverse = f"1.0 / {text}"
            if stmt.value in self.guards:
                inverse = f"tl.where({text} == 0.0, 0.0, {inverse})"
            self.emit(f"{ready[text]} = {inverse}")
        order = [a for a in layout if a in v.layout]
        name = ready[text]
        if order != list(v.layout):
            name = f"tl.permute({name}, ({', '.join(str(v.layout.index(a)) for a in order)}))" if len(order) > 1 else name
        return self.spread(name, order, layout)

    def causal(self, stmt: Stmt, x: str, combo: Combo, layout: Sequence[str]) -> str:
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        rows, cols = stmt.attr["rows"], stmt.attr["cols"]

        def index(axis: str) -> str:
            if not axis:
                return "0"
            return self.spread(self.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout)

        offset = f" + {stmt.attr['offset']}" if stmt.attr["offset"] else ""
        return f'tl.where({index(cols)} <= {index(rows)}{offset}, {x}, float("-inf"))'

    def running(self, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str]) -> str:
        """The running maximum as a shift: 0 where nothing was seen yet, so that exp(-inf - 0) is 0."""
        v = self.values[value]
        by_axis = dict(zip(axes, combo, strict=True))
        name = v.names[tuple(by_axis[a] for a in v.layout)]
        if not self.inside(value):
            self.emit(f'{self.beside(name, "shift")} = tl.where({name} == float("-inf"), 0.0, {name})')
        return self.spread(self.beside(name, "shift"), [a for a in want if a in v.layout], want)


def _number(x: float) -> str:
    return repr(float(x))


def _times(text: str, factor: float) -> str:
    return text if math.isclose(factor, 1.0, rel_tol=1e-12) else f"{text} * {_number(factor)}"


_KEEPS_ZERO = {"scale", "neg", "square", "relu", "silu", "gelu", "tanh", "cast", "erf", "sqrt"}


def _fill(stmt: Stmt, axis: str, fills: list[dict[str, str]], has: list[bool]) -> str:
    """What an element-wise operator leaves in lanes outside of the tensor, if that is known."""
    states = [f.get(axis, "") for f in fills]
    if stmt.op in _KEEPS_ZERO and states[0] == "zero":
        return "zero"
    if stmt.op == "mul" and "zero" in states and all(s == "zero" or not h for s, h in zip(states, has, strict=True)):
        return "zero"
    if stmt.op in ("add", "sub") and all(s == "zero" for s in states) and all(has):
        return "zero"
    if stmt.op == "sub" and states[0] == "neginf" and not has[1]:
        return "neginf"
    if stmt.op in ("exp",) and states[0] == "neginf":
        return "zero"
    return ""
