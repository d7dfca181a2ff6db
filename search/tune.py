"""Tune one program: rank every schedule of every structure with the model, take the best.

Fast tuning runs nothing on a GPU: for each structure the schedule space is searched with the refined model (all of it where it
is small enough), and structures compete by the sum of their kernels.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cost_model import refined
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import schedule_features
from cost_model.floor import least_seconds
from cost_model.models import MODELS
from cost_model.names import PAPER
from cost_model.names import REFINED
from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.files import counted
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.options import BACKEND
from fuser.superopt.structures import structures
from search.library_time import library_seconds
from search.ranked import INSTANT
from search.ranked import Effort
from search.ranked import Ranked
from search.ranked import Tuned
from search.space.clusters import ranked_clusters
from search.space.early_work import saved
from search.space.estimates import estimator
from search.space.evolve import search
from search.space.groups import ranked_groups
from search.space.kernels import Estimator
from search.space.launches import with_launches
from search.space.polish import polished
from search.space.polish import with_assumed
from search.space.schedules import ScheduleSpace

RUNNERS = 16
"""Candidates that are kept behind the winner: what is compiled next if it does not hold."""


DOUBT = 1.08
"""How much longer than its estimate a structure that a search has found is taken to need, beside those that need no search: what
is chosen among many for its estimate is likelier underestimated. For 50 drawn programs on an H200, found structures that were
predicted to win by less gained 4 % at most and lost up to 13 % (6 programs), the others lost 3 % at most (11)."""
GROUPED, CHAINED_GROUPS = 0.9, 1.02
"""Of the estimate of its best kernels in Triton what a structure by warp groups may take to be chosen: where these multiply what
they load, and where they multiply what they have computed. The best of many estimates is likelier too low, and Triton's are many:
on an H200 the first choice in Triton took 1.04 of its estimate in the median of 72 attentions and chains of products and over 1.2
in a tenth of them, the first by warp groups 1.03. Of 53 products alone, the faster of the two by this rule took 1.2 % longer than
the fastest with 0.92 to 0.96, 1.9 % with 0.98, 2.5 % with 1.02: most estimates of Triton's are higher than what they take. Of 14
large products in bfloat16 on an H100 Triton's best took 0.90 to 1.00 of its estimate, those by warp groups 1.00 to 1.19."""
CLUSTERED = 0.87
"""The same of one whose blocks share out rows in clusters: of 70 programs on an H200 it is chosen for 17 so, of which 16 are
1.06 x as fast in the mean, 0.85 to 1.37 (experiments/results/h200-clusters)."""
OTHERS = 3
"""Schedules by warp groups, or in clusters, of a structure that stand beside its others: the assembler may refuse some."""
REMEMBERED = 8192
"""Kernels of which a process remembers the ranking."""


def rank_graph(
    graph: KernelGraph,
    device: Device,
    rng: np.random.Generator,
    effort: Effort = INSTANT,
    worth: float = math.inf,
    options: bool = False,
    best: float = math.inf,
) -> tuple[list[Ranked], int, tuple[str, ...]]:
    """Schedules of one structure by the model, best first; the number of estimates, and notes of the space. A structure that
    will take much longer than ``worth`` seconds is not searched in full. ``options``: the best get options of the lowering,
    where they come near ``best`` seconds with them."""
    fixed = math.fsum(library_seconds(graph, k, device, effort.model) for k in graph.kernels if isinstance(k, LibraryKernel))
    least = partial(least_seconds, device=device) if effort.model == REFINED else None
    space = ScheduleSpace(graph, device, ranked=_ranked(device, options, effort.model), least=least)
    estimate = estimator(device, effort.model)

    def assuming(f: Features) -> Counts:
        return estimate(with_assumed(f, device))

    found = search(space, assuming if options else estimate, rng, effort, worth=worth - fixed)
    top = [Ranked(with_launches(r.candidate, device, r.seconds), fixed + r.seconds) for r in found.top]
    if effort.model == REFINED:
        top = [replace(r, estimate=r.estimate - saved(r.candidate, device)) for r in top]
        top.sort(key=lambda r: r.seconds)
    if not options:
        return top, found.estimated, found.notes
    ranked = polished(top, device, estimate, best)
    if effort.model == PAPER:  # knows of no other way to write a kernel
        return ranked, found.estimated, found.notes
    more, count = in_other_forms(space, ranked, estimate, OTHERS)
    return sorted((*ranked, *more), key=judged), found.estimated + count, found.notes


def in_other_forms(space: ScheduleSpace, top: Sequence[Ranked], estimate: Estimator, most: int) -> tuple[list[Ranked], int]:
    """The best schedule of a structure with those of its kernels by warp groups, or in clusters, instead that are faster so, by
    the estimate; of a kernel alone the ``most`` best. And the number of estimates."""
    base, known = top[0], {} if space.ranked is None else space.ranked
    found: list[list[tuple[float, KernelSchedule]]] = []
    count = 0
    for k, mine in zip(space.kernels, base.schedule.kernels, strict=True):
        several = [form(k, estimate, most, known) for form in (ranked_groups, ranked_clusters)]
        count += sum(estimated for _, estimated in several)
        ranked = [x for one, _ in several for x in one]
        own = float(estimate(schedule_features(k.block, mine))[0]) if ranked else 0.0
        found.append([(s - own, g) for s, g in ranked if s < own or len(space.kernels) == 1])
        found[-1].sort(key=lambda x: x[0])
    more: list[Ranked] = []
    for i in range(max(map(len, found), default=0)):
        picked = [f[min(i, len(f) - 1)] if f else (0.0, s) for f, s in zip(found, base.schedule.kernels, strict=True)]
        candidate = Candidate(base.graph, Schedule(tuple(s for _, s in picked)))
        more.append(Ranked(candidate, base.estimate + math.fsum(x for x, _ in picked)))
    return more, count


