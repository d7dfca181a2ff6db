"""What :func:`tvm_bridge.api.optimize` finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from cost_model.program_time import operator_times
from cost_model.program_time import program_seconds
from fuser.device import Device
from fuser.errors import FuserError
from fuser.frontends.model_file import RELAY
from fuser.frontends.model_file import ModelFile
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from search.buckets.bucketed import Bucket
from search.compiled import CompiledProgram
from search.realise import Realised
from search.regions import Choice
from search.regions import Left
from search.regions import Region
from search.trial import Trial
from tvm_bridge.to_program.relay_import import ImportedModel

if TYPE_CHECKING:
    from tvm_bridge.apart import Library
    from tvm_bridge.back.relay import BuiltModel
    from tvm_bridge.relaxed import RelaxLibrary


@dataclass(frozen=True)
class FusedRegion:
    """A region of the model with its kernels. ``symbol`` is its function in the carved module, where there is one. ``weights``
    are values of inputs of its program that are none of its function, as its kernels have them; ``parts`` are those of the plan,
    where it is some of that."""

    name: str
    choice: Choice
    realised: Realised
    symbol: str = ""
    weights: Mapping[str, Array] = field(default_factory=dict, repr=False)
    parts: tuple[Realised, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors of the model that its function takes."""
        back = {v: k for k, v in self.region.names}
        weights = {n.partition("@")[0] for n in self.weights}
        return tuple(back[n] for n in self.region.program.inputs if n not in weights)

    @property
    def region(self) -> Region:
        return self.choice.region

    @property
    def predicted_us(self) -> float:
        return self.realised.candidate.us


@dataclass(frozen=True)
class Comparison:
    """The built model against the unpartitioned one on the same random inputs: largest absolute difference over all outputs, and
    relative to the largest value of the unpartitioned outputs."""

    largest: float
    relative: float
    ran: str


@dataclass(frozen=True)
class Optimized:
    """What :func:`tvm_bridge.api.optimize` found. ``made`` has the kernels of the whole model (and its plan), ``trial`` what
    became of them where they ran; ``regions`` are those that TVM is given of a Relay model. Times are the model's predictions in
    microseconds: ``before_us`` with every operator apart, ``after_us`` with the regions fused; ``seconds`` are those of the steps
    on this machine. ``built`` is a Relay model that TVM built, ``library`` the kernels of the whole model as one library for
    TVM 0.27. ``failure`` is why a library that could have been built was not. ``buckets`` are those of a model whose sizes are
    open; ``made`` is then the largest's.
    """

    file: ModelFile
    device: Device
    regions: tuple[FusedRegion, ...]
    left: tuple[Left, ...]
    before_us: float
    after_us: float
    built: Library | BuiltModel | None = None
    library: RelaxLibrary | None = None
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    failure: FuserError | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    made: CompiledProgram | None = None
    trial: Trial | None = None
    effort: str = "instant"
    buckets: tuple[Bucket, ...] = ()

    @property
    def program(self) -> TensorProgram:
        return self.file.imported.program

    @property
    def imported(self) -> ImportedModel:
        """The import of a Relay model."""
        return self.file.original

    @property
    def relay(self) -> bool:
        """Whether Relay can be given it."""
        return self.file.form == RELAY and not self.buckets


def predicted_us(program: TensorProgram, device: Device, regions: Sequence[FusedRegion]) -> float:
    """The model's time of a program with its regions fused, in microseconds."""
    covered = frozenset(n for r in regions for n in r.region.nodes)
    return program_seconds(program, device, covered) * 1e6 + math.fsum(r.predicted_us for r in regions)


def unfused_operators(result: Optimized) -> list[dict[str, Any]]:
    """Predicted kernels of the rest of the model, grouped by operator: count and microseconds."""
    covered = frozenset(n for r in result.regions for n in r.region.nodes)
    groups: dict[str, list[float]] = {}
    for t in operator_times(result.program, result.device, covered):
        node = result.program.producers[t.nodes[0]]
        name = node.attr.get("callee", node.op)
        groups.setdefault(str(name), []).append(t.seconds * 1e6)
    return [
        {"operator": k, "kernels": len(v), "us": math.fsum(v)}
        for k, v in sorted(groups.items(), key=lambda kv: -math.fsum(kv[1]))
    ]
