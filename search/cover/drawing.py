"""A plan as a drawing (SVG): a box for each part with its operators, from above to below as tensors flow; the darker, the longer
it takes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from colorsys import hls_to_rgb
from xml.sax.saxutils import escape

from fuser.files import printable
from search.cover.plan import Kernels
from search.cover.plan import Plan

LINE, PAD, GAP_X, GAP_Y, CHARACTER = 16, 8, 28, 44, 7.2
"""Pixels: of a line of text, around the text of a box, between boxes, and of a character."""
LANE, ASIDE = 14, 12
"""Pixels: between lanes at the right, and of a turn from a box into its lane."""
MOST = 44
"""Characters of a line in a box."""


Edge = tuple[int, int, str]
Points = Mapping[int, tuple[float, float]]


def drawing(plan: Plan) -> str:
    """The whole text of an SVG file."""
    labels = {p.number: _label(p, plan) for p in plan.parts}
    sizes = {i: (CHARACTER * max(map(len, lines)) + 2 * PAD, LINE * len(lines) + 2 * PAD) for i, lines in labels.items()}
    writer = {t.name: p.number for p in plan.parts for t in p.writes}
    edges = [(writer[t.name], p.number, t.name) for p in plan.parts for t in p.reads if t.name in writer]
    rows = _rows(plan.parts, edges)
    row_of = {i: n for n, row in rows.items() for i in row}
    passing = [e for e in edges if row_of[e[1]] > row_of[e[0]] + 1]
    lanes = _lanes([(a, row_of[a], row_of[b]) for a, b, _ in passing])
    inner = max(sum(sizes[i][0] + GAP_X for i in row) for row in rows.values()) + GAP_X if rows else 2 * GAP_X
    places, bottoms, y = {}, {}, float(2 * LINE + GAP_Y)
    for n, row in rows.items():
        x = (inner - sum(sizes[i][0] + GAP_X for i in row) + GAP_X) / 2
        for i in row:
            places[i] = (x, y)
            x += sizes[i][0] + GAP_X
        bottoms[n] = y + max(sizes[i][1] for i in row)
        y = bottoms[n] + GAP_Y
    width = inner + LANE * len(set(lanes.values()))
    longest = max((p.us for p in plan.parts), default=0.0)
    title = _text(plan.title)
    width = max(width, CHARACTER * len(plan.title) + 2 * GAP_X)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y:.0f}" '
            f'viewBox="0 0 {width:.0f} {y:.0f}" font-family="monospace" font-size="12">',
            f"<title>{title}</title>",
            '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{y:.0f}" fill="white"/>',
            f'<text x="{GAP_X}" y="{2 * LINE}" font-weight="bold">{title}</text>',
            *(_edge(places, sizes, e) for e in edges if e not in passing),
            *(_around(places, sizes, e, bottoms[row_of[e[0]]], inner + LANE * lanes[e[0]]) for e in passing),
            *(_box(p, places[p.number], sizes[p.number], labels[p.number], longest) for p in plan.parts),
            "</svg>\n",
        ]
    )


def _rows(parts: Sequence[Kernels], edges: Sequence[Edge]) -> dict[int, list[int]]:
    """Parts by their distance from the inputs."""
    depth: dict[int, int] = {}
    for part in parts:  # in launch order: what is read is there before
        depth[part.number] = 1 + max((depth[a] for a, b, _ in edges if b == part.number), default=-1)
    rows: dict[int, list[int]] = {}
    for number, level in depth.items():
        rows.setdefault(level, []).append(number)
    return dict(sorted(rows.items()))


def _label(part: Kernels, plan: Plan) -> list[str]:
    """Lines of a box: kernels, operators, how its results lie, and its time."""
    share = f" ({part.us / plan.us:.1%})" if plan.us else ""
    kernels = [*(part.names or ("a view",))]
    kernels = kernels if len(kernels) <= 3 else [*kernels[:2], f"and {len(kernels) - 2} more"]
    time = f"{part.us:.2f} µs{share}" + (", a library's" if part.library else "")
    return [_cut(x) for x in (*kernels, part.title, *(f"→ {x}" for x in part.layouts[:3]), time)]


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def _text(text: str) -> str:
    return escape(printable(text))


def _box(part: Kernels, place: tuple[float, float], size: tuple[float, float], lines: Sequence[str], longest: float) -> str:
    (x, y), (w, h) = place, size
    share = part.us / longest if longest else 0.0
    rgb = hls_to_rgb((40 if part.library else 210) / 360, 0.97 - 0.32 * share, 0.6)
    fill = "#" + "".join(f"{round(255 * c):02x}" for c in rgb)  # viewers other than browsers draw hsl() black
    bold = ' font-weight="bold"'
    text = "".join(
        f'<tspan x="{x + PAD:.1f}" dy="{LINE}"{"" if i else bold}>{_text(line)}</tspan>' for i, line in enumerate(lines)
    )
    tip = _text(f"{', '.join(part.nodes)} of {', '.join(map(str, part.reads))}")
    return (
        f'<g><title>{tip}</title><rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4" '
        f'fill="{fill}" stroke="#333"/><text y="{y + PAD - 4:.1f}">{text}</text></g>'
    )


def _lanes(spans: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    """A lane for each part whose results pass rows (part, its row, a row that reads it): what shares rows has lanes of its own,
    and the shorter one is further inside."""
    reach: dict[int, tuple[int, int]] = {}
    for part, first, last in spans:
        reach[part] = (first, max(last, reach.get(part, (0, 0))[1]))
    found: dict[int, int] = {}
    for part, (first, last) in sorted(reach.items(), key=lambda e: (e[1][1] - e[1][0], e[1])):
        taken = {found[x] for x in found if reach[x][0] < last and first < reach[x][1]}
        found[part] = next(n for n in range(len(found) + 1) if n not in taken)
    return found


def _edge(places: Points, sizes: Points, edge: Edge) -> str:
    """Down to the next row."""
    a, b, name = edge
    x1, y1 = places[a][0] + sizes[a][0] / 2, places[a][1] + sizes[a][1]
    x2, y2 = places[b][0] + sizes[b][0] / 2, places[b][1]
    bend = (y2 - y1) / 2
    return _path(f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}", name)


def _around(places: Points, sizes: Points, edge: Edge, bottom: float, lane: float) -> str:
    """What passes rows goes around their boxes, in a lane at the right."""
    a, b, name = edge
    x1, y1 = places[a][0] + sizes[a][0] / 2 + ASIDE, places[a][1] + sizes[a][1]
    x2, y2 = places[b][0] + sizes[b][0] / 2 + ASIDE, places[b][1]
    out, back = bottom + ASIDE, y2 - GAP_Y / 2
    return _path(f"M{x1:.1f} {y1:.1f}V{out:.1f}H{lane:.1f}V{back:.1f}H{x2:.1f}V{y2:.1f}", name)


def _path(way: str, name: str) -> str:
    return f'<path d="{way}" fill="none" stroke="#777" marker-end="url(#end)"><title>{_text(name)}</title></path>'
