"""Single programs whose schedules are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import single
from tests.paths import ROOT

ROWS = ROOT / "experiments/results/h200-single/turned.jsonl.xz"


@pytest.mark.parametrize("name", single.PROGRAMS)
def test_every_program_is_made_under_its_name(name: str) -> None:
    made = single.program(name)
    assert made.name == name
    assert {made[x].dtype for x in made.inputs} == {"float16" if name.startswith("half/") else "float32"}


def test_a_case_holds_the_model_s_choice_and_others() -> None:
    found = single.case("sums/mse-512x4096")
    assert len(set(found.candidates)) == len(found.candidates) > single.DRAWN
    assert len({c.graph for c in found.candidates}) > 1


def test_schedules_that_cost_as_much_as_the_first_are_drawn_on_request() -> None:
    few, more = (single.case("sums/mse-512x4096", n).candidates for n in (0, 12))
    added = set(more) - set(few)
    assert more[: len(few)] == few and 0 < len(added) <= 12
    least = min(single.graph_seconds(c, single.load_device(single.TARGET)) for c in few)
    assert all(single.graph_seconds(c, single.load_device(single.TARGET)) <= 1.1 * least for c in added)


def test_of_a_loss_of_logarithms_the_model_prefers_what_was_fast() -> None:
    """Few warps and two elements a thread took 1.1 to 1.4 times as long as many of both."""
    found = {x.name: x for x in single.lines(ROWS.with_name("near.jsonl.xz"))}
    assert found["sums/kl_div-4096x16384"].first < 1.06 * found["sums/kl_div-4096x16384"].best
    assert found["sums/triplet-4096x16384"].first < 1.06 * found["sums/triplet-4096x16384"].best


def test_the_table_comes_from_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["single", "table", str(ROWS), "--out", str(tmp_path)])
    assert single.main() == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "single.txt").read_text()
    found = list(single.lines(ROWS))
    assert len(found) == 10 and all(x.first >= x.best > 0 and x.schedules > 1 for x in found)
    assert "10 programs: first choices take 1.0" in text


def test_an_unknown_name_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["single", "compile", "--only", "none/*", "--out", str(tmp_path)])
    with pytest.raises(single.UsageError, match="no program is named like none/"):
        single.main()
