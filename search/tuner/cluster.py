"""The workers of a Dask cluster: those with a GPU of their own measure, all others compile for them.

A worker that sees several GPUs is given one of them (before torch is loaded there), so that no two workers of a host share one.
Where some workers declare the resource ``GPU`` (``dask worker --resources GPU=1``) only those measure. A worker that is lost and
started again is asked and given a GPU again.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor
from concurrent.futures import Executor
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.errors import said
from search.measure.records import generator_version
from search.tuner.spread import Workers

TIMEOUT = 10.0
"""Seconds for a cluster to answer."""
FRESH = 2.0
"""Seconds for which is believed which workers there are."""
NEEDS = "pip install 'mufuser[dask]', on the workers too"


@dataclass(frozen=True)
class Sees:
    """What a worker says of itself: ``gpus`` by the names that CUDA_VISIBLE_DEVICES has for them, ``declared`` how many it
    declares (None: it declares none), ``version`` that of the code that generates kernels, ``cores`` of the host."""

    host: str
    gpus: tuple[str, ...]
    declared: float | None
    version: str
    cores: int


def look(dask_worker: Any) -> Sees:
    """In a worker: what it sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        files = os.listdir("/dev") if os.path.isdir("/dev") else []
        gpus = [str(i) for i in range(sum(re.fullmatch(r"nvidia\d+", f) is not None for f in files))]
    else:
        gpus = [g.strip() for g in visible.split(",") if g.strip() not in ("", "-1")]
    declared = dask_worker.state.total_resources.get("GPU")
    return Sees(socket.gethostname(), tuple(gpus), declared, generator_version(), len(os.sched_getaffinity(0)))


def pin(gpu: str) -> None:
    """In a worker: the GPU that it has (none: empty)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def shared_out(found: Mapping[str, Sees], taken: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The GPU of each worker, empty for those that compile. ``taken`` are host and GPU of workers that have one already."""
    free = {(s.host, g) for s in found.values() for g in s.gpus} - set(taken.values())
    declared = any(s.declared for s in found.values())
    given: dict[str, str] = {}
    for address, s in sorted(found.items(), key=lambda x: (len(x[1].gpus), x[0])):
        mine = next((g for g in s.gpus if (s.host, g) in free), "") if s.declared or not declared else ""
        free.discard((s.host, mine))
        given[address] = mine
    return given


@dataclass
class Cluster:
    """A running cluster. ``simulated``: nothing runs on a GPU, so that every worker (of those that declare one, if any does) may
    measure."""

    client: Any
    simulated: bool = False
    sees: dict[str, Sees] = field(default_factory=dict)
    gpus: dict[str, str] = field(default_factory=dict)
    _asked: float = -FRESH

    def refresh(self) -> None:
        """Ask which workers there are, and give new ones their GPU."""
        if time.monotonic() - self._asked < FRESH:
            return
        there = set(self.client.nthreads())
        self.sees = {a: s for a, s in self.sees.items() if a in there}
        self.gpus = {a: g for a, g in self.gpus.items() if a in there}
        if new := sorted(there - self.sees.keys()):
            try:
                found: dict[str, Sees] = self.client.run(look, workers=new, on_error="raise")
            except (ImportError, AttributeError) as error:
                raise EnvironmentError_(
                    f"a worker of the cluster cannot do our work: {first_line(error)}", "install this mufuser on the workers too"
                ) from error
            for address, s in found.items():
                if s.version != generator_version():
                    raise EnvironmentError_(f"the worker {address} has another version of mufuser", "install this one there too")
            taken = {a: (self.sees[a].host, g) for a, g in self.gpus.items() if g}
            given = shared_out(found, taken) if not self.simulated else dict.fromkeys(found, "")
            for gpu in sorted(set(given.values())) if not self.simulated else ():
                self.client.run(pin, gpu, workers=[a for a, g in given.items() if g == gpu])
            self.sees |= found
            self.gpus |= given
        self._asked = time.monotonic()

    def addresses(self, measuring: bool) -> list[str]:
        """Of the workers that measure, or of the others."""
        self.refresh()
        if self.simulated:
            declared = [a for a, s in self.sees.items() if s.declared]
            mine = declared or list(self.sees)
        else:
            mine = [a for a, g in self.gpus.items() if g]
        return sorted(a for a in self.sees if (a in mine) == measuring)


@dataclass(eq=False)
class DaskExecutor(Executor):
    """The workers of a cluster that measure, or those that compile."""

    cluster: Cluster
    measuring: bool
    _under_way: dict[Future[Any], tuple[str, ...]] = field(default_factory=dict)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Raises :class:`BrokenExecutor` where no worker is left."""
        return self._submit(self.places(), fn, *args, **kwargs)

    def places(self) -> list[str]:
        """The workers' addresses."""
        return self.cluster.addresses(self.measuring)

    def submit_at(self, place: str, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """By one of them; it is lost with it."""
        return self._submit([place], work, *args)

    def _submit(self, addresses: list[str], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        if not addresses:
            raise BrokenExecutor("no worker is left")
        run = self.cluster.client.get_executor(workers=addresses, allow_other_workers=False, pure=False)
        future = run.submit(fn, *args, **kwargs)
        self._under_way = {f: a for f, a in self._under_way.items() if not f.done()} | {future: tuple(addresses)}
        return future

    def sweep(self) -> None:
        """Give up jobs that wait for workers of which none is left."""
        there = set(self.cluster.addresses(self.measuring))
        for future, addresses in self._under_way.items():
            if not there & set(addresses):
                future.cancel()


def dask_workers(address: str, simulated: bool = False) -> Workers:
    """The workers of a running Dask cluster. Raises :class:`EnvironmentError_` where there is no such cluster, no Dask, or no
    worker with a GPU."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise EnvironmentError_("Dask is not installed", NEEDS) from error
    try:
        client = Client(address, timeout=TIMEOUT)
    except (OSError, ValueError, TimeoutError, MemoryError) as error:  # what is no scheduler announces exabytes
        raise EnvironmentError_(
            f"there is no Dask cluster at {address!r}: {said(error)}", "dask scheduler; dask worker"
        ) from error
    return workers_of(client, simulated)


def workers_of(client: Any, simulated: bool = False) -> Workers:
    """The workers of a client's cluster."""
    cluster = Cluster(client, simulated)
    measuring, compiling = cluster.addresses(True), cluster.addresses(False)
    if not cluster.sees:
        raise UsageError("the Dask cluster has no workers", "dask worker ADDRESS, one for each GPU, others to compile")
    if not measuring:
        raise EnvironmentError_(
            "no worker of the Dask cluster sees a GPU", "dask worker ADDRESS on a host with GPUs; --simulate SEED needs none"
        )
    beside = max(sum(1 for b in measuring if cluster.sees[b].host == cluster.sees[a].host) for a in measuring)
    jobs = max(1, min(cluster.sees[a].cores for a in measuring) // beside - 1)
    compilers = DaskExecutor(cluster, False) if compiling else None
    return Workers(DaskExecutor(cluster, True), len(measuring), compilers, jobs)
