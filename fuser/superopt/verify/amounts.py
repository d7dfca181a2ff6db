"""How much a test at given extents holds and computes, and which real extents it can afford."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser.ir.mugraph import FREE

if TYPE_CHECKING:
    from fuser.superopt.verify.reduced import Reduction

PROGRAM = ""
"""The program among the kernels that name an axis."""
LARGEST = 1 << 24
"""Most elements of a tensor at reduced sizes."""
WORK = 1 << 20
"""Elements that a test at real extents may compute or sum over."""
MOST = 1 << 26
"""The same of any test: extents of which something reads a part stay real."""


def largest(tied: Reduction, sizes: Sequence[int]) -> int:
    """Elements of the largest tensor of the program or value of the µGraph."""
    extents = tied.structure.extents(sizes)
    shapes = [[(PROGRAM, a) for d in dims for a in d] for dims in (*tied.axes.values.values(), *tied.axes.uses.values())]
    shapes += [[(b.name, a) for a in s.axes] for b in tied.structure.graph.blocks for s in b.stmts]
    return max(math.prod(extents[name] for name in shape) for shape in shapes)


def restored(tied: Reduction, sizes: Sequence[int]) -> list[int]:
    """The real extents of as many atoms as :data:`WORK` allows, the smallest first."""
    found, real = list(sizes), tied.structure.real
    for i in sorted(range(len(found)), key=lambda i: real[i]):
        more = [*found[:i], real[i], *found[i + 1 :]]
        if real[i] != FREE and work(tied, more) <= max(WORK, work(tied, found)):
            found = more
    return found


def work(tied: Reduction, sizes: Sequence[int]) -> int:
    """Elements that a test at these sizes computes or sums over."""
    extents, total = tied.structure.extents(sizes), 0
    for i, node in enumerate(tied.program.nodes):
        used = [tied.axes.values[node.output], *(tied.axes.uses[i, j] for j in range(len(node.inputs)))]
        total += math.prod(extents[PROGRAM, a] for a in {a for dims in used for d in dims for a in d})
    for b in tied.structure.graph.blocks:
        total += sum(math.prod(extents[b.name, a] for a in s.related) for s in b.stmts)
    return total
