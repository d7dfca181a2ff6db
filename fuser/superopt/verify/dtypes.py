"""Dtypes of a µGraph against those of its program: nothing is narrower than the program has it, and casts that change values are
marked, so that a random test sees them."""

from __future__ import annotations

from dataclasses import replace

from fuser.errors import ProgramError
from fuser.ir.dtypes import ROUNDS
from fuser.ir.dtypes import Carried
from fuser.ir.dtypes import carried
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import TensorProgram


class DtypeError(ProgramError):
    """A µGraph that holds a value in a dtype that the program does not allow there."""

    code = "dtype"


def with_casts_marked(program: TensorProgram, graph: KernelGraph) -> tuple[TensorProgram, KernelGraph]:
    """Both with the attribute :data:`ROUNDS` at each cast that may change the values it gets. Raises :class:`DtypeError` naming
    the first statement of the µGraph whose dtype its operands and the program do not allow."""
    marked = _Program(program)
    return marked.run(), _Graph(program, graph, marked.narrowed).run()


def _mark(attrs: tuple[tuple[str, object], ...], source: Carried, dtype: str) -> tuple[tuple[str, object], ...]:
    kept = {k: v for k, v in attrs if k != ROUNDS}
    return tuple(sorted((kept | ({ROUNDS: True} if source.changed_by(dtype) else {})).items()))


class _Program:
    def __init__(self, program: TensorProgram) -> None:
        self.program = program
        self.narrowed: set[str] = set()
        """Dtypes that an operator of the program other than a cast rounds its result to."""

    def run(self) -> TensorProgram:
        program = self.program
        found: dict[str, Carried] = {n: Carried.of(program[n].dtype) for n in program.inputs}
        nodes = []
        for node in program.nodes:
            own = {"dtype": program[node.output].dtype, **node.attr}
            found[node.output] = carried(node.op, [found[n] for n in node.inputs], own)
            if not found[node.output].may_be(program[node.output].dtype):
                self.narrowed.add(program[node.output].dtype)
            if node.casts:
                node = replace(node, attrs=_mark(node.attrs, found[node.inputs[0]], own["dtype"]))
            nodes.append(node)
        return replace(program, nodes=tuple(nodes))


class _Graph:
    def __init__(self, program: TensorProgram, graph: KernelGraph, narrowed: set[str]) -> None:
        self.program, self.graph, self.narrowed = program, graph, narrowed
        self.dtype: dict[str, str] = {n: program[n].dtype for n in graph.inputs if n in program.table}
        self.tensors: dict[str, Carried] = {n: Carried.of(d) for n, d in self.dtype.items()}

    def run(self) -> KernelGraph:
        kernels: list[Kernel] = []
        for k in self.graph.kernels:
            kernels.append(self.library(k) if isinstance(k, LibraryKernel) else self.block(k))
        return replace(self.graph, kernels=tuple(kernels))

    def library(self, k: LibraryKernel) -> LibraryKernel:
        operands = [self.tensors.get(a, Carried()) for a in k.args]
        self.tensors[k.output] = carried(k.op, operands, dict(k.attrs))
        if k.output in self.program.outputs:
            self.allow(self.tensors[k.output], self.program[k.output].dtype, str(k))
            self.dtype[k.output] = self.program[k.output].dtype
        if k.entry.typed != "named":
            return k
        return replace(k, attrs=_mark(k.attrs, operands[0], str(dict(k.attrs)["dtype"])))

    def block(self, block: BlockGraph) -> BlockGraph:
        values: dict[str, Carried] = {}
        stmts = []
        for s in block.stmts:
            where = f"{block.name!r}: {s}"
            if s.access and s.kind == "load":
                values[s.value] = self.tensors.get(s.access.source, Carried())
                if s.dtype != self.dtype.setdefault(s.access.source, s.dtype):
                    raise DtypeError(f"{where} reads a tensor of {self.dtype[s.access.source]} as {s.dtype}")
            elif s.access:
                rounded = self.rounded(block, s, values)
                stmts += rounded
                s = replace(s, value=rounded[0].value) if rounded else s
                self.store(s, values[s.value], where)
            else:
                own = {"dtype": s.dtype, **s.attr}
                values[s.value] = carried(s.op, [values[a] for a in s.args], own)
                if s.casts:
                    s = replace(s, attrs=_mark(s.attrs, values[s.args[0]], own["dtype"]))
            self.allow(values[s.value], s.dtype, where)
            stmts.append(s)
        return replace(block, stmts=tuple(stmts))

    def rounded(self, block: BlockGraph, s: Stmt, values: dict[str, Carried]) -> list[Stmt]:
        """The cast that a store is, where it rounds to the dtype of an output."""
        found, name = values[s.value], f"{s.value} as {s.dtype}"
        if s.access is None or s.access.tensor not in self.program.outputs or found.may_be(s.dtype) or name in values:
            return []
        if self.program[s.access.tensor].dtype != s.dtype or s.dtype not in FLOAT_DTYPES:
            return []
        cast = Stmt("compute", name, block.by_value[s.value].axes, s.dtype, "cast", (s.value,))
        values[name] = carried("cast", [found], {"dtype": s.dtype})
        return [replace(cast, attrs=_mark((("dtype", s.dtype),), found, s.dtype))]

    def store(self, s: Stmt, found: Carried, where: str) -> None:
        tensor = s.at.tensor
        if tensor in self.program.outputs and s.dtype != self.program[tensor].dtype:
            raise DtypeError(f"{where} writes {s.dtype}, the program's output {tensor!r} is {self.program[tensor].dtype}")
        self.dtype[tensor], self.tensors[tensor] = s.dtype, found

    def allow(self, found: Carried, dtype: str, where: str) -> None:
        if not found.may_be(dtype) and dtype not in self.narrowed:
            raise DtypeError(
                f"{where} is {dtype}, which does not hold {' or '.join(sorted(found.least))}",
                "keep it in that dtype or a wider one, or cast where the program does",
            )
