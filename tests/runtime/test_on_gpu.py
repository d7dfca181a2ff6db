"""The executor on a GPU: branches on streams, captures, no allocation, calls from several streams and threads."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor
from fuser.ir.schedule import Schedule
from fuser.runtime.again import AFTER
from fuser.runtime.capture import capture_calls
from fuser.runtime.graph_executor import Executable
from fuser.runtime.torch_program import reference
from fuser.superopt.structures import structures
from tests.builders import chain
from tests.builders import cut_in_two
from tests.builders import tiles_of_16

CHAIN = chain(48, 40, 32, 16, "relu")

pytestmark = pytest.mark.gpu


def inputs_of(graph: KernelGraph, seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    return [torch.randn(graph.table[n].shape, device="cuda").to(getattr(torch, graph.table[n].dtype)) for n in graph.inputs]


def close(found: Any, want: Any) -> None:
    error = (found.double() - want.double()).norm() / want.double().norm()
    assert float(error) < 1e-2


def of_chain(*values: Any) -> Any:
    return reference(CHAIN, dict(zip(CHAIN.inputs, values, strict=True)))["E"]


def branches(size: int = 1024) -> KernelGraph:
    """exp(X) (−X)ᵀ-like: two library branches that meet in a product, with views."""
    shape = (size, size)
    kernels = (
        LibraryKernel("a", "sigmoid", ("X",), "A"),
        LibraryKernel("b", "tanh", ("X",), "B"),
        LibraryKernel("c", "square", ("B",), "C"),
        LibraryKernel("t", "transpose", ("C",), "T", (("perm", (1, 0)),)),
        LibraryKernel("m", "matmul", ("A", "T"), "Y"),
    )
    return KernelGraph("branches", ("X",), kernels, ("Y",), tuple(Tensor(n, shape, "float16") for n in "XY")).validate()


def of_branches(x: Any) -> Any:
    return torch.sigmoid(x.double()) @ (torch.tanh(x.double()) ** 2).T


def mixed() -> KernelGraph:
    """Two products of the same input, one by the library, one generated, and their sum."""
    b = Builder("mixed")
    x = b.input("X", (128, 64))
    program = b.build(Y=b.relu(x @ b.input("V", (64, 96))))
    (block,) = structures(program)[0].blocks
    tensors = {t.name: t for t in structures(program)[0].tensors}
    kernels = (
        LibraryKernel("gemm", "matmul", ("X", "W"), "P"),
        block,
        LibraryKernel("sum", "add", ("P", "Y"), "Z"),
    )
    ends = (tensors["X"], tensors["V"], Tensor("W", (64, 96)), Tensor("Z", (128, 96)))
    return KernelGraph("mixed", ("X", "V", "W"), kernels, ("Z",), ends).validate()


def of_mixed(x: Any, v: Any, w: Any) -> Any:
    x, v, w = x.double(), v.double(), w.double()
    return x @ w + torch.relu(x @ v)


CASES = {
    "branches": (branches(), Schedule(()), of_branches, 2),
    "mixed": (mixed(), tiles_of_16(mixed()), of_mixed, 2),
    **{f"chain{i}": (g, tiles_of_16(g), of_chain, 1) for i, g in enumerate(structures(CHAIN))},
}


@pytest.mark.parametrize("name", CASES)
def test_calls_and_captures_agree_with_float64(name: str) -> None:
    graph, schedule, want, streams = CASES[name]
    exe = Executable(graph, schedule)
    assert exe.plan.streams.count == streams
    exe.workspace.fill_(255)
    for seed in range(3):
        values = inputs_of(graph, seed)
        close(exe(*values), want(*values))
    first = inputs_of(graph, 3)
    captured = exe.capture(dict(zip(graph.inputs, first, strict=True)))
    for seed in range(3, 6):
        values = inputs_of(graph, seed)
        for x in captured.outputs.values():
            x.fill_(float("nan"))
        exe.workspace.fill_(255)
        close(captured(*values), want(*values))


@pytest.mark.parametrize("name", CASES)
def test_a_call_with_outputs_allocates_nothing(name: str) -> None:
    graph, schedule, _, _ = CASES[name]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    out = tuple(exe.empty_outputs().values())
    exe(*values, out=out)
    if exe.plan.adopted:
        pytest.skip("what torch computes it allocates")
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        exe(*values, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def recorded_by_a_user(exe: Executable, values: list[Any], out: Any) -> None:
    """``out`` is what a replay of the user's own graph of a call writes."""
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        exe(*values, out=out)
    out.fill_(float("nan"))
    recorded.replay()


