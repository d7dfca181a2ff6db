"""A library for TVM 0.27 in a folder with all that it takes to run it: TVM's runtime, without its compiler, and what loads it.

Nothing of mufuser, Triton or torch is needed there. Python's part of TVM's runtime is compiled for one version of Python, that of
this process; the example in C++ has no such limit.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from tvm_bridge.back.offline_cuda import LIBRARY
from tvm_bridge.back.offline_cuda import needed
from tvm_bridge.flavour import require_relax
from tvm_bridge.output import changed
from tvm_bridge.relaxed import ABOUT

README = """A model compiled by mufuser for GPUs of sm_{arch}, and the runtime of TVM {tvm}, which runs it. The machine needs
such a GPU, {cuda}and its driver; beside it:

  Python {python}   python3 run.py        (mufuser_model.py is the loader: Model(FOLDER)(x), tensors by DLPack)
  C++           run.cpp               (its first lines say how it is compiled)

model.json says what the inputs, outputs and weights are.
"""
DEPLOY = Path(__file__).with_name("deploy")
"""Files that are copied as they are; they use nothing of mufuser."""
LEFT_OUT = ("include", "src", "3rdparty", "share", "testing", "cython")
"""Folders of tvm_ffi that running needs nothing of."""


@dataclass(frozen=True)
class Package:
    """``files`` by name inside of the folder, with their bytes; ``missing``: what the machine must have beside a GPU and its
    driver."""

    folder: Path
    files: dict[str, int] = field(repr=False)
    missing: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def write_package(made: Path, folder: Path) -> Package:
    """Put the library of ``mufuser optimize --runtime relax`` in the folder ``made``, and what runs it, into ``folder``, which
    is empty. Raises :class:`UsageError` where there is no such library, :class:`EnvironmentError_` where TVM 0.27 is not
    installed."""
    about = about_of(made)
    version = require_relax()
    if about["tvm"] != version:
        raise EnvironmentError_(
            f"{made / 'model.so'} was made for TVM {about['tvm']}, installed is {version}",
            "package it where it was made, or optimize the model again",
        )
    for name in ("model.so", ABOUT, *(("model.params",) if about["weights"]["where"] == "beside" else ())):
        if not (made / name).exists():
            raise UsageError(f"{made} has no {name}", "optimize the model again")
        if changed(made, name):
            raise UsageError(f"{made / name} is not what mufuser optimize wrote: it has changed", "optimize the model again")
        shutil.copyfile(made / name, folder / name)
    for path in DEPLOY.glob("*.*"):
        shutil.copyfile(path, folder / path.name)
    missing = _runtime(folder)
    python = ".".join(map(str, sys.version_info[:2]))
    cuda = f"CUDA's runtime ({', '.join(missing)}), " if missing else ""
    (folder / "README.txt").write_text(README.format(arch=about["arch"], tvm=version, python=python, cuda=cuda))
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return Package(folder, {n: p.stat().st_size for n, p in files.items()}, missing)


def about_of(made: Path) -> dict[str, Any]:
    """What the library of an output folder is."""
    path = made / ABOUT
    try:
        found = json.loads(path.read_text())
        return {"tvm": found["tvm"], "arch": found["arch"], "weights": {"where": found["weights"]["where"]}}
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{made} has no library for TVM's virtual machine", f"make one: mufuser optimize MODEL --runtime relax -o {made}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged", "optimize the model again") from error


def _runtime(folder: Path) -> tuple[str, ...]:
    """Copy TVM's runtime; returns what is not here to be copied."""
    ffi, tvm = _package("tvm_ffi"), _package("tvm")
    _copy_tree(ffi, folder / "python" / "tvm_ffi", LEFT_OUT)
    shutil.copyfile(_file("typing_extensions"), folder / "python" / "typing_extensions.py")
    _copy_tree(ffi / "include", folder / "include")
    (folder / "lib").mkdir()
    for name in ("libtvm_runtime.so", LIBRARY):
        shutil.copyfile(tvm / "lib" / name, folder / "lib" / name)
    for name in ("LICENSE", "NOTICE"):
        if (tvm / name).exists():
            shutil.copyfile(tvm / name, folder / f"{name}-TVM")
    missing = []
    for soname, _ in needed((tvm / "lib" / LIBRARY).read_bytes()):
        if "cudart" in soname:
            found = _cuda_runtime(soname)
            if found is None:
                missing.append(soname)
            else:
                shutil.copyfile(found, folder / "lib" / soname)
    return tuple(missing)


def _copy_tree(source: Path, target: Path, but: Sequence[str] = ()) -> None:
    """The files of a folder, but for folders of it. The first that cannot be written is the error, not all of them."""
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_file() and parts[0] not in but and "__pycache__" not in parts:
            place = target.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def _package(name: str) -> Path:
    return _file(name).parent


def _file(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise EnvironmentError_(f"the package {name} is not installed", "pip install 'mufuser[relax]'")
    return Path(found.origin)


def _cuda_runtime(soname: str) -> Path | None:
    """CUDA's runtime, of a toolkit or of NVIDIA's packages for Python."""
    places = [*Path("/usr/local").glob("cuda*/lib*"), *(Path(p) / "nvidia" for p in sys.path)]
    for place in places:
        for path in (place / soname, *place.glob(f"*/lib/{soname}")):
            if path.exists():
                return path.resolve()
    return None
