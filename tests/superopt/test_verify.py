"""The verifier: correct structures pass with a stated bound, wrong ones are refused with a witness."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.mirage.edit import NotApplicable
from experiments.mirage.mutants import correct
from experiments.mirage.mutants import float_equal
from experiments.mirage.mutants import programs
from experiments.mirage.mutations import mutate
from experiments.mirage.rewrites import random_schedule
from experiments.mirage.rewrites import rewrite
from fuser.errors import FuserError
from fuser.frontends.builder import Builder
from fuser.frontends.builder import Ref
from fuser.ir.fuse import fuse
from fuser.superopt.verify import Rejected
from fuser.superopt.verify import Unknown
from fuser.superopt.verify import Verified
from fuser.superopt.verify import replay
from fuser.superopt.verify import verify
from fuser.workloads import workload
from search.structures import structures

PROGRAMS = {p.name: p for p in programs()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_structures_that_hold_by_construction_pass(name):
    program = PROGRAMS[name]
    for graph in correct(program)[:5]:
        verdict = verify(program, graph, rounds=1)
        if isinstance(verdict, Unknown):  # a part of a causal mask may be empty, which fields cannot express
            assert program.name == "causal" and any(b.splits for b in graph.blocks)
            continue
        assert isinstance(verdict, Verified), f"{verdict}\n{graph}"
        assert 0 <= verdict.bound <= 1  # 1 where the theorem says nothing: the law of exp at these primes
        assert verdict.float_error < 1e-6
        assert verdict.heuristic  # what is not proven is said


def test_more_rounds_prove_more():
    program = workload("mcfuser/G1", batch=1, M=32, N=32, K=32, H=32)
    graph = structures(program)[0]
    bounds = []
    for rounds in (1, 3):
        verdict = verify(program, graph, rounds=rounds)
        assert isinstance(verdict, Verified)
        assert len(verdict.sizes) >= rounds
        bounds.append(verdict.bound)
    assert bounds[1] < bounds[0] < 1e-4


def qknorm(row_sums: bool):
    """Attention over normalized queries and keys; the published wrong form takes row sums of the queries instead of the
    product.
    """
    b = Builder("qknorm")
    q, k, v = b.input("Q", (32, 16)), b.input("K", (48, 16)), b.input("V", (48, 16))

    def norm(x: Ref) -> Ref:
        return b.rms_norm(x)

    scores = b.sum(norm(q), 1, keepdims=True) * b.sum(norm(k), 1, keepdims=True).T if row_sums else norm(q) @ norm(k).T
    e = b.exp(scores)
    return b.build(O=(e @ v) / b.sum(e, 1, keepdims=True))


def test_the_published_wrong_form_of_qknorm_is_refused():
    right, wrong = qknorm(False), qknorm(True)
    assert isinstance(verify(right, fuse(right)), Verified)
    verdict = verify(right, fuse(wrong))
    assert isinstance(verdict, Rejected)
    assert replay(right, fuse(wrong), verdict)


def test_mutants_are_refused(rng):
    names = list(PROGRAMS)
    refused = 0
    for i in range(60):
        program = PROGRAMS[names[i % len(names)]]
        graphs = correct(program)
        try:
            what, mutant = mutate(graphs[int(rng.integers(len(graphs)))], rng)
        except NotApplicable:
            continue
        try:
            if float_equal(program, mutant, rng):
                continue  # equal after all: set aside
        except FuserError:
            pass  # it cannot even be interpreted: nobody may accept it
        verdict = verify(program, mutant, rounds=1, float_rounds=0)
        assert not verdict.accepted, f"{what}: {verdict}\n{mutant}"
        refused += 1
    assert refused >= 20


def test_rewritings_by_the_algebra_pass(rng):
    names = list(PROGRAMS)
    for i in range(24):
        program = PROGRAMS[names[i % len(names)]]
        try:
            steps, graph = rewrite(fuse(program), rng, 2)
        except NotApplicable:
            continue
        verdict = verify(program, graph, random_schedule(graph, rng), rounds=1, float_rounds=0)
        assert verdict.accepted, f"{steps}: {verdict}\n{graph}"


def test_the_verdict_does_not_depend_on_names():
    b = Builder("renamed")
    x, y, z = b.input("one", (32, 16)), b.input("two", (48, 16)), b.input("three", (48, 16))
    program = b.build(four=b.softmax(x @ y.T) @ z)
    first = verify(program, structures(program)[0], rng=np.random.default_rng(1))
    assert isinstance(first, Verified)
