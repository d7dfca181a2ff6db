"""Files of models of every form through one pipeline: optimized, run, explained; and files that are none."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.cli import main  # noqa: E402
from fuser.errors import FuserError  # noqa: E402
from fuser.errors import ModelFileError  # noqa: E402
from fuser.frontends import torch_file  # noqa: E402
from fuser.frontends.model_file import read_model_file  # noqa: E402
from tests.damage import damaged_bytes  # noqa: E402
from tests.paths import ROOT  # noqa: E402
from tests.search.cover.test_model import ROWS  # noqa: E402
from tests.search.cover.test_model import WIDTH  # noqa: E402
from tests.search.cover.test_model import layers  # noqa: E402


class Summed(torch.nn.Module):
    """What a library computes."""

    def forward(self, x: Any) -> Any:
        return torch.cumsum(x, -1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "layer.pt2"
    module = torch.nn.Sequential(layers(1), Summed()).eval()
    torch.export.save(torch.export.export(module, (torch.randn(ROWS, WIDTH).half(),)), path)
    return path


def test_an_exported_module_is_optimized_run_and_drawn(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    code = main(["optimize", str(exported), "-o", str(tmp_path), "--on", "cpu", "--jobs", "1", "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    report = json.loads(out.out)
    jsonschema.validate(report, json.loads((ROOT / "tvm_bridge" / "report.schema.json").read_text()))
    assert report["model"]["form"] == "torch.export"
    assert report["run"]["ok"]
    assert report["run"]["difference"] < 5e-3
    ops = [op for p in report["plan"]["parts"] for op in p["operators"]]
    assert {"matmul", "attention", "layer_norm", "gelu", "cumsum"} <= set(ops)
    assert report["plan"]["choice"]["gap"] <= 1e-4
    assert sum(p["us"] for p in report["plan"]["parts"]) == pytest.approx(report["predicted"]["plan_us"])
    kernels = [k for p in report["plan"]["parts"] for k in p["kernels"]]
    assert kernels
    for name in kernels:
        assert ".target sm_90" in (tmp_path / "kernels" / f"{name}.ptx").read_text()
    drawing = ElementTree.fromstring((tmp_path / "plan.svg").read_text())
    boxes = [x for x in drawing.iter() if x.tag.endswith("}g")]
    assert len(boxes) == len(report["plan"]["parts"])
    text = "".join(drawing.itertext())
    assert all(n in text for p in report["plan"]["parts"] for n in p["names"][:2])
    assert main(["verify", str(tmp_path / "report.json")]) == 0


def test_a_model_and_one_of_its_kernels_are_explained(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(exported)]) == 0
    out, err = capsys.readouterr()
    assert "plan of layer for NVIDIA H200" in out
    assert "is apart from" in out
    table = out.split("why they are apart:")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert [x for x in err.splitlines() if x.startswith("… pricing")]
    assert main(["explain", str(exported), "--kernel", "0"]) == 0
    out, _ = capsys.readouterr()
    assert "reads " in out
    assert "chosen:" in out
    assert main(["explain", str(exported), "--kernel", "conv"]) == 2
    assert "no kernel 'conv'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["optimize", "{model}", "--params", "x.params"], 2, "has its parameters in its file"),
        (["optimize", "{model}", "--on", "tpu"], 2, "no device 'tpu'"),
        (["explain", "{model}", "mcfuser/G1"], 2, "explained alone"),
        (["explain", "mcfuser/G1", "--kernel", "0"], 2, "--kernel belongs to a model"),
        (["explain", "absent.pt2"], 3, "absent.pt2"),
        (["optimize", "absent.pt2"], 3, "absent.pt2"),
        (["optimize", "absent.pt2", "--on", "tpu"], 2, "no device 'tpu'"),
        (["optimize", "absent.pt2", "--weights", "there"], 2, "weights are not 'there'"),
        (["optimize", "absent.pt2", "--weights", "beside"], 2, "--runtime relax makes one"),
    ],
)
def test_wrong_arguments_are_named(
    args: list[str], code: int, reason: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [a.format(model=exported) for a in args] + (["-o", str(tmp_path)] if args[0] == "optimize" else [])
    assert main(given) == code
    assert reason in capsys.readouterr().err


def test_products_of_float64_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "m.pt2", tmp_path / "out"
    torch.export.save(torch.export.export(torch.nn.Linear(8, 8).double(), (torch.randn(4, 8).double(),)), path)
    for args in (["optimize", str(path), "-o", str(out)], ["explain", str(path)]):
        assert main(args) == 4
        err = capsys.readouterr().err
        assert "of 'm' multiplies float64" in err and "float32" in err
    assert not out.exists()
    run = fuser.compile(torch.nn.Softmax(-1), (torch.randn(4, 8).double(),), target="h200", checked=False)
    assert not run.artifacts, "a library computes what no generated kernel holds"


def test_a_damaged_archive_is_an_error_that_names_it(exported: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    bad, whole = tmp_path / "bad.pt2", exported.read_bytes()
    ended: list[Any] = []
    for _ in range(20):
        bad.write_bytes(damaged_bytes(rng, whole))
        try:
            ended.append(read_model_file(bad))
        except FuserError as error:
            assert "bad.pt2" in error.message
            ended.append(type(error))
    assert ended.count(ModelFileError) > 10
    bad.write_text("{}")
    with pytest.raises(ModelFileError, match=r"no archive of torch\.export"):
        read_model_file(bad)


def imported_for_a_file(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> list[str]:
    """Modules that are imported for a file, none in truth; where there is none, torch is to ``fail`` to load it."""
    imported: list[str] = []
    real = torch.export.load

    def load(path: str) -> Any:
        if not imported:
            fail()
        return real(path)

    monkeypatch.setattr(torch.export, "load", load)
    monkeypatch.setattr(torch_file, "import_module", imported.append)
    return imported


def test_results_of_classes_that_a_package_registers(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch loads a file that has them once their package is imported; no other package is imported for a file."""

    def fail() -> None:
        try:
            raise NotImplementedError(f"Deserializing {name}.Output in pytree is not registered.")
        except NotImplementedError:
            logging.getLogger("torch.export").warning("Ran into an error", exc_info=True)
            raise RuntimeError("see above") from None

    imported = imported_for_a_file(monkeypatch, fail)
    name = "somebody.modeling"
    with pytest.raises(ModelFileError, match=r"results of somebody\.modeling\.Output, of which torch knows nothing"):
        read_model_file(exported)
    name = "transformers.modeling_outputs"
    assert read_model_file(exported).imported.program.nodes
    assert imported == [name]
    assert capfd.readouterr().err == ""


def test_operators_that_a_package_defines(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of operators: the experts of a mixture are transformers' own."""

    def fail() -> None:
        raise RuntimeError(f"failed to resolve torch.ops.{name}.default to an operator")

    imported = imported_for_a_file(monkeypatch, fail)
    name = "somebody.twice"
    with pytest.raises(ModelFileError, match=r"has the operator torch\.ops\.somebody\.twice, which nothing here defines"):
        read_model_file(exported)
    name = "transformers.grouped_mm_fallback"
    assert read_model_file(exported).imported.program.nodes
    assert imported == ["transformers.integrations.moe"]


def test_an_elementwise_model_is_supported_and_one_of_a_library_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    class Inverse(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.inv(x)

    for module, code in ((torch.nn.ReLU(), 0), (Inverse(), 4)):
        path = tmp_path / f"{type(module).__name__}.pt2"
        torch.export.save(torch.export.export(module, (torch.randn(8, 8),)), path)
        assert main(["optimize", str(path), "--on", "none", "-o", str(tmp_path / "out")]) == code
    said = " ".join(capsys.readouterr().err.split())
    assert "no kernel is generated for" in said and "linalg_inv" in said
