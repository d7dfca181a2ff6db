"""A compiled model on the machine at hand, beside what it was made of: do they agree, and how long do they take?"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from statistics import median
from typing import Any

import numpy as np

from fuser.agreement import agreement
from fuser.agreement import tolerance
from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.model_file import RELAX_MODULE
from fuser.frontends.model_file import RELAY
from fuser.frontends.model_file import TORCH
from fuser.frontends.model_file import ModelFile
from fuser.ir.program import TensorProgram
from fuser.runtime.torch_program import run_program
from search.compiled import CompiledProgram
from search.drawn_inputs import drawn_input
from search.drawn_inputs import zero_divisors
from search.where import where_to_run


@dataclass(frozen=True)
class Trial:
    """``difference`` is the largest relative Frobenius norm over all results, of what was made from the original, and ``limit``
    what is accepted; ``us`` and ``original_us`` are medians of CUDA-graph replays in turn (None where nothing was timed, or the
    original does not run there), ``kernels`` those of each kernel by its name, as CUDA's profiler has them. The original of what
    is no module of torch is timed as its operators, each by torch."""

    where: str
    original: str
    difference: float
    limit: float
    us: float | None = None
    original_us: float | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.difference <= self.limit

    def __str__(self) -> str:
        times = "" if self.us is None else f": {self.us:.1f} µs measured"
        before = "torch eager" if self.original == "torch eager" else "every operator by torch"
        beside = "" if self.original_us is None else f", {before} {self.original_us:.1f} µs"
        says = f"differs from {self.original} by {self.difference:.1e}"
        return f"ran {self.where}{times}{beside}; {says}" + ("" if self.ok else f", more than {self.limit:.0e}")


def check_where(on: str | None) -> None:
    """Raises :class:`UsageError` for what is no place to run kernels at."""
    if on not in (None, "cuda", "cpu", "none"):
        raise UsageError(f"there is no device {on!r} to run on", "--on cuda, cpu or none")


def where_tried(on: str | None, device: Device, file: ModelFile) -> tuple[str | None, tuple[str, ...]]:
    """Where the kernels of a model run when they are made (None: nowhere), and why not. ``on`` is a user's wish."""
    check_where(on)
    if on == "none":
        return None, ()
    name = file.imported.program.name
    opaque = {str(n.attr["callee"]) for n in file.imported.program.nodes if n.op == "opaque"}
    if file.form in (RELAY, RELAX_MODULE) and opaque:
        why = f"torch does not know {', '.join(sorted(opaque)[:4])} of Relay: the kernels cannot be run as a whole"
        if on is not None:
            raise UnsupportedError(why, "leave out --on")
        return None, (why,)
    if on == "cpu":
        return where_to_run("cpu", device, name)[0], ()
    try:
        where = where_to_run(on, device, name)[0]
    except (EnvironmentError_, UsageError) as error:  # its way out is that of fuser.compile
        if on is not None:
            raise type(error)(error.message, "--on cpu runs Triton's interpreter (slow), --on none nothing") from error
        if isinstance(error, UsageError):
            raise
        where = None
    return where, () if where else (f"there is no {device.title} here: nothing was run, times are predicted",)


def tried(run: CompiledProgram, file: ModelFile, seed: int = 0) -> Trial:
    """Run what was made of a model, and the model, on the same inputs; time both where there is a GPU."""
    import torch

    known = file.imported
    values = inputs_of(known, file.original, np.random.default_rng(seed))
    if file.form != TORCH and (zero := zero_divisors(known.program, {**known.params, **values})):
        raise UnsupportedError(
            f"{zero[0]} divides whole numbers and is zero for the inputs that were drawn", "give a larger divisor"
        )
    limit = accepted(known.program)
    placed = {n: _tensor(torch, known.program, n, x).to(run.device) for n, x in values.items()}
    if run.device == "cpu":
        got = run.by_name(placed)
        wanted, called = (
            (_eager(file, placed, "cpu")(), _called(file)) if file.form == TORCH else wanted_of(file, values, placed, "cpu")
        )
        return Trial("in Triton's interpreter", called, difference(got, wanted), limit)
    from search.measure.replays import captured
    from search.measure.replays import medians

    mine = run.captured(**placed)
    mine.replay()
    torch.cuda.synchronize()
    got = {n: y.clone() for n, y in mine.outputs.items()}
    replays: dict[str, Callable[[], None]] = {"ours": mine.replay}
    if file.form == TORCH:
        called = _called(file)
        wanted, replays["original"] = captured(_eager(file, placed, str(run.device)))
    else:
        wanted, called = wanted_of(file, values, placed, str(run.device))
        with suppress(FuserError, RuntimeError):  # an operator that torch lacks, or that cannot be captured
            _, replays["original"] = captured(_operators(known, placed, str(run.device)))
    apart = difference(got, wanted)
    times = medians(replays)
    name = torch.cuda.get_device_name(run.device)
    return Trial(f"on {name}", called, apart, limit, times["ours"], times.get("original"), kernel_times(mine.replay))


