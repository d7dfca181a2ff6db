"""A program as torch's compiler would do all of it: what is left to libraries by calls, one kernel or a few of what lies between.

Where our plan is not clearly better by its prices, which see less than a GPU does, that is what is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from cost_model.names import CHAINED
from cost_model.refined import memory_kernel_seconds
from fuser.device import Device
from fuser.errors import FuserError
from fuser.ir.builder import Builder
from fuser.ir.builder import Ref
from fuser.ir.library_ops import CONVOLUTIONS
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.subprogram import subprogram
from fuser.lower.compile import KernelArtifact
from fuser.lower.written import ORDERS
from fuser.runtime.forms import in_groups
from fuser.runtime.library import WHOLE
from fuser.runtime.library import views_of
from fuser.runtime.recurrent import network
from search.cover.joint import WHOLE_KERNEL
from search.cover.joint import joins
from search.cover.joint import joint_kernels
from search.cover.joint_price import DOUBT
from search.cover.joint_price import joint_seconds
from search.cover.parts import FEW
from search.cover.prices import by_library
from search.cover.rebuild import rebuild
from search.cover.shown import moves_only
from search.cover.shown import views_to
from search.library_attention import attention_seconds
from search.library_attention import is_aligned
from search.library_time import library_seconds
from search.library_time import order_of
from search.order_time import torch_seconds
from search.ranked import Ranked
from search.ranked import Tuned

CLEAR, ALIKE = 0.96, 0.8
"""A plan of ours is taken where it takes less than so many times as long; without products, when both move the same bytes, the
second. Of 137 plans with products that an H100 ran below the first those between 0.85 and 0.95 were 1.38 x as fast as torch's
compiler in the mean (13 of 15 at 0.95 and more); of 27 without below the second none was behind it."""
APART, ALONE, TURNED = 0.75, 0.55, 1.45
"""The same of images: where each channel is convolved apart, there without products, and others (of float32). To turn channels to
the end and back gains nothing where that is most of the plan: beyond these, plans had 0.14 to 1.21 times the speed of torch's on
an H200."""
ADDING = ("index_add", "scatter_add", "index_reduce", "scatter_reduce")
"""Operators that add up by atomics what they are told to add to the same place."""
OURS = ("resize",)
"""Operators of which ours took an H200 0.6 to 0.8 times as long (bicubic and trilinear)."""
IN_GROUPS = 1.3
"""How much longer torch's products of rows in groups take than ours (11 shapes in bfloat16 on an H200: 0.7 to 2.8)."""
SPILLED, LONGER = 512, 2.0
"""Bytes of local memory a thread beyond which a kernel takes so many times its estimate, or more (2224 bytes: 121 µs, not 41)."""
LARGEST, ATTENDING = 200, 64
"""Most operators of a program that torch's compiler is given as a whole, where it leaves some to libraries, and of one with
attention. Of larger ones its price is too low: on an H200 four layers of a LLaMA took 1072 µs, not 906, a ViT 1084, not 1023,
with eight sentences and images."""


def limit(theirs: Tuned | None) -> float:
    """Seconds that a plan of ours may take."""
    if theirs is None:
        return math.inf
    program = theirs.program
    if _adds_pixels(program):
        return 0.0
    if any(n.op in CONVOLUTIONS for n in program.nodes):
        products = any(n.products for n in program.nodes)
        return theirs.winner.seconds * (TURNED if not _apart(program) else APART if products else ALONE)
    return theirs.winner.seconds * (CLEAR if any(n.products for n in program.nodes) else ALIKE)


def left(theirs: Tuned, ours: Tuned, kernels: Iterable[KernelArtifact]) -> bool:
    """Whether a plan of ours is left for theirs now that its kernels are compiled: they spill."""
    spilled = max((k.spills for k in kernels), default=0) > SPILLED
    return spilled and theirs.winner.seconds < LONGER * ours.winner.seconds


def wholly(program: TensorProgram, device: Device, images: bool = False) -> Tuned | None:
    """All of it by torch's compiler; None where that has no honest price (``images``: whatever their convolutions are), or where
    attention is none of torch's."""
    seen = _dots_apart(program)
    inner = [n for n in seen.nodes if not moves_only(n)]
    most = ATTENDING if any(n.products > 1 for n in inner) else WHOLE_KERNEL if all(map(joins, inner)) else LARGEST
    images = images or _adds_pixels(seen)
    if not inner or len(inner) > most or not (images or all(_known(seen, n) for n in inner if n.op in CONVOLUTIONS)):
        return None
    if any(n.op in OURS for n in inner) or not all(_flash(seen, n) for n in inner if n.products > 1):
        return None
    with suppress(FuserError):
        return rival(program, device, _seconds(seen, device))
    return None


def only_theirs(program: TensorProgram, device: Device, found: Ranked) -> Tuned | None:
    """All of it by torch's compiler where that is what was chosen, as one piece: the compiler then sees the operators that the
    module has, a turn as one and no concatenation. (24 turned images and their differences took an H100 2275 µs, not 1499.)"""
    views = views_of(found.graph)
    kernels = [k for k in found.graph.kernels if k.outputs[0] not in views]
    joined = [k for k in kernels if isinstance(k, LibraryKernel) and dict(k.attrs).get(JOINED) is True]
    called = [k for k in kernels if isinstance(k, LibraryKernel) and "callee" in dict(k.attrs)]  # torch's own, there as well
    if not joined or {id(k) for k in kernels} - {id(k) for k in (*joined, *called)} or any(n.op in OURS for n in program.nodes):
        return None
    return rival(program, device, found.seconds)


