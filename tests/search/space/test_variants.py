"""Variants: only options that the device has and the schedule allows, each of them another kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.device import load_device
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.lower.triton_source import generate
from fuser.lower.triton_source import generate_graph
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.places import place_of
from search.space.variants import Variant
from search.space.variants import variants
from tests.builders import schedule

H200, A100, B200 = load_device("h200"), load_device("a100"), load_device("b200")


def gemm(**knobs: object) -> tuple[KernelGraph, Schedule]:
    kernel = replace(schedule("k", knobs=knobs, m=128, n=256, k=64), num_warps=8, num_stages=4)
    return one_kernel(workload("graphene/gemm")), Schedule((kernel,))


def two_kernels() -> tuple[KernelGraph, Schedule]:
    """A chain cut in two, the second kernel launched early."""
    graph = next(g for g in structures(workload("mcfuser/G4")) if len(g.blocks) == 2 and not any(b.splits for b in g.blocks))
    first = KernelSchedule(tuple((a, min(64, n)) for a, n in graph.blocks[0].extents.items()), _order(graph, 0))
    second = KernelSchedule(tuple((a, min(64, n)) for a, n in graph.blocks[1].extents.items()), _order(graph, 1))
    return graph, Schedule((first, replace(second, knobs=(("pdl", "early"),))))


def _order(graph: KernelGraph, i: int):
    block = graph.blocks[i]
    return schedule("".join(a for a in block.reduced if block.extents[a] > 64)).order


def by_name(found: list[Variant]) -> dict[str, Variant]:
    return {str(v): v for v in found}


def test_a_large_gemm_has_every_option_of_hopper():
    graph, base = gemm()
    names = by_name(list(variants(Candidate(graph, base), H200)))
    expected = {
        "group=8",
        "grid_order",
        "evict_last A",
        "tma",
        "tma store",
        "persistent=1",
        "tma persistent=1 flatten",
        "group=8 tma persistent=1",
    }
    assert expected <= set(names)
    assert not any(n.startswith("pdl") for n in names)


def test_every_variant_is_another_kernel_that_the_device_can_run():
    for graph, base in (gemm(), gemm(group=4), two_kernels()):
        for device in (H200, A100, B200):
            texts = {(s.text, s.num_warps) for s in generate_graph(graph, base)}
            for v in variants(Candidate(graph, base), device):
                sources = generate_graph(graph, v.candidate.schedule)
                mine = {(s.text, s.num_warps) for s in sources}
                assert mine - texts
                texts |= mine
                assert all(s.capability <= device.arch for s in sources)


def test_older_devices_have_no_descriptors_and_keep_persistent_grids():
    graph, base = gemm()
    names = by_name(list(variants(Candidate(graph, base), A100)))
    assert "persistent=1" in names
    assert not any("tma" in n or "specialize" in n for n in names)


def test_warps_are_specialized_where_triton_makes_right_kernels_of_it():
    graph, base = gemm()
    assert not any("specialize" in n for n in by_name(list(variants(Candidate(graph, base), H200))))
    later = by_name(list(variants(Candidate(graph, base), B200)))
    assert later["specialize"].candidate.schedule.kernels[0].num_warps == 8
    assert "specialize persistent=1" not in later


def test_kernels_behind_others_may_start_late_or_normally():
    graph, base = two_kernels()
    names = by_name(list(variants(Candidate(graph, base), H200)))
    assert "pdl=early" not in names  # as the base is
    assert names["pdl=late"].candidate.schedule.kernels[1].knob["pdl"] == "late"
    assert "pdl" not in names["pdl=none"].candidate.schedule.kernels[1].knob
    assert all("pdl" not in v.candidate.schedule.kernels[0].knob for v in names.values())


def test_tensors_with_a_hint_keep_their_pointers():
    graph, base = gemm(evict_A="evict_last")
    knobs = [v.candidate.schedule.kernels[0].knob for v in variants(Candidate(graph, base), H200)]
    assert any(k.get("tma_C") for k in knobs)
    assert not any(k.get("tma_A") for k in knobs)


def test_the_parts_of_a_split_are_programs_once():
    """Each part reads keys of its own, and the grid has as many programs as places."""
    graph = next(g for g in structures(workload("mirage/gqa-inc")) if len(g.blocks) == 2 and g.blocks[0].splits)
    split = graph.blocks[0]
    tiles = tuple(sorted((a, 64 if a == "n" else 1 if a == "b" else n) for a, n in split.extents.items() if a != "n_part"))
    kernel = KernelSchedule(tiles, schedule("n").order, (("n_part", 8),))
    place = place_of(split, kernel, H200, False)
    assert place.divided == {"n_part": 8} | ({"b": b} if (b := split.extents.get("b", 1)) > 1 else {})
    assert place.programs == generate(split, kernel).grid
    assert not place.reread("K")


@pytest.mark.parametrize("name", ["mcfuser/S1", "mirage/gqa-spec"])
def test_hints_tell_what_is_read_again(name):
    graph = one_kernel(workload(name))
    axes = {a: (1 if a == "b" else 16 if a == "m" else n) for a, n in graph.blocks[0].extents.items()}
    tiles = tuple(sorted((a, 64 if a == "n" else t) for a, t in axes.items()))
    base = Schedule((KernelSchedule(tiles, schedule("n").order),))
    kept = {
        v.detail: v.candidate.schedule.kernels[0].knob
        for v in variants(Candidate(graph, base), H200)
        if v.option == "evict_last" and v.detail
    }
    spread = len([a for a, n in graph.blocks[0].extents.items() if a == "m" and n > 16])
    assert set(kept) == ({"K", "V"} if spread else set())
