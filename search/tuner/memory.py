"""What is known of a program before anybody searches: winners and measurements in the user's records, and in files that are
shipped with this package or with an application."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fuser.console import warn
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.files import shown
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.kept import text_hash
from fuser.lower.assembler import compiler
from fuser.lower.compile import cache_dir
from search.measure.careful import Careful
from search.measure.known import PACKAGED
from search.measure.known import SUFFIXES
from search.measure.known import files_of
from search.measure.known import load
from search.measure.lines import BAD_LINE
from search.measure.lines import unpacked
from search.measure.planned import unusable
from search.measure.planned import within_limits
from search.measure.records import Records
from search.measure.rows import Record
from search.measure.store import OWN
from search.measure.versions import BESIDE
from search.measure.versions import calls_libraries
from search.measure.versions import libraries
from search.measure.versions import libraries_of
from search.measure.versions import same_compiler
from search.measure.versions import same_libraries
from search.measure.versions import with_libraries
from search.measure.winners import WINNERS
from search.measure.winners import Winner
from search.ranked import Effort
from search.ranked import Ranked

PACKAGE = "the package"
"""The origin of what this package brings."""
GENERATED, LIBRARY = "", "library"
"""Scopes of a choice: every kernel is generated, or products may be left to a library. There are others for what a caller
restricts in ways of his own; rows of single measurements say nothing about those."""
LIBRARIES = (LIBRARY, "superoptimized")
"""First words of scopes in which libraries may do products."""


def made_for(scope: str) -> str:
    """By what winners are known that were chosen in a scope: what libraries took has a part in that."""
    return with_libraries(compiler()) if scope.split(" ", maxsplit=1)[0] in LIBRARIES else compiler()


def program_key(program: TensorProgram) -> str:
    """By what rows and winners know a program."""
    return program.stable_hash()[:16]


def names_of(device: Device) -> tuple[str, ...]:
    """The names by which rows know a device; a hypothetical one is another with every other number."""
    if device.hypothetical:
        return (f"{device.title} {text_hash(repr(device))[:12]}",)
    return tuple(dict.fromkeys((device.title, *device.aliases)))


@dataclass(frozen=True)
class Known:
    """A candidate that was measured, in seconds. ``origin`` is where that is written; ``winner`` what its search said, if it
    was searched to the end."""

    ranked: Ranked
    origin: str
    winner: Winner | None = None


@dataclass
class Memory:
    """``records`` are the user's (None: nothing is read or kept), ``files`` those that are shipped. ``simulated`` marks times of
    a device that does not exist: they are kept apart from all others."""

    records: Records | None = None
    files: tuple[Path, ...] = ()
    simulated: str = ""
    misses: list[str] = field(default_factory=list)

    def device_name(self, device: Device) -> str:
        name = names_of(device)[0]
        return f"simulated {name} {self.simulated}" if self.simulated else name

    def find(self, program: TensorProgram, device: Device, scope: str, effort: Effort) -> Known | None:
        """What an effort needs not search for: the winner of a search as far as this or, for ``instant``, the fastest of all that
        was measured. ``misses`` says afterwards why what looks like it is not used."""
        self.misses.clear()
        known = None if self.records is None else self._won(program, device, scope, effort)
        searched = known is not None and known.winner is not None and known.winner.reach[0] > 0
        if searched or effort.name != "instant" or scope not in (GENERATED, LIBRARY):
            return known
        found = [known] if known else []
        sources: list[tuple[str, Records]] = [] if self.records is None else [(str(self.records.path), self.records)]
        sources += [(PACKAGE if f == PACKAGED else str(f), shipped(f)) for f in self._brought(program)]
        told: set[tuple[str, ...]] = set()  # the user's own rows come first: what failed or was slow here is so
        for origin, records in sources:
            rows = rows_of(records, program, self._names(device))
            for row in _fastest(rows):
                candidate = self._usable(records, row, scope) if _kernels(row) not in told else None
                if candidate is not None and row.time_us:
                    found.append(Known(Ranked(candidate, _estimate(candidate, device), row.time_us * 1e-6), origin))
                    break
            told |= {_kernels(r) for r in rows}
        return min(found, key=lambda k: k.ranked.measured or math.inf, default=None)

    def knows(self, device: Device, effort: Effort) -> bool:
        """Whether there is a winner of any program that the effort would take on a device."""
        title, wanted = self.device_name(device), _rank(effort)
        winners = [] if self.records is None else self.records.winners(device=title)
        return any(w.reach[0] >= wanted and same_compiler(w.compiler) for w in winners)

    def _brought(self, program: TensorProgram) -> list[Path]:
        """The shipped files that may know a program; none of their times is a simulated one."""
        return [] if self.simulated else naming(program, self.files)

    def candidates(self, program: TensorProgram, device: Device, count: int) -> list[Candidate]:
        """The fastest that anybody knows: what a search begins with."""
        found: dict[Candidate, None] = {}
        sources = [*([] if self.records is None else [self.records]), *map(shipped, self._brought(program))]
        for records in sources:
            for row in list(fastest(records, program, self._names(device)))[:count]:
                with suppress(FuserError):
                    if (candidate := records.candidate(row)) and within_limits(candidate):
                        found[candidate] = None
        return list(found)

    def keep(self, winner: Winner, candidate: Candidate) -> None:
        """What a search ended with; one that did not get as far as an earlier one takes its place only where it is faster."""
        if self.records is None:
            return
        like = {n: getattr(winner, n) for n in WINNERS.key if n != "compiler"}
        for before in self.records.winners(**like):
            if before.reach > winner.reach and same_compiler(before.compiler) and not self._unfit(before)[1]:
                if before.time_us <= winner.time_us:
                    return
                winner = replace(winner, effort=before.effort, why=before.why, seconds=before.seconds)
        self.records.add_winner(winner, candidate.graph)

    # -- parts --------------------------------------------------------------------------------------------------------------

    def _names(self, device: Device) -> tuple[str, ...]:
        return (self.device_name(device),) if self.simulated else names_of(device)

    def _won(self, program: TensorProgram, device: Device, scope: str, effort: Effort) -> Known | None:
        assert self.records is not None
        key, title = program_key(program), self.device_name(device)
        wanted = _rank(effort), effort.seconds or 0.0
        found: list[tuple[Winner, Candidate]] = []
        for w in self.records.winners(program=key):
            why = ""
            if w.device != title:
                why = f"it is of {w.device}"
            elif not same_compiler(w.compiler):
                why = f"it was compiled by {w.compiler}, here is {compiler() or 'no compiler'}"
            elif w.scope != scope and (w.scope, scope) != (LIBRARY, GENERATED):
                why = f"it was chosen among others ({w.scope or 'generated kernels alone'})"
            elif not w.time_us > 0:
                why = "its time is none"
            elif w.reach < wanted:
                so_long = f" for {w.reach[1]:.3g} s" if w.why == "budget" and w.effort else ""
                why = f"it was searched with the effort {w.effort.partition(':')[0] or 'interrupted'}{so_long}"
            else:
                candidate, why = self._unfit(w, scope)
                if candidate and not why:
                    found.append((w, candidate))
                    continue
            self.misses.append(f"winner of {w.timestamp or 'some day'} ({w.time_us:.2f} µs) is not used: {why}")
        if not found:
            return None
        w, candidate = max(found, key=lambda x: (x[0].reach, -x[0].time_us))
        return Known(Ranked(candidate, w.estimate_us * 1e-6, w.time_us * 1e-6), str(self.records.path), w)

    def _unfit(self, w: Winner, scope: str = LIBRARY) -> tuple[Candidate | None, str]:
        """The candidate of a winner, and why it is not what would run here."""
        assert self.records is not None
        graph = self.records.structure(w.structure)
        if graph is None:
            return None, "its structure is lost"
        try:
            candidate = Candidate(graph, _schedule(w))
            why = unusable(candidate, w.source)
        except FuserError as error:
            return None, error.message
        if scope == GENERATED and calls_libraries(candidate):
            return candidate, "a library does some of its products"
        if why:
            return candidate, why
        same = {"structure": w.structure, "schedule": w.schedule, "source": w.source}
        rows = list(self.records.rows(program=w.program, device=w.device, **same))
        if bad := next((r for r in rows if not r.ok), None):
            return candidate, f"it failed when it was measured again ({bad.status})"
        beside = w.compiler.partition(BESIDE)[2] or next(filter(None, map(libraries_of, rows)), "")
        if ((BESIDE in w.compiler and scope != GENERATED) or calls_libraries(candidate)) and not same_libraries(beside):
            return candidate, f"it was chosen beside {beside or 'libraries of unknown versions'}, here are {libraries()}"
        return candidate, ""

    def _usable(self, records: Records, row: Record, scope: str) -> Candidate | None:
        """The candidate of a row, if it is what would run here."""
        why = ""
        candidate = None
        if not same_compiler(row.compiler):
            why = f"it was compiled by {row.compiler}, here is {compiler() or 'no compiler'}"
        else:
            try:
                candidate = records.candidate(row)
            except FuserError as error:
                why = error.message
            if candidate is None:
                why = why or "its structure is lost"
            elif scope == GENERATED and calls_libraries(candidate):
                why = "a library does some of its products"
            elif found := unusable(candidate, row.source):
                why = found
            elif calls_libraries(candidate) and not same_libraries(libraries_of(row)):
                why = f"libraries do some of it: it was timed with {libraries_of(row) or 'unknown ones'}, here are {libraries()}"
        if why:
            self.misses.append(f"row of {row.timestamp or 'some day'} ({row.time_us:.2f} µs) is not used: {why}")
            return None
        return candidate


def _estimate(candidate: Candidate, device: Device) -> float:
    from search.tune import graph_seconds  # the model: rows of single measurements alone need it

    return graph_seconds(candidate, device)


def _rank(effort: Effort) -> int:
    return ("instant", "quick", "full").index(effort.name)


def fastest(records: Records, program: TensorProgram, devices: Iterable[str]) -> Iterator[Record]:
    """Correct rows of a program, the fastest first, of candidates that never failed."""
    return _fastest(rows_of(records, program, devices))


def rows_of(records: Records, program: TensorProgram, devices: Iterable[str]) -> list[Record]:
    return [r for d in devices for r in records.rows(program=program_key(program), device=d, kind="kernel")]


def _fastest(rows: Sequence[Record]) -> Iterator[Record]:
    failed = {_kernels(r) for r in rows if not r.ok}
    good = (r for r in rows if r.ok and r.time_us and r.time_us > 0 and _kernels(r) not in failed)
    return iter(sorted(good, key=lambda r: r.time_us or 0.0))


def _kernels(row: Record) -> tuple[str, str, str]:
    """What a row is about, whoever measured it."""
    return row.structure, row.schedule, row.source


def sources_of(memory: Memory, program: TensorProgram, device: Device) -> Iterator[tuple[Records, list[Record]]]:
    """All rows of a program on a device: the user's records with theirs, and those that are shipped."""
    mine = [] if memory.records is None else [memory.records]
    for records in (*mine, *map(shipped, naming(program, memory.files))):
        yield records, rows_of(records, program, names_of(device))


