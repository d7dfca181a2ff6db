import pickle
from dataclasses import replace

import pytest

from experiments import regret
from fuser.device import load_device
from search.tuner.simulated import Simulated
from tests.builders import chain

H200 = load_device("h200")


def test_the_first_choice_is_timed_beside_what_a_search_finds():
    begun = regret.begin(chain(256, 64, 64, 64), H200, 0)
    assert begun is not None
    assert begun.choice in begun.entries
    begun = pickle.loads(pickle.dumps(begun))
    begun.hunt.effort = replace(begun.hunt.effort, generations=2)
    sim = Simulated(H200, 1, failing=0.0)
    (row,) = regret.measure([begun], sim, 9.0)
    assert row["best"] <= row["instant"] == pytest.approx(sim.seconds(begun.choice.candidate) * 1e6, rel=0.03)
    assert row["measured"] >= len(begun.entries) > 4


def test_no_time_is_no_row():
    begun = regret.begin(chain(256, 64, 64, 64), H200, 0)
    assert begun is not None
    assert regret.measure([begun], Simulated(H200, 1), 0.5) == []


def test_programs_are_drawn_by_the_seed_and_a_third_are_products():
    names = list(regret.drawn(3, 12))
    assert names == list(regret.drawn(3, 12))
    assert sum("/product-" in n for n in names) == 4
    assert len(names) == 12
