"""How long values are held in registers, and how many that takes."""

from __future__ import annotations

from cost_model.resources import BASE_REGISTERS
from fuser.ir.layout.named import Registers
from fuser.ir.mugraph import Stmt
from search.layouts import layouts as lay
from search.layouts.facts import Dims
from search.layouts.facts import Facts
from search.layouts.kernel import Kernel

GROUP_BASE = 24
"""Registers of a thread for addresses and counters where the copy engine makes the addresses of tiles."""


def lives(f: Facts) -> dict[Stmt, range]:
    """Points at which each value is held: from where it is made, an accumulator from the loop on, to its last reader, or to
    the end of the loop in which that is."""
    where = [(n, tuple(id(x) for x in loops)) for n, loops in f.tiles.tree.walk() if isinstance(n, Stmt)]
    at = {s: i for i, s in enumerate(f.order)}
    found: dict[Stmt, range] = {}
    for s in f.order:
        if s.kind == "store":
            continue
        mine = next(loops for n, loops in where if n is s or n == s)
        first = last = at[s]
        if s.value in f.tiles.owner and mine:
            first = min(at[n] for n, loops in where if loops[: len(mine)] == mine)
            last = max(at[n] for n, loops in where if loops[: len(mine)] == mine)
        for n, loops in where:
            if s.value in n.args or (n.kind == "store" and n.value == s.value):
                last = max(last, at[n])
                inner = loops[: len(mine) + 1]
                if len(inner) > len(mine) and inner[: len(mine)] == mine:
                    last = max(last, *(at[x] for x, around in where if around[: len(inner)] == inner))
        found[s] = range(first, last + 1)
    return found


def held_registers(k: Kernel, picked: dict[Dims, Registers]) -> tuple[int, ...]:
    """Registers at each point of what has no option: values that are computed, in the first layout of each tile. What dies
    where something of its size is made gives that its registers."""
    f = k.f
    found = [GROUP_BASE if f.grouped else int(BASE_REGISTERS)] * len(f.order)
    for s, points in lives(f).items():
        layout = k.layout(s, picked)
        if layout is None or s.kind == "load":
            continue
        only = f.block.users(s.value)
        operand = bool(only) and all(u in f.dots for u in only)
        amount = lay.registers_of(layout, k.shape(f.dims(s)), 2 if operand else 4)
        ends = s.value in f.order[points[-1]].args  # its last reader makes something in its place
        for i in points[:-1] if ends and len(points) > 1 else points:
            found[i] += amount
        if k.m.overlap and operand:
            for i in range(len(found)):
                found[i] += amount if i not in points[:-1] and f.inside(f.order[i]) else 0
    return tuple(found)
