"""Layouts as bases: where each bit of a register, lane, warp or offset moves an element (Triton's linear layouts).

Every layout that Triton and Gluon name is linear over bits, and most of shape:stride is: conversions both ways. What a tile
lacks of a layout is broadcast (a zero basis), what a layout lacks of a tile, more registers take.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.errors import ProgramError
from fuser.ir.layout.algebra import PLAIN
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import Swizzle
from fuser.ir.layout.algebra import coalesce
from fuser.ir.layout.algebra import joined
from fuser.ir.layout.bits import image
from fuser.ir.layout.bits import inverse
from fuser.ir.layout.bits import log2
from fuser.ir.layout.named import Bases
from fuser.ir.layout.named import Blocked
from fuser.ir.layout.named import DotOperand
from fuser.ir.layout.named import Mma
from fuser.ir.layout.named import MmaShared
from fuser.ir.layout.named import Registers
from fuser.ir.layout.named import Shared
from fuser.ir.layout.named import Slice
from fuser.ir.layout.named import Swizzled
from fuser.ir.layout.named import Vector


@dataclass(frozen=True)
class Part:
    """Bases of one instruction's tile, or one warp's: registers, lanes, warps; and the tile that they cover."""

    register: tuple[Vector, ...]
    lane: tuple[Vector, ...]
    warp: tuple[Vector, ...]


def unit(rank: int, dim: int, value: int) -> Vector:
    return tuple(value if i == dim else 0 for i in range(rank))


def _steps(rank: int, dim: int, first: int, count: int) -> Iterator[Vector]:
    """Bases that count ``count`` times ``first`` along a dimension."""
    for i in range(log2(count)):
        yield unit(rank, dim, first << i)


def bases_of(layout: Registers, shape: Vector) -> Bases:
    """The layout of a tile of ``shape`` (powers of two) in registers, as bases."""
    for n in shape:
        log2(n, "a dimension")
    if isinstance(layout, Bases):
        return layout
    if isinstance(layout, Slice):
        return _sliced(bases_of(layout.parent, (*shape[: layout.dim], 1, *shape[layout.dim :])), layout.dim)
    if isinstance(layout, Blocked):
        return _filled(_blocked(layout), shape, layout.order)
    parent = layout.parent if isinstance(layout, DotOperand) else layout
    if len(shape) != 2 or len(parent.warps) != 2:
        raise ProgramError(f"a tile of shape {shape} is no product's", "two dimensions")
    if isinstance(layout, DotOperand):
        k = 1 - layout.index
        return _filled(_operand(layout), shape, (k, 1 - k))
    return _filled(_result(layout), shape, (1, 0))


def _blocked(layout: Blocked) -> Part:
    rank = len(layout.order)
    done = [1] * rank

    def along(counts: Vector) -> tuple[Vector, ...]:
        found: list[Vector] = []
        for d in layout.order:
            found += _steps(rank, d, done[d], counts[d])
            done[d] *= counts[d]
        return tuple(found)

    return Part(along(layout.size), along(layout.threads), along(layout.warps))


def _warps(layout: Mma, tile: Vector, without: int | None = None) -> tuple[Vector, ...]:
    """Warps of ``mma`` stand columns first, of ``wgmma`` rows first; along what an operand lacks they read the same."""
    found: list[Vector] = []
    for d in (1, 0) if layout.version == 2 else (0, 1):
        steps = _steps(2, d, tile[d], layout.warps[d])
        found += [(0, 0) if d == without else v for v in steps]
    return tuple(found)


LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
"""Of a fragment of 8 rows with two neighbours a thread (PTX ISA: m16n8k16, accumulators; wgmma, register fragments)."""


def _result(layout: Mma) -> Part:
    """Accumulators: two neighbours, the same 8 rows further down, then the next 8 columns."""
    rows, cols = layout.instruction[:2]
    registers = ((0, 1), (8, 0), *_steps(2, 1, 8, cols // 8))
    return Part(registers, LANES, _warps(layout, (rows, cols)))


def _operand(layout: DotOperand) -> Part:
    """Fragments of operands: ``width`` neighbours along the sum, four threads; then 8 rows further down (left operand alone),
    then the other half of the sum."""
    k, width = 1 - layout.index, layout.width
    neighbours = tuple(_steps(2, k, 1, width))
    down = ((8, 0),) if layout.index == 0 else ()
    lanes = (*_steps(2, k, width, 4), *_steps(2, 1 - k, 1, 8))
    tile = (16, 8 * width) if layout.index == 0 else (8 * width, 8)
    return Part((*neighbours, *down, unit(2, k, 4 * width)), lanes, _warps(layout.parent, tile, without=k))


def _filled(part: Part, shape: Vector, order: Vector) -> Bases:
    """Bases beyond the tile become nothing; registers repeat what is smaller, in the order of the dimensions."""
    covered = [1] * len(shape)
    for v in (*part.register, *part.lane, *part.warp):
        covered = [max(c, 2 * x) for c, x in zip(covered, v, strict=True)]
    more = [v for d in order for v in _steps(len(shape), d, covered[d], max(shape[d] // covered[d], 1))]

    def within(vectors: Sequence[Vector]) -> tuple[Vector, ...]:
        return tuple(tuple(x if x < n else 0 for x, n in zip(v, shape, strict=True)) for v in vectors)

    return Bases(within((*part.register, *more)), within(part.lane), within(part.warp), shape)


def _sliced(parent: Bases, dim: int) -> Bases:
    shape = (*parent.shape[:dim], *parent.shape[dim + 1 :])
    found = parent.through(lambda v: (*v[:dim], *v[dim + 1 :]), shape)
    return Bases(tuple(v for v in found.register if any(v)), found.lane, found.warp, shape)


# -- shared memory


def offsets_of(layout: Shared, shape: Vector) -> tuple[Vector, ...]:
    """The layout of a buffer: where each bit of an offset (in elements) moves in the tile."""
    if isinstance(layout, Swizzled):
        column, *others = layout.order
        row = others[0] if others else None
        found = list(_steps(len(shape), column, 1, shape[column]))
        if row is not None:
            found += _exchanged(shape, row, column, layout, shape[row], shape[column])
        return (*found, *(v for d in others[1:] for v in _steps(len(shape), d, 1, shape[d])))
    return _mma_shared(layout, shape)


def _exchanged(shape: Vector, row: int, column: int, how: Swizzled, rows: int, columns: int) -> Iterator[Vector]:
    for i in range(log2(rows)):
        exchange = how.vec * ((1 << i) // how.per_phase % how.max_phase) % columns
        yield tuple(1 << i if d == row else exchange if d == column else 0 for d in range(len(shape)))


def pattern(layout: MmaShared) -> Swizzled:
    """How rows of a swizzled buffer exchange their pieces of 16 bytes."""
    pieces = layout.swizzle // 16
    return Swizzled(128 // layout.bits, 8 // pieces, pieces, ())


def _mma_shared(layout: MmaShared, shape: Vector) -> tuple[Vector, ...]:
    """Tiles of 8 rows of ``swizzle`` bytes; rows go on first, then columns in boxes of their own. Without a swizzle the last
    dimension is contiguous, transposed or not."""
    rank = len(shape)
    if not layout.swizzle:
        return tuple(v for d in reversed(range(rank)) for v in _steps(rank, d, 1, shape[d]))
    column, *others = [0, *range(1, rank)[::-1]] if layout.transposed else [*range(rank)][::-1]
    columns = min(shape[column], 8 * layout.swizzle // layout.bits)
    if not others:
        return tuple(_steps(rank, column, 1, shape[column]))
    row = others[0]
    low = min(shape[row], 8)
    found = [*_steps(rank, column, 1, columns), *_exchanged(shape, row, column, pattern(layout), low, columns)]
    found += _steps(rank, row, low, shape[row] // low)
    for d in others[1:]:
        found += _steps(rank, d, 1, shape[d])
    return (*found, *_steps(rank, column, columns, shape[column] // columns))


# -- to and from shape:stride


def packed(vectors: Sequence[Vector], shape: Vector) -> tuple[int, ...]:
    """Vectors of a tile as numbers, the last dimension in the lowest bits."""
    places = [sum(log2(n) for n in shape[d + 1 :]) for d in range(len(shape))]
    return tuple(sum(x << p for x, p in zip(v, places, strict=True)) for v in vectors)


def bits_of(layout: Layout) -> tuple[int, ...]:
    """Where each bit of a place moves the offset. Raises :class:`ProgramError` where the layout is not linear over bits."""
    steps = [d << i for n, d in layout.modes for i in range(log2(n))]
    total, exclusive = sum(steps), 0
    for s in steps:
        exclusive ^= s
    if layout.base or total != exclusive:
        raise ProgramError(f"{layout} is not linear over bits", "strides whose sums carry nothing")
    return tuple(layout.swizzle(s) for s in steps)


SWIZZLES = tuple(Swizzle(b, m, s) for b in (1, 2, 3) for m in range(6) for s in range(b, 8))


def layout_of(bits: Sequence[int]) -> Layout:
    """Shape and stride (and swizzle, where one is needed) of a map of bits. Raises :class:`ProgramError` where it has none."""
    for swizzle in (PLAIN, *SWIZZLES):
        steps = [swizzle(b) for b in bits]
        if all(s & (s - 1) == 0 for s in steps) and bits_of(found := _by_steps(steps, swizzle)) == tuple(bits):
            return found
    raise ProgramError("no shape:stride with a swizzle gives these bits")


def _by_steps(steps: Sequence[int], swizzle: Swizzle) -> Layout:
    plain = coalesce(Layout((2,) * len(steps), tuple(steps)))
    return Layout(plain.shape, plain.stride, 0, swizzle)


def to_memory(registers: Bases, memory: Sequence[Vector]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Where in a buffer (in elements) each bit of register, lane and warp lies: what a group reads or writes at."""
    places = inverse(packed(memory, registers.shape))

    def through(vectors: Sequence[Vector]) -> tuple[int, ...]:
        return tuple(image(places, v) for v in packed(vectors, registers.shape))

    return through(registers.register), through(registers.lane), through(registers.warp)


def fragment(registers: Bases) -> Layout:
    """A tile in registers as shape:stride of (thread, register), in the order of its rows (CuTe's thread-value layout)."""
    threads = layout_of(packed((*registers.lane, *registers.warp), registers.shape))
    values = layout_of(packed(registers.register, registers.shape))
    return joined(threads, values)


def memory_layout(layout: Shared, shape: Vector) -> Layout:
    """A buffer as shape:stride with a swizzle, of the tile's dimensions. Raises :class:`ProgramError` where it has none."""
    places = inverse(packed(offsets_of(layout, shape), shape))
    whole = layout_of(places)
    dims, done = [], len(places)
    for n in shape:
        own = places[done - log2(n) : done]
        done -= log2(n)
        dims.append(_by_steps([whole.swizzle(b) for b in own], PLAIN))
    return joined(*dims, swizzle=whole.swizzle)
