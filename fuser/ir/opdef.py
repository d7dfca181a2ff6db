"""What an entry of the op table is: one value per operator, whose columns follow from its kind or its formula where they are not
given. What can not follow raises where it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from fractions import Fraction
from functools import cache
from typing import Any
from typing import Literal
from typing import TypeVar

import numpy as np

from fuser.errors import UnsupportedError
from fuser.ir import dimensions
from fuser.ir.interval import ANY
from fuser.ir.interval import Domain
from fuser.ir.scalar import Scalar

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["map", "contract", "reduce", "view", "data", "composite", "library", "opaque"]
Attrs = Mapping[str, Any]
Shape = tuple[int, ...]
Fractions = Literal["", "same", "sum", "product", "square", "quotient", "inverse", "shift", "part", "chosen", "function"]
"""``part``: that of one of the operands; ``chosen``: the same, or a condition, by a random order or predicate; ``inverse``: one
over it; ``function``: the value of a random function."""

JOINED = "joined"
"""An attribute of kernels that torch's compiler is to make one of: none has a source of its own."""
CALLED = "called"
"""An attribute of kernels that torch computes although they have a source of their own, which is not to be trusted."""
NOTES = ("concat", JOINED, CALLED)
"""Attributes that any operator may have: notes on where it comes from or what carries it out, which change no value."""
TYPES: dict[str, str] = {
    "axis": "integer", "dim": "integer", "padding_idx": "integer", "dims": "integers",
    "offset": "integer", "times": "integer", "start": "integer", "stop": "integer", "field": "integer",
    "groups": "integer", "diagonal": "integer", "dim1": "integer", "dim2": "integer", "k": "integer", "bins": "integer",
    "shape": "integers", "perm": "integers", "stride": "integers", "padding": "integers", "dilation": "integers",
    "kernel_size": "integers", "output_size": "integers", "output_padding": "integers", "divisor_override": "integer",
    "rows": "text", "cols": "text", "dtype": "text", "callee": "text", "detail": "text", "reduce": "text",
    "mode": "text", "program": "text",
    **dict.fromkeys(("keepdims", "keepdim", "causal", "strict", "descending", "stable", "largest", "sorted", "accumulate",
                     "include_self", "align_corners", "ceil_mode", "count_include_pad",
                     "transposed", "so_far"), "flag"), **dict.fromkeys(NOTES, "note"),
}  # fmt: skip
"""What the attributes are; every other one is a number, and held as an exact constant."""


def is_number(attribute: str) -> bool:
    return attribute not in TYPES


