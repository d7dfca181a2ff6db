"""How a search converged, as a figure: the fastest candidate so far over the number of measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_model.floor import floor_seconds
from fuser.device import Device
from search.figures import BLUE
from search.figures import GREEN
from search.figures import LIGHT
from search.figures import RED
from search.figures import drawn
from search.ranked import Tuned

WIDTH, ROW = 7.0, 1.7
"""Inches: of the figure, and height of a program."""
NEAR = 2.0
"""The floor is shown where it is not further below the best than so many times."""


def draw(tuned: Sequence[Tuned], device: Device, path: Path) -> bool:
    """Writes the figure; False where nothing was measured."""
    shown = [t for t in tuned if t.searched and t.searched.history]

    def fill(figure: Any) -> None:
        for axes, t in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            _draw(axes, t, device)
        figure.get_axes()[-1].set_xlabel("measured candidates")

    if shown:
        drawn(path, (WIDTH, ROW * len(shown) + 0.3), fill)
    return bool(shown)


def _draw(axes: Any, t: Tuned, device: Device) -> None:
    assert t.searched is not None
    counts, best, own = [], [], []
    total = 0
    for g in t.searched.history:
        total += g.measured
        counts.append(total)
        best.append(g.best_so_far * 1e6 if math.isfinite(g.best_so_far) else math.nan)
        own.append(g.best * 1e6 if math.isfinite(g.best) else math.nan)
    axes.step(counts, best, where="post", color=BLUE, label="best so far")
    axes.plot(counts, own, "o", color=LIGHT, markersize=3, label="best of a generation")
    levels = {"the model's first choice": (t.searched.first_seconds, RED), "floor": (floor_seconds(t.program, device), GREEN)}
    for label, (seconds, color) in levels.items():
        if math.isfinite(seconds) and seconds * 1e6 > min(map(abs, best), default=math.inf) / NEAR:
            axes.axhline(seconds * 1e6, color=color, linewidth=0.8, linestyle=":", label=label)
    failed = sum(t.searched.failures.values())
    told = f"{t.program.name}: {t.winner.us:.2f} µs of {total} measured" + (f", {failed} failed" if failed else "")
    axes.set_title(f"{told} ({t.searched.why})", loc="left", fontsize=8)
    axes.set_ylabel("µs")
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=6, loc="upper right", frameon=False)
