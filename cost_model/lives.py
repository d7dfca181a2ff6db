"""Where the values of a block live in what Triton makes of it: loops that are loops, and from which statement to which."""

from __future__ import annotations

from collections.abc import Collection

from cost_model.features import Features
from fuser.ir.mugraph import Stmt


def real(f: Features, loops: tuple[str, ...]) -> tuple[str, ...]:
    """Loops that are loops of the generated source: the others are unrolled."""
    return tuple(a for a in loops if a not in f.tree.arrays)


def home(f: Features, i: int) -> tuple[str, ...]:
    """Real loops in which a load is executed: the compiler moves it out of those that do not index it."""
    if i not in f.homes:
        f.homes[i] = _home(f, i)
    return f.homes[i]


def _home(f: Features, i: int) -> tuple[str, ...]:
    s = f.stmts[i]
    loops = real(f, s.loops)
    if s.stmt.kind != "load":
        return loops
    deep = max((d + 1 for d, a in enumerate(loops) if a in s.stmt.axes), default=0)
    return loops[:deep]


def last_use(f: Features, i: int) -> int:
    """Position of the end of a value: its last reader, or the end of the loop around that reader that the value outlives."""
    value, loops = f.stmts[i].stmt.value, f.stmts[i].loops
    end = i
    for j in range(i + 1, len(f.stmts)):
        if value in f.stmts[j].stmt.args and f.stmts[j].loops[: len(loops)] == loops:
            end = max(end, j)
            inside = f.stmts[j].loops[: len(loops) + 1]
            while len(inside) > len(loops) and end + 1 < len(f.stmts) and f.stmts[end + 1].loops[: len(inside)] == inside:
                end += 1
    return end


def span(f: Features, i: int, loops: tuple[str, ...]) -> tuple[int, int]:
    """First and last position of the loop nest ``loops`` around a statement."""
    low = high = i
    while low > 0 and real(f, f.stmts[low - 1].loops)[: len(loops)] == loops:
        low -= 1
    while high + 1 < len(f.stmts) and real(f, f.stmts[high + 1].loops)[: len(loops)] == loops:
        high += 1
    return low, high


def read_together(f: Features, i: int) -> bool:
    """Several statements read what this load brings (not another load of the same value), all in the loops of the load itself."""
    value, loops = f.stmts[i].stmt.value, real(f, f.stmts[i].loops)
    again = (j for j in range(i + 1, len(f.stmts)) if f.stmts[j].stmt.kind == "load" and f.stmts[j].stmt.value == value)
    readers = [s for s in f.stmts[i + 1 : next(again, len(f.stmts))] if value in s.stmt.args]
    return len(readers) > 1 and all(real(f, s.loops) == loops for s in readers)


def made_by(f: Features, value: str, dots: Collection[int]) -> int | None:
    """Position of the contraction that a value comes from through element-wise operators, if there is one."""
    at = {f.stmts[i].stmt.value: i for i in dots}
    todo, seen = [value], set[str]()
    while todo:
        v = todo.pop()
        if v in at:
            return at[v]
        if v not in seen and (stmt := f.block.by_value[v]).kind == "compute":
            seen.add(v)
            todo += stmt.args
    return None


def from_loads(f: Features, stmt: Stmt) -> bool:
    """A value that element-wise operators make of loads alone: it is computed on fragments."""
    todo, seen = [stmt], set[str]()
    while todo:
        s = todo.pop()
        if s.folds:
            return False
        if s.value not in seen:
            seen.add(s.value)
            todo += [f.block.by_value[a] for a in s.args]
    return True


def life(f: Features, i: int) -> tuple[int, int]:
    """First and last position at which an accumulator (or what element-wise operators make of it in its place) is alive."""
    stmt = f.stmts[i].stmt
    owner = dict(f.tree.owner).get(stmt.value)
    loops = f.stmts[i].loops
    low, high = (i, i) if owner not in loops else within(f, i, loops[: loops.index(owner) + 1])
    names = {stmt.value}
    for j in range(i + 1, len(f.stmts)):
        s = f.stmts[j].stmt
        if names & set(s.args) or (s.kind == "store" and s.value in names):
            high = max(high, j)
            if s.kind == "compute" and not s.folds:
                names.add(s.value)
    return low, high


def within(f: Features, i: int, loops: tuple[str, ...]) -> tuple[int, int]:
    low = high = i
    while low > 0 and f.stmts[low - 1].loops[: len(loops)] == loops:
        low -= 1
    while high + 1 < len(f.stmts) and f.stmts[high + 1].loops[: len(loops)] == loops:
        high += 1
    return low, high


def made_here(f: Features, i: int, value: str) -> bool:
    """Whether a value is loaded or computed in the innermost loop of a statement, in each trip again."""
    return any(
        home(f, j) == real(f, f.stmts[i].loops) for j, s in enumerate(f.stmts) if s.stmt.value == value and s.stmt.kind != "store"
    )
