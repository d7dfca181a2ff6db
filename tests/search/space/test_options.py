"""Options of the lowering as knobs: one entry is all that generator, searches and model need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from cost_model import refined
from cost_model.explain import explain
from cost_model.features import Counts
from cost_model.features import Features
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import neutral
from fuser.lower.options import GROUP
from fuser.lower.options import HOIST
from fuser.lower.options import OPTIONS
from fuser.lower.options import PDL
from fuser.lower.options import PERSISTENT
from fuser.lower.options import PREFETCH
from fuser.lower.options import TMA
from fuser.lower.options import Option
from fuser.lower.options import option_of
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.ranked import QUICK
from search.space.evolve import search
from search.space.knobs import settled
from search.space.knobs import settlements
from search.space.places import places
from search.space.schedules import ScheduleSpace
from search.space.variants import variants
from search.tune import graph_seconds
from tests.builders import chain
from tests.builders import gemm
from tests.interpreted import checked

DEVICES = {name: load_device(name) for name in ("h200", "a100", "b200")}
H200 = DEVICES["h200"]
NAMES = ("mcfuser/G4", "mcfuser/S1", "mirage/gqa-inc", "mirage/lora", "graphene/lstm", "graphene/gemm")


@lru_cache
def graphs(name: str) -> tuple[KernelGraph, ...]:
    return tuple(g for g in structures(workload(name)) if g.blocks)


def pair() -> KernelGraph:
    """Two generated kernels, a product each."""
    return next(g for g in graphs("mcfuser/G4") if len(g.blocks) == 2 and not any(b.splits for b in g.blocks))


def model(f: Features) -> Counts:
    return refined.seconds(f, H200)


REGISTERS = Option(
    "registers",
    int,
    "most registers of a thread",
    values=(48, 64, 128),
    choices=(48, 128),
    at=lambda p, choice, tensor: choice if choice * 32 * p.schedule.num_warps <= 32768 else None,
    parameter="maxnreg",
    counts=lambda f, value: {"waits": 100.0 * (value < 100)},
)


def test_a_new_option_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled, mutated, enumerated, written and read, handed to the compiler, and seen by the model."""
    monkeypatch.setitem(OPTIONS, "registers", REGISTERS)
    graph, rng = one_kernel(workload("mcfuser/G1")), np.random.default_rng(0)
    space = ScheduleSpace(graph, H200, options=True)
    (at,) = [i for i, k in enumerate(space.knobs) if k.name == "registers"]
    rows = space.population(200, rng)
    drawn = {REGISTERS.of(space.schedule(row).kernels[0]) for row in rows}
    assert drawn == {None, 48, 128}
    changed = [(row[at], space.mutate_row(row, rng)[at]) for row in rows for _ in range(5)]
    assert {b for a, b in changed if a != b} == {0, 1, 2}
    # what its rule forbids is repaired
    wide = [s for row in rows if (s := space.schedule(row).kernels[0]).num_warps >= 16]
    assert not any(REGISTERS.of(s) == 128 for s in wide)
    # in a schedule
    tiles = (("h", 64), ("k", 64), ("m", 64), ("n", 64))
    base = Schedule((KernelSchedule(tiles, TilingExpr.parse("n")),))
    found = {v.option: v.candidate.schedule for v in variants(Candidate(graph, base), H200)}
    assert {o for o in found if o.startswith("registers")} == {"registers=48", "registers=128"}
    chosen = found["registers=48"]
    assert chosen.to_json()[0]["knobs"] == {"registers": 48} and Schedule.from_json(chosen.to_json()) == chosen
    assert space.schedule(space.row(chosen)) == chosen
    # in a kernel
    (source,), (plain,) = generate_graph(graph, chosen), generate_graph(graph, base)
    assert source.parameters == (("maxnreg", 48),) and neutral(source) != neutral(plain)
    assert "registers=48" in source.text
    assert compile_kernel(source, 80).registers <= 48 < compile_kernel(plain, 80).registers
    with pytest.raises(UsageError, match="50 is not a value of the option 'registers'"):
        generate_graph(graph, Schedule((REGISTERS.set(base.kernels[0], 50),)))
    # in the model
    waits = next(r.values for r in explain([Candidate(graph, chosen), Candidate(graph, base)], H200) if r.term == "waits")
    assert waits[0] is not None and waits[1] is not None and waits[0] > waits[1]
    times = space.estimate_rows(np.array([space.row(chosen), space.row(base)]), model)
    assert times[0] > times[1]