def rival(program: TensorProgram, device: Device, seconds: float) -> Tuned | None:
    """All of it by torch's compiler, whatever that takes: ``seconds`` stand for it."""
    if any(_recurs(n) or _by_each(program, n) for n in program.nodes):
        return None
    with suppress(FuserError):
        return by_library(program, device, seconds, WHOLE)
    return None


def _recurs(node: Node) -> bool:
    """Whether a call is a recurrent network: torch's compiler leaves these to their library, but where it is given a graph it
    writes out every step (a thousand steps of six layers took minutes)."""
    return bool(network(str(node.attr.get("callee", ""))))


def _by_each(program: TensorProgram, node: Node) -> bool:
    """Whether rows in groups are multiplied by every matrix where torch's compiler has them."""
    if node.op != "grouped_matmul":
        return False
    x, out = program[node.inputs[0]], program[node.output]
    return not in_groups(x.shape, out.shape, x.dtype)


def _seconds(program: TensorProgram, device: Device) -> float:
    found = []
    for nodes in joint_kernels(program):
        views = {v for n in nodes for i in n.inputs for v in views_to(program, i)}
        part = subprogram(program, {*(n.output for n in nodes), *views}, "part")
        joint = joint_seconds(part, device, doubted=True) if all(map(joins, nodes)) else None
        found.append(_called(part, device) if joint is None else joint / DOUBT)
    return math.fsum(found)


def _dots_apart(program: TensorProgram) -> TensorProgram:
    """The program with products of two vectors as torch's compiler takes them apart: elements are multiplied, then added, in one
    kernel with those that make them."""
    dots = (n for n in program.nodes if n.op == "matmul" and program[n.output].elements == 1)
    exact = (n for n in dots if {program[t].dtype for t in (*n.inputs, n.output)} == {"float32"})
    rules = {n.output: partial(_dot, program, n) for n in exact}
    return rebuild(program, rules) if rules else program


def _dot(program: TensorProgram, node: Node, b: Builder, refs: dict[str, Ref]) -> Ref:
    x, y = (refs[i].reshape(program[i].elements) for i in node.inputs)
    total = b.op("sum", b.op("mul", x, y), axis=(0,), keepdims=False)
    return b.op("reshape", total, name=node.output, shape=program[node.output].shape)


def _apart(program: TensorProgram) -> bool:
    """Whether a convolution is of each channel apart."""
    images = [n for n in program.nodes if n.op in CONVOLUTIONS]
    return any(n.attr.get("groups", 1) == program[n.inputs[0]].shape[1] > 1 for n in images)


def _known(program: TensorProgram, node: Node) -> bool:
    """Whether a convolution is of float32, or there is one of each channel apart, and no image that is given with its channels
    last."""
    given = program.producers.get(node.inputs[0])
    return (program[node.output].dtype == "float32" or _apart(program)) and (given is None or given.op != "transpose")


def _adds_pixels(program: TensorProgram) -> bool:
    """Whether what comes of a convolution is added up at places that are given. Where its channels lie last neighbours add to
    neighbours; else to any places, which took 273 µs of an H100, not 12, and no price of ours says so."""
    behind: set[str] = set()
    for n in program.nodes:
        if n.op in CONVOLUTIONS or not behind.isdisjoint(n.inputs):
            behind.add(n.output)
            if any(word in f"{n.op} {n.attr.get('callee', '')}" for word in ADDING) or n.attr.get("accumulate"):
                return True
    return False


def _flash(program: TensorProgram, node: Node) -> bool:
    """Whether attention is what torch means by it, and has kernels for: without a mask, heads as many and of a depth that it
    has kernels for, as many keys as queries if it is causal, and more than a few."""
    shapes = [program[i].shape for i in node.inputs]
    if node.op != "attention" or len(shapes) != 3 or len(shapes[0]) < 3 or len({s[:-2] for s in shapes}) > 1:
        return False
    (*_, queries, _), (*_, keys, _) = shapes[:2]
    if not is_aligned(shapes[0], shapes[2], program[node.output].dtype):
        return False
    return queries > FEW and (queries == keys or not node.attr.get("causal"))


def _called(part: TensorProgram, device: Device) -> float:
    for n in part.nodes:
        if n.products > 1:
            q, k, v = (part[i].shape for i in n.inputs)
            return attention_seconds(q, k, v, part[n.output].dtype, bool(n.attr.get("causal")), device)
    kernels = tuple(LibraryKernel(n.output, n.op, n.inputs, n.output, tuple(sorted(part.bound(n).items()))) for n in part.nodes)
    ends = (*part.inputs, *part.outputs)
    graph = KernelGraph(part.name, part.inputs, kernels, part.outputs, tuple(part[n] for n in ends)).validate()
    views, table = views_of(graph), graph.device_tensors
    moved = (2 * table[k.output].nbytes for k in kernels if moves_only(part.producers[k.output]) and k.output not in views)
    called = (k for k in kernels if not moves_only(part.producers[k.output]))
    return math.fsum((*(memory_kernel_seconds(n, device) for n in moved), *(_call_seconds(graph, k, device) for k in called)))


def _call_seconds(graph: KernelGraph, kernel: LibraryKernel, device: Device) -> float:
    """Of what torch itself has for an operator."""
    if kernel.op in ORDERS:
        return torch_seconds(order_of(graph, kernel), device)
    seconds = library_seconds(graph, kernel, device, CHAINED, copied=True)
    return seconds * (IN_GROUPS if kernel.op == "grouped_matmul" else 1.0)
