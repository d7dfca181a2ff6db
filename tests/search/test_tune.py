"""Fast tuning: the same answer each time, nothing that cannot run, nothing that is known to be compiled wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cost_model.features import schedule_features
from fuser.device import load_device
from fuser.errors import UnsupportedError
from fuser.workloads import workload
from search.ranked import Ranked
from search.realise import realise
from search.space.hazards import hazardous
from search.tune import DOUBT
from search.tune import judged
from search.tune import tune_fast
from search.tune import wary
from tests.builders import chain

H200 = load_device("h200")
NAMES = ("mcfuser/G1", "mcfuser/G5", "mcfuser/S2", "mcfuser/S6", "mirage/rmsnorm", "mirage/gqa-spec", "graphene/layernorm")


@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize("name", NAMES)
def test_winners_fit_the_device(name, target):
    device = load_device(target)
    tuned = tune_fast(workload(name), device)
    again = tune_fast(workload(name), device)
    assert tuned.winner == again.winner
    assert judged(tuned.winner) <= min(map(judged, tuned.runners))
    for block, ks in zip(tuned.winner.graph.blocks, tuned.winner.schedule.kernels, strict=True):
        assert not hazardous(schedule_features(block, ks), device).any()


def test_a_target_that_triton_cannot_serve_is_refused():
    with pytest.raises(UnsupportedError, match="V100"):
        tune_fast(workload("mcfuser/G1"), load_device("v100"))


def test_winners_compile_and_agree_with_float64():
    pytest.importorskip("torch")
    device = load_device("a100")
    tuned = [tune_fast(workload(n), device) for n in ("mcfuser/G2", "mcfuser/S6")]
    for done in realise(tuned, device):
        assert done.check is not None and done.check.passed
        for artifact in done.artifacts:
            assert ".target sm_80" in artifact.ptx
            assert artifact.registers > 16
            assert artifact.spills <= 64
            assert artifact.shared_bytes <= device.smem_per_block


@pytest.mark.parametrize("name", ["G4", "G5", "G6"])
def test_long_inner_sums_are_not_fused(name: str) -> None:
    """k of 256 and more over 512 rows: measured, two kernels beat one that computes the first product again and again."""
    assert len(tune_fast(workload(f"mcfuser/{name}"), load_device("h200")).winner.graph.kernels) > 1


@pytest.mark.parametrize("name", ["G1", "G2", "G3", "S1", "S4", "S7"])
def test_short_ones_are_fused(name: str) -> None:
    assert len(tune_fast(workload(f"mcfuser/{name}"), load_device("h200")).winner.graph.kernels) == 1


def test_a_found_structure_has_to_win_by_more_than_doubt() -> None:
    program = chain(64, 64, 64, 64)
    tuned = tune_fast(program, load_device("h200"), options=False)
    plain, other = tuned.winner, next(r for r in tuned.runners if r.graph != tuned.winner.graph)

    def between(ratio: float) -> Ranked:
        found = replace(other, estimate=plain.estimate / ratio)
        return wary(replace(tuned, winner=found, runners=(plain,)), (plain.graph,)).winner

    assert between(DOUBT - 0.01).graph == plain.graph
    assert between(DOUBT + 0.01).graph == other.graph
    assert wary(tuned, {r.graph for r in (tuned.winner, *tuned.runners)}) == tuned


CHOICE = """
import json
from fuser.device import load_device
from search.tune import tune_fast
from fuser.workloads import workload
found = tune_fast(workload("mcfuser/G1"), load_device("h200"))
print(json.dumps([[c.graph.stable_hash(), c.schedule.to_json(), c.estimate] for c in (found.winner, *found.runners)]))
"""


def test_two_machines_without_a_gpu_choose_the_same(tmp_path: Path) -> None:
    """The other has another home, other hashes, one thread and nothing in its caches."""
    env = os.environ | {"PYTHONHASHSEED": "7", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHOICE], env=env, capture_output=True, text=True, timeout=100, check=True)
    found = tune_fast(workload("mcfuser/G1"), H200)
    here = [[c.graph.stable_hash(), c.schedule.to_json(), c.estimate] for c in (found.winner, *found.runners)]
    assert json.loads(done.stdout) == json.loads(json.dumps(here))
