"""``--buckets``: files whose sizes are open, of torch.export and ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fuser
from fuser.cli import main
from fuser.errors import UsageError
from fuser.frontends.model_file import read_sized_file
from search.buckets.sizes import all_padded
from search.buckets.sizes import parsed
from search.buckets.sizes import resolved
from tests.paths import RELAY


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "head.pt2"
    size = torch.export.Dim("rows", min=1, max=64)
    torch.export.save(torch.export.export(Head().half(), (torch.randn(9, 32).half(),), dynamic_shapes={"x": {0: size}}), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, Any]:
    code = main([*map(str, args), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_bucket_is_in_the_report_and_holds(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(capsys, "optimize", exported, "--buckets", "x:0=16,48", "--on", "none", "-j", "1", "-o", tmp_path)
    assert code == 0
    assert [b["sizes"] for b in report["buckets"]] == [{"x:0": 16}, {"x:0": 48}]
    assert report["buckets"][-1]["plan"] == report["plan"]
    assert [(tmp_path / b["plan"]["drawing"]).is_file() for b in report["buckets"]] == [True, True]
    code, found = run(capsys, "verify", tmp_path / "report.json")
    assert code == 0
    assert {c["kernel"] for c in found["kernels"]} == set(report["kernels"])
    assert len(found["kernels"]) == 2
    code, explained = run(capsys, "explain", exported, "--buckets", "x:0=16,48")
    assert code == 0
    for of, there in zip(explained["buckets"], report["buckets"], strict=True):
        assert (of["sizes"], of["plan"]["us"]) == (there["sizes"], there["plan"]["us"])


ODD = [
    (("x:0=a",), "names no sizes"),
    (("x:0",), "names no sizes"),
    (("x:1=8",), "'x:1' is no open dimension"),
    (("x:0=8,128",), "cannot be 128"),
    (("x:0=8", "y:0=8"), "'y:0' is no open dimension"),
]


@pytest.mark.parametrize(("options", "text"), ODD)
def test_odd_buckets_are_named(
    options: tuple[str, ...], text: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, "optimize", exported, *(w for o in options for w in ("--buckets", o)), "-o", tmp_path)
    assert code == 2
    assert text in said["error"]["message"]


def test_without_buckets_the_way_out_is_said(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "optimize", exported, "-o", tmp_path)
    assert code == 2
    assert "--buckets" in said["error"]["hint"]


def test_files_of_fixed_sizes_have_none() -> None:
    with pytest.raises(UsageError, match="'x' is no open dimension of 'encoder_torch'"):
        fuser.optimize(RELAY / "encoder_torch.json", RELAY / "encoder_torch.params", buckets={"x": (8,)})
    with pytest.raises(UsageError, match="that Relay runs has fixed sizes"):
        fuser.optimize(RELAY / "encoder_torch.json", buckets={"x": (8,)}, runtime="relay")


def test_options_add_up() -> None:
    assert parsed(["seq=128,256", " x:0 =4", "seq=512"]) == {"seq": (128, 256, 512), "x:0": (4,)}


def test_sizes_of_onnx_go_by_their_names(tmp_path: Path, rng: np.random.Generator) -> None:
    onnx: Any = pytest.importorskip("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["m"], axes=[1], keepdims=0),
    ]
    ends = [("x", ["b", "seq", 8]), ("y", ["b", "seq", 8]), ("m", ["b", 8])]
    x, *outputs = (helper.make_tensor_value_info(n, float32, shape) for n, shape in ends)
    model = helper.make_model(helper.make_graph(nodes, "g", [x], outputs), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "m.onnx")
    file = read_sized_file(tmp_path / "m.onnx")
    sized = file.sized
    assert (file.form, str(sized)) == ("ONNX", "b (x:0), seq (x:1)")
    with pytest.raises(UsageError, match="the size seq of 'm' is open"):
        resolved({"b": (2,)}, sized)
    (padded,) = all_padded(sized, resolved({"x:0": (2,), "seq": (6,)}, sized))
    for b, n in ((1, 1), (2, 5), (2, 6)):
        x = rng.standard_normal((b, n, 8))
        given = {"x": np.pad(x, ((0, 2 - b), (0, 6 - n), (0, 0)), "edge")}
        sizes = {"b": b, "seq": n}
        for e in padded.extras:
            given[e.name] = e.value(padded.sizes[e.symbol], sizes[e.symbol]).reshape(padded.known.program[e.name].shape)
        y, m = padded.known.program.evaluate({**padded.known.params, **given}).values()
        p = np.exp(x @ x.swapaxes(1, 2))
        wanted = p / p.sum(-1, keepdims=True) @ x
        np.testing.assert_allclose(y[:b, :n], wanted, rtol=1e-6)
        np.testing.assert_allclose(m[:b], wanted.mean(1), rtol=1e-6)
