"""Parts of a model that one call of the tuner can do: the candidates of which a cover chooses.

A part computes some operators of a program and stores what others read. Views and slices belong to nobody: every part takes along
those in front of what it computes, since for a kernel they are places to load from. A result may also be stored as a view of it
shows it (heads inside, say), where nothing else reads it: then its reader finds it laid out as it needs it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property

from fuser.errors import FuserError
from fuser.ir.element_program import RUNS
from fuser.ir.element_program import has_rule
from fuser.ir.fuse import identifier
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import canonical
from fuser.ir.subprogram import subprogram
from fuser.superopt.rewrite.splits import LONG
from search.cover.folds import folds_last
from search.cover.joint import LEFT
from search.cover.joint import MOST
from search.cover.joint import WHOLE_KERNEL
from search.cover.joint import joins
from search.cover.joint import joint_kernels
from search.cover.shown import moves_only
from search.cover.shown import root
from search.cover.shown import views_to

LONGEST = 16
"""Most operators in front of one in one part, contractions not counted."""
LARGEST = 48
"""The same of all that are element by element, or along rows, where no further one of that kind follows."""
SIZES = frozenset({2, 4, 8, LONGEST, LARGEST})
"""Numbers of operators of parts that end in front of one that could be taken along as well."""
FEW = 16
"""Rows up to which every block of a product may normalize them again: they are kilobytes beside its weights."""
EPILOGUE = frozenset({"map"})
"""Kinds of operators that may stand behind a contraction in one part."""
BESIDE = EPILOGUE | {"reduce"}
"""With what the epilogue reads of sums: the statistics of a normalization, say."""
NORMS = ("layer_norm", "rms_norm")
ROWS = frozenset({"map", "reduce", "composite"})
"""Kinds of operators that make a part without contractions: normalizations, softmax, sums of rows."""


Stored = tuple[str, int]
"""A tensor of the model as it lies in memory: its name, and the elements of its rows (0: row after row)."""
Rows = tuple[tuple[str, int], ...]
"""Tensors of a part's program that lie in longer rows, and the elements of these."""


def stored_name(stored: Stored) -> str:
    """A name for a tensor in a layout."""
    name, pitch = stored
    return f"{name}@{pitch}" if pitch else name


@dataclass(frozen=True)
class Part:
    """``nodes`` are the results of its operators, without views. ``program`` is the part alone, with tensors renamed in order, so
    that equal parts are equal programs; ``names`` maps the model's tensors to the program's. ``rows`` are those at its border
    that lie in longer rows; ``weights``, parameters, may."""

    nodes: tuple[str, ...]
    program: TensorProgram
    names: tuple[tuple[str, str], ...]
    rows: Rows = ()
    weights: Rows = ()

    @cached_property
    def back(self) -> dict[str, str]:
        """The model's tensors by the program's."""
        return {v: k for k, v in self.names}

    @cached_property
    def key(self) -> str:
        """Equal for parts that are one computation, in the same layouts."""
        return f"{self.program.stable_hash()}{self.rows or ''}{self.weights or ''}"

    @cached_property
    def takes(self) -> tuple[Stored, ...]:
        """What must be in device memory, in what layout."""
        rows = dict(self.rows)
        return tuple((self.back[n], rows.get(n, 0)) for n in self.program.inputs)

    @cached_property
    def leaves(self) -> tuple[Stored, ...]:
        """What it leaves in device memory, in what layout."""
        rows = dict(self.rows)
        return tuple((self.back[n], rows.get(n, 0)) for n in self.program.outputs)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Tensors of the model that must be in device memory."""
        return tuple(self.back[n] for n in self.program.inputs)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Tensors of the model that it leaves in device memory."""
        return tuple(self.back[n] for n in self.program.outputs)


def title(program: TensorProgram) -> str:
    """What a part does, in a word or three: its operators in order."""
    ops = list(dict.fromkeys(n.op for n in program.nodes if not n.entry.relabels))
    return identifier("_".join(ops[:4])) if ops else "copy"


