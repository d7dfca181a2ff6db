"""The newest assembler that the driver can load is used."""

from __future__ import annotations

import os

import pytest

from fuser.lower import assembler


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a driver and toolkits that a test chooses."""

    def make(driver: tuple[int, int] | None, toolkits: dict[str, str]) -> None:
        monkeypatch.delenv(assembler.VARIABLE, raising=False)
        monkeypatch.setattr(assembler, "driver_version", lambda: driver)
        found = []
        for name, release in toolkits.items():
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.48"\n')
            path.chmod(0o755)
            found.append(str(path))
        monkeypatch.setenv("CUDA_HOME", "")
        monkeypatch.setenv("CUDA_PATH", "")
        monkeypatch.setattr(assembler.shutil, "which", lambda _: found[0] if found else None)
        monkeypatch.setattr(assembler.os, "access", lambda p, _: p in found)
        assembler.choose.cache_clear()

    yield make
    os.environ.pop(assembler.VARIABLE, None)
    assembler.choose.cache_clear()


def test_versions_are_read():
    assert assembler.version_of("Cuda compilation tools, release 13.0, V13.0.48") == (13, 0)
    assert assembler.version_of("something else") is None


def test_a_newer_assembler_is_used_where_the_driver_loads_its_code(machine):
    machine((13, 0), {"ptxas": "13.0"})
    assembler.choose()
    assert os.environ[assembler.VARIABLE].endswith("ptxas")


@pytest.mark.parametrize(("driver", "release"), [(None, "13.0"), ((12, 8), "13.0"), ((13, 0), "11.8")])
def test_without_driver_or_with_an_older_one_or_an_older_toolkit_triton_keeps_its_own(machine, driver, release):
    machine(driver, {"ptxas": release})
    assembler.choose()
    assert assembler.VARIABLE not in os.environ


def test_what_the_user_chose_stays(machine, monkeypatch):
    machine((13, 0), {"ptxas": "13.0"})
    monkeypatch.setenv(assembler.VARIABLE, "/mine")
    assembler.choose()
    assert os.environ[assembler.VARIABLE] == "/mine"


def test_triton_is_asked_for_the_version_again(machine, monkeypatch):
    from triton.backends.nvidia import compiler

    # something was compiled before: the version that kernels are cached under would be that of the old assembler
    asked = []
    monkeypatch.setattr(compiler, "get_ptxas_version", assembler.functools.cache(lambda: asked.append(1)))
    compiler.get_ptxas_version()
    machine((13, 0), {"ptxas": "13.0"})
    assembler.choose()
    compiler.get_ptxas_version()
    assert len(asked) == 2
