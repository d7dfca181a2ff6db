"""Plans as drawings: what can be seen of tensors that pass other kernels."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fuser.ir.program import Tensor
from search.cover.drawing import drawing
from search.cover.plan import Kernels
from search.cover.plan import Plan

SVG = "{http://www.w3.org/2000/svg}"
PLANS = {
    "a chain with residuals": ["", "0", "01", "2", "23", "04"],
    "rows of several": ["", "", "0", "01", "123", "0", "45"],
    "all read the first": ["", "0", "01", "02", "03"],
}
"""What each part reads."""


def plan(reads: list[str]) -> Plan:
    parts = []
    for n, read in enumerate(reads):
        tensors = [Tensor(f"t{i}", (4,), "float16") for i in (*map(int, read), n)]
        name = f"kernel_{n}" * (1 + n % 3)
        parts.append(Kernels(n, (name,), 0, ("relu",), (f"t{n}",), tuple(tensors[:-1]), (tensors[-1],), ("4",), 1.0 + n, str(n)))
    return Plan("net", "device", tuple(parts), sum(p.us for p in parts))


def segments(way: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The straight lines of a path of vertical and horizontal ones."""
    x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", way).groups())  # type: ignore[union-attr]
    points = [(x, y)]
    for letter, to in re.findall(r"([VH])([\d.]+)", way):
        x, y = (x, float(to)) if letter == "V" else (float(to), y)
        points.append((x, y))
    return list(pairwise(points))


@pytest.mark.parametrize("name", PLANS)
def test_no_tensor_passes_behind_a_kernel(name: str) -> None:
    root = ElementTree.fromstring(drawing(plan(PLANS[name])))
    boxes = [
        tuple(float(r.get(k, "")) for k in ("x", "y", "width", "height"))
        for g in root.iter(f"{SVG}g")
        for r in g.iter(f"{SVG}rect")
    ]
    ways = [p.get("d", "") for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(ways) == sum(map(len, PLANS[name]))
    width = float(root.get("width", ""))
    around = [w for w in ways if "C" not in w]
    assert around
    for way in around:
        for (x1, y1), (x2, y2) in segments(way):
            assert max(x1, x2) < width
            for x, y, w, h in boxes:
                inside = min(x1, x2) < x + w and x < max(x1, x2) and min(y1, y2) < y + h and y < max(y1, y2)
                assert not inside, (way, (x, y, w, h))


def test_colours_are_those_that_every_viewer_knows() -> None:
    """Outside of browsers hsl() is drawn black."""
    root = ElementTree.fromstring(drawing(plan(PLANS[next(iter(PLANS))])))
    fills = {x.attrib["fill"] for x in root.iter() if "fill" in x.attrib}
    assert fills and all(f in ("none", "white") or re.fullmatch("#[0-9a-f]{3}|#[0-9a-f]{6}", f) for f in fills)
