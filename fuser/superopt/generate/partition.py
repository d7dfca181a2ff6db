"""LAX subprograms (Mirage, section 5): the pieces of a program that are superoptimized, and the rest.

A piece holds multilinear operators, divisions, element-wise functions, and at most one exponential on any path; functions
other than exp stay uninterpreted. What copies data (concat, slice) or mixes axes is the rest, and is left as it stands, unless
it is only another place to load from (:mod:`fuser.ir.windows`). A program that is one piece has one; a longer one is cut
greedily in program order, where few tensors are alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fuser.errors import UnsupportedError
from fuser.ir.axes import axes_of
from fuser.ir.composites import expand
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import subprogram

MAX_OPERATORS = 12
"""Most operators of a piece, composites counting as one: beyond, a search would not end."""


@dataclass(frozen=True)
class Piece:
    """A part of a program in execution order; ``why`` says why it is not a LAX subprogram, if it is none."""

    program: TensorProgram
    why: str = ""

    @property
    def lax(self) -> bool:
        return not self.why


@lru_cache(maxsize=8)
def partition(program: TensorProgram, max_operators: int = MAX_OPERATORS) -> tuple[Piece, ...]:
    """The program as LAX pieces and the rest. Their inputs and outputs are tensors of the program."""
    runs: list[tuple[list[Node], str]] = []
    for node in program.nodes:
        why = _outside(node)
        if why:
            if runs and runs[-1][1]:
                runs[-1][0].append(node)
            else:
                runs.append(([node], why))
        elif runs and not runs[-1][1] and _fits(program, [*runs[-1][0], node], max_operators):
            runs[-1][0].append(node)
        else:
            runs.append(([node], ""))
    pieces: list[Piece] = []
    for i, (nodes, why) in enumerate(runs):
        name = program.name if len(runs) == 1 else f"{program.name}.{i}"
        part = subprogram(program, [n.output for n in nodes], name) if len(runs) > 1 else program
        if not why and not any(n.entry.kind != "view" for n in nodes):
            why = "only views"
        pieces.append(Piece(part, why or _unwritable(part)))
    return tuple(pieces)


def _outside(node: Node) -> str:
    kind = node.entry.kind
    return "" if kind in ("map", "contract", "reduce", "view", "composite") else f"{node.op} copies data"


def _unwritable(program: TensorProgram) -> str:
    """Why a piece cannot be written over axes, if it cannot."""
    try:
        axes_of(expand(program))
    except UnsupportedError as error:
        return error.message
    return ""


def _fits(program: TensorProgram, nodes: list[Node], max_operators: int) -> bool:
    """The nodes together are a LAX subprogram of acceptable size."""
    if sum(n.entry.kind != "view" for n in nodes) > max_operators:
        return False
    depth: dict[str, int] = {}
    for n in nodes:
        depth[n.output] = max((depth.get(i, 0) for i in n.inputs), default=0) + (n.entry.has_exponential)
        if depth[n.output] > 1:
            return False
    return not _unwritable(subprogram(program, [n.output for n in nodes], program.name))
