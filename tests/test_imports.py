"""What ``import fuser`` loads, and the tables of lazy names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import fuser

HEAVY = ("tvm", "torch", "triton", "z3", "pulp", "dask", "rich", "typer", "scipy")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light_and_needs_numpy_alone() -> None:
    code = f"""
import sys
import numpy
before = set(sys.modules)
import fuser
fuser.Builder, fuser.workload, fuser.load_device
new = set(sys.modules) - before
print(len(new), [m for m in {HEAVY!r} if m in new])
"""
    count, loaded = python(code).strip().split(" ", 1)
    assert loaded == "[]"
    assert int(count) < 100


def test_overview_of_the_command_loads_nothing_heavy() -> None:
    code = f"""
import sys
from fuser.cli import main
code = main(["--help"])
print("LOADED", code, [m for m in {HEAVY!r} if m in sys.modules])
"""
    assert "LOADED 0 []" in python(code)


@pytest.mark.parametrize("name", sorted(fuser.PUBLIC))
def test_public_names_resolve(name: str) -> None:
    module, _, attribute = fuser.PUBLIC[name].partition(":")
    assert getattr(fuser, name) is getattr(import_module(module), attribute)
    assert name in dir(fuser)


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        getattr(fuser, "optimise")  # noqa: B009
