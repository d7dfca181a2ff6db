"""Layouts between the parts of a model: which there are, what they cost, and that what is chosen computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search.cover.offers import Pricing

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.device import load_device  # noqa: E402
from fuser.ir.builder import Builder  # noqa: E402
from fuser.ir.candidate import Candidate  # noqa: E402
from fuser.ir.pitched import rows_of  # noqa: E402
from fuser.ir.program import TensorProgram  # noqa: E402
from fuser.ir.schedule import KernelSchedule  # noqa: E402
from fuser.runtime.graph_executor import Executable  # noqa: E402
from fuser.runtime.plan import Plan  # noqa: E402
from fuser.runtime.plan import plan  # noqa: E402
from search.cover.greedy import greedy_cover  # noqa: E402
from search.cover.ilp import cover  # noqa: E402
from search.cover.layouts import with_layouts  # noqa: E402
from search.cover.model import Model  # noqa: E402
from search.cover.model import compile_model  # noqa: E402
from search.cover.parts import parts  # noqa: E402
from search.cover.prices import priced  # noqa: E402
from search.cover.stitch import on_tensors  # noqa: E402
from search.cover.stitch import stitch  # noqa: E402
from search.measure.planned import planned  # noqa: E402
from search.measure.session import Options  # noqa: E402
from search.measure.session import Session  # noqa: E402
from search.measure.timing import Kernels  # noqa: E402
from search.measure.timing import prepare  # noqa: E402
from search.ranked import QUICK  # noqa: E402
from search.tuner.hunt import Hunt  # noqa: E402
from search.tuner.memory import Memory  # noqa: E402
from search.tuner.tuning import Tuning  # noqa: E402
from tests.search.cover.test_cover import random_program  # noqa: E402

H200 = load_device("h200")
COLUMNS = 197


def narrow() -> tuple[TensorProgram, dict[str, Any]]:
    """Through 197 columns, and back; the rows between are a result too."""
    b = Builder("narrow")
    x, w, v = b.input("X", (128, 256)), b.input("W", (256, COLUMNS)), b.input("V", (COLUMNS, 256))
    h = b.op("softmax", x @ w, axis=-1)
    program = b.build(Y=b.gelu(h @ v), H=h)
    rng = np.random.default_rng(0)
    return program, {n: (rng.standard_normal(program[n].shape) / 16).astype(np.float16) for n in "WV"}


@pytest.fixture(scope="module")
def models() -> dict[bool, Model]:
    program, params = narrow()
    return {
        on: compile_model(program, params, Pricing(H200, libraries=False, layouts=on), compiled=False) for on in (True, False)
    }


def test_every_choice_and_every_conversion_is_offered() -> None:
    program, params = narrow()
    plain = parts(program)
    found = with_layouts(program, plain, params)
    wide = 200
    assert {p.nodes for p in found} == {p.nodes for p in plain} | {()}
    ways = {(p.takes[0][1], p.leaves[0][1]) for p in found if p.nodes == ("H",)}
    assert ways == {(0, 0), (wide, 0), (0, wide), (wide, wide)}
    product = [p for p in found if p.nodes == (program.nodes[0].output,)]
    assert [(p.rows, p.weights) for p in product] == [((), (("x1", wide),)), ((("y0", wide),), (("x1", wide),))]
    copies = {(p.takes, p.leaves) for p in found if not p.nodes}
    assert ((("H", 0),), (("H", wide),)) in copies
    assert ((("H", wide),), (("H", 0),)) in copies
    assert len({p.key for p in found}) < len(found), "conversions of equal tensors are equal"


def test_aligned_tensors_have_one_layout() -> None:
    b = Builder("even")
    x, w = b.input("X", (48, 64)), b.input("W", (64, 40))
    program = b.build(Y=b.relu(x @ w))
    assert with_layouts(program, parts(program), ("W",)) == parts(program)


def test_longer_rows_are_cheaper_where_they_are_read(models: dict[bool, Model]) -> None:
    program, params = narrow()
    found = with_layouts(program, parts(program), params)
    back = [p for p in found if p.nodes and p.program.nodes[0].op == "matmul" and p.leaves == (("Y", 0),)]
    back = [p for p in back if len(p.nodes) == 2 and p.takes[0][0] == "H"]
    times = {p.takes[0][1]: t.winner.seconds for p, t in priced(back, H200, libraries=False).items()}
    assert times[200] < times[0]


def test_what_is_chosen_is_stored_so_and_computes_the_same(models: dict[bool, Model]) -> None:
    for on, model in models.items():
        agrees(model.whole.candidate.candidate, model.params)
        assert bool(rows_of(model.whole.candidate.graph)) == on


def test_conversions_are_kernels() -> None:
    """What makes the rows may not make longer ones, and what reads them wants these."""
    program, params = narrow()
    found = priced(with_layouts(program, parts(program), params), H200, libraries=False)
    seconds = {p: t.winner.seconds for p, t in found.items()}
    for part in found:
        if part.nodes and (("H", 200) in part.leaves or (("H", 0) in part.takes)):
            seconds[part] = float("inf")
    chosen = cover(program, list(found), seconds)
    assert [(p.takes, p.leaves) for p in chosen.parts if not p.nodes] == [((("H", 0),), (("H", 200),))]
    agrees(*stitch(program, params, [(p, found[p].winner.candidate) for p in chosen.parts]))


def agrees(candidate: Candidate, params: Mapping[str, Any]) -> None:
    """It computes what the narrow program does, in Triton's interpreter."""
    program, plain = narrow()
    x = np.random.default_rng(1).standard_normal((128, 256)).astype(np.float16)
    run = Executable(plan(candidate), device="cpu", constants={n: torch.from_numpy(p) for n, p in params.items()})
    got = run.run({"X": torch.from_numpy(x)})
    for name, y in program.evaluate({"X": x, **plain}).items():
        np.testing.assert_allclose(got[name].double().numpy(), y, atol=4e-3)


