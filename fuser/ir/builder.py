"""A small builder: a tensor program in a few lines of Python.

>>> b = Builder("chain")
>>> a, w, v = b.input("A", (512, 64)), b.input("B", (64, 256)), b.input("D", (256, 64))
>>> program = b.build(E=(a @ w) @ v)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fuser.errors import ProgramError
from fuser.files import shown
from fuser.ir.dtypes import result_dtype
from fuser.ir.opdef import is_number
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.program import infer_shape
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from fuser.ir.subprogram import rename


@dataclass(frozen=True)
class Ref:
    """A tensor under construction; supports ``+ - * / @`` and unary minus, with tensors and with numbers."""

    builder: Builder
    tensor: Tensor

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def __matmul__(self, other: Ref) -> Ref:
        return self.builder.op("matmul", self, other)

    def __add__(self, other: Ref | float) -> Ref:
        return self.builder.op("add", self, other) if isinstance(other, Ref) else self.builder.op("shift", self, scalar=other)

    def __sub__(self, other: Ref | float) -> Ref:
        return self.builder.op("sub", self, other) if isinstance(other, Ref) else self.builder.op("shift", self, scalar=-other)

    def __mul__(self, other: Ref | float | Scalar) -> Ref:
        return self.builder.op("mul", self, other) if isinstance(other, Ref) else self.builder.op("scale", self, scalar=other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Ref | float | Scalar) -> Ref:
        if isinstance(other, Ref):
            return self.builder.op("div", self, other)
        return self.builder.op("scale", self, scalar=_number(other, "divisor").inverse())

    def __neg__(self) -> Ref:
        return self.builder.op("neg", self)

    @property
    def T(self) -> Ref:  # noqa: N802 - numpy's name
        """The last two dimensions exchanged."""
        n = len(self.shape)
        return self.builder.op("transpose", self, perm=(*range(n - 2), n - 1, n - 2))

    def reshape(self, *shape: int) -> Ref:
        return self.builder.op("reshape", self, shape=shape)

    def transpose(self, *perm: int) -> Ref:
        return self.builder.op("transpose", self, perm=perm)


def _number(value: Any, what: str) -> Scalar:
    """An exact constant; a divisor is not 0."""
    try:
        number = Scalar.of(value)
    except (ValueError, TypeError):
        number = None
    if number is None or (what == "divisor" and not number.coeff):
        raise ProgramError(f"{shown(value)} cannot be a {what}", "constants are finite numbers")
    return number


class Builder:
    """Collects inputs and operators; :meth:`build` names the outputs and returns the validated program."""

    def __init__(self, name: str, dtype: str = "float16", reserved: frozenset[str] = frozenset()) -> None:
        """``reserved`` are names that the builder does not make up itself."""
        self.name, self.dtype, self.reserved = name, dtype, reserved
        self._tensors: dict[str, Tensor] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []

    @property
    def names(self) -> frozenset[str]:
        """Names that are taken."""
        return frozenset(self._tensors)

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs so far."""
        return frozenset(self._inputs)

    def input(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> Ref:
        if name in self._tensors:
            raise ProgramError(f"tensor {name!r} is defined twice")
        tensor = Tensor(name, tuple(shape), dtype or self.dtype)
        self._tensors[name] = tensor
        self._inputs.append(name)
        return Ref(self, tensor)

    def op(self, op: str, *inputs: Ref, name: str | None = None, dtype: str | None = None, **attrs: Any) -> Ref:
        """Apply an operator of the op table; numbers among its attributes become exact constants."""
        attrs = {k: _number(v, k) if is_number(k) else tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        if dtype and "dtype" in op_def(op).attrs:
            attrs["dtype"] = dtype
        shape = infer_shape(op, [i.shape for i in inputs], attrs)
        dtype = dtype or result_dtype(op, [i.tensor.dtype for i in inputs], attrs)
        name = name or self._fresh(op)
        if name in self._tensors:
            raise ProgramError(f"tensor {name!r} is defined twice")
        tensor = Tensor(name, shape, dtype)
        self._tensors[name] = tensor
        self._nodes.append(Node(op, tuple(i.name for i in inputs), name, tuple(sorted(attrs.items()))))
        return Ref(self, tensor)

    def maker(self, x: Ref) -> tuple[Node, tuple[Ref, ...]] | None:
        """The operator that made a tensor, and its operands; None of an input."""
        node = next((n for n in reversed(self._nodes) if n.output == x.name), None)
        return node and (node, tuple(Ref(self, self._tensors[i]) for i in node.inputs))

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def extent(self, x: Ref, dim: int) -> Extent:
        """An extent that constants are tied to."""
        return Extent(x.name, dim % len(x.shape))

    def since(self, nodes: int) -> list[Node]:
        """The operators behind the first ``nodes``; their number is that of ``since(0)``."""
        return self._nodes[nodes:]

    def undo(self, nodes: int) -> None:
        """Forget the operators behind the first ``nodes``."""
        for node in self._nodes[nodes:]:
            del self._tensors[node.output]
        del self._nodes[nodes:]

    def _fresh(self, op: str) -> str:
        i = len(self._nodes)
        while f"{op}_{i}" in self._tensors or f"{op}_{i}" in self.reserved:
            i += 1
        return f"{op}_{i}"

    def build(self, /, *outputs: Ref, **named: Ref) -> TensorProgram:
        """Finish; a keyword renames an output (an output that is an input, or named twice, keeps its name)."""
        names = {ref.name: name for name, ref in named.items() if ref.name not in self._inputs}
        taken = set(self._tensors) - set(names)
        for name in names.values():
            if name in taken:
                raise ProgramError(f"output name {name!r} is already a tensor of the program")
        ends = tuple(r.name for r in (*outputs, *named.values()))
        if not ends:
            raise ProgramError(f"program {self.name!r} has no output")
        program = TensorProgram(self.name, tuple(self._inputs), tuple(self._nodes), ends, tuple(self._tensors.values()))
        return rename(program, names, self.name)

    # Shorthands for what the workloads use.

    def exp(self, x: Ref) -> Ref:
        return self.op("exp", x)

    def relu(self, x: Ref) -> Ref:
        return self.op("relu", x)

    def silu(self, x: Ref) -> Ref:
        return self.op("silu", x)

    def gelu(self, x: Ref) -> Ref:
        return self.op("gelu", x)

    def sum(self, x: Ref, *axis: int, keepdims: bool = False) -> Ref:
        return self.op("sum", x, axis=axis, keepdims=keepdims)

    def softmax(self, x: Ref, axis: int = -1) -> Ref:
        return self.op("softmax", x, axis=axis)

    def rms_norm(self, x: Ref, gain: Ref | None = None, eps: float = 1e-5) -> Ref:
        return self.op("rms_norm", x, *([gain] if gain else []), eps=eps)

    def layer_norm(self, x: Ref, gain: Ref | None = None, bias: Ref | None = None, eps: float = 1e-5) -> Ref:
        return self.op("layer_norm", x, *[r for r in (gain, bias) if r], eps=eps)

    def attention(self, q: Ref, k: Ref, v: Ref, mask: Ref | None = None, causal: bool = False, scale: Any = None) -> Ref:
        """softmax(Q Kᵀ · scale + mask) V; ``scale`` is 1/sqrt(head size) if it is not given."""
        if scale is None:
            scale = Scalar.power(Extent(q.name, len(q.shape) - 1), Fraction(-1, 2))
        return self.op("attention", q, k, v, *([mask] if mask else []), scale=scale, causal=causal)
