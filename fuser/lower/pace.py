"""How fast a warp gets through its products, read from what the assembler made: the order of its instructions, and what each of
them waits for.

Instructions of sm_80 and later have 16 bytes: an opcode, and for their scheduling the cycles until the next one is issued, up to
two of six barriers that it sets (when its result is there, when its operands are read), and those it waits for. A walk along a
loop by these numbers gives the cycles of a warp that nobody disturbs. Assemblers keep fragments in few registers now and then, so
that each load of some waits for the product before it: a LoRA took an H200 14.7 µs with 64 registers a thread and 34 cycles a
product, and 7.4 with tiles of three quarters of the depth, 108 registers and 12 cycles.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SIZE = 16
"""Bytes of an instruction."""
PRODUCT, BRANCH = 0x23C, 0x947
"""Opcodes of a product on fragments and of a branch."""
LATENCY = {0x83B: 33, 0x984: 30, 0xF89: 25, 0x589: 25, 0x308: 40, 0xB1D: 30, PRODUCT: 34}
"""Cycles from the issue of an instruction that sets a barrier to its result: loads of fragments, other loads from shared memory,
shuffles, special functions, barriers of a block. What comes from memory is waited for elsewhere."""
OTHER, READ = 20, 12
"""The same of others, and until operands are read."""
ROUNDS = 3
"""Trips of which the last counts: the ones before set the barriers."""


@dataclass(frozen=True)
class Instruction:
    """``target``: bytes from the start of the code that a branch goes to."""

    opcode: int
    cycles: int
    sets: int
    frees: int
    waits: int
    target: int = -1


@dataclass(frozen=True)
class Pace:
    """Products of a warp and its cycles for all of them: in the innermost loop that has the most, or from start to end where more
    stand outside of it."""

    products: int
    cycles: int


def pace(cubin: bytes) -> Pace:
    """Of the kernel in a cubin; no products where it has none on fragments, or its code is not understood."""
    code = _code(cubin)
    loops = [(i.target // SIZE, at + 1) for at, i in enumerate(code) if i.opcode == BRANCH and 0 <= i.target < at * SIZE]
    inner = [x for x in loops if not any(x != y and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    most = max(inner, key=lambda x: _products(code[slice(*x)]), default=(0, 0))
    part = code[slice(*most)]
    if 2 * _products(part) < _products(code):
        part = code
    return Pace(_products(part), _cycles(part))


def _products(code: list[Instruction]) -> int:
    return sum(i.opcode == PRODUCT for i in code)


def _cycles(code: list[Instruction]) -> int:
    """Cycles of one trip of a loop."""
    now = before = 0
    ready = [0] * 6
    for _ in range(ROUNDS):
        before = now
        for i in code:
            now = max([now, *(r for b, r in enumerate(ready) if i.waits >> b & 1)])
            if i.sets < len(ready):
                ready[i.sets] = max(ready[i.sets], now + LATENCY.get(i.opcode, OTHER))
            if i.frees < len(ready):
                ready[i.frees] = max(ready[i.frees], now + READ)
            now += max(i.cycles, 1)
    return now - before


def _code(cubin: bytes) -> list[Instruction]:
    """The instructions of the first section of code of a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02" or len(cubin) < 64:
        return []
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, _, _, _, offset, length in headers:
        if cubin[names + name :].startswith(b".text."):
            return [_instruction(cubin, offset, at) for at in range(0, length - SIZE + 1, SIZE)]
    return []


def _instruction(cubin: bytes, start: int, at: int) -> Instruction:
    low, high = struct.unpack_from("<QQ", cubin, start + at)
    opcode, control, target = low & 0xFFF, high >> 41, -1
    if opcode == BRANCH:
        # a signed number of four bytes, from the next instruction on: its low byte lies apart
        far = (high & 0x3FFFF) << 30 | low >> 34
        far -= (far >> 47 & 1) << 48
        target = at + SIZE + 4 * ((far << 8) + (low >> 16 & 0xFF))
    return Instruction(opcode, control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63, target)
