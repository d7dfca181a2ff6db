"""Images with their channels last between convolutions: there libraries are up to twice as fast, since they need not turn them.

A convolution and what stands behind it element by element read and write channels last; what knows no such form gets the tensor
turned back, which costs nothing where a generated kernel reads or writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from cost_model.program_time import faster_last
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.library_ops import CONVOLUTIONS
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.program import FLOATS
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import living
from search.cover.rebuild import copied
from search.cover.rebuild import rebuild
from search.cover.shown import moves_only

POOLS = {f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}


def channels_last(program: TensorProgram, params: Mapping[str, Array]) -> tuple[TensorProgram, dict[str, Array]]:
    """The program with channels last where that pays, and its parameters; both are new where something changed."""
    images = {n.output for n in program.nodes if len(n.inputs) == 2 and (faster_last(program, n) or _given_last(program, n))}
    if not images:
        return program, dict(params)
    turning = _Turning(program, images, dict(params))
    made = turning.run()
    return made, {n: x for n, x in turning.params.items() if n in made.inputs or n not in turning.laid}


def seen_first(program: TensorProgram, name: str) -> str:
    """What has its channels last, of which a tensor is a view with them first; empty where it is none."""
    made, rank = program.producers.get(name), len(program[name].shape)
    turned = made is not None and made.op == "transpose" and made.attr["perm"] == (0, rank - 1, *range(1, rank - 1))
    return made.inputs[0] if made is not None and turned else ""


def _given_last(program: TensorProgram, node: Node) -> bool:
    """Whether a convolution is of an image that lies with its channels last: what a library makes of it does, too."""
    given = seen_first(program, node.inputs[0]) if node.op in CONVOLUTIONS and program[node.output].dtype in FLOATS else ""
    return given != "" and given not in program.producers


def moved(b: Builder, x: Ref, name: str | None = None) -> Ref:
    """A view as a tensor of its own, by a generated kernel: a library's copies of views are slow."""
    return b.op("scale", x, scalar=1, name=name)


def moved_once(program: TensorProgram) -> TensorProgram:
    """The program with results that are turned views of what no generated kernel makes, and repetitions, as copies by generated
    kernels."""
    rules: dict[str, Any] = {}
    for node in program.nodes:
        if program[node.output].dtype not in FLOATS:
            continue
        if node.op == "repeat":
            rules[node.output] = _repeated
        elif node.output in program.outputs and _turned(program, node.output):
            rules[node.output] = _copied
    return rebuild(program, {n: partial(rule, program, program.producers[n]) for n, rule in rules.items()}) if rules else program


def _turned(program: TensorProgram, name: str) -> bool:
    ops = set[str]()
    while (node := program.producers.get(name)) is not None and moves_only(node):
        ops.add(node.op)
        (name,) = node.inputs
    return "transpose" in ops and (node is None or op_def(node.op).kind in ("library", "opaque"))


