"""Products of rows in groups: the experts of a mixture, whose sizes only the GPU knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.builder import Builder
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.program import Tensor

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

import fuser  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.lower.check import check_call  # noqa: E402
from fuser.lower.compile import compile_kernel  # noqa: E402
from fuser.lower.compile import interpret_source  # noqa: E402
from fuser.lower.kernel_source import KernelSource  # noqa: E402
from fuser.lower.written import written  # noqa: E402
from fuser.runtime.torch_program import run_program  # noqa: E402

COUNTS = st.lists(st.integers(0, 70), min_size=1, max_size=6)


def graph(rows: int, inner: int, columns: int, groups: int, transposed: bool = False, dtype: str = "float16") -> KernelGraph:
    attrs = (("transposed", True),) if transposed else ()
    kernel = LibraryKernel("g", "grouped_matmul", ("x", "w", "ends"), "y", attrs)
    weights = (groups, columns, inner) if transposed else (groups, inner, columns)
    tensors = (
        Tensor("x", (rows, inner), dtype),
        Tensor("w", weights, dtype),
        Tensor("ends", (groups,), "int32"),
        Tensor("y", (rows, columns), dtype),
    )
    return KernelGraph("g", ("x", "w", "ends"), (kernel,), ("y",), tensors)


def source(made: KernelGraph) -> KernelSource:
    (kernel,) = made.kernels
    assert isinstance(kernel, LibraryKernel)
    found = written(kernel, dict(kernel.attrs), made.table, {})
    assert found is not None
    return found


@settings(max_examples=12)
@given(COUNTS, st.integers(0, 20), st.integers(1, 40), st.integers(1, 90), st.booleans())
def test_groups_of_any_size_and_rows_behind_the_last(
    counts: list[int], behind: int, inner: int, columns: int, transposed: bool
) -> None:
    """Every row is written: those of empty groups are none, those behind the last group are zero."""
    rows = max(1, sum(counts) + behind)
    made = graph(rows, inner, columns, len(counts), transposed, "float32")
    rng, ends = np.random.default_rng(0), np.cumsum(counts)
    x, w = rng.standard_normal((rows, inner)), rng.standard_normal(made.table["w"].shape)
    (kernel,) = made.kernels
    assert isinstance(kernel, LibraryKernel)
    wanted = kernel.entry.numpy(x, w, ends, transposed=transposed)
    found = interpret_source(source(made), {"x": x, "w": w, "ends": ends})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_an_end_beyond_the_rows_is_the_last_row() -> None:
    rng = np.random.default_rng(0)
    x, w, ends = rng.standard_normal((8, 16)), rng.standard_normal((3, 16, 16)), np.array([2, 5, 20])
    made = graph(8, 16, 16, 3, dtype="float32")
    (kernel,) = made.kernels
    assert isinstance(kernel, LibraryKernel)
    wanted = kernel.entry.numpy(x, w, ends)
    np.testing.assert_allclose(interpret_source(source(made), {"x": x, "w": w, "ends": ends})["y"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape", [(64, 512, 256, 64, True), (1024, 512, 256, 8, False, "bfloat16"), (40, 256, 96, 5, True, "float32")]
)
def test_it_compiles_without_spills_and_passes_its_check(shape: Any) -> None:
    made = graph(*shape)
    artifact = compile_kernel(source(made), 90)
    assert artifact.spills == 0
    assert "cp.async" in artifact.ptx  # the loop is fetched ahead
    outcome = check_call(made)
    assert outcome.passed and outcome.method == "triton"


def test_what_does_not_fit_is_named() -> None:
    b = Builder("g", "float32")
    x, w, ends = b.input("x", (6, 4)), b.input("w", (2, 4, 3)), b.input("ends", (2,), "int32")
    assert b.op("grouped_matmul", x, w, ends).shape == (6, 3)
    with pytest.raises(ProgramError, match="the shapes differ"):
        b.op("grouped_matmul", x, w, ends, transposed=True)


class Experts(torch.nn.Module):
    """Rows in order of their experts, as vLLM and transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(4, 48, 32, dtype=torch.bfloat16))
        self.down = torch.nn.Parameter(torch.randn(4, 48, 32, dtype=torch.bfloat16))

    def forward(self, x: Any, ends: Any) -> Any:
        y = torch._grouped_mm(x, self.up.transpose(1, 2), offs=ends)
        return torch._grouped_mm(torch.nn.functional.silu(y), self.down, offs=ends)


def test_torchs_product_in_groups_is_one() -> None:
    torch.manual_seed(0)
    module, x = Experts().eval(), torch.randn(24, 32, dtype=torch.bfloat16)
    ends = torch.tensor([5, 5, 20, 24], dtype=torch.int32)
    with torch.no_grad():
        wanted = module(x, ends)
        known = from_torch(module, (x, ends))
        assert [n.op for n in known.program.nodes] == ["grouped_matmul", "silu", "grouped_matmul"]
        weights = {"up": module.up, "down": module.down}
        (found,) = run_program(known.program, dict(zip(known.inputs, (x, ends), strict=True)) | weights).values()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(fuser.compile(module, (x, ends), device="cpu")(x, ends), wanted)


def test_a_trace_asks_nothing_of_the_device() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime.forms import grouped_matmul

    x, w, ends = torch.randn(9, 4), torch.randn(3, 6, 4), torch.tensor([2, 2, 7])
    traced = make_fx(lambda *xs: grouped_matmul(*xs, transposed=True), tracing_mode="fake")(x, w, ends)
    torch.testing.assert_close(traced(x, w, ends), grouped_matmul(x, w, ends, transposed=True))


def test_a_mixture_of_experts_of_transformers_has_them() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.MixtralConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=100, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    module, ids = transformers.MixtralModel(config).eval(), torch.randint(0, 100, (1, 9))
    run = fuser.compile(module, (ids,), device="cpu")
    assert sum(n.op == "grouped_matmul" for n in run.program.nodes) == 2
    with torch.no_grad():
        torch.testing.assert_close(run(ids).last_hidden_state, module(ids).last_hidden_state, atol=1e-5, rtol=1e-4)
