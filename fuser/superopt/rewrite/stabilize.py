"""Stable exponentials: where a shift of the exponents cancels, keep a running maximum and rescale, within a kernel and across
kernels.

The algebra uses bare ``exp``. Give every exponential an independent factor λ for each index of the axes that its sums keep
(and for each part of a split sum), and infer the degree of every value in λ: products add, quotients subtract, sums and
differences need equality, everything else needs degree 0. If every output has degree 0, any shift per index is allowed;
lowering then subtracts the running maximum and rescales each accumulator of degree d by exp(d · Δ maximum), which is online
softmax. A denominator must hold the maximal term, or it may underflow.

Where the sums are split over the grid, each part has its own maximum: the kernel stores it, and a later kernel multiplies the
partial results by its exponential before it adds them. That exponential is stabilized in turn, so that only differences of
maxima are ever exponentiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache

from fuser.interpret.algebra import shared_top
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.mugraph import ordered
from fuser.ir.program import accumulator
from fuser.superopt.rewrite.widen import widen_scores

Key = tuple[int, str]
"""A value of a kernel graph: the index of its kernel and its name there."""


@dataclass(frozen=True)
class Licence:
    """What was found for one exponential: ``axes`` over which the maximum is taken and the degree of every value that has one, by
    kernel. ``refused`` says why a shift would change the result or would not make it safe."""

    exponential: str
    axes: tuple[str, ...]
    degrees: tuple[tuple[str, int], ...]
    refused: str = ""
    kernel: int = 0

    @property
    def granted(self) -> bool:
        return not self.refused


def licences(graph: KernelGraph) -> tuple[Licence, ...]:
    """One :class:`Licence` for each exponential that is not stabilized."""
    return tuple(
        _Degrees(graph, k, s).licence() for k, b in _blocks(graph) for s in b.computes if s.exponential and not _shifted(b, s)
    )


@lru_cache(1 << 8)  # several cuts and splits of a program lead to one graph
def stabilize_graph(graph: KernelGraph) -> KernelGraph:
    """The graph with a running maximum for every exponential that is licensed; the others stay as they are. Partial results of
    split sums carry their maxima to the kernel that adds them, and scores that a kernel leaves to another one are fp32."""
    for k, block in _blocks(graph):
        for value in [s.value for s in block.computes if s.exponential]:
            graph = _stabilized(graph, k, value) or _together(graph, k, value) or graph
    return widen_scores(graph).validate()


def unstable(graph: KernelGraph) -> tuple[str, ...]:
    """Exponentials without a maximum, and why."""
    return tuple(text for _, text in bare_exponentials(graph))


def bare_exponentials(graph: KernelGraph) -> tuple[tuple[str, str], ...]:
    """Exponentials without a maximum by their names in their kernels, and what there is to say of each."""
    blocks = dict(_blocks(graph))
    found = (x for x in licences(graph) if not below_maximum(blocks[x.kernel], x.exponential))
    return tuple((x.exponential, f"{blocks[x.kernel].name}.{x.exponential}: {x.refused or 'not stabilized'}") for x in found)


def _shifted(block: BlockGraph, s: Stmt) -> bool:
    """The operand is already a difference to a running maximum, or to one over several exponentials."""
    inner = block.by_value[s.args[0]]
    return inner.kind == "compute" and inner.subtracts and (bool(inner.running) or shared_top(block, *inner.args))


def below_maximum(block: BlockGraph, exponential: str) -> bool:
    """The program itself subtracts the maximum of the operand, or of what the operand is a part of."""
    inner = block.by_value[block.by_value[exponential].args[0]]
    return inner.subtracts and any(_part_of(block, inner.args[0], x) for x in _maximized(block, inner.args[1]))


def _maximized(block: BlockGraph, top: str) -> list[str]:
    """What a value is the largest of."""
    s = block.by_value[top]
    if s.op == "maximum":
        return [x for a in s.args for x in (a, *_maximized(block, a))]
    return list(s.args) if s.maximizes else []


def _part_of(block: BlockGraph, value: str, whole: str) -> bool:
    """A value is another one, or is computed as that is from parts of the tensors of which that has more."""
    part, all_of_it = block.by_value[value], block.by_value[whole]
    if value == whole:
        return True
    if part.access and all_of_it.access:
        return part.access.within(all_of_it.access, block.extents)
    same = part.kind == all_of_it.kind == "compute" and part.op == all_of_it.op and len(part.args) == len(all_of_it.args)
    return same and all(_part_of(block, a, b) for a, b in zip(part.args, all_of_it.args, strict=True))


def _blocks(graph: KernelGraph) -> list[tuple[int, BlockGraph]]:
    return [(k, b) for k, b in enumerate(graph.kernels) if isinstance(b, BlockGraph)]


class _Degrees:
    """Degrees of all values of a graph in the factor of one exponential."""

    def __init__(
        self,
        graph: KernelGraph,
        kernel: int,
        exp: Stmt,
        positive: frozenset[Key] = frozenset(),
        beside: frozenset[Key] = frozenset(),
    ) -> None:
        self.graph, self.kernel, self.exp, self.positive = graph, kernel, exp, positive
        block = graph.kernels[kernel]
        assert isinstance(block, BlockGraph)
        self.block = block
        self.group = beside | {(kernel, exp.value)}
        """The exponentials that have the factor: one, or several that are terms of the same sums."""
        self.degree: dict[Key, int] = dict.fromkeys(self.group, 1)
        self.holds: dict[Key, frozenset[Key]] = {e: frozenset({e}) for e in self.group}
        """Values that are at least the largest term of exponentials, positive sums of them, with those that they sum."""
        self.stored: dict[str, Key] = {}

    def licence(self) -> Licence:
        refused = self.infer()
        over = () if refused else self.over()
        mine = tuple((v, d) for (k, v), d in self.degree.items() if k == self.kernel)
        if not refused and not over:
            refused = "nothing is summed over its axes"
        refused = refused or self.consistent(over)
        return Licence(self.exp.value, () if refused else over, mine, refused, self.kernel)

    def infer(self) -> str:
        """Fill ``degree``; returns why the factor does not cancel, or nothing."""
        for k, kernel in enumerate(self.graph.kernels):
            if isinstance(kernel, LibraryKernel):
                if any(self.degree.get(self.stored.get(t, (-1, "")), 0) for t in kernel.inputs):
                    return f"the library kernel {kernel.name} reads a value that carries the factor"
                continue
            for s in kernel.stmts:
                key = (k, s.value)
                if s.kind == "load" and s.access:
                    source = self.stored.get(s.access.source)
                    if source and self.degree.get(source):
                        self.degree[key] = self.degree[source]
                        if source in self.holds:
                            self.holds[key] = self.holds[source]
                elif s.kind == "store" and s.access:
                    self.stored[s.access.tensor] = key
                    if s.access.tensor in self.graph.outputs and self.degree.get(key):
                        return f"output {s.value} has degree {self.degree[key]}: no division takes the factor out"
                elif s.kind == "compute" and key not in self.group and (why := self.visit(k, s)):
                    return why
        return ""

    def visit(self, k: int, s: Stmt) -> str:
        keys = [(k, a) for a in s.args]
        ds = [self.degree.get(a, 0) for a in keys]
        if not any(ds):
            return ""
        rule = s.entry.degree
        if rule == "add":
            d = sum(ds)
        elif rule == "sub":
            d = ds[0] - ds[1]
        elif rule == "same":
            d = ds[0]
        elif rule == "equal" and len(set(ds)) == 1:
            d = ds[0]
        else:
            return f"{s.value} = {s.op}({', '.join(s.args)}) has operands of degrees {ds}"
        if d and s.maximizes:
            return f"{s.value} takes a maximum of values of degree {d}"
        if s.divides and ds[1] and self.holds.get(keys[1]) != self.group:
            return f"the denominator {s.args[1]} of {s.value} need not hold the maximal term"
        for a, b in (keys, keys[::-1]) if s.multiplies else ():
            if a in self.holds and b in self.positive:
                # a partial sum that holds its own maximal term, times the exponential of its maximum
                self.holds[k, s.value] = self.holds[a]
        added = s.entry.fraction == "sum" and not s.subtracts and all(a in self.holds for a in keys)
        if (s.sums or s.casts or added or _scales_up(s)) and keys[0] in self.holds:
            self.holds[k, s.value] = frozenset().union(*(self.holds[a] for a in keys))
        if d:
            self.degree[k, s.value] = d
        return ""

    def over(self, exponent: str = "") -> tuple[str, ...]:
        """Axes of the exponent (or another one) over which its kernel sums values that carry the factor."""
        summed = {a for s in self.block.computes if s.folds and self.carries(self.kernel, s) for a in s.reduce}
        return tuple(a for a in self.block.by_value[exponent or self.exp.args[0]].axes if a in summed)

    def carries(self, k: int, s: Stmt) -> bool:
        return any(self.degree.get((k, a), 0) for a in s.args)

    def consistent(self, over: tuple[str, ...]) -> str:
        """A sum keeps the factor only if the factor does not vary along it, and one maximum serves it only if it sums over all of
        the maximum's axes at once."""
        kept = set(self.block.by_value[self.exp.args[0]].axes) - set(over)
        for k, block in _blocks(self.graph):
            for s in block.computes:
                if not s.folds or not self.carries(k, s):
                    continue
                if varies := set(s.reduce) & kept:
                    return f"{s.value} sums over {sorted(varies)}, along which the maximum varies"
                inside = {a for v in s.args if self.degree.get((k, v)) for a in block.by_value[v].axes} & set(over)
                if k == self.kernel and inside and inside != set(s.reduce) & set(over):
                    return f"{s.value} sums over {sorted(set(s.reduce) & set(over))} only, the maximum is over {sorted(over)}"
            for s in block.stores:
                if k == self.kernel and self.degree.get((k, s.value)) and set(s.axes) & set(over):
                    return f"{s.value} leaves the kernel before it is summed over {sorted(set(s.axes) & set(over))}"
        return ""


