"""The command ``calibrate``: the cost model's constants, fitted to the GPU at hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import contextmanager
from dataclasses import asdict
from dataclasses import dataclass
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Annotated
from typing import Any

import typer

from cost_model.constants import UNITS
from cost_model.device_file import FILES
from cost_model.device_file import text
from cost_model.refined import check_device
from fuser import __version__
from fuser.arguments import LONGEST
from fuser.arguments import finite
from fuser.console import print_json
from fuser.console import print_table
from fuser.console import progress
from fuser.console import stderr
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.interrupts import Terminated
from fuser.outputs import make_folder
from fuser.outputs import write_file
from search.calibrate.describe import limits
from search.calibrate.fitting import LEAST_ROWS
from search.calibrate.fitting import Calibration
from search.calibrate.fitting import Quality
from search.calibrate.pretended import Pretending
from search.calibrate.pretended import errors
from search.calibrate.pretended import pretending
from search.calibrate.pretended import truth
from search.calibrate.programs import DRAWS
from search.calibrate.run import COMPILE_SECONDS
from search.calibrate.run import ROUNDS
from search.calibrate.run import RUN
from search.calibrate.run import Asked
from search.calibrate.run import Progress
from search.calibrate.run import base_for
from search.calibrate.run import device_in
from search.calibrate.run import fitted_to
from search.calibrate.run import measure
from search.measure.known import SUFFIXES
from search.measure.known import load
from search.measure.machine import gpu_at_hand
from search.measure.measurer import Bench
from search.measure.records import Records
from search.tuner.live import counts_text

ROWS = ".rows.sqlite"
"""Behind the name of the device file: the rows that it was fitted to."""


def calibrate(
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Device file to write (.toml, .json). [NAME.toml]")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="DEVICE", help="What to begin with; by default the GPU, or one like it."),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", min=10.0, max=LONGEST, callback=finite, metavar="SECONDS", help="Of all of it.")
    ] = 300.0,
    source: Annotated[
        list[Path] | None, typer.Option("--from", metavar="ROWS", help="Fit to these rows, of records too; needs no GPU.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31, metavar="N", help="Of what is drawn.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", min=1, max=1024, metavar="N", help="Processes that compile; by default all cores."),
    ] = None,
    simulate: Annotated[
        int | None, typer.Option("--simulate", min=0, metavar="SEED", help="A made-up GPU, to try it without one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure the GPU at hand and fit the cost model's constants to it.

    Rates of memory and tensor cores, what a launch costs, and schedules of programs that are drawn give a device file, which
    every --target takes. Rows are kept beside it: the same command goes on where an earlier one ended.
    """
    if source and simulate is not None:
        raise UsageError("--from and --simulate exclude each other", "rows are of a GPU or of a made-up one")
    if out is not None and not out.name.endswith(FILES):
        raise UsageError(f"{str(out)!r} is no name of a device file", f"it ends in {' or '.join(FILES)}")
    quiet = json or not stderr().is_terminal
    start = time.monotonic()
    about = {"mufuser": __version__, "seed": str(seed), "date": datetime.now(UTC).date().isoformat()}
    if source:
        done = _refitted(source, base or "", out, about)
    else:
        asked = _pretended(base, simulate, budget, seed) if simulate is not None else _at_hand(base or "", budget, seed)
        done = _measured(asked, out, base or "", jobs, about, quiet)
    write_file(done.place, text(done.made.device, done.place.name))
    seconds = time.monotonic() - start
    if json:
        print_json(_document(done, seconds))
    else:
        _show(done, seconds)


@dataclass(frozen=True)
class _Done:
    """``kept`` is where new rows are, ``counts`` are all by their status, ``true`` the device that was pretended."""

    made: Calibration
    place: Path
    kept: Path | None
    counts: Counter[str]
    true: Device | None = None


def _refitted(sources: Sequence[Path], base: str, out: Path | None, about: Mapping[str, str]) -> _Done:
    """Of rows that are there."""
    if out is not None:
        _writable(out)
    with Records(":memory:") as records:
        _read(records, sources)
        made = fitted_to(records, device_in(records, base), base, about)
        return _Done(made, out or Path(f"{made.device.name}.toml"), None, _counts(records, made.device))


