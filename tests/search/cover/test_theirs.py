"""Programs that torch's compiler is given as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.ir.program import TensorProgram
from fuser.lower.compile import KernelArtifact
from fuser.runtime.graph_executor import Executable
from fuser.runtime.library import WHOLE
from fuser.runtime.plan import plan
from search.choose import compile_imported
from search.cover.prices import by_library
from search.cover.theirs import left
from search.cover.theirs import limit
from search.cover.theirs import only_theirs
from search.cover.theirs import rival
from search.cover.theirs import wholly
from search.how import How
from search.library_time import library_seconds

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.frontends.imported import Imported  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from search.converted import converted  # noqa: E402
from search.strided import as_they_lie  # noqa: E402
from search.views import with_views  # noqa: E402

H200 = load_device("h200")


def program(rows: int, columns: int = 64) -> TensorProgram:
    b = Builder("mixed", "float32")
    x, w = b.input("X", (rows, 64)), b.input("W", (64, columns))
    return b.build(Y=b.relu(x @ w), Z=b.exp(x))


def chosen(p: TensorProgram) -> Any:
    known = Imported(p, {}, p.inputs)
    return compile_imported(known, H200, "cuda", How(compiled=False, jobs=1, theirs=True)).graph


def test_what_is_alike_is_theirs_and_what_is_clearly_better_ours() -> None:
    b = Builder("elements", "float32")
    alike = chosen(b.build(Y=b.relu(b.input("X", (4096, 4096)))))
    assert all(isinstance(k, LibraryKernel) and dict(k.attrs)[JOINED] == WHOLE for k in alike.kernels)
    b = Builder("normed", "float16")
    x = b.input("X", (512, 512))
    assert chosen(b.build(Y=b.relu(x @ b.input("W", (512, 512)) + b.input("B", (512,))))).blocks


def test_a_product_and_its_neighbours_cost_what_each_costs() -> None:
    whole, b = wholly(program(1024, 512), H200), Builder("alone", "float32")
    alone = wholly(b.build(Y=b.input("X", (1024, 64)) @ b.input("W", (64, 512))), H200)
    assert whole is not None
    assert alone is not None
    assert limit(None) > whole.winner.seconds > alone.winner.seconds
    assert limit(whole) < whole.winner.seconds


def test_of_images_and_masked_attention_nothing_is_known() -> None:
    for masked in (False, True):
        b = Builder("attention", "float16")
        q, k, v = (b.input(n, (4, 64, 32)) for n in "QKV")
        found = wholly(b.build(Y=b.attention(q, k, v, b.input("M", (4, 64, 64)) if masked else None, scale=0.1)), H200)
        assert (found is None) is masked


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_channels_that_are_convolved_apart_are_theirs_sooner(dtype: str) -> None:
    found = []
    for groups in (1, 8):
        b = Builder("images", dtype)
        y = b.op("conv2d", b.input("X", (2, 8, 16, 16)), b.input("W", (8, 8 // groups, 3, 3)), groups=groups)
        found.append(wholly(b.build(Y=b.relu(y)), H200))
    assert (found[0] is None) is (dtype == "float16")
    assert found[1] is not None and limit(found[1]) < 0.6 * found[1].winner.seconds


def test_a_recurrent_network_is_not_given_to_torchs_compiler() -> None:
    """Written out, step by step, it takes minutes to compile."""
    net = torch.nn.GRU(8, 16).eval()
    program = from_torch(net, (torch.randn(12, 2, 8),)).program
    assert any("gru" in str(n.attr.get("callee")) for n in program.nodes)
    assert wholly(program, H200) is None
    assert rival(program, H200, 1e-6) is None


class Lifted(torch.nn.Module):
    """Features of pixels, added up on the ground."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.head, self.adds = torch.nn.Conv2d(8, 16, 1), adds

    def forward(self, x: Any, cell: Any) -> Any:
        y = self.head(x).permute(0, 2, 3, 1).flatten(0, 2).relu()
        return y.new_zeros(64, 16).index_add(0, cell, y) if self.adds else y[cell]


@pytest.mark.parametrize(("dtype", "columns", "taken"), [("bfloat16", 64, True), ("bfloat16", 60, False), ("float16", 64, False)])
def test_products_in_groups_are_theirs_where_torch_has_a_kernel_for_them(dtype: str, columns: int, taken: bool) -> None:
    """Else it would multiply every row by every matrix."""
    b = Builder("experts", dtype)
    x, w, ends = b.input("X", (512, 64)), b.input("W", (8, 64, columns)), b.input("E", (8,), "int32")
    p = b.build(Y=b.relu(b.op("grouped_matmul", x, w, ends)))
    assert (rival(p, H200, 1e-5) is not None) == (wholly(p, H200) is not None) == taken


def test_torchs_sorting_has_its_own_price() -> None:
    """11 to 40 µs of an H200 however little it sorts; ours a fraction of that."""
    b = Builder("sorted", "float32")
    x = b.input("X", (64, 256))
    p = b.build(Y=b.op("argtopk", b.relu(x), k=4, dim=-1, largest=True, dtype="int64"))
    theirs = wholly(p, H200)
    assert theirs is not None and theirs.winner.seconds > 10e-6
    assert any(isinstance(k, LibraryKernel) and k.op == "argtopk" and JOINED not in dict(k.attrs) for k in chosen(p).kernels)


