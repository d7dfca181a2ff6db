"""Structures that need no search: what is cut, what is split, and that all of them compute the program."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.features import evaluate
from cost_model.features import schedule_features
from cost_model.shared_memory import alive
from cost_model.shared_memory import equation1
from fuser.device import load_device
from fuser.errors import UnsupportedError
from fuser.interpret.reference import interpret
from fuser.ir.builder import Builder
from fuser.ir.composites import expand
from fuser.ir.mugraph import FREE
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.check import check
from fuser.superopt.rewrite.stabilize import unstable
from fuser.superopt.structures import EVERY_CUT
from fuser.superopt.structures import MAX_CUTS
from fuser.superopt.structures import cut_points
from fuser.superopt.structures import cut_sets
from fuser.superopt.structures import structures
from fuser.workloads import workload
from search.space.prune import expressions
from search.space.prune import tile_sets
from search.tune import rank_graph
from search.tune import tune_fast
from tests.builders import attention
from tests.builders import chain
from tests.builders import lora


def mixed() -> TensorProgram:
    """Attention as mixed precision has it: the softmax in float32, between products in float16."""
    b = Builder("mixed")
    q, k, v = b.input("Q", (2, 16, 8)), b.input("K", (2, 24, 8)), b.input("V", (2, 24, 8))
    p = b.softmax(b.op("cast", (q @ k.T) * 0.25, dtype="float32"))
    return b.build(O=b.op("cast", p, dtype="float16") @ v)


def decoding(keys: tuple[int, ...] = (24, 1)) -> TensorProgram:
    """Attention over keys and values in several tensors: a cache, and new rows."""
    b = Builder("decoding")
    q = b.input("Q", (2, 3, 8))
    k, v = (b.op("concat", *(b.input(f"{x}{i}", (2, n, 8)) for i, n in enumerate(keys)), axis=1) for x in "KV")
    return b.build(O=b.attention(q, k, v))


def normed(keep: bool = True) -> TensorProgram:
    """Rows of a long product with a residual, and (beside them, where they are kept) their normalization."""
    b = Builder("normed")
    rows = b.input("X", (6, 2048)) @ b.input("W", (2048, 8)) + b.input("R", (6, 8))
    norm = b.op("layer_norm", rows, b.input("G", (8,)), b.input("B", (8,)), eps=1e-5)
    return b.build(Y=rows, N=norm) if keep else b.build(N=norm)


@pytest.mark.parametrize(
    "program",
    [
        *(chain(32, 48, 16, 8), chain(32, 48, 16, 8, "relu", bias=True), attention(16, 24, 8, 8), mixed(), lora(16, 32, 24, 4)),
        *(decoding(), decoding((24, 2)), decoding((11, 24, 1)), normed()),
    ],
    ids=lambda p: p.name,
)
def test_every_structure_computes_the_program(program, rng):
    inputs = program.random_inputs(rng)
    expected = program.evaluate(inputs)
    graphs = structures(program)
    assert len(graphs) >= 2
    for graph in graphs:
        free = [tuple((a.name, 3) for a in block.axes if a.extent == FREE) for block in graph.blocks]
        schedule = Schedule(
            tuple(
                KernelSchedule(splits=f, tiles=tuple((a, 5) for a, _ in b.splits))
                for b, f in zip(graph.blocks, free, strict=True)
            )
        )
        found = interpret(graph, schedule, inputs)
        for name in program.outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-8)


def test_the_kernel_that_adds_parts_normalizes_rows_that_others_read_too():
    def splits(program):
        return [g for g in structures(program) if [bool(b.splits) for b in g.blocks] == [True, False]]

    (split,) = splits(normed())
    assert split.blocks[1].outputs == ("Y", "N")
    assert len(splits(normed(keep=False))) == 1  # as cut behind the product, once


def test_a_chain_is_fused_cut_and_split():
    shapes = [[(bool(b.splits), len(b.stmts)) for b in g.blocks] for g in structures(chain(32, 48, 16, 8))]
    assert [len(s) for s in shapes] == [1, 2, 2, 3, 2, 3]
    assert shapes[0] == [(False, 6)]
    assert shapes[1][0][0]  # the sum over n split over the grid, and a kernel that adds the parts


@pytest.mark.parametrize("largest", ["Q", "K0", "K1"])
def test_keys_in_several_tensors_share_a_maximum_and_are_split(largest, rng):
    program = decoding()
    found = structures(program)
    assert not any(map(unstable, found))
    split = next(g for g in found if [b.splits[:1] for b in g.blocks] == [(("n", "n_part"),), ()])
    inputs = {n: x.astype(np.float64) * (300.0 if n == largest else 1.0) for n, x in program.random_inputs(rng).items()}
    parts = (("n_part", 3),)
    schedule = Schedule((KernelSchedule((("n", 4),), TilingExpr(("n",)), parts), KernelSchedule(splits=parts)))
    got = interpret(split, schedule, inputs)["O"]
    keys, values = (np.concatenate([inputs[f"{x}0"], inputs[f"{x}1"]], 1) for x in "KV")
    scores = inputs["Q"] @ keys.swapaxes(1, 2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got, weights @ values / weights.sum(-1, keepdims=True), rtol=1e-6, atol=1e-9)


def test_keys_in_several_tensors_may_all_be_masked(rng):
    b = Builder("masked")
    q, m = b.input("Q", (2, 3, 8)), b.input("M", (3, 25))
    k, v = (b.op("concat", b.input(f"{x}0", (2, 24, 8)), b.input(f"{x}1", (2, 1, 8)), axis=1) for x in "KV")
    program = b.build(O=b.attention(q, k, v, m))
    inputs = {n: x.astype(np.float64) for n, x in program.random_inputs(rng).items()} | {"M": np.zeros((3, 25))}
    inputs["M"][0], inputs["M"][1, :24], inputs["M"][2, 24] = -np.inf, -np.inf, -np.inf
    expected = program.evaluate(inputs)["O"]
    assert not expected[:, 0].any()
    for graph in structures(program):
        schedule = Schedule(
            tuple(
                KernelSchedule(tuple((a, 5) for a, _ in k.splits), splits=tuple((a.name, 3) for a in k.axes if a.extent == FREE))
                for k in graph.blocks
            )
        )
        np.testing.assert_allclose(interpret(graph, schedule, inputs)["O"], expected, atol=1e-12)


def test_cuts_stand_behind_the_element_wise_operators_of_a_contraction():
    assert cut_points(chain(32, 48, 16, 8, "relu")) == ("relu_1",)
    assert cut_points(chain(32, 48, 16, 8)) == ("matmul_0",)


def test_a_product_with_several_readers_is_kept_where_a_reader_is_split():
    b = Builder("several")
    h = b.input("X", (32, 32)) @ b.input("W", (32, 32))
    program = b.build(O=b.exp(h), P=b.sum(h, 1), R=b.op("max", h, axis=(1,)))
    assert any(g.blocks[0].splits for g in structures(program))


def test_what_no_kernel_can_do_is_refused_by_name():
    b = Builder("cat")
    x = b.input("X", (4, 4))
    with pytest.raises(UnsupportedError, match="concat"):
        structures(b.build(Y=b.op("concat", x, x, axis=0) @ x))


def test_a_deep_chain_is_cut_into_equal_parts():
    spots = [str(i) for i in range(19)]
    sets = cut_sets(spots)
    assert sets[0] == ()
    assert [len(c) + 1 for c in sets] == [1, 2, 3, 4, 8, 16, 20]
    assert sets[1] == ("9",)
    assert sets[3] == ("4", "9", "14")
    few = cut_sets(spots[:EVERY_CUT])
    assert len(set(few)) == len(few)
    assert max(map(len, few)) == MAX_CUTS


def test_twenty_layers_are_one_kernel_whose_layers_stay_whole():
    found = structures(workload("graphene/mlp20"))
    assert [len(g.kernels) for g in found] == [1, 2, 3, 4, 8, 16, 20]
    (block,) = found[0].blocks
    assert expressions(block)[0][0].axes == ()
    sizes = {t.axis: t.values for t in tile_sets(block)}
    assert all(v == (128,) for a, v in sizes.items() if a in block.reduced)
    assert len(sizes["m"]) > 4
    ranked, estimates, _ = rank_graph(found[0], load_device("h200"), np.random.default_rng(0))
    assert 0 < ranked[0].seconds < 1e-4
    assert estimates < 1000


def test_of_a_deep_chain_rule_4_counts_what_is_alive_at_once():
    """A layer's tile of X (64 x 128 in fp16), its weight and its result, not those of all layers."""
    (block,) = structures(workload("graphene/mlp20", layers=8))[0].blocks
    f = schedule_features(block, KernelSchedule((("m", 64),)))
    layer = 2 * (64 * 128 + 128 * 128 + 64 * 128)
    assert layer <= alive(f)[0] <= layer + 2 * 128
    assert equation1(f)[0] > 6 * layer
    assert evaluate((f,), alive)[0] == alive(f)[0]


