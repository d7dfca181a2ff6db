"""Where programs stand under a device's roofs, and how what was measured compares with what the model says, as a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cost_model.floor import contraction_flops
from cost_model.floor import nbytes
from fuser.device import Device
from fuser.errors import FuserError
from fuser.files import counted
from fuser.ir.composites import expand
from fuser.ir.program import TensorProgram
from search.figures import BLUE
from search.figures import GREEN
from search.figures import GREY
from search.figures import RED
from search.figures import drawn
from search.measure.records import Records
from search.tune import graph_seconds
from search.tuner.memory import Memory
from search.tuner.memory import sources_of

MOST = 200
"""Measurements of one program that are shown at most, the fastest ones."""
NAMED = 24
"""Programs that are named in the figure at most."""
BAND = 1.25
"""Times too fast or too slow by the model that count as near."""


@dataclass(frozen=True)
class Point:
    """A program: predicted seconds of its winner, measured ones of the fastest known (NaN: nobody measured it), and both of all
    that were measured."""

    name: str
    program: TensorProgram
    predicted: float
    measured: float = math.nan
    pairs: tuple[tuple[float, float], ...] = ()


def point(name: str, program: TensorProgram, predicted: float, memory: Memory | None, device: Device) -> Point:
    """A program with what records say of it."""
    pairs: list[tuple[float, float]] = []
    for records, rows in sources_of(memory, program, device) if memory else ():
        pairs += _pairs(records, sorted((r for r in rows if r.ok and r.time_us), key=lambda r: r.time_us or 0.0)[:MOST], device)
    return Point(name, program, predicted, min((m for _, m in pairs), default=math.nan), tuple(pairs))


def _pairs(records: Records, rows: Sequence[Any], device: Device) -> list[tuple[float, float]]:
    found = []
    for row in rows:
        with suppress(FuserError, KeyError):  # structures and options that are not what they were
            candidate = records.candidate(row)
            seconds = graph_seconds(candidate, device) if candidate else math.inf
            if math.isfinite(seconds):
                found.append((seconds, row.time_us * 1e-6))
    return found


def flops(program: TensorProgram) -> float:
    """Of contractions and of everything else, as the op table counts it."""
    total = float(contraction_flops(program))
    simple = expand(program)
    for node in simple.nodes:
        if node.entry.kind != "contract":
            total += node.entry.flops * max(math.prod(simple[n].shape) for n in (*node.inputs, node.output))
    return max(total, 1.0)


def draw_roofline(points: Sequence[Point], device: Device, path: Path) -> None:
    """Writes the figure: the roofline, and beside it predicted over measured times where there are any."""
    compared = any(p.pairs for p in points)

    def fill(figure: Any) -> None:
        axes = figure.subplots(1, 1 + compared, squeeze=False)[0]
        _roofs(axes[0], points, device)
        if compared:
            _compared(axes[1], points)
        figure.suptitle(device.title, x=0.01, ha="left", fontsize=9)

    drawn(path, (5.2 * (1 + compared), 4.2), fill)


def _roofs(axes: Any, points: Sequence[Point], device: Device) -> None:
    work = {p.name: (flops(p.program) / nbytes(p.program), flops(p.program)) for p in points}
    dtypes = sorted({p.program[p.program.outputs[0]].dtype for p in points} & {"float16", "bfloat16", "float32"})
    peaks = {f"{d} products": device.matmul_flops(d) for d in dtypes} | {"fp32": device.fp32_flops}
    highest = max(peaks.values())
    balance = highest / device.memory_bandwidth
    low = min([balance, *(x for x, _ in work.values())]) / 3
    high = max([balance, *(x for x, _ in work.values())]) * 3
    x = np.geomspace(low, high, 100)
    axes.plot(x, np.minimum(x * device.memory_bandwidth, highest) / 1e12, color="black", linewidth=1.2)
    label(axes, f"{device.memory_bandwidth / 1e12:.3g} TB/s", low * 1.15, low * 1.15 * device.memory_bandwidth / 1e12, (4, -10))
    for name, rate in peaks.items():
        beyond = x[x * device.memory_bandwidth >= rate]
        axes.plot(beyond, np.full(len(beyond), rate / 1e12), color=GREY, linewidth=0.8)
        label(axes, f"{name} {rate / 1e12:.4g}", beyond[0] if len(beyond) else high, rate / 1e12, (-2, 3), ha="right")
    named: list[tuple[float, float]] = []
    for p in sorted(points, key=lambda p: work[p.name][1] / p.predicted):
        intensity, count = work[p.name]
        top = count / p.predicted / 1e12
        axes.plot(intensity, top, "o", mfc="none", mec=BLUE, label="predicted")
        if math.isfinite(p.measured):
            axes.plot(intensity, count / p.measured / 1e12, "o", color=RED, markersize=4, label="measured")
        if len(points) <= NAMED:
            crowd = sum(abs(math.log(intensity / x)) < 1.5 and abs(math.log(top / y)) < 0.2 for x, y in named)
            label(axes, p.name, intensity, top, (6, -3 + 8 * crowd))
            named.append((intensity, top))
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte of inputs and outputs", ylabel="TFLOP/s", xlim=(low, high))
    _plain(axes)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), fontsize=7, frameon=False, loc="lower right")


def _plain(axes: Any) -> None:
    """Numbers at the ticks as they are, also where an axis has less than a decade."""
    from matplotlib.ticker import LogFormatter

    for axis in (axes.xaxis, axes.yaxis):
        for set_ in (axis.set_major_formatter, axis.set_minor_formatter):
            set_(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.6)))


def label(axes: Any, text: str, x: float, y: float, offset: tuple[float, float], **options: Any) -> None:
    """A text beside a place, ``offset`` in points."""
    axes.annotate(text, (x, y), offset, textcoords="offset points", fontsize=6.5, **options)


def _compared(axes: Any, points: Sequence[Point]) -> None:
    pairs = np.array([x for p in points for x in p.pairs]) * 1e6
    low, high = pairs.min() / 1.3, pairs.max() * 1.3
    line = np.array([low, high])
    axes.fill_between(line, line / BAND, line * BAND, color=GREEN, alpha=0.12, linewidth=0)
    axes.plot(line, line, color="black", linewidth=0.8)
    for p in points:
        if p.pairs:
            found = np.array(p.pairs) * 1e6
            axes.plot(found[:, 1], found[:, 0], ".", markersize=5, alpha=0.7, label=p.name)
    error = np.log(pairs[:, 0] / pairs[:, 1])
    near = float((np.abs(error) <= math.log(BAND)).mean())
    spread = f"root mean square {np.sqrt((error**2).mean()):.0%}"
    axes.set_title(f"{counted(len(pairs), 'schedule')}, {near:.0%} within {BAND:g} ×, {spread}", fontsize=8, loc="left")
    axes.set(xscale="log", yscale="log", xlabel="measured µs", ylabel="predicted µs", xlim=(low, high), ylim=(low, high))
    _plain(axes)
    if sum(bool(p.pairs) for p in points) <= NAMED:
        axes.legend(fontsize=6, frameon=False, loc="upper left", ncols=2)
