from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import UsageError
from fuser.frontends.mirage_json import mirage_graphs
from fuser.ir.builder import Builder
from fuser.ir.program import TensorProgram
from fuser.superopt.commands import read_graph
from fuser.superopt.verify.verdict import Accepted
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verifier import verify
from tests.builders import lora
from tests.builders import rms_gemm
from tests.frontends import mirage_files as files


def attention(norm: bool = False) -> TensorProgram:
    b = Builder("attention")
    q, k, v = b.input("Q", (2, 256, 64)), b.input("K", (2, 64, 4096)), b.input("V", (2, 4096, 64))
    if norm:
        q, v = b.rms_norm(q, eps=0), b.rms_norm(v, eps=0)
    return b.build(O=b.softmax(q @ k) @ v)


@pytest.mark.parametrize(
    ("program", "file"),
    [
        (rms_gemm(16, 4096, 6144, gain=False, eps=0), files.rms_norm()),
        (rms_gemm(16, 4096, 6144, gain=False, eps=0), files.rms_norm("accum")),
        (attention(), files.attention()),
        (lora(16, 256, 4096, 16), files.lora()),
    ],
)
def test_published_structures_are_verified(program: TensorProgram, file: list[files.Op]) -> None:
    (graph,) = mirage_graphs([file], program.inputs, program.outputs)
    verdict = verify(program, graph)
    assert isinstance(verdict, Accepted), f"{verdict}\n{graph}"
    assert verdict.float_error < 1e-12


def test_the_published_wrong_qk_norm_is_refused() -> None:
    program = attention(norm=True)
    (graph,) = mirage_graphs(files.wrong_qk_norm(), program.inputs, program.outputs)
    assert len(graph.kernels) == 4
    for rounds in (1, 3):
        verdict = verify(program, graph, rounds=rounds, float_rounds=0)
        assert isinstance(verdict, Rejected)
        assert "differs" in verdict.why


def test_a_wrong_map_is_refused() -> None:
    program = attention()
    file = files.attention()
    loads = [o for o in file[3]["bgraph"]["operators"] if o["op_type"] == "tb_input_op"]
    v = loads[2]
    v["input_map"]["y"], v["forloop_dim"] = v["forloop_dim"], v["input_map"]["y"]
    (graph,) = mirage_graphs(file, program.inputs, program.outputs)
    assert verify(program, graph, rounds=1, float_rounds=0).accepted, "grid and loop part of one dimension: the same maps"
    missing = copy.deepcopy(files.rms_norm())
    block = missing[2]["bgraph"]
    block["operators"][2]["op_type"] = "tb_forloop_accum_red_ld_mean_op"
    (graph,) = mirage_graphs(missing, ("X", "W"), ("Y",))
    assert isinstance(verify(rms_gemm(16, 4096, 6144, gain=False, eps=0), graph), Rejected)


def test_axes_follow_the_maps() -> None:
    (graph,) = mirage_graphs(files.rms_norm(), ("X", "W"), ("Y",))
    (block,) = graph.blocks
    assert block.extents["gx"] == 256
    assert block.extents["l"] == 4
    access = {s.access.tensor: s.access.dims for s in block.stmts if s.access}
    assert access["X"][1][0] == "l"
    assert access["W"][1][0] == "gx"
    assert access["Y"][1][0] == "gx"
    assert sorted(np.prod([block.extents[a] for a in d]) for d in access["W"]) == [4096, 6144]


def test_errors() -> None:
    with pytest.raises(ModelFileError, match="a list"):
        mirage_graphs({})  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match="2 inputs, 1 names"):
        mirage_graphs(files.rms_norm(), ("X",))
    file = files.rms_norm()
    del file[0]["output_tensors"][0]["dim"]
    with pytest.raises(ModelFileError, match="lacks"):
        mirage_graphs(file)
    file = files.rms_norm()
    file[2]["bgraph"]["operators"][3]["op_type"] = "tb_clamp_op"
    with pytest.raises(UnsupportedError, match="tb_clamp_op"):
        mirage_graphs(file)
    file = files.rms_norm()
    file[2]["bgraph"]["grid_dim"]["x"] = 7
    with pytest.raises(ModelFileError, match="not divided"):
        mirage_graphs(file)


def test_the_command_reads_such_files(tmp_path: Path) -> None:
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps([files.rms_norm(), files.rms_norm("accum")]))
    program = rms_gemm(16, 4096, 6144, gain=False, eps=0)
    for where in (str(path), f"{path}#1"):
        assert verify(program, read_graph(where, program), rounds=1).accepted
    with pytest.raises(UsageError, match="it has 2"):
        read_graph(f"{path}#2")
