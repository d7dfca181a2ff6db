"""The chosen parts as one kernel graph with one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuser.ir.candidate import Candidate
from fuser.ir.fuse import identifier
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import Array
from fuser.ir.pitched import rows_of
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.rows import in_rows
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.given_options import tensor_of
from fuser.lower.options import option_of
from search.cover.parts import Part
from search.cover.parts import Stored
from search.cover.parts import stored_name


def stitch(
    program: TensorProgram, params: Mapping[str, Array], chosen: Sequence[tuple[Part, Candidate]]
) -> tuple[Candidate, dict[str, Array]]:
    """The kernels of every part in turn, over the tensors of the model, and the parameters as they are to lie in memory."""
    kernels: list[Kernel] = []
    schedules: list[KernelSchedule] = []
    taken, written = set(program.table), {stored_name(s) for part, _ in chosen for s in part.leaves}
    pitched: dict[str, Stored] = {}
    for number, (part, candidate) in enumerate(chosen):
        graph = candidate.graph
        rows = rows_of(graph)
        new = {ours: stored_name((theirs, rows.get(ours, 0))) for theirs, ours in part.names}
        pitched |= {new[ours]: (theirs, rows[ours]) for theirs, ours in part.names if ours in rows}
        for name in graph.intermediates:
            # a view inside of one part may be what another one writes
            if new.get(name) in (None, *written):
                new[name] = _fresh(f"{identifier(part.writes[0])}.{name}", taken)
            written.add(new[name])
        prefix = f"{part.program.name}_{number}"
        for i, kernel in enumerate(graph.kernels):
            kernels.append(renamed(kernel, new, prefix if len(graph.kernels) == 1 else f"{prefix}_{i}"))
        schedules += (on_tensors(s, new) for s in candidate.schedule.kernels)
    reads = {t for k in kernels for t in k.inputs}
    longer = {new: stored for new, stored in pitched.items() if stored[0] in params and new in reads}
    gone = {name for name, _ in longer.values()} - reads
    inputs = (*(n for n in program.inputs if n not in gone), *longer)
    tensors = {n: program[n] for n in (*program.inputs, *program.outputs) if n not in gone}
    tensors |= {n: program[n] for n in joined(program, kernels)}
    laid = {n: x for n, x in params.items() if n not in gone}
    for new, (name, pitch) in longer.items():
        shape = (*program[name].shape[:-1], pitch)
        tensors[new], laid[new] = Tensor(new, shape, program[name].dtype), in_rows(params[name], shape)
    whole = KernelGraph(program.name, inputs, tuple(kernels), program.outputs, tuple(tensors.values()))
    return Candidate(whole.validate(), Schedule(tuple(schedules))), laid


def joined(program: TensorProgram, kernels: Sequence[Kernel]) -> list[str]:
    """Tensors of the model that a kernel writes with fewer dimensions than others read."""
    stores = [s.access for k in kernels if isinstance(k, BlockGraph) for s in k.stores if s.access]
    return [a.tensor for a in stores if a.tensor in program.table and len(a.dims) < len(program[a.tensor].shape)]


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def on_tensors(schedule: KernelSchedule, new: Mapping[str, str]) -> KernelSchedule:
    """The schedule with other names of device tensors, after which some of its options are named."""
    knobs: dict[str, Any] = {}
    for name, value in schedule.knobs:
        option, tensor = option_of(name), tensor_of(name)
        knobs[option.key(new.get(tensor, tensor)) if option and tensor else name] = value
    return replace(schedule, knobs=tuple(sorted(knobs.items())))


def renamed(kernel: Kernel, new: Mapping[str, str], name: str) -> Kernel:
    """The kernel with other names of device tensors."""

    def of(tensor: str) -> str:
        return new.get(tensor, tensor)

    if not isinstance(kernel, BlockGraph):
        return replace(kernel, name=name, args=tuple(map(of, kernel.args)), output=of(kernel.output))

    def access(a: Access) -> Access:
        if a.window:
            return replace(a, tensor=a.tensor, window=replace(a.window, tensor=of(a.window.tensor)))
        return replace(a, tensor=of(a.tensor))

    return replace(kernel, name=name, stmts=tuple(replace(s, access=access(s.access)) if s.access else s for s in kernel.stmts))
