"""What the model says of kernels that wait for memory, as measured on an H200 with nothing chosen by hand."""

from __future__ import annotations

import pytest

from cost_model import refined
from cost_model.features import schedule_features
from fuser.device import load_device
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import structures
from search.space.schedules import ScheduleSpace
from search.tune import tune_fast

H200 = load_device("h200")


def reduced(op: str, shape: tuple[int, ...], *axes: int, dtype: str = "float32") -> TensorProgram:
    b = Builder(op, dtype)
    return b.build(Y=b.op(op, b.input("X", shape), axis=axes))


def seconds(
    program: TensorProgram, tiles: dict[str, int], warps: int, order: str = "", term: str = "seconds", **splits: int
) -> float:
    """Of the first kernel of the program, in parts if there are any."""
    (block,) = (g.blocks[0] for g in structures(program) if bool(g.blocks[0].splits) == bool(splits))
    order_ = TilingExpr.parse(order, tuple(tiles)) if order else TilingExpr()
    schedule = KernelSchedule(tuple(sorted(tiles.items())), order_, tuple(splits.items()), warps)
    return float(refined.terms(schedule_features(block, schedule), H200)[term][0])


@pytest.mark.parametrize(
    ("program", "floor"),
    [
        (reduced("mean", (32768, 16384), 0, 1), 0.8),
        (reduced("max", (14097, 6001), 0, 1), 0.7),
        (reduced("sum", (65536, 512), 0), 0.6),
        (reduced("sum", (8, 4_000_000), 1), 0.7),
        (reduced("var", (8192, 8192), 0, 1), 0.5),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_sums_over_much_are_chosen_in_parts_that_fill_the_device(program: TensorProgram, floor: float) -> None:
    tuned = tune_fast(program, H200)
    first, _ = tuned.winner.graph.blocks
    parts = dict(tuned.winner.schedule.kernels[0].splits)[dict(first.splits)[first.splits[0][0]]]
    f = schedule_features(first, tuned.winner.schedule.kernels[0])
    assert parts > 1
    assert f.blocks[0] >= 0.9 * H200.sm_count
    assert program["X"].nbytes / H200.memory_bandwidth > floor * tuned.winner.seconds


def test_short_rows_of_a_tile_read_lines_in_part() -> None:
    columns = reduced("sum", (65536, 256), 0)
    narrow, wide = (seconds(columns, {"k": 512, "n": n}, 4, "k", "device_memory", k_part=32) for n in (16, 32))
    assert wide < narrow


def test_one_warp_a_block_is_slower_than_four() -> None:
    whole = reduced("sum", (16384, 8192), 0, 1)
    one, four = (seconds(whole, {"k": 1024 * w}, w, "k", k_part=1024) for w in (1, 4))
    assert four < one


def test_what_a_thread_cannot_hold_is_slow() -> None:
    b = Builder("softmax", "float32")
    rows = b.build(Y=b.softmax(b.input("X", (4096, 16384))))
    held, spilled = (seconds(rows, {"m": m, "n": 16384}, 4) for m in (1, 4))
    assert spilled > 1.3 * held


def test_parts_are_whole_waves_on_any_device() -> None:
    (graph,) = (g for g in structures(reduced("sum", (1 << 24,), 0)) if len(g.blocks) == 2)
    for name, waves in (("h200", (128, 256, 1024)), ("a100", (108, 216, 864))):
        (split,) = ScheduleSpace(graph, load_device(name)).splits
        assert set(waves) <= set(split.values)
