"""Searches on a device that does not exist."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from fuser.device import load_device
from fuser.ir.program import TensorProgram
from fuser.superopt.structures import structures
from search.ranked import QUICK
from search.tuner.campaign import Campaign
from search.tuner.hunt import Hunt
from search.tuner.pool import Pool
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from search.tuner.pool import pool_of
from search.tuner.simulated import Simulated
from tests.builders import chain

H200 = load_device("h200")
PROGRAM = chain(256, 128, 64, 64)


@lru_cache
def pool(program: TensorProgram = PROGRAM) -> Pool:
    return pool_of(program, H200, map(part, jobs_of(program, structures(program), H200, QUICK)))


def hunt(program: TensorProgram = PROGRAM, seed: int = 0, **effort: Any) -> Hunt:
    """A search of its own over a pool that is found once."""
    known = pool(program)
    short = {"population": 32, "top": 8, "patience": 2, "generations": 8}
    return Hunt(program, Pool(known.structures, dict(known.entries)), replace(QUICK, **short | effort), seed)


def run(searches: list[Hunt], judge: Simulated | None = None, **options: Any) -> Campaign:
    campaign = Campaign(searches, judge or Simulated(H200), **options)
    campaign.run()
    return campaign
