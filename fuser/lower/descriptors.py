"""Tensor descriptors: loads and stores of whole tiles by the tensor memory accelerator of Hopper and later (TMA).

The host describes a device tensor and the box that one access moves; the hardware then computes addresses, bounds and
shared-memory layout, so that no thread holds pointers or masks. Every axis of an access is a dimension of its descriptor:
elements beyond an axis are read as zero and never written, as masks have it. Descriptors are encoded with the tensor's
address where a kernel is bound (:mod:`fuser.runtime.tensor_map`): descriptors made on the device would need global scratch
memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.rows import ROW_BYTES
from fuser.lower.options import TMA
from fuser.lower.tiles import Tiles

MAX_RANK = 5
MAX_BOX = 256
"""Elements of a box along each dimension."""
HOST_TYPE = {8: 10, 9: 8, 10: 9}
"""The driver's number of an element type where the compiler's differs."""
LEAST_BOX = 128
"""Bytes: shared memory of a box begins at a multiple of that; Triton 3.6 puts smaller ones next to each other."""
LEAST_BYTES = ROW_BYTES
"""Of a box along its innermost dimension; every stride and the address are multiples of it."""
DTYPES = frozenset({"float16", "bfloat16", "float32", "int32"})


@dataclass(frozen=True)
class Descriptor:
    """What the host describes: from ``offset`` on, ``shape`` elements with ``strides`` of a device tensor, moved in boxes of
    ``box``; all in elements, one dimension for each of ``axes``, the last contiguous. ``swizzle``, ``data_type`` (as the driver
    numbers them) and the box that one instruction moves, which may be narrower, are the compiler's: -1 and empty before."""

    tensor: str
    axes: tuple[str, ...]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    itemsize: int
    swizzle: int = -1
    data_type: int = -1
    part: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        """Kernel parameters that Triton makes of it: the map, then every extent and stride."""
        return 1 + 2 * len(self.shape)

    @property
    def boxes_last(self) -> Descriptor:
        """The same boxes with the dimensions in which they are one element wide in front, as tiles have them."""
        order = sorted(range(len(self.box)), key=lambda i: self.box[i] > 1)
        turned = {n: tuple(getattr(self, n)[i] for i in order) for n in ("axes", "shape", "strides", "box")}
        return replace(self, **turned)


def passed(args: Sequence[str], descriptors: Sequence[Descriptor]) -> list[tuple[int, Descriptor | None]]:
    """What a kernel is given for its tensors ``args``, in order: of each, by its number, the descriptors of all its views, or
    (None) a pointer."""
    found: list[tuple[int, Descriptor | None]] = []
    for i, tensor in enumerate(args):
        mine = [d for d in descriptors if d.tensor == tensor]
        found += [(i, d) for d in mine] or [(i, None)]
    return found


def why_not(tiles: Tiles, tensor: str) -> str:
    """What keeps a kernel from moving a tensor by descriptor; empty where nothing does."""
    try:
        describe(tiles, tensor)
    except NoValidKernelError as error:
        return error.message
    return ""


def described(tiles: Tiles) -> dict[str, Descriptor]:
    """The descriptors that a kernel's options ask for, by tensor. Raises :class:`NoValidKernelError` naming the tensor and the
    condition that it does not meet."""
    return {n: describe(tiles, n) for n in TMA.named(tiles.schedule)}


def describe(tiles: Tiles, tensor: str, most: int = MAX_BOX) -> Descriptor:
    """The descriptor of all accesses of a kernel to a tensor; :class:`NoValidKernelError` where there is none. A tile has at most
    ``most`` columns."""
    stmts = [s for s in tiles.block.stmts if s.access and s.access.source == tensor]
    if not stmts:
        raise UsageError(f"{tiles.block.name!r} does not use {tensor!r}")
    if len({s.kind for s in stmts}) > 1:
        raise _refuse(tiles, tensor, "it is read and written")
    found = {_describe(tiles, s, most) for s in stmts}
    if len(found) > 1:
        raise _refuse(tiles, tensor, f"its {len(stmts)} accesses have different boxes")
    return found.pop()


def describe_view(tiles: Tiles, load: Stmt, most: int = MAX_BOX) -> Descriptor:
    """The descriptor of one load, whatever else reads the tensor: queries, keys and values may be views of one. Raises
    :class:`NoValidKernelError`."""
    tensor = load.at.source
    if tensor in tiles.block.outputs:
        raise _refuse(tiles, tensor, "it is read and written")
    return _describe(tiles, load, most)


