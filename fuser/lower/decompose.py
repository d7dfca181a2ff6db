"""A block graph with its schedule and layouts, decomposed into atomic specifications (Graphene, sections 5.1 to 5.4, figure 8).

Each statement is a specification of the block's threads, tiled into groups until what is left matches an entry of the table
(:mod:`fuser.ir.specs`). Tensors are named as in the paper: ``%`` data, ``#`` threads; ``GL``, ``SH``, ``RF`` say where.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from fuser.ir.layout.accesses import device_access
from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import memory_layout
from fuser.ir.layout.named import Bases
from fuser.ir.layout.named import Registers
from fuser.ir.layout.plan import OUT
from fuser.ir.layout.plan import Buffer
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.layout.tensors import SCALARS
from fuser.ir.layout.tensors import WARP
from fuser.ir.layout.tensors import Tensor
from fuser.ir.layout.tensors import blocks
from fuser.ir.layout.tensors import tensor
from fuser.ir.layout.tensors import threads
from fuser.ir.mugraph import Stmt
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.specs import ATOMS
from fuser.ir.specs import Atom
from fuser.ir.specs import atom
from fuser.ir.tiling import Init
from fuser.ir.tiling import Node
from fuser.lower.tiles import Tiles


@dataclass(frozen=True)
class Step:
    """``count`` times an atomic specification, by each of the groups of threads that ``by`` is tiled into."""

    atom: Atom
    count: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Spec:
    """A specification: what it makes of what, by which threads. ``body`` is its decomposition; ``loop`` says how often it runs
    where it is a loop."""

    kind: str
    by: Tensor | None = None
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    body: tuple[Spec | Step, ...] = ()
    loop: str = ""


@dataclass(eq=False)
class _Decomposer:
    """What is known while a block is taken apart: ``now`` are the values in registers."""

    tiles: Tiles
    plan: LayoutPlan
    arch: int
    now: dict[str, Tensor] = field(default_factory=dict)

    # -- tensors

    def shape(self, dims: Sequence[str], part: bool = True) -> tuple[int, ...]:
        groups = self.plan.consumers if part else 1
        sizes = {a: sum(p.size for p in self.tiles.pieces[a]) for a in dims}
        return tuple(n // (groups if a == self.plan.divided else 1) for a, n in sizes.items())

    @property
    def all(self) -> Tensor:
        count = self.plan.consumers * self.plan.warps * WARP
        return threads("1", count)

    @property
    def groups(self) -> Tensor:
        """Who computes: groups of warps, each a tile of the block's threads."""
        return self.all if self.plan.consumers == 1 else self.all.tile(self.plan.warps * WARP, name="2")

    @property
    def loader(self) -> Tensor:
        """The thread that tells the copy engine what to move."""
        return threads("3", 1)

    def device(self, s: Stmt) -> Tensor:
        """The tile of a device tensor."""
        strides = s.at.strides(self.tiles.block.extents)
        dims = sorted(self.dims(s), key=lambda a: -strides.get(a, 0))
        layout = Layout(self.shape(dims, False), tuple(strides.get(a, 0) for a in dims))
        return tensor(s.at.source, layout, s.dtype, "GL")

    def dims(self, s: Stmt) -> tuple[str, ...]:
        return self.tiles.natural(self.tiles.block.by_value[s.value] if s.kind == "store" else s)

    def shared(self, b: Buffer) -> Tensor:
        """A stage of a ring, of one of its boxes."""
        return tensor(b.value, memory_layout(b.layout, b.box), b.dtype, "SH")

    def held(self, value: str, dtype: str = "float32") -> Tensor:
        """What a thread holds of a value from now on."""
        self.now[value] = tensor(value, Layout(self.count(value), 1), dtype, "RF")
        return self.now[value]

    def operand(self, value: str) -> Tensor:
        return self.now.get(value) or self.held(value)

    def cast(self, value: str, dtype: str) -> Iterator[Spec]:
        """What is computed in fp32 becomes narrower, two at a time."""
        have = self.operand(value)
        if have.element != dtype:
            step = self.step("cast", -(-self.count(value) // 2), ("[2].fp32.RF",), (f"[2].{SCALARS.get(dtype, dtype)}.RF",))
            yield Spec("UnaryPointwise<cast>", self.groups, (have,), (self.held(value, dtype),), (step,))

    # -- statements

    def nodes(self, nodes: Sequence[Node]) -> Iterator[Spec]:
        for n in nodes:
            if isinstance(n, Init):
                value = self.tiles.block.by_value[n.value]
                out = self.held(n.value)
                yield Spec("Init", self.groups, (), (out,), (self.step("set", self.count(value.value), (), ("[].fp32.RF",)),))
            elif isinstance(n, Stmt):
                yield from self.statement(n)
            else:
                yield Spec("", body=tuple(self.nodes(n.body)), loop=f"{n.axis} in 0..{n.trips}")

    def statement(self, s: Stmt) -> Iterator[Spec]:
        if s.kind == "load":
            yield from self.load(s)
        elif s.kind == "store":
            yield from self.store(s)
        elif self.tiles.is_dot(s):
            yield from self.product(s)
        elif s.folds:
            yield self.fold(s)
        else:
            yield self.pointwise(s)

    def step(self, name: str, count: int, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Step:
        return Step(atom(name, self.arch), max(count, 1), inputs, outputs)

    def count(self, value: str) -> int:
        """Elements of a value in a thread."""
        found = self.plan.fragment.get(value)
        return found.registers if found else 1

    def load(self, s: Stmt) -> Iterator[Spec]:
        here = self.plan.buffer.get(s.value)
        there = self.device(s)
        if here is None:
            yield self.direct(s, there, self.held(s.value, s.dtype), "ld")
            return
        to = self.shared(here)
        yield Spec("Move", self.loader if here.by == "tma" else self.all, (there,), (to,), (self.copy(here, "load"),))
        for u in (u for u in self.tiles.block.users(s.value) if self.tiles.is_dot(u)):
            if self.grouped(u) and (u.value, s.value, "registers") in self.places:
                m, n, k = self.mnk(u)
                yield self.fragments(s.value, 0, here, (m, n, k), self.plan.fragment[u.value].layout)
                return
        if s.value in self.plan.fragment:
            yield Spec("Move", self.groups, (to,), (self.held(s.value, s.dtype),), (self.vectors(s, "ld"),))

    @property
    def places(self) -> set[tuple[str, str, str]]:
        return {(o.product, o.value, o.place) for o in self.plan.operands}

    def grouped(self, s: Stmt) -> bool:
        """A product by warp groups."""
        return getattr(self.plan.fragment[s.value].layout, "version", 0) == 3

    def mnk(self, s: Stmt) -> tuple[int, int, int]:
        """Sizes of a group's part of a product."""
        m, n = self.shape(self.tiles.natural(s))
        return m, n, math.prod(self.shape(self.tiles.dims(s.reduce)))

    def copy(self, b: Buffer, way: str) -> Step:
        """A box or a vector at a time."""
        element, scalar = DTYPE_BYTES[b.dtype], SCALARS.get(b.dtype, b.dtype)
        if b.by == "tma":
            wide = getattr(b.layout, "swizzle", 0) // element or b.box[-1]
            each = (*b.box[:-1], min(wide, b.box[-1]))
            boxes = b.pieces * -(-b.box[-1] // each[-1])
            tile = f"[{','.join(map(str, each))}].{scalar}"
            ends = (f"{tile}.GL", f"{tile}.SH")
            return self.step(f"tma.{way}.{len(b.box)}d", boxes, *((e,) for e in (ends if way == "load" else ends[::-1])))
        count = math.prod(b.box) * b.pieces * element // 16 // self.all.size
        vector = f"[{16 // element}].{scalar}"
        if b.by == "cp.async":
            return self.step("cp.async.16", count, (f"{vector}.GL",), (f"{vector}.SH",))
        return self.step("ld.global.v4.u32", count, (f"{vector}.GL",), (f"{vector}.RF",))

    def direct(self, s: Stmt, there: Tensor, held: Tensor, way: str) -> Spec:
        ends = (there, held) if way == "ld" else (held, there)
        return Spec("Move", self.groups, ends[:1], ends[1:], (self.vectors(s, way, there),))

    def vectors(self, s: Stmt, way: str, there: Tensor | None = None) -> Step:
        """A thread's loads and stores, as wide as its neighbours in registers allow; without ``there``, of shared memory."""
        found, element = self.plan.fragment.get(s.value), DTYPE_BYTES[s.dtype]
        scalar = SCALARS.get(s.dtype, s.dtype)
        count, vector = 1, element
        if found is not None:
            bases = bases_of(found.layout, found.tile)
            strides = s.at.strides(self.tiles.block.extents)
            vector, _ = device_access(bases, [strides.get(a, 0) for a in self.dims(s)], element)
            count = _elements(bases) * element // vector
        width = {16: "v4.u32", 8: "v2.u32", 4: "u32"}.get(vector, "u16")
        tile = f"[{max(vector // element, 1)}].{scalar}"
        ends = (f"{tile}.{'GL' if there else 'SH'}", f"{tile}.RF")
        place = "global" if there else "shared"
        return self.step(f"{way}.{place}.{width}", count, *((e,) for e in (ends if way == "ld" else ends[::-1])))

    def store(self, s: Stmt) -> Iterator[Spec]:
        out = self.plan.buffer.get(f"{s.at.source}{OUT}")
        yield from self.cast(s.value, s.dtype)
        held, there = self.operand(s.value), self.device(s)
        if out is None:
            yield self.direct(s, there, held, "st")
            return
        to, scalar = self.shared(out), SCALARS.get(s.dtype, s.dtype)
        if DTYPE_BYTES[s.dtype] == 2 and self.arch >= 90:
            count = math.prod(out.box) // self.plan.warps // 256
            tile = f"[16,16].{scalar}"
            step = self.step("stmatrix.x4", count, (f"{tile}.RF",), (f"{tile}.SH",))
        else:
            step = self.vectors(s, "st")
        yield Spec("Move", self.groups, (held,), (to,), (step,))
        yield Spec("Move", self.loader, (to,), (there,), (self.copy(out, "store"),))

    def product(self, s: Stmt) -> Iterator[Spec]:
        """Warp groups read tiles of shared memory; warps read fragments first."""
        block, dtype = self.tiles.block, self.tiles.dot_dtype(s)
        sides = self.tiles.sides(s)
        m, n, k = self.mnk(s)
        layout, scalar, grouped = self.plan.fragment[s.value].layout, SCALARS.get(dtype, dtype), self.grouped(s)
        operands: list[Tensor] = []
        places: list[str] = []
        for i, v in enumerate(sides):
            b = self.plan.buffer.get(v)
            shared = b is not None and (s.value, v, "shared") in self.places
            if b is not None and not shared and not grouped:
                yield self.fragments(v, i, b, (m, n, k), layout)
            elif not shared and block.by_value[v].kind != "load":
                yield from self.cast(v, dtype)
            operands.append(self.shared(b) if b is not None and shared else self.operand(v))
            places.append("SH" if shared else "RF")
        if grouped:
            name, (x, y, z) = f"wgmma.m64n{min(n, 256)}k16.{'ss' if places[0] == 'SH' else 'rs'}", (64, min(n, 256), 16)
            places[1] = "SH"
        else:
            name = "mma.m16n8k16" if DTYPE_BYTES[dtype] == 2 else "mma.m16n8k8.tf32"
            name = name if self.arch >= 80 else "mma.m8n8k4" if dtype == "float16" else "fma"
            x, y, z = atom(name, self.arch).mnk if name != "fma" else (1, 1, 1)
        whole = m // x * (n // y) * (k // z)
        count = whole if grouped else whole // self.plan.warps
        ends = tuple(f"[{a},{b}].{scalar}.{p}" for (a, b), p in zip(((x, z), (z, y)), places, strict=True))
        step = self.step(name, count if name != "fma" else whole // WARP, ends, (f"[{x},{y}].fp32.RF",))
        yield Spec("MatMul", self.groups, tuple(operands), (self.held(s.value),), (step,))

    def fragments(self, value: str, side: int, b: Buffer, mnk: tuple[int, int, int], layout: Registers) -> Spec:
        m, n, k = mnk
        warps = getattr(layout, "warps", (self.plan.warps, 1))
        each = (n if side else m) * k // warps[side] // WARP
        if DTYPE_BYTES[b.dtype] != 2 or self.arch < 75:
            name, count, tile = "ld.shared.u32", each, "1"
        elif side == 0:
            name, count, tile = "ldmatrix.x4", m // 16 // warps[0] * (k // 16), "16,16"
        else:
            name, count, tile = "ldmatrix.x2.trans", n // 8 // warps[1] * (k // 16), "16,8"
        scalar = SCALARS.get(b.dtype, b.dtype)
        step = self.step(name, count, (f"[{tile}].{scalar}.SH",), (f"[{tile}].{scalar}.RF",))
        self.now[value] = tensor(value, Layout(each, 1), b.dtype, "RF")
        return Spec("Move", self.groups, (self.shared(b),), (self.now[value],), (step,))

    def fold(self, s: Stmt) -> Spec:
        """Each thread its own elements, then lanes among each other, then warps through shared memory."""
        operand = max(s.args, key=self.count)
        have, found = self.plan.fragment.get(operand), self.plan.fragment.get(s.value)
        kept = _elements(bases_of(found.layout, found.tile)) if found else 1
        known = "fma" if s.contracts else f"fold.{s.op}" if f"fold.{s.op}" in ATOMS else "fold"
        each = self.count(operand) - (0 if s.contracts else kept)
        steps = [self.step(known, each, ("[].fp32.RF", "[].fp32.RF"), ("[].fp32.RF",))]
        if have:
            bases = bases_of(have.layout, have.tile)
            dims = self.dims(self.tiles.block.by_value[operand])
            gone = [i for i, a in enumerate(dims) if a in s.reduce]
            lanes = sum(1 for v in bases.lane if any(v[i] for i in gone))
            if lanes:
                steps.append(self.step("shfl.bfly", lanes * kept, ("[32].fp32.RF",), ("[32].fp32.RF",)))
            if any(v[i] for v in bases.warp for i in gone):
                steps.append(self.step("st.shared.u32", kept, ("[1].fp32.RF",), ("[1].fp32.SH",)))
                steps.append(self.step("ld.shared.u32", kept * self.plan.warps, ("[1].fp32.SH",), ("[1].fp32.RF",)))
        kind = "MatMul" if s.contracts else f"Reduction<{s.op}>"
        return Spec(kind, self.groups, tuple(map(self.operand, s.args)), (self.held(s.value),), tuple(steps))

    def pointwise(self, s: Stmt) -> Spec:
        two = len(s.args) > 1
        general = "special" if s.entry.sfu else "arithmetic" if two else "unary"
        name = f"pointwise.{s.op}" if f"pointwise.{s.op}" in ATOMS else general
        count = self.count(s.value) if name != general else round(self.count(s.value) * (s.entry.sfu or max(s.entry.flops, 1.0)))
        given = tuple(self.operand(a) for a in s.args)
        step = self.step(name, count, ("[].fp32.RF",) * max(len(s.args), 1), ("[].fp32.RF",))
        return Spec(f"{'Binary' if two else 'Unary'}Pointwise<{s.op}>", self.groups, given, (self.held(s.value),), (step,))


def _elements(bases: Bases) -> int:
    """That a thread holds."""
    return 1 << len([v for v in bases.register if any(v)])


def decompose(tiles: Tiles, plan: LayoutPlan, arch: int) -> Spec:
    """The kernel as a specification. Raises :class:`fuser.errors.UnsupportedError` where ``arch`` lacks an instruction."""
    d = _Decomposer(tiles, plan, arch)
    block = tiles.block
    whole = {s.at.source: s for s in (*block.loads, *block.stores)}

    def of(name: str) -> Tensor:
        s = whole[name]
        strides, extents = s.at.strides(block.extents), block.extents
        dims = sorted(s.at.axes, key=lambda a: -strides[a])
        return tensor(name, Layout(tuple(extents[a] for a in dims), tuple(strides[a] for a in dims)), s.dtype, "GL")

    grid = [p.grid for p in tiles.plans.values() if p.grid > 1 and not p.split]
    by = blocks("0", *reversed(grid)) if grid else blocks("0", 1)
    return Spec(block.name, by, tuple(map(of, block.inputs)), tuple(map(of, block.outputs)), tuple(d.nodes(tiles.tree.body)))
