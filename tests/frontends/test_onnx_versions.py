"""Nodes of old versions of ONNX, dtypes that numpy lacks, and what of a file is not computed by kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto  # noqa: E402
from onnx import helper  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.model_file import read_model_file  # noqa: E402
from tests.frontends.test_onnx import agree  # noqa: E402
from tests.frontends.test_onnx import i  # noqa: E402
from tests.frontends.test_onnx import saved  # noqa: E402

X = (3, 3, 3)
F = np.float32


def floats(numbers: list[float]) -> Any:
    return np.array(numbers, F)


def both(path: Path, values: dict[str, Any], wanted: Any) -> Any:
    """The program and the reference give what is wanted."""
    file = read_model_file(path)
    (got,) = file.imported.program.evaluate(values | dict(file.imported.params)).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    (reference,) = file.original.original_outputs(values)
    assert reference.shape == got.shape
    np.testing.assert_allclose(reference, wanted, rtol=1e-5, atol=1e-6)
    return file


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("op", "axis"), [("Add", 0), ("Sub", 1), ("Mul", 2), ("Div", None), ("Greater", 0), ("Pow", 1)])
def test_operands_of_old_are_spread_from_an_axis(
    op: str, axis: int | None, known: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, y = abs(rng.standard_normal(X)).astype(F), abs(rng.standard_normal(3) + 3).astype(F)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    node = helper.make_node(op, ["x", "y"], ["z"], broadcast=1, **attributes)
    path = saved(tmp_path, [node], {"x": X} if known else {"x": X, "y": (3,)}, ["z"], {"y": y} if known else {}, opset=6)
    spread = y[:, None, None] if axis == 0 else y[:, None] if axis == 1 else y
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Greater": np.greater, "Pow": np.power}
    both(path, {"x": x} if known else {"x": x, "y": y}, function[op](x, spread))


def test_slopes_and_joints_of_old(tmp_path: Path, rng: np.random.Generator) -> None:
    x, slope = rng.standard_normal(X).astype(F), floats([0.1, 0.2, 0.3])
    path = saved(tmp_path, [helper.make_node("PRelu", ["x", "s"], ["y"])], {"x": X}, ["y"], {"s": slope}, opset=6)
    both(path, {"x": x}, np.where(x < 0, x * slope[:, None], x))
    path = saved(tmp_path, [helper.make_node("Concat", ["x", "x"], ["y"])], {"x": X}, ["y"], opset=3)
    assert read_model_file(path).imported.program["y"].shape == (3, 6, 3)
    path = saved(tmp_path, [helper.make_node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0])], {"x": X}, ["y"], opset=7)
    assert read_model_file(path).imported.program["y"].shape == (3, 3, 6)
    path = saved(tmp_path, [helper.make_node("Cast", ["x"], ["y"], to="FLOAT16")], {"x": X}, ["y"], opset=5)
    assert read_model_file(path).imported.program["y"].dtype == "float16"
    path = saved(tmp_path, [helper.make_node("Tile", ["x", "n", "a"], ["y"])], {"x": X}, ["y"], {"n": i(2), "a": i(1)}, opset=5)
    with pytest.raises(UnsupportedError, match=r"the node 'y' \(Tile\) has the form of opset 1"):
        read_model_file(path)


@pytest.mark.parametrize("opset", [6, 8, 9, 12, 13, 15])
def test_batch_normalization_takes_the_statistics_that_it_is_given(opset: int, tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4)).astype(F)
    known = {n: (abs(rng.standard_normal(3)) + 0.5).astype(F) for n in ("gain", "bias", "mean", "var")}
    path = saved(
        tmp_path, [helper.make_node("BatchNormalization", ["x", *known], ["y"])], {"x": x.shape}, ["y"], known, opset=opset
    )
    given = (torch.from_numpy(known[n]) for n in ("mean", "var", "gain", "bias"))
    both(path, {"x": x}, torch.nn.functional.batch_norm(torch.from_numpy(x), *given).numpy())


def test_batch_normalization_that_trains_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("BatchNormalization", ["x", *"abcd"], ["y", *"mvnw"], "here")
    known = dict.fromkeys("abcd", np.ones(3, F))
    path = saved(tmp_path, [node], {"x": (2, 3)}, ["y"], known, opset=9)
    with pytest.raises(UnsupportedError, match=r"'here' .* it trains"):
        read_model_file(path)


@pytest.mark.parametrize(
    ("attributes", "start"),
    [
        ({"output_shape": [6, 6]}, 1),
        ({"output_shape": [6, 6], "auto_pad": "SAME_UPPER"}, 0),
        ({"output_shape": [6, 6], "output_padding": [1, 1]}, 1),
        ({"output_shape": [5, 5], "auto_pad": "SAME_LOWER"}, 1),
        ({"auto_pad": "SAME_UPPER"}, 0),
        ({"auto_pad": "VALID"}, 0),
        ({"pads": [1, 0, 0, 1]}, None),
        ({"group": 2}, 0),
    ],
)
def test_convolutions_turned_round_lose_their_borders_where_they_should(
    attributes: dict[str, Any], start: int | None, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, groups = rng.standard_normal((1, 2, 3, 3)).astype(F), attributes.get("group", 1)
    w = rng.standard_normal((2, 2, 3, 3)).astype(F)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **attributes)
    path = saved(tmp_path, [node], {"x": x.shape}, ["y"], {"w": w}, opset=11)
    full = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), stride=2, groups=groups, output_padding=attributes.get("output_padding", 0)
    ).numpy()
    size = attributes.get("output_shape", [6] if attributes.get("auto_pad", "").startswith("SAME") else [7])[0]
    both(path, {"x": x}, full[:, :, 1:, :-1] if start is None else full[:, :, start : start + size, start : start + size])


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_what_old_nodes_compute_of_known_values_is_folded(opset: int, tmp_path: Path, rng: np.random.Generator) -> None:
    clip = (
        helper.make_node("Clip", ["total"], ["c"], min=0.0) if opset < 11 else helper.make_node("Clip", ["total", "zero"], ["c"])
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Unsqueeze", ["n"], ["n1"], axes=[0]),
        helper.make_node("Concat", ["n1", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("ReduceSum", ["w"], ["total"], axes=[0], keepdims=0),
        clip,
        helper.make_node("Mul", ["flat", "c"], ["y"]),
    ]
    known = {"first": np.array(0), "rest": i(-1), "w": rng.standard_normal((2, 9)).astype(F), "zero": np.array(0, F)}
    agree(saved(tmp_path, nodes, {"x": X}, ["y"], known, opset=opset), rng)


def bfloat(*numbers: float) -> Any:
    return helper.make_tensor("t", TensorProto.BFLOAT16, [len(numbers)], numbers)


def test_constants_of_bfloat16(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value=bfloat(2.0, 3.3)),
        helper.make_node("Cast", ["w"], ["d"], to=TensorProto.BFLOAT16),
        helper.make_node("Add", ["d", "d"], ["e"]),
        helper.make_node("Mul", ["x", "c"], ["z"]),
        helper.make_node("Mul", ["z", "e"], ["y"]),
    ]
    dtypes = dict.fromkeys("xy", "bfloat16")
    file = read_model_file(saved(tmp_path, nodes, {"x": (2,)}, ["y"], {"w": floats([1.1, 2.7])}, dtypes)).imported
    assert {t.dtype for t in file.program.tensors} == {"bfloat16"}
    assert sorted(x.tolist() for x in file.params.values()) == [[2.0, 3.296875], [2.1875, 5.375]]


def test_casts_like_a_tensor_of_one_element(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("CastLike", ["x", "t"], ["y"])], {"x": (2,)}, ["y"])
    for like, dtype in ((bfloat(1.0), "bfloat16"), (helper.make_tensor("t", TensorProto.FLOAT8E5M2, [1], [1.0]), "")):
        model = onnx.load(path)
        model.graph.initializer.append(like)
        onnx.save(model, tmp_path / "like.onnx")
        if dtype:
            assert read_model_file(tmp_path / "like.onnx").imported.program["y"].dtype == dtype
            continue
        with pytest.raises(UnsupportedError, match=r"\(CastLike\).*float8e5m2"):
            read_model_file(tmp_path / "like.onnx")


def test_nodes_that_lead_nowhere_are_not_read(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["d"]),
        helper.make_node("Add", ["d", "d"], ["e"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    agree(saved(tmp_path, nodes, {"x": X}, ["y"]), rng)


def test_a_loop_over_known_values_reads_what_is_around_it(tmp_path: Path, rng: np.random.Generator) -> None:
    flag, number, pair = TensorProto.BOOL, TensorProto.INT64, [2]
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["a", "k"], ["a2"])],
        "body",
        [value("i", number, []), value("c", flag, []), value("a", TensorProto.FLOAT, pair)],
        [value("c2", flag, []), value("a2", TensorProto.FLOAT, pair)],
    )
    nodes = [helper.make_node("Loop", ["n", "t", "z"], ["l"], body=body), helper.make_node("Mul", ["x", "l"], ["y"])]
    known = {"n": np.array(3), "t": np.array(True), "z": np.zeros(2, F), "k": floats([1, 2])}
    file = agree(saved(tmp_path, nodes, {"x": (2,)}, ["y"], known), rng)
    assert [x.tolist() for x in file.imported.params.values()] == [[3, 6]]
    path = saved(tmp_path, nodes, {"x": (2,), "k": (2,)}, ["y"], {n: v for n, v in known.items() if n != "k"})
    with pytest.raises(UnsupportedError, match=r"'l' \(Loop\) reads 'k' in its body, which is computed"):
        read_model_file(path)


def test_numbers_alone_have_no_dimension(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["dot"]),
        helper.make_node("ArgMax", ["x"], ["last"], keepdims=0, select_last_index=1),
        helper.make_node("Identity", ["three"], ["same"]),
    ]
    agree(saved(tmp_path, nodes, {"x": (5,)}, ["dot", "last", "same"], {"three": np.array(3, F)}, {"last": "int64"}), rng)


def test_products_of_whole_numbers(tmp_path: Path) -> None:
    dtypes = dict.fromkeys("xwy", "int32")
    w = np.arange(20, dtype=np.int32).reshape(4, 5) - 10
    path = saved(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3, 4)}, ["y"], {"w": w}, dtypes)
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4) - 7
    both(path, {"x": x}, x @ w)
    path = saved(tmp_path, [helper.make_node("MatMul", ["x", "x"], ["y"], "much")], {"x": (999, 999)}, ["y"], {}, dtypes)
    with pytest.raises(UnsupportedError, match=r"'much' \(MatMul\) multiplies large matrices of int32"):
        read_model_file(path)


def test_the_largest_of_bytes_has_a_border(tmp_path: Path) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    path = saved(tmp_path, [node], {"x": (1, 1, 4, 4)}, ["y"], {}, {"x": "uint8", "y": "uint8"}, opset=12)
    x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    both(path, {"x": x}, np.pad(x[:, :, 1:, 1:], ((0, 0), (0, 0), (0, 1), (0, 1)), "edge"))


def test_initializers_are_read_where_they_are_named(tmp_path: Path) -> None:
    """One whose dtype no kernel has is refused where something reads it, by its name."""
    path = saved(tmp_path, [helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2,)}, ["y"], {"w": np.zeros(2, np.complex64)})
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.complex64), "unread"))
    onnx.save(model, path)
    with pytest.raises(UnsupportedError, match="the tensor 'w' has dtype complex64"):
        read_model_file(path)
