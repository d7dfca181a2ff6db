from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Agrees
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdict import Verified
from fuser.superopt.verify.verifier import replay
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload
from tests.builders import edit
from tests.builders import postponed


@pytest.mark.parametrize(
    "name",
    [
        "mcfuser/G4",
        "mcfuser/S6",
        "mirage/qknorm",
        "mirage/rmsnorm",
        "mirage/lora",
        "mirage/gated-mlp",
        "mirage/mlp",
        "graphene/layernorm",
    ],
)
def test_structures_of_workloads_are_verified(name: str) -> None:
    program = workload(name)
    for graph in (fuse(program), *structures(program)):
        verdict = verify(program, graph, rounds=1)
        assert isinstance(verdict, Accepted), f"{verdict}\n{graph}"
        assert verdict.float_error < 1e-12


def test_the_verdict_carries_its_evidence() -> None:
    program = workload("mcfuser/G1")
    verdict = verify(program, fuse(program), rounds=3)
    assert isinstance(verdict, Accepted)
    assert len(set(verdict.primes)) == 3
    assert len(verdict.sizes) == 3
    for sizes in verdict.sizes:
        values = [n for a, n in sizes if a != "b"]
        assert len(set(values)) == len(values), "sizes are pairwise different"
    assert verdict.bound < 1e-20, "only polynomials: Schwartz and Zippel hold as they are"
    assert any("reduced sizes" in note for note in verdict.heuristic)
    softmax = verify(workload("mcfuser/S1"), fuse(workload("mcfuser/S1")))
    assert isinstance(softmax, Verified)
    assert verdict.bound < softmax.bound < 1e-6
    assert any("truly random" in note for note in softmax.heuristic)


def test_wrong_graphs_are_refused_with_a_witness() -> None:
    program = workload("mirage/rmsnorm", rows=64, D=64, N=64)
    graph = postponed(program)
    scale = next(s for s in graph.blocks[0].computes if s.op == "scale")
    for wrong in (
        edit(graph, scale.value, op="neg", attrs=()),
        edit(graph, scale.value, attrs=(("scalar", replace(scale.attr["scalar"], coeff=Fraction(2))),)),
        edit(graph, next(s for s in graph.blocks[0].computes if s.op == "sqrt").value, op="square"),
    ):
        verdict = verify(program, wrong)
        assert isinstance(verdict, Rejected)
        assert verdict.witness_seed >= 0
        assert replay(program, wrong, verdict)
        assert not replay(program, graph, verdict), "the correct graph passes the same round"


def test_tensors_that_do_not_fit_are_refused_before_any_round() -> None:
    program, other = workload("mcfuser/G1"), workload("mcfuser/G2")
    verdict = verify(program, fuse(other))
    assert isinstance(verdict, Rejected)
    assert "shape" in verdict.why
    assert verdict.witness_seed == -1


def test_published_wrong_qknorm_is_refused() -> None:
    """Row sums of rms(Q) times K in place of the product of rms(Q) and K: it once passed a test with fixed inputs and small
    primes.
    """
    b = Builder("qknorm", "float32")
    q, k, v = (b.input(n, (2, 64, 64)) for n in "QKV")
    e = b.exp(b.sum(b.rms_norm(q), 2, keepdims=True) * b.rms_norm(k).T.reshape(2, 64, 64))
    wrong = b.build(O=(e / b.sum(e, 2, keepdims=True)) @ v)
    program = workload("mirage/qknorm", heads=2, M=64, N=64, K=64, H=64)
    with_ties = fuse(wrong)
    assert not verify(program, with_ties).accepted
    assert verify(wrong, with_ties).accepted


def test_law_of_exp_is_used_only_where_it_is_needed() -> None:
    b = Builder("product")
    x, y = b.input("X", (8, 16)), b.input("Y", (8, 16))
    product = b.build(Z=b.exp(x) * b.exp(y))
    b = Builder("sum")
    x, y = b.input("X", (8, 16)), b.input("Y", (8, 16))
    total = b.build(Z=b.exp(x + y))
    plain = verify(total, fuse(total))
    lawful = verify(total, fuse(product))
    assert isinstance(plain, Verified)
    assert not plain.law
    assert isinstance(lawful, Agrees)
    assert lawful.law
    assert any("law of exp" in note for note in lawful.heuristic)
    b = Builder("wrong")
    x, y = b.input("X", (8, 16)), b.input("Y", (8, 16))
    assert isinstance(verify(total, fuse(b.build(Z=b.exp(x) + b.exp(y)))), Rejected)


