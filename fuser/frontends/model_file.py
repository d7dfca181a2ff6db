"""Files of models: each is read by the frontend of its form, and becomes a program with the values of its parameters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fuser.errors import UsageError
from fuser.files import ARCHIVE
from fuser.files import open_regular
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Place
from fuser.frontends.sized import Sized


@dataclass(frozen=True)
class ModelFile:
    """``form`` names the form of the file; ``original`` is what the frontend read, before it became a program: a
    ``torch.export.ExportedProgram``, an ONNX graph, or an imported Relay model."""

    source: str
    form: str
    imported: Imported
    original: Any = None


@dataclass(frozen=True)
class SizedFile:
    """The same of a model with open sizes."""

    source: str
    form: str
    sized: Sized
    original: Any = None


TORCH, ONNX, RELAY = "torch.export", "ONNX", "Relay"
RELAX_MODULE = "Relax"
"""The form of a live module of Relax."""

READERS: dict[str, tuple[str, str]] = {
    ".pt2": (TORCH, "fuser.frontends.torch_file:read"),
    ".onnx": (ONNX, "tvm_bridge.to_program.onnx_import:read_file"),
    ".json": (RELAY, "tvm_bridge.to_program.relay_import:read_file"),
}
"""By suffix: what the form is called, and the function from a path to an import and what it is of. That of Relay also takes the
path of a file of parameters. A reader of a higher layer is only a string here."""


SIZED = {
    ".pt2": "fuser.frontends.torch_file:read_sized",
    ".onnx": "tvm_bridge.to_program.onnx_import:read_sized",
    ".json": "tvm_bridge.to_program.relay_sized:read_sized",
}
"""By suffix: the function from a path to a model whose sizes are open and what it is of. That of Relay also takes the path of a
file of parameters, and the places that are one size: they have no names there."""


def is_model_file(name: str) -> bool:
    """Whether an argument names a file of a model, and no workload."""
    return Path(name).suffix in READERS


def read_model_file(path: str | Path, params: str | Path | None = None) -> ModelFile:
    """A model from a file; what has another suffix is taken for torch's where it is an archive, else for Relay. ``params`` is the
    file of a Relay model's parameters.

    Raises :class:`fuser.errors.ModelFileError` for what cannot be read, and :class:`fuser.errors.UnsupportedError` for what has
    no form as a program.
    """
    form, reader = READERS[_suffix(path)]
    _check_params(form, params)
    read = _function(reader)
    imported, original = read(path, params) if form == RELAY else read(path)
    return ModelFile(str(path), form, imported, original)


def read_sized_file(path: str | Path, params: str | Path | None = None, tied: Sequence[Sequence[Place]] = ()) -> SizedFile:
    """A model with open sizes from a file. Each of ``tied`` has places of one size. Raises as :func:`read_model_file` does."""
    suffix = _suffix(path)
    form, read = READERS[suffix][0], _function(SIZED[suffix])
    _check_params(form, params)
    return SizedFile(str(path), form, *(read(path, params, tied) if form == RELAY else read(path)))


def _suffix(path: str | Path) -> str:
    """That of the form that a file has, by its name or by how it begins."""
    if (suffix := Path(path).suffix) in READERS:
        return suffix
    handle = open_regular(path)
    start = os.read(handle, len(ARCHIVE))
    os.close(handle)
    return ".pt2" if start == ARCHIVE else ".json"


def _check_params(form: str, params: str | Path | None) -> None:
    if params is not None and form != RELAY:
        raise UsageError(f"a model of {form} has its parameters in its file", "leave out --params")


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
