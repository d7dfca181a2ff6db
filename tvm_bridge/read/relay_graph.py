"""A Relay model as a plain graph: inputs, constants and operator calls in topological order."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal
from typing import NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


MAX_RANK = 32
"""Most dimensions of a tensor that are read; numpy has no more before 2.0."""
MAX_ELEMENTS = 2**62


@dataclass(frozen=True)
class TensorType:
    """Shape (None where an extent is not known before the model runs) and dtype of one Relay tensor."""

    shape: tuple[int | None, ...]
    dtype: str

    @property
    def static(self) -> bool:
        return None not in self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a static type."""
        return tuple(e for e in self.shape if e is not None)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if e is None else str(e) for e in self.shape)}]"


class Ref(NamedTuple):
    """A value of the graph: an input, a constant, or field ``field`` of the result of a node."""

    kind: Literal["input", "const", "node"]
    index: int  # type: ignore[assignment]  # not the tuple's method
    field: int = 0


@dataclass(frozen=True)
class RelayVar:
    """A parameter of ``main``."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class RelayConstant:
    """A constant of the file (bfloat16 values are kept in float32)."""

    value: Array = field(compare=False)
    type: TensorType


@dataclass(frozen=True)
class RelayNode:
    """One operator call; ``args`` has the fields of tuple operands in place.

    ``call`` is the position of this call in the post-order of the calls of ``main``, each visited once: the order of
    ``relay.analysis.post_order_visit``. Where the file has functions, that is a ``main`` with all of them inlined, and -1 stands
    for calls that no output needs. ``types`` has one entry per field of a tuple result.
    """

    id: int
    op: str
    args: tuple[Ref, ...]
    attrs: tuple[tuple[str, Any], ...]
    types: tuple[TensorType, ...]
    span: str
    call: int = -1

    @property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)


@dataclass(frozen=True)
class RelayGraph:
    """Inputs in the order of ``main``'s parameters, nodes in topological order, outputs (flattened where they are a tuple).
    ``known`` are the values of nodes that shapes decide."""

    inputs: tuple[RelayVar, ...]
    constants: tuple[RelayConstant, ...]
    nodes: tuple[RelayNode, ...]
    outputs: tuple[Ref, ...]
    tuple_output: bool = False
    version: str = ""
    known: Mapping[Ref, Array] = field(default_factory=dict, compare=False)

    def type_of(self, ref: Ref) -> TensorType:
        if ref.kind == "node":
            return self.nodes[ref.index].types[ref.field]
        return self.inputs[ref.index].type if ref.kind == "input" else self.constants[ref.index].type


def apart_by_name(names: Iterable[str]) -> Iterator[str]:
    """Names of inputs, each its own: Relay tells variables apart by identity, and those after the first get underscores."""
    found: set[str] = set()
    twins: dict[str, int] = {}
    for name in names:
        number = twins[name] = twins.get(name, -1) + 1
        own = name + "_" * number
        while own in found:
            own += "_"
        found.add(own)
        yield own
