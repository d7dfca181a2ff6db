"""Figures of searches and of what the model says: the same content gives the same bytes, formats are known at once."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from fuser.cli import main
from fuser.device import load_device
from fuser.workloads import workload
from search.ranked import Generation
from search.ranked import Searched
from search.ranked import Tuned
from search.roofline import draw_roofline
from search.roofline import flops
from search.roofline import point
from search.tune import tune_fast
from search.tuner.convergence import draw
from search.tuner.memory import PACKAGED
from search.tuner.memory import Memory
from tests.builders import chain

pytest.importorskip("matplotlib")
H200 = load_device("h200")


@lru_cache
def tuned() -> Tuned:
    history = tuple(Generation(b * 1e-6, s * 1e-6, 8) for b, s in ((9.0, 9.0), (math.inf, 9.0), (8.0, 8.0)))
    return replace(
        tune_fast(chain(256, 128, 64, 64), H200),
        searched=Searched("measured", "converged", 24, {"wrong": 2}, history, 3.0, 9.5e-6),
    )


def test_how_a_search_converged(tmp_path: Path) -> None:
    first, again = tmp_path / "a.svg", tmp_path / "b"
    assert draw([tuned(), tuned()], H200, first) and draw([tuned(), tuned()], H200, again)
    text = first.read_text()
    assert text == again.read_text()
    assert "of 24 measured, 2 failed (converged)" in text and "the model's first choice" in text
    assert not draw([replace(tuned(), searched=None)], H200, tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()


def test_a_roofline_with_what_was_measured(tmp_path: Path) -> None:
    """The package's rows of a workload are beside the model's estimates of the same schedules."""
    program = workload("mcfuser/S2")
    found = point("mcfuser/S2", program, 7e-6, Memory(None, (PACKAGED,)), H200)
    assert 5e-6 < found.measured < 8e-6
    assert all(0.5 < p / m < 2 for p, m in found.pairs) and len(found.pairs) > 2
    path = tmp_path / "roof.svg"
    draw_roofline([found, point("chain", chain(256, 128, 64, 64), 4e-6, None, H200)], H200, path)
    text = path.read_text()
    assert all(t in text for t in ("predicted", "measured", "mcfuser/S2", "chain", "4.8 TB/s", "within 1.25"))
    draw_roofline([point("chain", chain(256, 128, 64, 64), 4e-6, None, H200)], H200, path)
    assert "within" not in path.read_text(), "nothing was measured"


def test_work_is_counted_without_products_too() -> None:
    assert flops(chain(256, 128, 64, 64)) >= 2 * 256 * 128 * 64 * 2
    assert 1e7 < flops(workload("graphene/layernorm")) < 1e10


@pytest.mark.parametrize("verb", [["tune", "mcfuser/S1", "--effort", "full:60", "--simulate", "1"], ["explain", "mcfuser/S1"]])
def test_a_format_that_nobody_writes_is_said_at_once(verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, says in (("x.docx", ".svg, .pdf or .png"), ("absent/x.png", "can be written")):
        assert main([*verb, "--plot", str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err


def test_explain_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    path = tmp_path / "roof.png"
    assert main(["explain", "mcfuser/S1", "--plot", str(path), "--json"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "drawn" in capsys.readouterr().err
