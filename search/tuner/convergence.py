"""How a search converged, as a figure: the fastest candidate so far over the number of measured ones."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.outputs import write_file
from search.tune import Tuned

WIDTH, ROW = 7.0, 1.7
"""Inches: of the figure, and height of a program."""
LINE, MARK, FIRST = "#0072B2", "#9EC5DE", "#D55E00"


def require_matplotlib() -> None:
    """Said before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise EnvironmentError_("drawing needs matplotlib, which is not installed", "pip install 'mufuser[plot]'") from error


def draw(tuned: Sequence[Tuned], path: Path) -> bool:
    """Writes the figure, in the format of the path's suffix, as SVG without one; False where nothing was measured. The same
    searches give the same bytes of SVG."""
    shown = [t for t in tuned if t.searched and t.searched.history]
    if not shown:
        return False
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    kind = path.suffix.lstrip(".") or "svg"
    settings: Any = {"svg.hashsalt": "mufuser", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 8}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, ROW * len(shown) + 0.3), layout="constrained")
        for axes, t in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            _draw(axes, t)
        figure.get_axes()[-1].set_xlabel("measured candidates")
        content = io.BytesIO()
        try:
            figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except ValueError as error:
            raise EnvironmentError_(f"matplotlib cannot draw {path}: {error}", "give it the suffix .svg, .pdf or .png") from error
    write_file(path, content.getvalue())
    return True


def _draw(axes: Any, t: Tuned) -> None:
    assert t.searched is not None
    counts, best, own = [], [], []
    total = 0
    for g in t.searched.history:
        total += g.measured
        counts.append(total)
        best.append(g.best_so_far * 1e6 if math.isfinite(g.best_so_far) else math.nan)
        own.append(g.best * 1e6 if math.isfinite(g.best) else math.nan)
    axes.plot(counts, own, "o", color=MARK, markersize=3, label="best of a generation")
    axes.step(counts, best, where="post", color=LINE, label="best so far")
    if math.isfinite(t.searched.first_seconds):
        axes.axhline(t.searched.first_seconds * 1e6, color=FIRST, linewidth=0.8, linestyle=":", label="the model's first choice")
    axes.set_title(f"{t.program.name}: {t.winner.us:.2f} µs", loc="left", fontsize=8)
    axes.set_ylabel("µs")
    axes.legend(fontsize=6, loc="upper right", frameon=False)
