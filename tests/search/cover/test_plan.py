"""The plan of a model as people see it: its table, its kernels, and why they are not one."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from fuser.ir.builder import Builder  # noqa: E402
from search.cover.ilp import cover  # noqa: E402
from search.cover.plan import layout  # noqa: E402
from tests.search.cover.test_model import ROWS  # noqa: E402
from tests.search.cover.test_model import WIDTH  # noqa: E402
from tests.search.cover.test_model import Embedded  # noqa: E402
from tests.search.cover.test_model import layers  # noqa: E402


@pytest.fixture(scope="module")
def run() -> Any:
    return fuser.compile(layers(2), (torch.randn(ROWS, WIDTH).half(),), device="cpu")


def test_every_operator_is_in_one_part_and_every_kernel_has_a_name(run: Any) -> None:
    plan = run.plan
    nodes = [n for p in plan.parts for n in p.nodes]
    assert len(nodes) == len(set(nodes))
    assert {n.op for n in run.program.nodes if n.output in nodes} >= {"matmul", "attention", "layer_norm", "gelu"}
    launched = [n for p in plan.parts for n in p.names]
    assert launched == [k.name for k in run.graph.kernels if k.name in launched]
    assert len(launched) == plan.launches >= 8
    assert plan.us == pytest.approx(run.realised.candidate.us)


def test_the_table_fits_and_adds_up(run: Any) -> None:
    lines = run.plan.lines()
    assert max(map(len, lines)) <= 80
    shares = [float(x) for x in re.findall(r" (\d+\.\d)%$", "\n".join(lines), re.M)]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    groups = run.plan.groups()
    assert sum(map(len, groups)) == len(run.plan.parts)
    assert len(groups) < len(run.plan.parts), "equal layers share a row"
    text = " ".join(" ".join(lines).split())
    assert re.search(r"among \d+ candidates: (no gap|gap \d\.\de-\d\d), \d+\.\d\d s", text)
    assert all(stage in text for stage in ("candidates", "prices", "choice", "kernels"))
    assert 0 < run.plan.chained_us < run.plan.us, "kernels behind others hide a part of their start"
    assert f"about {run.plan.chained_us:.1f} µs where each begins" in text
    space = run.plan.workspace
    assert 0 < space.bound <= space.bytes <= 1.2 * space.bound
    assert f"for {len(space.slots)} intermediates: " in text
    assert run._executable.workspace.nbytes == space.bytes


def test_a_result_that_is_stored_otherwise_says_so() -> None:
    b = Builder("heads")
    x, w = b.input("X", (8, 64)), b.input("W", (64, 64))
    heads = b.op("transpose", b.op("reshape", x @ w, shape=(8, 4, 16)), perm=(1, 0, 2))
    program = b.build(Y=b.op("softmax", heads, axis=-1))
    assert [layout(program, n.output) for n in program.nodes] == ["8×64", "8×4×16 of 8×64", "4×8×16 of 8×64", "4×8×16"]


def test_a_kernel_is_found_by_name_glob_and_number(run: Any) -> None:
    part = next(g[0] for g in run.plan.groups() if len(g) == 2)
    name = part.names[0]
    for key in (name, "?" + name[1:], str(part.number)):
        assert run.plan.find(key) is part
        text = run.explain(key)
        assert text.startswith(name)
        assert "reads " in text
        assert "one of 2 equal ones" in text
    with pytest.raises(UsageError, match="no kernel 'conv'"):
        run.explain("conv")
    assert run.explain(1) == run.explain("1")


def test_neighbours_are_apart_for_a_reason(run: Any) -> None:
    found = run.model.borders()
    assert found
    assert all(b.reason for b in found)
    names = {n.op for n in run.program.nodes for b in found if n.output in (b.maker, b.reader)}
    assert "layer_norm" in names
    fewer = run.model.borders(1)
    assert 0 < len(fewer) < len(found)
    assert all(1 in (b.first, b.second) for b in fewer)


def test_what_fusing_costs_is_the_difference_of_two_covers(run: Any) -> None:
    model = run.model
    found = [(b, float(m[1])) for b in model.borders() if (m := re.search(r"(\d+\.\d+) µs more", b.reason))]
    assert found
    for border, more in found:
        both = [p for p in model.considered if border.maker in p.nodes and border.reader in p.nodes]
        other = cover(model.program, list(model.considered), model.considered, among=both)
        assert any(border.maker in p.nodes and border.reader in p.nodes for p in other.parts)
        assert (other.seconds - model.cover.seconds) * 1e6 == pytest.approx(more, abs=0.006)


def test_library_calls_are_named_as_such() -> None:
    torch.manual_seed(0)
    run = fuser.compile(Embedded().eval().half(), (torch.randint(0, 10, (ROWS,)),), device="cpu")
    calls = {p.operators: p.library for p in run.plan.parts if p.library}
    assert calls == {("embedding",): 1, ("cumsum",): 1}
    assert "is a library's" in "\n".join(b.reason for b in run.model.borders())


def test_the_plan_of_one_region() -> None:
    run = fuser.compile("mcfuser/G1", device="cpu")
    (part,) = run.plan.parts
    assert part.names == tuple(k.name for k in run.graph.kernels)
    assert part.us == pytest.approx(run.plan.us)
    assert max(map(len, run.plan.lines())) <= 80
