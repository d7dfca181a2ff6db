"""The clean-up keeps what programs compute, and puts together what importers take apart."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from fuser.errors import ProgramError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.composites import expand
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import Extent
from fuser.ir.scalar import Scalar
from tvm_bridge.to_program.normalize import Normalized
from tvm_bridge.to_program.normalize import normalize
from tvm_bridge.to_program.normalize_patterns import tie_scales
from tvm_bridge.to_program.relay_eval import evaluate_program


class Model(Builder):
    """A builder that also makes constants."""

    def __init__(self) -> None:
        super().__init__("model", "float32")
        self.known: dict[str, np.ndarray] = {}

    def const(self, value: object, name: str = "") -> Ref:
        array = np.asarray(value, np.float32)
        name = name or f"c{len(self.known)}"
        self.known[name] = array
        return self.input(name, array.shape)

    def clean(self, *outputs: Ref) -> Normalized:
        """Normalise, and check that every output keeps its value."""
        program = self.build(*outputs)
        result = normalize(program, self.known, frozenset(self.known))
        rng = np.random.default_rng(0)
        feeds = {n: rng.standard_normal(program[n].shape) for n in program.inputs if n not in self.known}
        before = evaluate_program(program, {**feeds, **self.known}, np.float64)
        after = evaluate_program(result.program, {**feeds, **result.known}, np.float64)
        for old, new in zip(program.outputs, result.program.outputs, strict=True):
            assert result.program[new].shape == program[old].shape
            np.testing.assert_allclose(after[new], before[old], rtol=2e-6, atol=1e-6)
        return result


def _ops(result: Normalized) -> list[str]:
    return [n.op for n in result.program.nodes]


def _erf(m: Model, x: Ref) -> Ref:
    return m.op("erf", x)


@pytest.mark.parametrize("form", ["torch", "onnx", "half first", "doubled"])
def test_gelu(form: str) -> None:
    m = Model()
    x = m.input("x", (2, 4))
    root = m.const(math.sqrt(0.5))
    y = {
        "torch": lambda: x * (m.const(0.5) + _erf(m, x * root) * m.const(0.5)),
        "onnx": lambda: (x * (_erf(m, m.op("div", x, m.const(math.sqrt(2)))) + m.const(1.0))) * m.const(0.5),
        "half first": lambda: (x * m.const(0.5)) * (m.const(1.0) + _erf(m, x * root)),
        "doubled": lambda: x * (m.const(1.0) + _erf(m, x * root)),
    }[form]()
    assert _ops(m.clean(y)) == (["gelu", "scale"] if form == "doubled" else ["gelu"])


@pytest.mark.parametrize("form", ["sum", "product", "doubled"])
def test_gelu_by_tanh(form: str) -> None:
    m = Model()
    x = m.input("x", (2, 4))
    small, root = m.const(0.044715), m.const(math.sqrt(2 / math.pi))
    inner = x * (m.const(1.0) + small * (x * x)) if form == "product" else x + (x * x) * x * small
    y = x * (m.const(1.0) + m.op("tanh", inner * root))
    y = y if form == "doubled" else y * m.const(0.5)
    assert _ops(m.clean(y)) == (["gelu_tanh", "scale"] if form == "doubled" else ["gelu_tanh"])


def test_near_gelus_stay() -> None:
    m = Model()
    x, z = m.input("x", (2, 4)), m.input("z", (2, 4))
    slope = x * (m.const(1.0) + _erf(m, x * m.const(0.7)))
    other = z * (m.const(1.0) + _erf(m, x * m.const(math.sqrt(0.5))))
    uneven = x * (m.const(0.5) + _erf(m, x * m.const(math.sqrt(0.5))))
    cube = x * (m.const(1.0) + m.op("tanh", (x + x * x * z * m.const(0.044715)) * m.const(math.sqrt(2 / math.pi))))
    constant = x * (m.const(1.0) + m.op("tanh", (x + x * x * x * m.const(0.05)) * m.const(math.sqrt(2 / math.pi))))
    assert not {"gelu", "gelu_tanh"} & set(_ops(m.clean(slope, other, uneven, cube, constant)))


@pytest.mark.parametrize("square", ["square", "mul"])
@pytest.mark.parametrize("divide", [True, False])
def test_layer_norm_and_rms_norm(square: str, divide: bool) -> None:
    m = Model()
    x = m.input("x", (3, 8))
    gain, bias = m.const(np.arange(1, 9)), m.const(np.arange(8))

    def norm(v: Ref) -> Ref:
        power = m.op("square", v) if square == "square" else v * v
        mean = m.op("mean", power, axis=(1,), keepdims=True) + m.const(1e-5)
        return m.op("div", v, m.op("sqrt", mean)) if divide else v * m.op("rsqrt", mean)

    centred = x - m.op("mean", x, axis=(-1,), keepdims=True)
    assert _ops(m.clean(norm(centred) * gain + bias)) == ["layer_norm"]
    m = Model()
    x, gain = m.input("x", (3, 8)), m.input("g", (8,))
    assert _ops(m.clean(gain * norm(x))) == ["rms_norm"]


def test_a_norm_over_another_axis_stays() -> None:
    m = Model()
    x = m.input("x", (8, 8))
    y = m.op("div", x, m.op("sqrt", m.op("mean", m.op("square", x), axis=(0,), keepdims=True) + m.const(1e-5)))
    assert "rms_norm" not in _ops(m.clean(y))


def test_silu_and_zero_masks() -> None:
    m = Model()
    x = m.input("x", (2, 3, 4, 4))
    masked = x + m.const(np.zeros((1, 1, 4, 4)))
    y = masked * m.op("sigmoid", x)
    result = m.clean(y)
    assert _ops(result) == ["silu"]
    assert set(result.known) == set()


def test_real_masks_and_zero_biases_stay() -> None:
    m = Model()
    x = m.input("x", (2, 4, 4))
    mask = m.const(np.triu(np.full((4, 4), -1e9), 1))
    result = m.clean(m.op("softmax", x + mask, axis=-1) + m.const(np.zeros(4)))
    assert _ops(result) == ["add", "softmax", "add"]


def test_zeros_that_widen_the_result_stay() -> None:
    m = Model()
    result = m.clean(m.input("x", (4,)) + m.const(np.zeros((3, 4))))
    assert result.program[result.program.outputs[0]].shape == (3, 4)


def test_parameters_are_not_folded_by_value() -> None:
    m = Model()
    x, zero = m.input("x", (3, 3)), m.const(np.zeros((3, 3)), "zero")
    program = m.build(x + zero)
    assert [n.op for n in normalize(program, m.known).program.nodes] == ["add"]
    found = normalize(program, m.known, frozenset(["zero"])).program
    assert [(n.op, n.inputs) for n in found.nodes] == [("reshape", ("x",))]  # an output that is an input is a copy of it
    assert found.outputs != ("x",)


@pytest.mark.parametrize("batch", [(1,), (3,)])
def test_linear_layers_of_both_importers(batch: tuple[int, ...]) -> None:
    m = Model()
    x, weight, bias = m.input("x", (*batch, 4, 8)), m.const(np.arange(40).reshape(5, 8)), m.const(np.arange(5))
    wide = m.op("broadcast", weight.T, shape=(*batch, 8, 5))
    torch_form = (x.reshape(*batch, 4, 8) @ wide.reshape(*batch, 8, 5)) + bias
    assert _ops(m.clean(torch_form)) == ["matmul", "add"]
    m = Model()
    x, weight, bias = m.input("x", (*batch, 4, 8)), m.const(np.arange(40).reshape(5, 8)), m.const(np.arange(5))
    flat = x.reshape(batch[0] * 4, 8)
    assert _ops(m.clean((flat @ weight.T).reshape(*batch, 4, 5) + bias)) == ["matmul", "add"]
    assert _ops(m.clean(m.op("gelu", flat @ weight.T + bias).reshape(*batch, 4, 5))) == ["matmul", "add", "gelu"]


def test_attention_between_reshapes_keeps_its_heads() -> None:
    m = Model()
    q, k, v = (m.input(n, (2, 3, 4, 8)) for n in "qkv")
    scores = (q.reshape(6, 4, 8) @ k.reshape(6, 4, 8).T).reshape(2, 3, 4, 4)
    weights = m.op("softmax", scores * m.const(np.float32(1 / math.sqrt(8))), axis=-1)
    result = m.clean((weights.reshape(6, 4, 4) @ v.reshape(6, 4, 8)).reshape(2, 3, 4, 8))
    assert _ops(result) == ["transpose", "matmul", "scale", "softmax", "matmul"]
    scale = next(n for n in result.program.nodes if n.op == "scale")
    assert scale.attr["scalar"] == Scalar.power(Extent("q", 3), Fraction(-1, 2))


def test_roots_on_both_operands_become_one_scale() -> None:
    m = Model()
    q, k = m.input("q", (4, 80)), m.input("k", (80, 4))
    root = m.const(np.float32(80**-0.25))
    result = m.clean((q * root) @ (k * root))
    assert _ops(result) == ["matmul", "scale"]
    assert result.program.nodes[1].attr["scalar"] == Scalar.power(Extent("q", 1), Fraction(-1, 2))


def test_other_scales_are_exact_numbers() -> None:
    m = Model()
    q, k = m.input("q", (4, 80)), m.input("k", (80, 4))
    result = m.clean((q @ k) * m.const(0.1))
    assert result.program.nodes[1].attr["scalar"] == Scalar(Fraction(float(np.float32(0.1))))


def test_constant_subgraphs_fold() -> None:
    m = Model()
    x = m.input("x", (2, 2))
    c = m.op("exp", m.const([[1.0, 2.0], [3.0, 4.0]]) * m.const(0.5)).T
    result = m.clean(x + c)
    assert _ops(result) == ["add"]
    assert len(result.known) == 1


@st.composite
def _programs(draw: st.DrawFn) -> tuple[Model, list[Ref]]:
    """Random programs of views, element-wise operators, products and constants."""
    m = Model()
    pool = [m.input("x", (2, 3, 4)), m.input("y", (6, 4)), m.const(draw(st.sampled_from([0.0, 1.0, 0.5, -2.0])))]
    pool.append(m.const(np.zeros((3, 4))))
    for _ in range(draw(st.integers(1, 12))):
        a = draw(st.sampled_from(pool))
        rank = len(a.shape)
        kind = draw(
            st.sampled_from(["reshape", "transpose", "broadcast", "binary", "unary", "matmul", "scale", "concat", "slice"])
        )
        if kind == "reshape":
            shapes = [(math.prod(a.shape),), (1, *a.shape), (*a.shape, 1)]
            shapes += [(math.prod(a.shape[:-1]), a.shape[-1])] if rank else []
            shapes += [(2, -1)] if math.prod(a.shape) % 2 == 0 else []
            shape = draw(st.sampled_from(shapes))
            pool.append(a.reshape(*(math.prod(a.shape) // 2 if e == -1 else e for e in shape)))
        elif kind == "transpose" and rank:
            pool.append(a.transpose(*draw(st.permutations(range(rank)))))
        elif kind == "broadcast" and rank < 4:
            pool.append(m.op("broadcast", a, shape=(draw(st.integers(1, 2)), *a.shape)))
        elif kind in ("binary", "matmul", "concat"):
            b = draw(st.sampled_from(pool))
            op = draw(st.sampled_from(["add", "sub", "mul", "maximum"])) if kind == "binary" else kind
            if rank and b.shape and math.prod(a.shape) * math.prod(b.shape) < 1 << 16:
                with contextlib.suppress(ProgramError):  # shapes that do not fit
                    pool.append(m.op(op, a, b, axis=0) if op == "concat" else m.op(op, a, b))
        elif kind == "unary":
            pool.append(m.op(draw(st.sampled_from(["tanh", "sigmoid", "neg", "relu"])), a))
        elif kind == "scale":
            pool.append(m.op(draw(st.sampled_from(["scale", "shift"])), a, scalar=draw(st.sampled_from([0.5, 1.0, 2.0]))))
        elif kind == "slice" and rank:
            pool.append(m.op("slice", a, axis=0, start=0, stop=draw(st.integers(1, a.shape[0]))))
    return m, pool[-3:]


@settings(max_examples=150, deadline=None)
@given(_programs())
def test_random_programs_keep_their_values(case: tuple[Model, list[Ref]]) -> None:
    m, outputs = case
    result = m.clean(*outputs)
    assert isinstance(result.program, TensorProgram)
    again = normalize(result.program, result.known, frozenset(result.known))
    assert again.program.nodes == result.program.nodes


def test_a_scale_is_tied_to_no_later_tensor() -> None:
    """Queries that are scaled before they are split into heads: the extent of a head is only there after the scale."""
    b = Builder("heads", "float32")
    x, w, k = b.input("X", (8, 32)), b.input("W", (32, 32)), b.input("K", (2, 16, 8))
    q = ((x @ w) * 0.25).reshape(8, 2, 16).transpose(1, 0, 2)
    program = tie_scales(b.build(O=b.softmax(q @ k)))
    scale = next(n for n in program.nodes if n.op == "scale")
    assert scale.attr["scalar"] == Scalar.of(0.25)
    expand(program).validate()
    b = Builder("heads", "float32")
    q = b.input("Q", (2, 8, 16)) * 0.25
    tied = tie_scales(b.build(O=b.softmax(q @ b.input("K", (2, 16, 8)))))
    assert next(n for n in tied.nodes if n.op == "scale").attr["scalar"].powers


def test_outputs_that_become_one_tensor() -> None:
    """Of Relay they are one, which its regions have; of ONNX each is a tensor with its own name."""
    b = Builder("m")
    x = b.relu(b.input("x", (2, 3)))
    program = b.build(y=x, z=b.op("reshape", x, shape=(2, 3)))
    assert normalize(program, {}).program.outputs == ("y", "y")
    apart = normalize(program, {}, apart=True).program
    assert apart.outputs == ("y", "z") and [n.inputs for n in apart.nodes] == [("x",), ("y",)]
