"""Import of Relay models: files without TVM, or a live ``IRModule`` through the same reader.

>>> model = read_model("bert.json", "bert.params")      # doctest: +SKIP
>>> imported = to_program(model)                         # doctest: +SKIP
>>> imported.program, imported.inputs, imported.params   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import ModelFileError
from fuser.errors import UsageError
from fuser.frontends.imported import Imported
from fuser.ir.program import TensorProgram
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayGraph
from tvm_bridge.read.relay_graph import RelayVar
from tvm_bridge.read.relay_json import read_text
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_params import from_bfloat16
from tvm_bridge.read.relay_params import read_params_typed
from tvm_bridge.read.relay_reader import read_graph
from tvm_bridge.to_program.normalize import normalize
from tvm_bridge.to_program.relay_eval import evaluate_graph
from tvm_bridge.to_program.relay_eval import evaluate_program
from tvm_bridge.to_program.relay_lower import lower_graph

_OTHER_MODEL = "give the parameters that belong to this model, as saved with tvm.runtime.save_param_dict(params)"

# Operand positions that hold weights in every model: a model input used there and nowhere else is a parameter.
_WEIGHT_OPERANDS = {
    "nn.bias_add": (1,),
    "nn.layer_norm": (1, 2),
    "nn.dense": (1,),
    "nn.conv2d": (1,),
    "nn.batch_norm": (1, 2, 3, 4),
}


@dataclass(frozen=True)
class RelayModel:
    """A Relay graph and the values of its parameters (bfloat16 values come in float32). ``inlined`` is the text of a file with
    everything in ``main``, where that of the graph is otherwise: what TVM is to be given."""

    graph: RelayGraph
    params: Mapping[str, Array] = field(compare=False)
    source: str = "model"
    inlined: str = field(default="", compare=False, repr=False)

    @property
    def inputs(self) -> tuple[RelayVar, ...]:
        """The inputs that have no value: what a user feeds."""
        return tuple(v for v in self.graph.inputs if v.name not in self.params)

    def evaluate(self, inputs: Mapping[str, Array], compute: Any = np.float32) -> tuple[Array, ...]:
        """Outputs of the graph as it is in the file, in ``compute`` precision."""
        return evaluate_graph(self.graph, {**self.params, **inputs}, compute)


@dataclass(frozen=True)
class ImportedModel:
    """The whole model as one program.

    ``inputs`` are the program inputs that a user feeds, ``params`` the values of the others (weights and constants).
    ``origin`` gives the Relay value that a tensor equals, in shape, dtype and value; tensors without one were introduced by the
    clean-up. ``model.graph.nodes[ref.index].call`` finds the call in a live module.
    """

    model: RelayModel
    program: TensorProgram
    params: Mapping[str, Array] = field(compare=False)
    origin: Mapping[str, Ref] = field(compare=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(n for n in self.program.inputs if n not in self.params)

    def evaluate(self, inputs: Mapping[str, Array], compute: Any = np.float32, keep: Iterable[str] = ()) -> dict[str, Array]:
        """Outputs of the program (and ``keep``) by name, opaque operators included."""
        return evaluate_program(self.program, {**self.params, **inputs}, compute, keep)

    def original_outputs(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Results of the graph as it is in the file, in float32."""
        return self.model.evaluate(inputs)

    def between(self, inputs: Iterable[str], outputs: Iterable[str]) -> frozenset[int]:
        """Relay nodes on the way from the tensors ``inputs`` to the tensors ``outputs``: they depend on the former, and the
        latter on them. :class:`UsageError` names a tensor without an origin.
        """
        graph, stop = self.model.graph, {self._ref(n) for n in inputs}
        stack, above = [self._ref(n) for n in outputs], set[Ref]()
        while stack:
            ref = stack.pop()
            if ref not in stop and ref not in above:
                above.add(ref)
                stack += graph.nodes[ref.index].args if ref.kind == "node" else ()
        found: set[int] = set()
        for i in sorted({r.index for r in above if r.kind == "node"}):  # topological order
            if any(a in stop or (a.kind == "node" and a.index in found) for a in graph.nodes[i].args):
                found.add(i)
        return frozenset(found)

    def _ref(self, name: str) -> Ref:
        if name not in self.origin:
            raise UsageError(
                f"the tensor {name!r} has no counterpart in the Relay model", "cut the region at a tensor of `origin`"
            )
        return self.origin[name]


def read_model(path: str | Path, params_path: str | Path | None = None, inputs: Sequence[str] | None = None) -> RelayModel:
    """A ``save_json`` file and its ``save_param_dict`` file. ``inputs`` states which inputs have no value (default: found out).

    :class:`ModelFileError` says what is wrong with the files and where; :class:`UnsupportedError` names control flow.
    """
    params = read_params_typed(params_path) if params_path is not None else None
    return _model(read_text(path), str(path), params, str(params_path), inputs)


def read_file(path: str | Path, params_path: str | Path | None = None) -> tuple[Imported, ImportedModel]:
    """A model from its files as every frontend gives it, and with its Relay graph."""
    model = to_program(read_model(path, params_path))
    return Imported(model.program, model.params, model.inputs), model


def from_json_text(
    text: str, params: Mapping[str, Array] | None = None, source: str = "model", inputs: Sequence[str] | None = None
) -> RelayModel:
    """The same from the text of the JSON and from arrays."""
    return _model(text, source, typed(params), f"the parameters of {source}", inputs)


