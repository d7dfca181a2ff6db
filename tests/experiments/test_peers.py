"""Peers: natural forms are the programs they come from, and compiling never falls into a capture."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import peers
from experiments.natural import natural
from experiments.natural import natural_steps
from experiments.peers import PEERS
from experiments.peers import make
from experiments.peers import peers_of
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.workloads import workload

torch = pytest.importorskip("torch")

from fuser.runtime.torch_program import reference  # noqa: E402

SMALL = {
    "mcfuser/G4": {"M": 48, "N": 32, "K": 40, "H": 24},
    "mcfuser/S1": {"heads": 3, "M": 16, "N": 24, "K": 8, "H": 8},
    "mirage/qknorm": {"heads": 2, "M": 16, "N": 24, "K": 8, "H": 8},
    "mirage/rmsnorm": {"D": 32, "N": 24},
    "mirage/lora": {"D": 32, "N": 24, "R": 4},
    "mirage/ntrans": {"D": 32},
    "mirage/mlp": {"D": 32, "R": 4},
    "mirage/moe": {"E": 3, "D": 16, "F": 8},
    "graphene/gemm-bias-relu": {"M": 16, "N": 24, "K": 8},
    "graphene/mlp20": {"layers": 3, "M": 16, "D": 8},
    "graphene/lstm": {"M": 16, "N": 24, "K": 8},
    "graphene/layernorm": {"rows": 8, "D": 16},
    "graphene/fmha": {"heads": 2, "M": 16, "N": 16, "K": 8, "H": 8},
}


def draw(program: TensorProgram, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(program[n].shape, generator=generator) for n in program.inputs}


def check(program: TensorProgram, function: Any, seed: int = 0) -> None:
    inputs = draw(program, seed)
    kept = {n: x.clone() for n, x in inputs.items()}
    found = function(inputs)
    for name, wanted in reference(program, inputs).items():
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-3, atol=1e-3)
    for name, x in kept.items():
        assert torch.equal(inputs[name], x), f"the peer overwrote {name}"


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("epilogue", [False, True])
def test_natural_forms_compute_the_program(name: str, epilogue: bool) -> None:
    program = workload(name, dtype="float32", **SMALL[name])
    check(program, natural(program, epilogue=epilogue))


@pytest.mark.parametrize(
    ("name", "plain", "with_epilogue"),
    [
        ("graphene/gemm-bias-relu", 2, 1),  # addmm and ReLU; all in cuBLASLt
        ("graphene/lstm", 2, 2),  # two products and a bias in one step (two library calls), ReLU
        ("mirage/lora", 2, 2),  # X A; then X W with the other product added in place
        ("mirage/mlp", 3, 3),  # X A, ReLU, addmm
        ("mirage/ntrans", 3, 3),  # norm, lerp, norm
    ],
)
def test_kernels_that_a_user_would_not_launch_are_gone(name: str, plain: int, with_epilogue: int) -> None:
    program = workload(name)
    assert len(natural_steps(program)) == plain
    assert len(natural_steps(program, epilogue=True)) == with_epilogue


def test_each_layer_with_a_bias_is_one_library_kernel() -> None:
    program = workload("graphene/mlp20", layers=5)
    steps = natural_steps(program, epilogue=True)
    assert sum(len(s.inputs) == 3 for s in steps) == 5
    assert len(steps) == 5 + 4 * 5, "views of weights and biases apart, one step a layer"


def test_a_sum_that_others_read_stays() -> None:
    b = Builder("shared", "float32")
    x, w, v = b.input("X", (8, 4)), b.input("W", (4, 6)), b.input("v", (6,))
    total = x @ w + v
    program = b.build(Y=b.relu(total), Z=total)
    check(program, natural(program, epilogue=True))
    assert len(natural_steps(program, epilogue=True)) == 2


def test_a_product_that_others_read_stays() -> None:
    b = Builder("shared", "float32")
    x, w = b.input("X", (8, 4)), b.input("W", (4, 6))
    product = x @ w
    program = b.build(Y=product + b.input("v", (6,)), Z=b.exp(product))
    check(program, natural(program))
    assert len(natural_steps(program)) == 3


def test_peers_apply_where_they_differ_from_others() -> None:
    def names(case: str) -> list[str]:
        return [p.name for p in peers_of(workload(case))]

    assert names("graphene/gemm") == ["eager", "inductor"]
    assert names("graphene/gemm-bias-relu") == ["eager", "cublaslt", "inductor"]
    assert names("mcfuser/S1") == ["eager", "inductor", "flash", "cudnn", "flex"]
    assert names("mirage/qknorm") == ["eager", "inductor", "inductor-sdpa", "flash", "cudnn", "flex"]
    with pytest.raises(UsageError, match="no peer 'trt'"):
        peers_of(workload("graphene/gemm"), ["eager", "trt"])


@pytest.mark.parametrize("name", ["eager", "cublaslt", "flash"])
def test_peers_without_a_compiler_run(name: str) -> None:
    case = "graphene/gemm-bias-relu" if name == "cublaslt" else "mcfuser/S1"
    program = workload(case, dtype="float32", **SMALL[case])
    check(program, make(program, name, "cpu"))


class TestCompiled:
    """The backend is replaced by one that compiles nothing: what is looked at is when Dynamo compiles."""

    @pytest.fixture(autouse=True)
    def _eager_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = torch.compile
        monkeypatch.setattr(torch, "compile", lambda f, mode=None, **kw: real(f, backend="eager", **kw))
        peers._fresh_compiler.cache_clear()

    def test_a_later_peer_of_a_program_makes_no_earlier_one_compile_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = workload("mirage/qknorm", dtype="float32", **SMALL["mirage/qknorm"])
        functions = []
        for name in ("inductor", "inductor-sdpa", "flex"):
            functions.append(make(program, name, "cpu"))
            check(program, functions[-1])
        monkeypatch.setattr(peers, "_capturing", lambda: True)
        for function in functions:
            check(program, function, seed=1)

    def test_compiling_in_a_capture_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = workload("graphene/gemm", dtype="float32", M=8, N=8, K=8)
        function = make(program, "inductor", "cpu")
        check(program, function)
        torch._dynamo.reset()
        monkeypatch.setattr(peers, "_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            check(program, function)

    def test_many_programs_one_after_another_stay_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limit = torch._dynamo.config.recompile_limit
        for n in range(limit + 2):
            program = workload("graphene/gemm", dtype="float32", M=8 + n, N=8, K=8)
            function = make(program, "inductor", "cpu")
            check(program, function)  # fullgraph: beyond the limit this would raise
            with monkeypatch.context() as patch:
                patch.setattr(peers, "_capturing", lambda: True)
                check(program, function)


def test_every_peer_is_described() -> None:
    assert all(len(text) < 130 for text in PEERS.values())
    assert set(peers.FAST_PEERS) <= set(PEERS)
