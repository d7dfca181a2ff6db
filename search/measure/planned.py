"""A candidate's plan, and the hash of its kernels' text: made once each."""

from __future__ import annotations

from dataclasses import replace

from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.pitched import in_memory
from fuser.ir.schedule import KernelSchedule
from fuser.kept import text_hash
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.options import BACKEND
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan
from search.measure.measurement import Measurement
from search.measure.measurement import failed

MOST_WARPS, MOST_STAGES = 32, 16
"""Of schedules that come from records. What asks for more (400 stages) keeps a compiler busy for minutes."""


def unusable(candidate: Candidate, source: str) -> str:
    """Why a candidate of records, whose kernels were written as the hash ``source`` says, is not what would run here; nothing
    where it is."""
    if not within_limits(candidate):
        return f"no schedule has so many warps or stages ({', '.join(map(_asked, candidate.schedule.kernels))})"
    if not (own := source_hash(candidate)):
        made = planned(candidate)
        return f"it has no kernels today: {made.detail if isinstance(made, Measurement) else 'there are none'}"
    return "" if own == source else "its kernels are generated in another way today"


def within_limits(candidate: Candidate) -> bool:
    """Whether its warps are a power of two, or groups of four in Gluon, and both they and its stages no more than records may ask
    for."""
    return all(
        1 <= k.num_warps <= MOST_WARPS
        and (not k.num_warps & (k.num_warps - 1) or (BACKEND.of(k) == "gluon" and k.num_warps % GROUP_WARPS == 0))
        and 0 <= k.num_stages <= MOST_STAGES
        for k in candidate.schedule.kernels
    )


def _asked(k: KernelSchedule) -> str:
    return f"warps={k.num_warps} stages={k.num_stages}"


def planned(candidate: Candidate) -> Plan | Measurement:
    """Its plan, or why there is none; made once."""
    return candidate.once(_planned)


def _planned(candidate: Candidate) -> Plan | Measurement:
    try:
        return plan(replace(candidate, graph=in_memory(candidate.graph)))
    except FuserError as error:
        return failed(error)


def source_hash(candidate: Candidate) -> str:
    """Of the text of its kernels and how they are launched."""
    return candidate.once(_source_hash)


def _source_hash(candidate: Candidate) -> str:
    made = planned(candidate)
    if isinstance(made, Measurement):
        return ""
    launch = [f"{s.num_warps} {s.num_stages} {s.grid}" for s in made.sources if s]
    pairs = zip(candidate.graph.kernels, made.sources, strict=True)
    return text_hash(*(s.text if s else str(k) for k, s in pairs), *launch)[:16]