def _scales_up(s: Stmt) -> bool:
    return s.op == "scale" and s.attr["scalar"].coeff > 0


def _together(graph: KernelGraph, kernel: int, value: str) -> KernelGraph | None:
    """The graph with an exponential made safe together with all others that are still bare: terms of the same sums, where keys
    come from several tensors."""
    bare = {(k, s.value) for k, b in _blocks(graph) for s in b.computes if s.exponential and not _shifted(b, s)}
    return _stabilized(graph, kernel, value, beside=frozenset(bare - {(kernel, value)})) if len(bare) > 1 else None


def _stabilized(
    graph: KernelGraph, kernel: int, value: str, positive: frozenset[Key] = frozenset(), beside: frozenset[Key] = frozenset()
) -> KernelGraph | None:
    """The graph with one exponential made safe, or None where that is not licensed (there or where its parts are added).

    ``positive`` are values known to be at least 1: partial sums that hold their own maximal term. ``beside`` are exponentials
    that are made safe with it, by one maximum.
    """
    block = graph.kernels[kernel]
    assert isinstance(block, BlockGraph)
    exp = block.by_value[value]
    if _shifted(block, exp):
        return None
    degrees = _Degrees(graph, kernel, exp, positive, beside)
    licence = degrees.licence()
    if not licence.granted:
        return None
    parts = tuple(g for a, g in block.splits if a in licence.axes)
    if beside and not parts:
        return _under_one(graph, kernel, degrees)
    top = block.fresh(f"{value}_max")
    shifted = _shift(block, licence, top)
    kernels = list(graph.kernels)
    kernels[kernel] = shifted
    if not parts:
        return replace(graph, kernels=tuple(kernels))
    maximum = shifted.by_value[top]
    axes = ordered(maximum.axes, shifted.axes)
    tensors = {*graph.inputs, *graph.outputs, *(t for k in graph.kernels for t in k.outputs)}
    tensor = top
    while tensor in tensors:
        tensor += "_"
    access = Access(tensor, tuple((a,) for a in axes))
    kernels[kernel] = replace(shifted, stmts=(*shifted.stmts, Stmt("store", top, axes, maximum.dtype, access=access)))
    factors: list[tuple[int, str]] = []
    for k, b in _blocks(graph):
        loads = {
            s.value: degrees.degree[k, s.value] for s in b.loads if degrees.degree.get((k, s.value)) and set(s.axes) & set(parts)
        }
        if loads:
            kernels[k], factor = _weighted(b, loads, axes, access, maximum.dtype)
            factors.append((k, factor))
    found = replace(graph, kernels=tuple(kernels))
    for k, factor in factors:
        after = _stabilized(found, k, factor, frozenset(degrees.holds), beside)
        if after is None:
            return None
        found = after
    return found


