"""Operators that were added to the table at run time, for processes that begin with the table as the source has it."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from typing import NoReturn

from fuser.errors import UsageError
from fuser.ir.opdef import OpDef
from fuser.ir.ops import BUILT_IN
from fuser.ir.ops import OPS


class Unknown:
    """In place of an entry that a process could not be given: every column raises but for names that nobody calls it by."""

    relay: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, column: str) -> NoReturn:
        if column.startswith("__"):
            raise AttributeError(column)
        raise UsageError(
            f"the operator {self.name!r} was added to the op table by functions that other processes do not find",
            "put its entry into a module that adds it to fuser.ir.ops.OPS when it is imported, and import that module",
        )


def _added() -> dict[str, OpDef]:
    return {n: e for n, e in OPS.items() if BUILT_IN.get(n) is not e}


def packed() -> bytes:
    """What was added, or replaced: entries by value, their functions by name; those of other functions by the modules that make
    them."""
    found = [(n, _value(e), _modules(e)) for n, e in _added().items()]
    return pickle.dumps((found, sys.path if found else []))


def written() -> tuple[str, ...]:
    """What was added, as texts that are the same in another process where it is the same; of entries that are not passed by value
    they never are."""
    found = []
    for name, entry in _added().items():
        value = _value(entry)
        files = [getattr(sys.modules[m], "__file__", None) for m in _modules(entry) if value and m in sys.modules]
        found += [name, value.hex() or repr(entry), *(Path(f).read_text() for f in files if f and f.endswith(".py"))]
    return tuple(found)


def unpack(data: bytes) -> None:
    """Add to the table of this process what another one packed."""
    found, path = pickle.loads(data)
    sys.path += [p for p in path if p not in sys.path]
    for name, value, modules in found:
        with suppress(Exception):  # functions of a script, which this process has not
            OPS[name] = pickle.loads(value)
            continue
        for module in modules:
            with suppress(Exception):
                import_module(module)
        if OPS.get(name) is BUILT_IN.get(name):
            OPS[name] = Unknown(name)  # type: ignore[assignment]


def _value(entry: OpDef) -> bytes:
    with suppress(Exception):  # pickle has no common class for what it cannot take
        return pickle.dumps(entry)
    return b""


def _modules(entry: OpDef) -> list[str]:
    """Of the functions of an entry."""
    functions: list[Any] = [f for f in vars(entry).values() if callable(f)]
    return sorted({str(getattr(f, "__module__", "")) for f in functions} - {"", "__main__", "None"})
