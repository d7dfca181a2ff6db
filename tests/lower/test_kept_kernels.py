"""Compiled kernels stay in the cache folder, by everything that they depend on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fuser.errors import EnvironmentError_
from fuser.errors import NoValidKernelError
from fuser.ir.fuse import fuse
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import Schedule
from fuser.ir.tiling import TilingExpr
from fuser.lower import compile as compiling
from fuser.lower import kept_kernels
from fuser.lower.compile import compile_kernel
from fuser.lower.compile import load_source
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from tests.builders import chain


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelSource:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    graph = fuse(chain(32, 48, 16, 16))
    tiles = KernelSchedule((("h", 16), ("k", 16), ("m", 16), ("n", 16)), TilingExpr.parse("n"))
    return generate_graph(graph, Schedule((tiles,)))[0]


@pytest.mark.usefixtures("compiled_here")
def test_a_kernel_is_compiled_once(source: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel(source, 90)
    monkeypatch.setattr(compiling, "triton_module", lambda: pytest.fail("Triton is asked again"))
    assert compile_kernel(source, 90) == first
    with pytest.raises(pytest.fail.Exception):
        compile_kernel(source, 80)


def test_sources_are_temporary_where_the_cache_folder_cannot_be_written(
    source: KernelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "file" / "cache"))
    assert hasattr(load_source(source), source.name)
    monkeypatch.setattr(compiling, "_spare", lambda: str(tmp_path / "file"))
    with pytest.raises(EnvironmentError_, match=r"cannot be written to .*Not a directory") as e:
        load_source(replace(source, text=source.text + "\n"))
    assert "MUFUSER_CACHE" in e.value.hint


def test_whatever_a_kernel_depends_on_is_in_its_name(source: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(s: KernelSource, arch: int = 90) -> str:
        return kept_kernels.place(Path(), s, arch).name

    others = [
        replace(source, text=source.text + "\n"),
        replace(source, num_warps=8),
        replace(source, num_stages=3),
        replace(source, pdl=not source.pdl),
        replace(source, parameters=(*source.parameters, ("maxnreg", 128))),
        replace(source, shapes=tuple(tuple(2 * n for n in s) for s in source.shapes)),
    ]
    assert len({name(source), name(source, 80), *map(name, others)}) == 2 + len(others)
    before = name(source)
    with monkeypatch.context() as patch:
        patch.setattr(kept_kernels, "compiler", lambda: "triton 3.6.0, ptxas 13.9")
        assert name(source) != before
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert name(source) != before


def test_a_damaged_file_is_as_good_as_none(source: KernelSource, tmp_path: Path) -> None:
    first = compile_kernel(source, 90)
    (path,) = (tmp_path / "compiled").iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    assert compile_kernel(source, 90) == first
    kept_kernels.kept.write(path, {"name": "odd", "cubin": "AA==", "descriptors": []})
    assert compile_kernel(source, 90) == first


@pytest.mark.usefixtures("compiled_here")
def test_what_a_compiler_prints_is_said_in_the_error_alone(
    source: KernelSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    triton = compiling.triton_module()

    def fails(*_: object, **__: object) -> None:
        os.write(2, b"kernel.py:3:1: error: operand #0 must be ranked\nmodule {\n  tt.func public @kernel\n")
        print("; PTX")
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(triton, "compile", fails)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoValidKernelError, match="PassManager::run failed; operand #0 must be ranked"):
        compile_kernel(source, 90)
    os.write(2, b"after")
    assert capfd.readouterr() == ("", "after")
