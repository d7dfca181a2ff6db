"""``fuser.compile``: what it takes, where it runs, what it says where it cannot."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

import fuser
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.schedule import Schedule
from fuser.superopt.rewrite.variants import with_libraries
from fuser.superopt.structures import structures
from search import compile as compiling
from search.tune import tune_fast
from tests.builders import chain
from tests.builders import tiles_of_16
from tests.runtime.test_graph_executor import run_interpreted

CHAIN = chain(48, 40, 32, 16, "relu")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def gpu(monkeypatch: pytest.MonkeyPatch, name: str, major: int, minor: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    properties = SimpleNamespace(name=name, major=major, minor=minor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


@pytest.mark.usefixtures("no_gpu")
def test_a_target_without_its_gpu_is_compiled_offline(tmp_path: Path) -> None:
    made = fuser.compile(CHAIN, target="a100", checked=False)
    assert made.device is None
    assert ".target sm_80" in made.ptx[0]
    assert "@triton.jit" in made.source
    assert "compiled only" in repr(made)
    assert "A[48, 32]:float16" in repr(made)
    text = made.explain()
    assert "runner-up" in text
    assert "start of the kernel in a graph" in text
    (manifest,) = made.save(tmp_path)
    assert all((tmp_path / f).exists() for f in manifest["files"])
    with pytest.raises(EnvironmentError_, match="not for this machine"):
        made(*(torch.zeros(CHAIN[n].shape) for n in CHAIN.inputs))


@pytest.mark.usefixtures("no_gpu")
def test_a_workload_by_name_is_tuned_as_the_tuner_does() -> None:
    made = fuser.compile("mirage/rmsnorm:8", target="h200", checked=False, records=False)
    tuned = tune_fast(fuser.workload("mirage/rmsnorm:8"), fuser.load_device("h200"))
    assert made.realised.tuned.winner == tuned.winner
    assert made.inputs == made.program.inputs


@pytest.mark.usefixtures("no_gpu")
def test_a_structure_and_a_schedule_of_ones_own() -> None:
    graph = next(g for g in structures(CHAIN) if len(g.kernels) == 2 and not any(b.splits for b in g.blocks))
    schedule = tiles_of_16(graph)
    made = fuser.compile(CHAIN, graph=graph, schedule=schedule, target="h200", checked=False)
    assert (made.graph, made.schedule) == (graph, schedule)
    assert len(made.ptx) == 2
    assert fuser.compile(CHAIN, schedule=schedule, target="h200", checked=False).graph == graph
    tuned = fuser.compile(CHAIN, graph=graph, target="h200", checked=False)
    assert tuned.graph == graph
    with pytest.raises(UsageError, match="no structure of 'mirage/rmsnorm' has the schedule"):
        fuser.compile("mirage/rmsnorm", schedule=Schedule(schedule.kernels * 5), target="h200")
    with pytest.raises(UsageError, match="computes E of A, B, D; 'mirage/rmsnorm'"):
        fuser.compile("mirage/rmsnorm", graph=graph, target="h200")


@pytest.mark.usefixtures("no_gpu")
def test_library_kernels_are_left_to_the_library() -> None:
    graph = next(g for h in structures(CHAIN) if (g := with_libraries(h)))
    made = fuser.compile(CHAIN, graph=graph, target="h200", checked=False)
    assert (len(made.graph.kernels), len(made.artifacts), len(made.sources)) == (2, 1, 1)
    assert "library" in made.explain()


def test_a_gpu_leaves_a_large_product_to_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, "NVIDIA A100", 8, 0)
    monkeypatch.setattr("search.choose.CompiledProgram", lambda program, target, done, device, *_, **__: (done, device))
    done, device = fuser.compile("graphene/gemm", checked=False)
    assert device == "cuda"
    assert (done.candidate.schedule, done.artifacts) == (Schedule(()), ())
    assert [type(k) for k in done.candidate.graph.kernels] == [LibraryKernel]
    # what is only compiled must be complete
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done, device = fuser.compile("graphene/gemm", target="a100", checked=False)
    assert device is None
    assert len(done.artifacts) == len(done.candidate.graph.kernels)


def test_a_product_by_the_library_alone_runs_anywhere() -> None:
    b = fuser.Builder("product")
    program = b.build(Y=b.input("A", (8, 16)) @ b.input("B", (16, 4)))
    kernel = LibraryKernel("gemm", "matmul", ("A", "B"), "Y")
    graph = KernelGraph("product", program.inputs, (kernel,), program.outputs, program.tensors)
    made = fuser.compile(program, graph=graph, device="cpu")
    x, y = torch.randn(8, 16).half(), torch.randn(16, 4).half()
    torch.testing.assert_close(made(x, B=y), x @ y)
    assert made.ptx == ()
    assert "libraries alone" in made.explain()
    weight = y.numpy()
    weight.flags.writeable = False  # as those of ONNX files are
    torch.testing.assert_close(replace(made, params={"B": weight}, inputs=("A",))(x), x @ y)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("said", "hint", "program", "options"),
    [
        ("no GPU here on which 'chain' could run", "device='cpu' runs Triton's interpreter", None, {}),
        ("no GPU here", "compiles offline", None, {"device": "cuda", "target": "h200"}),
        ("cannot compile a int", "a torch.nn.Module with example inputs", 3, {}),
        ("cannot run on the device 'tpu'", "cuda", None, {"device": "tpu"}),
        ("no effort 'fast'", "instant", None, {"effort": "fast"}),
        ("no time in seconds", "full:300", None, {"effort": "full:soon"}),
        ("no device specification for target 'rtx9'", ".toml", None, {"target": "rtx9"}),
        ("no kernels can be generated for NVIDIA V100", "another target", None, {"target": "v100"}),
        ("has its shapes already", "PyTorch modules", None, {"example_inputs": (torch.zeros(1),)}),
        ("the example inputs are a NoneType", "a tuple of tensors", torch.nn.ReLU(), {"example_inputs": None}),
        ("the example inputs are a dict", "example_kwargs", torch.nn.ReLU(), {"example_inputs": {"input": torch.zeros(1)}}),
    ],
)
def test_what_cannot_be_done_is_said(said: str, hint: str, program: Any, options: dict[str, Any]) -> None:
    with pytest.raises(fuser.FuserError, match=said) as error:
        fuser.compile(program or CHAIN, **options)
    assert hint in error.value.hint


def test_the_gpu_at_hand_is_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, "NVIDIA H200", 9, 0)
    where, spec = compiling.where_to_run(None, None, "p")
    assert (where, spec.name) == ("cuda", "h200")
    where, spec = compiling.where_to_run("cuda:1", "h100", "p")
    assert (where, spec.name) == ("cuda:1", "h100")
    where, spec = compiling.where_to_run(None, "a100", "p")
    assert (where, spec.name) == (None, "a100")
    with pytest.raises(UsageError, match=r"A100.* \(sm_80\) do not run on NVIDIA H200 \(sm_90\)"):
        compiling.where_to_run("cuda", "a100", "p")
    gpu(monkeypatch, "NVIDIA L4", 8, 9)
    with pytest.raises(UsageError, match=r"GPU at hand, NVIDIA L4 \(sm_89\)") as error:
        compiling.where_to_run(None, None, "p")
    assert "--target" in error.value.hint
    assert "device file" in error.value.hint


def test_the_callable_in_the_interpreter(tmp_path: Path) -> None:
    text = run_interpreted(
        """
        import fuser
        made = fuser.compile(program, device="cpu")
        a, b_, d = (inputs[n] for n in program.inputs)
        print(error(made(a, b_, d)), error(made(a, D=d, B=b_)))
        out = torch.empty(48, 16, dtype=torch.float16)
        assert made(a, b_, d, out=out) is out
        assert made(A=a.numpy(), B=b_, D=d, out={"E": out}) is out
        for given, named in (((a,), {}), ((a, b_, d, d), {}), ((a, b_, d), {"A": a}), ((a, b_), {"W": d})):
            try:
                made(*given, **named)
            except UsageError as e:
                print(e.message)
        try:
            made.captured(a, b_, d)
        except UsageError as e:
            print(e.message)
        try:
            print(made.ptx)
        except UsageError as e:
            print(e.message)
        """,
        tmp_path,
    )
    first, *said = text.splitlines()
    assert all(float(x) < 2e-3 for x in first.split())
    assert said == [
        "'chain' takes 3 inputs (A, B, D), got 1",
        "'chain' takes 3 inputs (A, B, D), got 4",
        "'A' is given twice",
        "'W' is no input of 'chain'",
        "a CUDA graph needs a GPU",
        "'chain' is interpreted: it has no PTX",
    ]


def test_a_module_with_its_parameters_bound(tmp_path: Path) -> None:
    text = run_interpreted(
        """
        import fuser
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = torch.nn.Linear(32, 48), torch.nn.Linear(48, 16, bias=False)
            def forward(self, x):
                return self.down(torch.relu(self.up(x)))
        net, x = Net().eval(), torch.randn(16, 32)
        for module, example in ((net, (x,)), (net, x), (torch.export.export(net, (x,)), ())):
            made = fuser.compile(module, example, device="cpu")
            with torch.no_grad():
                print(made.inputs, float((made(x) - net(x)).abs().max()))
        print(made)
        """,
        tmp_path,
    )
    *runs, shown = text.splitlines()
    assert [r.split(") ")[0] for r in runs] == ["('x',"] * 3
    assert all(float(r.split()[-1]) < 1e-4 for r in runs)
    assert "3 parameters bound" in shown
    assert "runs in Triton's interpreter" in shown


@pytest.mark.gpu
@pytest.mark.parametrize("capture", [False, True])
def test_the_callable_on_a_gpu(capture: bool) -> None:
    from fuser.runtime.torch_program import reference

    program = CHAIN
    made = fuser.compile(program, capture=capture, checked=False)
    inputs = [torch.randn(program[n].shape, device="cuda").to(torch.float16) for n in program.inputs]
    for _ in range(3):
        inputs = [x + 0.1 for x in inputs]
        want = reference(program, dict(zip(program.inputs, inputs, strict=True)))["E"]
        torch.testing.assert_close(made(*inputs).double(), want, rtol=1e-2, atol=1e-1)
    replayed = made.captured(*inputs)
    fresh = [torch.randn_like(x) for x in inputs]
    want = reference(program, dict(zip(program.inputs, fresh, strict=True)))["E"]
    torch.testing.assert_close(replayed(*fresh).double(), want, rtol=1e-2, atol=1e-1)
    with pytest.raises(UsageError, match="captured with 3 inputs"):
        replayed(fresh[0])


def test_a_kernel_reads_nothing_beside_a_table() -> None:
    """Where torch would stop the device; its own neighbours are as they should be."""
    b = fuser.Builder("rows", "float32")
    found = b.op(
        "index", b.op("embedding", b.input("x", (5, 4)), b.input("i", (3,), "int64")), b.input("j", (2,), "int32"), dims=(1,)
    )
    run = fuser.compile(b.build(y=b.op("exp", found)), device="cpu")
    assert len(run.sources) == 1
    x = torch.randn(5, 4)
    y = run(x, torch.tensor([10**12, 3, -1]), torch.tensor([-1, 4], dtype=torch.int32))
    torch.testing.assert_close(
        y, x[3, 3].exp() * torch.tensor([[torch.nan] * 2, [1, torch.nan], [torch.nan] * 2]), equal_nan=True
    )


class Scaled(torch.nn.Module):
    def forward(self, x: Any, scale: float = 2.0, *, pair: Any, mask: Any = None) -> Any:
        y = x * scale + pair["a"]
        return y if mask is None else y * mask


def test_arguments_are_given_as_the_module_takes_them() -> None:
    """In order or by name, and defaults too; one that the example left out is named."""
    x, pair = torch.randn(3, 4), {"a": torch.ones(3, 4)}
    run = fuser.compile(Scaled(), (x,), example_kwargs={"pair": pair}, device="cpu")
    want = 2 * x + 1
    for given, named in (
        ((x, 2.0), {"pair": pair}),
        ((), {"mask": None, "pair": pair, "x": x, "scale": 2.0}),
        ((x,), {"pair": pair}),
    ):
        torch.testing.assert_close(run(*given, **named), want)
    assert copy.deepcopy(run) is run
    with pytest.raises(UsageError, match=r"compiled with scale=2.0, got 3.0"):
        run(x, 3.0, pair=pair)
    with pytest.raises(UsageError, match=r"compiled with mask=None, got a Tensor"):
        run(x, pair=pair, mask=x)
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(run)


class Nested(torch.nn.Module):
    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.shown = shown

    def forward(self, x: Any) -> Any:
        return self.shown(x + 1, x * 2)


@pytest.mark.parametrize(
    "shown", [lambda x, y: (x, (y,)), lambda x, y: ((x,), [y]), lambda x, y: (x, {"a": y}), lambda x, y: (x, y)]
)
def test_results_are_as_deep_as_the_modules(shown: Any) -> None:
    x = torch.randn(4, 8)
    found, wanted = (tree_flatten(f(x)) for f in (fuser.compile(Nested(shown).eval(), (x,), device="cpu"), Nested(shown)))
    assert found[1] == wanted[1]
    torch.testing.assert_close(found[0], wanted[0])
