"""The plan of a compiled program as one value for tables, documents and drawings: its kernels, what each computes, how it leaves
its results, and what the model expects of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fnmatch import fnmatchcase

from fuser.console import bytes_text
from fuser.console import table_text
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.runtime.library import WHOLE
from fuser.runtime.library import joined_as
from fuser.runtime.library import views_of
from fuser.runtime.workspace import Workspace
from search.cover.ilp import Cover
from search.cover.parts import Part
from search.cover.parts import stored_name
from search.cover.shown import moves_only
from search.realise import Realised


@dataclass(frozen=True)
class Kernels:
    """What one part of the plan does. ``names`` are its kernels that are launched, in order (none for a view), of which a library
    has ``library``; ``operators`` are those of the program, in order, as ``nodes`` are their results; ``reads`` and ``writes``
    lie in device memory, and ``layouts`` say how each of the latter does. ``key`` is equal for equal parts; ``number`` is its
    place in the plan."""

    number: int
    names: tuple[str, ...]
    library: int
    operators: tuple[str, ...]
    nodes: tuple[str, ...]
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    layouts: tuple[str, ...]
    us: float
    key: str

    @property
    def title(self) -> str:
        """Its operators, each once, with how often."""
        counted = Counter(self.operators)
        return " ".join(op if n == 1 else f"{op}×{n}" for op, n in counted.items()) or "copy"


@dataclass(frozen=True)
class Choice:
    """How the parts were chosen: among how many, the solver's gap (relative), seconds and rounds."""

    candidates: int
    gap: float
    seconds: float
    rounds: int

    def __str__(self) -> str:
        again = f" in {counted(self.rounds, 'round')}" if self.rounds > 1 else ""
        gap = f"gap {self.gap:.1e}" if self.gap else "no gap"
        return f"chosen by an integer program among {counted(self.candidates, 'candidate')}: {gap}, {self.seconds:.2f} s{again}"


