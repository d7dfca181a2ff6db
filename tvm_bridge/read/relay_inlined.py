"""A Relay file with everything in ``main``: operator calls alone, as the reader sees them, for a TVM that is to be given them.

The nodes of the file stay; those of the new ``main`` stand behind them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tvm_bridge.read.relay_graph import Ref
from tvm_bridge.read.relay_graph import RelayNode
from tvm_bridge.read.relay_json import JsonNodes
from tvm_bridge.read.relay_module import functions_of
from tvm_bridge.read.relay_module import var_name

_COMMON = ("_checked_type_", "virtual_device_")
"""Fields of every expression, in versions that have them."""


def order_of(nodes: Sequence[RelayNode], outputs: Iterable[Ref]) -> list[int]:
    """What the outputs depend on, operands from left to right before their user."""
    found: dict[int, None] = {}
    stack = [(r.index, False) for r in reversed(list(outputs)) if r.kind == "node"]
    while stack:
        i, done = stack.pop()
        if done:
            found.setdefault(i)
        elif i not in found:
            stack.append((i, True))
            stack.extend((r.index, False) for r in reversed(nodes[i].args) if r.kind == "node" and r.index not in found)
    return list(found)


def _spelt(text: str) -> dict[str, str]:
    """How a file has a text: TVM writes others than printable ASCII in base 64, behind their length."""
    if text.isascii() and text.isprintable():
        return {"repr_str": text}
    data = text.encode()
    return {"repr_b64": base64.b64encode(len(data).to_bytes(8, "little") + data).decode()}


class Inlined:
    """The file that is being written. ``expressions`` has the node of each value."""

    def __init__(self, file: JsonNodes, expressions: Mapping[Ref, int]) -> None:
        self.file, self.nodes = file, list(file.nodes)
        self.expressions = dict(expressions)
        self.main = functions_of(file)[0]["main"]
        self.common = {k: v for k, v in {**file.fields(self.main), "_checked_type_": "0"}.items() if k in _COMMON}

    def add(self, key: str, **parts: Any) -> int:
        self.nodes.append({"type_key": key, **parts})
        return len(self.nodes) - 1

    def like(self, i: int, **fields: int) -> int:
        """A copy of a node with other fields, which are nodes, and without the type that it has."""
        node = self.file.node(i)
        untyped = {"_checked_type_": "0"} if "_checked_type_" in self.file.fields(i) else {}
        attrs = {**self.file.fields(i), **untyped, **{k: str(v) for k, v in fields.items()}}
        return self.add(node["type_key"], **{k: v for k, v in node.items() if k != "type_key"} | {"attrs": attrs})

    def made(self, key: str, **fields: int) -> int:
        """An expression that the file lacks, with the fields that expressions of its version have."""
        return self.add(key, attrs={"span": "0", **self.common, **{k: str(v) for k, v in fields.items()}})

    def array(self, items: Sequence[int]) -> int:
        return self.add("Array", data=list(items))

    def expression(self, value: Any) -> int:
        """The node of a value, or of a tuple of values."""
        if isinstance(value, Ref):
            return self.expressions[value]
        return self.made("relay.Tuple", fields=self.array([self.expression(v) for v in value]))

    def input(self, ref: Ref, name: str) -> int:
        """An input under a name of its own."""
        var = self.expressions[ref]
        if var_name(self.file, var) != name:
            text = str(self.add("runtime.String", **_spelt(name)))
            vid = self.file.ref(var, "vid")
            named = {"vid": self.add("relay.Id", attrs={"name_hint": text})} if vid else {}
            var = self.expressions[ref] = self.like(var, **named) if vid else self.add(
                self.file.node(var)["type_key"], attrs={**self.file.fields(var), "name_hint": name}
            )  # fmt: skip
        return var

    def call(self, node: RelayNode, written: int, operands: Sequence[Any], is_tuple: bool) -> None:
        """A call that stands at the node ``written``, of other operands."""
        made = self.like(written, args=self.array([self.expression(v) for v in operands]))
        for k in range(len(node.types)):
            ref = Ref("node", node.id, k)
            self.expressions[ref] = self.made("relay.TupleGetItem", tuple_value=made, index=k) if is_tuple else made

    def text(self, params: Sequence[int], result: Any) -> str:
        """The file, whose ``main`` takes ``params`` and gives ``result``. Functions that are none of Relay's stay."""
        f = self.file
        main = self.like(self.main, params=self.array(params), body=self.expression(result))
        root = main
        if f.kind(f.root) == "IRModule":
            pairs = [(k, v) for k, v in f.pairs(f.ref(f.root, "functions")) if f.kind(v) != "relay.Function"]
            pairs += [(k, main) for k, v in f.pairs(f.ref(f.root, "functions")) if v == self.main]
            names = {k for k, _ in pairs}
            fields = {"functions": self._map(pairs)}
            if where := f.ref(f.root, "global_var_map_"):
                variables = [(k, v) for k, v in f.pairs(where) if v in names or k in names]
                fields["global_var_map_"] = self._map(variables)
            root = self.like(f.root, **fields)
        document = {"root": root, "nodes": self.nodes, "b64ndarrays": f.blobs, "attrs": {"tvm_version": f.version}}
        return json.dumps(document, ensure_ascii=False)  # TVM reads no escapes of other characters

    def _map(self, pairs: Sequence[tuple[int | str, int]]) -> int:
        if all(isinstance(k, str) for k, _ in pairs):
            return self.add("Map", keys=[k for k, _ in pairs], data=[v for _, v in pairs])
        return self.add("Map", data=[i for pair in pairs for i in pair])
