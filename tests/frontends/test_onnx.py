"""ONNX files as programs: every operator against ONNX's reference, whole models, and files that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto  # noqa: E402
from onnx import helper  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from fuser.errors import FuserError  # noqa: E402
from fuser.errors import ModelFileError  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.model_file import read_model_file  # noqa: E402
from fuser.frontends.onnx_file import _Importer  # noqa: E402
from fuser.frontends.onnx_reference import reference  # noqa: E402
from fuser.frontends.onnx_rules import RULES  # noqa: E402
from tests.damage import damaged_bytes  # noqa: E402

OPSET = 21
CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
         "int32": TensorProto.INT32, "uint8": TensorProto.UINT8, "bfloat16": TensorProto.BFLOAT16}  # fmt: skip
X = (2, 3, 4)
I = TensorProto


def saved(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[Any, ...]],
    outputs: Sequence[str],
    known: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, str] | None = None,
    opset: int = OPSET,
) -> Path:
    """A file of these nodes; ``known`` are initializers."""
    kinds = dtypes or {}
    values = [helper.make_tensor_value_info(n, CODES[kinds.get(n, "float32")], s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, CODES[kinds.get(n, "float32")], ()) for n in outputs]  # unused
    weights = [numpy_helper.from_array(np.asarray(x), n) for n, x in (known or {}).items()]
    graph = helper.make_graph(list(nodes), "g", values, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def agree(path: Path, rng: np.random.Generator, positive: bool = False, rtol: float = 1e-5) -> Any:
    """The program of a file gives what ONNX's reference gives."""
    file = read_model_file(path)
    program = file.imported.program
    values = {}
    for name in file.imported.inputs:
        t = program[name]
        x = rng.standard_normal(t.shape)
        values[name] = {"int64": (x * 2).astype(int) % 3, "bool": x > 0}.get(t.dtype, abs(x) + 0.5 if positive else x).astype(
            t.dtype
        )
    got = program.evaluate(values | dict(file.imported.params))
    wanted = file.original.original_outputs(values)
    assert len(got) == len(wanted)
    for y, z in zip(got.values(), wanted, strict=True):
        assert y.shape == z.shape
        np.testing.assert_allclose(y, z, rtol=rtol, atol=1e-5)
    return file


def i(*values: int) -> Any:
    return np.array(values, np.int64)


