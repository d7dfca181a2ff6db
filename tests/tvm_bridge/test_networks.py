"""Networks that users have, from the importers to a built model that computes what torch does.

``python -m tests.tvm_bridge.test_networks [NAME,…|named|all] [LENGTH,…] [SOURCE,…] [--whole]`` prints a table of what becomes of
them; with ``--whole`` their regions are ranked and lowered too, as the command does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

os.environ.setdefault("TOPHUB_LOCATION", "NONE")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from tvm_bridge import api
from tvm_bridge.result import Optimized
from tvm_bridge.to_program.relay_import import read_model

from . import networks
from .networks import NETWORKS
from .networks import network
from .networks import traced

pytestmark = pytest.mark.relay

NAMED = ("bert-eager", "bert-sdpa", "gpt2", "vit", "llama", "distilbert")
FAST = ("bert-sdpa", "gpt2", "vit", "llama")
SOURCES = ("params", "free", "bound", "onnx")
"""Relay JSON with its parameters beside it, without them, with them bound in it, and by way of ONNX."""

ANOTHER = ("t5-encoder",)
"""TVM's frontend makes another network of these: without any region they differ from torch by as much."""

CHAINS = {name: {"attention"} for name in NETWORKS} | {"mixer": {"MLP"}}
"""Kinds of regions that have to be found."""


@dataclass(frozen=True)
class Files:
    """A model as files, inputs for it, and what torch makes of them (or Relay, for :data:`ANOTHER`)."""

    model: Path
    params: Path | None
    inputs: dict[str, np.ndarray]
    expected: np.ndarray


def save(name: str, length: int, source: str, folder: Path) -> Files:
    import torch
    import tvm
    from tvm import relay

    net, x = network(name, length)
    with torch.no_grad():
        expected = net(*x).numpy()
    inputs = {f"x{i}": value.numpy() for i, value in enumerate(x)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if source == "onnx":
            import onnx

            file = folder / "m.onnx"
            with torch.no_grad():
                torch.onnx.export(net, x, file, input_names=list(inputs), opset_version=17, dynamo=False)
            shapes = {k: v.shape for k, v in inputs.items()}
            mod, params = relay.frontend.from_onnx(onnx.load(file), shapes, freeze_params=False)
        else:
            typed = [(k, (v.shape, str(v.dtype))) for k, v in inputs.items()]
            mod, params = relay.frontend.from_pytorch(traced(net, x), typed)
    if source == "bound":
        mod = tvm.IRModule.from_expr(relay.build_module.bind_params_by_name(mod["main"], params))
    model, weights = folder / "m.json", folder / "m.params"
    model.write_text(tvm.ir.save_json(relay.transform.InferType()(mod)))
    weights.write_bytes(tvm.runtime.save_param_dict(params))
    if source == "free":
        inputs |= {k: v.numpy() for k, v in params.items()}
    given = weights if source in ("params", "onnx") else None
    if name in ANOTHER:
        (expected,) = read_model(model, given).evaluate(inputs)
    return Files(model, given, inputs, expected)


@contextmanager
def unranked() -> Iterator[None]:
    """Every region is taken, and none is lowered: ranking and lowering are tested elsewhere and take most of the time, and so
    does what LLVM makes faster."""
    from tvm_bridge.back import live
    from tvm_bridge.back import relay

    target = relay.resolve_target("llvm -opt-level=0")
    kernel = SimpleNamespace(candidate=SimpleNamespace(us=0.0))
    with (
        mock.patch.object(api, "tune_fast", lambda *_, **__: SimpleNamespace(winner=SimpleNamespace(us=0.0))),
        mock.patch.object(
            api, "lower_regions", lambda c, *_, **__: ({one.region.program.stable_hash(): kernel for one in c}, {})
        ),
        mock.patch.object(live, "region_kernels", lambda region: None),
        mock.patch.object(live, "resolve_target", lambda _: target),
        mock.patch.object(relay, "resolve_target", lambda _: target),
    ):
        yield


def built_here(files: Files) -> Optimized:
    """Regions found and put back, and the model built, all in this process."""
    from tvm_bridge.back import live

    with unranked():
        found = api.optimize(files.model, files.params, whole=False, build=False, jobs=1)
        mod, params = live.load(files.model, files.params, "the model")
        return live.build(found, mod, params)


def difference(found: Optimized, files: Files) -> float:
    assert found.built is not None
    (out, *_) = found.built.run(files.inputs)
    assert out.shape == files.expected.shape
    return float(np.abs(out - files.expected).max())


def check(found: Optimized, files: Files, kinds: set[str]) -> None:
    assert {r.region.kind for r in found.regions} >= kinds, sorted({item.reason for item in found.left})
    assert all(r.symbol for r in found.regions)
    assert not [n for n in found.notes if "stays with TVM" in n]
    assert difference(found, files) < 2e-5


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMED])
def test_a_network_is_built_with_its_regions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer; two of them are slow."""
    monkeypatch.setattr(networks, "LAYERS", 1)
    files = save(name, 7, "params", tmp_path)
    check(built_here(files), files, CHAINS[name])


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("length", [1, 7, 197])
@pytest.mark.parametrize("name", NAMED)
def test_named_networks_from_every_source(name: str, length: int, source: str, tmp_path: Path) -> None:
    files = save(name, length, source, tmp_path)
    check(built_here(files), files, CHAINS[name])


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in NAMED])
def test_other_networks(name: str, length: int, tmp_path: Path) -> None:
    files = save(name, length, "params", tmp_path)
    check(built_here(files), files, CHAINS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_the_whole_way_of_the_command(name: str, tmp_path: Path) -> None:
    files = save(name, 64, "params", tmp_path)
    found = api.optimize(files.model, files.params, whole=False, jobs=1)
    check(found, files, CHAINS[name])
    assert found.comparison is not None
    assert found.comparison.relative < 1e-5


def rows(names: list[str], lengths: list[int], sources: list[str], whole: bool) -> Iterator[tuple[str, ...]]:
    for name in names:
        for length in lengths:
            for source in sources:
                begin = time.perf_counter()
                try:
                    with tempfile.TemporaryDirectory() as folder:
                        files = save(name, length, source, Path(folder))
                        found = (
                            api.optimize(files.model, files.params, whole=False, jobs=1, build=True)
                            if whole
                            else built_here(files)
                        )
                        kinds = ", ".join(r.region.kind for r in found.regions) or "none"
                        lost = sum("stays with TVM" in n for n in found.notes)
                        what = (kinds + (f" ({lost} stay with TVM)" if lost else ""), f"{difference(found, files):.1e}")
                except Exception as error:  # noqa: BLE001  a row of the table
                    last = (str(error).strip().splitlines() or [""])[-1]
                    what = (f"{type(error).__name__}: {last[:90]}", "-")
                yield name, str(length), source, *what, f"{time.perf_counter() - begin:.0f} s"


def main(arguments: list[str]) -> None:
    whole, rest = "--whole" in arguments, [a for a in arguments if a != "--whole"]
    names, lengths, sources = [*rest, *("named", "1,7,197", "params,free")[len(rest) :]]
    chosen: Any = {"named": NAMED, "all": NETWORKS}.get(names, names.split(","))
    for row in rows(list(chosen), [int(n) for n in lengths.split(",")], sources.split(","), whole):
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
