"""Turns of several programs: what goes first, and when it ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest

from fuser.errors import EnvironmentError_
from fuser.ir.candidate import Candidate
from fuser.superopt.structures import one_kernel
from search.measure.measurement import Measurement
from search.measure.measurement import Turn
from search.measure.measurer import Bench
from search.measure.planned import planned
from search.measure.rows import Record
from search.measure.turns import first_ready
from search.measure.turns import take_turns
from tests.builders import gemm
from tests.builders import tiles_of_16
from tests.search.measure.row import ROW


def bench(status: str = "ok", slow: object = None) -> Bench:
    """One on which every candidate ends alike, and all but one plan are compiled."""

    def measure(program: Any, items: Any, **_: Any) -> list[Record]:
        return [replace(ROW, workload=program.name, measurement=Measurement(status)) for _ in items]

    pool = SimpleNamespace(ready=lambda plan: plan is not slow)
    return cast(Bench, SimpleNamespace(pool=pool, submit=lambda items: None, measure=measure))


def turns(*names: str) -> list[Turn[Candidate]]:
    graph = one_kernel(gemm())
    return [Turn(replace(gemm(), name=n), (Candidate(graph, tiles_of_16(graph)),)) for n in names]


def told(todo: list[Turn[Candidate]], on: Bench, seconds: float = 100.0) -> list[str]:
    heard: list[str] = []
    take_turns(todo, on, seconds, lambda rows: heard.append(rows[0].workload))
    return heard


def test_all_is_measured_in_order_while_there_is_time() -> None:
    assert told(turns("a", "b", "c"), bench()) == ["a", "b", "c"]
    assert told(turns("a", "b"), bench(), 2.0) == []


def test_what_is_compiled_goes_first() -> None:
    todo = turns("a", "b")
    assert first_ready(todo, bench(slow=planned(todo[0].items[0])), 10.0).program.name == "b"


def test_a_machine_on_which_nothing_works_is_said_to_be_at_fault() -> None:
    with pytest.raises(EnvironmentError_, match="nothing works here"):
        told(turns(*"abcde"), bench("crash"))
