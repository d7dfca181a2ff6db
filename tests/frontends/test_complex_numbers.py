"""Complex operators as operators on pairs of real tensors, against torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.runtime.torch_program import run_program  # noqa: E402


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], weight: Any = None) -> None:
        super().__init__()
        self.function = function
        self.weight = None if weight is None else torch.nn.Parameter(weight)

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs) if self.weight is None else self.function(*xs, self.weight)


def computed(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, list[str]]:
    """What the program of a module makes of its inputs, and the operators of it that are torch's."""
    known = from_torch(module.eval(), inputs)
    given = [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in inputs]
    held = {n: torch.from_numpy(x).to(getattr(torch, known.program[n].dtype)) for n, x in known.params.items()}
    found = run_program(known.program, {**dict(zip(known.inputs, given, strict=True)), **held})
    assert known.called is not None
    results = [torch.view_as_complex(found[r.name]) if r.complex else found[r.name] for r in known.called.results]
    theirs = [str(n.attr["callee"]) for n in known.program.nodes if n.op == "opaque"]
    return (results[0] if known.called.returns.is_leaf() else tuple(results)), theirs


def agrees(function: Callable[..., Any], *inputs: Any, weight: Any = None) -> list[str]:
    module = Of(function, weight)
    found, theirs = computed(module, inputs)
    with torch.no_grad():
        want = module(*inputs)
    torch.testing.assert_close(found, want, rtol=2e-5, atol=2e-5, equal_nan=True)
    return theirs


def z(*shape: int, dtype: Any = torch.complex64) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def x(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape) + 1))


def written(a: Any, b: Any) -> Any:
    y = torch.zeros(3, 4, dtype=torch.complex64)
    y[:2, :2] = a[:2, :2] * 2
    y[1:, 2:] += b
    y.real.mul_(3)
    return y, a.clone().mul_(1j)


OURS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a product": (lambda a, b: a * b, (z(3, 4), z(4))),
    "with real numbers": (lambda a, b: a * b + b - 2 * a, (z(3, 4), x(2, 1, 4))),
    "with complex numbers": (lambda a: (a * 1j + (2 - 1j)) * 3 - 0.5j, (z(3, 4),)),
    "of whole numbers": (lambda a, b: a * b + b, (z(3, 4), torch.arange(4))),
    "from real ones": (lambda a: torch.exp(1j * a) * (0.5 + 0j), (x(3, 4),)),
    "a quotient": (lambda a, b: (a / b, 1 / b, b / 2.0, a / (1 + 2j)), (z(3, 4), z(3, 4))),
    "differences": (lambda a, b: (torch.sub(a, b, alpha=2), torch.rsub(a, b), 1 - a, a - 1j), (z(3, 4), z(4))),
    "powers": (lambda a: (a**2, a**3, a.square(), a**7), (z(3, 4),)),
    "conjugates": (lambda a: (a.conj() * a, a.mT.conj().real, a.conj().imag, a.conj_physical()), (z(3, 4),)),
    "parts": (lambda a: (a.real, a.imag * 2, torch.view_as_real(a), a.abs(), a.angle(), a.sgn()), (z(3, 4),)),
    "of parts": (lambda a, b: (torch.complex(a, b), torch.polar(a.abs(), b)), (x(3, 4), x(4))),
    "a rotary embedding": (
        lambda a, f: torch.view_as_real(torch.view_as_complex(a.float().reshape(2, 3, 4, 2)) * f).flatten(2),
        (x(2, 3, 8), torch.polar(torch.ones(3, 4), x(3, 4))),
    ),
    "functions": (lambda a: (a.exp(), a.log(), a.sin(), a.cos(), a.sinh(), a.cosh(), a.tanh()), (z(3, 4),)),
    "moved": (
        lambda a: (a.mT.reshape(2, 6)[:, 1:4], a.flip(0).roll(1, 1), a[..., None].expand(3, 4, 2), *a.unbind(1)),
        (z(3, 4),),
    ),
    "joined": (lambda a, b: (torch.cat((a, b)), torch.stack((a, b, a.real + 0j), 1)), (z(3, 4), z(3, 4))),
    "with zeros around": (lambda a: (torch.nn.functional.pad(a, (1, 2)), a.new_zeros(3), torch.ones_like(a)), (z(3, 4),)),
    "gathered": (lambda a, i: (a[i], a.gather(0, i[:, None].expand(2, 4))), (z(3, 4), torch.tensor([2, 0]))),
    "chosen": (lambda a, b: (torch.where(b > 0, a, 0), a.masked_fill(b > 0, 1j), torch.where(b > 0, b, a)), (z(3, 4), x(3, 4))),
    "sums": (lambda a: (a.sum(), a.mean(1), a.cumsum(0), torch.linalg.vector_norm(a, dim=1), a.norm()), (z(3, 4),)),
    "products of matrices": (lambda a, b: (a @ b, a @ b.real.to(a.dtype), torch.einsum("ij,jk->ki", a, b)), (z(3, 4), z(4, 5))),
    "with sums": (
        lambda c, a, b: (torch.addmm(c, a, b, beta=2, alpha=1j), torch.addcmul(c, a[:, :1], b[:1])),
        (z(5), z(3, 4), z(4, 5)),
    ),
    "dots": (lambda a, b: (torch.dot(a, b), torch.vdot(a, b), torch.outer(a, b), a == b, a != b), (z(6), z(6).clone())),
    "a layer": (torch.nn.functional.linear, (z(3, 4), z(5, 4), z(5))),
    "a convolution": (torch.nn.functional.conv1d, (z(2, 3, 8), z(5, 3, 3), z(5))),
    "a convolution of images": (lambda a, w: torch.nn.functional.conv2d(a, w, padding=1), (z(2, 3, 6, 6), z(4, 3, 3, 3))),
    "other widths": (lambda a, b: (a.to(torch.complex128) * b, a.to(torch.complex128)), (z(3, 4), x(4, dtype=torch.float64))),
    "whole numbers among them": (
        lambda a, i: (i + 0.5j, torch.cat((a, i)), torch.stack((i, a)), a.select_scatter(i[0], 1, 0), a.diff(prepend=i), i * a),
        (z(3, 3), torch.arange(9).reshape(3, 3)),
    ),
    "with other borders": (
        lambda a: (torch.nn.functional.pad(a * 2, (1, 1), value=1.5), torch.constant_pad_nd(a, [1, 1], 1j)),
        (z(3, 4),),
    ),
    "as other numbers": (
        lambda a, b: ((a * 2).view(torch.float32) * 3, (b + 1).view(torch.complex64), a.to(torch.bool)),
        (z(3, 4), x(3, 4)),
    ),
    "numbers with factors": (lambda a: (torch.sub(a, 2, alpha=3), torch.add(a, 1j, alpha=2)), (z(3, 4),)),
    "addends that do not count": (lambda c, a: torch.addmm(c * math.nan, a, a.mT, beta=0), (z(3, 3), z(3, 4))),
    "written to": (written, (z(3, 4), x(2, 2))),
}
"""Calls of which nothing is left to torch."""


