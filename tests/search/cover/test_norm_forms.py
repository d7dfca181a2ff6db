"""Models without kernels for their normalizations: what shares rows, and what is rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.dtypes import rounded
from search.cover import model
from search.cover import offers
from search.cover.fold import folded
from search.cover.norms import norms
from search.cover.norms import without
from search.cover.offers import Pricing
from search.cover.prices import by_library
from search.cover.select import selected
from search.ranked import Tuned
from search.realise import Realised
from search.realise import verified


def test_two_normalizations_of_the_same_rows() -> None:
    """A parallel layer's, say; those of one kind share their sums."""
    b = Builder("parallel")
    x = b.input("x", (4, 64), "float16")
    weights = [b.input(n, (64, 64), "float16") for n in ("w0", "w1", "w2", "w3")]
    gains = [b.input(n, (64,), "float16") for n in ("g0", "g1", "g2")]
    rows = b.op("add", x, b.op("matmul", x, weights[0]), name="rows")
    kinds = ("layer_norm", "layer_norm", "rms_norm")
    ends = [b.op("matmul", b.op(k, rows, g, eps=1e-5), w) for k, g, w in zip(kinds, gains, weights[1:], strict=True)]
    program = b.build(ends[0], ends[1], ends[2])
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(program[n].shape) for n in program.inputs}
    found = norms(program, {n: v for n, v in values.items() if n != "x"})
    assert len(found) == 3
    less, tails = without(program, dict.fromkeys(found, 32))
    assert sum(n.op == "square" and n.output in tails["rows"] for n in less.nodes) == 2
    before, after = program.evaluate(values), less.evaluate(values)
    for (name, wanted), got in zip(before.items(), after.values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=name)


def test_what_is_folded_is_rounded_to_bfloat16() -> None:
    """A weight with a gain, and the sum of its columns: of the weight as the kernel reads it."""
    b = Builder("gain")
    x, w, g = b.input("x", (4, 64), "bfloat16"), b.input("w", (64, 64), "bfloat16"), b.input("g", (64,), "bfloat16")
    program = b.build(b.op("matmul", x, b.op("mul", w, g, name="scaled", dtype="bfloat16")))
    rng = np.random.default_rng(0)
    params = {n: rounded(rng.standard_normal(program[n].shape).astype(np.float32), "bfloat16") for n in ("w", "g")}
    _, values = folded(program, params)
    assert np.array_equal(values["scaled"], rounded(values["scaled"], "bfloat16"))


def turned(x: Ref) -> Ref:
    b, d = x.builder, x.shape[-1] // 2
    front = b.op("slice", x, axis=1, start=0, stop=d)
    back = b.op("slice", x, axis=1, start=d, stop=2 * d)
    return b.op("concat", b.op("neg", back), front, axis=1)


def test_selections_of_what_the_caller_gives_are_no_products() -> None:
    """Zero times an infinity in them would be no number."""
    b = Builder("turns")
    x, w = b.input("x", (4, 32), "float16"), b.input("w", (32, 32), "float16")
    given = b.build(turned(x))
    assert selected(given, {})[0] == given
    b = Builder("turns")
    x, w = b.input("x", (4, 32), "float16"), b.input("w", (32, 32), "float16")
    made, params = selected(b.build(turned(b.op("matmul", x, w))), {"w": np.zeros((32, 32), np.float16)})
    assert [n.op for n in made.nodes] == ["matmul", "matmul"]
    assert len(params) == 2


@pytest.mark.parametrize(("op", "finite"), [("rsqrt", False), ("log", False), ("exp", False), ("relu", True)])
def test_selections_of_what_may_overflow_are_no_products(op: str, finite: bool) -> None:
    for eps in (0, 1):  # an epsilon in front keeps a norm's divisor from zero
        b = Builder("turns")
        x = b.op("matmul", b.input("x", (4, 32), "float16"), b.input("w", (32, 32), "float16"))
        x = b.op("relu", x)
        x = b.op(op, b.op("shift", x, scalar=1e-5) if eps else x)
        made, _ = selected(b.build(turned(x)), {})
        assert ([n.op for n in made.nodes].count("matmul") == 2) == (finite or (eps == 1 and op != "exp"))


def test_moments_are_of_the_rows_that_products_read() -> None:
    """Rows of one number that no float16 is: rounded, they are off by as much everywhere, which must not count as a deviation."""
    torch = pytest.importorskip("torch")
    b = Builder("constant")
    x, w = b.input("x", (16, 64), "float16"), b.input("w", (64, 64), "float16")
    rows = b.op("shift", x, scalar=0.1003, name="rows")
    product = b.op("matmul", b.op("layer_norm", rows, eps=1e-5), w, name="product")
    program = b.build(rows, product)
    params = {"w": np.abs(np.random.default_rng(0).standard_normal((64, 64))).astype(np.float16)}
    less, _ = without(program, dict.fromkeys(norms(program, params), 64))
    run = fuser.compile(less, device="cpu")
    _, found = run(*(torch.tensor({"x": np.ones((16, 64), np.float16), **params}[n]) for n in less.inputs))
    assert float(found.abs().max()) < 1e-2


def test_the_form_as_written_is_there_where_the_other_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))  # without what was chosen in an earlier run: the form that held
    b = Builder("model")
    x = b.input("x", (32, 64), "float16")
    weights = [b.input(f"w{i}", (64, 64), "float16") for i in range(4)]
    rows = b.op("add", x, b.op("matmul", x, weights[0]))
    y = b.op("layer_norm", rows, eps=1e-5)
    for w in weights[1:]:
        y = b.op("matmul", y, w)
    program = b.build(y)
    params = {w.name: np.ones(w.shape, np.float16) for w in weights}

    failed: list[str] = []

    def fails(tuned: Tuned) -> Realised:
        if any("square" in n.op for n in tuned.program.nodes):
            failed.append(tuned.program.name)
            raise NoValidKernelError("none holds", "none")
        return verified(tuned)

    monkeypatch.setattr(offers, "DEARER", 1.5)
    monkeypatch.setattr(model, "verified", fails)
    made = model.compile_model(program, params, Pricing(load_device("h200"), libraries=False), compiled=False)
    assert failed
    assert any(n.op == "layer_norm" for n in made.program.nodes)


def test_a_product_of_another_dtype_is_no_library_call() -> None:
    for dtype in ("float16", "float32"):
        b = Builder("wide")
        x, w = b.input("x", (16, 64), "float16"), b.input("w", (64, 64), "float16")
        found = by_library(b.build(b.op("matmul", x, w, dtype=dtype)), load_device("h200"))
        assert (found is not None) == (dtype == "float16")
