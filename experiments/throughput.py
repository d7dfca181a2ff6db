"""How many candidates a second the GPUs of a host measure together: the same searches with one worker, and with several.

    python -m experiments.throughput --gpus 1 2 --out out
    python -m experiments.throughput --gpus 1 2 --simulate 1 --warm 1 --seconds 3    # to try it out without a GPU

Every run has a Dask cluster of its own, with a worker for each GPU, as many cores that compile, and empty caches. Searches
that do not end by themselves are counted from when each has measured its first generation, and some a second: workers have
imported then and drawn their inputs, and the processes that think have started.
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
from dataclasses import replace
from json import dumps
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
def cluster(gpus: int, cores: int, folder: str) -> Iterator[Any]:
    """A client of a cluster as a user starts one, each part in a process of its own: workers for each GPU, which see all of them,
    and others for the cores."""
    from distributed import Client

    env = os.environ | {"TRITON_CACHE_DIR": f"{folder}/triton", "MUFUSER_CACHE": f"{folder}/mufuser"}
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


def run(gpus: int, args: Any, device: Device) -> dict[str, Any]:
    """Search all workloads with so many GPUs, so long."""
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        cluster(gpus, args.cores, folder) as client,
    ):
        workers = workers_of(client, args.simulate is not None)
        judge = Spread(workers, device, None, OPTIONS, args.simulate)
        hunts = searches(args.names, device, judge, args.seed)
        note(f"{gpus} GPUs: {workers.count} workers, ready after {time.monotonic() - begin:.0f} s")
        Campaign(hunts, judge, args.warm, processes=1).run()
        for h in hunts:
            h.effort = ENDLESS
        start, before = counted(Campaign(hunts, judge, args.warm + args.seconds), args.seconds)
        seconds, count = time.monotonic() - start, sum(len(h.times) for h in hunts) - before
        note(f"{gpus} GPUs: {count} candidates in {seconds:.1f} s, {count / seconds:.2f} a second ({before} before)")
    checked = () if args.simulate is not None or not args.check else [h for h in hunts if h.best]
    errors = {h.program.name: error(h, device) for h in checked}
    return {
        "gpus": gpus,
        "cores": args.cores,
        "measured": count,
        "seconds": seconds,
        "per_second": count / seconds,
        "lost": judge.lost,
        "failures": {h.program.name: dict(h.failures) for h in hunts},
        "best_us": {h.program.name: h.seconds * 1e6 for h in hunts if h.best},
        "generations": {h.program.name: len(h.history) for h in hunts},
        "errors": errors,
    }


def counted(campaign: Campaign, seconds: float) -> tuple[float, int]:
    """Run so many seconds from when as many generations were measured as there are searches: what thinks has started then. When
    that was, and how many candidates were measured by then."""
    told, began = 0, (time.monotonic(), 0)

    def watch(hunt: Hunt) -> None:
        nonlocal told, began
        told += 1
        if told == len(campaign.hunts):
            began = time.monotonic(), sum(len(h.times) for h in campaign.hunts)
            campaign.end = began[0] + seconds

    campaign.watch = watch
    campaign.run()
    return began


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
    p.add_argument("--cores", type=int, default=max(2, (os.cpu_count() or 2) - 6), help="that compile, in each run")
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
    for gpus in args.gpus:
        runs.append(run(gpus, args, device))
        where = environment(device_info("cpu" if args.simulate is not None else "cuda"))
        write_file(args.out / "throughput.json", dumps(plain({"environment": where, "runs": runs}), indent=1) + "\n")
    one = runs[0]["per_second"]
    rows = []
    for r in runs:
        rate, worst = r["per_second"], max(r["errors"].values(), default=0.0)
        rows.append(
            (r["gpus"], r["cores"], r["measured"], f"{r['seconds']:.1f}", f"{rate:.2f}", f"{rate / one:.2f}", f"{worst:.1e}")
        )
    heads = ("GPUs >", "cores >", "measured >", "s >", "a second >", "× the first >", "worst error >")
    print_table(f"candidates measured a second, {device.title}", heads, rows)
    return 0


if __name__ == "__main__":
    script(main)
