"""From a program to a µGraph of one kernel that does all of it: views become accesses, operators become statements."""

from __future__ import annotations

import re
from collections.abc import Collection

from fuser.errors import UnsupportedError
from fuser.ir.axes import AxisMap
from fuser.ir.axes import Dims
from fuser.ir.axes import axes_of
from fuser.ir.axes import views_apart
from fuser.ir.composites import expand
from fuser.ir.mugraph import AXIS
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import bound
from fuser.ir.windows import copies_data
from fuser.ir.windows import windowed


def fuse(program: TensorProgram) -> KernelGraph:
    """One graph-defined kernel for the whole program, with the operators as they stand (no algebra, no stabilization).

    Raises :class:`UnsupportedError` naming the operator or tensor that cannot be part of one block.
    """
    program = views_apart(expand(program))
    if copies_data(program):
        boxes = windowed(program)
        return boxes.attach(fuse(boxes.program))
    if unused := [n for n in program.outputs if n in program.inputs]:
        raise UnsupportedError(f"output {unused[0]!r} of {program.name!r} is an input", "a kernel would only copy it")
    block = fuse_nodes(program, axes_of(program))
    return KernelGraph(
        program.name,
        program.inputs,
        (block,),
        program.outputs,
        tuple(program[n] for n in dict.fromkeys((*program.inputs, *program.outputs))),
    ).validate()


def fuse_nodes(program: TensorProgram, axes: AxisMap, nodes: Collection[str] | None = None, name: str = "") -> BlockGraph:
    """One block that computes the results ``nodes`` (all, if not given) of a program of primitive operators whose axes are
    known; it reads the program's inputs and results of earlier kernels, and stores what is an output or is read outside."""
    return _Fuser(program, axes, nodes).run(identifier(name or program.name))


class _Fuser:
    def __init__(self, program: TensorProgram, axes: AxisMap, nodes: Collection[str] | None) -> None:
        self.program, self.map = program, axes
        self.chosen = {n.output for n in program.nodes} if nodes is None else set(nodes)
        self.stmts: list[Stmt] = []
        self.value: dict[str, str] = {}  # program tensor -> value of the block
        self.axes: dict[str, tuple[str, ...]] = {}  # value -> axes
        self.pending: dict[str, Access] = {}  # view of an input, not loaded yet
        self.loaded: dict[Access, str] = {}

    def run(self, name: str) -> BlockGraph:
        program = self.program
        for i, node in enumerate(program.nodes):
            if node.output not in self.chosen:
                continue
            kind = node.entry.kind
            if kind == "view":
                self.view(i, node.inputs[0], node.output)
                continue
            if kind not in ("map", "contract", "reduce"):
                raise UnsupportedError(f"operator {node.op!r} ({node.output}) cannot be part of a block")
            args = tuple(self.operand(i, j, n) for j, n in enumerate(node.inputs))
            reduce = self.reduced(i, kind)
            union = {a for v in args for a in self.axes[v]}
            if kind == "reduce" and not set(reduce) <= union:
                raise UnsupportedError(f"{node.output!r} sums over an axis along which its operand is only broadcast")
            axes = ordered(union - set(reduce), self.map.axes)
            attrs = {k: v for k, v in bound(node.attrs, self.on_axes).items() if k not in ("axis", "keepdims")}
            if node.indexed:
                sides = self.map.values[node.output][-2:]
                if joined := [d for d in sides if len(d) > 1]:
                    raise UnsupportedError(
                        f"the mask {node.output!r} counts elements along {'·'.join(joined[0])}, which are several axes",
                        "mask before the reshape that joins them",
                    )
                attrs |= {name: d[0] if d else "" for name, d in zip(("rows", "cols"), sides, strict=True)}
            dtype = program[node.output].dtype
            self.stmts.append(Stmt("compute", node.output, axes, dtype, node.op, args, reduce, tuple(sorted(attrs.items()))))
            self.value[node.output], self.axes[node.output] = node.output, axes
        for tensor in self.leaves():
            access = Access(tensor, self.map.values[tensor])
            if tensor not in self.value:
                raise UnsupportedError(f"output {tensor!r} is only a view of an input")
            self.stmts.append(Stmt("store", self.value[tensor], access.axes, program[tensor].dtype, access=access))
        used = {a for s in self.stmts for a in (*s.related, *s.constant_axes)}
        return BlockGraph(name, tuple(a for a in self.map.axes if a.name in used), tuple(self.stmts)).validate()

    def leaves(self) -> tuple[str, ...]:
        """What must be stored: outputs of the program, and what a node outside of the block reads."""
        return tuple(
            n.output
            for n in self.program.nodes
            if n.output in self.chosen
            and (
                n.output in self.program.outputs
                or (any(u.output not in self.chosen for u in self.program.consumers[n.output]) and n.entry.kind != "view")
            )
        )

    def view(self, i: int, source: str, output: str) -> None:
        if source in self.value:
            self.value[output] = self.value[source]
        else:
            self.pending[output] = self.pending.get(source) or self.access(i, 0, source)

    def access(self, i: int, j: int, tensor: str) -> Access:
        """How node i reads a device tensor: an input as this use has it, the result of an earlier kernel as it was written."""
        return Access(tensor, self.map.values[tensor] if tensor in self.map.values else self.map.uses[i, j])

    def operand(self, i: int, j: int, name: str) -> str:
        if name in self.value:
            return self.value[name]
        access = self.pending.get(name) or self.access(i, j, name)
        if access not in self.loaded:
            taken = sum(a.tensor == access.tensor for a in self.loaded)
            value = access.tensor if not taken else f"{access.tensor}'{taken + 1}"
            dtype = self.program[access.tensor].dtype
            axes = ordered(access.axes, self.map.axes)
            self.stmts.append(Stmt("load", value, axes, dtype, access=access))
            self.loaded[access], self.axes[value] = value, axes
        return self.loaded[access]

    def on_axes(self, e: Extent) -> tuple[Extent, ...]:
        """What a constant is tied to in the block: the axes that make up the dimension of a tensor."""
        return tuple(Extent(axis, AXIS) for axis in self.dims(e.tensor)[e.dim])

    def dims(self, tensor: str) -> Dims:
        if tensor in self.map.values:
            return self.map.values[tensor]
        for (i, j), dims in self.map.uses.items():
            if self.program.nodes[i].inputs[j] == tensor:
                return dims
        raise UnsupportedError(f"a constant depends on the extent of {tensor!r}, which the program does not read")

    def reduced(self, i: int, kind: str) -> tuple[str, ...]:
        node = self.program.nodes[i]
        if kind == "contract":
            dims: Dims = self.map.uses[i, 0][-1:]
        elif kind == "reduce":
            used = self.map.uses[i, 0]
            dims = tuple(used[x % len(used)] for x in node.attr["axis"])
        else:
            return ()
        return ordered((a for d in dims for a in d), self.map.axes)


def identifier(name: str) -> str:
    """A name that is an identifier in generated source."""
    text = re.sub(r"\W+", "_", name).strip("_") or "t"
    return text if not text[0].isdigit() else f"t{text}"
