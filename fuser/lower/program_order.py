"""From the number of a program to its place on the grid: which tiles run at the same time, and so what they share in L2."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence


def decode(counters: Sequence[tuple[str, int]], group: int = 0) -> Iterator[str]:
    """Lines that set every counter from ``pid``. ``counters`` are names and sizes, the slowest first.

    With ``group``, the two fastest are walked in groups: ``group`` tiles of the second fastest, for each tile of the fastest, so
    that programs that run together read few different tiles of both operands.
    """
    left = list(counters)
    pid, number = "pid", 0
    if group and len(left) > 1:
        (row, rows), (col, cols) = left[-2:]
        inner = "pid"
        if len(left) > 2:
            inner = "pid_in"
            yield f"pid_in = pid % {rows * cols}"
            yield f"pid_1 = pid // {rows * cols}"
            pid, number = "pid_1", 1
        size = min(group, rows)
        height = str(size)
        yield f"first = {inner} // {size * cols} * {size}"
        if rows % size:
            height = "height"
            yield f"height = min({rows} - first, {size})"
        yield f"{row} = first + {inner} % {size * cols} % {height}"
        yield f"{col} = {inner} % {size * cols} // {height}"
        left = left[:-2]
    while left:
        name, size = left.pop()
        if not left:
            yield f"{name} = {pid}"
            return
        yield f"{name} = {pid} % {size}"
        number += 1
        yield f"pid_{number} = {pid} // {size}"
        pid = f"pid_{number}"


def persistent_loop(places: int, programs: int, flatten: bool, specialize: bool) -> str:
    """The loop of a persistent kernel over the places of its grid; ``pid`` counts them."""
    options = (", flatten=True" if flatten else "") + (", warp_specialize=True" if specialize else "")
    return f"for pid in tl.range(tl.program_id(0), {places}, {programs}{options}):"
