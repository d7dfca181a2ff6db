"""What commands say of a whole model."""

from __future__ import annotations

from pathlib import Path

from fuser.console import note
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.device import Device
from fuser.errors import UsageError
from fuser.frontends.model_file import read_model_file
from search.cover.model import Model
from search.cover.model import compile_model
from search.cover.offers import Pricing
from search.explained import explained_part
from search.explained import neighbours
from search.roofline import Point
from search.roofline import draw_roofline
from search.stages import silent
from search.tune import Tuned


def _planned(path: str, params: Path | None, device: Device, json: bool) -> Model:
    """The plan of a model; nothing is compiled."""
    say = silent if json else lambda text: note(f"… {text}")
    say("reading the model")
    known = read_model_file(path, params).imported
    return compile_model(known.program, known.params, Pricing(device), compiled=False, checked=False, say=say)


def kernel_of_model(path: str, params: Path | None, device: Device, kernel: str | None, json: bool) -> tuple[str, Tuned]:
    """The part of a model's plan that has a kernel, and what was tuned for it. Without a name the plan's only one."""
    model = _planned(path, params, device, json)
    plan = model.plan
    if kernel is None and len(plan.parts) > 1:
        names = [g[0].names[0] for g in plan.groups() if g[0].names]
        raise UsageError(f"the plan of {path} has {len(plan.parts)} parts", f"--kernel NAME: {', '.join(names[:8])}")
    part = plan.find("*" if kernel is None else kernel)
    return ", ".join(part.names) or plan.name, model.found[part.number].tuned


def explain_model(path: str, params: Path | None, device: Device, kernel: str | None, plot: Path | None, json: bool) -> None:
    """The plan of a model and why its neighbours are apart, or one kernel of it. Nothing is compiled."""
    model = _planned(path, params, device, json)
    plan = model.plan
    part = None if kernel is None else plan.find(kernel)
    if plot:
        groups = [g for g in plan.groups() if g[0].us > 0 and (part is None or part in g)]
        parts = [(g[0].names or ("a view",), model.cover.parts[g[0].number].program, g[0].us * 1e-6) for g in groups]
        draw_roofline([Point(names[0], program, seconds) for names, program, seconds in parts], device, plot)
        note(f"drawn: {plot}")
    if json:
        borders = model.borders(None if part is None else part.number)
        shown = {"plan": plan} if part is None else {"kernel": part}
        print_json({"target": device.name, "model": path, **shown, "borders": plain(borders)})
    elif part is None:
        print_table(plan.title, plan.heads, plan.rows(), plan.notes())
        if apart := neighbours(model):
            print_text("\n".join(["", "why they are apart:", *apart]))
    else:
        print_text("\n".join(explained_part(part, model)))
