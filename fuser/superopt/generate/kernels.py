"""From an operator graph to µGraphs: which kernel does what, and which reductions are split over the grid.

A plan assigns every operator to a stage, never before its operands; each stage is one kernel. Values that cross stages go through
device memory. In a stage that splits an axis, the folds over that axis are left as partial results with a new grid axis, and
the next stage adds them. Where statements stand in the loops of a kernel is not chosen here: it follows from a schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from fuser.disjoint import DisjointSets
from fuser.ir.axes import Dims
from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Stmt
from fuser.ir.program import accumulator
from fuser.superopt.generate.extract import OpGraph
from fuser.superopt.generate.values import ValueSpace


@dataclass(frozen=True)
class Plan:
    """``stage[value]`` for every computed value, and the axis that each stage splits over the grid (or none)."""

    stage: tuple[tuple[str, int], ...]
    splits: tuple[str, ...]

    @property
    def kernels(self) -> int:
        return len(self.splits)


def as_statements(space: ValueSpace, graph: OpGraph) -> BlockGraph:
    """The operator graph as one block: values of the program keep their names, new ones are numbered in order."""
    block = space.block
    names = {n: v.name for v in space.values for n in [v.number] if v.name}
    taken = set(names.values())
    fresh = (f"t{i}" for i in itertools.count() if f"t{i}" not in taken)
    stmts: list[Stmt] = []
    dtype: dict[int, str] = {v.number: v.dtype for v in space.values}
    used = {a for _, d in graph.steps for a in d.args}
    stmts += [v.load for v in space.values if v.load and v.number in used]
    for number, d in graph.steps:
        v = space.values[number]
        if number not in names:
            names[number] = next(fresh)
            dtype[number] = dtype[d.args[0]]
        args = d.args
        if d.contracts or d.entry.commutative:
            args = tuple(sorted(args, key=lambda a: _rows_first(space, a, v.axes, d.reduce)))
        stmts.append(
            Stmt("compute", names[number], v.axes, dtype[number], d.op, tuple(names[a] for a in args), d.reduce, d.attrs)
        )
    for s in block.stores:
        stmts.append(replace(s, value=names[dict(graph.outputs)[s.at.tensor]]))
    return replace(block, stmts=tuple(stmts)).validate()


def _rows_first(space: ValueSpace, number: int, axes: Sequence[str], reduce: Sequence[str]) -> tuple[int, int]:
    own = [space.order[a] for a in space.values[number].axes if a in axes and a not in reduce]
    return min(own, default=99), number


def groups(block: BlockGraph) -> list[tuple[str, ...]]:
    """Operators that stay together: an element-wise function of one operand with what makes the operand or, where that is an
    input, with what reads it; and an exponential with everything that reads it, so that its running maximum stays in one
    kernel."""
    together = DisjointSets(s.value for s in block.computes)
    users = {s.value: [u for u in block.computes if s.value in u.args] for s in block.stmts if s.kind != "store"}
    for s in block.computes:
        if s.entry.kind != "map":
            continue
        if s.exponential:
            for u in users[s.value]:
                together.join(s.value, u.value)
        elif len(set(s.args)) == 1:
            if s.args[0] in together:
                if len(users[s.args[0]]) == 1:
                    together.join(s.args[0], s.value)
            elif len(users[s.value]) == 1:
                together.join(s.value, users[s.value][0].value)
    return together.sets()


def plans(block: BlockGraph, kernels: int) -> Iterator[Plan]:
    """Every plan of exactly ``kernels`` kernels. A split stage leaves nothing but partial results."""
    parts = groups(block)
    of = {v: i for i, g in enumerate(parts) for v in g}
    before: list[set[int]] = [set() for _ in parts]
    for s in block.computes:
        before[of[s.value]] |= {of[a] for a in s.args if a in of} - {of[s.value]}
    if _cyclic(before):
        parts = [(s.value,) for s in block.computes]
        of = {v: i for i, (v,) in enumerate(parts)}
        before = [{of[a] for a in block.by_value[v].args if a in of} for (v,) in parts]
    for used in (kernels, kernels - 1):  # the last kernel may do no more than finish the split sums of the one before
        for stages in _stagings(before, used):
            if used == 0 or len(set(stages)) < used:
                continue
            stage = {v: stages[i] for v, i in of.items()}
            for splits in itertools.product(
                *(["", *_reduced(block, stage, k)] if k + 1 < kernels else [""] for k in range(kernels))
            ):
                if used < kernels and not splits[used - 1]:
                    continue
                moved = _after_splits(block, stage, splits)
                if moved is not None and all(_worth(block, moved, k, splits) for k in range(kernels)):
                    yield Plan(tuple((s.value, moved[s.value]) for s in block.computes), splits)


def crossing(block: BlockGraph, plan: Plan) -> int:
    """Tensors that one kernel leaves for another; the partial results of one split count once, as they go together."""
    stage = dict(plan.stage)
    from_stage = [
        stage[s.value]
        for s in block.computes
        if any(u.kind == "compute" and stage[u.value] > stage[s.value] for u in block.users(s.value))
    ]
    return sum(1 if axis else from_stage.count(k) for k, axis in enumerate(plan.splits))


def largest(block: BlockGraph, plan: Plan, internal: frozenset[str]) -> int:
    """Operators of the plan's largest kernel; what lies inside of a composite does not count."""
    count = [0] * plan.kernels
    stage = dict(plan.stage)
    for s in block.computes:
        k = stage[s.value]
        count[k] += s.value not in internal
        if plan.splits[k] in s.reduce:
            count[k + 1] += 1
    return max(count)


