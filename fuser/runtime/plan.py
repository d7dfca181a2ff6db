"""Everything about a µGraph under a schedule but the GPU: sources of the generated kernels, what needs a launch, the streams,
and the place of every intermediate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import partial

from fuser.errors import UsageError
from fuser.ir.candidate import Candidate
from fuser.ir.candidate import paired
from fuser.ir.library_ops import is_convolution
from fuser.ir.mugraph import BlockGraph
from fuser.ir.mugraph import Kernel
from fuser.ir.mugraph import KernelGraph
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import CALLED
from fuser.ir.opdef import JOINED
from fuser.ir.program import Tensor
from fuser.lower.kernel_source import KernelSource
from fuser.lower.triton_source import generate_graph
from fuser.lower.written import may_be_written
from fuser.lower.written import written
from fuser.runtime.library import allocates
from fuser.runtime.library import behind
from fuser.runtime.library import call_of_result
from fuser.runtime.library import constants
from fuser.runtime.library import joined_as
from fuser.runtime.library import output_of
from fuser.runtime.library import root_of
from fuser.runtime.library import views_of
from fuser.runtime.streams import MAX_STREAMS
from fuser.runtime.streams import Access
from fuser.runtime.streams import Streams
from fuser.runtime.streams import streams_of
from fuser.runtime.workspace import Slot
from fuser.runtime.workspace import Workspace
from fuser.runtime.workspace import place

BRIEF, LITTLE = 2, 2**20
"""Kernels beside others, and bytes that each moves, that are over before a stream of their own has begun and ended: logarithms of
8192 gates beside a product took an H100 22.3 µs, behind it 20.9."""


@dataclass(frozen=True)
class Plan:
    """``sources`` has one entry for each kernel of the graph, None for what torch computes; ``tensors`` are all device tensors.
    ``launched`` are the kernels that are launched, by their index in the graph (a strided view is none); ``streams`` counts those
    alone. ``workspace`` has a place for each intermediate."""

    candidate: Candidate
    sources: tuple[KernelSource | None, ...]
    tensors: tuple[Tensor, ...]
    launched: tuple[int, ...]
    streams: Streams
    workspace: Workspace

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.workspace.slots

    @property
    def bytes(self) -> int:
        return self.workspace.bytes

    @property
    def graph(self) -> KernelGraph:
        return self.candidate.graph

    @cached_property
    def table(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    @cached_property
    def views(self) -> dict[str, LibraryKernel]:
        return views_of(self.graph)

    @cached_property
    def adopted(self) -> frozenset[str]:
        """Results that torch allocates at every call and that are taken where they lie: of library kernels that have no form
        which writes into a given tensor. An output only where its kernel runs on the caller's stream."""
        return adopted(self.graph, self.table, self.launched, self.sources, self.streams)


def _each_apart(kernel: Kernel) -> bool:
    """Whether a library convolves channels in groups: a GPU is full of that. Nine such convolutions, three beside one another,
    took an H100 768 µs on two streams and 461 on one."""
    if not isinstance(kernel, LibraryKernel) or not is_convolution(kernel.op):
        return False
    return dict(kernel.attrs).get("groups", 1) != 1


