"""A result as a figure: for each case the speed of our fastest kernel as a bar, of every peer as a mark, and the floor, all
relative to the best peer.

matplotlib is imported when a figure is drawn, and only then. The same result gives the same bytes of SVG.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from experiments.report import digits
from experiments.report import peer_names
from experiments.report import suites
from fuser.errors import EnvironmentError_
from fuser.files import counted
from fuser.outputs import write_file

OURS = "#0072B2"
SLOWER = "#9EC5DE"
"""A bar that ends below the best peer."""
STYLES: Mapping[str, tuple[str, str]] = {
    "eager": ("#000000", "o"),
    "cublaslt": ("#999999", "P"),
    "inductor": ("#E69F00", "s"),
    "inductor-sdpa": ("#F0E442", "p"),
    "flash": ("#D55E00", "^"),
    "cudnn": ("#009E73", "D"),
    "flex": ("#CC79A7", "v"),
}
"""Colour (Okabe and Ito's, told apart by the colour-blind) and mark of each peer; shapes differ too."""
OTHER = ("#56B4E9", "X")
ROW, WIDTH, HEAD, FOOT = 0.27, 9.6, 0.95, 1.15
"""Inches: height of a case, width of the figure, room above and below."""
COLUMNS = ((1.145, "right"), (1.245, "right"), (1.41, "right"), (1.44, "left"), (1.985, "right"))
"""Where the columns of times stand, in widths of the axes, and to which side they are aligned."""
LARGEST = 3.0
"""Speeds beyond are cut off and marked with an arrow."""


def draw(found: Mapping[str, Any], folder: Path, name: str = "bench", suffix: str = "svg") -> list[Path]:
    """One figure for each suite, ``NAME.svg`` or, for several suites, ``NAME-SUITE.svg``; returns the files. Raises
    :class:`EnvironmentError_` without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise EnvironmentError_("drawing needs matplotlib, which is not installed", "pip install 'mufuser[plot]'") from error

    several = suites(found)
    paths = []
    settings: Any = {"svg.hashsalt": "mufuser", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 8}
    with matplotlib.rc_context(settings):
        for suite in several:
            cases = [c for c in found["cases"] if c["workload"].startswith(f"{suite}/") and relative(c)]
            if not cases:
                continue
            path = folder / (f"{name}.{suffix}" if len(several) == 1 else f"{name}-{suite}.{suffix}")
            # a date, or the version of the library, would make every drawing another file
            metadata = {"Date": None, "Creator": None} if suffix == "svg" else {}
            data = io.BytesIO()
            _figure(suite, cases, found).savefig(data, format=suffix, metadata=metadata, dpi=150)
            write_file(path, data.getvalue())
            paths.append(path)
    return paths


def relative(case: Mapping[str, Any]) -> dict[str, float]:
    """Speeds relative to the best peer, by peer, with ours as ``mufuser`` and the floor as ``floor``; empty without peers."""
    best = case["peers"][case["best_peer"]]["us"] if case["best_peer"] else None
    if not best:
        return {}
    times = {n: p["us"] for n, p in case["peers"].items()} | {"mufuser": case["us"], "floor": case["floor_us"]}
    return {n: best / t for n, t in times.items() if t}


def _figure(suite: str, cases: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    height = HEAD + FOOT + ROW * len(cases)
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.135, FOOT / height, 0.43, ROW * len(cases) / height))
    speeds = [relative(c) for c in cases]
    names = [n for n in peer_names(found) if any(n in s for s in speeds)]
    ours = [s.get("mufuser", 0.0) for s in speeds]
    right = min(LARGEST, 1.12 * max(1.1, *ours))
    rows = range(len(cases))
    colours = [OURS if s >= 1 else SLOWER for s in ours]
    axes.barh(rows, [min(s, right) for s in ours], height=0.66, color=colours, zorder=2)
    axes.axvline(1.0, color="#444444", linewidth=1.0, zorder=3)
    for i, speed in enumerate(speeds):
        for n in names:
            if n in speed:
                colour, mark = STYLES.get(n, OTHER)
                axes.scatter(
                    speed[n], i, s=22, marker=mark, color=colour, edgecolors="white", linewidths=0.5, zorder=5, clip_on=False
                )
        _limit(axes, i, speed.get("floor"), right)
    axes.set_xlim(0, right)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_yticks(list(rows), [c["workload"].partition("/")[2] for c in cases])
    axes.set_xlabel("speed relative to the best peer (1 = as fast; longer is faster)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _columns(axes, cases)
    _titles(figure, suite, cases, found, height)
    _legend(figure, names, height)
    return figure


def _limit(axes: Any, row: int, floor: float | None, right: float) -> None:
    """A stroke at the speed of the floor, or an arrow where that is off the scale."""
    if floor is None:
        return
    if floor <= right:
        axes.plot([floor, floor], [row - 0.4, row + 0.4], color="black", linewidth=1.6, zorder=4, solid_capstyle="butt")
    else:
        axes.plot([right], [row], marker=5, color="black", markersize=4, zorder=4, clip_on=False)


def _columns(axes: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    """Times beside the bars, in columns of their own so that nothing overlaps."""
    where = {"transform": axes.get_yaxis_transform(), "va": "center", "clip_on": False}
    heads = ("ours, µs", "×", "peer, µs", "best peer", "floor, µs")
    for (x, side), head in zip(COLUMNS, heads, strict=True):
        axes.text(x, -0.95, head, ha=side, color="#555555", **where)
    for i, c in enumerate(cases):
        bound = f" ({c['floor_bound']})" if c["floor_bound"] else ""
        best = c["best_peer"]
        cells = (digits(c["us"]), digits(c["speedup"]), digits(c["peers"][best]["us"]), best, f"{digits(c['floor_us'])}{bound}")
        for n, ((x, side), cell) in enumerate(zip(COLUMNS, cells, strict=True)):
            weight = "bold" if n < 2 and (c["speedup"] or 0) >= 1 else "normal"
            axes.text(x, i, cell, ha=side, weight=weight, color="#555555" if n == len(cells) - 1 else "black", **where)


def _titles(figure: Any, suite: str, cases: Sequence[Mapping[str, Any]], found: Mapping[str, Any], height: float) -> None:
    where = found["environment"]
    ratios = [c["speedup"] for c in cases if c["speedup"]]
    mean = f"geometric mean {geometric_mean(ratios):.2f} ×, " if ratios else ""
    figure.text(0.02, 1 - 0.22 / height, f"{suite} on {where.get('device', '?')}", size=11, weight="bold", va="center")
    faster = sum(r > 1 for r in ratios)
    text = f"{mean}faster than the best peer in {faster} of {counted(len(ratios), 'case')}"
    for n in peer_names(found):
        if missing := sum(n in c["peers"] and c["peers"][n]["us"] is None for c in cases):
            text += f"; {n} failed in {missing}"
    text += f"; torch {where.get('torch')}, Triton {where.get('triton')}"
    figure.text(0.02, 1 - 0.45 / height, text, color="#555555", va="center")


def _legend(figure: Any, names: Sequence[str], height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(shape: Any, colour: str, label: str, size: float = 6, **style: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=shape, color=colour, markersize=size, label=label, **style)

    bars: list[Any] = [Patch(color=OURS, label="mufuser"), Patch(color=SLOWER, label="mufuser, slower than the best peer")]
    bars += [mark("|", "black", "floor", 9, markeredgewidth=1.6), mark(5, "black", "floor beyond the scale", 4)]
    peers = [mark(STYLES.get(n, OTHER)[1], STYLES.get(n, OTHER)[0], n, markeredgecolor="white") for n in names]
    for handles, bottom in ((bars, 0.26), (peers, 0.04)):
        place = {"loc": "lower left", "bbox_to_anchor": (0.01, bottom / height)}
        figure.legend(handles=handles, ncols=len(handles), frameon=False, handletextpad=0.4, columnspacing=1.4, **place)
