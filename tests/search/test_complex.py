"""Modules of complex numbers, compiled: how they are called, what they return, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402


class Mixer(torch.nn.Module):
    """A filter of frequencies with complex weights, and a rotation of pairs by complex numbers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: Any, turns: Any) -> Any:
        spectrum = torch.fft.rfft(x, norm="ortho") * self.weight
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns
        return torch.fft.irfft(spectrum, n=8, norm="ortho"), torch.view_as_real(pairs).flatten(-2), spectrum, pairs.mT


def given(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 8, generator=generator), torch.polar(torch.ones(4), torch.randn(4, generator=generator))


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(0)
    return Mixer().eval()


@pytest.fixture(scope="module")
def run(module: Any) -> Any:
    return fuser.compile(module, given(), device="cpu")


def same(found: Any, want: Any) -> None:
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    assert [x.stride() for x in found] == [x.stride() for x in want]


def test_they_are_one_program_which_is_called_with_complex_numbers(module: Any, run: Any) -> None:
    assert type(run).__name__ == "CompiledProgram"
    for seed in (0, 1):
        x, turns = given(seed)
        with torch.no_grad():
            same(run(x, turns), module(x, turns))
            same(run(turns=turns.conj(), x=x), module(x, turns.conj()))
            out = [torch.empty_strided(y.shape, y.stride(), dtype=y.dtype) for y in module(x, turns)]
            same(run(x, turns, out=out), out)
            same(out, module(x, turns))


@pytest.mark.parametrize("turns", [torch.ones(4), torch.ones(4, dtype=torch.complex128), torch.ones(4, 2), torch.ones(5) + 0j])
def test_other_numbers_are_refused_by_what_the_module_takes(run: Any, turns: Any) -> None:
    with pytest.raises(UsageError, match=r"turns must be turns\[4\]:complex64, got"):
        run(given()[0], turns)


def test_behind_torch_compile_they_are_pieces_too(module: Any) -> None:
    torch._dynamo.reset()
    run = torch.compile(module, backend="mufuser", options={"device": "cpu"})
    with torch.no_grad():
        same(run(*given()), module(*given()))


def test_conjugates_that_are_returned_stay_conjugates() -> None:
    class Turned(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            b = a * 1j
            c = b.conj()
            return c, c + 1, b.real, a.mT, b

    torch._dynamo.reset()
    module, a = Turned().eval(), torch.randn(3, 3, dtype=torch.complex64)
    for run in (fuser.compile(module, (a,), device="cpu"), torch.compile(module, backend="mufuser", options={"device": "cpu"})):
        found = run(a)
        torch.testing.assert_close(found, module(a))
        assert found[0].is_conj()
        assert found[0].untyped_storage().data_ptr() == found[2].untyped_storage().data_ptr()
    kept = fuser.compile(module, (a,), device="cpu")(a)
    assert kept[3].data_ptr() == a.data_ptr()


def test_of_several_results_of_torchs_each_is_whole() -> None:
    class Solved(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            sign, size = torch.linalg.slogdet(a)
            q, r = torch.linalg.qr(a)
            values, vectors = torch.linalg.eig(a.real)
            return sign * 2, size + 1, q @ r, (vectors @ torch.diag(values.exp()) @ torch.linalg.inv(vectors)).real

    torch._dynamo.reset()
    module, a = Solved().eval(), torch.randn(4, 4, dtype=torch.complex64)
    for run in (fuser.compile(module, (a,), device="cpu"), torch.compile(module, backend="mufuser", options={"device": "cpu"})):
        torch.testing.assert_close(run(a), module(a), rtol=1e-4, atol=1e-4)


def test_sizes_in_buckets() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, a: Any) -> Any:
            return a * (1 + 2j), (a.abs() + 1).log()

    module, a = Scaled().eval(), torch.randn(4, 6, dtype=torch.complex64)
    run = fuser.compile(module, (a,), device="cpu", buckets={"a:0": (4, 8)})
    for n in (3, 4, 7):
        a = torch.randn(n, 6, dtype=torch.complex64)
        torch.testing.assert_close(run(a), module(a))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_there_are_no_complex_numbers_of_narrower_types(module: Any, dtype: str) -> None:
    with pytest.raises(UsageError, match="takes or returns complex numbers, of which torch has none in"):
        fuser.compile(module, given(), device="cpu", dtype=dtype)


def test_a_rotation_inside_is_converted_with_the_rest() -> None:
    class Rotated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turns = torch.polar(torch.ones(3, 4), torch.arange(12.0).reshape(3, 4))

        def forward(self, x: Any) -> Any:
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.turns).flatten(-2)

    x = torch.randn(2, 3, 8)
    run = fuser.compile(Rotated().eval(), (x,), device="cpu", dtype="bfloat16")
    assert run(x).dtype is torch.bfloat16 and run.conversion is not None and run.conversion.error < 1e-2


class Spectra(torch.nn.Module):
    """A mask of short spectra, and back."""

    def __init__(self, n: int, hop: int, **more: Any) -> None:
        super().__init__()
        self.n, self.hop, self.more = n, hop, more
        self.register_buffer("window", torch.hann_window(n))

    def forward(self, x: Any) -> Any:
        short = torch.stft(x, self.n, self.hop, window=self.window, return_complex=True, **self.more)
        masked = short * short.abs().sigmoid()
        back = torch.istft(masked, self.n, self.hop, window=self.window, length=x.shape[-1], **self.more)
        return short.abs(), short.angle() * 0, back


@pytest.mark.parametrize("n, hop", [(16, 4), (20, 8), (16, 16)])
@pytest.mark.parametrize("normalized", [False, True])
def test_short_transforms_are_kernels_around_one_transform(n: int, hop: int, normalized: bool) -> None:
    """Frames that are whole parts of one another, or whose parts are; a window of zeros at its ends alone is refused by torch."""
    from fuser.frontends.torch_export import from_torch

    module, x = Spectra(n, hop, normalized=normalized).eval(), torch.randn(2, 96)
    callees = [n.attr["callee"] for n in from_torch(module, (x,)).program.nodes if n.op == "opaque"]
    if hop < n:
        assert sorted(callees) == ["aten._fft_c2r.default", "aten._fft_r2c.default"]
        torch.testing.assert_close(fuser.compile(module, (x,), device="cpu")(x), module(x), rtol=1e-4, atol=1e-4)
    else:
        assert sorted(callees) == ["aten._fft_r2c.default", "aten.istft.default"]
        with pytest.raises(RuntimeError, match="window overlap add"):
            fuser.compile(module, (x,), device="cpu")(x)


def test_complex_numbers_are_priced_and_explained(run: Any) -> None:
    text = str(run.plan)
    assert "aten._fft_r2c" in text and not math.isnan(run.realised.candidate.us)
