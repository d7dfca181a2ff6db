"""``--runtime``: what is to run an optimized model."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import fuser
from fuser.cli import main
from fuser.errors import EnvironmentError_
from fuser.errors import ModelFileError
from fuser.errors import UsageError
from tests.paths import RELAY
from tvm_bridge import flavour
from tvm_bridge import relaxed
from tvm_bridge.back import relax_library
from tvm_bridge.back.recipe import Call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with more products than one kernel has."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)), nn.LayerNorm(32)).half().eval()
    path = tmp_path_factory.mktemp("model") / "net.pt2"
    torch.export.save(torch.export.export(net, (torch.randn(16, 32).half(),)), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, Any]:
    code = main([*map(str, args), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_unknown_runtime_is_named(model: Path) -> None:
    with pytest.raises(UsageError, match="'onnx'") as found:
        fuser.optimize(model, runtime="onnx")
    assert "relax, relay, torch" in (found.value.hint or "")


@pytest.mark.parametrize("name", ["old_0_6.json", "old_0_8.json"])
def test_relay_files_of_any_age_run_in_torch(name: str) -> None:
    found = fuser.optimize(RELAY / name, runtime="torch", on="cpu", check=False, jobs=1)
    assert found.trial is not None and found.trial.ok


@pytest.mark.relay
def test_a_relay_file_that_tvm_does_not_load_says_what_does(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="this TVM cannot load") as found:
        fuser.optimize(RELAY / "old_0_8.json", runtime="relay", on="none", check=False, jobs=1)
    assert "--runtime torch" in (found.value.hint or "")


@pytest.mark.parametrize("installed", [{}, {"tvm": ["xtc-tvm-python-bindings"]}])
def test_relax_without_its_tvm_says_what_to_install(
    installed: dict[str, list[str]],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: installed)
    monkeypatch.setattr(flavour.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.19.0.12")
    code, said = run(capsys, "optimize", model, "--runtime", "relax", "-o", tmp_path)
    assert code == 6
    assert "0.27" in said["error"]["message"]
    assert "mufuser[relax]" in said["error"]["hint"]


def test_weights_lie_inside_or_beside() -> None:
    with pytest.raises(UsageError, match="'elsewhere'"):
        relaxed.relax_library(mock.Mock(), "net", weights="elsewhere")


def test_what_is_left_to_tvm_needs_a_compiler_of_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(relax_library.MODE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(relax_library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentError_, match="embedding of the model is left to TVM") as found:
        relax_library.need_compiler([Call("embedding", ("W", "I"), "y", {})])
    assert "cuda-bindings" in (found.value.hint or "")


@pytest.mark.relax
def test_any_model_becomes_a_library(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--runtime", "relax", "--weights", "beside", "--on", "none", "-j", "1", "-o", tmp_path]
    code, report = run(capsys, "optimize", model, *args)
    assert code == 0
    assert report["library"] == "model.so"
    assert (tmp_path / "model.params").exists()
    made = (tmp_path / "model.so").read_bytes()
    assert made[:4] == b"\x7fELF"
    assert all(name.encode() in made for name in report["kernels"])
    assert json.dumps({"inputs": report["model"]["inputs"]})[1:-1].encode() in made, "it says how it is called"


@pytest.mark.relax
def test_relay_without_its_tvm_says_what_to_install() -> None:
    with pytest.raises(EnvironmentError_, match="has no Relay") as found:
        fuser.optimize(RELAY / "old_0_8.json", runtime="relay", on="none", check=False, jobs=1)
    assert "mufuser[relay]" in (found.value.hint or "")
