"""What people see while a search runs: on a terminal a table that changes, elsewhere nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from typing import Any

from fuser.console import stderr
from fuser.device import Device
from fuser.files import printable

if TYPE_CHECKING:
    from search.tuner.campaign import Campaign
    from search.tuner.hunt import Hunt

ROWS = 12
"""Programs that are shown at once: those that were heard of last."""
COLUMNS = ("", "predicted >", "best >", "floor >", "measured >", "failed >", "generation >")


@contextmanager
def live(device: Device, quiet: bool = False) -> Iterator[Callable[[Sequence[Hunt], Campaign | str], None]]:
    """A function that hears of every stage and generation."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield lambda hunts, campaign: None
        return
    from rich.live import Live
    from rich.text import Text

    start = time.monotonic()
    heard: dict[int, None] = {}
    with Live(console=console, transient=True, auto_refresh=False) as shown:

        def watch(hunts: Sequence[Hunt], campaign: Campaign | str) -> None:
            if isinstance(campaign, str):
                shown.update(Text(f"{printable(campaign)} …", overflow="ellipsis", no_wrap=True), refresh=True)
                return
            heard.pop(campaign.current, None)
            heard[campaign.current] = None
            rows = [hunts[i] for i in sorted(list(heard)[-ROWS:])]
            shown.update(_table(rows, device, caption(hunts, campaign, time.monotonic() - start)), refresh=True)

        yield watch


def caption(hunts: Sequence[Hunt], campaign: Campaign, seconds: float) -> str:
    """The stage, how many are done, what was measured, what failed, and the time."""
    failures: Counter[str] = sum((h.failures for h in hunts), Counter())
    done, measured = sum(h.done for h in hunts), sum(len(h.times) for h in hunts)
    left = f"{campaign.left:.0f} s left" if campaign.left is not None else f"{seconds:.0f} s so far"
    return f"{campaign.stage}: {done} of {len(hunts)} done, {measured} measured, {counts_text(failures)}, {left}"


def row(hunt: Hunt, device: Device) -> tuple[str, ...]:
    """A search as it stands, times in microseconds."""
    predicted = min(e.estimate for e in list(hunt.pool.entries.values()))  # a search may think at the same time
    best = f"{hunt.seconds * 1e6:.2f}" if hunt.best else "-"
    from cost_model.floor import floor_seconds  # nobody looks at what is taken from records

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


def _table(rows: Sequence[Hunt], device: Device, below: str) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=escape(below), caption_justify="left")
    for column in COLUMNS:
        table.add_column(column.removesuffix(">").strip(), justify="right" if column.endswith(">") else "left", overflow="fold")
    for hunt in rows:
        table.add_row(*(escape(printable(cell)) for cell in row(hunt, device)))
    return table
