"""A whole model: parts, prices, the cover, and one kernel graph with one schedule that runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial
from typing import Any

from cost_model.names import CHAINED
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import NoValidKernelError
from fuser.errors import UnsupportedError
from fuser.files import counted
from fuser.ir.element_program import by_elements
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.lower.compile import by_content
from fuser.runtime.plan import Plan as Launches
from fuser.runtime.plan import plan
from fuser.superopt.structures import structures
from fuser.superopt.verify.verdict import Verified
from search.cover import kept_choice
from search.cover.borders import Border
from search.cover.borders import borders
from search.cover.chain import as_chain
from search.cover.channels import channels_last
from search.cover.channels import moved_once
from search.cover.fold import folded
from search.cover.heads import together
from search.cover.ilp import Cover
from search.cover.images import lean
from search.cover.joint_price import joint_seconds
from search.cover.lines import shifted
from search.cover.neighbours import beside
from search.cover.offers import Form
from search.cover.offers import Offers
from search.cover.offers import Pricing
from search.cover.offers import best_form
from search.cover.offers import forms
from search.cover.pack import packed
from search.cover.parts import Part
from search.cover.picked import picked
from search.cover.plan import Plan
from search.cover.plan import plan_of_parts
from search.cover.pools import reduced
from search.cover.prices import by_library
from search.cover.prices import in_layouts
from search.cover.scattered import gathered
from search.cover.select import selected
from search.cover.stitch import stitch
from search.cover.turned import turned
from search.cover.wider import widened
from search.kept_checks import interpreter_begins
from search.libraries import with_libraries
from search.ranked import Ranked
from search.ranked import Tuned
from search.realise import Realised
from search.realise import compiled_candidates
from search.realise import realise
from search.realise import sound_parts
from search.realise import verified
from search.stages import Say
from search.stages import Stages
from search.stages import silent
from search.tune import graph_seconds
from search.tuner.efforts import measures
from search.tuner.memory import GENERATED
from search.tuner.memory import LIBRARY
from search.tuner.tasks import Task
from search.tuner.tuning import MODEL_ALONE
from search.tuner.tuning import Tuning

AS_IT_STANDS = Verified(0, (), False, 0.0, ("library calls, and kernels of elements, as the program has the operators",), (), 0.0)
"""The verdict of what nothing was transformed in."""


def as_it_stands(tuned: Tuned) -> Realised:
    """What has no kernel of blocks."""
    return Realised(tuned, tuned.winner, AS_IT_STANDS, ())


WORSE = 1.02
"""How many times its price a part that was compiled takes from which on it is chosen again among all."""
ALIKE = 16
"""Parts that are compiled with one that takes longer than its price, at most."""


@dataclass(frozen=True)
class Model:
    """A program that is computed by parts: each with what was realised for it, in launch order. ``whole`` has one kernel graph of
    them all; its verdict is that of the part with the weakest evidence, its estimate the sum of theirs, without any overlap.
    """

    program: TensorProgram
    params: Mapping[str, Array]
    cover: Cover
    found: tuple[Realised, ...]
    whole: Realised
    device: Device
    offers: Offers = field(repr=False)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each stage took."""

    @cached_property
    def considered(self) -> Mapping[Part, float]:
        """Seconds of every candidate part, infinite where there is no kernel."""
        found = self.offers.all
        seconds = {p: found.tuned[p].winner.seconds if p in found.tuned else math.inf for p in found.parts}
        return seconds | {p: self.offers.tuned[p].winner.seconds for p in self.cover.parts}

    @cached_property
    def plan(self) -> Plan:
        """Its kernels, for people."""
        made = self.whole.candidate.graph
        found = plan_of_parts(self.program, self.device.title, self.cover, self.found, made, self.stages)
        return replace(found, chained_us=self._chained_us(), workspace=self.planned.workspace)

    def _chained_us(self) -> float | None:
        try:
            return graph_seconds(self.whole.candidate.candidate, self.device, CHAINED) * 1e6
        except FuserError:  # a library kernel of tensors whose shape a schedule chooses
            return None

    @cached_property
    def planned(self) -> Launches:
        """Its kernels as they are launched, and where tensors between them lie."""
        return plan(self.whole.candidate.candidate, [a.source for a in self.whole.artifacts])

    def borders(self, part: int | None = None) -> list[Border]:
        """Why neighbours of the plan, or those of one part, are kernels of their own. Solves the integer program again for
        each."""
        return borders(self.program, self.cover, self.considered, self.device, part)


