"""A candidate's plan, and the hash of its kernels' text: made once each."""

from __future__ import annotations

from dataclasses import replace

from fuser.errors import FuserError
from fuser.ir.candidate import Candidate
from fuser.ir.pitched import in_memory
from fuser.kept import text_hash
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan
from search.measure.measurement import Measurement
from search.measure.measurement import failed


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
