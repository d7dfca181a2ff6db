"""What ``torch.nn.TransformerEncoder`` leaves in padded rows: zeros, where its layers take nested tensors, as they do without
gradients. A trace has no nested tensors, and torch's own has other numbers there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def zeros_in_padding() -> Iterator[None]:
    """Encoders leave zeros in padded rows of what is traced meanwhile, where they do so when they are called."""
    import torch
    from torch import nn

    forward = nn.TransformerEncoder.forward

    def padded(self: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
        if mask is not None or src_key_padding_mask is None or not _takes_nested(self, src):
            return forward(self, src, mask, src_key_padding_mask, is_causal)
        own = src_key_padding_mask
        kept = ~own if own.dtype == torch.bool else own == 0
        shown = kept | (kept[:, 1:] & ~kept[:, :-1]).any()  # all, where padding is not at the end of each row alone
        if not getattr(self, "mask_check", True):  # then as many rows as are not padded, from the first on
            shown = torch.arange(kept.shape[1], device=own.device) < kept.sum(1, keepdim=True)
            own = ~shown
        with patch.dict(self._modules, {"norm": None}), patch.dict(vars(self), {"mask_check": True}):
            made = forward(self, src, mask, own, is_causal)
        made = torch.where(shown.unsqueeze(-1), made, 0.0)
        return made if self.norm is None else self.norm(made)

    with patch.object(nn.TransformerEncoder, "forward", padded):
        yield


def _takes_nested(encoder: Any, src: Any) -> bool:
    """Whether the layers would be given a nested tensor, were all padding at the end."""
    import torch

    able = torch.backends.mha.get_fastpath_enabled() and not torch.is_autocast_enabled()
    able = able and getattr(encoder, "use_nested_tensor", False)
    return bool(able and src.dim() == 3 and not encoder.layers[0].training)