def parts(
    program: TensorProgram,
    further: Collection[frozenset[str]] = (),
    tails: Mapping[str, frozenset[str]] | None = None,
    steps: Collection[str] = (),
    views: bool = True,
    torch: bool = False,
) -> tuple[Part, ...]:
    """Every candidate, each once; with ``views``, those too that store a result as a view of it shows it. ``further`` are sets of
    results that are worth a part besides: chains of contractions, say. ``tails``: for a result the sums over its rows that the
    kernel which makes it may leave too. ``steps`` are results on the way to others that no kernel is cut between. With ``torch``,
    those too that torch computes as one."""
    return tuple(_Finder(program, tails or {}, steps, views, torch).run(further))


class _Finder:
    def __init__(
        self, program: TensorProgram, tails: Mapping[str, frozenset[str]], steps: Collection[str], views: bool, torch: bool
    ) -> None:
        self.program, self.tails, self.steps, self.views, self.torch = program, tails, steps, views, torch
        self.sums = frozenset().union(*tails.values())
        self.made = program.producers
        self.roots: dict[str, str] = {}
        self.order = {n.output: i for i, n in enumerate(program.nodes)}

    def run(self, further: Collection[frozenset[str]]) -> Iterator[Part]:
        cores = dict.fromkeys(self.cores())
        cores |= {core | self.tails[end]: None for core in tuple(cores) if (end := self.end(core)) in self.tails}
        cores |= {core | {norm}: None for core in tuple(cores) for norm in self.behind(core)}
        cores |= {core | front: None for core in tuple(cores) if (front := self.in_front(core))}
        cores |= {frozenset(n for n in core if not moves_only(self.made[n])): None for core in further}
        cores |= dict.fromkeys(self.moved())
        stored = {c: self.stored(c) for c in cores}
        tops = frozenset(v for ways in stored.values() for way in ways for v in way if v not in self.readers)
        found: dict[tuple[frozenset[str], tuple[str, ...], tuple[str, ...]], Part] = {}
        shown: dict[str, set[str]] = {}
        for top in tops:
            shown.setdefault(self.root(top), set()).add(top)
        for core, ways in stored.items():
            far = self.with_views(core, frozenset())
            near = self.with_views(core, tops.difference(*(shown.get(n, ()) for n in core)))
            for way in ways:
                for nodes in (far, near) if near != far else (far,):
                    part = self.part(core, way, nodes)
                    if part is not None:
                        found.setdefault((core, part.reads, part.writes), part)
        for view in self.copied():
            found.setdefault((frozenset(), (), (view,)), self.copy(view))
        yield from found.values()

    def end(self, core: frozenset[str]) -> str:
        """The last result of a product with what stands behind it, or of element-wise operators alone; empty of others."""
        kinds = {self.made[n].entry.kind for n in core}
        fits = kinds == EPILOGUE or any(self.made[n].products for n in core)
        return max(core, key=self.order.__getitem__, default="") if fits else ""

    def behind(self, core: frozenset[str]) -> Iterator[str]:
        """Normalizations of what a long product with its epilogue makes and others read too: where its sum is divided, the kernel
        that adds the parts has whole rows."""
        last = max(core, key=self.order.__getitem__, default="")
        products = [self.made[n] for n in core if self.made[n].products]
        if len(products) == 1 and products[0].op == "matmul" and self.program[products[0].inputs[0]].shape[-1] >= LONG:
            yield from (n for n in self.readers[last] - core if self.made[n].op in NORMS and self.readers[last] != {n})

    # -- what reads what ----------------------------------------------------------------------------------------------------

    @cached_property
    def readers(self) -> Mapping[str, frozenset[str]]:
        """For every result that is no view: the results that are computed from it or from views of it. A view that is a result of
        the program stands for itself."""
        found: dict[str, frozenset[str]] = {}
        for node in self.program.nodes:
            if not moves_only(node):
                found[node.output] = frozenset(self.ends(node.output))
        return found

    def ends(self, name: str) -> Iterator[str]:
        for user in self.program.consumers[name]:
            if not moves_only(user):
                yield user.output
                continue
            if user.output in self.program.outputs:
                yield user.output
            yield from self.ends(user.output)

    def only_view(self, name: str) -> str:
        """The end of a chain of views through which alone a result is read; empty where there is none."""
        last = ""
        while name not in self.program.outputs:
            users = self.program.consumers[name]
            if len(users) != 1 or not moves_only(users[0]) or users[0].op == "slice":
                break
            last = name = users[0].output
        return last

    # -- which operators together -------------------------------------------------------------------------------------------

    def cores(self) -> Iterator[frozenset[str]]:
        """For each operator: it alone; it with the operators in front that nothing else reads, element-wise ones first, then
        reductions and normalizations too; and with the contractions whose epilogue these are."""
        yield from self.neighbours() if self.torch else ()
        for node in self.program.nodes:
            if moves_only(node):
                continue
            yield frozenset((node.output,))
            if self.torch and joins(node):
                yield from self.joint(node.output)
            if node.entry.kind in ("opaque", "library") or node.products or node.output in self.steps:
                continue
            yield from self.cones(node.output, EPILOGUE)
            yield from self.cones(node.output, BESIDE)
            yield from self.cones(node.output, ROWS)

    def cones(self, end: str, kinds: Collection[str]) -> Iterator[frozenset[str]]:
        core = {end}
        apart = kinds is BESIDE or any(self.made[r].entry.kind in kinds for r in self.readers[end])
        while (many := sum(n not in self.steps for n in core)) <= (LONGEST if apart else LARGEST):
            front = {p for n in core for p in self.operands(n)} - core
            ready = [p for p in front if self.readers[p] <= core and p not in self.program.outputs]
            contractions = frozenset(p for p in ready if self.made[p].products)
            more = [p for p in ready if p not in contractions and (p not in self.sums or end in self.sums)]
            more = [p for p in more if self.made[p].entry.kind in kinds or (p in self.steps and kinds is not EPILOGUE)]
            whole = not any(p in self.steps for p in more)
            last = max(more, key=lambda p: (p in self.steps, self.order[p]), default="")
            ends = whole and not (self.follows(last, core) and many not in SIZES)
            if contractions and ends and many <= LONGEST and (kinds is EPILOGUE or (kinds is BESIDE and not more)):
                yield frozenset(core) | contractions
                for one in contractions if len(contractions) > 1 else ():
                    yield frozenset(core) | {one}
            if kinds is not BESIDE and ends and len(core) > 1:
                yield frozenset(core)
            if more:
                core.add(last)
                continue
            # what others read of a row as well is left beside the result
            kept = [
                p for p in front if kinds is ROWS and p not in ready and self.of_rows(p) and not self.apart(frozenset(core | {p}))
            ]
            if not kept:
                return
            core.add(max(kept, key=self.order.__getitem__))

    def of_rows(self, name: str) -> bool:
        """Whether a result is a number of each row, and no step on the way to others."""
        node = self.made[name]
        if node.entry.kind not in ("reduce", "composite") or name in self.sums or name in self.steps:
            return False
        return self.program[name].elements < self.program[node.inputs[0]].elements and folds_last(self.program, node)

    def follows(self, name: str, core: frozenset[str] | set[str]) -> bool:
        """Whether a result is better made by those that read it, all in the core: element by element, as many as there."""
        if not name or self.made[name].entry.kind != "map":
            return False
        readers = [self.made[r] for r in self.readers[name] & core]
        return all(name in r.inputs and self.program[r.output].shape == self.program[name].shape for r in readers)

    def moved(self) -> Iterator[frozenset[str]]:
        """For each operator whose elements follow from a few others: it with those in front that nothing else reads, one more at
        a time."""
        rules = {n.output for n in self.program.nodes if has_rule(n) and not moves_only(n)} - set(self.steps)
        for end in self.made:
            core = {end} if end in rules or self.made[end].op in RUNS else set[str]()
            while core and len(core) < LONGEST:
                front = {p for n in core for p in self.operands(n)} - core
                ready = [p for p in front & rules if self.readers[p] <= core and p not in self.program.outputs]
                if not ready:
                    break
                core.add(max(ready, key=self.order.__getitem__))
                if any(self.made[n].entry.element is not None or self.made[n].op in RUNS for n in core):
                    yield frozenset(core)

    def joint(self, end: str) -> Iterator[frozenset[str]]:
        """It with the operators in front that nothing else reads, some of which are left to torch: without those in front of each
        of these, and with all."""
        core, due = {end}, False
        while True:
            front = {p for n in core for p in self.operands(n)} - core
            ready = [p for p in front if self.readers[p] <= core and p not in self.program.outputs and joins(self.made[p])]
            if len(core) > 1 and any(map(self.left, core)) and (due or not ready or len(core) == MOST):
                yield frozenset(core)
            if not ready or len(core) == MOST:
                return
            core.add(last := max(ready, key=self.order.__getitem__))
            due = self.left(last)

    def neighbours(self) -> Iterator[frozenset[str]]:
        """All operators that torch's compiler may have one kernel for, whoever else reads them."""
        for nodes in joint_kernels(self.program):
            if 1 < len(nodes) <= WHOLE_KERNEL:
                yield frozenset(n.output for n in nodes)

    def left(self, name: str) -> bool:
        return self.made[name].entry.kind in LEFT or name in self.wholes

    @cached_property
    def wholes(self) -> frozenset[str]:
        return frozenset(self.program.beyond_float32)

    def in_front(self, core: frozenset[str]) -> frozenset[str]:
        """What a product takes along where nothing else reads it: normalizations of a few rows, and concatenations, which are
        places to load from."""
        front = {p for n in core if self.made[n].products for p in self.operands(n)} - core
        few = (p for p in front if math.prod(self.program[p].shape[:-1]) <= FEW and self.made[p].op in NORMS)
        joined = (p for p in front if self.made[p].op == "concat")
        return frozenset(p for p in (*few, *joined) if self.readers[p] <= core and p not in self.program.outputs)

    def operands(self, name: str) -> Iterator[str]:
        """Results that are no views and of which an operator reads views, or them."""
        return (i for i in map(self.root, self.made[name].inputs) if i in self.made)

    def apart(self, core: frozenset[str]) -> bool:
        """What the core computes is read outside and comes back into it: it cannot run as one step."""
        inside, tainted = set(core), set[str]()
        places = [self.order[n] for n in core]
        for node in self.program.nodes[min(places, default=0) : max(places, default=-1) + 1]:
            if node.output in core:
                if any(i in tainted for i in node.inputs):
                    return True
            elif any(i in tainted for i in node.inputs):
                tainted.add(node.output)
            elif any(i in inside for i in node.inputs):
                (inside if moves_only(node) else tainted).add(node.output)
        return False

    def stored(self, core: frozenset[str]) -> list[tuple[str, ...]]:
        """The ways to leave the results of a core in memory: as they are, and the last one as its only view shows it."""
        outside = [n for n in core if n in self.program.outputs or self.readers[n] - core]
        plain = tuple(sorted(outside, key=self.order.__getitem__))
        ways = [plain]
        if self.views and plain and (view := self.only_view(plain[-1])):
            ways.append((*plain[:-1], view))
        return ways

    # -- a part -------------------------------------------------------------------------------------------------------------

    def part(self, core: frozenset[str], writes: tuple[str, ...], views: set[str]) -> Part | None:
        """The part of a core with the ``views`` in front of it."""
        nodes = views | {v for w in writes for v in views_to(self.program, w)}
        try:
            if not writes or self.apart(core):
                return None
            alone = replace(subprogram(self.program, nodes, "part"), outputs=writes)
            program, names = canonical(alone, title(alone))
        except FuserError:
            return None
        return Part(tuple(sorted(core, key=self.order.__getitem__)), program, tuple(names.items()))

    def with_views(self, core: frozenset[str], stop: frozenset[str]) -> set[str]:
        """With the views in front of what the core computes, up to those in ``stop``, which lie in memory."""
        nodes = set(core)
        todo = [i for n in core for i in self.made[n].inputs]
        while todo:
            name = todo.pop()
            if name in nodes or name not in self.made or name in stop or not moves_only(self.made[name]):
                continue
            nodes.add(name)
            todo += self.made[name].inputs
        return nodes

    def root(self, name: str) -> str:
        if name not in self.roots:
            self.roots[name] = root(self.program, name)
        return self.roots[name]

    def copied(self) -> Iterator[str]:
        """Views that are results of the program."""
        return (n for n in self.program.outputs if n in self.made and moves_only(self.made[n]))

    def copy(self, view: str) -> Part:
        alone = replace(subprogram(self.program, views_to(self.program, view), "copy"), outputs=(view,))
        program, names = canonical(alone, title(alone))
        return Part((), program, tuple(names.items()))
