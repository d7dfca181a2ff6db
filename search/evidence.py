"""What a report says of each kernel, in a form that can be checked again without the model: the program and the µGraph that was
verified, the graph and schedule that the source was generated from, hashes of the files, predicted and measured times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from cost_model.refined import estimate
from fuser.device import Device
from fuser.installed import version_of
from fuser.ir.candidate import Candidate
from fuser.kept import source_hash
from fuser.kept import text_hash
from fuser.lower.compile import KernelArtifact
from fuser.superopt.verify.verdicts import verdict_document
from search.realise import Realised

SUFFIXES = (".py", ".ptx", ".cubin")
"""Of the files of a kernel."""
MODEL = "model"
"""The graph of a report that computes the whole model, which is what ``run`` has run."""


def made_by() -> dict[str, str]:
    """The version, and a hash of what generates and verifies kernels: other sources generate others."""
    return {
        "mufuser": version_of("mufuser"),
        "source": source_hash("fuser.ir", "fuser.interpret", "fuser.lower", "fuser.superopt"),
    }


@dataclass
class Evidence:
    """Gathers ``kernels`` by entry, the ``structures`` that were verified, by hash, and the ``graphs`` that were lowered, by
    name. ``save`` writes a kernel's files and gives its manifest; ``measured`` has microseconds by entry."""

    device: Device
    save: Callable[[KernelArtifact], dict[str, Any]] = KernelArtifact.manifest
    measured: Mapping[str, float] = field(default_factory=dict)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    structures: dict[str, dict[str, Any]] = field(default_factory=dict)
    graphs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, whole: Candidate, artifacts: Sequence[KernelArtifact], parts: Sequence[Realised]) -> list[list[str]]:
        """Take a graph, its kernels, and the parts that it consists of, in order; the entries of each part."""
        rest = iter(zip(whole.blocks, artifacts, strict=True)) if artifacts else iter(())
        entries, found = [list[str]() for _ in parts], []
        for part, done in zip(entries, parts, strict=True):
            mine = [next(rest) for _ in done.candidate.graph.blocks] if artifacts else []
            if not mine:
                continue
            key = self._structure(done)
            one = done.candidate.measured if len(mine) == 1 else None
            for (block, schedule), artifact in mine:
                part.append(artifact.name)
                if artifact.name not in self.kernels:
                    us = estimate(block, schedule, self.device)["seconds"] * 1e6
                    measured = self.measured.get(artifact.name, one and one * 1e6)
                    self.kernels[artifact.name] = {
                        **self.save(artifact),
                        "verdict": str(done.verdict),
                        "predicted_us": us,
                        "measured_us": measured,
                        "sha256": _hashes(artifact),
                    }
            found.append({"structure": key, "blocks": [block.name for (block, _), _ in mine], "kernels": part})
        if found:
            self.graphs[name] = {"mugraph": whole.graph.to_json(), "schedule": whole.schedule.to_json(), "parts": found}
        return entries

    def _structure(self, done: Realised) -> str:
        program, graph = done.tuned.program, done.candidate.graph
        key = text_hash(program.stable_hash(), graph.stable_hash())[:16]
        if key not in self.structures:
            said = {"program": program.to_json(), "mugraph": graph.to_json(), "verdict": verdict_document(done.verdict)}
            self.structures[key] = said
        return key


def _hashes(artifact: KernelArtifact) -> dict[str, str]:
    texts = (artifact.source.text.encode(), artifact.ptx.encode(), artifact.cubin)
    return {suffix: hashlib.sha256(text).hexdigest() for suffix, text in zip(SUFFIXES, texts, strict=True)}