def in_triton(block: BlockGraph, schedule: KernelSchedule, device: Device) -> KernelSchedule:
    """The schedule, or the model's best in Triton without descriptors where it is one by warp groups: for launchers that have no
    descriptors. Raises :class:`NoValidKernelError` where there is none."""
    if BACKEND.of(schedule) == "triton":
        return schedule
    alone = KernelGraph(block.name, block.inputs, (block,), block.outputs)
    return rank_graph(alone, device, np.random.default_rng(0))[0][0].schedule.kernels[0]


def graph_seconds(candidate: Candidate, device: Device, model: str = REFINED) -> float:
    """Estimate of a candidate as a search by a model has it; infinite where it cannot run."""
    graph = candidate.graph
    fixed = (library_seconds(graph, k, device, model) for k in graph.kernels if isinstance(k, LibraryKernel))
    made = (float(MODELS[model](schedule_features(b, k), device)[0]) for b, k in candidate.blocks)
    return math.fsum((*fixed, *made, -saved(candidate, device) if model == REFINED else 0.0))


_RANKED: dict[tuple[Device, bool, str], dict[Any, Any]] = {}


def _ranked(device: Device, options: bool, model: str) -> dict[Any, Any]:
    """What this process has ranked for a device by a model, with or without assumed options: structures of a program, and parts
    of a model, share most of their kernels."""
    found = _RANKED.setdefault((device, options, model), {})
    if len(found) > REMEMBERED:
        found.clear()
    return found


def tune_fast(
    program: TensorProgram,
    device: Device,
    effort: Effort = INSTANT,
    seed: int = 0,
    graphs: Sequence[KernelGraph] | None = None,
    kernels: bool = True,
    worth: float = math.inf,
    options: bool = True,
) -> Tuned:
    """Fast tuning: the model alone decides, among ``graphs`` (by default those that need no search). Raises
    :class:`NoValidKernelError` where no schedule fits the device, and :class:`fuser.errors.UnsupportedError` where no structure
    lowers. ``kernels=False``: estimates are wanted, also for devices that no kernel can be compiled for. ``worth``: seconds in
    which the program can be done otherwise; what is much slower is not searched in full. ``options``: the best schedules get
    options of the lowering, which a launcher of ours has to know."""
    if kernels:
        refined.check_device(device)
    graphs = structures(program) if graphs is None else graphs
    found: list[Ranked] = []
    notes: dict[str, None] = {}
    count = 0
    for graph in graphs:
        try:
            best = min((r.seconds for r in found), default=math.inf)
            ranked, n, said = rank_graph(graph, device, np.random.default_rng(seed), effort, worth, options, best)
        except (NoValidKernelError, UnsupportedError):
            continue
        found += ranked
        worth = min(worth, ranked[0].seconds) if math.isfinite(worth) else worth
        count += n
        notes |= dict.fromkeys(said)
    if not found:
        raise NoValidKernelError(
            f"no schedule of {program.name!r} fits {device.title}: tried {counted(len(graphs), 'structure')}",
            "choose a device with more shared memory, or cut the region",
        )
    found.sort(key=judged)
    kept = found[: 1 + RUNNERS]
    shown = {id(c.graph) for c in kept}
    rest = {id(c.graph): c for c in reversed(found) if id(c.graph) not in shown}  # the best of each other structure
    runners = (*kept[1:], *sorted(rest.values(), key=judged))
    return Tuned(program, device.name, found[0], runners, len(graphs), count, tuple(notes))


def judged(ranked: Ranked) -> float:
    """Seconds by which candidates are put in order: those by warp groups, and in clusters, stand beside others by more than their
    estimates."""
    if any(s.cluster for s in ranked.schedule.kernels):
        return ranked.seconds / CLUSTERED
    blocks = [b for b, s in ranked.candidate.blocks if BACKEND.of(s) == "gluon"]
    return ranked.seconds / (1.0 if not blocks else GROUPED if all(map(multiplies_loads, blocks)) else CHAINED_GROUPS)


def multiplies_loads(block: BlockGraph) -> bool:
    """Whether a kernel's products are of what is loaded alone, as attention's are not."""
    dots = [s for s in block.computes if s.contracts]
    return bool(dots) and all(block.by_value[a].kind == "load" for s in dots for a in s.args)


def wary(tuned: Tuned, plain: Collection[KernelGraph]) -> Tuned:
    """Fast tuning among ``plain`` structures and others, which a search has found: one of those wins where it is predicted
    to be faster by more than :data:`DOUBT`."""
    known = frozenset(plain)
    ranked = sorted((tuned.winner, *tuned.runners), key=lambda c: judged(c) * (1.0 if c.graph in known else DOUBT))
    return replace(tuned, winner=ranked[0], runners=tuple(ranked[1:]))
