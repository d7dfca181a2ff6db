"""``fuser.compile``: structure and schedule are chosen, kernels compiled and checked, and the whole returned as one callable.

What was found before needs little of this package: the rest is loaded where something has to be chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from fuser.by_fields import by_fields
from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.errors import RandomError
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.frontends.imported import Imported
from fuser.ir.program import TensorProgram
from fuser.workloads import workload
from search.calling import as_module
from search.compile_options import Options
from search.compiled import CompiledProgram
from search.how import How
from search.taken import taken
from search.tuner.efforts import measures
from search.tuner.efforts import module_effort
from search.tuner.live import live
from search.tuner.memory import open_memory
from search.tuner.tuning import MODEL_ALONE
from search.tuner.tuning import Tuning
from search.where import where_to_run

if TYPE_CHECKING:
    from search.buckets.bucketed import BucketedProgram
    from search.piecewise import PiecewiseModule

CHOSEN = ("graph", "schedule", "superoptimize", "dtype")
"""Options that ask for a program as a whole."""


@by_fields
def compile_program(
    program: Any,
    example_inputs: Sequence[Any] = (),
    *,
    options: Options,
    example_kwargs: Mapping[str, Any] | None = None,
) -> CompiledProgram:
    """Choose structure and schedule of a program, compile its kernels, check them, and return the whole as one callable.

    ``program`` is a :class:`TensorProgram`, the name of a workload (``mirage/rmsnorm:8``), a ``torch.nn.Module`` with the shapes
    and dtypes of ``example_inputs`` (and ``example_kwargs``), a ``torch.export.ExportedProgram``, or what
    :func:`fuser.from_torch` returns. Parameters of a module are bound with the values that they have now: they are not arguments
    of the callable, which is called as the module is and returns what it returns. What no kernel can be made for is left to
    torch; a module that is no program (its control flow depends on values, it writes to its buffers or inputs) is compiled graph
    by graph when it is called (:class:`search.piecewise.PiecewiseModule`), if it can run here.

    ``target`` names the device to tune for, or its file; by default the GPU at hand. ``graph`` and ``schedule`` choose for you;
    with one of them the other is still searched. ``superoptimize``: seconds that the superoptimizer may look for structures.
    What runs on a GPU may leave products to its library (cuBLAS).

    ``effort``: with ``instant`` nothing is measured, but what was measured before is taken where the program, the device and
    the versions are the same; else the model alone decides. ``sure``, which modules have by default, is the same and then, where
    they run on the GPU at hand, measures what was chosen beside what torch's compiler makes of the module, on the example inputs,
    and keeps the faster (:mod:`search.beside`; not of a conversion by ``dtype``, of ``buckets``, of over 200 operators, nor where
    the model has no doubt). ``quick`` measures kernels on the GPU at hand until it has converged,
    ``full:SECONDS`` so long; Ctrl-C ends it with the best so far. What was found is kept in ``records``: by default those of the
    user (in the cache folder) with the package's beside, else a file of records, or JSON lines that an application ships;
    False for none.

    Whatever structure is chosen is verified against the program first (``graph`` too); the callable's ``verdict`` says with what
    evidence. ``checked``: the winner runs at a reduced size in Triton's interpreter against float64, and the next candidate
    takes its place where it fails; what was measured was checked where it ran.

    ``device`` is where the callable runs: ``cuda``, ``cuda:1``, or ``cpu`` for Triton's interpreter (slow). By default the GPU,
    if there is one of the target's architecture; with a ``target`` and no such GPU, kernels are only compiled. With ``capture``
    calls replay a CUDA graph: inputs are copied into fixed buffers, and the outputs are the same tensors at every call.

    ``dtype``, ``float16`` or ``bfloat16``, converts a module of float32: parameters, inputs (those of float32 are converted at
    each call), what lies in memory between kernels, and outputs; sums, norms and softmax stay float32 inside kernels. The
    callable's ``conversion`` has the error against the original on the example inputs.

    ``buckets`` are sizes by open dimension of a module or an exported program, ``{"input_ids:1,mask:1": (128, 256, 512)}``: a set
    of kernels is made for each, and a call of any size up to the largest takes the next larger one
    (:class:`search.buckets.bucketed.BucketedProgram`); torch runs larger ones of a module.

    Raises :class:`EnvironmentError_` where there is nothing to run on, :class:`UsageError` for arguments that do not fit and for
    a ``graph`` that the verifier does not accept, and :class:`fuser.errors.NoValidKernelError` or
    :class:`fuser.errors.UnsupportedError` where no kernel can be made.
    """
    options.check()
    if isinstance(example_inputs, Mapping) or not (hasattr(example_inputs, "shape") or isinstance(example_inputs, Collection)):
        what = type(example_inputs).__name__
        raise UsageError(f"the example inputs are a {what}", "pass a tuple of tensors, and keywords as example_kwargs")
    if options.buckets is not None:
        return _bucketed(program, example_inputs, example_kwargs or {}, options)  # type: ignore[return-value]
    try:
        return _as_program(program, example_inputs, example_kwargs or {}, options)
    except (UsageError, EnvironmentError_):
        raise
    except Exception as error:
        if (other := _by_graphs(program, example_inputs, example_kwargs or {}, options, error)) is None:
            raise
        return other  # type: ignore[return-value]


def _as_program(program: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], options: Options) -> CompiledProgram:
    known = _imported(program, inputs, keywords)
    if options.dtype is not None:
        more = options.only("target", "device", "capture", "checked", "seed", "effort", "records")
        return _converted(known, _examples(program, known, inputs, keywords), options.dtype, more)
    given: Mapping[str, Any] = {}
    if isinstance(program, Imported):
        given = {n: x for n, x in zip(known.inputs, inputs, strict=False) if x is not None}
    if known.called is not None and hasattr(program, "forward"):
        from search.strided import as_results_lie
        from search.strided import as_they_lie
        from search.views import with_views

        examples = _examples(program, known, inputs, keywords)
        known = as_they_lie(as_results_lie(with_views(known)), examples)
        given = dict(zip(known.inputs, examples, strict=True))
    device, spec, tuning = _placed(options, known.program.name)
    beside = not isinstance(program, Imported) and module_effort(options.effort)[1]  # pieces are measured together
    left = known.traced is not None
    how = How(options.checked, options.seed, tuning, options.capture, theirs=left, examples=given, beside=beside)
    chosen = (options.graph, options.schedule, options.superoptimize)
    if not any(chosen) and not (beside and left) and (found := taken(known, spec, device, how)):
        return found
    from search.choose import as_one
    from search.choose import compile_imported

    if not any(chosen):
        return compile_imported(known, spec, device, how)
    done = as_one(known.program, spec, device, chosen, how)
    more = (known.called, None, None, known.orders)
    mine = known.program, spec, done, device, known.params, known.inputs, how.capture, None
    return CompiledProgram(*mine, *more, examples=how.examples)


def _placed(options: Options, name: str) -> tuple[str | None, Device, Tuning]:
    """Where the kernels run, what they are made for, and what chooses them."""
    device, spec = where_to_run(options.device, options.target, name)
    wanted, _ = module_effort(options.effort)
    if measures(wanted) and device == "cpu":
        what = f"the effort {options.effort!r} measures on a GPU, not in Triton's interpreter"
        raise UsageError(what, "leave out device= or effort=")
    tuning = MODEL_ALONE if device == "cpu" else Tuning(wanted, open_memory(options.records), watch=lambda: live(spec))
    return device, spec, tuning


def _bucketed(program: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], options: Options) -> BucketedProgram:
    """The program at the sizes of every bucket, with one set of weights."""
    if asked := [n for n, value in options.only(*CHOSEN).items() if value]:
        raise UsageError(f"{asked[0]}= is for one size, and there are buckets", "leave out one of them")
    from search.buckets.bucketed import BucketedProgram
    from search.buckets.sizes import checked
    from search.buckets.sizes import resolved
    from search.buckets.sizes import sized_of
    from search.choose import compile_buckets

    sizes = checked(options.buckets)
    sized = sized_of(program, inputs, keywords, sizes)
    device, spec, tuning = _placed(options, sized.name)
    found = compile_buckets(
        sized, resolved(sizes, sized), spec, device, How(options.checked, options.seed, tuning, options.capture)
    )
    return BucketedProgram(sized.name, spec, device, found, found[-1].padded.known.called, sized.whole)


def _by_graphs(
    module: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], options: Options, error: Exception
) -> PiecewiseModule | None:
    """A module that is no program as a whole, graph by graph; None where there is nothing to run it on, where more was asked for,
    or where the module itself fails. Modules that draw random numbers since they are in training mode are refused."""
    if not hasattr(module, "named_parameters") or not hasattr(module, "forward") or any(options.only(*CHOSEN).values()):
        return None
    if isinstance(error, RandomError) and module.training:
        what = f"{type(module).__name__} is in training mode, and draws random numbers: {error.message}"
        raise RandomError(what, "call eval() on it: what draws numbers then as well is compiled graph by graph") from error
    from search.piecewise import PiecewiseModule
    from search.piecewise import tried

    where, spec = where_to_run(options.device, options.target, type(module).__name__)
    given = (inputs,) if hasattr(inputs, "shape") else tuple(inputs)
    if where is None or (found := tried(module, given, keywords)) is None:
        return None
    more = options.only("checked", "effort", "records") | {"cudagraphs": options.capture, "freeze": not found.changes}
    return PiecewiseModule(module, spec, where, more, first_line(error), found.gradients)


def _converted(known: Imported, given: Sequence[Any], dtype: str, options: Mapping[str, Any]) -> CompiledProgram:
    from search.converted import conversion
    from search.converted import converted

    small = converted(known, dtype)
    run = compile_program(small, **options)
    made = None if run.device in (None, "cpu") else run.by_name
    run.conversion = conversion(known, small, dtype, given, made)
    return run


def _examples(program: Any, known: Imported, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """The tensors among the example inputs, in the order of the program's."""
    from fuser.aten import real_view

    if known.called is None:
        raise UsageError(
            f"{known.program.name!r} is no module: there is nothing to compare a conversion with",
            "dtype= is for modules with example inputs; a program has its dtypes already",
        )
    kept = getattr(program, "example_inputs", None)  # an ExportedProgram's
    alone = hasattr(inputs, "shape")
    args, named = kept if kept is not None else ((inputs,) if alone else tuple(inputs), keywords)
    found = as_module(known.called, repr(known.program.name), args, named)
    return [real_view(found[n]) for n in known.inputs]


