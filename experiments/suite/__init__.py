"""Modules as users write them, each small for a check on a CPU and large for a GPU: what `experiments.modules` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.suite import backbones
from experiments.suite import blocks
from experiments.suite import criteria
from experiments.suite import domains
from experiments.suite import habits
from experiments.suite import layers
from experiments.suite import losses
from experiments.suite import measures
from experiments.suite import more
from experiments.suite import necks
from experiments.suite import nets
from experiments.suite import pieces
from experiments.suite import places
from experiments.suite import products
from experiments.suite import strangers
from experiments.suite import users
from experiments.suite import vision
from experiments.suite import zoo

SUITE: dict[str, Callable[[bool], Any]] = {
    **layers.CASES,
    **products.CASES,
    **blocks.CASES,
    **nets.CASES,
    **vision.CASES,
    **places.CASES,
    **pieces.CASES,
    **losses.CASES,
    **users.CASES,
    **strangers.CASES,
    **habits.CASES,
    **zoo.CASES,
    **domains.CASES,
    **backbones.CASES,
    **necks.CASES,
    **measures.CASES,
    **criteria.CASES,
    **more.CASES,
}
"""By name: a function of whether the small one is wanted that makes a module and its inputs."""
