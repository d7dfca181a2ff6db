"""``report.json``: what ``mufuser optimize`` found, in a documented and versioned form (``report.schema.json`` beside this
file).
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuser.console import plain
from fuser.installed import version_of
from fuser.ir.program import Tensor
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import save_artifact
from fuser.outputs import write_file
from fuser.runtime.library import summary
from fuser.superopt.verify.verdicts import verdict_document
from search.buckets.bucketed import folder_name
from search.compiled import CompiledProgram
from search.cover.drawing import drawing
from search.evidence import MODEL
from search.evidence import Evidence
from search.evidence import made_by
from search.realise import Realised
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.result import unfused_operators

SCHEMA = 1


def versions() -> dict[str, str]:
    """Versions of what had a part in the result."""
    found = {"mufuser": version_of("mufuser"), "numpy": np.__version__, "triton": version_of("triton")}
    for name in ("xtc-tvm-python-bindings", "apache-tvm", "torch"):
        if version := version_of(name):
            found[name] = version
    return found


def document(result: Optimized, output: Path | None = None) -> dict[str, Any]:
    """The report; with ``output`` the kernels are written to ``output/kernels``, the plan is drawn to ``output/plan.svg``, and
    their files named."""
    save = partial(_saved, output / "kernels") if output else KernelArtifact.manifest
    evidence = Evidence(result.device, save, result.trial.kernels if result.trial else {})
    plan = None if result.made is None else _plan(result.made, evidence, output)
    buckets = [
        {"sizes": b.sizes, "plan": plan if b.made is result.made else _plan(b.made, evidence, output, folder_name(b.sizes))}
        for b in result.buckets
    ]
    regions = [_region(r, evidence) for r in result.regions]
    fused = math.fsum(r.predicted_us for r in result.regions)
    program, planned = result.program, result.after_us if result.made is None else result.made.plan.us
    return plain(
        {
            "schema": SCHEMA,
            "model": {
                "source": result.file.source,
                "form": result.file.form,
                "relay_version": result.imported.model.graph.version if result.relay else "",
                "operators": len(program.nodes),
                "inputs": [_tensor(program[n]) for n in result.file.imported.inputs],
            },
            "target": {"name": result.device.name, "title": result.device.title, "arch": result.device.sm},
            "effort": result.effort,
            "seed": result.seed,
            "versions": versions(),
            "made_by": made_by(),
            "predicted": {
                "before_us": result.before_us,
                "plan_us": planned,
                "after_us": result.after_us,
                "speedup": result.before_us / planned if planned else 1.0,
                "fused_us": fused,
                "rest": unfused_operators(result) if result.relay else [],
            },
            "plan": plan,
            "buckets": buckets or None,
            "run": None if result.trial is None else {**asdict(result.trial), "ok": result.trial.ok},
            "regions": regions,
            "kernels": evidence.kernels,
            "structures": evidence.structures,
            "graphs": evidence.graphs,
            "left": [{"node": item.node, "reason": item.reason} for item in result.left],
            "check": None
            if result.comparison is None
            else {
                "largest_difference": result.comparison.largest,
                "relative_difference": result.comparison.relative,
                "ran": result.comparison.ran,
            },
            "library": "model.so" if (result.built or result.library) and output else None,
            "notes": list(result.notes),
            "seconds": dict(result.seconds),
        }
    )


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _plan(made: CompiledProgram, evidence: Evidence, output: Path | None, bucket: str = "") -> dict[str, Any]:
    """The plan of the whole model, or of a bucket of it; its kernels join the evidence."""
    name = f"plan-{bucket}.svg" if bucket else "plan.svg"
    plan = made.plan
    found = made.found
    compiled = evidence.add(bucket or MODEL, made.realised.candidate.candidate, made.artifacts, found)
    parts = []
    for part, done, kernels in zip(plan.parts, found, compiled, strict=True):
        parts.append(
            {
                "names": part.names,
                "library": part.library,
                "operators": part.operators,
                "nodes": part.nodes,
                "reads": [_tensor(t) for t in part.reads],
                "writes": [_tensor(t) | {"layout": text} for t, text in zip(part.writes, part.layouts, strict=True)],
                "us": part.us,
                "equal": part.key[:16],
                "kernels": kernels,
                "structure": summary(done.candidate.graph),
                "schedule": done.candidate.schedule.to_json(),
                "verdict": done.verdict.kind,
                "check": _check(done),
            }
        )
    if output:
        write_file(output / name, drawing(plan))
    choice = None if plan.choice is None else asdict(plan.choice)
    space = plan.workspace
    return {
        "us": plan.us,
        "chained_us": plan.chained_us,
        "launches": plan.launches,
        "choice": choice,
        "workspace": space and {"bytes": space.bytes, "least": space.bound, "gap": space.gap, "tensors": len(space.slots)},
        "parts": parts,
        "drawing": name if output else None,
    }


def _saved(folder: Path, artifact: KernelArtifact) -> dict[str, Any]:
    return save_artifact(artifact, folder, artifact.name)


def _check(done: Realised) -> dict[str, Any] | None:
    check = done.check
    return None if check is None else {"error": check.error, "max_error": check.max_error, "method": check.method}


def _region(region: FusedRegion, evidence: Evidence) -> dict[str, Any]:
    done = region.realised
    evidence.add(region.name, done.candidate.candidate, done.artifacts, region.parts or (done,))
    return {
        "name": region.name,
        "kind": region.region.kind,
        "symbol": region.symbol,
        "nodes": list(region.region.nodes),
        "inputs": list(region.inputs),
        "outputs": list(region.region.outputs),
        "reason": region.choice.reason,
        "fused_us": region.predicted_us,
        "unfused_us": region.choice.unfused_us,
        "structure": summary(done.candidate.graph),
        "schedule": done.candidate.schedule.to_json(),
        "mugraph": done.candidate.graph.to_json(),
        "kernels": [a.name for a in done.artifacts],
        "candidates": done.tuned.candidates,
        "rejected": dict(done.rejected),
        "verdict": verdict_document(done.verdict),
        "check": _check(done),
        "notes": list(done.tuned.notes),
    }
