"""What a trace of a module must not stumble over."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UntraceableError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402

nn = torch.nn


def test_a_parameter_may_have_the_name_that_torch_gives_an_input() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

        def forward(self, A: Any) -> Any:
            return (A @ self.a).relu()

    module, x = Mixed(), torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    imported = fuser.from_torch(module, (x,))
    assert imported.inputs == ("a",)
    got = imported.program.evaluate({"a": x.numpy(), **imported.params})
    torch.testing.assert_close(torch.from_numpy(next(iter(got.values()))).float(), module(x))


@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_transformers_are_not_looked_into(causal: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x, memory = torch.randn(2, 5, 8, generator=drawn), torch.randn(2, 3, 8, generator=drawn)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else torch.randn(5, 5, generator=drawn)
    imported = fuser.from_torch(module, (x, memory, mask))
    values = {n: t.numpy() for n, t in zip(imported.inputs, (x, memory, mask), strict=True)}
    got = imported.program.evaluate({**values, **imported.params})
    torch.testing.assert_close(torch.from_numpy(next(iter(got.values()))).float(), module(x, memory, mask))


def test_a_trace_that_fails_prints_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x - 1

    with pytest.raises(UntraceableError, match="data-dependent"):
        fuser.from_torch(Branch(), (torch.randn(3),))
    assert "def forward" not in capfd.readouterr().err


def test_hooks_of_a_first_call_do_not_stay() -> None:
    """transformers has hooks collect the states of layers, which the first call installs."""

    class Collecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.hooked = False

        def forward(self, x: Any) -> Any:
            if not self.hooked:
                for layer in self.layers:
                    layer.register_forward_hook(lambda _, args, made: made * 2)
                self.hooked = True
            for layer in self.layers:
                x = layer(x)
            return x

    module, x = Collecting(), torch.randn(3, 4)
    known = from_torch(module, (x,))
    assert not module.hooked and not any(layer._forward_hooks for layer in module.layers)
    wanted = module(x)
    torch.testing.assert_close(module(x), wanted)  # they were installed once
    (made,) = known.program.evaluate({**known.params, known.inputs[0]: x.numpy()}).values()
    torch.testing.assert_close(torch.from_numpy(made).float(), wanted)
