"""What a search has found before: taken from records as it is, without what structures, models and searches need."""

from __future__ import annotations

from contextlib import suppress

from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.frontends.imported import Imported
from fuser.ir.program import TensorProgram
from search.compiled import CompiledProgram
from search.how import How
from search.ranked import Tuned
from search.realise import Realised
from search.realise import realise
from search.realise import verified
from search.tuner.efforts import measures
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.tasks import Task
from search.tuner.tasks import at_hand

SMALL = 3
"""Most products of a program that is searched as one region (an attention has two)."""


def is_model(program: TensorProgram) -> bool:
    """Whether a program is more than one region: it has more contractions (an attention is two) than a fused kernel is searched
    for, or what no generated kernel computes."""
    return sum(n.products for n in program.nodes) > SMALL or bool(program.beyond_float32)


def taken(known: Imported, spec: Device, device: str | None, how: How) -> CompiledProgram | None:
    """A program of one region of which a search as far as this effort's is known; None where there is none, or its kernels do not
    hold any more."""
    tuning = how.tuning
    if not measures(tuning.effort) or is_model(known.program):
        return None
    task = Task(known.program, tuple, 1, scope_of(device))
    (found,) = at_hand([task], spec, tuning.effort, tuning.memory)
    if found is None:
        return None
    runs, more = device if how.compiled else None, (known.called, None, how.pool, known.orders)
    with suppress(NoValidKernelError, UnsupportedError):
        done = made(found, spec, device, how)
        return CompiledProgram(known.program, spec, done, runs, known.params, known.inputs, how.capture, None, *more)
    return None


def scope_of(device: str | None) -> str:
    """What kernels may be chosen from that are to run on a device."""
    return LIBRARY if device not in (None, "cpu") else GENERATED


def made(tuned: Tuned, spec: Device, device: str | None, how: How) -> Realised:
    """Its kernels, but where they are interpreted, or wanted without."""
    if device == "cpu" or not how.compiled:
        return verified(tuned)
    return realise([tuned], spec, checked=how.checked, seed=how.seed)[0]