F = np.float32
ONE: dict[str, tuple[Sequence[tuple[int, ...]], dict[str, Any], Sequence[Any]]] = {
    # operator: shapes of its inputs, attributes, known inputs behind them
    **{n: ([X], {}, []) for n in (
        "Abs", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Relu", "Round", "Sigmoid", "Sign",
        "Sin", "Sinh", "Softsign", "Tan", "Tanh", "Identity", "Celu", "Selu", "HardSigmoid", "Gelu", "Softplus", "Elu",
        "LeakyRelu", "Transpose", "Flatten", "Softmax", "LogSoftmax",
    )},
    **{n: ([(2, 3, 4, 5)], {}, []) for n in ("GlobalAveragePool", "GlobalMaxPool")},
    **{n: ([X], {}, []) for n in ("Log", "Sqrt", "Reciprocal")},
    **{n: ([X, (3, 1)], {}, []) for n in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu")},
    "Mod": ([X, (4,)], {"fmod": 1}, []), "Clip": ([X], {}, [F(-0.5), F(0.7)]), "Pow": ([X], {}, [F(3)]),
    "Cast": ([X], {"to": TensorProto.FLOAT16}, []), "Trilu": ([X], {"upper": 0}, [i(1).reshape(())]),
    "MatMul": ([X, (4, 5)], {}, []), "Gemm": ([(3, 4), (5, 4), (5,)], {"transB": 1, "alpha": 0.5, "beta": 2.0}, []),
    "Reshape": ([X], {}, [i(0, -1)]), "Squeeze": ([(2, 1, 3, 1)], {}, [i(1)]), "Unsqueeze": ([X], {}, [i(0, -1)]),
    "Expand": ([(3, 1)], {}, [i(2, 3, 4)]), "Tile": ([X], {}, [i(2, 1, 3)]), "Concat": ([X, X], {"axis": -1}, []),
    "Slice": ([X], {}, [i(1, -3), i(3, 2**40), i(1, 2)]), "Gather": ([X], {"axis": 1}, [i(1, 2)]),
    **{n: ([X], {"keepdims": 0}, [i(-1)]) for n in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp",
    )},
    "ReduceLogSum": ([X], {}, [i(0, 1)]), "CumSum": ([X], {}, [i(1).reshape(())]),
    "ArgMax": ([X], {"axis": 1}, []), "ArgMin": ([X], {"axis": -1, "keepdims": 0}, []),
    "LayerNormalization": ([X, (3, 4), (3, 4)], {"axis": 1}, []),
    "InstanceNormalization": ([(2, 3, 4, 4), (3,), (3,)], {}, []),
    "GroupNormalization": ([(2, 4, 5), (4,), (4,)], {"num_groups": 2}, []),
    "Conv": ([(1, 4, 6, 6), (4, 2, 3, 3), (4,)], {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}, []),
    "MaxPool": ([(1, 2, 6, 6)], {"kernel_shape": [2, 3], "strides": [2, 1]}, []),
    "AveragePool": ([(1, 2, 6, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}, []),
    **{n: ([X], {}, []) for n in ("Asinh", "Atan", "MeanVarianceNormalization", "LpNormalization", "Shrink", "ThresholdedRelu")},
    "MeanVarianceNormalization": ([(2, 3, 4, 5)], {}, []), "Mean": ([X, X, X], {}, []), "ReduceProd": ([X], {}, [i(0, -1)]),
    "Hardmax": ([X], {"axis": 1}, []), "Einsum": ([X, (5, 4, 2)], {"equation": "ijk,lki->jl"}, []),
    "IsInf": ([X], {}, []), "LRN": ([(5, 5, 3, 3)], {"size": 3}, []), "Pad": ([X], {"mode": "reflect"}, [i(0, 1, 2, 0, 0, 1)]),
    "ConvTranspose": ([(1, 4, 3, 3), (4, 2, 3, 3)], {"pads": [1, 0, 0, 1], "strides": [2, 1]}, []),
    "Resize": ([(1, 2, 3, 4)], {"mode": "linear"}, [np.array([0] * 4 + [1] * 4, F), np.array([1, 1, 2, 1.5], F)]),
    "DepthToSpace": ([(2, 8, 2, 3)], {"blocksize": 2}, []), "SpaceToDepth": ([(2, 3, 4, 6)], {"blocksize": 2}, []),
    "GatherElements": ([X], {"axis": 1}, [np.ones((2, 1, 4), np.int64) * -1]),
    "GatherND": ([X], {}, [np.array([[0, -1], [1, 0]])]),
    "ScatterElements": ([X], {"axis": 1}, [np.full((2, 1, 4), 2), np.ones((2, 1, 4), F)]),
    "ScatterND": ([X], {}, [np.array([[0, 1], [1, 0]]), np.ones((2, 4), F)]),
}  # fmt: skip
POSITIVE = ("Log", "ReduceProd", "Sqrt", "Reciprocal", "ReduceLogSum", "Div", "Mod")
OTHERWISE = {"And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "Where", "Split",
             "BatchNormalization", "Dropout", "CastLike", "OneHot", "TopK", "Upsample", "Scatter",
             "Acos", "Acosh", "Asin", "Atanh"}  # fmt: skip
"""Operators of the tests below."""


@pytest.mark.parametrize("op", sorted(ONE))
def test_an_operator_is_what_onnx_says(op: str, tmp_path: Path, rng: np.random.Generator) -> None:
    shapes, attrs, known = ONE[op]
    inputs = {f"x{n}": s for n, s in enumerate(shapes)}
    constants = {f"k{n}": k for n, k in enumerate(known)}
    node = helper.make_node(op, [*inputs, *constants], ["y"], "here", **attrs)
    dtypes = {"y": "int64" if op.startswith("Arg") else "bool" if op == "IsInf" else "float16" if op == "Cast" else "float32"}
    opset = 21 if op not in ("Gelu", "Mish") else 20
    path = saved(tmp_path, [node], inputs, ["y"], constants, dtypes, opset)
    agree(path, rng, op in POSITIVE, 1e-2 if op == "Cast" else 1e-4)


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(ONE) | OTHERWISE


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("attrs", [
    {"pads": [0, 1, 1, 0]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"},
    {"ceil_mode": 1, "pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1},
    {"ceil_mode": 1, "pads": [1, 0, 0, 1], "count_include_pad": 1},
], ids=str)  # fmt: skip
def test_borders_of_windows(op: str, attrs: dict[str, Any], tmp_path: Path, rng: np.random.Generator) -> None:
    if op != "AveragePool":
        attrs = {k: v for k, v in attrs.items() if k != "count_include_pad" and (k != "ceil_mode" or op != "Conv")}
    window = {} if op == "Conv" else {"kernel_shape": [3, 2]}
    inputs = {"x": (1, 2, 7, 6)} | ({"w": (3, 2, 3, 2)} if op == "Conv" else {})
    agree(
        saved(tmp_path, [helper.make_node(op, [*inputs], ["y"], strides=[2, 2], **window, **attrs)], inputs, ["y"]),
        rng,
        rtol=1e-4,
    )


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_the_reference_pools_as_torch_does(ceil: bool, counted: bool, rng: np.random.Generator) -> None:
    """Sizes at which ONNX's own divides by what lies behind the border."""
    torch = pytest.importorskip("torch")
    for n, window, stride, border in ((4, 2, 3, 0), (6, 3, 2, 1), (7, 3, 3, 1), (5, 2, 2, 1)):
        x = rng.standard_normal((1, 2, n, n + 1), np.float32)
        node = helper.make_node(
            "AveragePool", ["x"], ["y"], kernel_shape=[window] * 2, strides=[stride] * 2, pads=[border] * 4,
            ceil_mode=int(ceil), count_include_pad=int(counted),
        )  # fmt: skip
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list("abcd")) for name in "xy"]
        model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))
        (found,) = reference(model).run(None, {"x": x})
        wanted = torch.nn.functional.avg_pool2d(torch.tensor(x), window, stride, border, ceil, counted)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_slices_run_backwards_and_by_steps(tmp_path: Path, rng: np.random.Generator) -> None:
    known = {"a": i(-1, 1), "z": i(-(2**40), 7), "at": i(0, 2), "by": i(-2, 3)}
    agree(saved(tmp_path, [helper.make_node("Slice", ["x", *known], ["y"])], {"x": (5, 3, 8)}, ["y"], known), rng)


