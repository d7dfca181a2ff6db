"""A module of a file from outside, as KernelBench has them: ``Model``, ``get_inputs()``, perhaps ``get_init_inputs()``."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec
from importlib.util import spec_from_file_location
from pathlib import Path

from experiments.suite.case import Case
from experiments.suite.case import Keywords
from experiments.suite.case import Made


def from_file(path: Path) -> Case:
    """It has one size, so that what is checked is what is timed; a dict of inputs is one of keyword arguments."""

    def case(_: bool) -> Made:
        spec = spec_from_file_location(f"outside_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        sys.modules[spec.name] = names = module_from_spec(spec)  # dynamo imports what it finds a function in
        spec.loader.exec_module(names)
        module = names.Model(*getattr(names, "get_init_inputs", list)())
        given = names.get_inputs()
        return module, (Keywords(given),) if isinstance(given, dict) else tuple(given)

    return case
