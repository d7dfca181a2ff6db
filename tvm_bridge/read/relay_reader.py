"""From the nodes of a Relay file to a :class:`RelayGraph`.

Functions (composites, closures, calls of global functions), Let, Tuple and TupleGetItem are resolved, so that the graph has
operator calls only. Types that the file lacks are inferred. Nothing recurses in Python, so that depth is no limit.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import tvm_bridge.read.relay_conv
import tvm_bridge.read.relay_dynamic
import tvm_bridge.read.relay_nn
import tvm_bridge.read.relay_shapes  # noqa: F401 - enters its operators into the table
from fuser.errors import ModelFileError
from fuser.errors import UnsupportedError
from fuser.files import counted
from tvm_bridge.read.relay_dynamic import with_operands
from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayConstant
from tvm_bridge.read.relay_graph import RelayGraph
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_graph import RelayVar
from tvm_bridge.read.relay_graph import TensorType
from tvm_bridge.read.relay_graph import apart_by_name
from tvm_bridge.read.relay_inlined import Inlined
from tvm_bridge.read.relay_inlined import order_of
from tvm_bridge.read.relay_json import JsonNodes
from tvm_bridge.read.relay_module import functions_of
from tvm_bridge.read.relay_module import span_of
from tvm_bridge.read.relay_module import var_name
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_ops import Operands
from tvm_bridge.read.relay_ops import relay_op
from tvm_bridge.read.relay_params import decode_tensor
from tvm_bridge.read.relay_typing import FIX
from tvm_bridge.read.relay_typing import SMALL
from tvm_bridge.read.relay_typing import Typing
from tvm_bridge.read.relay_typing import small_results

_MAX_NESTING = 512
_MORE_STEPS = 100_000
"""Steps of reading (expressions of every inlined call, and what they look through) beyond twenty for each node of the file."""
_MORE_OPERATORS = 10_000
"""Operator calls, once every function call is inlined, beyond one for each node of the file."""
_MAX_FIELDS = 65_536
"""Most tensors of a tuple, nested ones and those that it shares with itself counted each time."""

Value = Any  # Ref, a tuple of Values, or a _Closure


@dataclass
class _Frame:
    """Bindings of one function body; ``values`` memoises its expressions."""

    parent: _Frame | None = None
    depth: int = 0
    bound: dict[int, Value] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)

    def lookup(self, var: int) -> tuple[Value, int]:
        """What a variable is bound to (None if it is not), and how many bodies were looked through."""
        frame: _Frame | None = self
        looked = 0
        while frame is not None:
            looked += 1
            if var in frame.bound:
                return frame.bound[var], looked
            frame = frame.parent
        return None, looked


@dataclass(frozen=True)
class _Closure:
    function: int
    frame: _Frame


Step = Generator[tuple[int, _Frame], Value, Value]


def read_graph(text: str, source: str, params: Mapping[str, Array] | None = None) -> tuple[RelayGraph, str]:
    """The graph of a ``save_json`` file, and :meth:`GraphReader.inlined`. ``params`` only serve where a shape depends on a
    value."""
    reader = GraphReader(JsonNodes(text, source), params or {})
    return reader.read(), reader.inlined()


class GraphReader:
    """Reads the graph of a file. ``sizes`` are those of dimensions that are ``Any`` there, by input and dimension; ``open`` has
    the values whose shape they may decide.

    :class:`ModelFileError` names the node, operator or input that cannot be read; :class:`UnsupportedError` is control flow.
    """

    def __init__(self, file: JsonNodes, params: Mapping[str, Array], sizes: Mapping[tuple[str, int], int] | None = None) -> None:
        self.file, self.params, self.sizes = file, params, sizes or {}
        self.by_name, self.functions = functions_of(file)
        self.inputs: list[RelayVar] = []
        self.constants: list[RelayConstant] = []
        self.nodes: list[RelayNode] = []
        self.known: dict[Ref, Array] = {}
        self.plain = True
        """Whether everything stands in main, under names of its own."""
        self.written: dict[Ref, int] = {}
        """Where the file has each input and constant."""
        self.calls: list[tuple[int, tuple[Value, ...], bool]] = []
        """Of each operator where the file has its call, the operands, and whether it gives a tuple."""
        self.read_constants: dict[int, Ref] = {}
        self.result: Value = None
        self.steps = 0
        self.open: set[Ref] = set()
        self.shaped: set[Ref] = set()
        self.typing = Typing(file, self.spend)

    def spend(self, steps: int = 1) -> None:
        """Count work; a small file can ask for any amount of it."""
        self.steps += steps
        size = len(self.file.nodes)
        if self.steps > 20 * size + _MORE_STEPS or len(self.nodes) > size + _MORE_OPERATORS:
            raise UnsupportedError(
                f"{self.file.source}: becomes {len(self.nodes):,} operators and more once its functions are inlined, "
                f"which its {size:,} nodes do not need",
                "optimize a part of the model",
            )

    # Module and types

    def read(self) -> RelayGraph:
        main = self.by_name["main"]
        frame = _Frame()
        for var, declared in self.declared():
            frame.bound[var] = ref = self._input(declared)
            self.written[ref] = var
            self.plain &= var_name(self.file, var) == declared.name
        self.result = result = self._run(self.file.ref(main, "body"), frame)
        if isinstance(result, _Closure):
            raise UnsupportedError(f"{self.file.source}: main returns a function", "give a model whose main returns tensors")
        outputs = self._flat(main, result)
        if not all(isinstance(r, Ref) for r in outputs):
            raise UnsupportedError(f"{self.file.source}: main returns a function", "give a model whose main returns tensors")
        if not self.plain:
            place = {n: k for k, n in enumerate(order_of(self.nodes, outputs))}
            self.nodes = [replace(n, call=place.get(n.id, -1)) for n in self.nodes]
        graph = RelayGraph(tuple(self.inputs), tuple(self.constants), tuple(self.nodes), tuple(outputs),
                           isinstance(result, tuple) and not isinstance(result, Ref), self.file.version,
                           {r: self.known[r] for r in self.known if r in self.shaped})  # fmt: skip
        for ref in graph.outputs:
            if not graph.type_of(ref).static:
                raise ModelFileError(f"{self.file.source}: an output has the dynamic type {graph.type_of(ref)}", FIX)
        return graph

    def inlined(self) -> str:
        """The file with everything in ``main``, where it is not so; calls stand there in the order of ``RelayNode.call``."""
        if self.plain:
            return ""
        made = Inlined(self.file, self.written)
        params = [made.input(Ref("input", i), v.name) for i, v in enumerate(self.inputs)]
        for node in sorted((n for n in self.nodes if n.call >= 0), key=lambda n: n.call):
            made.call(node, *self.calls[node.id])
        return made.text(params, self.result)

    def declared(self) -> Iterator[tuple[int, RelayVar]]:
        """The inputs, as the file declares them, and their nodes."""
        params = self.file.items(self.file.ref(self.by_name["main"], "params"))
        for var, name in zip(params, apart_by_name(var_name(self.file, v) for v in params), strict=True):
            self.spend(1 + len(name) // 64)
            found = self.typing.of(self.file.ref(var, "_checked_type_") or self.file.ref(var, "type_annotation"))
            if not isinstance(found, TensorType):
                raise ModelFileError(
                    f"{self.file.source}: the input {name!r} has no tensor type",
                    "annotate it, or run relay.transform.InferType()(mod)",
                )
            yield var, RelayVar(name, found)

    def _input(self, var: RelayVar) -> Ref:
        name, ref = var.name, Ref("input", len(self.inputs))
        shape = tuple(self.sizes.get((name, i)) if e is None else e for i, e in enumerate(var.type.shape))
        self.inputs.append(RelayVar(name, TensorType(shape, var.type.dtype)))
        if not var.type.static:
            self.open.add(ref)
        if None in shape:
            what, way = f"the input {name!r} has the dynamic shape {var.type}", FIX.replace("x:1", f"{name}:{shape.index(None)}")
            raise ModelFileError(f"{self.file.source}: {what}", way)
        if name in self.params and self.params[name].size <= SMALL and self.params[name].dtype.kind in "iub":
            self.known[ref] = self.params[name]
        return ref

    # Expressions: a step yields the expressions that it needs, so that depth costs no Python stack

    def _run(self, expr: int, frame: _Frame) -> Value:
        stack = [(expr, frame, self._step(expr, frame))]
        value: Value = None
        while True:
            i, where, step = stack[-1]
            try:
                need, scope = step.send(value)
            except StopIteration as done:
                value = where.values[i] = done.value
                stack.pop()
                if not stack:
                    return value
                continue
            if need in scope.values:
                value = scope.values[need]
            elif need in scope.pending:
                raise self.file.fail(need, "is an operand of itself")
            else:
                self.spend()
                scope.pending.add(need)
                stack.append((need, scope, self._step(need, scope)))
                value = None

    def _step(self, i: int, frame: _Frame) -> Step:
        f, kind = self.file, self.file.kind(i)
        lets: set[int] = set()
        while kind == "relay.Let":
            if i in lets:
                raise f.fail(i, "is a Let within itself")
            lets.add(i)
            self.plain = False
            frame.bound[f.ref(i, "var")] = yield f.ref(i, "value"), frame
            i = f.ref(i, "body")
            kind = f.kind(i)
        if kind == "relay.Var":
            found, looked = frame.lookup(i)
            self.spend(looked)
            if found is None:
                raise f.fail(i, f"is the variable {var_name(self.file, i)!r}, which is not bound")
            return found
        if kind == "relay.Constant":
            return self._constant(i)
        if kind == "relay.Function":
            return _Closure(i, frame)
        if kind == "relay.Tuple":
            fields = []
            for item in f.items(f.ref(i, "fields")):
                fields.append((yield item, frame))
            return tuple(fields)
        if kind == "relay.TupleGetItem":
            value = yield f.ref(i, "tuple_value"), frame
            index = f.integer(i, "index")
            if isinstance(value, (Ref, _Closure)) or not 0 <= index < len(value):
                raise f.fail(i, f"takes field {index} of what has no such field")
            return value[index]
        if kind == "GlobalVar":
            return None
        if kind == "relay.If":
            cond = yield f.ref(i, "cond"), frame
            if isinstance(cond, Ref) and cond in self.known:
                self.plain = False
                return (yield f.ref(i, "true_branch" if self.known[cond].all() else "false_branch"), frame)
        if kind == "relay.Call":
            return (yield from self._call(i, frame))
        raise UnsupportedError(
            f"{f.source}: node {i} is {kind or 'null'}: control flow and data types are not supported",
            "export the model with static control flow (torch.jit.trace, or ONNX without If and Loop)",
        )

    def _call(self, i: int, frame: _Frame) -> Step:
        f, op = self.file, self.file.ref(i, "op")
        kind = f.kind(op)
        callee: Value = None
        if kind == "GlobalVar":
            name = self.functions.get(op, (f.text_field(op, "name_hint"), 0))[0]
            if name not in self.by_name:
                raise f.fail(i, f"calls @{name}, which the module does not have")
            if f.kind(self.by_name[name]) == "relay.Function":
                callee = _Closure(self.by_name[name], _Frame(depth=frame.depth))
            op_name = f"@{name}"
        elif kind == "Op":
            op_name = f.text(op)
        else:
            callee = yield op, frame
            op_name = ""
        args = []
        for item in f.items(f.ref(i, "args")):
            args.append((yield item, frame))
        if callee is None:
            return self._operator(i, op_name, args)
        if not isinstance(callee, _Closure):
            raise f.fail(i, "calls what is not a function")
        if frame.depth >= _MAX_NESTING:
            raise UnsupportedError(
                f"{f.source}: node {i} calls functions more than {_MAX_NESTING} deep", "recursive models are not supported"
            )
        params = f.items(f.ref(callee.function, "params"))
        if len(params) != len(args):
            raise f.fail(i, f"gives {counted(len(args), 'argument')} to a function of {len(params)}")
        self.plain = False
        inner = _Frame(callee.frame, frame.depth + 1, dict(zip(params, args, strict=True)))
        return (yield f.ref(callee.function, "body"), inner)

    def _constant(self, i: int) -> Ref:
        index = self.file.integer(i, "data")
        if not 0 <= index < len(self.file.blobs):
            raise self.file.fail(i, f"is a constant with data {index} of {len(self.file.blobs)}")
        if index not in self.file.decoded:
            self.file.decoded[index] = decode_tensor(self.file.blobs[index], self.file.source, f"constant {index}")
        value, dtype = self.file.decoded[index]
        if i in self.read_constants:
            return self.read_constants[i]
        ref = self.read_constants[i] = Ref("const", len(self.constants))
        self.written[ref] = i
        self.constants.append(RelayConstant(value, TensorType(value.shape, dtype)))
        if value.size <= SMALL:
            self.known[ref] = value
        return ref

    def _operator(self, i: int, op: str, args: list[Value]) -> Value:
        f, entry = self.file, relay_op(op)
        flat = self._flat(i, tuple(args))
        if not all(isinstance(r, Ref) for r in flat):
            raise UnsupportedError(
                f"{f.source}: {op} (node {i}) takes a function as operand", "higher-order operators are not supported"
            )
        attrs = f.attributes(f.ref(i, "attrs"), dict(entry.schema) if entry else None)
        values = tuple(self.known.get(r) for r in flat)
        operands = Operands(tuple(self._type_of(r) for r in flat), attrs, values)
        attrs = with_operands(op, operands)
        is_open = not self.open.isdisjoint(flat)
        types, is_tuple = self.typing.result(i, op, operands, is_open)
        self.spend(len(flat) + len(types))
        number = len(self.nodes)
        node = RelayNode(number, op, tuple(flat), tuple(sorted(attrs.items())), types, span_of(self.file, i), number)
        self.nodes.append(node)
        refs = tuple(Ref("node", node.id, k) for k in range(len(types)))
        self.calls.append((i, tuple(args), is_tuple))
        found = dict(zip(refs, small_results(node, operands), strict=False))
        self.known |= found
        if op == "shape_of" or not self.shaped.isdisjoint(flat):
            self.shaped |= found.keys()
        self.open.update(refs if is_open else ())
        return refs if is_tuple else refs[0]

    def _flat(self, i: int, value: Value) -> list[Value]:
        """The leaves of a nested tuple of values."""
        found: list[Value] = []
        stack = [value]
        visited = 0
        while stack:
            item = stack.pop()
            visited += 1
            if visited > _MAX_FIELDS:
                raise self.file.fail(i, f"takes or gives tuples of more than {_MAX_FIELDS} tensors")
            if isinstance(item, tuple) and not isinstance(item, Ref):
                stack.extend(reversed(item))
            else:
                found.append(item)
        self.spend(visited)
        return found

    def _type_of(self, ref: Ref) -> TensorType:
        if ref.kind == "node":
            return self.nodes[ref.index].types[ref.field]
        return self.inputs[ref.index].type if ref.kind == "input" else self.constants[ref.index].type
