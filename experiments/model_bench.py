"""``mufuser bench models``: whole networks on a GPU beside eager torch, SDPA and inductor, as CUDA graphs, in one run.

Nothing is measured before: our kernels are the model's choice. Every output is compared with the network in float64 before
anything is timed; replays of all contestants take turns. The folder of a run has the same documents as that of other suites
(:mod:`experiments.report`), written after every case: the same command goes on where an earlier one ended.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from experiments import report
from experiments.ceilings import Ceilings
from experiments.ceilings import Floor
from experiments.ceilings import contraction_flops
from experiments.ceilings import nbytes
from experiments.environment import environment
from experiments.peers import MODE
from fuser.agreement import agreement
from fuser.console import note
from fuser.console import plain
from fuser.device import Device
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.files import counted
from fuser.ir.program import TensorProgram
from search.measure.machine import device_info
from search.measure.replays import captured
from search.measure.replays import in_turn
from search.measure.timing import spread

SUITE = "models"
PEERS = ("eager", "flash", "cudnn", "inductor-sdpa")
"""Peers of a network by default; ``inductor`` is the one with attention written out."""
KNOWN = (*PEERS, "inductor")
DTYPE = "float16"
EXACT = 1.5
"""Times the error of eager torch that ours may have."""


# -- cases --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network at a batch size; its name is that of a workload: ``models/gpt2:8``."""

    network: str
    batch: int

    @property
    def name(self) -> str:
        return f"{SUITE}/{self.network}" + (f":{self.batch}" if self.batch != 1 else "")


def cases_of(names: Sequence[str], batches: Sequence[int]) -> list[Case]:
    """Cases of networks by name or glob, with a batch of their own (``gpt2:8``) or each of ``batches``, in the order of the
    table of networks. Raises :class:`UsageError` for a name that none has."""
    from experiments.networks import NETWORKS

    every = [Case(n, b) for b in batches for n in NETWORKS]
    found: dict[Case, None] = {}
    for text in names or ["*"]:
        base, colon, batch = text.removeprefix(f"{SUITE}/").partition(":")
        offered = [Case(n, int(batch)) for n in NETWORKS] if colon and batch.isdecimal() and int(batch) else every
        matching = [c for c in offered if fnmatchcase(c.network, base)] if not colon or offered is not every else []
        if not matching:
            raise UsageError(f"there is no network {text!r}", f"networks: {', '.join(NETWORKS)}; with a batch: gpt2:8")
        found |= dict.fromkeys(matching)
    return [c for c in every if c in found] + [c for c in found if c not in every]


def batches_of(text: str) -> tuple[int, ...]:
    """``1,8``. Raises :class:`UsageError` for what is no batch size."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() and 0 < int(p) <= 4096 for p in parts):
        raise UsageError(f"{text!r} are no batch sizes", "--batch 1,8")
    return tuple(dict.fromkeys(map(int, parts)))


def peers_of(text: str | None) -> tuple[str, ...]:
    """``all``, ``none``, or names with commas between them; by default those that are no other's lesser form."""
    if text is None or text in ("all", "none"):
        return PEERS if text is None else KNOWN if text == "all" else ()
    names = tuple(dict.fromkeys(p.strip() for p in text.split(",") if p.strip()))
    if unknown := [n for n in names if n not in KNOWN]:
        raise UsageError(f"there is no peer {unknown[0]!r} of a network", f"peers are {', '.join(KNOWN)}")
    return names


# -- floors -------------------------------------------------------------------------------------------------------------------


def floor(program: TensorProgram, device: Device) -> Floor:
    """What nothing can beat: all inputs and parameters but those that the L2 cache may still hold from the call before, the FLOPs
    of the products (of causal attention below the diagonal alone), and one launch."""
    limits = Ceilings.of(device)
    moved = max(0, nbytes(program) - device.l2_bytes)
    return Floor(moved / limits.bandwidth, contraction_flops(program) / limits.matmul, limits.launch)


# -- contestants --------------------------------------------------------------------------------------------------------------


