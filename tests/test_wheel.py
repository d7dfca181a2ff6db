"""The wheel, installed elsewhere: it has its data and nothing that is too much, and ``bench`` and the demo run from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGES = ("fuser", "cost_model", "search", "tvm_bridge", "experiments")
DATA = {".toml", ".json", ".xz", ".cpp"}


def run(*args: str, cwd: Path, path: Path | None = None, seconds: float = 250) -> subprocess.CompletedProcess[str]:
    """Python in ``cwd``, the packages of this environment behind those of ``path``."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run([sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the repository gets no folder ``build``."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source))
    done = run(*pip, cwd=folder)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("mufuser-*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    target = wheel.parent / "site"
    done = run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=wheel.parent)
    assert done.returncode == 0, done.stderr
    return target


def test_it_has_the_data_that_is_read_and_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        packed = {n for n in file.namelist() if ".dist-info/" not in n}
    files = {str(p.relative_to(ROOT)) for package in PACKAGES for p in (ROOT / package).rglob("*") if p.is_file()}
    kept = {f for f in files if not f.startswith(("experiments/raw/", "experiments/results/", "experiments/mirage/results/"))}
    assert {f for f in kept if Path(f).suffix in DATA | {".py", ".typed"}} == packed
    assert wheel.stat().st_size < 2 << 20


def test_everything_comes_from_it(site: Path, tmp_path: Path) -> None:
    code = f"import {', '.join(PACKAGES)}; print([p.__file__ for p in ({', '.join(PACKAGES)},)])"
    done = run("-c", code, cwd=tmp_path, path=site)
    assert done.stdout.count(str(site)) == len(PACKAGES), done.stderr


def test_bench_finds_the_best_known_schedules(site: Path, tmp_path: Path) -> None:
    args = ("-m", "fuser", "bench", "mcfuser", "mirage", "--case", "G?", "--case", "rms*", "--top", "0")
    done = run(*args, "--dry-run", "--json", cwd=tmp_path, path=site)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert len(cases) == 11
    assert all(len(c["records"]) == 3 and c["random"] == 0 for c in cases)


def test_bench_without_a_gpu_says_what_it_can(site: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run("-m", "fuser", "bench", "mcfuser", cwd=tmp_path, path=site)
    assert done.returncode == 6
    assert "--dry-run" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.relay
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_demo_runs(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = run("-m", "experiments.demo", "bert-small", "--layers", "1", cwd=tmp_path, path=site, seconds=900)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "report.json").read_text())["regions"]