def _brief(kernel: Kernel, source: KernelSource | None, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a kernel is over about as soon as others have waited for it: it moves little, and multiplies nothing."""
    if source is None or (isinstance(kernel, BlockGraph) and any(s.contracts for s in kernel.computes)):
        return False
    return sum(tensors[n].nbytes for n in {*kernel.inputs, *kernel.outputs}) <= LITTLE


def plan(candidate: Candidate, made: Sequence[KernelSource] = ()) -> Plan:
    """Generate every kernel, but where they are ``made``, and place the intermediates. Raises what :func:`generate_graph` raises,
    :class:`UsageError` where the number of kernel schedules does not fit or two kernels disagree on the shape of a tensor."""
    graph = candidate.graph
    tensors = dict(graph.table)
    pairs = paired(graph, made or generate_graph(graph, candidate.schedule))
    for kernel, source in pairs:
        if isinstance(kernel, LibraryKernel):
            tensors.setdefault(kernel.output, output_of(kernel, tensors))
        if source is None:
            continue
        for name, dtype, shape in zip(source.args, source.dtypes, source.shapes, strict=True):
            known = tensors.setdefault(name, Tensor(name, shape, dtype))
            # a kernel may see a tensor of the program under another shape, never under another size
            if (math.prod(known.shape), known.dtype) != (math.prod(shape), dtype):
                raise UsageError(
                    f"kernel {kernel.name!r} has {name} as {shape} {dtype}, elsewhere it is {known.shape} {known.dtype}",
                    "split counts of kernels that share a tensor must agree",
                )
    views = views_of(graph)
    launched = tuple(i for i, k in enumerate(graph.kernels) if k.outputs[0] not in views)
    accesses = accesses_of(graph)
    kernels = [graph.kernels[i] for i in launched]
    own = _written(graph, tensors)
    apart = sum(k.outputs[0] not in own and _each_apart(k) for k in kernels)
    sources = tuple(own.get(k.outputs[0]) if s is None else s for k, s in pairs)
    most = 1 if apart > 1 else MAX_STREAMS
    shared = partial(streams_of, joined=[bool(joined_as(k)) for k in kernels], calls=list(map(call_of_result, kernels)))
    streams = shared(accesses, most)
    aside = [n for n, stream in enumerate(streams.stream) if stream]
    if 0 < len(aside) <= BRIEF and all(_brief(kernels[n], sources[launched[n]], tensors) for n in aside):
        streams = shared(accesses, 1)
    taken = adopted(graph, tensors, launched, sources, streams)
    inside = {n: tensors[n] for n in graph.intermediates if n not in views and n not in taken}
    early = [n for n, i in enumerate(launched) if (s := sources[i]) is not None and s.pdl]
    workspace = place(accesses, inside, streams, early)
    return Plan(candidate, sources, tuple(tensors.values()), launched, streams, workspace)


def adopted(
    graph: KernelGraph,
    tensors: Mapping[str, Tensor],
    launched: Sequence[int],
    sources: Sequence[KernelSource | None],
    streams: Streams,
) -> frozenset[str]:
    """See :attr:`Plan.adopted`."""
    found = set[str]()
    for number, i in enumerate(launched):
        k = graph.kernels[i]
        if not isinstance(k, LibraryKernel) or sources[i] is not None:
            continue
        attrs = constants(k, graph, tensors)
        if JOINED in attrs or allocates(k.op, attrs):  # its compiler would copy what is to be written somewhere
            found |= {k.output} if streams.stream[number] == 0 else {k.output} - set(graph.outputs)
    return frozenset(found)


def _written(graph: KernelGraph, tensors: Mapping[str, Tensor]) -> dict[str, KernelSource]:
    """The sources of library kernels that have one, by their result."""
    views, lying = views_of(graph), behind(graph)
    fitting = [
        k
        for k in graph.kernels
        if isinstance(k, LibraryKernel)
        and may_be_written(k.op)
        and k.output not in views
        and not {JOINED, CALLED} & dict(k.attrs).keys()
        and all(a not in views or a in lying for a in k.args)
    ]
    found = {k.output: written(k, constants(k, graph, tensors), tensors, lying) for k in fitting}
    return {n: s for n, s in found.items() if s is not None}


def accesses_of(graph: KernelGraph) -> tuple[Access, ...]:
    """What each kernel that is launched reads and writes; a view stands for the tensor behind it. Results of one call of torch
    are taken one after another, and so are those that its compiler is to make one of."""
    views = views_of(graph)
    found: list[Access] = []
    for k in graph.kernels:
        if k.outputs[0] not in views:
            call = (*call_of_result(k), *((JOINED,) if joined_as(k) else ()))
            reads = dict.fromkeys(root_of(t, views) for t in k.inputs)
            found.append(Access((*reads, *call), (*k.outputs, *call)))
    return tuple(found)
