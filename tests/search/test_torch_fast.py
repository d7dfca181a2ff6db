"""Transformer layers of torch behind ``torch.compile`` without gradients: what its fast path would compute has kernels."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from search.torch_backend import Door  # noqa: E402

nn = torch.nn
CAUSAL = torch.ones(5, 5).triu(1).bool()
PADDED = torch.arange(5)[None] >= torch.tensor([5, 3])[:, None]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    ("options", "masks"),
    [
        ({}, {}),
        ({"norm_first": True, "activation": "gelu", "layer_norm_eps": 0.1}, {"src_mask": CAUSAL}),
        pytest.param({}, {"src_key_padding_mask": PADDED}, marks=pytest.mark.slow),
        pytest.param({}, {"src_mask": CAUSAL, "src_key_padding_mask": PADDED}, marks=pytest.mark.slow),
        pytest.param(  # torch's fast path hides what is not 0
            {}, {"src_mask": torch.randn(5, 5, generator=torch.Generator().manual_seed(0))}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_layer_of_the_fast_path_has_kernels(options: dict[str, Any], masks: dict[str, Any]) -> None:
    doors: list[Any] = []

    def backend(graph: Any, inputs: Any, **more: Any) -> Any:
        doors.append(fuser.torch_backend(graph, inputs, **more))
        return doors[-1]

    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        got = torch.compile(module, backend=backend, options={"device": "cpu"})(x, **masks)
    torch.testing.assert_close(got, module(x, **masks).detach(), rtol=1e-3, atol=1e-5)
    assert all(p.made for door in doors if isinstance(door, Door) for made in door.made.values() for p in made.pieces)
    assert any(made.pieces for door in doors for made in door.made.values())
