"""Sizes at which a µGraph and its program are compared, and the schedules of those tests.

Program and µGraph have axes of their own. Their device tensors tie them: a dimension is a row-major product of axes on both
sides, and where one side is finer, the finer axes are the atoms. A test draws an extent for each atom, pairwise different and
another one in the next round, so that no constant fits by chance; causal masks keep what tells them apart (:mod:`.masks`). The
checking schedule follows from the structure: every axis of the grid has at least two tiles, every loop at least three, split
reductions three parts or more, and loops are ragged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir.axes import AxisMap
from fuser.ir.axes import Dims
from fuser.ir.axes import axes_of
from fuser.ir.axes import views_apart
from fuser.ir.composites import expand
from fuser.ir.factors import Factor
from fuser.ir.factors import TieError
from fuser.ir.factors import tie
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.program import infer_shape
from fuser.ir.resize import resize
from fuser.superopt.verify.amounts import LARGEST
from fuser.superopt.verify.amounts import MOST
from fuser.superopt.verify.amounts import PROGRAM
from fuser.superopt.verify.amounts import largest
from fuser.superopt.verify.amounts import restored
from fuser.superopt.verify.amounts import work
from fuser.superopt.verify.constants import known_constants
from fuser.superopt.verify.constants import with_known_constants
from fuser.superopt.verify.draw import draw_sizes
from fuser.superopt.verify.dtypes import with_casts_marked
from fuser.superopt.verify.interface import MismatchError
from fuser.superopt.verify.interface import check_interface
from fuser.superopt.verify.interface import check_tensors
from fuser.superopt.verify.interface import without_windows
from fuser.superopt.verify.masks import Mask
from fuser.superopt.verify.masks import Offsets
from fuser.superopt.verify.masks import reduced_offsets

Name = tuple[str, str]  # (kernel, axis); the program's axes have the kernel PROGRAM
Indices = tuple[tuple[int, ...], ...]  # the atoms of each dimension
Boxes = dict[Name, tuple[Indices, Indices]]  # of each (kernel, load) of a window: dimensions of the tensor, and of its view


def _tie(left: list[Factor], right: list[Factor], where: str) -> None:
    try:
        tie(left, right)
    except TieError as error:
        if FREE in error.extents:
            raise UnsupportedError(f"{where}: a split count is tied to an extent") from None
        if error.extents:
            big, small = error.extents
            raise UnsupportedError(f"{where}: extents {big} and {small} do not divide each other") from None
        raise MismatchError(f"{where}: the numbers of elements differ") from None


@dataclass(frozen=True)
class Case:
    """Program and µGraph at the same reduced sizes; ``sizes`` names the program's axes."""

    program: TensorProgram
    graph: KernelGraph
    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Structure:
    """A µGraph and how the axes of its kernels hang together. ``atoms``: the leaves that make up each axis, as indices into
    ``real``, their extents at the µGraph's size; ``library``: each library kernel as a program; ``boxes``: the atoms of the
    tensors and views that are read through windows."""

    graph: KernelGraph
    atoms: dict[Name, tuple[int, ...]]
    real: tuple[int, ...]
    library: dict[str, tuple[TensorProgram, AxisMap]]
    boxes: Boxes = field(default_factory=dict)
    cut: frozenset[int] = frozenset()
    """Atoms of which something reads a part: they keep their extents."""

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The most demanding role of each atom: ``split``, ``loop`` (reduced somewhere) or ``grid``."""
        order = ["split", "loop", "grid"]
        found = ["grid"] * len(self.real)
        for block in self.graph.blocks:
            counts = {g for _, g in block.splits}
            for axis in set(block.extents) - counts:
                role = "split" if axis in dict(block.splits) else "loop" if axis in block.reduced else "grid"
                for i in self.atoms[block.name, axis]:
                    found[i] = min(found[i], role, key=order.index)
        return tuple(found)

    @cached_property
    def masks(self) -> tuple[Mask, ...]:
        """Where its elements go by their places (causal masks, triangles), in library kernels too."""
        found = [self.mask(b.name, s) for b in self.graph.blocks for s in b.computes if s.indexed]
        for name, (program, axes) in self.library.items():
            found += [self.program_mask(name, n, axes) for n in program.nodes if n.indexed]
        return tuple(dict.fromkeys(found))

    def mask(self, kernel: str, stmt: Stmt) -> Mask:
        rows, columns = (self.atoms.get((kernel, stmt.attr[a]), ()) for a in ("rows", "cols"))
        if any(self.real[i] == FREE for i in (*rows, *columns)):
            raise UnsupportedError(f"{kernel!r}: {stmt} is a causal mask over the parts of a split, whose number is open")
        return Mask(rows, columns, stmt.attr.get("offset", 0))

    def program_mask(self, kernel: str, node: Node, axes: AxisMap) -> Mask:
        rows, columns = (tuple(i for a in d for i in self.atoms[kernel, a]) for d in axes.values[node.output][-2:])
        return Mask(rows, columns, node.attr.get("offset", 0))

    @cached_property
    def parts(self) -> dict[int, tuple[int, ...]]:
        """Of each atom that is summed over in parts: the atoms that count them."""
        found: dict[int, set[int]] = {}
        for block in self.graph.blocks:
            for axis, count in block.splits:
                for i in self.atoms[block.name, axis]:
                    found.setdefault(i, set()).update(self.atoms[block.name, count])
        return {i: tuple(sorted(x)) for i, x in found.items()}

    def extents(self, sizes: Sequence[int]) -> dict[Name, int]:
        """Extent of every axis for extents of the atoms."""
        return {name: math.prod(sizes[i] for i in leaves) for name, leaves in self.atoms.items()}

    def at(self, sizes: Sequence[int], offsets: Offsets | None = None) -> KernelGraph:
        """The µGraph with these extents of the atoms and ``offsets`` of its causal masks."""
        extents = self.extents(sizes)
        offsets = reduced_offsets(self.masks, self.real, sizes) if offsets is None else offsets
        shapes: dict[str, tuple[int, ...]] = {}
        kernels: list[Kernel] = []
        for k in self.graph.kernels:
            if isinstance(k, LibraryKernel):
                program, axes = self.library[k.name]
                own = {n.output: self.program_mask(k.name, n, axes) for n in program.nodes if n.indexed}
                small = resize(
                    program, {a: extents[k.name, a] for a in axes.extents}, axes, {n: offsets[m] for n, m in own.items()}
                )
                kernels.append(replace(k, attrs=small.nodes[-1].attrs) if len(small.nodes) == 1 else k)
                shapes |= {t.name: t.shape for t in small.tensors}
                continue
            block = self._masked(k.with_extents({a: extents[k.name, a] for a in k.extents}), offsets)
            block = replace(block, stmts=tuple(self._placed(k.name, s, sizes) for s in block.stmts))
            kernels.append(block)
            shapes |= {s.access.source: s.access.source_shape(block.extents) for s in block.stmts if s.access}
        tensors = tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in self.graph.tensors)
        return replace(self.graph, kernels=tuple(kernels), tensors=tensors)

    def _placed(self, kernel: str, s: Stmt, sizes: Sequence[int]) -> Stmt:
        """A load with its window in the tensor of these sizes: what is cut keeps its extents, so the window stays where it is."""
        if s.access is None or s.access.window is None:
            return s
        shape, view = (tuple(math.prod(sizes[i] for i in dim) for dim in dims) for dims in self.boxes[kernel, s.value])
        return replace(s, access=replace(s.access, window=replace(s.access.window, shape=shape, view=view)))

    def _masked(self, block: BlockGraph, offsets: Offsets) -> BlockGraph:
        def placed(s: Stmt) -> Stmt:
            if s.kind != "compute" or not s.indexed:
                return s
            return replace(s, attrs=tuple(sorted({**s.attr, "offset": offsets[self.mask(block.name, s)]}.items())))

        return replace(block, stmts=tuple(placed(s) for s in block.stmts))


@dataclass(frozen=True)
class Reduction:
    """A µGraph's structure tied to the axes of its (expanded) program."""

    program: TensorProgram
    axes: AxisMap
    structure: Structure
    real: bool = False
    """Whether extents stay those of the real size where that is affordable."""

    def draw(self, rng: np.random.Generator, turn: int = 0) -> Case:
        """Random small sizes; of two turns in a row every extent differs."""
        sizes = draw_sizes(self.structure, rng, self.masks, turn)
        sizes = [self.structure.real[i] if i in self.structure.cut else n for i, n in enumerate(sizes)]
        sizes = restored(self, sizes) if self.real else sizes
        if largest(self, sizes) > LARGEST or work(self, sizes) > MOST:
            raise UnsupportedError(
                f"no extents for a test of {self.structure.graph.name!r} are small enough: "
                "it reads tensors as other products of axes than the program does, or windows of large ones"
            )
        return self.at(sizes, reduced_offsets(self.masks, self.structure.real, sizes, rng))

    @cached_property
    def masks(self) -> tuple[Mask, ...]:
        """The causal masks of program and µGraph."""
        return tuple(dict.fromkeys((*self.program_masks.values(), *self.structure.masks)))

    @cached_property
    def program_masks(self) -> dict[str, Mask]:
        nodes = [n for n in self.program.nodes if n.indexed]
        return {n.output: self.structure.program_mask(PROGRAM, n, self.axes) for n in nodes}

    def at(self, sizes: Sequence[int], offsets: Offsets | None = None) -> Case:
        """Program and µGraph with these extents of the atoms, and ``offsets`` of their causal masks."""
        offsets = reduced_offsets(self.masks, self.structure.real, sizes) if offsets is None else offsets
        extents = self.structure.extents(sizes)
        own = {axis: e for (kernel, axis), e in extents.items() if kernel == PROGRAM}
        small = resize(self.program, own, self.axes, {n: offsets[m] for n, m in self.program_masks.items()})
        graph = with_known_constants(
            self.structure.graph, self.structure.at(sizes, offsets), known_constants(self.program, small)
        )
        small = replace(small, tensors=tuple(graph.table[t.name] if t.name in self.only_graph else t for t in small.tensors))
        # inputs that no kernel reads have no axes in the µGraph
        graph = replace(
            graph, tensors=tuple(replace(t, shape=small[t.name].shape) if t.name in small.table else t for t in graph.tensors)
        )
        return Case(small, graph, tuple(own.items()))

    @cached_property
    def only_graph(self) -> frozenset[str]:
        """Inputs that only the µGraph reads: what it does with them must cancel."""
        read = {i for n in self.program.nodes for i in n.inputs}
        return frozenset(self.structure.graph.table) & frozenset(self.program.inputs) - read

    def with_graph(self, graph: KernelGraph) -> Reduction:
        """The same for another µGraph over the same axes."""
        return replace(self, structure=replace(self.structure, graph=graph))


