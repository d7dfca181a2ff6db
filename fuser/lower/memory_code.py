"""Loads and stores in generated source: by pointers and masks, or by tensor descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from fuser.errors import NoValidKernelError
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import FLOAT_DTYPES
from fuser.lower.descriptors import Descriptor
from fuser.lower.options import EVICT
from fuser.lower.pieces import Piece
from fuser.lower.writer import TRITON_DTYPE
from fuser.lower.writer import Combo
from fuser.lower.writer import Writer
from fuser.lower.writer import spread

LINE = 128
"""Bytes that a request for neighbouring addresses brings at once."""


def load(w: Writer, stmt: Stmt) -> None:
    access = stmt.at
    by_tma = w.described.get(access.source)
    layout = tuple(a for a in by_tma.axes if w.tiles.plans[a].tile > 1) if by_tma else w.tiles.natural(stmt)
    # pipelines know loads that go into a product as they are
    lies = layout if w.tiles.block.contracts else _as_it_lies(w, stmt, layout)
    value = w.begin(stmt.value, layout, stmt.dtype, dict.fromkeys(stmt.axes, "zero"))
    for combo in w.combos(stmt.axes):
        key = w.key(stmt.axes, combo, layout)
        name = w.var(stmt.value, layout, key)
        w.define(value, key, name)
        if by_tma:
            text = _load_box(w, w.argument(access.source), by_tma, dict(zip(stmt.axes, combo, strict=True)))
            w.emit(f"{name} = {text}")
            continue
        pointer = w.pointer(stmt, combo, lies)
        mask = w.masks(stmt.axes, combo, lies, access)
        hint = EVICT.of(w.tiles.schedule, access.source)
        extra = (f", mask={mask}, other=0.0" if mask else "") + (f', eviction_policy="{hint}"' if hint else "")
        text = f"tl.load({pointer}{extra})"
        w.emit(f"{name} = {text if lies == layout else f'tl.permute({text}, {tuple(lies.index(a) for a in layout)})'}")


def store(w: Writer, stmt: Stmt) -> None:
    access = stmt.at
    layout = w.tiles.dims(stmt.axes)
    held = w.values[stmt.value].layout
    by_tma = w.described.get(access.source)
    if by_tma:
        layout = tuple(a for a in by_tma.axes if a in layout)
    elif (lies := _as_it_lies(w, stmt, layout)) != layout:
        layout = lies
    elif set(held) == set(layout):
        layout = held
    for combo in w.combos(stmt.axes):
        by_axis = dict(zip(stmt.axes, combo, strict=True))
        text = w.read(stmt.value, stmt.axes, combo, layout, fp32=False)
        if set(held) != set(layout):
            text = f"tl.broadcast_to({text}, ({', '.join(str(by_axis[a].size) for a in layout)}))"
        mask = w.masks(stmt.axes, combo, layout, access)
        hint = w.tiles.schedule.knob.get(EVICT.key(access.source), "")
        extra = (f", mask={mask}" if mask else "") + (f', eviction_policy="{hint}"' if hint else "")
        if access.pitch and not by_tma:
            text = _with_zeros(w, stmt, combo, layout, text)
        if stmt.dtype != w.values[stmt.value].dtype:
            text = f"{text}.to({TRITON_DTYPE[stmt.dtype]})" if layout else f"tl.cast({text}, {TRITON_DTYPE[stmt.dtype]})"
        if by_tma:
            w.emit(_store_box(w, w.argument(access.source), by_tma, by_axis, text))
            continue
        w.emit(f"tl.store({w.pointer(stmt, combo, layout)}, {text}{extra})")


def _as_it_lies(w: Writer, stmt: Stmt, layout: tuple[str, ...]) -> tuple[str, ...]:
    """The dimensions of a tile in the order in which Triton spreads it over threads: first that whose elements lie side by side,
    then the others from the first on. Where a line goes on with one of these, that comes next, so that neighbouring threads fill
    the line. (A GroupNorm that turned images wrote 8 bytes here and there.)"""
    strides = stmt.at.strides(w.tiles.block.extents)
    near = tuple(sorted(layout, key=lambda a: strides[a]))
    if len(near) < 3 or strides[near[0]] != 1:
        return layout
    side = w.tiles.plans[near[0]].tile
    goes_on = side * DTYPE_BYTES[stmt.dtype] < LINE and strides[near[1]] == side
    return near if goes_on and next(a for a in layout if a != near[0]) != near[1] else layout


def _with_zeros(w: Writer, stmt: Stmt, combo: Combo, layout: Sequence[str], text: str) -> str:
    """The value with zeros where there is no column, up to the next row."""
    (axis,) = stmt.at.dims[-1]
    plan = w.tiles.plans[axis]
    covered = max(p.offset + p.size for p in w.active[axis]) if plan.grid * plan.trips == 1 else plan.grid * plan.chunk
    if covered < stmt.at.pitch:
        raise NoValidKernelError(
            f"tiles of {plan.tile} of {axis!r} of {w.tiles.block.name!r} leave what is behind {plan.extent} columns unwritten",
            f"choose a tile that covers {stmt.at.pitch}",
        )
    piece = dict(zip(stmt.axes, combo, strict=True))[axis]
    if not (mask := w.mask(axis, piece)):
        return text
    return (
        f"tl.where({spread(mask, (axis,) if axis in layout else (), layout)}, {text}, {0.0 if stmt.dtype in FLOAT_DTYPES else 0})"
    )


def _box_text(w: Writer, d: Descriptor, by_axis: Mapping[str, Piece]) -> str:
    """Where the box of a combination of pieces begins: an index for each dimension."""
    return ", ".join(w.start(a, by_axis[a]) or "0" for a in d.axes)


def _load_box(w: Writer, name: str, d: Descriptor, by_axis: Mapping[str, Piece]) -> str:
    """A load of one register block, with its dimensions in the order of the tensor's."""
    text = f"{name}.load([{_box_text(w, d, by_axis)}])"
    sizes = [str(by_axis[a].size) for a in d.axes if w.tiles.plans[a].tile > 1]
    return text if len(sizes) == len(d.axes) else f"tl.reshape({text}, ({', '.join(sizes)}{',' if len(sizes) == 1 else ''}))"


def _store_box(w: Writer, name: str, d: Descriptor, by_axis: Mapping[str, Piece], value: str) -> str:
    """A store of one register block whose dimensions are in the order of the tensor's."""
    if any(w.tiles.plans[a].tile == 1 for a in d.axes):
        value = f"tl.reshape({value}, ({', '.join(map(str, d.box))},))"
    return f"{name}.store([{_box_text(w, d, by_axis)}], {value})"
