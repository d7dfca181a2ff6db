"""How kernels are chosen and compiled, as whoever asks for them has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.buckets.pool import Pool
from search.stages import Say
from search.stages import silent
from search.tuner.tuning import MODEL_ALONE
from search.tuner.tuning import Tuning


@dataclass(frozen=True)
class How:
    """How kernels are chosen and compiled: what ``tuning`` chooses, by ``jobs`` processes that price and compile (None: one for
    each core). ``say`` is told each stage as it begins. Without ``compiled`` kernels are chosen and verified alone; ``ours``: our
    own runtime is to call the libraries; ``theirs``: torch's compiler may be given all of it. ``pool`` holds the weights.
    ``examples`` are values of the inputs by name, with which what torch's compiler makes is tried; with ``beside`` what was
    chosen is measured on them beside what that makes of all of it."""

    checked: bool = True
    seed: int = 0
    tuning: Tuning = MODEL_ALONE
    capture: bool = False
    jobs: int | None = None
    say: Say = silent
    compiled: bool = True
    ours: bool = True
    theirs: bool = False
    examples: Mapping[str, Any] | None = None
    beside: bool = False
    pool: Pool | None = None


USUAL = How()
