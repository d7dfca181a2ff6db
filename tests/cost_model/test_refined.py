"""The refined model: what it must always hold, and what it must see."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from cost_model.calibrate import BOUNDS
from cost_model.constants import UNITS
from cost_model.constants import Constants
from cost_model.constants import constants_of
from cost_model.device_file import text
from cost_model.features import features
from cost_model.features import schedule_features
from cost_model.refined import WARM
from cost_model.refined import Product
from cost_model.refined import estimate
from cost_model.refined import matmul_seconds
from cost_model.refined import memory_kernel_seconds
from cost_model.refined import seconds
from cost_model.refined import terms
from cost_model.refined import times
from cost_model.work import work
from fuser.device import list_devices
from fuser.device import load_device
from fuser.device import parse_device
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.mugraph import BlockGraph
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.schedule import KernelSchedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.builders import schedule

H200, A100 = load_device("h200"), load_device("a100")
kernel = partial(schedule, stages=3)
CHAIN = one_kernel(workload("mcfuser/G8")).blocks[0]
ATTENTION = one_kernel(workload("mcfuser/S1")).blocks[0]


def us(block, schedule: KernelSchedule, device=H200) -> float:
    return 1e6 * float(seconds(schedule_features(block, schedule), device)[0])


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["n", "nk", "k", "nh", "n(k,h)"]),
    st.tuples(*(st.sampled_from([16, 32, 64, 128]) for _ in range(4))),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([d.name for d in list_devices()]),
)
def test_parts_bound_the_estimate(order: str, sizes: tuple[int, ...], warps: int, stages: int, name: str) -> None:
    """On every device: finite and positive, at least each of its parts, at most their sum times the slowdown of spills: of
    the roof an SM's part and that of the memory may both stand beside the turns."""
    tiles = dict(zip("mnkh", sizes, strict=True))
    for axis in "nk":
        if axis not in order:
            tiles[axis] = CHAIN.extents[axis]
    device = load_device(name)
    chosen = replace(kernel(order), tiles=tuple(sorted(tiles.items())), num_warps=warps, num_stages=stages)
    f = schedule_features(CHAIN, chosen)
    t = {k: float(v[0]) for k, v in terms(f, device).items()}
    assert all(np.isfinite(v) and v >= 0 for v in t.values())
    fixed = t["launch"] + t["base"]
    parts = [t["waves"] * t["chain"] + t["starts"], t["roof"]]
    assert max(parts) <= (t["seconds"] - fixed) * (1 + 1e-9)
    assert t["seconds"] - fixed <= (parts[0] + 2 * parts[1]) * t["spills"] * (1 + 1e-9)
    assert t["chain"] >= t["waits"]
    assert 1 <= t["resident"] <= t["occupancy"]