def test_what_does_not_lie_row_after_row_is_sorted_by_torch() -> None:
    """So that is its price."""
    b = Builder("sliced", "float32")
    x = b.input("X", (64, 4097))
    p = b.build(Y=b.op("argtopk", b.op("slice", x, axis=1, start=1, stop=4097, step=1), k=4, dim=-1, largest=True, dtype="int64"))
    graph = chosen(p)
    (kernel,) = [k for k in graph.kernels if isinstance(k, LibraryKernel) and k.op == "argtopk"]
    assert library_seconds(graph, kernel, H200) > 20e-6


@pytest.mark.parametrize("adds", [False, True])
def test_pixels_that_are_added_up_are_theirs(adds: bool) -> None:
    given = torch.randn(2, 8, 16, 16).half(), torch.randint(64, (512,))
    found = wholly(from_torch(Lifted(adds).half(), given).program, H200)
    assert (found is not None) is adds
    assert limit(found) == (0.0 if adds else math.inf)


def test_all_of_it_is_one_piece_and_its_results_are_taken_where_they_lie() -> None:
    found, seen = wholly(program(8), H200), []
    assert found is not None

    def build(traced: Any, _run: Any, given: Any) -> Any:
        seen.append([str(n.target) for n in traced.graph.nodes if n.op == "call_function"])
        return traced

    run = Executable(plan(found.winner.candidate, []), device="cpu", build=build)
    x, w = torch.randn(8, 64), torch.randn(64, 64)
    torch.testing.assert_close(run(x, w), ((x @ w).relu(), x.exp()))
    (targets,) = seen
    assert any("mm" in t for t in targets)
    assert not any("copy_" in t for t in targets)


class Sorted(torch.nn.Module):
    """A matrix that is given turned; a buffer of places; a result, and a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", torch.tensor([2, 0, 1]))
        self.scale = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        values = (x * self.scale)[self.at].sort(-1).values
        return values, (values + torch.arange(6, device=x.device)).T


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_module_the_compiler_is_given_what_torch_traced(fails: bool) -> None:
    module, x, seen = Sorted(), torch.randn(6, 4).T, []
    known = as_they_lie(with_views(from_torch(module, (x,))), [x])
    found = wholly(known.program, H200)
    assert found is not None and known.traced is not None and converted(known, "float16").traced is None

    def build(traced: Any, _run: Any, _given: Any) -> Any:
        seen.append([str(n.target) for n in traced.graph.nodes if n.op == "call_function"])
        return None if fails and len(seen) == 1 else traced

    constants = {n: torch.from_numpy(v) for n, v in known.params.items()}
    more = {"constants": constants, "build": build, "original": known.traced}
    run = Executable(plan(found.winner.candidate, []), device="cpu", **more)
    assert len(seen) == 1 + fails and sum("sort" in n for n in seen[0]) == 1  # then operators of ours as one
    made = dict(zip(run.outputs, run(x.T), strict=True))
    assert known.called is not None
    for want, result in zip(module(x), known.called.results, strict=True):
        got = made[result.name or result.base]
        torch.testing.assert_close(got.T if got.shape != want.shape else got, want)


def test_kernels_that_spill_are_left() -> None:
    theirs = wholly(program(512), H200)
    assert theirs is not None
    ours = replace(theirs, winner=replace(theirs.winner, estimate=0.7 * theirs.winner.seconds))
    fast = replace(theirs, winner=replace(theirs.winner, estimate=0.3 * theirs.winner.seconds))
    few, many = (cast(KernelArtifact, SimpleNamespace(spills=n)) for n in (64, 2224))
    assert left(theirs, ours, [few, many])
    assert not left(theirs, ours, [few])
    assert not left(theirs, fast, [many]), "several times its estimate is still less"


def test_what_is_one_piece_of_theirs_is_all_of_it_theirs() -> None:
    """They see the module's operators then; where a kernel is ours, or a library's beside the piece, the plan stays."""
    b = Builder("piece", "float32")
    x = b.input("X", (64, 64))
    piece = b.build(Y=b.op("concat", b.op("tanh", x), b.relu(x), axis=0))
    joint = by_library(piece, H200, 1e-5)
    assert joint is not None
    found = only_theirs(piece, H200, joint.winner)
    assert found is not None and found.winner.seconds == joint.winner.seconds
    assert {dict(k.attrs)[JOINED] for k in found.winner.graph.kernels if isinstance(k, LibraryKernel)} == {WHOLE}
    b = Builder("called", "float32")
    x = b.input("X", (64, 64))
    call = b.op("opaque", b.op("tanh", x), callee="aten.cumsum.default", shape=(64, 64), detail="[$0, 1], {}", dtype="float32")
    called = by_library(b.build(Y=b.relu(call)), H200, 1e-5)
    assert called is not None and only_theirs(called.program, H200, called.winner) is not None, "they have torch's calls, too"
    b = Builder("ours", "float32")
    ours = b.build(Y=b.input("X", (64, 64)) @ b.input("W", (64, 64)))
    alone = by_library(ours, H200)
    assert alone is not None and only_theirs(ours, H200, alone.winner) is None


def test_products_of_two_vectors_are_taken_apart() -> None:
    """An update and the product over it are one kernel of torch's compiler: without that 20 steps of two loops had 130 ms."""

    def seconds(steps: int) -> float:
        b = Builder("steps", "float32")
        x, q = b.input("X", (2**20,)), b.input("Q", (2**20,))
        for _ in range(steps):
            q = q - x * (q.reshape(1, 2**20) @ x.reshape(2**20, 1)).reshape(1)
        found = wholly(b.build(Y=q), H200)
        assert found is not None
        return found.winner.seconds

    assert seconds(8) - seconds(4) < 4 * 12e-6
