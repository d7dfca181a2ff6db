"""Fixtures of all tests, and the markers that say what a test needs."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import random
import shutil
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

from tests.paths import ROOT

settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples in every run, however busy the machine
settings.load_profile("fixed")
os.environ.setdefault("TOPHUB_LOCATION", "NONE")  # keeps TVM off the network
gc.disable()  # thousands of tests are collected, and none of them is garbage


def _tvm_version() -> str:
    for distribution in ("xtc-tvm-python-bindings", "apache-tvm", "tvm"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _missing(marker: str) -> str:
    """Why tests with this marker cannot run here, or an empty string."""
    version = _tvm_version()
    if marker == "gpu" and shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU on this machine"
    if marker == "relay" and not version.startswith("0.19"):
        return f"needs TVM 0.19 with Relay, found {version or 'none'}"
    if marker == "relax" and not version.startswith("0.27"):
        return f"needs TVM 0.27 with Relax, found {version or 'none'}"
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what the code gives now")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {marker: _missing(marker) for marker in ("gpu", "relay", "relax")}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same inputs in every run, whichever tests the same worker ran before."""
    random.seed(0)
    if torch := sys.modules.get("torch"):  # where it is imported later, it starts with a seed of its own
        torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """Randomness of a test: seed 0."""
    return np.random.default_rng(0)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing that dynamo compiled before, and the same random numbers."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled in this process, for tests that replace parts of the compiler."""
    monkeypatch.setattr("fuser.lower.attempts.elsewhere", lambda work, *args: work(*args))


class Golden:
    """Compares text with a file under tests/golden; ``--update-golden`` rewrites it."""

    def __init__(self, update: bool) -> None:
        self.update = update
        self.folder = ROOT / "tests" / "golden"

    def check(self, name: str, text: str) -> None:
        path = self.folder / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}; run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--update-golden")))