def compile_model(
    program: TensorProgram,
    params: Mapping[str, Array],
    pricing: Pricing,
    *,
    compiled: bool = True,
    checked: bool = True,
    say: Say = silent,
    tuning: Tuning = MODEL_ALONE,
    most: float = math.inf,
) -> Model:
    """Choose parts, tune and check each distinct one, and put their kernels into one graph. The model alone prices the
    candidates; those that are chosen are tuned by ``tuning``. ``say`` is told each stage as it begins. Raises
    :class:`fuser.errors.NoValidKernelError` naming an operator that nothing can compute, and where nothing takes less than
    ``most`` seconds."""
    device, executor = pricing.device, pricing.executor
    stages = Stages(say)
    stages.begin("candidates", f"looking for candidates among {counted(len(program.nodes), 'operator')}")
    images = shifted(*lean(*folded(gathered(program), params), pricing.ours))
    images = folded(*widened(*channels_last(*images))) if pricing.ours else images
    images = picked(moved_once(images[0])), images[1]
    as_written = packed(*images)
    # turned heads are a product, or places that a kernel loads from: whichever takes less
    ways = [as_written] if (products := selected(*as_written))[0] is as_written[0] else [products, as_written]
    ways += [(less, params) for program, params in ways if (less := reduced(program)) is not program]
    ready = [turned(together(program, params), params, device) for program, params in ways]
    several = [form for program, params in ready for form in forms(program, params, pricing)]
    stages.begin("prices", f"pricing candidates for {device.title}")
    offers, chosen, done = _chosen(several, pricing, compiled, checked, tuning, most, stages)
    program, params = offers.program, offers.params
    stages.begin("joining", "putting the kernels into one graph")
    found = tuple(done[p.key] for p in chosen.parts)
    each = {id(r): r for r in found}.values()
    stitched, params = stitch(program, params, [(p, r.candidate.candidate) for p, r in zip(chosen.parts, found, strict=True)])
    known = by_content(a for r in each for a in r.artifacts) if compiled else None
    stitched, artifacts = as_chain(stitched, device, executor, known)
    winner = Ranked(stitched, math.fsum(r.candidate.seconds for r in found))
    whole = Tuned(program, device.name, winner, (), *offers.looked_at)
    weakest = max((r.verdict for r in found), key=lambda v: getattr(v, "bound", 0.0))
    rejected = Counter[str]()
    for r in each:
        rejected.update(r.rejected)
    stages.end()
    realised = Realised(whole, winner, weakest, artifacts, rejected=dict(rejected))
    return Model(program, params, chosen, found, realised, device, offers, stages.seconds)


