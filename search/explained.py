"""Why a kernel is as it is, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

from cost_model.explain import COUNTS
from cost_model.explain import explain
from fuser.device import Device
from fuser.files import counted
from search.ranked import Ranked
from search.realise import Realised

if TYPE_CHECKING:
    from search.cover.borders import Border
    from search.cover.model import Model
    from search.cover.plan import Kernels


def explained_region(done: Realised, device: Device) -> list[str]:
    """Structure and schedule of one region, the terms of its estimate beside the runner-up's, what fell out, and the evidence."""
    tuned, chosen = done.tuned, done.candidate
    shown = [chosen, *([r] if (r := tuned.runner_up) and r is not chosen else [])]
    lines = [str(chosen.graph), ""]
    for i, c in enumerate(shown):
        time = "" if isnan(c.us) else f", {c.us:.2f} µs"
        lines.append(f"{'chosen' if i == 0 else 'runner-up'}: {c.schedule if c.graph.blocks else 'libraries alone'}{time}")
    lines += ["", *_terms(shown, device), ""]
    lines.append(f"ranked: {counted(tuned.candidates, 'schedule')} of {counted(tuned.structures, 'structure')}")
    lines += [f"{n} better-ranked fell out: {why}" for why, n in done.rejected.items()]
    lines.append(f"{done.verdict}")
    if check := done.check:
        where = "in Triton's interpreter" if check.method == "triton" else f"in {check.method}, for want of torch,"
        lines.append(f"checked {where} at a reduced size: relative error {check.error:.1e}")
    return [*lines, *tuned.notes]


def explained_part(part: Kernels, model: Model) -> list[str]:
    """One part of a model: what it computes of what, its share, why it is apart from its neighbours, and its kernels."""
    us, plan = model.plan.us, model.plan
    equal = next(g for g in plan.groups() if part in g)
    also = f", one of {len(equal)} equal ones" if len(equal) > 1 else ""
    share = f" ({part.us / us:.1%} of the call)" if us else ""
    lines = [f"{', '.join(part.names) or 'a view'}: {part.us:.2f} µs{share}{also}", ""]
    program = model.cover.parts[part.number].program
    lines += [f"reads   {t}" for t in part.reads]
    lines += [f"leaves  {t}" for t in part.writes]
    lines += ["", *str(program).splitlines()[1:-1], ""]
    lines += [*neighbours(model, part.number), ""]
    return lines + explained_region(model.found[part.number], model.device)


def neighbours(model: Model, part: int | None = None) -> list[str]:
    """Why neighbours of a plan are kernels of their own, a line for each kind of border."""
    found = model.borders(part)
    names = {p.number: (p.names or ("a view",))[0] for p in model.plan.parts}
    return [line for b in found for line in _border(b, names)]


def _border(b: Border, names: dict[int, str]) -> list[str]:
    return [f"{names[b.first]} is apart from {names[b.second]}, which reads {b.maker}:", f"  {b.reason}"]


def _terms(shown: Sequence[Ranked], device: Device) -> list[str]:
    """The model's terms as lines of a table, a column for each candidate."""
    lines: list[str] = []
    kernel = ""
    for row in explain([c.candidate for c in shown], device):
        if row.kernel != kernel:
            kernel = row.kernel
            lines.append(f"kernel {kernel} (times in µs)")
        cells = "".join(f"{'-' if v is None else f'{v:,.0f}' if row.term in COUNTS else f'{v:,.3f}':>14}" for v in row.values)
        lines.append(f"  {row.meaning:<42}{cells}")
    return lines
