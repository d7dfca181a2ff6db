"""Clean-up of imported programs: what TVM's PyTorch and ONNX importers add goes, what they took apart is put together.

Every rewrite keeps the value of the tensor that it replaces, up to the rounding of one operation; a tensor that keeps its
name keeps its meaning, so that names remain a way back to the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import numpy as np

from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.program import infer_shape
from fuser.ir.scalar import Scalar
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.to_program.normalize_patterns import PATTERN_RULES
from tvm_bridge.to_program.normalize_patterns import tie_scales
from tvm_bridge.to_program.rewriter import Application
from tvm_bridge.to_program.rewriter import Rewriter
from tvm_bridge.to_program.rewriter import Rule

_MAX_PASSES = 8


@dataclass(frozen=True)
class Normalized:
    """``known`` has the constants of the new program, ``moved`` the tensors that another tensor now stands for."""

    program: TensorProgram
    known: Mapping[str, Array] = field(compare=False)
    moved: Mapping[str, str]


# Views


def _identity(rw: Rewriter, a: Application) -> str | None:
    """A view that changes nothing."""
    x = a.inputs[0]
    if a.op == "transpose":
        return x if tuple(a.attrs["perm"]) == tuple(range(len(a.shape))) else None
    return x if a.shape == rw.shape(x) and a.dtype == rw.dtype(x) else None


def _one_part(rw: Rewriter, a: Application) -> str | None:
    return a.inputs[0] if len(a.inputs) == 1 else None


def _reshape_of_reshape(rw: Rewriter, a: Application) -> str | None:
    inner = rw.node(a.inputs[0], "reshape")
    return rw.emit("reshape", inner.inputs[0], name=a.name, shape=a.shape) if inner else None


def _reshape_of_broadcast(rw: Rewriter, a: Application) -> str | None:
    """A repeated matrix stays a repeated matrix where only the leading extents change."""
    inner = rw.node(a.inputs[0], "broadcast")
    if inner is None:
        return None
    kept = rw.shape(inner.inputs[0])
    n = len(kept)
    if n and a.shape[-n:] == kept and rw.shape(a.inputs[0])[-n:] == kept:
        return rw.emit("broadcast", inner.inputs[0], name=a.name, shape=a.shape)
    return None


def _transpose_of_transpose(rw: Rewriter, a: Application) -> str | None:
    inner = rw.node(a.inputs[0], "transpose")
    if inner is None:
        return None
    return rw.emit("transpose", inner.inputs[0], name=a.name, perm=tuple(inner.attr["perm"][i] for i in a.attrs["perm"]))


def _transpose_of_merge(rw: Rewriter, a: Application) -> str | None:
    """Exchanging the last two extents commutes with a reshape of the leading ones."""
    inner = rw.node(a.inputs[0], "reshape")
    n = len(a.shape)
    if inner is None or n < 3 or tuple(a.attrs["perm"]) != (*range(n - 2), n - 1, n - 2):
        return None
    x = inner.inputs[0]
    rank = len(rw.shape(x))
    if rank < 3 or rw.shape(x)[-2:] != rw.shape(a.inputs[0])[-2:]:
        return None
    swapped = rw.emit("transpose", x, name=f"{a.name}.t", perm=(*range(rank - 2), rank - 1, rank - 2))
    return rw.emit("reshape", swapped, name=a.name, shape=a.shape)


def _broadcast_of_view(rw: Rewriter, a: Application) -> str | None:
    inner = rw.node(a.inputs[0])
    if inner is None or inner.op not in ("broadcast", "reshape") or (inner.op == "reshape" and not _only_leads(rw, inner)):
        return None
    return rw.emit("broadcast", inner.inputs[0], name=a.name, shape=a.shape)


def _only_leads(rw: Rewriter, reshape: Node) -> bool:
    """Whether a reshape only adds leading extents of 1."""
    before, after = rw.shape(reshape.inputs[0]), rw.shape(reshape.output)
    return len(after) > len(before) and after == (1,) * (len(after) - len(before)) + before


def _implicit(rw: Rewriter, a: Application) -> str | None:
    """Operators broadcast by themselves: explicit broadcasts and leading extents of 1 on their operands go."""
    least = 2 if a.contracts else 0
    inputs = list(a.inputs)
    for i, name in enumerate(a.inputs):
        inner, new = rw.node(name), name
        if inner is not None and (inner.op == "broadcast" or (inner.op == "reshape" and _only_leads(rw, inner))):
            new = inner.inputs[0]
        elif a.contracts and i == 1 and name in rw.known and len(rw.shape(name)) > 2 and math.prod(rw.shape(name)[:-2]) == 1:
            new = rw.emit("reshape", name, name=f"{name}.matrix", shape=rw.shape(name)[-2:])
        if new == name or len(rw.shape(new)) < least:
            continue
        trial = [*inputs[:i], new, *inputs[i + 1 :]]
        if infer_shape(a.op, [rw.shape(t) for t in trial], a.attrs) == a.shape:
            inputs = trial
    if tuple(inputs) == a.inputs:
        return None
    return rw.emit(a.op, *inputs, name=a.name, dtype=a.dtype, **a.attrs)


def _matmul_between_reshapes(rw: Rewriter, a: Application) -> str | None:
    """A product whose batch extents are merged before and split again after is a product of the tensors as they were."""
    product = rw.node(a.inputs[0], "matmul")
    if product is None or not rw.sole(product.output):
        return None
    left, right = product.inputs
    x = rw.node(left, "reshape")
    if x is None:
        return None
    xs, (m, n) = rw.shape(x.inputs[0]), rw.shape(product.output)[-2:]
    if len(rw.shape(right)) == 2:
        if len(a.shape) < 2 or a.shape[-1] != n:
            return None
        whole = rw.emit("reshape", x.inputs[0], name=f"{a.name}.rows", shape=(*a.shape[:-1], rw.shape(left)[-1]))
        return rw.emit("matmul", whole, right, name=a.name, dtype=a.dtype)
    y = rw.node(right, "reshape")
    if y is None or len(xs) < 2:
        return None
    ys = rw.shape(y.inputs[0])
    if xs[-2:] != rw.shape(left)[-2:] or ys[-2:] != rw.shape(right)[-2:] or a.shape[-2:] != (m, n):
        return None
    if not xs[:-2] == ys[:-2] == a.shape[:-2]:
        return None
    return rw.emit("matmul", x.inputs[0], y.inputs[0], name=a.name, dtype=a.dtype)


def _rows_after_epilogue(rw: Rewriter, a: Application) -> str | None:
    """The same with an element-wise epilogue between product and reshape: bias vectors, activations, scales."""
    chain: list[tuple[Node, int]] = []
    name = a.inputs[0]
    while (node := rw.node(name)) is not None and not node.contracts and rw.sole(name) and node.entry.kind == "map":
        vectors = [i for i, x in enumerate(node.inputs) if rw.shape(x) == a.shape[-1:]]
        if len(node.inputs) - len(vectors) != 1 or rw.dtype(node.inputs[0]) != rw.dtype(name):
            return None
        main = next(i for i in range(len(node.inputs)) if i not in vectors)
        chain.append((node, main))
        name = node.inputs[main]
    product = rw.node(name, "matmul")
    if product is None or not chain or not rw.sole(name) or rw.node(product.inputs[0], "reshape") is None:
        return None
    if len(rw.shape(product.inputs[1])) != 2 or len(a.shape) < 3 or a.shape[-1] != rw.shape(name)[-1]:
        return None
    value = rw.emit("reshape", name, name=f"{name}.rows", shape=a.shape)
    for node, main in reversed(chain):
        inputs = [value if i == main else x for i, x in enumerate(node.inputs)]
        last = node is chain[0][0]
        value = rw.emit(
            node.op, *inputs, name=a.name if last else f"{node.output}.rows", dtype=rw.dtype(node.output), **node.attr
        )
    return value


def _scaled_operand(rw: Rewriter, a: Application) -> str | None:
    """Scales of the operands go behind the product, but for float16, where the scale may be there against overflow."""
    if a.dtype == "float16":
        return None
    scalar, inputs = Scalar(), []
    for name in a.inputs:
        inner = rw.node(name, "scale")
        inner = inner if inner is not None and rw.sole(name) and not inner.attr["scalar"].powers else None
        scalar = scalar * inner.attr["scalar"] if inner else scalar
        inputs.append(inner.inputs[0] if inner else name)
    if tuple(inputs) == a.inputs:
        return None
    return rw.emit("scale", rw.emit("matmul", *inputs, name=f"{a.name}.product", dtype=a.dtype), name=a.name, scalar=scalar)


# Constants


def _with_number(rw: Rewriter, a: Application) -> str | None:
    """Arithmetic with a constant number: scale and shift, of real numbers."""
    x, y = a.inputs
    c, d = rw.number(y), rw.number(x)
    if a.dtype not in FLOAT_DTYPES:
        return None
    if c is not None and rw.shape(x) == a.shape and d is None:
        if a.op in ("mul", "div") and (a.op == "mul" or c != 0):
            scalar = Scalar.of(c) if a.op == "mul" else Scalar.of(c).inverse()
            return rw.emit("scale", x, name=a.name, scalar=scalar)
        if a.op in ("add", "sub"):
            return rw.emit("shift", x, name=a.name, scalar=Scalar.of(c if a.op == "add" else -c))
    if d is not None and c is None and rw.shape(y) == a.shape:
        if a.op == "mul":
            return rw.emit("scale", y, name=a.name, scalar=Scalar.of(d))
        if a.op == "add":
            return rw.emit("shift", y, name=a.name, scalar=Scalar.of(d))
        if a.op == "sub":
            return rw.emit("shift", rw.emit("neg", y, name=f"{a.name}.neg"), name=a.name, scalar=Scalar.of(d))
        root = rw.node(y, "sqrt")
        if a.op == "div" and d == 1 and root:
            return rw.emit("rsqrt", root.inputs[0], name=a.name)
    return None


def _no_mask(rw: Rewriter, a: Application) -> str | None:
    """Adding an all-zero constant. A vector may be a bias that is zero by chance, and stays."""
    for x, y in (a.inputs, a.inputs[::-1]):
        if rw.zeros(y) and (len(rw.shape(y)) >= 2 or rw.tensors[y].elements == 1) and rw.shape(x) == a.shape:
            return x if a.op == "add" or x == a.inputs[0] else None
    return None


def _unit(rw: Rewriter, a: Application) -> str | None:
    """scale by 1, shift by 0, and two of them in a row."""
    x, scalar = a.inputs[0], a.attrs["scalar"]
    if scalar == (Scalar() if a.op == "scale" else Scalar.of(0)):
        return x
    inner = rw.node(x, a.op)
    if inner is None:
        return None
    before = inner.attr["scalar"]
    if a.op == "scale":
        return rw.emit("scale", inner.inputs[0], name=a.name, scalar=before * scalar)
    if before.powers or scalar.powers:
        return None
    return rw.emit("shift", inner.inputs[0], name=a.name, scalar=Scalar(before.coeff + scalar.coeff))


def _settled(rw: Rewriter, a: Application) -> str | None:
    """A selection whose condition is constant throughout."""
    cond, yes, no = a.inputs
    if cond not in rw.literals:
        return None
    chosen = yes if rw.known[cond].all() else no if rw.zeros(cond) else None
    return chosen if chosen is not None and rw.shape(chosen) == a.shape else None


def _all_rows(rw: Rewriter, a: Application) -> str | None:
    """A lookup of all rows in their order is a view."""
    table, index = a.inputs
    rows = rw.shape(table)[0]
    if index not in rw.literals or rw.known[index].size != rows or not np.array_equal(rw.known[index].ravel(), np.arange(rows)):
        return None
    return rw.emit("reshape", table, name=a.name, shape=a.shape)


_COMBINE = (_implicit, _with_number)

VIEW_RULES: dict[str, tuple[Rule, ...]] = {
    "reshape": (_identity, _reshape_of_reshape, _reshape_of_broadcast, _matmul_between_reshapes, _rows_after_epilogue),
    "transpose": (_identity, _transpose_of_transpose, _transpose_of_merge),
    "broadcast": (_identity, _broadcast_of_view),
    "repeat": (_identity,),
    "slice": (_identity,),
    "cast": (_identity,),
    "concat": (_one_part,),
    "matmul": (_implicit, _scaled_operand),
    "add": (_no_mask, *_COMBINE),
    "sub": (_no_mask, *_COMBINE),
    "mul": _COMBINE,
    "div": _COMBINE,
    "maximum": (_implicit,),
    "where": (_settled, _implicit),
    "embedding": (_all_rows,),
    "scale": (_unit,),
    "shift": (_unit,),
}


def normalize(
    program: TensorProgram, known: Mapping[str, Array], literals: frozenset[str] = frozenset(), apart: bool = False
) -> Normalized:
    """Clean a program whose constant inputs have the values ``known``; ``literals`` are those that belong to the model's text.

    The others are parameters, which a user may exchange: they are only folded through views and casts, never by their values.
    Inputs without a value all stay. With ``apart`` every output is a tensor of its own (Relay's may be one: its regions know no
    copies). Raises nothing on a valid program.
    """
    rules = {op: VIEW_RULES.get(op, ()) + PATTERN_RULES.get(op, ()) for op in {*VIEW_RULES, *PATTERN_RULES}}
    moved, wanted = dict[str, str](), program.outputs if apart else ()
    for _ in range(_MAX_PASSES):
        rewriter = Rewriter(program, known, literals, rules)
        after = rewriter.run()
        known, literals = rewriter.known, frozenset(rewriter.literals)
        for old, new in rewriter.moved.items():
            moved[old] = rewriter.now(new)
        moved = {old: rewriter.now(new) for old, new in moved.items()}
        if after.nodes == program.nodes:
            break
        program = after
    program = _with_copies(tie_scales(program), wanted).validate()
    return Normalized(program, {n: known[n] for n in program.inputs if n in known}, moved)


def _with_copies(program: TensorProgram, wanted: Sequence[str] = ()) -> TensorProgram:
    """Outputs that are inputs or constants are copies of them: kernels write every output. With the names that are ``wanted`` so
    are outputs that became one tensor, but for the first, or that whose name it has; a copy has its name, if that is free."""
    names, nodes, tensors = set(program.table), list(program.nodes), list(program.tensors)
    outputs, own = list[str](), set(wanted) - set(program.inputs)
    for given, name in zip(program.outputs, wanted or program.outputs, strict=True):
        if given in program.inputs or (wanted and (given in outputs or (given in own and given != name))):
            while name in names:
                name += " copy"
            names.add(name)
            tensors.append(replace(program[given], name=name))
            nodes.append(Node("reshape", (given,), name, (("shape", program[given].shape),)))
        else:
            name = given
        outputs.append(name)
    return replace(program, nodes=tuple(nodes), outputs=tuple(outputs), tensors=tuple(tensors))