def test_a_cut_that_leaves_a_result_between_kernels_is_no_structure() -> None:
    """Softmax whose view both kernels read: only the product is stored."""
    b = Builder("both")
    x, w = b.input("X", (2, 5, 8)), b.input("W", (8, 4))
    s = b.op("reshape", b.op("softmax", b.op("reshape", x @ w, shape=(10, 4)), axis=1), shape=(2, 5, 4))
    product, total = b.op("transpose", s, perm=(0, 2, 1)) @ x, b.op("sum", s, axis=(1,), keepdims=True)
    program = b.build(Y=b.op("transpose", product, perm=(0, 2, 1)) * total)
    for graph in structures(program):
        graph.validate()


def test_a_result_that_is_summed_as_well_need_not_be_summed_where_it_is_made() -> None:
    b = Builder("sums")
    y = b.input("X", (128, 256)) @ b.input("W", (256, 2176)) + b.input("b", (2176,))
    program = b.build(Y=y, S=b.sum(y, 1))
    inputs = program.random_inputs(np.random.default_rng(0))
    apart = [g for g in structures(program) if "Y" in g.blocks[-1].inputs]
    chosen = tune_fast(program, load_device("h200"), graphs=apart).winner.candidate
    assert tune_fast(program, load_device("h200")).winner.candidate.graph in apart  # no tile is as wide as the rows
    found = interpret(chosen.graph, chosen.schedule, inputs)
    for name, value in program.evaluate(inputs).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-8)