def _under_one(graph: KernelGraph, kernel: int, degrees: _Degrees) -> KernelGraph | None:
    """The graph with the exponentials of a kernel shifted by the largest of all their operands, which is known before the first
    of them; None where another kernel has one, or they keep different axes."""
    block = degrees.block
    names = [s.value for s in block.computes if (kernel, s.value) in degrees.group]
    if len(names) != len(degrees.group):
        return None
    tops: list[Stmt] = []
    for name in names:
        (x,) = block.by_value[name].args
        axes, over = block.by_value[x].axes, degrees.over(x)
        dtype = accumulator(block.by_value[x].dtype)
        kept = tuple(a for a in axes if a not in over)
        tops.append(Stmt("compute", block.fresh(f"{name}_max"), kept, dtype, "max", (x,), over) if over else block.by_value[x])
    if len({frozenset(t.axes) for t in tops}) > 1:
        return None
    joined: list[Stmt] = []
    for i, t in enumerate(tops[1:]):
        before = joined[-1] if joined else tops[0]
        name = block.fresh(f"{names[0]}_top{i or ''}")
        joined.append(Stmt("compute", name, before.axes, before.dtype, "maximum", (before.value, t.value)))
    early: list[Stmt] = []
    late: list[Stmt] = []
    behind: set[str] = set(names)
    for s in block.stmts:
        if not (s.value in behind or set(s.args) & behind or (s.kind == "store" and s.value in behind)):
            early.append(s)
            continue
        if s.kind == "compute":
            behind.add(s.value)
        if s.value in names and s.kind == "compute":
            shifted = block.fresh(f"{s.value}_shifted")
            (x,) = s.args
            axes = block.by_value[x].axes
            late.append(Stmt("compute", shifted, axes, joined[-1].dtype, "sub", (x, joined[-1].value)))
            s = replace(s, args=(shifted,))
        late.append(s)
    made = [t for t in tops if t.value not in block.by_value]
    kernels = list(graph.kernels)
    kernels[kernel] = replace(block, stmts=(*early, *made, *joined, *late))
    return replace(graph, kernels=tuple(kernels))


