"""The generator: complete under its pruning, indifferent to names and sizes, anytime, the same with one process or two."""

from __future__ import annotations

import itertools
import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import UnsupportedError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import rename
from fuser.superopt import search as searching
from fuser.superopt.expressions.abstraction import abstract
from fuser.superopt.expressions.normal_form import NF
from fuser.superopt.expressions.normal_form import var
from fuser.superopt.expressions.question import Target
from fuser.superopt.generate.extract import op_graphs
from fuser.superopt.generate.fingerprint import Instance
from fuser.superopt.generate.generator import Limits
from fuser.superopt.generate.generator import Report
from fuser.superopt.generate.generator import generate
from fuser.superopt.generate.partition import partition
from fuser.superopt.generate.program_axes import as_block
from fuser.superopt.generate.program_axes import internal_values
from fuser.superopt.generate.signature import signature
from fuser.superopt.generate.thread_fusion import thread_graphs
from fuser.superopt.generate.values import ValueSpace
from fuser.superopt.rewrite.stabilize import stabilize_graph
from fuser.superopt.search import superoptimize
from fuser.superopt.search import superoptimize_pieces
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verifier import verify
from fuser.workloads import workload


def signatures(program: TensorProgram, count: int = 40, limits: Limits | None = None) -> list[str]:
    return [signature(c.graph).text for c in itertools.islice(generate(program, limits), count)]


def small(kind: str) -> TensorProgram:
    b = Builder(kind)
    x, w = b.input("X", (8, 16)), b.input("W", (16, 32))
    if kind == "distribute":
        return b.build(Y=(x + b.input("Z", (8, 16))) @ w)
    if kind == "scaled":
        return b.build(Y=(x * b.input("G", (16,))) @ w)
    if kind == "divided":
        return b.build(Y=(x / b.sum(b.op("square", x), -1, keepdims=True)) @ w)
    return b.build(Y=(x @ w) @ b.input("V", (32, 24)))


def grown(program: TensorProgram, max_ops: int, expressions: bool) -> ValueSpace:
    _, block, internal = as_block(program)
    space = ValueSpace(block, internal, max_ops, expressions=expressions)
    for _ in space.grow():
        pass
    assert space.complete
    return space


def texts(space: ValueSpace, target: Target | None = None) -> set[str]:
    """Operator graphs as texts; with a target only those whose every value has a form that plain abstract expressions keep."""
    found = set()
    for graph in op_graphs(space, limit=10**6):
        text: dict[int, str] = {v.number: v.name for v in space.values if v.load}
        form: dict[int, NF] = {v.number: var(v.load.access) for v in space.values if v.load}
        for n, d in graph.steps:
            args = [text[a] for a in d.args]
            text[n] = f"{d.op}/{','.join(d.reduce)}({', '.join(sorted(args) if d.op in ('add', 'mul', 'matmul') else args)})"
            form[n] = abstract(d.op, [form[a] for a in d.args], d.reduce, dict(d.attrs))
        if target is None or all(target.keeps(form[n]) for n, _ in graph.steps):
            found.add(" ; ".join(text[n] for _, n in graph.outputs))
    return found


@pytest.mark.parametrize("kind", ["distribute", "scaled", "divided", "chain"])
def test_pruning_by_axes_drops_no_graph_that_abstract_expressions_keep(kind: str) -> None:
    program, most = small(kind), 4 if kind == "divided" else 3
    pruned, everything = grown(program, most, True), grown(program, most, False)
    target = Target(*pruned.target.outputs)
    assert texts(everything, target) <= texts(pruned)
    assert pruned.counts.values < everything.counts.values


def test_algebra_by_construction() -> None:
    found = "\n".join(signatures(small("distribute")))
    assert "matmul/k(W[k,n], add(X[m,k], Z[m,k]))" in found
    assert "add(matmul/k(W[k,n], X[m,k]), matmul/k(W[k,n], Z[m,k]))" in found
    assert "div(matmul/k(W[k,n], X[m,k]), sum/k(square(X[m,k])))" in "\n".join(signatures(small("divided")))


@pytest.mark.parametrize("name", ["mirage/rmsnorm", "mirage/lora", "mcfuser/S1"])
def test_sizes_change_nothing(name: str) -> None:
    plain = workload(name)
    if name.startswith("mirage"):
        other = workload(name, rows=24, D=96)
    else:
        other = workload(name, M=48, N=112, K=16, H=24)
    assert signatures(plain) == signatures(other)


