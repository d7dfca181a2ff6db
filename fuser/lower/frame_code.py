"""The frame of a kernel: which places of the grid a program computes and in which order, waiting for earlier kernels, and warps
with different work.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.mugraph import Stmt
from fuser.ir.program import Tensor
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.dependent_launch import divide
from fuser.lower.dependent_launch import statements
from fuser.lower.options import FLATTEN
from fuser.lower.options import GROUP
from fuser.lower.options import HOIST
from fuser.lower.options import PERSISTENT
from fuser.lower.options import SPECIALIZE
from fuser.lower.options import in_grid_order
from fuser.lower.prefetch_code import bring
from fuser.lower.prefetch_code import prefetch
from fuser.lower.program_order import decode
from fuser.lower.tiles import Tiles
from fuser.lower.tiles import loops_of
from fuser.lower.writer import Writer


@dataclass(frozen=True)
class Chain:
    """A kernel among others: the tensors that ``earlier`` kernels write, whether it ``waits`` for the one in front of it by
    itself, when the ``next`` one may start (that one's option ``pdl``; empty if it is launched normally), and what it brings to
    L2 ``ahead`` of that."""

    earlier: frozenset[str] = frozenset()
    waits: bool = False
    next: str = ""
    ahead: tuple[Tensor, ...] = ()


def persistent(t: Tiles) -> int:
    """Programs of a persistent kernel, no more than places of its grid; 0 for a kernel that has one for each place."""
    if not PERSISTENT.given_in(t.schedule):
        if FLATTEN.given_in(t.schedule):
            raise UsageError(f"the option 'flatten' of {t.block.name!r} is for persistent kernels", "set persistent too")
        return 0
    programs = PERSISTENT.of(t.schedule)
    if programs < 1:
        raise UsageError(f"{t.block.name!r} has {programs} persistent programs", "use the number of SMs, say")
    return min(programs, t.places)


def wait_once(w: Writer, chain: Chain) -> Chain:
    """A persistent kernel waits, and lets the next one start, before its first place; what is left of the chain for each."""
    if chain.next:
        w.cuda("gdc_launch_dependents")
    if chain.waits:
        w.cuda("gdc_wait")
    bring(w, chain.ahead, persistent(w.tiles))
    return Chain()


def check_specialized(w: Writer) -> bool:
    """Whether warps are specialized; :class:`NoValidKernelError` where there is nothing that they could share out."""
    if not SPECIALIZE.of(w.tiles.schedule):
        return False
    if not any(w.tiles.multiplies(x) for x in loops_of(w.tiles.tree.body)) or not set(w.tiles.block.inputs) & set(w.described):
        raise NoValidKernelError(
            f"{w.tiles.block.name!r} has no loop with a matmul of what descriptors load, so its warps cannot be specialized",
            "leave out specialize, or load the operands by tma_<tensor>",
        )
    return True


def dependent_body(w: Writer, chain: Chain, body: Callable[[Sequence[Node]], None]) -> None:
    """The whole body, with what programmatic dependent launch needs in it; ``body`` writes nodes of the loop tree."""
    if chain.next == "early":
        w.cuda("gdc_launch_dependents")
    early, late = divide(w.tiles.tree.body, chain.earlier) if chain.waits else ((), w.tiles.tree.body)
    if HOIST.of(w.tiles.schedule):
        late = hoisted(late) if any(isinstance(n, Loop) for n in w.tiles.tree.body) else unlooped(late)
    body(early)
    if chain.waits:
        prefetch(w, late, chain.earlier)
        w.cuda("gdc_wait")
    store = next(i for i, n in enumerate(late) if any(isinstance(s, Stmt) and s.kind == "store" for s in statements(n)))
    looped = max((i + 1 for i, n in enumerate(late[:store]) if isinstance(n, Loop)), default=store)
    body(late[:looped])
    if chain.next == "loop":
        w.cuda("gdc_launch_dependents")
    bring(w, chain.ahead, w.tiles.places)
    body(late[looped:store])
    if chain.next == "late":
        w.cuda("gdc_launch_dependents")
    body(late[store:])


def hoisted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Loads behind the first loop come in front of it: what an epilogue reads is there when the loop ends."""
    return _in_front(nodes, [isinstance(n, Loop) for n in nodes])


def unlooped(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Loads behind the first sum come in front of it, so that all are under way at once: no compiler moves a load past the place
    where warps wait for each other."""
    return _in_front(nodes, [isinstance(n, Stmt) and bool(n.reduce) for n in nodes])


def _in_front(nodes: Sequence[Node], stops: Sequence[bool]) -> tuple[Node, ...]:
    first = stops.index(True) if True in stops else len(nodes)
    loads = [n for n in nodes[first:] if isinstance(n, Stmt) and n.kind == "load"]
    return (*nodes[:first], *loads, *(n for n in nodes[first:] if n not in loads))


LARGEST = 1 << 20
"""Most elements of a tensor in Triton."""


def used(w: Writer, axis: str) -> bool:
    """Whether pointers, masks or operators need the indices of an axis; descriptors need none."""
    stmts = w.tiles.block.stmts
    if w.tiles.plans[axis].tile > LARGEST and not any(axis in s.related for s in stmts):
        return False  # only constants are made of it, and Triton has no such range
    needs = (s for s in stmts if axis in s.axes and not (s.access and w.descriptor(s)))
    return any(s.access or s.indexed for s in needs) or any(w.tiles.masked(axis, p) for p in w.tiles.pieces[axis])


def decode_grid(w: Writer) -> None:
    """Decode the block's number; the last divided axis varies fastest, unless the option ``grid_order`` says otherwise."""
    persistent = PERSISTENT.of(w.tiles.schedule)  # its loop sets pid
    order = in_grid_order(w.tiles.schedule, [a for a, p in w.tiles.plans.items() if p.grid > 1])
    counters = {a: w.split_counter(a) for a in order}
    sizes = {counters[a]: w.tiles.plans[a].grid for a in order}
    if sizes:
        if not persistent:
            w.emit("pid = tl.program_id(0)")
        for line in decode(list(sizes.items()), GROUP.of(w.tiles.schedule)):
            w.emit(line)