def _copied(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    return moved(b, b.op(node.op, *(refs[i] for i in node.inputs), **dict(node.attrs)), node.output)


def _repeated(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    x, (axis, times) = refs[node.inputs[0]], (node.attr["axis"] % len(program[node.output].shape), node.attr["times"])
    lead, n, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    apart = b.op("broadcast", x.reshape(*lead, n, 1, *rest), shape=(*lead, n, times, *rest))
    again = node.output not in program.outputs and all(u.op == "repeat" for u in program.consumers[node.output])
    whole = b.op("reshape", apart, shape=(*lead, n * times, *rest), name=node.output if again else None)
    return whole if again else moved(b, whole, node.output)


@dataclass
class _Turning:
    program: TensorProgram
    images: set[str]
    params: dict[str, Array]
    laid: set[str] = field(default_factory=set)

    def run(self) -> TensorProgram:
        program = self.program
        self.b = Builder(program.name, reserved=frozenset(program.table))
        self.plain = {n: self.b.input(n, program[n].shape, program[n].dtype) for n in program.inputs}
        self.last: dict[str, Ref] = {}
        self.native = set[str]()
        for node in program.nodes:
            if (made := self.turned(node)) is not None:
                self.last[node.output] = made
                self.native.add(node.output)
            elif (seen := self.regrouped(node)) is not None:
                self.plain[node.output] = seen
            else:
                self.plain[node.output] = copied(self.b, program, node, [self.first(n) for n in node.inputs])
        unread = {n for n in program.inputs if not program.consumers[n]}
        ends = {n: self.end(n) for n in dict.fromkeys(program.outputs)}
        return living(self.b.build(*(ends[n] for n in program.outputs)), unread)

    def first(self, name: str, called: str = "") -> Ref:
        """A tensor as the program has it."""
        if name not in self.plain:
            x = self.last[name]
            rank = len(x.shape)
            called = called or f"{name} channels first"
            self.plain[name] = self.b.op("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)), name=called)
        return self.plain[name]

    def regrouped(self, node: Node) -> Ref | None:
        """An image whose channels and pixels are grouped otherwise (heads of attention, say), as a view of it with channels last:
        elsewhere it would be turned back in memory."""
        if not node.regroups or node.inputs[0] not in self.native or node.output in self.program.outputs:
            return None
        image, wanted = self.program[node.inputs[0]].shape, self.program[node.output].shape
        ends = [k for k in range(1, len(wanted) + 1) if math.prod(wanted[1:k]) == image[1]]
        if wanted[:1] != image[:1] or not ends:
            return None
        channels, pixels = wanted[1 : ends[0]], wanted[ends[0] :]
        apart = self.b.op("reshape", self.last[node.inputs[0]], shape=(image[0], *pixels, *channels))
        first = 1 + len(pixels)
        perm = (0, *range(first, first + len(channels)), *range(1, first))
        return self.b.op("transpose", apart, perm=perm, name=node.output)

    def end(self, name: str) -> Ref:
        """A result of the program, under its name."""
        if name not in self.native:
            return self.plain[name]
        if self.program[name].dtype not in FLOATS:
            return self.b.op("reshape", self.first(name), shape=self.program[name].shape, name=name)
        return moved(self.b, self.first(name), name)

    def behind(self, name: str, rank: int) -> Ref:
        """A tensor with its channels last; of fewer dimensions, as a tensor of ``rank`` that is broadcast."""
        if (
            name not in self.last
            and (lying := seen_first(self.program, name)) in self.plain
            and len(self.program[name].shape) == rank
        ):
            self.last[name] = self.plain[lying]
        if name not in self.last:
            x = self.plain[name]
            whole = len(x.shape) == rank and x.tensor.dtype in FLOATS and name not in self.params
            if len(x.shape) < rank:
                x = x.reshape(*(1,) * (rank - len(x.shape)), *x.shape)
            x = self.b.op("transpose", x, perm=(0, *range(2, rank), 1))
            # what generated kernels make for this reader alone, they store so
            made, alone = self.program.producers.get(name), len(self.program.consumers[name]) == 1
            stored = made is not None and alone and op_def(made.op).kind in ("map", "composite", "reduce")
            self.last[name] = moved(self.b, x) if whole and not stored else x
        return self.last[name]

    def turned(self, node: Node) -> Ref | None:
        """The result of an operator with channels last, where all goes well."""
        rank = len(self.program[node.output].shape)
        name = f"{node.output} channels last"
        attrs = {k: v for k, v in node.attrs if k != "dtype"}
        dtype = self.program[node.output].dtype
        if node.output in self.images or (node.op in CONVOLUTIONS and len(node.inputs) == 2 and node.inputs[0] in self.native):
            return self.b.op(
                f"{node.op}_last", self.behind(node.inputs[0], rank), self.weight(node.inputs[1]), name=name, **attrs
            )
        if not any(n in self.native and len(self.last[n].shape) == rank for n in node.inputs):
            return None
        if node.op in POOLS:
            return self.b.op(f"{node.op}_last", self.last[node.inputs[0]], name=name, **attrs)
        if node.op == "batch_norm" and node.inputs[0] in self.native:
            return self.normalized(node, name, dtype)
        if node.op == "concat" and attrs["axis"] % rank == 1:
            xs = [self.behind(n, rank) for n in node.inputs]
            return self.b.op("concat", *xs, name=name, **{**attrs, "axis": rank - 1})
        if op_def(node.op).kind != "map" or op_def(node.op).indexed:
            return None
        xs = [self.behind(n, rank) if self.program[n].shape else self.plain[n] for n in node.inputs]
        return self.b.op(node.op, *xs, name=name, dtype=dtype, **attrs)

    def normalized(self, node: Node, name: str, dtype: str) -> Ref:
        """A normalization by statistics that are known, vectors of channels."""
        x, (mean, var, *affine) = self.last[node.inputs[0]], (self.plain[n] for n in node.inputs[1:])
        y = self.b.op("sub", x, mean)
        steps = [
            ("div", self.b.op("sqrt", self.b.op("shift", var, scalar=node.attr["eps"]))),
            *zip(("mul", "add"), affine, strict=False),
        ]
        for i, (op, v) in enumerate(steps):
            y = self.b.op(op, y, v, **({"name": name, "dtype": dtype} if i == len(steps) - 1 else {}))
        return y

    def weight(self, name: str) -> Ref:
        """A weight with its input channels last: parameters are laid so once."""
        kept = f"{name} channels last"
        shape = self.program[name].shape
        if name not in self.params:
            return self.b.op("transpose", self.plain[name], perm=(0, *range(2, len(shape)), 1))
        if kept not in self.plain:
            self.params[kept] = np.ascontiguousarray(np.moveaxis(self.params[name], 1, -1))
            self.laid.add(name)
            self.plain[kept] = self.b.input(kept, self.params[kept].shape, self.program[name].dtype)
        return self.plain[kept]
