"""Complex arithmetic on pairs of real tensors, in torch's operators: what a program has of complex numbers.

Torch computes with complex numbers in kernels of their own, with which nothing is fused. As pairs they are sums and products of
real numbers, like all others. What has no rule here is torch's to compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    """Both parts in the shape of a sum of the operands; None is zero. Of whole numbers they are floats."""
    import torch

    tensors = [p for x in operands for p in _parts(x) if isinstance(p, torch.Tensor)]
    shape, like = torch.broadcast_shapes(*(x.shape for x in tensors)), tensors[0]
    dtype = next((x.dtype for x in tensors if x.is_floating_point()), torch.get_default_dtype())

    def whole(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return (x if x.is_floating_point() else x.to(dtype)).expand(shape)
        return torch.full(shape, x or 0, dtype=dtype, device=like.device)

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
    (a, b), (c, d) = _parts(x), _parts(_times(y, alpha))
    return _pair(_sum(a, c, sign), _sum(b, d, sign), x, y)


def _times(x: Any, number: Any) -> Any:
    return x if number == 1 else mul(x, number) if isinstance(x, Pair) else x * number


def sub(x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    return add(x, y, alpha=alpha, sign=-1)


def rsub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    return sub(y, x, alpha=alpha)


def neg(x: Pair) -> Pair:
    return Pair(-x.real, -x.imag)


def conj(x: Pair) -> Pair:
    return Pair(x.real, -x.imag)


def div(x: Any, y: Any) -> Any:
    """A quotient. Both sides are first divided by the larger part of the divisor, so that no square of it overflows."""
    import torch

    if isinstance(y, complex):
        return mul(x, 1 / y) if y else NotImplemented
    if not isinstance(y, Pair):
        return Pair(x.real / y, x.imag / y)
    x = x if isinstance(x, Pair) else _pair(x, None, y)
    large = torch.maximum(y.real.abs(), y.imag.abs())
    c, d = y.real / large, y.imag / large
    found, over = mul(x, Pair(c, -d)), (c * c + d * d) * large

    def whole(part: Any, quotient: Any) -> Any:
        """With zero in the divisor infinite, with infinity zero, of what is finite."""
        return torch.where(large == 0, part / large, torch.where(large == math.inf, part * 0, quotient))

    return Pair(whole(x.real, found.real / over), whole(x.imag, found.imag / over))


def reciprocal(x: Pair) -> Any:
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
    product = _times(bilinear(operator, x, y), alpha)
    return product if beta == 0 else add(_times(given, beta), product)  # what is added zero times may be anything


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


def _by_ratio(x: Pair) -> tuple[Any, Any]:
    """The larger part without its sign, and the ratio of the other to it."""
    import torch

    a, b = x.real.abs(), x.imag.abs()
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    return large, torch.where(small == large, 1.0, small / large)  # of zeros, and of infinities, too


def absolute(x: Pair) -> Any:
    """The distance from zero, of which no square overflows."""
    large, ratio = _by_ratio(x)
    return large * (1 + ratio * ratio).sqrt()


def angle(x: Pair) -> Any:
    import torch

    return torch.atan2(x.imag, x.real)


def exp(x: Pair) -> Pair:
    import torch

    grown = x.real.exp()
    return Pair(grown * x.imag.cos(), torch.where(x.imag == 0, x.imag, grown * x.imag.sin()))  # infinity times zero is no number


def log(x: Pair) -> Pair:
    large, ratio = _by_ratio(x)
    return Pair(large.log() + 0.5 * (ratio * ratio).log1p(), angle(x))


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
    if dtype is None:
        return x
    if not dtype.is_complex:
        return (x.real != 0) | (x.imag != 0) if dtype == torch.bool else x.real.to(dtype)
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
        return a.to(into.dtype).expand(shape) if isinstance(a, torch.Tensor) else NotImplemented

    def over(p: Any) -> Any:
        return p.expand(shape) if isinstance(p, torch.Tensor) else torch.full_like(into.real, p or 0)

    return Pair(over(a), over(b))


def dropped(x: Any, p: float, train: bool) -> Any:
    return NotImplemented if train and p else x


# operators that treat both parts alike


def linear(operator: Rule, *args: Any, **named: Any) -> Any:
    """An operator that only moves numbers, or adds them: of real parts, then of imaginary ones."""
    from torch.utils._pytree import tree_map_only

    if named.get("dtype") is not None or str(operator).endswith((".value", ".reduce", ".value_reduce", ".dtype")):
        return NotImplemented
    parts = (lambda x: x.real, lambda x: x.imag)
    real, imag = (operator(*a, **n) for a, n in (tree_map_only(Pair, part, (args, named)) for part in parts))
    return [Pair(r, i) for r, i in zip(real, imag, strict=True)] if isinstance(real, (tuple, list)) else Pair(real, imag)


def joined(operator: Rule, tensors: Any, *args: Any, **named: Any) -> Any:
    """Several side by side, real ones among them."""
    return linear(operator, [_as_pair(x) for x in tensors], *args, **named)


def put(place: int, operator: Rule, *args: Any, **named: Any) -> Any:
    """Numbers, maybe real ones, among others: the argument at a place."""
    import torch

    if len(args) <= place or not isinstance(args[0], Pair) or not isinstance(args[place], (Pair, torch.Tensor)):
        return NotImplemented
    return linear(operator, *args[:place], _as_pair(args[place]), *args[place + 1 :], **named)


def _as_pair(x: Any) -> Pair:
    return x if isinstance(x, Pair) else _pair(x, None, x)


def reinterpreted(operator: Rule, x: Any, dtype: Any) -> Any:
    """The same bytes as numbers of another dtype."""
    if isinstance(x, Pair) and dtype == x.real.dtype:
        return as_last(x).flatten(-2)
    if not isinstance(x, Pair) and dtype.is_complex and dtype.to_real() == x.dtype:
        return from_last(x.unflatten(-1, (-1, 2)))
    return NotImplemented


def filled(operator: Rule, x: Any, mask: Any, value: Any) -> Any:
    """``masked_fill``."""
    c, d = _parts(value)
    return Pair(operator(x.real, mask, 0 if c is None else c), operator(x.imag, mask, 0 if d is None else d))


def chosen(mask: Any, x: Any, y: Any) -> Any:
    """``where``."""
    import torch

    (a, b), (c, d) = _parts(x), _parts(y)
    real, imag = ([torch.zeros(()) if p is None else p for p in both] for both in ((a, c), (b, d)))
    return Pair(torch.where(mask, *real), torch.where(mask, *imag))


def bordered(operator: Rule, x: Pair, pad: Any, value: Any = 0) -> Any:
    """``constant_pad_nd``."""
    c, d = _parts(value)
    return Pair(operator(x.real, pad, c or 0), operator(x.imag, pad, d or 0))


def padded(operator: Rule, x: Pair, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    c, d = _parts(value or 0)
    return Pair(*(operator(p, pad, mode, v or 0 if mode == "constant" else None) for p, v in ((x.real, c), (x.imag, d))))