def _cyclic(before: Sequence[set[int]]) -> bool:
    done: set[int] = set()
    while len(done) < len(before):
        ready = {i for i, b in enumerate(before) if b <= done} - done
        if not ready:
            return True
        done |= ready
    return False


def _stagings(before: Sequence[set[int]], kernels: int) -> Iterator[tuple[int, ...]]:
    """Monotone assignments of groups to stages."""
    order: list[int] = []
    while len(order) < len(before):
        order += [i for i, b in enumerate(before) if i not in order and b <= set(order)]

    def visit(at: int, stage: dict[int, int]) -> Iterator[tuple[int, ...]]:
        if at == len(order):
            yield tuple(stage[i] for i in range(len(order)))
            return
        g = order[at]
        for k in range(max((stage[b] for b in before[g]), default=0), kernels):
            yield from visit(at + 1, {**stage, g: k})

    yield from visit(0, {})


def _worth(block: BlockGraph, stage: Mapping[str, int], k: int, splits: Sequence[str]) -> bool:
    """A kernel folds something or finishes partial results: purely element-wise work belongs to a neighbour."""
    own = [s for s in block.computes if stage[s.value] == k]
    return any(s.folds for s in own) or (bool(own) and len(splits) == 1) or (k > 0 and bool(splits[k - 1]))


def _reduced(block: BlockGraph, stage: Mapping[str, int], k: int) -> list[str]:
    return list(dict.fromkeys(a for s in block.computes if stage[s.value] == k and s.adds for a in s.reduce))


def _after_splits(block: BlockGraph, stage: Mapping[str, int], splits: Sequence[str]) -> dict[str, int] | None:
    """The stages where element-wise operators that stood behind a split fold follow its completion into the next kernel; None
    where a split stage would hand on anything but partial results of its split axis."""
    moved = dict(stage)
    for k, axis in enumerate(splits):
        if not axis:
            continue
        folds = {s.value for s in block.computes if moved[s.value] == k and axis in s.reduce}
        behind: set[str] = set()
        for s in block.computes:
            if moved[s.value] == k and any(a in folds or a in behind for a in s.args):
                if s.folds or len(set(s.args)) > 1:
                    return None
                behind.add(s.value)
        for v in behind:
            moved[v] = k + 1
        stored = {s.value for s in block.stores}
        for s in block.computes:
            if moved[s.value] != k:
                continue
            crosses = s.value in stored or any(moved[u.value] > k for u in block.users(s.value) if u.kind == "compute")
            if crosses != (s.value in folds) or (s.value in folds and not s.adds):
                return None
    return moved


def build(graph: KernelGraph, block: BlockGraph, plan: Plan, known: Mapping[str, Dims]) -> KernelGraph:
    """The µGraph of a plan. ``known`` are values of the program with their dimensions: they are stored as the program has
    them. Partial results and other values stay in fp32 in device memory."""
    return _Builder(graph, block, plan, known).run()


