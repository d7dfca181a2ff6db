"""The layouts that compilers have names for, as values: Triton's and Gluon's classes without either.

A layout of registers says which element of a tile each register of each lane of each warp holds, a layout of shared memory at
which place of a buffer each element lies. ``gluon`` is the constructor as text, for generated sources (``gl`` is
``triton.experimental.gluon.language``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError

Vector = tuple[int, ...]


def _listed(v: Vector) -> str:
    return str(list(v))


@dataclass(frozen=True)
class Blocked:
    """A thread has ``size`` elements of each dimension, a warp ``threads`` threads, a block ``warps`` warps; ``order`` names the
    dimensions, the fastest first."""

    size: Vector
    threads: Vector
    warps: Vector
    order: Vector

    @property
    def gluon(self) -> str:
        return f"gl.BlockedLayout({', '.join(map(_listed, (self.size, self.threads, self.warps, self.order)))})"


LANE_COLUMNS = 8
"""Columns of a row that four lanes of a fragment of ``mma`` or ``wgmma`` hold side by side: the least of an instruction."""


@dataclass(frozen=True)
class Mma:
    """What a product leaves in registers: ``version`` 2 is ``mma`` (``instruction`` 16 x 8), 3 ``wgmma`` (16, n, k: 16 rows of
    each of four warps)."""

    version: int
    warps: Vector
    instruction: Vector

    def __post_init__(self) -> None:
        if self.version == 3 and self.instruction[1] % LANE_COLUMNS:  # an assertion of Triton's would end the process
            raise ProgramError(f"wgmma has no results of {self.instruction[1]} columns", f"a multiple of {LANE_COLUMNS}")

    @property
    def gluon(self) -> str:
        return f"gl.NVMMADistributedLayout([{self.version}, 0], {_listed(self.warps)}, {_listed(self.instruction)})"


@dataclass(frozen=True)
class DotOperand:
    """An operand in registers, left (0) or right (1), of a product that leaves ``parent``; ``width`` elements fill 4 bytes."""

    index: int
    parent: Mma
    width: int

    @property
    def gluon(self) -> str:
        return f"gl.DotOperandLayout({self.index}, {self.parent.gluon}, {self.width})"


@dataclass(frozen=True)
class Slice:
    """What a fold over dimension ``dim`` of a tile in ``parent`` leaves."""

    dim: int
    parent: Registers

    @property
    def gluon(self) -> str:
        return f"gl.SliceLayout({self.dim}, {self.parent.gluon})"


@dataclass(frozen=True)
class Bases:
    """Any layout of registers that is linear over bits: where bit i of register, lane and warp moves to."""

    register: tuple[Vector, ...]
    lane: tuple[Vector, ...]
    warp: tuple[Vector, ...]
    shape: Vector

    def through(self, of: Callable[[Vector], Vector], shape: Vector) -> Bases:
        """The layout of a tile of ``shape``, to whose places ``of`` takes those of this one."""
        register, lane, warp = (tuple(map(of, part)) for part in (self.register, self.lane, self.warp))
        return Bases(register, lane, warp, shape)

    @property
    def gluon(self) -> str:
        bases = ", ".join(str([list(v) for v in part]) for part in (self.register, self.lane, self.warp, ()))
        return f"gl.DistributedLinearLayout({bases}, {_listed(self.shape)})"


Registers = Blocked | Mma | DotOperand | Slice | Bases


@dataclass(frozen=True)
class MmaShared:
    """What TMA and ``wgmma`` ask of a buffer: rows of ``swizzle`` bytes (0, 32, 64, 128) whose 16-byte pieces are exchanged by an
    exclusive or with the row; ``bits`` of an element; ``transposed``: the first dimension is the contiguous one."""

    swizzle: int
    bits: int
    rank: int = 2
    transposed: bool = False

    @property
    def gluon(self) -> str:
        return f"gl.NVMMASharedLayout({self.swizzle}, {self.bits}, {self.rank}, {self.transposed})"


@dataclass(frozen=True)
class Swizzled:
    """Vectors of ``vec`` elements, exchanged by an exclusive or with the row's phase: ``per_phase`` rows have the same of
    ``max_phase``; without exchange 1, 1, 1. ``order`` names the dimensions, the fastest first."""

    vec: int
    per_phase: int
    max_phase: int
    order: Vector

    @property
    def gluon(self) -> str:
        return f"gl.SwizzledSharedLayout({self.vec}, {self.per_phase}, {self.max_phase}, {_listed(self.order)})"


Shared = MmaShared | Swizzled


def read_gluon(layout: Any) -> Registers | Shared:
    """The value of a layout of Gluon's (or of its constructor's arguments under its class's name), of one block."""
    kind = type(layout).__name__

    def of(name: str) -> Vector:
        return tuple(getattr(layout, name))

    def bases(name: str) -> tuple[Vector, ...]:
        return tuple(map(tuple, getattr(layout, name)))

    if any(getattr(layout, "cga_layout", ()) or ()) or any(getattr(layout, "block_bases", ()) or ()):
        raise UnsupportedError(f"{layout} is spread over the blocks of a cluster", "layouts of one block have a value")
    if kind == "BlockedLayout":
        return Blocked(of("size_per_thread"), of("threads_per_warp"), of("warps_per_cta"), of("order"))
    if kind == "NVMMADistributedLayout" and layout.version[0] in (2, 3):
        return Mma(layout.version[0], of("warps_per_cta"), of("instr_shape"))
    if kind == "DistributedLinearLayout":
        return Bases(bases("reg_bases"), bases("lane_bases"), bases("warp_bases"), of("shape"))
    if kind == "NVMMASharedLayout" and not layout.fp4_padded:
        return MmaShared(layout.swizzle_byte_width, layout.element_bitwidth, layout.rank, layout.transposed)
    if kind == "SwizzledSharedLayout":
        return Swizzled(layout.vec, layout.per_phase, layout.max_phase, of("order"))
    if kind in ("SliceLayout", "DotOperandLayout"):
        parent = read_gluon(layout.parent)
        if kind == "SliceLayout" and not isinstance(parent, Shared):
            return Slice(layout.dim, parent)
        if isinstance(parent, Mma):
            return DotOperand(layout.operand_index, parent, layout.k_width)
    raise UnsupportedError(f"{kind} has no value here", "blocked, mma, operand, slice, bases, shared for mma, swizzled")
