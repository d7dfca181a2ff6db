"""The engine of the clean-up: one pass re-emits a program node by node through rules that look at what was emitted before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuser.errors import UnsupportedError
from fuser.ir.applied import Applied
from fuser.ir.dtypes import result_dtype
from fuser.ir.program import Node
from fuser.ir.program import Tensor
from fuser.ir.program import TensorProgram
from fuser.ir.program import infer_shape
from fuser.ir.scalar import renamed
from tvm_bridge.read.relay_ops import Array
from tvm_bridge.read.relay_params import round_bfloat16
from tvm_bridge.to_program.relay_eval import evaluate_node

_FOLD_LIMIT = 1 << 22
_BROADCAST_LIMIT = 1 << 12


class Rewriter:
    """One pass: nodes are emitted in order through the rules, which see the producers that were emitted before."""

    def __init__(
        self, program: TensorProgram, known: Mapping[str, Array], literals: frozenset[str], rules: Mapping[str, tuple[Rule, ...]]
    ) -> None:
        self.old, self.rules = program, rules
        self.known, self.literals = dict(known), set(literals)
        self.tensors: dict[str, Tensor] = {n: program[n] for n in program.inputs}
        self.nodes: list[Node] = []
        self.made: dict[str, Node] = {}
        self.same: dict[Any, str] = {}
        self.moved: dict[str, str] = {}
        self.uses = Counter(n for node in program.nodes for n in node.inputs)
        self.uses.update(program.outputs)
        self.zero: dict[str, bool] = {}

    def run(self) -> TensorProgram:
        for node in self.old.nodes:
            inputs = tuple(self.now(n) for n in node.inputs)
            attrs = renamed(node.attrs, self.now)
            found = self._emit(node.op, inputs, node.output, self.old[node.output].dtype, attrs)
            if found != node.output:
                self.moved[node.output] = found
        outputs = tuple(self.now(n) for n in self.old.outputs)
        live = set(outputs)
        nodes: list[Node] = []
        for node in reversed(self.nodes):
            if node.output in live:
                nodes.append(node)
                live.update(node.inputs)
        feeds = tuple(n for n in self.old.inputs if n not in self.known)
        constants = tuple(n for n in self.known if n in live)
        kept = {*live, *feeds}
        tensors = tuple(t for n, t in self.tensors.items() if n in kept)
        return TensorProgram(self.old.name, (*feeds, *constants), tuple(reversed(nodes)), outputs, tensors)

    def now(self, name: str) -> str:
        while name in self.moved:
            name = self.moved[name]
        return name

    # What rules ask

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def dtype(self, name: str) -> str:
        return self.tensors[name].dtype

    def node(self, name: str, op: str = "") -> Node | None:
        """The producer, if it is of this operator."""
        found = self.made.get(name)
        return found if found is not None and op in ("", found.op) else None

    def sole(self, name: str) -> bool:
        """Whether the tensor has one use only."""
        return self.uses.get(name, 0) == 1

    def number(self, name: str) -> float | None:
        """The value of a finite constant of one element (parameters of the user are not constants)."""
        if name not in self.literals or self.known[name].size != 1:
            return None
        value = float(self.known[name].reshape(()))
        return value if math.isfinite(value) else None

    def zeros(self, name: str) -> bool:
        """Whether a constant is zero throughout."""
        if name not in self.literals:
            return False
        if name not in self.zero:
            self.zero[name] = not self.known[name].any()
        return self.zero[name]

    # Emission

    def emit(self, op: str, *inputs: str, name: str, dtype: str = "", **attrs: Any) -> str:
        """The tensor of an operator application after the rules: an existing one, a constant, or a new node called ``name``."""
        return self._emit(op, inputs, name, dtype, attrs)

    def _emit(self, op: str, inputs: tuple[str, ...], name: str, dtype: str, attrs: Mapping[str, Any]) -> str:
        """The same, of an operator that may have an attribute ``dtype`` too."""
        shape = infer_shape(op, [self.shape(i) for i in inputs], attrs)
        dtype = dtype or result_dtype(op, [self.dtype(i) for i in inputs], attrs)
        application = Application(op, inputs, attrs, name, shape, dtype)
        for rule in self.rules.get(op, ()):
            found = rule(self, application)
            if found is not None:
                return found
        key = (op, inputs, tuple(sorted(attrs.items())), dtype)
        if key in self.same:
            return self.same[key]
        node = Node(op, inputs, self._fresh(name), key[2])
        self.tensors[node.output] = Tensor(node.output, shape, dtype)
        if not self._fold(node):
            self.nodes.append(node)
            self.made[node.output] = node
        self.same[key] = node.output
        return node.output

    def _fresh(self, name: str) -> str:
        while name in self.tensors:
            name += "'"
        return name

    def _fold(self, node: Node) -> bool:
        """Turn a node of constants into a constant; parameters of the user only through views and casts."""
        out = self.tensors[node.output]
        if not all(n in self.known for n in node.inputs):
            return False
        literal = all(n in self.literals for n in node.inputs)
        if node.op == "broadcast" and self.known[node.inputs[0]].size > _BROADCAST_LIMIT:
            return False
        if node.op not in ("reshape", "transpose") and (out.elements > _FOLD_LIMIT or not (literal or node.casts)):
            return False
        view = TensorProgram(
            "fold",
            node.inputs,
            (node,),
            (node.output,),
            tuple(self.tensors[n] for n in dict.fromkeys((*node.inputs, node.output))),
        )
        try:
            value = evaluate_node(view, node, [self.known[n] for n in node.inputs])
        except (UnsupportedError, ValueError, IndexError, TypeError, KeyError):
            return False  # an opaque operator that is unknown, or whose attributes are
        self.known[node.output] = round_bfloat16(value) if out.dtype == "bfloat16" and node.entry.kind != "view" else value
        if literal:
            self.literals.add(node.output)
        return True


@dataclass(frozen=True)
class Application(Applied):
    """An operator about to be emitted: ``shape`` and ``dtype`` are those of its result, ``name`` the name that it shall have."""

    op: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    name: str
    shape: tuple[int, ...]
    dtype: str


Rule = Callable[[Rewriter, Application], str | None]
