"""Specifications as text (Graphene, figure 8): tensors with their shapes, then what is made of what by whom, nested."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.ir.layout.algebra import text
from fuser.ir.layout.linear import bases_of
from fuser.ir.layout.linear import fragment
from fuser.ir.layout.plan import LayoutPlan
from fuser.ir.layout.tensors import WARP
from fuser.ir.layout.tensors import Tensor
from fuser.ir.layout.tensors import threads
from fuser.lower.decompose import Spec
from fuser.lower.decompose import Step

WIDTH = 79


def shown(spec: Spec, plan: LayoutPlan) -> str:
    """As figure 8 has it: tensors with their shapes, then nested specifications; no line is longer than 79 characters."""
    names: dict[Tensor, str] = {}
    lines: list[str] = []

    def named(t: Tensor, indent: str) -> str:
        if t not in names:
            names[t] = f"{'#' if t.threads else '%'}{t.name if t.threads or (t.memory == 'GL' and not indent) else len(names)}"
            lines.extend(_definition(names[t], t, indent, plan))
        return names[t]

    def given(inputs: Sequence[Tensor], outputs: Sequence[Tensor], indent: str) -> str:
        return f"({', '.join(named(t, indent) for t in inputs)}) -> ({', '.join(named(t, indent) for t in outputs)})"

    assert spec.by is not None
    count = plan.consumers * plan.warps * WARP
    all_threads = threads("1", count)
    names[all_threads] = "#1"
    lines += [f"{spec.by}", f"{all_threads}"]
    ends = given(spec.inputs, spec.outputs, "")
    lines.append(f"Spec {spec.kind} <<<#0, #1>>>")
    lines += _wrapped(f"     {ends} {{", "     ")

    def body(parts: Sequence[Spec | Step], indent: str) -> None:
        for p in parts:
            if isinstance(p, Step):
                lines.extend(_step(p, indent))
            elif p.loop:
                lines.append(f"{indent}for {p.loop} {{")
                body(p.body, indent + "  ")
                lines.append(f"{indent}}}")
            else:
                assert p.by is not None
                by = named(p.by, indent)
                ends = given(p.inputs, p.outputs, indent)
                lines.extend(_wrapped(f"{indent}{p.kind} <<<#0, {by}>>> {ends} {{", indent + "    "))
                body(p.body, indent + "  ")
                lines.append(f"{indent}}}")

    body(spec.body, "  ")
    return "\n".join([*lines, "}"])


def _definition(name: str, t: Tensor, indent: str, plan: LayoutPlan) -> list[str]:
    """A tensor with its shape; of one in registers also which element of the group's tile each thread has in each."""
    said = f"{indent}{name}:{t.type}"
    if not t.threads and name[1:] != t.name:
        said += f"  // {t.name}"
    found = plan.fragment.get(t.name)
    if t.memory != "RF" or found is None or found.registers != t.size:
        return _wrapped(said, indent + "    ")
    held = fragment(bases_of(found.layout, found.tile))
    tile = ",".join(map(str, found.tile))
    return [*_wrapped(said, indent + "    "), *_wrapped(f"{indent}  // {held[0]}.{held[1]} of ({tile})", indent + "  // ")]


def _step(s: Step, indent: str) -> list[str]:
    by = "" if s.atom.threads.size == 1 else f"[{text(s.atom.threads.shape)}:{text(s.atom.threads.stride)}]"
    often = f"{s.count} x " if s.count > 1 else ""
    head = f"{indent}{often}{s.atom.kind} <<<{by or '[1:1]'}.thread>>>"
    ends = f"({', '.join(s.inputs)}) -> ({', '.join(s.outputs)})"
    line = f"{head} {ends}"
    first = [line] if len(line) <= WIDTH else [head, f"{indent}    {ends}"]
    return [*first, f"{indent}  // {s.atom.instruction}"]


def _wrapped(line: str, indent: str) -> list[str]:
    """Broken behind commas and blanks."""
    found = []
    while len(line) > WIDTH:
        at = max(line.rfind(" ", len(indent) + 1, WIDTH), line.rfind(",", len(indent) + 1, WIDTH - 1) + 1)
        if at <= len(indent) + 1:
            break
        found.append(line[:at].rstrip())
        line = indent + line[at:].lstrip()
    return [*found, line]