class _Ties:
    """Atoms of all axes, tied wherever two axes index one dimension of a device tensor."""

    def __init__(self) -> None:
        self.known: dict[Name, Factor] = {}
        self.tensors: dict[str, list[list[Factor]]] = {}
        self.library: dict[str, tuple[TensorProgram, AxisMap]] = {}
        self.boxes: dict[Name, tuple[list[list[Factor]], list[list[Factor]]]] = {}
        self.cut: list[Factor] = []

    def add(self, kernel: str, extents: Mapping[str, int]) -> None:
        self.known |= {(kernel, a): Factor(e) for a, e in extents.items()}

    def touch(self, tensor: str, kernel: str, dims: Dims, what: str) -> None:
        own = [[self.known[kernel, a] for a in d] for d in dims]
        before = self.tensors.setdefault(tensor, own)
        if len(own) > len(before):
            raise MismatchError(f"{what} has {len(own)} dimensions, {tensor!r} has {len(before)}")
        if len(own) < len(before):  # dimensions that always go together are one there
            before, own = ([[x for dim in side for x in dim]] for side in (before, own))
        for old, new in zip(before, own, strict=True):
            _tie(old, new, what)

    def window(self, kernel: str, s: Stmt, shape: Sequence[int], what: str) -> None:
        """Tie the axes of a window to the dimensions that they have all of; the others are cut."""
        assert s.at.window is not None
        window = s.at.window
        tensor = self.tensors.setdefault(window.tensor, [[Factor(n)] for n in window.shape])
        view = [[Factor(n)] for n in window.view]
        if view:
            _tie([x for dim in tensor for x in dim], [x for dim in view for x in dim], what)
        for dims, dim, start, extent, most in zip(s.at.dims, view or tensor, window.starts, shape, window.seen, strict=True):
            own = [self.known[kernel, a] for a in dims]
            if (start, extent) == (0, most):
                _tie(dim, own, what)
            else:
                self.cut += [*dim, *own]
        self.boxes[kernel, s.value] = tensor, view

    def program(self, program: TensorProgram, axes: AxisMap) -> None:
        self.add(PROGRAM, axes.extents)
        self.cut += [self.known[PROGRAM, a] for a in axes.cut]
        for (i, j), dims in axes.uses.items():
            if (name := program.nodes[i].inputs[j]) in program.inputs:
                self.touch(name, PROGRAM, dims, f"use of {name!r}")
        for name in program.outputs:
            if name in axes.values:
                self.touch(name, PROGRAM, axes.values[name], f"output {name!r}")

    def constants(self, graph: KernelGraph) -> None:
        """An axis that only constants of a kernel are made of (1/N after a split sum over N) is the axis of that name of another
        kernel.
        """
        touched = {(b.name, a) for b in graph.blocks for s in b.stmts if s.access for a in s.access.axes}
        for block in graph.blocks:
            for a, extent in block.extents.items():
                others = [b for b in graph.blocks if (b.name, a) in touched and b.extents[a] == extent]
                if (block.name, a) not in touched and others:
                    _tie([self.known[others[0].name, a]], [self.known[block.name, a]], f"{block.name!r}: axis {a!r}")

    def graph(self, graph: KernelGraph) -> Structure:
        shapes: dict[str, tuple[int, ...]] = {t.name: t.shape for t in graph.tensors}
        for k in graph.kernels:
            if isinstance(k, LibraryKernel):
                single = as_program(k, shapes)
                axes = axes_of(single)
                self.library[k.name] = single, axes
                self.add(k.name, axes.extents)
                for (i, j), dims in axes.uses.items():
                    if (name := single.nodes[i].inputs[j]) in single.inputs:
                        self.touch(name, k.name, dims, f"operand {name!r} of {k.name!r}")
                self.touch(k.output, k.name, axes.values[k.output], f"output of {k.name!r}")
                shapes[k.output] = single[k.output].shape
                continue
            self.add(k.name, k.extents)
            for s in k.stmts:
                if s.access and s.access.window:
                    self.window(k.name, s, s.access.shape(k.extents), f"{k.name!r}: {s}")
                elif s.access:
                    self.touch(s.access.tensor, k.name, s.access.dims, f"{k.name!r}: {s}")
                    shapes.setdefault(s.access.tensor, s.access.shape(k.extents))
        self.constants(graph)
        number: dict[int, int] = {}
        real: list[int] = []

        def indices(atom: Factor) -> tuple[int, ...]:
            leaves = atom.leaves()
            for x in leaves:
                if id(x) not in number:
                    number[id(x)] = len(real)
                    real.append(x.extent)
            return tuple(number[id(x)] for x in leaves)

        def places(tensor: list[list[Factor]]) -> Indices:
            return tuple(tuple(i for x in dim for i in indices(x)) for dim in tensor)

        atoms = {axis: indices(atom) for axis, atom in self.known.items()}
        boxes = {name: (places(tensor), places(view)) for name, (tensor, view) in self.boxes.items()}
        cut = frozenset(i for x in self.cut for i in indices(x))
        return Structure(graph, atoms, tuple(real), self.library, boxes, cut)


