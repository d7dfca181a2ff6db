"""TVM's CUDA library on a machine that has no CUDA driver.

That library has what makes a CUDA module of PTX or a cubin, and it is linked against the driver and the CUDA runtime: without
them it cannot be loaded, and TVM leaves it out in silence. Nothing of either is needed to compile. Where they are missing, two
libraries take their places in which every function fails ("no device"). TVM links what it exports with a C compiler, so that
one is there to make them with.

Only for processes that end afterwards: whatever asks for the driver later finds these.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuser.errors import EnvironmentError_

LIBRARY = "libtvm_runtime_cuda.so"
NO_DEVICE = 100
"""``cudaErrorNoDevice`` and ``CUDA_ERROR_NO_DEVICE``."""
PREFIXES = ((re.compile(r"libcudart\.so\.\d+"), "cuda[A-Z]"), (re.compile(r"libcuda\.so\.\d+"), "cu[A-Z]"))
"""What the two libraries are called, and what their functions begin with."""


def compiler() -> str:
    """The C compiler that links libraries; raises :class:`EnvironmentError_` where there is none."""
    for name in (os.environ.get("CXX"), "g++", "gcc", "clang++", "clang", "cc"):
        if name and (found := shutil.which(name)):
            return found
    raise EnvironmentError_("there is no C compiler to link a library with", "install gcc or clang, or set CXX")


def load(tvm: Any) -> bool:
    """Make TVM able to create CUDA modules; whether stand-ins were needed. Raises :class:`EnvironmentError_` where this TVM was
    built without CUDA."""
    if tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None:
        return False
    library = Path(tvm.__file__).parent / "lib" / LIBRARY
    if not library.exists():
        raise EnvironmentError_(
            f"TVM {tvm.__version__} was built without CUDA: it has no {LIBRARY}", "pip install 'mufuser[relax]' on Linux"
        )
    with tempfile.TemporaryDirectory() as folder:
        for soname, functions in needed(library.read_bytes()):
            if not _loads(soname):
                ctypes.CDLL(str(stand_in(Path(folder), soname, functions)), ctypes.RTLD_GLOBAL)
        try:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EnvironmentError_(f"TVM's CUDA library cannot be loaded: {error}", "install apache-tvm again") from error
    return True


def needed(library: bytes) -> list[tuple[str, list[str]]]:
    """The CUDA libraries that TVM's is linked against, the runtime first, and the functions that it uses of each."""
    words = [w.decode("ascii", "replace") for w in set(re.findall(rb"(?<=\0)[A-Za-z][\w.]+(?=\0)", library))]
    found = []
    for name, prefix in PREFIXES:
        functions = sorted(w for w in words if re.match(prefix, w) and w.isidentifier())
        found += [(w, functions) for w in sorted(words) if name.fullmatch(w)]
    return found


def stand_in(folder: Path, soname: str, functions: list[str]) -> Path:
    """A library of that name in which every function fails."""
    source, versions, made = (folder / f"{soname}{end}" for end in (".c", ".map", ""))
    source.write_text("".join(f"int {f}(void) {{ return {NO_DEVICE}; }}\n" for f in functions))
    # the CUDA runtime's functions have its name as their version, the driver's have none
    versions.write_text(f"{soname if 'cudart' in soname else ''} {{ global: cu*; }};\n")
    command = [compiler(), "-x", "c", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{soname}"]
    done = subprocess.run(
        [*command, f"-Wl,--version-script,{versions}", "-o", made, source], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EnvironmentError_(f"{command[0]} cannot link a library: {done.stderr.strip()[-300:]}", "install gcc or clang")
    return made


def _loads(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return sys.platform == "linux"
