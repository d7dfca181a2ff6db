"""What a walk through the packages does once, it does once: nothing is generated, verified, hashed or read again on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fuser
from fuser.device import load_device
from fuser.ir import hashing
from fuser.ir import schedule
from fuser.ir.builder import Builder
from fuser.lower import compile as lower_compile
from fuser.lower import triton_source
from fuser.runtime import graph_executor
from fuser.runtime import launch
from fuser.superopt import search
from fuser.superopt.rewrite import stabilize
from fuser.superopt.verify import verdicts
from fuser.superopt.verify import verifier
from search import compile as search_compile
from tests.builders import chain
from tests.runtime.kernels import FakeDriver
from tests.runtime.kernels import OnFakeDriver
from tests.tvm_bridge.relay_writer import RelayWriter
from tests.tvm_bridge.relay_writer import write_params
from tests.work import Calls
from tvm_bridge import api
from tvm_bridge import report
from tvm_bridge.to_program import relay_import


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled_here: None) -> Calls:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "cache"))  # verdicts are found anew
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    found = Calls(monkeypatch)
    triton_source._generated.cache_clear()
    found.of("generate", lambda block, schedule, _, *about: (block, schedule, *about), triton_source)
    found.of("verify", lambda program, graph: (program, graph), verifier)
    found.of("hashed", str, hashing, schedule, triton_source)
    found.of("_compiled", lambda source, arch, *_: (lower_compile.neutral(source), arch), lower_compile)
    found.of("read_graph", lambda text, *_: hash(text), relay_import)
    found.of("read_params_typed", str, relay_import)
    return found


def test_from_compile_to_a_launched_kernel(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_compile, "where_to_run", lambda *_: ("cuda", load_device("h200")))
    driver = FakeDriver()
    monkeypatch.setattr(launch, "driver", lambda: driver)
    monkeypatch.setattr(OnFakeDriver, "fake", driver, raising=False)

    def executable(planned: Any, *, device: str, artifacts: Any, constants: Any, **_: Any) -> OnFakeDriver:
        assert device == "cuda" and all(a is None or a.cubin for a in artifacts)
        return OnFakeDriver(planned, device="cpu", artifacts=artifacts, constants=constants)

    monkeypatch.setattr(graph_executor, "Executable", executable)
    run = fuser.compile(chain(48, 40, 32, 16, "relu"))
    run(*(torch.zeros(chain(48, 40, 32, 16, "relu")[n].shape, dtype=torch.float16) for n in "ABD"))
    assert run.sources and run.source
    assert len(driver.launches) == len(run.artifacts) > 0
    assert sum(k[0] == "generate" for k in calls.seen) >= len(run.artifacts)
    assert [k for k, n in calls.seen.items() if n > 1] == []


def test_from_a_search_to_a_verdict_that_stays_with_the_kernel(calls: Calls) -> None:
    # the winner is confirmed with more rounds, and at its real size
    calls.of("verify", lambda program, graph: (program, graph, "searched"), search)
    calls.of("_stabilized", lambda *of: of, stabilize)
    b = Builder("rows")
    run = fuser.compile(b.build(Y=b.softmax(b.input("X", (16, 32)) @ b.input("W", (32, 16)))), device="cpu", superoptimize=20.0)
    assert run.verdict.accepted and ("verify", (run.program, run.graph)) in calls.seen
    assert sum(k[0] == "verify" for k in calls.seen) > 3 < sum(k[0] == "_stabilized" for k in calls.seen)
    assert [k for k, n in calls.seen.items() if n > 1] == []


def test_from_a_model_to_its_report(calls: Calls, tmp_path: Path) -> None:
    w = RelayWriter()
    q, k, v = w.input("q", (2, 32, 16)), w.input("k", (2, 16, 32)), w.input("v", (2, 32, 16))
    scores = w.call("nn.batch_matmul", q, k, transpose_a=0, transpose_b=0)
    model, params = tmp_path / "m.json", tmp_path / "m.params"
    model.write_text(w.module(w.call("nn.batch_matmul", w.call("nn.softmax", scores, axis=-1), v, transpose_a=0, transpose_b=0)))
    write_params(params, {"k": np.ones((2, 16, 32), "float32"), "v": np.ones((2, 32, 16), "float32")})
    found = api.optimize(model, params, build=False, check=False, jobs=1)
    assert found.regions and found.made
    for _ in range(2):  # the command writes it before and after the library is built
        report.document(found, tmp_path)
    assert {"read_graph", "read_params_typed", "generate", "verify", "hashed", "_compiled"} == {k[0] for k in calls.seen}
    assert [k for k, n in calls.seen.items() if n > 1] == []
