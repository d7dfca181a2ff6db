"""PyTorch modules as programs: the same values, the structure that the superoptimizer needs, and errors that name the line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import ProgramError
from fuser.errors import UnsupportedError
from fuser.ir.mugraph import KernelGraph
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from tests.functions import Fn

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, functional = torch.nn, torch.nn.functional


def rand(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def agree(module: Any, *args: Any, tolerance: float = 1e-5) -> fuser.Imported:
    """Import, evaluate in float64, compare with what the module computes to ``tolerance``."""
    module = module.eval()
    imported = fuser.from_torch(module, args)
    values = dict(imported.params) | {n: a.float().numpy() for n, a in zip(imported.inputs, args, strict=True)}
    got = imported.program.evaluate(values)
    with torch.no_grad():
        want = module(*args)
    want = want if isinstance(want, (tuple, list)) else (want,)
    assert len(want) == len(imported.program.outputs)
    for name, w in zip(imported.program.outputs, want, strict=True):
        assert imported.program[name].shape == tuple(w.shape)
        assert imported.program[name].dtype == str(w.dtype).removeprefix("torch.")
        np.testing.assert_allclose(got[name], w.float().numpy(), rtol=tolerance, atol=tolerance)
    return imported


def ops(imported: fuser.Imported) -> list[str]:
    return [n.op for n in imported.program.nodes]


class RmsLinear(nn.Module):
    def __init__(self, d: int, n: int, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d, eps=1e-5, dtype=dtype)
        self.proj = nn.Linear(d, n, bias=False, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.proj(self.norm(x))


class Attention(nn.Module):
    """Two key-value heads for four query heads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.q, self.kv, self.o = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, 16).transpose(1, 2).chunk(2, -1)
        if self.kind == "enable_gqa":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            if self.kind == "repeat_interleave":
                k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
            else:
                k, v = (t[:, :, None].expand(b, 2, 2, n, 8).reshape(b, 4, n, 8) for t in (k, v))
            s = (q @ k.transpose(-2, -1)) / math.sqrt(8)
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
            y = s.softmax(-1, dtype=torch.float32).type_as(q) @ v
        return self.o(y.transpose(1, 2).reshape(b, n, 32))


def test_mlp() -> None:
    imported = agree(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 8)), rand(3, 5, 16))
    assert ops(imported) == ["transpose", "matmul", "add", "relu", "transpose", "matmul", "add"]
    assert set(imported.params) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert set(imported.program.inputs) == {*imported.inputs, *imported.params}


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_layer_norm_gelu_mlp(approximate: str) -> None:
    mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(approximate), nn.Linear(32, 16))
    imported = agree(mlp, rand(4, 16))
    assert "layer_norm" in ops(imported)
    assert ("gelu" in ops(imported)) == (approximate == "none")


