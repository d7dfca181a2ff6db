"""The table of a soundness run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence

from experiments.soundness.jobs import BAD
from experiments.soundness.jobs import REFUSED
from experiments.soundness.jobs import Row
from experiments.soundness.sanitize import Verdict


def table(rows: Sequence[Row], structures: dict[str, int], verdicts: Iterable[Verdict] = ()) -> str:
    """A line for each case: structures checked and found, schedules and checks, how they ended, and the worst error of those that
    are right; then every wrong one."""
    width = max((len(n) for n in structures), default=8) + 1
    lines = [
        f"{'case':<{width}}{'structures':>12}{'schedules':>10}{'checks':>8}{'ok':>7}{'wrong':>7}{'suspect':>9}{'refused':>9}"
        f"{'worst error':>13}  refused as"
    ]
    total: Counter[str] = Counter()
    for name, count in structures.items():
        mine = [r for r in rows if r.case == name]
        refused = Counter(r.status for r in mine if r.status in REFUSED)
        numbers = {
            "structures": len({r.structure for r in mine if r.status not in REFUSED}),
            "schedules": len({(r.structure, r.schedule) for r in mine}),
            "checks": len(mine),
            "ok": sum(r.status == "ok" for r in mine),
            "wrong": sum(r.bad for r in mine),
            "suspect": sum(r.status in BAD and r.suspect for r in mine),
            "refused": sum(refused.values()),
        }
        total.update(numbers | {"found": count})
        worst = max((r.error for r in mine if r.status == "ok" and r.error is not None), default=None)
        lines.append(
            f"{name:<{width}}{numbers['structures']:>5} of {count:<4}{numbers['schedules']:>9}{numbers['checks']:>8}"
            f"{numbers['ok']:>7}{numbers['wrong']:>7}{numbers['suspect']:>9}{numbers['refused']:>9}"
            f"{'-' if worst is None else f'{worst:.1e}':>13}  {', '.join(f'{k} {v}' for k, v in sorted(refused.items()))}"
        )
    lines.append(
        f"{'all':<{width}}{total['structures']:>5} of {total['found']:<4}{total['schedules']:>9}{total['checks']:>8}"
        f"{total['ok']:>7}{total['wrong']:>7}{total['suspect']:>9}{total['refused']:>9}"
    )
    lines.append("wrong: not right although no rule leaves it out; suspect: wrong, of a class that tuning leaves out")
    kinds = Counter(r.kind for r in rows if r.status == "ok")
    inputs = Counter(r.inputs for r in rows if r.status == "ok")
    lines.append("right by kind of schedule: " + ", ".join(f"{k} {n}" for k, n in kinds.most_common()))
    lines.append("right by inputs: " + ", ".join(f"{k} {n}" for k, n in inputs.most_common()))
    lines += [
        f"compute-sanitizer {v.tool}: {v.status}, {v.kernels} kernels"
        + (f", {v.errors} errors" if v.errors >= 0 else "")
        + (f": {v.detail}" if v.detail else "")
        for v in verdicts
    ]
    lines += [
        f"{'WRONG' if r.bad else 'suspect'} {r.case} #{r.number} {r.kind} on {r.inputs}: {r.status} {r.detail} ({r.schedule})"
        for r in sorted(rows, key=lambda r: not r.bad)
        if r.status in BAD
    ]
    return "\n".join(lines)
