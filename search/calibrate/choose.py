"""Which schedules are measured: of programs that are drawn, the model's best, and those that say most about its constants.

A schedule says of the constants what the logarithm of its time follows of theirs. Taken one after the other are those that make
the volume of what is undecided smallest (a design that is D-optimal, greedily), each kind of program in its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cost_model.calibrate import EMPHASIS
from cost_model.calibrate import PRIOR
from cost_model.calibrate import Sample
from cost_model.calibrate import slopes
from cost_model.calibrate import table
from cost_model.constants import Constants
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from search.ranked import INSTANT
from search.space.groups import by_warp_groups
from search.space.schedules import ScheduleSpace
from search.tune import rank_graph
from search.tuner.pool import Structure

STRUCTURES = 3
"""Most structures of a program; the first has all of it in one kernel."""
RANDOM = 32
"""Random schedules of a structure."""
BEST = replace(INSTANT, top=12)
"""Of the model's best."""
SLOWEST = 8.0
"""Times the best estimate beyond which a schedule is not worth its time on the GPU."""
CHUNK = 8
"""Schedules of a program that are measured together."""
FIRST = 3
"""Of its first chunk, how many are the model's best."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A candidate, its estimate in seconds, and how the logarithm of that follows the logarithms of the constants."""

    candidate: Candidate
    seconds: float
    slope: NDArray[np.float64]


Job = tuple[TensorProgram, Device, Constants, int]


def offers(job: Job) -> list[Offer]:
    """What may be measured of a program, the best estimate first; may run in a process of its own. None where nothing of it fits
    the device."""
    program, device, constants, seed = job
    rng = np.random.default_rng([seed, 7])
    found: dict[Candidate, float] = {}
    for number, graph in enumerate(structures(program)[:STRUCTURES]):
        if any(isinstance(k, LibraryKernel) for k in graph.kernels):
            continue
        structure = Structure(number, ScheduleSpace(graph, device, options=True), device, 0.0)
        with suppress(NoValidKernelError, UnsupportedError):
            best, _, _ = rank_graph(graph, device, rng, BEST, options=True)
            drawn = structure.entries(structure.space.population(RANDOM, rng))
            found |= {x.candidate: x.estimate for x in (*best, *drawn) if not by_warp_groups(x.candidate.schedule)}
    if not found:
        return []
    kept = [c for c, seconds in found.items() if seconds <= SLOWEST * min(found.values())]
    data = table([Sample(program.name, c, found[c]) for c in kept], device)
    made = [Offer(c, found[c], s) for c, s in zip(kept, slopes(data, constants), strict=True)]
    return sorted(made, key=lambda o: o.seconds)


def ordered(every: Sequence[Sequence[Offer]]) -> list[tuple[int, list[Candidate]]]:
    """Chunks to measure: the number of a program, and candidates of it. Programs take turns; what comes first says most."""
    doubt = np.eye(len(next((o.slope for p in every for o in p), np.zeros(1)))) / PRIOR**2
    left = [list(p) for p in every]
    chunks = []
    for turn in range(max(map(len, left), default=0)):
        for number, mine in enumerate(left):
            taken: list[Offer] = []
            while mine and len(taken) < CHUNK:
                first = turn == 0 and len(taken) < FIRST
                weights = np.array([(every[number][0].seconds / o.seconds) ** EMPHASIS for o in mine])
                told = np.array([o.slope for o in mine]) * weights[:, None]
                gains = np.einsum("ij,jk,ik->i", told, doubt, told)
                at = 0 if first else int(np.argmax(gains))
                along = doubt @ told[at]
                doubt = doubt - np.outer(along, along) / (1.0 + told[at] @ along)
                taken.append(mine.pop(at))
            if taken:
                chunks.append((number, [o.candidate for o in taken]))
    return chunks


def with_constants(device: Device, constants: Constants) -> Device:
    """The device as searches are to see it."""
    return replace(device, constants=tuple(vars(constants).items()))
