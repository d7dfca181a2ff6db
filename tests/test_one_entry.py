"""An operator is one entry: what a test adds to the table goes through everything, from the builder to both importers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fuser
from fuser.device import load_device
from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.frontends import operators
from fuser.interpret.reference import interpret
from fuser.ir import ops
from fuser.ir.axes import axes_of
from fuser.ir.builder import Builder
from fuser.ir.fuse import fuse
from fuser.ir.mugraph import BlockGraph
from fuser.ir.opdef import OpDef
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower.check import run_graph
from fuser.lower.compile import compile_kernel
from fuser.lower.triton_source import generate_graph
from fuser.runtime.library import bind_library
from fuser.runtime.torch_program import apply
from fuser.runtime.torch_program import reference
from fuser.superopt.generate.generator import Limits
from fuser.superopt.generate.generator import generate
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Verified
from fuser.superopt.verify.verifier import verify
from search.regions import find_chains
from tests.tvm_bridge.relay_writer import RelayWriter
from tvm_bridge.to_program.relay_import import from_json_text
from tvm_bridge.to_program.relay_import import to_program

ENTRIES = {
    "function": OpDef("soft", "map", 1, lambda x, **_: np.logaddexp(0, x), triton="tl.log(1.0 + tl.exp({0}))", sfu=2.0,
                      torch=("softplus",), relay=("soft",), eager="nn.functional.softplus"),
    "formula": OpDef("soft", "map", 1, formula=lambda x: (x.then("exp") + 1).then("log"), torch=("softplus",), relay=("soft",)),
    "numbers": OpDef("soft", "map", 1, formula=lambda x, beta: ((x * beta).then("exp") + 1).then("log") * beta.inverse(),
                     attrs=("beta",), torch=("softplus",), relay=("soft beta:steepness",)),
}  # fmt: skip


@pytest.fixture(params=sorted(ENTRIES))
def entry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpDef:
    monkeypatch.delitem(ops.OPS, "softplus")
    monkeypatch.setitem(ops.OPS, "soft", ENTRIES[request.param])
    return ENTRIES[request.param]


def attrs_of(entry: OpDef) -> dict[str, Any]:
    return dict.fromkeys(entry.attrs, 1.0)


def chain(entry: OpDef) -> TensorProgram:
    b = Builder("chain")
    x, w, v = b.input("X", (32, 48)), b.input("W", (48, 40)), b.input("V", (40, 32))
    return b.build(Y=b.op("soft", x @ w, **attrs_of(entry)) @ v)


def soft(p: TensorProgram, x: dict[str, np.ndarray]) -> np.ndarray:
    a, w, v = (x[n].astype(np.float64) for n in p.inputs)
    return np.logaddexp(0, a @ w) @ v


def test_program_axes_and_interpreter(entry: OpDef) -> None:
    p = chain(entry)
    assert TensorProgram.from_json(p.to_json()) == p
    inputs = p.random_inputs(np.random.default_rng(0), 0.3)
    np.testing.assert_allclose(p.evaluate(inputs)["Y"], soft(p, inputs), rtol=1e-9)
    assert axes_of(p).values[p.nodes[1].output] == axes_of(p).values[p.nodes[0].output]
    tiles = Schedule((KernelSchedule(tuple((a, 16) for a in fuse(p).blocks[0].spatial)),))
    np.testing.assert_allclose(interpret(fuse(p), tiles, inputs)["Y"], soft(p, inputs), rtol=1e-9)


def test_verification_and_search(entry: OpDef) -> None:
    p = chain(entry)
    assert isinstance(verify(p, fuse(p)), Verified)
    other = chain(entry)
    wrong = fuse(replace(other, nodes=(other.nodes[0], replace(other.nodes[1], op="tanh", attrs=()), other.nodes[2])))
    assert not isinstance(verify(p, wrong), Verified)
    b = Builder("scaled")
    x, c = b.input("X", (32, 48)), b.input("C", (32, 1))
    p = b.build(Y=b.sum(b.op("soft", x, **attrs_of(entry)) / c, 1))
    found = list(itertools.islice(generate(p, Limits(block_ops=4, budget=10)), 4))
    assert len(found) > 1  # the division may stand behind the sum
    assert all(isinstance(verify(p, c.graph), Verified) for c in found)


def test_regions_and_generated_kernels(entry: OpDef) -> None:
    p = chain(entry)
    (region,) = find_chains(p, load_device("h200"))[0]
    assert [n.op for n in region.program.nodes] == ["matmul", "soft", "matmul"]
    graph = one_kernel(p)
    tiles = Schedule((KernelSchedule(tuple((a, 16) for a in graph.blocks[0].spatial)),))
    inputs = p.random_inputs(np.random.default_rng(0), 0.3)
    np.testing.assert_allclose(run_graph(graph, tiles, inputs)["Y"], soft(p, inputs), rtol=2e-2, atol=2e-2)
    (source,) = generate_graph(graph, tiles)
    assert ".target sm_90" in compile_kernel(source, 90).ptx


def test_torch_executes_and_imports_it(entry: OpDef) -> None:
    x = torch.randn(5, 7)
    wanted = functional.softplus(x)
    torch.testing.assert_close(apply("soft", [x], attrs_of(entry)), wanted)
    out = torch.empty_like(x)
    bind_library("soft", attrs_of(entry), [x], out)()
    torch.testing.assert_close(out, wanted)
    found = fuser.from_torch(nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 4)), (torch.randn(3, 8),))
    assert "soft" in [n.op for n in found.program.nodes]
    assert "opaque" not in [n.op for n in found.program.nodes]
    p = chain(entry)
    inputs = {n: torch.from_numpy(v) for n, v in p.random_inputs(np.random.default_rng(0), 0.3).items()}
    np.testing.assert_allclose(reference(p, inputs)["Y"].numpy(), soft(p, {n: v.numpy() for n, v in inputs.items()}), rtol=1e-6)


def test_relay_imports_it(entry: OpDef) -> None:
    w = RelayWriter()
    x = w.input("x", (3, 8))
    names: dict[str, Any] = {"steepness": 1.0} if entry.attrs else {}
    y = w.call("soft", w.call("nn.dense", x, w.const(np.eye(8))), **names)
    imported = to_program(from_json_text(w.module(y)))
    assert "opaque" not in {n.op for n in imported.program.nodes}
    given = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    for (found,) in (imported.evaluate({"x": given}).values(), imported.model.evaluate({"x": given})):
        np.testing.assert_allclose(found, np.logaddexp(0, given), rtol=1e-5)


def test_the_document_is_current() -> None:
    written, made = operators.PATH.read_text(encoding="utf-8"), operators.document()
    if f"in torch {torch.__version__.split('+')[0]}," not in written:  # another torch has other core operators
        written, made = (text.partition(operators.CORE)[0] for text in (written, made))
    assert written == made, "run python -m fuser.frontends.operators"


def test_what_is_missing_is_said_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops.OPS, "bare", OpDef("bare", "map", 1))
    b = Builder("bare")
    p = b.build(Y=b.op("bare", b.input("X", (32, 32))))
    assert isinstance(verify(p, fuse(p), float_rounds=0), Verified)  # a random function for both
    with pytest.raises(UnsupportedError, match="no numpy semantics"):
        p.evaluate({"X": np.ones((32, 32))})
    block = fuse(p).blocks[0]
    assert isinstance(block, BlockGraph)
    with pytest.raises(UnsupportedError, match="no Triton form"):
        generate_graph(fuse(p), Schedule((KernelSchedule(tuple((a, 16) for a in block.spatial)),)))
    with pytest.raises(UnsupportedError, match="no torch form"):
        apply("bare", [torch.ones(2)], {})
    monkeypatch.setitem(ops.OPS, "shapeless", OpDef("shapeless", "composite", 1))
    with pytest.raises(ProgramError, match="no shape rule"):
        b.op("shapeless", b.input("Z", (2,)))


HYPOT = OpDef("long_side", "map", 2, formula=lambda x, y: (x.then("square") + y.then("square")).then("sqrt"), commutative=True,
              torch=("hypot",), relay=("long_side",))  # fmt: skip
LEAST = OpDef("least", "reduce", 1, lambda x, *, axis, keepdims=False, **_: np.min(x, axis=tuple(axis), keepdims=keepdims),
              degree="same", identity=float("inf"), combine="minimum", attrs=("axis", "keepdims"), fraction="chosen",
              torch=("amin",), relay=("min",), eager="amin axis:dim keepdims:keepdim")  # fmt: skip
OTHERS = {
    "two operands": (HYPOT, "hypot", lambda b, x, c: b.op("long_side", x, c), np.hypot),
    "fold": (LEAST, "min", lambda b, x, c: x - b.op("least", x, axis=(1,), keepdims=True) * c,
             lambda x, c: x - x.min(1, keepdims=True) * c),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_entries_of_other_kinds_go_all_the_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, replaced, make, exact = OTHERS[kind]
    monkeypatch.delitem(ops.OPS, replaced, raising=False)
    monkeypatch.setitem(ops.OPS, entry.name, entry)
    b = Builder("other")
    x, c = b.input("X", (32, 50)), b.input("C", (32, 1))
    p = b.build(Y=make(b, x, c))
    assert TensorProgram.from_json(p.to_json()) == p
    inputs = p.random_inputs(np.random.default_rng(0), 0.3)
    wanted = exact(*(inputs[n].astype(np.float64) for n in "XC"))
    np.testing.assert_allclose(p.evaluate(inputs)["Y"], wanted, rtol=1e-9)
    graph = fuse(p)
    assert isinstance(verify(p, graph), Accepted)
    wrong = replace(p, nodes=tuple(replace(n, op={"least": "max", "long_side": "add"}.get(n.op, n.op)) for n in p.nodes))
    assert not isinstance(verify(p, fuse(wrong)), Accepted)
    whole = KernelSchedule((("m", 16),))
    for mine in (whole, replace(whole, tiles=(("m", 16), ("n", 16)), order=TilingExpr(tuple(graph.blocks[0].reduced)))):
        np.testing.assert_allclose(interpret(graph, Schedule((mine,)), inputs)["Y"], wanted, rtol=1e-9)
        np.testing.assert_allclose(run_graph(graph, Schedule((mine,)), inputs)["Y"], wanted, rtol=2e-3, atol=2e-3)
    (source,) = generate_graph(graph, Schedule((whole,)))
    assert ".target sm_90" in compile_kernel(source, 90).ptx
    assert all(isinstance(verify(p, c.graph), Accepted) for c in itertools.islice(generate(p, Limits(block_ops=4, budget=10)), 2))
    given = {n: torch.from_numpy(v) for n, v in inputs.items()}
    np.testing.assert_allclose(reference(p, given)["Y"].numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(OTHERS))
def test_entries_of_other_kinds_are_imported(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, replaced, _, _ = OTHERS[kind]
    monkeypatch.delitem(ops.OPS, replaced, raising=False)
    monkeypatch.setitem(ops.OPS, entry.name, entry)

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.hypot(x, x + 1) if entry is HYPOT else x.amin(1)

    found = fuser.from_torch(Module(), (torch.randn(3, 8),))
    assert [n.op for n in found.program.nodes][-1] == entry.name
    w = RelayWriter()
    x = w.input("x", (3, 8))
    y = w.call("long_side", x, x) if entry is HYPOT else w.call("min", x, axis=w.ints(1), keepdims=1)
    imported = to_program(from_json_text(w.module(y)))
    assert entry.name in {n.op for n in imported.program.nodes}
    given = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    for (got,) in (imported.evaluate({"x": given}).values(), imported.model.evaluate({"x": given})):
        np.testing.assert_allclose(got, np.hypot(given, given) if entry is HYPOT else given.min(1, keepdims=True), rtol=1e-5)


def test_a_view_is_a_rule_of_its_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    def across(x: Any) -> tuple[Any, ...]:
        return (*x[:-2], x[-1], x[-2])

    entry = OpDef("across", "view", 1, lambda x, **_: np.swapaxes(x, -1, -2), linear=(True,), degree="same", flops=0,
                  fraction="same", shape=lambda shapes, _: across(shapes[0]), dims=lambda _of, xs, *_: across(xs[0]))  # fmt: skip
    monkeypatch.setitem(ops.OPS, "across", entry)
    b = Builder("views")
    x, v = b.input("X", (32, 48)), b.input("V", (40, 48))
    halves = b.op("concat", *(b.op("slice", v, axis=1, start=i, stop=i + 24) for i in (24, 0)), axis=1)
    p = b.build(Y=b.relu(x @ b.op("across", halves)))
    given = {n: a.astype(np.float64) for n, a in p.random_inputs(np.random.default_rng(0), 0.3).items()}
    wanted = np.maximum(given["X"] @ np.roll(given["V"], 24, 1).T, 0)
    np.testing.assert_allclose(p.evaluate(given)["Y"], wanted, rtol=1e-6)
    (graph, *_) = structures(p)
    assert any(s.access and s.access.window for s in graph.blocks[0].loads) and isinstance(verify(p, graph), Accepted)
    tiles = Schedule(
        (KernelSchedule(tuple((a.name, 16) for a in graph.blocks[0].axes if a.name not in graph.blocks[0].reduced)),)
    )
    np.testing.assert_allclose(interpret(graph, tiles, given)["Y"], wanted, rtol=1e-6)
