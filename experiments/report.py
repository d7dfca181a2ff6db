"""Results of a bench as one document, and that document as a table: on a terminal of any width, as Markdown.

The document is JSON and complete: tables and plots are drawn from it alone, so that nothing has to be measured for them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from experiments.ceilings import Ceilings
from experiments.ceilings import floor_of
from experiments.compare import Result
from experiments.peers import PEERS
from fuser.errors import ModelFileError
from fuser.files import counted
from fuser.files import read_json
from fuser.files import shown

SCHEMA = 2
GAP, EDGES = 3, 2
"""Blanks between two columns on a terminal, and outside of all of them."""
BOUNDS = {"memory": "b", "arithmetic": "f", "launch": "l"}
"""Letters behind a floor: bytes, FLOPs, launch."""

Document = Mapping[str, Any]


def document(
    results: Sequence[Result],
    ceilings: Ceilings | None,
    environment: Mapping[str, Any],
    run: str,
    left: Sequence[str] = (),
) -> dict[str, Any]:
    """A run as one document: environment, ceilings (the limits that floors come from), and for each case our fastest kernel,
    every peer and the floor; ``left`` are the cases for which there was no time. Times in microseconds."""
    cases = []
    for r in results:
        ours, floor = r.ours, floor_of(r.program, ceilings) if ceilings else None
        failed = {f"{x.status}: {x.detail}": None for x in r.rows if x.kind == "kernel" and not x.ok}
        predicted = r.choice.tuned.winner.us if r.choice else None
        cases.append(
            {
                "workload": r.program.name,
                "us": ours.time_us if ours else None,
                "spread": ours.measurement.spread if ours else None,
                "error": ours.measurement.error_fro if ours else None,
                "kernels": ours.measurement.kernels if ours else None,
                "schedule": str(ours.schedule_value()) if ours else None,
                "structure": ours.structure if ours else None,
                "candidates": sum(x.kind == "kernel" for x in r.rows),
                "predicted_us": predicted,
                "floor_us": floor.us if floor else None,
                "floor_bound": floor.bound if floor else None,
                "peers": {
                    n: {
                        "us": p.time_us if p.ok else None,
                        "status": p.status,
                        "detail": p.detail,
                        "error": p.measurement.error_fro,
                    }
                    for n, p in r.peers.items()
                },
                "best_peer": r.peer.structure if r.peer else None,
                "speedup": r.speedup,
                "failed": list(failed),
                "note": r.note,
            }
        )
    ratios = [r.speedup for r in results if r.speedup]
    return {
        "schema": SCHEMA,
        "run": run,
        "environment": dict(environment),
        "ceilings": ceilings,
        "cases": cases,
        "left": list(left),
        "geometric_mean": geometric_mean(ratios) if ratios else None,
    }


def read(path: Path) -> Document:
    """A document that ``mufuser bench`` wrote. Raises :class:`ModelFileError` with the reason."""
    hint = "give the bench.json of a run"

    def unreadable(message: str, _: str) -> ModelFileError:
        return ModelFileError(f"{path} cannot be read as a result: {message}", hint)

    found = read_json(path, error=unreadable)
    if not isinstance(found, dict) or not isinstance(found.get("cases"), list):
        raise ModelFileError(f"{path} is not a result of mufuser bench", hint)
    if found.get("schema") is True or found.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{path} has schema {shown(found.get('schema'))}, this program reads {SCHEMA}",
            "run the same command again in its folder",
        )
    if why := _odd(found):
        raise ModelFileError(f"{path} is not a result of mufuser bench: {why}", hint)
    return found


def _time(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18)


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)


def _ceilings(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _CEILINGS and all(x and _time(x) for x in value.values())


_CEILINGS = {"bandwidth", "matmul", "launch"}
_SHOWN = ("device", "torch", "triton", "ptxas", "driver", "cuda", "mufuser", "commit")
"""What tables show of the environment."""
_TOP: Mapping[str, Callable[[Any], bool]] = {
    "run": lambda v: isinstance(v, str),
    "environment": lambda v: isinstance(v, dict) and not any(isinstance(v.get(k), dict | list) for k in _SHOWN),
    "ceilings": lambda v: v is None or _ceilings(v),
    "left": _texts,
    "geometric_mean": _time,
}
_CASE: Mapping[str, Callable[[Any], bool]] = {
    "workload": lambda v: isinstance(v, str),
    **dict.fromkeys(("us", "predicted_us", "floor_us", "speedup"), _time),
    **dict.fromkeys(("spread", "error"), _number),
    **dict.fromkeys(("kernels", "candidates"), _count),
    **dict.fromkeys(("schedule", "structure", "best_peer", "note"), _text),
    "floor_bound": lambda v: v is None or (isinstance(v, str) and v in BOUNDS),
    "peers": lambda v: isinstance(v, dict),
    "failed": _texts,
}
_PEER: Mapping[str, Callable[[Any], bool]] = {
    "us": _time, "status": lambda v: isinstance(v, str), "detail": _text, "error": _number,
}  # fmt: skip


def _odd(found: Mapping[str, Any]) -> str:
    """What is missing in a result or of the wrong type; empty where nothing is."""

    def fields(data: Any, wanted: Mapping[str, Callable[[Any], bool]], where: str) -> str:
        if not isinstance(data, dict):
            return f"{where} is {shown(data)}"
        bad = next((k for k, fits in wanted.items() if k not in data or not fits(data[k])), None)
        return "" if bad is None else f"{bad} of {where} is {shown(data[bad]) if bad in data else 'missing'}"

    if why := fields(found, _TOP, "the run"):
        return why
    for i, case in enumerate(found["cases"]):
        if why := fields(case, _CASE, f"case {i}"):
            return why
        if bool(case["floor_us"]) != bool(case["floor_bound"]):
            return f"floor_bound of case {i} is {shown(case['floor_bound'])}"
        for name, peer in case["peers"].items():
            if why := fields(peer, _PEER, f"the peer {shown(name)} of case {i}"):
                return why
        if case["best_peer"] is not None and (case["peers"].get(case["best_peer"]) or {}).get("us") is None:
            return f"best_peer of case {i} is {shown(case['best_peer'])}, which has no time"
    workloads = [c["workload"] for c in found["cases"]]
    return "a case occurs twice" if len(set(workloads)) < len(workloads) else ""


# -- cells --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """``cell`` takes a case; ``rank`` says what goes first where columns do not fit (the largest)."""

    head: str
    cell: Callable[[Mapping[str, Any]], str]
    rank: int = 0
    right: bool = True

    def width(self, cases: Sequence[Mapping[str, Any]]) -> int:
        return max(len(self.head), *(len(self.cell(c)) for c in cases)) if cases else len(self.head)


def digits(value: Any) -> str:
    """A time with three significant digits or more, ``-`` for none."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def suites(found: Document) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c["workload"].partition("/")[0] for c in found["cases"]))


