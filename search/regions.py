"""Regions of a model that are worth one fused kernel: memory-bound compute-intensive (MBCI) chains (MCFuser, section II-A).

A chain is two or more contractions joined by element-wise operators, softmax or normalization; attention is two of them. It is a
candidate unless :mod:`cost_model.mbci` finds it compute-bound, and it is taken only where the fused estimate beats the unfused
one. Every contraction that is left alone is left for a stated reason.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from cost_model.mbci import compute_bound
from cost_model.mbci import not_worth
from fuser.device import Device
from fuser.errors import FuserError
from fuser.errors import UnsupportedError
from fuser.ir.ops import OPS
from fuser.ir.program import FLOAT_DTYPES
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import canonical
from fuser.ir.subprogram import convex
from fuser.ir.subprogram import subprogram

ABSORBED = {"scale", "logical_not"}
"""Element-wise operators that a chain takes in front of its first contraction, with those that go by places: they cost a kernel
alone and nothing inside."""


def _activates(node: Node) -> bool:
    """A function of one operand that no arithmetic of fractions is."""
    entry = node.entry
    return entry.kind == "map" and entry.arity == 1 and not entry.fraction and not entry.indexed


@dataclass(frozen=True)
class Region:
    """A chain of a model. ``nodes`` are the results of its operators; ``program`` is the region alone (tensors renamed in order,
    so that equal regions are equal programs); ``names`` maps the model's tensors to the program's."""

    nodes: tuple[str, ...]
    program: TensorProgram
    names: tuple[tuple[str, str], ...]
    contractions: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        back = {v: k for k, v in self.names}
        return tuple(back[n] for n in self.program.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        back = {v: k for k, v in self.names}
        return tuple(back[n] for n in self.program.outputs)

    @property
    def kind(self) -> str:
        """What a person would call it."""
        products = sum(n.products for n in self.program.nodes)
        if products < 2:
            return "GEMM" if products else "element-wise"
        if any(n.op in ("softmax", "attention") for n in self.program.nodes):
            return "attention"
        return "MLP" if any(map(_activates, self.program.nodes)) else "GEMM chain"


@dataclass(frozen=True)
class Left:
    """A contraction that stays with the rest of the model, and why."""

    node: str
    reason: str


LONGEST = 3
"""Most contractions of one candidate."""

LONGEST_PROLOGUE = 32
"""Most operators that a chain takes in front of its first contraction: rotary embeddings of queries and keys have 14."""


def find_chains(
    program: TensorProgram, device: Device, borders: Collection[str] | None = None
) -> tuple[list[Region], dict[str, str]]:
    """Every candidate region in program order (they overlap: each contiguous part of a chain is one), and for every contraction
    the reason why it starts no longer candidate. ``borders`` are the tensors that may be inputs or outputs of a region (all, if
    not given)."""
    regions: list[Region] = []
    reasons: dict[str, str] = {}
    for node in program.nodes:
        if node.products:
            found, reasons[node.output] = _Chain(program, device, node, borders).grow()
            regions += found
    return regions, reasons


class _Chain:
    def __init__(self, program: TensorProgram, device: Device, first: Node, borders: Collection[str] | None) -> None:
        self.program, self.device, self.first, self.borders = program, device, first, borders

    def grow(self) -> tuple[list[Region], str]:
        """The candidates that start with this contraction, shortest first, and why the longest is not longer."""
        if why := self.no_kernel(self.first):
            return [], why
        chain, contractions = [self.first.output], [self.first.output]
        regions: list[Region] = []
        if self.first.products > 1:
            made = not_worth(self.program, [self.first], chain, self.device) or self.regions(chain, contractions)
            if isinstance(made, str):
                return [], made
            regions += made
        while len(contractions) < LONGEST:
            link = self.link(chain[-1])
            if isinstance(link, str):
                bound = "" if regions else compute_bound(self.program, self.first, self.device)
                return regions, f"{bound}, and {link}" if bound else link
            nodes, last = link
            pair = [self.program.producers[contractions[-1]], last]
            if why := self.no_kernel(last):
                return regions, f"of the next contraction, {last.output}, {why}"
            if why := not_worth(self.program, pair, [contractions[-1], *nodes], self.device):
                return regions, why
            chain += nodes
            contractions.append(last.output)
            made = self.regions(chain, contractions)
            if isinstance(made, str):
                return regions, made
            regions += made
        return regions, f"chains of more than {LONGEST} contractions are not tried"

    def no_kernel(self, node: Node) -> str:
        """Why no kernel can be made for a contraction, if so."""
        if any(self.program[i].dtype not in FLOAT_DTYPES[:3] for i in node.inputs):
            return f"dtype {self.program[node.inputs[0]].dtype} has no tensor-core kernel here"
        return ""

    def link(self, name: str) -> tuple[list[str], Node] | str:
        """Operators from one contraction up to the next: a path without branches, apart from what a composite needs."""
        nodes: list[str] = []
        while True:
            if name in self.program.outputs:
                return "no contraction follows on it"
            users = self.program.consumers[name]
            if len(users) != 1:
                return f"its result is read by {len(users)} operators"
            (user,) = users
            if user.products:
                return ([*nodes, user.output], user) if user.inputs.count(name) == 1 else f"{user.output} reads {name} twice"
            kind = OPS[user.op].kind
            if kind not in ("map", "view", "reduce", "composite"):
                what = user.attr.get("callee", user.op)
                return f"{what} stands between it and the next contraction"
            nodes.append(user.output)
            name = user.output

    def regions(self, chain: list[str], contractions: list[str]) -> list[Region] | str:
        """The region of a chain and, where data is sliced or concatenated in front of it, the one that does this too."""
        made = self.region(chain, contractions)
        if isinstance(made, str):
            return made
        more = self.with_prologue(set(made.nodes))
        longer = self.make(more, contractions) if more > set(made.nodes) else ""
        return [made, longer] if isinstance(longer, Region) else [made]

    def region(self, chain: list[str], contractions: list[str]) -> Region | str:
        """The chain with the views around it and the element-wise epilogue behind it, as far as that can be one block."""
        grown = [self.with_epilogue(self.with_views(set(chain))), self.with_views(set(chain)), set(chain)]
        why = ""
        for nodes in grown:
            made = self.make(nodes, contractions)
            if isinstance(made, Region):
                return made
            why = why or made
        return why

    def with_views(self, nodes: set[str]) -> set[str]:
        """Views and scalings that only feed the chain become accesses and arithmetic of its kernel."""
        todo = [i for n in nodes for i in self.program.producers[n].inputs]
        while todo:
            name = todo.pop()
            producer = self.program.producers.get(name)
            if producer is None or name in nodes or name in self.program.outputs:
                continue
            cheap = OPS[producer.op].kind == "view" or producer.op in ABSORBED or producer.indexed
            if cheap and all(u.output in nodes for u in self.program.consumers[name]):
                nodes.add(name)
                todo += producer.inputs
        return nodes

    def with_prologue(self, nodes: set[str]) -> set[str]:
        """With the slices and concatenations in front of the chain, and the element-wise operators around them (rotary
        embedding): for its kernel the former are only other places to load from."""
        found: set[str] = set()
        for node in reversed(self.program.nodes):
            users = self.program.consumers[node.output]
            inside = users and all(u.output in nodes or u.output in found for u in users)
            if inside and node.output not in nodes | set(self.program.outputs) and OPS[node.op].kind in ("map", "view", "data"):
                found.add(node.output)
        copied: set[str] = set()
        for node in self.program.nodes:
            if node.output in found and (OPS[node.op].kind == "data" or copied.intersection(node.inputs)):
                copied.add(node.output)
        before: set[str] = set()
        for node in reversed(self.program.nodes):
            # what is in front of all slices is the epilogue of the kernel before
            users = self.program.consumers[node.output]
            if node.output in found - copied and all(u.output in before or OPS[u.op].kind in ("data", "view") for u in users):
                before.add(node.output)
        found -= before
        part = [n for n in self.program.nodes if n.output in found]
        copies = any(OPS[n.op].kind == "data" for n in part)
        work = sum(OPS[n.op].kind != "view" for n in part)
        return nodes | found if copies and work <= LONGEST_PROLOGUE else nodes

    def with_epilogue(self, nodes: set[str]) -> set[str]:
        """Element-wise operators and views behind the last contraction, while nothing else reads what they read from the
        chain.
        """
        name = next(n.output for n in reversed(self.program.nodes) if n.output in nodes)
        found: list[str] = []
        while name not in self.program.outputs and len(self.program.consumers[name]) == 1:
            (user,) = self.program.consumers[name]
            kind = user.entry.kind
            same = all(self.program[i].elements <= self.program[user.output].elements for i in user.inputs)
            if kind not in ("map", "view") or not same or len(found) == 6:
                break
            found.append(user.output)
            name = user.output
        return nodes | set(found)

    def make(self, nodes: set[str], contractions: list[str]) -> Region | str:
        if not convex(self.program, nodes):
            return "another operator reads the chain and feeds it again"
        part = subprogram(self.program, nodes, "region")
        if len(part.outputs) != 1:
            return f"{len(part.outputs)} of its results are read elsewhere"
        if self.borders is not None:
            for name in (*part.inputs, *part.outputs):
                if name not in self.borders:
                    return f"{name} is a result of the clean-up and has no counterpart in the model"
        program, names = canonical(part)
        if any(t.dtype not in (*FLOAT_DTYPES[:3], "bool") for t in program.tensors):
            return "it has tensors that are no floating-point numbers or masks"
        if why := _no_block(program):
            return why
        return Region(
            tuple(n.output for n in self.program.nodes if n.output in nodes), program, tuple(names.items()), tuple(contractions)
        )


@lru_cache(1 << 10)
def _no_block(program: TensorProgram) -> str:
    """Why no block computes all of a program, if so."""
    from fuser.superopt.structures import one_kernel

    try:
        one_kernel(program)
    except UnsupportedError as error:
        return error.message
    return ""


@dataclass(frozen=True)
class Choice:
    """A candidate with its estimates in microseconds."""

    region: Region
    fused_us: float
    unfused_us: float

    @property
    def saved_us(self) -> float:
        return self.unfused_us - self.fused_us

    @property
    def reason(self) -> str:
        if self.saved_us > 0:
            return f"fused: {self.fused_us:.1f} µs against {self.unfused_us:.1f} µs apart"
        if self.fused_us == float("inf"):
            return f"no kernel of the {self.region.kind} fits the device"
        return f"fusing the {self.region.kind} does not pay: {self.fused_us:.1f} µs against {self.unfused_us:.1f} µs apart"


def choose(
    program: TensorProgram,
    device: Device,
    fused: Callable[[TensorProgram], float],
    unfused: Callable[[Region], float],
    borders: Collection[str] | None = None,
) -> tuple[list[Choice], list[Left]]:
    """Take the candidates that save most, none overlapping another; everything else is left with its reason.

    ``fused`` estimates a region's program in microseconds (equal ones are asked for once), ``unfused`` what the model saves by
    not running the region's operators apart.
    """
    candidates, reasons = find_chains(program, device, borders)
    known: dict[str, float] = {}
    choices: list[Choice] = []
    for region in candidates:
        key = region.program.stable_hash()
        if key not in known:
            try:
                known[key] = fused(region.program)
            except FuserError:
                known[key] = float("inf")
        choices.append(Choice(region, known[key], unfused(region)))
    taken: list[Choice] = []
    covered: set[str] = set()
    for choice in sorted(choices, key=lambda c: -c.saved_us):
        if choice.saved_us > 0 and not covered & set(choice.region.nodes):
            taken.append(choice)
            covered |= set(choice.region.nodes)
    order = {n.output: i for i, n in enumerate(program.nodes)}
    taken.sort(key=lambda c: order[c.region.nodes[0]])
    left: list[Left] = []
    for node in program.nodes:
        if node.products and node.output not in covered:
            tried = [c for c in choices if node.output in c.region.contractions and c.saved_us <= 0]
            better = any(node.output in c.region.contractions and c.saved_us > 0 for c in choices)
            best = max(tried, key=lambda c: c.saved_us, default=None)
            why = best.reason if best else "its neighbours are in better regions" if better else reasons[node.output]
            left.append(Left(node.output, why))
    return taken, left
