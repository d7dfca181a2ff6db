"""Folds in generated source: contractions on tensor cores or as multiply and sum, row folds, accumulators and their rescaling."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.lower.pieces import Piece
from fuser.lower.tile_code import Combo
from fuser.lower.tile_code import TileCode
from fuser.lower.tile_code import Value

TRITON_DTYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "bool": "tl.int1",
    "int32": "tl.int32",
    "int64": "tl.int64",
}
LAZY_REGISTERS = 32
"""Registers of a thread up to which a sum keeps its tile until its loop ends."""
LOG2E = math.log2(math.e)
NAN_MAX = """@triton.jit
def nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
"""


class FoldCode(TileCode):
    """What sums and takes maxima."""

    maxima: bool = False
    """The source calls :data:`NAN_MAX`."""

    def init(self, stmt: Stmt) -> None:
        layout = self.natural(stmt)
        value = Value(layout)
        identity = op_def(stmt.op).identity if op_def(stmt.op).kind == "reduce" else 0.0
        text = 'float("-inf")' if identity == float("-inf") else str(identity)
        kept = self.kept(stmt)
        for combo in self.combos(layout):
            name = self.var(stmt.value, layout, combo)
            shape = ", ".join(str(p.size) for p in combo + kept)
            self.emit(f"{name} = tl.full([{shape}], {text}, tl.float32)" if shape else f"{name} = {text}")
            value.names[combo] = name
            value.made.add(combo)
        self.values[stmt.value] = value

    def kept(self, stmt: Stmt) -> tuple[Piece, ...]:
        """The dimensions that a sum keeps until its loop ends: tiles are added lane by lane, and lanes and warps meet once, not
        in every trip. Empty where they meet in every trip. The option ``lazy`` decides; without it, whether the tile is small."""
        folds = stmt.op == "sum" or (op_def(stmt.op).kind == "contract" and not self.is_dot(stmt))
        read = any(stmt.value in s.running for s in self.block.computes)
        if not folds or stmt.rescale or read or stmt.value not in self.owner:
            return ()
        if self.owner[stmt.value] in self.tree.arrays or any(len(self.pieces[a]) > 1 for a in stmt.reduce):
            return ()
        lanes = math.prod(self.pieces[a][0].size for a in self.dims((*stmt.axes, *stmt.reduce)))
        if not self.schedule.knob.get("lazy", lanes <= LAZY_REGISTERS * 32 * self.schedule.num_warps):
            return ()
        return tuple(self.pieces[a][0] for a in self.dims(stmt.reduce))

    def settle(self, values: Collection[str]) -> None:
        """The sums that kept dimensions while their loop ran lose them."""
        for stmt in self.block.computes:
            if stmt.value in values and (kept := self.kept(stmt)):
                v = self.values[stmt.value]
                for name in v.names.values():
                    text = name
                    for i in reversed(range(len(kept))):
                        text = f"tl.sum({text}, {len(v.layout) + i})"
                    self.emit(f"{name} = {text}")

    def contract(self, stmt: Stmt) -> None:
        left, right = self.sides(stmt) if self.is_dot(stmt) else stmt.args
        for a in stmt.args:
            self.fill_zero(a, stmt.reduce)
        layout = self.natural(stmt)
        self.rescale(stmt)
        value = self.values.setdefault(stmt.value, Value(layout))
        value.fill, value.made = {}, set()
        outer = tuple(a for a in stmt.axes)
        for combo in self.combos(outer):
            key = self.key(outer, combo, layout)
            name = self.var(stmt.value, layout, key)
            first = not self.inside(stmt.value)
            for inner in self.combos(stmt.reduce):
                axes, pieces = (*outer, *stmt.reduce), combo + inner
                if self.is_dot(stmt):
                    text = self.dot(stmt, left, right, axes, pieces, None if first else name, layout)
                else:
                    product = self.product(stmt, axes, pieces, layout)
                    text = product if first else f"{name} + {product}"
                self.emit(f"{name} = {text}")
                first = False
            value.names[key] = name
            value.made.add(key)
            self.fp32.pop(name, None)

    def dot(
        self, stmt: Stmt, left: str, right: str, axes: Sequence[str], combo: Combo, acc: str | None, layout: Sequence[str]
    ) -> str:
        dtype = self.dot_dtype(stmt)
        by_axis = dict(zip(axes, combo, strict=True))
        inner = [a for a in self.dims(self.block.by_value[left].axes) if a in stmt.reduce]
        rows = [a for a in layout if a in self.block.by_value[left].axes]
        cols = [a for a in layout if a in self.block.by_value[right].axes]

        def operand(value: str, want: list[str], split: int) -> str:
            v = self.values[value]
            text = self.read(value, axes, combo, want, fp32=False)
            if v.dtype != dtype:
                text = f"{text}.to({TRITON_DTYPE[dtype]})"
            if len(want) > 2:
                sizes = [by_axis[a].size for a in want]
                text = f"tl.reshape({text}, ({math.prod(sizes[:split])}, {math.prod(sizes[split:])}))"
            return text

        a, b = operand(left, rows + inner, len(rows)), operand(right, inner + cols, len(inner))
        precision = f', input_precision="{self.schedule.knob.get("precision", "tf32x3")}"' if dtype == "float32" else ""
        if len(layout) == 2:
            return f"tl.dot({a}, {b}, {acc}{precision})" if acc else f"tl.dot({a}, {b}{precision})"
        shape = ", ".join(str(by_axis[x].size) for x in layout)
        flat = f"tl.reshape(tl.dot({a}, {b}{precision}), ({shape}))"
        return f"{acc} + {flat}" if acc else flat

    def dot_dtype(self, stmt: Stmt) -> str:
        """Operands have the narrowest dtype that the program gives one of them."""
        dtypes = [self.block.by_value[a].dtype for a in stmt.args]
        order = ("float16", "bfloat16", "float32")
        known = [d for d in order if d in dtypes]
        if not known:
            raise UnsupportedError(f"contraction {stmt.value!r} of {' and '.join(dtypes)} has no Triton form")
        return known[0]

    def product(self, stmt: Stmt, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> str:
        """Multiply and sum, for what has no rows or no columns (matrix times vector)."""
        inner = self.dims(stmt.reduce)
        want = (*layout, *inner)
        text = " * ".join(self.read(a, axes, combo, want) for a in stmt.args)
        for i in () if self.kept(stmt) else reversed(range(len(inner))):
            text = f"tl.sum({text}, {len(layout) + i})"
        return text

    def fill_zero(self, value: str, over: Sequence[str]) -> None:
        self.mask_with(value, over, "zero", "0.0")

    def mask_with(self, value: str, over: Sequence[str], state: str, text: str) -> None:
        """Set lanes outside of the tensor along the axes ``over``, unless they are known to hold that already."""
        v = self.values[value]
        axes = [a for a in over if a in v.layout and v.fill.get(a) != state and any(self.mask(a, p) for p in self.active[a])]
        if not axes:
            return
        full = self.block.by_value[value].axes
        done: set[Combo] = set()
        for combo in self.combos(full):
            key = self.key(full, combo, v.layout)
            if key in done:
                continue
            done.add(key)
            by_axis = dict(zip(full, combo, strict=True))
            mask = self.masks(axes, tuple(by_axis[a] for a in axes), v.layout)
            if mask:
                name = v.names[key]
                self.emit(f"{name} = tl.where({mask}, {name}, {text})")
                self.fp32.pop(name, None)
        for a in axes:
            if done == v.made:
                v.fill[a] = state
            else:  # blocks of other trips have what they had
                v.fill.pop(a, None)

    def rescale(self, stmt: Stmt) -> None:
        """Bring an accumulator to the new running maximum before it is added to."""
        if not self.inside(stmt.value):
            return
        v = self.values[stmt.value]
        for r in stmt.rescale:
            if not self.inside(r.maximum) or self.owner[r.maximum] != self.owner[stmt.value]:
                continue  # the maximum is known before the accumulation begins
            top = self.values[r.maximum]
            for combo in self.combos(v.layout):
                name = v.names[combo]
                by_axis = dict(zip(v.layout, combo, strict=True))
                scale = self.beside(top.names[tuple(by_axis[a] for a in top.layout)], "scale")
                if r.degree != 1:
                    scale = f"tl.exp2({r.degree} * tl.log2({scale}))"
                self.emit(f"{name} = {name} * {self.spread(scale, [a for a in v.layout if a in top.layout], v.layout)}")

    def folded(self, stmt: Stmt, text: str, dim: int) -> str:
        """One dimension folded away."""
        if stmt.op == "sum":
            return f"tl.sum({text}, {dim})"
        if self.only_shifts(stmt):
            return f"tl.max({text}, {dim})"
        self.maxima = True
        return f"tl.reduce({text}, {dim}, {op_def(stmt.op).triton})"

    def joined(self, stmt: Stmt, a: str, b: str) -> str:
        """Two parts of a fold."""
        if stmt.op == "sum":
            return f"{a} + {b}"
        return f"tl.maximum({a}, {b})" if self.only_shifts(stmt) else op_def("maximum").triton.format(a, b)

    def only_shifts(self, stmt: Stmt) -> bool:
        """A running maximum, by which exponents are shifted and which cancels: it may pass over NaN, as the exponential of a NaN
        is one whatever it is shifted by."""
        users = self.block.users(stmt.value)
        return any(stmt.value in u.running for u in users) and all(stmt.value in u.running or u.kind == "store" for u in users)

    def reduce(self, stmt: Stmt) -> None:
        (arg,) = stmt.args
        state, text = ("neginf", 'float("-inf")') if stmt.op == "max" else ("zero", "0.0")
        self.mask_with(arg, stmt.reduce, state, text)
        self.rescale(stmt)
        layout = self.natural(stmt)
        value = self.values.setdefault(stmt.value, Value(layout))
        value.fill, value.made = {}, set()
        for combo in self.combos(stmt.axes):
            key = self.key(stmt.axes, combo, layout)
            name = self.var(stmt.value, layout, key)
            inner = self.dims(stmt.reduce)
            parts = []
            for over in self.combos(stmt.reduce):
                later = stmt.op == "max"  # a positive factor of the maximum
                part = self.read(arg, (*stmt.axes, *stmt.reduce), combo + over, (*layout, *inner), factor=not later)
                for i in () if self.kept(stmt) else reversed(range(len(inner))):
                    part = self.folded(stmt, part, len(layout) + i)
                if later and self.values[arg].factor != 1.0:
                    part = f"{part} * {self.values[arg].factor!r}"
                parts.append(part)
            if self.inside(stmt.value):
                parts.insert(0, name)
            total = parts[0]
            for p in parts[1:]:
                total = self.joined(stmt, total, p)
            if stmt.op == "max" and self.inside(stmt.value):
                new, shift, scale = (self.beside(name, what) for what in ("new", "shift", "scale"))
                self.emit(f"{new} = {total}")
                self.emit(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})')
                self.emit(f"{scale} = tl.exp2(({name} - {shift}) * {LOG2E})")
                self.emit(f"{name} = {new}")
            else:
                self.emit(f"{name} = {total}")
            self.fp32.pop(name, None)
            value.names[key] = name
            value.made.add(key)
