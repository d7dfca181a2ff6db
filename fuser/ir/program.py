"""TensorProgram: the plain mathematics of a model or of a region of it, as an immutable SSA list of operators on named tensors.

A program says nothing of kernels. Shapes are static and positive; dtypes are those of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from typing import Any
from typing import TypeVar

import numpy as np

from fuser.errors import ProgramError
from fuser.files import shown
from fuser.ir import reading
from fuser.ir.applied import Applied
from fuser.ir.dtypes import rounded
from fuser.ir.hashing import digest
from fuser.ir.ops import OPS
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.scalar import bound
from fuser.ir.scalar import tied
from fuser.ir.shapes import BY_KIND
from fuser.ir.shapes import broadcast_shapes

V = TypeVar("V")

DTYPE_BYTES: dict[str, int] = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
"""Bytes of one element of each supported dtype."""

MAX_RANK = 32
"""Most dimensions of a tensor; numpy has no more before 2.0."""
MAX_ELEMENTS = 2**62
"""Most elements of a tensor: offsets in it stay 64-bit numbers."""

WIDE = ("int32", "int64", "uint32", "uint64")
"""Whole numbers that float32 does not hold."""
NARROW = ("float16", "bfloat16")
"""Those that tensor cores multiply, and add in float32 without rounding a term."""
FLOATS = (*NARROW, "float32")
"""Those that generated kernels compute with."""
FLOAT_DTYPES = (*FLOATS, "float64")


def accumulator(dtype: str) -> str:
    """The dtype of partial results and maxima of values of this dtype: fp32, but for what is wider."""
    return dtype if dtype == "float64" else "float32"


@dataclass(frozen=True)
class Tensor:
    """A named tensor: ``shape`` in elements, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ProgramError(
                f"tensor {self.name!r} has dtype {self.dtype!r}, which is not supported",
                f"use one of {', '.join(DTYPE_BYTES)}",
            )
        for extent in self.shape:
            if not isinstance(extent, int) or extent < 1:
                raise ProgramError(
                    f"tensor {self.name!r} has shape {self.shape}: every extent must be a known positive integer",
                    "fix dynamic dimensions to the sizes that you deploy before optimizing",
                )
        if len(self.shape) > MAX_RANK or math.prod(self.shape) > MAX_ELEMENTS:
            raise ProgramError(
                f"tensor {self.name!r} has {len(self.shape)} dimensions and {shown(math.prod(self.shape))} elements",
                f"at most {MAX_RANK} dimensions and 2^62 elements are supported",
            )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in device memory."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.shape))}]:{self.dtype}"