def test_indices_that_are_computed_count_from_either_end(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Sub", ["n", "one"], ["m"]),
        helper.make_node("Gather", ["x", "m"], ["y"], axis=1),
        helper.make_node("OneHot", ["m", "depth", "off"], ["z"]),
        helper.make_node("TopK", ["x", "k"], ["v", "at"], axis=1, largest=0),
        helper.make_node("GatherElements", ["x", "at"], ["w"], axis=1),
        helper.make_node("Gather", ["table", "m"], ["rows"]),
        helper.make_node("GatherND", ["x", "m"], ["found"]),
        helper.make_node("ScatterND", ["x", "m", "found"], ["put"]),
        helper.make_node("OneHot", ["beside", "depth", "off"], ["none"]),
    ]
    known = {"one": i(1), "depth": np.array(3), "k": i(3), "off": np.array([-1, 2], F), "beside": i(3, -4)}
    names = ["y", "z", "v", "w", "rows", "found", "put", "none"]
    agree(saved(tmp_path, nodes, {"x": X, "n": (2, 2), "table": (5, 4)}, names, known, {"n": "int64"}), rng)


def test_a_known_index_beside_its_axis_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("Gather", ["x", "at"], ["y"], axis=1)], {"x": X}, ["y"], {"at": i(0, 3)})
    with pytest.raises(UnsupportedError, match="has the index 3 of an axis of 3"):
        read_model_file(path)


def test_places_that_are_known_are_looked_up_at_import(tmp_path: Path, rng: np.random.Generator) -> None:
    """As the types of a BERT's tokens are: along axes of any length, from either end, fewer rows than the tensor has."""
    known = {"table": rng.standard_normal((3, 50)).astype(F), "at": i(*range(-25, 25)).reshape(2, 25)}
    nodes = [helper.make_node("GatherElements", ["table", "at"], ["t"], axis=-1), helper.make_node("Add", ["x", "t"], ["y"])]
    file = agree(saved(tmp_path, nodes, {"x": (2, 25)}, ["y"], known), rng)
    (looked_up,) = file.imported.params.values()
    np.testing.assert_array_equal(looked_up, known["table"][[[0], [1]], known["at"]])