def test_parameters_are_laid_once(models: dict[bool, Model]) -> None:
    _, params = narrow()
    laid = models[True].params
    assert set(models[False].params) == {"W", "V"}
    longer = [n for n in laid if n.endswith("@200")]
    assert longer
    for name in longer:
        old = params[name.removesuffix("@200")]
        assert np.array_equal(laid[name][:, :COLUMNS], old)
        assert not laid[name][:, COLUMNS:].any()
        assert name.removesuffix("@200") not in laid, "nothing reads it as it was"


def test_the_plan_names_layouts(models: dict[bool, Model]) -> None:
    model = models[True]
    assert model.cover.seconds < models[False].cover.seconds
    stored = {t.name for part in model.plan.parts for t in part.writes}
    assert stored >= {"H", "Y"}
    leaves = [text for part in model.plan.parts for text in part.layouts]
    assert any("in rows of 200" in text for text in leaves) == any("@" in n for n in stored)


def test_greedy_is_no_cheaper() -> None:
    rng = np.random.default_rng(5)
    worse = 0
    for _ in range(20):
        program = random_program(rng, 7)
        found = parts(program)
        seconds = {p: float(rng.integers(1, 20)) * 1e-6 for p in found}
        best, greedy = cover(program, found, seconds), greedy_cover(program, found, seconds)
        assert {n for p in greedy.parts for n in p.nodes} == {n for p in best.parts for n in p.nodes}
        assert greedy.seconds >= best.seconds * (1 - 1e-3)
        worse += greedy.seconds > best.seconds * 1.01
    assert worse


def test_options_of_tensors_follow_their_names() -> None:
    schedule = KernelSchedule(knobs=(("evict_x1", "evict_last"), ("pdl", "early"), ("tma_x0", True)))
    found = on_tensors(schedule, {"x0": "X", "x1": "W@200"})
    assert found.knob == {"tma_X": True, "evict_W@200": "evict_last", "pdl": "early"}


@pytest.mark.slow
def test_parts_are_measured_in_the_layouts_of_the_plan() -> None:
    """On a device that does not exist; what is measured computes the same in the interpreter, with zeros between rows."""
    program, params = narrow()
    searches: list[Hunt] = []

    @contextmanager
    def watching():
        yield lambda hunts, campaign: searches.extend(h for h in hunts if h not in searches)

    tuning = Tuning(replace(QUICK, generations=1, top=4), Memory(None, (), "3"), watch=watching)
    model = compile_model(program, params, Pricing(H200, libraries=False), compiled=False, tuning=tuning)
    laid = {key for p in model.cover.parts if (key := p.key) != p.program.stable_hash()}
    assert laid
    assert all(r.tuned.winner.measured for p, r in zip(model.cover.parts, model.found, strict=True) if p.key in laid)
    mine = [h for h in searches if any(rows_of(e.candidate.graph) for e in h.times)]
    assert len(mine) >= len(laid)
    for h in mine:
        best = next(e.candidate for e in h.times if rows_of(e.candidate.graph))
        made = planned(best)
        assert isinstance(made, Plan), made
        found = prepare(Session(h.program, Options(rounds=0), "cpu"), Kernels(made)).result
        assert found.ok, found


@pytest.mark.slow
@pytest.mark.filterwarnings("error::fuser.errors.LeftToTorch")
def test_schedules_of_other_layouts_that_end_before_the_rows_do_are_not_taken() -> None:
    """A tile of one column leaves the zeros behind 20 of them unwritten: the module was none of our kernels."""
    nn = torch.nn

    class Mixer(nn.Module):
        def __init__(self, n: int, d: int) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Sequential(nn.Linear(i, o), nn.GELU(), nn.Linear(o, i)) for i, o in ((n, 2 * n + 1), (d, 3 * d))
            )
            self.before, self.between = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x: Any) -> Any:
            x = x + self.one(self.before(x).mT).mT
            return x + self.two(self.between(x))

    module, x = nn.Sequential(Mixer(3, 20), Mixer(3, 20)).half().eval(), torch.randn(31, 3, 20).half()
    run = fuser.compile(module, (x,), device="cpu")
    torch.testing.assert_close(run(x), module(x), rtol=2e-2, atol=2e-2)
