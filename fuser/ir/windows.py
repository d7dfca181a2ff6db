"""Slices and concatenations as accesses: a program that reads boxes of tensors in place of operators that copy them.

A slice of an input is no work at all for a kernel, only another place to load from. So slices are pushed towards the inputs
(a slice of X W is X times a slice of W), where each box becomes an input of its own with a *window*: where it lies in the
tensor in memory. A concatenation is pushed the other way: what is computed from it is computed in pieces, until a sum over the
concatenated dimension adds them (rotary embedding in front of Q Kᵀ). Everything behind this module sees plain inputs; the
windows come back into the accesses of the finished µGraph.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

from fuser.errors import UnsupportedError
from fuser.ir.access import Window
from fuser.ir.box_views import CutViews
from fuser.ir.box_views import needed
from fuser.ir.boxes import Box
from fuser.ir.boxes import Cuts
from fuser.ir.boxes import box_name
from fuser.ir.boxes import extents
from fuser.ir.boxes import merged
from fuser.ir.boxes import no_cuts
from fuser.ir.boxes import of_operand
from fuser.ir.boxes import of_result
from fuser.ir.boxes import ranges
from fuser.ir.boxes import union
from fuser.ir.boxes import whole
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.composites import expand
from fuser.ir.late_slices import with_late_slices
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import bound

MOST = 2000
"""Operators, each for every box of its result, up to which a program may become blocks. Where steps read what is before them in
two places, each has more boxes than the one behind it: 31 diagonals of a dynamic program were 10000, and took minutes."""


@dataclass(frozen=True)
class Windowed:
    """``program`` without slices; its inputs that are boxes of a tensor of ``original`` have an entry in ``windows``.

    Tensors that are kept in device memory between kernels and read there in boxes are outputs of ``program`` too."""

    original: TensorProgram
    program: TensorProgram
    windows: Mapping[str, Window]

    def attach(self, graph: KernelGraph) -> KernelGraph:
        """A µGraph of ``program`` as one of ``original``: what it reads of boxes gets their windows. Raises
        :class:`UnsupportedError` where a library's kernel reads one."""
        if self.program is self.original:
            return graph
        for k in graph.kernels:
            if not isinstance(k, BlockGraph) and (found := [a for a in k.args if a in self.windows]):
                raise UnsupportedError(f"the library's {k.op} in {graph.name!r} would read the slice {found[0]}")
        table = self.original.table
        return replace(
            graph,
            inputs=self.original.inputs,
            kernels=tuple(self._block(k) if isinstance(k, BlockGraph) else k for k in graph.kernels),
            outputs=self.original.outputs,
            tensors=tuple(table[n] for n in dict.fromkeys((*self.original.inputs, *self.original.outputs))),
        ).validate()

    def _block(self, block: BlockGraph) -> BlockGraph:
        def placed(s: Stmt) -> Stmt:
            if s.kind != "load" or s.access is None or s.access.tensor not in self.windows:
                return s
            return replace(s, access=replace(s.access, window=self.windows[s.access.tensor]))

        return replace(block, stmts=tuple(placed(s) for s in block.stmts))


