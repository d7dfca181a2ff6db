"""Reader for the µGraph files of Mirage, so that published graphs can be shown, verified and timed.

A file holds one µGraph or a list of them; a µGraph is a list of kernel operators with their device tensors, and a graph-defined
kernel (``kn_customized_op``) has a block graph: grid, one for-loop, input iterators with imap and fmap, operators, accumulators
and output savers with omap. Here every grid dimension and the for-loop is an axis of its own, and a dimension of a device tensor
is the product grid part × loop part × tile of the axes that divide it, outermost first. So a block graph becomes a block over
axes with the same meaning, element by element, and the grid and the loop range become sizes.

Both namings of the accumulators are read (``tb_accum_…`` and ``tb_forloop_accum_…``). Root mean squares have no ε, as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import said
from fuser.files import BAD_VALUE
from fuser.files import counted
from fuser.ir.factors import Factor
from fuser.ir.factors import TieError
from fuser.ir.factors import leaves
from fuser.ir.factors import tie
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.program import MAX_RANK
from fuser.ir.program import Tensor
from fuser.ir.reading import integer
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar

_DTYPES = {940: "bfloat16", 941: "float16", 950: "float32", 960: "float64", 921: "float16"}
_UNARY = ("exp", "square", "sqrt", "silu", "gelu", "relu", "sigmoid")
_BINARY = ("add", "mul", "div", "sub")


def mirage_graphs(
    data: Sequence[Any], inputs: Sequence[str] = (), outputs: Sequence[str] = (), name: str = "mirage"
) -> tuple[KernelGraph, ...]:
    """Every µGraph of a file's JSON; ``inputs`` and ``outputs`` name its tensors in their order (default x0, x1, … and y0, y1,
    …).

    Raises :class:`ModelFileError` for something that is not such a file, :class:`UnsupportedError` for an operator without a
    meaning here.
    """
    if not isinstance(data, list) or not data:
        raise ModelFileError("a µGraph file of Mirage holds a list of operators, or a list of such lists")
    graphs = data if isinstance(data[0], list) else [data]
    try:
        return tuple(_Graph(ops, inputs, outputs).read(f"{name}_{i}") for i, ops in enumerate(graphs))
    except (*BAD_VALUE, RecursionError) as error:
        hint = 'one of Mirage is a list of operators, or of such lists; ours begins with {"mugraph": 1'
        raise ModelFileError(f"the µGraph file lacks or misstates something: {said(error)}", hint) from error


def _count(value: Any, what: str) -> int:
    """A positive whole number."""
    return integer(value, what, 1)


def _shape(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(_count(n, "a dimension") for n in tensor["dim"][: integer(tensor["num_dims"], "num_dims", 0, MAX_RANK)])


def _dtype(tensor: Mapping[str, Any]) -> str:
    code = integer(tensor.get("data_type", 941), "data_type")
    if code not in _DTYPES:
        raise UnsupportedError(f"data type {code} of a µGraph file is unknown", f"known are {_DTYPES}")
    return _DTYPES[code]


class _Graph:
    """One µGraph: tensors by their number (guid), kernels in order."""

    def __init__(self, ops: Sequence[Mapping[str, Any]], inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.ops, self.tensors, self.kernels = ops, dict[int, Tensor](), list[Kernel]()
        found = [op["output_tensors"][0] for op in ops if op["op_type"] == "kn_input_op"]
        self.inputs = tuple(inputs) or tuple(f"x{i}" for i in range(len(found)))
        if len(self.inputs) != len(found):
            raise ModelFileError(f"the µGraph has {counted(len(found), 'input')}, {len(self.inputs)} names were given")
        for name, t in zip(self.inputs, found, strict=True):
            self.tensors[t["guid"]] = Tensor(name, _shape(t), _dtype(t))
        results = [op["input_tensors"][0]["guid"] for op in ops if op["op_type"] == "kn_output_op"]
        self.outputs = tuple(outputs) or tuple(f"y{i}" for i in range(len(results)))
        if len(self.outputs) != len(results):
            raise ModelFileError(f"the µGraph has {counted(len(results), 'output')}, {len(self.outputs)} names were given")
        self.names = dict(zip(results, self.outputs, strict=True))

    def define(self, t: Mapping[str, Any]) -> str:
        guid = t["guid"]
        self.tensors[guid] = Tensor(self.names.get(guid, f"t{len(self.tensors)}"), _shape(t), _dtype(t))
        return self.tensors[guid].name

    def read(self, name: str) -> KernelGraph:
        for i, op in enumerate(self.ops):
            kind = op["op_type"]
            if kind in ("kn_input_op", "kn_output_op"):
                continue
            for t in op["output_tensors"]:
                self.define(t)
            if kind == "kn_customized_op":
                self.kernels.append(_Block(self, op["bgraph"], op["output_tensors"]).read(f"{name}_k{i}"))
            else:
                self.kernels.append(self.library(f"{name}_k{i}", op))
        ends = tuple(t for t in self.tensors.values() if t.name in (*self.inputs, *self.outputs))
        return KernelGraph(name, self.inputs, tuple(self.kernels), self.outputs, ends).validate()

    def library(self, name: str, op: Mapping[str, Any]) -> LibraryKernel:
        kind = op["op_type"].removeprefix("kn_").removesuffix("_op")
        args = tuple(self.tensors[t["guid"]].name for t in op["input_tensors"])
        out = self.tensors[op["output_tensors"][0]["guid"]]
        attrs: tuple[tuple[str, Any], ...] = ()
        if kind.startswith("reduction_"):
            dim = int(kind.split("_")[1])
            if out.shape[dim] != 1:
                raise UnsupportedError(f"{op['op_type']} that leaves {out.shape[dim]} elements")
            kind, attrs = "sum", (("axis", (dim,)), ("keepdims", True))
        elif kind == "rms_norm":
            attrs = (("eps", Scalar.of(0)),)
        elif kind not in (*_UNARY, *_BINARY, "matmul"):
            raise UnsupportedError(f"kernel operator {op['op_type']!r} of a µGraph file")
        return LibraryKernel(name, kind, args, out.name, attrs)


def _tie(left: Sequence[Factor], right: Sequence[Factor]) -> None:
    try:
        tie(left, right)
    except TieError as error:
        if error.extents:
            big, small = error.extents
            raise UnsupportedError(f"tiles of {big} and {small} elements do not divide each other") from None
        raise ModelFileError("the tiles of an operator's operands differ in size") from None


@dataclass(eq=False)
class _Value:
    """A tile: the factors of each of its dimensions, and the grid dimensions and loop that it depends on."""

    name: str
    dims: list[list[Factor]]
    outside: list[Factor]
    dtype: str
    joined: tuple[_Value, _Value, int] | None = None  # a concatenation, not materialised


@dataclass(eq=False)
class _Step:
    kind: str
    value: _Value
    op: str = ""
    args: tuple[_Value, ...] = ()
    reduce: list[Factor] = field(default_factory=list)
    count: list[Factor] = field(default_factory=list)
    scalar: Scalar | None = None
    tensor: str = ""
    access: list[list[Factor]] = field(default_factory=list)


class _Block:
    """One block graph. Factors are tied while it is read, and named at the end, when none is split any more."""

    def __init__(self, graph: _Graph, data: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> None:
        self.graph, self.data, self.outputs = graph, data, iter(outputs)
        self.grid = {d: Factor(_count(data["grid_dim"][d], "a grid dimension")) for d in "xyz"}
        self.loop = Factor(_count(data["forloop_range"], "the range of the loop"))
        self.values: dict[int, _Value] = {}
        self.steps: list[_Step] = []

    def read(self, name: str) -> BlockGraph:
        for op in self.data["operators"]:
            self.operator(op)
        return self.emit(name)

    def new(self, like: _Value, dims: list[list[Factor]], outside: list[Factor], op: str, *args: _Value, **more: Any) -> _Value:
        value = _Value(f"v{len(self.steps)}", dims, outside, like.dtype)
        self.steps.append(_Step("compute", value, op, args, **more))
        return value

    def operator(self, op: Mapping[str, Any]) -> None:
        kind = op["op_type"].removeprefix("tb_").removesuffix("_op").replace("forloop_accum", "accum")
        if kind == "input":
            self.load(op)
        elif kind == "output":
            self.store(op)
        else:
            args = [self.values[t["guid"]] for t in op["input_tensors"]]
            self.values[op["output_tensors"][0]["guid"]] = self.apply(kind, args, op)

    def load(self, op: Mapping[str, Any]) -> None:
        source = self.graph.tensors[op["dtensor"]["guid"]]
        outside: list[Factor] = []
        dims: list[list[Factor]] = []
        access: list[list[Factor]] = []
        for i, extent in enumerate(source.shape):
            split = [self.grid[d] for d in "xyz" if op["input_map"][d] == i]
            split += [self.loop] if op.get("forloop_dim", -1) == i else []
            count = math.prod(p.extent for p in split)
            if extent % count:
                raise ModelFileError(f"dimension {i} of {source.name!r} ({extent}) is not divided by its {count} parts")
            tile = Factor(extent // count)
            dims.append([tile])
            access.append([*split, tile])
            outside += [p for p in split if p not in outside]
        value = _Value(f"v{len(self.steps)}", dims, outside, source.dtype)
        self.steps.append(_Step("load", value, tensor=source.name, access=access))
        self.values[op["output_tensors"][0]["guid"]] = value

    def store(self, op: Mapping[str, Any]) -> None:
        value = self.plain(self.values[op["input_tensors"][0]["guid"]])
        target = self.graph.tensors[next(self.outputs)["guid"]]
        access = [[*(self.grid[d] for d in "xyz" if op["output_map"][d] == i), *tile] for i, tile in enumerate(value.dims)]
        self.steps.append(_Step("store", value, tensor=target.name, access=access))

    def plain(self, value: _Value) -> _Value:
        if value.joined:
            raise UnsupportedError("a concatenation that is not an operand of a matmul")
        return value

    def apply(self, kind: str, args: list[_Value], op: Mapping[str, Any]) -> _Value:
        if kind.startswith("concat_") and kind != "concat_then_matmul":
            a, b = args
            return _Value("", a.dims, a.outside, a.dtype, (self.plain(a), self.plain(b), int(kind.split("_")[1])))
        if kind == "matmul":
            return self.matmul(*args)
        if kind == "concat_then_matmul":  # (W ‖ X)(Y ‖ Z) of W, X, Y, Z
            w, x, y, z = map(self.plain, args)
            return self.binary("add", self.matmul(w, y), self.matmul(x, z))
        x = self.plain(args[0])
        if kind in _UNARY:
            return self.new(x, x.dims, x.outside, kind, x)
        if kind in _BINARY:
            return self.binary(kind, x, self.plain(args[1]))
        if kind == "rms_norm":
            return self.binary("div", x, self.root_mean_square(x, []))
        if kind.startswith("accum_"):
            return self.accumulate(kind.removeprefix("accum_"), x)
        if kind.startswith("reduction_"):
            words = kind.split("_")
            if words[2:] not in ([], ["to", "dimx"]):
                raise UnsupportedError(f"block operator {op['op_type']!r} of a µGraph file")
            return self.sum(x, int(words[1]), keep=words[2:] == ["to", "dimx"])
        raise UnsupportedError(f"block operator {op['op_type']!r} of a µGraph file")

    def accumulate(self, kind: str, x: _Value) -> _Value:
        if kind in ("nored", "no_red"):
            return self.over_loop(x)
        if kind == "red_ld_sum":
            return self.over_loop(self.sum(x, len(x.dims) - 1))
        if kind == "redtox_ld_sum":
            return self.over_loop(self.sum(x, len(x.dims) - 1, keep=True))
        if kind == "red_ld_rms":
            return self.root_mean_square(x, [self.loop])
        if kind == "red_ld_mean":
            total = self.over_loop(self.sum(x, len(x.dims) - 1))
            return self.new(x, total.dims, total.outside, "scale", total, count=[*x.dims[-1], self.loop])
        raise UnsupportedError(f"accumulator {kind!r} of a µGraph file")

    def over_loop(self, x: _Value) -> _Value:
        """Sum over the iterations; of a value that is the same in each, their number times it."""
        if self.loop.extent == 1:
            return x
        if self.loop not in x.outside:
            raise UnsupportedError("an accumulator of a value that does not change in the loop")
        return self.new(x, x.dims, [p for p in x.outside if p is not self.loop], "sum", x, reduce=[self.loop])

    def sum(self, x: _Value, dim: int, keep: bool = False) -> _Value:
        """Sum over a dimension of the tile; ``keep`` leaves its innermost ``reduction_dimx`` elements apart."""
        kept: list[Factor] = []
        over = list(x.dims[dim])
        if keep:
            size = math.prod(p.extent for p in leaves(over))
            inner = Factor(_count(self.data["reduction_dimx"], "reduction_dimx"))
            outer = Factor(size // inner.extent)
            _tie([outer, inner], over)
            kept, over = [inner], [outer]
        dims = [kept if i == dim else d for i, d in enumerate(x.dims)]
        return self.new(x, dims, x.outside, "sum", x, reduce=over) if leaves(over) else x

    def root_mean_square(self, x: _Value, over: list[Factor]) -> _Value:
        square = self.new(x, x.dims, x.outside, "square", x)
        total = self.sum(square, len(x.dims) - 1)
        total = self.over_loop(total) if over else total
        mean = self.new(x, total.dims, total.outside, "scale", total, count=[*x.dims[-1], *over])
        return self.new(x, mean.dims, mean.outside, "sqrt", mean)

    def binary(self, op: str, a: _Value, b: _Value) -> _Value:
        dims: list[list[Factor]] = []
        for da, db in zip(a.dims, b.dims, strict=True):
            if leaves(da) and leaves(db):
                _tie(da, db)
            dims.append(da if leaves(da) else db)
        return self.new(a, dims, self.outside(a, b), op, a, b)

    def outside(self, *values: _Value) -> list[Factor]:
        return [p for p in (*self.grid.values(), self.loop) if any(p in v.outside for v in values)]

    def matmul(self, a: _Value, b: _Value) -> _Value:
        if a.joined and b.joined:
            (a1, a2, i), (b1, b2, j) = a.joined, b.joined
            if (i, j) != (len(a1.dims) - 1, len(b1.dims) - 2):
                raise UnsupportedError("a matmul of concatenations along other dimensions than the contracted one")
            return self.binary("add", self.matmul(a1, b1), self.matmul(a2, b2))
        a, b = self.plain(a), self.plain(b)
        batch: list[list[Factor]] = []
        for da, db in zip(a.dims[:-2], b.dims[:-2], strict=True):
            if leaves(da) and leaves(db):
                _tie(da, db)
            batch.append(da if leaves(da) else db)
        _tie(a.dims[-1], b.dims[-2])
        dims = [*batch, a.dims[-2], b.dims[-1]]
        if not leaves(a.dims[-1]):
            return self.new(a, dims, self.outside(a, b), "mul", a, b)
        return self.new(a, dims, self.outside(a, b), "matmul", a, b, reduce=a.dims[-1])

    # -- emission ---------------------------------------------------------------------------------------------------------

    def emit(self, name: str) -> BlockGraph:
        order: dict[int, tuple[str, int]] = {}
        for label, p in (*((f"g{d}", p) for d, p in self.grid.items()), ("l", self.loop)):
            if p.extent > 1:
                order[id(p)] = (label, p.extent)
        for step in self.steps:
            for p in leaves([*(x for d in (*step.access, *step.value.dims) for x in d), *step.reduce]):
                order.setdefault(id(p), (f"a{len(order)}", p.extent))
        axes = tuple(Axis(n, e) for n, e in order.values())

        def named(parts: Sequence[Factor]) -> tuple[str, ...]:
            return tuple(order[id(p)][0] for p in leaves(parts))

        stmts = []
        for s in self.steps:
            own = ordered(named([*s.value.outside, *(x for d in s.value.dims for x in d)]), axes)
            if s.kind == "compute":
                attrs: tuple[tuple[str, Any], ...] = ()
                if s.op == "scale":
                    factor = Scalar()
                    for a in named(s.count):
                        factor = factor * Scalar.power(Extent(a, AXIS), -1)
                    attrs = (("scalar", factor),)
                args = tuple(a.name for a in s.args)
                stmts.append(Stmt("compute", s.value.name, own, s.value.dtype, s.op, args, ordered(named(s.reduce), axes), attrs))
                continue
            access = Access(s.tensor, tuple(named(d) for d in s.access))
            shown = own if s.kind == "load" else access.axes
            stmts.append(Stmt("load" if s.kind == "load" else "store", s.value.name, shown, s.value.dtype, access=access))
        return BlockGraph(name, axes, tuple(stmts)).validate()
