"""Figure 9 and table IV: whole networks on TVM's virtual machine and as TVM makes them, beside our runtime and torch, in one run.

    python -m experiments.mcfuser.tvm_figure FOLDER [NAME...] -o OUT

On a GPU, over what :mod:`experiments.mcfuser.relax_runtime`, :mod:`experiments.mcfuser.tvm_alone` and
:mod:`experiments.mcfuser.tvm_tuned` left in FOLDER, and the last in OUT. All are compared with float64, then timed in turn. It
needs TVM's runtime alone: that of FOLDER/runtime, where ``mufuser package`` put it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.environment import environment
from experiments.environment import head
from experiments.mcfuser.relax_runtime import DEFAULT
from experiments.mcfuser.relax_runtime import PAPER
from experiments.mcfuser.relax_runtime import WITHIN
from experiments.mcfuser.relax_runtime import Machine
from experiments.mcfuser.relax_runtime import network
from experiments.mcfuser.relax_runtime import runtime
from experiments.mcfuser.tvm_tuned import choice
from experiments.mcfuser.tvm_tuned import register
from experiments.mcfuser.tvm_tuned import seconds
from experiments.script import script
from fuser.outputs import make_folder
from fuser.outputs import write_file
from search.measure.machine import device_info

AGAINST = "tvm", "tuned", "inductor", "ours"
COLUMNS = {
    "tvm+ours": "TVM's virtual machine with our kernels, a call captured as one CUDA graph",
    "own graphs": "the same library, which captures by itself what it can",
    "calls": "the same kernels without graphs, wall clock of a call from Python, launches included",
    "ours": "our own runtime with the same plan",
    "default": "our own runtime with products of cuBLAS where the model prefers them",
    "tvm": "TVM alone",
    "tuned": "TVM alone with the best of MetaSchedule's schedules (experiments.mcfuser.tvm_tuned)",
    "eager": "torch eager with SDPA",
    "inductor": "torch.compile",
}


def run(folder: Path, names: list[str], output: Path) -> None:
    """Compare and time each network; the table after each."""
    make_folder(output)
    where = environment(device_info("cuda")) | {"tvm_ffi": runtime(folder).__version__}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            rows[name] = measure(folder, output, name)
        except Exception as error:  # noqa: BLE001 - the others go on
            rows[name] = {"failed": f"{type(error).__name__}: {str(error)[-400:]}"}
        write_file(output / "relax.json", json.dumps({"environment": where, "networks": rows}, indent=1) + "\n")
        write_file(output / "relax.txt", f"{head(where)}\n\n{table(rows)}")
        print(name, rows[name], flush=True)


def measure(folder: Path, output: Path, name: str) -> dict[str, Any]:
    """Microseconds and relative errors of all contestants on one network."""
    import torch

    from search.measure.replays import captured
    from search.measure.replays import in_turn
    from search.measure.replays import wall

    net, shapes = network(name)
    torch.manual_seed(1)
    x = torch.randn(*shapes[0]).half().cuda()
    net = net.cuda()
    with torch.no_grad():
        wanted = net.double()(x.double())
    net.half()
    plans = {k: replace(p, device="cuda") for k, p in pickle.loads((folder / f"{name}.plans").read_bytes()).items()}
    constants, weights = plans["ours"]._constants(), [p.detach() for _, p in net.named_parameters()]
    ffi, failed = runtime(folder), dict[str, str]()
    plain, graphs = (Machine(ffi, folder / f"{name}-{kind}.so", x, constants) for kind in ("plain", "graphs"))
    peers = {}
    for kind, made in (("tvm", _alone), ("tuned", _tuned)):
        try:
            peers[kind] = made(ffi, (folder, output), name, (x, weights))
        except Exception as error:  # noqa: BLE001 - a peer
            failed[kind] = f"{type(error).__name__}: {str(error)[-400:]}"
    torch._dynamo.reset()
    compiled = torch.compile(net)
    calls = {kind: lambda plan=plan: plan(x) for kind, plan in plans.items()}
    calls |= {"eager": lambda: net(x), "inductor": lambda: compiled(x)}
    found = {"tvm+ours": plain.captured()} | {kind: captured(call) for kind, call in calls.items()}
    for kind, machine in peers.items():
        try:
            found[kind] = machine.captured()
        except Exception as error:  # noqa: BLE001 - a peer
            failed[kind] = f"{type(error).__name__}: {str(error)[-400:]}"
    found["own graphs"] = graphs.output(), graphs.call
    outputs, errors = dict[str, Any](), dict[str, float]()
    for kind, (y, replay) in found.items():  # each again: what one replays may lie where another's output does
        replay()
        torch.cuda.synchronize()
        outputs[kind] = y.clone()
        errors[kind] = float((y.double() - wanted).norm() / wanted.norm())
    times = in_turn({kind: replay for kind, (_, replay) in found.items()})
    us = {c: statistics.median(t) for c, t in times.items()} | {"calls": wall(plain.call)}
    row: dict[str, Any] = {
        "us": us,
        "spread": {c: (max(t) - min(t)) / us[c] for c, t in times.items()},
        "error": errors,
        "same bits": bool((outputs["tvm+ours"] == outputs["ours"]).all()),
        "failed peers": failed,
    }
    if "tuned" in us:
        row["tuning"] = seconds(folder, output, name)
    for file in (f"{name}.json", f"{name}-plan.json"):
        row |= json.loads((folder / file).read_text())
    return row


def _alone(ffi: Any, folders: tuple[Path, Path], name: str, given: tuple[Any, Any]) -> Machine:
    return Machine(ffi, folders[0] / f"{name}-tvm.so", *given)


def _tuned(ffi: Any, folders: tuple[Path, Path], name: str, given: tuple[Any, Any]) -> Machine:
    kept = register(ffi, folders[0], choice(*folders, name))
    made = Machine(ffi, folders[0] / f"{name}-tuned.so", *given)
    made.keep += kept
    return made


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Figure 9: microseconds, what the first column is against others, errors against float64; table IV: seconds of tuning."""
    heads = [
        f"{'network':<12}",
        *(f"{c:>11}" for c in COLUMNS),
        *(f"{f'×{c}':>11}" for c in AGAINST),
        f"{'error':>10}{'eager':>10}",
    ]
    lines, notes = ["".join(heads)], []
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"{name:<12}{row['failed']}")
            continue
        us, error = row["us"], row["error"]
        cells = [f"{us[c]:>11.1f}" if c in us else f"{'-':>11}" for c in COLUMNS]
        cells += [f"{us[c] / us['tvm+ours']:>11.2f}" if c in us else f"{'-':>11}" for c in AGAINST]
        same = "" if row["same bits"] else "  other bits than ours"
        lines.append(f"{name:<12}{''.join(cells)}{error['tvm+ours']:>10.1e}{error['eager']:>10.1e}{same}")
        notes += [f"{name}: {peer} is wrong: {e:.1e}" for peer, e in error.items() if not e < WITHIN]
        notes += [f"{name}: {peer} failed: {why}" for peer, why in row["failed peers"].items()]
    spreads = [f"{n} {max(r['spread'].values()):.2f}" for n, r in rows.items() if "spread" in r]
    notes += [f"largest spread of a contestant's rounds: {', '.join(spreads)}"] if spreads else []
    return "\n".join([*lines, "", *(f"{c}: {what}" for c, what in COLUMNS.items()), *notes, "", *_tuning(rows)]) + "\n"


def _tuning(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Seconds to choose and compile, and what MetaSchedule's schedules took."""
    heads = ("network", "ours", "paper", "MetaSchedule: draw", "compile", "time", "trials")
    lines = ["".join(f"{h:>20}" for h in heads)]
    for name, row in rows.items():
        if "planning" in row:
            of = row.get("tuning", {})
            drawn = [f"{of[k]:.0f}" if k in of else "-" for k in ("draw", "compile", "time", "trials")]
            lines.append("".join(f"{c:>20}" for c in (name, f"{row['planning']:.0f}", PAPER.get(name, "-"), *drawn)))
    return [
        *lines,
        "",
        "ours: to choose and compile all kernels, seconds of all cores; paper: seconds of MCFuser with Relay, table IV;",
        "draw: seconds of one process without a GPU; compile: of all cores together; trials: measured of a task with a product",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"networks (default: {' '.join(DEFAULT)})")
    parser.add_argument("-o", "--output", type=Path, default=Path("h200-relax"))
    given = parser.parse_intermixed_args()
    run(given.folder, given.names or [*DEFAULT], given.output)


if __name__ == "__main__":
    script(main)
