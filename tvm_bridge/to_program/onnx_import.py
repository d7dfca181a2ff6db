"""Import of ONNX files: their graph as a program, cleaned up as Relay's is."""

from __future__ import annotations

from pathlib import Path

from fuser.frontends.imported import Imported
from fuser.frontends.onnx_file import OnnxGraph
from fuser.frontends.onnx_file import read_graph
from tvm_bridge.to_program.normalize import normalize


def read_file(path: str | Path) -> tuple[Imported, OnnxGraph]:
    """A model from its file as every frontend gives it, and its graph."""
    graph = read_graph(path)
    clean = normalize(graph.program, graph.known, graph.literals)
    return Imported(clean.program, clean.known, graph.inputs), graph