def test_names_change_nothing() -> None:
    program = workload("mirage/gqa-spec")
    new = {"Q": "zeta", "K": "alpha", "V": "t0", "O": "Q"}
    old = {v: k for k, v in new.items()}

    def parts(text: str) -> list[str]:
        """What the signature says, without regard to the order of commuted operands."""
        return sorted(re.findall(r"[\w%]+", text))

    back = [parts(re.sub(r"\b(zeta|alpha|t0|Q)\b", lambda m: old[m[0]], s)) for s in signatures(rename(program, new, "other"))]
    assert back == [parts(s) for s in signatures(program)]


def test_several_outputs_share_what_they_can() -> None:
    b = Builder("two")
    x, g, w = b.input("X", (64, 32)), b.input("G", (32,)), b.input("W", (32, 48))
    y = b.rms_norm(x, g)
    result = superoptimize(b.build(Y=y, Z=y @ w), most=12)
    assert len(result.structures) == 12
    assert all(set(f.graph.outputs) == {"Y", "Z"} for f in result.structures)


def test_one_process_or_two_give_the_same() -> None:
    program = workload("mirage/rmsnorm")
    runs = [superoptimize(program, processes=p, most=12) for p in (1, 2)]
    one, two = ([(f.graph.stable_hash(), f.cost, str(f.verdict)) for f in r.structures] for r in runs)
    assert one == two
    assert len(one) == 12
    assert not runs[0].rejected


REAL_CHECK = searching.check


def check_or_die(program: TensorProgram, graph: KernelGraph, seed: int, index: int, rounds: int) -> searching.Outcome:
    if index == 3:
        os._exit(3)
    return REAL_CHECK(program, graph, seed, index, rounds)


def test_a_candidate_of_which_a_verifying_process_dies_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    program = workload("mirage/rmsnorm")
    every = superoptimize(program, processes=1, most=12)
    monkeypatch.setattr(searching, "check", check_or_die)
    found = superoptimize(program, processes=2, most=11)
    assert [why for _, why in found.unknown] == ["not decided: a process died of check_or_die: exit code 3"]
    assert {f.graph for f in found.structures} < {f.graph for f in every.structures}


def test_the_search_says_why_it_stopped() -> None:
    program = workload("mirage/rmsnorm")
    report = Report()
    whole = list(generate(program, report=report))
    assert report.stopped == "exhausted"
    assert report.kernel_graphs == len(whole) > 20
    assert report.counts.tried > report.counts.pruned > report.counts.evaluated
    cut = Report()
    few = list(generate(program, Limits(budget=0.0), cut))
    assert cut.stopped == "budget"
    assert few, "the program's own structure is there even without time"
    assert superoptimize(program, most=3).stopped == "the first 3 structures"
    assert superoptimize(program, until=lambda f: True).stopped == "found"


def test_composites_count_as_one_operator() -> None:
    program = workload("mirage/qknorm")
    inside = internal_values(program)
    _, block, _ = as_block(program)
    assert sum(s.value not in inside for s in block.computes) == 3  # two norms and an attention


def test_kernels_stay_within_their_number_of_operators() -> None:
    b = Builder("long")
    x, w = b.input("X", (32, 64)), b.input("W", (64, 64))
    y = x
    for _ in range(3):
        y = b.relu(y @ w.transpose(1, 0)) if _ else b.relu(y @ w)
    limits = Limits(block_ops=2)
    for c in itertools.islice(generate(b.build(Y=y), limits), 30):
        assert all(len(k.computes) <= 2 + 1 for k in c.graph.blocks)  # and the sum of a split before


def test_a_tensor_read_along_two_axes() -> None:
    b = Builder("gram")
    x = b.input("X", (24, 16))
    result = superoptimize(b.build(Y=x @ x.T))
    assert result.structures
    assert not result.rejected


def programs() -> st.SearchStrategy[TensorProgram]:
    def make(steps: list[int]) -> TensorProgram:
        b = Builder("random")
        x: Ref = b.input("X", (12, 16))
        for i, step in enumerate(steps):
            if step == 0:
                x = x @ b.input(f"W{i}", (x.shape[-1], 20 + i))
            elif step == 1:
                x = x * b.input(f"G{i}", (x.shape[-1],))
            elif step == 2:
                x = x / b.sum(b.op("square", x), -1, keepdims=True)
            elif step == 3:
                x = b.relu(x)
            elif step == 4:
                x = b.softmax(x)
            else:
                x = x + b.input(f"Z{i}", x.shape)
        return b.build(Y=x)

    return st.lists(st.integers(0, 5), min_size=1, max_size=4).map(make)