def kernel_times(call: Callable[[], None], calls: int = 5) -> dict[str, float]:
    """Median microseconds of each kernel in a call, by name; none where CUDA's profiler cannot be had."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile

    found: dict[str, list[float]] = {}
    with suppress(RuntimeError):
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
        for event in seen.events() or ():
            if event.device_type.name == "CUDA":
                found.setdefault(event.name, []).append(event.time_range.elapsed_us())
    return {name: median(times) for name, times in found.items()}


def _called(file: ModelFile) -> str:
    return "torch eager" if file.form == TORCH else f"the {file.form} model in numpy"


def inputs_of(known: Imported, original: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The user's inputs by name: those that the file has as examples, else random ones."""
    from search.calling import as_module

    if (kept := getattr(original, "example_inputs", None)) is not None and known.called is not None:
        return as_module(known.called, known.program.name, *kept)
    return {name: drawn_input(known.program, name, rng) for name in known.inputs}


def _tensor(torch: Any, program: TensorProgram, name: str, value: Any) -> Any:
    x = value if isinstance(value, torch.Tensor) else torch.tensor(np.array(value, order="C"))
    return x.detach().to(getattr(torch, program[name].dtype))


def _eager(file: ModelFile, values: Mapping[str, Any], device: str) -> Callable[[], dict[str, Any]]:
    """The original as a call that returns its results by the program's names."""
    import torch
    from torch.export.passes import move_to_device_pass
    from torch.utils import _pytree as pytree

    called = file.imported.called
    assert called is not None
    flat = [values[n] if n else fixed for n, fixed in zip(called.inputs, called.fixed, strict=True)]
    args, keywords = pytree.tree_unflatten(flat, called.arguments)
    module = move_to_device_pass(file.original, device).module() if device != "cpu" else file.original.module()

    def call() -> dict[str, Any]:
        with torch.no_grad():
            leaves = pytree.tree_leaves(module(*args, **keywords))
        return {r.name: y for r, y in zip(called.results, leaves, strict=True) if r.name}

    return call


def _operators(known: Imported, values: Mapping[str, Any], device: str) -> Callable[[], dict[str, Any]]:
    """The program as it was imported, operator by operator in torch."""
    import torch

    program = known.program
    given = {n: _tensor(torch, program, n, x).to(device) for n, x in known.params.items()} | dict(values)
    return lambda: run_program(program, given)


def accepted(program: TensorProgram) -> float:
    """The largest difference between a model and what was made of it: that of what is read, or of all between whole numbers."""
    read = tolerance(program[n].dtype for n in program.inputs)
    return 2 * (read or tolerance(t.dtype for t in program.tensors))  # both round


def wanted_of(
    file: ModelFile, values: Mapping[str, Any], placed: Mapping[str, Any], device: str
) -> tuple[Mapping[str, Any], str]:
    """What the original gives, and what it is called: in numpy, or by torch's operators where numpy's lack one."""
    try:
        results = file.original.original_outputs({n: np.asarray(x) for n, x in values.items()})
    except UnsupportedError as error:
        return _operators(file.imported, placed, device)(), f"the {file.form} model's operators by torch ({error.message})"
    return dict(zip(file.imported.program.outputs, results, strict=True)), _called(file)


def difference(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The largest difference of any result; infinite where NaN or infinity stand elsewhere."""
    worst = 0.0
    for name, theirs in wanted.items():
        pair = (got[name], theirs)
        y, z = (np.asarray(x.detach().cpu().double() if hasattr(x, "detach") else x, np.float64) for x in pair)
        found = agreement(y, z, "float64", np.inf)
        worst = max(worst, found.error if found.ok else np.inf)
    return worst
