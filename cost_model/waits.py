"""What a block waits for: trips of its loops, what pipelines fetch ahead, and loads that nothing hides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cost_model import streaming
from cost_model.execution import described
from cost_model.execution import flattened
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.lives import home
from cost_model.lives import real
from cost_model.resources import Resources
from cost_model.resources import layers_of
from cost_model.resources import unrolled
from cost_model.spreads import hoisted

LOAD_REGISTERS = 96.0
"""Registers of a thread that loads outside of a pipeline can fill before they are stored to shared memory."""

Add = Callable[..., None]
"""Adds amounts, given by name, to the counts of :class:`cost_model.work.Work`."""


def loops(f: Features, r: Resources, add: Add) -> None:
    """Trips, exposed latencies and what pipelines fetch ahead."""
    loops: dict[tuple[str, ...], Counts] = {}
    for s in f.stmts:
        around = real(f, s.loops)
        for depth in range(1, len(around) + 1):
            loops.setdefault(around[:depth], f.product(f.often, around[:depth]))
    for runs in loops.values():
        add(trips=runs)
    for around in loops if streaming.streams(f) else ():
        add(fetched=streaming.latencies(f, around))
    ahead: dict[tuple[str, ...], NDArray[np.bool_]] = {}
    boxes: dict[tuple[str, ...], NDArray[np.bool_]] = {}
    flat = flattened(f)
    for i, buffers in r.pipelined.items():
        around = home(f, i)
        boxes[around] = boxes.get(around, np.ones(len(f), np.bool_)) & described(f, f.stmts[i].stmt)
        ahead[around] = ahead.get(around, np.zeros(len(f), bool)) | (buffers > 0)
    grouped = split = np.zeros(len(f), bool)
    for d in r.dots.values():
        grouped = grouped | (d.groups & ~d.split)
        split = split | d.split
    for around, used in ahead.items():
        if not around:  # what one place loads is under way at once
            continue
        runs = np.where(used, f.product(f.often, around), 0.0)
        # fragments of two stages, and operands that threads split, have one buffer: the next trip is fetched when this one is
        # done; and nothing is fetched ahead by pointers into a place that another trip of the same loop may belong to
        alone = ((f.stages == 2) & ~grouped) | (flat & ~boxes.get(around, flat))
        # where the sum is waited for in each trip, so is what it loads, place after place
        once = alone & ~(flat & split)
        each = runs / np.where(alone, 1, np.maximum(f.stages - 1, 1))
        add(fetched=np.where(once, 0.0, each), unbuffered=np.where(once, runs, 0.0))
    _latencies(f, r, ahead, add)


def _latencies(f: Features, r: Resources, ahead: dict[tuple[str, ...], NDArray[np.bool_]], add: Add) -> None:
    """Loads that a block waits for. Between two loops all loads are under way early: those behind arithmetic, and the first
    loads of a pipeline that follows, cost less than the first ones."""
    seen: dict[tuple[tuple[str, ...], int], NDArray[np.bool_]] = {}
    passed: dict[tuple[str, ...], int] = {}
    group: dict[tuple[tuple[str, ...], int, int], list[tuple[Counts, Counts]]] = {}

    def wait(scope: tuple[str, ...], runs: Counts) -> None:
        key = scope, passed.get(scope, 0)
        before = seen.get(key, np.zeros(len(f), bool))
        add(waits=np.where(before, 0.0, runs), rewaits=np.where(before, runs, 0.0))
        seen[key] = before | (runs > 0)

    def flush() -> None:
        for (scope, _, _), loads in group.items():
            # a thread that loads more than its registers hold waits several times
            filled = np.maximum(sum(x for _, x in loads) / LOAD_REGISTERS, 1.0)
            wait(scope, np.maximum.reduce([x for x, _ in loads]) * filled)
        group.clear()

    layered = layers_of(f.block)
    if layered:
        later = float(max(layered.values()))
        add(trips=np.full(len(f), later + 1), fetched=np.where(f.stages > 1, later / np.maximum(f.stages - 1, 1), 0.0))
    wait((), np.where(ahead.get((), np.zeros(len(f), np.bool_)), 1.0, 0.0))
    around: tuple[str, ...] = ()
    waited: set[tuple[str, ...]] = set()
    computes = 0
    for i, s in enumerate(f.stmts):
        now = real(f, s.loops)
        common = next((d for d, (x, y) in enumerate(zip(around, now, strict=False)) if x != y), min(len(around), len(now)))
        if common < len(now) or common < len(around):
            flush()
        for depth in range(common, len(around)):
            passed[around[:depth]] = passed.get(around[:depth], 0) + 1
        for depth in range(common, len(now)):
            if now[: depth + 1] in ahead:
                wait(now[:depth], np.where(ahead[now[: depth + 1]], f.product(f.often, now[:depth]), 0.0))
        around = now
        computes += s.stmt.kind == "compute"
        if s.stmt.kind != "load":
            continue
        scope = home(f, i)
        plain = np.where(r.pipelined[i] > 0, 0.0, 1.0) if i in r.pipelined else np.ones(len(f))
        if layered.get(s.stmt.value, 0):
            plain = np.where(f.stages > 1, 0.0, plain)
        if not any(s.stmt.value in (d.left, d.right) for d in r.dots.values()):
            plain = np.where(hoisted(f, i), 0.0, plain)
        runs = plain * f.product(f.often, scope)
        if not r.dots and scope:
            add(streamed=runs, waits=streaming.in_turn(f, r.lanes, scope, runs) * (scope not in waited))
            waited.add(scope)
            continue
        if len(scope) == len(now):
            runs = runs * f.product(f.trips, unrolled(f, s))
        # a load by descriptor that no pipeline runs ahead is waited for at once
        alone = described(f, s.stmt)
        add(waits=np.where(alone, runs, 0.0))
        runs = np.where(alone, 0.0, runs)
        group.setdefault((scope, passed.get(scope, 0), computes), []).append((runs, plain * s.bytes / (128.0 * f.warps)))
    flush()
