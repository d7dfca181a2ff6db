"""Buckets of sizes: whatever size a call has, the results are those of the module; what cannot be padded is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fuser
from fuser.device import load_device
from fuser.errors import LeftToTorch
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.frontends.sized import sized_module
from fuser.frontends.sized import sized_torch
from fuser.runtime.torch_program import run_program
from search.buckets.bucketed import Bucket
from search.buckets.bucketed import BucketedProgram
from search.buckets.pool import Pool
from search.buckets.sizes import all_padded
from search.buckets.sizes import places_of
from search.buckets.sizes import resolved


@dataclass
class Computed:
    """In the place of kernels: the program, operator by operator. It counts its calls."""

    known: Imported
    calls: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.known.inputs

    def __call__(self, **given: Any) -> Any:
        self.calls += 1
        for n, x in given.items():
            assert tuple(x.shape) == self.known.program[n].shape
        held = {n: torch.from_numpy(np.array(x)) for n, x in self.known.params.items()}
        with torch.no_grad():
            found = run_program(self.known.program, held | given)
        return tuple(found[n] for n in self.known.program.outputs)


def bucketed(module: nn.Module, inputs: tuple[Any, ...], buckets: dict[str, tuple[int, ...]]) -> BucketedProgram:
    declared = {key: (places_of(key), max(sizes)) for key, sizes in buckets.items()}
    sized = sized_module(module, inputs, {}, declared)
    made = [Bucket(p, Computed(p.imported)) for p in all_padded(sized, resolved(buckets, sized))]  # type: ignore[arg-type]
    return BucketedProgram(sized.name, load_device("h200"), "cpu", tuple(made), made[-1].padded.known.called, sized.whole)


class Encoder(nn.Module):
    """Attention over keys, and all sorts of folds over tokens."""

    def __init__(self, folds: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.folds = folds
        self.table, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(40, 16))
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
        q, k, v = (y.view(*y.shape[:2], 2, 8).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.table(ids) + self.places[: ids.shape[1]]
        x = self.attend(x, (1 - mask[:, None, None, :]) * -1e4, causal=False)
        if not self.folds:
            return (x,)
        x = self.attend(x, None, causal=True)
        flat = x.reshape(-1, 16)
        by_hand = torch.softmax(x @ x.mT / 4, -1) @ x
        scores = (x @ x.mT).exp()
        return (
            x, by_hand, x[:, 0], flat.mean(0), x.mean(1), x.amax(1), x.sum((0, 1)), torch.logsumexp(x, 1), x.mT @ x,
            (scores / scores.sum(-1, keepdim=True)) @ x, torch.cumsum(x, 1), x.amin(1), torch.linalg.vector_norm(x, dim=1),
        )  # fmt: skip


def tokens(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(batch, seq)
    mask[:, seq // 2 + 1 :] = 0
    return torch.randint(0, 20, (batch, seq)), mask


def agree(run: Callable[..., Any], module: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(run(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def test_a_sequence_of_any_length() -> None:
    module = Encoder().eval()
    run = bucketed(module, tokens(2, 5), {"ids:1,mask:1": (8, 24)})
    for n in (1, 2, 7, 8, 9, 17, 23, 24):
        agree(run, module, *tokens(2, n))
    assert [b.made.calls for b in run.buckets] == [4, 4]  # type: ignore[attr-defined]


def test_a_batch_and_a_sequence() -> None:
    module = Encoder(folds=False).eval()
    run = bucketed(module, tokens(1, 5), {"ids:0,mask:0": (1, 4), "ids:1,mask:1": (16,)})
    assert len(run.buckets) == 2
    for batch in (1, 2, 4):
        for n in (1, 9, 16):
            agree(run, module, *tokens(batch, n))


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(self.norm(self.conv(x)), 2).flatten(1)


@pytest.mark.parametrize("does", [torch.mean, lambda x: x.abs().mean(), lambda x: (x * x).mean((0, 1, 2), keepdim=True)])
def test_means_of_everything(does: Callable[[torch.Tensor], Any]) -> None:
    module = Doing(does)
    run = bucketed(module, (torch.randn(2, 6, 4),), {"x:1": (8,)})
    for n in (1, 5, 8):
        agree(run, module, torch.randn(2, n, 4))


class Counting(nn.Module):
    """Folds of whole numbers and bits, and what libraries fold."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return mean, mask.sum(), mask.prod(1), (x > 0).sum((1, 2)), mask.count_nonzero(), mask.sum(0), x.prod(1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_counts_and_products(dtype: torch.dtype) -> None:
    def given(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(2, n, 3) + 0.5, torch.randint(0 if dtype is torch.bool else -3, 4, (2, n)).to(dtype)

    run = bucketed(Counting(), given(6), {"x:1,mask:1": (8, 40)})
    for n in (1, 5, 8, 33):
        agree(run, Counting(), *given(n))


def test_the_least_of_whole_numbers_at_a_place() -> None:
    module = Doing(lambda x: torch.zeros_like(x).scatter_reduce(-1, x.abs() % 3, x, "amin", include_self=False))
    run = bucketed(module, (torch.randint(-5, 5, (2, 6, 4)),), {"x:1": (8,)})
    for n in (3, 8):
        agree(run, module, torch.randint(-5, 5, (2, n, 4)))


@pytest.mark.parametrize("odd", [float("inf"), -float("inf"), float("nan")])
def test_a_last_element_that_is_not_finite(odd: float) -> None:
    class Folds(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x.relu()
            return (
                x.sum(1),
                x.mean(),
                x.amax(1),
                x.amin(1),
                y.mT @ y.exp(),
                (x * 3e38).amax(1),
                x.softmax(1),
                x.reshape(-1, 3).sum(0),
            )

    run = bucketed(Folds(), (torch.randn(2, 6, 3),), {"x:1": (8,)})
    for n in (1, 5, 8):
        x = torch.randn(2, n, 3)
        x[0, -1, 1], x[1, -1, 0] = odd, 2.0
        torch.testing.assert_close(run(x), Folds()(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_batch_of_images() -> None:
    module = Conv().eval()
    run = bucketed(module, (torch.randn(3, 2, 8, 8),), {"x:0": (4,)})
    for n in (1, 3, 4):
        agree(run, module, torch.randn(n, 2, 8, 8))


class Doing(nn.Module):
    def __init__(self, does: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.does, self.weight = does, nn.Parameter(torch.randn(4, 4, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(x * 2)


REFUSED = [
    pytest.param(lambda x: x[:, -1], "slice", id="the last row"),
    pytest.param(lambda x: torch.cat([x, x], 1), "concat", id="joined along it"),
    pytest.param(lambda x: x.diagonal(0, 1, 2), "for small sizes", id="the smaller of two sizes"),
    pytest.param(lambda x: x.flip(1), "flip", id="flipped"),
    pytest.param(lambda x: x.var(1), "var", id="a variance with a correction"),
    pytest.param(lambda x: nn.functional.avg_pool1d(x.mT, 3, 1, 1), "avg_pool1d", id="windows along it"),
    pytest.param(lambda x: x * torch.arange(x.shape[1], 0, -1)[:, None], "values of", id="a constant of the size"),
    pytest.param(lambda x: x.argmin(1), "argmin", id="places"),
    pytest.param(lambda x: (x, x.shape[1]), "returns a number", id="the size itself"),
]


@pytest.mark.parametrize(("does", "culprit"), REFUSED)
def test_what_padding_would_change_is_refused(does: Callable[[torch.Tensor], Any], culprit: str) -> None:
    with pytest.raises(UnsupportedError, match=culprit) as found:
        bucketed(Doing(does), (torch.randn(2, 6, 4),), {"x:1": (8, 16)})
    assert found.value.hint


def test_beyond_the_largest_bucket() -> None:
    module = Doing(torch.relu)
    run = bucketed(module, (torch.randn(2, 6, 4),), {"x:1": (8,)})
    with pytest.warns(LeftToTorch, match="largest bucket is x:1=8"):
        agree(run, module, torch.randn(2, 9, 4))
    run.whole = None
    with pytest.raises(UsageError, match="no kernels for x:1=9: its largest bucket is x:1=8"):
        run(torch.randn(2, 9, 4))
    with pytest.raises(UsageError, match=r"x must be \[2, x:1, 4\], got \[3, 4, 4\]"):
        run(torch.randn(3, 4, 4))
    with pytest.raises(UsageError, match="called otherwise"):
        run(torch.randn(2, 4, 4), torch.randn(2, 4, 4))
    with warnings.catch_warnings(action="error"):
        assert run(x=torch.randn(2, 4, 4)).shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("buckets", "text"),
    [
        ({}, "has no sizes"),
        ({"x:1": ()}, "are no sizes"),
        ({"x:1": (0, 8)}, "are no sizes"),
        ({"x:1": "8"}, "are no sizes"),
        ({"seq": (8,)}, "names no dimension"),
        ({"y:1": (8,)}, "names no dimension of an input tensor"),
        ({"x:7": (8,)}, "names no dimension of an input tensor"),
        ({"x:2": (8,)}, "cannot be open"),
        ({"x:1": tuple(range(1, 90))}, "89 sets of kernels"),
    ],
)
def test_odd_buckets_are_refused(buckets: dict[str, Any], text: str) -> None:
    module = Doing(lambda x: x @ x.new_ones(4, 4))
    with pytest.raises(UsageError, match=text):
        fuser.compile(module, (torch.randn(2, 6, 4),), buckets=buckets, target="h200")


def test_sizes_below_what_a_model_takes_are_refused() -> None:
    """Where a dimension of 1 is taken away, and below the least size of an exported program."""
    run = bucketed(Doing(torch.squeeze), (torch.randn(2, 6, 4),), {"x:1": (8,)})
    agree(run, Doing(torch.squeeze), torch.randn(2, 5, 4))
    with pytest.raises(UsageError, match="takes no x:1=1"):
        run(torch.randn(2, 1, 4))
    module, size = Doing(lambda x: x.diagonal(0, 1, 2)), torch.export.Dim("seq", min=4, max=8)
    exported = torch.export.export(module, (torch.randn(2, 6, 4),), dynamic_shapes={"x": {1: size}})
    run = fuser.compile(exported, buckets={"x:1": (8,)}, device="cpu")
    assert isinstance(run, BucketedProgram)
    agree(run, module, torch.randn(2, 5, 4))
    with pytest.raises(UsageError, match="takes no x:1=3"):
        run(torch.randn(2, 3, 4))


def test_the_sizes_of_an_exported_program_have_names() -> None:
    size = torch.export.Dim("seq", min=2, max=64)
    exported = torch.export.export(Doing(torch.relu), (torch.randn(2, 6, 4),), dynamic_shapes={"x": {1: size}})
    sized = sized_torch(exported, "model")
    assert (sized.places, sized.limits) == ({"x:1": (("x", 1),)}, {"x:1": (2, 64)})
    with pytest.raises(UsageError, match="'x:0' is no open dimension"):
        resolved({"x:0": (4,)}, sized)
    with pytest.raises(UsageError, match="cannot be 128"):
        resolved({"x:1": (32, 128)}, sized)
    with pytest.raises(UsageError, match="buckets= is for"):
        fuser.compile("mirage/rmsnorm", buckets={"x:1": (8,)})


def test_weights_are_held_once() -> None:
    pool, x = Pool(), np.arange(6.0).reshape(2, 3)
    assert pool.array(x) is x
    assert pool.array(x.copy()) is x
    assert pool.array(x.T.copy()) is not x
    assert pool.tensor(x.copy(), "float16", "cpu") is pool.tensor(x, "float16", "cpu")