def contestants(module: Any, inputs: tuple[Any, ...], names: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """Calls of the peers."""
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel

    def forced(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return module(*inputs)

        return call

    def eager() -> Any:
        with written_out():
            return module(*inputs)

    calls: dict[str, Callable[[], Any]] = {
        "eager": eager,
        "flash": forced(SDPBackend.FLASH_ATTENTION),
        "cudnn": forced(SDPBackend.CUDNN_ATTENTION),
        "inductor-sdpa": _compiled(module, inputs, False),
        "inductor": _compiled(module, inputs, True),
    }
    return {n: calls[n] for n in names}


@contextmanager
def written_out(explicit: bool = True) -> Iterator[None]:
    """Attention as products and a softmax."""
    from experiments import networks

    networks.explicit = explicit
    try:
        yield
    finally:
        networks.explicit = False


def _compiled(module: Any, inputs: tuple[Any, ...], explicit: bool) -> Callable[[], Any]:
    made: list[Any] = []

    def call() -> Any:
        import torch

        with written_out(explicit):
            if not made:
                torch._dynamo.reset()
                made.append(torch.compile(module, mode=MODE))
            return made[0](*inputs)

    return call


def error(got: Any, wanted: Any) -> float:
    """Relative Frobenius norm of the difference; infinite where NaN or infinity stand elsewhere."""
    found = agreement(got, wanted, DTYPE, math.inf)
    return found.error if found.ok else math.inf


# -- one case -----------------------------------------------------------------------------------------------------------------


def measured(case: Case, peers: Sequence[str]) -> dict[str, Any]:
    """One network as a case of the document: ours and every peer, checked against float64 and timed in turn."""
    import torch

    import fuser
    from experiments.networks import NETWORKS

    torch.manual_seed(0)
    dtype = getattr(torch, DTYPE)
    module, shapes = NETWORKS[case.network].make(case.batch)
    module = module.eval().to("cuda", dtype).requires_grad_(False)
    inputs = tuple(torch.randn(s, device="cuda", dtype=dtype) for s in shapes)
    with torch.no_grad():
        wanted = module.double()(*(x.double() for x in inputs))
    module.to(dtype)
    start = time.perf_counter()
    run = fuser.compile(module, inputs, effort="instant")
    seconds = time.perf_counter() - start
    ours = run.captured(*inputs)
    ours.replay()
    torch.cuda.synchronize()
    (got,) = ours.outputs.values()
    errors, replays = {"mufuser": error(got, wanted)}, {"mufuser": ours.replay}
    failed: dict[str, str] = {}
    # eager says how exact ours has to be
    for peer, call in contestants(module, inputs, list(dict.fromkeys(("eager", *peers)))).items():
        try:
            out, replay = captured(call)
        except Exception as problem:  # noqa: BLE001 - a backend that does not take these shapes; compilers raise anything
            failed[peer] = first_line(problem)
            torch.cuda.synchronize()
            continue
        errors[peer] = error(out, wanted)
        if peer in peers:
            replays[peer] = replay
    correct = errors["mufuser"] <= EXACT * errors.get("eager", math.inf)
    if not correct:  # no time without a right result
        del replays["mufuser"]
    times = in_turn(replays)
    found = document_of(case, run, times, errors, failed, floor(run.program, run.target))
    return found | {"compile_seconds": seconds, "plan": run.plan.lines(), "failed": [] if correct else [_wrong(errors)]}


def _wrong(errors: Mapping[str, float]) -> str:
    return f"wrong: error {errors['mufuser']:.1e} against float64, {errors.get('eager', math.nan):.1e} of eager"


def document_of(
    case: Case,
    run: Any,
    times: Mapping[str, Sequence[float]],
    errors: Mapping[str, float],
    failed: Mapping[str, str],
    least: Floor,
) -> dict[str, Any]:
    """A case as other suites' documents have it (:func:`experiments.report.document`). ``run`` is what was compiled; ``times``
    are microseconds of each round."""
    us = {n: statistics.median(ts) for n, ts in times.items()}
    mine = us.pop("mufuser", None)
    peers = {n: {"us": t, "status": "ok", "detail": "", "error": errors.get(n)} for n, t in us.items()}
    peers |= {n: {"us": None, "status": "invalid", "detail": why, "error": None} for n, why in failed.items()}
    best = min(us, key=lambda n: us[n], default=None)
    choice = run.plan.choice
    return {
        "workload": case.name,
        "us": mine,
        "spread": spread(times["mufuser"]) if mine else None,
        "error": errors.get("mufuser"),
        "kernels": run.plan.launches,
        "schedule": f"{counted(len(run.plan.parts), 'part')} of {choice.candidates} candidates" if choice else "one region",
        "structure": run.graph.stable_hash(),
        "candidates": choice.candidates if choice else 1,
        "predicted_us": run.plan.us,
        "floor_us": least.us,
        "floor_bound": least.bound,
        "peers": peers,
        "best_peer": best,
        "speedup": us[best] / mine if best and mine else None,
        "failed": [],
        "note": "",
    }


def failure(case: Case, problem: Exception) -> dict[str, Any]:
    """A case that has no result, with the reason."""
    empty = (
        "us",
        "spread",
        "error",
        "kernels",
        "schedule",
        "structure",
        "predicted_us",
        "floor_us",
        "floor_bound",
        "best_peer",
        "speedup",
    )
    why = f"{type(problem).__name__}: {first_line(problem)}"
    return {**dict.fromkeys(empty), "workload": case.name, "candidates": 0, "peers": {}, "failed": [why], "note": ""}


# -- a run --------------------------------------------------------------------------------------------------------------------


def document(cases: Sequence[Mapping[str, Any]], where: Mapping[str, Any], run: str, left: Sequence[str]) -> dict[str, Any]:
    """A run as one document."""
    ratios = [c["speedup"] for c in cases if c["speedup"]]
    try:
        limits = Ceilings.of(load_device(where["device"]))
    except UsageError:
        limits = None
    return plain(
        {
            "schema": report.SCHEMA,
            "run": run,
            "environment": dict(where),
            "ceilings": limits,
            "cases": list(cases),
            "left": list(left),
            "geometric_mean": report.geometric_mean(ratios) if ratios else None,
        }
    )


def run_all(
    cases: Sequence[Case],
    peers: Sequence[str],
    name: str,
    budget: float,
    known: report.Document | None,
    keep: Callable[[report.Document], report.Document],
) -> tuple[report.Document, bool]:
    """Measure every case that ``known``, an earlier document of the same run, has no result of, and ``keep`` the document after
    each; the last, and whether it was interrupted. No case begins after ``budget`` seconds."""
    warnings.filterwarnings("ignore")
    where = environment(device_info("cuda"))
    done = _earlier(known, where, name)
    found = [done[c.name] for c in cases if c.name in done]
    for c in found:
        note(f"{c['workload']} (measured before)")
    start, todo = time.perf_counter(), [c for c in cases if c.name not in done]
    kept = keep(document(found, where, name, [c.name for c in todo]))
    for i, case in enumerate(todo):
        if i and time.perf_counter() - start > budget:
            break
        note(f"… {case.name} ({i + 1} of {len(todo)})")
        try:
            found.append(measured(case, peers))
        except KeyboardInterrupt:
            note("interrupted: what was measured is kept, the same command goes on")
            return kept, True
        except Exception as problem:  # noqa: BLE001 - one case must not end the others
            found.append(failure(case, problem))
        note(said(found[-1]))
        kept = keep(document(found, where, name, [c.name for c in todo[i + 1 :]]))
        _released()
    return kept, False


def _earlier(known: report.Document | None, where: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Cases with a result of an earlier call of the same run on this machine."""
    same = ("device", "torch", "triton", "driver")
    if known is None or known["run"] != name or any(known["environment"].get(k) != where.get(k) for k in same):
        return {}
    return {c["workload"]: c for c in known["cases"] if c["us"] is not None}


def _released() -> None:
    import torch

    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def said(case: Mapping[str, Any]) -> str:
    """A case in a line."""
    if case["us"] is None:
        return f"{case['workload']}: {'; '.join(case['failed'])}"
    peers = ", ".join(f"{n} {p['us']:.1f}" for n, p in case["peers"].items() if p["us"])
    ratio = f" ({case['speedup']:.2f}×)" if case["speedup"] else ""
    return f"{case['workload']}: {case['us']:.1f} µs{ratio}; {peers}"
