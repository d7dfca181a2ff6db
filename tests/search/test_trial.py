"""What the kernels of a model are compared with."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.agreement import tolerance  # noqa: E402
from fuser.device import load_device  # noqa: E402
from fuser.errors import EnvironmentError_  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.imported import Imported  # noqa: E402
from fuser.frontends.model_file import ONNX  # noqa: E402
from fuser.frontends.model_file import ModelFile  # noqa: E402
from search.trial import _tensor  # noqa: E402
from search.trial import accepted  # noqa: E402
from search.trial import wanted_of  # noqa: E402
from search.trial import where_tried  # noqa: E402


class Lacking:
    """A model that its own reference does not run."""

    def original_outputs(self, _: object) -> None:
        raise UnsupportedError("the reference lacks it")


def test_a_model_that_its_reference_lacks_is_compared_with_torch() -> None:
    b = fuser.Builder("model")
    program = b.build(Y=b.relu(b.input("X", (4, 4), "float32") * b.input("W", (4, 4), "float32")))
    known = Imported(program, {"W": np.full((4, 4), -2, np.float32)}, ("X",))
    x = torch.arange(-8.0, 8).reshape(4, 4)
    wanted, called = wanted_of(ModelFile("m.onnx", ONNX, known, Lacking()), {"X": x.numpy()}, {"X": x}, "cpu")
    assert called == "the ONNX model's operators by torch (the reference lacks it)"
    assert torch.equal(wanted["Y"], torch.relu(x * -2))


def test_an_input_without_dimensions_has_none() -> None:
    """Models of ONNX and Relay with such an input could not be run."""
    b = fuser.Builder("model")
    program = b.build(Y=b.op("mul", b.input("X", (2,), "float32"), b.input("S", (), "float32")))
    assert _tensor(torch, program, "S", np.array(3, np.float32)).shape == ()
    assert _tensor(torch, program, "X", np.ones(4, np.float32)[::-2]).tolist() == [1, 1]


def test_numbers_between_whole_ones_are_rounded() -> None:
    """A model that reads bytes and gives floats was wrong by the rounding of one operation."""
    b = fuser.Builder("model")
    program = b.build(Y=b.op("sigmoid", b.op("cast", b.input("X", (4,), "uint8"), dtype="float32")))
    assert accepted(program) == 2 * tolerance(["float32"])
    whole = fuser.Builder("whole")
    assert accepted(whole.build(Y=whole.op("neg", whole.input("X", (4,), "int32")))) == 0
    half = fuser.Builder("half")
    y = half.op("cast", half.input("X", (4,), "float32"), dtype="float16")
    assert accepted(half.build(Y=half.op("cast", y, dtype="float32"))) == 2 * tolerance(["float32"])


def test_without_a_gpu_the_way_out_is_an_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.where.gpu_at_hand", lambda _: None)
    b = fuser.Builder("model")
    known = Imported(b.build(Y=b.relu(b.input("X", (4, 4)))), {}, ("X",))
    with pytest.raises(EnvironmentError_, match="no GPU here") as found:
        where_tried("cuda", load_device("h200"), ModelFile("m.onnx", ONNX, known))
    assert found.value.hint.startswith("--on cpu")
