"""What a user reads at 80 columns, as golden files: the help of every verb, tables, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fuser.cli import VERBS
from fuser.cli import main
from fuser.superopt.structures import one_kernel
from fuser.workloads import workload
from tests.builders import negated
from tests.conftest import Golden

WIDTH = 80
LAYERS = "n [h=64 k=64 m=128 n=64] warps=8 stages=2"
"""A schedule of the graph: its product behind a product, 128 rows a block."""
TABLES: dict[str, tuple[str, ...]] = {
    "devices": ("devices",),
    "device": ("devices", "h200"),
    "space": ("space", "--gemm-chain", "1024", "1024", "512", "512"),
    "explain": ("explain", "mcfuser/S2"),
    "explain-library": ("explain", "graphene/gemm"),
    "show": ("show", "{right}"),
    "show-threads": ("show", "{right}", "--as", "threads"),
    "show-layouts": ("show", "{right}", "--as", "layouts", "--schedule", LAYERS),
    "show-specs": ("show", "{right}", "--as", "specs", "--schedule", LAYERS),
    "verify": ("verify", "mcfuser/G1", "{right}"),
    "verify-wrong": ("verify", "mcfuser/G1", "{wrong}"),
    "superoptimize": ("superoptimize", "mirage/mlp", "--processes", "1"),
    "tune": ("tune", "mcfuser/G1", "--no-check", "--jobs", "1"),
    "bench-list": ("bench", "graphene", "--list"),
    "bench-plan": ("bench", "mcfuser", "--case", "G1", "--dry-run"),
}
SENTENCES = ("show", "show-threads", "verify", "verify-wrong")
"""A statement or a verdict is one line, as an error is, however long: for those who search and copy."""
ERRORS: dict[str, tuple[str, ...]] = {
    "verb": ("optimise",),
    "option": ("tune", "mcfuser/G1", "--targets", "h200"),
    "no workload": ("tune",),
    "workload": ("tune", "mcfuser/G99"),
    "device": ("explain", "mcfuser/G1", "--target", "h300"),
    "effort": ("tune", "mcfuser/G1", "--effort", "endless"),
    "below a bound": ("superoptimize", "mirage/mlp", "--most", "0"),
    "no number": ("superoptimize", "mirage/mlp", "--budget", "nan"),
    "form": ("show", "{right}", "--as", "poem"),
    "absent": ("show", "{absent}"),
    "no graph": ("show", "{program}"),
    "another program's graph": ("verify", "mcfuser/S1", "{right}"),
    "no kernels for a device": ("tune", "mcfuser/G1", "--target", "v100"),
    "no model": ("optimize", "{absent}"),
    "suite": ("bench", "nothing", "--list"),
    "peers": ("bench", "mcfuser", "--peers", "everyone", "--list"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files that commands name in braces."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    program = workload("mcfuser/G1")
    graph = one_kernel(program)
    (tmp_path / "right.json").write_text(json.dumps(graph.to_json()))
    (tmp_path / "wrong.json").write_text(json.dumps(negated(graph).to_json()))
    (tmp_path / "program.json").write_text(json.dumps(program.to_json()))
    return {name: f"{name}.json" for name in ("right", "wrong", "program", "absent")}


def said(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], files: dict[str, str], folded: bool = True) -> str:
    """The exit code and what was printed, without times and without blanks at the ends of lines; ``folded``: to the width."""
    code = main([a.format(**files) for a in args])
    captured = capsys.readouterr()
    text = re.sub(r"\b\d+\.\d+ (m?s)\b", r"0.0 \1", captured.out + (captured.err if code else ""))
    text = re.sub(r"\d\.\de-1[67]", "1.0e-16", text)  # machines' BLAS round differently
    text = re.sub(r"(?m) +\d+ +- *$", " " * 10 + "0       -", text)  # milliseconds that tuning took, and no error
    assert not folded or not [line for line in text.splitlines() if len(line) > WIDTH]
    return "\n".join(line.rstrip() for line in f"$ mufuser {' '.join(args)}\n{text}exit code {code}".splitlines()) + "\n"


def test_help(capsys: pytest.CaptureFixture[str], files: dict[str, str], golden: Golden) -> None:
    pages = [said(capsys, args, files) for args in (("--help",), *((verb, "--help") for verb in VERBS))]
    golden.check("text/help.txt", "\n".join(pages))


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str, capsys: pytest.CaptureFixture[str], files: dict[str, str], golden: Golden) -> None:
    golden.check(f"text/{name}.txt", said(capsys, TABLES[name], files, name not in SENTENCES))


def test_errors(capsys: pytest.CaptureFixture[str], files: dict[str, str], golden: Golden) -> None:
    golden.check("text/errors.txt", "\n".join(said(capsys, args, files, False) for args in ERRORS.values()))
