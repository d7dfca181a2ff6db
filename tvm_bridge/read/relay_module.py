"""What the nodes of a ``save_json`` file say by themselves: functions, names, children, spans."""

from __future__ import annotations

from fuser.errors import ModelFileError
from tvm_bridge.read.relay_json import JsonNodes


def functions_of(f: JsonNodes) -> tuple[dict[str, int], dict[int, tuple[str, int]]]:
    """The functions of a module by name, ``main`` among them, and by the node of their global variable."""
    root = f.root
    by_name: dict[str, int] = {}
    functions: dict[int, tuple[str, int]] = {}
    if f.kind(root) == "relay.Function":
        return {"main": root}, {}
    if f.kind(root) != "IRModule":
        raise ModelFileError(
            f"{f.source}: holds a {f.kind(root) or 'null'}, not a Relay module", "save the IRModule with tvm.ir.save_json"
        )
    for key, function in f.pairs(f.ref(root, "functions")):
        name = key if isinstance(key, str) else f.text_field(key, "name_hint")
        by_name[name] = function
        if isinstance(key, int):
            functions[key] = (name, function)
    if "main" not in by_name or f.kind(by_name["main"]) != "relay.Function":
        found = ", ".join(by_name) or "none"
        raise ModelFileError(
            f"{f.source}: has no Relay function main (functions: {found})", "save a Relay module, not a lowered or Relax one"
        )
    return by_name, functions


def var_name(file: JsonNodes, var: int) -> str:
    vid = file.ref(var, "vid")
    return file.text_field(vid, "name_hint") if vid else file.text_field(var, "name_hint")


def span_of(file: JsonNodes, i: int) -> str:
    """Where a node came from, by the name of its source."""
    span = file.ref(i, "span")
    if not span:
        return ""
    if file.kind(span) != "Span":  # a sequence of spans: the first
        items = file.items(file.ref(span, "spans")) if "spans" in file.fields(span) else []
        span = items[0] if items else 0
    name = file.ref(span, "source_name") if span else 0
    return file.text(name) or file.text_field(name, "name") if name else ""