@pytest.mark.parametrize("name", OURS)
def test_complex_operators_are_sums_and_products_of_real_numbers(name: str) -> None:
    function, inputs = OURS[name]
    assert agrees(function, *inputs) == []


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_are_torchs_and_what_norms_them_is_ours(norm: str) -> None:
    """Each is one call of torch's without a norm; numbers around them are computed with the rest."""

    def function(a: Any, b: Any) -> Any:
        spectrum = torch.fft.rfft2(a, norm=norm) * b
        return torch.fft.irfft2(spectrum, s=(4, 7), norm=norm), torch.fft.fftshift(torch.fft.ifft(b, dim=0, norm=norm)).abs()

    theirs = agrees(function, x(2, 4, 6), z(4, 4))
    assert sorted(theirs) == [f"aten._fft_{kind}.default" for kind in ("c2c", "c2r", "r2c")]


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
def test_numbers_that_are_written_over_real_ones_become_such() -> None:
    agrees(lambda a, b: ((b * 3).int().copy_(a * 3) // 2, b.clone().copy_(a.to(torch.complex128))), z(3, 4), x(3, 4))


def test_what_has_no_rule_is_torchs_on_views_of_both_parts() -> None:
    theirs = agrees(lambda a: (torch.linalg.inv(a), a.sqrt(), a.prod(0), torch.linalg.det(a @ a.mH)), z(3, 3))
    assert len(theirs) >= 4


def test_distances_and_quotients_of_large_and_small_numbers() -> None:
    """No square of a part overflows, and none is lost."""
    inf = math.inf
    large = torch.complex(torch.tensor([3e30, 1e-30, 0, inf, -inf]), torch.tensor([4e30, -1e-30, 0, 1, inf]))
    assert agrees(lambda a: a.abs(), large) == []
    assert agrees(lambda a: (a / (a * 2), a.log(), 1 / (1 / a)), large[:2]) == []
    assert agrees(lambda a: (1 / a, (3 + 0j) / a), large[3:4]) == []
    assert agrees(lambda a: (a + 100).exp(), large[2:3]) == []


def test_parameters_and_constants_may_be_complex() -> None:
    function: Callable[..., Any] = lambda a, w: torch.einsum("bi,oi->bo", torch.fft.rfft(a), w * 1j) + torch.tensor(2j)  # noqa: E731
    assert agrees(function, x(3, 6), weight=z(5, 4)) == ["aten._fft_r2c.default"]


def test_several_results_of_a_parameter_alone_are_constants() -> None:
    def function(a: Any, w: Any) -> Any:
        values, vectors = torch.linalg.eig(w)
        return a * values, (vectors * values) @ a

    assert agrees(function, z(3, 3), weight=x(3, 3)) == []


def test_operators_of_others_keep_their_names() -> None:
    """A rule is for ATen's operator of a name alone."""
    from fuser.frontends.complex_rules import rule_of

    assert rule_of(torch.ops.aten.mul.Tensor) is not None
    assert rule_of(torch.ops.prims.mul.default) is None


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a * b,
    lambda a, b: a + b.conj(),
    lambda a, b: a - b * 0.5j,
    lambda a, b: a @ b / 4,
    lambda a, b: a.mT,
    lambda a, b: torch.where(a.real > b.imag, a, b),
    lambda a, b: a * b.abs(),
    lambda a, b: (a / (2 + b.abs())).exp(),
    lambda a, b: torch.cat((a[1:], b[:1])),
    lambda a, b: a * torch.polar(torch.ones_like(b.real), b.real),
    lambda a, b: torch.fft.fft(a, norm="ortho"),
    lambda a, b: a.real + 1j * b.imag,
]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(OPERATORS) - 1), min_size=1, max_size=6), st.sampled_from([torch.complex64, torch.complex128]))
def test_any_chain_of_them(chain: list[int], dtype: Any) -> None:
    def function(a: Any, b: Any) -> Any:
        for i in chain:
            a, b = OPERATORS[i](a, b), a
        return a, b.real

    agrees(function, z(4, 4, dtype=dtype) / 2, z(4, 4, dtype=dtype).mT / 3)
