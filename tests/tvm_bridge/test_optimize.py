"""The main job as its user sees it: models that work, models that do not, and what is written."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from unittest import mock

import numpy as np
import pytest

from fuser.cli import main
from fuser.errors import EnvironmentError_
from fuser.lower.compile import interpret_source
from tests.paths import RELAY
from tests.paths import ROOT
from tests.tvm_bridge.relay_writer import write_params
from tvm_bridge.api import Optimized
from tvm_bridge.api import optimize

from .relay_writer import RelayWriter

if TYPE_CHECKING:
    from fuser.ir.ops import Array

ENCODER = RELAY / "encoder_torch.json"
PARAMS = RELAY / "encoder_torch.params"


@dataclass(frozen=True)
class Live:
    """A live module, an input and torch's own result, and what was found."""

    found: Optimized
    mod: Any
    params: dict[str, Any]
    inputs: dict[str, Array]
    expected: Array


def over(pointer: Any, shape: tuple[int, ...]) -> Array:
    """The floats at an address."""
    return np.ctypeslib.as_array(ctypes.cast(pointer.value, ctypes.POINTER(ctypes.c_float)), shape)


def run(capsys, *args: object) -> tuple[int, str, str]:
    code = main([str(a) for a in args])
    out = capsys.readouterr()
    return code, out.out, out.err


@dataclass(frozen=True)
class Ran:
    """One run of the command: what it found, its standard output, its folder."""

    found: Optimized
    stdout: str
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    found: list[Optimized] = []

    def kept(*args: Any, **options: Any) -> Optimized:
        found.append(optimize(*args, **options))
        return found[-1]

    folder, stdout = tmp_path_factory.mktemp("out"), io.StringIO()
    with mock.patch("tvm_bridge.commands.optimize_model", kept), contextlib.redirect_stdout(stdout):
        code = main(["optimize", str(ENCODER), "--params", str(PARAMS), "-o", str(folder), "--no-library", "--json"])
    assert code == 0
    return Ran(found[0], stdout.getvalue(), folder)


@pytest.fixture(scope="module")
def result(ran: Ran) -> Optimized:
    return ran.found


def test_the_attention_of_an_encoder_is_fused(result):
    (region,) = (r for r in result.regions if r.region.kind == "attention")
    assert region.realised.check is not None and region.realised.check.passed
    assert region.predicted_us < region.choice.unfused_us
    assert result.after_us < result.before_us


def test_every_contraction_is_in_a_region_or_has_a_reason(result):
    inside = {n for r in result.regions for n in r.region.contractions}
    left = {item.node: item.reason for item in result.left}
    for node in result.program.nodes:
        if node.op == "matmul":
            assert (node.output in inside) != (node.output in left)
    assert all(left.values())


def test_the_command_writes_kernels_and_a_report(ran):
    report = json.loads(ran.stdout)
    assert report == json.loads((ran.folder / "report.json").read_text())
    name = report["regions"][0]["kernels"][0]
    kernel = report["kernels"][name]
    ptx = (ran.folder / "kernels" / f"{name}.ptx").read_text()
    assert ".target sm_90" in ptx
    assert f".visible .entry {name}" in ptx
    assert (ran.folder / "kernels" / f"{name}.cubin").read_bytes().startswith(b"\x7fELF")
    assert kernel["registers"] > 0
    assert set(report["kernels"]) == {k for r in (*report["regions"], *report["plan"]["parts"]) for k in r["kernels"]}
    assert report["predicted"]["plan_us"] == report["plan"]["us"] < report["predicted"]["before_us"]
    nodes = [n for p in report["plan"]["parts"] for n in p["nodes"]]
    assert len(nodes) == len(set(nodes)) > 12
    assert "nothing was run" in " ".join(report["notes"]) or report["run"]["ok"]
    assert "</svg>" in (ran.folder / "plan.svg").read_text()


def test_the_command_s_kernels_are_verified_again(ran, capsys):
    code, out, err = run(capsys, "verify", ran.folder / "report.json", "--json")
    assert code == 0, err
    report = json.loads((ran.folder / "report.json").read_text())
    assert {k["kernel"] for k in json.loads(out)["kernels"]} == set(report["kernels"])
    assert set(report["graphs"]) == {"model", *(r["name"] for r in report["regions"])}


def test_the_report_follows_its_schema(ran):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "tvm_bridge" / "report.schema.json").read_text())
    jsonschema.validate(json.loads(ran.stdout), schema)


def test_tables(result, tmp_path, capsys, monkeypatch, golden):
    monkeypatch.setattr("tvm_bridge.commands.optimize_model", lambda *args, **options: result)
    code, out, _ = run(capsys, "optimize", ENCODER, "--params", PARAMS, "-o", tmp_path, "--no-library")
    assert code == 0
    out = out.replace(str(tmp_path), "OUT")
    assert max(map(len, out.splitlines())) <= 80
    out = re.sub(r"(\d+\.)\d%", r"\g<1>?%", out.partition("time: ")[0])  # shares lie close to where they are rounded up
    out = re.sub(r"\de-0\d", "?e-0?", out)  # and errors of float64 are summed in another order on each kind of processor
    golden.check("optimize.txt", re.sub(r"\d+\.\d+ s", "0.0 s", out))


