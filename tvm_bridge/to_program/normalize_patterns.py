"""Patterns that importers write out: gelu, silu, layer norm, RMS norm, guarded softmax; and scales that are roots of extents."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fuser.ir.opdef import names_of
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from tvm_bridge.to_program.rewriter import Application
from tvm_bridge.to_program.rewriter import Rewriter
from tvm_bridge.to_program.rewriter import Rule

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _close(x: float, y: float, dtype: str) -> bool:
    """Equal up to the rounding of a constant of this dtype and of one operation on it."""
    return abs(x - y) <= 2 * _EPS.get(dtype, 2.0**-23) * abs(y)


def _affine(rw: Rewriter, name: str) -> tuple[str, float, float]:
    """``(root, a, b)`` with tensor = a·root + b, through scales and shifts."""
    a, b = 1.0, 0.0
    while (node := rw.node(name)) is not None and node.op in ("scale", "shift") and not node.attr["scalar"].powers:
        value = float(node.attr["scalar"].coeff)
        a, b = (a * value, b) if node.op == "scale" else (a, b + a * value)
        name = node.inputs[0]
    return name, a, b


def _halved(rw: Rewriter, name: str, dtype: str) -> str | None:
    """x, where the tensor is erf(x/√2)."""
    node = rw.node(name, "erf")
    x, slope, offset = _affine(rw, node.inputs[0]) if node else (name, 0.0, 0.0)
    return x if not offset and _close(slope, math.sqrt(0.5), dtype) else None


def _cubic(rw: Rewriter, name: str, dtype: str) -> str | None:
    """x, where the tensor is tanh(√(2/π) (x + 0.044715 x³)), the sum or its product with x written out."""
    node = rw.node(name, "tanh")
    inner, slope, offset = _affine(rw, node.inputs[0]) if node else (name, 0.0, 0.0)
    if offset or not _close(slope, math.sqrt(2 / math.pi), dtype):
        return None
    for op, constant in (("add", 0.0), ("mul", 1.0)):
        sides = found.inputs if (found := rw.node(inner, op)) else ()
        for x, other in (sides, sides[::-1]) if sides else ():
            power, factor, shift = _affine(rw, other)
            held = _cube(rw, power) if op == "add" else square.inputs[0] if (square := rw.node(power, "square")) else None
            if held == x and shift == constant and _close(factor, 0.044715, dtype):
                return x
    return None


def _cube(rw: Rewriter, name: str) -> str | None:
    """x, where the tensor is x² · x."""
    product = rw.node(name, "mul")
    for left, x in (product.inputs, product.inputs[::-1]) if product else ():
        if (square := rw.node(left, "square")) is not None and square.inputs[0] == x:
            return x
    return None


def _gelu(rw: Rewriter, app: Application) -> str | None:
    """c · x · (1 + erf(x/√2)) with any placement of the constants, and the same with its approximation by tanh."""
    for left, right in (app.inputs, app.inputs[::-1]):
        root, a, b = _affine(rw, right)
        x, factor, constant = _affine(rw, left)
        if a == 0 or constant or not _close(b, a, app.dtype) or rw.shape(x) != app.shape:
            continue
        for op, argument in (("gelu", _halved), ("gelu_tanh", _cubic)):
            if argument(rw, root, app.dtype) != x:
                continue
            whole = 2 * a * factor
            if _close(whole, 1.0, app.dtype):
                return rw.emit(op, x, name=app.name)
            return rw.emit("scale", rw.emit(op, x, name=f"{app.name}.{op}"), name=app.name, scalar=Scalar.of(whole))
    return None


def _square(rw: Rewriter, app: Application) -> str | None:
    return rw.emit("square", app.inputs[0], name=app.name) if app.inputs[0] == app.inputs[1] else None


def _silu(rw: Rewriter, app: Application) -> str | None:
    for x, y in (app.inputs, app.inputs[::-1]):
        gate = rw.node(y, "sigmoid")
        if gate is not None and gate.inputs[0] == x:
            return rw.emit("silu", x, name=app.name)
    return None


def _row_mean(rw: Rewriter, name: str) -> str | None:
    """The operand of a mean over the last axis that keeps it."""
    node = rw.node(name, "mean")
    if node is None or not node.attr.get("keepdims"):
        return None
    rank = len(rw.shape(node.inputs[0]))
    return node.inputs[0] if tuple(i % rank for i in node.attr["axis"]) == (rank - 1,) else None


def _mean_square(rw: Rewriter, name: str, root: str) -> tuple[str, Scalar] | None:
    """``(x, eps)`` where the tensor is √(mean(x²) + eps), or 1 over it for the root ``rsqrt``."""
    node = rw.node(name, root)
    shifted = rw.node(node.inputs[0], "shift") if node else None
    inner = _row_mean(rw, shifted.inputs[0]) if shifted else None
    squared = rw.node(inner, "square") if inner else None
    return (squared.inputs[0], shifted.attr["scalar"]) if squared and shifted else None


def _norm(rw: Rewriter, app: Application) -> str | None:
    """x / √(mean(x²) + eps): RMS norm, and layer norm where x has its mean subtracted."""
    pairs = (
        [(app.inputs[0], app.inputs[1], "sqrt")]
        if app.op == "div"
        else [
            (app.inputs[0], app.inputs[1], "rsqrt"),
            (app.inputs[1], app.inputs[0], "rsqrt"),
        ]
    )
    for x, denominator, root in pairs:
        found = _mean_square(rw, denominator, root)
        if found is None or found[0] != x or rw.shape(x) != app.shape:
            continue
        centred = rw.node(x, "sub")
        if centred is not None and _row_mean(rw, centred.inputs[1]) == centred.inputs[0]:
            return rw.emit("layer_norm", centred.inputs[0], name=app.name, eps=found[1])
        return rw.emit("rms_norm", x, name=app.name, eps=found[1])
    return None


def _gain(rw: Rewriter, app: Application) -> str | None:
    """A norm times a vector takes it as its gain."""
    for x, g in (app.inputs, app.inputs[::-1]):
        norm = rw.node(x)
        if norm is None or norm.op not in ("layer_norm", "rms_norm") or len(norm.inputs) != 1 or not rw.sole(x):
            continue
        if rw.shape(g) == app.shape[-1:] and rw.dtype(g) == app.dtype and rw.shape(x) == app.shape:
            return rw.emit(norm.op, norm.inputs[0], g, name=app.name, eps=norm.attr["eps"])
    return None


def _offset(rw: Rewriter, app: Application) -> str | None:
    """A layer norm with gain plus a vector takes it as its bias."""
    for x, b in (app.inputs, app.inputs[::-1]):
        norm = rw.node(x, "layer_norm")
        if norm is None or len(norm.inputs) != 2 or not rw.sole(x):
            continue
        if rw.shape(b) == app.shape[-1:] and rw.dtype(b) == app.dtype and rw.shape(x) == app.shape:
            return rw.emit("layer_norm", *norm.inputs, b, name=app.name, eps=norm.attr["eps"])
    return None


def _called(rw: Rewriter, name: str, op: str) -> Node | None:
    """The producer, if it is the operator that Relay calls so."""
    node = rw.node(name)
    if node is None:
        return None
    return node if op in ((node.attr["callee"],) if node.op == "opaque" else names_of(node.entry.relay)) else None


def _all_masked(rw: Rewriter, name: str) -> str | None:
    """The scores of which the tensor says, row by row, that they all are -inf."""
    outer = _called(rw, name, "logical_not")
    if outer is not None:
        anywhere = _called(rw, outer.inputs[0], "any")
        inner = _called(rw, anywhere.inputs[0], "logical_not") if anywhere else None
        fold, test = anywhere, _called(rw, inner.inputs[0], "equal") if inner else None
        if anywhere is not None and test is None:
            test = _called(rw, anywhere.inputs[0], "not_equal")
    else:
        fold = _called(rw, name, "all")
        test = _called(rw, fold.inputs[0], "equal") if fold else None
    if fold is None or test is None or len(fold.inputs) != 1:
        return None
    rows = rw.shape(fold.inputs[0])
    scores, bound = test.inputs
    lowest = rw.known[bound] if bound in rw.literals else np.zeros(1)
    over_rows = rw.shape(fold.output) == (*rows[:-1], 1) and rw.shape(scores) == rows
    return scores if over_rows and bool(np.all(lowest == -np.inf)) else None


def _guarded_softmax(rw: Rewriter, app: Application) -> str | None:
    """where(row is fully masked, 0, softmax): one that is not strict gives 0 on such a row."""
    cond, masked, plain = app.inputs
    soft = rw.node(plain, "softmax")
    if soft is None or not rw.zeros(masked) or app.shape != rw.shape(plain):
        return None
    if soft.attr["axis"] % len(app.shape) != len(app.shape) - 1:
        return None
    return _with_zeros(rw, app, soft) if _all_masked(rw, cond) == soft.inputs[0] else None


def _nan_guard(rw: Rewriter, app: Application) -> str | None:
    """where(isnan(softmax(x)), 0, softmax(x)) guards fully masked rows, which a softmax that is not strict defines as 0."""
    cond, masked, plain = app.inputs
    test = _called(rw, cond, "isnan")
    soft = rw.node(plain, "softmax")
    if test is None or test.inputs[0] != plain or soft is None:
        return None
    return _with_zeros(rw, app, soft) if rw.zeros(masked) and app.shape == rw.shape(plain) else None


def _with_zeros(rw: Rewriter, app: Application, soft: Node) -> str:
    return rw.emit("softmax", *soft.inputs, name=app.name, dtype=app.dtype, axis=soft.attr["axis"])


PATTERN_RULES: dict[str, tuple[Rule, ...]] = {
    "mul": (_square, _silu, _gelu, _norm, _gain),
    "div": (_norm,),
    "add": (_offset,),
    "where": (_guarded_softmax, _nan_guard),
}


def _through_views(program: TensorProgram, name: str) -> Node | None:
    """The first producer that is not a view."""
    node = program.producers.get(name)
    while node is not None and node.op in ("reshape", "transpose", "broadcast", "cast"):
        node = program.producers.get(node.inputs[0])
    return node


def _product_after(program: TensorProgram, name: str) -> Node | None:
    """The matmul that alone reads a tensor, perhaps through views."""
    while True:
        users = program.consumers[name]
        if len(users) != 1 or name in program.outputs:
            return None
        if users[0].contracts:
            return users[0]
        if users[0].op not in ("reshape", "transpose", "broadcast", "cast"):
            return None
        name = users[0].output


def tie_scales(program: TensorProgram) -> TensorProgram:
    """Tie each scale next to a product to the contracted extent d where it is d^(-1/2) or d^(-1/4) to its dtype's precision, and
    where a tensor in front of it has that extent: a number cannot depend on what is computed later."""
    nodes: list[Node] = []
    defined = set(program.inputs)
    for node in program.nodes:
        scalar = node.attr.get("scalar", Scalar())
        product = None
        if node.op == "scale" and not scalar.powers and 0 < scalar.coeff < 1:
            before = _through_views(program, node.inputs[0])
            product = before if before is not None and before.contracts else _product_after(program, node.output)
        if product is not None:
            left = node.inputs[0] if product.inputs[0] == node.output else product.inputs[0]
            extent = program[left].shape[-1]
            for exponent in (Fraction(-1, 2), Fraction(-1, 4)) if left in defined else ():
                if extent > 1 and _close(float(scalar.coeff), extent ** float(exponent), program[node.output].dtype):
                    tied = Scalar.power(Extent(left, len(program[left].shape) - 1), exponent)
                    node = replace(node, attrs=(("scalar", tied),))
                    break
        nodes.append(node)
        defined.add(node.output)
    return replace(program, nodes=tuple(nodes))
