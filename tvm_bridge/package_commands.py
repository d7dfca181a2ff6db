"""The command ``package``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fuser.arguments import Json
from fuser.console import print_json
from fuser.console import print_text
from fuser.files import counted
from tvm_bridge.output import publish
from tvm_bridge.package import Package
from tvm_bridge.package import about_of
from tvm_bridge.package import write_package


def package(
    made: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of mufuser optimize --runtime relax.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to write (default: OUT/package).")
    ] = None,
    json: Json = False,
) -> int:
    """Put a library for TVM's virtual machine into a folder with all that runs it.

    The folder has model.so and its weights, TVM's runtime without its compiler, a loader, and an example each in Python and in
    C++. On a machine with a GPU and its driver it needs neither mufuser nor Triton nor torch: python3 FOLDER/run.py.
    """
    about_of(made)  # before a folder is made
    folder = made / "package" if output is None else output
    done: Package = publish(folder, lambda fresh: write_package(made, fresh))
    if json:
        print_json({"folder": str(folder), "bytes": done.bytes, "files": done.files, "missing": done.missing})
        return 0
    size = f"{counted(len(done.files), 'file')}, {done.bytes / 1e6:.1f} MB"
    print_text(f"written to {folder}: {size}; run it there: python3 {folder}/run.py")
    for name in done.missing:
        print_text(f"{name} is not on this machine: the other must have it (pip install nvidia-cuda-runtime, or CUDA)")
    return 0