def _chosen(
    several: Sequence[Form], pricing: Pricing, compiled: bool, checked: bool, tuning: Tuning, most: float, stages: Stages
) -> tuple[Offers, Cover, dict[str, Realised]]:
    """The offers, the choice among them, and what was realised for its parts, by their keys."""
    device = pricing.device
    file = kept_choice.file_of(several, pricing, compiled)
    known = kept_choice.read(file, several, pricing)
    if known is None and compiled and checked:
        interpreter_begins()
    offers = known or best_form(several, pricing)
    done: dict[str, Realised] = {}
    better: dict[str, Tuned] = {}

    def kernels(wanted: list[Tuned]) -> list[Realised]:
        return realise(wanted, device, pricing.executor, checked, pricing.seed) if compiled else [verified(t) for t in wanted]

    def standing(one: Tuned) -> Callable[[], Realised]:
        made = as_it_stands(one)
        return sound_parts(made, pricing.seed) if compiled and checked else lambda: made

    while True:
        stages.begin("choice", f"choosing among {counted(len(offers.tuned), 'candidate')} with a kernel")
        chosen = _within(offers)
        if chosen is None:
            offers = offers.otherwise or offers
            continue
        if chosen.seconds >= most:
            raise NoValidKernelError(f"all kernels for {offers.program.name!r} take {most * 1e6:.1f} µs or more", "allow more")
        priced = {p.key: offers.tuned[p] for p in chosen.parts}
        if found := _tuned(chosen, better, pricing, tuning, stages):
            better |= found
            offers = replace(offers, tuned={p: better.get(p.key, t) for p, t in offers.tuned.items()})
        near = {p.key: offers.tuned[p] for p in chosen.parts}
        near = {key: t if key in better or key in done else beside(t, device) for key, t in near.items()}
        offers = replace(offers, tuned={**offers.tuned, **{p: near[p.key] for p in chosen.parts}})
        distinct = f"{len({p.key for p in chosen.parts})} distinct of {counted(len(chosen.parts), 'part')}"
        stages.begin("kernels", f"{'compiling and checking' if compiled else 'verifying'} {distinct}")
        failed = _realise(chosen, offers.tuned, done, kernels, standing)
        if not failed and known is None and (dearer := _dearer(chosen, offers, done)) is not offers:
            offers = _and_alike(chosen, offers, dearer, done, pricing) if compiled else dearer
            if (other := _within(offers)) is None or {*other.parts} != {*chosen.parts}:
                continue
        if not failed:
            if known is None and not better:
                kept_choice.write(file, several, offers, chosen, priced)
            return offers, chosen, done
        if known is not None:  # it held somewhere else
            known, offers = None, best_form(several, pricing)
        offers = replace(offers, tuned=_without(offers.tuned, failed, pricing))


def _tuned(chosen: Cover, before: Mapping[str, Tuned], pricing: Pricing, tuning: Tuning, stages: Stages) -> dict[str, Tuned]:
    """What is known or measured of the chosen parts, by their keys, each in its layouts; time goes to where it saves most."""
    if tuning is MODEL_ALONE:
        return {}
    count, tasks = Counter(p.key for p in chosen.parts), dict[str, Task]()
    for part in {p.key: p for p in chosen.parts if p.key not in before}.values():
        graphs: tuple[KernelGraph, ...] = ()
        if measures(tuning.effort):
            try:
                graphs = structures(part.program)
            except FuserError:
                continue  # operators that a library has alone
            graphs = with_libraries(graphs) if pricing.libraries else graphs
        scope = LIBRARY if pricing.libraries else GENERATED
        if part.rows or part.weights:
            # weights may stay row after row: longer rows are more to read
            both = [x for longer in (part.weights, ()) for _, x in in_layouts(graphs, part.rows, longer)]
            graphs, scope = tuple(dict.fromkeys(both)), f"{scope} {part.rows} {part.weights}"
        tasks[part.key] = Task(part.program, partial(tuple, graphs), count[part.key], scope, optional=True)
    if not tasks:
        return {}
    if measures(tuning.effort):
        stages.begin("measuring", f"measuring {len(tasks)} distinct parts")
    found = tuning.tune(list(tasks.values()), pricing.device, pricing.seed)
    return {key: t for key, t in zip(tasks, found, strict=True) if t is not None and t.winner.measured is not None}


def _within(offers: Offers) -> Cover | None:
    """The cheapest cover; none where there is another form, and this one has none within its limit."""
    try:
        chosen = offers.cheapest
    except NoValidKernelError:
        if offers.otherwise is None:
            raise
        return None
    return chosen if chosen.seconds <= offers.limit else None


