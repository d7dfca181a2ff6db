"""Reductions, normalizations and element-wise operators of large tensors beside eager torch and ``torch.compile``, untuned.

    python -m experiments.reductions -o reductions.txt
    python -m experiments.reductions --compile-only --only 'col*'   # fills the caches of both compilers

Times are replays of CUDA graphs, all in turn; µs. The floor is the time of all bytes at the bandwidth of the data sheet.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import fuser
from experiments.modules import error
from fuser.device import load_device
from search.measure.replays import captured
from search.measure.replays import in_turn

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
Case = tuple[Callable[..., Any], Any, list[tuple[int, ...]]]


def _error_term(x: Any, y: Any) -> Any:
    return (y * (torch.log(y + 1e-8) - functional.log_softmax(x, -1))).sum(-1).mean()


def _batch_statistics(x: Any) -> Any:
    return (x - x.mean((0, 2, 3), keepdim=True)) / torch.sqrt(x.var((0, 2, 3), keepdim=True, correction=0) + 1e-5)


CASES: dict[str, Case] = {
    "mse": (functional.mse_loss, FULL, [(32768, 32768)] * 2),
    "mse_s": (functional.mse_loss, FULL, [(4096, 1024)] * 2),
    "l1_odd": (functional.l1_loss, FULL, [(14097, 3001)] * 2),
    "sum_h": (lambda x: x.sum(), HALF, [(16384, 8192)]),
    "max_all": (lambda x: x.amax(), FULL, [(10000, 15000)]),
    "min_odd": (lambda x: x.amin(), FULL, [(7, 11, 13, 17, 19, 230)]),
    "var_all": (lambda x: x.var(), FULL, [(8192, 8192)]),
    "norm_all": (torch.linalg.vector_norm, FULL, [(16384, 4096)]),
    "lse_all": (lambda x: torch.logsumexp(x, (0, 1)), FULL, [(8192, 8192)]),
    "colsum": (lambda x: x.sum(0), FULL, [(65536, 256)]),
    "colsum_w": (lambda x: x.sum(0), FULL, [(16384, 8192)]),
    "colmax": (lambda x: x.amax(0), HALF, [(65536, 512)]),
    "colvar": (lambda x: x.var(0), FULL, [(65536, 256)]),
    "midsum": (lambda x: x.sum(1), FULL, [(16, 8192, 512)]),
    "midmean": (lambda x: x.mean((2, 3)), FULL, [(32, 256, 112, 112)]),
    "rowsum_few": (lambda x: x.sum(-1), FULL, [(8, 4000000)]),
    "rowsum_many": (lambda x: x.sum(-1), FULL, [(65536, 1024)]),
    "lse_few": (lambda x: torch.logsumexp(x, -1), FULL, [(4, 4000000)]),
    "softmax_few": (lambda x: functional.softmax(x, -1), FULL, [(4, 400000)]),
    "softmax_big": (lambda x: functional.softmax(x, -1), FULL, [(16, 2000000)]),
    "softmax_0": (lambda x: functional.softmax(x, 0), FULL, [(65536, 256)]),
    "l2n_few": (lambda x: functional.normalize(x, dim=-1), FULL, [(16, 1000000)]),
    "l2n_1": (lambda x: functional.normalize(x, dim=1), FULL, [(16, 64, 128, 128)]),
    "instnorm": (functional.instance_norm, FULL, [(2, 16, 512, 512)]),
    "groupnorm": (lambda x, w, b: functional.group_norm(x, 8, w, b), FULL, [(4, 64, 512, 512), (64,), (64,)]),
    "groupnorm_h": (lambda x, w, b: functional.group_norm(x, 32, w, b), HALF, [(4, 320, 64, 64), (320,), (320,)]),
    "bnstats": (_batch_statistics, FULL, [(64, 64, 112, 112)]),
    "ln_whole": (lambda x: functional.layer_norm(x, (64, 512, 512)), FULL, [(8, 64, 512, 512)]),
    "kl": (_error_term, FULL, [(32768, 1000)] * 2),
    "ce": (lambda x, y: -(y * functional.log_softmax(x, -1)).sum(-1).mean(), FULL, [(32768, 4096)] * 2),
    "hinge": (lambda x, y: torch.clamp(1 - x * y, min=0).mean(), FULL, [(32768, 16384), (16384,)]),
    "cosloss": (lambda x, y: (1 - functional.cosine_similarity(x, y, dim=1)).mean(), FULL, [(32768, 4096)] * 2),
    "triplet": (functional.triplet_margin_loss, FULL, [(32768, 4096)] * 3),
    "bce": (functional.binary_cross_entropy_with_logits, FULL, [(16384, 4096)] * 2),
    "frob_div": (lambda x: x / torch.norm(x), FULL, [(112, 64, 128, 128)]),
    "l1n": (lambda x: x / x.abs().mean(1, keepdim=True), FULL, [(4096, 16384)]),
    "rms_ch": (lambda x: x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5), FULL, [(16, 64, 256, 256)]),
    "minmax": (lambda x: (x - x.amin()) / (x.amax() - x.amin()), FULL, [(4096, 4096)]),
    "softmax_row": (lambda x: functional.softmax(x, -1), FULL, [(4096, 16384)]),
    "logsoftmax_row": (lambda x: functional.log_softmax(x, -1), FULL, [(8192, 8192)]),
    "softmax_w": (lambda x: functional.softmax(x, -1), FULL, [(2048, 65536)]),
    "ln_row": (lambda x, w, b: functional.layer_norm(x, (8192,), w, b), HALF, [(8192, 8192), (8192,), (8192,)]),
    "ln_row32": (lambda x, w, b: functional.layer_norm(x, (8192,), w, b), FULL, [(8192, 8192), (8192,), (8192,)]),
    "ln_1k": (lambda x, w, b: functional.layer_norm(x, (1024,), w, b), HALF, [(32768, 1024), (1024,), (1024,)]),
    "rms_row": (lambda x, w: functional.rms_norm(x, (4096,), w), BRAIN, [(16384, 4096), (4096,)]),
    "gelu": (functional.gelu, HALF, [(16384, 8192)]),
    "gelu_add": (lambda x, y: functional.gelu(x) + y, FULL, [(8192, 8192)] * 2),
    "sin_odd": (lambda x: torch.sin(x) * x + 1, FULL, [(4001, 9001)]),
}


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def measured(name: str, only_compile: bool) -> dict[str, Any]:
    function, dtype, shapes = CASES[name]
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [torch.rand(s, device="cuda", generator=generator).to(dtype) * 2 - 0.9 for s in shapes]
    if name in ("kl", "ce"):
        inputs[1] = inputs[1].abs()
    module = Function(function).eval()
    torch._dynamo.reset()
    ours = fuser.compile(module, tuple(inputs), effort="instant", checked=False)
    calls = {"eager": module, "inductor": torch.compile(module), "ours": ours}
    if only_compile:
        calls["inductor"](*inputs)
        return {"name": name}
    large = sum(x.numel() for x in inputs) > 1.5e9
    exact = function(*inputs).double() if large else function(*(x.double() for x in inputs))
    nbytes = sum(x.numel() * x.element_size() for x in inputs) + exact.numel() * inputs[0].element_size()
    row: dict[str, Any] = {"name": name, "floor": 1e6 * nbytes / load_device("h200").memory_bandwidth}
    replays = {}
    for peer, call in calls.items():
        out, replays[peer] = captured(lambda call=call: call(*inputs))
        row[f"{peer}_error"] = error(out, exact)
    row |= {k: sorted(v)[len(v) // 2] for k, v in in_turn(replays, 3, 0.012).items()}
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each, the slowest beside ``inductor`` first, and their geometric mean."""
    good = sorted((r for r in rows if "ours" in r), key=lambda r: r["inductor"] / r["ours"])
    lines = [f"{'':16}{'floor':>9}{'eager':>10}{'inductor':>10}{'ours':>9}{'x':>6}{'floor':>7}   errors: eager, ours"]
    for r in good:
        times = f"{r['floor']:9.1f}{r['eager']:10.1f}{r['inductor']:10.1f}{r['ours']:9.1f}"
        parts = f"{r['inductor'] / r['ours']:6.2f}{r['floor'] / r['ours']:7.0%}"
        lines.append(f"{r['name']:16}{times}{parts}   {r['eager_error']:.0e} {r['ours_error']:.0e}")
    lines += [f"{r['name']:16}failed: {r['failed']}" for r in rows if "failed" in r]
    if good:
        ratios = [r["inductor"] / r["ours"] for r in good]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"{mean:.2f} x inductor in the geometric mean; {sum(x < 0.95 for x in ratios)} of {len(ratios)} below 0.95")
    return "\n".join(lines)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="*", default=["*"], help="globs of names")
    p.add_argument("--compile-only", action="store_true")
    p.add_argument("--seconds", type=float, default=1e9, help="after which no case begins")
    p.add_argument("-o", "--output", help="the table; its rows beside it, as .json")
    args = p.parse_args()
    warnings.simplefilter("ignore")
    rows, start = [], time.time()
    for name in (n for n in CASES if any(fnmatch(n, g) for g in args.only)):
        if time.time() - start > args.seconds:
            break
        try:
            rows.append(measured(name, args.compile_only))
        except Exception as caught:  # noqa: BLE001 - what fails is said in the table
            rows.append({"name": name, "failed": f"{type(caught).__name__}: {str(caught)[:200]}"})
        torch.cuda.empty_cache()
    text = table(rows)
    print(text)
    if args.output:
        Path(args.output).write_text(text + "\n")
        Path(args.output).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
