"""The main job: a Relay model in, a model with fused kernels out, on a machine without a GPU.

:func:`optimize` imports (files need no TVM), finds regions, tunes each distinct one with the model alone, lowers the winners
through Triton to PTX, checks them, and, where a TVM with Relay is installed, carves the regions out, builds the model and
compares it with the unpartitioned one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cost_model.program_time import program_seconds
from cost_model.refined import check_device
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import UsageError
from fuser.ir.program import TensorProgram
from fuser.pools import APART
from search.realise import Realised
from search.realise import realise
from search.regions import Choice
from search.regions import Left
from search.regions import Region
from search.regions import choose
from search.tune import Tuned
from search.tune import require_instant
from search.tune import tune_fast
from tvm_bridge import apart
from tvm_bridge.flavour import RelayMissing
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.result import predicted_us
from tvm_bridge.to_program.relay_import import RelayModel
from tvm_bridge.to_program.relay_import import arrays_of
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import is_typed
from tvm_bridge.to_program.relay_import import read_model
from tvm_bridge.to_program.relay_import import save_arrays
from tvm_bridge.to_program.relay_import import save_module
from tvm_bridge.to_program.relay_import import to_program

Step = Callable[[str], None]

LIVE = "the module"
"""The source of a live module."""


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def optimize(  # noqa: PLR0913
    model: str | Path | Any,
    params: str | Path | Mapping[str, Any] | None = None,
    *,
    target: str | Device = "h200",
    effort: str = "instant",
    build: bool | None = None,
    compare: bool = True,
    check: bool = True,
    jobs: int = 2,
    step: Step = lambda text: None,
    seed: int = 0,
    timeout: float | None = None,
) -> Optimized:
    """Partition a model, tune its regions, lower them, and build it.

    ``model`` is the path of a ``save_json`` file, or a live ``IRModule``; ``params`` the path of a ``save_param_dict`` file, or
    arrays by name. ``build`` asks for a compiled model (None: where a TVM with Relay is installed, and ``failure`` of the result
    says why there is none). ``compare`` runs it against the unpartitioned one. TVM works in a process of its own, for ``timeout``
    seconds at most (default: by the size of the model).

    Raises :class:`fuser.errors.ModelFileError` for files that cannot be read; a model without regions worth fusing is no error.
    """
    require_instant(effort)
    device = load_device(target) if isinstance(target, str) else target
    check_device(device)
    clock, folder = _Clock(), apart.Folder()
    step("reading the model")
    if isinstance(model, str | Path):
        if params is not None and not isinstance(params, str | Path):
            raise UsageError("the parameters of a model file are a file too", "save them with tvm.runtime.save_param_dict")
        relay_model = read_model(model, params)
    else:
        if isinstance(params, str | Path):
            raise UsageError(
                "the parameters of a live module are arrays by name", "read them with tvm_bridge.read.relay_params.read_params"
            )
        model, relay_model = _read_live(model, params, folder)
    imported = to_program(relay_model)
    clock.lap("import")
    step("finding regions")
    tuned: dict[str, Tuned] = {}
    choices, left = find_regions(imported.program, device, tuned, frozenset(imported.origin), seed)
    clock.lap("regions and tuning")
    step(f"compiling {len({c.region.program.stable_hash() for c in choices})} distinct kernels for {len(choices)} regions")
    kernels, failed = lower_regions(choices, tuned, device, jobs, check, seed)
    regions = tuple(
        FusedRegion(f"{c.region.kind.lower().replace(' ', '_')}_{i}", c, kernels[c.region.program.stable_hash()])
        for i, c in enumerate(choices)
        if c.region.program.stable_hash() in kernels
    )
    for c in choices:
        if why := failed.get(c.region.program.stable_hash()):
            left += [Left(n, f"no kernel of the {c.region.kind} holds: {why}") for n in c.region.contractions]
    clock.lap("lowering and checking")
    before = program_seconds(imported.program, device) * 1e6
    after = predicted_us(imported.program, device, regions)
    result = Optimized(imported, device, regions, tuple(left), before, after, seconds=clock.seconds, seed=seed)
    if build is False:
        return result
    return with_library(result, model, params, strict=build is True, compare=compare, step=step, timeout=timeout, folder=folder)


def _read_live(mod: Any, params: Mapping[str, Any] | None, folder: apart.Folder) -> tuple[Path, RelayModel]:
    """A live module as a file in ``folder``, and as the reader sees it. Types are inferred in a process of its own, where they
    are missing."""
    path = save_module(mod, folder.path)
    if not is_typed(mod):
        path.write_text(apart.infer_types(LIVE, path))
    return path, from_json_text(path.read_text(), arrays_of(params), LIVE)


def partition_and_optimize(
    mod: Any, params: Mapping[str, Any] | None = None, *, target: str = "h200", effort: str = "instant"
) -> Optimized:
    """:func:`optimize` for a live Relay module; ``.built`` is the model that runs."""
    return optimize(mod, params, target=target, effort=effort, build=True)


def find_regions(
    program: TensorProgram,
    device: Device,
    tuned: dict[str, Tuned],
    borders: frozenset[str] | None = None,
    seed: int = 0,
) -> tuple[list[Choice], list[Left]]:
    """Regions worth fusing and contractions left alone; ``tuned`` gathers the tuning of every distinct region program by its
    hash.
    """

    def fused(region: TensorProgram) -> float:
        key = region.stable_hash()
        if key not in tuned:
            tuned[key] = tune_fast(region, device, seed=seed)
        return tuned[key].winner.us

    whole = program_seconds(program, device)

    def unfused(region: Region) -> float:
        """What the rest of the model does without: operators that were the epilogue of one in the region need a kernel of their
        own.
        """
        return (whole - program_seconds(program, device, frozenset(region.nodes))) * 1e6

    return choose(program, device, fused, unfused, borders)


def lower_regions(
    choices: Sequence[Choice], tuned: Mapping[str, Tuned], device: Device, jobs: int, check: bool, seed: int
) -> tuple[dict[str, Realised], dict[str, str]]:
    """Compiled and checked kernels of each distinct region program, by its hash; and why others have none."""
    distinct = {c.region.program.stable_hash(): tuned[c.region.program.stable_hash()] for c in choices}
    pool = ProcessPoolExecutor(jobs, APART) if jobs > 1 and len(distinct) > 1 else None
    try:
        return dict(zip(distinct, realise(list(distinct.values()), device, pool, check, seed), strict=True)), {}
    except FuserError:  # one of them does not lower: find out which, and do without it
        done: dict[str, Realised] = {}
        failed: dict[str, str] = {}
        for key, item in distinct.items():
            try:
                (done[key],) = realise([item], device, None, check, seed)
            except FuserError as error:
                failed[key] = error.message
        return done, failed
    finally:
        if pool:
            pool.shutdown()


def with_library(
    result: Optimized,
    model: str | Path,
    params: str | Path | Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
    compare: bool = True,
    step: Step = lambda text: None,
    timeout: float | None = None,
    folder: apart.Folder | None = None,
) -> Optimized:
    """The result with the model built, in a process of its own, and compared with the unpartitioned one. ``model`` is the file
    that the result was made from, ``params`` too or arrays by name. Without ``strict`` what stands in the way is a note, and
    ``failure`` where a TVM is installed that should have done it. ``folder`` has the file, where that is ours.
    """
    if not strict and find_spec("tvm") is None:
        return _noted(result, "TVM is not installed: no library was built (pip install 'mufuser[relay]')")
    clock = _Clock()
    step("building the model" + (" and comparing it with the unpartitioned one" if compare else ""))
    try:
        folder = folder or apart.Folder()
        values = save_arrays(params, folder.path) if isinstance(params, Mapping) and params else params or None
        job = apart.Job(result.imported.model.source, str(model), str(values) if values else None, result, compare)
        result = apart.build(job, folder, timeout)
    except FuserError as error:
        if strict:
            raise
        absent = isinstance(error, RelayMissing)
        return replace(_noted(result, f"no library was built: {error.message}"), failure=None if absent else error)
    clock.lap("building")
    return replace(result, seconds={**result.seconds, **clock.seconds})


def _noted(result: Optimized, note: str) -> Optimized:
    return replace(result, notes=(*result.notes, note))
