"""Parameter files: TVM's own file, round trips, and damage of every kind."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays

from fuser.errors import ModelFileError
from tests.paths import RELAY
from tests.tvm_bridge.relay_writer import write_params
from tvm_bridge.read.relay_params import PARAMS_MAGIC
from tvm_bridge.read.relay_params import TENSOR_MAGIC
from tvm_bridge.read.relay_params import from_bfloat16
from tvm_bridge.read.relay_params import read_params
from tvm_bridge.read.relay_params import read_params_typed
from tvm_bridge.read.relay_params import round_bfloat16

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")


def test_the_file_of_tvm_is_read_and_written_byte_by_byte(tmp_path: Path) -> None:
    source = RELAY / "encoder_torch.params"
    params = read_params(source)
    assert len(params) == 16
    assert params["aten::linear_4.weight"].shape == (32, 16)
    write_params(tmp_path / "again.params", params)
    assert (tmp_path / "again.params").read_bytes() == source.read_bytes()


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(lambda d: arrays(d, array_shapes(min_dims=0, max_side=4))),
        max_size=3,
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, params: dict[str, np.ndarray]) -> None:
    path = tmp_path_factory.mktemp("params") / "p"
    write_params(path, params)
    found = read_params(path)
    assert list(found) == list(params)
    for name, value in params.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_truncated_or_changed_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = (RELAY / "encoder_onnx.params").read_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    path = tmp_path_factory.mktemp("params") / "p"
    path.write_bytes(cut)
    with pytest.raises(ModelFileError, match=r"at byte|magic"):
        read_params(path)
    position, value = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
    try:
        read_params(path)  # a changed weight cannot be noticed, but nothing else than our error may come
    except ModelFileError as error:
        assert str(path) in error.message


def test_other_files_and_extra_bytes(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(ModelFileError, match="wrong magic"):
        read_params(path)
    path.write_bytes((RELAY / "encoder_onnx.params").read_bytes() + b"x")
    with pytest.raises(ModelFileError, match="1 bytes follow the last tensor"):
        read_params(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_params(tmp_path / "missing")


def test_bfloat16_is_exact_in_float32(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x3FC0, 0xC000, 0x7F80], np.uint16)
    name = b"w"
    head = struct.pack("<QQQQ", PARAMS_MAGIC, 0, 1, len(name)) + name + struct.pack("<Q", 1)
    tensor = struct.pack("<QQiiiBBHqq", TENSOR_MAGIC, 0, 1, 0, 1, 4, 16, 1, 4, 8) + bits.tobytes()
    (tmp_path / "p").write_bytes(head + tensor)
    value, dtype = read_params_typed(tmp_path / "p")["w"]
    assert dtype == "bfloat16"
    np.testing.assert_array_equal(value, np.array([1.0, 1.5, -2.0, np.inf], np.float32))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100))
def test_rounding_to_bfloat16_is_to_the_nearest(x: float) -> None:
    rounded = float(round_bfloat16(np.array([x], np.float32))[0])
    assert float(round_bfloat16(np.array([rounded], np.float32))[0]) == rounded
    bits = np.array([rounded], np.float32).view(np.uint32)[0] >> 16
    for other in (max(int(bits) - 1, 0), int(bits) + 1):
        neighbour = float(from_bfloat16(np.array([other], np.uint16))[0])
        assert not np.isfinite(neighbour) or abs(x - rounded) <= abs(x - neighbour)
