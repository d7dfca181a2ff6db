"""What torch allocates in a call is taken where it lies: results, and what other kernels read."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.ir.mugraph import KernelGraph  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from fuser.ir.opdef import JOINED  # noqa: E402
from fuser.ir.program import Tensor  # noqa: E402
from fuser.ir.schedule import Schedule  # noqa: E402
from fuser.runtime.graph_executor import Executable  # noqa: E402
from fuser.runtime.library import WHOLE  # noqa: E402
from fuser.runtime.library import taken  # noqa: E402

CONV = LibraryKernel("conv", "conv2d", ("x", "w"), "c", ())
SUM = LibraryKernel("sum", "cumsum", ("c",), "s", (("dim", -1),))
TABLE = {"x": (2, 3, 8, 8), "w": (4, 3, 3, 3), "c": (2, 4, 6, 6), "s": (2, 4, 6, 6)}


def executable(*outputs: str) -> Executable:
    tensors = tuple(Tensor(n, s, "float32") for n, s in TABLE.items())
    kernels = (CONV, SUM) if "s" in outputs else (CONV,)
    return Executable(KernelGraph("g", ("x", "w"), kernels, outputs, tensors).validate(), Schedule(()), device="cpu")


def inputs(seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [torch.randn(TABLE[n]) for n in "xw"]


def test_what_is_read_between_kernels_has_no_place_and_goes_behind_its_last_reader() -> None:
    run = executable("s")
    assert run.plan.adopted == {"c"}
    assert not run.plan.slots
    for seed in (0, 1, 0):
        x, w = inputs(seed)
        torch.testing.assert_close(run(x, w), torch.conv2d(x, w).cumsum(-1))
    assert all("c" not in (p.late or {}) for p in run._packed.values())


def test_results_are_new_at_every_call_and_written_where_they_are_wanted() -> None:
    run = executable("c", "s")
    first, second = run(*inputs(0)), run(*inputs(0))
    assert first[0].data_ptr() != second[0].data_ptr()
    out = [torch.full(TABLE[n], float("nan")) for n in "cs"]
    found = run(*inputs(0), out=out)
    assert found[0] is out[0]
    for x, y, z in zip(first, second, out, strict=True):
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(x, z)
    x, w = inputs(2)
    values = run.empty_outputs()
    call = run.bind({"x": x, "w": w}, values)
    call()
    x += 1
    call()
    torch.testing.assert_close(values["c"], torch.conv2d(x, w))
    torch.testing.assert_close(values["s"], torch.conv2d(x, w).cumsum(-1))


def test_what_lies_otherwise_or_is_an_operand_is_copied() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    like = torch.empty(2, 3, device="meta")
    assert taken(x, like, (), 1) is x
    for y, apart in ((x.T.contiguous().T, ()), (x, (x.view(6),)), (x.double(), ())):
        found = taken(y, like, apart, 1)
        assert found is not y
        assert found.is_contiguous()
        torch.testing.assert_close(found, x)


def test_a_product_that_torch_allocates_has_all_its_batches() -> None:
    """Of two batches one call of ``bmm`` makes one, which is not how the product lies."""
    kernels = (
        LibraryKernel("m", "matmul", ("x", "y"), "p", ((JOINED, WHOLE),)),
        LibraryKernel("t", "tanh", ("p",), "o", ((JOINED, WHOLE),)),
    )
    ends = (Tensor("x", (2, 3, 5, 4), "float32"), Tensor("y", (2, 3, 4, 6), "float32"), Tensor("o", (2, 3, 5, 6), "float32"))
    graph = KernelGraph("g", ("x", "y"), kernels, ("o",), ends).validate()
    run = Executable(graph, Schedule(()), device="cpu", build=lambda *_: None)  # torch's compiler fails
    assert run.plan.adopted == {"p", "o"}
    x, y = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(run(x, y), (x @ y).tanh())
