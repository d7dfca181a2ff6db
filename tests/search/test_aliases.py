"""Writes in place through what torch's operators return of what they are given, where their schemas do not say so."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402

F = torch.nn.functional

SHOWING: dict[str, Callable[[Any], Any]] = {
    "a diagonal by einsum": lambda x: torch.einsum("bii->bi", x),
    "turned by einsum": lambda x: torch.einsum("bij->bji", x),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "dropout in training with p=0": lambda x: F.dropout(x, 0.0, True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, False),
    "dropout of channels": lambda x: F.dropout1d(x, 0.5, False),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x, 0.5, False),
    "type_as": lambda x: x.type_as(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x[:1], x)[1],
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0, 0]),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, 0], indexing="ij")[1][1],
    "sum_to_size": lambda x: x.sum_to_size(2, 4, 4),
    "conj_physical": torch.conj_physical,
    "an unsafe chunk": lambda x: x.unsafe_chunk(2, 1)[0],
    "an unsafe split": lambda x: torch.unsafe_split(x, 1, 0)[1],
    "an unsafe split with sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 3], 2)[1],
    "at least of three dimensions": lambda x: torch.atleast_3d(x[0])[0],
    "a layer behind a layer": lambda x: torch.nn.Dropout1d(0.1).eval()(torch.nn.Dropout(0.1).eval()(x)),
}


class Writing(torch.nn.Module):
    """Each write is by another number, so that a lost one shows."""

    def __init__(self, shown: Any, given: bool) -> None:
        super().__init__()
        self.shown, self.given = shown, given

    def forward(self, x: Any) -> Any:
        y = x if self.given else x * 1.5
        for i, f in enumerate(self.shown):
            f(y).mul_(1 + (i + 1) / 16)
        return y + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_what_is_written_through_an_alias_is_written(door: str, given: bool) -> None:
    module, x = Writing(list(SHOWING.values()), given).eval(), torch.randn(2, 4, 4)
    with torch.no_grad():
        after, wanted = [y := x.clone()], module(y)
        if door == "compile":
            run = fuser.compile(module, (x.clone(),), device="cpu")
        else:
            torch._dynamo.reset()
            run = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})
        got = run(x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(x, after[0])


@pytest.mark.parametrize("name", SHOWING)
def test_each_alone_is_the_program_that_the_module_is(name: str) -> None:
    module, x = Writing([SHOWING[name]], given=False).eval(), torch.randn(2, 4, 4)
    known = from_torch(module, (x,))
    (found,) = known.program.evaluate({known.inputs[0]: x.numpy(), **known.params}).values()
    torch.testing.assert_close(torch.from_numpy(found).float(), module(x))


@pytest.mark.parametrize("name", ["turned by einsum", "dropout", "alpha dropout", "meshgrid", "an unsafe chunk"])
def test_each_alone_is_compiled_behind_torch_compile(name: str) -> None:
    torch._dynamo.reset()
    module, x = Writing([SHOWING[name]], given=False).eval(), torch.randn(2, 4, 4)
    with torch.no_grad():  # a warning that torch runs it would be an error
        run = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})
        torch.testing.assert_close(run(x), module(x))


def test_an_exported_program_stays_as_it_is() -> None:
    exported = torch.export.export(Writing([SHOWING["dropout"]], given=False).eval(), (torch.randn(2, 4, 4),))
    before = exported.graph_module.code
    from_torch(exported)
    assert exported.graph_module.code == before and "dropout" in before


@pytest.mark.parametrize(("equation", "whole"), [("bii->bi", False), ("bij->bji", True)])
def test_an_einsum_of_one_tensor_is_the_view_that_the_module_returns(equation: str, whole: bool) -> None:
    x = torch.randn(2, 4, 4)

    class View(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.einsum(equation, x), torch.einsum(equation, x + 1 if whole else x), torch.einsum("bij->bj", x)

    module = View()
    with torch.no_grad():
        for run in (
            fuser.compile(module, (x,), device="cpu"),
            torch.compile(deepcopy(module), backend=fuser.torch_backend, options={"device": "cpu"}),
        ):
            for got, wanted in zip(run(x), module(x), strict=True):
                torch.testing.assert_close(got, wanted)
                assert got.stride() == wanted.stride()
            assert run(x)[0].data_ptr() == x.data_ptr()