def test_without_an_entry_there_is_no_such_option() -> None:
    assert option_of("registers") is None
    assert not any(k.name == "registers" for k in ScheduleSpace(one_kernel(workload("mcfuser/G1")), H200, options=True).knobs)


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_samples_and_mutants_lower_with_their_options(name: str, target: str) -> None:
    rng, device = np.random.default_rng(0), DEVICES[target]
    for graph in graphs(name)[:3]:
        space = ScheduleSpace(graph, device, options=True)
        for row in space.population(6, rng):
            rows = np.array([row, *(space.mutate_row(row, rng) for _ in range(8))])
            for schedule in map(space.schedule, rows[space.runs(rows)][:2]):
                plain = Schedule(tuple(replace(k, knobs=()) for k in schedule.kernels))
                generate_graph(graph, plain)
                assert all(s.capability <= device.arch for s in generate_graph(graph, schedule))
                assert space.schedule(space.row(schedule)) == schedule


def test_every_option_that_is_searched_is_drawn_somewhere() -> None:
    found, rng = set[str](), np.random.default_rng(0)
    biased = structures(chain(bias=True))[0]
    several = (graphs("mcfuser/S1")[0], pair(), graphs("mirage/mha-inc")[0], graphs("graphene/mlp20")[0], biased)
    for graph, device in (*((g, "b200") for g in several), *((several[0], d) for d in ("h200", "a100"))):
        space = ScheduleSpace(graph, DEVICES[device], options=True)
        rows = 40 if len(graph.blocks[0].loads) > 4 else 400  # one of twenty products has forty times as many values to draw
        for row in space.population(rows, rng):
            found |= {o.name for k in space.schedule(row).kernels for n in k.knob if (o := option_of(n))}
    assert found == {o.name for o in OPTIONS.values() if o.choices}


def test_schedules_whose_options_are_not_searched_have_the_given_ones() -> None:
    space, rng = ScheduleSpace(pair(), H200), np.random.default_rng(0)
    first, second = space.sample(rng).kernels
    assert first.knob == {} and second.knob == {"pdl": "early", "prefetch": 2}
    assert all(k.knob == {} for k in ScheduleSpace(pair(), DEVICES["a100"]).sample(rng).kernels)
    searched = ScheduleSpace(pair(), H200, options=True)
    zeros = np.zeros((1, len(searched.knobs)), np.int64)
    assert [k.knob for k in searched.schedule(zeros[0]).kernels] == [first.knob, second.knob]


def test_rows_with_options_are_estimated_as_their_schedules() -> None:
    space, rng = ScheduleSpace(pair(), H200, options=True), np.random.default_rng(1)
    rows = space.population(40, rng)
    times = space.estimate_rows(rows, model)
    rows, times = rows[np.isfinite(times)], times[np.isfinite(times)]
    every = [space.schedule(row) for row in rows]
    assert {PDL.of(s.kernels[1]) for s in every} == {"", "early", "late"}
    for s, t in zip(every, times, strict=True):
        parts = [refined.estimate(k.block, x, H200)["seconds"] for k, x in zip(space.kernels, s.kernels, strict=True)]
        assert t == pytest.approx(sum(parts), rel=1e-3)  # but for what decides between equals


