"""Does a µGraph read and write the tensors of its program? What is asked before any axes are tied."""

from __future__ import annotations

import math

from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.windows import detach
from fuser.ir.windows import windowed


class MismatchError(ProgramError):
    """A µGraph whose tensors do not fit those of the program."""

    code = "mismatch"


def check_tensors(program: TensorProgram, graph: KernelGraph) -> None:
    """The µGraph's tensors are those of the program, in shape and dtype, and its windows lie in tensors of these shapes; raises
    :class:`MismatchError`."""
    for t in graph.tensors:
        if t.name in (*program.inputs, *program.outputs) and t != program[t.name]:
            raise MismatchError(f"{t} of {graph.name!r} has another shape or dtype than {program[t.name]} of {program.name!r}")
    table = graph.device_tensors | {n: program[n] for n in program.inputs}
    for k in graph.blocks:
        for s in k.loads:
            window = s.access.window if s.access else None
            if window and (window.tensor not in table or table[window.tensor].shape != window.shape):
                raise MismatchError(
                    f"{k.name!r}: {s} reads a window of a tensor of shape {window.shape}, "
                    f"not of {table.get(window.tensor, repr(window.tensor))}"
                )


def without_windows(program: TensorProgram, graph: KernelGraph) -> tuple[TensorProgram, KernelGraph]:
    """Both with the boxes that they read as inputs of their own: what is equal for any values of these is equal for the slices
    of one tensor. Raises :class:`UnsupportedError` where the µGraph reads other boxes than the program."""
    graph, between = detach(graph)
    if unknown := between - set(program.producers):
        raise UnsupportedError(f"{graph.name!r} reads slices of {sorted(unknown)}, which are not tensors of {program.name!r}")
    found = windowed(program, between)
    if (found.windows or between) and (other := set(graph.inputs) - set(found.program.inputs)):
        raise UnsupportedError(f"{graph.name!r} reads {sorted(other)}, {program.name!r} other slices of these tensors")
    return found.program, graph


def check_interface(program: TensorProgram, graph: KernelGraph) -> None:
    """The µGraph reads inputs of the program and writes each of its outputs, in their shapes; raises :class:`MismatchError`."""
    if unknown := set(graph.inputs) - set(program.inputs):
        raise MismatchError(f"{graph.name!r} reads {sorted(unknown)}, which are not inputs of {program.name!r}")
    written = {t for k in graph.kernels for t in k.outputs}
    if missing := set(program.outputs) - set(graph.outputs) | (set(program.outputs) - written):
        raise MismatchError(f"{graph.name!r} does not write the outputs {sorted(missing)} of {program.name!r}")
    if len(graph.outputs) > len(program.outputs):
        raise MismatchError(f"{graph.name!r} has the outputs {', '.join(graph.outputs)}, not {', '.join(program.outputs)}")
    for k in graph.blocks:
        for s in k.stmts:
            if s.access and s.access.tensor in program.table and s.access.tensor in (*program.inputs, *program.outputs):
                shape, wanted = s.access.shape(k.extents), program[s.access.tensor].shape
                joined = len(shape) < len(wanted) and math.prod(shape) == math.prod(wanted)
                if shape != wanted and not joined:
                    raise MismatchError(f"{k.name!r}: {s} has shape {shape}, not {wanted}")
