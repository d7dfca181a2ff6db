"""Calls of torch that follow one another, as kernels of torch's own compiler (inductor).

What the op table lacks and what we have no kernel for is left to torch, which launches operator by operator and writes every
result into memory. Where its compiler is at hand it makes one kernel, or a few, of several such calls; of one, too: many of
torch's own are older. What fails there leaves the calls as they are.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import Protocol

from fuser.aten import call as call_aten
from fuser.ir.mugraph import LibraryKernel
from fuser.ir.opdef import JOINED
from fuser.runtime.forms import library_attention
from fuser.runtime.library import WHOLE
from fuser.runtime.library import call_of_result
from fuser.runtime.library import constants
from fuser.runtime.library import root_of
from fuser.runtime.library import value_of
from fuser.runtime.library import view
from fuser.runtime.places import PLACED
from fuser.runtime.places import computes_places
from fuser.runtime.places import fill_places
from fuser.runtime.places import memory_of
from fuser.runtime.places import sorts
from fuser.runtime.places import telling
from fuser.runtime.places import within_bounds
from fuser.runtime.places import within_places
from fuser.runtime.plan import Plan
from fuser.runtime.torch_program import apply

APART = (
    "conv", "mm.", "grouped", "rnn", "lstm", "gru.", "sort", "topk", "attention", "fft", "linalg", "kthvalue", "median", "mode.",
)  # fmt: skip
"""Operators that the compiler leaves to libraries too, or that are long loops (by what is in their names), so that nothing is
gained."""
ORDERS = ("sort", "topk", "kthvalue", "median", "mode.")
"""Those of them that the compiler calls between its own kernels: an operator that torch makes of these and others gains."""
RESIZED = "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"
"""Operators that the compiler takes apart where dynamo meets them, and else leaves to torch: with channels last those take four
times as long."""
LARGEST = 1500
"""Most operators of torch's that compute something in one piece: a recurrent network that was unrolled takes minutes."""
SHORT = 512
"""Extent of an axis up to which the compiler sorts within its own kernels."""
SECONDS = 120.0
"""Time after which no further piece of a program is compiled."""

_ONE = threading.RLock()
"""Torch's compiler is for one thread at a time."""

Run = Callable[..., Any]


def apart(name: str) -> bool:
    """Whether an operator of this name, or of several, is not for the compiler."""
    return any(word in name for word in APART)


Build = Callable[[Any, Run, Sequence[Any]], Run | None]
"""Makes a faster form of a function: given its graph, itself, and examples that it may write to; None where it fails."""


@dataclass(frozen=True)
class Piece:
    """Launches by their number, what they read, write, and make: results that are taken where torch has put them. ``run`` takes
    the tensors that are read and written, and returns what is made."""

    numbers: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    makes: tuple[str, ...]
    run: Run
    key: Any = None
    """Equal for pieces that do the same with tensors that lie alike."""
    whole: bool = False
    """All of a program: with what the compiler leaves to libraries, too."""
    trained: tuple[bool, ...] = ()
    """Which of its inputs require gradients where it was made."""
    padded: frozenset[str] = frozenset()
    """Of what it makes that whose rows may be longer in memory than they are."""


class Original(Protocol):
    """Of what all of a plan was made."""

    @property
    def trained(self) -> frozenset[str]:
        """Names of what requires gradients there."""
        ...

    @property
    def padded(self) -> frozenset[str]:
        """Names of results whose rows may be longer in memory."""
        ...

    def function(self, reads: Sequence[str], makes: Sequence[str], device: Any) -> Run | None:
        """It as a function of what it reads, and makes, and where; None where it is none."""
        ...