def test_a_users_own_capture_takes_a_call() -> None:
    graph, schedule, want, _ = CASES["mixed"]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    out = torch.empty(128, 96, dtype=torch.float16, device="cuda")
    exe(*values, out=out)
    torch.cuda.synchronize()
    recorded_by_a_user(exe, values, out)
    close(out, want(*values))


def test_threads_and_streams_share_a_workspace() -> None:
    graph, schedule, want, _ = CASES["branches"]
    exe = Executable(graph, schedule)
    given = [inputs_of(graph, seed) for seed in range(4)]
    found: list[list[Any]] = [[] for _ in given]
    torch.cuda.synchronize()

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                found[i].append(exe(*given[i]))
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(given))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for values, outs in zip(given, found, strict=True):
        for out in outs:
            close(out, want(*values))


def test_constants_and_early_launches() -> None:
    graph = cut_in_two(CHAIN)
    major, _ = torch.cuda.get_device_capability()
    schedule = tiles_of_16(graph, **({"pdl": "early"} if major >= 9 else {}))
    a, b, d = inputs_of(graph)
    exe = Executable(graph, schedule, constants={"B": b, "D": d})
    for _ in range(3):
        close(exe(a), of_chain(a, b, d))


def test_a_tensor_on_the_cpu_is_refused() -> None:
    graph = branches(64)
    exe = Executable(replace(graph, name="small"), Schedule(()))
    with pytest.raises(Exception, match=r"X is on cpu, the kernels run on cuda:0"):
        exe(torch.zeros(64, 64, dtype=torch.float16))


def test_a_thread_that_did_nothing_with_cuda_can_launch() -> None:
    graph, schedule, want, _ = CASES["chain0"]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    out = exe(*values)
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    thread = threading.Thread(target=lambda: exe(*values, out=out))
    thread.start()
    thread.join()
    close(out, want(*values))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one launch and more become graphs."""
    monkeypatch.setattr("fuser.runtime.again.MANY", 1)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", CASES)
def test_calls_on_the_same_tensors_become_a_graph_of_what_is_in_them(name: str) -> None:
    graph, schedule, want, _ = CASES[name]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    kept: list[Any] = []
    for seed in range(3 * AFTER):
        for x, new in zip(values, inputs_of(graph, seed), strict=True):
            x.copy_(new)
        exe.workspace.fill_(255)
        got = exe(*values)
        close(got, want(*values))
        if seed >= 2 * AFTER:
            kept.append((got, got.clone()))
    assert all(torch.equal(x, y) for x, y in kept), "no call writes to the results of another"
    (out,) = exe.empty_outputs().values()
    for _ in range(AFTER + 1):
        out.fill_(float("nan"))
        assert exe(*values, out=out) is out
        close(out, want(*values))
    assert exe._again is not None and exe._again._graphs


@pytest.mark.usefixtures("few")
def test_a_graph_is_no_part_of_a_users_own_capture_and_follows_streams() -> None:
    graph, schedule, want, _ = CASES["mixed"]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    out = torch.empty(128, 96, dtype=torch.float16, device="cuda")
    for _ in range(AFTER + 1):
        exe(*values, out=out)
    recorded_by_a_user(exe, values, out)
    close(out, want(*values))
    for _ in range(20):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            exe.workspace.fill_(255)
            exe(*values, out=out)
            torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
        close(out, want(*values))


@pytest.mark.usefixtures("few")
def test_no_input_is_kept_alive() -> None:
    graph, schedule, _, _ = CASES["mixed"]
    exe = Executable(graph, schedule)
    values = inputs_of(graph)
    for _ in range(AFTER + 1):
        exe(*values)
    seen = [weakref.ref(x) for x in values]
    del values
    gc.collect()
    assert not any(r() for r in seen)


@pytest.mark.parametrize("fails", ["a library", "numbers drawn in front of one"])
def test_a_capture_that_fails_leaves_nothing_behind(fails: str) -> None:
    """cuSOLVER's next call, and torch's random numbers, are as if nobody had tried."""
    wide = torch.randn(600, 600, device="cuda")
    symmetric = wide @ wide.T

    def call() -> Any:
        if fails == "a library":
            return torch.linalg.eigvalsh(symmetric)
        spectrum = torch.fft.rfft(torch.randn(20, 64, device="cuda")).mT
        return torch.istft(spectrum, 64, window=torch.ones(64, device="cuda"))

    call()
    with pytest.raises(RuntimeError):
        capture_calls([call], warm=True)
    torch.manual_seed(1)
    first = torch.rand(4, device="cuda")
    call()
    torch.manual_seed(1)
    assert torch.equal(first, torch.rand(4, device="cuda"))
