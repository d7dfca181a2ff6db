"""Blocks and their mathematics in numpy, for the tests of the IR: chains of products, softmax in one and two passes, splits."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fuser.ir.mugraph import FREE
from fuser.ir.mugraph import Access
from fuser.ir.mugraph import Axis
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import Rescale
from fuser.ir.mugraph import Stmt
from fuser.ir.ops import Array
from fuser.ir.placement import place
from fuser.ir.schedule import KernelSchedule
from fuser.ir.schedule import bind
from fuser.ir.tiling import LoopTree
from fuser.ir.tiling import TilingExpr

CHAIN_AXES = "nhpq"


@dataclass(frozen=True)
class Case:
    """A graph and what it should compute."""

    graph: KernelGraph
    expected: Callable[[Mapping[str, Array]], Array]

    @property
    def block(self) -> BlockGraph:
        return self.graph.blocks[0]

    def inputs(self, rng: np.random.Generator) -> dict[str, Array]:
        loads = {s.access.tensor: s.access.shape(b.extents) for b in self.graph.blocks for s in b.loads if s.access}
        return {n: rng.standard_normal(loads[n]) for n in self.graph.inputs}


def load(value: str, axes: str, tensor: str = "") -> Stmt:
    return Stmt("load", value, tuple(axes), "float32", access=Access(tensor or value, tuple((a,) for a in axes)))


def store(value: str, axes: str, tensor: str = "") -> Stmt:
    return Stmt("store", value, tuple(axes), "float32", access=Access(tensor or value, tuple((a,) for a in axes)))


def compute(
    value: str, axes: str, op: str, args: str, reduce: str = "", running: str = "", rescale: str = "", degree: int = 1
) -> Stmt:
    return Stmt(
        "compute", value, tuple(axes), "float32", op, tuple(args), tuple(reduce),
        running=tuple(running), rescale=tuple(Rescale(m, degree) for m in rescale),
    )  # fmt: skip


def graph_of(block: BlockGraph) -> KernelGraph:
    return KernelGraph(block.name, block.inputs, (block,), block.outputs).validate()


def gemm_chain(extents: Mapping[str, int], gemms: int = 2, between: str = "") -> Case:
    """X0[m,k] W1[k,n] → relu/square/… → W2[n,h] → …; values A, B, C, D, E as the paper names them for two."""
    names = iter("ABCDEFGHIJ")
    first, rows = next(names), "m"
    stmts = [load(first, "mk")]
    current, over = first, "k"
    weights: list[str] = []
    for i in range(gemms):
        w, out, to = next(names), next(names), CHAIN_AXES[i]
        stmts += [load(w, over + to), compute(out, rows + to, "matmul", current + w, over)]
        weights.append(w)
        current, over = out, to
        if between and i + 1 < gemms:
            stmts.append(compute(out.lower(), rows + to, between, current))
            current = out.lower()
    stmts.append(store(current, rows + over))
    used = "mk" + CHAIN_AXES[:gemms]
    block = BlockGraph("chain", tuple(Axis(a, extents[a]) for a in used), tuple(stmts)).validate()
    maps: dict[str, Callable[[Array], Array]] = {"relu": lambda x: np.maximum(x, 0), "square": np.square, "": lambda x: x}

    def expected(inputs: Mapping[str, Array]) -> Array:
        x = inputs[first]
        for i, w in enumerate(weights):
            x = (maps[between](x) if i else x) @ inputs[w]
        return x

    return Case(graph_of(block), expected)


def softmax(s: Array) -> Array:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _attention(inputs: Mapping[str, Array]) -> Array:
    return softmax(inputs["Q"] @ inputs["K"].T) @ inputs["V"]


_SCORES = (load("Q", "mk"), load("K", "nk"), load("V", "nh"), compute("S", "mn", "matmul", "QK", "k"))


def _axes(extents: Mapping[str, int], names: str = "mnkh") -> tuple[Axis, ...]:
    return tuple(Axis(a, extents[a]) for a in names)


def online(extents: Mapping[str, int]) -> Case:
    """softmax(Q Kᵀ) V with a running maximum."""
    stmts = (
        *_SCORES,
        compute("M", "m", "max", "S", "n"),
        compute("X", "mn", "sub", "SM", running="M"),
        compute("P", "mn", "exp", "X"),
        compute("l", "m", "sum", "P", "n", rescale="M"),
        compute("O", "mh", "matmul", "PV", "n", rescale="M"),
        compute("R", "mh", "div", "Ol"),
        store("R", "mh"),
    )
    return Case(graph_of(BlockGraph("online", _axes(extents), stmts).validate()), _attention)


def two_pass(extents: Mapping[str, int], divide_first: bool = False) -> Case:
    """softmax(Q Kᵀ) V with the finished maximum; ``divide_first`` normalises before the second product."""
    head = (
        *_SCORES,
        compute("M", "m", "max", "S", "n"),
        compute("X", "mn", "sub", "SM"),
        compute("P", "mn", "exp", "X"),
        compute("l", "m", "sum", "P", "n"),
    )
    if divide_first:
        tail = (compute("W", "mn", "div", "Pl"), compute("R", "mh", "matmul", "WV", "n"))
    else:
        tail = (compute("O", "mh", "matmul", "PV", "n"), compute("R", "mh", "div", "Ol"))
    return Case(graph_of(BlockGraph("twopass", _axes(extents), (*head, *tail, store("R", "mh"))).validate()), _attention)


def rms_gemm(extents: Mapping[str, int]) -> Case:
    """(X ⊙ G) W / sqrt(Σ X²): two accumulators in one loop, then an epilogue."""
    stmts = (
        load("X", "mk"), load("G", "k"), load("W", "kn"),
        compute("s", "mk", "square", "X"), compute("t", "m", "sum", "s", "k"),
        compute("Y", "mk", "mul", "XG"), compute("Z", "mn", "matmul", "YW", "k"),
        compute("r", "m", "sqrt", "t"), compute("R", "mn", "div", "Zr"), store("R", "mn"),
    )  # fmt: skip

    def expected(i: Mapping[str, Array]) -> Array:
        return (i["X"] * i["G"]) @ i["W"] / np.sqrt((i["X"] ** 2).sum(1, keepdims=True))

    return Case(graph_of(BlockGraph("rms", _axes(extents, "mnk"), stmts).validate()), expected)


def split_online(extents: Mapping[str, int]) -> Case:
    """FlashDecoding: kernel 1 reduces its share g of the keys, kernel 2 joins the partial results."""
    sized = (*_axes(extents), Axis("g", FREE))
    first = BlockGraph(
        "part",
        sized,
        (
            *_SCORES,
            compute("M", "mg", "max", "S", "n"),
            compute("X", "mng", "sub", "SM", running="M"),
            compute("P", "mng", "exp", "X"),
            compute("l", "mg", "sum", "P", "n", rescale="M"),
            compute("O", "mhg", "matmul", "PV", "n", rescale="M"),
            store("M", "gm", "Mp"),
            store("l", "gm", "lp"),
            store("O", "gmh", "Op"),
        ),
        (("n", "g"),),
    )
    second = BlockGraph(
        "join",
        (Axis("m", extents["m"]), Axis("h", extents["h"]), Axis("g", FREE)),
        (
            load("M", "gm", "Mp"), load("l", "gm", "lp"), load("O", "gmh", "Op"),
            compute("T", "m", "max", "M", "g"), compute("D", "gm", "sub", "MT"), compute("e", "gm", "exp", "D"),
            compute("a", "gm", "mul", "le"), compute("b", "m", "sum", "a", "g"),
            compute("c", "gmh", "mul", "Oe"), compute("d", "mh", "sum", "c", "g"),
            compute("R", "mh", "div", "db"), store("R", "mh"),
        ),
    )  # fmt: skip
    graph = KernelGraph("decoding", ("Q", "K", "V"), (first, second), ("R",))
    return Case(graph.validate(), _attention)


def split_chain(extents: Mapping[str, int]) -> Case:
    """Kernel 1 sums its part of the first contraction, kernel 2 finishes the sum and multiplies again."""
    first = BlockGraph(
        "part",
        (*_axes(extents, "mnk"), Axis("g", FREE)),
        (load("A", "mk"), load("B", "kn"), compute("C", "mng", "matmul", "AB", "k"), store("C", "gmn", "Cp")),
        (("k", "g"),),
    )
    second = BlockGraph(
        "finish",
        (*_axes(extents, "mnh"), Axis("g", FREE)),
        (
            load("C", "gmn", "Cp"), load("D", "nh"), compute("s", "mn", "sum", "C", "g"), compute("r", "mn", "relu", "s"),
            compute("E", "mh", "matmul", "rD", "n"), store("E", "mh"),
        ),
    )  # fmt: skip
    graph = KernelGraph("splitk", ("A", "B", "D"), (first, second), ("E",))
    return Case(graph.validate(), lambda i: np.maximum(i["A"] @ i["B"], 0) @ i["D"])


def schedule(order: str, *splits: tuple[str, int], **tiles: int) -> KernelSchedule:
    return KernelSchedule(tuple(sorted(tiles.items())), TilingExpr.parse(order), tuple(sorted(splits)))


def placed(block: BlockGraph, order: str, **tiles: int) -> LoopTree:
    plan = schedule(order, **tiles)
    bound, plans = bind(block, plan)
    return place(bound, plan.order, plans)
