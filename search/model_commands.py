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
from search.compile import How
from search.compile import compile_imported
from search.compiled import CompiledProgram
from search.explained import neighbours
from search.roofline import Point
from search.roofline import draw_roofline
from search.stages import silent
from search.trial import where_tried
from search.tune import Tuned
from search.tuner.memory import open_memory
from search.tuner.tuning import Tuning


def _planned(path: str, params: Path | None, device: Device, json: bool) -> CompiledProgram:
    """What ``optimize`` would choose for a model; nothing is compiled."""
    say = silent if json else lambda text: note(f"… {text}")
    say("reading the model")
    file = read_model_file(path, params)
    where, _ = where_tried(None, device, file)
    how = How(tuning=Tuning(memory=open_memory()), jobs=1, say=say, compiled=False)
    return compile_imported(file.imported, device, where, how)


def kernel_of_model(path: str, params: Path | None, device: Device, kernel: str | None, json: bool) -> tuple[str, Tuned]:
    """The part of a model's plan that has a kernel, and what was tuned for it. Without a name the plan's only one."""
    made = _planned(path, params, device, json)
    plan = made.plan
    if kernel is None and len(plan.parts) > 1:
        names = [g[0].names[0] for g in plan.groups() if g[0].names]
        raise UsageError(f"the plan of {path} has {len(plan.parts)} parts", f"--kernel NAME: {', '.join(names[:8])}")
    part = plan.find("*" if kernel is None else kernel)
    return ", ".join(part.names) or plan.name, made.found[part.number].tuned


def explain_model(path: str, params: Path | None, device: Device, kernel: str | None, plot: Path | None, json: bool) -> None:
    """The plan of a model and why its neighbours are apart, or one kernel of it. Nothing is compiled."""
    made = _planned(path, params, device, json)
    plan = made.plan
    part = None if kernel is None else plan.find(kernel)
    if plot:
        groups = [g for g in plan.groups() if g[0].us > 0 and (part is None or part in g)]
        parts = [(g[0].names or ("a view",), made.found[g[0].number].tuned.program, g[0].us * 1e-6) for g in groups]
        draw_roofline([Point(names[0], program, seconds) for names, program, seconds in parts], device, plot)
        note(f"drawn: {plot}")
    if json:
        borders = [] if made.model is None else made.model.borders(None if part is None else part.number)
        shown = {"plan": plan} if part is None else {"kernel": part}
        print_json({"target": device.name, "model": path, **shown, "borders": plain(borders)})
    elif part is None:
        print_table(plan.title, plan.heads, plan.rows(), plan.notes())
        if made.model is not None and (apart := neighbours(made.model)):
            print_text("\n".join(["", "why they are apart:", *apart]))
    else:
        print_text(made.explain(str(part.number)))
