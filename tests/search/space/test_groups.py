"""Schedules by warp groups beside those in Triton: who chooses them, and who must not."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cost_model.constants import constants_of
from cost_model.refined import estimate
from fuser.device import load_device
from fuser.errors import NoValidKernelError
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.check import check
from fuser.lower.options import BACKEND
from fuser.lower.options import OPTIONS
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.cover import chain
from search.ranked import QUICK
from search.ranked import Tuned
from search.space.estimates import estimator
from search.space.groups import group_space
from search.space.groups import ranked_groups
from search.space.launches import chained
from search.space.schedules import ScheduleSpace
from search.tune import in_triton
from search.tune import tune_fast
from search.tuner.pool import jobs_of
from search.tuner.pool import part
from tests.builders import apart
from tests.builders import attention
from tests.builders import gemm
from tests.builders import packed_layer

H200 = load_device("h200")


def backends(tuned: Tuned) -> set[str]:
    return {BACKEND.of(s) for r in (tuned.winner, *tuned.runners) for s in r.schedule.kernels}


@pytest.fixture(scope="module")
def long() -> TensorProgram:
    return attention(1024, 2048, 64, 64, 32)


def test_the_model_chooses_among_both_languages(long: TensorProgram) -> None:
    """The first to run is by warp groups, others in Triton stand behind it for what the assembler refuses; launchers without
    descriptors, other models and other architectures have them in Triton alone."""
    graphs = (one_kernel(long),)
    tuned = tune_fast(long, H200, graphs=graphs)
    assert BACKEND.of(tuned.winner.schedule.kernels[0]) == "gluon" and backends(tuned) == {"gluon", "triton"}
    assert generate_graph(tuned.winner.graph, tuned.winner.schedule)[0].backend == "gluon"
    assert backends(tune_fast(long, H200, graphs=graphs, options=False)) == {"triton"}
    assert backends(tune_fast(long, load_device("a100"), graphs=graphs)) == {"triton"}


def test_small_and_short_kernels_stay_in_triton() -> None:
    assert BACKEND.of(tune_fast(gemm(48, 256, 256), H200).winner.schedule.kernels[0]) == "triton"
    (space,) = ScheduleSpace(one_kernel(workload("mirage/lora")), H200).kernels  # 16 rows
    assert group_space(space) is None
    (space,) = ScheduleSpace(one_kernel(workload("graphene/layernorm")), H200).kernels
    assert group_space(space) is None


def test_a_search_by_measurements_has_them_as_a_structure(long: TensorProgram) -> None:
    graph = one_kernel(long)
    (job,) = (j for j in jobs_of(long, [graph], H200, QUICK) if j[-1] == "groups")
    found = part(job)
    assert found is not None
    structure, entries = found
    assert len(entries) > 4 and {BACKEND.of(e.candidate.schedule.kernels[0]) for e in entries} == {"gluon"}
    row = np.asarray(entries[0].row)
    assert structure.space.schedule(row) == entries[0].candidate.schedule
    assert structure.entries(np.array([structure.mutated(row.tolist(), np.random.default_rng(i)) for i in range(8)]))
    plain = Schedule.parse("n [b=1 h=64 k=64 m=64 n=64] warps=4 stages=2", graph.blocks)
    with pytest.raises(UsageError, match="lacks the option 'backend'"):
        structure.space.row(plain)


def test_all_that_can_be_drawn_is_python_or_refused() -> None:
    """Whatever the tiles: groups without trips, with trips and nothing to merge."""
    rng = np.random.default_rng(0)
    blocks = {k.block: k for g in structures(workload("mcfuser/S6"))[:3] for k in ScheduleSpace(g, H200).kernels}
    written = 0
    for space in filter(None, map(group_space, blocks.values())):
        for _ in range(60):
            tiles = tuple((t.name, int(rng.choice(t.values))) for t in sorted(space.tiles, key=lambda t: t.name))
            order = space.order.values[rng.integers(space.order.count)]
            knobs = (*space.always, *((("persistent", 132),) if rng.random() < 0.5 else ()))
            drawn = KernelSchedule(
                tiles, order, (), int(rng.choice(space.warps.values)), int(rng.choice(space.stages.values)), knobs
            )
            with suppress(NoValidKernelError):
                written += bool(ast.parse(generate(space.block, drawn).text))
    assert written > 20


def test_a_launcher_without_descriptors_gets_them_in_triton(long: TensorProgram) -> None:
    tuned = tune_fast(long, H200, graphs=(one_kernel(long),))
    ((block, schedule),) = tuned.winner.candidate.blocks
    plain = in_triton(block, schedule, H200)
    assert BACKEND.of(plain) == "triton" and not any(k.startswith("tma") for k, _ in plain.knobs)
    assert in_triton(block, plain, H200) is plain


def test_kernels_of_a_model_start_early_in_either_language() -> None:
    graph = apart(packed_layer(1, 512, 12, 64))
    first, second = "n [b=1 m=64 n=128 h=64 k=64] warps=8 stages=4", "b [b=1 h=64 m=64 p=64] warps=4 stages=4"
    for schedule in (f"{first} backend=gluon ; {second}", f"{first} ; {second} backend=gluon"):
        mine = chained(Candidate(graph, Schedule.parse(schedule, graph.blocks)), H200)
        attending, product = generate_graph(graph, mine.schedule)
        assert {attending.backend, product.backend} == {"gluon", "triton"}
        assert product.pdl and "gdc_launch_dependents()" in attending.text and "gdc_wait()" in product.text
        assert "W" in attending.args and "bring_l2(W_ptr" in attending.text


def test_a_kernel_without_room_for_its_place_in_a_chain_is_as_it_was_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = apart(packed_layer(1, 512, 12, 64))
    text = "n [b=1 m=64 n=128 h=64 k=64] warps=8 stages=4 ; b [b=1 h=64 m=64 p=64] warps=4 stages=4 backend=gluon"
    alone = Candidate(graph, Schedule.parse(text, graph.blocks))
    mine = chained(alone, H200)

    def compiled(sources: Any, *_: Any) -> tuple[()]:
        for s in sources:
            alone_compiled(s)
        return ()

    def alone_compiled(source: Any, *_: Any) -> None:
        if source.backend == "gluon" and source.pdl:
            raise NoValidKernelError("too few registers")

    monkeypatch.setattr(chain, "compile_sources", compiled)
    monkeypatch.setattr(chain, "compile_kernel", alone_compiled)
    monkeypatch.setattr(chain, "_within_registers", lambda candidate, _: candidate)
    found, _ = chain._compiled(mine, alone, H200, None, {})
    assert found.schedule.kernels == (mine.schedule.kernels[0], alone.schedule.kernels[1]) != mine.schedule.kernels


def test_columns_of_two_axes_have_a_form_whose_tile_is_along_the_inner_one() -> None:
    """Sums over groups of columns, as a normalization behind it wants them, leave with the product."""
    b = Builder("groups")
    x, w, bias = b.input("x", (256, 128)), b.input("w", (128, 256)), b.input("bias", (256,))
    y = b.op("add", b.op("matmul", x, w), bias, name="y")
    parts = b.op("cast", b.op("reshape", y, shape=(256, 4, 64)), dtype="float16")
    program = b.build(y=y, sums=b.op("sum", parts, axis=(2,), keepdims=True, dtype="float32"))
    (space,) = ScheduleSpace(graph := one_kernel(program), H200).kernels
    ((_, best), *_), _ = ranked_groups(space, estimator(H200), 1, {})
    outer = space.block.by_value[space.block.stores[-1].value].axes[1]
    assert dict(best.tiles)[outer] == 1
    (found,) = check([(program, Candidate(graph, Schedule((best,))))])
    assert found.passed, found


def test_options_of_warp_groups_are_searched() -> None:
    """No warp that loads, for one group whose blocks end; results by pointers."""
    (space,) = ScheduleSpace(one_kernel(attention(256, 512, 64, 64)), H200, options=True).kernels
    mine = group_space(space)
    assert mine is not None
    knobs = {s.name: s.values for s in mine.settings}
    assert knobs["specialize"] == knobs["tma_O"] == (None, False)
    text = "n [b=1 h=64 k=64 m=64 n=64] warps={} stages=3 backend=gluon{}"
    for warps, more, value in ((4, "", False), (8, "", None), (4, " persistent=132", None)):
        p = space.place(KernelSchedule.parse(text.format(warps, more), space.block))
        assert OPTIONS["specialize"].at_place(p, False) is value
        assert OPTIONS["tma"].at_place(p, False, "O") is False and OPTIONS["tma"].at_place(p, False, "Q") is None


def test_an_sm_80_is_offered_cp_async_by_measurements_alone() -> None:
    """No GPU of that kind has run it: its price is a tenth above Triton's."""
    a100 = load_device("a100")
    (space,) = ScheduleSpace(one_kernel(gemm(256, 256, 256)), a100, options=True).kernels
    (setting,) = (s for s in space.settings if s.name == BACKEND.key())
    assert setting.values == (None, "gluon_mma")
    assert BACKEND.key() not in {
        s.name for s in ScheduleSpace(one_kernel(gemm(256, 256, 256)), H200, options=True).kernels[0].settings
    }
    plain = KernelSchedule.parse("k [m=64 n=64 k=64] warps=4 stages=3", space.block)
    mine = setting.at(space.place(plain), 1).schedule
    assert BACKEND.of(mine) == "gluon_mma" and generate(space.block, mine).backend == "gluon_mma"
    seconds = [estimate(space.block, s, a100)["seconds"] for s in (plain, mine)]
    assert seconds[1] == pytest.approx(1.1 * seconds[0])
    odd = KernelSchedule.parse("k [m=48 n=64 k=64] warps=4 stages=3", space.block)
    assert BACKEND.of(setting.at(space.place(odd), 1).schedule) == "triton"  # in pieces, which it does not write
    assert backends(tune_fast(gemm(256, 256, 256), a100)) == {"triton"}


def test_dependent_launch_hides_the_start_of_either_language() -> None:
    block = one_kernel(gemm(256, 256, 256)).blocks[0]
    for backend in ("triton", "gluon"):
        s = KernelSchedule.parse(f"k [m=64 n=64 k=64] warps=4 stages=3 backend={backend}", block)
        alone, behind = (estimate(block, x, H200) for x in (s, s.with_knobs(pdl="early")))
        assert alone["base"] - behind["base"] == pytest.approx(constants_of(H200).overlap)
        assert alone["seconds"] > behind["seconds"] > H200.launch_latency / 4