def test_a_batch_is_its_members() -> None:
    m, n = np.array([16, 32, 64, 128, 64]), np.array([64, 32, 128, 128, 512])
    together = np.empty(5)
    for f in features(CHAIN, TilingExpr.parse("n"), {"m": m, "n": n, "k": 128, "h": 64}, None, 4, 3):
        together[f.index] = seconds(f, H200)
    alone = [1e-6 * us(CHAIN, kernel("n", m=int(a), n=int(b), k=128, h=64)) for a, b in zip(m, n, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_too_much_shared_memory_cannot_run() -> None:
    wide = kernel("n", stages=4, m=128, n=256, k=128, h=128)
    assert us(CHAIN, wide) == np.inf
    assert np.isfinite(us(CHAIN, kernel("n", stages=3, m=64, n=128, k=128, h=128)))


def test_pipelining_hides_latency() -> None:
    """Loads that run ahead beat loads that are waited for, and an inner loop that starts over pays for it each time."""
    ahead = us(CHAIN, kernel("n", stages=3, m=64, n=64, k=128, h=128))
    assert ahead < us(CHAIN, kernel("n", stages=1, m=64, n=64, k=128, h=128))
    assert ahead < us(CHAIN, kernel("nk", stages=3, m=64, n=64, k=32, h=128))


def test_rows_that_warps_repeat_are_counted() -> None:
    """Eight warps along 16 rows compute every product eight times; warps along the columns of a wide one do not."""

    def tensor(warps: int, h: int) -> float:
        return float(work(schedule_features(CHAIN, kernel("n", warps=warps, m=16, n=128, k=128, h=h)), H200).mma[0])

    assert tensor(8, 16) > 1.9 * tensor(4, 16) > 3.8 * tensor(1, 16)
    assert tensor(8, 128) == pytest.approx(tensor(4, 128))


def test_exponentials_cost() -> None:
    plain = one_kernel(workload("mcfuser/G12")).blocks[0]
    chain = terms(schedule_features(plain, kernel("n", b=1, m=64, n=128, k=128, h=128)), H200)
    attention = terms(schedule_features(ATTENTION, kernel("n", b=1, m=64, n=128, k=64, h=64)), H200)
    assert chain["special"][0] == 0.0
    assert attention["special"][0] > 0.0


def test_columns_read_in_sectors() -> None:
    """A tile of 8 fp16 columns reads twice the bytes that it uses."""

    def loaded(h: int) -> float:
        return float(work(schedule_features(CHAIN, kernel("n", m=64, n=128, k=128, h=h)), H200).loaded[0])

    operands = loaded(16) - 2 * 512 * 16
    assert loaded(8) - operands == pytest.approx(2 * 2 * 512 * 8)


@pytest.mark.parametrize(("k", "matters"), [(4096, True), (256, False)])
def test_weights_in_short_runs_take_longer(k: int, matters: bool) -> None:
    """16 columns of 2 bytes are a quarter of a line; what is small lies in L2."""
    b = Builder("row", "float16")
    (block,) = one_kernel(b.build(Y=b.input("X", (4, k)) @ b.input("W", (k, 2048)))).blocks
    wide, narrow = (terms(schedule_features(block, kernel("k", m=16, n=n, k=64)), H200)["device_memory"][0] for n in (64, 16))
    assert narrow / wide == pytest.approx(1.36 if matters else 1.0, abs=0.01)


@pytest.mark.parametrize("boxes", [False, True], ids=["pointers", "descriptors"])
def test_rows_shorter_than_a_line_keep_l2_busy(boxes: bool) -> None:
    """The same bytes in rows of 32 are four requests where whole lines are one, whoever asks for them."""
    b = Builder("row", "float16")
    (block,) = one_kernel(b.build(Y=b.input("X", (16, 512)) @ b.input("W", (512, 2048)))).blocks

    def l2(n: int) -> float:
        chosen = kernel("k", m=16, n=n, k=64).with_knobs(tma_W=boxes or None)
        t = terms(schedule_features(block, chosen), H200)
        return float(t["l2"][0] / t["l2_bytes"][0])

    assert l2(64) == pytest.approx(l2(128), rel=0.1)
    assert l2(16) > 1.2 * l2(64)


SPLIT = workload("mirage/qknorm")
SUM = next(g for g in structures(SPLIT) if len(g.kernels) == 2 and "n_part" in g.blocks[1].extents).blocks[1]


def test_sums_over_parts_want_long_runs_and_no_warps_along_the_parts() -> None:
    """One warp with whole lines took an H200 7.65 µs in all, with 64 bytes side by side 8.75; four warps 1.6 more, eight 3.6."""

    def added(h: int, m: int, warps: int) -> float:
        return us(SUM, kernel("", {"n_part": 32}, warps, knobs={"pdl": "early"}, b=1, h=h, m=m))

    whole = added(64, 1, 1)
    assert added(16, 4, 1) > max(whole, added(32, 2, 1))
    assert whole + 0.3 < added(64, 1, 4) < added(64, 1, 8)


def test_a_fold_of_what_was_folded_beside_one_element_for_all_is_priced() -> None:
    b = Builder("clamped")
    least = b.op("maximum", b.sum(b.input("X", (64, 128)), 1), b.input("C", ()))
    block = one_kernel(b.build(Y=b.sum(least, 0))).blocks[0]
    assert us(block, kernel("k", i=64, k=64), H200) > 0


def test_stores_by_descriptors_are_not_free() -> None:
    plain, sent = (us(SUM, kernel("", {"n_part": 32}, 1, knobs=k, b=1, h=64, m=4)) for k in ({}, {"tma_O": True}))
    assert sent > plain


def test_a_block_alone_takes_its_turns_and_others_make_it_wait() -> None:
    """Of 41 µs by two blocks of an SM with tiles of 128 keys and 49 by four of 64: what other blocks hold, a block waits for."""
    f = schedule_features(ATTENTION, kernel("n", m=64, n=64, k=64, h=64, b=1))
    w, c = work(f, H200), constants_of(H200)
    alone = replace(w, resident=np.ones(1), blocks=np.full(1, 132.0), programs=np.full(1, 132.0))
    less, more = (times(alone, H200, replace(c, norm=n))["seconds"] for n in (1.2, 4.0))
    assert less == pytest.approx(more)  # how others are in the way does not matter to one alone
    four = replace(w, resident=np.full(1, 4.0), blocks=np.full(1, 528.0), programs=np.full(1, 528.0))
    one, several = (times(x, H200, c) for x in (alone, four))
    assert several["turns"] < 1.2 * one["turns"]
    assert several["seconds"] > one["seconds"] + 0.5 * (several["roof"] - one["roof"])


def test_faster_devices_are_faster() -> None:
    best = kernel("n", m=64, n=128, k=128, h=64)
    assert us(CHAIN, best, H200) < us(CHAIN, best, A100) < us(CHAIN, best, load_device("rtx3080"))


def test_library_kernels() -> None:
    small, large = (matmul_seconds(Product(1, n, n, n, "float16"), H200) for n in (512, 8192))
    assert 2e-6 < small < 5e-6
    assert 1.0 < large / (2 * 8192**3 / H200.matmul_flops("float16")) < 3.0
    assert memory_kernel_seconds(4.8e9, H200) == pytest.approx(1e-3, rel=0.3)


def test_what_no_thread_can_hold_costs_much() -> None:
    """Whole operands of a product on fragments: with two warps their depth decides, with warp groups it does not."""
    slow, fast = (estimate(CHAIN, kernel("n", warps=w, m=128, n=128, k=128, h=128), H200) for w in (2, 8))
    assert slow["spills"] > 1.2 * fast["spills"]


def test_no_constant_of_a_fit_rests_on_a_bound() -> None:
    for device in list_devices():
        for name, value in device.constants:
            low, high = BOUNDS.get(name, (0.0, np.inf))
            assert low * 1.01 < value < high * 0.99, (device.name, name)


def test_constants_are_data() -> None:
    assert load_device("h200").constants
    assert set(UNITS) == set(Constants.__dataclass_fields__)
    assert constants_of(A100).trip > constants_of(H200).trip
    assert constants_of(A100).wait == constants_of(H200).wait
    assert constants_of(replace(H200, constants=())) == constants_of(H200), "a file of one's own for a GPU that is known"


WAIT = f"value = {dict(H200.constants)['wait']:.4g}"
"""As a device file has it."""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("trip = {", "trap = {", "trap, trip are missing or unknown"),
        (WAIT, "value = -1", "wait has the value -1"),
        (WAIT, "value = nan", "wait has the value nan"),
        (WAIT, 'value = "fast"', "wait has the value 'fast'"),
        (f'{WAIT}, unit = "s"', f'{WAIT}, unit = "ms"', "wait is not .* with the unit 's'"),
        ("[constants]", "constants = 3", "calibration.* is not TOML|constants"),
    ],
)
def test_a_constant_that_is_wrong_is_named(old: str, new: str, why: str) -> None:
    good = text(H200, "x.toml")
    assert old in good
    with pytest.raises(UsageError, match=rf"x\.toml.*{why}"):
        parse_device(good.replace(old, new), "x.toml")


