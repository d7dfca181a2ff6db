"""Convolutions as a library computes them best: normalizations by constants are in their weights, biases in what stands behind.

A library adds a bias in a pass of its own over the result, which the kernel behind it reads anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cost_model.program_time import side_by_side
from fuser.frontends.composed import cut
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.dtypes import rounded
from fuser.ir.element_windows import each
from fuser.ir.library_ops import CONVOLUTIONS
from fuser.ir.library_ops import from_last_to_first
from fuser.ir.library_ops import moves
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Scalar
from fuser.lower.written import MOST
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild

POOLS = {f"avg_pool{n}d": n for n in (1, 2, 3)}


def lean(program: TensorProgram, params: Mapping[str, Array], ours: bool = False) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with convolutions that have no bias where element-wise operators, or a normalization by parameters, are all
    that reads them; and its parameters. Both are new where something changed. ``ours``: none has a bias, a kernel of ours adds
    it as fast as the library, in whatever order the channels lie; and those of large windows side by side are products."""
    values, rules = dict(params), dict[str, Rule]()
    for node in program.nodes:
        if node.op in POOLS and (shape := _whole_windows(program, node)):
            rules[node.output] = _mean(node, shape)
        if node.op not in CONVOLUTIONS:
            continue
        readers = program.consumers[node.output]
        (reader,) = readers if len(readers) == 1 and node.output not in program.outputs else (None,)
        scaled = _scaled(program, node, reader, values) if reader else None
        if reader and scaled is not None:
            weight, bias = (f"{reader.output} {what}" for what in ("weight", "bias"))
            values[weight], values[bias] = scaled
            dtype = program[node.output].dtype
            rules[node.output] = _bare(node, weight, scaled[0].shape, dtype, f"{node.output} scaled")
            rules[reader.output] = _shifted(reader, node.output, bias, scaled[1].shape, dtype)
        elif len(node.inputs) == 3 and (ours or (reader and op_def(reader.op).kind == "map")):
            rules[node.output] = _apart(node, len(program[node.output].shape))
    made, values = rebuilt(program, values, rules)
    return _as_products(*_straight(made, values)) if ours else (made, values)


