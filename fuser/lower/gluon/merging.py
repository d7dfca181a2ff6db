"""Groups of warps with the same rows, which share out the trips of a loop: behind it one of them takes what the others have
accumulated out of shared memory, brings all of it to one maximum, and goes on alone."""

from __future__ import annotations

from collections.abc import Iterator

from fuser.ir.layout.named import Slice
from fuser.ir.mugraph import Stmt
from fuser.lower.fold_code import LOG2E
from fuser.lower.gluon.rings import buffer_name
from fuser.lower.gluon.rings import set_up
from fuser.lower.gluon.split import Split
from fuser.lower.gluon.split import refuse
from fuser.lower.gluon.writer import GroupWriter

MERGES = "n_merges"
"""How often a persistent block has merged."""
FULL, EMPTY = "parts_full", "parts_empty"


def barriers(again: bool) -> tuple[str, ...]:
    """For each group of rows one that says that the other parts lie in shared memory, and one that they have been read."""
    return (FULL, EMPTY) if again else (FULL,)


def merging(split: Split, again: bool) -> Iterator[str]:
    """Lines that set these barriers up."""
    for name, count in zip(barriers(again), (split.parts - 1, 1), strict=False):
        yield from set_up(name, split.groups, count)


def merge(w: GroupWriter, again: bool) -> None:
    """Behind the loop: what the others hand over, and what the first makes of it."""
    split = w.split
    assert split.loop
    own = w.tiles.accumulated(split.loop)
    sums = [s for s in split.loop.body if isinstance(s, Stmt) and s.value in own and s.kind == "compute"]
    phase = f"{MERGES} % 2" if again else "0"
    with w.out.indented(f"if {w.part} > 0:"):
        if again:
            w.emit(f"mbarrier.wait({EMPTY}.index({w.group}), {phase} ^ 1)")
        for s in sums:
            w.emit(f"{_place(w, s, f'{w.part} - 1')}.store({_name(w, s)})")
        w.emit(f"mbarrier.arrive({FULL}.index({w.group}), count=1)")
    with w.out.indented(f"if {w.part} == 0:"):
        w.emit(f"mbarrier.wait({FULL}.index({w.group}), {phase})")
        for other in range(split.parts - 1):
            _take(w, sums, str(other))
        if again:
            w.emit(f"mbarrier.arrive({EMPTY}.index({w.group}), count=1)")
    if again:
        w.emit(f"{MERGES} += 1")
    w.forget()


def _name(w: GroupWriter, stmt: Stmt) -> str:
    (name,) = w.values[stmt.value].names.values()
    return name


def _place(w: GroupWriter, stmt: Stmt, other: str) -> str:
    others = w.split.parts - 1
    at = other if w.group == "0" else f"{w.group} * {others} + {other}" if others > 1 else w.group
    return f"{buffer_name(w, f'{stmt.value} part')}.index({at})"


def _take(w: GroupWriter, sums: list[Stmt], other: str) -> None:
    """Add one of the other parts."""
    for s in sums:
        layout = w.layout(s.value)
        assert layout is not None
        w.emit(f"{w.out.beside(_name(w, s), 'other')} = {_place(w, s, other)}.load({w.named(layout)})")
    for s in (s for s in sums if s.maximizes):
        name = _name(w, s)
        new, theirs = w.out.beside(name, "new"), w.out.beside(name, "other")
        shift, mine, its = (w.out.beside(name, x) for x in ("shift", "scale", "scale other"))
        w.emit(f"{new} = gl.maximum({name}, {theirs})")
        w.emit(f'{shift} = gl.where({new} == float("-inf"), 0.0, {new})')
        w.emit(f"{mine} = gl.exp2(({name} - {shift}) * {LOG2E})")
        w.emit(f"{its} = gl.exp2(({theirs} - {shift}) * {LOG2E})")
        w.emit(f"{name} = {new}")
    for s in (s for s in sums if not s.maximizes):
        name = _name(w, s)
        mine, its = [name], [w.out.beside(name, "other")]
        for r in s.rescale:
            top = next((x for x in sums if x.value == r.maximum), None)
            if top is None:
                continue  # the maximum was known before the loop
            if r.degree != 1:
                raise refuse(w.tiles, f"{s.value!r} is rescaled by a power", "use fewer warps")
            for terms, what in ((mine, "scale"), (its, "scale other")):
                terms.append(_spread(w, w.out.beside(_name(w, top), what), top, s))
        w.emit(f"{name} = {' * '.join(mine)} + {' * '.join(its)}")


def _spread(w: GroupWriter, text: str, top: Stmt, into: Stmt) -> str:
    have, want = w.layout(top.value), w.layout(into.value)
    if isinstance(want, Slice):
        return w.converted(text, have, want)
    assert want is not None
    return f"{w.converted(text, have, Slice(1, want))}[:, None]"
