"""The op table as a document: which operators fuse, which are a library's, and their names in torch and Relay.

``python -m fuser.frontends.operators`` writes ``fuser/ir/OPERATORS.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
one of Relay stays in the model.
"""

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
    return "\n".join(parts)


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