def mlp(op: str = "nn.dense", shape: tuple[int | None, ...] = (64, 32)) -> str:
    w = RelayWriter()
    x, a, b = w.input("x", shape), w.input("a", (48, 32)), w.input("b", (16, 48))
    typed = 0 if op == "nn.dense" else w.tensor_type((64, 48))
    first = w.call("nn.dense", x, a)
    return w.module(w.call("nn.dense", first if op == "nn.dense" else w.call(op, first, type_=typed), b))


def test_a_model_over_token_ids_runs_as_a_whole(tmp_path: Path) -> None:
    w = RelayWriter()
    ids, table = w.input("ids", (1, 16), "int64"), w.input("table", (20, 32))
    rows = w.call("take", table, w.call("cast", ids, dtype="int32"), axis=w.node("IntImm", value=0), mode=w.string("clip"))
    hidden = w.call("nn.dense", w.call("reshape", rows, newshape=w.ints(16, 32)), w.input("a", (48, 32)))
    (tmp_path / "ids.json").write_text(w.module(w.call("nn.relu", hidden)))
    rng = np.random.default_rng(0)
    write_params(
        tmp_path / "ids.params", {n: rng.standard_normal(s, np.float32) for n, s in (("table", (20, 32)), ("a", (48, 32)))}
    )
    result = optimize(tmp_path / "ids.json", tmp_path / "ids.params", on="cpu", runtime="torch", check=False, jobs=1)
    assert result.trial is not None
    assert result.trial.ok
    assert result.trial.original_us is None


