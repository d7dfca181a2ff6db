"""Shapes that torch states wrongly while it traces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._decomp import decompositions
from torch.nn import functional

from fuser.errors import UnsupportedError
from fuser.frontends.torch_export import from_torch
from fuser.runtime.torch_program import run_program


class Last(nn.Module):
    """What follows the last state of the last layer."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm, self.line = lstm, nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(self.lstm(x)[1][0][-1])


@pytest.fixture
def as_torch_2_11(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An LSTM is traced as on a GPU, by a torch whose trace has last states of a dimension too many."""
    own = decompositions.one_layer_lstm

    def one_layer_lstm(*args: Any, **kwargs: Any) -> Any:
        y, last = own(*args, **kwargs)
        return y, tuple(s.reshape(1, *s.shape[-2:]).squeeze(1) for s in last)

    monkeypatch.setattr(decompositions, "one_layer_lstm", one_layer_lstm)
    with torch.backends.mkldnn.flags(enabled=False):
        yield


LSTMS = {"two layers": {"num_layers": 2}, "both ways": {"bidirectional": True}, "one": {}, "batch first": {"batch_first": True}}


@pytest.mark.usefixtures("as_torch_2_11")
@pytest.mark.parametrize("form", sorted(LSTMS))
def test_the_last_states_of_an_lstm_have_the_shape_that_they_have_when_it_runs(form: str) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 8, **LSTMS[form]).eval()
    x = torch.randn(3, 2, 6)
    for module in (lstm, Last(lstm)):
        known = from_torch(module, (x,))
        params = {n: torch.from_numpy(v) for n, v in known.params.items()}
        with torch.no_grad():
            (name,) = set(known.program.inputs) - set(params)
            got = run_program(known.program, {**params, name: x})
            want = module(x)
        for (n, y), z in zip(got.items(), (want[0], *want[1]) if module is lstm else (want,), strict=True):
            assert known.program.table[n].shape == tuple(z.shape)
            torch.testing.assert_close(y, z)


@pytest.mark.usefixtures("as_torch_2_11")
@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_a_program_that_was_traced_with_wrong_shapes_is_refused() -> None:
    module, x = nn.LSTM(6, 8, 2).eval(), torch.randn(3, 2, 6)
    exported = torch.export.export(module, (x,))
    with pytest.raises(UnsupportedError, match=r"aten\.lstm\.input.*\(2, 2, 8\).*traced as.*\(2, 1, 2, 8\)"):
        from_torch(exported)


def test_own_one_layer_form_of_torch_is_back_after_a_trace() -> None:
    own = decompositions.one_layer_lstm
    from_torch(nn.LSTM(6, 8).eval(), (torch.randn(3, 2, 6),))
    assert decompositions.one_layer_lstm is own


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_trace_computes_few_steps_of_a_recurrent_network(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many as there are it learns no more, and they take a minute."""
    linears = []
    own = functional.linear
    monkeypatch.setattr(functional, "linear", lambda *args: (linears.append(args), own(*args))[1])  # one or more a step
    net = getattr(nn, kind)(6, 8, 2, bidirectional=True, batch_first=True).eval()
    x = torch.randn(3, 400, 6)
    with torch.backends.mkldnn.flags(enabled=False):
        known = from_torch(net, (x,))
    assert 0 < len(linears) < 50
    params = {n: torch.from_numpy(v) for n, v in known.params.items()}
    (name,) = set(known.program.inputs) - set(params)
    with torch.no_grad():
        got = run_program(known.program, {**params, name: x})
        want = net(x)
    for (n, y), z in zip(got.items(), (want[0], *(want[1] if kind == "LSTM" else want[1:])), strict=True):
        assert known.program.table[n].shape == tuple(z.shape)
        torch.testing.assert_close(y, z)


@pytest.mark.parametrize("steps", [3, 8])
def test_a_result_requires_gradients_in_a_trace_whatever_its_length(steps: int) -> None:
    """A module that asks is the same program for few steps and for many."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.GRU(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, _ = self.net(x)
            return y.tanh() if y.requires_grad else y.sin()

    assert [n.op for n in from_torch(Asks().eval(), (torch.randn(steps, 2, 6),)).program.nodes][-1] == "tanh"
