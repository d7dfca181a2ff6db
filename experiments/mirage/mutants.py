"""How good is the verifier? Mutants of correct µGraphs must be refused, true rewritings accepted.

    python -m experiments.mirage.mutants [--mutants 10000] [--rewrites 1000] [--seed 0] [--out FILE]

A mutant that an independent float64 comparison (numpy semantics of the program against the interpreter of the µGraph, at sizes
and inputs of its own) finds equal is set aside. The finite-field tests are judged alone: the verifier's own float64 comparison
is off.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from experiments.mirage.edit import NotApplicable
from experiments.mirage.mutations import mutate
from experiments.mirage.rewrites import random_schedule
from experiments.mirage.rewrites import rewrite
from experiments.script import script
from fuser.errors import FuserError
from fuser.errors import UnsupportedError
from fuser.frontends.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.lower.reference import interpret
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.checking import checking_schedules
from fuser.superopt.reduced import reduction
from fuser.superopt.verdict import Accepted
from fuser.superopt.verify import Rejected
from fuser.superopt.verify import Unknown
from fuser.superopt.verify import verify
from fuser.workloads import workload
from search.structures import structures

OUT = Path(__file__).parent / "results" / "mutants.json"
SIDE = 64
"""Most programs have this extent everywhere, so that wrong accesses fit the shapes."""
EQUAL = 1e-9


def programs() -> list[TensorProgram]:
    """The workloads at one extent, so that no error shows in a shape alone, and programs of our own."""
    n = SIDE
    found = [
        workload("mcfuser/G1", batch=3, M=n, N=n, K=n, H=n),
        workload("mcfuser/S1", heads=4, M=n, N=n, K=n, H=n),
        workload("mirage/qknorm", heads=2, M=n, N=n, K=n, H=n),
        workload("mirage/rmsnorm", rows=n, D=n, N=n),
        workload("mirage/lora", rows=n, D=n, N=n, R=n),
        workload("mirage/gated-mlp", rows=n, D=n, N=n),
        workload("mirage/ntrans", rows=n, D=n),
        workload("mirage/mlp", rows=n, D=n, R=n),
        workload("mirage/moe", E=4, rows=n, D=n, F=n),
        workload("graphene/gemm-bias-relu", M=n, N=n, K=n),
        workload("graphene/lstm", M=n, N=n, K=n),
        workload("graphene/layernorm", rows=n, D=n),
    ]
    b = Builder("causal")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.attention(q, k, v, causal=True)))
    b = Builder("masked")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.attention(q, k, v, b.input("M", (n, n)))))
    b = Builder("linear_attention")
    q, k, v = (b.input(x, (2, n, n)) for x in "QKV")
    found.append(b.build(O=b.exp(q) @ (b.exp(k).T @ v)))
    b = Builder("norm_mlp")
    x, w1, w2 = b.input("X", (n, n)), b.input("W1", (n, n)), b.input("W2", (n, n))
    found.append(b.build(Y=b.gelu(b.layer_norm(x) @ w1) @ w2))
    b = Builder("two_outputs")
    x, w, v = b.input("X", (n, n)), b.input("W", (n, n)), b.input("V", (n,))
    y = (x + v) @ w - x
    found.append(b.build(Y=y, Z=b.sum(b.relu(y) * x, 1) / 3))
    b = Builder("difference")
    x, y, w = b.input("X", (n, n)), b.input("Y", (n, n)), b.input("W", (n, n))
    e = b.exp(x - y)
    found.append(b.build(Z=(e @ w) / b.sum(e, 1, keepdims=True)))
    return found


def correct(program: TensorProgram) -> list[KernelGraph]:
    """Structures that hold by construction: as written, fused, cut, split, stable."""
    found = [fuse(program)]
    with contextlib.suppress(UnsupportedError):
        found += structures(program)
    return found


def float_equal(program: TensorProgram, graph: KernelGraph, rng: np.random.Generator) -> bool:
    """Equal in float64, for normal and for positive inputs, at two draws of sizes; independent of the verifier's fields.

    Raises :class:`FuserError` where the µGraph cannot be interpreted.
    """
    tied = reduction(program, graph)
    for positive in (False, True):
        case = tied.draw(rng)
        inputs = {}
        for name in case.program.inputs:
            shape = case.program[name].shape
            inputs[name] = rng.uniform(0.5, 1.5, shape) if positive else rng.standard_normal(shape)
        wanted = case.program.evaluate(inputs)
        with np.errstate(all="ignore"):
            schedule = next(iter(checking_schedules(case.graph)))
            got = interpret(case.graph, schedule, {n: inputs[n] for n in case.graph.inputs})
        for name, x in wanted.items():
            y = got[name]
            if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
                return False
            seen = np.isfinite(x)
            if np.abs(x - y)[seen].max(initial=0.0) > EQUAL * max(1e-12, float(np.abs(x[seen]).max(initial=0.0))):
                return False
    return True


def run_mutants(graphs: list[tuple[TensorProgram, KernelGraph]], count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Verify ``count`` mutants that differ in float64 (those that cannot be interpreted count: nobody may accept them)."""
    verdicts: Counter[str] = Counter()
    by_mutation: dict[str, Counter[str]] = {}
    seen: set[str] = set()
    accepted: list[dict[str, str]] = []
    equal_verdicts: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    seconds = 0.0
    while sum(verdicts.values()) < count:
        program, graph = graphs[int(rng.integers(len(graphs)))]
        name, mutant = mutate(graph, rng)
        if rng.random() < 0.2:
            try:
                second, mutant = mutate(mutant, rng)
                name = f"{name}+{second}"
            except NotApplicable:
                pass
        if (key := mutant.stable_hash()) in seen:
            continue
        seen.add(key)
        try:
            different = not float_equal(program, mutant, rng)
            kind = "different" if different else "equal"
        except FuserError:
            kind = "not interpretable"
        start = time.perf_counter()
        verdict = verify(program, mutant, rng=rng, float_rounds=0)
        took = time.perf_counter() - start
        label = type(verdict).__name__
        if kind == "equal":
            equal_verdicts[label] += 1
            continue
        seconds += took
        verdicts[label] += 1
        if isinstance(verdict, Unknown):
            undecided[verdict.why] += 1
        for part in name.split("+"):
            by_mutation.setdefault(part, Counter())[f"{label}, {kind}"] += 1
        if isinstance(verdict, Accepted):
            accepted.append({"program": program.name, "mutation": name, "kind": kind, "graph": str(mutant)})
    return {
        "mutants": count,
        "verdicts": dict(verdicts),
        "accepted": accepted,
        "unknown_because": dict(undecided.most_common()),
        "equal_in_float64_set_aside": dict(equal_verdicts),
        "by_mutation": {k: dict(v) for k, v in sorted(by_mutation.items())},
        "seconds_verifying": round(seconds, 2),
        "per_second": round(count / seconds, 1),
    }


