"""mufuser: structures searched symbolically, schedules ranked by a model, kernels lowered through Triton to PTX.

Public names are loaded when they are first used, so that ``import fuser`` is fast and needs numpy alone.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"]:  # python -m fuser…: Python is loading a command
    from fuser import loading

    loading.quietly()

from importlib import import_module
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from fuser.device import Device as Device
    from fuser.device import list_devices as list_devices
    from fuser.device import load_device as load_device
    from fuser.errors import FuserError as FuserError
    from fuser.frontends.imported import Imported as Imported
    from fuser.frontends.torch_export import from_torch as from_torch
    from fuser.ir.builder import Builder as Builder
    from fuser.ir.program import Tensor as Tensor
    from fuser.ir.program import TensorProgram as TensorProgram
    from fuser.superopt.search import superoptimize as superoptimize
    from fuser.workloads import workload as workload
    from fuser.workloads import workload_names as workload_names

    __version__: str

PUBLIC: dict[str, str] = {
    "Builder": "fuser.ir.builder:Builder",
    "Device": "fuser.device:Device",
    "FuserError": "fuser.errors:FuserError",
    "Imported": "fuser.frontends.imported:Imported",
    "Tensor": "fuser.ir.program:Tensor",
    "TensorProgram": "fuser.ir.program:TensorProgram",
    "compile": "search.compile:compile_program",
    "from_torch": "fuser.frontends.torch_export:from_torch",
    "list_devices": "fuser.device:list_devices",
    "load_device": "fuser.device:load_device",
    "optimize": "tvm_bridge.api:optimize",
    "superoptimize": "fuser.superopt.search:superoptimize",
    "torch_backend": "search.torch_backend:torch_backend",
    "workload": "fuser.workloads:workload",
    "workload_names": "fuser.workloads:workload_names",
}
"""Public name to ``module:attribute``; a name of a higher layer is only a string here."""


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("mufuser")
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    if name not in PUBLIC:
        raise AttributeError(f"module 'fuser' has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC, "__version__"})
