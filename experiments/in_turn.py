"""Processes of a run that wait for one another: who takes a case, and who may use the GPU."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def alone(folder: Path, name: str = "lock") -> Iterator[None]:
    """Nobody else of a run is in here meanwhile."""
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def choosing_alone(folder: Path) -> None:
    """From now on torch's compiler times what it chooses among while no other process of the run does, and so do we: kernels of a
    few microseconds that were timed beside others' were chosen by chance, for us and for the peer."""
    from torch._inductor.runtime import benchmarking

    from search.measure import replays

    inside = False

    def by_itself(real: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return real(*args, **kwargs)
            with alone(folder, "choosing"):
                inside = True
                try:
                    return real(*args, **kwargs)
                finally:
                    inside = False

        return timed

    timer: Any = type(benchmarking.benchmarker)
    timer.benchmark_gpu = by_itself(timer.benchmark_gpu)
    replays.in_turn = by_itself(replays.in_turn)


def claimed(path: Path) -> bool:
    """Whether this process is the first that asks."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