def test_an_operator_without_meaning_is_unknown() -> None:
    b = Builder("concat")
    x = b.input("X", (4, 6))
    program = b.build(Y=b.op("concat", x, x, axis=0))
    from fuser.ir.mugraph import LibraryKernel

    graph = KernelGraph("g", ("X",), (LibraryKernel("c", "concat", ("X", "X"), "Y", (("axis", 0),)),), ("Y",), program.tensors)
    verdict = verify(program, graph)
    assert isinstance(verdict, Unknown)
    assert "concat" in verdict.why


def test_schedules_are_followed() -> None:
    program = workload("mcfuser/G1")
    graph = fuse(program)
    tiles = (("h", 32), ("k", 16), ("m", 64), ("n", 64))
    for order in ("kn", "nk", "n(k,h)", "hnk"):
        assert verify(program, graph, Schedule((KernelSchedule(tiles, TilingExpr.parse(order)),))).accepted, order
    short = Schedule((KernelSchedule(tiles, TilingExpr.parse("k")),))
    verdict = verify(program, graph, short)
    assert isinstance(verdict, Rejected)
    assert "no loop" in verdict.why


@pytest.mark.parametrize("place", ["keys", "middle", "queries"])
def test_repeated_heads(place: str) -> None:
    """Grouped attention with its key heads repeated: as it is written, in every structure, and not with other heads."""
    b = Builder("grouped")
    q, k, v = b.input("Q", (6, 16, 32)), b.input("K", (2, 64, 32)), b.input("V", (2, 64, 32))
    if place == "keys":
        program = b.build(O=b.attention(q, b.op("repeat", k, axis=0, times=3), b.op("repeat", v, axis=0, times=3)))
    elif place == "middle":  # heads behind the sequence, as models have them
        kk, vv = (b.op("repeat", x.transpose(1, 0, 2), axis=1, times=3).transpose(1, 0, 2) for x in (k, v))
        program = b.build(O=b.attention(q, kk, vv))
    else:  # one query head read by several key heads
        program = b.build(O=b.attention(b.op("repeat", k, axis=0, times=3), q, q))
    graphs = (fuse(program), *structures(program))
    for graph in graphs:
        assert isinstance(verdict := verify(program, graph, rounds=1), Accepted), f"{verdict}\n{graph}"
    # the heads of np.tile, not those of np.repeat
    b = Builder("tiled")
    q, k, v = b.input("Q", (6, 16, 32)), b.input("K", (2, 64, 32)), b.input("V", (2, 64, 32))
    tiled = [b.op("repeat", x.reshape(1, *x.shape), axis=0, times=3).reshape(6, 64, 32) for x in (k, v)]
    if place == "keys":
        assert not verify(program, fuse(b.build(O=b.attention(q, tiled[0], tiled[1]))), rounds=1).accepted


@pytest.mark.parametrize("more", ["O", "X"])
def test_outputs_beyond_those_of_the_program_are_refused(more: str) -> None:
    b = Builder("p")
    program = b.build(O=b.relu(b.input("X", (8, 8))))
    graph = fuse(program)
    assert verify(program, graph).accepted
    assert isinstance(verify(program, replace(graph, outputs=("O", more))), Rejected)


@pytest.mark.parametrize(("op", "expected"), [("softmax", Accepted), ("relu", Rejected)])
def test_an_input_that_only_the_graph_reads_must_cancel(op: str, expected: type) -> None:
    """softmax(x + c) is softmax(x), and relu(x + c) is not relu(x)."""

    def program(shifted: bool) -> TensorProgram:
        b = Builder("rows")
        x, c = b.input("x", (64, 64)), b.input("c", (64, 1))
        y = x + c if shifted else x
        return b.build(Y=b.softmax(y) if op == "softmax" else b.relu(y))

    assert isinstance(verify(program(False), structures(program(True))[0]), expected)