def _measured(asked: Asked, out: Path | None, base: str, jobs: int | None, about: Mapping[str, str], quiet: bool) -> _Done:
    """Of the GPU at hand, or a made-up one."""
    check_device(asked.base)
    place = _writable(out or Path(f"{asked.device.name}.toml"))
    kept = place.with_suffix(ROWS)
    with Records(kept) as records:
        with _stopped(records, kept), _bench(asked, records, jobs) as bench:
            measure(bench, asked, _progress(quiet))
            with progress("fitting", len(DRAWS), quiet) as step:

                def each(work: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
                    for found in bench.each(work, jobs):
                        step("without each kind of program")
                        yield found

                made = fitted_to(records, asked.title, base, about, each)
        counts = _counts(records, made.device)
    return _Done(made, place, kept, counts, None if asked.pretended is None else truth(asked.base, asked.pretended))


def _writable(place: Path) -> Path:
    """A place for the device file. Raises :class:`UsageError` where it cannot be one, before there is much to lose."""
    make_folder(place.parent)
    if place.is_dir():
        raise UsageError(f"cannot write {place}: it is a folder", "give the name of a file")
    return place


def _pretended(base: str | None, simulate: int, budget: float, seed: int) -> Asked:
    device = load_device(base or "h200")
    worker = Pretending(device, simulate)
    return Asked(device, worker.truth.title, worker.limits(), budget, seed, simulate)


def _at_hand(base: str, budget: float, seed: int) -> Asked:
    """Raises :class:`EnvironmentError_` where there is no GPU."""
    found = gpu_at_hand()
    if found is None:
        raise EnvironmentError_(
            "mufuser calibrate measures on a GPU, and there is none here",
            "--from ROWS fits to rows of another machine (or of mufuser records); --simulate 0 shows what it does",
        )
    title, arch = found
    return Asked(base_for(title, arch, base), title, limits(), budget, seed)


def _bench(asked: Asked, records: Records, jobs: int | None) -> Bench:
    if asked.pretended is not None:
        return pretending(asked.base, asked.pretended, records, jobs, RUN)
    bench = Bench.open("cuda", records, ROUNDS, jobs, RUN)
    bench.pool.seconds = COMPILE_SECONDS
    return bench


def _progress(quiet: bool) -> Progress:
    def stage(what: str, steps: int) -> AbstractContextManager[Any]:
        return progress(what, steps, quiet)

    return stage


@contextmanager
def _stopped(records: Records, kept: Path) -> Iterator[None]:
    """What an interruption says."""
    try:
        yield
    except KeyboardInterrupt as error:
        ok = sum(1 for _ in records.rows(kind="kernel", status="ok"))
        stop = Terminated if isinstance(error, Terminated) else KeyboardInterrupt
        more = f", --from {kept} fits to them" if ok >= LEAST_ROWS else ""
        raise stop(f"{ok} rows are kept in {kept}: the same command goes on{more}") from None


def _read(records: Records, sources: Sequence[Path]) -> None:
    """Rows of files of lines, folders of them, and stores."""
    for place in sources:
        if place.is_dir() or place.name.endswith(SUFFIXES):
            load(records, [place])
        elif place.is_file():
            with Records(place, reading=True) as other:
                records.merge(other)
        else:
            raise UsageError(f"there are no rows {place}", "give a file of records (SQLite), of JSON lines, or a folder of those")


def _counts(records: Records, device: Device) -> Counter[str]:
    return Counter(r.status for r in records.rows(kind="kernel", device=device.title))


# -- what is shown ------------------------------------------------------------------------------------------------------------


def _rows(made: Calibration, true: Device | None) -> list[dict[str, Any]]:
    away = errors(made.device, true) if true else {}
    found = []
    for name, after in made.device.constants:
        doubt, bound = made.fitted.doubt.get(name), name in made.fitted.bounded
        row = {"name": name, "unit": UNITS[name][0], "before": getattr(made.before, name), "after": after}
        found.append(row | {"doubt": doubt, "on_bound": bound, **({"error": away[name]} if name in away else {})})
    return found


def _document(done: _Done, seconds: float) -> dict[str, Any]:
    made = done.made
    return {
        "file": str(done.place),
        "rows_file": str(done.kept) if done.kept else None,
        "device": made.device.name,
        "seconds": seconds,
        "rows": dict(done.counts),
        "constants": _rows(made, done.true),
        "quality": [asdict(q) for q in (made.overall, *made.families)],
        "on_bound": list(made.fitted.bounded),
        "little_said_of": list(made.unsaid),
        "calibration": dict(made.device.fit),
    }


def _value(value: float, unit: str) -> str:
    return f"{1e9 * value:.4g} ns" if unit == "s" else f"{value:.4g} {unit if unit != '1' else ''}".rstrip()


def _show(done: _Done, seconds: float) -> None:
    made, counts, true = done.made, done.counts, done.true
    rows = []
    for r in _rows(made, true):
        doubt = "not fitted" if r["doubt"] is None else f"{100 * r['doubt']:.0f} %"
        cells = (r["name"], _value(r["before"], r["unit"]), _value(r["after"], r["unit"]), doubt, "yes" if r["on_bound"] else "")
        rows.append((*cells, *([f"{100 * r['error']:+.0f} %" if "error" in r else ""] if true else [])))
    heads = ("constant", "before >", "after >", "± >", "on a bound", *(["error >"] if true else []))
    notes = [f"on a bound: {', '.join(made.fitted.bounded) or 'none'}"]
    if made.unsaid:
        notes.append(f"of these the rows say little, they stay near what they were: {', '.join(made.unsaid)}")
    print_table(f"constants of {made.device.title}", heads, rows, notes)
    lines = [_line(q) for q in (*made.families, made.overall)]
    heads = ("held out", "programs >", "rows >", "regret >", "before >", "rank corr. >", "before >")
    failed = Counter({k: n for k, n in counts.items() if k != "ok"})
    notes = [f"{counts['ok']} schedules measured, {counts_text(failed)}; {seconds:.0f} s"]
    notes += [f"rows: {done.kept}"] if done.kept else []
    print_table("the model's choice", heads, lines, [*notes, f"written: mufuser tune mcfuser/S2 --target {done.place}"])


def _line(q: Quality) -> tuple[str, ...]:
    regrets, ranks = (q.regret, q.regret_before), (q.correlation, q.correlation_before)
    name = q.family.removeprefix("calibrate/")
    return (name, str(q.programs), str(q.rows), *(f"{x:.3f}" for x in regrets), *(f"{x:.2f}" for x in ranks))
