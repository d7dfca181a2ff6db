"""Which assembler makes machine code of PTX.

Triton brings its own ``ptxas``. That of Triton 3.6 (12.8) assembles classes of kernels wrongly on Hopper (operands of a
contraction in registers beside much else: garbage or illegal addresses); 13.0 assembles the same PTX right, at the same speed. So
the newest one of this machine that its driver can load is used, unless ``TRITON_PTXAS_PATH`` names another.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TRITON_PTXAS_PATH"
FLAGS = (
    *("DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "TRITON_F32_DEFAULT"),
    *("TRITON_LIBDEVICE_PATH", "TRITON_OVERRIDE_ARCH", "TRITON_ENABLE_ASAN", "TRITON_INSTRUMENTATION_MODE"),
)
"""Variables by which Triton makes other machine code of the same text."""
FLAGGED = " with "
"""Between a compiler's versions and its flags."""
Version = tuple[int, int]


def version_of(text: str) -> Version | None:
    """Release that ``ptxas --version`` names."""
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def driver_version() -> Version | None:
    """Newest CUDA release whose code the driver loads; ``None`` without a driver."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except OSError:
        return None
    return number.value // 1000, number.value % 1000 // 10


def installed() -> list[tuple[Version, str]]:
    """Assemblers of CUDA toolkits on this machine, the newest first."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    paths = [str(Path(h) / "bin" / "ptxas") for h in homes if h] + [shutil.which("ptxas") or ""]
    found = []
    for path in dict.fromkeys(p for p in paths if p and os.access(p, os.X_OK)):
        if version := _version(path):
            found.append((version, path))
    return sorted(found, reverse=True)


def _own() -> str:
    """Triton's own, found without loading Triton."""
    spec = importlib.util.find_spec("triton")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((str(p) for f in folders if (p := Path(f) / "backends" / "nvidia" / "bin" / "ptxas").exists()), "")


@functools.cache
def _version(path: str) -> Version | None:
    try:
        return version_of(subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout)
    except (OSError, subprocess.SubprocessError):
        return None


def compiler() -> str:
    """Triton's version, that of the assembler where it is not the one that comes with it, and the flags that a user has set."""
    choose()
    try:
        triton = f"triton {importlib.metadata.version('triton')}"
    except importlib.metadata.PackageNotFoundError:
        return ""
    if chosen := os.environ.get(VARIABLE):
        version = _version(chosen)
        triton = f"{triton}, ptxas {version[0]}.{version[1]}" if version else f"{triton}, {chosen}"
    flags = [f"{n}={os.environ[n]}" for n in FLAGS if os.environ.get(n)]
    return FLAGGED.join((triton, ", ".join(flags))) if flags else triton


@contextmanager
def short_key() -> Iterator[None]:
    """Within, Triton's cache of kernels goes by the versions that ours goes by. Triton hashes all of itself instead, half a GB in
    each process that compiles: 2 s of a processor without instructions for it."""
    from triton.runtime import cache

    own = cache.triton_key
    cache.triton_key = compiler
    try:
        yield
    finally:
        cache.triton_key = own


def assemble(ptx: str, arch: int) -> tuple[bytes, list[str]]:
    """Machine code of a text by the assembler in use, empty where it refuses, and what it says."""
    choose()
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [os.environ.get(VARIABLE) or _own(), "-v", f"--gpu-name=sm_{arch}{'a' if arch >= 90 else ''}"]
        done = subprocess.run([*command, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
        return made.read_bytes() if made.exists() else b"", (done.stdout + done.stderr).splitlines()


@functools.cache
def choose() -> None:
    """Make Triton use a newer assembler than its own, where there is one and the driver can load what it makes."""
    driver = driver_version()
    if os.environ.get(VARIABLE) or driver is None:
        return
    least = _version(_own()) or (0, 0)
    for version, path in installed():
        if least < version <= driver:
            os.environ[VARIABLE] = path
            _forget_version()
            return


def _forget_version() -> None:
    """Triton's cache of compiled kernels goes by the assembler's version, which it asks for once: what this process has compiled
    before must not decide it."""
    module = sys.modules.get("triton.backends.nvidia.compiler")
    forget = getattr(getattr(module, "get_ptxas_version", None), "cache_clear", None)
    if forget is not None:
        forget()
