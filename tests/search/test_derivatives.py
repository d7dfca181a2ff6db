"""Modules that take derivatives when they are called: torch runs what these are taken of, but for those by ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import GradientError  # noqa: E402
from fuser.errors import LeftToTorch  # noqa: E402


class Deriving(torch.nn.Module):
    def __init__(self, run: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.energy = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))
        self.run = run

    def forward(self, x: Any) -> Any:
        return self.run(self.energy, x)


def forces(energy: Any, x: Any) -> Any:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        e = energy(x).sum()
        return e.detach(), -torch.autograd.grad(e, x)[0]


def asked_of_the_input(energy: Any, x: Any) -> Any:
    """It fails without gradients, in eager torch too."""
    x = x.requires_grad_()
    return torch.autograd.grad(energy(x).tanh().sum(), x)[0]


def backward(energy: Any, x: Any) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        energy(x).sum().backward()
        return x.grad * 1


def of_a_parameter(energy: Any, x: Any) -> Any:
    return torch.autograd.grad(energy(x).sum(), energy[0].weight)[0]


def forward_mode(energy: Any, x: Any) -> Any:
    weight = energy[0].weight
    return torch.func.jvp(lambda a: (a @ weight.T).tanh(), (x,), (torch.ones_like(x),))


def of_each_row(energy: Any, x: Any) -> Any:
    """A batch of dimensions that operators do not see around a derivative."""
    weight = energy[0].weight
    return torch.vmap(lambda a: torch.func.jvp(lambda b: (weight @ b).tanh(), (a,), (torch.ones_like(a),))[1])(x)


def by_torch_func(energy: Any, x: Any) -> Any:
    """With its value, and of what torch keeps as one operator."""
    several = torch.nn.functional.layer_norm
    return torch.func.grad_and_value(lambda a: energy(several(a, (3,))).logsumexp(0).sum())(x)


def of_each_sample(energy: Any, x: Any) -> Any:
    weight = energy[0].weight
    return torch.func.vmap(torch.func.grad(lambda w, a: (w @ a).tanh().sum()), in_dims=(None, 0))(weight, x)


@pytest.mark.parametrize("run", [by_torch_func, of_each_sample])
@pytest.mark.parametrize("gradients", [False, True])
def test_derivatives_by_torch_func_are_operators_like_others(run: Any, gradients: bool) -> None:
    module, x = Deriving(run).eval(), torch.randn(5, 3)
    torch._dynamo.reset()
    found = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        warnings.simplefilter("error", LeftToTorch)
        torch.testing.assert_close(found(x), module(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [forces, asked_of_the_input, backward, of_a_parameter, forward_mode, of_each_row])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_derivatives_are_those_of_the_module(run: Any, door: str) -> None:
    module, x = Deriving(run).eval(), torch.randn(5, 3)
    wanted = module(x.clone())
    torch._dynamo.reset()
    if door == "compile":
        found = fuser.compile(module, (x.clone(),), device="cpu")
    else:
        found = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})
    if door == "backend" and run is of_a_parameter:
        with pytest.raises(GradientError, match="for inference"):
            found(x.clone())
        return
    for _ in range(2):
        torch.testing.assert_close(found(x.clone()), wanted)
    torch.testing.assert_close(module(x.clone()), wanted)  # nothing is left behind in torch


def test_a_graph_whose_input_requires_gradients_is_torchs() -> None:
    torch._dynamo.reset()
    module, x = torch.nn.Linear(3, 4).eval(), torch.randn(2, 3, requires_grad=True)
    run = torch.compile(module, backend=fuser.torch_backend, options={"device": "cpu"})
    with pytest.warns(LeftToTorch, match="an input that requires gradients"):
        run(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(2, 3))


@pytest.mark.filterwarnings("ignore")
def test_a_trace_that_fails_within_a_derivative_leaves_none_behind() -> None:
    """The number of the row is read inside of it, which no graph has."""

    class Row(torch.nn.Module):
        def forward(self, x: Any, t: Any) -> Any:
            return torch.func.grad(lambda r: (r[t] ** 2).sum())(x)

    module, x, t = Row(), torch.randn(3, 4), torch.tensor(1)
    found = fuser.compile(module, (x, t), device="cpu")(x, t)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(found)
    torch.testing.assert_close(found, module(x, t))
