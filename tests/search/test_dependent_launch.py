"""Programmatic dependent launch: what stands in front of the wait needs nothing of the kernels before."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fuser.device import load_device
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import Schedule
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.tune import tune_fast

DEVICE = load_device("h200")
CHAINS = [g for n in ("mcfuser/S1", "mirage/rmsnorm:1") for g in structures(workload(n)) if len(g.blocks) > 1]


def lowered(graph: KernelGraph, **options: Any) -> tuple[KernelSource, ...]:
    """Under the model's best schedule, with other options of the lowering."""
    best = tune_fast(workload(graph.name.split("#")[0]), DEVICE, graphs=(graph,)).winner.schedule
    knobs = tuple(sorted(options.items()))
    return generate_graph(graph, Schedule((best.kernels[0], *(replace(k, knobs=knobs) for k in best.kernels[1:]))))


@pytest.mark.parametrize("graph", CHAINS, ids=lambda g: f"{g.name}-{g.stable_hash()[:6]}")
@pytest.mark.parametrize(
    "options",
    [{"pdl": "early", "prefetch": 2}, {"pdl": "late"}, {"pdl": "loop"}, {"pdl": "early", "persistent": 2}],
    ids="-".join,
)
def test_nothing_of_earlier_kernels_is_touched_before_the_wait(graph: KernelGraph, options: dict[str, Any]) -> None:
    sources = lowered(graph, **options)
    first, *others = sources
    assert not first.pdl
    assert "gdc_wait()" not in first.text
    assert "gdc_launch_dependents()" in first.text
    written = set(first.outputs)
    for source in others:
        assert source.pdl
        before, wait, _ = source.text.partition("gdc_wait()\n")
        assert wait
        body = before.rpartition("@triton.jit\ndef ")[2].partition(":\n")[2]
        assert "tl.store" not in body
        assert not [t for t in written if re.search(rf"\b{t}_(ptr|desc)\b", body)]
        written |= set(source.outputs)