def test_scalars_stay_scalars(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "half"], ["y"]),
        helper.make_node("Where", ["y", "s", "half"], ["z"]),
        helper.make_node("Unsqueeze", ["s", "first"], ["w"]),
    ]
    agree(saved(tmp_path, nodes, {"x": X}, ["y", "z", "w"], {"half": F(0.5), "first": i(0)}), rng)


@pytest.mark.parametrize(
    ("op", "a", "b", "attributes"),
    [
        ("Pow", [4, 9, 2, 7], np.array([0.5, 0.5, 2.5, 1], F), {}),
        ("Pow", [4, 9, 2, 7], F(0.5), {}),
        ("Pow", [4, 9, 2, 7], F(-1), {}),
        ("Pow", [4, -9, 2, 7], i(3).reshape(()), {}),
        ("Div", [-7, 7, 8, -9], np.array([2, -2, 3, -4], np.int32), {}),
        ("Div", [-7, 7, 8, -9], np.array(2, np.int32), {}),
        ("Mod", [-7, 7, 8, -9], np.array([2, -2, 3, -4], np.int32), {}),
        ("Mod", [-7, 7, 8, -9], np.array([2, -2, 3, -4], np.int32), {"fmod": 1}),
        ("ReduceMean", [-7, 4, 9, -9], i(0), {"keepdims": 0}),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_arithmetic_of_whole_numbers(
    op: str, a: list[int], b: Any, attributes: dict[str, Any], computed: bool, tmp_path: Path
) -> None:
    if computed and (b.shape != (4,)):
        return
    dtypes = {"a": "int32", "b": str(b.dtype), "y": "int32"}
    inputs, known = ({"a": (4,), "b": (4,)}, {}) if computed else ({"a": (4,)}, {"b": b})
    node = helper.make_node(op, ["a", "b"], ["y"], **attributes)
    file = read_model_file(saved(tmp_path, [node], inputs, ["y"], known, dtypes, opset=18))
    values = {"a": np.array(a, np.int32)} | ({"b": b} if computed else {})
    (wanted,) = file.original.original_outputs(values)
    (got,) = file.imported.program.evaluate(values | dict(file.imported.params)).values()
    np.testing.assert_array_equal(got, wanted)
    torch = pytest.importorskip("torch")
    from fuser.runtime.torch_program import run_program

    given = {n: torch.from_numpy(np.asarray(x)) for n, x in (values | dict(file.imported.params)).items()}
    (eager,) = run_program(file.imported.program, given).values()
    np.testing.assert_array_equal(eager, wanted)


def test_conditions_choose(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "y"], ["a"]),
        helper.make_node("LessOrEqual", ["x", "zero"], ["b"]),
        helper.make_node("Less", ["y", "zero"], ["c"]),
        helper.make_node("GreaterOrEqual", ["y", "x"], ["d"]),
        helper.make_node("Equal", ["x", "y"], ["e"]),
        helper.make_node("IsNaN", ["x"], ["n"]),
        helper.make_node("Or", ["a", "b"], ["ab"]),
        helper.make_node("And", ["c", "d"], ["cd"]),
        helper.make_node("Xor", ["ab", "cd"], ["f"]),
        helper.make_node("Or", ["f", "e"], ["g"]),
        helper.make_node("Or", ["g", "n"], ["h"]),
        helper.make_node("Not", ["h"], ["no"]),
        helper.make_node("Where", ["no", "x", "y"], ["z"]),
        helper.make_node("CastLike", ["no", "x"], ["w"]),
        helper.make_node("Dropout", ["w"], ["v"]),
    ]
    agree(saved(tmp_path, nodes, {"x": X, "y": X}, ["z", "v"], {"zero": np.zeros(1, F)}), rng)


