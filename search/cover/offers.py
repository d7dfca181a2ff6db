"""The forms in which a model may be computed, and what the parts of each cost: as it is written, and without its normalizations."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from dataclasses import field

from fuser.device import Device
from fuser.ir.ops import Array
from fuser.ir.ops import op as op_def
from fuser.ir.program import TensorProgram
from search.cover.fold import folded
from search.cover.ilp import Cover
from search.cover.ilp import cover
from search.cover.norms import Norm
from search.cover.norms import norms
from search.cover.norms import without
from search.cover.parts import Part
from search.cover.parts import parts
from search.cover.prices import priced
from search.regions import find_chains
from search.tune import Tuned

NARROW = 256
"""Columns of every product up to which a deep chain may stay in one kernel."""
LEAST_GROUP = 32
"""Columns of the smallest group whose sums a kernel leaves."""


@dataclass(frozen=True)
class Pricing:
    """How parts are priced; ``known`` are prices by the hash of a part's program."""

    device: Device
    libraries: bool = True
    seed: int = 0
    executor: Executor | None = None
    known: dict[str, Tuned | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Offers:
    """A form of a model, all its candidates, and those with a kernel."""

    program: TensorProgram
    params: Mapping[str, Array]
    parts: tuple[Part, ...]
    tuned: Mapping[Part, Tuned]

    def cover(self) -> Cover:
        return cover(self.program, list(self.tuned), {p: t.winner.seconds for p, t in self.tuned.items()})


def best_form(program: TensorProgram, params: Mapping[str, Array], pricing: Pricing) -> Offers:
    """The form with the cheapest cover."""
    plain = _offers(program, params, pricing)
    cheapest = plain.cover()
    groups = {n: _group(n, plain, cheapest) for n in norms(program, params)}
    chosen = {n: g for n, g in groups.items() if g}
    if not chosen:
        return plain
    less, tails = without(program, chosen)
    less, weights = folded(less, params)
    steps = {n.output for n in less.nodes} - set(program.table) - set().union(*tails.values())
    lean = _offers(less, weights, pricing, tails, steps)
    return lean if lean.cover().seconds < cheapest.seconds else plain


def _offers(
    program: TensorProgram,
    params: Mapping[str, Array],
    pricing: Pricing,
    tails: Mapping[str, frozenset[str]] | None = None,
    steps: Collection[str] = (),
) -> Offers:
    chains = [frozenset(r.nodes) for r in find_chains(program, pricing.device)[0]]
    whole = [frozenset(n.output for n in program.nodes)] if narrow(program) else []
    candidates = parts(program, [*chains, *whole], tails, steps)
    return Offers(
        program,
        params,
        candidates,
        priced(candidates, pricing.device, pricing.libraries, pricing.seed, pricing.executor, pricing.known),
    )


def _group(norm: Norm, offers: Offers, chosen: Cover) -> int:
    """Columns of which the kernel that makes the rows holds the sums at once: the largest power of two in its tile that divides
    them, or all of them; 0 where no kernel of ours makes them."""
    width = offers.program[norm.rows].shape[-1]
    for part in chosen.parts:
        if norm.rows not in part.nodes:
            continue
        winner, name = offers.tuned[part].winner.candidate, dict(part.names)[norm.rows]
        for block, mine in zip(winner.graph.blocks, winner.schedule.kernels, strict=True):
            made = block.by_value.get(name)
            if made is None or made.kind != "compute":
                continue
            tile = mine.tile.get(made.axes[-1], width)
            if tile >= width:
                return width
            group = max(1 << (tile.bit_length() - 1), LEAST_GROUP)
            while group >= LEAST_GROUP and width % group:
                group //= 2
            return group if group >= LEAST_GROUP else 0
    return 0


def narrow(program: TensorProgram) -> bool:
    """A chain whose rows a block can keep from one product to the next: all of it may be one kernel."""
    ends = [program[n.output].shape[-1] for n in program.nodes if op_def(n.op).kind == "contract"]
    return len(program.outputs) == 1 and max(ends, default=0) <= NARROW
