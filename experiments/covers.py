"""What the integer program gains: networks whose kernels and layouts it chose, beside a greedy cover, and beside a cover in which
every tensor lies row after row as its operator gives it.

    python -m experiments.covers --made FOLDER bert-small gpt2      # choose and compile; needs no GPU
    python -m experiments.covers --made FOLDER -o FILE              # time on a GPU what was made
    python -m experiments.covers --table FILE                       # print an earlier result

Nothing is measured before. All three forms of a network are compared with it in float64 and replayed in turn, as CUDA graphs.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import statistics
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from experiments.environment import environment
from experiments.environment import need_gpu
from experiments.model_bench import DTYPE
from experiments.model_bench import error
from experiments.report import digits
from experiments.script import parser
from experiments.script import script
from fuser.console import note
from fuser.console import plain
from fuser.console import print_table
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.files import read_json
from fuser.ir.candidate import paired
from fuser.outputs import make_folder
from fuser.outputs import write_file
from fuser.pools import APART

WAYS: dict[str, dict[str, Any]] = {"ilp": {}, "greedy": {"greedy": True}, "row-major": {"layouts": False}}
"""Of :class:`search.cover.offers.Pricing`."""
NARROW = "narrow"
"""A network of ours: residual MLPs through 389 columns, whose rows are not aligned."""


def network(name: str) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """A module in fp32 on the CPU, and the shapes of its inputs; the same weights each time."""
    import torch

    from experiments.networks import NETWORKS
    from experiments.networks import mlp

    torch.manual_seed(0)
    if name == NARROW:
        blocks = (torch.nn.Sequential(torch.nn.LayerNorm(768), mlp(768, 389)) for _ in range(4))
        return torch.nn.Sequential(*map(_Residual, blocks)), ((512, 768),)
    if name not in NETWORKS:
        raise UsageError(f"there is no network {name!r}", f"networks: {', '.join((*NETWORKS, NARROW))}")
    return NETWORKS[name].make(1)


def _Residual(block: Any) -> Any:  # noqa: N802 - a class that needs torch
    import torch

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Any) -> Any:
            return x + self.block(x)

    return Residual()


def made(name: str, target: str, executor: Any = None) -> Iterator[dict[str, Any]]:
    """A network in all ways: for each the candidate, its kernels, its parameters, and what the model expects; after each way, all
    so far."""
    import torch

    from fuser.frontends.torch_export import from_torch
    from search.cover.model import compile_model
    from search.cover.offers import Pricing

    module, shapes = network(name)
    dtype = getattr(torch, DTYPE)
    known = from_torch(module.eval().to(dtype).requires_grad_(False), tuple(torch.randn(s).to(dtype) for s in shapes))
    found: dict[str, Any] = {}
    for way, options in WAYS.items():
        start = time.perf_counter()
        pricing = Pricing(load_device(target), executor=executor, **options)
        model = compile_model(known.program, known.params, pricing, checked=False)
        found[way] = {
            "candidate": model.whole.candidate.candidate,
            "artifacts": model.whole.artifacts,
            "params": dict(model.params),
            "inputs": known.inputs,
            "predicted_us": model.plan.us,
            "kernels": model.plan.launches,
            "seconds": time.perf_counter() - start,
            "solving": model.cover.solving,
        }
        note(f"{name} {way}: {model.plan.us:.1f} µs predicted, {model.plan.launches} kernels, {found[way]['seconds']:.0f} s")
        yield found


def measured(name: str, ways: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What was made of a network, checked against float64 and timed in turn."""
    import torch

    from fuser.runtime.graph_executor import Executable
    from fuser.runtime.plan import plan
    from search.measure.replays import in_turn

    module, shapes = network(name)
    dtype = getattr(torch, DTYPE)
    module = module.eval().to("cuda", dtype).requires_grad_(False)
    inputs = tuple(torch.randn(s, device="cuda", dtype=dtype) for s in shapes)
    with torch.no_grad():
        eager = module(*inputs)
        wanted = module.double()(*(x.double() for x in inputs))
    errors, replays, kept = {"eager": error(eager, wanted)}, {}, []
    for way, one in ways.items():
        candidate, artifacts = one["candidate"], one["artifacts"]
        run = Executable(
            plan(candidate, [a.source for a in artifacts]),
            artifacts=[a for _, a in paired(candidate.graph, artifacts)],
            constants={n: _tensor(x, candidate.graph.table[n].dtype) for n, x in one["params"].items()},
        )
        captured = run.capture(dict(zip(one["inputs"], inputs, strict=True)), run.empty_outputs())
        captured.replay()
        torch.cuda.synchronize()
        (got,) = captured.outputs.values()
        errors[way] = error(got, wanted)
        kept.append((run, captured))
        if errors[way] <= 1.5 * errors["eager"]:  # no time without a right result
            replays[way] = captured.replay
    times = in_turn(replays, rounds=9) if replays else {}
    return {
        "network": name,
        "errors": errors,
        "us": {n: statistics.median(ts) for n, ts in times.items()},
        "predicted_us": {n: w["predicted_us"] for n, w in ways.items()},
        "kernels": {n: w["kernels"] for n, w in ways.items()},
        "solving": {n: w["solving"] for n, w in ways.items()},
    }