def bad_models(folder: Path) -> dict[str, tuple[Path, Path | None, int, str]]:
    """Name to model, parameters, exit code and what the message must name."""
    text = ENCODER.read_text()
    truncated = folder / "truncated.json"
    truncated.write_text(text[: len(text) // 2])
    nonsense = folder / "nonsense.json"
    nonsense.write_text('{"hello": 1}')
    dynamic = folder / "dynamic.json"
    dynamic.write_text(mlp(shape=(None, 32)))
    other = folder / "other.params"
    write_params(other, {"unrelated": np.zeros((2, 2), "float32")})
    half = folder / "half.params"
    half.write_bytes(PARAMS.read_bytes()[:1000])
    return {
        "truncated": (truncated, None, 3, "truncated.json"),
        "not a model": (nonsense, None, 3, "nonsense.json"),
        "absent": (folder / "absent.json", None, 3, "absent.json"),
        "dynamic shape": (dynamic, None, 3, "x"),
        "params of another model": (ENCODER, other, 3, "unrelated"),
        "damaged params": (ENCODER, half, 3, "half.params"),
    }


@pytest.mark.parametrize(
    "name", ["truncated", "not a model", "absent", "dynamic shape", "params of another model", "damaged params"]
)
def test_bad_files_give_an_error_that_names_the_culprit(name, tmp_path, capsys):
    model, params, expected, culprit = bad_models(tmp_path)[name]
    args = ["optimize", model, "-o", tmp_path / "out", "--no-library"] + (["--params", params] if params else [])
    code, _, err = run(capsys, *args)
    assert code == expected
    assert "\nerror: " in f"\n{err}"
    assert culprit in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_an_unsupported_operator_leaves_its_region_alone(tmp_path, capsys):
    model = tmp_path / "odd.json"
    model.write_text(mlp("some.unknown_operator"))
    code, out, err = run(capsys, "optimize", model, "-o", tmp_path, "--no-library", "--json")
    assert code == 0, err
    assert "1 left to TVM: no kernel is generated for some.unknown_operator" in " ".join(json.loads(out)["notes"])


def test_bytes_in_the_middle_of_a_model_are_left_to_tvm(tmp_path, capsys):
    w = RelayWriter()
    x = w.call("cast", w.call("exp", w.input("x", (8, 16))), type_=w.tensor_type((8, 16), "int8"), dtype=w.string("int8"))
    total = w.call(
        "nn.dense", x, w.const(np.ones((4, 16), np.int8), "int8"), type_=w.tensor_type((8, 4), "int32"), out_dtype="int32"
    )
    (tmp_path / "m.json").write_text(w.module(w.call("tanh", w.call("cast", total, dtype="float32"))))
    code, out, err = run(capsys, "optimize", tmp_path / "m.json", "-o", tmp_path, "--no-library", "--json")
    assert code == 0, err
    said = " ".join(json.loads(out)["notes"])
    assert "2 of 4 kernels" in said and "1 left to TVM: no kernel is generated for nn.dense" in said


@pytest.mark.parametrize(
    ("args", "code", "culprit"),
    [
        (["--target", "h300"], 2, "h300"),
        (["--target", "v100"], 4, "V100"),
        (["--effort", "quick", "--set", "smem=2x"], 2, "there is no NVIDIA H200"),
        (["--effort", "endless"], 2, "endless"),
    ],
)
def test_bad_options_name_the_culprit(args, code, culprit, tmp_path, capsys):
    found, _, err = run(capsys, "optimize", ENCODER, "--params", PARAMS, "-o", tmp_path, "--no-library", *args)
    assert found in (code, 6)
    assert culprit in err


@pytest.mark.relay
def test_a_file_that_ends_tvm_is_an_error_and_its_kernels_stay(result, tmp_path, capsys, monkeypatch):
    """The reader takes the compacted file; TVM does not find the type definitions in it, and crashes."""
    monkeypatch.setattr("tvm_bridge.commands.optimize_model", lambda *args, **options: result)
    (tmp_path / "model.so").write_text("mine")
    code, out, err = run(capsys, "optimize", ENCODER, "--params", PARAMS, "-o", tmp_path, "--json")
    assert code == 3
    assert json.loads(out)["error"]["code"] == "model-file"
    assert "TVM crashed (SIGSEGV) while it loaded" in err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["library"] is None
    assert "SIGSEGV" in report["notes"][-1]
    assert all((tmp_path / "kernels" / f"{name}.ptx").exists() for name in report["kernels"])
    assert (tmp_path / "model.so").read_text() == "mine"


@pytest.fixture(scope="module")
def live() -> Live:
    """An encoder of two layers as a live module, with all kernels of its plan as functions of the model."""
    from .encoder import encoder

    mod, params, inputs, expected = encoder(layers=2)
    return Live(optimize(mod, params, target="h200", build=True, jobs=1, check=False), mod, params, inputs, expected)


@pytest.mark.relay
def test_the_plan_of_a_live_module_is_in_the_built_model(live: Live, tmp_path: Path) -> None:
    from tvm_bridge import apart
    from tvm_bridge.back.live import random_inputs
    from tvm_bridge.back.relay import load

    found = live.found
    assert found.comparison is not None and found.made is not None and found.built is not None
    assert 0 <= found.comparison.relative < 1e-5
    names = [a.name.removesuffix("_plain") for r in found.regions for a in r.realised.artifacts]
    assert len(names) == found.made.plan.launches
    assert f"{len(names)} of {len(names)} kernels of the plan are in TVM's model" in " ".join(found.notes)
    assert not found.left
    symbols = [r.symbol for r in found.regions]
    assert len(symbols) > len(set(symbols)) > 2, "layers share functions"
    np.testing.assert_allclose(found.built.run(live.inputs)[0], live.expected, atol=1e-4)
    with mock.patch.object(apart, "run") as asked, pytest.raises(EnvironmentError_):  # what it builds: tests/tvm_bridge/back
        found.built.vm()
    assert asked.call_args.args[0].executor == "vm"
    fresh = random_inputs(found.imported, np.random.default_rng(3))
    (y,) = load(found.built.export(tmp_path / "model.so")).run(fresh)
    np.testing.assert_allclose(y, found.imported.model.evaluate(fresh)[0], atol=1e-4)


@pytest.mark.relay
def test_the_kernels_compute_the_model_where_they_are_launched(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CUDA, but for the kernels: each entry is a function that interprets it over the host's memory."""
    import tvm

    from tvm_bridge.back import live as back
    from tvm_bridge.back import relay
    from tvm_bridge.back.embed import entry_name
    from tvm_bridge.back.embed import host_module
    from tvm_bridge.back.embed import launch_values

    mod = tvm.relay.transform.InferType()(live.mod)
    found, calls = live.found, list[str]()
    carved = back.on_gpu(mod, back._specs(found, mod)[0], found.regions)
    kernels = {r.symbol: back.region_kernels(r) for r in reversed(found.regions)}

    def launched(artifact: Any) -> Any:
        def entry(*args: Any) -> None:
            arrays = [over(pointer, arg.shape) for pointer, arg in zip(args, artifact.args, strict=False)]
            assert [getattr(a, "value", a) for a in args[len(arrays) :]] == [None, None, *launch_values(artifact)]
            calls.append(artifact.name)
            named = dict(zip(artifact.source.args, arrays, strict=True))
            for name, value in interpret_source(artifact.source, named).items():
                named[name][...] = value

        return entry

    for symbol, region in kernels.items():
        for i, artifact in enumerate(region.kernels):
            tvm.register_func(entry_name(symbol, i, artifact), launched(artifact), override=True)
    host = lambda symbol, function, target: host_module(symbol, kernels[symbol], relay.signature(function), target)  # noqa: E731
    monkeypatch.setattr(relay, "_cpu_module", host)
    y = relay.build(carved, live.params, kernels, "llvm", bound=True).run(live.inputs)[0]
    assert len(calls) == sum(len(r.realised.artifacts) for r in found.regions)
    np.testing.assert_allclose(y, live.expected, atol=1e-4)


def test_a_script_without_a_guard_optimizes_with_several_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fuser\nprint('once')\n"
        f"files = {str(ENCODER)!r}, {str(PARAMS)!r}\n"
        "print(len(fuser.optimize(*files, build=False, check=False, jobs=2, whole=False).regions) > 1)\n"
    )
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["once", "True"], done.stderr