def short_name(workload: str, found: Document) -> str:
    """A workload's name, without the suite where there is one suite alone."""
    return workload.partition("/")[2] if len(suites(found)) == 1 else workload


def peer_names(found: Document) -> tuple[str, ...]:
    """Peers of any case, in the order of :data:`PEERS`."""
    there = {n for c in found["cases"] for n in c["peers"]}
    return (*(n for n in PEERS if n in there), *sorted(there - set(PEERS)))


def failures(found: Document) -> dict[tuple[str, str], tuple[int, list[str]]]:
    """Numbered reasons why a peer has no time: ``(peer, reason)`` to the number and the cases."""
    numbered: dict[tuple[str, str], tuple[int, list[str]]] = {}
    for c in found["cases"]:
        for name, p in c["peers"].items():
            if p["us"] is None:
                key = name, f"{p['status']}: {p['detail']}" if p["detail"] else p["status"]
                numbered.setdefault(key, (len(numbered) + 1, []))[1].append(c["workload"])
    return numbered


def columns(found: Document) -> tuple[Column, ...]:
    """All columns in the order of the table."""
    numbers = {(peer, w): n for (peer, _), (n, ws) in failures(found).items() for w in ws}

    def peer(name: str) -> Callable[[Mapping[str, Any]], str]:
        def cell(c: Mapping[str, Any]) -> str:
            p = c["peers"].get(name)
            return "" if p is None else digits(p["us"]) if p["us"] is not None else f"[{numbers[name, c['workload']]}]"

        return cell

    def floor(c: Mapping[str, Any]) -> str:
        return f"{digits(c['floor_us'])} {BOUNDS[c['floor_bound']]}" if c["floor_us"] else "-"

    names = peer_names(found)
    cases = found["cases"]
    few = {n for n in names if 4 * sum(n in c["peers"] for c in cases) < len(cases)}  # they make room for the others
    rank = {n: 10 + i + 10 * (n in few) for i, n in enumerate(names)}
    return (
        Column("case", lambda c: short_name(c["workload"], found), right=False),
        Column("µs", lambda c: digits(c["us"])),
        Column("floor", floor, rank=1),
        *(Column(n, peer(n), rank=rank[n]) for n in names),
        Column("best peer", lambda c: c["best_peer"] or "-", rank=2, right=False),
        Column("×", lambda c: digits(c["speedup"])),
        Column("kernels", lambda c: str(c["kernels"] or "-"), rank=30),
        Column("error", lambda c: f"{c['error']:.0e}" if c["error"] is not None else "-", rank=31),
        Column("schedule", lambda c: c["schedule"] or "; ".join(c["failed"])[:120] or c["note"] or "-", rank=40, right=False),
    )


