"""Atomic specifications: what one instruction computes or moves, of whom (Graphene, section 5.2, tables 1 and 2).

An entry of :data:`ATOMS` is all that the system knows of an instruction: the kind of specification, the threads that execute it
together, the tile of each operand with the place of each register of each thread in it, the architectures that have it, which
unit of an SM it keeps busy, and for how long. Adding one is one entry; a decomposition (:mod:`fuser.lower.decompose`) and a
solver of layouts find it there.

Places are row-major in the operand's tile, as (thread, register); PTX ISA's figures of fragments are the source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fuser.device import Device
from fuser.errors import UnsupportedError
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.algebra import joined
from fuser.ir.layout.tensors import GROUP
from fuser.ir.layout.tensors import QUAD_PAIR
from fuser.ir.layout.tensors import WARP
from fuser.ir.layout.tensors import Memory

Kind = Literal["Move", "MatMul", "UnaryPointwise", "BinaryPointwise", "Reduction", "Shfl", "Init", "Allocate"]
Unit = Literal["tensor", "shared", "device", "fp32", "special", "shuffle", "copy"]
"""What of an SM is busy: tensor cores (FLOP), shared memory (bytes), the way from L2 (bytes), fp32 lanes (operations), special
functions (operations), exchanges between lanes (operations), the copy engine (bytes)."""

ONE, LANES, WARPS4 = Layout(1, 1), Layout(WARP, 1), Layout(GROUP, 1)
HALVES = ("float16", "bfloat16")
L2_PORT = 64.0
"""Bytes a clock from L2 into one SM."""
SHUFFLES = 32.0
"""Lanes a clock of an SM that are given another lane's value (CUDA programming guide, throughput of instructions)."""
NEWEST = 999


@dataclass(frozen=True)
class Piece:
    """An operand: its tile (rows, columns; a vector has one dimension, a scalar none) and, in registers, where each register of
    each thread lies in it. None: in memory, where the address says it."""

    tile: tuple[int, ...]
    memory: Memory
    places: Layout | None = None

    @property
    def size(self) -> int:
        return math.prod(self.tile)


@dataclass(frozen=True)
class Atom:
    """One instruction. ``inputs`` and ``outputs`` are operands in the order of PTX; ``archs`` from the first to the last compute
    capability; ``amount`` of ``unit`` that it takes, ``latency`` clocks until its result can be used, 0 where that is another
    matter (memory)."""

    name: str
    kind: Kind
    instruction: str
    threads: Layout
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]
    unit: Unit
    amount: float
    dtypes: tuple[str, ...] = ()
    archs: tuple[int, int] = (50, NEWEST)
    latency: float = 0.0

    def on(self, arch: int) -> bool:
        return self.archs[0] <= arch <= self.archs[1]

    @property
    def mnk(self) -> tuple[int, int, int]:
        """Rows, columns and length of the sum of a product."""
        (m, k), (_, n) = self.inputs[0].tile, self.inputs[1].tile
        return m, n, k


def clocks(atom: Atom, device: Device, dtype: str = "float16") -> float:
    """Clocks for which one of them keeps its unit of an SM busy."""
    return atom.amount / rate(atom.unit, device, dtype)


def rate(unit: Unit, device: Device, dtype: str = "float16") -> float:
    """Of a unit of one SM, a clock: FLOP, bytes or operations (:data:`Unit`)."""
    per_sm = device.sm_count * device.clock
    return {
        "tensor": lambda: device.matmul_flops(dtype) / per_sm,
        "shared": lambda: device.smem_bandwidth_per_sm,
        "device": lambda: L2_PORT,
        "copy": lambda: L2_PORT,
        "fp32": lambda: device.fp32_flops / 2 / per_sm,
        "special": lambda: device.sfu_per_clock,
        "shuffle": lambda: SHUFFLES,
    }[unit]()


# -- fragments, as (thread, register) -> row-major place in the tile


def _fragment(threads: tuple[tuple[int, ...], tuple[int, ...]], registers: tuple[tuple[int, ...], tuple[int, ...]]) -> Layout:
    return joined(Layout(*threads), Layout(*registers))


QUADS = (4, 8)
"""A warp as eight rows of four threads."""


def rows_fragment(k: int, warps: int = 1) -> Layout:
    """The left operand of 16 rows a warp by 16 columns (of k): two neighbours a thread, 8 rows further down, 8 columns on."""
    threads = ((*QUADS, warps), (2, k, 16 * k)) if warps > 1 else (QUADS, (2, k))
    return _fragment(threads, ((2, 2, 2), (1, 8 * k, 8)))