def test_the_branch_that_is_taken_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    """As exporters write it of what shapes decide."""
    kind = helper.make_tensor_value_info("r", TensorProto.FLOAT, X)
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x", "two"], ["r"])], name, [], [kind], [two])
        for name, op in (("then", "Mul"), ("else", "Add"))
        for two in [numpy_helper.from_array(np.array(2, F), "two")]
    }
    file = agree(saved(tmp_path, [helper.make_node("If", ["c"], ["y"], **branches)], {"x": X}, ["y"], {"c": np.array(True)}), rng)
    assert "add" not in {n.op for n in file.imported.program.nodes}


def test_a_softmax_of_old_is_over_all_that_follows(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("LogSoftmax", ["x"], ["z"], axis=-1)]
    path = saved(tmp_path, nodes, {"x": X}, ["y", "z"], opset=11)
    x = rng.standard_normal(X).astype(F)
    y, z = agree(path, rng).original.original_outputs({"x": x})
    np.testing.assert_allclose(y.sum((1, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(np.exp(z).sum(-1), 1, rtol=1e-6)


def test_what_the_reference_lacks_is_said(tmp_path: Path, rng: np.random.Generator) -> None:
    known = {"q": rng.integers(-9, 9, (4, 4)).astype(np.int8), "s": np.array(0.5, F), "z": np.array(0, np.int8)}
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]), helper.make_node("Mul", ["x", "w"], ["y"])]
    file = read_model_file(saved(tmp_path, nodes, {"x": (4, 4)}, ["y"], known, opset=17))
    with pytest.raises(UnsupportedError, match="does not run the model: No implementation for operator 'DequantizeLinear'"):
        file.original.original_outputs({"x": np.ones((4, 4), F)})


def test_splits_by_sizes_and_evenly(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=-1),
        helper.make_node("Split", ["x"], ["c", "d", "e"], axis=1, num_outputs=3),
    ]
    agree(saved(tmp_path, nodes, {"x": X}, ["a", "b", "d", "e"], {"sizes": i(1, 3)}), rng)


