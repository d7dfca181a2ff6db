"""What a command prints: one document on stdout, all else (progress, notes, errors) on stderr."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import math
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.files import json_safe
from fuser.files import printable

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """A console on stdout; 80 columns where it is not a terminal."""
    from rich.console import Console

    return _unbroken(Console(file=sys.stdout, highlight=False))


def stderr() -> Console:
    """A console on stderr."""
    from rich.console import Console

    return _unbroken(Console(file=sys.stderr, highlight=False))


def _unbroken(console: Console) -> Console:
    """rich would end the process where nobody reads any more; here that is an error like any other."""
    console.on_broken_pipe = _closed
    return console


def _closed() -> None:
    raise BrokenPipeError(errno.EPIPE, "nobody reads what is printed")


def plain(value: Any) -> Any:
    """``value`` in the terms of JSON: data classes, sets, numpy numbers and paths converted, NaN and infinities as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, set | frozenset):
        return [plain(v) for v in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value


@contextmanager
def _printing() -> Iterator[None]:
    """What keeps stdout from being written, a full disk say, is said as that."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unprinted(error) from error


def unprinted(error: OSError) -> FuserError:
    """The error for an output that could not be written."""
    return EnvironmentError_(f"the output cannot be written: {error.strerror or error}", "redirect it to where there is room")


def print_json(document: Any) -> None:
    """The one document of a command with ``--json``, on stdout."""
    text = json_safe(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))
    with _printing():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def print_text(text: str) -> None:
    """Lines on stdout; control characters in them (of names in a file, say) as escapes."""
    with _printing():
        sys.stdout.write(printable(text, keep="\n\t") + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], notes: Sequence[str] = ()) -> None:
    """A table on stdout; a column whose name ends in ``>`` is aligned to the right. ``notes`` follow below it."""
    with _printing():
        _table(stdout(), title, columns, rows, notes)


def table_text(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], notes: Sequence[str] = (), width: int = 80
) -> str:
    """The same table as plain text of at most ``width`` columns."""
    from rich.console import Console

    text = io.StringIO()
    _table(Console(file=text, width=width, highlight=False, force_terminal=False, no_color=True), title, columns, rows, notes)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], notes: Sequence[str]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(printable(title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.endswith(">")
        table.add_column(escape(column.removesuffix(">").strip()), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape("" if cell is None else printable(str(cell), keep="\n")) for cell in row))
    console.print(table)
    for note_ in notes:
        console.print(printable(note_, keep="\n"), markup=False)


def note(text: str) -> None:
    """A line on stderr."""
    stderr().print(printable(text), markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """A warning on stderr."""
    _labelled("warning", "yellow", text)


_MESSAGE = 1000
"""Most characters of an error or a warning."""


def _labelled(label: str, style: str, text: str) -> None:
    from rich.text import Text

    stderr().print(Text.assemble((f"{label}: ", f"bold {style}"), printable(text, _MESSAGE)), soft_wrap=True)


def error_document(error: FuserError) -> dict[str, Any]:
    """What ``--json`` says of an error."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def render_error(error: FuserError) -> None:
    """``error: message`` and, where there is one, ``hint: …`` on stderr."""
    _labelled("error", "red", error.message)
    if error.hint:
        _labelled("hint", "cyan", error.hint)


@contextmanager
def progress(what: str, total: int | None = None, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Progress on stderr: yields a function that counts one step done and takes a text about it.

    A bar on a terminal; elsewhere a line for each tenth of the steps, so that a log stays short.
    """
    console = stderr()
    if quiet:
        yield lambda text="": None
    elif console.is_terminal:
        from rich.markup import escape
        from rich.progress import BarColumn
        from rich.progress import MofNCompleteColumn
        from rich.progress import Progress
        from rich.progress import TextColumn
        from rich.progress import TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)

            def step(text: str = "") -> None:
                bar.update(task, advance=1, description=escape(printable(f"{what}: {text}")) if text else what)

            yield step
    else:
        done = 0
        every = max(1, (total or 1) // 10)

        def line(text: str = "") -> None:
            nonlocal done
            done += 1
            if done % every == 0 or done == total:
                line_ = f"{what}: {done}{f'/{total}' if total else ''} {text}".rstrip()
                console.print(printable(line_), markup=False, soft_wrap=True)

        yield line


def time_text(seconds: float) -> str:
    """Seconds with a unit that suits them: ``12.3 µs``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bytes_text(count: float) -> str:
    """Bytes with a binary unit: ``163 KiB``."""
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.4g} B"


def rate_text(per_second: float, unit: str) -> str:
    """A rate with a decimal prefix: ``4.8 TB/s``, ``312 TFLOP/s``."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(per_second) >= scale:
            return f"{per_second / scale:.4g} {prefix}{unit}"
    return f"{per_second:.4g} {unit}"
