"""The verb show: what the solver of layouts chooses, and what it becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuser.cli import main
from fuser.superopt.structures import one_kernel
from fuser.superopt.structures import structures
from fuser.workloads import workload

SCHEDULE = "n [b=1 h=64 k=64 m=128 n=64] warps=8 stages=2"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["show", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def attention(tmp_path: Path) -> str:
    path = tmp_path / "attention.json"
    path.write_text(json.dumps(structures(workload("graphene/fmha"))[0].to_json()))
    return str(path)


def test_layouts_of_a_file_under_a_schedule(attention, capsys):
    code, out, _ = run(capsys, attention, "--as", "layouts", "--schedule", SCHEDULE)
    assert code == 0
    for said in ("group", "buffer K", "swizzle 128 B", "registers:", "shared memory:", "longest:", "µs on NVIDIA H200"):
        assert said in out
    code, out, _ = run(capsys, attention, "--as", "layouts", "--schedule", SCHEDULE, "--json")
    (kernel,) = json.loads(out)["kernels"]
    assert kernel["schedule"] == SCHEDULE and kernel["estimate_us"] > 0
    assert kernel["plan"]["consumers"] * kernel["plan"]["part"] == 128
    assert all(b["layout"].startswith("gl.NVMMASharedLayout(") for b in kernel["plan"]["buffers"])
    assert any("wgmma" in line for line in kernel["specs"])


def test_specs_on_another_architecture(attention, capsys):
    code, out, _ = run(capsys, attention, "--as", "specs", "--schedule", SCHEDULE, "--target", "a100")
    assert code == 0 and "mma.sync.aligned.m16n8k16" in out and "wgmma" not in out and "cp.async.cg" in out


def test_without_a_schedule_tiles_are_chosen_too(capsys):
    code, out, _ = run(capsys, "mcfuser/G1", "--as", "layouts", "--json")
    (kernel,) = json.loads(out)["kernels"]
    assert code == 0 and kernel["plan"]["costs"]["tensor"] > 0 and kernel["modes"] >= kernel["solved"] > 0


def test_a_kernel_without_layouts_says_why(attention, capsys):
    code, out, _ = run(capsys, attention, "--as", "layouts", "--schedule", SCHEDULE.replace("n=64", "n=48"))
    assert code == 0 and "in 2 pieces" in out and "hint" in out


@pytest.mark.parametrize(
    "args, says",
    [
        (("nonsense/x",), "nonsense/x"),
        (("graphene/*",), "names"),
        (("{a}", "--as", "layouts", "--schedule", "n"), "schedule"),
        (("{a}", "--as", "layouts", "--target", "h300"), "h300"),
        (("{a}", "--as", "poem"), "poem"),
    ],
)
def test_what_cannot_be_shown(args, says, attention, capsys):
    code, _, err = run(capsys, *(a.format(a=attention) for a in args))
    assert code == 2 and says in err


def test_a_schedule_for_the_other_forms(tmp_path, capsys):
    graph = one_kernel(workload("mcfuser/G1"))
    (tmp_path / "g.json").write_text(json.dumps(graph.to_json()))
    code, out, _ = run(capsys, str(tmp_path / "g.json"), "--schedule", "n [h=64 k=64 m=64 n=64] warps=4 stages=2")
    assert code == 0 and "grid 8 × loop 1 × tile 64" in out
