"""Grouped horizontal bars as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from html import escape

COLOURS = ("#1b6ca8", "#bdbdbd", "#8c8c8c", "#e0a030", "#c8553d", "#6a994e", "#7b5ea7")
BAR, GAP, LEFT, WIDTH, TOP = 11, 12, 150, 640, 58


def bars(title: str, series: Sequence[str], groups: Sequence[tuple[str, Mapping[str, float]]], unit: str = "") -> str:
    """An SVG document: for each group ``(name, value by series)`` a bar for each value there is, all on one scale."""
    top = max((v for _, values in groups for v in values.values()), default=1.0) or 1.0
    y, body = TOP, []
    for name, values in groups:
        present = [s for s in series if s in values]
        body.append(_text(LEFT - 8, y + BAR * max(1, len(present)) / 2 + 4, name, anchor="end"))
        for s in present:
            width = WIDTH * values[s] / top
            colour = COLOURS[series.index(s) % len(COLOURS)]
            body.append(f'<rect x="{LEFT}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{BAR - 1}" fill="{colour}"/>')
            body.append(_text(LEFT + width + 4, y + BAR - 2, f"{values[s]:.3g}", size=9))
            y += BAR
        y += GAP if present else BAR + GAP
    legend, x = [], float(LEFT)
    for i, s in enumerate(series):
        legend.append(f'<rect x="{x:.1f}" y="32" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        legend.append(_text(x + 14, 41, s, size=11))
        x += 26 + 7 * len(s)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{y + 10:.0f}" font-family="sans-serif">'
    name = f"{title} ({unit})" if unit else title
    paper = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, paper, _text(8, 20, name, size=14), *legend, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