def structure(graph: KernelGraph) -> Structure:
    """How the axes of a µGraph's kernels hang together, without a program."""
    return _Ties().graph(graph)


def reduction(program: TensorProgram, graph: KernelGraph, in_place: bool = False) -> Reduction:
    """Tie the axes of a program and of a µGraph through their device tensors. With ``in_place``, slices, joins and windows
    stay as they are, and dimensions of which something reads a part keep their extents.

    Raises :class:`MismatchError` where the tensors do not fit, :class:`UnsupportedError` where no smaller sizes can be found.
    """
    program = views_apart(expand(program))
    check_tensors(program, graph)
    program, graph = with_casts_marked(program, graph)
    if not in_place:
        program, graph = without_windows(program, graph)
    check_interface(program, graph)
    axes = axes_of(program, data=in_place)
    ties = _Ties()
    ties.program(program, axes)
    return Reduction(program, axes, ties.graph(graph), real=in_place)


def as_program(kernel: LibraryKernel, shapes: Mapping[str, tuple[int, ...]]) -> TensorProgram:
    """A library kernel as a program of its own."""
    attrs: dict[str, Any] = dict(kernel.attrs)
    operands = tuple(Tensor(n, shapes[n]) for n in kernel.inputs)
    out = Tensor(kernel.output, infer_shape(kernel.op, [shapes[n] for n in kernel.args], attrs))
    node = Node(kernel.op, kernel.args, kernel.output, kernel.attrs)
    return expand(TensorProgram(kernel.name, kernel.inputs, (node,), (kernel.output,), (*operands, out)).validate())
