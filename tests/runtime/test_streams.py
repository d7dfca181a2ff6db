"""Streams, events and the workspace: graphs of random kernels on random streams run on a simulated GPU, which takes whatever
stream it likes at every step and checks each byte that a kernel reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.ir.program import Tensor
from fuser.runtime.calls import Action
from fuser.runtime.calls import actions
from fuser.runtime.streams import Access
from fuser.runtime.streams import Streams
from fuser.runtime.streams import ancestors
from fuser.runtime.streams import assign
from fuser.runtime.streams import dependences
from fuser.runtime.streams import streams_of
from fuser.runtime.streams import synchronise
from fuser.runtime.workspace import WORKSPACE_ALIGNMENT
from fuser.runtime.workspace import Slot
from fuser.runtime.workspace import place

INPUTS = ("X", "Y")
Made = tuple[tuple[Access, ...], dict[str, Tensor]]


def graph(*kernels: str) -> tuple[Access, ...]:
    """``"XA:B"`` reads X and A and writes B."""
    return tuple(Access(tuple(k.split(":")[0]), tuple(k.split(":")[1])) for k in kernels)


@st.composite
def graphs(draw: st.DrawFn) -> Made:
    """Kernels that read earlier tensors; the sizes of those that stay inside."""
    known = list(INPUTS)
    kernels = []
    for i in range(draw(st.integers(1, 9))):
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        writes = [f"t{i}{c}" for c in "ab"[: draw(st.integers(1, 2))]]
        kernels.append(Access(tuple(reads), tuple(writes)))
        known += writes
    made = known[len(INPUTS) :]
    inside = draw(st.lists(st.sampled_from(made), unique=True, max_size=len(made)))
    sizes = {n: Tensor(n, (draw(st.integers(1, 1000)),), "float16") for n in made if n in inside}
    return tuple(kernels), sizes


class Simulated:
    """Streams as queues, device memory as tagged units of 256 bytes. A kernel may write at any time between its start and end,
    and read until its end."""

    def __init__(self, accesses: Sequence[Access], slots: Sequence[Slot], order: Sequence[Action], calls: int) -> None:
        self.accesses, self.units, self.recorded, self.ended = accesses, {}, set[tuple[int, int]](), set[tuple[int, int]]()
        self.slots = {s.tensor.name: s for s in slots}
        self.queues: dict[int, list[tuple[str, int, int]]] = {}
        for call in range(calls):
            for a in order:
                queue = self.queues.setdefault(a.stream, [])
                if a.kind == "launch":
                    queue += [("start", call, a.kernel), ("end", call, a.kernel)]
                else:
                    queue.append(("wait" if a.kind in ("wait", "fork") else "record", call, a.kernel))
            self.queues.setdefault(0, []).append(("done", call, -1))

    def where(self, name: str) -> list[object]:
        if name not in self.slots:
            return [name]
        slot = self.slots[name]
        return list(range(slot.offset // WORKSPACE_ALIGNMENT, -(-slot.end // WORKSPACE_ALIGNMENT)))

    def ready(self) -> list[int]:
        return [s for s, q in self.queues.items() if q and (q[0][0] != "wait" or q[0][1:] in self.recorded)]

    def step(self, stream: int) -> None:
        kind, call, k = self.queues[stream].pop(0)
        if kind == "record":
            self.recorded.add((call, k))
        elif kind == "done":
            assert {(call, i) for i in range(len(self.accesses))} <= self.ended, "the caller goes on before the call has ended"
        elif kind in ("start", "end"):
            access = self.accesses[k]
            for name in access.reads:
                if name not in INPUTS:
                    assert all(self.units.get(u) == (call, name) for u in self.where(name)), f"kernel {k} reads another's {name}"
            for name in access.writes:
                for u in self.where(name):
                    assert kind == "start" or self.units[u] == ("half", call, name), f"kernel {k} does not keep {name}"
                    self.units[u] = ("half", call, name) if kind == "start" else (call, name)
            if kind == "end":
                self.ended.add((call, k))

    def run(self, data: st.DataObject) -> None:
        while any(self.queues.values()):
            ready = self.ready()
            assert ready, "every stream waits"
            self.step(ready[data.draw(st.integers(0, len(ready) - 1))])


@settings(deadline=None, max_examples=300)
@given(graphs(), st.data())
def test_every_read_finds_what_was_written_for_it(made: Made, data: st.DataObject) -> None:
    accesses, tensors = made
    at_will = data.draw(st.booleans())
    stream = [data.draw(st.integers(0, 3)) for _ in accesses] if at_will else assign(accesses)
    streams = synchronise(accesses, stream)
    early = [i for i in range(len(accesses)) if data.draw(st.booleans())]
    found = place(accesses, tensors, streams, early, few=0)
    slots = found.slots
    assert all(s.offset % WORKSPACE_ALIGNMENT == 0 and s.end <= found.bytes for s in slots)
    assert {s.tensor.name for s in slots} == set(tensors)
    assert found.bound <= found.bytes
    Simulated(accesses, slots, actions(streams), calls=2).run(data)


@given(graphs())
def test_streams_add_no_order_between_kernels_while_there_are_enough(
    made: Made,
) -> None:
    accesses, _ = made
    streams = streams_of(accesses, most=len(accesses))
    assert streams.before == ancestors(dependences(accesses))


@given(graphs())
def test_no_event_is_needless(made: Made) -> None:
    accesses, _ = made
    streams = streams_of(accesses)
    for k, waits in enumerate(streams.waits):
        for w in waits:
            assert streams.stream[w] != streams.stream[k]
            assert not any(w in streams.before[other] for other in waits)


def test_a_chain_stays_on_the_callers_stream() -> None:
    streams = streams_of(graph("X:A", "A:B", "AB:C"))
    assert streams == Streams((0, 0, 0), ((), (), ()), (), (), (frozenset(), frozenset({0}), frozenset({0, 1})))
    assert [a.kind for a in actions(streams)] == ["launch"] * 3


def test_branches_fork_and_join() -> None:
    streams = streams_of(graph("X:A", "Y:B", "B:C", "AC:D"))
    assert streams.stream == (0, 1, 1, 0)
    assert [(a.kind, a.stream, a.kernel) for a in actions(streams)] == [
        ("begin", 0, -1),
        ("launch", 0, 0),
        ("fork", 1, -1),
        ("launch", 1, 1),
        ("launch", 1, 2),
        ("record", 1, 2),
        ("wait", 0, 2),
        ("launch", 0, 3),
    ]


def test_a_branch_that_nothing_reads_is_waited_for_at_the_end() -> None:
    streams = streams_of(graph("X:A", "Y:B"))
    assert (streams.stream, streams.joins) == ((0, 1), (1,))
    assert [a.kind for a in actions(streams)] == ["begin", "launch", "fork", "launch", "record", "wait"]


def test_a_branch_that_begins_with_a_wait_needs_no_fork() -> None:
    streams = streams_of(graph("X:A", "A:B", "A:C", "BC:D"))
    assert streams.stream == (0, 0, 1, 0)
    assert streams.forks == ()
    assert streams.waits == ((), (), (0,), (2,))
    assert streams.joins == ()


def test_only_what_directly_follows_a_kernel_may_overlap_it() -> None:
    streams = streams_of(graph("X:A", "A:B", "A:C", "BC:D"))
    # an event stands behind kernel 0, kernel 2 begins a stream, kernel 3 waits for it
    assert [streams.directly_behind(k) for k in range(4)] == [None, None, None, None]
    assert [streams_of(graph("X:A", "A:B", "B:C")).directly_behind(k) for k in range(3)] == [None, 0, 1]


@pytest.mark.parametrize(("most", "used"), [(1, 1), (3, 3), (8, 5)])
def test_streams_are_few(most: int, used: int) -> None:
    accesses = graph(*(f"X:{c}" for c in "ABCDE"))
    assert streams_of(accesses, most).count == used


def test_slots_are_used_again_on_one_stream_only() -> None:
    tensors = {n: Tensor(n, (64,), "float16") for n in "ABCD"}
    chain = graph("X:A", "A:B", "B:C", "C:D", "D:E")
    assert place(chain, tensors, streams_of(chain)).bytes == 2 * WORKSPACE_ALIGNMENT
    branches = graph("X:A", "Y:C", "A:B", "C:D", "BD:E")
    assert place(branches, tensors, streams_of(branches)).bytes == 4 * WORKSPACE_ALIGNMENT
    assert place(branches, tensors, streams_of(branches, most=1)).bytes == 3 * WORKSPACE_ALIGNMENT


def test_what_may_become_one_launch_is_on_one_stream() -> None:
    accesses = graph("X:A", "Y:B", "B:C", "AC:D")
    assert streams_of(accesses).stream == (0, 1, 1, 0)
    assert streams_of(accesses, joined=[False, False, True, True]).stream == (0, 1, 0, 0)
    assert streams_of(accesses, joined=[False, True, False, True]) == streams_of(accesses)


def test_results_of_one_call_share_a_stream() -> None:
    """Factors of a matrix that are needed at different times: the call is not made again for the second."""
    accesses = graph("Xc:Uc", "Y:B", "UB:C", "Xc:Vc", "VC:D")
    calls = [("c",), (), (), ("c",), ()]
    assert streams_of(accesses).stream == (0, 1, 0, 2, 0) or len({streams_of(accesses).stream[i] for i in (0, 3)}) == 2
    assert len({streams_of(accesses, calls=calls).stream[i] for i in (0, 3)}) == 1


def test_convolutions_in_groups_are_on_one_stream() -> None:
    """A GPU is full of each."""
    from fuser.ir.candidate import Candidate
    from fuser.ir.mugraph import KernelGraph
    from fuser.ir.mugraph import LibraryKernel
    from fuser.ir.program import Tensor
    from fuser.ir.schedule import Schedule
    from fuser.runtime.plan import plan

    def streams(groups: int) -> int:
        image, weight = Tensor("x", (1, 4, 9, 9)), Tensor("w", (4, 4 // groups, 9, 9))
        attrs = (("groups", groups), ("padding", (4, 4)), ("stride", (1, 1)), ("dilation", (1, 1)))
        calls = tuple(LibraryKernel(f"k{i}", "conv2d", ("x", "w"), f"y{i}", attrs) for i in range(3))
        ends = tuple(Tensor(f"y{i}", (1, 4, 9, 9)) for i in range(3))
        graph = KernelGraph("g", ("x", "w"), calls, ("y0", "y1", "y2"), (image, weight, *ends)).validate()
        return plan(Candidate(graph, Schedule(()))).streams.count

    assert streams(1) == 2
    assert streams(2) == 1


@pytest.mark.parametrize(("rows", "beside"), [(64, False), (4096, True)])
def test_what_is_over_at_once_needs_no_stream(rows: int, beside: bool) -> None:
    """Sums so far beside a product: of few rows they are done before another stream has begun."""
    from fuser.ir.builder import Builder
    from fuser.ir.candidate import Candidate
    from fuser.ir.mugraph import KernelGraph
    from fuser.ir.mugraph import LibraryKernel
    from fuser.ir.schedule import Schedule
    from fuser.runtime.plan import plan

    b = Builder("both", "float32")
    x, w, g = b.input("X", (rows, 256)), b.input("W", (256, 256)), b.input("G", (rows, 256))
    program = b.build(Y=x @ w, Z=b.op("cumsum", g, dim=1))
    kernels = tuple(
        LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted(program.bound(n).items()))) for n in program.nodes
    )
    ends = tuple(program[n] for n in (*program.inputs, *program.outputs))
    made = KernelGraph("both", program.inputs, kernels, program.outputs, ends).validate()
    assert plan(Candidate(made, Schedule(()))).streams.count == 1 + beside
