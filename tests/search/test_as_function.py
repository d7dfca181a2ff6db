"""What is made of a module is asked as a module is, or given tensors that have no memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fuser
from fuser.errors import MissingError
from fuser.errors import UsageError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def linear() -> Any:
    return fuser.compile(torch.nn.Linear(16, 8).eval(), (torch.randn(4, 16),), device="cpu")


def test_what_a_function_can_do_it_does(linear: Any) -> None:
    x = torch.randn(4, 16)
    assert linear.eval() is linear.train(False) is linear.requires_grad_(False) is linear
    assert linear.to("cpu") is linear.cpu() is linear.float() is linear.to(x) is linear.to(dtype=torch.float32) is linear
    assert not linear.training
    torch.testing.assert_close(linear.forward(x), linear(x))


@pytest.mark.parametrize(
    ("ask", "way"),
    [
        (lambda f: f.train(), "train the module"),
        (lambda f: f.half(), "dtype='float16'"),
        (lambda f: f.to(torch.float64), r"module.to\(torch.float64\)"),
        (lambda f: f.cuda(), "device='cuda'"),
        (lambda f: f.to("cuda:1", non_blocking=True), "device='cuda:1'"),
    ],
)
def test_what_it_cannot_be_made_is_an_error_with_a_way_out(linear: Any, ask: Callable[[Any], Any], way: str) -> None:
    with pytest.raises(UsageError, match=f"compiled 'Linear'.*\n.*{way}"):
        ask(linear)


@pytest.mark.parametrize("name", ["state_dict", "parameters", "named_buffers", "register_forward_hook", "config"])
def test_what_a_module_has_it_has_not(linear: Any, name: str) -> None:
    assert not hasattr(linear, name)
    with pytest.raises(MissingError, match=f"is a function and has no '{name}'\n.*ask the module"):
        getattr(linear, name)


def test_a_module_graph_by_graph_says_where_its_own_is() -> None:
    class Chooses(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x

    with pytest.warns(fuser.errors.LeftToTorch):
        run = fuser.compile(Chooses().eval(), (torch.ones(3),), device="cpu")
    with pytest.raises(MissingError, match=r"its \.module"):
        run.state_dict()
    assert run.cpu().eval() is run


FAKE = "input is a FakeTensor"


@pytest.mark.parametrize(
    ("of", "what"),
    [
        (lambda x: x.to_sparse(), "input is sparse"),
        (lambda x: x.to_sparse_csr(), "input is sparse"),
        (lambda x: x.to("meta"), "input is on meta"),
        (lambda x: torch._subclasses.FakeTensorMode().from_tensor(x), FAKE),
        (lambda x: torch.nested.nested_tensor([*x]), "input is a nested tensor"),
        (lambda x: x.tolist(), "input is a list, no tensor"),
        (lambda x: None, "input is a NoneType, no tensor"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:Accessing the data pointer", "ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested:UserWarning"
)
def test_tensors_without_memory_are_named(linear: Any, of: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        linear(of(torch.randn(4, 16)))


def test_functions_of_functions_take_the_module(linear: Any) -> None:
    with pytest.raises(UsageError, match=r"inside of torch.func.*\n.*torch.vmap\(module\)"):
        torch.vmap(linear)(torch.randn(3, 4, 16))
    with pytest.raises(UsageError, match=r"inside of torch.func"):
        torch.func.grad(lambda x: linear(x).sum())(torch.randn(4, 16))


def test_a_class_and_weights_without_values_are_named() -> None:
    with pytest.raises(UsageError, match="cannot compile the class Linear"):
        fuser.compile(torch.nn.Linear, (torch.randn(4, 16),), device="cpu")
    with pytest.raises(UsageError, match="weight is on the meta device"):
        fuser.compile(torch.nn.Linear(16, 8, device="meta"), (torch.randn(4, 16, device="meta"),), target="h200")