def sines(count: int) -> BlockGraph:
    b = Builder("sines", "float32")
    return one_kernel(b.build(Y=b.op("sin", b.input("X", (count,))))).blocks[0]


def errors(count: int) -> BlockGraph:
    b = Builder("errors", "float32")
    return one_kernel(b.build(Y=b.sum(b.op("square", b.input("X", (4096, count)) - b.input("Z", (4096, count))), 1))).blocks[0]


@pytest.mark.parametrize(
    ("block", "order", "faster", "slower"),
    [
        (sines(36_000_000), "", (4096, 4), (8192, 4)),  # more code than is cached
        (sines(36_013_001), "", (512, 4), (2048, 4)),  # loads of one element each
        (errors(1 << 15), "k", (2048, 4), (4096, 4)),  # more sums than let loads run ahead
    ],
    ids=["code", "scalars", "sums"],
)
def test_threads_that_do_too_much_at_once_wait_longer_for_memory(
    block: BlockGraph, order: str, faster: tuple[int, int], slower: tuple[int, int]
) -> None:
    ones = [(a.name, 1) for a in block.axes[:-1]]
    fast, slow = (
        us(block, KernelSchedule((*ones, (block.axes[-1].name, n)), TilingExpr(tuple(order), ()), num_warps=warps))
        for n, warps in (faster, slower)
    )
    assert fast < 0.95 * slow


