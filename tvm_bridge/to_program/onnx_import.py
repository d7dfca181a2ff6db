"""Import of ONNX files: their graph as a program, cleaned up as Relay's is."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuser.frontends.imported import Imported
from fuser.frontends.onnx_file import OnnxGraph
from fuser.frontends.onnx_file import load
from fuser.frontends.onnx_file import open_places
from fuser.frontends.onnx_file import read_graph
from fuser.frontends.sized import Sized
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import rename
from tvm_bridge.to_program.normalize import normalize


def read_file(path: str | Path) -> tuple[Imported, OnnxGraph]:
    """A model from its file as every frontend gives it, and its graph."""
    return _imported(path, {})


def read_sized(path: str | Path) -> tuple[Sized, Any]:
    """A model of which some sizes are open."""
    found = open_places(load(path))
    return Sized(Path(path).stem, found, dict.fromkeys(found, (1, None)), lambda sizes: _imported(path, sizes)[0]), None


def _imported(path: str | Path, sizes: Mapping[str, int]) -> tuple[Imported, OnnxGraph]:
    graph = read_graph(path, sizes)
    clean = normalize(graph.program, graph.known, graph.literals, apart=True)
    return Imported(_named(clean.program, graph.program.outputs), clean.known, graph.inputs), graph


def _named(program: TensorProgram, outputs: Sequence[str]) -> TensorProgram:
    """With its outputs under their names in the file, which a view that changes nothing had."""
    new = {n: o for n, o in zip(program.outputs, outputs, strict=True) if o not in program.table}
    return rename(program, new, program.name)