def _weighted(
    block: BlockGraph, degrees: dict[str, int], axes: tuple[str, ...], access: Access, dtype: str
) -> tuple[BlockGraph, str]:
    """Multiply loaded partial results by the exponential of their part's maximum, to the power of their degree."""
    top, factor = block.fresh(access.tensor), block.fresh(f"{access.tensor}_exp")
    out: list[Stmt] = [
        Stmt("load", top, axes, dtype, access=access),
        Stmt("compute", factor, axes, dtype, "exp", (top,)),
    ]
    new: dict[str, str] = {}
    for s in block.stmts:
        out.append(replace(s, args=tuple(new.get(a, a) for a in s.args)))
        if s.kind == "load" and s.value in degrees:
            d, last = degrees[s.value], s.value
            for i in range(abs(d)):
                name = block.fresh(f"{s.value}_weighted" + (str(i) if i else ""))
                out.append(
                    Stmt(
                        "compute", name, ordered({*s.axes, *axes}, block.axes), s.dtype, "mul" if d > 0 else "div", (last, factor)
                    )
                )
                last = name
            new[s.value] = last
    return replace(block, stmts=tuple(out)), factor


def _shift(block: BlockGraph, licence: Licence, top: str) -> BlockGraph:
    degree = dict(licence.degrees)
    out: list[Stmt] = []
    for s in block.stmts:
        if s.kind == "compute" and s.value == licence.exponential:
            (x,) = s.args
            axes, dtype = block.by_value[x].axes, accumulator(block.by_value[x].dtype)
            shifted = block.fresh(f"{s.value}_shifted")
            gained = tuple(g for a, g in block.splits if a in licence.axes)
            kept = ordered((*(a for a in axes if a not in licence.axes), *gained), block.axes)
            out.append(Stmt("compute", top, kept, dtype, "max", (x,), licence.axes))
            out.append(Stmt("compute", shifted, ordered((*axes, *gained), block.axes), dtype, "sub", (x, top), running=(top,)))
            out.append(replace(s, axes=out[-1].axes, args=(shifted,)))
        elif s.kind == "compute" and s.folds and degree.get(s.value):
            out.append(replace(s, rescale=(*s.rescale, Rescale(top, degree[s.value]))))
        else:
            out.append(s)
    return replace(block, stmts=_spread(block, out))


def _spread(block: BlockGraph, stmts: list[Stmt]) -> tuple[Stmt, ...]:
    """What is computed element by element from an exponential of a split sum has the part's axis too: each part has its
    maximum.
    """
    axes: dict[str, tuple[str, ...]] = {}
    out: list[Stmt] = []
    for s in stmts:
        if s.kind == "compute":
            union = {a for v in s.args for a in axes[v]} - set(s.reduce)
            s = replace(s, axes=ordered({*s.axes, *union}, block.axes))
        axes.setdefault(s.value, s.axes)
        out.append(s)
    return tuple(out)