def _schedule(winner: Winner) -> Schedule:
    try:
        return Schedule.from_json(json.loads(winner.schedule))
    except (FuserError, *BAD_LINE) as error:
        raise ModelFileError(f"its schedule is none: {shown(winner.schedule)}", "import the records again") from error


def naming(program: TensorProgram, files: Iterable[Path]) -> list[Path]:
    """The files that may have rows of a program: of the package's the text says so, which is read sooner than its rows."""
    key = program_key(program).encode()
    return [f for f in files if f != PACKAGED or any(key in text for text in texts(f))]


@lru_cache
def texts(path: Path) -> tuple[bytes, ...]:
    """What the files of rows that a path means hold."""
    return tuple(map(unpacked, files_of(path)))


@lru_cache
def shipped(path: Path) -> Records:
    """The rows of a file or folder that is only read, once a process."""
    records = Records(":memory:")
    load(records, [path])
    return records


def user_file() -> Path:
    folder, name = OWN
    return cache_dir(folder) / name


def chosen_file(path: str | Path) -> Path:
    """Records that a user names. Raises :class:`UsageError` where there is no such folder: nobody asked for one."""
    if not str(path):
        raise UsageError("the name of the records is empty", "name a file, or leave it out for those in your cache folder")
    folder = os.path.dirname(os.path.abspath(path)) if "\0" not in str(path) else "."
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder} for the records {path}", "make it, or choose another file")
    return Path(path)


