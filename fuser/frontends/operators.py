"""The op table as a document: which operators fuse, which are a library's, and their names in torch and Relay.

``python -m fuser.frontends.operators`` writes ``fuser/ir/OPERATORS.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuser.frontends.torch_call import aten_name
from fuser.frontends.torch_rules import BY_ATEN
from fuser.frontends.torch_rules import IDENTITY
from fuser.ir import opdef
from fuser.ir.opdef import OpDef
from fuser.ir.opdef import names_of
from fuser.ir.ops import OPS

PATH = Path(opdef.__file__).with_name("OPERATORS.md")

_HEAD = """# Operators

Made from the op table by `python -m fuser.frontends.operators`; a test holds that it is current. What the columns of an
entry are says `fuser/ir/opdef.py`. An operator of torch that stands nowhere here is computed by torch, beside the kernels;
one of Relay stays in the model. Before that, torch's own rules are tried: what it makes of few operators of the table, and at
most one of them a library's, is imported so.
"""

CORE = "## Core operators of torch"

_SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Element by element",
        "They fuse with anything. Some are made of others, and known by them.",
        ("map",),
    ),
    ("Products and folds", "They fuse: products and folds are what kernels are built around.", ("contract", "reduce")),
    ("Composites", "They fuse: each expands into the operators above.", ("composite",)),
    ("Views and copies", "They fuse: views are only other indices, copies other places to load from.", ("view", "data")),
    ("Library operators", "torch computes them, each as a kernel of its own in one graph with the generated ones.", ("library",)),
)


def document() -> str:
    """The whole document."""
    parts = [_HEAD]
    for title, what, kinds in _SECTIONS:
        rows = [_row(e) for _, e in sorted(OPS.items()) if e.kind in kinds]
        parts.append(f"## {title}\n\n{what}\n\n| operator | attributes | made of | torch | Relay |\n|---|---|---|---|---|\n")
        parts[-1] += "\n".join(rows) + "\n"
    own = {n for e in OPS.values() for n in names_of(e.torch)}
    parts.append(
        "## Of torch, imported as several of these\n\n" + _names(sorted(set(BY_ATEN) - own)) + "\n\n"
        "Imported as their operand: " + _names(sorted(IDENTITY)) + "\n"
    )
    parts.append(CORE + "\n\n" + _core_operators())
    return "\n".join(parts)


def _core_operators() -> str:
    """Torch's core operators, by what becomes of them."""
    import torch

    known = {*BY_ATEN, *IDENTITY, *(n for e in OPS.values() for n in names_of(e.torch))}
    found: dict[str, list[str]] = {title: [] for title, _ in _ELSE}
    count = Counter[bool]()
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = full.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is None or torch.Tag.core not in op.tags:
            continue
        name = aten_name(op)
        count[name in known] += 1
        if name not in known:
            found[next(title for title, holds in _ELSE if holds(op))].append(name)
    head = f"Of the {count.total()} in torch {torch.__version__.split('+')[0]}, {count[True]} stand above."
    return "\n".join([head, "", *(f"- {title}: {_names(names)}" for title, names in found.items() if names)]) + "\n"


_ELSE: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("refused, since they draw numbers", lambda op: "nondeterministic_seeded" in {t.name for t in op.tags}),
    ("refused, since their shapes depend on values", lambda op: "dynamic_output_shape" in {t.name for t in op.tags}),
    ("without what they write into, others of these", lambda op: op._schema.is_mutable),
    ("numbers, known where shapes are", lambda op: all(str(r.type) != "Tensor" for r in op._schema.returns)),
    ("made at import, since they take no tensor", lambda op: all("Tensor" not in str(a.type) for a in op._schema.arguments)),
    ("of training", lambda op: "backward" in op._schema.name or op._schema.name.endswith("_legit")),
    ("computed by torch, beside the kernels", lambda _: True),
)


def _row(entry: OpDef) -> str:
    made: list[str] = []
    if entry.formula is not None:
        made = sorted({op for op, _, _ in entry.steps(dict.fromkeys(entry.attrs, 20))})
    cells = (f"`{entry.name}`", _names(entry.attrs), _names(made), _names(names_of(entry.torch)), _names(names_of(entry.relay)))
    return "| " + " | ".join(cells) + " |"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