@pytest.mark.parametrize(
    "write", [lambda q, d: q / math.sqrt(d), lambda q, d: q * d**-0.5, lambda q, d: q / torch.tensor(d).sqrt()]
)
@pytest.mark.parametrize("where", ["scores", "query", "key"])
def test_scale_of_attention_is_tied(write: Callable[[Any, int], Any], where: str) -> None:
    """1/sqrt(d), however it is written, follows the head size."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        if where == "query":
            s = write(q, 24) @ k.mT
        elif where == "key":
            s = q @ write(k, 24).transpose(-2, -1)
        else:
            s = write(q @ k.mT, 24)
        return torch.softmax(s, -1) @ v

    imported = agree(Fn(attention), rand(2, 6, 24), rand(2, 7, 24), rand(2, 7, 5))
    (scale,) = (n.attr["scalar"] for n in imported.program.nodes if n.op == "scale")
    tensor = imported.inputs[1 if where == "key" else 0]
    assert scale == Scalar.power(Extent(tensor, 2), Fraction(-1, 2))


def test_other_scales_stay_numbers() -> None:
    imported = agree(Fn(lambda q, k: (q @ k.mT) * 0.3), rand(6, 24), rand(7, 24))
    (scale,) = (n.attr["scalar"] for n in imported.program.nodes if n.op == "scale")
    assert scale == Scalar.of(0.3)


@pytest.mark.parametrize("case", ["plain", "causal", "causal-long-keys", "additive", "boolean", "causal-by-mask", "scale"])
def test_sdpa(case: str) -> None:
    n = 9 if case == "causal-long-keys" else 6
    q, k, v = rand(2, 3, 6, 8), rand(2, 3, n, 8), rand(2, 3, n, 4)
    args: tuple[Any, ...] = (q, k, v)
    more: dict[str, Any] = {"is_causal": case.startswith("causal") and case != "causal-by-mask"}
    if case == "additive":
        args = (*args, rand(6, 6))
    if case == "scale":
        more["scale"] = 0.25

    def f(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        if case == "boolean":
            mask = (torch.arange(6) != 2).expand(6, 6)
        if case == "causal-by-mask":
            mask = torch.ones(6, 6, dtype=torch.bool).tril()
        return functional.scaled_dot_product_attention(q, k, v, mask, **more)

    imported = agree(Fn(f), *args)
    if case != "causal-long-keys":  # torch aligns the mask at the first key, the operator at the last
        (node,) = imported.program.nodes
        assert node.op == "attention" and node.attr["causal"] == case.startswith("causal")
        assert (node.attr["scale"] == Scalar.power(Extent(imported.inputs[0], 3), Fraction(-1, 2))) == (case != "scale")


@pytest.mark.parametrize("kind", ["repeat_interleave", "expand", "enable_gqa"])
def test_grouped_queries(kind: str) -> None:
    imported = agree(Attention(kind), rand(2, 7, 32))
    assert ("causal_mask" in ops(imported)) == (kind != "enable_gqa")
    assert ("broadcast" in ops(imported)) == (kind == "expand")
    assert not [n for n in imported.params if "." not in n], "the mask is an operator, not an input"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype: str) -> None:
    imported = agree(RmsLinear(16, 8, getattr(torch, dtype)), rand(4, 16, dtype=getattr(torch, dtype)), tolerance=0.05)
    assert {t.dtype for t in imported.program.tensors} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_default_eps_is_that_of_float32(dtype: Any) -> None:
    agree(nn.RMSNorm(8, dtype=dtype), torch.full((2, 8), 1e-3, dtype=dtype), tolerance=1e-2)


def test_mixed_precision_is_promoted_as_torch_does() -> None:
    imported = agree(
        Fn(lambda x, y: (x * y, y.to(torch.float16) + x)), rand(4, 8, dtype=torch.float16), rand(4, 8), tolerance=1e-2
    )
    assert [imported.program[n].dtype for n in imported.program.outputs] == ["float32", "float16"]


X = [
    lambda x: (x + 1.5, x - 1.5, 1.5 - x, 1.5 * x, x / 1.5, 1.5 / x, -x),
    lambda x: (x.pow(2), x**3, x**4, x**-1, x.abs().sqrt(), (x * x + 1).rsqrt(), 1 / torch.sqrt(x * x + 1)),
    lambda x: (x.relu(), x.sigmoid(), functional.silu(x), x.tanh(), x.exp(), torch.erf(x), torch.maximum(x, -x)),
    lambda x: (x.sum(), x.sum(-1), x.sum((0, 2), keepdim=True), x.mean(1), x.mean(), x.amax(-1, keepdim=True), x.amax()),
    lambda x: (
        x.permute(2, 0, 1),
        x.unsqueeze(1).squeeze(1),
        x.flatten(1),
        x.unflatten(1, (2, 2)),
        x.reshape(-1),
        x.transpose(0, 2),
    ),
    lambda x: (x[:, 1:3], x[0], x[..., -1], x.narrow(1, 1, 2), *x.split(3, 2), *x.unbind(0), *x.chunk(2, 1)),
    lambda x: (torch.cat([x, x + 1], 1), torch.stack([x, x * 2], 1), x[:1].expand(3, 4, 6)),
    lambda x: (x.repeat_interleave(2, 0), x.repeat(2, 1, 3), x.repeat(2, 1, 1, 1), x.repeat(1, 1, 1)),
    lambda x: (torch.where(torch.arange(6) < 3, x, 0.0), x.masked_fill(torch.arange(6) < 3, -1e4), x.contiguous().clone()),
    lambda x: (
        x + torch.arange(6.0),
        torch.add(x, x * 2, alpha=3),
        torch.sub(x, x.exp(), alpha=2),
        torch.rsub(x, x.exp(), alpha=2),
    ),
    lambda x: (functional.layer_norm(x, (4, 6)), functional.layer_norm(x, (6,)), functional.rms_norm(x, (6,), eps=0.1)),
    lambda x: (x.softmax(1), x.softmax(-1), (x + torch.full((4, 6), -math.inf).triu(1)).softmax(-1)),
    lambda x: (
        torch.bmm(x, x.mT),
        x[0] @ x[1].t(),
        x[0, 0] @ x[0].t(),
        x @ x[0, 1],
        torch.addmm(x[0, :, 0], x[0], x[1].t(), beta=2),
    ),
    lambda x: (x, x.clone().add_(1).mul_(2), x.new_ones(6) * x),
]


@pytest.mark.parametrize("index", range(len(X)))
def test_operators(index: int) -> None:
    agree(Fn(X[index]), rand(3, 4, 6))


def one_loop(graph: KernelGraph) -> bool:
    """One kernel that folds a product and another value over the same axes, neither computed from the other."""
    if len(graph.kernels) != 1 or len(graph.blocks) != 1:
        return False
    (block,) = graph.blocks

    def above(value: str) -> set[str]:
        args = block.by_value[value].args
        return {*args}.union(*map(above, args))

    folds = [s for s in block.computes if s.folds]
    names = {s.value for s in folds}
    return len(folds) == 2 and folds[0].reduce == folds[1].reduce and not any(names & above(n) for n in names)


NORMS: dict[str, Callable[..., Any]] = {
    "torch": lambda x, g: functional.rms_norm(x, (64,), g, 1e-5),
    "rsqrt": lambda x, g: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * g,
    "sqrt": lambda x, g: g * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)),
    "reciprocal": lambda x, g: g * (x * (1 / torch.sqrt((x * x).sum(-1, keepdim=True) / 64 + 1e-5))),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(2))
def test_rms_norm_linear_is_found_in_one_kernel(norm: str, seed: int) -> None:
    """Mirage's kernel, whatever the tensors are called: one loop carries the product and the sum of squares, division after."""
    gain, weight = ("".join(np.random.default_rng([seed, i]).choice(list("abcdefgxyz"), 9)) for i in range(2))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, gain, nn.Parameter(rand(64, dtype=torch.float16)))
            setattr(self, weight, nn.Parameter(rand(48, 64, dtype=torch.float16)))

        def forward(self, x: Any) -> Any:
            g, w = getattr(self, gain), getattr(self, weight)
            return functional.linear(NORMS[norm](x, g), w)

    imported = fuser.from_torch(Model(), (rand(16, 64, dtype=torch.float16),))
    assert set(imported.params) == {gain, weight}
    result = fuser.superoptimize(imported.program, until=lambda f: one_loop(f.graph), processes=1)
    assert result.stopped == "found"


