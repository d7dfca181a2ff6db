"""Figures: drawn from results alone, the same bytes each time, a clear word without matplotlib."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from experiments.plot import draw
from experiments.plot import relative
from fuser.errors import EnvironmentError_
from tests.experiments.rows import RESULTS
from tests.experiments.rows import committed


def test_speeds_are_relative_to_the_best_peer() -> None:
    for case in committed("mirage")["cases"]:
        speeds = relative(case)
        assert max(v for n, v in speeds.items() if n in case["peers"]) == pytest.approx(1.0)
        assert speeds["mufuser"] == pytest.approx(case["speedup"])
        assert speeds["floor"] > max(v for k, v in speeds.items() if k != "floor"), "nothing is faster than its floor"


def test_a_case_without_peers_has_no_speed() -> None:
    assert relative({"peers": {}, "best_peer": None, "us": 1.0, "floor_us": 1.0}) == {}


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = committed("mcfuser")
    (first,), (second,) = draw(found, tmp_path, "a"), draw(found, tmp_path, "b")
    text = first.read_text()
    assert text == second.read_text()
    assert "<dc:date>" not in text
    for case in found["cases"]:
        assert f">{case['workload'].partition('/')[2]}<" in text, "labels are text"


def test_one_figure_a_suite(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    both = committed("mcfuser")
    both["cases"] = both["cases"][:2] + committed("mirage")["cases"][:3]
    assert [p.name for p in draw(both, tmp_path)] == ["bench-mcfuser.svg", "bench-mirage.svg"]


def test_nothing_overlaps_in_the_figures(tmp_path: Path) -> None:
    """Text that is drawn apart stays apart: no two boxes of text of a figure meet."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    from experiments.plot import _figure

    for suite in ("mcfuser", "mirage"):
        found = committed(suite)
        figure = _figure(suite, found["cases"], found)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip() and t.get_visible()]
        boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in texts]
        for i, (a, box) in enumerate(boxes):
            assert box.x0 >= 0, f"{a!r} leaves the figure"
            assert box.x1 <= figure.bbox.x1, f"{a!r} leaves the figure"
            for b, other in boxes[:i]:
                assert not box.overlaps(other), f"{a!r} and {b!r} overlap in {suite}"


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentError_, match="needs matplotlib") as caught:
        draw(committed("mcfuser"), tmp_path)
    assert "mufuser[plot]" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_committed_figures_name_every_case() -> None:
    for suite in ("mcfuser", "mirage"):
        text = (RESULTS / f"h200-{suite}" / "bench.svg").read_text()
        assert all(f">{c['workload'].partition('/')[2]}<" in text for c in committed(suite)["cases"])
