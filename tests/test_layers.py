"""Tests stand no higher than what they test: those of a layer import nothing of the layers above it, code or tests.

The order of the layers is the linter's contract; test modules of all layers are no place for helpers that others import.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

TESTS = ROOT / "tests"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = next(c["layers"] for c in CONTRACTS if c["id"] == "layers")
"""From the top down."""
FOLDERS = sorted(p.name for p in TESTS.iterdir() if (p / "__init__.py").exists())


def layer(name: str) -> int | None:
    """How far from the top a module or a test module lies; folders of tests are named after packages, or after rooms of the
    lowest one. ``None``: of no layer."""
    parts = name.split(".")
    if parts[0] == "tests":
        if len(parts) < 2 or not (TESTS / parts[1]).is_dir():
            return None
        parts = parts[1:]
        if parts[0] not in LAYERS:
            return LAYERS.index("fuser") if (ROOT / "fuser" / parts[0]).is_dir() else None
    return LAYERS.index(parts[0]) if parts[0] in LAYERS else None


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, within functions and in code that it gives to other processes too."""
    todo = [path.read_text(encoding="utf-8")]
    while todo:
        try:
            tree = ast.parse(todo.pop())
        except (SyntaxError, ValueError):
            continue  # a string that is no program
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{a.name}" for a in node.names)
            elif isinstance(node, ast.Import):
                yield from (a.name for a in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
                todo.append(node.value)


@pytest.mark.parametrize("folder", FOLDERS)
def test_tests_import_nothing_above_them(folder: str) -> None:
    own = layer(f"tests.{folder}")
    assert own is not None, f"tests/{folder} is named after no package and no room of fuser"
    above = []
    for path in sorted((TESTS / folder).rglob("*.py")):
        for name in dict.fromkeys(imports(path)):
            found = layer(name)
            if found is not None and found < own:
                above.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not above, "\n".join(above)


def test_folders_follow_the_rooms() -> None:
    """What lies below a folder of tests has the name of a folder of the package that it tests."""
    for inner in sorted(p.parent for p in TESTS.rglob("__init__.py")):
        parts = inner.relative_to(TESTS).parts
        if parts and parts[0] != "data":
            path = Path(*parts) if parts[0] in LAYERS else Path("fuser", *parts)
            assert (ROOT / path).is_dir(), f"tests/{'/'.join(parts)} tests no folder {path}"
