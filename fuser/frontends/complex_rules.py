"""Which operators of ATen's are computed on pairs, and how (:mod:`fuser.frontends.complex_numbers`): one entry each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuser.frontends import complex_numbers as on
from fuser.frontends.complex_numbers import Rule
from fuser.frontends.short_times import istft
from fuser.frontends.short_times import stft
from fuser.frontends.torch_call import aten_name

MOVED = (
    "view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "permute", "transpose", "t", "mT", "movedim", "moveaxis", "swapaxes", "swapdims", "flip", "roll", "rot90", "diagonal",
    "diag_embed", "tril", "triu", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "unfold",
    "slice", "select", "narrow", "split", "split_with_sizes", "tensor_split", "chunk", "unbind", "index", "index_select",
    "gather", "take_along_dim", "fft_fftshift", "fft_ifftshift", "sum", "mean", "cumsum",
)  # fmt: skip
"""Operators that move numbers, or add them up."""
JOINED = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
PUT = {"slice_scatter": 1, "select_scatter": 1, "index_put": 2} | dict.fromkeys(
    ("index_copy", "index_add", "scatter", "scatter_add"), 3
)
"""Operators that put numbers among others, and which of their arguments these are."""
PRODUCTS = ("mm", "bmm", "matmul", "mv", "dot", "outer", "linalg_matmul", "kron")
LAYERS = ("linear", "convolution", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
NORMS = ("linalg_vector_norm", "norm", "frobenius_norm")
ITSELF = ("resolve_conj", "resolve_neg", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "positive")
FILLED = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("mul", "multiply"), on.mul), "add": on.add, **dict.fromkeys(("sub", "subtract"), on.sub), "rsub": on.rsub,
    **dict.fromkeys(("neg", "_neg_view"), on.neg), **dict.fromkeys(("div", "divide", "true_divide"), on.div),
    **dict.fromkeys(("conj", "_conj", "_conj_physical", "conj_physical"), on.conj), **dict.fromkeys(ITSELF, on.same),
    **{n: getattr(on, n) for n in ("square", "reciprocal", "angle", "sgn", "exp", "log", "cos", "sin", "cosh", "sinh", "tanh")},
    "abs": on.absolute, "pow": on.power, "addcmul": on.addcmul, "lerp": on.lerp, "vdot": on.vdot, "eq": on.equal,
    "ne": lambda x, y: ~on.equal(x, y), "polar": on.polar, "complex": on.by_parts, "view_as_complex": on.from_last,
    "view_as_real": on.as_last, "real": lambda x: x.real, "imag": lambda x: x.imag, "_to_copy": on.converted,
    "to": on.converted, "dropout": on.dropped, "where": on.chosen, "copy": on.copied, "fill": on.copied,
}  # fmt: skip
"""What operators do, by ATen's name without the overload."""
FORMS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(MOVED, on.linear), **dict.fromkeys(JOINED, on.joined), **{n: partial(on.put, at) for n, at in PUT.items()},
    **dict.fromkeys(PRODUCTS, on.bilinear), **dict.fromkeys(LAYERS, on.with_bias), "einsum": on.einsum,
    **dict.fromkeys(NORMS, on.of_distance), **dict.fromkeys(FILLED, on.like), "masked_fill": on.filled,
    "constant_pad_nd": on.bordered, "pad": on.padded,
}  # fmt: skip
"""The same of operators that are called for the parts: with the operator itself in front."""
SUMS = {"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}
"""Products with a sum, and the product."""
WHOLE: dict[str, Rule] = {"stft": stft, "istft": istft}
"""Operators that are others on complex tensors as they are."""


def rule_of(operator: Any) -> Rule | None:
    """What an operator of ATen's does on pairs; None where there is no rule."""
    import torch

    namespace, name, *_ = str(operator).split(".")
    if namespace != "aten":
        return None
    if str(operator) == "aten.view.dtype":
        return partial(on.reinterpreted, operator)
    if (form := FORMS.get(name)) is not None:
        return partial(form, operator)
    if name in SUMS:
        return partial(on.with_sum, getattr(torch.ops.aten, SUMS[name]).default)
    return WHOLE[name] if takes_whole(operator) else RULES.get(name)


def takes_whole(operator: Any) -> bool:
    """Whether its rule is given complex tensors, not pairs."""
    return aten_name(operator) in WHOLE
