"""The forms in which a model may be computed, and what their parts cost: as it is written, and without its normalizations."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from math import inf
from math import prod

from fuser.device import Device
from fuser.errors import NoValidKernelError
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from search.cover.fold import folded
from search.cover.greedy import greedy_cover
from search.cover.ilp import Cover
from search.cover.ilp import cover
from search.cover.layouts import with_layouts
from search.cover.norms import norms
from search.cover.norms import without
from search.cover.parts import FEW
from search.cover.parts import Part
from search.cover.parts import parts
from search.cover.prices import begun
from search.cover.shown import root
from search.ranked import Tuned
from search.regions import find_chains

NARROW = 256
"""Columns of every product up to which a deep chain may stay in one kernel."""
LONGEST = 3
"""Products of the longest chain that is offered as one part; attention has two."""
GROUP = 64
"""Columns whose sums a kernel leaves together: those of a tile of its product; twice as many where tiles of so many rows and
columns fill :data:`FILLED` of the SMs."""
FILLED = 0.75
DEARER = 1.1
"""Up to so many times its cost the form without normalizations is taken. The model counts what a kernel fewer saves at less
than it is in a chain, and sums that are read in front of the main loop at more: on an H200 the form was 12 % faster where it
was priced 6 % dearer (BERT base, 512 tokens)."""
INSIDE = 2.0
"""Times what a part is worth that a smaller one in it may take as one kernel. Of 80 parts of three models beyond that none took
less than 1.67 times what it is worth."""


@dataclass(frozen=True)
class Pricing:
    """How parts are priced and chosen; ``known`` are prices by the key of a part. Without ``layouts`` every tensor lies row after
    row, as its operator gives it; ``greedy``: the part that gains most is taken first. Both are there to be compared with.
    ``ours``: our own runtime calls the libraries, which knows images with their channels last."""

    device: Device
    libraries: bool = True
    seed: int = 0
    executor: Executor | None = None
    known: dict[str, Tuned | None] = field(default_factory=dict)
    layouts: bool = True
    greedy: bool = False
    ours: bool = True


@dataclass(frozen=True)
class Offers:
    """A form of a model, all its candidates, and those with a kernel; ``otherwise``: the form for where so many of these do not
    hold that a cover takes more than ``limit`` seconds."""

    program: TensorProgram
    params: Mapping[str, Array]
    parts: tuple[Part, ...]
    tuned: Mapping[Part, Tuned]
    otherwise: Offers | None = None
    limit: float = inf
    greedy: bool = False

    @cached_property
    def all(self) -> Offers:
        """With everything that there is to choose from."""
        return self

    @property
    def looked_at(self) -> tuple[int, int]:
        """Structures and candidates that were priced."""
        each = {id(t): t for t in self.tuned.values()}.values()
        return len(each), sum(t.candidates for t in each)

    @cached_property
    def cheapest(self) -> Cover:
        """The cheapest cover. Raises :class:`NoValidKernelError` where these parts compute not all of the program."""
        choose = greedy_cover if self.greedy else cover
        return choose(self.program, list(self.tuned), {p: t.winner.seconds for p, t in self.tuned.items()})


@dataclass(frozen=True)
class Form:
    """A program that computes a model. ``tails``: operators behind a product that leave with it; ``steps``: those of folded
    normalizations, which it has in the place of the form in front of it."""

    program: TensorProgram
    params: Mapping[str, Array]
    tails: Mapping[str, frozenset[str]] | None = None
    steps: frozenset[str] = frozenset()


def forms(program: TensorProgram, params: Mapping[str, Array], pricing: Pricing) -> tuple[Form, ...]:
    """As the program is written; behind it that without its normalizations, where it has such."""
    plain = Form(program, params)
    tall = [n for n in norms(program, params) if prod(program[n.rows].shape[:-1]) > FEW]
    groups = {norm: group for norm in tall if (group := _group(program[norm.rows].shape, pricing.device))}
    if not groups:
        return (plain,)
    less, tails = without(program, groups)
    less, weights = folded(less, params)
    steps = {n.output for n in less.nodes} - set(program.table) - set().union(*tails.values())
    return plain, Form(less, weights, tails, frozenset(steps))


def best_form(several: Sequence[Form], pricing: Pricing) -> Offers:
    """That of :func:`forms`, of one program or several, with the cheapest cover."""
    coming: set[str] = set()
    found: list[Offers] = []
    for form, offers in zip(several, _side_by_side([_offers(f, pricing, coming) for f in several]), strict=True):
        if form.tails is not None:
            found[-1] = _leaner(found[-1], offers)
        else:
            found.append(offers)
    return found[0] if len(found) == 1 else min(found, key=_seconds)


def _leaner(plain: Offers, lean: Offers) -> Offers:
    """The form without normalizations where it takes less, else the plain one."""
    lean = replace(lean, otherwise=plain, limit=DEARER * _seconds(plain))
    return lean if _seconds(lean) < lean.limit else plain


def _seconds(offers: Offers) -> float:
    """Of the cheapest cover, infinite where there is none."""
    try:
        return offers.cheapest.seconds
    except NoValidKernelError:
        return inf


def _group(shape: Sequence[int], device: Device) -> int:
    """Columns of a group: the largest power of two up to that of a tile that divides a row; 0 where that is below half of
    :data:`GROUP`."""
    width, wide = shape[-1], 2 * GROUP
    group = wide if prod(shape) >= FILLED * device.sm_count * wide * wide else GROUP
    while width % group:
        group //= 2
    return group if 2 * group >= GROUP else 0


def _side_by_side(several: Sequence[Generator[None, None, Offers]]) -> list[Offers]:
    """The offers of each form; where one waits for other processes, the next one goes on."""
    found: dict[int, Offers] = {}
    while len(found) < len(several):
        for i, steps in enumerate(several):
            if i not in found:
                try:
                    next(steps)
                except StopIteration as done:
                    found[i] = done.value
    return [found[i] for i in range(len(several))]


def _offers(form: Form, pricing: Pricing, coming: set[str]) -> Generator[None, None, Offers]:
    """Yields where other processes price candidates; ``coming`` are the keys of those that were begun."""
    program, params = form.program, form.params
    chains = [frozenset(r.nodes) for r in find_chains(program, pricing.device)[0] if _short(r.program)]
    whole = [frozenset(n.output for n in program.nodes)] if narrow(program) else []
    candidates = parts(program, [*chains, *whole], form.tails, form.steps, pricing.layouts, pricing.libraries)
    if pricing.layouts:
        candidates = with_layouts(program, candidates, params)
    joined = {p for p in candidates if sum(n.products > 0 for n in p.program.nodes) > 1}
    least = _least(joined)
    smaller = _begun([p for p in candidates if p not in joined], pricing, coming)
    yield
    tuned = dict(smaller())
    for larger in (least, joined - least):  # what is worth less than before is left sooner
        wanted = [p for p in candidates if p in larger]
        worth = _apart(program, wanted, tuned)
        if larger is not least:
            wanted = _hopeful(wanted, worth, {p: tuned[p] for p in least if p in tuned})
        several = _begun(wanted, pricing, coming, worth)
        yield
        tuned |= several()
    return Offers(program, params, candidates, {p: tuned[p] for p in candidates if p in tuned}, greedy=pricing.greedy)


def _begun(
    candidates: Sequence[Part], pricing: Pricing, coming: set[str], worth: Mapping[str, float] | None = None
) -> Callable[[], Mapping[Part, Tuned]]:
    p = pricing
    return begun(candidates, p.device, p.libraries, p.seed, p.executor, p.known, worth, coming)


def _least(joined: Collection[Part]) -> set[Part]:
    """The parts that hold no smaller one of these: attention without what turns its heads."""
    inside = {frozenset(p.nodes) for p in joined}
    holders: dict[str, list[frozenset[str]]] = {}
    for nodes in inside:
        for n in nodes:
            holders.setdefault(n, []).append(nodes)
    larger = {nodes for nodes in inside if any(other < nodes for n in nodes for other in holders[n])}
    return {p for p in joined if frozenset(p.nodes) not in larger}


def _hopeful(parts: Iterable[Part], worth: Mapping[str, float], smaller: Mapping[Part, Tuned]) -> list[Part]:
    """The parts without those that hold a smaller one which takes much longer, as one kernel, than they are worth."""
    known: dict[frozenset[str], float] = {}
    for p, t in smaller.items():
        nodes = frozenset(p.nodes)
        known[nodes] = min(t.winner.seconds, known.get(nodes, inf))
    holders: dict[str, list[frozenset[str]]] = {}
    for nodes in known:
        for n in nodes:
            holders.setdefault(n, []).append(nodes)

    def inside(part: Part) -> float:
        mine = frozenset(part.nodes)
        return max((known[nodes] for n in mine for nodes in holders.get(n, ()) if nodes < mine), default=0.0)

    return [p for p in parts if inside(p) <= INSIDE * worth[p.program.stable_hash()]]


def _apart(program: TensorProgram, joined: Collection[Part], tuned: Mapping[Part, Tuned]) -> dict[str, float]:
    """Seconds of the cheapest cover by smaller parts, tensors row after row, of what each part with several products computes,
    by the hash of its program; infinite where there is none."""
    found: dict[str, float] = {}
    holders: dict[str, list[Part]] = {}
    for part in tuned:
        for node in part.nodes if not part.rows else ():
            holders.setdefault(node, []).append(part)
    for part in joined:
        key = part.program.stable_hash()
        if key not in found:
            inside = {p: tuned[p] for n in part.nodes for p in holders.get(n, ()) if set(p.nodes) <= set(part.nodes)}
            found[key] = _cheapest(program, part, inside)
    return found


def _cheapest(program: TensorProgram, part: Part, smaller: Mapping[Part, Tuned]) -> float:
    mine = set(part.nodes)
    nodes = tuple(n for n in program.nodes if root(program, n.output) in mine)
    made = {n.output for n in nodes}
    given = tuple(t.name for t in program.tensors if t.name not in made)
    try:
        alone = replace(program, inputs=given, nodes=nodes, outputs=part.writes)
        return cover(alone, list(smaller), {p: t.winner.seconds for p, t in smaller.items()}).seconds
    except NoValidKernelError:
        return inf


def _short(chain: TensorProgram) -> bool:
    """Chains of more products have hundreds of thousands of schedules, and hardly one that a kernel is better for."""
    return sum(n.products for n in chain.nodes) <= LONGEST


def narrow(program: TensorProgram) -> bool:
    """A chain whose rows a block can keep from one product to the next: all of it may be one kernel."""
    behind = set[str]()  # a product
    for n in program.nodes:
        if n.contracts and (program[n.output].shape[-1] > NARROW or behind.intersection(n.inputs[1:])):
            return False  # wide, or its sum goes over rows of what was made before
        if n.contracts or behind.intersection(n.inputs):
            behind.add(n.output)
    return len(program.outputs) == 1