def test_reciprocals_with_other_uses_stay() -> None:
    kept = agree(Fn(lambda x, y: (x * (r := torch.rsqrt(y)), r)), rand(4, 6), rand(4, 6).abs() + 1)
    assert ops(kept) == ["rsqrt", "mul"]
    both = agree(Fn(lambda x, y: torch.rsqrt(x) * torch.rsqrt(y) * (1 / x)), rand(4, 6).abs() + 1, rand(4, 6).abs() + 1)
    assert sorted(ops(both)) == ["div", "div", "rsqrt", "sqrt"]
    assert not both.params


def test_torch_column_names_operators_of_aten_once() -> None:
    names = [t for op in OPS.values() for t in names_of(op.torch)]
    assert len(names) == len(set(names))
    for name in names:
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_written_program_reads_back(tmp_path: Path) -> None:
    program = agree(Attention("expand"), rand(1, 4, 32)).program
    path = tmp_path / "program.json"
    path.write_text(json.dumps(program.to_json()))
    assert TensorProgram.from_json(json.loads(path.read_text())) == program


def test_unsupported_operator_names_the_line() -> None:
    class Noise(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise = Noise()

        def forward(self, x: Any) -> Any:
            return self.noise(x) * 2

    with pytest.raises(
        UnsupportedError, match=r"aten\.rand_like.*test_torch_export\.py.*torch\.rand_like\(x\).*submodule noise"
    ) as e:
        fuser.from_torch(Model(), (torch.ones(2),))
    assert "export a submodule" in e.value.hint


def test_active_dropout_and_side_effects_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.dropout.* is active") as e:
        fuser.from_torch(nn.Dropout(0.1).train(), (rand(4),))
    assert "eval()" in e.value.hint
    with pytest.raises(UnsupportedError, match="writes to running_mean"):
        fuser.from_torch(nn.BatchNorm1d(4).train(), (rand(3, 4),))


def test_random_numbers_are_not_frozen_into_the_program() -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.rand"):
        fuser.from_torch(Fn(lambda x: x + torch.rand(4)), (rand(4),))


def test_dynamic_dimension_is_named() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(nn.Linear(4, 4), (rand(8, 4),), dynamic_shapes=({0: rows},))
    with pytest.raises(ProgramError, match=r"dimension 0 of 'input' is dynamic"):
        fuser.from_torch(exported)


def test_extent_that_export_knows_is_static() -> None:
    per_node = Fn(lambda nodes, x: x / torch.bincount(nodes, minlength=4).clamp(min=1)[:, None])
    program = fuser.from_torch(per_node, (torch.tensor([0, 1, 1, 3]), rand(4, 2))).program
    assert [program[n].shape for n in program.outputs] == [(4, 2)]


def test_control_flow_on_values_is_a_program_error() -> None:
    with pytest.raises(ProgramError, match="cannot trace Fn"):
        fuser.from_torch(Fn(lambda x: x if x.sum() > 0 else -x), (rand(4),))


def test_graphs_inside_of_graphs_are_no_steps_of_it() -> None:
    """Only those under another mode of autograd or autocast are; a branch that is chosen by a value is not taken."""

    def chosen(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    def silent(x: Any) -> Any:
        with torch.no_grad():
            return x * 2

    exported = torch.export.export(Fn(chosen), (rand(4),))
    with pytest.raises(UnsupportedError, match="the operator cond has no counterpart"):
        fuser.from_torch(exported)

    def narrow(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            z = x @ y
        with torch.autocast("cpu", enabled=False):
            return z, x @ y

    assert [n.op for n in fuser.from_torch(Fn(silent), (rand(4),)).program.nodes] == ["scale"]
    program = fuser.from_torch(Fn(narrow), (rand(4, 4), rand(4, 4))).program
    assert [program[n].dtype for n in program.outputs] == ["bfloat16", "float32"]


def test_what_vmap_hides_is_a_dimension_of_the_program() -> None:
    def scores(m: Any, x: Any, y: Any) -> Any:
        one = torch.vmap(lambda q, k: (q @ m @ k.mT).softmax(-1) @ k)
        return torch.vmap(one)(x, y)

    imported = agree(Fn(scores), rand(4, 4), rand(2, 3, 5, 4), rand(2, 3, 6, 4))
    assert ops(imported).count("matmul") == 3
    pairs = Fn(torch.vmap(torch.vmap(torch.dot, (None, 0)), (0, None)))
    agree(pairs, rand(5, 4), rand(6, 4))


def test_sizes_that_depend_on_values_are_named() -> None:
    with pytest.raises(ProgramError, match="dimension 0 of 'nonzero' depends on values"):
        fuser.from_torch(torch.export.export(Fn(torch.nonzero), (rand(4),)))


def test_examples_that_are_one_tensor_stay_two_inputs() -> None:
    linear, (x, y) = nn.Linear(4, 4), (rand(4, 4), rand(4, 4))
    for examples in ((x, x), (linear.weight, linear.weight)):
        module = Fn(lambda a, b: a.T - linear(b))
        module.linear = linear
        found = fuser.from_torch(module, examples)
        feeds = dict(zip(found.inputs, (x.numpy(), y.numpy()), strict=True)) | dict(found.params)
        (out,) = found.program.evaluate(feeds).values()
        np.testing.assert_allclose(out, (x.T - linear(y)).detach().numpy(), atol=1e-5)


def test_no_step_of_a_long_recurrent_network_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx.experimental import proxy_tensor

    traced = []
    own = proxy_tensor.make_fx
    monkeypatch.setattr(proxy_tensor, "make_fx", lambda f, *a, **k: traced.append(f) or own(f, *a, **k))
    for kind in (torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN):
        found = fuser.from_torch(kind(4, 4, batch_first=True, bidirectional=True).eval(), (rand(2, 13, 4),))
        assert "opaque" in ops(found)
    assert not [f for f in traced if "pieces" in f.__qualname__]


def test_what_only_gives_its_shape_to_a_mask_is_not_computed() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            s = x.exp()
            return torch.softmax(s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), float("-inf")), -1)

    program = fuser.from_torch(Masked(), (torch.randn(2, 3, 5, 5),)).program
    assert [n.op for n in program.nodes] == ["exp", "causal_mask", "softmax"]


def test_a_trace_with_derivatives_is_no_program() -> None:
    """Torch died of decomposing the largest of rows."""
    from fuser.errors import UnsupportedError

    for f in (torch.func.jacrev(lambda a: a.max(-1)[0]), torch.func.grad(lambda a: a.sin().sum())):

        class Derived(torch.nn.Module):
            def forward(self, x: Any, f: Any = f) -> Any:
                return f(x)

        with pytest.raises(UnsupportedError, match=r"takes derivatives by torch\.func"):
            fuser.from_torch(Derived(), (torch.randn(5, 4),))


def test_results_without_elements_are_given_as_they_are() -> None:
    """Beside those that are computed: a place that an attention keeps for what it has not, or what is left of a slice."""

    class Parts(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            whole = torch.concatenate([x[:, :1].repeat(1, 0), x, x[:, 8:]], 1)
            return {"y": whole * 2, "none": torch.empty(0, dtype=torch.int64), "rest": x[:, 8:]}

    module, x = Parts(), torch.randn(4, 8)
    run = fuser.compile(module, (x,), device="cpu")
    assert [n.op for n in run.program.nodes] == ["scale"]
    got, want = run(x), module(x)
    for name, y in want.items():
        torch.testing.assert_close(got[name], y, rtol=0, atol=0)
