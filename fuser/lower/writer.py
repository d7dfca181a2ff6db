"""A kernel while it is written: its facts, its lines, and in which register blocks every value lies at the current line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from fuser.ir.access import Access
from fuser.ir.mugraph import Stmt
from fuser.lower.descriptors import Descriptor
from fuser.lower.emitter import Emitter
from fuser.lower.pieces import Piece
from fuser.lower.tiles import Tiles

Combo = tuple[Piece, ...]

TRITON_DTYPE = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "bool": "tl.int1",
    "int32": "tl.int32",
    "int64": "tl.int64",
    "int8": "tl.int8",
    "uint8": "tl.uint8",
    "int16": "tl.int16",
}


@dataclass
class Value:
    """Register blocks of a value: dimensions in the order of ``layout``; ``fill[axis]`` is what stands in lanes outside of the
    tensor; ``factor`` is still to be multiplied; ``made`` are the register blocks that the last statement gave it, of one trip
    where the loop is unrolled.
    """

    layout: tuple[str, ...]
    names: dict[Combo, str] = field(default_factory=dict)
    dtype: str = "float32"
    fill: dict[str, str] = field(default_factory=dict)
    factor: float = 1.0
    made: set[Combo] = field(default_factory=set)


class Writer:
    """``described`` are the tensors that are moved by descriptors. The functions that write statements (:mod:`memory_code`,
    :mod:`map_code`, :mod:`fold_code`, …) take a writer and leave their lines and values in it."""

    def __init__(self, tiles: Tiles, described: Mapping[str, Descriptor]) -> None:
        self.tiles, self.described = tiles, described
        self.out = Emitter()
        self.values: dict[str, Value] = {}
        self.active = dict(tiles.pieces)
        self.around: list[frozenset[str]] = []
        """What each loop around the current line accumulates."""
        self.loops: list[str] = []
        """Those of them that are loops of the source too."""
        self.moving: dict[str, tuple[str, int]] = {}
        """Loads that move on with a loop over layers: its counter, elements."""
        self.idle: frozenset[str] = frozenset()
        """Axes whose indices may be needed no more, as a loop over layers does what they index."""
        self.open: set[str] = set()
        """Masks that leave everything as it is where the current line runs."""
        self.imports: set[str] = set()
        """Names of triton.language.extra.cuda that the source uses."""
        self.helpers: set[str] = set()
        """Definitions that the source needs in front of the kernel."""
        self.exchanges = 0
        """Folds that blocks of a cluster have exchanged so far."""
        self._fp32: dict[str, str] = {}

    def emit(self, line: str) -> None:
        self.out.emit(line)

    def cuda(self, name: str) -> None:
        """A call of a function of ``triton.language.extra.cuda``."""
        self.imports.add(name)
        self.emit(f"{name}()")

    # -- register blocks ----------------------------------------------------------------------------------------------------

    def combos(self, axes: Sequence[str]) -> Iterator[Combo]:
        return itertools.product(*(self.active[a] for a in axes))

    def key(self, axes: Sequence[str], combo: Combo, layout: Sequence[str]) -> Combo:
        """The pieces of the dimensions of ``layout``, out of those of ``axes``."""
        by_axis = dict(zip(axes, combo, strict=True))
        return tuple(by_axis[a] for a in layout)

    def var(self, value: str, layout: Sequence[str], combo: Combo) -> str:
        return self.out.piece(value, self._suffix(layout, combo))

    def _suffix(self, layout: Sequence[str], combo: Combo) -> str:
        pieces = self.tiles.pieces
        return "".join(f"_{a}{pieces[a].index(p)}" for a, p in zip(layout, combo, strict=True) if len(pieces[a]) > 1)

    def begin(self, value: str, layout: Sequence[str], dtype: str = "float32", fill: Mapping[str, str] | None = None) -> Value:
        """The value that a statement is about to give its register blocks."""
        found = self.values.setdefault(value, Value(tuple(layout), dtype=dtype))
        found.fill, found.made = dict(fill or {}), set()
        return found

    def define(self, value: Value, key: Combo, name: str) -> None:
        """A register block has its value now; forms of an older one are forgotten."""
        self.forget(name)
        value.names[key] = name
        value.made.add(key)

    def forget(self, name: str | None = None) -> None:
        """The fp32 form of a register block, or of all, is none any more."""
        if name is None:
            self._fp32.clear()
        else:
            self._fp32.pop(name, None)

    def inside(self, value: str) -> bool:
        """The current line is in the loop that accumulates the value; another loop over the same axis is not that loop."""
        return any(value in sums for sums in self.around)

    def full(self, stmt: Stmt, pieces: Combo, text: str) -> str:
        """A register block of a statement's value with one number everywhere, or that number."""
        shape = ", ".join(str(p.size) for p in pieces)
        return f"tl.full([{shape}], {text}, tl.float32)" if shape else text

    # -- indices ------------------------------------------------------------------------------------------------------------

    def descriptor(self, stmt: Stmt) -> Descriptor | None:
        """By which a load or a store is moved."""
        return self.described.get(stmt.at.source)

    def argument(self, tensor: str) -> str:
        """Name of the pointer to a device tensor, or of its descriptor."""
        return self.out.name(f"{tensor} {'desc' if tensor in self.described else 'ptr'}")

    def index(self, axis: str) -> str:
        """Name of the indices of an axis, without what tells its pieces apart."""
        return self.out.name(f"i {axis}")

    def trip(self, axis: str) -> str:
        """The counter of a loop."""
        return f"t_{self.index(axis)}"

    def split_counter(self, axis: str) -> str:
        """The grid part of a split axis is counted by its grid axis, so that both have one counter."""
        return f"p_{self.index(self.tiles.plans[axis].split or axis)}"

    def offsets(self, axis: str, piece: Piece) -> str:
        """Vector of element indices of a piece (a scalar for a tile of one element)."""
        return self.out.piece(f"i {axis}", self._suffix((axis,), (piece,)))

    def mask(self, axis: str, piece: Piece) -> str:
        """Name of the mask of a piece, or nothing where every lane is an element."""
        return self.out.piece(f"ok {axis}", self._suffix((axis,), (piece,))) if self.tiles.masked(axis, piece) else ""

    def row_mask(self, axis: str, piece: Piece, pitch: int) -> str:
        """Name of the mask of a piece in rows of ``pitch`` elements: what is between the columns and there is zero in memory, so
        that whole vectors are moved."""
        if not (mask := self.mask(axis, piece)):
            return ""
        return self.out.piece(f"ok {axis} {pitch}", self._suffix((axis,), (piece,))) if pitch in self.pitches(axis) else mask

    def pitches(self, axis: str) -> tuple[int, ...]:
        """The pitches of rows that an axis alone indexes."""
        accesses = (s.access for s in self.tiles.block.stmts if s.access and s.access.pitch)
        return tuple(dict.fromkeys(a.pitch for a in accesses if a.dims[-1] == (axis,)))

    def start(self, axis: str, piece: Piece) -> str:
        """Index of the first element of a piece; empty for 0."""
        plan = self.tiles.plans[axis]
        counters: list[tuple[str, int]] = []
        if plan.grid > 1:
            counters.append((self.split_counter(axis), plan.chunk))
        if axis in self.loops:
            counters.append((self.trip(axis), plan.tile))
        if plan.extent + plan.tile > 2**31:  # the last tile ends behind what 32 bits number
            counters = [(f"tl.cast({counter}, tl.int64)", step) for counter, step in counters]
        terms = [f"{counter} * {step}" if step > 1 else counter for counter, step in counters]
        if piece.offset:
            terms.append(str(piece.offset))
        return " + ".join(terms)

    def lanes(self, axis: str, piece: Piece) -> str:
        """The numbers of the lanes of a piece."""
        return f"tl.arange(0, {piece.size})"

    def emit_indices(self, axis: str) -> None:
        plan = self.tiles.plans[axis]
        for piece in self.active[axis]:
            start = self.start(axis, piece)
            name = self.offsets(axis, piece)
            if plan.tile == 1:
                self.emit(f"{name} = {start or '0'}")
            else:
                lane = self.lanes(axis, piece)
                self.emit(f"{name} = {start} + {lane}" if start else f"{name} = {lane}")
            if mask := self.mask(axis, piece):
                limits = []
                if piece.padded and (plan.trips > 1 or plan.grid > 1):
                    limits.append(f"{self.lanes(axis, piece)} < {piece.limit}")
                for at, extent in ((mask, plan.extent), *((self.row_mask(axis, piece, n), n) for n in self.pitches(axis))):
                    inside = [*limits, f"{name} < {extent}"]
                    self.emit(f"{at} = {' & '.join(f'({x})' for x in inside) if len(inside) > 1 else inside[0]}")

    def masks(self, axes: Sequence[str], combo: Combo, layout: Sequence[str], access: Access | None = None) -> str:
        """The mask of a combination of pieces; of ``access``, with what is between its rows."""
        found = []
        for axis, piece in zip(axes, combo, strict=True):
            pitched = access is not None and access.pitch and access.dims[-1] == (axis,)
            if mask := self.row_mask(axis, piece, access.pitch) if access and pitched else self.mask(axis, piece):
                found.append(self.spread(mask, (axis,) if axis in layout else (), layout, axis))
        return " & ".join(found)

    def pointer(self, stmt: Stmt, combo: Combo, layout: Sequence[str]) -> str:
        access, extents = stmt.at, self.tiles.block.extents
        strides = access.strides(extents)
        size = math.prod(access.memory_shape(extents))
        terms = [self.argument(access.source)]
        if access.window and access.window.offset:
            terms.append(str(access.window.offset))
        if stmt.value in self.moving:
            counter, step = self.moving[stmt.value]
            terms.append(f"{f'tl.cast({counter}, tl.int64)' if size >= 2**31 else counter} * {step}")
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        for axis in sorted(access.axes, key=lambda a: a in layout):
            index = self.spread(self.offsets(axis, by_axis[axis]), (axis,) if axis in layout else (), layout, axis)
            if size >= 2**31:
                index = f"{index}.to(tl.int64)" if axis in layout else f"tl.cast({index}, tl.int64)"
            terms.append(f"{index} * {strides[axis]}" if strides[axis] != 1 else index)
        return " + ".join(terms)

    # -- operands -----------------------------------------------------------------------------------------------------------

    def spread(self, text: str, have: Sequence[str], want: Sequence[str], of: str, into: str = "") -> str:
        """A text with the dimensions ``have`` broadcast to ``want``. A backend whose registers have layouts asks what the text
        is ``of`` (a value, or the indices of an axis) and what value it goes ``into`` (that of the statement, where none is
        said)."""
        return spread(text, have, want)

    def read(
        self, value: str, axes: Sequence[str], combo: Combo, want: Sequence[str], fp32: bool = True, factor: bool = True
    ) -> str:
        """Text of one register block of a value, in fp32 and broadcast to the dimensions ``want``; without its pending factor
        where ``factor`` is false."""
        v = self.values[value]
        name = v.names[self.key(axes, combo, v.layout)]
        if factor and v.factor != 1.0:
            name = f"({name} * {float(v.factor)!r})"
        if fp32 and v.dtype not in ("float32", "bool"):
            name = self._as_fp32(name)
        order = [a for a in want if a in v.layout]
        if order != list(v.layout):
            name = (
                f"tl.permute({name}, ({', '.join(str(v.layout.index(a)) for a in order)}))"
                if len(order) > 2
                else f"tl.trans({name})"
            )
        return self.spread(name, order, want, value)

    def _as_fp32(self, name: str) -> str:
        if name not in self._fp32:
            self._fp32[name] = self.out.beside(name, "f32")
            self.emit(f"{self._fp32[name]} = {name}.to(tl.float32)")
        return self._fp32[name]


def spread(name: str, have: Sequence[str], want: Sequence[str]) -> str:
    """Index text that broadcasts dimensions ``have`` (a subsequence of ``want``) to ``want``."""
    if not have or tuple(have) == tuple(want):
        return name
    return f"{name}[{', '.join(':' if a in have else 'None' for a in want)}]"