def detach(graph: KernelGraph) -> tuple[KernelGraph, frozenset[str]]:
    """A µGraph whose windows are plain inputs, named as in :attr:`Windowed.program`, and the tensors between its kernels that
    it reads in boxes."""
    boxes: dict[str, Tensor] = {}
    taken = {*graph.inputs, *(t for k in graph.kernels for t in k.outputs)}
    sources: dict[str, None] = {}

    def plain(s: Stmt, sizes: Mapping[str, int]) -> Stmt:
        if s.access is None or s.access.window is None:
            return s
        window, shape = s.access.window, s.access.shape(sizes)
        # the name follows from where the window lies, whatever the access calls it
        box = tuple((x, x + n) for x, n in zip(window.starts, shape, strict=True))
        name = box_name(window.tensor, box, window.shape, window.view)
        if name in taken:
            raise UnsupportedError(f"{name!r} of {graph.name!r} is a tensor and a box of another", "give the tensor another name")
        boxes[name], sources[window.tensor] = Tensor(name, shape, s.dtype), None
        return replace(s, access=Access(name, s.access.dims))

    kernels = tuple(
        replace(k, stmts=tuple(plain(s, k.extents) for s in k.stmts)) if isinstance(k, BlockGraph) else k for k in graph.kernels
    )
    if not boxes:
        return graph, frozenset()
    read = {t for k in kernels for t in k.inputs}
    between = [t for t in sources if t not in graph.inputs]
    kept = [n for n in graph.inputs if n in read or n not in sources]
    found = replace(
        graph,
        inputs=(*kept, *boxes),
        kernels=kernels,
        outputs=tuple(dict.fromkeys((*graph.outputs, *between))),
        tensors=(*graph.tensors, *boxes.values(), *(t for n, t in graph.device_tensors.items() if n in between)),
    )
    return replace(found, tensors=tuple({t.name: t for t in found.tensors}.values())).validate(), frozenset(between)


def copies_data(program: TensorProgram) -> bool:
    """The program has a slice or a concatenation."""
    return any(n.entry.kind == "data" for n in program.nodes)


def windowed(program: TensorProgram, stops: Collection[str] = ()) -> Windowed:
    """The program without slices and concatenations. Results ``stops`` stay whole in device memory, and what reads boxes of
    them reads windows. A program without such operators stays as it is.

    Raises :class:`UnsupportedError` naming the operator where a box of its result is none of its operands, or where a result of
    the program is only a copy.
    """
    if not copies_data(program):
        return Windowed(program, program, {})
    try:
        return _windowed(program, program, stops)
    except UnsupportedError:
        late = with_late_slices(program)
        if late is program:
            raise
        return _windowed(late, program, stops)


def _windowed(program: TensorProgram, original: TensorProgram, stops: Collection[str]) -> Windowed:
    try:
        return _Boxes(program, frozenset(stops)).run(original)
    except _CompositeError:
        return _Boxes(expand(program), frozenset(stops)).run(original)


class _CompositeError(Exception):
    """A composite whose result is needed in pieces."""


