"""Random small extents for the atoms of a µGraph: what is told apart at the real size is told apart at one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fuser.ir.mugraph import FREE
from fuser.superopt.verify.checking import PARTS
from fuser.superopt.verify.checking import checking_tile
from fuser.superopt.verify.masks import Mask
from fuser.superopt.verify.masks import gap
from fuser.superopt.verify.masks import groups

if TYPE_CHECKING:
    from fuser.superopt.verify.reduced import Structure

_LEAST = {"split": 17, "loop": 5, "grid": 3}
"""Least extents; that of a split axis for :data:`PARTS` parts, with :data:`_PART` more for each further one."""
_PART = 5
_ROWS = 5
"""Least extent of a kept axis where accumulators are rescaled: an error shows only in rows whose maximum grows after the first
trip.
"""
_MASKED = 11
"""Least rows and columns of a causal mask."""
_BUMPS = 200
_FEW = 3
"""Atoms of one axis of which each may be as large as if it were the axis."""


def draw_sizes(tied: Structure, rng: np.random.Generator, masks: Sequence[Mask] = (), turn: int = 0) -> list[int]:
    """Extents of the atoms: small, pairwise different, loops ragged, each another one at the next ``turn``.

    Rows and columns of ``masks`` are about as many, so that some row sees each part, compare as they do at the real size, and
    have room for masks to differ.
    """
    return _Draw(tied, masks, turn).run(rng)


def _light(tied: Structure) -> list[str]:
    """The roles of the atoms. Where many of them make up one axis, their product has its tiles and parts: the last atom alone has
    as many elements as the role asks for."""
    found = list(tied.roles)
    for atoms in tied.atoms.values():
        if len(atoms) > _FEW:
            for i in atoms[:-1]:
                found[i] = "grid"
    return found


class _Draw:
    def __init__(self, tied: Structure, masks: Sequence[Mask], turn: int) -> None:
        self.tied, self.turn = tied, turn
        self.masks = [g for g in groups(masks).values() if g[0].rows or g[0].columns]
        self.sizes = [0] * len(tied.real)
        self.roles = _light(tied)
        for count, i in enumerate(i for i, real in enumerate(tied.real) if real == FREE):
            self.sizes[i] = PARTS + turn % 2 + count

    def run(self, rng: np.random.Generator) -> list[int]:
        least = self.least()
        for i in rng.permutation(len(self.sizes)):
            if self.tied.real[i] != FREE:
                self.set(i, least[i] + int(rng.integers(0, 2)))
        for _ in range(_BUMPS):
            short = [i for group in self.masks for i in self.short(group)]
            if not short:
                break
            self.set(short[0], self.sizes[short[0]] + 1)
        return self.sizes

    def least(self) -> list[int]:
        rows = _ROWS if any(s.rescale for b in self.tied.graph.blocks for s in b.computes) else 1
        least = [max(rows, _LEAST[role]) for role in self.roles]
        for i, counts in self.tied.parts.items():
            if self.roles[i] != "split":
                continue
            least[i] = max((least[i], *(_LEAST["split"] + _PART * (self.sizes[c] - PARTS) for c in counts)))
        for group in self.masks:
            atoms = {*group[0].rows, *group[0].columns}
            most = max(_MASKED, 2 * len(group) + 3, *(least[i] for i in atoms))
            for i in atoms:
                least[i] = max(least[i], most)
        return least

    def set(self, i: int, extent: int) -> None:
        """The least extent from this on that no atom has, of the parity of the turn (so that turns differ), ragged in loops."""
        role, counts = self.roles[i], [self.sizes[c] for c in self.tied.parts.get(i, ())] or [1]
        while (
            extent in self.sizes
            or extent % 2 != self.turn % 2
            or (role != "grid" and any(extent % checking_tile(extent, role, n) == 0 for n in counts))
        ):
            extent += 1
        self.sizes[i] = extent

    def short(self, masks: Sequence[Mask]) -> list[int]:
        """An atom of the side of these masks that is to be longer, if it is not by enough."""
        wanted, (rows, columns) = gap(masks, self.tied.real), masks[0].size(self.sizes)
        if columns - rows >= wanted if wanted >= 0 else columns - rows <= wanted:
            return []
        longer, shorter = (masks[0].columns, masks[0].rows) if wanted >= 0 else (masks[0].rows, masks[0].columns)
        return [i for i in longer if i not in shorter][:1]