def typed(params: Mapping[str, Array] | None) -> dict[str, tuple[Array, str]] | None:
    """Arrays with their dtypes."""
    return None if params is None else {k: (np.asarray(v), np.asarray(v).dtype.name) for k, v in params.items()}


def arrays_of(params: Mapping[str, Any] | None) -> dict[str, Array] | None:
    """Parameters of a live module as numpy arrays (TVM gives the bits of bfloat16)."""

    def array(v: Any) -> Array:
        found = v.numpy() if hasattr(v, "numpy") else np.asarray(v)
        return from_bfloat16(found) if str(getattr(v, "dtype", "")) == "bfloat16" and found.dtype == np.uint16 else found

    return None if params is None else {k: array(v) for k, v in params.items()}


def is_typed(mod: Any) -> bool:
    """Whether every function of a live module went through type inference."""
    try:
        return all(getattr(f, "body", f).checked_type is not None for f in mod.functions.values())
    except (ValueError, AttributeError):
        return False


def module_text(mod: Any) -> str:
    """A live module as the text of a file. Raises :class:`UsageError` for what a TVM without Relay made: it may end the process
    where it saves that."""
    import tvm

    if not hasattr(tvm, "relay"):
        raise UsageError("the module has neither a function of Relax nor one of Relay", "pass one with a function main")
    try:
        return tvm.ir.save_json(mod)
    except tvm.TVMError:  # 0.19 saves no lets that have types
        return tvm.ir.save_json(tvm.relay.transform.ToGraphNormalForm()(mod))


def save_module(mod: Any, folder: Path) -> Path:
    """A live module as a file ``module.json``."""
    path = folder / "module.json"
    path.write_text(module_text(mod))
    return path


def save_arrays(params: Mapping[str, Any], folder: Path) -> str:
    """Parameters of a live module as a file ``module.params``."""
    import tvm

    path = folder / "module.params"
    arrays = {k: v if isinstance(v, tvm.nd.NDArray) else tvm.nd.array(np.asarray(v)) for k, v in params.items()}
    path.write_bytes(tvm.runtime.save_param_dict(arrays))
    return str(path)


def _model(
    text: str, source: str, params: Mapping[str, tuple[Array, str]] | None, origin: str, inputs: Sequence[str] | None
) -> RelayModel:
    values = {k: v for k, (v, _) in (params or {}).items()}
    graph, inlined = read_graph(text, source, values)
    if params is not None:
        check_params(graph, params, source, origin, inputs)
    return RelayModel(graph, values, source, inlined)


def check_params(
    graph: RelayGraph, params: Mapping[str, tuple[Array, str]], source: str, origin: str, inputs: Sequence[str] | None = None
) -> None:
    """Every parameter is an input of the model with this shape and dtype, and no weight is left without a value."""
    declared = {v.name: v.type for v in graph.inputs}
    extra = [n for n in params if n not in declared]
    if extra:
        raise ModelFileError(
            f"{origin}: {_some(extra)} not in the model {source}, whose inputs are {_names(list(declared))}", _OTHER_MODEL
        )
    for name, (value, dtype) in params.items():
        want = declared[name]
        held = dtype if not (want.dtype == "bfloat16" and dtype == "float32") else "bfloat16"
        if value.shape != want.shape or held != want.dtype:
            raise ModelFileError(
                f"{origin}: {name!r} is {dtype}{list(value.shape)}, but the model {source} wants {want}", _OTHER_MODEL
            )
    left = [n for n in declared if n not in params]
    missing = [n for n in left if n not in inputs] if inputs is not None else _weights_among(graph, left)
    if missing:
        raise ModelFileError(
            f"{origin}: {_some(missing)} missing, but a weight of the model {source}",
            f"{_OTHER_MODEL}; or name the inputs you feed",
        )


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _some(names: list[str]) -> str:
    return f"{_names(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''} {'is' if len(names) == 1 else 'are'}"


def _weights_among(graph: RelayGraph, names: list[str]) -> list[str]:
    """Inputs that are only used where models have weights."""
    index = {Ref("input", i): v.name for i, v in enumerate(graph.inputs) if v.name in names}
    uses: dict[str, list[bool]] = {n: [] for n in names}
    aliases = dict(index)
    for node in graph.nodes:
        for k, arg in enumerate(node.args):
            if arg not in aliases:
                continue
            if node.op in ("transpose", "cast", "reshape") and k == 0:
                aliases[Ref("node", node.id)] = aliases[arg]
            else:
                uses[aliases[arg]].append(k in _WEIGHT_OPERANDS.get(node.op, ()))
    return [n for n in names if uses[n] and all(uses[n])]


def to_program(model: RelayModel, clean: bool = True) -> ImportedModel:
    """The whole model as a program; ``clean`` removes the importers' noise (:mod:`tvm_bridge.to_program.normalize`).

    Operators that the op table lacks are ``opaque`` nodes. :class:`ModelFileError` where the graph is not well typed.
    """
    program, literals, origin = lower_graph(model.graph, Path(model.source).stem or "model", model.source)
    known = {**{n: v for n, v in model.params.items() if n in program.table}, **literals}
    if clean:
        result = normalize(program, known, frozenset(literals))
        for old, new in result.moved.items():
            if old in origin:
                origin.setdefault(new, origin[old])
        program, known = result.program, dict(result.known)
    kept = set(program.inputs)
    tensors = program.table
    return ImportedModel(
        model, program, {n: v for n, v in known.items() if n in kept}, {n: r for n, r in origin.items() if n in tensors}
    )
