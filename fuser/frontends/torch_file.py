"""Models that ``torch.export.save`` wrote (``.pt2``)."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import first_line
from fuser.files import MODEL_BYTES
from fuser.files import open_regular
from fuser.frontends.imported import Imported
from fuser.frontends.sized import Sized
from fuser.frontends.sized import sized_torch
from fuser.frontends.torch_export import from_torch


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
    size, start = os.fstat(handle).st_size, os.read(handle, 4)
    os.close(handle)
    if size > MODEL_BYTES:
        raise ModelFileError(f"{path}: has {size} bytes, more than the {MODEL_BYTES} that are read", "give another file")
    if start != b"PK\x03\x04":
        raise ModelFileError(f"{path}: is no archive of torch.export", "write it with torch.export.save(exported, path)")
    try:
        import torch
    except ImportError as error:
        raise EnvironmentError_("reading a model of torch.export needs torch", "pip install 'mufuser[torch]'") from error
    log = logging.getLogger("torch.export")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.disabled = True  # tracebacks of what it then raises
            return torch.export.load(str(path))
    except Exception as error:
        raise ModelFileError(
            f"{path}: torch {torch.__version__} cannot load it: {first_line(error)}",
            "write it again with torch.export.save(exported, path), with the torch that is installed",
        ) from error
    finally:
        log.disabled = False