class _Boxes:
    """Forward: where tensors must be cut; backward: which boxes of each are needed; forward again: the new program."""

    def __init__(self, program: TensorProgram, stops: frozenset[str]) -> None:
        self.program, self.stops = program, stops
        self.shape = {t.name: t.shape for t in program.tensors}
        self.cuts: dict[str, Cuts] = {n: no_cuts(len(program[n].shape)) for n in program.inputs}
        self.needed: dict[str, dict[Box, None]] = {t.name: {} for t in program.tensors}
        self.windows: dict[str, Window] = {}
        self.refs: dict[tuple[str, Box], Ref] = {}
        self.inputs: dict[str, Ref] = {}

    def run(self, original: TensorProgram) -> Windowed:
        program = self.program
        own: dict[str, Cuts] = {}
        for node in program.nodes:
            own[node.output] = self.cut(node)
            # a tensor that lies whole in memory can be read in any box
            self.cuts[node.output] = no_cuts(len(self.shape[node.output])) if node.output in self.stops else own[node.output]
        for name in program.outputs:
            self.needed[name][whole(self.shape[name])] = None
        for node in reversed(program.nodes):
            stored = node.output in program.outputs or (node.output in self.stops and self.needed[node.output])
            if stored and any(own[node.output]):
                raise UnsupportedError(f"{node.output!r} of {program.name!r} is stored in parts of a concatenation")
            if stored:
                self.needed[node.output][whole(self.shape[node.output])] = None
            for box in self.needed[node.output]:
                if node.output in self.stops and box != whole(self.shape[node.output]):
                    continue
                for j, (name, operand) in enumerate(read := self.operands(node, box)):
                    for cell in self.cells(name, operand, self.contracted(node, j)):
                        self.needed[name][cell] = None
                if not read and (source := self.memory[node.output]) in self.stops:
                    self.needed[source][whole(self.shape[source])] = None  # it is read in another shape alone
        return self.emit(original)

    # -- where results are cut ------------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> dict[str, str]:
        """Tensors that lie whole in device memory, and reshapes of them, with the name that they have there."""
        found = {n: n for n in self.program.inputs}
        for node in self.program.nodes:
            if node.output in self.stops:
                found[node.output] = node.output
            elif node.regroups and node.inputs[0] in found:
                found[node.output] = found[node.inputs[0]]
        return found

    def cut(self, node: Node) -> Cuts:
        sides, shape = [self.cuts[n] for n in node.inputs], self.shape[node.output]
        kind, rank = node.entry.kind, len(shape)
        if node.entry.dims is not None:
            return tuple(node.entry.dims(CutViews([self.shape[n] for n in node.inputs]), sides, node.attr, shape))
        if not any(any(s) for s in sides):
            return no_cuts(rank)
        x = sides[0]
        if kind == "composite":
            raise _CompositeError
        if kind == "map":
            return merged([of_result(s, rank) for s in sides], rank)
        if node.contracts:
            a, b = sides
            batch = merged([of_result(s[:-2], rank - 2) for s in sides], rank - 2)
            return (*batch, a[-2], b[-1])
        if kind == "reduce":
            over = {i % len(x) for i in node.attr["axis"]}
            keep = node.attr.get("keepdims")
            return tuple(() if i in over else c for i, c in enumerate(x) if keep or i not in over)
        raise UnsupportedError(f"operator {node.op!r} ({node.output}) cannot work on parts of a concatenation")

    # -- what a box of a result needs -----------------------------------------------------------------------------------------

    def cells(self, name: str, box: Box, further: Mapping[int, Sequence[int]] | None = None) -> list[Box]:
        """A box in pieces that each come from one part, and ``further`` cut along some dimensions."""
        cuts = [union(c, (further or {}).get(i, ())) for i, c in enumerate(self.cuts[name])]
        return list(itertools.product(*(ranges(r, c) for r, c in zip(box, cuts, strict=True))))

    def contracted(self, node: Node, j: int) -> dict[int, tuple[int, ...]]:
        """Where either operand of a product cuts the dimension that is summed over, as a dimension of operand j."""
        if not node.contracts:
            return {}
        left, right = node.inputs
        return {len(self.shape[node.inputs[j]]) - 1 - j: union(self.cuts[left][-1], self.cuts[right][-2])}

    def operands(self, node: Node, box: Box) -> list[tuple[str, Box]]:
        """The box of each operand that a box of the result needs, in the order of the operands (contracted dimensions whole)."""
        shapes = [self.shape[n] for n in node.inputs]
        kind, x = node.entry.kind, node.inputs[0]
        if kind == "map":
            return [(n, of_operand(box, s)) for n, s in zip(node.inputs, shapes, strict=True)]
        if node.entry.dims is not None:
            try:
                return needed(node, box, shapes, self.shape[node.output])
            except UnsupportedError:
                if not node.regroups or x not in self.memory:
                    raise
                return []  # a box of what lies in memory, seen in another shape
        if node.contracts:
            a, b = shapes
            left = (*of_operand(box[:-2], a[:-2]), box[-2], (0, a[-1]))
            return [(x, left), (node.inputs[1], (*of_operand(box[:-2], b[:-2]), (0, b[-2]), box[-1]))]
        if kind == "reduce":
            over = {i % len(shapes[0]) for i in node.attr["axis"]}
            own = iter(box)
            found = [(0, n) if i in over and not node.attr.get("keepdims") else next(own) for i, n in enumerate(shapes[0])]
            return [(x, tuple((0, n) if i in over else r for i, (r, n) in enumerate(zip(found, shapes[0], strict=True))))]
        if box == whole(self.shape[node.output]):
            return [(n, whole(s)) for n, s in zip(node.inputs, shapes, strict=True)]
        if kind == "composite":
            raise _CompositeError
        raise UnsupportedError(f"operator {node.op!r} ({node.output}) is needed in parts")

    # -- the new program ------------------------------------------------------------------------------------------------------

    def emit(self, original: TensorProgram) -> Windowed:
        program = self.program
        if (boxes := sum(len(self.needed[n.output]) for n in program.nodes)) > MOST:
            raise UnsupportedError(f"{program.name!r} is {boxes} operators where each is done in the parts that are needed of it")
        self.b = Builder(program.name, reserved=frozenset(program.table))
        for name in program.inputs:
            # an input that no result needs stays one
            for box in sorted(self.needed[name]) or [whole(self.shape[name])]:
                self.input(name, box)
        for node in program.nodes:
            all_of_it = whole(self.shape[node.output])
            for box in sorted(self.needed[node.output]):
                if (node.output in self.stops and box != all_of_it) or not self.operands(node, box):
                    self.input(node.output, box)
                else:
                    self.refs[node.output, box] = self.node(node, box)
        named: dict[str, Ref] = {}
        stops = (n.output for n in program.nodes if n.output in self.stops and self.needed[n.output])
        for name in dict.fromkeys((*program.outputs, *stops)):
            ref = self.refs[name, whole(self.shape[name])]
            if ref.name in self.inputs or ref in named.values():
                raise UnsupportedError(f"{name!r} of {program.name!r} is only a copy", "a kernel would do no work")
            named[name] = ref
        return Windowed(original, self.b.build(**named), self.windows)

    def input(self, name: str, box: Box) -> None:
        source = self.memory[name]
        shape, seen = self.shape[source], self.shape[name]
        view = () if seen == shape else seen
        label = box_name(source, box, shape, view)
        if label != source and label in self.program.table:
            raise UnsupportedError(f"{label!r} of {self.program.name!r} is a tensor and a box of another", "give it another name")
        if label not in self.b.names:
            self.inputs[label] = self.b.input(label, extents(box), self.program[name].dtype)
        self.refs[name, box] = self.inputs[label]
        if view or box != whole(shape):
            self.windows[label] = Window(source, shape, tuple(start for start, _ in box), view)

    def node(self, node: Node, box: Box) -> Ref:
        if node.entry.kind == "data":
            ((name, part),) = self.operands(node, box)
            return self.refs[name, part]
        label, dtype = box_name(node.output, box, self.shape[node.output]), self.program[node.output].dtype
        attrs = {k: v for k, v in bound(node.attrs, self.extent).items() if k != "dtype"}
        if "shape" in attrs:
            attrs["shape"] = extents(box)
        if node.indexed:
            attrs["offset"] = attrs["offset"] + box[-2][0] - box[-1][0]
        terms = self.terms(node, box)
        if len(terms) == 1:
            return self.b.op(node.op, *terms[0], name=label, dtype=dtype, **attrs)
        total: Ref | None = None
        combine = node.entry.combine
        for i, term in enumerate(terms):
            part = self.b.op(node.op, *term, name=f"{label}.{i}", dtype=dtype, **attrs)
            last = i == len(terms) - 1
            total = (
                part if total is None else self.b.op(combine, total, part, name=label if last else f"{label}.sum{i}", dtype=dtype)
            )
        assert total is not None
        return total

    def terms(self, node: Node, box: Box) -> list[list[Ref]]:
        """Operands of each term of the result: several where the dimensions that it sums over are cut."""
        needs = self.operands(node, box)
        if node.contracts:
            (a, left), (b, right) = needs
            return [
                [self.refs[a, (*left[:-1], k)], self.refs[b, (*right[:-2], k, right[-1])]]
                for k in ranges(left[-1], union(self.cuts[a][-1], self.cuts[b][-2]))
            ]
        if node.entry.kind == "reduce":
            ((x, operand),) = needs
            return [[self.refs[x, cell]] for cell in self.cells(x, operand)]
        return [[self.refs[name, part] for name, part in needs]]

    def extent(self, base: Extent) -> Extent | int:
        """That of a tensor that still has all of it, else its size: what a constant is tied to."""
        size = self.shape[base.tensor][base.dim]
        for (name, box), ref in self.refs.items():
            if name == base.tensor and box[base.dim] == (0, size):
                return Extent(ref.name, base.dim)
        return size
