"""Whatever happens to the process that runs TVM is one error of ours, and the process is gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from tvm_bridge import apart
from tvm_bridge.apart import infer_types

HEAD = """
import os, pathlib, pickle, signal, subprocess, sys, time
sys.path[:] = __import__("json").loads(sys.argv[1])
folder = pathlib.Path(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("(folder / 'stage').write_text('load'); os.kill(os.getpid(), signal.SIGSEGV)", ModelFileError, "SIGSEGV.*loaded m.json"),
        ("(folder / 'stage').write_text('build'); os.abort()", UnsupportedError, r"SIGABRT.*built m\.json"),
        ("(folder / 'stage').write_text('build'); os.kill(os.getpid(), signal.SIGKILL)", EnvironmentError_, "memory"),
        ("(folder / 'stage').write_text('compare'); time.sleep(60)", EnvironmentError_, r"within 1 s: while it ran m\.json"),
        ("raise ImportError('no tvm\\x1b[31m')", EnvironmentError_, r"does not start \(exit code 1\): ImportError: no tvm\\x1b"),
        ("(folder / 'answer').write_text('half')", EnvironmentError_, "does not start"),
        (
            "from fuser.errors import UsageError; (folder / 'answer').write_bytes(pickle.dumps(UsageError('this', 'that')))",
            FuserError,
            "this",
        ),
    ],
)
def test_its_end_is_an_error(code: str, error: type[FuserError], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "CHILD", HEAD + code)
    with pytest.raises(error, match=text) as found:
        infer_types("m.json", Path("m.json"), seconds=1.0)
    assert found.value.hint


def test_nothing_that_it_started_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "child = subprocess.Popen(['sleep', '60']); pathlib.Path('{}').write_text(str(child.pid)); time.sleep(60)"
    monkeypatch.setattr(apart, "CHILD", HEAD + code.format(tmp_path / "pid"))
    with pytest.raises(EnvironmentError_):
        infer_types("m.json", Path("m.json"), seconds=2.0)
    status = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    deadline = time.monotonic() + 5
    while status.exists() and status.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or status.read_text().split()[2] == "Z"


@pytest.mark.relay
def test_a_live_module_without_types_and_with_functions_lets_and_twins() -> None:
    import numpy as np
    import tvm
    from tvm import relay

    from tvm_bridge.api import optimize

    sizes = {"x": (16, 32), "w": (32, 32), "v": (32, 32), "x_": (16, 32)}
    x, w, v, twin = (relay.var(n.rstrip("_"), shape=s) for n, s in sizes.items())
    p, q, h = relay.var("p", shape=(16, 32)), relay.var("q", shape=(32, 32)), relay.var("h")
    layer = relay.GlobalVar("layer")
    body = relay.Let(h, relay.Call(layer, [x, w]), relay.add(relay.Call(layer, [h, v]), twin))
    inner = relay.Function([p, q], relay.nn.relu(relay.nn.dense(p, q)))
    mod = tvm.IRModule({layer: inner, relay.GlobalVar("main"): relay.Function([x, w, v, twin], body)})
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}
    found = optimize(mod, {k: values[k] for k in "wv"}, jobs=1, check=False)
    assert found.built is not None and found.regions
    expected = np.maximum(np.maximum(values["x"] @ values["w"].T, 0) @ values["v"].T, 0) + values["x_"]
    np.testing.assert_allclose(found.built.run({k: values[k] for k in ("x", "x_")})[0], expected, atol=1e-3)
    assert {str(v.name_hint) for v in found.built.module.get_global_vars()} == {"main", *(r.symbol for r in found.regions)}


@pytest.mark.relay
def test_an_ill_typed_live_module() -> None:
    import tvm
    from tvm import relay

    from tvm_bridge.api import optimize

    x, w = relay.var("x", shape=(16, 32)), relay.var("w", shape=(48, 31))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
    with pytest.raises(ModelFileError, match="dense"):
        optimize(mod)
