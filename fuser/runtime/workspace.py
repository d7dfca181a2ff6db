"""One workspace for all intermediates of a graph: two of them share bytes only where the order of the kernels, that of their
streams too, keeps their uses apart."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.program import Tensor
from fuser.runtime.streams import Access
from fuser.runtime.streams import Streams

WORKSPACE_ALIGNMENT = 256
"""Bytes; what the CUDA allocator gives."""


@dataclass(frozen=True)
class Slot:
    """An intermediate tensor at ``offset`` bytes of the workspace, written by kernel ``first`` and used by all of ``uses``
    (``first`` too), in launch order."""

    tensor: Tensor
    offset: int
    first: int
    uses: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.tensor.nbytes

    def apart(self, other: Slot, streams: Streams) -> bool:
        """Whether one of the two is done with before the other is begun."""
        return _done(self, other, streams) or _done(other, self, streams)


def _done(a: Slot, b: Slot, streams: Streams) -> bool:
    return set(a.uses) <= streams.before[b.first]


def place(accesses: Sequence[Access], tensors: Mapping[str, Tensor], streams: Streams) -> tuple[tuple[Slot, ...], int]:
    """First fit, largest first, of ``tensors`` (each written by one kernel). Returns the slots in the order of their writers, and
    the size in bytes."""
    wanted: list[Slot] = []
    for name, tensor in tensors.items():
        uses = tuple(i for i, a in enumerate(accesses) if name in a.reads or name in a.writes)
        first = next(i for i in uses if name in accesses[i].writes)
        wanted.append(Slot(tensor, 0, first, uses))
    placed: list[Slot] = []
    for slot in sorted(wanted, key=lambda s: (-s.tensor.nbytes, s.first)):
        offset = 0
        for other in sorted((s for s in placed if not s.apart(slot, streams)), key=lambda s: s.offset):
            if offset + slot.tensor.nbytes <= other.offset:
                break
            offset = max(offset, _aligned(other.end))
        placed.append(Slot(slot.tensor, offset, slot.first, slot.uses))
    total = max((_aligned(s.end) for s in placed), default=0)
    return tuple(sorted(placed, key=lambda s: (s.first, s.offset))), total


def _aligned(n: int) -> int:
    return -(-n // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