@settings(max_examples=9, deadline=None)
@given(program=programs())
def test_every_candidate_of_a_random_program_verifies(program: TensorProgram) -> None:
    if len(partition(program)) > 1:
        return  # an exponential of an exponential has no value in the verifier's fields
    for c in itertools.islice(generate(program, Limits(block_ops=5, budget=5)), 4):
        graph = stabilize_graph(c.graph)
        verdict = verify(program, graph, rounds=1, float_rounds=0)
        assert isinstance(verdict, Accepted), f"{verdict}\n{program}\n{graph}"


def test_fingerprints_tell_functions_apart() -> None:
    at = Instance(("m", "k"), np.random.default_rng(0))
    x, g = at.draw(("m", "k")), at.draw(("k",))
    product = at.apply("mul", [x, g])
    assert product is not None
    assert np.array_equal(at.apply("matmul", [x, g], ("k",)), at.apply("sum", [product], ("k",)))  # type: ignore[arg-type]
    assert not np.array_equal(at.function("exp", [x]), at.function("relu", [x]))
    ratio = at.apply("div", [product, g])
    assert ratio is not None
    assert np.array_equal(ratio, x)
    assert at.apply("div", [x, x - x]) is None


def test_partition_cuts_at_a_second_exponential_and_at_copies() -> None:
    b = Builder("net")
    q, k, v = (b.input(n, (4, 16, 8)) for n in "QKV")
    x = b.attention(q, k, v)
    y = b.attention(x, k, v)
    pieces = partition(b.build(Y=y))
    assert [p.program.outputs for p in pieces] == [(x.name,), ("Y",)]
    assert all(p.lax for p in pieces)
    (first, *_) = partition(workload("graphene/mlp20"))
    assert not first.lax
    assert "slice" in first.why
    with pytest.raises(UnsupportedError, match="not one LAX subprogram"):
        superoptimize(workload("graphene/mlp20"))


def test_pieces_are_searched_one_by_one() -> None:
    b = Builder("halves")
    x, w, z = b.input("X", (16, 32)), b.input("W", (32, 16)), b.input("Z", (16, 16))
    pieces = superoptimize_pieces(b.build(Y=b.op("concat", b.relu(x @ w), z, axis=0)), most=4)
    assert [r is None for _, r in pieces] == [False, True]
    assert pieces[0][1] is not None
    assert pieces[0][1].structures


def test_a_program_with_slices_is_one_piece_that_reads_windows() -> None:
    b = Builder("joint")
    x, w = b.input("X", (16, 32)), b.input("W", (32, 48))
    gate, up = (b.op("slice", x @ w, axis=1, start=i, stop=i + 24) for i in (0, 24))
    program = b.build(Y=b.silu(gate) * up)
    ((piece, result),) = superoptimize_pieces(program, most=4)
    assert piece.program == program
    assert result is not None
    assert result.structures
    for found in result.structures:
        windows = {s.access.window.starts for k in found.graph.blocks for s in k.loads if s.access and s.access.window}
        assert windows == {(0, 0), (0, 24)}
        assert found.graph.inputs == ("X", "W")
        assert verify(program, found.graph).accepted


def test_element_wise_chains_become_thread_graphs() -> None:
    (block,) = next(iter(generate(workload("mirage/rmsnorm")))).graph.blocks
    threads = thread_graphs(block)
    assert [[s.op for s in t.stmts] for t in threads if len(t.stmts) > 1] == [["scale", "shift", "sqrt"], ["div", "mul"]]
    assert sum(len(t.stmts) for t in threads) == sum(not s.folds for s in block.computes)


def test_thread_graphs_do_not_reach_across_a_fold() -> None:
    b = Builder("softmax")
    x = b.input("X", (8, 16))
    _, block, _ = as_block(b.build(Y=b.softmax(x)))
    # exp and div have the same axes, but the sum stands between them
    assert [[s.op for s in t.stmts] for t in thread_graphs(block)] == [["exp"], ["div"]]
