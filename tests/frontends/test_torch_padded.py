"""Encoders of torch with padding: a trace has what the module returns, in padded rows too."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.frontends.torch_export import from_torch  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([5, 3, 1])
AT_THE_END = torch.arange(5)[None] >= LENGTHS[:, None]
MASKS = {
    "at the end": AT_THE_END,
    "none": torch.zeros(3, 5, dtype=torch.bool),
    "in front": AT_THE_END.flip(1),
    "numbers": torch.zeros(3, 5).masked_fill(AT_THE_END, float("-inf")),
}


def encoder(norm: bool = False, nested: bool = True, check: bool = True, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    return nn.TransformerEncoder(
        layer, 2, nn.LayerNorm(16) if norm else None, enable_nested_tensor=nested, mask_check=check
    ).eval()


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"nested": False}, {"activation": "gelu"}, {"check": False}], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_padded_rows_are_what_they_are(options: dict[str, Any], mask: str) -> None:
    module, x = encoder(**options), torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = module(x, src_key_padding_mask=MASKS[mask])
        known = from_torch(
            module, (x,), example_kwargs={"src_key_padding_mask": AT_THE_END if mask != "numbers" else MASKS[mask]}
        )
    values = dict(zip(known.inputs, (x.numpy(), MASKS[mask].numpy()), strict=True))
    (made,) = known.program.evaluate({**known.params, **values}).values()
    torch.testing.assert_close(torch.from_numpy(made).float(), wanted, rtol=1e-5, atol=1e-6)