def test_what_one_kernel_gives_and_reads_again_in_groups_has_the_same_axes_in_both() -> None:
    """Rows of a product that leave with sums over groups of their columns: of axes merged otherwise in each kernel no check could
    find sizes, so that the structure was thrown away."""
    b = Builder("grouped")
    y = b.input("X", (2, 64, 64)) @ b.input("W", (64, 256)) + b.input("C", (256,))
    groups = b.op("sum", b.op("cast", y.reshape(2, 64, 2, 128), dtype="float32"), axis=(3,))
    program = b.build(Y=y, S=groups)
    device = load_device("h200")
    split = [g for g in structures(program) if len(g.blocks) == 2 and g.blocks[0].outputs == ("Y",)]
    assert split, "the product is cut from the sums"
    jobs = [(program, tune_fast(program, device, graphs=[g]).winner.candidate) for g in split]
    assert [outcome.message for outcome in check(jobs)] == [""] * len(jobs)


def test_cuts_of_many_residual_blocks_are_found_in_one_walk() -> None:
    """There are 2 ** 40 ways from the last block to the input."""
    b = Builder("residual")
    x = b.input("X", (8, 8))
    for _ in range(40):
        x = x + b.rms_norm(x)
    program = expand(b.build(Y=x @ b.input("W", (8, 8))))
    assert cut_points(program)[:1] == (program.producers["Y"].inputs[0],)
