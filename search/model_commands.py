"""What commands say of a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuser.console import note
from fuser.console import plain
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import print_text
from fuser.device import Device
from fuser.errors import UsageError
from fuser.frontends.model_file import ModelFile
from fuser.frontends.model_file import read_model_file
from fuser.frontends.model_file import read_sized_file
from search.buckets.asked import Sizes
from search.buckets.sizes import checked
from search.buckets.sizes import parsed
from search.buckets.sizes import places_of
from search.buckets.sizes import resolved
from search.buckets.sizes import said
from search.choose import compile_buckets
from search.choose import compile_imported
from search.compiled import CompiledProgram
from search.cover.plan import Kernels
from search.explained import neighbours
from search.how import How
from search.ranked import Tuned
from search.roofline import Point
from search.roofline import draw_roofline
from search.stages import silent
from search.trial import where_tried
from search.tuner.memory import open_memory
from search.tuner.tuning import Tuning


def _planned(
    path: str, params: Path | None, device: Device, json: bool, buckets: Sequence[str] = ()
) -> list[tuple[Sizes, CompiledProgram]]:
    """What ``optimize`` would choose for a model, for each of its buckets if it has some; nothing is compiled."""
    say = silent if json else lambda text: note(f"… {text}")
    say("reading the model")
    how = How(tuning=Tuning(memory=open_memory()), jobs=1, say=say, compiled=False)
    if not buckets:
        file = read_model_file(path, params)
        return [({}, compile_imported(file.imported, device, where_tried(None, device, file)[0], how))]
    wanted = checked(parsed(buckets))
    found = read_sized_file(path, params, [places_of(key) for key in wanted])
    sizes = resolved(wanted, found.sized)
    largest = ModelFile(found.source, found.form, found.sized.at({s: of[-1] for s, of in sizes.items()}), found.original)
    where, _ = where_tried(None, device, largest)
    return [(b.sizes, b.made) for b in compile_buckets(found.sized, sizes, device, where, how)]


def kernel_of_model(path: str, params: Path | None, device: Device, kernel: str | None, json: bool) -> tuple[str, Tuned]:
    """The part of a model's plan that has a kernel, and what was tuned for it. Without a name the plan's only one."""
    ((_, made),) = _planned(path, params, device, json)
    plan = made.plan
    if kernel is None and len(plan.parts) > 1:
        names = [g[0].names[0] for g in plan.groups() if g[0].names]
        raise UsageError(f"the plan of {path} has {len(plan.parts)} parts", f"--kernel NAME: {', '.join(names[:8])}")
    part = plan.find("*" if kernel is None else kernel)
    return ", ".join(part.names) or plan.name, made.found[part.number].tuned


def explain_model(
    path: str,
    params: Path | None,
    device: Device,
    kernel: str | None,
    plot: Path | None,
    json: bool,
    buckets: Sequence[str] = (),
) -> None:
    """The plan of a model and why its neighbours are apart, or one kernel of it; of each bucket if it has some, the last of which
    is drawn. Nothing is compiled."""
    documents = []
    found = _planned(path, params, device, json, buckets)
    for sizes, made in found:
        part = None if kernel is None else made.plan.find(kernel)
        if plot and made is found[-1][1]:
            _draw(made, part, device, plot)
        if json:
            borders = [] if made.model is None else made.model.borders(None if part is None else part.number)
            about = {"sizes": sizes} if sizes else {}
            documents.append(about | ({"plan": made.plan} if part is None else {"kernel": part}) | {"borders": plain(borders)})
        else:
            _print(made, None if part is None else part.number, sizes)
    if json:
        shown = {"buckets": documents} if buckets else documents[0]
        print_json({"target": device.name, "model": path, **shown})


def _draw(made: CompiledProgram, part: Kernels | None, device: Device, plot: Path) -> None:
    groups = [g for g in made.plan.groups() if g[0].us > 0 and (part is None or part in g)]
    parts = [(g[0].names or ("a view",), made.found[g[0].number].tuned.program, g[0].us * 1e-6) for g in groups]
    draw_roofline([Point(names[0], program, seconds) for names, program, seconds in parts], device, plot)
    note(f"drawn: {plot}")


def _print(made: CompiledProgram, number: int | None, sizes: Sizes) -> None:
    plan = made.plan
    if number is not None:
        print_text("\n".join([*([f"up to {said(sizes)}"] if sizes else []), made.explain(str(number))]))
        return
    print_table(f"{plan.title}, up to {said(sizes)}" if sizes else plan.title, plan.heads, plan.rows(), plan.notes())
    if made.model is not None and (apart := neighbours(made.model)):
        print_text("\n".join(["", "why they are apart:", *apart]))
