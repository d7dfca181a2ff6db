"""A writer of small Relay files in the layout of ``tvm.ir.save_json``, so that the reader is tested without TVM."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_bridge.read.relay_params import PARAMS_MAGIC
from tvm_bridge.read.relay_params import TENSOR_MAGIC


class RelayWriter:
    """Builds the node list; every method gives the index of a node. ``typed`` false leaves ``_checked_type_`` out."""

    def __init__(self, version: str = "0.19.0") -> None:
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self.blobs: list[str] = []
        self.ops: dict[str, int] = {}
        self.version = version
        self.functions: list[int] = []
        self.inputs: list[int] = []

    def node(self, key: str, data: list[int] | None = None, text: str | None = None, **attrs: Any) -> int:
        node: dict[str, Any] = {"type_key": key}
        if attrs:
            node["attrs"] = {k.rstrip("_") if k != "_checked_type_" else k: str(v) for k, v in attrs.items()}
        if data is not None:
            node["data"] = data
        if text is not None:
            node["repr_str"] = text
        self.nodes.append(node)
        return len(self.nodes) - 1

    def string(self, text: str) -> int:
        if text.isascii() and text.isprintable():
            return self.node("runtime.String", text=text)
        data = struct.pack("<Q", len(text.encode())) + text.encode()
        self.nodes.append({"type_key": "runtime.String", "repr_b64": base64.b64encode(data).decode()})
        return len(self.nodes) - 1

    def array(self, items: list[int]) -> int:
        return self.node("Array", data=items)

    def ints(self, *values: int) -> int:
        return self.array([self.node("IntImm", dtype="int32", span=0, value=v) for v in values])

    def tensor_type(self, shape: tuple[int | None, ...], dtype: str = "float32") -> int:
        dims = [self.node("tir.Any", dtype="int32") if e is None else self.node("IntImm", dtype="int32", value=e) for e in shape]
        return self.node("relay.TensorType", dtype=dtype, shape=self.array(dims), span=0)

    def var(self, name: str, shape: tuple[int | None, ...] | None = None, dtype: str = "float32") -> int:
        annotation = 0 if shape is None else self.tensor_type(shape, dtype)
        vid = self.node("relay.Id", name_hint=self.string(name))
        return self.node("relay.Var", _checked_type_=0, type_annotation=annotation, vid=vid)

    def input(self, name: str, shape: tuple[int | None, ...], dtype: str = "float32") -> int:
        self.inputs.append(self.var(name, shape, dtype))
        return self.inputs[-1]

    def const(self, value: Any, dtype: str = "float32") -> int:
        self.blobs.append(base64.b64encode(encode_tensor(np.asarray(value, dtype))).decode())
        return self.node("relay.Constant", _checked_type_=0, data_=len(self.blobs) - 1)

    def call(self, op: str | int, *args: int, type_: int = 0, **attrs: Any) -> int:
        if isinstance(op, str):
            if op not in self.ops:
                self.ops[op] = self.node("Op", text=op)
            op = self.ops[op]
        attributes = self.node("relay.attrs.SomeAttrs", **attrs) if attrs else 0
        return self.node("relay.Call", _checked_type_=type_, op=op, args=self.array(list(args)), attrs=attributes)

    def tuple(self, *fields: int) -> int:
        return self.node("relay.Tuple", fields=self.array(list(fields)))

    def item(self, value: int, index: int) -> int:
        return self.node("relay.TupleGetItem", tuple_value=value, index=index)

    def let(self, var: int, value: int, body: int) -> int:
        return self.node("relay.Let", var=var, value=value, body=body)

    def function(self, params: list[int], body: int) -> int:
        return self.node("relay.Function", params=self.array(params), body=body)

    def global_function(self, name: str, params: list[int], body: int) -> int:
        """A function of the module; gives its GlobalVar."""
        var = self.node("GlobalVar", name_hint=self.string(name))
        self.functions += [var, self.function(params, body)]
        return var

    def module(self, body: int) -> str:
        """The file whose ``main`` has the inputs so far and this body."""
        self.global_function("main", self.inputs, body)
        root = self.node("IRModule", functions=self.node("Map", data=self.functions))
        return json.dumps({"root": root, "nodes": self.nodes, "b64ndarrays": self.blobs, "attrs": {"tvm_version": self.version}})


def write_params(path: Path, params: Mapping[str, np.ndarray]) -> None:
    """A parameter file as TVM writes it (numpy dtypes, so no bfloat16)."""
    names = [n.encode() for n in params]
    parts = [struct.pack("<QQQ", PARAMS_MAGIC, 0, len(names)), *(struct.pack("<Q", len(n)) + n for n in names)]
    path.write_bytes(b"".join([*parts, struct.pack("<Q", len(names)), *map(encode_tensor, params.values())]))


def encode_tensor(value: np.ndarray) -> bytes:
    """TVM's serialisation of one tensor on the CPU."""
    code = {"b": 1, "i": 0, "u": 1, "f": 2}[value.dtype.kind]
    bits = 1 if value.dtype.kind == "b" else value.dtype.itemsize * 8
    head = struct.pack("<QQiiiBBH", TENSOR_MAGIC, 0, 1, 0, value.ndim, code, bits, 1)
    return head + struct.pack(f"<{value.ndim}qq", *value.shape, value.nbytes) + np.ascontiguousarray(value).tobytes()
