"""Which layouts a tile may have in registers, and what they cost to read, write, fold and exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from fuser.ir.layout.accesses import bits_wavefronts
from fuser.ir.layout.accesses import device_access
from fuser.ir.layout.accesses import shared_access
from fuser.ir.layout.bits import image
from fuser.ir.layout.bits import inverse
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import offsets_of
from fuser.ir.layout.linear import packed
from fuser.ir.layout.named import Bases
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Shared
from fuser.ir.layout.named import Swizzled
from fuser.ir.specs import ATOMS
from search.layouts.problem import Clocks

ROUND_TRIP, HANDSHAKE = 60.0, 90.0
"""Clocks of a trip through shared memory, and of a barrier on which others wait (measured by others on Hopper)."""
VECTORS = (16, 8, 4)
"""Bytes of a thread's access that are tried."""
COLUMNS = 256
"""Most columns of a ``wgmma``."""
Shape = tuple[int, ...]


def of_products(columns: int, warps: int, grouped: bool) -> Iterator[Registers]:
    """What a product of ``columns`` may leave its result in."""
    if grouped:
        yield Mma(3, (4, 1), (16, min(columns, COLUMNS), 16))
        return
    for across in (1 << i for i in range(warps.bit_length())):
        yield Mma(2, (warps // across, across), (16, 8))


def of_tiles(shape: Shape, warps: int, element: int) -> Iterator[Registers]:
    """Layouts of a tile that no product makes: threads and warps along the columns, then down the rows."""
    columns = shape[-1]
    for bytes_ in VECTORS:
        vector = max(min(bytes_ // element, columns), 1)
        if vector * element < bytes_ and bytes_ > VECTORS[-1]:
            continue
        for lanes in (32, 16, 8, 4):
            for across in {1, warps}:
                if len(shape) == 1:
                    if lanes == 32 and across == warps:
                        yield Blocked((vector,), (32,), (warps,), (0,))
                elif lanes * across * vector <= max(columns, vector):
                    first = (1,) * (len(shape) - 2)
                    down = (*first, 32 // lanes, lanes), (*first, warps // across, across)
                    yield Blocked((*first, 1, vector), *down, tuple(reversed(range(len(shape)))))


@lru_cache(maxsize=4096)
def bases(layout: Registers, shape: Shape) -> Bases:
    return bases_of(layout, shape)


def registers_of(layout: Registers, shape: Shape, element: int) -> int:
    """32-bit registers of a thread."""
    return -(-(element << len([v for v in bases(layout, shape).register if any(v)])) // 4)


def repeated(layout: Registers, shape: Shape) -> int:
    """How often each element is there, in different threads."""
    found = bases(layout, shape)
    return (1 << len([v for v in (*found.register, *found.lane, *found.warp) if any(v) or v in (*found.lane, *found.warp)])) // (
        math.prod(shape)
    )


@lru_cache(maxsize=4096)
def converted(have: Registers, want: Registers, shape: Shape, element: int) -> Clocks:
    """From one layout to another: nothing where each thread has its elements already, else through shared memory."""
    a, b = bases(have, shape), bases(want, shape)
    if (a.lane, a.warp) == (b.lane, b.warp):
        return ()
    written, read = (shared_access(x, MmaShared(0, 8 * element, len(shape)), element) for x in (a, b))
    warps = 1 << len(a.warp)
    moved = float(warps * sum(x.instructions * x.phases for x in (written, read)))  # a swizzle can do without conflicts
    return (("conversion", HANDSHAKE + ROUND_TRIP + moved), ("shared", moved))


@lru_cache(maxsize=4096)
def folded(layout: Registers, shape: Shape, dim: int) -> Clocks:
    """A fold along a dimension after each thread has folded its own elements: over lanes by exchanges, over warps through shared
    memory."""
    found = bases(layout, shape)
    lanes = sum(1 for v in found.lane if v[dim])
    warps = sum(1 for v in found.warp if v[dim])
    rows = 1 << len([v for v in found.register if any(x for d, x in enumerate(v) if d != dim)])
    of_warps = 1 << len(found.warp)
    exchange = ATOMS["shfl.bfly"]
    clocks: list[tuple[str, float]] = []
    if lanes:
        clocks += [("shuffle", float(lanes * rows * of_warps)), ("folds", lanes * (exchange.latency + rows))]
    if warps:
        clocks.append(("exchange", HANDSHAKE + ROUND_TRIP))
    return tuple(clocks)


@lru_cache(maxsize=4096)
def matrix_conflicts(layout: Shared, shape: Shape, element: int) -> int:
    """Wavefronts beyond the first when 8 rows of 16 bytes are read at once, as ``ldmatrix`` and ``wgmma`` do. The last dimension
    of ``shape`` is the contiguous one."""
    places = inverse(packed(offsets_of(layout, shape), shape))
    down = [tuple(1 << i if d == len(shape) - 2 else 0 for d in range(len(shape))) for i in range(3)]
    lanes = [image(places, v) * element for v in packed(down, shape)]
    return bits_wavefronts(lanes, 16) - 1


def buffers_for(shape: Shape, element: int, engine: bool) -> Iterator[Shared]:
    """Layouts of a buffer: as the copy engine writes them, or as threads do."""
    wide = shape[-1] * element
    tall = math.prod(shape[:-1]) >= 8
    if engine:
        yield from (MmaShared(n, 8 * element, len(shape)) for n in (128, 64, 32) if tall and wide % n == 0)
        yield MmaShared(0, 8 * element, len(shape))
        return
    vector = 16 // element
    pieces = min(wide // 16, 8)
    order = tuple(reversed(range(len(shape))))
    if tall and pieces > 1:
        yield Swizzled(vector, max(8 // pieces, 1), pieces, order)
    yield Swizzled(1, 1, 1, order)


@lru_cache(maxsize=4096)
def direct(layout: Registers, shape: Shape, strides: Shape, element: int) -> tuple[int, int, int]:
    """Bytes at once, instructions of a group, and sectors of each, between registers and device memory."""
    found = bases(layout, shape)
    vector, sectors = device_access(found, strides, element)
    count = 1 << len([v for v in found.register if any(v)])
    return vector, max(count * element // vector, 1) << len(found.warp), sectors


def staged(layout: Registers, shared: Shared, shape: Shape, element: int) -> tuple[int, int]:
    """Instructions of a group and wavefronts of each, between registers and a buffer."""
    found = shared_access(bases(layout, shape), shared, element)
    return found.instructions << len(bases(layout, shape).warp), found.wavefronts
