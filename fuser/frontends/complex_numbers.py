"""Complex arithmetic on pairs of real tensors, in torch's operators: what a program has of complex numbers.

Torch computes with complex numbers in kernels of their own, with which nothing is fused. As pairs they are sums and products of
real numbers, like all others. What has no rule here is torch's to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

EXPONENTS = range(1, 9)
"""Powers that are products."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Real and imaginary part of a complex tensor."""

    real: Any
    imag: Any


Rule = Callable[..., Any]
"""An operator of torch's, called as that is, with pairs for complex tensors; ``NotImplemented`` for a call that it does not
know."""


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part of a tensor or a number; None for one that is zero by its type."""
    if isinstance(x, complex):
        return (x.real or None, x.imag) if x.imag else (x.real, None)
    return (x.real, x.imag) if isinstance(x, Pair) else (x, None)


def _pair(real: Any, imag: Any, *operands: Any) -> Pair:
    """Both parts in the shape of a sum of the operands; None is zero."""
    import torch

    tensors = [p for x in operands for p in _parts(x) if isinstance(p, torch.Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))

    def whole(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x if x.shape == shape else x.expand(shape)
        return torch.full(shape, x or 0, dtype=tensors[0].dtype, device=tensors[0].device)

    return Pair(whole(real), whole(imag))


def _sum(a: Any, b: Any, sign: int = 1) -> Any:
    if a is None or b is None:
        return a if b is None else b if sign == 1 else -b
    return a + b if sign == 1 else a - b


def _product(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


# sums and products


def mul(x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _pair(_sum(_product(a, c), _product(b, d), -1), _sum(_product(a, d), _product(b, c)), x, y)


def add(x: Any, y: Any, *, alpha: Any = 1, sign: int = 1) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y if alpha == 1 else mul(y, alpha))
    return _pair(_sum(a, c, sign), _sum(b, d, sign), x, y)


def sub(x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    return add(x, y, alpha=alpha, sign=-1)


def rsub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return sub(y, x, alpha=alpha)


def neg(x: Pair) -> Pair:
    return Pair(-x.real, -x.imag)


def conj(x: Pair) -> Pair:
    return Pair(x.real, -x.imag)


def div(x: Any, y: Any) -> Pair:
    """A quotient. Both sides are first divided by the larger part of the divisor, so that no square of it overflows."""
    import torch

    if isinstance(y, complex):
        return mul(x, 1 / y)
    if not isinstance(y, Pair):
        return Pair(x.real / y, x.imag / y)
    large = torch.maximum(y.real.abs(), y.imag.abs())
    c, d = y.real / large, y.imag / large
    found, over = mul(x, Pair(c, -d)), (c * c + d * d) * large
    return Pair(found.real / over, found.imag / over)


def reciprocal(x: Pair) -> Pair:
    return div(1.0, x)


def power(x: Any, exponent: Any) -> Any:
    if not isinstance(x, Pair) or not isinstance(exponent, (int, float)) or exponent not in EXPONENTS:
        return NotImplemented
    found = x
    for bit in bin(int(exponent))[3:]:  # squares, and one more where the bit is set
        found = mul(found, found)
        found = mul(found, x) if bit == "1" else found
    return found


def square(x: Pair) -> Pair:
    return mul(x, x)


def bilinear(operator: Rule, x: Any, y: Any, *args: Any, **named: Any) -> Any:
    """An operator that is linear in both operands."""
    (a, b), (c, d) = _parts(x), _parts(y)

    def of(one: Any, other: Any) -> Any:
        return None if one is None or other is None else operator(one, other, *args, **named)

    return Pair(_sum(of(a, c), of(b, d), -1), _sum(of(a, d), of(b, c)))


def with_sum(operator: Rule, given: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Pair:
    """A product with what it is added to (``addmm``)."""
    product = bilinear(operator, x, y)
    return add(given if beta == 1 else mul(given, beta), product if alpha == 1 else mul(product, alpha))


def einsum(operator: Rule, equation: str, tensors: Any, **named: Any) -> Any:
    if len(tensors) != 2:
        return linear(operator, equation, tensors) if len(tensors) == 1 else NotImplemented
    return bilinear(lambda x, y: operator(equation, [x, y], **named), *tensors)


def with_bias(operator: Rule, x: Any, weight: Any, bias: Any = None, *args: Any, **named: Any) -> Pair:
    """A linear layer, or a convolution, whose bias has channels in front of places."""
    found = bilinear(lambda x, w: operator(x, w, None, *args, **named), x, weight)
    places = 0 if "linear" in str(operator) else _parts(weight)[0].dim() - 2
    c, d = [None if p is None else p.reshape(-1, *[1] * places) for p in _parts(bias)]
    return Pair(_sum(found.real, c), _sum(found.imag, d))


# functions


def absolute(x: Pair) -> Any:
    """The distance from zero: the larger part, by the ratio of the other to it, so that no square overflows."""
    import torch

    a, b = x.real.abs(), x.imag.abs()
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = torch.where(small == large, 1.0, small / large)  # of zeros, and of infinities, too
    return large * torch.sqrt(1 + ratio * ratio)


def angle(x: Pair) -> Any:
    import torch

    return torch.atan2(x.imag, x.real)


def exp(x: Pair) -> Pair:
    return polar(x.real.exp(), x.imag)


def log(x: Pair) -> Pair:
    return Pair(absolute(x).log(), angle(x))


def cos(x: Pair) -> Pair:
    return Pair(x.real.cos() * x.imag.cosh(), -(x.real.sin() * x.imag.sinh()))


def sin(x: Pair) -> Pair:
    return Pair(x.real.sin() * x.imag.cosh(), x.real.cos() * x.imag.sinh())


def cosh(x: Pair) -> Pair:
    return Pair(x.real.cosh() * x.imag.cos(), x.real.sinh() * x.imag.sin())


def sinh(x: Pair) -> Pair:
    return Pair(x.real.sinh() * x.imag.cos(), x.real.cosh() * x.imag.sin())


def tanh(x: Pair) -> Pair:
    """By the tangents of the parts: nothing cancels, and nothing overflows (Kahan, 1987)."""
    t, u, falls = x.real.tanh(), x.imag.tan(), 1 / x.real.cosh() ** 2
    over = 1 + (t * u) ** 2
    return Pair(t * (1 + u * u) / over, u * falls / over)


def sgn(x: Pair) -> Pair:
    import torch

    distance = absolute(x)
    over = torch.where(distance == 0, 1.0, distance)
    return Pair(x.real / over, x.imag / over)


def of_distance(operator: Rule, x: Pair, *args: Any, dtype: Any = None, **named: Any) -> Any:
    """A norm."""
    return operator(absolute(x), *args, **named) if dtype is None else NotImplemented


def addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Pair:
    return add(x, mul(y, z) if isinstance(y, Pair) or isinstance(z, Pair) else y * z, alpha=value)


def lerp(x: Any, y: Any, weight: Any) -> Any:
    return NotImplemented if isinstance(weight, Pair) else add(x, mul(sub(y, x), weight))


def equal(x: Any, y: Any) -> Any:
    (a, b), (c, d) = ([0 if p is None else p for p in _parts(v)] for v in (x, y))
    return (a == c) & (b == d)


def vdot(x: Pair, y: Pair) -> Any:
    import torch

    return bilinear(torch.dot, conj(x), y)


# from real numbers, and to them


def polar(distance: Any, angle: Any) -> Pair:
    return Pair(distance * angle.cos(), distance * angle.sin())


def by_parts(real: Any, imag: Any) -> Pair:
    return _pair(real, imag, real, imag)


def from_last(x: Any) -> Pair:
    return Pair(x[..., 0], x[..., 1])


def as_last(x: Pair) -> Any:
    import torch

    return torch.stack((x.real, x.imag), -1)


def converted(x: Any, *args: Any, dtype: Any = None, **_: Any) -> Any:
    import torch

    if any(isinstance(a, (Pair, torch.Tensor)) for a in args):
        return NotImplemented
    dtype = next((a for a in args if isinstance(a, torch.dtype)), dtype)
    if dtype is None or not dtype.is_complex:
        return x if dtype is None else x.real.to(dtype)
    real = dtype.to_real()
    return Pair(x.real.to(real), x.imag.to(real)) if isinstance(x, Pair) else _pair(x.to(real), None, x.to(real))


def like(operator: Rule, x: Any, *args: Any, dtype: Any = None, **named: Any) -> Any:
    """A tensor of one number in the shape of another, or with its dtype alone."""
    import torch

    if any(isinstance(a, complex) for a in (*args, *named.values())):
        return NotImplemented
    real = operator(_parts(x)[0], *args, **named, **({} if dtype is None else {"dtype": dtype.to_real()}))
    return real if dtype is not None and not dtype.is_complex else Pair(real, torch.zeros_like(real))


def same(x: Any, *_: Any, **__: Any) -> Any:
    return x


def copied(into: Any, x: Any, *_: Any) -> Any:
    """What is written over a tensor."""
    import torch

    shape, (a, b) = _parts(into)[0].shape, _parts(x)
    if not isinstance(into, Pair):
        return a.expand(shape)
    return Pair(*(torch.zeros_like(into.real) if p is None else p.expand(shape) for p in (a, b)))


def dropped(x: Any, p: float, train: bool) -> Any:
    return NotImplemented if train and p else x


# operators that treat both parts alike


def linear(operator: Rule, *args: Any, **named: Any) -> Any:
    """An operator that only moves numbers, or adds them: of real parts, then of imaginary ones. Real tensors and numbers among
    what it moves have no imaginary part."""
    from torch.utils._pytree import tree_map_only

    if named.get("dtype") is not None or str(operator).endswith(".value"):
        return NotImplemented
    real, imag = (operator(*a, **n) for a, n in (tree_map_only(Pair, lambda x: x.real, (args, named)), _imaginary(args, named)))
    return [Pair(r, i) for r, i in zip(real, imag, strict=True)] if isinstance(real, (tuple, list)) else Pair(real, imag)


def _imaginary(args: Any, named: Any) -> Any:
    """The arguments with imaginary parts; of real numbers that are joined with others, or put among them, zeros."""
    import torch
    from torch.utils._pytree import tree_map

    def part(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            return torch.zeros_like(x)
        return x.imag if isinstance(x, Pair) else x

    return tree_map(part, (args, named))


def filled(operator: Rule, x: Any, mask: Any, value: Any) -> Any:
    """``masked_fill``."""
    c, d = _parts(value)
    return Pair(operator(x.real, mask, 0 if c is None else c), operator(x.imag, mask, 0 if d is None else d))


def chosen(operator: Rule, mask: Any, x: Any, y: Any) -> Any:
    """``where``."""
    import torch

    (a, b), (c, d) = _parts(x), _parts(y)
    real, imag = ([torch.zeros(()) if p is None else p for p in both] for both in ((a, c), (b, d)))
    return Pair(torch.where(mask, *real), torch.where(mask, *imag))


def padded(operator: Rule, x: Pair, pad: Any, *mode: Any, value: Any = None) -> Any:
    c, d = _parts(0 if value is None else value)
    plain = value is None
    return Pair(*(operator(p, pad, *mode, **({} if plain else {"value": v or 0})) for p, v in ((x.real, c), (x.imag, d))))


MOVED = (
    "view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "permute", "transpose", "t", "mT", "movedim", "moveaxis", "swapaxes", "swapdims", "flip", "roll", "rot90", "diagonal",
    "diag_embed", "tril", "triu", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "unfold",
    "slice", "select", "narrow", "split", "split_with_sizes", "tensor_split", "chunk", "unbind", "cat", "concat", "concatenate",
    "stack", "hstack", "vstack", "index", "index_select", "gather", "take_along_dim", "slice_scatter", "select_scatter",
    "index_put", "index_copy", "index_add", "scatter", "scatter_add", "fft_fftshift", "fft_ifftshift", "sum", "mean", "cumsum",
    "diff",
)  # fmt: skip
"""Operators that move numbers, or add them up."""
PRODUCTS = ("mm", "bmm", "matmul", "mv", "dot", "outer", "linalg_matmul", "kron")
LAYERS = ("linear", "convolution", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
NORMS = ("linalg_vector_norm", "norm", "frobenius_norm")
ITSELF = ("resolve_conj", "resolve_neg", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "positive")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("mul", "multiply"), mul), "add": add, **dict.fromkeys(("sub", "subtract"), sub), "rsub": rsub, "neg": neg,
    **dict.fromkeys(("div", "divide", "true_divide"), div), "reciprocal": reciprocal, "pow": power, "square": square,
    **dict.fromkeys(("conj", "_conj", "_conj_physical", "conj_physical"), conj), **dict.fromkeys(ITSELF, same),
    "abs": absolute, "angle": angle, "sgn": sgn, "exp": exp, "log": log, "cos": cos, "sin": sin, "cosh": cosh, "sinh": sinh,
    "tanh": tanh, "addcmul": addcmul, "lerp": lerp, "eq": equal, "ne": lambda x, y: ~equal(x, y), "vdot": vdot,
    "polar": polar, "complex": by_parts, "view_as_complex": from_last, "view_as_real": as_last, "_to_copy": converted,
    "to": converted, "real": lambda x: x.real, "imag": lambda x: x.imag, "dropout": dropped, "copy": copied,
}  # fmt: skip
"""What operators do, by ATen's name without the overload."""
FORMS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(MOVED, linear), **dict.fromkeys(PRODUCTS, bilinear), **dict.fromkeys(LAYERS, with_bias), "einsum": einsum,
    **dict.fromkeys(NORMS, of_distance), "masked_fill": filled, "where": chosen, "constant_pad_nd": padded, "pad": padded,
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), like),
}  # fmt: skip
"""The same of operators that are called for the parts: with the operator itself in front."""
SUMS = {"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}
"""Products with a sum, and the product."""


def rule_of(operator: Any) -> Rule | None:
    """What an operator of ATen's does on pairs; None where there is no rule."""
    import torch

    namespace, name, *_ = str(operator).split(".")
    if namespace != "aten":
        return None
    if (form := FORMS.get(name)) is not None:
        return partial(form, operator)
    if name in SUMS:
        return partial(with_sum, getattr(torch.ops.aten, SUMS[name]).default)
    return RULES.get(name)