@dataclass(frozen=True)
class Node(Applied):
    """One operator application; ``attrs`` is sorted by key and hashable."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)

    def __str__(self) -> str:
        extra = "".join(f", {k}={v}" for k, v in self.attrs)
        return f"{self.output} = {self.op}({', '.join(self.inputs)}{extra})"


@dataclass(frozen=True)
class TensorProgram:
    """Inputs, operators in SSA order, outputs. ``tensors`` has every tensor, in order of definition."""

    name: str
    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    tensors: tuple[Tensor, ...] = field(default=())

    @cached_property
    def table(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    def __getitem__(self, name: str) -> Tensor:
        return self.table[name]

    @cached_property
    def places(self) -> dict[str, int]:
        """Of results, in the order in which they are computed."""
        return {n.output: i for i, n in enumerate(self.nodes)}

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Of tensors, in the order of their definition."""
        return {t.name: i for i, t in enumerate(self.tensors)}

    @cached_property
    def producers(self) -> dict[str, Node]:
        return {n.output: n for n in self.nodes}

    @cached_property
    def beyond_float32(self) -> tuple[str, ...]:
        """Results that are computed, not just moved, in whole numbers or float64, or of comparing wide ones: kernels of blocks
        compute in float32."""

        def exact(node: Node) -> bool:
            entry = node.entry
            if entry.kind in ("view", "data", "library", "opaque"):
                return False
            if "float64" in (self[n].dtype for n in (node.output, *node.inputs)):
                return True
            if entry.typed == "truth" or (node.casts and self[node.output].dtype == "bool"):
                return any(self[n].dtype in WIDE for n in node.inputs)
            return self[node.output].dtype not in FLOAT_DTYPES

        return tuple(n.output for n in self.nodes if exact(n))

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {t.name: [] for t in self.tensors}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return {k: tuple(v) for k, v in found.items()}

    def validate(self) -> TensorProgram:
        """Check that the program is well formed; returns itself."""
        known = set(self.inputs)
        if len(self.table) != len(self.tensors):
            raise ProgramError(f"program {self.name!r} defines a tensor twice")
        for node in self.nodes:
            if node.op not in OPS:
                raise ProgramError(f"program {self.name!r} uses the unknown operator {node.op!r}")
            for name in node.inputs:
                if name not in known:
                    raise ProgramError(f"{node.output} = {node.op}(…) reads {name!r} before it is defined")
            if node.output in known:
                raise ProgramError(f"tensor {node.output!r} is defined twice")
            if (dtype := node.attr.get("dtype", "bool")) not in DTYPE_BYTES:
                raise ProgramError(
                    f"{node.output} = {node.op}(…) has the unknown dtype {shown(dtype)}", f"use one of {', '.join(DTYPE_BYTES)}"
                )
            known.add(node.output)
            shape = infer_shape(node.op, [self[n].shape for n in node.inputs], node.attr)
            if shape != self[node.output].shape:
                raise ProgramError(f"{node} has shape {shape}, not {self[node.output].shape}")
        for name in self.outputs:
            if name not in known:
                raise ProgramError(f"output {name!r} of program {self.name!r} is never defined")
        return self

    def bound(self, node: Node) -> dict[str, Any]:
        """Attributes of a node with the extents in its constants replaced by this program's sizes."""
        return bound(node.attrs, self.extent)

    def extent(self, e: Extent) -> int:
        return self[e.tensor].shape[e.dim]

    def evaluate(self, inputs: Mapping[str, Array], dtype: Any = np.float64, keep: Iterable[str] = ()) -> dict[str, Array]:
        """Numpy semantics in ``dtype``; returns the outputs (and the tensors named in ``keep``)."""

        def apply(node: Node, xs: list[Array]) -> Array:
            if node.entry.kind == "opaque":  # torch's own, which asks for labels and places by their dtype
                kinds = [self[n].dtype for n in node.inputs]
                xs = [x if k in FLOAT_DTYPES else x.astype(k) for x, k in zip(xs, kinds, strict=True)]
            with np.errstate(all="ignore"):
                return np.asarray(node.entry.numpy(*xs, **self.bound(node)))

        return self.run({n: np.asarray(inputs[n]).astype(dtype) for n in self.inputs}, apply, keep)

    def run(self, inputs: Mapping[str, V], apply: Callable[[Node, list[V]], V], keep: Iterable[str] = ()) -> dict[str, V]:
        """The outputs (and ``keep``, as far as they are there) where ``apply`` gives the value of a node from those of its
        operands. A value is kept as long as something reads it."""
        values = {n: inputs[n] for n in self.inputs}
        keep = dict.fromkeys((*self.outputs, *keep))
        for node, dead in self.last_reads(keep):
            values[node.output] = apply(node, [values[n] for n in node.inputs])
            for name in dead:
                del values[name]
        return {n: values[n] for n in keep if n in values}

    def last_reads(self, keep: Container[str]) -> Iterator[tuple[Node, tuple[str, ...]]]:
        """The nodes in order, and what nothing reads after each, but for ``keep``."""
        last = {n: i for i, node in enumerate(self.nodes) for n in node.inputs}
        for i, node in enumerate(self.nodes):
            yield node, tuple(n for n in dict.fromkeys(node.inputs) if last[n] == i and n not in keep)

    def random_inputs(
        self, rng: np.random.Generator, scale: float = 1.0, place: Callable[[str, Array], Array] = lambda _, x: x
    ) -> dict[str, Array]:
        """Standard normal inputs of each tensor's shape, as ``place`` puts those of a name, rounded to its dtype (bfloat16
        is kept in float32)."""
        found: dict[str, Array] = {}
        for name in self.inputs:
            t = self[name]
            x = place(name, rng.standard_normal(t.shape) * scale)
            found[name] = rounded(x, t.dtype)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in self.tensors],
            "nodes": [
                {"op": n.op, "inputs": list(n.inputs), "output": n.output, "attrs": attributes_to_json(n.attrs)}
                for n in self.nodes
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorProgram:
        """Read what :meth:`to_json` wrote. Raises :class:`ProgramError` that names what is missing or wrong."""
        read, what = reading, "the tensor program"

        def node(entry: Any) -> Node:
            n = read.table(entry, "a node")
            output = read.text(read.get(n, "output", "a node"), "the output of a node")
            where = f"the node of {shown(output)}"
            op = read.operator(read.get(n, "op", where), where)
            attrs = read.attributes(n.get("attrs", {}), where, op)
            return Node(op, read.names(read.get(n, "inputs", where), where), output, attrs)

        with read.reading(what):
            data = read.table(data, what)
            tensors = read_tensors(read.get(data, "tensors", what), what)
            program = TensorProgram(
                read.text(read.get(data, "name", what), f"the name of {what}"),
                read.names(read.get(data, "inputs", what), f"the inputs of {what}"),
                tuple(map(node, read.items(read.get(data, "nodes", what), f"the nodes of {what}"))),
                read.names(read.get(data, "outputs", what), f"the outputs of {what}"),
                tensors,
            )
            declared = {*program.inputs, *(n.output for n in program.nodes), *program.outputs}
            if missing := sorted(declared - {t.name for t in tensors}):
                raise ProgramError(f"{what} lacks the tensor {shown(missing[0])}", "give every tensor its shape and dtype")
            if len(set(program.inputs)) < len(program.inputs) or not program.outputs:
                raise ProgramError(f"{what} has an input twice, or no output")
            program.validate()
            _check_constants(program)
            return program

    def stable_hash(self) -> str:
        """SHA-256 of the canonical JSON, without the program's name."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return digest({k: v for k, v in self.to_json().items() if k != "name"})

    def __str__(self) -> str:
        lines = [f"program {self.name}({', '.join(str(self[n]) for n in self.inputs)})"]
        lines += [f"  {n}  # {list(self[n.output].shape)} {self[n.output].dtype}" for n in self.nodes]
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])


def _check_constants(program: TensorProgram) -> None:
    """Constants are tied to extents of tensors that are there before them."""
    known = set(program.inputs)
    for node in program.nodes:
        for e in tied(node.attrs):
            if e.tensor not in known or not 0 <= e.dim < len(program[e.tensor].shape):
                raise ProgramError(f"{node.output} = {node.op}(…) has a constant tied to the unknown extent {e}")
        known.add(node.output)


def attributes_to_json(attrs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {k: {"scalar": v.to_json()} if isinstance(v, Scalar) else list(v) if isinstance(v, tuple) else v for k, v in attrs}


def read_tensors(data: Any, what: str) -> tuple[Tensor, ...]:
    """Tensors from JSON: name, shape and dtype, each of its type."""

    def tensor(entry: Any) -> Tensor:
        t = reading.table(entry, f"a tensor of {what}")
        name = reading.text(reading.get(t, "name", f"a tensor of {what}"), f"the name of a tensor of {what}")
        shape = reading.integers(reading.get(t, "shape", f"tensor {shown(name)}"), f"the shape of {shown(name)}", 1)
        return Tensor(name, shape, reading.text(reading.get(t, "dtype", f"tensor {shown(name)}"), f"the dtype of {shown(name)}"))

    return tuple(map(tensor, reading.items(data, f"the tensors of {what}")))


def weight_factors(program: TensorProgram) -> dict[str, float]:
    """1/√(contracted extent) for inputs that reach, through views and slices only, the right side of a matmul."""
    origin = {n: n for n in program.inputs}
    factors: dict[str, float] = {}
    for node in program.nodes:
        if OPS[node.op].relabels and node.inputs[0] in origin:
            origin[node.output] = origin[node.inputs[0]]
        elif node.contracts and node.inputs[1] in origin:
            factors[origin[node.inputs[1]]] = program[node.inputs[1]].shape[-2] ** -0.5
    return factors


def _check_axes(op: str, shapes: list[tuple[int, ...]], axis: Any) -> None:
    of, rank = f"{op} of {', '.join(map(str, shapes)) or 'nothing'}", len(shapes[0]) if shapes else 0
    axes: tuple[Any, ...] = tuple(axis) if isinstance(axis, tuple | list) and op_def(op).over_axes else (axis,)
    for a in axes:
        if not isinstance(a, int | np.integer):
            raise ProgramError(f"{of}: an axis is a whole number, got {shown(a)}")
        if not -rank <= a < rank:
            raise ProgramError(f"{of} has no axis {shown(a)}")
    if len({int(a) % rank for a in axes}) < len(axes):
        raise ProgramError(f"{of} names an axis twice: {', '.join(map(str, axes))}")


def infer_shape(op: str, shapes: list[tuple[int, ...]], attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the output of ``op``; raises :class:`ProgramError` naming the operator where the shapes do not fit."""
    if op not in OPS:
        raise ProgramError(f"there is no operator {shown(op)}", "fuser.ir.ops.OPS has all of them")
    entry = op_def(op)
    if "axis" in attrs:
        _check_axes(op, shapes, attrs["axis"])
    if entry.arity >= 0 and len(shapes) != entry.arity:
        raise ProgramError(f"{op} takes {entry.arity} operands, got {len(shapes)}")
    if entry.kind == "map" and entry.shape is None:
        return broadcast_shapes(shapes, op)
    rule = entry.shape or BY_KIND.get(entry.kind)
    if rule is None:
        raise ProgramError(f"operator {op!r} has no shape rule", "give its entry in the op table the column 'shape'")
    try:
        return rule(shapes, attrs)
    except KeyError as error:
        raise ProgramError(f"{op} lacks the attribute {error}") from None
