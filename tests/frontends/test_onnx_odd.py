"""ONNX files that the checker passes and few exporters write: outputs listed twice, odd names, dtypes that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto  # noqa: E402
from onnx import helper  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from fuser.errors import ModelFileError  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.model_file import read_model_file  # noqa: E402
from tests.frontends.test_onnx import agree  # noqa: E402
from tests.frontends.test_onnx import saved  # noqa: E402

N = helper.make_node
RELU = N("Relu", ["x"], ["h"])
X = (3, 4)


def again(path: Path, change: Any) -> Path:
    """The file with a change to its model."""
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("nodes", "outputs", "names"),
    [
        ([RELU], ["h", "h"], ("h", "h copy")),
        ([RELU, N("Identity", ["h"], ["y"])], ["h", "y"], ("h", "y")),
        ([RELU, N("Identity", ["h"], ["y"])], ["y", "h"], ("y", "h")),
        ([RELU, N("Reshape", ["h", "shape"], ["y"])], ["y"], ("y",)),
        ([RELU, N("Transpose", ["h"], ["t"]), N("Transpose", ["t"], ["y"])], ["y", "h"], ("y", "h")),
        ([RELU, N("Relu", ["x"], ["g"])], ["g", "h", "g"], ("g", "h", "g copy")),
        ([N("Identity", ["x"], ["y"])], ["y", "x", "x"], ("y", "x copy", "x copy copy")),
    ],
)
def test_every_output_has_its_name_and_a_tensor_of_its_own(nodes: Any, outputs: Any, names: Any, tmp_path: Path) -> None:
    path = saved(tmp_path, nodes, {"x": X}, outputs, {"shape": np.array([0, -1])})
    file = agree(path, np.random.default_rng(0))
    assert file.imported.program.outputs == names
    assert len(file.original.original_outputs({"x": np.ones(X, np.float32)})) == len(names)


@pytest.mark.parametrize("name", ["self", "outputs", "a b/c:0", "é'\"", "\n", ""])
def test_names_that_python_knows_or_does_not(name: str, tmp_path: Path) -> None:
    y = name or "class"
    agree(saved(tmp_path, [N("Mul", ["x", "x"], [y])], {"x": X}, [y]), np.random.default_rng(0))
    agree(saved(tmp_path, [N("Mul", [y, y], ["y"])], {y: X}, ["y"]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("node", "inputs", "dtypes", "said"),
    [
        (N("Exp", ["x"], ["y"]), {"x": X}, {"x": "int64"}, "reads int64, which ONNX's Exp does not take"),
        (N("Not", ["x"], ["y"]), {"x": X}, {}, "reads float32"),
        (N("Gather", ["x", "i"], ["y"]), {"x": X, "i": (2,)}, {}, "reads float32"),
        (N("Add", ["x", "z"], ["y"]), {"x": X, "z": X}, {"x": "int64"}, "reads int64 and float32, which ONNX's Add takes to be"),
        (N("MatMul", ["x", "z"], ["y"]), {"x": X, "z": (4, 2)}, {"x": "float16"}, "reads float16 and float32"),
        (N("Sub", ["x", "x"], ["y"]), {"x": X}, {"x": "bool"}, "reads bool"),
        (N("Erf", ["x"], ["y"]), {"x": X}, {"x": "int32"}, "is of int32"),
        (N("Einsum", ["x", "x"], ["y"], equation="ij,ij->i"), {"x": X}, {"x": "int32"}, "multiplies tensors of int32"),
    ],
)
def test_dtypes_that_an_operator_does_not_take_are_refused(
    node: Any, inputs: Any, dtypes: Any, said: str, tmp_path: Path
) -> None:
    """They ended in errors of torch's, with a traceback, when the kernels ran."""
    with pytest.raises(UnsupportedError, match=f"'y' .*{said}"):
        read_model_file(saved(tmp_path, [node], inputs, ["y"], dtypes=dtypes, opset=20))


