"""What a call does on the host, with a driver that only writes launches down: addresses, what is remembered, what is allocated,
what waits for what."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.schedule import Schedule
from fuser.runtime import graph_executor
from fuser.runtime import launch
from fuser.runtime.calls import Lanes
from fuser.runtime.calls import Launch
from fuser.runtime.calls import where_captured
from fuser.runtime.graph_executor import REMEMBERED
from fuser.runtime.streams import Access
from fuser.runtime.streams import streams_of
from tests.builders import chain
from tests.builders import cut_in_two
from tests.builders import tiles_of_16
from tests.runtime.kernels import FakeDriver
from tests.runtime.kernels import OnFakeDriver

CHAIN = chain(48, 40, 32, 16, "relu")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(launch, "driver", lambda: fake)
    monkeypatch.setattr(OnFakeDriver, "fake", fake, raising=False)
    return fake


def library_first() -> KernelGraph:
    """A B by the library, the rest generated."""
    graph = cut_in_two(CHAIN)
    (name,) = graph.intermediates
    return replace(graph, kernels=(LibraryKernel("gemm", "matmul", ("A", "B"), name), graph.kernels[1]))


def made(graph: KernelGraph, **options: str) -> OnFakeDriver:
    schedule = tiles_of_16(graph, **options) if len(graph.blocks) == len(graph.kernels) else None
    if schedule is None:
        schedule = Schedule(tiles_of_16(cut_in_two(CHAIN)).kernels[1:])
    return OnFakeDriver(graph, schedule, device="cpu")


def tensors() -> list[torch.Tensor]:
    return [torch.zeros(s, dtype=torch.float16) for s in ((48, 32), (32, 40), (40, 16))]


def result() -> torch.Tensor:
    return torch.empty(48, 16, dtype=torch.float16)


@contextmanager
def operators() -> Iterator[list[str]]:
    """Names of all torch operators that are called."""
    names: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Log():
        yield names


def test_kernels_get_the_addresses_of_their_tensors(driver: FakeDriver) -> None:
    exe = made(cut_in_two(CHAIN))
    a, b, d = tensors()
    out = exe(a, b, d)
    (first, second) = driver.launches
    between = exe.intermediates[exe.plan.graph.intermediates[0]].data_ptr()
    assert first == (100, 0, (a.data_ptr(), b.data_ptr(), between), False)
    assert set(second[2]) == {between, d.data_ptr(), out.data_ptr()}
    assert exe.workspace.data_ptr() <= between < exe.workspace.data_ptr() + exe.plan.bytes


def test_a_call_on_the_same_tensors_only_launches(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = made(cut_in_two(CHAIN))
    a, b, d = tensors()
    out = result()
    assert all(exe(a, b, d, out=out) is out for _ in range(2))
    monkeypatch.setattr(launch.LoadedKernel, "bind", None)
    monkeypatch.setattr(launch.LoadedKernel, "movable", None)
    with operators() as called:
        exe(a, b, d, out=out)
        exe.run({"A": a, "B": b, "D": d}, {"E": out})
    assert called == []
    assert len(driver.launches) == 8


def test_parameters_are_as_quick_as_other_tensors(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no gradients are wanted that they require them costs nothing."""
    exe = made(cut_in_two(CHAIN))
    a, b, d = tensors()
    b.requires_grad_()
    with torch.no_grad():
        exe(a, b, d)
        monkeypatch.setattr(exe, "_checked", None)
        found = exe(a, b, d)
        assert not found.requires_grad
        assert b.data_ptr() in driver.launches[-2][2]
        monkeypatch.undo()
        with pytest.raises(UsageError, match="the output E requires a gradient"):
            exe(a, b, d, out=result().requires_grad_())
    with pytest.raises(UsageError, match="B requires a gradient"):
        exe(a, b, d)