@dataclass(frozen=True)
class Plan:
    """All parts in launch order. ``us`` is the predicted time of a call, kernel after kernel, and ``chained_us`` less what each
    hides of its start behind the one in front (None where that is not known); ``workspace`` has a place for what lies between
    kernels; ``stages`` are the seconds that making it took."""

    name: str
    device: str
    parts: tuple[Kernels, ...]
    us: float
    choice: Choice | None = None
    chained_us: float | None = None
    workspace: Workspace | None = None
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        return sum(len(p.names) for p in self.parts)

    def groups(self) -> list[list[Kernels]]:
        """Equal parts together, in the order of the first of each."""
        found: dict[str, list[Kernels]] = {}
        for part in self.parts:
            found.setdefault(part.key, []).append(part)
        return list(found.values())

    def find(self, name: str) -> Kernels:
        """The part of a kernel, by its name, a glob, or its number. Raises :class:`UsageError` where there is none."""
        for part in self.parts:
            if name == str(part.number) or any(fnmatchcase(n, name) for n in part.names):
                return part
        close = [n for p in self.parts for n in p.names if name.lower() in n.lower()]
        shown = close or [g[0].names[0] for g in self.groups() if g[0].names]
        raise UsageError(f"there is no kernel {name!r} in the plan of {self.name}", f"kernels: {', '.join(shown[:8])}")

    # -- for people ---------------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"plan of {self.name} for {self.device}: {counted(self.launches, 'kernel')}, {self.us:.1f} µs predicted"

    @property
    def heads(self) -> tuple[str, ...]:
        return ("× >", "kernels", "operators", "leaves", "µs >", "share >")

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each group of equal parts: how many, the names in the first, what it holds, layouts of its results, µs of all
        of them and their share."""
        rows = []
        for group in self.groups():
            first, us = group[0], sum(p.us for p in group)
            names = "\n".join(first.names) or "-"
            if first.library:
                names += " (library)"
            share = f"{us / self.us:.1%}" if self.us else "-"
            rows.append((str(len(group)), names, first.title, "\n".join(first.layouts), f"{us:.2f}", share))
        return rows

    def notes(self) -> list[str]:
        total = sum(p.us for p in self.parts)
        lines = [f"{counted(self.launches, 'kernel')}, {total:.2f} µs in all, without any overlap"]
        lines[0] += "; of × equal ones the first are named" if len(self.groups()) < len(self.parts) else ""
        if self.chained_us is not None and self.chained_us < total - 0.005:
            lines.append(f"about {self.chained_us:.1f} µs where each begins while the one in front of it still runs")
        lines += [str(self.choice)] if self.choice else []
        lines += [_said(self.workspace)] if self.workspace and self.workspace.slots else []
        return lines

    def lines(self, width: int = 80) -> list[str]:
        notes = self.notes()
        if self.stages:
            notes.append("time: " + ", ".join(f"{k} {v:.1f} s" for k, v in self.stages.items()))
        return table_text(self.title, self.heads, self.rows(), notes, width).splitlines()

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _said(space: Workspace) -> str:
    gap = f"at most {space.gap:.1%} more than needed" if space.gap else "no placement takes less"
    return f"workspace: {bytes_text(space.bytes)} for {counted(len(space.slots), 'intermediate')}: {gap}"


def plan_of_parts(
    program: TensorProgram, device: str, cover: Cover, found: Sequence[Realised], graph: KernelGraph, stages: Mapping[str, float]
) -> Plan:
    """The plan of a cover: ``found`` is what was realised for each of its parts, ``graph`` has the kernels of all of them."""
    views = views_of(graph)
    names, at = [k.name for k in graph.kernels], 0
    entries = []
    for number, (part, done) in enumerate(zip(cover.parts, found, strict=True)):
        mine = graph.kernels[at : at + len(done.candidate.graph.kernels)]
        at += len(mine)
        entries.append(_entry(number, program, part, mine, views, done))
    assert at == len(names)
    choice = Choice(cover.candidates, cover.gap, cover.solving, cover.rounds)
    return Plan(program.name, device, tuple(entries), sum(e.us for e in entries), choice, stages=dict(stages))


def plan_of_region(program: TensorProgram, device: str, done: Realised) -> Plan:
    """The plan of a program that is one region."""
    graph = done.candidate.graph
    nodes = tuple(n.output for n in program.nodes if not moves_only(n))
    part = Part(nodes, program, tuple((n, n) for n in (*program.inputs, *program.outputs)))
    entry = _entry(0, program, part, graph.kernels, views_of(graph), done)
    return Plan(program.name, device, (entry,), entry.us)


def _entry(
    number: int, program: TensorProgram, part: Part, kernels: Sequence[Kernel], views: Mapping[str, object], done: Realised
) -> Kernels:
    launched = [k for k in kernels if k.outputs[0] not in views]
    made = program.producers
    names = tuple(k.name for k in launched)
    if len(launched) > 1 and all(joined_as(k) not in (False, WHOLE) for k in launched):
        names = (re.sub(r"_[0-9]+$", "", names[0]),)  # torch's compiler makes one kernel of the calls
    return Kernels(
        number,
        names,
        min(sum(isinstance(k, LibraryKernel) for k in launched), len(names)),
        tuple(str(made[n].attr.get("callee", made[n].op)) for n in part.nodes),
        part.nodes,
        tuple(replace(program[s[0]], name=stored_name(s)) for s in part.takes),
        tuple(replace(program[s[0]], name=stored_name(s)) for s in part.leaves),
        tuple(layout(program, *s) for s in part.leaves),
        done.candidate.us,
        part.key,
    )


def layout(program: TensorProgram, name: str, pitch: int = 0) -> str:
    """How a stored tensor lies: its extents from the outermost to the innermost; behind them those that the operator gives it,
    where it is stored as a view shows it, and the elements of its rows where these are longer."""
    if pitch:
        return f"{layout(program, name)} in rows of {pitch}"
    shape = _extents(program[name])
    root = name
    while (maker := program.producers.get(root)) is not None and moves_only(maker):
        root = maker.inputs[0]
    return shape if root == name or _extents(program[root]) == shape else f"{shape} of {_extents(program[root])}"


def _extents(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "1"
