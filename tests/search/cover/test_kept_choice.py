"""What was chosen for a model is chosen again without prices; what it was chosen from is found when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.program import TensorProgram
from search.cover import kept_choice
from search.cover import model as whole
from search.cover.model import Model
from search.cover.model import compile_model
from search.cover.offers import Offers
from search.cover.offers import Pricing
from search.cover.offers import forms


def network(width: int = 64) -> tuple[TensorProgram, dict[str, Any]]:
    """Two products with normalized rows in front of them, 128 of them."""
    rng = np.random.default_rng(0)
    b = Builder("net")
    params: dict[str, Any] = {}

    def weight(name: str, *shape: int) -> Ref:
        params[name] = rng.standard_normal(shape).astype(np.float16)
        return b.input(name, shape)

    x, r = b.input("x", (128, 64)), b.input("r", (128, width))
    h = b.gelu(x @ weight("a", 64, width)) + r
    h = b.layer_norm(h, weight("g", width), weight("s", width))
    return b.build(y=h @ weight("b", width, 64)), params


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many forms were priced."""
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    found: list[int] = []
    real = whole.best_form

    def best(several: Any, pricing: Pricing) -> Offers:
        found.append(len(several))
        return real(several, pricing)

    monkeypatch.setattr(whole, "best_form", best)
    monkeypatch.setattr(kept_choice, "best_form", best)
    return found


def model() -> Model:
    return compile_model(*network(), Pricing(load_device("h200")), compiled=False)


def test_it_is_chosen_once(priced: list[int]) -> None:
    first = model()
    assert len(priced) == 1
    second = model()
    assert len(priced) == 1
    assert second.cover.parts == first.cover.parts
    assert second.whole.candidate == first.whole.candidate
    assert second.whole.tuned.candidates == first.whole.tuned.candidates
    assert second.plan.groups() == first.plan.groups()


def test_kernels_become_a_chain_once(priced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from search.cover import chain

    found: list[int] = []
    real = chain.chained
    monkeypatch.setattr(chain, "chained", lambda *a: found.append(1) or real(*a))
    first, second = model(), model()
    assert found == [1] and second.whole.candidate.schedule == first.whole.candidate.schedule


def test_another_question_is_asked_anew() -> None:
    usual, asked = Pricing(load_device("h200")), network()
    several = forms(*asked, usual)
    ways = [replace(usual, **w) for w in ({"libraries": False}, {"layouts": False}, {"greedy": True}, {"seed": 1})]
    files = [kept_choice.file_of(several, p, compiled=True) for p in (usual, *ways, replace(usual, device=load_device("a100")))]
    files += [kept_choice.file_of(several, usual, compiled=False)]
    files += [kept_choice.file_of(forms(*network(128), usual), usual, compiled=True)]
    assert len(set(files)) == len(files)
    assert kept_choice.file_of(forms(*network(), usual), usual, compiled=True) == files[0]


def test_a_damaged_file_is_none(priced: list[int], tmp_path: Path) -> None:
    first = model()
    (file,) = (tmp_path / "choices").iterdir()
    text = file.read_bytes()
    file.write_bytes(text.replace(b'"cover"', b'"hover"'))
    assert model().whole.candidate == first.whole.candidate
    assert len(priced) == 2


def test_borders_are_those_of_all_that_could_be_chosen(priced: list[int]) -> None:
    first = model()
    expected = [str(b) for b in first.borders()]
    assert len(priced) == 1
    second = model()
    assert len(priced) == 1
    assert [str(b) for b in second.borders()] == expected
    assert second.considered == first.considered
    assert len(priced) == 2


def test_what_no_longer_holds_is_chosen_anew(priced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = model()
    gone = first.cover.parts[-1].key
    real = whole._realise

    def realise(chosen: Any, tuned: Any, done: Any, kernels: Any, standing: Any) -> frozenset[str]:
        keys = {p.key for p in chosen.parts}
        holds = all(not t.winner.graph.blocks for p, t in tuned.items() if p in chosen.parts and p.key == gone)
        return frozenset() | real(chosen, tuned, done, kernels, standing) if gone not in keys or holds else frozenset({gone})

    monkeypatch.setattr(whole, "_realise", realise)
    second = model()
    assert len(priced) == 2
    assert all(p.key != gone or not second.offers.tuned[p].winner.graph.blocks for p in second.cover.parts)
    assert len(model().cover.parts) == len(second.cover.parts)
    assert len(priced) == 2, "the new choice is kept"
