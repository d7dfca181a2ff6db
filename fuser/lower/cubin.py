"""What the assembler decided, read from a cubin: registers a thread and bytes of local memory (spills) a thread."""

from __future__ import annotations

import struct

_SVAL = 4  # attribute with a payload of its own size
_FRAME_SIZE = 0x11
_REGCOUNT = 0x2F


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and local-memory bytes a thread, the largest of all kernels in the cubin; (-1, -1) where it does not say."""
    registers = frame = -1
    for attribute, payload in _attributes(cubin):
        if len(payload) < 8:
            continue
        (value,) = struct.unpack_from("<I", payload, 4)
        if attribute == _REGCOUNT:
            registers = max(registers, value)
        elif attribute == _FRAME_SIZE:
            frame = max(frame, value)
    return registers, frame


def _attributes(cubin: bytes) -> list[tuple[int, bytes]]:
    """The entries of the section ``.nv.info`` of a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02" or len(cubin) < 64:
        return []
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    found: list[tuple[int, bytes]] = []
    for name, _, _, _, offset, length in headers:
        end = cubin.index(b"\0", names + name)
        if cubin[names + name : end] != b".nv.info":
            continue
        at = offset
        while at + 4 <= offset + length:
            form, attribute, value = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form == _SVAL:
                found.append((attribute, cubin[at : at + value]))
                at += value
    return found
