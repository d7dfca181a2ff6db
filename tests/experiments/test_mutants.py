"""The mutation suite: a small sample of it, what makes a run fail, and the oracle that judges it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.mirage.boundaries import BOUNDARIES
from experiments.mirage.mutants import Record
from experiments.mirage.mutants import by_class
from experiments.mirage.mutants import failures
from experiments.mirage.mutants import mutants
from experiments.mirage.mutants import rewritings
from experiments.mirage.mutants import run
from experiments.mirage.mutations import ALGEBRA
from experiments.mirage.mutations import mutate
from experiments.mirage.oracle import difference
from experiments.mirage.programs import correct
from experiments.mirage.programs import uneven
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph


@pytest.mark.slow
def test_a_sample_of_mutants_is_refused_and_one_of_rewritings_accepted() -> None:
    for names in (tuple(ALGEBRA), tuple(BOUNDARIES)):
        found = run(mutants, names, 12, 7, 1, lambda r: r.kind != "equal")
        assert set().union(*(r.steps for r in found)) & set(names)
        assert not [r for r in found if r.verdict in ("accepted", "crashed") and r.kind != "equal"]
    for r in run(rewritings, (), 6, 7, 1, lambda _: True):
        assert r.verdict == "accepted", f"{r.steps}: {r.why}\n{r.graph}"


def _record(i: int, verdict: str, kind: str = "different", step: str = "a") -> Record:
    return Record(str(i), "p", (step,), kind, verdict, "", False, 0.1, "")


def test_what_makes_a_run_fail() -> None:
    good = [_record(i, "refused") for i in range(20)]
    assert failures(good, ("a",), 20) == []
    assert failures([*good, _record(20, "set aside", "equal")], ("a",), 20) == [], "right by chance"
    assert "1 mutants, fewer than 2" in failures([*good, _record(20, "refused", step="b")], ("a", "b"), 2)[0]
    assert failures([*good, _record(20, "accepted")], ("a",), 20) == ["a of p is accepted"]
    assert failures([*good, _record(20, "accepted", "not computable")], ("a",), 20)
    assert failures([*good, _record(20, "crashed")], ("a",), 20)
    undecided = [*good, *(_record(i, "not decided") for i in range(20, 30))]
    assert failures(undecided, ("a",), 20) == ["a: only 20 of 30 refused", "only 20 of 30 mutants refused"]
    row = by_class(undecided)["a"]
    assert (row["made"], row["refused"], row["not decided"]) == (30, 20, 10)


@pytest.mark.parametrize("program", uneven(), ids=lambda p: p.name)
def test_the_oracle_agrees_with_correct_structures(program) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    for graph in correct(program):
        assert difference(program, graph, rng) == "", str(graph)


def test_every_class_of_mutants_occurs_and_mostly_differs() -> None:
    rng = np.random.default_rng(0)
    graphs = [(p, g) for p in uneven() for g in correct(p)]
    for name in BOUNDARIES:
        seen = differ = 0
        for program, graph in graphs:
            try:
                made, mutant = mutate(graph, rng, 6, (name,))
                assert made == name
                seen += 1
                differ += bool(difference(program, mutant, rng))
            except Exception as error:  # noqa: BLE001 - no place for it, or no value
                assert type(error).__name__ in ("NotApplicable", "NotComputableError"), error
        assert seen >= 3, name
        assert differ >= seen / 3, name


def test_the_oracle_sees_what_a_kernel_leaves_in_memory() -> None:
    b = Builder("sum")
    x, y = b.input("X", (6, 8)), b.input("Y", (6, 8))
    program = b.build(Z=x + y)
    graph = fuse(program)
    (block,) = graph.blocks
    (store,) = block.stores
    rng = np.random.default_rng(0)

    def edited(**changes: object) -> KernelGraph:
        new = replace(store, **changes)  # type: ignore[arg-type]
        return replace(graph, kernels=(replace(block, stmts=(*block.stmts[:-1], store, new)),))

    assert "another type" in difference(program, edited(dtype="int8"), rng)
    assert store.access is not None
    assert "overwritten" in difference(program, edited(access=replace(store.access, tensor="X")), rng)
    assert "twice" in difference(program, edited(value="X"), rng)
