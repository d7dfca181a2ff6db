"""µGraphs for people: text in the papers' notation, Mermaid, Graphviz."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from fuser.errors import EnvironmentError_
from fuser.ir.candidate import scheduled
from fuser.ir.maps import block_maps
from fuser.ir.maps import vector
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Stmt
from fuser.ir.placement import place
from fuser.ir.schedule import AxisPlan
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import Init
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node


def describe(graph: KernelGraph, schedule: Schedule | None = None) -> str:
    """The graph as text; with a schedule: axes as grid × loop × tile, Mirage's maps, MCFuser's expression, the loops."""
    if schedule is None:
        return str(graph)
    head = str(graph).splitlines()[0]
    return "\n".join(
        [head, *(describe_block(k, s) if isinstance(k, BlockGraph) and s else str(k) for k, s in scheduled(graph, schedule))]
    )


def describe_block(block: BlockGraph, schedule: KernelSchedule) -> str:
    """One kernel under its schedule."""
    bound, plans = bind(block, schedule)
    tree = place(bound, schedule.order, plans)
    maps = str(block_maps(block, schedule)).splitlines()
    lines = [f"kernel {block.name}: {schedule}"]
    lines += [f"  {_plan(p)}" for p in plans.values()]
    lines += [f"  {line}" for line in maps]
    lines += [f"  {tree}"]
    lines += [f"    {line}" for line in _loops(tree.body, "")]
    return "\n".join(lines)


def _plan(p: AxisPlan) -> str:
    split = f" split over {p.split}" if p.split else ""
    return f"{p.axis}: {p.extent} = grid {p.grid} × loop {p.trips} × tile {p.tile}{split}{', ragged' if p.ragged else ''}"


def _loops(nodes: tuple[Node, ...], indent: str) -> Iterator[str]:
    for n in nodes:
        if isinstance(n, Loop):
            yield f"{indent}for {n.axis} in 0..{n.trips}{' unrolled' if n.unrolled else ''}:"
            yield from _loops(n.body, indent + "  ")
        elif isinstance(n, Init):
            yield f"{indent}{n.value} = identity"
        else:
            yield f"{indent}{n}"


# -- diagrams -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Vertex:
    name: str
    label: str
    kind: str  # tensor, library, load, compute, store
    cluster: str = ""


@dataclass(frozen=True)
class _Diagram:
    """``clusters`` are the kernels with what a thread block does: (name, label)."""

    vertices: tuple[_Vertex, ...]
    edges: tuple[tuple[str, str, str], ...]
    clusters: tuple[tuple[str, str], ...]


def _diagram(graph: KernelGraph, schedule: Schedule | None) -> _Diagram:
    vertices: list[_Vertex] = []
    edges: list[tuple[str, str, str]] = []
    clusters: list[tuple[str, str]] = []
    tensors: dict[str, str] = {}

    def add(label: str, kind: str, cluster: str = "") -> str:
        vertices.append(_Vertex(f"n{len(vertices)}", label, kind, cluster))
        return vertices[-1].name

    def tensor(name: str) -> str:
        if name not in tensors:
            tensors[name] = add(str(graph.table.get(name, name)), "tensor")
        return tensors[name]

    pairs = scheduled(graph, schedule) if schedule else [(k, None) for k in graph.kernels]
    for i, (k, plan) in enumerate(pairs):
        if isinstance(k, LibraryKernel):
            node = add(f"{k.op} (library)", "library")
            edges += [(tensor(a), node, "") for a in k.args]
            edges.append((node, tensor(k.output), ""))
            continue
        maps = block_maps(k, plan) if plan else None
        cluster = f"k{i}"
        clusters.append((cluster, f"{k.name}: {str(maps).splitlines()[0] if maps else ', '.join(a.name for a in k.axes)}"))
        defined: dict[str, str] = {}
        accesses = {(m.value, m.tensor): m for m in (*maps.inputs, *maps.outputs)} if maps else {}
        for s in k.stmts:
            if s.kind == "compute":
                defined[s.value] = add(_formula(s), "compute", cluster)
                edges += [(defined[a], defined[s.value], "running" if a in s.running else "") for a in s.args]
                edges += [(defined[r.maximum], defined[s.value], f"rescale^{r.degree}") for r in s.rescale]
                continue
            m = accesses.get((s.value, s.at.tensor))
            kind = "imap" if s.kind == "load" else "omap"
            label = f"{kind} {vector(m.grid)}" + (f" fmap {vector(m.loop)}" if m.loop else "") if m else ""
            node = add(str(s.at), s.kind, cluster)
            if s.kind == "load":
                defined[s.value] = node
                edges.append((tensor(s.at.source), node, label))
            else:
                edges += [(defined[s.value], node, ""), (node, tensor(s.at.tensor), label)]
    return _Diagram(tuple(vertices), tuple(edges), tuple(clusters))


def _formula(s: Stmt) -> str:
    over = f" over {','.join(s.reduce)}" if s.reduce else ""
    return f"{s.value}[{','.join(s.axes)}] = {s.op}{over}"


def mermaid(graph: KernelGraph, schedule: Schedule | None = None) -> str:
    """A Mermaid flowchart: device tensors, and for each kernel what one thread block does; edges carry imap, omap and fmap."""
    d = _diagram(graph, schedule)
    shape = {
        "tensor": ("[(", ")]"),
        "library": ("[[", "]]"),
        "load": ("[/", "/]"),
        "store": ("[\\", "\\]"),
        "compute": ("[", "]"),
    }

    def quoted(text: str) -> str:
        return '"' + text.replace('"', "#quot;") + '"'

    def line(v: _Vertex) -> str:
        opening, closing = shape[v.kind]
        return f"{v.name}{opening}{quoted(v.label)}{closing}"

    lines = ["flowchart TD", *(f"  {line(v)}" for v in d.vertices if not v.cluster)]
    for name, label in d.clusters:
        lines += [f"  subgraph {name}[{quoted(label)}]", *(f"    {line(v)}" for v in d.vertices if v.cluster == name), "  end"]
    lines += [f"  {a} -->{f'|{quoted(label)}|' if label else ''} {b}" for a, b, label in d.edges]
    return "\n".join(lines) + "\n"


def dot(graph: KernelGraph, schedule: Schedule | None = None) -> str:
    """The same diagram for Graphviz."""
    d = _diagram(graph, schedule)
    shape = {"tensor": "cylinder", "library": "box3d", "load": "parallelogram", "store": "parallelogram", "compute": "box"}

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def line(v: _Vertex) -> str:
        return f"{v.name} [label={quoted(v.label)}, shape={shape[v.kind]}];"

    lines = [f"digraph {quoted(graph.name)} {{", '  node [fontname="sans-serif", fontsize=11];']
    lines += [f"  {line(v)}" for v in d.vertices if not v.cluster]
    for name, label in d.clusters:
        lines += [f"  subgraph cluster_{name} {{", f"    label={quoted(label)};"]
        lines += [f"    {line(v)}" for v in d.vertices if v.cluster == name] + ["  }"]
    lines += [f"  {a} -> {b}{f' [label={quoted(label)}]' if label else ''};" for a, b, label in d.edges]
    return "\n".join([*lines, "}"]) + "\n"


def svg(graph: KernelGraph, schedule: Schedule | None = None) -> str:
    """The diagram drawn by Graphviz. Raises :class:`EnvironmentError_` where its ``dot`` is not installed."""
    program = shutil.which("dot")
    if program is None:
        raise EnvironmentError_("drawing a µGraph as SVG needs Graphviz", "install graphviz, or take the Mermaid or DOT text")
    done = subprocess.run([program, "-Tsvg"], input=dot(graph, schedule), capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentError_(f"Graphviz failed: {done.stderr.strip()}", "take the Mermaid or DOT text")
    return done.stdout
