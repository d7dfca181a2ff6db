"""A model whose sizes are open, as kernels for several buckets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_model.program_time import program_seconds
from fuser.device import Device
from fuser.frontends.model_file import ModelFile
from fuser.frontends.model_file import SizedFile
from fuser.frontends.sized import Sized
from fuser.runtime.torch_program import run_program
from search.buckets.asked import Buckets
from search.buckets.bucketed import Bucket
from search.buckets.bucketed import BucketedProgram
from search.buckets.pool import placed
from search.buckets.sizes import checked
from search.buckets.sizes import resolved
from search.choose import compile_buckets
from search.how import How
from search.stages import Stages
from search.trial import Trial
from search.trial import accepted
from search.trial import difference
from search.trial import inputs_of
from search.trial import where_tried
from tvm_bridge.result import Optimized


def optimize_buckets(
    found: SizedFile, buckets: Buckets, device: Device, on: str | None, stages: Stages, how: How, libraries: bool
) -> Optimized:
    """The kernels of each bucket of a model, and what became of them where they run. Without ``libraries`` all are generated."""
    sized = found.sized
    sizes = resolved(checked(buckets), sized)
    known = sized.at({s: of[-1] for s, of in sizes.items()})
    file = ModelFile(found.source, found.form, known, found.original)
    stages.end()
    where, notes = where_tried(on, device, file)
    stages.begin("kernels of the model")
    made = compile_buckets(sized, sizes, device, where if libraries and where != "cpu" else None, how)
    us = program_seconds(known.program, device) * 1e6
    result = Optimized(file, device, (), (), us, us, made=made[-1].made, buckets=made, notes=notes, effort=how.tuning.effort.name)
    if where is None:
        return result
    stages.begin("running", "running it")
    return replace(result, trial=_tried(sized, made, device, where, how.seed))


def _tried(sized: Sized, made: Sequence[Bucket], device: Device, where: str, seed: int) -> Trial:
    """Each bucket at the largest sizes that it has to pad, beside the model's operators by torch at these sizes."""
    first = made[-1].padded.known
    run = BucketedProgram(sized.name, device, where, tuple(_on(b, where) for b in made), first.called)
    rng, worst = np.random.default_rng(seed), 0.0
    for bucket in made:
        sizes = {s: max(n - 1, bucket.padded.least.get(s, 1)) for s, n in bucket.sizes.items()}
        known = sized.at({s: max(n, sized.limits[s][0]) for s, n in sizes.items()})
        values = {
            n: placed(np.asarray(x, order="C"), known.program[n].dtype, where) for n, x in inputs_of(known, None, rng).items()
        }
        params = {n: placed(x, known.program[n].dtype, where) for n, x in known.params.items()}
        wanted = run_program(known.program, params | values)
        found = run.by_name(values)
        worst = max(worst, difference({n: found[n] for n in wanted}, wanted))
    limit = accepted(first.program)
    text = "in Triton's interpreter" if where == "cpu" else f"on {device.title}"
    return Trial(text, "the model's operators by torch", worst, limit)


def _on(bucket: Bucket, where: str) -> Bucket:
    made = bucket.made
    if where == "cpu":
        made = replace(made, realised=replace(made.realised, artifacts=()))
    return Bucket(bucket.padded, made if made.device else replace(made, device=where))
