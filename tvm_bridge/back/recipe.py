"""The plan of a compiled program as a list of steps, for a runtime that is not ours: launches with all that their ABI asks for,
calls of what only a library computes, and the tensors between them. Values alone: nothing here needs TVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

from fuser.errors import ProgramError
from fuser.errors import UsageError
from fuser.ir.candidate import paired
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.lower.compile import KernelArtifact
from fuser.runtime.binding import may_overlap
from fuser.runtime.library import constants
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan
from search.buckets.places import Dims
from search.compiled import CompiledProgram
from tvm_bridge.back.embed import WARP
from tvm_bridge.back.embed import entry_parameters


@dataclass(frozen=True)
class Launch:
    """A generated kernel over the tensors ``args``, in the order of its parameters; ``outputs`` are those that it writes.
    ``hidden`` counts the pointers that Triton's convention adds, which are null. ``dependent``: it may start while the kernel in
    front of it drains. The source's sizes are those of symbols; tensors of open sizes are in the recipe's ``dims``, and those in
    ``sized`` are only read for theirs."""

    artifact: KernelArtifact = field(repr=False)
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: int
    dependent: bool
    sized: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        return self.artifact.name

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.artifact.num_warps

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that it is given."""
        return (*(a for a in self.args if a not in self.outputs), *self.sized)


@dataclass(frozen=True)
class Call:
    """One operator of the op table on whole tensors, with numbers as attributes."""

    op: str
    args: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """``inputs`` are the caller's, in order, also those that no step reads; ``weights`` never change. ``table`` has every tensor
    by name, at its largest; ``dims`` what is real of those whose sizes are open. Kernels are made for ``arch`` (the compute
    capability without its point)."""

    name: str
    arch: int
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Launch | Call, ...]
    table: Mapping[str, Tensor] = field(repr=False)
    dims: Mapping[str, Dims] = field(default_factory=dict, repr=False)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(s for s in self.steps if isinstance(s, Launch))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(s for s in self.steps if isinstance(s, Call))


def recipe_of(run: CompiledProgram, dependent: bool = True) -> Recipe:
    """The steps of a program that was compiled (not interpreted), on one stream and in launch order. Without ``dependent`` every
    kernel waits for the one in front to end."""
    if run.graph.blocks and not run.artifacts:
        raise UsageError(
            f"{run.program.name!r} is interpreted: it has no kernels to put into a library", "leave out device='cpu'"
        )
    planned = plan(run.realised.candidate.candidate, [a.source for a in run.artifacts])
    artifacts = [a for _, a in paired(run.graph, run.artifacts)]
    steps: list[Launch | Call] = []
    for i, (kernel, artifact) in enumerate(zip(run.graph.kernels, artifacts, strict=True)):
        if isinstance(kernel, LibraryKernel):
            steps.append(Call(kernel.op, kernel.args, kernel.output, constants(kernel, planned.graph, planned.table)))
        else:
            assert artifact is not None
            steps.append(launch_of(artifact, dependent and artifact.source.pdl and _overlaps(planned, i, steps)))
    table = {**{n: run.program[n] for n in run.inputs}, **planned.table}
    weights = tuple(n for n in run.graph.inputs if n not in run.inputs)
    if missing := [n for n in weights if n not in run.params]:
        raise ProgramError(f"{run.program.name!r} has no value for {missing[0]!r}, which is no input")
    return Recipe(run.program.name, run.target.arch, run.inputs, weights, run.outputs, alike(steps), table)


def _overlaps(planned: Plan, kernel: int, before: list[Launch | Call]) -> bool:
    """Whether our own runtime would launch it so, and the step in front of it here is a launch too."""
    return bool(before) and isinstance(before[-1], Launch) and may_overlap(planned, planned.launched.index(kernel))


def launch_of(artifact: KernelArtifact, dependent: bool, sized: tuple[str, ...] = ()) -> Launch:
    """A kernel that is launched over the tensors of its source."""
    hidden = entry_parameters(artifact.ptx, artifact.name) - artifact.parameters - len(artifact.source.sizes)
    if hidden < 0:
        raise ProgramError(f"the PTX of kernel {artifact.name!r} has fewer parameters than the kernel has tensors")
    return Launch(artifact, artifact.source.args, artifact.source.outputs, hidden, dependent, sized)


def alike(steps: list[Launch | Call]) -> tuple[Launch | Call, ...]:
    """The same steps: an entry that is launched in several places is dependent in all of them or in none, since how it is
    launched is kept once for each entry."""
    never = {s.entry for s in steps if isinstance(s, Launch) and not s.dependent}
    code: dict[str, bytes] = {}
    for s in steps:
        if isinstance(s, Launch) and code.setdefault(s.entry, s.artifact.cubin) != s.artifact.cubin:
            raise ProgramError(f"two different kernels are called {s.entry!r}")
    return tuple(replace(s, dependent=False) if isinstance(s, Launch) and s.entry in never else s for s in steps)
