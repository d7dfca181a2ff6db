"""What another schedule of one kernel changes of the time of a whole network.

    python -m experiments.chains gpt2 --layers 6 --budget 300 -o out/gpt2.json
    python -m experiments.chains --table out/gpt2.json              # an earlier result again; needs no GPU

A *role* is a group of equal kernels, one or two in each layer. Another schedule is put in all its places at once
(:mod:`experiments.roles`), and the whole network replayed as a CUDA graph: so a kernel is judged between its neighbours, not by
itself. What computes anything else than the first chain is not timed. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Executor
from concurrent.futures import Future
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.environment import environment
from experiments.environment import need_gpu
from experiments.roles import Row
from experiments.roles import Timing
from experiments.roles import descend
from experiments.script import own_cache
from experiments.script import parser
from experiments.script import script
from fuser.agreement import agreements
from fuser.console import note
from fuser.console import plain
from fuser.console import print_table
from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.files import read_json
from fuser.ir.candidate import Candidate
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import neutral
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import SPAWN
from fuser.runtime.cuda_driver import CudaError
from fuser.runtime.graph_executor import Executable
from fuser.runtime.plan import plan
from search.cover.model import Model
from search.cover.offers import Pricing
from search.measure.replays import in_turn

ROUNDS, SECONDS = 5, 0.004
"""A chain takes turns with the best so far in so many rounds, and replays that long in each."""
METHOD = (
    f"weights and inputs were random; median of {ROUNDS} rounds in turn with the best chain so far, which delta_us is against; "
    "outputs compared with the first chain's, buffers cleared before"
)
LIMIT = 5e-3
"""Relative error against the first chain from which a chain is wrong."""
COMPILING = 120.0
"""Seconds that a kernel may be compiled for."""


# -- documents ----------------------------------------------------------------------------------------------------------------


def written(document: Mapping[str, Any]) -> str:
    """A document as JSON, a line for each row and each kernel."""

    def text(value: Any) -> str:
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)

    fields = [
        f' "{k}": ' + ("[\n  " + ",\n  ".join(map(text, v)) + "\n ]" if isinstance(v, list) and v else text(v))
        for k, v in document.items()
    ]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def slim(row: Row) -> dict[str, Any]:
    """A row without what it has not; times to a nanosecond."""
    found = {k: v for k, v in asdict(row).items() if v not in (None, "")}
    return {k: round(v, 3) if k.endswith("us") else float(f"{v:.3g}") if k == "error" else v for k, v in found.items()}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """For each role and number of kernels: how many chains were timed and failed, and of the fastest the label, the time and what
    it gained for each kernel since the role's first."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["role"], row["count"]), []).append(row)
    found = []
    for (role, count), mine in groups.items():
        timed = [r for r in mine if r.get("us") is not None]
        best = min(timed, key=lambda r: r["us"], default=None)
        last = ("-", "-", "-")
        if best:
            before = timed[0]["us"] - timed[0]["delta_us"] * count
            last = (best["label"], f"{best['us']:.1f}", f"{(best['us'] - before) / count:+.2f}")
        found.append((role, count, len(timed), len(mine) - len(timed), *last))
    return found


def print_summary(found: Mapping[str, Any]) -> None:
    heads = ("role", "kernels >", "timed >", "failed >", "fastest", "µs >", "a kernel >")
    where = f"{found['environment']['device']}, {found['layers']} layers"
    ends = f"the whole, µs: {found['first_us']:.1f} at first, {found['best_us']:.1f} at last"
    print_table(f"{found['network']} on {where}", heads, summary(found["rows"]), [ends])


# -- the GPU ------------------------------------------------------------------------------------------------------------------


class Chain:
    """A candidate on this GPU as a CUDA graph. Its buffers are cleared before the replay that counts as its result: chains have
    the same inputs, so that memory of an earlier one would hide what a kernel reads too early or does not write."""

    def __init__(self, executable: Executable, inputs: Mapping[str, Any]) -> None:
        import torch

        self._executable = executable
        self._captured = executable.capture(inputs, executable.empty_outputs())
        self.outputs, self.replay = self._captured.outputs, self._captured.replay
        executable.workspace.fill_(255)  # all ones is NaN in every float dtype
        for y in self.outputs.values():
            y.fill_(math.nan)
        self.replay()
        torch.cuda.synchronize()

    def release(self) -> None:
        self._captured.graph.reset()
        self._executable.unload()


