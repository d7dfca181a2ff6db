"""Cutting programs: a set of nodes as a program of its own."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fuser.errors import ProgramError
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import bound
from fuser.ir.scalar import renamed
from fuser.ir.scalar import tied


def subprogram(program: TensorProgram, outputs: Collection[str], name: str) -> TensorProgram:
    """The nodes whose outputs are in ``outputs``, as a program: what they read from elsewhere are its inputs, what is read
    elsewhere (or is an output of the whole) its outputs. Constants tied to tensors outside become numbers."""
    chosen = set(outputs)
    if others := chosen - program.producers.keys():
        raise ProgramError(f"{sorted(others)} are not results of nodes of {program.name!r}")
    nodes = tuple(program.producers[n] for n in sorted(chosen, key=program.places.__getitem__))
    reads = dict.fromkeys(i for n in nodes for i in n.inputs)
    inputs = tuple(i for i in reads if i not in chosen)
    leaves = tuple(
        n.output
        for n in nodes
        if n.output in program.outputs or any(user.output not in chosen for user in program.consumers[n.output])
    )
    inside = chosen | set(inputs)

    def place(e: Extent) -> Extent | int:
        return e if e.tensor in inside else program.extent(e)

    # as valid as the whole
    return TensorProgram(
        name,
        inputs,
        tuple(replace(n, attrs=tuple(bound(n.attrs, place).items())) if tied(n.attrs) else n for n in nodes),
        leaves,
        tuple(program[n] for n in sorted(inside, key=program.ranks.__getitem__)),
    )


def living(program: TensorProgram, kept: Collection[str] = ()) -> TensorProgram:
    """The program without operators and inputs that no output needs, but with those ``kept``."""
    needed = {*program.outputs, *kept}
    for node in reversed(program.nodes):
        if node.output in needed:
            needed |= set(node.inputs)
    nodes = tuple(n for n in program.nodes if n.output in needed)
    inputs = tuple(n for n in program.inputs if n in needed)
    tensors = tuple(t for t in program.tensors if t.name in needed)

    def place(e: Extent) -> Extent | int:
        return e if e.tensor in needed else program.extent(e)

    alive = tuple(replace(n, attrs=tuple(bound(n.attrs, place).items())) for n in nodes)
    return TensorProgram(program.name, inputs, alive, program.outputs, tensors).validate()


def convex(program: TensorProgram, outputs: Collection[str]) -> bool:
    """No path leaves the set and enters it again, so that it can run as one step."""
    chosen = set(outputs)
    tainted: set[str] = set()
    for node in program.nodes:
        if node.output in chosen:
            if any(i in tainted for i in node.inputs):
                return False
        elif any(i in chosen or i in tainted for i in node.inputs):
            tainted.add(node.output)
    return True


def canonical(program: TensorProgram, name: str = "region") -> tuple[TensorProgram, dict[str, str]]:
    """The same program with tensors renamed in order of appearance (inputs x0, x1, …; results y0, y1, …), and the renaming:
    equal regions of a model become equal programs, and are tuned once."""
    new: dict[str, str] = {n: f"x{i}" for i, n in enumerate(program.inputs)}
    new |= {n.output: f"y{i}" for i, n in enumerate(program.nodes)}
    result = _renamed(program, new, name)  # as valid as before: all names are different
    order = {n: i for i, n in enumerate(new.values())}
    return _one(replace(result, tensors=tuple(sorted(result.tensors, key=lambda t: order[t.name])))), new


@lru_cache(1 << 12)
def _one(program: TensorProgram) -> TensorProgram:
    """Equal programs are one object, which is digested once."""
    return program


def rename(program: TensorProgram, new: dict[str, str], name: str) -> TensorProgram:
    """Rename tensors; those not in ``new`` keep their names."""
    return _renamed(program, new, name).validate()


def _renamed(program: TensorProgram, new: dict[str, str], name: str) -> TensorProgram:
    def of(n: str) -> str:
        return new.get(n, n)

    def names(xs: Sequence[str]) -> tuple[str, ...]:
        return tuple(of(x) for x in xs)

    def attrs(n: Node) -> tuple[tuple[str, Any], ...]:
        return tuple(renamed(n.attrs, of).items()) if tied(n.attrs) else n.attrs

    return TensorProgram(
        name,
        names(program.inputs),
        tuple(Node(n.op, names(n.inputs), of(n.output), attrs(n)) for n in program.nodes),
        names(program.outputs),
        tuple(Tensor(of(t.name), t.shape, t.dtype) for t in program.tensors),
    )
