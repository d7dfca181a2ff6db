"""When what torch's own compiler makes of a function is believed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_what_the_compiler_makes_may_be_nearer_to_the_truth_than_torch_and_order_equal_numbers_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Dice loss in half precision was two kernels' worth slower, since eager torch's sums overflow; places of the least of rows
    with equal numbers were torch's own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime import inductor

    def taken(run: Any, other: Any, *given: Any) -> bool:
        monkeypatch.setattr(inductor, "_of_graph", lambda *_: other)
        monkeypatch.setattr(inductor, "_of_module", lambda *_: other)
        return inductor.inductor(make_fx(run)(*given), run, given) is other

    def summed(x: Any) -> Any:
        return (1 / (x.sum(1) + x.sum(1)),)

    x = torch.full((8, 50000), 1.0, dtype=torch.float16)
    assert not summed(x)[0].any()
    assert taken(summed, lambda x: ((1 / (x.float().sum(1) * 2)).half(),), x)
    assert not taken(summed, lambda x: ((2 / (x.float().sum(1) * 2)).half(),), x)

    def apart(x: Any) -> Any:
        """Of neighbours that are nearly equal: torch rounds what they rest on."""
        return ((x.softmax(1) - x.softmax(1).roll(1, 1)) * 100,)

    near = torch.linspace(1, 1.02, 64).repeat(8, 1).half()
    assert taken(apart, lambda x: (apart(x.float())[0].half(),), near)
    assert not taken(apart, lambda x: (apart(x.float())[0].half() * 1.5,), near)

    def least(x: Any) -> Any:
        return (torch.argsort(x, dim=1, stable=True)[:, :2].float(),)

    def last(x: Any) -> Any:
        return ((x.shape[1] - 1 - torch.argsort(x.flip(1), dim=1, stable=True)[:, :2]).float(),)

    y = torch.randn(200, 64).half()
    y[:10] = y[:10, :1]
    assert not torch.equal(least(y)[0], last(y)[0])
    assert taken(least, last, y)
    assert not taken(least, lambda x: least(-x), y)

    def place(x: Any) -> Any:
        return (torch.argmin(x, 1).float(),)

    assert taken(place, lambda x: ((x.shape[1] - 1 - torch.argmin(x.flip(1), 1)).float(),), y)
    assert not taken(place, lambda x: place(-x), y)


def test_conditions_that_are_counted_may_be_rounded_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime import inductor

    def many(x: Any) -> Any:
        return ((x > 0).sum(1),)

    def first(x: Any) -> Any:
        return (x.argmax(1) + 0 * (x > 0).sum(1),)

    x = torch.randn(8, 4096)
    for run, taken in ((many, True), (first, False)):
        monkeypatch.setattr(inductor, "_of_graph", lambda *_, run=run: lambda x: (run(x)[0] + 3,))
        monkeypatch.setattr(inductor, "_of_module", lambda *_: None)
        assert (inductor.inductor(make_fx(run)(x), run, [x]) is not None) == taken


def test_where_torch_overflows_what_the_compiler_made_is_no_other_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime import inductor

    def squares(x: Any) -> Any:
        return ((x * 200).pow(2).sum(0) / 4e4,)

    x = torch.randn(64, 64).half()
    for other, taken in ((lambda x: (squares(x.float())[0].half(),), True), (lambda x: (0 * x[0],), False)):
        monkeypatch.setattr(inductor, "_of_graph", lambda *_, other=other: other)
        monkeypatch.setattr(inductor, "_of_module", lambda *_, other=other: other)
        assert (inductor.inductor(make_fx(squares)(x), squares, [x]) is other) == taken


def test_numbers_near_one_decide_where_others_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of prices by powers of what is given: of any numbers one order of operations overflows, and another does not."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime import inductor

    def powers(x: Any) -> Any:
        return (x.abs() ** 20 * x.abs() ** 20 / x.abs() ** 38,)

    x = 3 * torch.randn(64, 64)
    assert not powers(x)[0].isfinite().all() and powers(x)[0].isfinite().any()
    for other, taken in ((lambda x: (x * x,), True), (lambda x: (x.abs(),), False)):
        monkeypatch.setattr(inductor, "_of_graph", lambda *_, other=other: other)
        monkeypatch.setattr(inductor, "_of_module", lambda *_, other=other: other)
        assert (inductor.inductor(make_fx(powers)(x), powers, [x]) is other) == taken


def test_of_what_cancels_in_float32_both_are_as_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces between neighbours were left to operators of ours, at half the speed: their sums cancel."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from fuser.runtime import inductor

    def forces(x: Any) -> Any:
        return ((x + 1e6).sum(1) - (x.flip(1) + 1e6).sum(1),)

    def other(x: Any) -> Any:
        return ((x.double().sum(1) - x.flip(1).double().sum(1)).float(),)

    x = torch.randn(64, 1000)
    for form, taken in ((other, True), (lambda x: (forces(x)[0] + 1e4,), False)):
        monkeypatch.setattr(inductor, "_of_graph", lambda *_, form=form: form)
        monkeypatch.setattr(inductor, "_of_module", lambda *_, form=form: form)
        assert (inductor.inductor(make_fx(forces)(x), forces, [x]) is form) == taken
