"""Models in ONNX files as programs. What depends on no input is computed by ONNX's own reference at import, shapes among it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import EnvironmentError_
from fuser.errors import FuserError
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.errors import first_line
from fuser.errors import said
from fuser.files import BAD_VALUE
from fuser.files import MODEL_BYTES
from fuser.files import open_regular
from fuser.files import printable
from fuser.frontends.composed import reshaped
from fuser.frontends.onnx_call import Call
from fuser.frontends.onnx_old import as_today
from fuser.frontends.onnx_reference import node_reference
from fuser.frontends.onnx_reference import reference
from fuser.frontends.onnx_rules import RULES
from fuser.frontends.onnx_types import wrong_dtypes
from fuser.frontends.quotients import strictly
from fuser.frontends.roundings import with_roundings
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.dtypes import rounded
from fuser.ir.ops import Array
from fuser.ir.program import DTYPE_BYTES
from fuser.ir.program import TensorProgram

LARGEST_CONSTANT = 1 << 28
"""Most elements of a tensor that is computed at import."""
GROWING = ("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "Pad", "Resize", "EyeLike")
"""Operators whose result may be much larger than what they read."""
CASTS = ("Cast", "CastLike", "DequantizeLinear")
"""Operators whose results have another dtype than what they read first."""
UNLIKE_NUMPY = ("bfloat16", "float8", "int4", "uint4", "float4")
"""How the dtypes begin that numpy lacks."""
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX model as a program: ``known`` has the values of all inputs but the user's, of which ``literals`` belong to the
    model's text and are no parameters."""

    source: str
    model: Any = field(compare=False)
    program: TensorProgram
    known: Mapping[str, Array] = field(compare=False)
    literals: frozenset[str]
    inputs: tuple[str, ...]

    def original_outputs(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Results of the model as it is in the file, by ONNX's reference. Raises :class:`UnsupportedError` for what it lacks."""
        try:
            return tuple(np.asarray(x) for x in reference(self.model).run(None, dict(inputs)))
        except Exception as error:
            raise UnsupportedError(f"ONNX's reference does not run the model: {printable(first_line(error), 200)}") from error


def read_graph(path: str | Path, sizes: Mapping[str, int] | None = None) -> OnnxGraph:
    """The model of a file, with ``sizes`` for dimensions that have names. Raises :class:`ModelFileError` for what ONNX cannot
    load or check and for shapes that stay dynamic, and :class:`UnsupportedError` naming the node that has no form here."""
    model = load(path)
    try:
        return _Importer(str(path), model, sizes or {}).run()
    except FuserError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from error


def load(path: str | Path) -> Any:
    handle = open_regular(path)
    size = os.fstat(handle).st_size
    os.close(handle)
    if not size:
        raise ModelFileError(f"{path}: is empty", "export the model again")
    if size > MODEL_BYTES:
        raise ModelFileError(f"{path}: has {size} bytes, more than the {MODEL_BYTES} that are read", "give another file")
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        raise EnvironmentError_("reading an ONNX file needs the package onnx", "pip install 'mufuser[onnx]'") from error
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
        return inliner.inline_local_functions(model)
    except Exception as error:
        said = printable(first_line(error), 300)
        raise ModelFileError(f"{path}: ONNX cannot load it: {said}", _way_out(said)) from error


def _way_out(said: str) -> str:
    if "ir_version" in said:
        return f"install a newer onnx (here is {version('onnx')}), or export with an older opset"
    return "copy the file with its weights to where it belongs" if "doesn't exist" in said else "export the model again"


def _dtype(code: int, what: str) -> str:
    import onnx

    known = {value: name.lower() for name, value in onnx.TensorProto.DataType.items()}
    name = known.get(code, str(code))
    name = {"float": "float32", "double": "float64"}.get(name, name)
    if name not in DTYPE_BYTES:
        raise UnsupportedError(f"{what} has dtype {name}, which is not supported", f"use one of {', '.join(DTYPE_BYTES)}")
    return name


def open_places(model: Any) -> dict[str, tuple[tuple[str, int], ...]]:
    """The dimensions of inputs that have a name in place of a size, by that name."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    given = {t.name for t in model.graph.initializer}
    for value in model.graph.input:
        for i, d in enumerate(value.type.tensor_type.shape.dim if value.name not in given else ()):
            if d.dim_param:
                found[d.dim_param] = (*found.get(d.dim_param, ()), (value.name, i))
    return found


class _Importer:
    """One walk over the nodes of a graph."""

    def __init__(self, source: str, model: Any, sizes: Mapping[str, int]) -> None:
        self.source, self.model, self.graph = source, model, model.graph
        named = [*self.graph.input, *self.graph.initializer, *self.graph.output]
        self.builder = Builder(Path(source).stem, reserved=frozenset(v.name for v in named))
        self.opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
        self.values: dict[str, Any] = {"": None}
        self.known: dict[str, Array] = {}
        self.sizes = sizes
        self.literals: set[str] = set()
        self.parameters: dict[int, str] = {}
        """Names of arrays that are parameters, by identity."""
        self.dtypes: dict[int, str] = {}
        """Dtypes of known arrays that numpy lacks, by identity."""
        self.held: list[Array] = []
        """Those arrays, so that no identity is taken twice."""
        self.refs: dict[int, Ref] = {}
        self.live = _live(self.graph.node, {o.name for o in self.graph.output})
        self.read = {i for n in self.live for i in _reads(n)} | {o.name for o in self.graph.output}

    def run(self) -> OnnxGraph:
        if sparse := [t.values.name for t in self.graph.sparse_initializer if t.values.name in self.read]:
            raise UnsupportedError(f"the tensor {sparse[0]!r} is sparse, which is not supported", "export it as a dense one")
        for tensor in self.graph.initializer:
            self.values[tensor.name] = array = self._known(tensor)
            if array.size > 1:
                self.parameters[id(array)] = tensor.name
        inputs = [self._input(v) for v in self.graph.input if v.name not in self.values]
        self._nodes(self.live)
        outputs: dict[str, Ref] = {}
        for o in self.graph.output:
            if o.name not in self.values:
                raise ModelFileError(f"nothing computes the output {o.name!r}", "export the model again")
            value = self.values[o.name]
            ref = self._ref(value)
            if not isinstance(value, Ref):
                ref = reshaped(self.builder, ref, np.shape(value))
            name = o.name
            if (ref.name in self.builder.inputs and ref.name != name) or any(r is ref for r in outputs.values()):
                ref = self.builder.op("reshape", ref, shape=ref.shape)
            while name in outputs or (name in self.builder.inputs and ref.name != name):  # a result that is listed twice
                name += " copy"
            outputs[name] = ref
        program = with_roundings(strictly(self.builder.build(**outputs)))
        return OnnxGraph(self.source, self.model, program, self.known, frozenset(self.literals), tuple(inputs))

    def _nodes(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            found = self._node(node)
            results = found if isinstance(found, (list, tuple)) else [found]
            self.values |= {o: x for o, x in zip(node.output, results, strict=False) if o}

    def _branch(self, node: Any, taken: bool) -> list[Any]:
        """Results of the branch of an If that is taken. Its names count in it alone: its initializers may hide others."""
        graph = _attributes(node)["then_branch" if taken else "else_branch"]
        live = _live(graph.node, {o.name for o in graph.output})
        self.read |= {i for n in live for i in _reads(n)} | {o.name for o in graph.output}
        around, self.values = self.values, self.values | {t.name: self._known(t) for t in graph.initializer}
        self._nodes(live)
        within, self.values = self.values, around
        return [within[o.name] for o in graph.output]

    def _known(self, tensor: Any) -> Array:
        """The value of a tensor in the file."""
        import onnx

        array, name = _array(tensor), onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        return self._typed(array, name) if name.startswith(UNLIKE_NUMPY) else array

    def _typed(self, array: Array, dtype: str) -> Array:
        """An array whose dtype numpy lacks."""
        self.held.append(array)
        self.dtypes[id(array)] = dtype
        return array

    def _input(self, value: Any) -> str:
        if (form := value.type.WhichOneof("value")) != "tensor_type":
            what = (form or "nothing").removesuffix("_type").replace("_", " ")
            raise UnsupportedError(f"the input {value.name!r} is no tensor but {what}", "export the model with tensors alone")
        kind = value.type.tensor_type
        shape = []
        for i, d in enumerate(kind.shape.dim):
            extent = self.sizes.get(d.dim_param, 0) if d.dim_param else int(d.dim_value)
            if extent < 1:
                said = d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "not given")
                raise ModelFileError(
                    f"dimension {i} of the input {value.name!r} is {said}: shapes must be static",
                    "give its sizes (--buckets, buckets= in Python), or export without dynamic_axes"
                    if d.dim_param
                    else "export with its size, or with a name for it (dim_param) that --buckets can have",
                )
            shape.append(extent)
        ref = self.builder.input(value.name, tuple(shape), _dtype(kind.elem_type, f"the input {value.name!r}"))
        self.values[value.name] = ref
        return ref.name

    def _node(self, node: Any) -> Any:
        where = f"the node {node.name or ', '.join(node.output)!r} ({node.op_type})"
        try:
            args = tuple(self.values[i] for i in node.input)
        except KeyError as error:
            raise ModelFileError(f"{where} reads {error.args[0]!r}, which nothing computes", "the file is damaged") from error
        try:
            return self._value(node, args, where)
        except UnsupportedError:
            raise
        except FuserError as error:
            raise UnsupportedError(f"{where}: {error.message}", error.hint) from error
        except (*BAD_VALUE, MemoryError) as error:
            lacks = f"there is no {error}" if isinstance(error, KeyError) else said(error)
            what = f"{where}: its inputs and attributes do not fit each other ({lacks})"
            raise UnsupportedError(what, "export the model again (onnx.shape_inference with strict_mode says more)") from error

    def _value(self, node: Any, args: tuple[Any, ...], where: str) -> Any:
        attrs = _attributes(node)
        if node.op_type == "Shape" and isinstance(args[0], Ref):
            return np.array(args[0].shape[slice(attrs.get("start", 0), attrs.get("end"))], np.int64)
        if node.op_type == "Size" and isinstance(args[0], Ref):
            return np.array(math.prod(args[0].shape), np.int64)
        if node.op_type == "Identity" and not isinstance(args[0], Ref):
            return args[0]
        if node.op_type == "If" and not isinstance(args[0], Ref):
            return self._branch(node, bool(np.asarray(args[0]).reshape(-1)[0]))
        if node.op_type == "Constant" and (tensor := attrs.get("value")) is not None:
            return self._known(tensor)
        if not any(isinstance(a, Ref) for a in args):
            return self._computed(node, args, where)
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise UnsupportedError(
                f"{where}: the operator {kind} has no counterpart in the op table",
                "export the part of the model around it; torch.export (.pt2) leaves such operators to torch",
            )
        if wrong := wrong_dtypes(node.op_type, [self._dtype(a) for a in args]):
            raise UnsupportedError(f"{where} {wrong}", "put a Cast in front of it")
        results = max((i + 1 for i, o in enumerate(node.output) if o in self.read), default=1)
        call = Call(
            self.builder, node.op_type, args, attrs, self.opset, max(results, _outputs(node)), self._ref, where, self.dtypes
        )
        return self._scalar(node, args, rule(as_today(call)))

    def _dtype(self, value: Any) -> str:
        """The dtype of what a node reads; empty where it is left out, or no tensor."""
        if isinstance(value, Ref):
            return value.tensor.dtype
        return self.dtypes.get(id(value), str(value.dtype)) if isinstance(value, np.ndarray) else ""

    def _scalar(self, node: Any, args: Sequence[Any], value: Any) -> Any:
        """A result as it is, but a scalar where all operands are: those that are known have one dimension here."""
        scalars = node.op_type != "Unsqueeze" and all(getattr(a, "shape", ()) == () for a in args)
        return reshaped(self.builder, value, ()) if scalars and isinstance(value, Ref) and value.shape == (1,) else value

    def _computed(self, node: Any, args: Sequence[Any], where: str) -> list[Array]:
        """Results that depend on no input."""
        if node.op_type in RANDOM:
            raise UnsupportedError(f"{where} draws random numbers", "give them as an input")
        if node.op_type in GROWING:
            self._bounded(node, args, where)
        around = [n for n in _reads(node) if n in self.values and n not in node.input]
        if computed := [n for n in around if isinstance(self.values[n], Ref)]:
            raise UnsupportedError(f"{where} reads {computed[0]!r} in its body, which is computed", "export with static shapes")
        try:
            given = {i: self.values[i] for i in (*node.input, *around) if i}
            found = node_reference(node, self.opset, around).run(None, given)
        except Exception as error:
            raise UnsupportedError(f"{where} cannot be computed at import: {first_line(error)}", "give it as an input") from error
        narrow = {self.dtypes.get(id(a), "") for a in args[:1] if a is not None} if node.op_type not in CASTS else set()
        return [self._rounded(np.asarray(x), narrow) for x in found]

    def _rounded(self, x: Array, narrow: set[str]) -> Array:
        """A result as it is kept: that of bfloat16 in float32."""
        if x.dtype.names:  # the reference's own types, as bits
            return self._typed(_widened(x), x.dtype.names[0])
        if x.dtype == np.float32 and "bfloat16" in narrow:
            return self._typed(rounded(x, "bfloat16"), "bfloat16")
        return x

    def _bounded(self, node: Any, args: Sequence[Any], where: str) -> None:
        if node.op_type == "Range":
            start, limit, step = (float(np.asarray(a).reshape(-1)[0]) for a in args)
            count = abs(limit - start) / max(abs(step), 1e-300)
        else:
            filled = node.op_type in ("ConstantOfShape", "EyeLike")  # the shape is all that they read
            count = 1.0 if filled else float(np.asarray(args[0]).size)
            for a in args if filled else args[1:]:
                if a is not None and np.asarray(a).dtype.kind == "i":
                    count *= float(np.prod(np.maximum(np.abs(np.asarray(a, np.float64)), 1.0)))
        if not count <= LARGEST_CONSTANT:
            raise UnsupportedError(f"{where} makes a constant of about {count:.0e} elements", "give it as an input")

    def _ref(self, value: Any) -> Ref:
        """A tensor of the program; a known array becomes an input with a value, once."""
        if isinstance(value, Ref):
            return value
        if id(value) in self.refs:
            return self.refs[id(value)]
        name = self.parameters.get(id(value), "")
        dtype = self.dtypes.get(id(value), str(value.dtype))
        if dtype not in DTYPE_BYTES:
            what = f"the tensor {name!r}" if name else "a constant"
            raise UnsupportedError(f"{what} has dtype {dtype}, which is not supported", f"use one of {', '.join(DTYPE_BYTES)}")
        if not name:
            name = f"constant_{len(self.known)}"
            self.literals.add(name)
        self.known[name] = value
        self.refs[id(value)] = self.builder.input(name, value.shape or (1,), dtype)
        if not value.shape:
            self.known[name] = value.reshape(1)
        return self.refs[id(value)]


def _array(tensor: Any) -> Array:
    from onnx import numpy_helper

    try:
        return np.array(numpy_helper.to_array(tensor))  # writable, as torch wants it
    except Exception as error:
        said = printable(first_line(error), 200)
        raise ModelFileError(
            f"the tensor {tensor.name!r} cannot be read: {said}", "its data is damaged: copy it again"
        ) from error


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _reads(node: Any) -> list[str]:
    """What a node reads, in the graphs among its attributes too."""
    found = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
            found += [i for n in graph.node for i in _reads(n) if i not in own]
            found += [o.name for o in graph.output if o.name not in own]
    return found


def _live(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    """The nodes that lead to tensors that are wanted, in order."""
    wanted, found = set(wanted), list[Any]()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(_reads(node))
            found.append(node)
    return found[::-1]


def _widened(bits: Array) -> Array:
    """Numbers of a type that numpy lacks, from their bits: those of bfloat16 in float32, others as they are."""
    plain = bits[bits.dtype.names[0]] if bits.dtype.names else bits
    return (plain.astype(np.uint32) << 16).view(np.float32) if plain.dtype == np.uint16 else plain


def _outputs(node: Any) -> int:
    """How many results a node says it has: those of a split are as many as its parts, and one that trains has several."""
    return len(node.output) if node.op_type in ("Split", "TopK", "BatchNormalization") else 1
