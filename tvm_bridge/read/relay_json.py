"""Relay models as ``tvm.ir.save_json`` writes them, read without TVM.

The file is a list of nodes that refer to each other by index; this module gives checked access to them, in the spellings of
TVM 0.6 to 0.19. :mod:`tvm_bridge.read.relay_reader` makes a graph of them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuser.errors import ModelFileError
from fuser.files import DIGITS
from fuser.files import MODEL_BYTES
from fuser.files import parse_json
from fuser.files import read_text as read_any_text
from fuser.files import shown

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
_MAX_ITEMS = 100_000
"""Most numbers and strings of one attribute, its nested lists flattened."""
_MAX_DIGITS = 40


class JsonNodes:
    """Checked access to the node list of one file. Index 0 is the null node."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        data = _parse(text, source)
        nodes = data.get("nodes")
        if "root_index" in data:
            what = f"{source}: is of a TVM without Relay (0.20 or newer)"
            raise ModelFileError(what, "pass the live module: fuser.optimize(mod)")
        if not isinstance(nodes, list) or not _is_index(data.get("root")):
            raise ModelFileError(f"{source}: is JSON, but not a model of TVM (no list of nodes with a root)", _SAVE)
        self.nodes: list[Any] = nodes
        self.root: int = data["root"]
        blobs = data.get("b64ndarrays", [])
        self.blobs: list[Any] = blobs if isinstance(blobs, list) else []
        attrs = data.get("attrs")
        version = attrs.get("tvm_version", "") if isinstance(attrs, dict) else ""
        self.version = version if isinstance(version, str) else ""
        self.decoded: dict[int, tuple[Any, str]] = {}
        """Values and dtypes of the blobs that were asked for."""

    def fail(self, i: int, what: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: node {i} {what}", f"the file is damaged or not a Relay model; {_SAVE}")

    def node(self, i: int) -> Mapping[str, Any]:
        if not 0 <= i < len(self.nodes) or not isinstance(self.nodes[i], dict):
            raise ModelFileError(f"{self.source}: node {shown(i)} does not exist", f"the file is damaged; {_SAVE}")
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
        found = value if _is_index(value) else _whole(value)
        if found is None:
            raise self.fail(i, f"({self.kind(i)}) has {key}={shown(value)}, which is not a node")
        self.node(found)
        return found

    def integer(self, i: int, key: str) -> int:
        """A field that holds a number."""
        value = self.fields(i).get(key)
        found = value if isinstance(value, int) and not isinstance(value, bool) else _whole(value)
        if found is None:
            raise self.fail(i, f"({self.kind(i)}) has {key}={shown(value)}, not a number")
        return found

    def items(self, i: int) -> list[int]:
        data = self.node(i).get("data", [])
        if not isinstance(data, list) or not all(map(_is_index, data)):
            raise self.fail(i, f"({self.kind(i)}) has no list of nodes")
        return data

    def pairs(self, i: int) -> Iterator[tuple[int | str, int]]:
        """The entries of a Map: keys are node indices, or strings where the file keeps them apart."""
        keys, data = self.node(i).get("keys"), self.items(i)
        if isinstance(keys, list):
            if not all(isinstance(k, str) for k in keys):
                raise self.fail(i, f"({self.kind(i)}) has keys that are not names")
            return iter(list(zip(keys, data, strict=False)))
        return iter(list(zip(data[::2], data[1::2], strict=False)))

    def text(self, i: int) -> str:
        node = self.node(i)
        found = node.get("repr_str", node.get("global_key", ""))
        if isinstance(coded := node.get("repr_b64"), str) and not found:
            found = _decoded(coded)
        if not isinstance(found, str):
            raise self.fail(i, f"({self.kind(i)}) has the text {shown(found)}")
        return found

    def text_field(self, i: int, key: str) -> str:
        """A string field: of a String node, or as older versions keep it, the string itself."""
        value = self.fields(i).get(key, "")
        if not isinstance(value, str):
            if not _is_index(value):
                raise self.fail(i, f"({self.kind(i)}) has {key}={shown(value)}, not a text")
            value = str(value)
        if (index := _whole(value)) is not None and index >= 0 and not self.version.startswith("0.6"):
            return self.text(index)
        return value

    def value(self, i: int) -> Any:
        """Python value of an attribute node: numbers, strings, nested tuples; None for null and for what has no value."""
        return self._value(i, 0, [_MAX_ITEMS])

    def _value(self, i: int, depth: int, left: list[int]) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise self.fail(i, f"is part of an attribute of more than {_MAX_ITEMS} values")
        kind = self.kind(i)
        if kind in _INTS:
            return self.number(i, int)
        if kind in _FLOATS:
            return self.number(i, float)
        if kind == "runtime.String":
            return self.text(i)
        if kind in ("Array", "runtime.ADT", "ShapeTuple", "runtime.ShapeTuple") and depth < 3:
            return tuple(self._value(d, depth + 1, left) for d in self.items(i))
        return None

    def number(self, i: int, of: type) -> Any:
        value = self.fields(i).get("value", self.node(i).get("repr_str"))
        found = _number(value, of)
        if found is None:
            raise self.fail(i, f"({self.kind(i)}) has the value {shown(value)}, not a number")
        return found

    def attributes(self, i: int, schema: Mapping[str, str] | None) -> dict[str, Any]:
        """Attributes of a call, decoded by the schema; without one the strings of the file."""
        if i == 0:
            return {}
        raw = self.fields(i)
        for key, given in raw.items():
            if not isinstance(given, str | int | float):
                raise self.fail(i, f"({self.kind(i)}) has {shown(key)}={shown(given)}, not a value")
        if schema is None:
            return {k: self._loose(str(v)) for k, v in sorted(raw.items())}
        return {k: self._scalar(i, k, str(v), schema[k]) for k, v in sorted(raw.items()) if k in schema}

    def _loose(self, text: str) -> Any:
        """An attribute of an unknown operator: a string node's text, else the string as it is."""
        index = _whole(text) or 0
        if 0 < index < len(self.nodes) and self.kind(index) == "runtime.String":
            return self.text(index)
        return text

    def _scalar(self, i: int, key: str, text: str, kind: str) -> Any:
        if kind == "text":
            return self._loose(text) if text != "0" else ""
        found = _number(text, float if kind == "float" else int)
        if found is None:
            raise self.fail(i, f"({self.kind(i)}) has {key}={shown(text)}, expected {kind}")
        return self.value(found) if kind == "ref" else bool(found) if kind == "bool" else found


def _decoded(coded: str) -> str | None:
    """A text of other characters than ASCII's: eight bytes say its length."""
    try:
        return base64.b64decode(coded)[8:].decode()
    except ValueError:
        return None


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(text: Any) -> int | None:
    """The whole number that a text of ASCII digits, perhaps with a sign, spells."""
    if not isinstance(text, str) or len(text) > _MAX_DIGITS:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() else None


def _number(value: Any, of: type) -> Any:
    """A number as the file gives it, itself or as text; None where it is none."""
    try:
        if isinstance(value, int | float):
            return of(value) if of is float or value == int(value) else None
        if of is int:
            return _whole(value)
        return float(value) if isinstance(value, str) and len(value) <= DIGITS else None
    except (ValueError, OverflowError):
        return None


def _parse(text: str, source: str) -> Mapping[str, Any]:
    if text.lstrip().startswith("#[version") or text.lstrip().startswith("def @"):
        raise ModelFileError(f"{source}: is Relay's text format", f"that format loses constants; {_SAVE}")
    data = parse_json(text, source, f"the file is truncated or damaged; {_SAVE}")
    if not isinstance(data, dict):
        raise ModelFileError(f"{source}: is JSON, but not a model of TVM", _SAVE)
    return data


def read_text(path: str | Path) -> str:
    """The text of a model file; :class:`ModelFileError` where it is not there or not text."""
    return read_any_text(path, MODEL_BYTES)