def test_numbers_of_one_element_widen_a_power(tmp_path: Path) -> None:
    for e in (1, 2, 3):
        path = saved(tmp_path, [N("Pow", ["x", "e"], ["y"])], {"x": X}, ["y"], {"e": np.full((1, 1, 1), e, np.float32)})
        assert agree(path, np.random.default_rng(0)).imported.program["y"].shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("float64", -1e39, 1e39), ("float32", np.inf, 5), ("float32", -np.inf, np.nan)]
)
def test_clip_has_the_bounds_of_its_dtype(dtype: str, low: float, high: float, tmp_path: Path) -> None:
    bounds = {"a": np.array(low, dtype), "b": np.array(high, dtype)}
    path = saved(tmp_path, [N("Clip", ["x", "a", "b"], ["y"])], {"x": X}, ["y"], bounds)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    again(path, lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", code))
    file = read_model_file(path)
    values = {"x": np.linspace(-2, 2, 12).reshape(X).astype(dtype) * (1e39 if dtype == "float64" else 1)}
    (got,) = file.imported.program.evaluate(values | dict(file.imported.params)).values()
    np.testing.assert_array_equal(got, file.original.original_outputs(values)[0])


def test_whole_numbers_go_through_gemm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    known = {"w": rng.integers(-9, 9, (5, 3)), "b": rng.integers(-9, 9, 5)}
    nodes = [N("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1)]
    agree(saved(tmp_path, nodes, {"x": X}, ["y"], known, {"x": "int64"}), rng)
    with pytest.raises(UnsupportedError, match=r"alpha=0\.5"):
        read_model_file(saved(tmp_path, [N("Gemm", ["x", "w"], ["y"], alpha=0.5)], {"x": (2, 5)}, ["y"], known, {"x": "int64"}))


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_roots_and_logarithms_of_whole_numbers_are_cut_off(op: str, tmp_path: Path) -> None:
    path = saved(tmp_path, [N(op, ["x", "a"], ["y"])], {"x": X}, ["y"], {"a": np.array([1])}, {"x": "int32"}, opset=18)
    file = read_model_file(path)
    program, values = file.imported.program, {"x": np.arange(1, 13, dtype=np.int32).reshape(X)}
    assert program["y"].dtype == "int32" and program.nodes[-1].op == "cast"
    (got,) = program.evaluate(values | dict(file.imported.params)).values()
    x = values["x"].astype(np.float64)
    sums = {"ReduceL2": x**2, "ReduceLogSum": x, "ReduceLogSumExp": np.exp(x)}[op].sum(1, keepdims=True)
    np.testing.assert_array_equal(np.trunc(got), np.trunc(np.sqrt(sums) if op == "ReduceL2" else np.log(sums)))


@pytest.mark.parametrize("reverse", [0, 1])
def test_what_is_in_front_of_an_infinity_is_finite(reverse: int, tmp_path: Path) -> None:
    node = N("CumSum", ["x", "a"], ["y"], exclusive=1, reverse=reverse)
    file = read_model_file(saved(tmp_path, [node], {"x": X}, ["y"], {"a": np.array(1)}))
    values = {"x": np.array([[1, np.inf, 2, 3], [7, 1, 2, 3], [1, 2, 3, 4]], np.float32)}
    (got,) = file.imported.program.evaluate(values | dict(file.imported.params)).values()
    np.testing.assert_array_equal(got, file.original.original_outputs(values)[0])


@pytest.mark.parametrize("largest", [0, 1])
def test_the_first_of_equal_elements_is_the_first_of_the_largest(largest: int, tmp_path: Path) -> None:
    """As ONNX says; torch's topk promises nothing."""
    node = N("TopK", ["x", "k"], ["v", "i"], largest=largest)
    file = read_model_file(saved(tmp_path, [node], {"x": (3, 40)}, ["v", "i"], {"k": np.array([7])}))
    assert [n.op for n in file.imported.program.nodes] == ["argsort", "slice", "gather"]
    values = {"x": np.random.default_rng(0).integers(0, 3, (3, 40)).astype(np.float32)}
    wanted = file.original.original_outputs(values)
    for y, z in zip(file.imported.program.evaluate(values | dict(file.imported.params)).values(), wanted, strict=True):
        np.testing.assert_array_equal(y, z)
    with pytest.raises(UnsupportedError, match="takes 41 of 40 elements"):
        read_model_file(saved(tmp_path, [node], {"x": (3, 40)}, ["v", "i"], {"k": np.array([41])}))


def test_an_initializer_of_a_branch_hides_that_around_it_in_the_branch_alone(tmp_path: Path) -> None:
    two = numpy_helper.from_array(np.float32(2), "two")
    results = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, X)] for n in "ab"]
    branches = (
        helper.make_graph([N("Mul", ["x", "two"], ["a"])], "then", [], results[0], [two]),
        helper.make_graph([N("Neg", ["x"], ["b"])], "else", [], results[1]),
    )
    nodes = [N("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]), N("Mul", ["y", "two"], ["z"])]
    path = saved(tmp_path, nodes, {"x": X}, ["z"], {"c": np.array(True), "two": np.float32(100)})
    file = read_model_file(path)
    values = {"x": np.ones(X, np.float32)}
    (got,) = file.imported.program.evaluate(values | dict(file.imported.params)).values()
    np.testing.assert_array_equal(got, np.full(X, 200))


def test_nothing_is_put_in_front_of_a_tensor(tmp_path: Path) -> None:
    known = {"none": np.zeros((0, 4), np.float32)}
    nodes = [N("Concat", ["none", "x"], ["y"], axis=0), RELU]
    agree(saved(tmp_path, nodes, {"x": X}, ["y", "h"], known), np.random.default_rng(0))


def test_what_the_checker_passes_and_nothing_can_read(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing computes the output 'y'"):
        read_model_file(saved(tmp_path, [RELU], {"x": X}, ["y"]))
    path = saved(tmp_path, [RELU], {"x": X}, ["h"])
    again(path, lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99))
    with pytest.raises(UnsupportedError, match="the input 'x' has dtype 99"):
        read_model_file(path)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, X))
    again(path, lambda m: m.graph.input[0].type.CopyFrom(kind))
    with pytest.raises(UnsupportedError, match="the input 'x' is no tensor but sequence"):
        read_model_file(path)
    values, places = numpy_helper.from_array(np.ones(1, np.float32), "w"), numpy_helper.from_array(np.array([5]), "i")
    path = saved(tmp_path, [N("Add", ["x", "w"], ["y"])], {"x": X}, ["y"])
    again(path, lambda m: m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, X)))
    with pytest.raises(UnsupportedError, match="the tensor 'w' is sparse"):
        read_model_file(path)
