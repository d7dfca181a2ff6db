"""What ranks candidates: a model, without what compilers are known to make wrong or slow code of."""

from __future__ import annotations

import numpy as np

from cost_model.features import Counts
from cost_model.features import Features
from cost_model.features import some
from cost_model.models import MODELS
from cost_model.names import REFINED
from fuser.device import Device
from search.space.hazards import hazardous
from search.space.hazards import unwieldy
from search.space.kernels import Estimator


def estimator(device: Device, model: str = REFINED) -> Estimator:
    """A model's seconds; infinite for what compilers are known to make wrong or slow code of."""

    def estimate(f: Features) -> Counts:
        good = ~(hazardous(f, device) | unwieldy(f))
        if good.all():
            return MODELS[model](f, device)
        found = np.full(len(f), np.inf)
        if good.any():
            found[good] = MODELS[model](some(f, good), device)
        return found

    return estimate
