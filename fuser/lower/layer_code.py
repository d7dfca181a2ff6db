"""A loop over the equal layers of a deep chain, in generated source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Node
from fuser.lower.fold_code import TRITON_DTYPE
from fuser.lower.frame_code import FrameCode
from fuser.lower.layers import LEAST
from fuser.lower.layers import Layers
from fuser.lower.layers import find_layers
from fuser.lower.tile_code import Value


class LayerCode(FrameCode):
    """Statements in a row, of which equal layers become a loop; what goes from one layer to the next has the dtype of the
    contraction that reads it."""

    idle: frozenset[str] = frozenset()
    """Axes whose indices may be needed no more, as a loop does their layer."""

    def plain(self, nodes: Sequence[Node]) -> None:
        """Statements and loops as they stand."""
        raise NotImplementedError

    def layers(self, nodes: Sequence[Node]) -> Layers | None:
        """The layers that a loop can do; none with the option ``unroll``."""
        stmts = [n for n in nodes if isinstance(n, Stmt)]
        if len(stmts) < len(nodes) or self.schedule.knob.get("unroll"):
            return None
        found = find_layers(self.block, stmts, {a: p.tile for a, p in self.plans.items()})
        if found is None or not self._simple(found):
            return None
        if any(self._dtype(u) != self._carried(found) for u in self._after(found)):
            found = found.without_last()
        return found if found.count >= LEAST else None

    def _simple(self, layers: Layers) -> bool:
        """Every value is one register block, each layer has tiles of its own axes, and what it hands on lies as what it got."""
        group = layers.group(0)
        axes = {a for s in group for a in s.related}
        whole = all(len(self.active[a]) == 1 and self.plans[a].trips == 1 for a in axes)
        moved = {a for pairs in layers.axes for a, b in pairs if a != b}
        tensors = {s.access.source for s in group if s.access}
        if not whole or any(self.plans[a].grid > 1 for a in moved) or tensors & set(self.described):
            return False
        makers = self.block.by_value
        users = [s for s in group if layers.initial in s.args]
        if not all(self.is_dot(u) for u in users) or len({self.dot_dtype(u) for u in users}) > 1:
            return False
        return layers.renamed(1, self.natural(makers[layers.initial])) == self.natural(makers[layers.made])

    def _carried(self, layers: Layers) -> str:
        return next(self.dot_dtype(s) for s in layers.group(0) if layers.initial in s.args)

    def _after(self, layers: Layers) -> list[Stmt]:
        return [u for u in self.block.users(layers.last) if u not in layers.group(layers.count - 1)]

    def _dtype(self, user: Stmt) -> str:
        """The dtype in which a statement reads what the layers leave."""
        return user.dtype if user.kind == "store" else self.dot_dtype(user) if self.is_dot(user) else "float32"

    def rolled(self, layers: Layers) -> None:
        """What stands in front of the layers, the loop over them, and what follows."""
        self.plain(layers.stmts[: layers.first])
        dtype = self._carried(layers)
        start = self.block.by_value[layers.initial]
        (combo,) = self.combos(start.axes)
        layout = self.natural(start)
        carried, counter = self.ident("x layer"), self.ident(" layer")
        self.emit(f"{carried} = {self._as(dtype, layers.initial, start, layout)}")
        self.emit(f"for {counter} in range({layers.count}):")
        self.depth += 1
        saved = dict(self.values)
        self.values[layers.initial] = Value(layout, {self.key(start.axes, combo, layout): carried}, dtype)
        self.moving = {value: (counter, step) for value, step in layers.steps if step}
        self.fp32.clear()
        # loads first: none of them has to wait for the contraction
        group = layers.group(0)
        self.plain([*(s for s in group if s.kind == "load"), *(s for s in group if s.kind != "load")])
        made = self.block.by_value[layers.made]
        self.emit(f"{carried} = {self._as(dtype, layers.made, made, self.natural(made))}")
        self.depth -= 1
        self.moving = {}
        self.fp32.clear()
        self.values = saved
        last = self.block.by_value[layers.last]
        (combo,) = self.combos(last.axes)
        layout = layers.renamed(layers.count - 1, self.natural(made))
        self.values[layers.last] = Value(layout, {self.key(last.axes, combo, layout): carried}, dtype)
        self.idle |= {b for pairs in layers.axes[1:] for _, b in pairs}
        self.plain(layers.stmts[layers.end :])

    def without_idle(self) -> list[str]:
        """The lines without indices and masks that none of them uses."""
        lines = self.lines
        for axis in self.idle:
            for name in (f"{self.ident('ok ' + axis)}", self.offsets(axis, self.pieces[axis][0])):
                word = re.compile(rf"\b{name}\b")
                uses = [line for line in lines if word.search(line)]
                if len(uses) == 1 and uses[0].lstrip().startswith(f"{name} = "):
                    lines = [line for line in lines if line is not uses[0]]
        return lines

    def _as(self, dtype: str, value: str, stmt: Stmt, layout: Sequence[str]) -> str:
        (combo,) = self.combos(stmt.axes)
        text = self.read(value, stmt.axes, combo, layout, fp32=False)
        return text if self.values[value].dtype == dtype else f"{text}.to({TRITON_DTYPE[dtype]})"
