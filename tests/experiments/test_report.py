"""Tables and documents, from made-up rows and from those that were measured on an H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import report
from experiments.ceilings import Ceilings
from experiments.ceilings import floor_of
from fuser.console import plain
from fuser.device import load_device
from fuser.errors import ModelFileError
from fuser.workloads import workload
from tests.experiments.rows import ENVIRONMENT
from tests.experiments.rows import committed
from tests.experiments.rows import result

CAPTURE = "cannot be captured"
LIMITS = Ceilings(4e12, 7e14, 1.25e-6)


@pytest.fixture
def small() -> dict:
    results = [
        result("mcfuser/G1", 4.0, {"eager": 5.0, "inductor": CAPTURE}),
        result("mcfuser/S1", 12.0, {"eager": 20.0, "inductor": CAPTURE, "flash": 9.0}),
    ]
    return plain(report.document(results, LIMITS, ENVIRONMENT, "bench", ["mcfuser/S2"]))


def test_a_document_has_every_time_and_reason(small: dict) -> None:
    first, second = small["cases"]
    assert (first["us"], first["best_peer"], first["speedup"]) == (4.0, "eager", 1.25)
    assert second["peers"]["inductor"] == {"us": None, "status": "invalid", "detail": CAPTURE, "error": None}
    assert (second["best_peer"], second["speedup"]) == ("flash", 0.75)
    assert small["geometric_mean"] == pytest.approx((1.25 * 0.75) ** 0.5)
    assert small["left"] == ["mcfuser/S2"]


def test_failed_peers_say_why_below_the_table(small: dict) -> None:
    heads, rows, notes = report.table(small, 200)
    column = [h.removesuffix(" >") for h in heads].index("inductor")
    assert [r[column] for r in rows] == ["[1]", "[1]"]
    assert any(n.startswith("[1]") and "G1, S1" in n and CAPTURE in n for n in notes)
    assert any("not measured" in n and "mcfuser/S2" in n for n in notes)


def test_no_correct_kernel_is_a_note_too() -> None:
    from experiments.compare import Result
    from tests.experiments.rows import kernel
    from tests.experiments.rows import peer

    rows = (kernel("mcfuser/G1", 1.0, status="wrong", detail="garbage"), peer("mcfuser/G1", "eager", 5.0))
    found = report.document([Result(workload("mcfuser/G1"), rows)], None, ENVIRONMENT, "bench")
    assert found["cases"][0]["us"] is None
    assert any("no correct kernel: wrong: garbage" in n for n in report.legend(found))


@pytest.mark.parametrize("suite", ["mcfuser", "mirage"])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_tables_fit_the_terminal(suite: str, width: int, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.console import print_table

    monkeypatch.setenv("COLUMNS", str(width))
    found = committed(suite)
    heads, rows, _ = report.table(found, width)
    print_table("t", heads, rows)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.strip()]) == len(rows) + 3, "a line of the table was folded"
    assert max(len(line.rstrip()) for line in lines) <= width
    kept = [h.removesuffix(" >") for h in heads]
    assert {"case", "µs", "×"} <= set(kept)
    # the best peer is named wherever a peer's column is missing
    assert width == 40 or width >= 80 or "best peer" in kept


def test_at_a_hundred_columns_all_peers_of_the_h200_are_there() -> None:
    heads, _, notes = report.table(committed("mirage"), 100)
    assert {"eager", "inductor", "inductor-sdpa", "flash", "cudnn", "flex"} <= {h.removesuffix(" >") for h in heads}
    assert notes[-1] == "left out at this width: kernels, error, schedule"


def test_a_peer_of_few_cases_makes_room_first() -> None:
    heads, _, _ = report.table(committed("mirage"), 90)
    assert {"eager", "inductor", "flash", "cudnn", "best peer"} <= {h.removesuffix(" >") for h in heads}


def test_markdown_has_everything_and_marks_the_fastest(small: dict) -> None:
    text = report.markdown(small)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2
    assert "| **4.00** |" in lines[2]
    assert "| **9.00** |" in lines[3]
    assert len({line.count("|") for line in lines}) == 1
    assert "flash: scaled_dot_product_attention, flash backend" in text


def test_committed_tables_are_those_of_the_committed_documents() -> None:
    from tests.experiments.rows import RESULTS

    for suite in ("mcfuser", "mirage"):
        assert (RESULTS / f"h200-{suite}" / "bench.md").read_text() == report.markdown(committed(suite))


def test_documents_are_read_back(small: dict, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(small))
    assert report.read(path) == small
    for text, reason in (("{", "cannot be read"), ("[]", "not a result"), (json.dumps(small | {"schema": 1}), "schema 1")):
        path.write_text(text)
        with pytest.raises(ModelFileError, match=reason):
            report.read(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        report.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("name", "bound"), [("mcfuser/G1", "launch"), ("mirage/gated-mlp", "memory"), ("graphene/gemm", "arithmetic")]
)
def test_floors_say_what_binds(name: str, bound: str) -> None:
    floor = floor_of(workload(name), Ceilings.of(load_device("h200")))
    assert floor.bound == bound
    assert floor.us == pytest.approx(1e6 * max(floor.memory, floor.arithmetic, floor.launch))


def test_a_floor_from_the_formula() -> None:
    floor = floor_of(workload("graphene/gemm"), LIMITS)
    assert floor.arithmetic == pytest.approx(2 * 5376 * 5376 * 2048 / LIMITS.matmul)
    assert floor.memory == pytest.approx(2 * (2 * 5376 * 2048 + 5376 * 5376) / LIMITS.bandwidth)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (1.234, "1.23"), (9.996, "10.0"), (99.96, "100"), (2820.6, "2821"), (0.98, "0.98")]
)
def test_digits(value: float | None, text: str) -> None:
    assert report.digits(value) == text
