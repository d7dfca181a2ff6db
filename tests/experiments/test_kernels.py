"""The reference kernels: a change of the lowering says which of them it alters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import kernels
from experiments.kernels import LIST
from experiments.kernels import Reference
from experiments.kernels import changes
from experiments.kernels import main
from experiments.kernels import references


@pytest.fixture(scope="module")
def found() -> tuple[Reference, ...]:
    return tuple(references("h200"))


def test_this_tree_generates_the_committed_kernels(found: tuple[Reference, ...]) -> None:
    altered = changes(LIST.read_text(encoding="utf-8"), found)
    assert not altered, "\n".join((*altered, "python -m experiments.kernels --update, if that is meant"))
    assert not [k for k in found if k.name == "refused"]


def test_what_is_altered_is_named(
    found: tuple[Reference, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (*found[:3], replace(found[3], text=found[3].text + "#"), *found[4:-1])
    monkeypatch.setattr(kernels, "references", lambda _: iter(other))
    assert main([]) == 1
    out = capsys.readouterr().out
    assert [line[0] for line in out.splitlines()[2:-1]] == ["-", "+", "-"]
    assert found[3].name in out and found[-1].name in out and found[0].name not in out
    assert "--update" in out
