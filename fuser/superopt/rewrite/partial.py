"""A kernel without products, divided along an axis that it folds: one that leaves partial results of each part, one that joins
them and goes on.

What a fold of a part leaves is joined by the same fold. Two kinds of folds read the result of another one, and are joined by what
each part knows of itself, exactly:

* squares about a mean, Σ(x − μ)²: each part leaves its count n, its sum and its squares e about its own mean c, and
  Σ(x − μ)² = Σ_parts e + n (c − μ)², which no large mean can cancel (Chan, Golub and LeVeque);
* sums of exponentials below a maximum, Σ exp(x − M) y: each part leaves its maximum m and its sum s below that, and the whole is
  Σ_parts s exp(m − M).

Element-wise results that are needed again behind the sums are computed again from what is loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace

from fuser.errors import UnsupportedError
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import live
from fuser.ir.mugraph import ordered
from fuser.ir.program import accumulator
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.superopt.rewrite.stabilize import licences


def parted(block: BlockGraph, axis: str) -> tuple[BlockGraph, BlockGraph]:
    """The kernel that folds parts of ``axis``, and the one that joins them. Raises :class:`UnsupportedError` where a fold along
    the axis depends on another one in a way that no partial results are known for."""
    return _Parted(below_maxima(block, axis), axis).run(block.name)


def below_maxima(block: BlockGraph, axis: str) -> BlockGraph:
    """The block with each bare exponential that is summed over ``axis``, and may be shifted by any amount, below its maximum."""
    alone = KernelGraph(block.name, block.inputs, (block,), block.outputs)
    over = {found.exponential: found.axes for found in licences(alone) if found.granted and axis in found.axes}
    out: list[Stmt] = []
    for s in block.stmts:
        if s.value not in over or s.kind != "compute":
            out.append(s)
            continue
        (x,) = s.args
        own, dtype = block.by_value[x].axes, accumulator(block.by_value[x].dtype)
        top, shifted = block.fresh(f"{s.value}_max"), block.fresh(f"{s.value}_shifted")
        kept = tuple(a for a in own if a not in over[s.value])
        out.append(Stmt("compute", top, kept, dtype, "max", (x,), over[s.value]))
        out.append(Stmt("compute", shifted, own, dtype, "sub", (x, top), running=(top,)))
        out.append(replace(s, args=(shifted,)))
    return replace(block, stmts=tuple(out))


class _Parted:
    def __init__(self, block: BlockGraph, axis: str) -> None:
        self.block, self.axis, self.part = block, axis, f"{axis}_part"
        self.axes = (Axis(self.part, FREE), *block.axes)
        self.folds = [s for s in block.computes if s.folds and axis in s.reduce]
        self.behind = {s.value: self.sources(s.value) for s in block.stmts if s.kind != "store"}
        own = {s.value for s in self.folds}
        self.first = [s for s in self.folds if not own & self.behind[s.value]]
        self.head: list[Stmt] = []
        self.begin: list[Stmt] = []
        self.left: dict[str, str] = {}
        reads = [s for s in block.loads if s.access and axis in s.axes]
        self.along = all(s.access is not None and s.access.axes[-1] == axis for s in reads)
        """Each part reads rows: then what the parts of a row leave lies side by side, else what one part leaves of all rows."""

    def run(self, name: str) -> tuple[BlockGraph, BlockGraph]:
        if not self.first or any(s.contracts for s in self.block.computes):
            raise UnsupportedError(f"{self.block.name!r} has no sum over {self.axis!r} to divide, or a product")
        after = {v for v, found in self.behind.items() if found & {s.value for s in self.first}}
        first = {s.value for s in self.first}
        for s in self.block.stmts:
            if s.value in first and s.kind == "compute":
                self.head.append(replace(s, axes=self.with_part(s.axes)))
            elif s.kind != "store" and s.value not in after:
                self.head.append(s)
        joins: dict[str, list[Stmt]] = {s.value: self.whole(s) for s in self.first}
        for s in self.folds:
            if s.value not in first:
                joins[s.value] = self.squares(s) or self.exponentials(s) or self.refused(s)
        tail = self.tail(after | first, joins)
        return self.kernel(f"{name}_split", self.head, ((self.axis, self.part),)), self.kernel(f"{name}_sum", tail)

    def refused(self, s: Stmt) -> list[Stmt]:
        raise UnsupportedError(f"{s.value!r} of {self.block.name!r} sums over {self.axis!r} what another sum over it has made")

    # -- the parts of what depends on no other fold -----------------------------------------------------------------------------

    def whole(self, s: Stmt) -> list[Stmt]:
        return [*self.handed(s.value, s.axes, s.dtype), self.joined(s, self.left[s.value])]

    def joined(self, s: Stmt, parts: str) -> Stmt:
        """The fold of a value of each part."""
        return Stmt("compute", s.value, s.axes, s.dtype, s.op, (parts,), (self.part,))

    def handed(self, value: str, axes: Collection[str], dtype: str) -> list[Stmt]:
        """Stores a value of each part, unless that is done, and loads it again. Partial results stay fp32: rounding them would
        cost accuracy that one kernel has."""
        if value in self.left:
            return []
        self.left[value] = self.fresh(f"{value}_part")
        order = self.left_in(axes)
        access = Access(self.left[value], tuple((a,) for a in order))
        self.head.append(Stmt("store", value, access.axes, accumulator(dtype), access=access))
        return [Stmt("load", self.left[value], access.axes, accumulator(dtype), access=access)]

    # -- folds that read another one --------------------------------------------------------------------------------------------

    def squares(self, s: Stmt) -> list[Stmt]:
        """Σ(x − μ)² with μ = Σx/n, both over the same axes."""
        of = self.block.by_value
        square = of[s.args[0]]
        if not s.sums or not (square.entry.fraction == "square" or (square.multiplies and square.args[0] == square.args[1])):
            return []
        off = of[square.args[0]]
        if not off.subtracts:
            return []
        x, mean = off.args
        total = of[of[mean].args[0]] if of[mean].op == "scale" else None
        same = total is not None and total.sums and total.args == (x,) and set(total.reduce) == set(s.reduce)
        if not same or not set(s.reduce) <= set(of[x].axes) or not self.is_mean(of[mean], s.reduce):
            return []
        assert total is not None
        dtype, kept = accumulator(s.dtype), self.with_part(total.axes)
        count, near = self.count(x, s), self.fresh(f"{x}_near")
        if near not in {h.value for h in self.head}:
            self.compute(near, kept, dtype, "div", total.value, count)
        d, e = self.fresh(f"{s.value}_off"), self.fresh(f"{s.value}_near")
        wide = self.with_part(of[x].axes)
        self.compute(d, wide, dtype, "sub", x, near)
        self.compute(f"{d}2", wide, dtype, "square", d)
        self.head.append(Stmt("compute", e, kept, dtype, "sum", (f"{d}2",), s.reduce))
        mine = [*self.handed(count, total.axes, dtype), *self.handed(total.value, total.axes, dtype)]
        mine += self.handed(e, total.axes, dtype)
        names = [self.fresh(f"{s.value}_{what}") for what in ("at", "far", "far2", "between", "each")]
        steps = (
            ("div", (self.left[total.value], self.left[count])),
            ("sub", (names[0], mean)),
            ("square", (names[1],)),
            ("mul", (self.left[count], names[2])),
            ("add", (self.left[e], names[3])),
        )
        joined = self.left_in(total.axes)
        mine += [Stmt("compute", n, joined, dtype, op, args) for n, (op, args) in zip(names, steps, strict=True)]
        return [*mine, self.joined(s, names[-1])]

    def is_mean(self, mean: Stmt, reduce: Collection[str]) -> bool:
        whole = Scalar()
        for a in reduce:
            whole = whole * Scalar.power(Extent(a, AXIS), -1)
        value = Scalar.of(mean.attr["scalar"])
        return value == whole or self.block.scalar(value) == self.block.scalar(whole)

    def count(self, x: str, s: Stmt) -> str:
        """Elements of a part, as the sum of as many ones."""
        name = self.fresh(f"{x}_count")
        if name not in {h.value for h in self.head}:
            own, dtype = self.block.by_value[x].axes, accumulator(s.dtype)
            self.head.append(Stmt("compute", f"{name}_0", own, dtype, "sub", (x, x)))
            one = (("scalar", Scalar.of(1)),)
            self.head.append(Stmt("compute", f"{name}_1", own, dtype, "shift", (f"{name}_0",), attrs=one))
            kept = self.with_part(a for a in own if a not in s.reduce)
            self.head.append(Stmt("compute", name, kept, dtype, "sum", (f"{name}_1",), s.reduce))
        return name

    def exponentials(self, s: Stmt) -> list[Stmt]:
        """Σ exp(x − M) y with M = max x over the same axes, and y without M."""
        of = self.block.by_value
        way = self.way_to_exponential(s)
        if not s.sums or not way:
            return []
        shifted = of[way[-1].args[0]]
        x, top = shifted.args
        if set(of[top].reduce) != set(s.reduce):
            return []
        dtype, parts = accumulator(s.dtype), f"{s.value}_"
        last, names = shifted.value, dict[str, str]()
        d = self.fresh(f"{parts}{shifted.value}")
        self.head.append(Stmt("compute", d, self.with_part(shifted.axes), dtype, "sub", (x, top), running=(top,)))
        names[last] = d
        for step in reversed(way):
            names[step.value] = self.fresh(f"{parts}{step.value}")
            args = tuple(names.get(a, a) for a in step.args)
            self.head.append(replace(step, value=names[step.value], args=args, axes=self.with_part(step.axes)))
        mine = self.fresh(f"{parts}part_sum")
        fold = replace(s, value=mine, args=(names[s.args[0]],), axes=self.with_part(s.axes), rescale=(Rescale(top, 1),))
        self.head.append(fold)
        tops = self.handed(top, of[top].axes, of[top].dtype)
        loads = [*tops, *self.handed(mine, s.axes, dtype)]
        below, factor, each = (self.fresh(f"{parts}{what}") for what in ("below", "factor", "each"))
        kept = self.left_in(of[top].axes)
        loads.append(Stmt("compute", below, kept, dtype, "sub", (self.left[top], top), running=(top,)))
        loads.append(Stmt("compute", factor, kept, dtype, "exp", (below,)))
        loads.append(Stmt("compute", each, self.left_in(s.axes), dtype, "mul", (self.left[mine], factor)))
        return [*loads, replace(self.joined(s, each), rescale=(Rescale(top, 1),))]

    def way_to_exponential(self, s: Stmt) -> list[Stmt]:
        """The operators from what a fold adds up back to the exponential of x − max x, each linear in what comes from there."""
        of, found = self.block.by_value, list[Stmt]()
        value = s.args[0]
        while True:
            step = of[value]
            if step.kind != "compute" or step.folds:
                return []
            found.append(step)
            if step.exponential:
                break
            behind = [i for i, a in enumerate(step.args) if self.behind[a] & {f.value for f in self.folds}]
            linear = step.entry.linear
            if len(behind) != 1 or behind[0] >= len(linear) or not linear[behind[0]]:
                return []
            value = step.args[behind[0]]
        shifted = of[found[-1].args[0]]
        if not shifted.subtracts or shifted.attr.get("strict"):  # parts have zeros where all is masked
            return []
        top = of[shifted.args[1]]
        return found if top.maximizes and top.args == shifted.args[:1] and top in self.first else []

    # -- the kernels ------------------------------------------------------------------------------------------------------------

    def tail(self, after: Collection[str], joins: Mapping[str, list[Stmt]]) -> list[Stmt]:
        """What follows the folds, with all that it needs of the first kernel computed again from loads."""
        out: list[Stmt] = []
        for s in self.block.stmts:
            if s.kind == "store" or s.value not in joins:
                again = s.kind != "compute" or s.value in after or s.entry.kind == "map"
                out += [s] if again else []
            else:
                out += joins[s.value]
        out = list(live(out))
        made = {s.value for s in out if s.kind != "store"}
        if lost := [a for s in out for a in (*s.args, *((s.value,) if s.kind == "store" else ())) if a not in made]:
            raise UnsupportedError(f"what follows the sums of {self.block.name!r} over {self.axis!r} needs {lost[0]!r} as well")
        return out

    def kernel(self, name: str, stmts: Collection[Stmt], splits: tuple[tuple[str, str], ...] = ()) -> BlockGraph:
        needed = live(stmts)
        names = {a for s in needed for a in (*s.axes, *s.reduce, *s.constant_axes)}
        return BlockGraph(name, tuple(a for a in self.axes if a.name in names), needed, splits).validate()

    def compute(self, name: str, axes: tuple[str, ...], dtype: str, op: str, *args: str) -> None:
        self.head.append(Stmt("compute", name, axes, dtype, op, args))

    def with_part(self, axes: Collection[str] | Iterator[str]) -> tuple[str, ...]:
        return ordered((self.part, *axes), self.axes)

    def left_in(self, axes: Collection[str]) -> tuple[str, ...]:
        """How what the parts leave lies, and what joins it: nothing is transposed on the way."""
        order = self.with_part(axes)
        return (*order[1:], order[0]) if self.along else order

    def sources(self, value: str) -> frozenset[str]:
        """All that a value is made of."""
        seen: set[str] = set()
        todo = list(self.block.by_value[value].args)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.block.by_value[name].args
        return frozenset(seen)

    def fresh(self, name: str) -> str:
        return self.block.fresh(name)
