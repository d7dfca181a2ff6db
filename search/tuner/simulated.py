"""A device that does not exist: the time of a candidate is the model's estimate times hidden factors that a seed draws, with a
little noise; some candidates fail. What searches do with measurements can be tried with it anywhere, and always ends the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from statistics import NormalDist
from typing import TypeVar

from cost_model.refined import estimate
from fuser.device import Device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import LibraryKernel
from search.library_time import library_seconds
from search.measure.measurement import Found
from search.measure.measurement import Measurement
from search.measure.measurement import Turn

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Simulated:
    """``spread`` is the deviation (of logarithms) of each hidden factor: one for the structure, and for each kernel one for each
    tile, option, number of warps and of stages. ``noise`` is that of a single measurement; ``failing`` the part of all
    candidates that fail, by class."""

    device: Device
    seed: int = 0
    spread: float = 0.03
    noise: float = 0.005
    failing: float = 0.05
    measured: list[Candidate] = field(default_factory=list)

    def draw(self, *about: object) -> float:
        """A standard normal number that belongs to what it is about."""
        digest = hashlib.sha256("|".join(map(str, (self.seed, *about))).encode()).digest()
        u, v = (int.from_bytes(digest[i : i + 8], "big") / 2**64 for i in (0, 8))
        return math.sqrt(-2.0 * math.log(max(u, 1e-12))) * math.cos(2.0 * math.pi * v)

    def seconds(self, candidate: Candidate) -> float:
        """The true time of a candidate."""
        calls = (k for k in candidate.graph.kernels if isinstance(k, LibraryKernel))
        total = sum(library_seconds(candidate.graph, k, self.device) for k in calls)
        structure = candidate.graph.stable_hash()
        for i, (block, k) in enumerate(candidate.blocks):
            about = [("tile", a, n) for a, n in k.tiles] + [("option", n, v) for n, v in k.knobs]
            about += [("warps", k.num_warps), ("stages", k.num_stages), ("order", str(k.order))]
            factor = sum(self.draw(structure, i, *x) for x in about)
            total += estimate(block, k, self.device)["seconds"] * math.exp(self.spread * factor)
        return total * math.exp(3.0 * self.spread * self.draw(structure))

    def measure(self, candidate: Candidate) -> Measurement:
        """One measurement, with the noise of this one."""
        name = candidate.schedule.text + candidate.graph.stable_hash()
        self.measured.append(candidate)
        if abs(self.draw("fails", name)) > _quantile(self.failing):
            status = ("wrong", "compile", "timeout", "crash")[hash_of(name) % 4]
            return Measurement(status, "as the simulation has it")
        us = self.seconds(candidate) * 1e6 * math.exp(self.noise * self.draw("noise", name, len(self.measured)))
        return Measurement("ok", time_us=us, min_us=us, spread=self.noise, kernels=len(candidate.graph.kernels))

    def each(self, work: Callable[[T], R], jobs: Sequence[T]) -> Iterable[R]:
        """By this process."""
        return map(work, jobs)

    def foresee(self, candidates: Sequence[Candidate]) -> None:
        """There is nothing to compile."""

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """There is nothing to compile."""

    def compare(self, turn: Turn[Candidate]) -> Found:
        """A measurement of each candidate, and of those ``beside`` in turn with them."""
        return [self.measure(c) for c in turn.items], tuple(map(self.measure, turn.beside))


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _quantile(part: float) -> float:
    """How many deviations a normal number is beyond in ``part`` of all cases."""
    return NormalDist().inv_cdf(1.0 - part / 2.0) if part > 0 else math.inf
