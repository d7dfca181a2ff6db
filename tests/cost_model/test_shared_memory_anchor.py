"""The resource model against the compiler: shared memory and registers of real kernels, compiled here without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import pytest

from cost_model.features import schedule_features
from cost_model.refined import registers
from cost_model.refined import shared_memory
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.mugraph import BlockGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.compile import compile_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.builders import schedule
from tests.paths import DATA

pytest.importorskip("triton")


CASES = {
    "warp groups, pipelined": ("mcfuser/G2", schedule("n", warps=4, stages=3, m=64, n=128, k=64, h=128)),
    "online softmax": ("mcfuser/S4", schedule("n", warps=4, stages=3, b=1, m=64, n=64, k=64, h=64)),
    "fragments, product through shared memory": ("mcfuser/G9", schedule("n", warps=4, stages=2, m=16, n=64, k=128, h=128)),
    "inner loop": ("mcfuser/G6", schedule("nk", warps=4, stages=3, m=32, n=64, k=64, h=64)),
    "nothing pipelined": ("mcfuser/S7", schedule("", warps=8, stages=2, m=32, n=256, k=64, h=64)),
    "product of a loop before": ("mcfuser/G1", schedule("kh", warps=4, stages=2, m=64, n=256, k=32, h=16)),
    "rows in a loop before, half the warps beside them": (
        "mcfuser/G1",
        schedule("kh", warps=8, stages=1, m=64, n=256, k=32, h=32),
    ),
    "unrolled columns": ("mcfuser/G2", schedule("nh", warps=4, stages=2, m=64, n=128, k=64, h=32)),
    "layers in a loop": ("graphene/mlp20", schedule("", warps=4, stages=3, m=64)),
    "tiles in pieces": ("mcfuser/S6", schedule("n", warps=4, stages=3, b=1, m=64, n=64, k=80, h=80)),
}


@pytest.mark.parametrize("name", ["h200", "a100"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_kernels(case: str, name: str) -> None:
    program, kernel = CASES[case]
    graph, device = one_kernel(workload(program)), load_device(name)
    (artifact,) = compile_graph(graph, Schedule((kernel,)), device.arch)
    f = schedule_features(graph.blocks[0], kernel)
    assert shared_memory(f, device)[0] == pytest.approx(artifact.shared_bytes, rel=0.1)
    assert registers(f, device)[0] == pytest.approx(artifact.registers, rel=0.45)
    assert artifact.spills == 0


@lru_cache(maxsize=32)
def blocks_of(name: str, structure: int) -> dict[str, BlockGraph]:
    return {b.name: b for b in structures(workload(name))[structure].blocks}


def test_schedules_of_many_structures() -> None:
    """Bytes that Triton 3.6 gave to 300 schedules drawn from the spaces of several structures, for sm_80 and sm_90."""
    rows = [json.loads(line) for line in (DATA / "shared_memory.jsonl").read_text().splitlines()]
    close, beyond = 0, []
    for row in rows:
        device = load_device(row["device"])
        block = blocks_of(row["workload"], row["structure"])[row["block"]]
        predicted = shared_memory(schedule_features(block, KernelSchedule.from_json(row["schedule"])), device)[0]
        close += abs(predicted - row["bytes"]) <= max(0.1 * row["bytes"], 1024)
        if predicted <= device.smem_per_block < row["bytes"] / 1.2:
            beyond.append(row)
    assert len(rows) == 300
    assert close / len(rows) > 0.9
    assert beyond == []


def test_the_copy_of_a_product_that_a_later_loop_reads() -> None:
    """The product of a whole row of tiles, 64 x 1024 in fp16, passes through shared memory and lies there while columns pass."""
    block, device = one_kernel(workload("mcfuser/G12")).blocks[0], load_device("a100")
    kernel = schedule("kh", warps=4, stages=2, b=1, m=64, n=1024, k=16, h=16)
    assert shared_memory(schedule_features(block, kernel), device)[0] >= 2 * 64 * 1024


def test_stages_are_buffers() -> None:
    """One more stage is one more buffer of both operands, on every architecture."""
    program, kernel = CASES["warp groups, pipelined"]
    block = one_kernel(workload(program)).blocks[0]
    trip = 2 * (64 * 128 + 128 * 128)
    for device in map(load_device, ("a100", "h200")):
        two, three, four = (
            float(shared_memory(schedule_features(block, replace(kernel, num_stages=n)), device)[0]) for n in (2, 3, 4)
        )
        assert four - three == trip
        assert three - two == trip


def test_wide_accumulators_spill() -> None:
    """128 x 256 sums in fp32 are all the registers of four warps; with eight they fit."""
    block, device = one_kernel(workload("mcfuser/G6")).blocks[0], load_device("h200")
    for warps, fits in ((4, False), (8, True)):
        f = schedule_features(block, schedule("nk", warps=warps, stages=2, m=128, n=64, k=64, h=256))
        assert (registers(f, device)[0] <= device.registers_per_thread) == fits


@pytest.mark.parametrize(("k", "warps", "stages"), [(64, 8, 3), (16, 4, 2)])
def test_what_threads_split_is_held(k: int, warps: int, stages: int) -> None:
    """Of a product of float32 the sum, what is added to it, and both parts of operands: 128 × 128 spill with four warps."""
    b = Builder("exact", "float32")
    graph = one_kernel(b.build(Y=b.input("X", (512, 512)) @ b.input("W", (512, 512)).T))
    kernel, device = schedule("k", warps=warps, stages=stages, m=128, n=128, k=k), load_device("h200")
    (artifact,) = compile_graph(graph, Schedule((kernel,)), device.arch)
    f = schedule_features(graph.blocks[0], kernel)
    assert shared_memory(f, device)[0] == artifact.shared_bytes
    assert registers(f, device)[0] == pytest.approx(artifact.registers + artifact.spills / 4, rel=0.1)
    assert (artifact.spills > 64) == (warps == 4)


@pytest.mark.parametrize("flat", ["", " flatten=True"])
@pytest.mark.parametrize(("dtype", "stored"), [("float16", " tma_Y=True"), ("float32", " tma_Y=True"), ("float32", "")])
def test_a_descriptor_stores_beside_the_next_tile(dtype: str, stored: str, flat: str) -> None:
    b = Builder("flat", dtype)
    graph = one_kernel(b.build(Y=b.input("X", (4096, 4096)) @ b.input("W", (4096, 4096)).T))
    found = Schedule.parse(
        f"k [k=32 m=128 n=64] warps=4 stages=4{flat} persistent=264 tma_X=True tma_W=True{stored}", graph.blocks
    )
    (artifact,) = compile_graph(graph, found, 90)
    predicted = shared_memory(schedule_features(graph.blocks[0], found.kernels[0]), load_device("h200"))[0]
    assert predicted == pytest.approx(artifact.shared_bytes, rel=0.05)
