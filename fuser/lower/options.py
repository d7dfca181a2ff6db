"""The lowering's options: what ``KernelSchedule.knobs`` may hold, one entry for each.

An option changes how a kernel is executed and never what it computes. All are optional; some need a newer GPU. An option of a
single tensor has the tensor's name behind an underscore (``evict_W``).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuser.errors import UsageError


@dataclass(frozen=True)
class Option:
    """``values`` are those allowed (empty: any of ``kind``); ``capability`` is the least compute capability, without its
    point; ``per_tensor`` options are named after a tensor."""

    name: str
    kind: type
    says: str
    values: tuple[Any, ...] = ()
    capability: int = 80
    per_tensor: bool = False

    def allows(self, value: Any) -> bool:
        return type(value) is self.kind and (not self.values or value in self.values)


OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        Option("pad", bool, "compute odd tiles in one padded power of two, not in pieces (80 as 128, not as 64 + 16)"),
        Option("precision", str, "how the tensor cores multiply float32", ("ieee", "tf32", "tf32x3")),
        Option("grid_order", str, "axes of the grid joined by dots, the fastest last"),
        Option("group", int, "so many tiles of the second fastest grid axis share those of the fastest in L2", (2, 4, 8, 16, 32)),
        Option("evict", str, "how long L2 keeps a tensor's lines", ("evict_first", "evict_last"), per_tensor=True),
        Option(
            "pdl",
            str,
            "start before the kernel in front has ended: when all its blocks have started (early) or are about to store (late)",
            ("early", "late"),
            90,
        ),
        Option("unroll", bool, "equal layers of a deep chain are written one after the other, not as a loop over them"),
        Option("lazy", bool, "sums of a loop stay apart by lane until it ends, where nothing rescales them"),
        Option(
            "prefetch", int, "trips of whose loads the lines come to L2 while the kernel waits (with pdl)", (1, 2, 3, 4, 6, 8), 90
        ),
        Option("tma", bool, "move a tensor's tiles by the host's tensor descriptor, not by pointers", (), 90, per_tensor=True),
        Option("persistent", int, "so many programs, each of which computes one place of the grid after another"),
        Option("flatten", bool, "of a persistent kernel: the pipeline of one place's loop goes on into the next place's"),
        # Triton 3.6 makes kernels of it for sm_90 too: 29 of 32 of them gave NaN or wrong numbers on an H200
        Option(
            "specialize",
            bool,
            "some warps load by descriptors, others multiply: in the innermost loop or persistent one",
            (),
            100,
        ),
    )
}


def option_of(name: str) -> Option | None:
    """The entry of a knob; ``None`` for an unknown one."""
    if name in OPTIONS and not OPTIONS[name].per_tensor:
        return OPTIONS[name]
    found = OPTIONS.get(name.partition("_")[0])
    return found if found is not None and found.per_tensor and "_" in name else None


def check_options(knobs: Mapping[str, Any], tensors: Iterable[str], kernel: str) -> int:
    """The least compute capability that the options of a kernel need. Raises :class:`UsageError` for an unknown option, a value
    that it does not have, or a tensor that the kernel does not use."""
    least = 80
    for name, value in knobs.items():
        option = option_of(name)
        if option is None:
            raise UsageError(f"{name!r} of {kernel!r} is no option of the lowering", f"options: {', '.join(OPTIONS)}")
        if not option.allows(value):
            values = ", ".join(map(repr, option.values)) or option.kind.__name__
            raise UsageError(f"{value!r} is not a value of the option {name!r} of {kernel!r}", f"values: {values}")
        if option.per_tensor and (tensor := name.partition("_")[2]) not in set(tensors):
            raise UsageError(f"the option {name!r} of {kernel!r} names a tensor that the kernel does not use: {tensor!r}")
        least = max(least, option.capability)
    return least
