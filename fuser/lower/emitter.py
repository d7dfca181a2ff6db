"""Lines of generated source and the names in it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

from fuser.ir.fuse import identifier
from fuser.ir.opdef import evaluate
from fuser.ir.ops import op as op_def
from fuser.ir.scalar import Scalar

TAKEN = frozenset({"tl", "triton", "range", "min", "float", "gdc_wait", "gdc_launch_dependents"}) | frozenset(
    {"prefetch_l2", "bring_l2", "nan_max", "pid", "pid_in", "pid_1", "first", "height"}
)
"""Names that generated source uses for something else."""


def number_text(x: float) -> str:
    return repr(float(x))


def expression(op: str, args: Sequence[str], attrs: Mapping[str, Any] | None = None) -> str:
    """An operator on names as one expression."""
    entry, attrs = op_def(op), attrs or {}
    if entry.triton:
        return entry.triton.format(*args, **{k: number_text(v.value()) for k, v in attrs.items() if isinstance(v, Scalar)})
    return evaluate(entry.steps(attrs), args, lambda inner, xs, at: f"({expression(inner, xs, at)})")


class Emitter:
    """Lines so far, how deep they stand, and a name for every text that was asked for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self._names: dict[str, str] = {}

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """The lines inside stand under ``head``."""
        self.emit(head)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, text: str) -> str:
        """The name in the source of a value, or of what the lowering adds: then with a blank, which no value's name has."""
        if text not in self._names:
            base = identifier(text.replace("'", "_"))
            name = f"{base}_" if base in TAKEN or iskeyword(base) else base
            taken = set(self._names.values())
            while name in taken:
                name += "_"
            self._names[text] = name
        return self._names[text]

    def beside(self, name: str, what: str) -> str:
        """The name of something about a register block (its fp32 form, say), which no value has."""
        return self.name(f"{name} {what}")

    def piece(self, text: str, suffix: str) -> str:
        """A name with the suffix of a register block, which may be another value's name."""
        return self.beside(self.name(text), suffix[1:]) if suffix else self.name(text)