def _describe(tiles: Tiles, stmt: Stmt, most: int) -> Descriptor:
    access, extents = stmt.at, tiles.block.extents
    tensor, strides = access.source, access.strides(extents)
    if access.pitch and stmt.kind == "store":
        raise _refuse(tiles, tensor, "what is between its rows would stay as it was")
    if stmt.dtype not in DTYPES:
        raise _refuse(tiles, tensor, f"elements are {stmt.dtype}")
    item = DTYPE_BYTES[stmt.dtype]
    axes = tuple(a for a in access.axes if extents[a] > 1 or tiles.plans[a].tile > 1)
    if not 1 <= len(axes) <= MAX_RANK:
        raise _refuse(tiles, tensor, f"it has {len(axes)} axes, more than {MAX_RANK}" if axes else "it is a single element")
    box = tuple(_size(tiles, tensor, a) for a in axes)
    dims = [a for a in axes if tiles.plans[a].tile > 1]
    if len(dims) > 2 and tuple(dims) != tiles.natural(stmt):
        raise _refuse(tiles, tensor, "a tile of three dimensions would be permuted in registers")
    limits = [MAX_BOX] * (len(axes) - 1) + [most]
    if wide := [(a, limit) for a, n, limit in zip(axes, box, limits, strict=True) if n > limit]:
        raise _refuse(tiles, tensor, f"the tile of {wide[0][0]!r} is larger than {wide[0][1]}")
    if strides[axes[-1]] != 1 or box[-1] * item < LEAST_BYTES:
        raise _refuse(tiles, tensor, f"its innermost {LEAST_BYTES} bytes are not in one tile")
    if math.prod(box) * item < LEAST_BOX:
        raise _refuse(tiles, tensor, f"its tile has {math.prod(box) * item} bytes, fewer than the {LEAST_BOX} that are aligned")
    offset = access.window.offset if access.window else 0
    if any(n * item % LEAST_BYTES for n in (offset, *(strides[a] for a in axes[:-1]))):
        raise _refuse(tiles, tensor, f"a stride is not a multiple of {LEAST_BYTES} bytes")
    shape = tuple(extents[a] for a in axes)
    return Descriptor(tensor, axes, offset, shape, tuple(strides[a] for a in axes), box, item)


def _size(tiles: Tiles, tensor: str, axis: str) -> int:
    """Lanes of the pieces of an axis, which are all alike."""
    pieces, plan = tiles.pieces[axis], tiles.plans[axis]
    if len({(p.size, p.limit) for p in pieces}) > 1 or len(pieces) > (plan.trips if axis in tiles.tree.arrays else 1):
        raise _refuse(tiles, tensor, f"the tile {plan.tile} of {axis!r} is not one power of two")
    if pieces[0].padded and plan.tile < plan.extent:
        raise _refuse(tiles, tensor, f"the tile {plan.tile} of {axis!r} is padded, and the padding would read the next tile")
    return pieces[0].size


def _refuse(tiles: Tiles, tensor: str, why: str) -> NoValidKernelError:
    return NoValidKernelError(
        f"{tensor!r} of {tiles.block.name!r} cannot be moved by a tensor descriptor: {why}", f"leave out tma_{tensor}"
    )


def with_metadata(
    descriptors: Sequence[Descriptor], metadata: Sequence[Mapping[str, Any]], ttgir: str, names: Sequence[str]
) -> tuple[Descriptor, ...]:
    """The descriptors with what the compiler chose for each (``metadata.tensordesc_meta``, in the order of the arguments
    ``names``).

    Where warps are specialized Triton 3.6 may give halves of the rows to two groups of warps. It then copies half a box at once,
    but its metadata has the whole box: what ``ttgir`` copies counts. (Triton 3.9 refuses such a kernel.)
    """
    if len(metadata) != len(descriptors):
        raise NoValidKernelError(f"the compiler left {len(descriptors) - len(metadata)} tensor descriptors out")
    found = []
    for d, meta, name in zip(descriptors, metadata, names, strict=True):
        part = tuple(int(n) for n in meta["block_size"])
        if meta["elem_size"] != d.itemsize or meta["fp4_padded"] or len(part) != len(d.box):
            raise NoValidKernelError(f"the compiler describes {d.tensor!r} as {dict(meta)}, not as boxes {d.box}")
        kind = HOST_TYPE.get(meta["elem_type"], meta["elem_type"])
        found.append(replace(d, swizzle=meta["swizzle"], data_type=kind, part=_copied(d, part, name, ttgir)))
    return tuple(found)


def _copied(d: Descriptor, part: tuple[int, ...], name: str, ttgir: str) -> tuple[int, ...]:
    """The box of one instruction, cut to what every copy of the compiled kernel moves."""
    moved = rf"async_tma_copy\S* %{re.escape(name)}\[.*?!ttg\.memdesc<((?:\d+x)+)[a-z]\w*,[^>]*> ?(?:loc|$)"
    sizes = {tuple(n for n in map(int, c.split("x")[:-1]) if n > 1) for c in re.findall(moved, ttgir, re.MULTILINE)}
    if not sizes:  # the descriptor has another name inside of a partition
        return part
    if len(sizes) != 1:
        raise NoValidKernelError(f"the compiler moves {d.tensor!r} in boxes {sorted(sizes)}, not in one kind of box")
    (size,) = sizes
    if len(size) != sum(n > 1 for n in d.box):
        raise NoValidKernelError(f"the compiler moves {d.tensor!r} in boxes {size}, not {d.box}")
    left = iter(size)
    return tuple(min(p, next(left)) if n > 1 else p for p, n in zip(part, d.box, strict=True))
