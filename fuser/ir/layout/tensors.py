"""Tensors of data and of threads that decompose into tiles (Graphene, sections 3.3, 3.4 and 4).

A tensor is a list of levels: the first arranges tiles, the next the elements of a tile, and so on down to a scalar or a thread.
All strides count scalars. Tiling takes one layout of a dimension's indices for each dimension, whatever lies how in memory: ``2``
are two neighbours, ``Layout(2, 2)`` every other one. Where tiles do not divide a dimension, the last ones reach over its end,
and :meth:`Tensor.inside` is the predicate of an access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Literal

from fuser.errors import ProgramError
from fuser.ir.layout.algebra import PLAIN
from fuser.ir.layout.algebra import IntTuple
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import columns
from fuser.ir.layout.algebra import complement
from fuser.ir.layout.algebra import compose
from fuser.ir.layout.algebra import divide
from fuser.ir.layout.algebra import joined
from fuser.ir.layout.algebra import rows
from fuser.ir.layout.algebra import size
from fuser.ir.layout.algebra import text

Memory = Literal["GL", "SH", "RF", ""]
SCALARS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int32": "i32", "int64": "i64"}
"""Graphene's words for element types."""
Tiler = int | Layout | None
"""A tile's indices in one dimension; None takes all of it."""


@dataclass(frozen=True)
class Tensor:
    """``levels`` from the outermost tiles to the elements; ``places`` are levels of the same shapes that give an element's number
    in a tensor of ``extents``, rounded up to whole tiles (``padded``), first dimension fastest."""

    name: str
    levels: tuple[Layout, ...]
    element: str
    memory: Memory
    extents: tuple[int, ...]
    padded: tuple[int, ...]
    places: tuple[Layout, ...]

    @property
    def threads(self) -> bool:
        return self.element in ("thread", "block")

    @property
    def size(self) -> int:
        """Elements, with those beyond the end."""
        found = 1
        for level in self.levels:
            found *= level.size
        return found

    def tile(self, *tilers: Tiler, name: str = "") -> Tensor:
        """The outermost level cut into tiles, one tiler for each of its dimensions."""
        outer, place = self.levels[0], self.places[0]
        if len(tilers) != outer.rank:
            raise ProgramError(f"{self} is tiled in {len(tilers)} dimensions", f"it has {outer.rank}")
        cut = [(_tiled(outer[i], t), _tiled(place[i], t)) for i, t in enumerate(tilers)]
        levels = _level([c[0][1] for c in cut], outer), _level([c[0][0] for c in cut])
        places = _level([c[1][1] for c in cut], place), _level([c[1][0] for c in cut])
        padded = self.padded
        if self.places == (_order(self.padded),):
            padded = tuple(max(p, c[0][0].size * c[0][1].size) for p, c in zip(self.padded, cut, strict=True))
            places = self._replaced(padded, tilers)
        elif any(c[0][0].size * c[0][1].size != outer[i].size for i, c in enumerate(cut)):
            raise ProgramError(f"{self} is cut again into tiles that do not divide it", "only whole tensors have partial tiles")
        return replace(
            self,
            name=name or self.name,
            levels=(*levels, *self.levels[1:]),
            places=(*places, *self.places[1:]),
            padded=padded,
        )

    def _replaced(self, padded: tuple[int, ...], tilers: Sequence[Tiler]) -> tuple[Layout, Layout]:
        """Places of the tiles of a whole tensor, in one that is rounded up to whole tiles."""
        whole = _order(padded)
        cut = [_tiled(whole[i], t) for i, t in enumerate(tilers)]
        return _level([c[1] for c in cut]), _level([c[0] for c in cut])

    def reshape(self, shape: IntTuple, level: int = 0, name: str = "") -> Tensor:
        """One level arranged otherwise: its elements in the same order, the first dimension of ``shape`` fastest."""
        if size(shape) != self.levels[level].size:
            raise ProgramError(f"level {level} of {self} has {self.levels[level].size} elements, no {text(shape)}")

        def formed(found: tuple[Layout, ...]) -> tuple[Layout, ...]:
            return (*found[:level], compose(found[level], columns(shape)), *found[level + 1 :])

        return replace(self, name=name or self.name, levels=formed(self.levels), places=formed(self.places))

    def at(self, *where: IntTuple, name: str = "") -> Tensor:
        """One tile: the tensor of its levels, at its own offset."""
        step, place = self.levels[0].linear(*where), self.places[0].linear(*where)
        inner, numbers = self.levels[1], self.places[1]
        own = replace(inner, base=self.levels[0].base + step, swizzle=self.levels[0].swizzle)
        return replace(
            self,
            name=name or self.name,
            levels=(own, *self.levels[2:]),
            places=(replace(numbers, base=self.places[0].base + place), *self.places[2:]),
        )

    def offset(self, *where: IntTuple) -> int:
        """Where an element lies (or which thread it is): a coordinate for each level."""
        outer = self.levels[0]
        return outer.swizzle(outer.base + sum(level.linear(w) for level, w in zip(self.levels, where, strict=True)))

    def index(self, *where: IntTuple) -> tuple[int, ...]:
        """The element's index in each dimension of the whole tensor."""
        number = self.places[0].base + sum(level.linear(w) for level, w in zip(self.places, where, strict=True))
        found = []
        for n in self.padded[:-1]:
            number, rest = divmod(number, n)
            found.append(rest)
        return (*found, number)

    def inside(self, *where: IntTuple) -> bool:
        """Whether an element of a tile exists (Graphene, section 3.4): what an access is predicated with."""
        return all(i < n for i, n in zip(self.index(*where), self.extents, strict=True))

    @property
    def partial(self) -> bool:
        """Some tile reaches over an end."""
        return self.padded != self.extents

    @cached_property
    def type(self) -> str:
        """As Graphene writes it: ``[(2,2):(2,16)].[(2,4):(1,4)].fp32.GL``."""
        levels = [f"{x}" for x in self.levels if x.rank or x.size > 1]
        return ".".join([*levels, SCALARS.get(self.element, self.element), *([self.memory] if self.memory else [])])

    def __str__(self) -> str:
        return f"{'#' if self.threads else '%'}{self.name}:{self.type}"


