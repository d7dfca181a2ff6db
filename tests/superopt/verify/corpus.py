"""µGraphs written by hand with the verdict that they deserve: ``WRONG`` and ``RIGHT``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import TensorProgram
from tests.paths import MUGRAPHS
from tests.superopt.verify.families import FAMILIES
from tests.superopt.verify.notation import parse
from tests.superopt.verify.right_graphs import RIGHT as OTHERS


@dataclass(frozen=True)
class Case:
    """A µGraph of a program in the notation of :mod:`tests.superopt.verify.notation`. ``scale``: of the inputs at which a
    wrong one differs.
    """

    name: str
    program: TensorProgram
    text: str
    dtype: str
    scale: float = 1.0

    @property
    def graph(self) -> KernelGraph:
        return parse(self.text, self.program, self.dtype)

    def __str__(self) -> str:
        return self.name


def _edited(file: str) -> Iterator[Case]:
    """The edits of families in a file: a line ``family: name``, then ``- old`` and ``+ new`` lines."""
    lines = (MUGRAPHS / file).read_text("utf-8").splitlines()
    for title, *edits in _groups([x for x in lines if x and not x.startswith("#")]):
        m = re.fullmatch(r"(?P<name>(?P<family>\w+): .*?)(?: ×(?P<scale>\d+))?", title)
        assert m, title
        family = FAMILIES[m["family"]]
        text = family.text
        for old, new in _replacements(edits):
            every, old = old.startswith("-* "), re.sub(r"^-\*? ", "", old)
            assert text.count(old) == 1 or (every and old in text), f"{title}: {old!r} stands {text.count(old)} times"
            text = text.replace(old, new)
        yield Case(m["name"], family.program, text, family.dtype, float(m["scale"] or 1))


def _groups(lines: list[str]) -> Iterator[list[str]]:
    starts = [i for i, x in enumerate(lines) if not x.startswith(" ")]
    for i, j in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[i:j]


def _replacements(edits: list[str]) -> Iterator[tuple[str, str]]:
    edits = [x.strip() for x in edits]
    starts = [i for i, x in enumerate(edits) if x.startswith("-")]
    for i, j in zip(starts, [*starts[1:], len(edits)], strict=True):
        yield edits[i], "\n".join(x.removeprefix("+ ") for x in edits[i + 1 : j])


WRONG = tuple(_edited("wrong.txt"))
RIGHT = (
    *(Case(f.name, f.program, f.text, f.dtype) for f in (*FAMILIES.values(), *OTHERS)),
    *_edited("right.txt"),
)