def fitting(cols: Sequence[Column], cases: Sequence[Mapping[str, Any]], width: int) -> tuple[Column, ...]:
    """The columns that fit ``width`` characters: those of the largest rank are dropped first, those of rank 0 never. The name of
    the best peer is needed only where a peer's column is missing."""
    kept = list(cols)

    def total() -> int:
        return sum(c.width(cases) + GAP for c in kept) - GAP + EDGES

    for column in sorted((c for c in cols if c.rank >= 30), key=lambda c: -c.rank):
        if total() > width:
            kept.remove(column)
    named = next((c for c in kept if c.head == "best peer"), None)
    if named and total() > width and total() - named.width(cases) - GAP <= width:
        kept.remove(named)
    for column in sorted((c for c in kept if 0 < c.rank < 30), key=lambda c: -c.rank):
        if total() > width:
            kept.remove(column)
    return tuple(kept)


# -- tables -------------------------------------------------------------------------------------------------------------------


def title(found: Document) -> str:
    device = found["environment"].get("device", "?")
    return f"{', '.join(suites(found)) or 'nothing'} on {device}, µs of one call"


def floor_note(bandwidth: float, matmul: float, launch: float) -> str:
    """What a floor is, and what its letters mean; bytes, FLOPs a second, and seconds."""
    return (
        f"floor, which nothing can beat: the largest of bytes over {bandwidth / 1e12:.2f} TB/s (b), "
        f"FLOPs over {matmul / 1e12:.0f} TFLOP/s (f), "
        f"and a launch of {1e6 * launch:.2f} µs (l)"
    )


def legend(found: Document) -> list[str]:
    """What the numbers mean and what went wrong."""
    notes = []
    if found["geometric_mean"]:
        ratios = [c["speedup"] for c in found["cases"] if c["speedup"]]
        faster = sum(r > 1 for r in ratios)
        mean = found["geometric_mean"]
        share = f"{faster} of {counted(len(ratios), 'case')}"
        notes.append(f"×: best peer over ours, {mean:.3f} (geometric mean), ours is faster in {share}")
    if limits := found["ceilings"]:
        notes.append(floor_note(**limits))
    notes.append(
        "times are medians of CUDA-graph replays; the first kernel of a call is launched normally, later ones may overlap it"
    )
    for (peer, reason), (number, names) in failures(found).items():
        short = [short_name(n, found) for n in names]
        where = ", ".join(short[:6]) + (f" and {len(short) - 6} more" if len(short) > 6 else "")
        notes.append(f"[{number}] {peer} has no time for {where}: {reason}")
    for c in found["cases"]:
        if c["us"] is None:
            reason = "; ".join(c["failed"]) or c["note"] or "no candidate"
            notes.append(f"{c['workload']} has no correct kernel: {reason[:200]}")
    if found["left"]:
        notes.append(f"not measured, the time was up: {', '.join(found['left'])}")
    return notes


def table(found: Document, width: int) -> tuple[list[str], list[list[str]], list[str]]:
    """Heads (``>`` marks those aligned to the right), lines and notes of the table on a terminal."""
    cols, cases = columns(found), found["cases"]
    kept = fitting(cols, cases, width)
    notes = legend(found)
    hidden = [c.head for c in cols if c not in kept and c.head != "best peer"]
    if hidden:
        notes.append(f"left out at this width: {', '.join(hidden)}")
    return [f"{c.head} >" if c.right else c.head for c in kept], [[c.cell(x) for c in kept] for x in cases], notes


def markdown(found: Document) -> str:
    """The whole table in Markdown, the fastest of each line bold."""
    cols, names = [c for c in columns(found) if c.head != "best peer"], peer_names(found)
    lines = [[c.head for c in cols], ["--:" if c.right else "---" for c in cols]]
    for case in found["cases"]:
        times = {"µs": case["us"], **{n: case["peers"].get(n, {}).get("us") for n in names}}
        known = {n: t for n, t in times.items() if t}
        first = min(known, key=lambda n: known[n], default="")
        cells = [c.cell(case).replace("|", "\\|") for c in cols]
        lines.append([f"**{x}**" if c.head == first else x for c, x in zip(cols, cells, strict=True)])
    where = found["environment"]
    versions = [f"{k} {where[k]}" for k in _SHOWN[1:6] if where.get(k)]
    made = [f"Made by mufuser {where['mufuser']}, commit {where.get('commit') or 'unknown'}."] if "mufuser" in where else []
    peers = [f"{n}: {PEERS[n]}" for n in names if n in PEERS]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {n}" for n in [*legend(found), *peers, ", ".join(versions), *made] if n)
    return f"# {title(found)}\n\n{body}\n\n{notes}\n"
