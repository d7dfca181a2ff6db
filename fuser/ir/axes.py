"""Axes of a program: which dimensions of which tensors are one iteration range.

Operators tie the axes of their operands, as in einsum; equal extents alone tie nothing. A reshape splits and joins axes, so a
dimension is a row-major product of prime axes. Axes belong to accesses: an input that is read twice in contradicting ways (X Xᵀ)
has axes for each use.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache

from fuser.errors import UnsupportedError
from fuser.ir.factors import Factor
from fuser.ir.factors import TieError
from fuser.ir.factors import tie
from fuser.ir.mugraph import Axis
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AxisMap:
    """``values[t]`` are the axes of each dimension of the tensor that a node defines; ``uses[i, j]`` those of operand j of node
    i. ``axes`` is in canonical order: batch, rows, columns, contracted. ``cut`` are axes of which slices and concatenations take
    parts: they have no other extent."""

    axes: tuple[Axis, ...]
    values: dict[str, Dims]
    uses: dict[tuple[int, int], Dims]
    cut: frozenset[str] = frozenset()

    @property
    def extents(self) -> dict[str, int]:
        return {a.name: a.extent for a in self.axes}


class _ConflictError(Exception):
    pass


def _tie(left: Sequence[Factor], right: Sequence[Factor]) -> None:
    try:
        tie(left, right)
    except TieError as error:
        if error.extents:
            big, small = error.extents
            raise _ConflictError(f"a reshape mixes extents {big} and {small}, which do not divide each other") from None
        raise _ConflictError("the extents of tied dimensions differ") from None


def _align(args: Sequence[list[Factor]], out: list[Factor]) -> None:
    """Dimensions of a result are those of its operands, from the last on; one that is broadcast is its own."""
    for arg in args:
        for d, o in zip(reversed(arg), reversed(out), strict=False):
            if d.extent == o.extent:
                _tie([o], [d])


class _Views:
    """Views and copies of ranges. ``cut`` gathers those of which parts are taken or joined."""

    def __init__(self) -> None:
        self.cut: list[Factor] = []

    def regrouped(self, dims: Sequence[Factor], shape: Sequence[int]) -> list[Factor]:
        out = [Factor(n) for n in shape]
        _tie(dims, out)
        return out

    def stretched(self, dims: Sequence[Factor], shape: Sequence[int]) -> list[Factor]:
        padded = [*[Factor(1)] * (len(shape) - len(dims)), *dims]
        return [d if d.extent == n else Factor(n) for d, n in zip(padded, shape, strict=True)]

    def repeated(self, dim: Factor, times: int) -> Factor:
        """Element i is element i // times of the operand: its axis is the outer factor."""
        return dim if times == 1 else Factor(dim.extent * times, parts=(dim, Factor(times)))

    def part(self, dim: Factor, start: int, stop: int) -> Factor:
        part = Factor(stop - start)
        self.cut += [dim, part]
        return part

    def joined(self, operands: Sequence[Sequence[Factor]], axis: int, shape: Sequence[int]) -> list[Factor]:
        out = [Factor(n) for n in shape]
        for dims in operands:
            _tie([o for i, o in enumerate(out) if i != axis], [d for i, d in enumerate(dims) if i != axis])
        self.cut += [*(dims[axis] for dims in operands), out[axis]]
        return out


class _Solver:
    def __init__(self, program: TensorProgram, apart: frozenset[str], data: bool = False) -> None:
        self.program, self.data = program, data
        self.views = _Views()
        self.shared = {n: [Factor(e) for e in program[n].shape] for n in program.inputs if n not in apart}
        self.values: dict[str, list[Factor]] = {}
        self.uses: dict[tuple[int, int], list[Factor]] = {}
        self.contracted: dict[int, list[Factor]] = {}
        for i, node in enumerate(program.nodes):
            self.visit(i, node)
        self.check()

    def operand(self, i: int, j: int, name: str) -> list[Factor]:
        dims = self.values.get(name) or self.shared.get(name) or [Factor(e) for e in self.program[name].shape]
        self.uses[i, j] = dims
        return dims

    def visit(self, i: int, node: Node) -> None:
        args = [self.operand(i, j, n) for j, n in enumerate(node.inputs)]
        shape, kind = self.program[node.output].shape, node.entry.kind
        out = [Factor(e) for e in shape]
        if kind == "map":
            _align(args, out)
        elif node.contracts:
            a, b = args
            _align((a[:-2], b[:-2]), out[:-2])
            _tie([out[-2]], [a[-2]])
            _tie([out[-1]], [b[-1]])
            _tie([a[-1]], [b[-2]])
            self.contracted[i] = [a[-1]]
        elif kind == "reduce":
            over = {x % len(args[0]) for x in node.attr["axis"]}
            self.contracted[i] = [args[0][x] for x in sorted(over)]
            keep = node.attr.get("keepdims")
            out = [Factor(1) if x in over else d for x, d in enumerate(args[0]) if keep or x not in over]
        elif node.entry.dims and (self.data or kind == "view"):
            out = list(node.entry.dims(self.views, args, node.attr, shape))
        else:
            raise UnsupportedError(f"operator {node.op!r} ({node.output}) has no axis rule", "leave it outside of the region")
        self.values[node.output] = out

    def check(self) -> None:
        """An axis stands once in a tensor, and a contracted one not in the result."""
        sites = [*self.values.items(), *((n, d) for n, d in self.shared.items())]
        sites += [(self.program.nodes[i].inputs[j], d) for (i, j), d in self.uses.items()]
        for name, dims in sites:
            leaves = [leaf for d in dims for leaf in d.leaves()]
            if len({id(x) for x in leaves}) != len(leaves):
                raise _ConflictError(f"{name!r} would have one axis in two dimensions")
        for i, dims in self.contracted.items():
            inside = {id(x) for d in dims for x in d.leaves()}
            if any(id(x) in inside for d in self.values[self.program.nodes[i].output] for x in d.leaves()):
                raise _ConflictError(f"{self.program.nodes[i].output!r} would keep an axis that it sums over")


