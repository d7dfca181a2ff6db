"""The folder of `mufuser package`: it runs without mufuser, Triton, torch and TVM's compiler, and says what is wrong with it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.cli import main
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.ir.ops import Array
from search.compiled import CompiledProgram
from tests.tvm_bridge.fake_gpu import FakeGpu
from tests.tvm_bridge.fake_gpu import libraries
from tvm_bridge import output
from tvm_bridge import package
from tvm_bridge.back.offline_cuda import compiler
from tvm_bridge.back.recipe import Recipe
from tvm_bridge.back.recipe import recipe_of
from tvm_bridge.flavour import import_tvm

Use = Callable[[Recipe], FakeGpu]
Write = Callable[..., Path]

BARE = """
import runpy, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
runpy.run_path(folder + "/run.py", run_name="__main__")
foreign = {m.partition(".")[0] for m in sys.modules} - set(sys.stdlib_module_names) - {"__main__", "__mp_main__"}
print(sorted(m for m in foreign if not m.startswith(("_", "cython"))))
"""


@pytest.fixture(scope="module")
def loader() -> Any:
    spec = importlib.util.spec_from_file_location("mufuser_model", package.DEPLOY / "mufuser_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.relax
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_the_folder_runs_alone(
    weights: str, chain: CompiledProgram, gpu: Use, written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_of(chain)
    gpu(recipe)
    made = written(recipe, chain.params, weights).parent
    assert main(["package", str(made), "-o", str(tmp_path / "package"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    folder = tmp_path / "package"
    assert "lib/libtvm_runtime.so" in said["files"]
    assert not [n for n in said["files"] if "compiler" in n]
    assert said["bytes"] < 40e6
    (tmp_path / "fake").mkdir()
    for path in libraries(tmp_path / "fake"):
        shutil.copyfile(path, folder / "lib" / path.name)
    # Python without its packages, and nothing of this environment but where the driver is
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "fake"), "PATH": os.environ["PATH"]}
    run = [sys.executable, "-S", "-I", "-c", BARE, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    results, modules = done.stdout.splitlines()
    assert results.startswith("Y [64, 64] float16 ")
    assert modules == "['mufuser_model', 'tvm_ffi', 'typing_extensions']"
    if weights == "beside":
        flags = shlex.split("-O0 -w run.cpp -o run -Iinclude -Llib -Lpython/tvm_ffi/lib -ltvm_runtime -ltvm_ffi -ldl -lstdc++")
        subprocess.run([compiler(), "-std=c++17", *flags], cwd=folder, check=True)
        environment["LD_LIBRARY_PATH"] = "lib:python/tvm_ffi/lib"
        done = subprocess.run(["./run"], cwd=folder, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "ffi.Tensor"), done.stderr
        for case, (damage, text) in DAMAGES.items():
            for name in ("model.so", "model.params"):
                shutil.copyfile(made / name, folder / name)
            damage(folder / "model.so")
            done = subprocess.run(["./run"], cwd=folder, capture_output=True, text=True, env=environment, check=False)
            assert done.returncode == 1, (case, done)
            assert re.search(text, done.stderr), (case, done.stderr)


@pytest.mark.relax
def test_the_loader_computes_what_the_program_says(
    loader: Any,
    chain: CompiledProgram,
    wanted: Callable[[Array], Array],
    gpu: Use,
    written: Write,
    rng: np.random.Generator,
) -> None:
    recipe = recipe_of(chain)
    gpu(recipe)
    model = loader.Model(written(recipe, chain.params, "beside"))
    x = (rng.standard_normal((64, 64)) / 8).astype(np.float16)
    (y,) = model(model.tensor(model.about["inputs"][0], x.tobytes()))
    assert np.abs(np.frombuffer(model.data(y), np.float16).reshape(64, 64) - wanted(x)).max() < 2e-3
    with pytest.raises(loader.ModelError, match=r"takes 1 inputs \(X\), got 2"):
        model(y, y)
    with pytest.raises(loader.ModelError, match=r"X must be \[64, 64\] float16, got \[3\] float16"):
        model(model.empty((3,), "float16"))
    with pytest.raises(loader.ModelError, match="X has 8192 bytes, got 1"):
        model.tensor(model.about["inputs"][0], b"1")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def changed(old: bytes, new: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


def other_weights(path: Path) -> None:
    tvm = import_tvm()
    tvm.runtime.save_param_dict_to_file({"W0": tvm.runtime.tensor(np.zeros(3))}, str(path.with_suffix(".params")))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no library": (lambda p: p.unlink(), "there is no library"),
    "a text": (lambda p: p.write_bytes(b"text"), "is no library"),
    "cut off": (cut, "cut off"),
    "another format": (changed(b'"format": 1', b'"format": 9'), "format 9"),
    "another GPU": (changed(b'"arch": 90', b'"arch": 80'), "compiled for sm_80, this GPU is sm_90"),
    "another TVM": (changed(b'"tvm_ffi": "0.', b'"tvm_ffi": "7.'), r"made for tvm_ffi 7\."),
    "other weights": (other_weights, "belongs to another model: W0"),
    "no weights": (lambda p: p.with_suffix(".params").unlink(), "weights of the model are missing"),
    "damaged weights": (lambda p: p.with_suffix(".params").write_bytes(bytes(64)), "no file of weights"),
}


@pytest.mark.relax
@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
def test_what_is_wrong_is_said(
    damage: Callable[[Path], Any], text: str, loader: Any, chain: CompiledProgram, gpu: Use, written: Write
) -> None:
    recipe = recipe_of(chain)
    gpu(recipe)
    path = written(recipe, chain.params, "beside")
    damage(path)
    with pytest.raises(loader.ModelError, match=text):
        loader.Model(path)


@pytest.mark.relax
def test_code_that_the_driver_refuses_is_said(loader: Any, chain: CompiledProgram, gpu: Use, written: Write) -> None:
    recipe = recipe_of(chain)
    device = gpu(recipe)
    damaged = written(recipe, chain.params, code="ptx")
    device.fail_load = 218  # invalid PTX
    model = loader.Model(damaged)
    with pytest.raises(loader.ModelError, match="does not run here"):
        model(model.empty((64, 64), "float16"))


def test_a_folder_without_a_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no library for TVM's virtual machine") as found:
        package.write_package(tmp_path, tmp_path / "to")
    assert "--runtime relax" in (found.value.hint or "")
    (tmp_path / "model.json").write_text('{"tvm": 3}')
    with pytest.raises(UsageError, match="damaged"):
        package.write_package(tmp_path, tmp_path / "to")


def test_a_library_that_changed_is_not_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "require_relax", lambda: "0.27.0")

    def write(folder: Path) -> None:
        (folder / "model.so").write_bytes(b"library")
        (folder / "model.json").write_text('{"tvm": "0.27.0", "arch": 90, "weights": {"where": "inside"}}')

    output.publish(tmp_path / "out", write)
    (tmp_path / "out" / "model.so").write_bytes(b"")
    with pytest.raises(UsageError, match=r"model\.so is not what mufuser optimize wrote"):
        package.write_package(tmp_path / "out", tmp_path)


def test_a_library_of_another_tvm_is_not_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "require_relax", lambda: "0.27.9")
    (tmp_path / "model.json").write_text('{"tvm": "0.27.0", "arch": 90, "weights": {"where": "inside"}}')
    with pytest.raises(EnvironmentError_, match=r"made for TVM 0\.27\.0, installed is 0\.27\.9"):
        package.write_package(tmp_path, tmp_path / "to")
