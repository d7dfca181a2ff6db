"""Import of live modules of Relax."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser.frontends.imported import Imported
from fuser.frontends.sized import Sized
from tvm_bridge.read.relax_module import bound
from tvm_bridge.read.relax_module import open_places
from tvm_bridge.read.relax_module import read_relax
from tvm_bridge.to_program.relay_import import RelayModel
from tvm_bridge.to_program.relay_import import arrays_of
from tvm_bridge.to_program.relay_import import check_params
from tvm_bridge.to_program.relay_import import to_program

LIVE = "the module"
"""The source of a live module."""


def relax_model(mod: Any, params: Mapping[str, Any] | None) -> RelayModel:
    """A live module of Relax with its parameters: arrays by name, or as ``relax.frontend.detach_params`` gives them, a list of
    those of ``main``, which are its last arguments."""
    graph = read_relax(mod)
    if params is not None and set(params) == {"main"} and isinstance(params["main"], Sequence):
        values = list(params["main"])
        params = dict(zip((v.name for v in graph.inputs[len(graph.inputs) - len(values) :]), values, strict=True))
    found = arrays_of(params) or {}
    check_params(graph, {k: (np.asarray(v), np.asarray(v).dtype.name) for k, v in found.items()}, LIVE, "its parameters")
    return RelayModel(graph, found, LIVE)


def sized_relax(mod: Any, params: Mapping[str, Any] | None) -> Sized:
    """A module of which some sizes are symbolic variables."""

    def at(sizes: Mapping[str, int]) -> Imported:
        live = to_program(relax_model(bound(mod, sizes), params))
        return Imported(live.program, live.params, live.inputs)

    found = open_places(mod)
    return Sized("main", found, dict.fromkeys(found, (1, None)), at)