def _imported(program: Any, example_inputs: Sequence[Any], example_kwargs: Mapping[str, Any]) -> Imported:
    """The program, its parameters, and the names of its arguments."""
    if isinstance(program, str):
        program = workload(program)
    if isinstance(program, TensorProgram):
        if len(example_inputs) or example_kwargs:
            raise UsageError(f"{program.name!r} has its shapes already", "example inputs belong to PyTorch modules")
        if same := [n for n, count in Counter((*program.outputs, *program.inputs)).items() if count > 1 and n in program.outputs]:
            what = "an input" if same[0] in program.inputs else "named twice"
            raise UsageError(f"the output {same[0]!r} of {program.name!r} is {what}", "a kernel would only copy it: leave it out")
        return Imported(program, {}, program.inputs)
    if isinstance(program, Imported):
        return program
    if not hasattr(program, "named_parameters") or isinstance(program, type):  # a Module and an ExportedProgram have it
        raise UsageError(
            f"cannot compile {f'the class {program.__name__}' if isinstance(program, type) else f'a {type(program).__name__}'}",
            "pass a TensorProgram, the name of a workload, a torch.nn.Module with example inputs, or an ExportedProgram",
        )
    from fuser.frontends.torch_export import from_torch

    alone = hasattr(example_inputs, "shape")  # one tensor, not a sequence of them
    return from_torch(program, (example_inputs,) if alone else tuple(example_inputs), example_kwargs=example_kwargs)
