"""Options that a schedule has: whether it may, and what the compiler is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from fuser.errors import UsageError
from fuser.ir.schedule import KernelSchedule
from fuser.lower.options import OPTIONS
from fuser.lower.options import option_of
from fuser.lower.options import rivals


def tensor_of(name: str) -> str:
    """The tensor that a knob is about; empty where it is about none."""
    option = option_of(name)
    return name.partition("_")[2] if option is not None and option.tensors else ""


def given(arch: int, behind: bool) -> tuple[tuple[str, Any], ...]:
    """Options of schedules whose options are not searched. On an H200 those of a kernel behind another one pay for nearly all
    schedules and cost none more than 2 %."""
    found = (o for o in OPTIONS.values() if o.given is not None and o.offered(arch, behind))
    return tuple(sorted((o.name, o.given) for o in found))


def handed(schedule: KernelSchedule) -> tuple[tuple[str, Any], ...]:
    """Keywords and values for the compiler, of options that it takes as they are."""
    found = ((option_of(name), value) for name, value in schedule.knobs)
    return tuple((o.parameter, value) for o, value in found if o is not None and o.parameter)


def check_options(knobs: Mapping[str, Any], tensors: Iterable[str], kernel: str) -> int:
    """The least compute capability that the options of a kernel need. Raises :class:`UsageError` for an unknown option, a value
    that it does not have, a tensor that the kernel does not use, or options that exclude each other."""
    least = 80
    for name, value in knobs.items():
        option = option_of(name)
        if option is None:
            raise UsageError(f"{name!r} of {kernel!r} is no option of the lowering", f"options: {', '.join(OPTIONS)}")
        if not option.allows(value):
            values = ", ".join(map(repr, option.values)) or option.kind.__name__
            raise UsageError(f"{value!r} is not a value of the option {name!r} of {kernel!r}", f"values: {values}")
        tensor = tensor_of(name)
        if tensor and tensor not in set(tensors):
            raise UsageError(f"the option {name!r} of {kernel!r} names a tensor that the kernel does not use: {tensor!r}")
        for other, why in rivals(option, tensor).items():
            if value and knobs.get(other):
                raise UsageError(f"{kernel!r} cannot have both options {name!r} and {other!r}: {why}", "leave one of them out")
        if value not in (option.default, False):
            least = max(least, option.tried_on[0] if any(option.tried_on) and value in option.choices else option.capability)
    return least
