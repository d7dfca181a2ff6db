"""Normalizations without a kernel of their own.

The kernel that makes the rows leaves their sums with them, part by part: for each group of columns the sum and the squares
about the group's own mean, which no large mean can cancel. A product with the normalized rows multiplies the rows as they are
with weights that hold the gain, and corrects its result: ``(y·W' − mean ⊗ colsum(W')) · rstd + beta·W``, with ``W' = gamma ∘ W``
laid down once, when a model is compiled. What adds the normalized rows takes them again from the rows and their sums. Partial
sums are stored, not added by atomics: the results repeat bit for bit. Every form is compared with the operator in random tests
over finite fields.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import NARROW
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from search.cover.rebuild import Rule
from search.cover.rebuild import copied
from search.cover.rebuild import equal
from search.cover.rebuild import rebuild

NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class Norm:
    """A normalization whose readers can do without it: ``products`` multiply its result with a parameter, ``sums`` are
    element-wise operators on it."""

    node: Node
    products: tuple[Node, ...]
    sums: tuple[Node, ...]

    @property
    def rows(self) -> str:
        return self.node.inputs[0]


def norms(program: TensorProgram, params: Mapping[str, Array]) -> tuple[Norm, ...]:
    """Those normalizations of a program that can go: of the result of an operator, read by products with parameters and by
    element-wise operators alone."""
    found = []
    for node in program.nodes:
        if node.op not in NORMS or node.output in program.outputs or node.inputs[0] not in program.producers:
            continue
        if any(i not in params for i in node.inputs[1:]) or program[node.output].dtype not in NARROW:
            continue
        users = program.consumers[node.output]
        products = tuple(u for u in users if _by_weight(program, u, node.output, params))
        sums = tuple(u for u in users if u.entry.kind == "map" and u.inputs.count(node.output) == 1)
        if products and len(products) + len(sums) == len(users) and program.producers[node.inputs[0]].entry.kind == "map":
            found.append(Norm(node, products, sums))
    return tuple(found)


def _by_weight(program: TensorProgram, node: Node, rows: str, params: Mapping[str, Array]) -> bool:
    """A product of the rows with a matrix that is a parameter, or its transpose."""
    if not node.contracts or node.inputs[0] != rows or node.inputs[1] == rows or len(program[node.inputs[1]].shape) != 2:
        return False
    dtypes = {program[n].dtype for n in (rows, node.inputs[1], node.output)}
    return _weight(program, node)[0] in params and len(dtypes) == 1


def _weight(program: TensorProgram, product: Node) -> tuple[str, bool]:
    """The parameter of a product, and whether it is transposed first."""
    maker = program.producers.get(product.inputs[1])
    if maker is not None and maker.op == "transpose" and maker.attr["perm"] == (1, 0):
        return maker.inputs[0], True
    return product.inputs[1], False


def without(program: TensorProgram, chosen: Mapping[Norm, int]) -> tuple[TensorProgram, dict[str, frozenset[str]]]:
    """The program without the normalizations ``chosen``, each with the columns of a group; and for the rows of each the results
    that sum them up, which belong to the kernel that makes them."""
    rules: dict[str, Rule] = {}
    again: dict[str, list[Norm]] = {}
    kept = {
        norm: group
        for norm, group in chosen.items()
        if proved(norm.node.op, program[norm.rows].shape[-1], group, len(norm.node.inputs) - 1, norm.node.attrs)
    }
    summed: dict[str, dict[str, Norm]] = {}
    for norm in kept:
        summed.setdefault(norm.rows, {}).setdefault(norm.node.op, norm)  # several normalizations of the same rows share the sums
        for node in norm.sums:
            again.setdefault(node.output, []).append(norm)
    for name in (*summed, *again):
        rules[name] = _rows_rule(program, name, tuple(summed.get(name, {}).values()), again.get(name, []), kept)
    for norm, group in kept.items():
        for product in norm.products:
            rules[product.output] = _product_rule(program, norm, product, group)
    tails = {name: frozenset(s for norm in some.values() for s in _sums(norm.node)) for name, some in summed.items()}
    return (rebuild(program, rules) if rules else program), tails


def _sums(node: Node) -> tuple[str, ...]:
    """Names of the results that sum up the rows of a normalization."""
    steps = ("stored", "sum", "mean", "off", "off2", "square") if node.op == "layer_norm" else ("y2", "square")
    return tuple(_sum(node, step) for step in steps)


def _sum(node: Node, step: str) -> str:
    return f"{node.inputs[0]}.{node.op}.{step}"


def _rows_rule(
    program: TensorProgram, name: str, summed: Collection[Norm], again: Collection[Norm], groups: Mapping[Norm, int]
) -> Rule:
    """An element-wise operator that takes normalized rows again from the rows, and whose result is summed up."""
    maker = program.producers[name]

    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        taken = {n.node.output: _again(b, refs, n.node, refs[n.rows], _affine(n.node, refs), groups[n]) for n in again}
        made = copied(b, program, maker, [taken[i] if i in taken else refs[i] for i in maker.inputs])
        for norm in summed:
            refs |= _summed(b, made, norm.node, groups[norm])
        return made

    return rule


def _summed(b: Builder, rows: Ref, node: Node, group: int) -> dict[str, Ref]:
    """Sums over groups of columns, and the squares about each group's mean (of all, for an RMS norm)."""
    *front, width = rows.shape
    named = {n.rpartition(".")[-1]: n for n in _sums(node)}
    parts = b.op("reshape", rows, shape=(*front, width // group, group), name=f"{rows.name}.{node.op}.groups")
    last = len(front) + 1
    if node.op == "rms_norm":
        squares = b.op("square", parts, name=named["y2"], dtype="float32")
        return {named["square"]: b.op("sum", squares, axis=(last,), name=named["square"], dtype="float32")}
    # of the rows as products read them: what rounding adds to a whole row goes with its mean
    parts = b.op("cast", parts, name=named["stored"], dtype=rows.tensor.dtype)
    total = b.op("sum", parts, axis=(last,), keepdims=True, name=named["sum"], dtype="float32")
    mean = b.op("scale", total, scalar=Scalar.of(group).inverse(), name=named["mean"], dtype="float32")
    off = b.op("sub", parts, mean, name=named["off"], dtype="float32")
    squares = b.op("square", off, name=named["off2"], dtype="float32")
    square = b.op("sum", squares, axis=(last,), keepdims=True, name=named["square"], dtype="float32")
    return {total.name: total, square.name: square}


def _moments(b: Builder, refs: Mapping[str, Ref], node: Node, width: int, group: int) -> tuple[Ref | None, Ref]:
    """Mean and root of the variance of every row, with a last dimension of one, from the sums of its groups."""
    eps, each = node.attr["eps"], Scalar.of(width).inverse()

    def total(x: Ref) -> Ref:
        axes = tuple(range(len(x.shape) - (1 if node.op == "rms_norm" else 2), len(x.shape)))
        found = b.op("sum", x, axis=axes, dtype="float32", keepdims=node.op == "rms_norm")
        return found if node.op == "rms_norm" else b.op("reshape", found, shape=(*found.shape, 1), dtype="float32")

    def root(variance: Ref) -> Ref:
        shifted = b.op("shift", b.op("scale", variance, scalar=each, dtype="float32"), scalar=eps, dtype="float32")
        return b.op("sqrt", shifted, dtype="float32")

    square = refs[_sum(node, "square")]
    if node.op == "rms_norm":
        return None, root(total(square))
    sums = refs[_sum(node, "sum")]
    mean = b.op("scale", total(sums), scalar=each, dtype="float32")
    if width == group:
        return mean, root(total(square))
    own = b.op("scale", sums, scalar=Scalar.of(group).inverse(), dtype="float32")
    apart = b.op("sub", own, b.op("reshape", mean, shape=(*mean.shape, 1), dtype="float32"), dtype="float32")
    between = b.op("scale", total(b.op("square", apart, dtype="float32")), scalar=group, dtype="float32")
    return mean, root(b.op("add", total(square), between, dtype="float32"))


def _product_rule(program: TensorProgram, norm: Norm, product: Node, group: int) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        weight, transposed = _weight(program, product)
        gain, shift = _affine(norm.node, refs)
        return _corrected(b, refs, norm.node, refs[norm.rows], (refs[weight], transposed), (gain, shift), group, product.output)

    return rule


def _affine(node: Node, refs: Mapping[str, Ref]) -> tuple[Ref | None, Ref | None]:
    given = [refs[i] for i in node.inputs[1:]]
    return (given[0] if given else None), (given[1] if len(given) > 1 else None)


def _corrected(
    b: Builder,
    refs: Mapping[str, Ref],
    node: Node,
    rows: Ref,
    weight: tuple[Ref, bool],
    affine: tuple[Ref | None, Ref | None],
    group: int,
    output: str,
) -> Ref:
    """The product of normalized rows with a weight, from a product of the rows."""
    (w, transposed), (gain, shift), dtype = weight, affine, rows.tensor.dtype
    width = rows.shape[-1]
    if gain is not None:
        w = b.op("mul", w, gain if transposed else b.op("reshape", gain, shape=(width, 1)), dtype=dtype)
    right = b.op("transpose", w, perm=(1, 0)) if transposed else w
    # behind the product: the rows' sums come while it multiplies
    y = b.op("matmul", rows, right, dtype="float32")
    mean, root = _moments(b, refs, node, width, group)
    if mean is not None:
        columns = b.op("sum", b.op("cast", w, dtype="float32"), axis=(1 if transposed else 0,), dtype="float32")
        y = b.op("sub", y, b.op("mul", mean, columns, dtype="float32"), dtype="float32")
    if shift is None:
        return b.op("div", y, root, name=output, dtype=dtype)
    y = b.op("div", y, root, dtype="float32")
    original = b.op("cast", weight[0], dtype="float32")
    shift = b.op("reshape", b.op("cast", shift, dtype="float32"), shape=(1, width), dtype="float32")
    turned = b.op("transpose", original, perm=(1, 0), dtype="float32") if transposed else original
    moved = b.op("matmul", shift, turned, dtype="float32")
    return b.op("add", y, b.op("reshape", moved, shape=(moved.shape[-1],), dtype="float32"), name=output, dtype=dtype)


def _again(b: Builder, refs: Mapping[str, Ref], node: Node, rows: Ref, affine: tuple[Ref | None, Ref | None], group: int) -> Ref:
    """The normalized rows, from the rows and their sums."""
    gain, shift = affine
    mean, root = _moments(b, refs, node, rows.shape[-1], group)
    y = b.op("sub", rows, mean, dtype="float32") if mean is not None else rows
    y = b.op("div", y, root, dtype="float32")
    y = b.op("mul", y, gain, dtype="float32") if gain is not None else y
    return b.op("add", y, shift, dtype="float32") if shift is not None else y


@cache
def proved(op: str, width: int, group: int, affine: int, attrs: Collection[tuple[str, object]]) -> bool:
    """Whether both forms are the operator, by random tests over finite fields."""
    before, after = Builder("norm"), Builder("norm")
    results = []
    for b in (before, after):
        x, w = b.input("x", (2, width), "float32"), b.input("w", (width, 3), "float32")
        given = [b.input(f"affine_{i}", (width,), "float32") for i in range(affine)]
        node = Node(op, ("x", *(g.name for g in given)), "norm", tuple(attrs))
        if b is before:
            y = b.op(op, x, *given, name="norm", dtype="float32", **dict(attrs))
            results.append(b.build(product=b.op("matmul", y, w, dtype="float32"), again=y))
            continue
        refs = {"x": x, "w": w} | _summed(b, x, node, group)
        pair = ((given or [None])[0], given[1] if affine > 1 else None)
        product = _corrected(b, refs, node, x, (w, False), pair, group, "product")
        results.append(b.build(product, again=_again(b, refs, node, x, pair, group)))
    return equal(*results)
