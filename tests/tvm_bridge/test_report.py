"""The report says what was done."""

from __future__ import annotations

from fuser.device import load_device
from fuser.frontends.model_file import read_model_file
from tests.paths import RELAY
from tvm_bridge.report import document
from tvm_bridge.result import Optimized


def test_the_seed_is_the_one_that_was_used() -> None:
    file = read_model_file(RELAY / "encoder_torch.json", RELAY / "encoder_torch.params")
    for seed in (0, 7):
        result = Optimized(file, load_device("h200"), (), (), 1.0, 1.0, seed=seed)
        assert document(result)["seed"] == seed
