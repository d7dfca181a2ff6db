"""Models that ``torch.export.save`` wrote (``.pt2``)."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import first_line
from fuser.files import ARCHIVE
from fuser.files import MODEL_BYTES
from fuser.files import open_regular
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Sized
from fuser.frontends.sized import sized_torch
from fuser.frontends.torch_export import from_torch

REGISTERING = ("transformers", "diffusers")
"""Packages that tell torch of their classes of results when they are imported."""
DEFINING = {"transformers": "transformers.integrations.moe", "torchvision": "torchvision", "torchaudio": "torchaudio"}
"""Modules that define operators of torch when they are imported, by the names that these begin with."""
_UNDEFINED = re.compile(r"failed to resolve torch\.ops\.([\w.]+) to an operator")
_UNKNOWN = re.compile(r"Deserializing ([\w.]+) in pytree is not registered")


def read(path: str | Path) -> tuple[Imported, Any]:
    """The import of an exported program, and that program. Raises :class:`ModelFileError` for what torch cannot load."""
    exported = _load(path)
    try:
        return from_torch(exported, name=Path(path).stem), exported
    except FuserError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from error


def read_sized(path: str | Path) -> tuple[Sized, Any]:
    """The same of a program whose sizes are open."""
    exported = _load(path)
    return sized_torch(exported, Path(path).stem), exported


def _load(path: str | Path) -> Any:
    handle = open_regular(path)
    size, start = os.fstat(handle).st_size, os.read(handle, len(ARCHIVE))
    os.close(handle)
    if size > MODEL_BYTES:
        raise ModelFileError(f"{path}: has {size} bytes, more than the {MODEL_BYTES} that are read", "give another file")
    if start != ARCHIVE:
        raise ModelFileError(f"{path}: is no archive of torch.export", "write it with torch.export.save(exported, path)")
    try:
        import torch
    except ImportError as error:
        raise EnvironmentError_("reading a model of torch.export needs torch", "pip install 'mufuser[torch]'") from error
    asked = set[str]()
    with _heard() as lines:
        while True:
            del lines[:]
            try:
                return torch.export.load(str(path))
            except Exception as error:  # noqa: BLE001 - of any class
                failed, missing, operator = error, _unregistered(lines), _undefined([str(error), *lines])
            name, module = (missing, _registering(missing)) if missing else (operator, _defining(operator))
            if name in asked or not module or not _imported(module):
                break
            asked.add(name)
    if missing:
        raise ModelFileError(
            f"{path}: has arguments or results of {missing}, of which torch knows nothing here",
            f"install {missing.partition('.')[0]}, or export the model with tensors, tuples and dictionaries (return_dict=False)",
        ) from failed
    if operator:
        raise ModelFileError(
            f"{path}: has the operator torch.ops.{operator}, which nothing here defines",
            f"install the package that defines it ({operator.partition('.')[0]}?), or import that and pass the exported program",
        ) from failed
    raise ModelFileError(
        f"{path}: torch {torch.__version__} cannot load it: {_reason(failed, lines)}",
        "write it again with torch.export.save(exported, path), with the torch that is installed",
    ) from failed


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What torch logs while it loads, tracebacks of what it then raises, and nothing of it on stderr."""
    lines: list[str] = []
    log, handler = logging.getLogger("torch.export"), logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))
    before = log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield lines
    finally:
        log.handlers, log.propagate = before


def _reason(failed: Exception, lines: Sequence[str]) -> str:
    """What torch raises, or logged if it only points there."""
    if "warnings above" not in str(failed) or not lines:
        return first_line(failed)
    return lines[-1].strip().splitlines()[-1].partition(". ")[0]


def _unregistered(lines: Sequence[str]) -> str:
    """The class that torch would have to know to load a file."""
    found = [m[1] for line in lines for m in _UNKNOWN.finditer(line)]
    return found[-1] if found else ""


def _undefined(lines: Sequence[str]) -> str:
    """The operator that torch would have to know."""
    found = [m[1].removesuffix(".default") for line in lines for m in _UNDEFINED.finditer(line)]
    return found[-1] if found else ""


def _registering(name: str) -> str:
    """The module of a class, where that is of a package that is known to register it. What else a file names is not imported."""
    return name.rpartition(".")[0] if name.partition(".")[0] in REGISTERING else ""


def _defining(operator: str) -> str:
    """The module that is known to define an operator."""
    return DEFINING.get(operator.partition(".")[0], "")


def _imported(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True
