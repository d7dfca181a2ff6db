"""Stable exponentials: where a shift of the exponents cancels, keep a running maximum and rescale.

The algebra uses bare ``exp``. Give every exponential an independent factor λ for each index of the axes that its sums keep, and infer the
degree of every value in λ: products add, quotients subtract, sums and differences need equality, everything else needs degree 0. If every output
has degree 0, any shift per index is allowed; lowering then subtracts the running maximum and rescales each accumulator of degree d by
exp(d · Δ maximum), which is online softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def


@dataclass(frozen=True)
class Licence:
    """What was found for one exponential: ``axes`` over which the maximum is taken and the degree of every value that has one."""

    exponential: str
    axes: tuple[str, ...]
    degrees: tuple[tuple[str, int], ...]
    refused: str = ""

    @property
    def granted(self) -> bool:
        return not self.refused


def licences(block: BlockGraph) -> tuple[Licence, ...]:
    """One :class:`Licence` for each exponential of the block; ``refused`` says why a shift would change the result."""
    return tuple(_license(block, s) for s in block.computes if s.op == "exp")


def _license(block: BlockGraph, exp: Stmt) -> Licence:
    degree: dict[str, int] = {exp.value: 1}
    summed: set[str] = set()

    def refuse(why: str) -> Licence:
        return Licence(exp.value, (), tuple(degree.items()), why)

    for s in block.computes:
        if s is exp or not any(a in degree for a in s.args):
            continue
        ds = [degree.get(a, 0) for a in s.args]
        rule = op_def(s.op).degree
        if rule == "add":
            d = sum(ds)
        elif rule == "sub":
            d = ds[0] - ds[1]
        elif rule == "same":
            d = ds[0]
        elif rule == "equal" and len(set(ds)) == 1:
            d = ds[0]
        elif not any(ds):
            d = 0
        else:
            return refuse(f"{s.value} = {s.op}({', '.join(s.args)}) has operands of degrees {ds}")
        if d and s.op == "max":
            return refuse(f"{s.value} takes a maximum of values of degree {d}")
        if s.folds and any(ds):
            summed |= set(s.reduce)
        if d:
            degree[s.value] = d
    for s in block.stores:
        if degree.get(s.value, 0):
            return refuse(f"output {s.value} has degree {degree[s.value]}: no division takes the factor out")
    over = tuple(a for a in block.by_value[exp.args[0]].axes if a in summed)
    if not over:
        return refuse("nothing is summed over its axes")
    # a sum keeps the factor only if the factor does not vary along it
    kept = set(block.by_value[exp.args[0]].axes) - set(over)
    for s in block.computes:
        if s.folds and set(s.reduce) & kept and any(degree.get(a, 0) for a in s.args):
            return refuse(f"{s.value} sums over {sorted(set(s.reduce) & kept)}, along which the maximum varies")
    return Licence(exp.value, over, tuple((v, d) for v, d in degree.items()))


def stabilize(block: BlockGraph) -> BlockGraph:
    """The block with a running maximum for every exponential that is licensed; the others stay as they are."""
    for licence in licences(block):
        if licence.granted:
            block = _shift(block, licence)
    return block.validate()


def _shift(block: BlockGraph, licence: Licence) -> BlockGraph:
    degree = dict(licence.degrees)
    out: list[Stmt] = []
    for s in block.stmts:
        if s.kind == "compute" and s.value == licence.exponential:
            (x,) = s.args
            axes = block.by_value[x].axes
            top, shifted = f"{s.value}_max", f"{s.value}_shifted"
            gained = tuple(g for a, g in block.splits if a in licence.axes)
            kept = tuple(a for a in axes if a not in licence.axes) + gained
            out.append(Stmt("compute", top, kept, "float32", "max", (x,), licence.axes))
            out.append(Stmt("compute", shifted, axes, "float32", "sub", (x, top), running=(top,)))
            out.append(replace(s, args=(shifted,)))
        elif s.kind == "compute" and s.folds and degree.get(s.value):
            rescale = (*s.rescale, Rescale(f"{licence.exponential}_max", degree[s.value]))
            out.append(replace(s, rescale=rescale))
        else:
            out.append(s)
    return replace(block, stmts=tuple(out))
