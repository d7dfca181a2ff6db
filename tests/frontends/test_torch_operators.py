"""Modules of PyTorch's operators, imported: the program computes what the module does, and little is left to torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fuser
from fuser.errors import UnsupportedError
from fuser.frontends.torch_export import Imported
from fuser.ir.composites import expand
from fuser.ir.ops import OPS
from fuser.runtime.torch_program import run_program
from tests.functions import Fn


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


X = (rand(4, 6),)
PLUS = (rand(4, 6).abs() + 0.1,)
TWO = (rand(4, 6), rand(6))
CUBE = (rand(2, 6, 5),)
IMAGE = (rand(2, 6, 7, 5),)

INF = float("inf")
PLACES = torch.tensor([[0, 2, 1], [5, 3, 4]])
ROWS = (rand(4, 6), rand(6, 4).T)
AB = (rand(3, 4), rand(5, 4))

FUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    **{f.__name__: (f, X) for f in (torch.abs, torch.sin, torch.cos, torch.sign, torch.floor, torch.ceil, torch.round,
        torch.expm1, torch.trunc, torch.sinh, torch.cosh, torch.tan, torch.exp2,
        functional.relu6, functional.hardtanh, functional.hardswish,
        functional.hardsigmoid, functional.leaky_relu, functional.elu, functional.selu, functional.celu, functional.mish,
        functional.softplus, functional.softsign, functional.logsigmoid)},
    **{f.__name__: (f, PLUS) for f in (torch.log, torch.log2, torch.log10, torch.log1p, torch.reciprocal, torch.sqrt)},
    "clamp by tensors": (lambda x, y: x.clamp(y, y.abs()) + x.clamp(max=y), TWO),
    "pooling to one": (nn.AdaptiveAvgPool2d(1), IMAGE),
    "pooling by one window": (
        lambda x: functional.avg_pool2d(x, (7, 5)) + functional.max_pool2d(x, (7, 6), 3, ceil_mode=True), IMAGE),
    "pooling by a window beyond the image": (nn.AvgPool2d(2560, ceil_mode=True), IMAGE),
    **{f.__name__: (f, TWO) for f in (torch.minimum, torch.fmod, torch.remainder)},
    "clamp": (lambda x: x.clamp(-0.5, 0.7).clamp(min=-0.2) + x.clamp_max(0.1) + x.clamp_min(0.3), X),
    "triangles": (lambda x: x.triu(1) + x.tril(-1) * 2, CUBE),
    "pow": (lambda x: x**3.7 + x**-2 + x**1.5, PLUS),
    "pow of any sign": (lambda x: x**3 + x**5 - x**6 + x**-7 + x**-2, X),
    "elu": (lambda x: functional.elu(x, 0.3), X),
    "softplus": (lambda x: functional.softplus(x, 3.0), X),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.3), X),
    "gelu tanh": (lambda x: functional.gelu(x, approximate="tanh"), X),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor") + torch.div(x, 0.3, rounding_mode="trunc"), TWO),
    "prelu": (nn.PReLU(6, dtype=torch.float64), IMAGE),
    "glu": (lambda x: functional.glu(x, 1), X),
    "comparisons": (lambda x, y: torch.where((x > y) & ~(y <= 0) | (x.abs() < 0.1), x, y), TWO),
    "numbers beside scalars": (lambda x: ((x.sum() > 0.5), x.sum().nan_to_num(), x[0, 0].clamp_min(0.1) ** 2.3 - INF), X),
    "parts without elements": (lambda x: (torch.cat([x[:, :6].exp(), x[:, 6:] * 2], 1), torch.cat(x.split([0, 4])[::-1]) * 3,
                                          torch.cat([x.new_empty(0, 6), x + 1]), x[:, :0] @ x.new_empty(0, 6) + x), X),
    "comparison with a number": (lambda x: torch.where(x > 0.5, x, torch.where(x != 0, -x, 2.0)), X),
    "masked_fill of a computed mask": (lambda x, y: x.masked_fill(x >= y, 0.0), TWO),
    "sums with a factor": (lambda x, y: torch.add(x, y, alpha=0) * torch.sub(x, 3, alpha=0) - torch.rsub(x, y, alpha=-0.5)
                           + torch.add(x, 2, alpha=3), TWO),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5) + torch.lerp(x, y, 0.25), TWO),
    "lerp from the nearer end": (lambda x, y: torch.lerp(x + 1e20, y, 1.0) + torch.lerp(y - INF, x, 0.5).clamp(-3, 3)
                                 + torch.lerp(x, y, x.abs().round()), TWO),
    "min": (lambda x: x.amin(1) + x.min(0).values.sum() + x.min() + x.max(1).values.sum(), X),
    "var": (lambda x: x.var(1) * x.std((0, 2)).sum() + x.var(correction=0) + x.std(0, unbiased=False).sum(0), CUBE),
    "logsumexp": (lambda x: x.logsumexp((1, 2)) + x.logsumexp(1, keepdim=True).sum(), CUBE),
    "log_softmax": (lambda x: functional.log_softmax(x, 1), CUBE),
    "normalize": (lambda x: functional.normalize(x, dim=-1) + x.norm(dim=1, keepdim=True), CUBE),
    "group_norm": (nn.GroupNorm(3, 6, dtype=torch.float64), IMAGE),
    "batch_norm": (nn.BatchNorm2d(6, dtype=torch.float64).eval(), IMAGE),
    "instance_norm": (nn.InstanceNorm2d(6, affine=True, dtype=torch.float64).eval(), IMAGE),
    "dropout": (nn.Sequential(nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.ReLU()).eval(), IMAGE),
    "addmm": (lambda x, y: torch.addmm(y, x, x.T @ x, beta=0.5, alpha=2), TWO),
    "vectors": (lambda x, y: torch.outer(y, y) + torch.dot(y, y) + torch.mv(x, y).sum(), TWO),
    "einsum": (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), (rand(2, 3, 4, 5), rand(2, 3, 6, 5))),
    "einsum of three": (lambda x, y, z: torch.einsum("ij,kj,k->i", x, y, z), (rand(3, 4), rand(5, 4), rand(5))),
    "einsum of three, least first": (lambda x, y, z: torch.einsum("bxi,byj,ijk->bxyk", x, y, z),
                                     (rand(2, 6, 3), rand(2, 5, 4), rand(3, 4, 2))),
    "einsum as it comes": (lambda x, y: torch.einsum("ab,cb", x, y) + torch.einsum("ab,cb->ca", x, y).T, AB),
    "einsum of one element beside many": (lambda x, y: torch.einsum("bij,bjk->ibk", x, y[:1]) + torch.einsum("bij,bkj->ibk", x, y)
                                          + torch.einsum("bij,bjk->ibk", x[:, :, :1], y), (rand(2, 3, 4), rand(2, 4, 4))),
    "einsum that sums": (lambda x, y: torch.einsum("abc,dc->ba", x, y) + torch.einsum("abc->ba", x), (rand(3, 4, 5), rand(2, 5))),
    "einsum of elements": (lambda x, y: torch.einsum("ij,j->ji", x, y), TWO),
    "roll": (lambda x: x.roll((1, -2), (0, 2)), CUBE),
    **{f.__name__: (f, X) for f in (functional.hardshrink, functional.softshrink, functional.tanhshrink, torch.frac,
        torch.deg2rad, torch.nan_to_num, torch.logit, torch.square, torch.positive)},
    "xlogy": (torch.xlogy, TWO),
    **{f.__name__: (f, ROWS) for f in (functional.pairwise_distance, functional.cosine_similarity, functional.mse_loss,
        functional.huber_loss, functional.smooth_l1_loss)},
    "threshold": (lambda x: functional.threshold(x, 0.1, 0.5), X),
    "movements": (lambda x: x.movedim(0, 2).swapaxes(0, 1) , CUBE),
    "all dimensions the other way around": (lambda x: torch.ops.aten.numpy_T(x) * 2, (rand(3, 1, 3),)),
    "arcs": (lambda x: torch.atan(x) + torch.asinh(x) + torch.acosh(x.abs() + 1) + torch.asin(x.tanh()), X),
    "steps": (lambda x: x[:, ::3, ::3] + x[:, 1::3, 1::2] + x[:, 2:6:2, 1:4:2], CUBE),
    "isfinite": (lambda x: torch.where((x / 0.0).isfinite() | x.isfinite(), x, 0.0) + torch.logaddexp(x, -x), X),
    "acos": (lambda x: torch.acos(x.tanh()), X),
    "atanh": (lambda x: torch.atanh(x.tanh()), X),
    "atan2": (torch.atan2, (torch.tensor([0.0, -0.0, 0.0, -0.0, 2.0, -2.0, 0.0, -0.0, INF, 1.0, -1.0]),
                            torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -0.0, 0.0, -0.0, 2.0, -INF, -3.0]))),
    "isinf": (lambda x: torch.where((x / 0.0).isinf() & ~x.isinf(), x, 0.0), X),
    "bits are finite": (lambda x: ((x > 0).isinf() | (x < 1).isnan()) == (x > 2).isfinite(), X),
    "pow of tensors": (lambda x, y: torch.pow(x.abs(), y) + torch.pow(x, y.round()) + torch.pow(2.5, x), TWO),
    "bits with a number": (lambda x: torch.where((x > 0) & True, x, torch.where((x < -1) ^ True, -x, 0.5)), X),
    "fill and copy": (lambda x, y: torch.fill(x, 2.0) + torch.ops.aten.copy(x, y) * x, TWO),
    "padding": (lambda x: functional.pad(functional.pad(x, (1, -1, 2, 0), value=0.5), (0, 3)), CUBE),
    "circular padding": (lambda x: functional.pad(x, (1, 2, 3, 0), mode="circular"), IMAGE),
    "scattered slices": (lambda x: x.slice_scatter(x[:, 1:4] * 2, 1, 2, 5).select_scatter(x[:, :, 0], 2, 1), CUBE),
    "scatter to one place": (lambda x, i: x.scatter(1, i, x) + x.scatter(1, i, 2.5) + x.scatter_add(-1, i, x[:, :1])
                             + x.scatter(0, i[:1].expand(1, 6), x), (rand(4, 6), torch.tensor([[3], [0], [2], [2]]))),
    "distances": (torch.cdist, AB),
    "copies of pixels": (lambda x: functional.interpolate(x, scale_factor=2), IMAGE),
    "native dropout": (lambda x: torch.ops.aten.native_dropout(x, 0.5, False)[0] + 1, X),
    "native batch norm": (lambda x: torch.ops.aten._native_batch_norm_legit(x, None, None, x[0, :, 0, 0].detach().clone(),
                          x[0, :, 0, 1].abs() + 1, False, 0.1, 1e-5)[0], IMAGE),
}  # fmt: skip
LIBRARY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "prod": (lambda x: x.prod(1) + x.prod(), X),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0, keepdim=True), x.argmax()), X),
    "max with places": (lambda x: x.max(1), X),
    "any": (lambda x: ((x > 1).any(1), (x > -9).all()), X),
    "cumsum": (lambda x: x.cumsum(1), X),
    "flip": (lambda x: x.flip((0, 1)), X),
    "embedding": (nn.Embedding(9, 4, dtype=torch.float64), (torch.tensor([[1, 2], [8, 0]]),)),
    "conv1d": (nn.Conv1d(6, 4, 3, dtype=torch.float64), CUBE),
    "conv2d": (nn.Conv2d(6, 9, 3, stride=2, padding=1, dilation=(1, 2), groups=3, dtype=torch.float64), IMAGE),
    "transposed convolution": (nn.ConvTranspose2d(6, 9, 3, 2, 1, 1, groups=3, dilation=2, dtype=torch.float64), IMAGE),
    "convolution": (lambda x, w, v: torch.ops.aten.convolution(x, w, None, [2, 1], [1, 0], [1, 1], False, [0, 0], 2)
                    + torch.ops.aten.convolution(x, v, None, [2, 1], [2, 0], [1, 1], True, [1, 0], 2).sum(),
                    (*IMAGE, rand(4, 3, 3, 2), rand(6, 2, 1, 2))),
    "convolutions of one image": (
        lambda x, w, v: functional.conv2d(x, w, padding=1) + functional.conv_transpose2d(x, v)[:, 1:-1, 1:-1],
        (rand(6, 7, 5), rand(4, 6, 3, 3), rand(6, 4, 3, 3)),
    ),
    "sort": (lambda x: (*x.sort(1), *x.sort(0, descending=True), x.argsort(-1)), X),
    "stable": (lambda x: (x.round().argsort(dim=1, stable=True), x.argsort(dim=0, descending=True, stable=True)), X),
    "topk": (lambda x: (*x.topk(3, 1), *x.topk(2, 0, largest=False)), X),
    "any of several": (lambda x: ((x > 1).any((0, 2)), torch.all(x > -9, (0, 1))), CUBE),
    "gather": (lambda x, i: (x.gather(1, i), x.index_select(1, i[0]), x[i[0]], x.view(1, 6, 6)[:, i, i]), (rand(6, 6), PLACES)),
    "scatter": (lambda x, i: (x.scatter(1, i, x), x.scatter(0, i, 2.5), x.scatter_add(1, i, x * 2)), (rand(6, 6), PLACES)),
    "scatter_reduce": (lambda x, i: tuple(x.scatter_reduce(1, i, x + 1, r, include_self=s) for s in (True, False)
                       for r in ("sum", "prod", "mean", "amax", "amin")), (rand(6, 6), PLACES)),
    "index_put": (lambda x, i: (x.index_put((i[0],), x[1]), torch.index_put(x, (i[0], i[1]), x[0, :3], True)),
                  (rand(6, 6), PLACES)),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > y, x * 2), TWO),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), CUBE),
    "borders": (lambda x: functional.pad(x, (2, 1, 0, 3), "reflect") + functional.pad(x, (1, 2, 3, 0), "replicate"), IMAGE),
    "between pixels": (lambda x: functional.interpolate(x, (9, 4), mode="bilinear")
                       + functional.interpolate(x, (9, 4), mode="bilinear", align_corners=True), IMAGE),
    "pools with places": (lambda x: functional.max_pool2d(x, (2, 3), 2, (1, 1), return_indices=True), IMAGE),
    "pools of nothing": (lambda x: functional.max_pool2d(x, 3, (2, 1), 1, (1, 2), return_indices=True),
                         (torch.full((1, 5, 6), -INF),)),
    "pools": (lambda x: functional.max_pool2d(x, 2) + functional.avg_pool2d(x, 3, 2, 1)[..., 1:, 1:], IMAGE),
}  # fmt: skip


def values(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def imported(f: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Imported:
    module = f if isinstance(f, nn.Module) else Fn(f)
    found = fuser.from_torch(module, inputs)
    feeds = dict(zip(found.inputs, inputs, strict=True)) | {k: torch.from_numpy(v) for k, v in found.params.items()}
    want = values(module(*inputs))
    for program in (found.program, expand(found.program)):
        by_torch = run_program(program, feeds)
        by_numpy = program.evaluate({k: v.detach().numpy() for k, v in feeds.items()})
        for name, wanted in zip(program.outputs, want, strict=True):
            assert program[name].dtype == str(wanted.dtype).removeprefix("torch.")
            assert program[name].shape == tuple(wanted.shape)
            np.testing.assert_allclose(by_torch[name].detach().double().numpy(), wanted.detach().double().numpy(), atol=1e-12)
            np.testing.assert_allclose(by_numpy[name], wanted.detach().double().numpy(), rtol=1e-6, atol=1e-12)
    return found


@pytest.mark.parametrize("name", sorted(FUSED))
def test_what_fuses(name: str) -> None:
    kinds = {OPS[n.op].kind for n in imported(*FUSED[name]).program.nodes}
    assert not kinds & {"opaque", "library"}


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_what_torch_computes(name: str) -> None:
    kinds = {OPS[n.op].kind for n in imported(*LIBRARY[name]).program.nodes}
    assert "library" in kinds
    assert "opaque" not in kinds


def test_whole_numbers_between_pixels_are_left() -> None:
    pixels = (torch.arange(50, dtype=torch.uint8).view(1, 2, 5, 5) * 5,)
    found = fuser.from_torch(Fn(lambda x: functional.interpolate(x, (7, 9), mode="bilinear")), pixels)
    assert [n.op for n in found.program.nodes] == ["opaque"]


@pytest.mark.parametrize(
    "of", [lambda x: x, lambda x: x.T.contiguous(), lambda x: x.view(-1), lambda x: (x + 1).T, lambda x: (x + 1)[1:]]
)
def test_what_lies_somewhere_in_memory_is_refused(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="as_strided"):
        fuser.from_torch(Fn(lambda x: of(x).as_strided((3,), (1,))), X)


def test_numbers_that_torch_counts_in_wider_ones_are_its_own() -> None:
    found = fuser.from_torch(Fn(lambda x: x.cumsum(1)), (torch.ones(4, 5, dtype=torch.int32),))
    assert [n.op for n in found.program.nodes] == ["opaque"] and found.program[found.program.outputs[0]].dtype == "int64"


def test_what_a_product_is_added_to_is_not_read_where_beta_is_zero() -> None:
    x, a, b = torch.full((3, 5), float("nan")), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    module = Fn(lambda x, a, b: (torch.baddbmm(x, a, b, beta=0, alpha=2), torch.addmm(x, a[0], b[0], beta=0)))
    for made, want in zip(fuser.compile(module, (x, a, b), device="cpu")(x, a, b), module(x, a, b), strict=True):
        torch.testing.assert_close(made, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.native_layer_norm(x, (6,), None, None, 1e-5),
        lambda x: torch.native_group_norm(x, None, None, 4, 6, 1, 2, 1e-5),
        lambda x: (torch.native_layer_norm(x, (6,), None, None, 1e-5)[1] + 1,),
        lambda x: torch.ops.aten.native_dropout(x, 0.5, False),
    ],
)
def test_statistics_beside_a_norm_are_results_too(f: Callable[..., Any]) -> None:
    found = fuser.from_torch(Fn(f), X)
    got = run_program(
        found.program, dict.fromkeys(found.inputs, X[0]) | {k: torch.from_numpy(v) for k, v in found.params.items()}
    )
    torch.testing.assert_close([got[n] for n in found.program.outputs], list(f(*X)))


def test_a_vector_multiplied_with_itself_beside_another_result() -> None:
    v = torch.randn(6)
    module = Fn(lambda v: (torch.outer(v, v), v @ v))
    run = fuser.compile(module, (v,), device="cpu")
    assert type(run).__name__ == "CompiledProgram"
    for made, want in zip(run(v), module(v), strict=True):
        torch.testing.assert_close(made, want)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
def test_a_variance_of_fewer_elements_than_its_correction_is_infinite_or_nan() -> None:
    x = torch.randn(4, 2)
    module = Fn(lambda x: (x.var(1, correction=3), x.std(1, correction=2.5), x.std(0, correction=1.5)))
    for made, want in zip(fuser.compile(module, (x,), device="cpu")(x), module(x), strict=True):
        torch.testing.assert_close(made, want, equal_nan=True)


def test_a_constant_mask_hides_what_is_infinite_or_nan() -> None:
    x, eye = torch.randn(5, 6), torch.eye(5, 6, dtype=torch.bool)
    x[0, 0], x[1, 1], x[2, 3] = INF, float("nan"), INF
    module = Fn(lambda x: (x.masked_fill(eye, -INF), torch.where(~eye, x, -INF)[:2].softmax(1)))
    for made, want in zip(fuser.compile(module, (x,), device="cpu")(x), module(x), strict=True):
        torch.testing.assert_close(made, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.softmax(0), x.sum(-1), x.transpose(0, -1) * 2),
        lambda x: x.max(0),
        lambda x: (*x.sort(0), *x.topk(1)),
        lambda x: x.gather(0, torch.tensor(0)),
        lambda x: x.flip(0) + x.cumsum(-1),
    ],
)
def test_a_dimension_of_a_number_is_left_to_torch(f: Callable[..., Any]) -> None:
    x = torch.tensor(2.5)
    run = fuser.compile(Fn(f), (x,), device="cpu")
    assert type(run).__name__ == "CompiledProgram"
    for made, want in zip(values(run(x)), values(f(x)), strict=True):
        torch.testing.assert_close(made, want)


def test_what_torch_computes_of_may_be_read_only() -> None:
    module = nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)).eval()
    x = rand(2, 4).float()
    imported = fuser.from_torch(module, (x,))
    assert any(n.op == "opaque" for n in imported.program.nodes)
    values = {imported.inputs[0]: x.numpy(), **{n: np.broadcast_to(v, v.shape) for n, v in imported.params.items()}}
    (got,) = imported.program.evaluate(values).values()  # a warning is an error
    np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("places", [False, True])
def test_equal_elements_may_change_places_that_nobody_reads(places: bool) -> None:
    program = imported(lambda x: tuple(x.sort(-1)) if places else x.sort(-1).values, (rand(4, 6),)).program
    (order,) = [n for n in program.nodes if n.op == "argsort"]
    assert order.attr.get("stable", True) is places


SHIFTED: list[Callable[[Any], Any]] = [
    lambda x: torch.softmax(x - x.amax(-1, keepdim=True), -1),
    lambda x: torch.log_softmax(x - x.max(1).values.unsqueeze(1), 1),
]
OTHERWISE: list[Callable[[Any], Any]] = [
    lambda x: torch.softmax(x - x.amax(1, keepdim=True), -1),
    lambda x: torch.softmax(x - x.amax(), -1),
    lambda x: torch.softmax(x.amax(-1, keepdim=True) - x, -1),
    lambda x: torch.softmax(torch.sub(x, x.amax(-1, keepdim=True), alpha=2), -1),
    lambda x: torch.softmax(x[..., :1] - x[..., :1].amax(-1, keepdim=True), -1),
]


@pytest.mark.parametrize(("run", "ops"), [(f, 1) for f in SHIFTED] + [(f, 3) for f in OTHERWISE])
def test_a_softmax_needs_no_maximum_in_front_of_it(run: Callable[[Any], Any], ops: int) -> None:
    x = 100 * rand(3, 5, 7).float()
    x[0, 0], x[1, 1, 2], x[2, 2, 3] = -math.inf, -math.inf, math.inf if run is not SHIFTED[1] else 300.0
    program = fuser.from_torch(Fn(run), (x,)).program
    assert len(program.nodes) >= ops
    assert ops > 1 or program.nodes[0].op in ("softmax", "log_softmax")
    (got,) = program.evaluate({program.inputs[0]: x.double().numpy()}).values()
    np.testing.assert_allclose(got, run(x.double()).numpy(), rtol=1e-6, atol=1e-12, equal_nan=True)


LEFT: list[Callable[[Any], Any]] = [
    lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True)),
    lambda x: (x - x.logsumexp(1).unsqueeze(1)).exp(),
]
NOT_LEFT: list[Callable[[Any], Any]] = [
    lambda x: torch.exp(x - torch.logsumexp(2 * x, -1, keepdim=True)),
    lambda x: torch.exp(x - torch.logsumexp(x, (1, 2), keepdim=True)),
    lambda x: torch.exp(torch.logsumexp(x, -1, keepdim=True) - x),
    lambda x: torch.exp(x[..., :1] - torch.logsumexp(x, -1, keepdim=True)),
    lambda x: torch.exp(x - torch.logsumexp(x, 0)),
]


@pytest.mark.parametrize(("run", "one"), [(f, True) for f in LEFT] + [(f, False) for f in NOT_LEFT])
def test_what_is_left_by_the_logarithm_of_a_sum_is_a_softmax(run: Callable[[Any], Any], one: bool) -> None:
    """(Where an element is infinite something of its row is no number either way; of a softmax nothing is.)"""
    x = 100 * rand(3, 5, 7).float()
    x[0, 0], x[1, 1, 2] = -math.inf, -math.inf
    x[1, :, 3], x[2, 4, 4] = -math.inf, math.nan
    program = fuser.from_torch(Fn(run), (x,)).program
    assert [n.op for n in program.nodes if n.op in ("softmax", "exp")] == ["softmax" if one else "exp"]
    (got,) = program.evaluate({program.inputs[0]: x.double().numpy()}).values()
    np.testing.assert_allclose(got, run(x.double()).numpy(), rtol=1e-6, atol=1e-12, equal_nan=True)