class _Builder:
    def __init__(self, graph: KernelGraph, block: BlockGraph, plan: Plan, known: Mapping[str, Dims]) -> None:
        self.graph, self.block, self.plan, self.known = graph, block, plan, known
        self.stage = dict(plan.stage)
        self.axes = list(block.axes)
        self.computes: list[tuple[int, Stmt]] = []
        self.tensors = {*graph.inputs, *graph.outputs}
        self.split()

    def split(self) -> None:
        """Replace the folds of split stages by partial folds, and finish them in the next stage."""
        parts: dict[int, str] = {}
        for k, axis in enumerate(self.plan.splits):
            if axis:
                parts[k] = _fresh(f"{axis}_part", {a.name for a in self.axes})
                self.axes.insert(0, Axis(parts[k], FREE))
        self.parts = parts
        later: list[tuple[int, Stmt]] = []
        for s in self.block.computes:
            k = self.stage[s.value]
            if k in parts and self.plan.splits[k] in s.reduce:
                name = _fresh(f"{s.value}_part", {x.value for x in self.block.stmts})
                self.computes.append((k, replace(s, value=name, axes=(parts[k], *s.axes), dtype=accumulator(s.dtype))))
                later.append((k + 1, Stmt("compute", s.value, s.axes, s.dtype, "sum", (name,), (parts[k],))))
            else:
                self.computes.append((k, s))
        self.computes = [*self.computes, *later]

    def run(self) -> KernelGraph:
        count = self.plan.kernels
        made = {s.value: (k, s) for k, s in self.computes}
        final = {s.value: s for s in self.block.stores}
        crossing = {a for k, s in self.computes for a in s.args if a in made and made[a][0] != k}
        place = {v: self.device(v, made[v][1], final) for v in crossing}
        kernels: list[BlockGraph] = []
        for k in range(count):
            own = [s for j, s in self.computes if j == k]
            mine = {s.value for s in own}
            reads = dict.fromkeys(a for s in own for a in s.args if a not in mine)
            stmts: list[Stmt] = []
            for a in reads:
                if a in made:
                    access, dtype = place[a]
                    stmts.append(Stmt("load", a, made[a][1].axes, dtype, access=access))
                else:
                    stmts.append(self.block.by_value[a])
            stmts += _sorted(own, mine)
            for s in own:
                if s.value in final:
                    stmts += [x for x in self.block.stores if x.value == s.value]
                if s.value in crossing and s.value not in final:
                    access, dtype = place[s.value]
                    stmts.append(Stmt("store", s.value, s.axes, dtype, access=access))
            used = {a for s in stmts for a in (*s.related, *s.constant_axes)}
            axes = tuple(a for a in self.axes if a.name in used)
            splits = ((self.plan.splits[k], self.parts[k]),) if k in self.parts else ()
            name = self.block.name if count == 1 else f"{self.block.name}_{k + 1}"
            kernels.append(BlockGraph(name, axes, tuple(stmts), splits))
        return replace(self.graph, kernels=tuple(kernels)).validate()

    def device(self, value: str, stmt: Stmt, final: Mapping[str, Stmt]) -> tuple[Access, str]:
        if value in final:
            store = final[value]
            return store.at, store.dtype
        tensor = _fresh(value, self.tensors)
        self.tensors.add(tensor)
        if value in self.known:
            return Access(tensor, self.known[value]), stmt.dtype
        return Access(tensor, tuple((a,) for a in self.rows_first(stmt))), accumulator(stmt.dtype)

    def rows_first(self, stmt: Stmt) -> tuple[str, ...]:
        """Axes of a product in the order that a library's matmul of its operands would have: rows of the operand that is
        summed over its last dimension, then columns of the other."""
        makers = [self.block.by_value.get(a) for a in stmt.args]
        if stmt.contracts and all(m and m.access for m in makers):
            accesses = [m.access for m in makers if m and m.access]
            left = [a for a in accesses if a.axes and a.axes[-1] in stmt.reduce]
            if len(left) == 1:
                order = dict.fromkeys((*left[0].axes, *(a for x in accesses if x is not left[0] for a in x.axes)))
                return (*(a for a in stmt.axes if a not in order), *(a for a in order if a in stmt.axes))
        return stmt.axes


def _sorted(own: Sequence[Stmt], mine: set[str]) -> list[Stmt]:
    """Statements of one kernel in dependency order (the sums of partial results come first)."""
    out: list[Stmt] = []
    left = list(own)
    ready: set[str] = set()
    while left:
        now = next(s for s in left if all(a in ready or a not in mine for a in s.args))
        left.remove(now)
        ready.add(now.value)
        out.append(now)
    return out


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
