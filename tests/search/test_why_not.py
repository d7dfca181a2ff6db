"""Why a schedule is not chosen: the rule that forbids it with its figures, or the terms by which it loses, and never another
answer than the search has."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.cli import main
from fuser.device import load_device
from fuser.errors import UsageError
from fuser.ir.builder import Builder
from fuser.ir.candidate import Candidate
from fuser.ir.schedule import Schedule
from fuser.workloads import workload
from search import model_commands
from search.cover.model import compile_model
from search.cover.offers import Pricing
from search.model_commands import kernel_of_model
from search.ranked import INSTANT
from search.ranked import Tuned
from search.space.estimates import estimator
from search.space.schedules import ScheduleSpace
from search.tune import tune_fast
from search.tuner.memory import GENERATED
from search.tuner.memory import open_memory
from search.why_not import refusals
from search.why_not import why_not
from tests.builders import chain

H200 = load_device("h200")
S2 = "mcfuser/S2"


@lru_cache
def tuned(name: str = S2) -> Tuned:
    return tune_fast(workload(name), H200)


@pytest.mark.parametrize("name", [S2, "mirage/rmsnorm", "graphene/layernorm"])
def test_what_is_ranked_is_spelled_and_breaks_no_rule(name: str) -> None:
    found = tuned(name)
    for r in (found.winner, *found.runners):
        assert Schedule.parse(str(r.schedule), r.graph.blocks) == r.schedule
    for r in (found.winner, *found.runners[:3], *found.runners[-2:]):
        assert list(refusals(found.program, r.candidate, H200)) == []


@pytest.mark.parametrize("program", [chain(512, 256, 64, 80), chain(200, 96, 64, 64)])
def test_a_schedule_breaks_a_rule_where_the_search_refuses_it(program) -> None:
    """Rows drawn from the whole space, options too."""
    base = tune_fast(program, H200).winner
    space = ScheduleSpace(base.graph, H200, options=True)
    rows = space.sample_rows(30, np.random.default_rng(1))
    finite = np.isfinite(space.estimate_rows(rows, estimator(H200)))
    assert 2 < finite.sum() < 28
    for row, good in zip(rows, finite, strict=True):
        candidate = Candidate(base.graph, space.schedule(row))
        reasons = list(refusals(program, candidate, H200))
        assert (not reasons) == good, (str(candidate.schedule), reasons)


@pytest.mark.parametrize(
    ("schedule", "rule", "figures"),
    [
        ("n [b=1 h=32 k=64 m=512 n=512] warps=8 stages=4", "rule 4 (shared memory)", "707 KiB of 1.2 × 227 KiB"),
        ("n [b=1 h=64 k=64 m=256 n=256] warps=8 stages=4", "shared memory", "288 KiB of 227 KiB"),
        ("n [b=1 h=64 k=64 m=64 n=224] warps=4 stages=3", "rule 3 (padding)", "pad n = 512 by 31.2%; none is allowed"),
        ("n [b=1 h=64 k=64 m=64 n=100] warps=4 stages=3", "rule 3 (padding)", "by 17.2%"),
        ("kn [b=1 h=32 k=16 m=64 n=64] warps=4 stages=4", "rule 2", "several tiles of the intermediate"),
        ("nh [b=1 h=64 k=64 m=64 n=64] warps=4 stages=4", "rule 1", "loops of one trip leave the order: nh is n"),
        ("hn [b=1 h=32 k=64 m=64 n=64] warps=4 stages=4", "rule 1", "nk, nkh"),
        ("- [b=1 h=64 k=64 m=64 n=64] warps=4 stages=2", "no such schedule", "axis 'n'"),
        ("n [b=1 h=64 k=64 m=64 n=64] warps=5 stages=2", "space", "warps = 5 is not tried: 2, 4, 8"),
        ("n [b=1 h=64 k=64 m=64 n=64] warps=4 stages=9", "space", "stages = 9"),
        ("- [b=1 h=64 k=64 m=64 n=512] warps=8 stages=4", "space", "stages = 2 stands for 4 too"),
        ("n [b=1 h=64 k=64 m=64 n=32] warps=4 stages=3 tma_A=3", "options", "3 is not a value"),
        ("n [b=1 h=64 k=64 m=64 n=32] warps=4 stages=3 evict_Q=evict_last tma_Q=True", "options", "cannot have both"),
        ("n [b=1 h=64 k=64 m=64 n=32] warps=4 stages=3 fast=1", "options", "no option"),
        ("n [b=1 h=64 k=64 m=64 n=32] warps=4 stages=3 prefetch=2", "options", "prefetch = 2 is not for"),
    ],
)
def test_the_rule_is_named_with_its_figures(schedule: str, rule: str, figures: str) -> None:
    found = why_not(tuned(), schedule, H200)
    texts = [r.text for r in found.reasons if r.rule == rule]
    assert any(figures in t for t in texts), found.reasons
    assert not found.wins


def test_a_device_with_more_memory_allows_it() -> None:
    schedule = "n [b=1 h=64 k=64 m=256 n=256] warps=8 stages=4"
    more = load_device("h200 smem=2x")
    rules = {r.rule for r in why_not(tuned(), schedule, more).reasons}
    assert not rules & {"shared memory", "rule 4 (shared memory)"}


def test_the_winner_a_loser_and_what_was_not_kept() -> None:
    found = tuned()
    left_out = str(found.winner.schedule).replace("k=64 ", "")
    assert why_not(found, left_out, H200).wins, "tiles that are not named are whole"
    assert why_not(found, f"  {found.winner.schedule}\n".replace("warps", "\n warps"), H200).wins
    third = why_not(found, str(found.runners[1].schedule), H200)
    assert (third.place, third.reasons, third.wins) == (3, (), False)
    assert third.seconds == pytest.approx(found.runners[1].seconds, rel=1e-2)
    total = next(r for r in third.terms if r.term == "seconds")
    assert total.values == pytest.approx((found.winner.us, found.runners[1].us), rel=1e-2)
    slow = why_not(found, "n [b=1 h=16 k=64 m=16 n=32] warps=4 stages=3", H200)
    assert slow.place == 0 and "kept" in slow.unseen and slow.seconds > found.winner.seconds


@pytest.mark.parametrize(
    ("schedule", "part"),
    [
        ("x", "not the schedule"),
        ("", "0 kernels"),
        ("n [b=1 z=2] warps=4 stages=2", "no axis 'z'"),
        ("n [b=1 h=0] warps=4 stages=2", "h=0"),
        ("n [b=1 h] warps=4 stages=2", "no NAME=VALUE"),
        ("n [b=1 b=1] warps=4 stages=2", "twice"),
        ("n(k [b=1] warps=4 stages=2", "brackets"),
        ("n [b=1] warps=many", "warps=many"),
        ("n [b=1] ; n [b=1] ; n [b=1] ; n [b=1]", "4 kernels"),
    ],
)
def test_what_is_no_schedule_is_said(schedule: str, part: str) -> None:
    with pytest.raises(UsageError, match="no structure of 'mcfuser/S2'") as e:
        why_not(tuned(), schedule, H200)
    assert part in e.value.message


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFUSER_CACHE", str(tmp_path))
    assert main(["why-not", S2, "n [b=1 h=32 k=64 m=64 n=256] warps=4 stages=3"]) == 0
    out = capsys.readouterr().out
    assert "most of it: blocks of an SM, one after another" in out and "waves of blocks" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["why-not", S2, "n [b=1 h=32 k=64 m=512 n=512] warps=8 stages=4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {r["rule"] for r in document["reasons"]} >= {"rule 4 (shared memory)", "wrong code"}
    assert document["measured"]["fastest"]["us"] < 8
    assert main(["why-not", S2, "- [b=1 h=64 k=64 m=64 n=512] warps=4 stages=2"]) == 0
    assert "difference" in capsys.readouterr().out
    assert main(["why-not", "mcfuser/*", "x"]) == 2
    assert main(["why-not", S2, "x", "--kernel", "a"]) == 2


def test_a_kernel_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part of a plan is meant by its name; the only one needs none."""
    b = Builder("two")
    x = b.input("X", (64, 64))
    program = b.build(Y=b.softmax(b.relu(x @ b.input("W", (64, 64))), -1) @ b.input("V", (64, 32)))
    model = compile_model(program, {}, Pricing(H200), compiled=False, checked=False)
    monkeypatch.setattr(model_commands, "_planned", lambda *_: [({}, model)])
    names = [n for p in model.plan.parts for n in p.names]
    if len(model.plan.parts) > 1:
        with pytest.raises(UsageError, match="parts") as e:
            kernel_of_model("m.pt2", None, H200, None, True)
        assert names[0] in e.value.hint
    name, found = kernel_of_model("m.pt2", None, H200, names[0], True)
    assert name == names[0]
    assert why_not(found, str(found.winner.schedule), H200).wins


def test_what_tune_takes_from_records_is_said(capsys: Any) -> None:
    known = open_memory().find(workload(S2), H200, GENERATED, INSTANT)
    assert known
    took = f"from records: {known.ranked.us:.2f} µs measured (the package)"
    assert main(["explain", S2]) == 0
    assert f"tune takes {known.ranked.schedule} {took}" in " ".join(capsys.readouterr().out.split())
    assert main(["why-not", S2, str(known.ranked.schedule)]) == 0
    assert f"tune takes this schedule {took}" in " ".join(capsys.readouterr().out.split())
