"""Relay models as ``tvm.ir.save_json`` writes them, read without TVM.

The file is a list of nodes that refer to each other by index; this module gives checked access to them, in the spellings of
TVM 0.6 to 0.19. :mod:`tvm_bridge.relay_reader` makes a graph of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuser.errors import ModelFileError

_SAVE = "save the model with tvm.ir.save_json(mod)"

# Spellings of older versions of TVM (0.6 to 0.18), by today's key.
_RENAMED = {
    "relax.expr.Var": "relay.Var", "relax.expr.Constant": "relay.Constant", "relay.Op": "Op", "relay.GlobalVar": "GlobalVar",
    "relay.Module": "IRModule", "StrMap": "Map", "relay.TupleType": "TupleType", "relay.FuncType": "FuncType",
    "String": "runtime.String", "relay.expr.Call": "relay.Call", "relay.expr.Tuple": "relay.Tuple",
    "relay.expr.TupleGetItem": "relay.TupleGetItem", "TensorType": "relay.TensorType", "relay.Any": "tir.Any",
    "Any": "tir.Any", "relay.Span": "Span", "relay.SourceName": "SourceName", "relax.expr.If": "relay.If",
    "relax.expr.Tuple": "relay.Tuple", "relax.expr.TupleGetItem": "relay.TupleGetItem",
}  # fmt: skip
_INTS = ("IntImm", "runtime.BoxInt", "runtime.BoxBool", "UIntImm")
_FLOATS = ("FloatImm", "runtime.BoxFloat")


class JsonNodes:
    """Checked access to the node list of one file. Index 0 is the null node."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        data = _parse(text, source)
        nodes = data.get("nodes")
        if not isinstance(nodes, list) or not isinstance(data.get("root"), int):
            raise ModelFileError(f"{source}: is JSON, but not a model of TVM (no list of nodes with a root)", _SAVE)
        self.nodes: list[Any] = nodes
        self.root: int = data["root"]
        blobs = data.get("b64ndarrays", [])
        self.blobs: list[Any] = blobs if isinstance(blobs, list) else []
        attrs = data.get("attrs")
        self.version = str(attrs.get("tvm_version", "")) if isinstance(attrs, dict) else ""

    def fail(self, i: int, what: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: node {i} {what}", f"the file is damaged or not a Relay model; {_SAVE}")

    def node(self, i: int) -> Mapping[str, Any]:
        if not 0 <= i < len(self.nodes) or not isinstance(self.nodes[i], dict):
            raise self.fail(i, "does not exist")
        return self.nodes[i]

    def kind(self, i: int) -> str:
        key = self.node(i).get("type_key", "")
        return _RENAMED.get(key, key) if isinstance(key, str) else ""

    def fields(self, i: int) -> Mapping[str, Any]:
        attrs = self.node(i).get("attrs") or {}
        if not isinstance(attrs, dict):
            raise self.fail(i, "has attributes that are not a table")
        return attrs

    def ref(self, i: int, key: str) -> int:
        """The node index that a field holds; 0 where the field is missing, as in older versions."""
        value = self.fields(i).get(key, "0")
        try:
            found = int(value)
        except (TypeError, ValueError):
            raise self.fail(i, f"({self.kind(i)}) has {key}={value!r}, which is not a node") from None
        self.node(found)
        return found

    def integer(self, i: int, key: str) -> int:
        """A field that holds a number."""
        value = self.fields(i).get(key)
        try:
            return int(str(value))
        except ValueError:
            raise self.fail(i, f"({self.kind(i)}) has {key}={value!r}, not a number") from None

    def items(self, i: int) -> list[int]:
        data = self.node(i).get("data", [])
        if not isinstance(data, list) or not all(isinstance(d, int) for d in data):
            raise self.fail(i, f"({self.kind(i)}) has no list of nodes")
        return data

    def pairs(self, i: int) -> Iterator[tuple[int | str, int]]:
        """The entries of a Map: keys are node indices, or strings where the file keeps them apart."""
        keys, data = self.node(i).get("keys"), self.items(i)
        if isinstance(keys, list):
            return iter(list(zip([str(k) for k in keys], data, strict=False)))
        return iter(list(zip(data[::2], data[1::2], strict=False)))

    def text(self, i: int) -> str:
        node = self.node(i)
        return str(node.get("repr_str", node.get("global_key", "")))

    def text_field(self, i: int, key: str) -> str:
        """A string field: of a String node, or as older versions keep it, the string itself."""
        value = str(self.fields(i).get(key, ""))
        if value.isdigit() and not self.version.startswith("0.6"):
            return self.text(int(value))
        return value

    def value(self, i: int, depth: int = 0) -> Any:
        """Python value of an attribute node: numbers, strings, nested tuples; None for null and for what has no value."""
        kind = self.kind(i)
        if kind in _INTS:
            return self.number(i, int)
        if kind in _FLOATS:
            return self.number(i, float)
        if kind == "runtime.String":
            return self.text(i)
        if kind in ("Array", "runtime.ADT", "ShapeTuple", "runtime.ShapeTuple") and depth < 3:
            return tuple(self.value(d, depth + 1) for d in self.items(i))
        return None

    def number(self, i: int, of: type) -> Any:
        value = self.fields(i).get("value", self.node(i).get("repr_str"))
        try:
            return of(value)
        except (TypeError, ValueError):
            raise self.fail(i, f"({self.kind(i)}) has the value {value!r}, not a number") from None

    def attributes(self, i: int, schema: Mapping[str, str] | None) -> dict[str, Any]:
        """Attributes of a call, decoded by the schema; without one the strings of the file."""
        if i == 0:
            return {}
        raw = self.fields(i)
        if schema is None:
            return {k: self._loose(str(v)) for k, v in sorted(raw.items())}
        return {k: self._scalar(i, k, str(v), schema[k]) for k, v in sorted(raw.items()) if k in schema}

    def _loose(self, text: str) -> Any:
        """An attribute of an unknown operator: a string node's text, else the string as it is."""
        if text.isdigit() and 0 < int(text) < len(self.nodes) and self.kind(int(text)) == "runtime.String":
            return self.text(int(text))
        return text

    def _scalar(self, i: int, key: str, text: str, kind: str) -> Any:
        try:
            if kind == "int":
                return int(text)
            if kind == "bool":
                return bool(int(text))
            if kind == "float":
                return float(text)
            if kind == "ref":
                return self.value(int(text))
        except ValueError:
            raise self.fail(i, f"({self.kind(i)}) has {key}={text!r}, expected {kind}") from None
        return self._loose(text) if text != "0" else ""


def _parse(text: str, source: str) -> Mapping[str, Any]:
    if text.lstrip().startswith("#[version") or text.lstrip().startswith("def @"):
        raise ModelFileError(f"{source}: is Relay's text format", f"that format loses constants; {_SAVE}")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        end = " (the file ends early)" if error.pos >= len(text.rstrip()) - 1 else ""
        raise ModelFileError(
            f"{source}: not valid JSON at offset {error.pos}, line {error.lineno}{end}: {error.msg}",
            f"the file is truncated or damaged; {_SAVE}",
        ) from None
    except RecursionError:
        raise ModelFileError(f"{source}: is nested too deeply for a model of TVM", _SAVE) from None
    if not isinstance(data, dict):
        raise ModelFileError(f"{source}: is JSON, but not a model of TVM", _SAVE)
    return data


def read_text(path: str | Path) -> str:
    """The text of a model file; :class:`ModelFileError` where it is not there or not text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", "check the path of the model") from None
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not text (offset {error.start})", _SAVE) from None