def test_one_tensor_that_is_copied_leaves_others_as_they_are(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view of a cache that is copied at each call does not cost a close look at all weights."""
    exe = made(cut_in_two(CHAIN))
    _, b, d = tensors()
    across = torch.randn(32, 48).half().T
    looked: list[str] = []
    accept = graph_executor.accept
    monkeypatch.setattr(graph_executor, "accept", lambda spec, x: (looked.append(spec.name), accept(spec, x))[1])
    for _ in range(3):
        exe(across, b, d)
    assert set(looked) == {"A"}
    assert b.data_ptr() in driver.launches[-2][2]
    assert across.data_ptr() not in driver.launches[-2][2]
    with pytest.raises(UsageError, match="B must be"):
        exe(across, b.float(), d)
    with pytest.raises(UsageError, match="the output E overlaps B"):
        exe(across, b, d, out=b.view(-1)[: 48 * 16].view(48, 16))


def test_a_call_at_new_addresses_binds_nothing(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = made(cut_in_two(CHAIN))
    before, there = tensors(), result()
    exe(*before, out=there)
    monkeypatch.setattr(launch.LoadedKernel, "bind", None)
    monkeypatch.setattr(launch.LoadedKernel, "movable", None)
    a, b, d = tensors()
    out = result()
    exe(a, b, d, out=out)
    assert driver.launches[-1][2][-1] == out.data_ptr()
    assert driver.launches[-2][2][0] == a.data_ptr()


def test_few_addresses_are_remembered(driver: FakeDriver) -> None:
    exe = made(cut_in_two(CHAIN))
    a, b, d = tensors()
    outs = [result() for _ in range(REMEMBERED + 5)]
    for out in (*outs, outs[0]):
        exe(a, b, d, out=out)
        exe(a, b, d, out=out)
        assert driver.launches[-1][2][-1] == out.data_ptr()
    assert len(exe._packed) == REMEMBERED


@pytest.mark.parametrize("graph", [lambda: cut_in_two(CHAIN), library_first])
def test_a_remembered_call_keeps_no_tensor_alive(graph: Any, driver: FakeDriver) -> None:
    exe = made(graph())
    given = tensors()
    watched = [weakref.ref(t) for t in (*given, exe(*given))]
    del given
    gc.collect()
    assert [w() for w in watched] == [None] * 4
    given, out = tensors(), result()
    for _ in range(3):
        exe(*given, out=out)
    watched = [weakref.ref(t) for t in (*given, out)]
    del given, out
    gc.collect()
    assert not any(w() for w in watched)


def test_library_kernels_write_their_slot_and_allocate_nothing(driver: FakeDriver) -> None:
    exe = made(library_first())
    a, b, d = tensors()
    a.normal_()
    b.normal_()
    out = result()
    exe(a, b, d, out=out)
    between = exe.intermediates[exe.plan.graph.intermediates[0]]
    torch.testing.assert_close(between, a @ b)
    with operators() as called:
        exe(a, b, d, out=out)
    assert set(called) - {"aten.as_strided.default", "aten.view.default", "aten.expand.default"} == {"aten.mm.out"}


def test_the_first_kernel_and_what_follows_a_library_never_overlap_others(driver: FakeDriver) -> None:
    made(cut_in_two(CHAIN), pdl="early")(*tensors())
    assert [dependent for *_, dependent in driver.launches] == [False, True]
    driver.launches.clear()
    graph = library_first()
    exe = OnFakeDriver(graph, Schedule(tiles_of_16(cut_in_two(CHAIN), pdl="early").kernels[1:]), device="cpu")
    exe(*tensors())
    assert [dependent for *_, dependent in driver.launches] == [False]


def test_a_library_kernel_may_have_a_constant_operand(driver: FakeDriver) -> None:
    a, b, d = tensors()
    a.normal_()
    b.normal_()
    exe = OnFakeDriver(library_first(), Schedule(tiles_of_16(cut_in_two(CHAIN)).kernels[1:]), device="cpu", constants={"B": b})
    for _ in range(2):
        exe(a, d)
        torch.testing.assert_close(exe.intermediates[exe.plan.graph.intermediates[0]], a @ b)
        a.mul_(2.0)


def test_constants_are_no_arguments(driver: FakeDriver) -> None:
    graph = cut_in_two(CHAIN)
    a, b, d = tensors()
    exe = OnFakeDriver(graph, tiles_of_16(graph), device="cpu", constants={"B": b})
    assert exe.inputs == ("A", "D")
    exe(a, d)
    assert driver.launches[0][2][:2] == (a.data_ptr(), b.data_ptr())
    with pytest.raises(UsageError, match="'B' is a constant of 'chain'"):
        exe.run({"A": a, "B": b, "D": d})
    with pytest.raises(UsageError, match="no input 'W'"):
        OnFakeDriver(graph, tiles_of_16(graph), device="cpu", constants={"W": b})


def test_copies_are_made_of_inputs_that_kernels_cannot_take(driver: FakeDriver) -> None:
    exe = made(cut_in_two(CHAIN))
    a, b, _ = tensors()
    across = a.t().contiguous().t()
    shifted = torch.zeros(40 * 16 + 1, dtype=torch.float16)[1:].view(40, 16)
    negative = torch._neg_view(b)  # the imaginary part of a conjugate is such a view
    exe(across, b, shifted)
    exe(a, negative, shifted)
    used = [{p for _, _, addresses, _ in driver.launches[i : i + 2] for p in addresses} for i in (0, 2)]
    assert across.data_ptr() not in used[0]
    assert shifted.data_ptr() not in used[0]
    assert b.data_ptr() in used[0]
    assert negative.data_ptr() not in used[1]


def test_what_does_not_fit_is_refused(driver: FakeDriver) -> None:
    exe = made(cut_in_two(CHAIN))
    a, b, d = tensors()
    both = torch.zeros(48 * 48, dtype=torch.float16)
    refusals: list[tuple[str, tuple[Any, ...], Any]] = [
        (r"takes 3 inputs \(A, B, D\), got 2", (a, b), None),
        (r"A must be A\[48, 32\]:float16, got \(48, 31\)", (a[:, :31], b, d), None),
        (r"B must be B\[32, 40\]:float16, got \(32, 40\) torch.float32", (a, b.float(), d), None),
        ("A is on meta, the kernels run on cpu", (a.to("meta"), b, d), None),
        ("D is a list, no tensor", (a, b, d.tolist()), None),
        ("A requires a gradient", (a.clone().requires_grad_(), b, d), None),
        ("1 outputs, 2 were passed in", (a, b, d), (result(), result())),
        (r"E must be E\[48, 16\]:float16, got \(16, 48\)", (a, b, d), result().t()),
        ("the output E is not contiguous", (a, b, d), torch.empty(16, 48, dtype=torch.float16).t()),
        ("does not start at a multiple of 16", (a, b, d), torch.empty(769, dtype=torch.float16)[1:].view(48, 16)),
        ("the output E overlaps A", (both[: 48 * 32].view(48, 32), b, d), both[48 * 16 : 48 * 32].view(48, 16)),
    ]
    for said, inputs, out in refusals:
        with pytest.raises(UsageError, match=said):
            exe(*inputs, out=out)
    with pytest.raises(UsageError, match="needs the inputs B, D"):
        exe.run({"A": a})
    with pytest.raises(UsageError, match="'C' is no input of 'chain'"):
        exe.run({"A": a, "B": b, "D": d, "C": d})
    with pytest.raises(UsageError, match="writes E, not F"):
        exe.run({"A": a, "B": b, "D": d}, {"F": result()})
    with pytest.raises(UsageError, match="needs a schedule"):
        OnFakeDriver(cut_in_two(CHAIN), device="cpu")
    assert driver.launches == []
    with torch.no_grad():
        exe(a.requires_grad_(), b, d)
    assert len(driver.launches) == 2


class Log:
    """Streams and events that write down what is done with them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.now = "caller"

    def current(self) -> Any:
        return _Stream(self, "caller", 7)

    def stream(self) -> Any:
        self.count += 1
        return _Stream(self, f"side{self.count}", 10 + self.count)

    def event(self) -> Any:
        return _Event(self)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.now = stream.name
        yield
        self.now = "caller"


class _Event:
    def __init__(self, log: Log) -> None:
        self.log, self.number = log, 0

    def record(self, stream: Any) -> None:
        self.log.lines.append(f"{stream.name} records")
        self.number = len(self.log.lines)


class _Stream:
    def __init__(self, log: Log, name: str, handle: int) -> None:
        self.log, self.name, self.cuda_stream = log, name, handle

    def wait_event(self, event: _Event) -> None:
        assert event.number, "waits for an event that nothing recorded"
        self.log.lines.append(f"{self.name} waits for {event.number}")


def test_branches_are_launched_on_streams_of_their_own() -> None:
    log = Log()
    branches = tuple(Access(tuple(r), tuple(w)) for r, w in (("X", "A"), ("Y", "B"), ("A", "C"), ("BC", "D")))
    streams = streams_of(branches)

    def launch_of(k: int) -> Launch:
        # a library kernel goes on the current stream, whatever handle it is given
        return lambda handle: log.lines.append(f"kernel {k} on {log.now if k == 1 else handle}")

    call = Lanes(streams, log).call([launch_of(k) for k in range(4)], [False, True, False, False])
    want = [
        "caller records",
        "kernel 0 on 7",
        "side1 waits for 1",
        "kernel 1 on side1",
        "side1 records",
        "kernel 2 on 7",
        "caller waits for 5",
        "kernel 3 on 7",
    ]
    for _ in range(2):
        log.lines.clear()
        call()
        assert log.lines == want


class Named:
    """A stream that writes down for whom it waits."""

    def __init__(self, handle: int, lines: list[str]) -> None:
        self.cuda_stream, self.lines = handle, lines

    def wait_stream(self, other: Named) -> None:
        self.lines.append(f"{self.cuda_stream} waits for {other.cuda_stream}")


def test_a_call_on_another_stream_waits_for_the_last_one(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = made(cut_in_two(CHAIN))
    lines: list[str] = []
    streams = {n: Named(n, lines) for n in (5, 6)}
    now, capturing = [5], [False]
    exe._current, exe._last_handle = lambda: now[0], -1  # as on a GPU, where the handle is asked for
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: streams[now[0]])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    for stream, captured in ((5, False), (5, False), (6, False), (5, True), (6, False), (5, False)):
        now[0], capturing[0] = stream, captured
        exe(*tensors())
    # inside a capture nothing outside of it can be waited for
    assert lines == ["6 waits for 5", "5 waits for 6"]
    assert [s for _, s, *_ in driver.launches] == [5, 5, 5, 5, 6, 6, 5, 5, 6, 6, 5, 5]


class Graph:
    """A CUDA graph that calls back."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def replay(self) -> None:
        for call in self.calls:
            call()


def test_a_captured_call_replays_over_its_buffers(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, d = tensors()
    exe = made(cut_in_two(CHAIN))
    with pytest.raises(UsageError, match="needs a GPU"):
        exe.capture({"A": a, "B": b, "D": d})
    monkeypatch.setattr(graph_executor, "capture_calls", lambda calls, warm: Graph(calls))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(exe, "_here", nullcontext)
    monkeypatch.setattr(exe, "device", SimpleNamespace(type="cuda"))
    ordered: list[int] = []
    exe._last_handle = 7  # the last call, on another stream, may still use the workspace
    monkeypatch.setattr(exe, "_order", lambda: ordered.append(exe._last_handle))
    captured = exe.capture({"D": d, "A": a, "B": b}, {"E": result()})
    assert ordered == [7]
    assert captured.inputs == {"D": d, "A": a, "B": b}
    (out,) = captured.outputs.values()
    assert captured() is out
    assert {a.data_ptr(), b.data_ptr(), d.data_ptr(), out.data_ptr()} <= {p for _, _, ps, _ in driver.launches for p in ps}
    fresh = [torch.randn_like(x) for x in captured.inputs.values()]
    with operators() as called:
        assert captured(*fresh) is out
    assert called == ["aten._foreach_copy_.default"]
    for x, y in zip(captured.inputs.values(), fresh, strict=True):
        torch.testing.assert_close(x, y)
    with operators() as called:
        captured(d, fresh[1].numpy(), b)  # what is the buffer already is not copied
    assert [n for n in called if "copy" in n] == ["aten.copy_.default"]
    with pytest.raises(UsageError, match=r"captured with 3 inputs \(D, A, B\), got 2"):
        captured(d, a)
    with pytest.raises(UsageError, match=r"A was captured as \(48, 32\) torch.float16, got \(1, 32\)"):
        captured(d, a[:1], b)
    own = exe.capture({"A": a, "B": b, "D": d}, {"E": result()}, own=True)
    assert own.inputs["A"].data_ptr() != a.data_ptr()
    torch.testing.assert_close(own.inputs["A"], a)


def test_several_streams_are_for_captures_where_libraries_are_called() -> None:
    done: list[str] = []
    answers = iter([False, True, False])
    call = where_captured(lambda: done.append("beside"), lambda: done.append("alone"), lambda: next(answers))
    for _ in range(3):
        call()
    assert done == ["alone", "beside", "alone"]
