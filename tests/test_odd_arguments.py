"""Odd arguments of every verb end in a result or in one line with the way out, never in a traceback; so do odd places to write
to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.paths import RELAY
from tests.test_damaged_files import graphs
from tests.test_damaged_files import run

MODEL = str(RELAY / "encoder_onnx.json")
USAGE, FILE, SUPPORT, KERNEL, MACHINE = 2, 3, 4, 5, 6
ODD_TEXT = ("", " ", "²", "\x1b[31m", "-1", "0", "1e9", "../..", "a" * 5000, "\ud800", "nan", "*", "[", "G1:0", "None")


def cases() -> list[tuple[tuple[int, ...], list[str]]]:
    """Exit codes that are right, and a command line."""
    found: list[tuple[tuple[int, ...], list[str]]] = []

    def add(codes: tuple[int, ...], *args: str) -> None:
        found.append((codes, list(args)))

    for odd in ODD_TEXT:
        any_names = (0,) if odd == "*" else ()
        add((USAGE,), odd)
        add((USAGE,), "explain", odd, *(["--target", "none"] if any_names else []))
        add((USAGE,), "explain", "mcfuser/G1", "--target", odd)
        add((USAGE,), "tune", "mcfuser/G1", "--target", odd)
        add((USAGE,), "tune", "mcfuser/G1", "--effort", odd)
        add((USAGE,), "space", "--gemm-chain", odd, "16", "16", "16")
        add((USAGE,), "space", "mcfuser/G1", "--dtype", odd)
        add((USAGE,), "devices", odd)
        add((USAGE, FILE), "show", odd)
        add((USAGE,), "verify", "mcfuser/G1", "{graph}", "--rounds", odd)
        add((USAGE, FILE), "verify", odd, "{graph}")
        add((USAGE,), "show", "{graph}", "--as", odd)
        add((USAGE,), "superoptimize", "mcfuser/G1", "--max-kernels", odd)
        add((USAGE,), "superoptimize", "mcfuser/G1", "--processes", odd)
        add((USAGE,), "bench", odd, "--target", "none")
        add((USAGE,), "bench", "mcfuser", "--case", odd, "--list", *(["--target", "none"] if any_names else []))
        add((USAGE,), "bench", "mcfuser", "--peers", odd, "--target", "none")
        add((USAGE,), "bench", "mcfuser", "--on", odd)
        add((USAGE, FILE), "bench", "mcfuser", "--schedules", odd, "--dry-run")
        add((USAGE, FILE), "bench", "--table", odd)
        add((USAGE, FILE, SUPPORT), "optimize", odd, "-o", "{out}")
        add((USAGE,), "optimize", MODEL, "--target", odd, "-o", "{out}")
        add((USAGE, FILE), "optimize", MODEL, "--params", odd, "-o", "{out}")
    for verb, good in (("tune", "mcfuser/G1"), ("optimize", MODEL)):
        for jobs in ("-1", "0", "x", "99999999999999999999999"):
            add((USAGE,), verb, good, "--jobs", jobs, "-o", "{out}")
    for unheard in (["--dask", "tcp://127.0.0.1:9"], ["--dask", ""], ["--simulate", "1"], ["--records", "x", "--no-records"]):
        add((USAGE,), "tune", "mcfuser/G1", *unheard)
    add((USAGE,), "superoptimize", "mcfuser/G1", "--budget", "nan")
    add((USAGE,), "superoptimize", "mcfuser/G1", "--processes", "100000000")
    add((USAGE,), "bench", "mcfuser", "--budget", "nan", "--dry-run")
    add((USAGE,), "tune", "mcfuser/G1", "--superoptimize", "nan")
    add((USAGE,), "tune", "mcfuser/G1", "--superoptimize", "-1")
    add((USAGE,), "space", "--gemm-chain", "0", "1", "1", "1")
    add((USAGE,), "space", "--gemm-chain", str(2**40), str(2**40), "16", "16")
    add((USAGE,), "space")
    add((0,), "space", "--gemm-chain", "1", "1", "1", "1")
    add((SUPPORT,), "tune", "mcfuser/G1", "--target", "v100")
    add((USAGE,), "devices", "--nothing")
    add((USAGE,), "explain", "mirage/rmsnorm:" + "9" * 30)
    add((0,), "explain", "mcfuser/G1", "mcfuser/G1")
    for place in ("/dev/null", "/dev/null/x", "/proc/x", "/sys/x", "{file}", "{file}/x", "\0", "a" * 5000):
        add((USAGE,), "tune", "mcfuser/G1", "-o", place)
        add((USAGE,), "optimize", MODEL, "--no-library", "-o", place)
        add((USAGE,), "superoptimize", "mcfuser/G1", "--save", place)
        add((USAGE,), "bench", "mcfuser", "--case", "G1", "--on", "cpu", "-o", place)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "graph.json").write_text(json.dumps(graphs()[0]))
    (folder / "file").write_text("")
    return folder


def ended(args: list[str], codes: tuple[int, ...], place: Path) -> str:
    """What is wrong with how a command line ends; empty where nothing is."""
    names = {"{graph}": "graph.json", "{out}": "out", "{file}": "file"}
    for mark, name in names.items():
        args = [a.replace(mark, str(place / name)) for a in args]
    try:
        code, out, err = run(args)
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    lines = err.splitlines()
    if code not in codes:
        return f"exit code {code}, not {codes}: {err[-300:]}"
    if code and sum(line.startswith("error: ") for line in lines) != 1:
        return f"not one error: {err[-300:]!r}"
    if "\x1b" in err or "Traceback" in err:
        return f"stderr {err[-300:]!r}"
    if code and "--json" in args and json.loads(out)["error"]["message"] not in err:
        return f"--json {out[-300:]}"
    return ""


def test_odd_arguments_end_in_one_line(place: Path) -> None:
    bad = {" ".join(args)[:200]: why for codes, args in cases() if (why := ended(args, codes, place))}
    assert not bad, "\n".join(f"{a!r}: {w}" for a, w in bad.items())


def test_errors_are_documents_too(place: Path) -> None:
    for args in (
        ["tune", "none", "--json"],
        ["explain", "mcfuser/G1", "--target", "none", "--json"],
        ["show", "none.json", "--json"],
    ):
        assert ended(args, (USAGE, FILE), place) == ""
