"""What people see while a search runs: on a terminal a table that changes, elsewhere nothing."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any

from cost_model.floor import floor_seconds
from fuser.console import stderr
from fuser.console import time_text
from fuser.device import Device
from fuser.files import printable

if TYPE_CHECKING:
    from search.tuner.campaign import Campaign
    from search.tuner.hunt import Hunt

ROWS = 12
"""Programs that are shown at once: those that were heard of last."""
COLUMNS = ("", "predicted >", "best >", "floor >", "measured >", "failed >", "generation >")


@contextmanager
def live(device: Device, quiet: bool = False) -> Iterator[Callable[[Sequence[Hunt], Campaign], None]]:
    """A function that hears of every generation."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield lambda hunts, campaign: None
        return
    from rich.live import Live

    start = time.monotonic()
    heard: dict[int, None] = {}
    with Live(console=console, transient=True, auto_refresh=False) as shown:

        def watch(hunts: Sequence[Hunt], campaign: Campaign) -> None:
            heard.pop(campaign.current, None)
            heard[campaign.current] = None
            left = None if campaign.seconds is None else campaign.seconds - (time.monotonic() - start)
            shown.update(_table([hunts[i] for i in sorted(list(heard)[-ROWS:])], hunts, device, left), refresh=True)

        yield watch


def row(hunt: Hunt, device: Device) -> tuple[str, ...]:
    """A search as it stands, times in microseconds."""
    predicted = min(e.estimate for e in hunt.pool.entries.values())
    best = f"{hunt.seconds * 1e6:.2f}" if hunt.best else "-"
    floor = floor_seconds(hunt.program, device)
    failed = sum(hunt.failures.values())
    state = "done" if hunt.done else str(len(hunt.history))
    return (hunt.program.name, f"{predicted * 1e6:.2f}", best, f"{floor * 1e6:.2f}", str(len(hunt.times)), str(failed), state)


def counts_text(failures: Mapping[str, int]) -> str:
    """``13 failed (compile 9, wrong 4)``."""
    total = sum(failures.values())
    if not total:
        return "none failed"
    parts = sorted(failures.items(), key=lambda x: (-x[1], x[0]))
    return f"{total} failed ({', '.join(f'{what} {n}' for what, n in parts)})"


def _table(rows: Sequence[Hunt], hunts: Sequence[Hunt], device: Device, left: float | None) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    failures: Counter[str] = sum((h.failures for h in hunts), Counter())
    done, measured = sum(h.done for h in hunts), sum(len(h.times) for h in hunts)
    caption = f"{done} of {len(hunts)} done, {measured} measured, {counts_text(failures)}"
    if left is not None and math.isfinite(left):
        caption += f", {time_text(max(left, 0.0))} left"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=escape(caption), caption_justify="left")
    for column in COLUMNS:
        table.add_column(column.removesuffix(">").strip(), justify="right" if column.endswith(">") else "left", overflow="fold")
    for hunt in rows:
        table.add_row(*(escape(printable(cell)) for cell in row(hunt, device)))
    return table
