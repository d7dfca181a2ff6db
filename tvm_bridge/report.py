"""``report.json``: what ``mufuser optimize`` found, in a documented and versioned form (``report.schema.json`` beside this
file).
"""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fuser.console import plain
from fuser.lower.compile import save_artifact
from fuser.runtime.library import summary
from fuser.superopt.verify.verdicts import verdict_document
from tvm_bridge.result import FusedRegion
from tvm_bridge.result import Optimized
from tvm_bridge.result import unfused_operators

SCHEMA = 1


def versions() -> dict[str, str]:
    """Versions of what had a part in the result."""
    found = {"mufuser": _version("mufuser"), "numpy": np.__version__, "triton": _version("triton")}
    for name in ("xtc-tvm-python-bindings", "apache-tvm", "torch"):
        if version := _version(name):
            found[name] = version
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def document(result: Optimized, output: Path | None = None) -> dict[str, Any]:
    """The report; with ``output`` the kernels are written to ``output/kernels`` and their files named."""
    kernels: dict[str, dict[str, Any]] = {}
    regions = [_region(r, kernels, output) for r in result.regions]
    fused = math.fsum(r.predicted_us for r in result.regions)
    return plain(
        {
            "schema": SCHEMA,
            "model": {
                "source": result.imported.model.source,
                "relay_version": result.imported.model.graph.version,
                "operators": len(result.program.nodes),
                "inputs": [
                    {"name": v.name, "shape": list(v.type.dims), "dtype": v.type.dtype} for v in result.imported.model.inputs
                ],
            },
            "target": {"name": result.device.name, "title": result.device.title, "arch": result.device.sm},
            "effort": "instant",
            "seed": result.seed,
            "versions": versions(),
            "predicted": {
                "before_us": result.before_us,
                "after_us": result.after_us,
                "speedup": result.before_us / result.after_us if result.after_us else 1.0,
                "fused_us": fused,
                "rest": unfused_operators(result),
            },
            "regions": regions,
            "kernels": kernels,
            "left": [{"node": item.node, "reason": item.reason} for item in result.left],
            "check": None
            if result.comparison is None
            else {
                "largest_difference": result.comparison.largest,
                "relative_difference": result.comparison.relative,
                "ran": result.comparison.ran,
            },
            "library": "model.so" if result.built is not None and output else None,
            "notes": list(result.notes),
            "seconds": dict(result.seconds),
        }
    )


def _region(region: FusedRegion, kernels: dict[str, dict[str, Any]], output: Path | None) -> dict[str, Any]:
    done = region.realised
    names = []
    for artifact in done.artifacts:
        if artifact.name not in kernels:
            manifest = save_artifact(artifact, output / "kernels", artifact.name) if output else artifact.manifest()
            kernels[artifact.name] = manifest | {"verdict": str(done.verdict)}
        names.append(artifact.name)
    return {
        "name": region.name,
        "kind": region.region.kind,
        "symbol": region.symbol,
        "nodes": list(region.region.nodes),
        "inputs": list(region.region.inputs),
        "outputs": list(region.region.outputs),
        "reason": region.choice.reason,
        "fused_us": region.predicted_us,
        "unfused_us": region.choice.unfused_us,
        "structure": summary(done.candidate.graph),
        "schedule": done.candidate.schedule.to_json(),
        "mugraph": done.candidate.graph.to_json(),
        "kernels": names,
        "candidates": done.tuned.candidates,
        "rejected": dict(done.rejected),
        "verdict": verdict_document(done.verdict),
        "check": None
        if done.check is None
        else {"error": done.check.error, "max_error": done.check.max_error, "method": done.check.method},
        "notes": list(done.tuned.notes),
    }
