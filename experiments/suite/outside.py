"""A module of a file from outside, as KernelBench writes them: ``Model``, ``get_inputs()`` and, if it takes any, ``get_init_inputs()``."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import Made


def from_file(path: Path) -> Case:
    """It has one size, so that what is checked is what is timed; a dict of inputs is one of keyword arguments."""

    def case(_: bool) -> Made:
        names = run_path(str(path))
        module = names["Model"](*names.get("get_init_inputs", list)())
        given = names["get_inputs"]()
        return module, (Keywords(given),) if isinstance(given, dict) else tuple(given)

    return case