def joined(
    plan: Plan,
    table: Mapping[str, Any],
    device: Any,
    build: Build,
    constants: Collection[str] = (),
    original: Original | None = None,
    examples: Mapping[str, Any] | None = None,
) -> list[Piece]:
    """The pieces of a plan of which ``build`` makes something, of tensors like those in ``table``, of ``constants`` there, and of
    ``examples`` of the inputs, by name. A piece that is all of it does what the ``original`` does."""
    import torch

    made = dict[Any, Run | None]()

    def like(piece: Piece) -> list[Any]:
        found = []
        for i, name in enumerate((*piece.reads, *piece.writes)):
            x, held = value_of(name, plan.views, table), (examples or {}).get(name)
            if root_of(name, plan.views) in constants:
                held = x
            elif held is not None and (held.shape != x.shape or not telling(held)):
                held = None
            found.append(_example(x, device, held, i))
        return found

    def built(piece: Piece) -> list[Piece]:
        if piece.key not in made:
            made[piece.key] = None
            if time.monotonic() < until:
                with suppress(Exception), torch.no_grad():  # out of memory, too: these are examples
                    given = like(piece)
                    graph = _traced(piece.run, given, piece.whole, piece.trained)
                    if graph is not None:
                        places = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
                        given = list(within_bounds(graph, dict(zip(places, given, strict=True))).values())
                        fill_places(graph, given)
                        if (tried := within_places(graph, given) if computes_places(graph) else given) is not None:
                            made[piece.key] = build(graph, piece.run, tried)
        run = made[piece.key]
        return [] if run is None else [replace(piece, run=run)]

    alone = {n: p for n in range(len(plan.launched)) if (p := _piece(plan, (n,), table)) is not None}

    def pieces(numbers: tuple[int, ...]) -> list[Piece]:
        """All of them as one, or what can be made of each half."""
        if len(numbers) < 2:
            return [p for n in numbers for p in built(alone[n])]
        whole = None if _overlapping(plan, numbers) else _piece(plan, numbers, table)
        half = len(numbers) // 2
        return (whole and built(whole)) or [*pieces(numbers[:half]), *pieces(numbers[half:])]

    every = tuple(range(len(plan.launched)))
    with _ONE:
        until = time.monotonic() + SECONDS
        if original is not None and (one := _piece(plan, every, table)) is not None and one.whole and not one.writes:
            run, trained = original.function(one.reads, one.makes, device), tuple(n in original.trained for n in one.reads)
            if run is not None:
                whole = replace(one, run=run, key="original", trained=trained, padded=original.padded)
                if found := built(whole):
                    return found
        return [p for numbers in _following(plan, alone) for p in pieces(numbers)]


def _following(plan: Plan, among: Mapping[int, Piece]) -> list[tuple[int, ...]]:
    """Launches that follow one another on a stream, where nobody waits for one of them but the last."""
    found: list[tuple[int, ...]] = []
    streams = plan.streams
    for stream in range(streams.count):
        run: tuple[int, ...] = ()
        for number in (n for n in range(len(plan.launched)) if streams.stream[n] == stream):
            if number not in among or (run and run[-1] in streams.records):
                found.append(run)
                run = ()
            run = (*run, number) if number in among else run
        found.append(run)
    return [r for r in found if r]


def _inside(plan: Plan, values: dict[str, Any], name: str) -> Any:
    """A tensor within a piece: what it was given, views as well, comes first."""
    if name not in values:
        values[name] = view(plan.views[name], _inside(plan, values, plan.views[name].args[0]))
    return values[name]


