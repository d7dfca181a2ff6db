"""What an access of a warp costs: sectors of device memory, wavefronts of shared memory. Exact counts, by algebra.

Device memory is read by sectors of 32 bytes. Shared memory has 32 banks of 4 bytes; where threads move more than 4 bytes, a
quarter or half of the warp is served in each phase (8 threads of 16 bytes, 16 of 8), and a phase takes as many wavefronts as
the fullest bank has different words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.layout.algebra import Layout
from fuser.ir.layout.bits import log2
from fuser.ir.layout.bits import rank
from fuser.ir.layout.linear import offsets_of
from fuser.ir.layout.linear import to_memory
from fuser.ir.layout.named import Bases
from fuser.ir.layout.named import Shared

SECTOR = 32
WORD, BANKS = 4, 32
WIDEST = 16
"""Bytes of the widest access of a thread."""


@dataclass(frozen=True)
class Access:
    """How a group moves its tile to or from shared memory: bytes a thread at once, instructions a thread, and wavefronts of one
    instruction of a warp."""

    vector: int
    instructions: int
    wavefronts: int

    @property
    def phases(self) -> int:
        """Wavefronts without a conflict."""
        return max(self.vector // WORD, 1)

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the first of each phase, as Triton counts them."""
        return self.wavefronts // self.phases - 1


def shared_access(registers: Bases, memory: Shared, element: int) -> Access:
    """Loads or stores of a tile in registers through a buffer; ``element`` is bytes."""
    return through(*to_memory(registers, offsets_of(memory, registers.shape)), element)


def through(register: Sequence[int], lane: Sequence[int], warp: Sequence[int], element: int) -> Access:
    """Loads or stores at offsets (in elements) that are linear over the bits of registers, lanes and warps."""
    wide = _wide(register, (*lane, *warp), element)
    vector = element << wide
    registers = len([r for r in register if r]) - wide
    return Access(vector, 1 << registers, bits_wavefronts([x * element for x in lane], vector))


def _wide(register: Sequence[int], others: Sequence[int], element: int) -> int:
    """Bits of the vector that a thread moves at once: neighbours are in its registers, and nothing else moves it by less."""
    wide = 0
    while element << wide < WIDEST and 1 << wide in register:
        if any(x >> wide & 1 for x in (*register, *others) if x != 1 << wide):
            break
        wide += 1
    return wide


def bits_wavefronts(lane: Sequence[int], vector: int) -> int:
    """Wavefronts of one instruction: ``lane`` is where each bit of the lane moves the address (in bytes), which is linear over
    bits. The words of a phase span a space; so do their banks, and each bank has as many words as the others."""
    together = log2(min(BANKS, BANKS * WORD // max(vector, WORD)))
    words = [x // WORD for x in lane[:together]] + [1 << i for i in range(log2(max(vector // WORD, 1)))]
    return (1 << (len(lane) - together)) << (rank(words) - rank(w % BANKS for w in words))


def wavefronts(addresses: Sequence[int], vector: int) -> int:
    """Wavefronts of one instruction of a warp that moves ``vector`` bytes at each address: the definition, for any layout."""
    together = min(BANKS, BANKS * WORD // max(vector, WORD))
    found = 0
    for first in range(0, len(addresses), together):
        words = {w for a in addresses[first : first + together] for w in range(a // WORD, -(-(a + vector) // WORD))}
        found += max(Counter(w % BANKS for w in words).values(), default=0)
    return found


def sectors(access: Layout, element: int) -> int:
    """Sectors that a group touches which reads every element of a layout; ``element`` is bytes, the base is aligned as it says.

    Dimensions whose stride is whole sectors multiply what the others touch, as far as these end before the next of them begins;
    what overlaps is counted place by place.
    """
    if access.swizzle.bits:
        return touched((o * element for o in access.offsets()), element)
    steps = sorted((abs(d) * element, n) for n, d in access.modes if n > 1 and d)
    lowest = access.base + sum((n - 1) * d for n, d in access.modes if d < 0)
    fine = [(d, n) for d, n in steps if d % SECTOR]
    coarse = [(d, n) for d, n in steps if not d % SECTOR]
    start = lowest * element % SECTOR
    reach = start + sum(d * (n - 1) for d, n in fine) + element
    found, counted, apart = 1, fine, []
    for d, n in coarse:
        if d < -(-reach // SECTOR) * SECTOR:
            found, counted, apart = 1, [*counted, *apart, (d, n)], []
        else:
            found, apart = found * n, [*apart, (d, n)]
        reach += d * (n - 1)
    return found * touched(_sums(start, counted), element)


def _sums(start: int, steps: Sequence[tuple[int, int]]) -> Iterable[int]:
    found = {start}
    for d, n in steps:
        found = {x + d * i for x in found for i in range(n)}
    return found


def touched(addresses: Iterable[int], size: int) -> int:
    """Sectors under accesses of ``size`` bytes each: the definition."""
    return len({s for a in addresses for s in range(a // SECTOR, (a + size - 1) // SECTOR + 1)})


def device_access(registers: Bases, strides: Sequence[int], element: int) -> tuple[int, int]:
    """Bytes that a thread moves at once and sectors of one instruction of a warp, for a tile in device memory: ``strides`` are
    elements from one to the next along each of its dimensions."""

    def place(v: Sequence[int]) -> int:
        return sum(x * d for x, d in zip(v, strides, strict=True))

    others = [*(d for d in strides if d != 1), *(place(v) for v in (*registers.lane, *registers.warp))]
    wide = _wide([place(v) for v in registers.register], others, element)
    vector = element << wide
    lanes = [(2, place(v)) for v in registers.lane]
    lanes += [(1 << wide, 1)] if wide else []
    return vector, sectors(Layout(tuple(n for n, _ in lanes), tuple(d for _, d in lanes)), element)
