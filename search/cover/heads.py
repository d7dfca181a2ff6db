"""Heads of one tensor that are multiplied by one matrix, as one product.

Queries and keys come side by side from one product, and a rotary embedding turns the heads of both alike: where the turn is a
product with a matrix (:mod:`search.cover.select`) it is one kernel for all heads, and its readers see slices of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.ops import Array
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from search.cover.rebuild import Rule
from search.cover.rebuild import rebuild
from search.cover.rebuild import shared


@dataclass(frozen=True)
class _Heads:
    """A product with a matrix of columns from ``start`` to ``stop`` of a tensor, cut into heads, whose dimensions are then in the
    order ``perm`` (as they were where it is empty)."""

    tensor: str
    matrix: str
    start: int
    stop: int
    perm: tuple[int, ...]
    end: str


def together(program: TensorProgram, params: Mapping[str, Array]) -> TensorProgram:
    """The program with products of neighbouring heads joined; a new one where some were."""
    groups: dict[tuple[str, str, str], list[_Heads]] = {}
    for node in program.nodes:
        if (found := _heads(program, node, params)) is not None:
            groups.setdefault((found.tensor, found.matrix, program[found.end].dtype), []).append(found)
    rules: dict[str, Rule] = {}
    for group in groups.values():
        if len(group) > 1 and _without_gaps(group):
            rules |= _slices(program, group)
    return rebuild(program, rules) if rules else program


def _heads(program: TensorProgram, node: Node, params: Mapping[str, Array]) -> _Heads | None:
    if not node.contracts or node.inputs[1] not in params or len(program[node.inputs[1]].shape) != 2:
        return None
    maker, perm = program.producers.get(node.inputs[0]), ()
    if maker is not None and maker.op == "transpose":
        perm = tuple(maker.attr["perm"])
        maker = program.producers.get(maker.inputs[0]) if perm[-1] == len(perm) - 1 else None
    if maker is None or maker.op != "reshape":
        return None
    rows, heads = program[maker.inputs[0]].shape, program[maker.output].shape
    cut = program.producers.get(maker.inputs[0])
    if cut is None or cut.op != "slice" or cut.attr["axis"] % len(rows) != len(rows) - 1 or heads[:-2] != rows[:-1]:
        return None
    start, stop = int(cut.attr["start"]), int(cut.attr["stop"])
    same = len({program[n].dtype for n in (cut.inputs[0], *node.inputs)}) == 1
    return _Heads(cut.inputs[0], node.inputs[1], start, stop, perm, node.output) if same else None


def _without_gaps(group: Sequence[_Heads]) -> bool:
    """Whether the columns follow each other, in whatever order, each once."""
    columns = sorted((h.start, h.stop) for h in group)
    return all(stop == start for (_, stop), (start, _) in pairwise(columns))


def _slices(program: TensorProgram, group: Sequence[_Heads]) -> dict[str, Rule]:
    """Each result as its heads of the one product."""
    first = group[0]
    rows, dtype = program[first.tensor].shape, program[first.end].dtype
    low, high = min(h.start for h in group), max(h.stop for h in group)
    width = program[first.matrix].shape[0]

    @shared
    def join(b: Builder, refs: dict[str, Ref]) -> Ref:
        x = refs[first.tensor]
        if high - low < rows[-1]:
            x = b.op("slice", x, axis=len(rows) - 1, start=low, stop=high, dtype=dtype)
        return b.op("matmul", x.reshape(*rows[:-1], (high - low) // width, width), refs[first.matrix], dtype=dtype)

    def heads(h: _Heads) -> Rule:
        def rule(b: Builder, refs: dict[str, Ref]) -> Ref:
            start, stop = ((n - low) // width for n in (h.start, h.stop))
            named = {} if h.perm else {"name": h.end}
            y = b.op("slice", join(b, refs), axis=len(rows) - 1, start=start, stop=stop, dtype=dtype, **named)
            return b.op("transpose", y, perm=h.perm, name=h.end, dtype=dtype) if h.perm else y

        return rule

    return {h.end: heads(h) for h in group}