def run_rewrites(graphs: list[tuple[TensorProgram, KernelGraph]], count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Verify ``count`` different true rewritings, each with a random schedule in every other case."""
    refused: list[dict[str, str]] = []
    steps: Counter[str] = Counter()
    laws = 0
    seconds = 0.0
    seen: set[str] = set()
    bounds = []
    while len(seen) < count:
        program, graph = graphs[int(rng.integers(len(graphs)))]
        done, new = rewrite(graph, rng, int(rng.integers(1, 6)))
        if not done or (key := new.stable_hash()) in seen:
            continue
        seen.add(key)
        steps.update(done)
        schedule = random_schedule(new, rng) if rng.random() < 0.5 else None
        start = time.perf_counter()
        verdict = verify(program, new, schedule, rng=rng)
        seconds += time.perf_counter() - start
        if isinstance(verdict, Accepted):
            laws += verdict.law
            bounds.append(verdict.bound)
        elif isinstance(verdict, Rejected | Unknown):
            refused.append({"program": program.name, "steps": " ".join(done), "why": str(verdict), "graph": str(new)})
    return {
        "rewrites": count,
        "accepted": count - len(refused),
        "refused": refused,
        "needed_the_law_of_exp": laws,
        "proven_bound_below_1e-6": sum(b < 1e-6 for b in bounds),
        "steps": dict(steps.most_common()),
        "seconds_verifying": round(seconds, 2),
        "per_second": round(count / seconds, 1),
    }


def environment() -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "processes": 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--rewrites", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    graphs = [(p, g) for p in programs() for g in correct(p)]
    result: dict[str, Any] = {"environment": environment(), "seed": args.seed, "graphs": len(graphs)}
    # rewriting needs forms without a running maximum, so it starts from the plain fused ones and from cuts
    plain = [(p, g) for p, g in graphs if not any(s.running for b in g.blocks for s in b.stmts)]
    result["rewritings"] = run_rewrites(plain, args.rewrites, np.random.default_rng(args.seed))
    print(json.dumps({k: v for k, v in result["rewritings"].items() if k != "refused"}), file=sys.stderr)
    result["mutations"] = run_mutants(graphs, args.mutants, np.random.default_rng(args.seed + 1))
    result["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    make_folder(args.out.parent)
    write_file(args.out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    counts = result["mutations"]["verdicts"]
    print(
        f"{args.mutants} mutants: {counts}; {len(result['rewritings']['refused'])} of {args.rewrites} rewritings refused",
        file=sys.stderr,
    )


if __name__ == "__main__":
    script(main)
