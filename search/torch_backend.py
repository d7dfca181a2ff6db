"""``torch.compile(model, backend="mufuser")``: graphs that dynamo finds, compiled when they are called first.

Each graph is brought to ATen operators without side effects (views and writes of the caller's tensors are put back around it,
by torch), cut into pieces, and compiled for the sizes at hand; a graph with symbolic sizes has a set of kernels for each. What
cannot be compiled runs in torch, with one warning that says why.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

import torch

from fuser.errors import FuserError
from fuser.errors import LeftToTorch
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.frontends.left import writes
from fuser.frontends.torch_trace import alone
from search.torch_beside import by_torchs_compiler
from search.torch_beside import faster
from search.torch_beside import kept_answer
from search.torch_derivatives import asked_for
from search.torch_derivatives import derives
from search.torch_derivatives import without_backward
from search.torch_functional import functional
from search.torch_numbers import numbers
from search.torch_numbers import with_numbers
from search.torch_pieces import Givens
from search.torch_pieces import Piece
from search.torch_pieces import drawing
from search.torch_pieces import pieces
from search.torch_pieces import worth
from search.torch_settings import Settings
from search.torch_settings import settings_of
from search.tuner.efforts import measures
from search.tuner.efforts import module_effort

LARGEST_CONSTANT = 1 << 22
"""Most elements of a buffer of integers or booleans that is taken as a constant while nobody writes to it."""
WRITTEN: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Tensors that some graph writes to: torch does not count each of these writes (those of a batch norm to its statistics, say)."""
REPLAYING = ("reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that ask for CUDA graphs."""


def torch_backend(
    module: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A backend of ``torch.compile``; :class:`Settings` are its ``options``. The modes in which torch's own compiler replays CUDA
    graphs do so here; else ``mode`` changes nothing: ``options`` has the effort."""
    try:
        settings = settings_of({"cudagraphs": mode in REPLAYING, **(options or {})})
    except UsageError as error:
        return _refusing(error)
    sources = [_source(n) for n in module.graph.nodes if n.op == "placeholder"]
    symbolic, floats = _symbolic(module, example_inputs), numbers(module)
    return Door(module, settings, tuple(sources), _owners(sources), symbolic or bool(floats), _differentiable(module), floats)


def _refusing(error: FuserError) -> Callable[..., Any]:
    """Raises at the call, where dynamo passes an error on as it is."""

    def refuse(*_: Any) -> Any:
        raise error

    return refuse


# -- what dynamo knows of a graph -----------------------------------------------------------------------------------------------


def _source(node: Any) -> str:
    """Where dynamo found an input, as an expression; empty where it does not say."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _is_static(source: str, kind: str = "parameters|buffers") -> bool:
    return re.search(rf"\._({kind})\['[^']*'\]$", source) is not None


def _owners(sources: Sequence[str]) -> tuple[weakref.ref[Any], ...]:
    """The modules that own parameters of the graph. Only asked while dynamo compiles."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    roots = {re.split(r"\._(?:modules|parameters|buffers)\b", s)[0] for s in sources if _is_static(s)}
    try:
        scopes = InstructionTranslator.current_tx().output
        found = [eval(r, {"L": scopes.local_scope, "G": scopes.global_scope}) for r in roots]  # dynamo's own expressions
    except (AttributeError, LookupError, NameError, SyntaxError, TypeError):
        return ()
    return tuple(weakref.ref(m) for m in found if isinstance(m, torch.nn.Module))


def _symbolic(module: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether sizes, or numbers among the inputs, change from call to call."""

    def open_(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return any(not isinstance(n, int) for n in (*value.shape, *value.stride()))
        return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))

    places = [n.meta.get("example_value") for n in module.graph.nodes if n.op == "placeholder"]
    return any(map(open_, [*example_inputs, *places]))


def _differentiable(module: Any) -> tuple[bool, ...]:
    """Which results of a graph have gradients in torch, as dynamo has seen them."""
    (results,) = next(n for n in module.graph.nodes if n.op == "output").args
    values = [r.meta.get("example_value") if isinstance(r, torch.fx.Node) else r for r in results]
    return tuple(getattr(v, "requires_grad", False) for v in values)


# -- calls ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """What stands for a graph at one set of sizes: a callable on its inputs (None: torch runs the graph), its pieces, and the
    buffers that it takes as constants: number, address and version of each."""

    run: Callable[..., Any] | None
    pieces: tuple[Piece, ...] = ()
    constants: tuple[tuple[int, int, int], ...] = ()


Key = tuple[Any, tuple[int, ...]]
"""What a set of kernels is for: the sizes of a call (None where they are fixed), and which tensors are frozen."""


@dataclass(eq=False)
class Door:
    """One graph of dynamo's as a callable. ``sources`` say where each input comes from, ``owners`` are the modules of its
    parameters, ``differentiable`` says which results have gradients in torch (not what is detached or computed without them),
    ``numbers`` which inputs are numbers in tensors.
    Dynamo calls it for every module of a class (each layer behind a graph break): where they are frozen, each has its kernels."""

    module: Any
    settings: Settings
    sources: tuple[str, ...]
    owners: tuple[weakref.ref[Any], ...]
    symbolic: bool
    differentiable: tuple[bool, ...] = ()
    numbers: tuple[int, ...] = ()
    made: dict[Key, Made] = field(default_factory=dict)
    _written: set[int] = field(default_factory=set)
    _writing: bool = False
    """Whether the graph writes to what it is given, or may do so."""
    _watched: list[weakref.ref[Any]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)
    _said: set[str] = field(default_factory=set)

    def __call__(self, *args: Any) -> Any:
        live = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad] if torch.is_grad_enabled() else []
        grads = live if any(self.differentiable) else []
        training = bool(grads) and any(m is not None and m.training for m in (owner() for owner in self.owners))
        if training and not all(map(asked_for, grads)):
            raise UsageError(
                "the backend mufuser is for inference: the model is in training mode and its parameters require gradients",
                "call model.eval(), or call it under torch.no_grad(); train with another backend",
            )
        if any(asked_for(x) for x in grads):
            self._say(
                "torch runs a graph with an input that requires gradients, which kernels do not compute (detach it, or call the "
                "module under torch.no_grad())"
            )
            return self.module(*args)
        key = _sizes(args, self.numbers) if self.symbolic else None, tuple([id(args[i]) for i in self._frozen])
        made = self.made.get(key)
        if made is None or any(not _unchanged(args[i], at, version) for i, at, version in made.constants):
            made = self._make(key, args)
        if made.run is None:
            return self.module(*args)
        if not live:
            return made.run(*args)
        with torch.no_grad():
            results = made.run(*args)
        pairs = zip(results, self.differentiable, strict=True)
        return [without_backward(x, grads[0], args) if differentiable else x for x, differentiable in pairs]

    def __post_init__(self) -> None:
        self._frozen = [i for i, s in enumerate(self.sources) if _is_static(s)] if self.settings.freeze else []

    @property
    def theirs(self) -> bool:
        """Whether torch's compiler has the graph, at all sizes so far."""
        return bool(self.made) and all(m.run is not None and not m.pieces for m in self.made.values())

    def _gone(self, i: int) -> None:
        """A frozen tensor is no more: where its module sets a new one at each call, that is an input from now on."""
        self._written.add(i)
        self._frozen = [j for j in self._frozen if j != i]
        self.made, self._watched = {}, []

    def _make(self, key: Key, args: Sequence[Any]) -> Made:
        with _as_dynamo_compiles(), self._lock:
            if (old := self.made.get(key)) is not None:
                changed = {i for i, at, version in old.constants if not _unchanged(args[i], at, version)}
                if not changed:
                    return old
                self._written |= changed
            elif (count := [k[1] for k in [*self.made]].count(key[1])) >= self.settings.shapes:
                self._say(f"{count} sets of sizes of one graph are compiled, and torch runs further ones (options: shapes)")
                return Made(None)
            self._watched += [weakref.ref(args[i], lambda _, i=i: self._gone(i)) for i in self._frozen]
            try:
                found = self._compiled(args)
            except Exception as error:  # noqa: BLE001 - torch runs what cannot be compiled, whatever the reason
                found = self._left(args, first_line(error))
            self.made[key] = found
            return found

    def _left(self, args: Sequence[Any], why: str) -> Made:
        """A graph that could not be compiled: for torch's compiler if that takes it, else for torch."""
        where = _device_of(self.module, args)
        if where is not None and where.type == "cuda" and not (self.symbolic or self.settings.cudagraphs):
            with suppress(Exception), torch._inductor.config.patch(fallback_random=True):  # the numbers that torch draws
                made = Made(by_torchs_compiler(self.module, args))
                self._say(f"torch's compiler has a graph that could not be compiled: {why}")
                return made
        self._say(f"torch runs a graph that could not be compiled: {why}")
        return Made(None)

    def _compiled(self, args: Sequence[Any]) -> Made:
        where = _device_of(self.module, args)
        if where is None:
            return Made(None)
        if where.type != "cuda" and self.settings.device is None:
            self._say(
                f"torch runs a graph on {where}: kernels are for GPUs (options={{'device': 'cpu'}} runs them in Triton's "
                "interpreter, which is slow)"
            )
            return Made(None)
        names = ("target", "checked", "records")
        if derives(self.module):
            self._say("torch runs a graph that computes derivatives")
            return Made(None)
        effort, beside = module_effort(self.settings.effort)
        options = {"device": str(where), "effort": self.settings.effort if measures(effort) else "instant"} | {
            n: getattr(self.settings, n) for n in names
        }
        graph, kept, run, into = functional(with_numbers(self.module, self.numbers, args), args, self._kept)
        places = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
        fixed = {n for n, s in zip(places, self.sources, strict=True) if _is_static(s)} if len(places) == len(args) else ()
        examples = {n: x for n, x in zip(places, args, strict=False) if isinstance(x, torch.Tensor) and len(places) == len(args)}
        replayed = frozenset(fixed) if self.settings.cudagraphs else None
        whole = partial(by_torchs_compiler, self.module, args)
        usual = where.type == "cuda" and replayed is None and not (self.symbolic or self._writing or drawing(graph))
        keeps = beside and usual and self.settings.records is not False
        file, before = kept_answer(graph, where, repr(self.settings)) if keeps else (None, None)
        if before is not None and not before.ours:
            with suppress(Exception):
                return Made(whole())
        inner, found = pieces(graph, Givens({places[i]: args[i] for i in kept}, replayed, examples), "graph", where, options)
        into.append(inner)
        for why in dict.fromkeys(p.why for p in found if p.why):
            self._say(f"torch runs a part of a graph that could not be compiled: {why}")
        if where.type == "cuda" and not (replayed is not None or self.symbolic or worth(graph, found, where)):
            with suppress(Exception):
                return Made(whole())
        plans = [p.made.plan for p in found if p.made and beside and usual and before is None]
        if plans and (other := faster(graph, run, whole, args, where, file, plans)) is not None:
            return Made(other)
        watched = [i for i in kept if not self.settings.freeze or _is_static(self.sources[i], "buffers")]
        constants = tuple((i, args[i].data_ptr(), writes(args[i])) for i in watched)
        return Made(run if any(p.made for p in found) else None, tuple(found), constants)

    def _kept(self, graph: Any, args: Sequence[Any]) -> list[int]:
        """Inputs that are constants: all of the module's where they are frozen, else its integers and booleans. Only asked while
        torch compiles."""
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        from torch._guards import TracingContext

        context = TracingContext.try_get()
        known = context.fw_metadata if context else None
        self._writing = known is None or len(places) != len(args)
        if known is None or self._writing:
            return []  # torch has joined or split inputs: which is which is not known
        written = {i for i, info in enumerate(known.input_info) if info.mutates_data or info.mutates_metadata}
        self._writing = bool(written)
        WRITTEN.update((id(args[i]), args[i]) for i in written if isinstance(args[i], torch.Tensor))

        def kept(i: int) -> bool:
            x = args[i]
            if not isinstance(x, torch.Tensor) or not _is_static(self.sources[i]) or i in written or i in self._written:
                return False
            if x.is_inference():  # nobody counts what is written to it
                return False
            return self.settings.freeze or (not x.is_floating_point() and not x.is_complex() and x.numel() <= LARGEST_CONSTANT)

        return [i for i in range(len(args)) if kept(i)]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, LeftToTorch, stacklevel=2)


@contextmanager
def _as_dynamo_compiles() -> Iterator[None]:
    """Dynamo compiles nothing meanwhile, and is told that this is no trace of what it made."""
    session = getattr(torch.compiler, "_compile_session_context", nullcontext)
    with alone(), session():
        yield


def _sizes(args: Sequence[Any], numbers: Sequence[int]) -> tuple[Any, ...]:
    """The sizes of tensors, and everything else, of a call."""
    sizes = [(x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in args]
    return (*sizes, *[args[i].item() for i in numbers])


def _unchanged(x: Any, address: int, version: int) -> bool:
    return x.data_ptr() == address and writes(x) == version and id(x) not in WRITTEN


def _device_of(module: Any, args: Sequence[Any]) -> Any:
    """The device of a graph: a GPU if any tensor is on one; None where there is no tensor."""
    values = [n.meta.get("example_value") for n in module.graph.nodes]
    devices = [x.device for x in (*args, *values) if isinstance(x, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), devices[0] if devices else None)