def _realise(
    chosen: Cover,
    tuned: Mapping[Part, Tuned],
    done: dict[str, Realised],
    kernels: Callable[[list[Tuned]], list[Realised]],
    standing: Callable[[Tuned], Callable[[], Realised]],
) -> frozenset[str]:
    """Puts what ``kernels`` makes of each chosen part, or ``standing`` begins of one without blocks, into ``done``, by its key:
    equal ones are verified, compiled and checked once. Returns the keys of those of which no candidate holds."""
    distinct = {k: tuned[p] for p in chosen.parts if (k := p.key) not in done}
    begun = {k: standing(t) for k, t in distinct.items() if _stands(t)}
    left = {k: t for k, t in distinct.items() if k not in begun}
    failed = set[str]()
    try:
        done |= dict(zip(left, kernels(list(left.values())), strict=True))
    except (NoValidKernelError, UnsupportedError):
        for key, one in left.items():
            try:
                (done[key],) = kernels([one])
            except (NoValidKernelError, UnsupportedError):
                failed.add(key)
    done |= {key: made() for key, made in begun.items()}
    return frozenset(failed)


def _dearer(chosen: Cover, offers: Offers, done: Mapping[str, Realised]) -> Offers:
    """The offers with what was realised in the place of a cheaper candidate that does not hold: it spills, say. The same where
    there is no such part."""
    made = {p.key: done[p.key].candidate for p in chosen.parts}
    worse = {p.key for p in chosen.parts if made[p.key].seconds > WORSE * offers.tuned[p].winner.seconds}
    if not worse:
        return offers
    return replace(offers, tuned={p: replace(t, winner=made[p.key]) if p.key in worse else t for p, t in offers.tuned.items()})


def _and_alike(chosen: Cover, before: Offers, offers: Offers, done: Mapping[str, Realised], pricing: Pricing) -> Offers:
    """The offers, in which some parts are dearer than ``before``, with others of the same products compiled as well: they
    probably spill too, and each would be chosen next. Where there are other processes, at once."""
    if pricing.executor is None:
        return offers
    worse: dict[tuple[Any, ...], float] = {}
    for part in chosen.parts:
        if (mine := _products(part)) and offers.tuned[part] is not before.tuned[part]:
            worse[mine] = max(worse.get(mine, 0.0), offers.tuned[part].winner.seconds)
    left: dict[str, Tuned] = {}
    for part, tuned in sorted(offers.tuned.items(), key=lambda x: x[1].winner.seconds):
        alike = tuned.winner.seconds < worse.get(_products(part), 0.0) and tuned.winner.measured is None
        if alike and part.key not in done and not _stands(tuned) and len(left) < ALIKE:
            left[part.key] = tuned
    made = dict(zip(left, compiled_candidates(list(left.values()), pricing.device, pricing.executor), strict=True))
    dearer = {k: r for k, r in made.items() if r is not None and r.seconds > WORSE * left[k].winner.seconds}
    tuned = {p: replace(t, winner=dearer[p.key]) if p.key in dearer else t for p, t in offers.tuned.items()}
    return replace(offers, tuned=tuned) if dearer else offers


def _products(part: Part) -> tuple[Any, ...]:
    """What a part multiplies: equal for those that differ in what stands in front of it and behind."""
    program = part.program
    return tuple(sorted((n.op, program[n.output].shape, program[n.output].dtype) for n in program.nodes if n.products))


def _stands(tuned: Tuned) -> bool:
    """The kernels are library calls of the program's own operators, in their order, or each computes a result as it stands."""
    if tuned.winner.graph.kernels == by_elements(tuned.program):
        return True
    calls = [(k.op, k.args, k.output) for k in tuned.winner.graph.kernels if isinstance(k, LibraryKernel)]
    return calls == [(n.op, n.inputs, n.output) for n in tuned.program.nodes] and not tuned.winner.graph.blocks


def _without(tuned: Mapping[Part, Tuned], failed: Collection[str], pricing: Pricing) -> dict[Part, Tuned]:
    """The parts but those whose kernels do not hold: a call stands for what is one operator, and what torch's compiler makes
    for several."""
    found: dict[Part, Tuned] = {}
    for part, known in tuned.items():
        other = known
        if part.key in failed:
            joint = joint_seconds(part.program, pricing.device) if pricing.libraries and known.winner.graph.blocks else None
            other = None if part.rows else by_library(part.program, pricing.device, joint)
        if other is not None:
            found[part] = other
    return found