@dataclass(frozen=True)
class Term:
    """A formula: an operator of the table applied to terms, or (``op`` empty) one of the operands."""

    op: str
    args: tuple[Term, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    operand: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # once: a term that is used twice in each of many steps is met as often as there are ways to it
        object.__setattr__(self, "_hash", hash((self.op, self.args, self.attrs, self.operand)))

    def __hash__(self) -> int:
        return self._hash

    def then(self, op: str, *others: Term, **attrs: Any) -> Term:
        """The operator on this and further terms; numbers become exact constants."""
        exact = {k: Scalar.of(v) if is_number(k) else v for k, v in attrs.items() if v is not None}
        return Term(op, (self, *others), tuple(sorted(exact.items())))

    def __add__(self, other: Term | Number) -> Term:
        return self.then("add", other) if isinstance(other, Term) else self.then("shift", scalar=other)

    def __sub__(self, other: Term) -> Term:
        return self.then("sub", other)

    def __mul__(self, other: Term | Number) -> Term:
        return self.then("mul", other) if isinstance(other, Term) else self.then("scale", scalar=other)

    def __truediv__(self, other: Term) -> Term:
        return self.then("div", other)

    def __neg__(self) -> Term:
        return self.then("neg")


Number = int | float | Fraction | Scalar
V = TypeVar("V")


def missing(*_: Any, **__: Any) -> Any:
    """Stands in a column that is not given and does not follow."""
    raise UnsupportedError("the operator has no numpy semantics", "give its entry in the op table the column 'numpy'")


@dataclass(frozen=True)
class OpDef:
    """One operator.

    ``linear[i]`` says that the operator is linear in operand i with the others fixed. ``degree`` is the rule of the degree in
    a random factor (stable exponentials, DESIGN.md): ``add`` for products, ``sub`` for quotients, ``equal`` where operands must
    agree, ``zero`` where they must be 0, ``same`` for a scaling or a fold, ``exp`` for an exponential and a
    composite that has one.
    ``flops`` and ``sfu`` count arithmetic and special-function operations per element of the output (per element of the input of
    a reduction, per multiply-add pair 2 for a contraction). ``triton`` is a format string over ``{0}``, ``{1}``, … in fp32; of a
    reduction the name of the function that combines two elements (``combine`` makes it). NaN
    goes through every operator, as in numpy and torch.
    """

    name: str
    kind: Kind
    arity: int
    """Number of operands; −1: any."""
    numpy: Callable[..., Array] = missing
    """The result from the operands and, as keywords, the attributes; follows from the formula, or the expansion."""
    linear: tuple[bool, ...] = ()
    degree: Literal["add", "sub", "equal", "zero", "same", "exp"] = "zero"
    triton: str = ""
    """Follows from the formula."""
    narrow: str = ""
    """As ``triton``, of fewer instructions, where the result's dtype has no more than 16 bits."""
    helper: str = ""
    """The source of a function that takes the place of ``triton`` where a thread holds many elements, as behind products: that
    branches for each of them."""
    flops: float = 1.0
    sfu: float = 0.0
    identity: float | None = None
    combine: str = ""
    """Of a contraction or a fold: the operator that puts two parts together. A fold's meaning over finite fields, its abstract
    expression and its Triton follow from that, and from ``identity``, what a fold of nothing is."""
    attrs: tuple[str, ...] = ()
    commutative: bool = False
    products: int = 0
    """Of a composite: how many products it has."""
    relay: tuple[str, ...] = ()
    """Names in Relay, each with its attributes for those of the table where they are called otherwise: ``clip min:a_min``."""
    torch: tuple[str, ...] = ()
    """Names in ATen, in the same form; the default overload has none."""
    domain: tuple[Domain, ...] = ()
    """What each operand has to be for the result to be a number: checks draw their inputs so (:mod:`fuser.ir.domain`)."""
    image: Domain = ANY
    """Where the result lies, whatever the operands are."""
    increasing: bool = False
    """An operator with one operand that never falls as it grows."""
    fraction: Fractions = ""
    """What the result is of fractions of polynomials over a finite field. Follows from the formula; an element-wise operator
    without one is a random function. Of another operator without it nothing is proven, and it is refused
    (:mod:`fuser.superopt.verify.bounds`)."""
    typed: Literal["operands", "choices", "named", "truth"] = "operands"
    """What the result's dtype follows from (:mod:`fuser.ir.dtypes`): all operands; those behind a condition; the attribute
    ``dtype``; none, it is a condition."""
    strided: bool = False
    """The result is the operand under other strides: no library copies for it."""
    indexed: bool = False
    """The value depends on element indices: in a block, the attributes ``rows`` and ``cols`` name the axes, and ``triton`` has
    the element of the operand, both indices, and the attribute ``offset`` as a summand."""
    hidden: float = 0.0
    """Of an indexed operator: what an element that it does not keep becomes."""
    formula: Callable[..., Term] | None = None
    """The operator as a composition of others, of operands and (by keyword) attributes. An element-wise operator with a formula
    stays one operator; all that is not given follows from the formula."""
    expansion: Callable[..., Any] | None = None
    """Of a composite: the operators that it becomes, from a builder, the operands, and the attributes."""
    shape: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    """Shape of the result; follows for element-wise operators and folds (:func:`fuser.ir.program.infer_shape`)."""
    dims: Callable[..., Sequence[Any]] | None = None
    """Of a view or a copy: what becomes of the dimensions of its operands (:mod:`fuser.ir.dimensions`)."""
    element: Callable[..., int] | None = None
    """Which elements of the operands one element of the result follows from, and how (:mod:`fuser.ir.element_rules`): whatever is
    made of such operators, and of element-wise ones, can be one kernel."""
    optional: tuple[str, ...] = ()
    """Attributes that need not be there."""
    eager: str | None = ""
    """The torch function that takes the operands and, as keywords, the attributes: ``nn.functional.silu``. What is called
    otherwise there, or is no argument, and what it takes beside, stand behind it: ``softmax axis:dim strict: dim=-1``; one that
    begins with a dot is a function of :mod:`fuser.runtime.forms`. By default the one of the same name, or the formula; None: the
    formula."""

    @property
    def relabels(self) -> bool:
        """The same elements, under other indices or in another dtype."""
        return self.strided or self.typed == "named"

    @property
    def regroups(self) -> bool:
        """The same elements row after row, under another shape: a view only of what lies so."""
        return self.dims is dimensions.regroup

    @property
    def adds(self) -> bool:
        """A contraction, or a fold, whose parts are added."""
        return self.combine == "add"

    @property
    def multiplies(self) -> bool:
        """The product of its two operands, element by element."""
        return self.kind == "map" and self.fraction == "product"

    @property
    def subtracts(self) -> bool:
        """The difference of its two operands."""
        return self.kind == "map" and self.fraction == "sum" and not self.commutative

    @property
    def divides(self) -> bool:
        """The quotient of its two operands."""
        return self.fraction == "quotient"

    @property
    def picks(self) -> bool:
        """One of its operands, element by element: over a finite field by a random order."""
        return self.kind == "map" and self.fraction == "chosen" and self.typed == "operands" and self.formula is None

    @property
    def maximizes(self) -> bool:
        """A fold by taking the largest."""
        return self.combine == "maximum"

    @property
    def has_exponential(self) -> bool:
        """An exponential, or a composite that has one."""
        return self.degree == "exp"

    @property
    def over_axes(self) -> bool:
        """It folds the axes that an attribute names, which it may keep."""
        return {"axis", "keepdims"} <= {*self.attrs}

    @property
    def exact(self) -> bool:
        """Element-wise arithmetic of a ring: numpy's result for residues is the residue of the result."""
        ring = self.fraction in ("sum", "product", "square", "same")
        return self.kind == "map" and ring and self.formula is None and set(self.attrs) <= set(self.optional)

    def __post_init__(self) -> None:
        if self.numpy is missing and (self.formula or self.expansion):
            object.__setattr__(self, "numpy", self._by_formula if self.formula else self._by_expansion)

    def _by_formula(self, *xs: Array, **attrs: Any) -> Array:
        with np.errstate(all="ignore"):
            return evaluate(self.steps(attrs), xs, lambda name, args, at: OPS[name].numpy(*args, **at))

    def _by_expansion(self, *xs: Array, **attrs: Any) -> Array:
        assert self.expansion is not None
        with np.errstate(all="ignore"):
            return self.expansion(_Numbers(), *xs, **dict(own_attributes(self, attrs)))

    def steps(self, attrs: Attrs) -> tuple[Step, ...]:
        """The formula for these attributes."""
        assert self.formula is not None
        return _steps(self.formula, self.arity, own_attributes(self, attrs))


class _Numbers:
    """In place of a builder, for an expansion that is computed at once."""

    def op(self, op: str, *xs: Array, **attrs: Any) -> Array:
        return OPS[op].numpy(*xs, **attrs)

    def extent(self, x: Array, dim: int) -> int:
        return x.shape[dim]


OPS: dict[str, OpDef] = {}
"""The op table; :mod:`fuser.ir.ops` fills it."""

Step = tuple[str, tuple[int, ...], Attrs]
"""An operator, its operands (those of the formula, then the results of the steps before), its attributes."""


@cache
def _steps(formula: Callable[..., Term], arity: int, attrs: tuple[tuple[str, Any], ...]) -> tuple[Step, ...]:
    exact = {k: Scalar.of(v) if is_number(k) else v for k, v in attrs}
    operands = [Term("", operand=i) for i in range(arity)]
    index = {t: i for i, t in enumerate(operands)}
    found: list[Step] = []

    def visit(t: Term) -> int:
        if t not in index:
            step = (t.op, tuple(map(visit, t.args)), dict(t.attrs))
            index[t] = arity + len(found)
            found.append(step)
        return index[t]

    visit(formula(*operands, **exact))
    return tuple(found)


def evaluate(steps: Sequence[Step], operands: Sequence[V], apply: Callable[[str, list[V], Attrs], V]) -> V:
    """The value of a formula, ``apply`` giving that of an operator."""
    values = list(operands)
    for op, args, attrs in steps:
        values.append(apply(op, [values[i] for i in args], attrs))
    return values[-1]


@cache
def names_of(columns: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Names in another system to what the attributes are called there: from ``clip min:a_min`` to {clip: {min: a_min}}."""
    found: dict[str, dict[str, str]] = {}
    for entry in columns:
        name, *pairs = entry.split()
        found[name] = {ours: theirs for ours, _, theirs in (p.partition(":") for p in pairs)}
    return found


def own_attributes(entry: OpDef, attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    """The attributes that decide about the value."""
    return tuple(sorted((k, v) for k, v in attrs.items() if k in entry.attrs))