def _level(dims: Sequence[Layout], like: Layout | None = None) -> Layout:
    """Dimensions as a level; a tensor of one dimension keeps plain numbers."""
    base, swizzle = (like.base, like.swizzle) if like else (0, PLAIN)
    if len(dims) == 1:
        return replace(dims[0], base=base, swizzle=swizzle)
    return joined(*dims, base=base, swizzle=swizzle)


def _order(extents: tuple[int, ...]) -> Layout:
    """Elements in order, the first dimension fastest; a single dimension is a plain number."""
    return columns(extents[0] if len(extents) == 1 else extents)


def _tiled(dim: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Elements of a tile, and tiles, of one dimension."""
    if tiler is None:
        return dim, Layout(1, 0)
    tile = Layout(tiler, 1) if isinstance(tiler, int) else tiler
    if isinstance(tile.shape, int):
        parts = divide(dim, tile)
        return parts[0], parts[1]
    rest = complement(tile, dim.size)
    return compose(dim, tile), compose(dim, rest)


def tensor(name: str, layout: Layout, element: str, memory: Memory = "") -> Tensor:
    """A tensor without tiles. Its dimensions count elements in order, however they lie in memory."""
    extents = tuple(d.size for d in layout.dims)
    return Tensor(name, (layout,), element, memory, extents, extents, (_order(extents),))


def row_major(name: str, shape: tuple[int, ...], element: str, memory: Memory = "") -> Tensor:
    return tensor(name, rows(shape), element, memory)


def threads(name: str, count: int) -> Tensor:
    """Threads of a block in order."""
    return tensor(name, Layout(count, 1), "thread")


def blocks(name: str, *counts: int) -> Tensor:
    """Blocks of a grid; the first dimension is the fastest."""
    return tensor(name, _order(counts), "block")


WARP, GROUP = 32, 128
"""Threads of a warp, and of a warp group."""
QUAD_PAIR = Layout((4, 2), (1, 16))
"""Of a warp, what does an ``mma.m8n8k4`` on Volta: two quads, 16 threads apart."""