@pytest.mark.parametrize(("rows", "width", "warm"), [(512, 768, True), (512, 16384, False), (16, 768, False)])
def test_among_others_a_kernel_finds_in_l2_what_it_reads(rows: int, width: int, warm: bool) -> None:
    """Not weights that do not fit beside others', and not by products on fragments, whose warps load what they multiply."""
    b = Builder("row", "float16")
    (block,) = one_kernel(b.build(Y=b.op("gelu", b.input("X", (rows, 768)) @ b.input("W", (768, width))))).blocks
    w = work(schedule_features(block, kernel("k", m=min(rows, 64), n=64, k=64, stages=4)), H200)
    alone, among = (times(w, H200, constants_of(H200), chained) for chained in (False, True))
    assert among["fetch"] == pytest.approx(alone["fetch"] * (WARM if warm else 1.0))
    assert (among["arithmetic"] < alone["arithmetic"]) == (rows == 512)
    library = Product(1, rows, width, 768, "float16")
    assert not warm or matmul_seconds(library, H200, chained=True) < matmul_seconds(library, H200)


@pytest.mark.parametrize(("order", "k", "waits"), [("", 2048, False), ("k", 512, True)])
def test_rows_of_weights_that_no_loop_reads_are_under_way_before_a_kernel_waits(order: str, k: int, waits: bool) -> None:
    b = Builder("row", "float16")
    (block,) = one_kernel(b.build(Y=b.input("X", (1, 2048)) @ b.input("W", (4096, 2048)).T)).blocks
    w = work(schedule_features(block, kernel(order, n=4, k=k, stages=2)), H200)
    assert w.flat[0] > 0  # no tensor core
    assert times(w, H200, constants_of(H200))["waits"][0] > 0
    assert bool(times(w, H200, constants_of(H200), True)["waits"][0]) == waits


def test_small_tiles_of_exact_products_split_their_operands_more_often() -> None:
    b = Builder("exact", "float32")
    (block,) = one_kernel(b.build(Y=b.input("X", (1024, 512)) @ b.input("W", (512, 512)).T)).blocks

    def busy(m: int, n: int, warps: int) -> float:
        return float(terms(schedule_features(block, kernel("k", m=m, n=n, k=32, warps=warps)), H200)["tensor"][0])

    assert busy(64, 128, 8) > 1.4 * busy(128, 64, 8)  # two warp groups with the same rows
    assert busy(16, 16, 2) > 2 * busy(64, 64, 4)


def test_each_trip_of_a_softmax_costs_an_sm_that_is_full_of_blocks() -> None:
    b = Builder("attention")
    q, k, v = (b.input(n, (96, 512, 64)) for n in "QKV")
    (block,) = one_kernel(b.build(O=b.attention(q, k, v))).blocks
    few, many = (
        estimate(block, KernelSchedule.parse(f"n [b=1 h=64 k=64 m=128 n={n}] warps=4 stages=4", block), load_device("h200"))
        for n in (64, 32)
    )
    # an H200 takes 23.3 µs with tiles of 32 keys; the products, and what is computed of each score, are the same
    assert many["seconds"] == pytest.approx(23.3e-6, rel=0.15)
    assert many["arithmetic"] > 1.1 * few["arithmetic"]


@pytest.mark.parametrize("shape", [(1, 8192, 1024), (1024, 131072, 1), (1, 1048576, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_library_multiplies_by_vectors_as_fast_as_it_reads(shape: tuple[int, int, int], dtype: str) -> None:
    m, k, n = shape
    nbytes = (m * k + k * n) * DTYPE_BYTES[dtype]
    device = load_device("h100")
    taken = matmul_seconds(Product(1, m, n, k, dtype), device, precision="ieee")
    assert nbytes / device.memory_bandwidth < taken < 1.5 * nbytes / device.memory_bandwidth + 5e-6
    assert matmul_seconds(Product(10**5, 1, 1, 8, dtype), device) > 50e-6  # each of many little ones takes its time