def axes_of(program: TensorProgram, data: bool = False) -> AxisMap:
    """Axes of a program of primitive operators (see :func:`fuser.ir.composites.expand`); with ``data`` it may slice and join.

    Raises :class:`UnsupportedError` where an intermediate is used with contradicting axes or a reshape does not factor.
    """
    return _solved(program, data)


def views_apart(program: TensorProgram) -> TensorProgram:
    """The program itself; where its axes contradict each other, with a view for each that reads one of an input: queries and keys
    may be one view of one tensor, and are loaded by other axes."""
    read = Counter(i for n in program.nodes for i in n.inputs)
    if not any(n.entry.kind == "view" and read[n.output] > 1 for n in program.nodes):
        return program
    with suppress(UnsupportedError):
        axes_of(program, data=True)
        return program
    tensors = [program[n] for n in program.inputs]
    nodes: list[Node] = []
    views, taken = set[str](), set[str]()

    def add(node: Node, like: str) -> str:
        nodes.append(node)
        tensors.append(replace(program[like], name=node.output))
        return node.output

    def own(name: str) -> str:
        if name not in views or name not in taken:
            taken.add(name)
            return name
        view = program.producers[name]
        return add(replace(view, inputs=(own(view.inputs[0]),), output=f"{name} {len(nodes)}"), name)

    for node in program.nodes:
        if node.entry.kind == "view" and (node.inputs[0] in program.inputs or node.inputs[0] in views):
            views.add(node.output)
        add(replace(node, inputs=tuple(map(own, node.inputs))), node.output)
    return TensorProgram(program.name, program.inputs, tuple(nodes), program.outputs, tuple(tensors)).validate()


@lru_cache(maxsize=32)  # every candidate of a program is held against its axes
def _solved(program: TensorProgram, data: bool) -> AxisMap:
    reads = {n: sum(node.inputs.count(n) for node in program.nodes) for n in program.inputs}
    several = [n for n, count in reads.items() if count > 1]
    reason = ""
    few = itertools.chain.from_iterable(
        (frozenset(c) for c in itertools.combinations(several, r)) for r in range(min(len(several), 2) + 1)
    )
    for apart in few:
        try:
            return _named(program, _Solver(program, apart, data))
        except _ConflictError as error:
            reason = reason or str(error)
    apart, solved = frozenset(several), None
    # as few as can be: the others are loaded once
    for without in (frozenset[str](), *(frozenset((n,)) for n in several)):
        try:
            apart, solved = apart - without, _Solver(program, apart - without, data)
        except _ConflictError:
            if not without:
                break
    if solved is not None:
        return _named(program, solved)
    raise UnsupportedError(f"the axes of {program.name!r} contradict each other: {reason}", "split the region at that tensor")


def _named(program: TensorProgram, solved: _Solver) -> AxisMap:
    """Name the prime axes as the papers do: b batch, m rows, k contracted and n columns of the first matmul, then h, p, q, …"""
    names: dict[int, str] = {}
    rank: dict[str, tuple[int, int]] = {}
    taken: set[str] = set()
    extents: dict[str, int] = {}

    def name(dims: list[Factor], bases: str, group: int) -> None:
        for leaf in (x for d in dims for x in d.leaves()):
            if id(leaf) in names:
                continue
            fresh = next((c for c in bases if c not in taken), None)
            if fresh is None:
                fresh = next(f"{bases[-1]}{i}" for i in itertools.count(1) if f"{bases[-1]}{i}" not in taken)
            taken.add(fresh)
            names[id(leaf)] = fresh
            rank[fresh] = (group, len(rank))
            extents[fresh] = leaf.extent

    for i, node in enumerate(program.nodes):
        if node.contracts:
            out = solved.values[node.output]
            name(out[:-2], "b", 0)
            name([out[-2]], "m", 1)
            name([out[-1]], "nhpqtuv", 2)
            name(solved.contracted[i], "krs", 3)
    for n in program.outputs:
        dims = solved.values.get(n, [])
        name(dims[:-1], "mij", 1)
        name(dims[-1:], "nhij", 2)
    for i, dims in solved.contracted.items():
        name(solved.values[program.nodes[i].output], "ij", 1)
        name(dims, "krs", 3)
    for dims in [*solved.values.values(), *solved.uses.values()]:
        name(dims, "ij", 2)

    def named(dims: list[Factor]) -> Dims:
        return tuple(tuple(names[id(x)] for x in d.leaves()) for d in dims)

    order = sorted(rank, key=lambda a: rank[a])
    return AxisMap(
        tuple(Axis(a, extents[a]) for a in order),
        {n: named(d) for n, d in solved.values.items()},
        {k: named(d) for k, d in solved.uses.items()},
        frozenset(a for dims in named(solved.views.cut) for a in dims),
    )
