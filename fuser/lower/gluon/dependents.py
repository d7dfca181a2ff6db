"""Programmatic dependent launch of a kernel by warp groups: what it does for the kernel behind it, and that it waits for those in
front. The warp that loads waits before it loads anything; groups compute from what it brings, and store behind that, so that they
wait by themselves only where they read by pointers what an earlier kernel has written. Without such a warp all of a block waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.ir.mugraph import Stmt
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.dependent_launch import statements
from fuser.lower.frame_code import Chain
from fuser.lower.gluon.rings import Ring
from fuser.lower.gluon.rings import copies
from fuser.lower.gluon.rings import expected
from fuser.lower.gluon.skew import loop_rings
from fuser.lower.gluon.skew import trips_of
from fuser.lower.gluon.split import GROUP_WARPS
from fuser.lower.gluon.writer import GroupWriter
from fuser.lower.prefetch_code import runs

LAUNCH, WAIT = "gdc_launch_dependents", "gdc_wait"
"""The next kernel may start; those in front have ended, and the whole grid sees what they wrote."""
THREADS = 32 * GROUP_WARPS
BRING = f"""@gluon.jit
def bring_l2(pointer, PART: gl.constexpr, LAST: gl.constexpr):
    lane = gl.arange(0, {THREADS}, gl.BlockedLayout([1], [32], [{GROUP_WARPS}], [0]))
    start = gl.cast(pointer, gl.int64) + gl.minimum(gl.cast(gl.program_id(0), gl.int64) * PART, LAST) + lane * 0
    gl.inline_asm_elementwise(
        "{{ .reg .pred p; setp.eq.s32 p, $3, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; }} // $0",
        "=r,l,r,r", [start, lane * 0 + PART, lane], dtype=gl.int32, is_pure=False, pack=1
    )
"""


def entered(w: GroupWriter, chain: Chain, programs: int) -> Iterator[str]:
    """Lines in front of everything that reads device memory. ``programs`` that stay do all of it here."""
    if chain.next and (chain.next == "early" or programs):
        yield f"{LAUNCH}()"
    if chain.waits and not w.plan.producer:
        yield f"{WAIT}()"
    if programs:
        yield from _brought(w, chain, programs)


@dataclass(frozen=True)
class Weights:
    """The first loop of a place of the grid loads ``early`` what no earlier kernel writes, weights say: that comes into all
    ``slots`` of the loop's ring while the warp that loads waits."""

    loop: Loop
    ring: Ring
    early: tuple[Stmt, ...]
    slots: int

    def before(self, w: GroupWriter) -> Iterator[str]:
        """Lines in front of all loads."""
        yield from self._each(w, [expected(w, self.ring, self.ring.loads)], self.early)
        yield from (f"{self.ring.count} = 0", f"{WAIT}()")

    def rest(self, w: GroupWriter) -> Iterator[str]:
        """Lines in front of the loop: what else comes into these slots."""
        yield from self._each(w, [], [s for s in self.ring.loads if s not in self.early])

    def _each(self, w: GroupWriter, first: list[str], loads: Sequence[Stmt]) -> Iterator[str]:
        w.loops.append(self.loop.axis)
        yield f"for {w.trip(self.loop.axis)} in range({self.slots}):"
        yield from (f"    {line}" for line in (*first, *copies(w, self.ring, loads), f"{self.ring.count} += 1"))
        w.loops.pop()


def weights(w: GroupWriter, nodes: Sequence[Node], chain: Chain, programs: int) -> Weights | None:
    """What the warp that loads can begin with before it waits; None where that is nothing."""
    if programs or not chain.waits or not w.plan.producer:
        return None
    loop = next((n for n in nodes if isinstance(n, Loop)), None)
    if loop is None or any(isinstance(n, Loop) for n in loop.body):
        return None
    rings = loop_rings(w, loop, 1)
    if len(rings) != 1 or not trips_of(w, loop).isdecimal():
        return None
    (ring,) = rings
    early = tuple(s for s in ring.loads if s.at.source not in chain.earlier)
    plain = ring.counted and not (ring.shared or ring.behind or ring.loop)
    return Weights(loop, ring, early, min(ring.stages, loop.trips)) if plain and 0 < len(early) < len(ring.loads) else None


def waiting(w: GroupWriter, chain: Chain, loads: bool) -> Iterator[str]:
    """Lines in front of the function of a group, or of the warp that ``loads``."""
    by_pointer = {s.at.source for s in w.tiles.block.loads if s.value not in w.plan.buffer}
    if chain.waits and w.plan.producer and (loads or by_pointer & chain.earlier):
        yield f"{WAIT}()"


def dependents(w: GroupWriter, nodes: Sequence[Node], chain: Chain) -> Iterator[tuple[int, list[str]]]:
    """Lines of a group in front of some of the nodes of a place of the grid, by their numbers."""
    store = next(i for i, n in enumerate(nodes) if any(isinstance(s, Stmt) and s.kind == "store" for s in statements(n)))
    looped = max((i + 1 for i, n in enumerate(nodes[:store]) if isinstance(n, Loop)), default=store)
    at: dict[int, list[str]] = {looped: [f"{LAUNCH}()"] * (chain.next == "loop")}
    if lines := [f"    {line}" for line in _brought(w, chain, w.split.places)]:
        at[looped] += [f"if {w.group} == 0:", *lines] if w.split.groups > 1 else [line.strip() for line in lines]
    at.setdefault(store, []).extend([f"{LAUNCH}()"] * (chain.next == "late"))
    yield from at.items()


def _brought(w: GroupWriter, chain: Chain, programs: int) -> Iterator[str]:
    for name, part, last in runs(chain.ahead, programs):
        w.helpers.add(BRING)
        yield f"bring_l2({w.argument(name)}, {part}, {last})"
