"""Verdicts that are kept, and that nothing becomes a kernel without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuser.superopt.structures import structures
from fuser.superopt.verify import verdicts
from fuser.superopt.verify.verdict import Rejected
from fuser.superopt.verify.verdict import Unknown
from fuser.superopt.verify.verdict import Verified
from fuser.superopt.verify.verdicts import kept_verdict
from fuser.workloads import workload


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and nothing known in this process."""
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    return tmp_path / "verdicts"


def test_a_verdict_is_found_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = workload("mcfuser/S1")
    graph = structures(program)[0]
    first = kept_verdict(program, graph)
    assert isinstance(first, Verified)
    (path,) = fresh.iterdir()

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("verified again")

    monkeypatch.setattr("fuser.superopt.verify.verifier.verify", fail)
    assert kept_verdict(program, graph) is first
    monkeypatch.setattr(verdicts, "_KNOWN", {})
    assert kept_verdict(program, graph) == first
    for text in ("", path.read_text()[:-30], path.read_text().replace("Verified", "Unknown"), "x\n[]"):
        path.write_text(text)
        monkeypatch.setattr(verdicts, "_KNOWN", {})
        with pytest.raises(AssertionError, match="verified again"):
            kept_verdict(program, graph)


def test_every_kind_of_verdict_is_kept_as_it_is(fresh: Path) -> None:
    program = workload("mcfuser/G1")
    sizes = (("m", 3), ("n", 5))
    for i, verdict in enumerate(
        (kept_verdict(program, structures(program)[0]), Rejected("differs", 7, True, sizes), Unknown("it has no meaning"))
    ):
        path = fresh / f"{i}.json"
        verdicts._write(path, verdict)
        assert verdicts._read(path) == verdict


def test_a_folder_that_cannot_be_written_costs_only_the_cache(fresh: Path) -> None:
    fresh.parent.mkdir(exist_ok=True)
    fresh.write_text("a file where the folder would be")
    program = workload("mcfuser/G1")
    assert kept_verdict(program, structures(program)[0]).accepted