def rebuilt(
    program: TensorProgram, values: dict[str, Array], rules: Mapping[str, Rule]
) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with what rules make, and the parameters that it reads; both as they are without rules."""
    if not rules:
        return program, values
    made = rebuild(program, rules)
    return made, {n: x for n, x in values.items() if n in made.inputs or n not in program.table}


def _as_products(program: TensorProgram, values: dict[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """With products in place of convolutions whose windows stand side by side."""
    rules = dict[str, Rule]()
    for node in program.nodes:
        if not side_by_side(program, node):
            continue
        weight, kept = values.get(node.inputs[1]), f"{node.output} rows of weights"
        if weight is not None:
            values[kept] = np.ascontiguousarray(weight.reshape(len(weight), -1))
        rules[node.output] = _product(program, node, kept if weight is not None else "")
    return rebuilt(program, values, rules)


def _straight(program: TensorProgram, values: dict[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """With plain convolutions in place of transposed ones over images and volumes whose windows move one by one and whose weights
    are parameters: the same sums, by the weights from last to first. Two models took an H100 3785 µs, not 6132, and 1823, not
    3203; windows of 7 x 7 597, not 1740. Lines of 128 channels take a library twice as long so."""
    rules = dict[str, Rule]()
    for node in program.nodes:
        weight = values.get(node.inputs[1]) if CONVOLUTIONS.get(node.op) else None
        if weight is None or len(node.inputs) != 2 or not 3 < weight.ndim == len(program[node.inputs[0]].shape):
            continue
        window, attrs = weight.shape[2:], program.bound(node)
        _, (strides, padding, dilation) = moves(attrs, len(window), window)
        around = tuple(d * (w - 1) - p for d, w, p in zip(dilation, window, padding, strict=True))
        if set(strides) != {1} or any(each(attrs.get("output_padding"), len(window), 0)) or min(around) < 0:
            continue
        kept, groups = f"{node.output} from last to first", int(attrs.get("groups") or 1)
        values[kept] = np.ascontiguousarray(from_last_to_first(weight, groups))
        how = {"padding": around, "dilation": dilation, "groups": groups}
        plain = Node(node.op.replace("_transpose", ""), node.inputs, node.output, tuple(how.items()))
        rules[node.output] = _bare(plain, kept, values[kept].shape, program[node.output].dtype, node.output)
    return rebuilt(program, values, rules)


def _whole_windows(program: TensorProgram, node: Node) -> tuple[int, ...]:
    """The operand's shape with windows and what is in them apart, where they lie side by side and are large; else nothing."""
    x = program[node.inputs[0]].shape
    window, (strides, padding, _) = moves(program.bound(node), POOLS[node.op])
    lead, sides = x[: -len(window)], x[-len(window) :]
    apart = strides != window or any(padding) or node.attr.get("divisor_override")
    if apart or math.prod(window) <= MOST or any(n % w for n, w in zip(sides, window, strict=True)):
        return ()
    return (*lead, *(e for n, w in zip(sides, window, strict=True) for e in (n // w, w)))


def _product(program: TensorProgram, node: Node, kept: str) -> Rule:
    """A convolution whose windows stand side by side: each is a row of a product with the weights, which are ``kept`` as rows
    where they are parameters."""
    (batch, channels, *sides), (out, _, *window) = (program[n].shape for n in node.inputs[:2])
    rank, counts = len(window), [n // w for n, w in zip(sides, window, strict=True)]
    length = channels * math.prod(window)

    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        x, weight, *bias = (refs[i] for i in node.inputs)
        for axis, (n, w) in enumerate(zip(counts, window, strict=True)):
            x = cut(b, x, axis + 2, 0, n * w)
        apart = x.reshape(batch, channels, *(e for pair in zip(counts, window, strict=True) for e in pair))
        first, last = range(2, 2 * rank + 2, 2), range(3, 2 * rank + 2, 2)
        rows = b.op("transpose", apart, perm=(0, *first, 1, *last)).reshape(batch, math.prod(counts), length)
        # one kernel copies them: tiles of a product in the image would be the columns of one window
        matrix = b.input(kept, (out, length), program[node.output].dtype) if kept else weight.reshape(out, length)
        y = b.op("scale", rows, scalar=1) @ matrix.T
        y = b.op("add", y, bias[0]) if bias else y
        turned = b.op("transpose", y, perm=(0, 2, 1))
        return b.op("reshape", turned, shape=(batch, out, *counts), name=node.output)

    return rule


def _mean(node: Node, shape: tuple[int, ...]) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        axes = tuple(range(len(shape) - 2 * POOLS[node.op] + 1, len(shape), 2))
        return b.op("mean", refs[node.inputs[0]].reshape(*shape), axis=axes, keepdims=False, name=node.output)

    return rule


def _scaled(program: TensorProgram, node: Node, norm: Node, params: Mapping[str, Array]) -> tuple[Array, Array] | None:
    """Weight and bias of a convolution with the normalization behind it; None where that is no constant."""
    if norm.op != "batch_norm" or norm.inputs[0] != node.output or not {*node.inputs[1:], *norm.inputs[1:]} <= params.keys():
        return None
    transposed = bool(CONVOLUTIONS[node.op])
    if transposed and node.attr.get("groups", 1) != 1:
        return None
    weight, *bias = (np.asarray(params[n], np.float64) for n in node.inputs[1:])
    mean, var, *affine = (np.asarray(params[n], np.float64) for n in norm.inputs[1:])
    gain, shift = (*affine, np.ones_like(mean), np.zeros_like(mean))[:2] if len(affine) != 1 else (affine[0], np.zeros_like(mean))
    scale = gain / np.sqrt(var + float(Scalar.of(program.bound(norm)["eps"]).value()))
    dtype = program[node.output].dtype
    along = (1, -1) if transposed else (-1, 1)
    found = [weight * scale.reshape(*along, *(1,) * (weight.ndim - 2)), shift + ((bias[0] if bias else 0.0) - mean) * scale]
    with np.errstate(over="ignore"):
        small = [rounded(x, dtype) for x in found]
    return (small[0], small[1]) if all(np.isfinite(x.astype(np.float32)).all() for x in small) else None


def _bare(node: Node, weight: str, shape: tuple[int, ...], dtype: str, name: str) -> Rule:
    """By other weights, under another name where the values are others."""

    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        return b.op(node.op, refs[node.inputs[0]], b.input(weight, shape, dtype), name=name, **dict(node.attrs))

    return rule


def _shifted(norm: Node, made: str, bias: str, shape: tuple[int, ...], dtype: str) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        return b.op("add", refs[made], _over_places(b.input(bias, shape, dtype), len(refs[made].shape)), name=norm.output)

    return rule


def _apart(node: Node, rank: int) -> Rule:
    def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
        x, weight, bias = (refs[i] for i in node.inputs)
        return b.op("add", b.op(node.op, x, weight, **dict(node.attrs)), _over_places(bias, rank), name=node.output)

    return rule


def _over_places(bias: Ref, rank: int) -> Ref:
    return bias.reshape(*bias.shape, *(1,) * (rank - 2)) if rank > 2 else bias