def _tensor(value: Any, dtype: str) -> Any:
    import torch

    return torch.from_numpy(value).to("cuda", getattr(torch, dtype))


def rows_of(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = []
    for case in document["cases"]:
        for way in case["kernels"]:
            us, first = case["us"].get(way), case["us"].get("ilp")
            more = f"{us / first:.3f}" if us and first else "-"
            predicted = case["predicted_us"][way]
            us_text = digits(us) if us else "wrong" if case["errors"] else "-"
            found.append((case["network"], way, str(case["kernels"][way]), digits(predicted), us_text, more))
    return found


def print_document(document: Mapping[str, Any]) -> None:
    heads = ("network", "chosen by", "kernels >", "predicted >", "measured >", "× ilp >")
    where = document["environment"].get("device", "") if document["environment"] else "nothing measured"
    notes = ["predicted: the sum over kernels, without any overlap; row-major: an integer program without layouts"]
    print_table(f"covers, µs of one call, batch 1, {where}", heads, rows_of(document), notes)


def main(argv: Sequence[str] | None = None) -> int:
    p = parser("experiments.covers", __doc__)
    p.add_argument("networks", nargs="*", help=f"of `mufuser bench models --list`, or {NARROW}; none: time what was made")
    p.add_argument("--made", type=Path, default=None, help="folder of what is chosen and compiled")
    p.add_argument("--target", default="h200")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that choose and compile")
    p.add_argument("-o", "--out", type=Path, default=None, help="the result, as JSON")
    p.add_argument("--table", type=Path, default=None, metavar="RESULT", help="print an earlier result; needs no GPU")
    args = p.parse_args(argv)
    if args.table:
        print_document(read_json(args.table, error=UsageError))
        return 0
    if args.made is None:
        raise UsageError("a folder is needed for what is made", "--made FOLDER NETWORK …, then --made FOLDER -o FILE")
    if args.networks:
        make_folder(args.made)
        with ProcessPoolExecutor(args.jobs, APART) as pool:
            for name in args.networks:
                for found in made(name, args.target, pool):
                    (args.made / f"{name}.pickle").write_bytes(pickle.dumps(found))
        return 0
    return _timed(args.made, args.out)


def _timed(folder: Path, out: Path | None) -> int:
    import torch

    from search.measure.machine import device_info

    need_gpu("--table RESULT.json shows an earlier result without one")
    document: dict[str, Any] = {"environment": environment(device_info("cuda")), "cases": []}
    for path in sorted(folder.glob("*.pickle")):
        document["cases"].append(measured(path.stem, pickle.loads(path.read_bytes())))
        gc.collect()
        torch.cuda.empty_cache()
        if out:
            write_file(out, json.dumps(plain(document), indent=1, ensure_ascii=False) + "\n")
    print_document(document)
    return 0


if __name__ == "__main__":
    script(main)
