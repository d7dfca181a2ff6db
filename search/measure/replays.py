"""Times of whole calls as replays of CUDA graphs, all in turn, inside this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

ROUNDS, SECONDS = 7, 0.05
"""Rounds in which all contestants take turns, and how long each replays in one."""


def captured(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """The output of a call, and the replay of its CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may use the GPU meanwhile
        out = call()
    graph.replay()
    torch.cuda.synchronize()
    return out, graph.replay


def in_turn(
    replays: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS, seconds: float = SECONDS, least: int = 5
) -> dict[str, list[float]]:
    """Microseconds of a replay in each round, in turn; ``seconds`` is how long each replays in one, ``least`` how often."""
    import torch

    counts: dict[str, int] = {}
    for name, replay in replays.items():
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        replay()
        start.record()
        for _ in range(least):
            replay()
        end.record()
        torch.cuda.synchronize()
        counts[name] = max(least, int(seconds * 1e3 * least / start.elapsed_time(end)))
    found: dict[str, list[float]] = {n: [] for n in replays}
    for _ in range(rounds):
        for name, replay in replays.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            for _ in range(counts[name]):
                replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(1e3 * start.elapsed_time(end) / counts[name])
    return found


def medians(replays: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median microseconds of a replay over the rounds."""
    return {n: statistics.median(ts) for n, ts in in_turn(replays).items()}


def wall(call: Callable[[], Any], calls: int = 100, rounds: int = 5) -> float:
    """Microseconds of a call, of many in a row."""
    import torch

    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(found)
