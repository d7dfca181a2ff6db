"""A second call takes what the first has found: in another process too, and without what chooses."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import fuser
from fuser.device import load_device
from fuser.superopt.structures import structures
from fuser.superopt.verify import verdicts
from fuser.workloads import workload
from search.ranked import QUICK
from search.tuner.measured import tune_measured
from search.tuner.memory import open_memory
from search.tuner.simulated import Simulated
from search.tuner.tasks import Task

H200 = load_device("h200")
PROGRAM = workload("mcfuser/G1")
CHOOSING = ("cost_model.refined", "fuser.superopt.structures", "fuser.superopt.verify.verifier", "search.space", "search.cover")
"""What a process needs that chooses."""
SECOND = """
import json, sys
import fuser

run = fuser.compile("mcfuser/G1", target="h200", effort="quick")
print(json.dumps([str(run.schedule), run.ptx, [m for m in sys.modules if not m.startswith(("torch", "numpy"))]]))
"""

COMMAND = """
import sys
from fuser.cli import main

code = main(["tune", "mcfuser/G1", "--target", "h200", "--no-check"])
spared = ("search.cover", "search.measure.worker", "rich.markdown", "torch")
print("LOADED", code, [m for m in sys.modules if m.startswith(spared)])
"""


def test_a_fresh_process_takes_the_winner_and_its_kernels_and_loads_nothing_that_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(verdicts, "_KNOWN", {})  # what this process knows is not in that folder
    short = replace(QUICK, population=16, top=8, generations=2)
    task = Task(PROGRAM, lambda: structures(PROGRAM))
    tune_measured([task], H200, short, open_memory(), lambda: nullcontext(Simulated(H200, 7)))
    first = fuser.compile(PROGRAM, target="h200", effort="quick")
    made = subprocess.run(
        [sys.executable, "-c", SECOND], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    schedule, ptx, loaded = json.loads(made.stdout)
    assert (schedule, tuple(ptx)) == (str(first.schedule), first.ptx)
    assert [m for m in loaded if m.startswith((*CHOOSING, "triton", "rich"))] == []


def test_the_command_that_tunes_loads_neither_what_measures_nor_what_chooses_for_models() -> None:
    made = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert made.stdout.splitlines()[-1] == "LOADED 0 []"