def open_memory(records: str | Path | bool | None = None, simulated: str = "") -> Memory:
    """The memory of a command: by default the user's records and the package's; of a path that file in their place (a file or
    folder of JSON lines is read beside the user's); False none. Records that cannot be opened are said and done without."""
    if records is False:
        return Memory(None, (), simulated)
    files: Sequence[Path] = ()
    path = user_file()
    if isinstance(records, str | Path):
        chosen = chosen_file(records)
        if chosen.is_dir() or chosen.name.endswith(SUFFIXES):
            if not os.path.exists(chosen):
                raise UsageError(f"there are no records {chosen}", "give a SQLite file, or one of JSON lines that exists")
            files = (chosen,)
        else:
            path = chosen
    try:
        opened = Careful(path)
    except FuserError as error:
        if isinstance(records, str | Path) and not files:
            raise
        warn(f"{error.message}: nothing is remembered in this run" + (f" ({error.hint})" if error.hint else ""))
        opened = None
    return Memory(opened, (*files, PACKAGED), simulated)


def holds(records: Records, row: Record | Winner) -> bool:
    """Whether the kernels of a row would be generated as they were when it was measured."""
    try:
        graph = records.structure(row.structure)
        schedule = row.schedule_value() if isinstance(row, Record) else _schedule(row)
        if graph is None or unusable(made := Candidate(graph, schedule), row.source):
            return False
        beside = libraries_of(row) if isinstance(row, Record) else row.compiler.partition(BESIDE)[2]
        return not (beside and calls_libraries(made)) or same_libraries(beside)
    except FuserError:
        return False
