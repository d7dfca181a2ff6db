"""How many candidates a second the GPUs of a host measure together: the same searches with one worker, and with several.

    python -m experiments.throughput --gpus 1 2 --out out
    python -m experiments.throughput --gpus 1 2 --simulate 1 --warm 1 --seconds 3    # to try it out without a GPU

Every run has a Dask cluster of its own, with a worker for each GPU, cores that compile, and empty caches: as many cores for
each GPU (``--cores 13 26``), as machines have them, or in all (``--cores 26``), where compilers are soon what is waited for. With
``--compiled`` kernels are kept in a folder, so that what was compiled before, by a run that is not written down, costs nothing.
Searches that do not end by themselves are counted from when each has measured its first generation, and some a second: workers
have imported then and drawn their inputs, and the processes that think have started.
Winners are compiled here again and compared with float64.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from argparse import BooleanOptionalAction
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import ExitStack
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from json import dumps
from pathlib import Path
from subprocess import Popen
from subprocess import TimeoutExpired
from typing import Any

from experiments.environment import environment
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.console import plain
from fuser.console import print_table
from fuser.device import Device
from fuser.device import load_device
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.compile import compile_program
from search.libraries import with_libraries
from search.measure.machine import device_info
from search.measure.session import Session
from search.ranked import QUICK
from search.tuner.campaign import Campaign
from search.tuner.cluster import workers_of
from search.tuner.hunt import Hunt
from search.tuner.judges import OPTIONS
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from search.tuner.pool import pool_of
from search.tuner.spread import Spread

CHAINS = ("G1", "G2", "G4", "G7", "G8", "S2", "S4", "S5", "S7", "S8")
OTHERS = ("mlp", "lora", "gqa-spec", "gqa-inc", "qknorm", "ntrans")
NAMES = (*(f"mcfuser/{n}" for n in CHAINS), *(f"mirage/{n}" for n in OTHERS))
"""So many that GPUs have something to do while other searches think and compile: of eight one H200 measured 12 candidates a
second, two of them 19."""
THREADS = 2
"""Compilers of one worker."""
START = 60.0
"""Seconds in which a cluster is there."""
ENDLESS = replace(QUICK, patience=1 << 30, generations=1 << 30)
FIRST = replace(ENDLESS, generations=1)


@contextmanager
def cluster(gpus: int, cores: int, folder: str, compiled: Path | None) -> Iterator[Any]:
    """A client of a cluster as a user starts one, each part in a process of its own: workers for each GPU, which see all of them,
    and others for the cores. ``compiled``: where kernels are kept."""
    from distributed import Client

    env = os.environ | {"TRITON_CACHE_DIR": f"{folder}/triton", "MUFUSER_CACHE": f"{compiled or folder}/mufuser"}
    file, few = f"{folder}/scheduler.json", -(-cores // THREADS)
    worker = ["worker", "--scheduler-file", file, "--no-dashboard", "--memory-limit", "0", "--local-directory", folder]
    commands = [
        (["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file], env),
        *(([*worker, "--nworkers", "1", "--nthreads", "1", "--resources", "GPU=1"], env) for _ in range(gpus)),
        ([*worker, "--nworkers", str(few), "--nthreads", str(THREADS)], env | {"CUDA_VISIBLE_DEVICES": ""}),
    ]
    with ExitStack() as stack, open(f"{folder}/log", "wb") as log:
        for words, seen in commands:
            started = Popen([sys.executable, "-m", "dask", *words], env=seen, stdout=log, stderr=log)
            stack.callback(_end, started)
        client = stack.enter_context(Client(scheduler_file=file, timeout=START))
        client.wait_for_workers(gpus + few, timeout=START)
        yield client


def _end(started: Popen[bytes]) -> None:
    started.terminate()
    try:
        started.wait(5.0)
    except TimeoutExpired:
        started.kill()


def run(gpus: int, cores: int, args: Any, device: Device) -> dict[str, Any]:
    """Search all workloads with so many GPUs and cores that compile, so long."""
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        cluster(gpus, cores, folder, args.compiled) as client,
    ):
        workers = workers_of(client, args.simulate is not None)
        judge = Spread(workers, device, None, OPTIONS, args.simulate)
        hunts = searches(args.names, device, judge, args.seed)
        note(f"{gpus} GPUs: {workers.count} workers, ready after {time.monotonic() - begin:.0f} s")
        Campaign(hunts, judge, args.warm, processes=1).run()
        for h in hunts:
            h.effort = ENDLESS
        begun, ended = counted(Campaign(hunts, judge, args.warm + args.seconds), judge, args.seconds)
        seconds, before, count = ended.at - begun.at, begun.count, ended.count - begun.count
        measuring, compiling, here = ended.measured - begun.measured, ended.compiled - begun.compiled, ended.here - begun.here
        note(f"{gpus} GPUs: {count} candidates in {seconds:.1f} s, {count / seconds:.2f} a second ({before} before)")
    checked = () if args.simulate is not None or not args.check else [h for h in hunts if h.best]
    errors = {h.program.name: error(h, device) for h in checked}
    return {
        "gpus": gpus,
        "cores": cores,
        "measured": count,
        "seconds": seconds,
        "per_second": count / seconds,
        "gpus_busy": measuring / seconds / gpus,
        "cores_busy": compiling / seconds / cores,
        "client_busy": here / seconds,
        "lost": judge.lost,
        "failures": {h.program.name: dict(h.failures) for h in hunts},
        "best_us": {h.program.name: h.seconds * 1e6 for h in hunts if h.best},
        "generations": {h.program.name: len(h.history) for h in hunts},
        "errors": errors,
    }


@dataclass(frozen=True)
class State:
    """How many candidates were measured by then; seconds of work of all GPUs, of all compilers, and of this process."""

    at: float
    count: int
    measured: float
    compiled: float
    here: float


def counted(campaign: Campaign, judge: Spread, seconds: float) -> tuple[State, State]:
    """Run so many seconds from when as many generations were measured as there are searches: what thinks has started then. How
    it was then, and at the end."""
    told = 0

    def state() -> State:
        count = sum(len(h.times) for h in campaign.hunts)
        return State(time.monotonic(), count, judge.measured, judge.compiled, time.process_time())

    began = state()

    def watch(hunt: Hunt) -> None:
        nonlocal told, began
        told += 1
        if told == len(campaign.hunts):
            began = state()
            campaign.end = began.at + seconds

    campaign.watch = watch
    campaign.run()
    if campaign.why in ("interrupted", "terminated"):
        raise KeyboardInterrupt
    return began, state()


def searches(names: Sequence[str], device: Device, judge: Spread, seed: int) -> list[Hunt]:
    """A search of each workload, of one generation."""
    programs = [workload(n) for n in names]
    parts = [judge.each(part, jobs_of(p, with_libraries(structures(p)), device, FIRST, seed)) for p in programs]
    return [Hunt(p, pool_of(p, device, found), FIRST, seed) for p, found in zip(programs, parts, strict=True)]


def error(hunt: Hunt, device: Device) -> float:
    """Relative error of the winner, compiled and run here, against float64."""
    assert hunt.best is not None
    made = hunt.best.candidate
    call = compile_program(
        hunt.program, target=device, graph=made.graph, schedule=made.schedule, records=False, checked=False, device="cuda"
    )
    session = Session(hunt.program, OPTIONS, "cuda")
    found = session.compare(call.by_name(session.check_inputs))
    if not found.ok:
        raise SystemExit(f"the winner of {hunt.program.name} is wrong: {found}")
    return found.error


def main() -> int:
    p = parser("experiments.throughput", __doc__, "out", "seed", "target")
    p.add_argument("names", nargs="*", default=NAMES, metavar="WORKLOAD", help="what is searched")
    p.add_argument("--gpus", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of GPUs, a run each (1 2)")
    p.add_argument(
        "--cores",
        type=int,
        nargs="+",
        default=[max(2, (os.cpu_count() or 2) - 6)],
        metavar="N",
        help="that compile: in all runs, or in each",
    )
    p.add_argument("--compiled", type=Path, metavar="FOLDER", help="keep kernels there, and begin with a run that fills it")
    p.add_argument("--check", action=BooleanOptionalAction, default=True, help="compare winners with float64 once more")
    p.add_argument(
        "--warm",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="at most, for a first generation of all, which does not count (%(default)s)",
    )
    p.add_argument("--seconds", type=float, default=20.0, metavar="SECONDS", help="of each run (%(default)s)")
    p.add_argument("--simulate", type=int, metavar="SEED", help="times of a device that does not exist")
    args = p.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # of what is given up when a run ends
    device = load_device(args.target)
    make_folder(args.out)
    runs = []
    if len(args.cores) not in (1, len(args.gpus)):
        p.error(f"--cores has {len(args.cores)} numbers for {len(args.gpus)} runs")
    if args.compiled:
        run(max(args.gpus), max(args.cores), args, device)
    for gpus, cores in zip(args.gpus, args.cores * (len(args.gpus) // len(args.cores)), strict=True):
        runs.append(run(gpus, cores, args, device))
        where = environment(device_info("cpu" if args.simulate is not None else "cuda"))
        write_file(args.out / "throughput.json", dumps(plain({"environment": where, "runs": runs}), indent=1) + "\n")
    one = runs[0]["per_second"]
    rows = []
    for r in runs:
        rate, worst = r["per_second"], max(r["errors"].values(), default=0.0)
        busy = (f"{r[what]:.0%}" for what in ("gpus_busy", "cores_busy", "client_busy"))
        counts = r["gpus"], r["cores"], r["measured"], f"{r['seconds']:.1f}"
        rows.append((*counts, f"{rate:.2f}", f"{rate / one:.2f}", *busy, f"{worst:.1e}"))
    heads = ("GPUs >", "cores >", "measured >", "s >", "per s >", "× >", "GPUs >", "cores >", "client >", "error >")
    title = f"candidates measured a second, {device.title}; shares of the time in which GPUs, cores, client worked"
    print_table(title, heads, rows)
    return 0


if __name__ == "__main__":
    script(main)