def test_batch_norm_and_conv_with_weights(tmp_path: Path, rng: np.random.Generator) -> None:
    known = {n: abs(rng.standard_normal(4)).astype(F) for n in ("gain", "bias", "mean", "var")}
    known["w"] = rng.standard_normal((4, 3, 3, 3)).astype(F)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "gain", "bias", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    file = agree(saved(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y"], known), rng, rtol=1e-4)
    assert {n.op for n in file.imported.program.nodes} >= {"conv2d", "relu"}


def encoder(folder: Path, rng: np.random.Generator) -> Path:
    """Embedding, attention as exporters write it (shapes computed, scale as a quotient, a mask), GELU by erf, norms in pieces."""
    d, h, n = 16, 2, 8
    known: dict[str, Any] = {w: rng.standard_normal((d, d)).astype(F) / 4 for w in ("wq", "wk", "wv", "wo", "w1", "w2")} | {
        "table": rng.standard_normal((10, d)).astype(F),
        "gain": np.ones(d, F),
        "bias": np.zeros(d, F),
    }
    known |= {"heads": i(0, 0, h, d // h), "root": F(np.sqrt(d // h)), "two": F(2), "half": F(0.5), "one": F(1), "eps": F(1e-5)}
    known |= {"root2": F(np.sqrt(2)), "last": i(-1), "dd": i(d), "first": i(0), "second": i(2)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Concat", ["shape", "dd"], ["flat"], axis=0),
    ]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]))
        nodes.append(helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]))
        nodes.append(helper.make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["q2", "k2"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v2"], ["a"]),
        helper.make_node("Transpose", ["a"], ["a1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["a1", "flat"], ["a2"]),
        helper.make_node("MatMul", ["a2", "wo"], ["o"]),
        helper.make_node("Add", ["x", "o"], ["r"]),
        helper.make_node("ReduceMean", ["r", "last"], ["mean"]),
        helper.make_node("Sub", ["r", "mean"], ["c"]),
        helper.make_node("Pow", ["c", "two"], ["c2"]),
        helper.make_node("ReduceMean", ["c2", "last"], ["var"]),
        helper.make_node("Add", ["var", "eps"], ["var1"]),
        helper.make_node("Sqrt", ["var1"], ["dev"]),
        helper.make_node("Div", ["c", "dev"], ["n0"]),
        helper.make_node("Mul", ["n0", "gain"], ["n1"]),
        helper.make_node("Add", ["n1", "bias"], ["n"]),
        helper.make_node("MatMul", ["n", "w1"], ["u"]),
        helper.make_node("Div", ["u", "root2"], ["u1"]),
        helper.make_node("Erf", ["u1"], ["u2"]),
        helper.make_node("Add", ["u2", "one"], ["u3"]),
        helper.make_node("Mul", ["u", "u3"], ["u4"]),
        helper.make_node("Mul", ["u4", "half"], ["g"]),
        helper.make_node("MatMul", ["g", "w2"], ["f"]),
        helper.make_node("Add", ["n", "f"], ["y"]),
    ]
    return saved(folder, nodes, {"ids": (1, n)}, ["y"], known, {"ids": "int64"})


def test_what_exporters_take_apart_is_put_together(tmp_path: Path, rng: np.random.Generator) -> None:
    file = agree(encoder(tmp_path, rng), rng, rtol=1e-4)
    ops = [n.op for n in file.imported.program.nodes]
    assert {"embedding", "matmul", "softmax", "layer_norm", "gelu"} <= set(ops)
    assert not {"erf", "sqrt", "div"} & set(ops)
    assert "table" in file.imported.params


@pytest.mark.slow
def test_an_onnx_model_is_optimized_and_run(tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from fuser.cli import main

    path = encoder(tmp_path, rng)
    assert main(["optimize", str(path), "-o", str(tmp_path / "out"), "--on", "cpu", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert "embedding" in out
    assert "differs from the ONNX model in numpy by" in out


KNOWN_AT_IMPORT = ("scales", "roi", "values")
WIDER = {"Cast", "CastLike"}
"""Operators whose cases round to bfloat16, which programs compute in float64."""


@pytest.mark.slow
def test_the_cases_of_onnx_itself() -> None:
    """Every case of an operator that has a rule: right, or refused with a reason."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"
    wrong, right = [], 0
    for case in sorted(folder.iterdir()):
        model = onnx.load(case / "model.onnx")
        if model.graph.node[0].op_type not in set(RULES) - WIDER:
            continue
        data = {v.name: f for n, v in enumerate(model.graph.input) if (f := case / "test_data_set_0" / f"input_{n}.pb").exists()}
        try:
            given = {n: numpy_helper.to_array(onnx.load_tensor(str(f))) for n, f in data.items()}
            wanted = [
                numpy_helper.to_array(onnx.load_tensor(str(case / "test_data_set_0" / f"output_{n}.pb")))
                for n in range(len(model.graph.output))
            ]
        except (TypeError, ValueError):  # sequences, strings
            continue
        shapes = [n for n in list(given)[1:] if given[n].dtype == np.int64 or n in KNOWN_AT_IMPORT or not given[n].shape]
        model.graph.initializer.extend(numpy_helper.from_array(given[n], n) for n in shapes)
        inputs = [v for v in model.graph.input if v.name not in shapes]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        try:
            read = _Importer(case.name, model, {}).run()
        except FuserError:
            continue
        values = {n: given[n].reshape(read.program[n].shape) for n in read.inputs if n in given}
        got = read.program.evaluate(values | dict(read.known))
        for y, z in zip(got.values(), wanted, strict=True):
            same = np.allclose(np.reshape(y, z.shape).astype(float), z.astype(float), rtol=2e-3, atol=1e-4, equal_nan=True)
            wrong += [] if same else [case.name]
        right += 1
    assert not wrong
    assert right > 600


def bad(folder: Path) -> dict[str, tuple[Path, str]]:
    def node(op: str, name: str = "here", **attrs: Any) -> Path:
        (folder / name).mkdir()
        return saved(folder / name, [helper.make_node(op, ["x"], ["y"], name, **attrs)], {"x": (1, 4)}, ["y"])

    (folder / "dynamic").mkdir()
    dynamic = saved(folder / "dynamic", [helper.make_node("Relu", ["x"], ["y"])], {"x": ("batch", 4)}, ["y"])
    (folder / "huge").mkdir()
    grown = [helper.make_node("ConstantOfShape", ["size"], ["z"], "much"), helper.make_node("Add", ["x", "z"], ["y"])]
    huge = saved(folder / "huge", grown, {"x": (1, 4)}, ["y"], {"size": i(2**20, 2**20)})
    (folder / "short").mkdir()
    short = saved(folder / "short", [helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (1, 4)}, ["y"], {"w": np.ones((9, 4), F)})
    onnx.save(onnx.load(short), short, save_as_external_data=True, location="w", size_threshold=0)
    (short.parent / "w").write_bytes(bytes(80))
    text = folder / "text.onnx"
    text.write_text("{}")
    return {
        "unknown": (node("Det", "top"), r"the node 'top' \(Det\): the operator Det has no counterpart"),
        "option": (node("Selu", "odd", alpha=2.0), r"the node 'odd' \(Selu\) has alpha=2"),
        "dynamic": (dynamic, "dimension 0 of the input 'x' is batch"),
        "huge": (huge, "the node 'much' .* makes a constant of about 1e\\+12 elements"),
        "short": (short, "the tensor 'w' cannot be read"),
        "text": (text, "ONNX cannot load it"),
        "absent": (folder / "absent.onnx", "No such file"),
    }


@pytest.mark.parametrize("name", ["unknown", "option", "dynamic", "huge", "short", "text", "absent"])
def test_what_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    path, reason = bad(tmp_path)[name]
    with pytest.raises(UnsupportedError if name in ("unknown", "option", "huge") else ModelFileError, match=reason) as found:
        read_model_file(path)
    assert str(path) in found.value.message


def test_damaged_files_are_errors(tmp_path: Path, rng: np.random.Generator) -> None:
    good = encoder(tmp_path, rng).read_bytes()
    path = tmp_path / "damaged.onnx"
    for _ in range(40):
        path.write_bytes(damaged_bytes(rng, good))
        try:
            read_model_file(path)
        except FuserError as error:
            assert "damaged.onnx" in error.message


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "known", "part"),
    [
        ("Softmax", (4, 8), {"axis": 7}, [], r"the axes \[7\] of 2 dimensions"),
        ("ReduceMax", (4, 8), {"axes": [1, -1]}, [], r"the axes \[1, -1\]"),
        ("Flatten", (4, 8), {"axis": 3}, [], "of 2 dimensions"),
        ("Slice", (4, 8), {}, [i(0), i(2), i(5)], "of 2 dimensions"),
        ("Slice", (4, 8), {}, [i(0, 0), i(2), i(0)], "do not fit each other"),
        ("Slice", (4, 8), {}, [i(0), i(2), i(0), i(0)], "do not fit each other"),
        ("Transpose", (4, 8), {"perm": [0, 1, 2]}, [], "of 2 dimensions"),
        ("Transpose", (4, 8), {"perm": [0]}, [], "1 axis of 2"),
        ("SpaceToDepth", (1, 2, 4, 4), {"blocksize": 0}, [], "do not fit each other"),
        ("BatchNormalization", (2, 3), {}, [F(np.ones(2))] * 4, "for 3 channels"),
        ("InstanceNormalization", (2, 3, 4), {}, [F(np.ones((3, 4)))] * 2, "for 3 channels"),
        ("GatherElements", (4, 8), {}, [i(1, 2)], "along the axis 0"),
        ("ScatterElements", (4, 8), {}, [np.zeros((2, 8), np.int64), F(np.ones((2, 7)))], "for the elements"),
        ("MaxPool", (1, 2, 4, 4), {"kernel_shape": [2, 2], "auto_pad": "SOME"}, [], "auto_pad='SOME'"),
        ("MaxPool", (1, 2, 4, 4, 4), {"kernel_shape": [2], "strides": [1, 1]}, [], "do not fit each other"),
    ],
)
def test_what_does_not_fit_is_said_by_its_node(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any], known: list[Any], part: str, tmp_path: Path
) -> None:
    names = [f"k{n}" for n in range(len(known))]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    path = saved(tmp_path, [node], {"x": shape}, ["y"], dict(zip(names, known, strict=True)), opset=17)
    with pytest.raises(FuserError, match=rf"the node 'y' \({op}\).*{part}"):
        read_model_file(path)
