"""The main job: a model in (of torch.export, ONNX or Relay), kernels for all of it out, on a machine without a GPU too.

:func:`optimize` imports (files need no TVM), has an integer program choose the kernels that compute the whole model, lowers them
through Triton to PTX and checks them; where there is a GPU of the target's kind it runs and times them. For Relay it also finds
the regions that TVM can be given, and, where a TVM with Relay is installed, carves them out, builds the model and compares it
with the unpartitioned one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cost_model.program_time import program_seconds
from cost_model.refined import check_device
from fuser.by_fields import by_fields
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.model_file import RELAX_MODULE
from fuser.frontends.model_file import RELAY
from fuser.frontends.model_file import ModelFile
from fuser.frontends.model_file import SizedFile
from fuser.frontends.model_file import read_model_file
from fuser.frontends.model_file import read_sized_file
from fuser.ir.program import TensorProgram
from fuser.pools import Children
from search.buckets.asked import Buckets
from search.buckets.sizes import checked
from search.buckets.sizes import places_of
from search.choose import check_products
from search.choose import compile_imported
from search.how import How
from search.ranked import Tuned
from search.realise import Realised
from search.realise import realise
from search.regions import Choice
from search.regions import Left
from search.regions import Region
from search.regions import choose
from search.stages import Stages
from search.trial import check_where
from search.trial import tried
from search.trial import where_tried
from search.tune import tune_fast
from search.tuner.efforts import effort_of
from search.tuner.efforts import measures
from search.tuner.judges import require_means
from search.tuner.live import live as watching
from search.tuner.memory import open_memory
from search.tuner.tuning import Tuning
from tvm_bridge import apart
from tvm_bridge.bucketed import optimize_buckets
from tvm_bridge.flavour import RelayMissing
from tvm_bridge.flavour import require_relax
from tvm_bridge.planned import planned
from tvm_bridge.read.relax_module import is_relax
from tvm_bridge.relaxed import INSIDE
from tvm_bridge.relaxed import check_weights
from tvm_bridge.relaxed import relax_library
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.result import predicted_us
from tvm_bridge.to_program.relax_import import LIVE
from tvm_bridge.to_program.relax_import import relax_model
from tvm_bridge.to_program.relax_import import sized_relax
from tvm_bridge.to_program.relay_import import arrays_of
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import is_typed
from tvm_bridge.to_program.relay_import import save_arrays
from tvm_bridge.to_program.relay_import import save_module
from tvm_bridge.to_program.relay_import import to_program
from tvm_bridge.to_program.relay_sized import sized_live

Step = Callable[[str], None]

RELAX, RELAY_RUNTIME, TORCH_RUNTIME = "relax", "relay", "torch"
RUNTIMES = (RELAX, RELAY_RUNTIME, TORCH_RUNTIME)


@dataclass(frozen=True)
class Options:
    """What :func:`optimize` is told besides the model."""

    target: str | Device = "h200"
    effort: str = "instant"
    records: str | Path | bool | None = None
    build: bool | None = None
    compare: bool = True
    check: bool = True
    jobs: int = 2
    step: Step = lambda text: None
    seed: int = 0
    timeout: float | None = None
    on: str | None = None
    whole: bool | None = None
    runtime: str | None = None
    weights: str = INSIDE
    buckets: Buckets | None = None


@by_fields
def optimize(model: str | Path | Any, params: str | Path | Mapping[str, Any] | None = None, *, options: Options) -> Optimized:
    """Choose kernels for a model, lower and check them, run them where there is a GPU for them, and build a Relay model with TVM.

    ``model`` is the path of a file that ``torch.export.save`` (``.pt2``), ONNX (``.onnx``) or Relay's ``save_json`` wrote, or a
    live ``IRModule`` of Relay or Relax; ``params`` the path of a ``save_param_dict`` file, or arrays by name, of such a model.
    ``on`` says where the kernels run when they are made: ``cuda``, ``cpu`` (Triton's interpreter), ``none``, or by default a GPU
    of the target's kind, if there is one. ``whole=False`` leaves out the kernels of the whole model: of a Relay model TVM is
    given the regions alone that are memory-bound chains of products.

    ``effort`` and ``records`` are those of :func:`fuser.compile`, for the kernels of the whole model; without these the
    regions that TVM is given are chosen by the model alone.

    ``build`` asks for a Relay model compiled by TVM (None: where one is installed, and ``failure`` of the result says why there
    is none). ``compare`` runs it against the unpartitioned one. TVM works in a process of its own, for ``timeout`` seconds at
    most (default: by the size of the model).

    ``runtime`` says what is to run the result: ``torch``, the kernels alone; ``relay``, a Relay model with the regions that it
    is given; ``relax``, all kernels of any model as one library for the virtual machine of TVM 0.27, with its ``weights``
    ``inside`` or ``beside`` it. By default a Relay model is for Relay, a module of Relax for Relax, another for torch.

    ``buckets`` are sizes by open dimension, ``{"input_ids:1": (128, 256)}`` (of ONNX and Relax also by the name that it has; of
    Relay a key names all of a size that its operators do not make equal, ``"input_ids:0,mask:0"``): a set of kernels for each, in
    one library, which pads its inputs to the next larger ones.

    Raises :class:`fuser.errors.ModelFileError` for files that cannot be read; a model without regions worth fusing is no error.
    """
    wanted, runtime, whole = effort_of(options.effort), options.runtime, options.whole
    if runtime is not None and runtime not in RUNTIMES:
        raise UsageError(f"there is no runtime {runtime!r}", f"one of {', '.join(RUNTIMES)}")
    live = not isinstance(model, str | Path)
    if options.buckets is not None and runtime == RELAY_RUNTIME:
        raise UsageError("a model that Relay runs has fixed sizes, and there are buckets", "--runtime relax or torch")
    if live and runtime is None:
        runtime = RELAX if is_relax(model) else TORCH_RUNTIME if options.buckets is not None else RELAY_RUNTIME
    check_where(options.on)
    check_weights(options.weights)
    if runtime == RELAX:
        require_relax()
    elif options.weights != INSIDE:
        raise UsageError(f"there is no library beside which weights could lie ({options.weights!r})", "--runtime relax makes one")
    device = load_device(options.target) if isinstance(options.target, str) else options.target
    check_device(device)
    tuning = Tuning(wanted, open_memory(options.records), watch=lambda: watching(device))
    if measures(wanted):
        require_means(tuning.memory, device, wanted)
    stages = Stages(options.step)
    stages.begin("import", "reading the model")
    if options.buckets is not None:
        found = _sized(model, params, checked(options.buckets))
        how = How(options.check, options.seed, tuning, jobs=options.jobs, say=stages.say)
        result = optimize_buckets(found, options.buckets, device, options.on, stages, how, runtime != RELAX)
        stages.end()
        result = replace(result, seconds=stages.seconds, seed=options.seed)
        wanted = runtime == RELAX and options.build is not False
        return with_relax(result, weights=options.weights, step=options.step, timeout=options.timeout) if wanted else result
    folder = apart.Folder()
    file, path = _read(model, params, folder)
    stages.end()
    if runtime == RELAY_RUNTIME and file.form != RELAY:
        raise UsageError(f"{file.source} is no Relay model, so that Relay cannot run it", "--runtime relax or torch")
    program = file.imported.program
    check_products(program)
    before, after = (program_seconds(program, device, calls=calls) * 1e6 for calls in (runtime != RELAX, False))
    result = Optimized(file, device, (), (), before, after, seed=options.seed)
    for_relay = file.form == RELAY and runtime in (None, RELAY_RUNTIME)
    if whole is not False or runtime == RELAX:
        try:
            result = _with_kernels(result, options.on, stages, options.jobs, options.check, tuning, runtime)
        except NoValidKernelError as error:
            if whole or not for_relay:
                raise
            result = _noted(result, f"there are no kernels for the whole model, TVM is given regions alone: {error.message}")
    if for_relay:
        result = _with_regions(result, stages, options.jobs, options.check)
    stages.end()
    result = replace(result, seconds=stages.seconds)
    if options.build is False or not (for_relay or runtime == RELAX):
        return result
    if runtime == RELAX:
        return with_relax(result, weights=options.weights, step=options.step, timeout=options.timeout)
    strict = options.build is True or options.runtime is not None
    more = {"compare": options.compare, "step": options.step, "timeout": options.timeout, "folder": folder}
    return with_library(result, path, params, strict=strict, **more)


def _sized(model: Any, params: Any, buckets: Buckets) -> SizedFile:
    """A model with open sizes."""
    tied = [places_of(key) for key in buckets]
    if isinstance(model, str | Path):
        return read_sized_file(model, _file_of_params(params), tied)
    _check_live(params)
    if is_relax(model):
        return SizedFile(LIVE, RELAX_MODULE, sized_relax(model, params))
    folder = apart.Folder()
    return SizedFile(LIVE, RELAY, sized_live(_read_live(model, folder).read_text(), arrays_of(params), LIVE, tied))


def _file_of_params(params: Any) -> str | Path | None:
    if params is not None and not isinstance(params, str | Path):
        raise UsageError("the parameters of a model file are a file too", "save them with tvm.runtime.save_param_dict")
    return params


def _check_live(params: Any) -> None:
    if isinstance(params, str | Path):
        raise UsageError(
            "the parameters of a live module are arrays by name", "read them with tvm_bridge.read.relay_params.read_params"
        )


def _read(model: Any, params: Any, folder: apart.Folder) -> tuple[ModelFile, str | Path]:
    """The model, and its file: of a live module one in ``folder``."""
    if isinstance(model, str | Path):
        return read_model_file(model, _file_of_params(params)), model
    _check_live(params)
    if is_relax(model):
        live = to_program(relax_model(model, params))
        return ModelFile(LIVE, RELAX_MODULE, Imported(live.program, live.params, live.inputs), live), LIVE
    path = _read_live(model, folder)
    live = to_program(from_json_text(path.read_text(), arrays_of(params), LIVE))
    return ModelFile(live.model.source, RELAY, Imported(live.program, live.params, live.inputs), live), path


def _with_kernels(
    result: Optimized, on: str | None, stages: Stages, jobs: int, check: bool, tuning: Tuning, runtime: str | None = None
) -> Optimized:
    """The result with kernels for the whole model, and with what became of them where they run. For TVM all of them are
    generated: it has no library of products."""
    where, notes = where_tried(on, result.device, result.file)
    stages.begin("kernels of the model")
    made = compile_imported(
        result.file.imported,
        result.device,
        None if where == "cpu" or runtime in (RELAX, RELAY_RUNTIME) else where,
        How(check, result.seed, tuning, jobs=jobs, say=stages.say, ours=runtime not in (RELAX, RELAY_RUNTIME)),
    )
    result = replace(result, made=made, notes=notes, effort=tuning.effort.name)
    if where is None:
        return result
    stages.begin("running", "running it")
    run = replace(made, device="cpu", realised=replace(made.realised, artifacts=())) if where == "cpu" else made
    try:
        if run.device is None:
            run = replace(run, device=where)
        return replace(result, trial=tried(run, result.file, result.seed))
    except UnsupportedError as error:
        return _noted(result, f"it was not run: {error.message}")


def _with_regions(result: Optimized, stages: Stages, jobs: int, check: bool) -> Optimized:
    """The result with what TVM can be given of a Relay model: the kernels of its plan, or where there is none the regions that
    are worth fusing, tuned, lowered and checked."""
    if result.made is not None:
        stages.begin("regions", "finding what TVM can be given of the plan")
        found = planned(result)
        after = predicted_us(result.program, result.device, found.regions)
        return replace(_noted(result, str(found)), regions=found.regions, left=found.left, after_us=after)
    imported, device, seed = result.imported, result.device, result.seed
    stages.begin("regions", "finding regions for TVM")
    tuned: dict[str, Tuned] = {}
    choices, left = find_regions(imported.program, device, tuned, frozenset(imported.origin), seed)
    distinct = len({c.region.program.stable_hash() for c in choices})
    stages.begin("their kernels", f"compiling {distinct} distinct kernels for {len(choices)} regions")
    kernels, failed = lower_regions(choices, tuned, device, jobs, check, seed)
    regions = tuple(
        FusedRegion(f"{c.region.kind.lower().replace(' ', '_')}_{i}", c, kernels[c.region.program.stable_hash()])
        for i, c in enumerate(choices)
        if c.region.program.stable_hash() in kernels
    )
    for c in choices:
        if why := failed.get(c.region.program.stable_hash()):
            left += [Left(n, f"no kernel of the {c.region.kind} holds: {why}") for n in c.region.contractions]
    after = predicted_us(imported.program, device, regions)
    return replace(result, regions=regions, left=tuple(left), after_us=after)


def _read_live(mod: Any, folder: apart.Folder) -> Path:
    """A live module as a file in ``folder``. Where types are missing, it gets them in a process of its own."""
    path = save_module(mod, folder.path)
    if not is_typed(mod):
        path.write_text(apart.infer_types(LIVE, path))
    return path


def partition_and_optimize(
    mod: Any, params: Mapping[str, Any] | None = None, *, target: str = "h200", effort: str = "instant"
) -> Optimized:
    """:func:`optimize` for a live module of Relay or Relax: ``.built`` is the Relay model that runs, with regions of ours;
    ``.library`` of a module of Relax all of its kernels (:class:`tvm_bridge.relaxed.RelaxLibrary`).

    Functions and lets of a Relay module are brought into ``main`` (of a copy); of inputs that share a name those after the
    first get underscores."""
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
            tuned[key] = tune_fast(region, device, seed=seed, options=False)  # TVM's launcher knows no descriptors
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
    pool = Children(jobs) if jobs > 1 and len(distinct) > 1 else None
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
    stages = Stages(step)
    stages.begin("building", "building the model" + (" and comparing it with the unpartitioned one" if compare else ""))
    try:
        folder = folder or apart.Folder()
        if text := result.imported.model.inlined:
            model = folder.path / "module.json"
            model.write_text(text)
        values = save_arrays(params, folder.path) if isinstance(params, Mapping) and params else params or None
        job = apart.Job(result.imported.model.source, str(model), str(values) if values else None, result, compare)
        result = apart.build(job, folder, timeout)
    except FuserError as error:
        if strict:
            raise
        absent = isinstance(error, RelayMissing)
        return replace(_noted(result, f"no library was built: {error.message}"), failure=None if absent else error)
    stages.end()
    return replace(result, seconds={**result.seconds, **stages.seconds})


def with_relax(
    result: Optimized, *, weights: str = INSIDE, step: Step = lambda text: None, timeout: float | None = None
) -> Optimized:
    """The result with its kernels as one library for TVM 0.27. Raises what :func:`tvm_bridge.relaxed.relax_library` raises."""
    assert result.made is not None
    stages = Stages(step)
    stages.begin("building", "building the library for TVM's virtual machine")
    library = relax_library(result.buckets or result.made, result.file.source, weights=weights, seconds=timeout)
    stages.end()
    return replace(result, library=library, seconds={**result.seconds, **stages.seconds})


def _noted(result: Optimized, note: str) -> Optimized:
    return replace(result, notes=(*result.notes, note))