def _ends(plan: Plan, numbers: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What launches read of others, and what others read of them."""
    mine = [plan.graph.kernels[plan.launched[n]] for n in numbers]
    made = {t for k in mine for t in k.outputs}
    # views are taken inside: the compiler copies what begins anywhere in memory at every call
    reads = dict.fromkeys(r for k in mine for t in k.inputs if (r := root_of(t, plan.views)) not in made)
    outside = [plan.graph.kernels[i] for n, i in enumerate(plan.launched) if n not in numbers]
    wanted = {root_of(t, plan.views) for k in outside for t in k.inputs} | set(plan.graph.outputs)
    return tuple(reads), tuple(t for k in mine for t in k.outputs if t in wanted)


def _overlapping(plan: Plan, numbers: Sequence[int]) -> bool:
    """Whether something is written where a tensor lies that is read: the one was to be over when the other begins."""
    places = {s.tensor.name: (s.offset, s.offset + s.tensor.nbytes) for s in plan.slots}
    reads, writes = ([places[r] for n in names if (r := root_of(n, plan.views)) in places] for names in _ends(plan, numbers))
    return any(a < d and c < b for a, b in reads for c, d in writes)


def _piece(plan: Plan, numbers: tuple[int, ...], table: Mapping[str, Any]) -> Piece | None:
    """Launches as one function; None where one is generated, a product, or for a library alone."""
    kernels: list[tuple[LibraryKernel, dict[str, Any]]] = []
    whole = True
    for n in numbers:
        k = plan.graph.kernels[plan.launched[n]]
        if not isinstance(k, LibraryKernel) or plan.sources[plan.launched[n]] is not None:
            return None
        attrs = constants(k, plan.graph, plan.table)
        whole = attrs.pop(JOINED, None) == WHOLE and whole
        if not whole and (k.contracts or apart(f"{k.op} {attrs.get('callee', '')}")) and not _sorts_few(k, attrs, plan, table):
            return None
        kernels.append((k, attrs))
    reads, ends = _ends(plan, numbers)
    writes, makes = (tuple(n for n in ends if (n in plan.adopted) is made) for made in (False, True))

    def run(*given: Any) -> tuple[Any, ...]:
        values, several = dict(zip(reads, given, strict=False)), dict[Any, Any]()
        for k, attrs in kernels:
            xs, call = [_inside(plan, values, a) for a in k.args], call_of_result(k)
            if call and call not in several:
                several[call] = call_aten(attrs["callee"], attrs["detail"], xs)
            values[k.output] = several[call][attrs["field"]] if call else apply(k.op, xs, attrs, library_attention)
        for name, out in zip(writes, given[len(reads) :], strict=True):
            out.copy_(values[name])
        return tuple([values[name].contiguous() for name in makes])

    order = {n: i for i, n in enumerate(dict.fromkeys((*reads, *(t for k, _ in kernels for t in (*k.args, k.output)))))}
    steps = tuple((k.op, repr(attrs), tuple(order[t] for t in (*k.args, k.output))) for k, attrs in kernels)
    forms = tuple((x.shape, x.stride(), x.dtype) for x in (value_of(n, plan.views, table) for n in (*reads, *writes)))
    views = tuple((order[root_of(t, plan.views)], _steps_to(plan, t)) for k, _ in kernels for t in k.args)
    key = steps, forms, views, tuple(order[n] for n in writes), tuple(order[n] for n in makes)
    return Piece(numbers, reads, writes, makes, run, key, whole)


def _sorts_few(k: LibraryKernel, attrs: Mapping[str, Any], plan: Plan, table: Mapping[str, Any]) -> bool:
    """Whether a call sorts along a short axis."""
    return k.op == "argsort" and value_of(k.args[0], plan.views, table).shape[attrs.get("dim", -1)] <= SHORT


def _steps_to(plan: Plan, name: str) -> tuple[Any, ...]:
    """The views that lead to a tensor from what lies in memory."""
    found: tuple[Any, ...] = ()
    while name in plan.views:
        found = ((plan.views[name].op, repr(plan.views[name].attrs)), *found)
        name = plan.views[name].args[0]
    return found


def _example(x: Any, device: Any, held: Any, seed: int) -> Any:
    """A tensor that lies alike, with the elements of what is ``held``; else with random ones, or zero, which is a place in any
    tensor. Each has a ``seed`` of its own: of equal tensors differences and angles are rounding errors, in which no two forms of
    a function agree."""
    import torch

    found = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    memory = memory_of(found)
    if held is x:
        memory.copy_(x.as_strided(memory.shape, (1,)))
    elif held is not None:
        found.copy_(held)
    elif x.is_floating_point():
        memory.normal_(generator=torch.Generator(device).manual_seed(seed))  # the user's numbers stay as they are
    else:
        memory.zero_()
    return found


def _traced(run: Run, given: Sequence[Any], whole: bool = False, trained: Sequence[bool] = ()) -> Any:
    """The function as a graph of torch's operators that writes its results at the end; None where its compiler has no kernels for
    them, and less than the ``whole`` of a program is asked for. As for torch.compile those inputs that are ``trained`` require
    gradients, by which torch decides how to take operators apart: where that can be."""
    import torch

    if any(trained):
        with suppress(Exception), torch.enable_grad():  # some operators have no derivative
            return _graph_of(run, given, whole, trained)
    return _graph_of(run, given, whole, ())


def _graph_of(run: Run, given: Sequence[Any], whole: bool, trained: Sequence[bool]) -> Any:
    import torch
    import torch._inductor.lowering  # its decompositions need it and do not import it
    from torch._decomp import get_decompositions
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    # kernels are named after operators: what is equal to a kernel of torch.compile's is then found, with its choice, in its cache
    with _fakes(given) as fakes, preserve_node_meta(), enable_python_dispatcher():
        for x, needs in zip(fakes, trained, strict=False):
            x.requires_grad_(needs)
        table = {**get_decompositions([getattr(torch.ops.aten, n).default for n in RESIZED]), **select_decomp_table()}
        with fakes[0].fake_mode if fakes else nullcontext():  # what is made of nothing, too, is not made
            graph: Any = make_fx(run, decomposition_table=table)(*fakes)
        for _ in range(2):  # some operators are made of others that write in place
            if not any(map(_in_place, graph.graph.nodes)):
                break
            # only then: it takes operators apart by rules of its own, which are not the compiler's
            with fakes[0].fake_mode if fakes else nullcontext():
                graph = make_fx(torch.func.functionalize(graph, remove="mutations"), decomposition_table=table)(*fakes)
        _take_sorted(graph)
        return joint_graph_passes(_living(graph)) if whole or _taken(graph) else None


def _living(graph: Any) -> Any:
    """A graph without what nobody reads: who reads a value, and how often, says where the compiler computes it."""
    graph.graph.eliminate_dead_code(lambda n: n.is_impure() and not str(n.target).startswith("aten.empty."))
    graph.recompile()
    return graph


def _taken(graph: Any) -> bool:
    """Whether the compiler has kernels for a graph, which are not too long to make."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and str(n.target).startswith("aten.")]
    theirs = [n for n in calls if apart(str(n.target)) and not _sorts_little(n)]
    beside = sum(not apart(str(n.target)) and not _placed(n) for n in calls)
    mixed = beside > 1 and all(any(word in str(n.target) for word in ORDERS) for n in theirs)
    return beside <= LARGEST and len(calls) <= 4 * LARGEST and (not theirs or mixed)


def _take_sorted(graph: Any) -> None:
    """Elements that are gathered in their order are results of the sort itself."""
    import torch

    for node in [n for n in graph.graph.nodes if str(n.target).startswith("aten.gather.")]:
        x, dim, places = node.args[:3]
        order = places.args[0] if places.target is operator.getitem and places.args[1] == 1 else None
        if order is None or order.target is not torch.ops.aten.sort.stable or order.args[0] is not x:
            continue
        if x.meta["val"].dim() and (dim - order.kwargs.get("dim", -1)) % x.meta["val"].dim() == 0:
            with graph.graph.inserting_before(node):
                found = graph.graph.call_function(operator.getitem, (order, 0))
            found.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(found)
            graph.graph.erase_node(node)
    graph.recompile()


def _placed(node: Any) -> bool:
    return any(word in str(node.target) for word in PLACED)


def _sorts_little(node: Any) -> bool:
    """Whether a node sorts along a short axis."""
    dim = node.kwargs.get("dim", next((a for a in node.args[1:] if type(a) is int), -1))
    return sorts(node) and node.args[0].meta["val"].shape[dim] <= SHORT


def _in_place(node: Any) -> bool:
    """Whether a call writes to what is no input of the graph."""
    mutable = node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)
    return bool(mutable) and node.args[0].op != "placeholder"


@contextmanager
def _fakes(given: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors without memory that lie like others, in a context for torch's compiler."""
    from torch._guards import TracingContext
    from torch._guards import tracing
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with V.set_fake_mode(mode), tracing(TracingContext(mode)):
        yield [mode.from_tensor(x, static_shapes=True) for x in given]
