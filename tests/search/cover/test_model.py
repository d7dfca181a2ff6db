"""Whole models through ``fuser.compile``: parts, one kernel graph, what torch keeps; against the original."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from search.cover.offers import Pricing
from search.cover.offers import best_form
from search.cover.offers import forms

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.device import load_device  # noqa: E402
from fuser.errors import NoValidKernelError  # noqa: E402
from fuser.frontends.torch_export import from_torch  # noqa: E402
from fuser.interpret.reference import interpret  # noqa: E402
from fuser.ir.builder import Builder  # noqa: E402
from fuser.ir.mugraph import BlockGraph  # noqa: E402
from fuser.ir.mugraph import LibraryKernel  # noqa: E402
from fuser.lower import compile as compiling  # noqa: E402
from fuser.lower.compile import KernelArtifact  # noqa: E402
from fuser.lower.compile import compile_sources  # noqa: E402
from fuser.lower.kernel_source import KernelSource  # noqa: E402
from fuser.lower.options import HOIST  # noqa: E402
from search.cover.fold import folded  # noqa: E402
from search.cover.model import AS_IT_STANDS  # noqa: E402
from search.cover.model import compile_model  # noqa: E402
from search.cover.pack import packed  # noqa: E402

WIDTH, HEADS, ROWS = 32, 2, 16


class Layer(torch.nn.Module):
    """A post-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (f(x).view(ROWS, HEADS, -1).transpose(0, 1) for f in (self.q, self.k, self.v))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.first(x + self.o(a.transpose(0, 1).reshape(ROWS, WIDTH)))
        return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Embedded(torch.nn.Module):
    """Layers behind a look-up and in front of an operator that the op table lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, WIDTH)
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, ids: Any) -> Any:
        return torch.cumsum(self.layers(self.table(ids)), -1)


def layers(count: int) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(count))).eval().half()


def error(got: Any, module: Any, *inputs: Any) -> float:
    """Relative to the module in float64."""
    wanted = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs)).detach()
    return float((got.double() - wanted).norm() / wanted.norm())


def test_two_layers_agree_with_the_module() -> None:
    module, x = layers(2), torch.randn(ROWS, WIDTH).half()
    run = fuser.compile(module, (x,), device="cpu")
    assert error(run(x), module, x) < 2e-3
    text = run.explain()
    assert "attention" in text
    assert "chosen by an integer program" in text
    assert max(map(len, text.splitlines()[2:-1])) <= 100


class Step(torch.nn.Module):
    """A decoding step: a normalized row, a cache of keys and values that it is joined to, a product behind a second norm."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.first, self.second = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, keys: Any, values: Any) -> Any:
        h = self.first(x)
        q, k, v = (f(h).view(1, 1, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        x = x + self.o(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.up(self.second(x))


def test_a_decoding_step_copies_no_cache_and_has_no_kernel_for_a_norm() -> None:
    torch.manual_seed(0)
    module = Step().eval().half()
    inputs = (torch.randn(1, 1, WIDTH).half(), *(torch.randn(1, HEADS, 48, WIDTH // HEADS).half() for _ in range(2)))
    run = fuser.compile(module, inputs, device="cpu")
    ops = [{s.op for s in k.computes} if isinstance(k, BlockGraph) else {k.op} for k in run.graph.kernels]
    assert not any("concat" in o for o in ops)
    assert all("matmul" in o for o in ops if "sqrt" in o)
    assert error(run(*inputs), module, *inputs) < 2e-3


class Turned(torch.nn.Module):
    """Attention with rotary embeddings; two heads of queries share one of keys."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(width, n * 32, bias=False) for n in (16, 8, 8))
        angles = torch.outer(torch.arange(rows), 100.0 ** -(torch.arange(16) / 16)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: Any) -> Any:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin

    def forward(self, x: Any) -> Any:
        q, k, v = (f(x).view(*x.shape[:2], -1, 32).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(*x.shape[:2], -1)


@pytest.mark.slow
def test_attention_turns_heads_of_a_packed_product_as_it_loads_them() -> None:
    torch.manual_seed(0)
    module, x = Turned(512, 128).eval().half(), torch.randn(2, 128, 512).half()
    known = from_torch(module, (x,))
    model = compile_model(known.program, known.params, Pricing(load_device("h200")), compiled=False, checked=False)
    first, last = model.whole.candidate.graph.blocks
    assert first.stores[0].access is not None and first.stores[0].access.memory_shape(first.extents)[-1] == 32 * 32
    assert not any("selection" in t for t in (*first.inputs, *last.inputs))
    inputs = {n: x.double().numpy() for n in model.program.inputs if n not in model.params}
    inputs |= {n: v.astype(np.float64) for n, v in model.params.items()}
    (got,) = interpret(model.whole.candidate.graph, model.whole.candidate.schedule, inputs).values()
    assert error(torch.from_numpy(got), module, x) < 1e-6


def test_what_the_table_lacks_is_torchs() -> None:
    torch.manual_seed(0)
    module, ids = Embedded().eval().half(), torch.randint(0, 10, (ROWS,))
    run = fuser.compile(module, (ids,), device="cpu")
    left = [dict(k.attrs).get("callee", k.op) for k in run.graph.kernels if isinstance(k, LibraryKernel)]
    assert left == ["embedding", "cumsum"]
    assert error(run(ids), module, ids) < 2e-3


def test_equal_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what spills with loads in front of its main loop has them behind it."""

    def compiled(*args: Any) -> Any:
        return tuple(replace(a, spills=1544) if "gelu" in a.name else a for a in compile_sources(*args))

    monkeypatch.setattr("search.cover.chain.compile_sources", compiled)
    module, x = layers(3), torch.randn(ROWS, WIDTH).half()
    known = from_torch(module, (x,))
    model = compile_model(known.program, known.params, Pricing(load_device("h200")), checked=False)
    kernels = model.whole.artifacts
    hoisted = {b.name: HOIST.of(mine) for b, mine in model.whole.candidate.candidate.blocks}
    assert {v for name, v in hoisted.items() if "gelu" in name} == {False}
    assert any(hoisted.values())
    assert len(kernels) >= 9
    assert len({a.cubin for a in kernels}) <= len(kernels) // 2 + 3  # the first layer's may be launched otherwise
    assert [a.args[0].name for a in kernels] == [b.inputs[0] for b in model.whole.candidate.graph.blocks]


def test_a_kernel_without_room_for_what_a_chain_asks_of_it_is_as_it_was_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By warp groups registers are counted out: those of the first product of an MLP had no room to bring the weights of the
    second, which that one had asked for, and no model of eight sentences' BERT large was made."""

    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    words = ("bring_l2", "gdc_launch_dependents")

    def refusing(source: KernelSource, *_: Any) -> KernelArtifact:
        if "gelu" in source.text and any(w in source.text for w in words):
            raise NoValidKernelError(f"{source.name} has too few registers")
        return real(source, *_)

    real = compiling.compile_kernel
    for where in ("search.cover.chain", "fuser.lower.compile"):
        monkeypatch.setattr(f"{where}.compile_kernel", refusing)
    module, x = layers(2), torch.randn(ROWS, WIDTH).half()
    known = from_torch(module, (x,))
    model = compile_model(known.program, known.params, Pricing(load_device("h200")), checked=False)
    texts = [a.source.text for a in model.whole.artifacts]
    assert any("gelu" in text for text in texts)
    assert not any("gelu" in text and w in text for text in texts for w in words)
    assert any(w in text for text in texts for w in words), "others do it"


def test_products_of_one_tensor_are_one() -> None:
    module, x = layers(1), torch.randn(ROWS, WIDTH).half()
    known = from_torch(module, (x,))
    program, params = packed(known.program, known.params)
    assert sum(n.op == "matmul" for n in known.program.nodes) - sum(n.op == "matmul" for n in program.nodes) == 2
    values = {known.inputs[0]: x.numpy()}
    before, after = known.program.evaluate(values | dict(known.params)), program.evaluate(values | params)
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=1e-12, atol=1e-12)


def test_products_that_share_weights_and_biases_are_joined(rng: np.random.Generator) -> None:
    """Layers with one set of weights (ALBERT), biases that an exporter stores once, and a parameter named as joined ones are."""
    b = fuser.Builder("shared")
    v, p, q, bias = b.input("a", (4, 8)), b.input("p", (8, 8)), b.input("q", (8, 8)), b.input("bias", (8,))
    y = v @ b.input("p+q", (8, 8))
    for _ in range(2):
        y = b.op("mul", y @ p + bias, y @ q + bias)
    y = b.op("add", b.op("add", y @ p.T + bias, y @ q.T + bias), y)
    program = b.build(Y=y)
    params = {n: rng.standard_normal(program[n].shape) for n in program.inputs[1:]}
    made, joined = packed(program, params)
    assert sum(n.op == "matmul" for n in made.nodes) == 4
    assert len([n for n in made.inputs if "+" in n]) == 4  # of rows, of columns, of biases, and what was so called before
    x = {"a": rng.standard_normal((4, 8))}
    np.testing.assert_allclose(made.evaluate(x | joined)["Y"], program.evaluate(x | params)["Y"], rtol=1e-9)


def test_what_parameters_decide_is_folded() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.g = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4, 1))

        def forward(self, x: Any) -> Any:
            return x @ (torch.exp(self.g) * self.w).T

    known = from_torch(Scaled(), (torch.randn(2, 4),))
    program, params = folded(known.program, dict(known.params))
    assert [n.op for n in program.nodes if n.op != "transpose"] == ["matmul"]
    values = {known.inputs[0]: np.ones((2, 4), np.float32)}
    before, after = known.program.evaluate(values | dict(known.params)), program.evaluate(values | params)
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, rtol=1e-6)


def test_products_of_a_library_are_verified_too() -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(2048, 2048, bias=False) for _ in range(4))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.cumsum(layer(x), -1)
            return x

    known = from_torch(Wide().half(), (torch.randn(512, 2048).half(),))
    model = compile_model(known.program, known.params, Pricing(load_device("h200")), checked=False)
    products = [f for p, f in zip(model.cover.parts, model.found, strict=True) if any(n.op == "matmul" for n in p.program.nodes)]
    assert any(not f.candidate.graph.blocks for f in products)
    assert all(f.verdict is not AS_IT_STANDS for f in products)


def test_whole_numbers_stay_exact_beyond_those_of_float32(rng: np.random.Generator) -> None:
    b = fuser.Builder("whole")
    i, n = b.input("i", (4, 3), "int64"), b.input("n", (4, 3), "int64")
    x = b.input("x", (4, 8))
    moved = b.op("shift", i, scalar=16777217)
    program = b.build(j=moved * n, y=b.op("gather", x, b.op("remainder", i, n), dim=1), e=b.op("eq", i, moved))
    run = fuser.compile(program, target="h200", device="cpu")
    given, by = torch.tensor(rng.integers(2**40, 2**50, (4, 3))), torch.full((4, 3), 8)
    values = torch.tensor(rng.standard_normal((4, 8)), dtype=torch.float16)
    got = run(values, given, by) if run.inputs[0] == "x" else run(given, by, values)
    wanted = {"j": (given + 16777217) * by, "y": values.gather(1, given % by), "e": torch.zeros(4, 3, dtype=torch.bool)}
    assert all(torch.equal(y, wanted[name]) for name, y in zip(program.outputs, got, strict=True))


def test_a_part_that_takes_longer_than_its_price_once_it_is_compiled_is_chosen_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All its candidates that would be as fast spill, say."""
    from search.cover import model as chosen

    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))  # what was chosen so is kept, and taken at once the next time
    real, products = chosen.verified, list[int]()

    def slow(tuned: Any) -> Any:
        made = real(tuned)
        products.append(sum(n.contracts for n in tuned.program.nodes))
        return replace(made, candidate=replace(made.candidate, estimate=1e-3)) if products[-1] > 1 else made

    monkeypatch.setattr(chosen, "verified", slow)
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)), torch.nn.Softmax(-1)).eval().half()
    known = from_torch(module, (torch.randn(4096, 64).half(),))
    price = Pricing(load_device("h200"))
    model = compile_model(known.program, known.params, price, compiled=False, checked=False)
    assert max(products) > 1
    assert all(sum(n.contracts for n in p.program.nodes) == 1 for p in model.cover.parts)


def test_parts_of_the_same_products_are_compiled_with_one_that_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be chosen next, and take longer as well."""
    from search.cover import model as chosen

    b = Builder("two")
    x, w, v = b.input("X", (4096, 64)), b.input("W", (64, 2048)), b.input("V", (2048, 2048))
    program = b.build(Y=b.op("sqrt", b.op("square", b.op("tanh", x @ w))) @ v)
    alone = Pricing(load_device("h200"), libraries=False)
    pricing = replace(alone, executor=Executor())
    offers = best_form(forms(program, {}, alone), alone)
    cover = offers.cheapest
    slow = next(p for p in cover.parts if any(n.products for n in p.program.nodes))
    made: dict[str, Any] = {p.key: SimpleNamespace(candidate=offers.tuned[p].winner) for p in cover.parts}
    made[slow.key] = SimpleNamespace(candidate=replace(offers.tuned[slow].winner, estimate=1.0))
    asked: list[Any] = []

    def compiled(several: Any, *_: Any) -> list[Any]:
        asked.extend(several)
        return [replace(t.winner, estimate=10 * t.winner.estimate) for t in several]

    monkeypatch.setattr(chosen, "compiled_candidates", compiled)
    dearer = chosen._dearer(cover, offers, made)
    found = chosen._and_alike(cover, offers, dearer, made, pricing)
    kin = [p for p in offers.tuned if chosen._products(p) == chosen._products(slow) and p.key not in made]
    kin = [p for p in kin if not chosen._stands(offers.tuned[p])]
    assert kin
    assert len(asked) == len({p.key for p in kin})
    for p, tuned in found.tuned.items():
        times = 10 if p in kin else 1
        assert tuned.winner.seconds == pytest.approx(times * dearer.tuned[p].winner.seconds)
    assert chosen._and_alike(cover, offers, dearer, made, replace(pricing, executor=None)) is dearer
    plain = next(p for p in offers.tuned if not chosen._products(p))
    other = replace(offers, tuned={**offers.tuned, plain: replace(offers.tuned[plain])})
    asked.clear()
    assert chosen._and_alike(replace(cover, parts=(plain,)), offers, other, {}, pricing) is other
    assert not asked, "what multiplies nothing is like nothing"