def result_fragment(n: int, warps: int = 1) -> Layout:
    """A result of 16 rows a warp by n columns: two neighbours a thread, 8 rows further down, then the next 8 columns."""
    threads = ((*QUADS, warps), (2, n, 16 * n)) if warps > 1 else (QUADS, (2, n))
    more = ((2, 2, n // 8), (1, 8 * n, 8)) if n > 8 else ((2, 2), (1, 8 * n))
    return _fragment(threads, more)


COLUMNS_FRAGMENT = _fragment((QUADS, (16, 1)), ((2, 2), (8, 64)))
"""The right operand, 16 by 8: two neighbours down the sum, then 8 further down."""


def _product(name: str, kind: str, archs: tuple[int, int], dtypes: tuple[str, ...], latency: float, *pieces: Piece) -> Atom:
    a, b, d = pieces
    threads = QUAD_PAIR if kind == "m8n8k4" else LANES
    instruction = f"mma.sync.aligned.{kind}.row.col.f32"
    flop = 2.0 * a.tile[0] * b.tile[1] * a.tile[1]
    return Atom(name, "MatMul", instruction, threads, (a, b), (d,), "tensor", flop, dtypes, archs, latency)


def _registers(tile: tuple[int, ...], places: Layout) -> Piece:
    return Piece(tile, "RF", places)


def _products() -> Iterator[Atom]:
    yield _product(
        "mma.m8n8k4",
        "m8n8k4",
        (70, 70),
        ("float16",),
        0,
        _registers((8, 4), _fragment(((8,), (4,)), ((4,), (1,)))),
        _registers((4, 8), _fragment(((8,), (1,)), ((4,), (8,)))),
        _registers((8, 8), _fragment(((2, 2, 2), (8, 2, 32)), ((2, 2, 2), (1, 16, 4)))),
    )
    yield _product(
        "mma.m16n8k16",
        "m16n8k16",
        (80, NEWEST),
        HALVES,
        33,
        _registers((16, 16), rows_fragment(16)),
        _registers((16, 8), COLUMNS_FRAGMENT),
        _registers((16, 8), result_fragment(8)),
    )
    yield _product(
        "mma.m16n8k8.tf32",
        "m16n8k8",
        (80, NEWEST),
        ("float32",),
        33,
        _registers((16, 8), _fragment((QUADS, (1, 8)), ((2, 2), (64, 4)))),
        _registers((8, 8), _fragment((QUADS, (8, 1)), ((2,), (32,)))),
        _registers((16, 8), result_fragment(8)),
    )
    for n in range(8, 257, 8):
        for left in (Piece((64, 16), "SH"), Piece((64, 16), "RF", rows_fragment(16, 4))):
            yield Atom(
                f"wgmma.m64n{n}k16.{'rs' if left.places else 'ss'}",
                "MatMul",
                f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32",
                WARPS4,
                (left, Piece((16, n), "SH")),
                (_registers((64, n), result_fragment(n, 4)),),
                "tensor",
                2.0 * 64 * n * 16,
                HALVES,
                (90, 90),
                max(n / 2, 16.0),
            )


def _matrices(trans: bool) -> Iterator[Atom]:
    """``ldmatrix`` and ``stmatrix``: 8 x 8 matrices between rows of 16 bytes, one address a thread, and fragments."""
    for count, tile, latency in ((1, (8, 8), 23), (2, (16, 8), 25), (4, (16, 16), 29)):
        down, across = min(count, 2), max(count // 2, 1)
        step = 8 * tile[1]
        values = [(2, tile[1] if trans else 1), *[(2, step)] * (down > 1), *[(2, 8)] * (across > 1)]
        threads = (QUADS, (2 * tile[1], 1)) if trans else (QUADS, (2, tile[1]))
        places = _fragment(threads, (tuple(n for n, _ in values), tuple(d for _, d in values)))
        end = f"m8n8.x{count}{'.trans' if trans else ''}.shared.b16"
        name = f"x{count}{'.trans' if trans else ''}"
        bytes_ = 2.0 * math.prod(tile)
        shared, held = Piece(tile, "SH"), _registers(tile, places)
        load = f"ldmatrix.sync.aligned.{end}"
        yield Atom(f"ldmatrix.{name}", "Move", load, LANES, (shared,), (held,), "shared", bytes_, HALVES, (75, NEWEST), latency)
        store = f"stmatrix.sync.aligned.{end}"
        yield Atom(f"stmatrix.{name}", "Move", store, LANES, (held,), (shared,), "shared", bytes_, HALVES, (90, NEWEST))


def _vectors() -> Iterator[Atom]:
    """A thread's loads and stores of 2 to 16 bytes."""
    for bytes_ in (16, 8, 4, 2):
        form = {16: "v4.u32", 8: "v2.u32", 4: "u32", 2: "u16"}[bytes_]
        held = Piece((bytes_,), "RF")
        ways: tuple[tuple[Memory, Unit, str], ...] = (("GL", "device", "global"), ("SH", "shared", "shared"))
        for memory, unit, space in ways:
            there, name = Piece((bytes_,), memory), f"{space}.{form}"
            yield Atom(f"ld.{name}", "Move", f"ld.{name}", ONE, (there,), (held,), unit, bytes_)
            yield Atom(f"st.{name}", "Move", f"st.{name}", ONE, (held,), (there,), unit, bytes_)
    for bytes_ in (16, 8, 4):
        there, here = Piece((bytes_,), "GL"), Piece((bytes_,), "SH")
        name = f"cp.async.{'cg' if bytes_ == 16 else 'ca'}.shared.global"
        yield Atom(f"cp.async.{bytes_}", "Move", name, ONE, (there,), (here,), "device", bytes_, (), (80, NEWEST))


def _boxes() -> Iterator[Atom]:
    """One thread tells the copy engine a box; its size is the descriptor's."""
    box = "cp.async.bulk.tensor.{n}d"
    for n in range(1, 6):
        there, here = Piece((0,) * n, "GL"), Piece((0,) * n, "SH")
        load, store = f"{box.format(n=n)}.shared::cluster.global.tile", f"{box.format(n=n)}.global.shared::cta.tile"
        yield Atom(f"tma.load.{n}d", "Move", load, ONE, (there,), (here,), "copy", 0, (), (90, NEWEST))
        yield Atom(f"tma.store.{n}d", "Move", store, ONE, (here,), (there,), "copy", 0, (), (90, NEWEST))


FOLDS = {"fold": "add.f32", "fold.sum": "add.f32", "fold.mean": "add.f32", "fold.max": "max.f32", "fold.min": "min.f32"}
TWO = ("add", "sub", "mul", "div", "maximum", "minimum")
POINTWISE = {
    "add": "add.f32",
    "sub": "sub.f32",
    "mul": "mul.f32",
    "maximum": "max.f32",
    "minimum": "min.f32",
    "div": "div.approx.f32",
    "scale": "mul.f32",
    "square": "mul.f32",
    "shift": "add.f32",
    "neg": "neg.f32",
    "relu": "max.f32",
    "exp": "ex2.approx.f32",
    "sqrt": "sqrt.approx.f32",
    "rsqrt": "rsqrt.approx.f32",
    "tanh": "tanh.approx.f32",
}
"""Operators that are one instruction; what is several is counted by its operations."""


def _scalars() -> Iterator[Atom]:
    held = Piece((), "RF")
    pair = Piece((2,), "RF")
    yield Atom("fma", "MatMul", "fma.rn.f32", ONE, (held, held), (held,), "fp32", 1, ("float32",), latency=4)
    yield Atom("hfma2", "MatMul", "fma.rn.f16x2", ONE, (pair, pair), (pair,), "fp32", 1, ("float16",), latency=4)
    yield Atom("arithmetic", "BinaryPointwise", "fma.rn.f32", ONE, (held, held), (held,), "fp32", 1, latency=4)
    yield Atom("unary", "UnaryPointwise", "fma.rn.f32", ONE, (held,), (held,), "fp32", 1, latency=4)
    yield Atom("special", "UnaryPointwise", "mufu.f32", ONE, (held,), (held,), "special", 1, latency=18)
    for name, instruction in FOLDS.items():
        yield Atom(name, "Reduction", instruction, ONE, (held, held), (held,), "fp32", 1, latency=4)
    for name, instruction in POINTWISE.items():
        kind = "BinaryPointwise" if name in TWO else "UnaryPointwise"
        slow = ".approx" in instruction
        unit, latency = ("special", 18) if slow else ("fp32", 4)
        yield Atom(f"pointwise.{name}", kind, instruction, ONE, (held,) * (1 + (name in TWO)), (held,), unit, 1, latency=latency)
    yield Atom("cast", "UnaryPointwise", "cvt.rn.f16x2.f32", ONE, (pair,), (pair,), "fp32", 1, latency=4)
    yield Atom("set", "Init", "mov.b32", ONE, (), (held,), "fp32", 1)
    lanes = Piece((WARP,), "RF", joined(LANES, Layout(1, 0)))
    yield Atom("shfl.bfly", "Shfl", "shfl.sync.bfly.b32", LANES, (lanes,), (lanes,), "shuffle", WARP, latency=23)


ATOMS: dict[str, Atom] = {
    a.name: a for a in (*_products(), *_matrices(False), *_matrices(True), *_vectors(), *_boxes(), *_scalars())
}
"""By name. Latencies: microbenchmarks of Ampere (``mma``, ``ldmatrix``, ``shfl``), and half a clock a column of ``wgmma``."""


def atom(name: str, arch: int) -> Atom:
    """The entry of an instruction. Raises :class:`UnsupportedError` where the architecture lacks it."""
    found = ATOMS[name]
    if not found.on(arch):
        raise UnsupportedError(
            f"sm_{arch} has no {name}", f"sm_{found.archs[0]}{' or newer' if found.archs[1] == NEWEST else ''}"
        )
    return found


def atoms(kind: Kind, arch: int, dtype: str = "") -> tuple[Atom, ...]:
    """Those of a kind that an architecture has, for a dtype (an entry without dtypes is for all of them)."""
    return tuple(a for a in ATOMS.values() if a.kind == kind and a.on(arch) and (not dtype or not a.dtypes or dtype in a.dtypes))
