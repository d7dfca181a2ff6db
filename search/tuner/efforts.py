"""What an effort is called: ``instant``, ``quick``, ``full``, ``full:SECONDS``."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from cost_model.names import NAMES
from cost_model.names import REFINED
from cost_model.names import TITLES
from fuser.errors import UsageError
from search.ranked import EFFORTS
from search.ranked import Effort

WORDS = "instant (the model alone decides), quick (measures on the GPU until it has converged), full:SECONDS (measures so long)"
"""For help and errors."""
SURE = "sure"
"""The effort of modules that run here, unless another is asked for: the model decides as for instant, and what it has chosen is
measured beside what torch's compiler makes of the module; the faster is kept. Quick and full do that in the end as well."""


def effort_of(text: str, model: str = REFINED) -> Effort:
    """Raises :class:`UsageError` for what is no effort, or no model to rank by."""
    if model not in NAMES:
        raise UsageError(f"there is no model {model!r}", f"known: {'; '.join(f'{n}: {t}' for n, t in TITLES.items())}")
    return replace(_effort(text), model=model)


def module_effort(text: str | None) -> tuple[Effort, bool]:
    """How hard to look for kernels of a module, and whether they are measured beside those of torch's compiler; None: usual."""
    if text is not None and text.partition(":")[0] not in (SURE, *EFFORTS):
        hint = f"efforts are {WORDS}, and of modules sure (instant, then beside torch's compiler)"
        raise UsageError(f"there is no effort {text!r}", hint)
    effort = effort_of("instant" if text in (None, SURE) else text)
    return effort, text in (None, SURE) or measures(effort)


def _effort(text: str) -> Effort:
    name, colon, seconds = text.partition(":")
    if name not in EFFORTS:
        hint = "it is for modules: fuser.compile(module, inputs)" if text == SURE else f"efforts are {WORDS}"
        raise UsageError(f"there is no effort {text!r}", hint)
    found = EFFORTS[name]
    if not colon:
        return found
    if found.seconds is None:
        raise UsageError(f"the effort {name!r} takes no seconds: {text!r}", "full:SECONDS does")
    try:
        budget = float(seconds)
    except ValueError:
        budget = 0.0
    if not (isfinite(budget) and budget > 0):
        raise UsageError(f"{seconds!r} of the effort {text!r} is no time in seconds", "full:300, say")
    return replace(found, seconds=budget)


def measures(effort: Effort) -> bool:
    """Whether it needs a device to measure on."""
    return effort.name != "instant"


def check_heard(effort: Effort, dask: str | None, simulate: int | None) -> None:
    """Raises :class:`UsageError` for options that say how to measure where nothing is."""
    if dask is not None and not dask.strip():
        raise UsageError("--dask names no cluster", "give the address of its scheduler: --dask tcp://HOST:8786")
    given = [name for name, value in (("--dask", dask), ("--simulate", simulate)) if value is not None]
    if given and not measures(effort):
        hint = f"--effort quick, or full:SECONDS; or leave {given[0]} out"
        raise UsageError(f"{given[0]} is for efforts that measure, and the effort {effort.name} does not", hint)