def test_a_place_lists_each_set_of_options_once() -> None:
    space = ScheduleSpace(pair(), H200, options=True)
    every = map(space.schedule, space.population(50, np.random.default_rng(0)))
    schedule = next(s for s in every if TMA.of(s.kernels[1], "D"))
    place = replace(places(Candidate(pair(), schedule), H200)[1], schedule=replace(schedule.kernels[1], knobs=()))
    knobs = [k for k in space.kernels[1].settings if k.name in ("group", "evict_D", "pdl", "prefetch", "tma_D", "flatten")]
    listed = [settled(place, knobs, codes) for codes in settlements(place, knobs)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {settled(place, knobs, codes) for codes in product(*(range(k.count) for k in knobs))}
    assert any(TMA.of(s, "D") for s in listed)
    assert not any(PREFETCH.of(s) and not PDL.of(s) for s in listed)
    assert not any("evict_D" in s.knob and "tma_D" in s.knob for s in listed)


def test_exhaustive_ranking_goes_through_options_too() -> None:
    graph = one_kernel(workload("mcfuser/G1", M=32, N=32, K=16, H=16))
    space = ScheduleSpace(graph, H200, options=True)
    few = tuple(k for k in space.kernels[0].settings if k.name in ("lazy", "evict_A", "tma_D"))
    object.__setattr__(space, "kernels", (replace(space.kernels[0], settings=few),))
    listed = list(space.enumerate())
    assert len(listed) == len(set(listed))
    rows = np.array(list(product(*(range(k.count) for k in space.knobs))))
    assert set(listed) == {space.schedule(row) for row in rows[space.runs(rows)]}
    assert len({s.kernels[0].knobs for s in listed}) > 1


def test_algorithm_1_finds_options_that_pay() -> None:
    """On a device where groups halve the time, whatever the model says."""
    graph = one_kernel(workload("graphene/gemm"))

    def measure(schedules: Sequence[Schedule]) -> list[float]:
        kernels = [s.kernels[0] for s in schedules]
        return [refined.estimate(graph.blocks[0], k, H200)["seconds"] * (0.5 if GROUP.of(k) else 1.0) for k in kernels]

    space = ScheduleSpace(graph, H200, options=True)
    found = search(space, model, np.random.default_rng(0), replace(QUICK, patience=8), measure)
    assert found.strategy == "evolution"
    assert GROUP.of(found.best.candidate.schedule.kernels[0])


def test_a_schedule_with_an_option_that_no_choice_stands_for_is_not_in_the_space() -> None:
    space = ScheduleSpace(one_kernel(workload("graphene/gemm")), H200, options=True)
    kernel = space.schedule(np.zeros(len(space.knobs), np.int64)).kernels[0]
    with pytest.raises(UsageError, match="group"):
        space.row(Schedule((kernel.with_knobs(group=32),)))
    with pytest.raises(UsageError, match="pad"):
        space.row(Schedule((kernel.with_knobs(pad=True),)))


def test_chained_products_without_a_loop_may_loop_over_their_one_place():
    """Then all of their loads are under way together, for one more buffer each. Not where there is a loop already, nor with more
    programs than cover the grid, nor for a product alone."""
    whole = Candidate(one_kernel(chain(m=128, n=64, k=64, h=64)), tiled(m=64, n=64, k=64, h=64))
    (place,) = places(whole, H200)
    assert [PERSISTENT.at_place(place, n) for n in (1, 2, 4)] == [H200.sm_count, None, None]
    within = replace(whole, schedule=Schedule((PERSISTENT.set(place.schedule, H200.sm_count),)))
    plain, looped = (refined.estimate(*next(iter(c.blocks)), H200) for c in (whole, within))
    assert looped["seconds"] < 0.98 * plain["seconds"]
    assert looped["shared_bytes"] > plain["shared_bytes"]

    for other in (
        Candidate(one_kernel(chain(m=128, n=64, k=64, h=64)), tiled(("n",), m=64, n=32, k=64, h=64)),
        Candidate(one_kernel(gemm(128, 64, 64)), tiled(m=64, n=64, k=64)),
    ):
        (place,) = places(other, H200)
        assert PERSISTENT.at_place(place, 1) is None


def tiled(order: tuple[str, ...] = (), **tiles: int) -> Schedule:
    return Schedule((KernelSchedule(tuple(sorted(tiles.items())), TilingExpr(order), (), 4, 2),))


def test_without_a_loop_all_loads_come_in_front_of_the_first_sum() -> None:
    b = Builder("norms")
    h, x, g = b.input("H", (8, 256)), b.input("X", (8, 256)), b.input("G", (256,))
    program = b.build(Y=b.op("rms_norm", x + g * (b.op("rms_norm", h) - x)))
    graph = structures(program)[0]
    plain = KernelSchedule((("m", 1), ("n", 256)), TilingExpr(()))
    (place,) = places(Candidate(graph, Schedule((plain,))), load_device("h200"))
    assert HOIST.at_place(place, True)
    assert not HOIST.at_place(replace(place, schedule=replace(plain, num_warps=1)), True), "lanes wait for nobody"
    early = Schedule((HOIST.set(plain, True),))

    def loads(schedule: Schedule) -> int:
        """In front of the first sum."""
        (source,) = generate_graph(graph, schedule)
        return source.text.partition("tl.sum")[0].count("tl.load")

    assert (loads(Schedule((plain,))), loads(early)) == (1, 3)
    assert checked(program, graph, early).passed
    (seconds, with_it) = (graph_seconds(Candidate(graph, s), load_device("h200")) for s in (Schedule((plain,)), early))
    assert with_it < seconds
