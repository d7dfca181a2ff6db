"""The models that may rank candidates, by the names that commands take."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from cost_model import paper
from cost_model import refined
from cost_model.features import Counts
from cost_model.features import Features
from cost_model.names import CHAINED
from cost_model.names import PAPER
from cost_model.names import REFINED
from fuser.device import Device


def _of_paper(f: Features, device: Device) -> Counts:
    """Equation 2. What does not fit an SM is left out as the refined model leaves it out: that is no question of speed."""
    return np.where(refined.shared_memory(f, device) > device.smem_per_block, np.inf, paper.seconds(f, device))


MODELS: Mapping[str, Callable[[Features, Device], Counts]] = {
    REFINED: refined.seconds,
    PAPER: _of_paper,
    CHAINED: refined.chained,
}
"""Seconds of each candidate of a group; infinite where it cannot run."""