class GpuBench:
    """A :class:`experiments.roles.Bench` for chains of one model; kernels that are equal but for names are compiled once."""

    def __init__(self, model: Model, executor: Executor) -> None:
        import torch

        graph, program = model.whole.candidate.graph, model.program
        self._arch, self._executor = model.device.arch, executor
        self._compiled: dict[str, Future[KernelArtifact]] = {}
        dtypes = {n: getattr(torch, graph.table[n].dtype) for n in (*graph.inputs, *graph.outputs)}
        self._constants = {n: torch.from_numpy(x).to("cuda", dtypes[n]) for n, x in model.params.items() if n in graph.inputs}
        free = [n for n in graph.inputs if n not in self._constants]
        self._inputs = {n: torch.randn(program[n].shape, device="cuda").to(dtypes[n]) for n in free}
        self._dtypes = {n: program[n].dtype for n in graph.outputs}
        self._base, self._chain = model.whole.candidate.candidate, self._chain_of(model.whole.candidate.candidate)
        self._first = {n: y.double() for n, y in self._chain.outputs.items()}
        if not all(bool(y.isfinite().all()) for y in self._first.values()):
            raise NoValidKernelError("the first chain computes NaN or infinity: there is nothing to compare others with")

    def ahead(self, several: Sequence[Candidate]) -> None:
        """Begin to compile their kernels."""
        for candidate in several:
            with suppress(FuserError):  # said where the candidate is timed
                for source in candidate.once(sources_of):
                    self._artifact(source)

    def time(self, base: Candidate, other: Candidate) -> Timing:
        import torch

        try:
            return self._in_turn(base, other)
        except (RuntimeError, CudaError):
            try:
                torch.cuda.synchronize()
            except RuntimeError as lost:
                raise EnvironmentError_(
                    f"the GPU cannot be used any more: {first_line(lost)}", "what was measured before is kept: start again"
                ) from lost
            raise

    def _in_turn(self, base: Candidate, other: Candidate) -> Timing:
        if base is not self._base:
            self._chain.release()
            self._base, self._chain = base, self._chain_of(base)
        chain = self._chain_of(other)
        try:
            found = agreements(chain.outputs, self._first, self._dtypes, LIMIT)
            if not found.ok:
                raise NoValidKernelError(f"another result than the first chain's: {found.message}")
            times = in_turn({"base": self._chain.replay, "other": chain.replay}, ROUNDS, SECONDS)
        finally:
            chain.release()
        return Timing(statistics.median(times["other"]), statistics.median(times["base"]), found.error)

    def _chain_of(self, candidate: Candidate) -> Chain:
        planned = plan(candidate, candidate.once(sources_of))
        futures = [None if s is None else (self._artifact(s), s) for s in planned.sources]
        artifacts = [None if f is None else f[0].result(COMPILING).over(f[1]) for f in futures]
        return Chain(Executable(planned, artifacts=artifacts, constants=self._constants), self._inputs)

    def _artifact(self, source: KernelSource) -> Future[KernelArtifact]:
        key = neutral(source)
        if key not in self._compiled:
            self._compiled[key] = self._executor.submit(compile_kernel, source, self._arch)
        return self._compiled[key]


def sources_of(candidate: Candidate) -> tuple[KernelSource, ...]:
    return generate_graph(candidate.graph, candidate.schedule)


# -- a run --------------------------------------------------------------------------------------------------------------------


def run(network: str, layers: int | None, budget: float, path: Path) -> dict[str, Any]:
    """Explore one network on this GPU. The document is written after every role."""
    import torch

    from experiments.networks import NETWORKS
    from fuser.frontends.torch_export import from_torch
    from search.cover.model import compile_model
    from search.measure.machine import device_info
    from search.where import where_to_run

    if network not in NETWORKS:
        raise UsageError(f"there is no network {network!r}", f"networks: {', '.join(NETWORKS)}")
    _, device = where_to_run("cuda", None, network)
    torch.manual_seed(0)
    module, sizes = NETWORKS[network].make(1, layers)
    known = from_torch(module.eval().half().requires_grad_(False), tuple(torch.randn(s).half() for s in sizes))
    with ProcessPoolExecutor(os.cpu_count(), SPAWN) as pool:
        note(f"… a plan of {network} for {device.title}")
        model = compile_model(known.program, known.params, Pricing(device, executor=pool), compiled=False, checked=False)
        first = best = model.whole.candidate.candidate
        bench = GpuBench(model, pool)
        whole = bench.time(first, first)
        document: dict[str, Any] = {
            "network": network,
            "layers": layers or NETWORKS[network].layers,
            "environment": environment(device_info("cuda")),
            "method": METHOD,
            "first_us": whole.us,
        }
        rows: list[dict[str, Any]] = []
        start = time.perf_counter()
        for role, best, found in descend(first, device, bench, lambda: time.perf_counter() - start < budget):
            rows += map(slim, found)
            last = bench.time(first, best)
            document |= {"first_us": last.base_us, "best_us": last.us, "rows": rows, "schedules": _schedules(best)}
            write_file(path, written(document))
            note(f"{role.title} × {len(role.places)}: {last.base_us:.1f} → {last.us:.1f} µs")
        pool.shutdown(cancel_futures=True)
    return document


def _schedules(candidate: Candidate) -> list[list[str]]:
    return [[block.name, str(mine)] for block, mine in candidate.blocks]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser("experiments.chains", __doc__)
    p.add_argument("network", nargs="?", help="one of those of `mufuser bench models --list`")
    p.add_argument("--layers", type=int, default=None, help="of the network; as published by default")
    p.add_argument("--budget", type=float, default=300.0, help="seconds of measuring")
    p.add_argument("-o", "--out", type=Path, default=None, help="the result, as JSON")
    p.add_argument("--table", type=Path, default=None, metavar="RESULT", help="print an earlier result; needs no GPU")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if args.table:
        print_summary(read_json(args.table, error=UsageError))
        return 0
    if not args.network or args.out is None:
        raise UsageError("a network and a file for the result are needed", "python -m experiments.chains gpt2 -o gpt2.json")
    if (args.layers is not None and args.layers < 1) or not math.isfinite(args.budget) or args.budget <= 0:
        raise UsageError("--layers and --budget are positive numbers", "--layers 6 --budget 300")
    need_gpu("--table RESULT.json shows an earlier result without one")
    own_cache()
    make_folder(args.out.parent)
    print_summary(run(args.network, args.layers, args.budget, args.out))
    return 0


if __name__ == "__main__":
    script(main)
