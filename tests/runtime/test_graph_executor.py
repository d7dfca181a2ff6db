"""Graphs as callables: workspace, library kernels, DLPack, reuse of outputs; kernels run in Triton's interpreter, in a process of
their own because Triton reads the switch once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.runtime.plan import plan
from fuser.superopt.structures import structures
from fuser.workloads import workload
from tests.builders import schedule
from tests.paths import ROOT


def test_a_schedule_must_fit_its_graph() -> None:
    graph = structures(workload("mcfuser/G1"))[0]
    with pytest.raises(UsageError, match="1 generated kernels, the schedule is for 2"):
        plan(Candidate(graph, Schedule((schedule(), schedule()))))


def run_interpreted(body: str, tmp_path: Path) -> str:
    """Run a script in a process of its own; returns what it printed."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MUFUSER_CACHE": str(tmp_path)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELUDE = """
import numpy as np
import torch
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.schedule import Schedule
from fuser.runtime.graph_executor import Executable
from fuser.runtime.torch_program import reference
from fuser.superopt.structures import structures
from tests.builders import chain
from tests.builders import tiles_of_16

program = chain(48, 40, 32, 16)
torch.manual_seed(0)
inputs = {n: torch.randn(program[n].shape).to(torch.float16) for n in program.inputs}
want = reference(program, inputs)["E"]

def error(found):
    return float((found.double() - want).norm() / want.norm())
"""


def test_every_structure_of_a_chain_runs(tmp_path: Path) -> None:
    text = run_interpreted(
        """
        for graph in structures(program):
            exe = Executable(graph, tiles_of_16(graph), device="cpu")
            exe.workspace.fill_(255)
            out = exe(*(inputs[n] for n in program.inputs))
            print(len(graph.kernels), exe.plan.bytes, error(out))
        """,
        tmp_path,
    )
    rows = [line.split() for line in text.splitlines()]
    assert len(rows) >= 3
    assert all(float(r[2]) < 2e-3 for r in rows)
    assert {int(r[0]) for r in rows} >= {1, 2}
    assert all((int(r[1]) > 0) == (int(r[0]) > 1) for r in rows)


def test_inputs_by_dlpack_and_outputs_in_place(tmp_path: Path) -> None:
    text = run_interpreted(
        """
        graph = structures(program)[0]
        exe = Executable(graph, tiles_of_16(graph), device="cpu")
        arrays = {n: x.numpy() for n, x in inputs.items()}
        mine = {"E": torch.full((48, 16), float("nan"), dtype=torch.float16)}
        found = exe.run(arrays, mine)
        assert found["E"] is mine["E"]
        print(error(mine["E"]))
        call = exe.bind(inputs, mine)
        inputs["A"].mul_(2.0)
        call()
        print(error(mine["E"] / 2))
        other = dict(inputs, A=inputs["A"].t().contiguous().t())   # not contiguous: copied
        print(error(exe.run(other)["E"] / 2))
        for wrong in (inputs["A"].float(), inputs["A"][:5]):
            try:
                exe.run(dict(inputs, A=wrong))
            except UsageError as e:
                print("refused", e.message)
        try:
            exe.run({"A": inputs["A"]})
        except UsageError as e:
            print("refused", e.message)
        """,
        tmp_path,
    )
    lines = text.splitlines()
    assert all(float(x) < 2e-3 for x in lines[:3])
    assert len(lines) == 6
    assert "A must be" in lines[3]
    assert "float16" in lines[3]
    assert "B, D" in lines[5]


def test_library_kernels_and_generated_ones_in_one_graph(tmp_path: Path) -> None:
    text = run_interpreted(
        """
        from dataclasses import replace
        from fuser.ir.mugraph import LibraryKernel
        graph = next(g for g in structures(program) if len(g.kernels) == 2 and not any(k.splits for k in g.blocks))
        name = graph.intermediates[0]
        mixed = replace(graph, kernels=(LibraryKernel("gemm", "matmul", ("A", "B"), name), graph.kernels[1]))
        exe = Executable(mixed, Schedule(tiles_of_16(graph).kernels[1:]), device="cpu")
        print(error(exe(*(inputs[n] for n in program.inputs))), exe.plan.sources[0])
        """,
        tmp_path,
    )
    value, source = text.split()
    assert float(value) < 2e-3
    assert source == "None"


@pytest.mark.parametrize("name", ["mcfuser/S7", "mirage/ntrans", "mirage/mlp"])
def test_the_torch_form_agrees_with_numpy(name: str) -> None:
    import torch

    from fuser.ir.builder import Builder
    from fuser.runtime.torch_program import run_program
    from fuser.workloads import adapter
    from fuser.workloads import attention
    from fuser.workloads import n_trans

    small = {
        "mcfuser/S7": lambda: attention(Builder("s"), heads=2, M=5, N=7, K=4, H=3),
        "mirage/ntrans": lambda: n_trans(Builder("n"), rows=3, D=8),
        "mirage/mlp": lambda: adapter(Builder("m"), rows=4, D=6, R=2),
    }[name]()
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(small[n].shape) for n in small.inputs}
    want = small.evaluate(arrays)
    found = run_program(small, {n: torch.from_numpy(x) for n, x in arrays.items()})
    for n in small.outputs:
        np.testing.assert_allclose(found[n].numpy(), want[n], rtol=1e-9, atol=1e-12)
