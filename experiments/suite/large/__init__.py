"""Modules at the sizes of public suites of kernels, 0.1 to 9 GB of tensors each: what `experiments.large` times."""

from __future__ import annotations

from experiments.suite.case import Case
from experiments.suite.large import convolutions
from experiments.suite.large import images
from experiments.suite.large import nets
from experiments.suite.large import products
from experiments.suite.large import rows
from experiments.suite.large import sequences

LARGE: dict[str, Case] = {
    f"large_{name}": case for room in (rows, images, products, convolutions, nets, sequences) for name, case in room.CASES.items()
}
"""By name, as :data:`experiments.suite.SUITE`."""
