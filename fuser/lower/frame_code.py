"""The frame of a kernel: which places of the grid a program computes and in which order, waiting for earlier kernels, and warps
with different work.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import op as op_def
from fuser.ir.tiling import Loop
from fuser.ir.tiling import Node
from fuser.lower.dependent_launch import divide
from fuser.lower.dependent_launch import statements
from fuser.lower.prefetch_code import PrefetchCode
from fuser.lower.program_order import decode


@dataclass(frozen=True)
class Chain:
    """A kernel among others: the tensors that ``earlier`` kernels write, whether it ``waits`` for the one in front of it by
    itself, and when the ``next`` one may start (that one's option ``pdl``; empty if it is launched normally)."""

    earlier: frozenset[str] = frozenset()
    waits: bool = False
    next: str = ""


class FrameCode(PrefetchCode):
    """What surrounds the statements of a kernel."""

    def body(self, nodes: Sequence[Node]) -> None:
        """Emit the nodes."""
        raise NotImplementedError

    def persistent(self, places: int) -> int:
        """Programs of a persistent kernel, no more than places; 0 for a kernel that has one for each place."""
        knob = self.schedule.knob
        if "persistent" not in knob:
            if "flatten" in knob:
                raise UsageError(f"the option 'flatten' of {self.block.name!r} is for persistent kernels", "set persistent too")
            return 0
        if knob["persistent"] < 1:
            raise UsageError(f"{self.block.name!r} has {knob['persistent']} persistent programs", "use the number of SMs, say")
        return min(knob["persistent"], places)

    def wait_once(self, chain: Chain) -> Chain:
        """A persistent kernel waits, and lets the next one start, before its first place; what is left of the chain for each."""
        if chain.next:
            self.cuda("gdc_launch_dependents")
        if chain.waits:
            self.cuda("gdc_wait")
        return Chain()

    def cuda(self, name: str) -> None:
        """A call of a function of ``triton.language.extra.cuda``."""
        self.imports.add(name)
        self.emit(f"{name}()")

    def check_specialized(self) -> bool:
        """Whether warps are specialized; :class:`NoValidKernelError` where there is nothing that they could share out."""
        if not self.schedule.knob.get("specialize", False):
            return False
        if not any(self.multiplies(x) for x in _loops(self.tree.body)) or not set(self.block.inputs) & set(self.described):
            raise NoValidKernelError(
                f"{self.block.name!r} has no loop with a matmul of what descriptors load, so its warps cannot be specialized",
                "leave out specialize, or load the operands by tma_<tensor>",
            )
        return True

    def multiplies(self, node: Loop) -> bool:
        """The loop stays a loop, has a contraction on tensor cores, and no loop inside."""
        return (
            not node.unrolled
            and not any(isinstance(n, Loop) and not n.unrolled for n in node.body)
            and any(isinstance(s, Stmt) and self.is_dot(s) for s in statements(node))
        )

    def dependent_body(self, chain: Chain) -> None:
        """The whole body, with what programmatic dependent launch needs in it."""
        if chain.next == "early":
            self.cuda("gdc_launch_dependents")
        early, late = divide(self.tree.body, chain.earlier) if chain.waits else ((), self.tree.body)
        self.body(early)
        if chain.waits:
            self.prefetch(late, chain.earlier)
            self.cuda("gdc_wait")
        store = next(i for i, n in enumerate(late) if any(isinstance(s, Stmt) and s.kind == "store" for s in statements(n)))
        self.body(late[:store])
        if chain.next == "late":
            self.cuda("gdc_launch_dependents")
        self.body(late[store:])

    def used(self, axis: str) -> bool:
        """Whether pointers, masks or operators need the indices of an axis; descriptors need none."""
        needs = (s for s in self.block.stmts if axis in s.axes and not (s.access and s.access.source in self.described))
        return any(s.access or op_def(s.op).indexed for s in needs) or any(self.mask(axis, p) for p in self.pieces[axis])

    def looped(self) -> set[str]:
        """Axes whose indices change inside a loop that is not unrolled."""
        found: set[str] = set()

        def visit(nodes: Sequence[Node]) -> None:
            for n in nodes:
                if isinstance(n, Loop):
                    if not n.unrolled:
                        found.add(n.axis)
                    visit(n.body)

        visit(self.tree.body)
        return found

    def grid(self) -> None:
        """Decode the block's number; the last divided axis varies fastest, unless the option ``grid_order`` says otherwise."""
        persistent = "persistent" in self.schedule.knob  # its loop sets pid
        divided = [a for a, p in self.plans.items() if p.grid > 1]
        wanted = [a for a in str(self.schedule.knob.get("grid_order", "")).split(".") if a in divided]
        order = wanted + [a for a in divided if a not in wanted]
        counters = {a: self.split_counter(a) for a in order}
        sizes = {counters[a]: self.plans[a].grid for a in order}
        if sizes:
            if not persistent:
                self.emit("pid = tl.program_id(0)")
            for line in decode(list(sizes.items()), int(self.schedule.knob.get("group", 0))):
                self.emit(line)


def _loops(nodes: Sequence[Node]) -> Iterator[Loop]:
    for n in nodes:
        if isinstance(n, Loop):
            yield n
            yield from _loops(n.body)
