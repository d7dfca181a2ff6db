"""How good is the verifier? Mutants of correct µGraphs must be refused, true rewritings accepted.

    python -m experiments.mirage.mutants [--mutants 10000] [--rewrites 1000] [--seed 0] [--processes 2] [--out FILE]

Half of the mutants are errors of algebra, half are errors where reduced sizes and finite fields are blind. A mutant that an
independent evaluation at the real size (:mod:`experiments.mirage.oracle`) finds equal is set aside. One round in finite fields is
judged first, without the verifier's comparison in float64; what that accepts goes through all of it (``late`` counts what was
refused only then).

The run fails where a mutant is accepted, where a rewriting is refused, where the verifier crashes, where too few of a class of
mutants were judged, and where fewer than 90 % of all or 75 % of a class are refused: "not decided" is no verdict.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.mirage.edit import NotApplicable
from experiments.mirage.mutations import ALGEBRA
from experiments.mirage.mutations import BOUNDARIES
from experiments.mirage.mutations import mutate
from experiments.mirage.oracle import NotComputableError
from experiments.mirage.oracle import difference
from experiments.mirage.programs import correct
from experiments.mirage.programs import programs
from experiments.mirage.programs import uneven
from experiments.mirage.rewrites import random_schedule
from experiments.mirage.rewrites import rewrite
from experiments.script import script
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdict import Verified
from fuser.superopt.verify.verifier import verify

OUT = Path(__file__).parent / "results" / "mutants.json"
REFUSED, OF_CLASS = 0.9, 0.75
"""Least share of the mutants, and of those of each class, that is refused, and not left undecided."""
VERDICTS = ("refused", "not decided", "accepted", "crashed")
_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
BATCH = 50
"""Cases of one job."""
Pair = tuple[TensorProgram, KernelGraph]


@dataclass(frozen=True)
class Record:
    """One case: ``steps`` that made it, ``kind`` as the oracle has it, the ``verdict`` with reason and time in seconds; ``late``
    where one round accepted it."""

    key: str
    program: str
    steps: tuple[str, ...]
    kind: str
    verdict: str
    why: str
    late: bool
    seconds: float
    graph: str


@cache
def graphs() -> tuple[Pair, ...]:
    return tuple((p, g) for p in (*programs(), *uneven()) for g in correct(p))


@cache
def bare() -> tuple[Pair, ...]:
    """Rewriting needs forms without a running maximum."""
    return tuple((p, g) for p, g in graphs() if not any(s.running for b in g.blocks for s in b.stmts))


def judge(program: TensorProgram, graph: KernelGraph, steps: tuple[str, ...], rng: np.random.Generator) -> Record:
    """A mutant before the oracle and the verifier."""
    try:
        kind = "different" if difference(program, graph, rng) else "equal"
    except NotComputableError:
        kind = "not computable"
    if kind == "equal":
        return Record(graph.stable_hash(), program.name, steps, kind, "set aside", "", False, 0.0, "")
    start = time.perf_counter()
    verdict, why = _verdict(program, graph, rng=rng, rounds=1, float_rounds=0)
    late = verdict == "accepted"
    if late:
        verdict, why = _verdict(program, graph, rng=rng)
    seconds = time.perf_counter() - start
    text = str(graph) if verdict in ("accepted", "crashed") else ""
    return Record(graph.stable_hash(), program.name, steps, kind, verdict, why, late, seconds, text)


def _verdict(*args: Any, **options: Any) -> tuple[str, str]:
    try:
        found = verify(*args, **options)
    except Exception as error:  # noqa: BLE001 - a crash of the verifier is what is looked for
        return "crashed", repr(error)
    name = "refused" if isinstance(found, Rejected) else "not decided" if isinstance(found, Unknown) else "accepted"
    return name, str(found)


def mutants(names: tuple[str, ...], seed: int) -> list[Record]:
    """A batch of mutants, as many of each class."""
    rng = np.random.default_rng(seed)
    found: list[Record] = []
    for name in itertools.cycle(rng.permutation(list(names))):
        if len(found) == BATCH:
            break
        made = _mutant(str(name), rng)
        if made:
            found.append(judge(*made, rng))
    return found


def _mutant(name: str, rng: np.random.Generator) -> tuple[TensorProgram, KernelGraph, tuple[str, ...]] | None:
    for _ in range(100):
        program, graph = graphs()[int(rng.integers(len(graphs())))]
        try:
            _, mutant = mutate(graph, rng, 3, (name,))
        except NotApplicable:
            continue
        if name in ALGEBRA and rng.random() < 0.2:
            try:
                second, mutant = mutate(mutant, rng, names=tuple(ALGEBRA))
            except NotApplicable:
                return program, mutant, (name,)
            return program, mutant, (name, second)
        return program, mutant, (name,)
    return None


def rewritings(_: tuple[str, ...], seed: int) -> list[Record]:
    """A batch of true rewritings, half of them with a random schedule."""
    rng = np.random.default_rng(seed)
    found: list[Record] = []
    while len(found) < BATCH:
        program, graph = bare()[int(rng.integers(len(bare())))]
        steps, new = rewrite(graph, rng, int(rng.integers(1, 6)))
        if not steps:
            continue
        if wrong := difference(program, new, rng):
            raise AssertionError(f"{steps} is no true rewriting of {program.name}: {wrong}\n{new}")
        schedule = random_schedule(new, rng) if rng.random() < 0.5 else None
        start = time.perf_counter()
        verdict, why = _verdict(program, new, schedule, rng=rng)
        seconds = time.perf_counter() - start
        text = "" if verdict == "accepted" else str(new)
        found.append(Record(new.stable_hash(), program.name, steps, "equal", verdict, why, False, seconds, text))
    return found


def run(
    job: Callable[[tuple[str, ...], int], list[Record]],
    names: tuple[str, ...],
    count: int,
    seed: int,
    processes: int,
    counts: Callable[[Record], bool],
) -> list[Record]:
    """Different cases until ``count`` of them count; the same for any number of processes."""
    found: dict[str, Record] = {}
    done = 0
    for record in itertools.chain.from_iterable(_batches(job, names, seed, processes)):
        if record.key in found:
            continue
        found[record.key] = record
        done += counts(record)
        if done >= count:
            break
    return list(found.values())


def _batches(
    job: Callable[[tuple[str, ...], int], list[Record]], names: tuple[str, ...], seed: int, processes: int
) -> Iterator[list[Record]]:
    seeds = (seed + i for i in itertools.count())
    if processes == 1:
        yield from (job(names, s) for s in seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        ahead = [pool.submit(job, names, s) for s in itertools.islice(seeds, 2 * processes)]
        try:
            while True:
                yield ahead.pop(0).result()
                ahead.append(pool.submit(job, names, next(seeds)))
        finally:
            for future in ahead:
                future.cancel()


def by_class(records: list[Record]) -> dict[str, dict[str, int]]:
    """Of each class of mutants: how many were made, are right by chance, were refused, not decided, accepted."""
    found: dict[str, dict[str, int]] = {}
    for r in records:
        for step in dict.fromkeys(r.steps):
            row = found.setdefault(
                step,
                dict.fromkeys(("made", "equal", "late", *VERDICTS), 0),
            )
            row["made"] += 1
            if r.kind == "equal":
                row["equal"] += 1
                continue
            row[r.verdict] += 1
            row["late"] += r.late
    return dict(sorted(found.items()))


def failures(records: list[Record], names: tuple[str, ...], least: int) -> list[str]:
    """What fails a run of mutants: accepted ones, crashes, classes of which too few were judged or refused."""
    found = [f"{'+'.join(r.steps)} of {r.program} is {r.verdict}: {r.why}" for r in records if r.verdict == "crashed"]
    found += [f"{'+'.join(r.steps)} of {r.program} is accepted" for r in records if r.verdict == "accepted" and r.kind != "equal"]
    rows = by_class(records)
    for name in names:
        row = rows.get(name, {})
        refused, judged = row.get("refused", 0), row.get("made", 0) - row.get("equal", 0)
        if judged < least:
            found.append(f"{name}: {judged} mutants, fewer than {least}")
        if refused < OF_CLASS * judged:
            found.append(f"{name}: only {refused} of {judged} refused")
    judged, refused = (sum(r.kind != "equal" and r.verdict in kinds for r in records) for kinds in (VERDICTS, VERDICTS[:1]))
    if refused < REFUSED * judged:
        found.append(f"only {refused} of {judged} mutants refused")
    return found


def report_mutants(records: list[Record]) -> dict[str, Any]:
    judged = [r for r in records if r.kind != "equal"]
    bad = [r for r in judged if r.verdict in ("accepted", "crashed")]
    seconds = sum(r.seconds for r in judged)
    return {
        "mutants": len(judged),
        "verdicts": dict(Counter(r.verdict for r in judged)),
        "refused_late": sum(r.late for r in judged),
        "not_computable": sum(r.kind == "not computable" for r in judged),
        "equal_set_aside": sum(r.kind == "equal" for r in records),
        "accepted": [{"program": r.program, "mutation": "+".join(r.steps), "why": r.why, "graph": r.graph} for r in bad],
        "undecided_because": dict(Counter(r.why for r in judged if r.verdict == "not decided").most_common(12)),
        "by_class": by_class(records),
        "seconds_verifying": round(seconds, 1),
        "per_second": round(len(judged) / seconds, 1),
    }


def report_rewritings(records: list[Record]) -> dict[str, Any]:
    refused = [r for r in records if r.verdict != "accepted"]
    seconds = sum(r.seconds for r in records)
    return {
        "rewrites": len(records),
        "accepted": len(records) - len(refused),
        "of_them_proven": sum(r.why.startswith(Verified.kind) for r in records),
        "refused": [{"program": r.program, "steps": " ".join(r.steps), "why": r.why, "graph": r.graph} for r in refused],
        "steps": dict(Counter(s for r in records for s in r.steps).most_common()),
        "seconds_verifying": round(seconds, 1),
        "per_second": round(len(records) / seconds, 1),
    }


def environment(processes: int) -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "processes": processes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--rewrites", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    start = time.perf_counter()
    result: dict[str, Any] = {"environment": environment(args.processes), "seed": args.seed, "graphs": len(graphs())}
    wrong: list[str] = []

    def finished(group: str, found: dict[str, Any]) -> None:
        """What is known so far is written at once."""
        result.update({group: found, "failures": wrong, "seconds": round(time.perf_counter() - start)})
        result["peak_memory_mib"] = max(resource.getrusage(w).ru_maxrss for w in _PROCESSES) // 1024
        make_folder(args.out.parent)
        write_file(args.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    found = run(rewritings, (), args.rewrites, args.seed * 10**6, args.processes, lambda _: True)
    wrong += [f"{' '.join(r.steps)} of {r.program}: {r.why}" for r in found if r.verdict != "accepted"]
    finished("rewritings", report_rewritings(found))
    print(f"{args.rewrites} rewritings, {len(result['rewritings']['refused'])} refused", file=sys.stderr)
    for i, (group, names) in enumerate({"algebra": tuple(ALGEBRA), "boundaries": tuple(BOUNDARIES)}.items()):
        count = args.mutants // 2
        found = run(mutants, names, count, (2 * args.seed + i + 1) * 10**6, args.processes, lambda r: r.kind != "equal")
        wrong += failures(found, names, count // (4 * len(names)))
        finished(group, report_mutants(found))
        print(f"{group}: {count} mutants: {result[group]['verdicts']}", file=sys.stderr)
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    script(main)
