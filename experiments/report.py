"""Results of a bench as one document, and that document as a table: on a terminal of any width, as Markdown.

The document is JSON and complete: tables and plots are drawn from it alone, so that nothing has to be measured for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.ceilings import Ceilings
from experiments.ceilings import floor_of
from experiments.compare import Result
from experiments.peers import PEERS
from fuser.errors import ModelFileError

SCHEMA = 2
GAP, EDGES = 3, 2
"""Blanks between two columns on a terminal, and outside of all of them."""
BOUNDS = {"memory": "b", "arithmetic": "f", "launch": "l"}
"""Letters behind a floor: bytes, FLOPs, launch."""

Document = Mapping[str, Any]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def document(
    results: Sequence[Result],
    ceilings: Ceilings | None,
    environment: Mapping[str, Any],
    run: str,
    left: Sequence[str] = (),
) -> dict[str, Any]:
    """A run as one document: environment, ceilings, and for each case our fastest kernel, every peer and the floor; ``left`` are
    the cases for which there was no time. Times in microseconds."""
    cases = []
    for r in results:
        ours, floor = r.ours, floor_of(r.program, ceilings) if ceilings else None
        failed = {f"{x.status}: {x.detail}": None for x in r.rows if x.kind == "kernel" and not x.ok}
        predicted = r.choice.tuned.winner.us if r.choice else None
        cases.append(
            {
                "workload": r.program.name,
                "us": ours.time_us if ours else None,
                "spread": ours.spread if ours else None,
                "error": ours.error_fro if ours else None,
                "kernels": ours.kernels if ours else None,
                "schedule": str(ours.schedule_value()) if ours else None,
                "structure": ours.structure if ours else None,
                "candidates": sum(x.kind == "kernel" for x in r.rows),
                "predicted_us": predicted,
                "floor_us": floor.us if floor else None,
                "floor_bound": floor.bound if floor else None,
                "peers": {
                    n: {"us": p.time_us if p.ok else None, "status": p.status, "detail": p.detail, "error": p.error_fro}
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
    try:
        found = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read as a result: {error}", "give the bench.json of a run") from error
    if not isinstance(found, dict) or not isinstance(found.get("cases"), list):
        raise ModelFileError(f"{path} is not a result of mufuser bench", "give the bench.json of a run")
    if found.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{path} has schema {found.get('schema')!r}, this program reads {SCHEMA}", "run the same command again in its folder"
        )
    return found


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
        f"floor: the largest of bytes over {bandwidth / 1e12:.2f} TB/s (b), FLOPs over {matmul / 1e12:.0f} TFLOP/s (f), "
        f"and a launch of {1e6 * launch:.2f} µs (l)"
    )


def legend(found: Document) -> list[str]:
    """What the numbers mean and what went wrong."""
    notes = []
    if found["geometric_mean"]:
        ratios = [c["speedup"] for c in found["cases"] if c["speedup"]]
        faster = sum(r > 1 for r in ratios)
        mean = found["geometric_mean"]
        notes.append(f"×: best peer over ours, {mean:.3f} (geometric mean), ours is faster in {faster} of {len(ratios)} cases")
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
    versions = [f"{k} {where[k]}" for k in ("torch", "triton", "ptxas", "driver", "cuda") if where.get(k)]
    made = [f"Made by mufuser {where['mufuser']}, commit {where.get('commit') or 'unknown'}."] if "mufuser" in where else []
    peers = [f"{n}: {PEERS[n]}" for n in names if n in PEERS]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {n}" for n in [*legend(found), *peers, ", ".join(versions), *made] if n)
    return f"# {title(found)}\n\n{body}\n\n{notes}\n"
