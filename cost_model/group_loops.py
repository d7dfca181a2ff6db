"""How the generator by warp groups writes a loop."""

from __future__ import annotations

from cost_model.features import Features
from cost_model.resources import Resources


def kind_of_loop(f: Features, r: Resources, loops: tuple[str, ...]) -> str:
    """How products run in a loop, as :class:`fuser.lower.gluon.consumer.Consumer` writes it."""
    inside = [i for i, s in enumerate(f.stmts) if s.loops == loops]
    nested = any(s.loops[: len(loops)] == loops != s.loops for s in f.stmts)
    if not loops or nested or any(f.stmts[i].stmt.kind == "store" for i in inside):
        return "plain"
    computes = {f.stmts[i].stmt.value: i for i in inside if f.stmts[i].stmt.kind == "compute"}
    loaded = {f.stmts[i].stmt.value for i in inside if f.stmts[i].stmt.kind == "load"}
    if all(i in r.dots for i in computes.values()):
        return "streamed" if all({r.dots[i].left, r.dots[i].right} <= loaded for i in computes.values()) else "plain"
    owned = dict(f.tree.owner)
    back = {v for v, i in computes.items() if i in r.dots and r.dots[i].left in computes and owned.get(v) == loops[-1]}
    return "late" if back and not any(back & set(f.stmts[i].stmt.args) for i in inside) else "plain"
