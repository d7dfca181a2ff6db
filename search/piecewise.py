"""Modules that are no program (their control flow depends on values, say): compiled graph by graph, as ``torch.compile`` finds
them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from pathlib import Path
from traceback import walk_tb
from typing import Any

import fuser
from fuser.device import Device
from fuser.errors import GradientError
from fuser.errors import LeftToTorch
from fuser.errors import UsageError
from fuser.errors import first_line
from fuser.frontends.left import values_kept
from fuser.frontends.left import writes
from fuser.frontends.torch_trace import alone
from search.as_function import AsFunction
from search.beside import Beside
from search.beside import file_of
from search.beside import may_be_measured
from search.beside import read
from search.beside import write
from search.tuner.efforts import module_effort
from search.turns import THEIRS
from search.turns import Turns

MOST, ASKED = 64, 3
"""Kinds of arguments that are told apart, and those whose calls take turns: others go the way that was the faster last. Dynamo
keeps eight programs of a function, of both compilers."""


@dataclass(frozen=True)
class Tried:
    """A run of a module: whether it ``changes`` parameters or buffers of its own, and whether it needs ``gradients``."""

    changes: bool
    gradients: bool = False


def tried(module: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Tried | None:
    """What a module does when it runs on some inputs; None where it fails on them. Neither is changed."""
    import torch

    for gradients in (False, True):
        own = _copy(module)
        before = _states(own)
        try:
            with torch.set_grad_enabled(gradients), torch.random.fork_rng(devices=[]), values_kept(own):
                given, named = _copy((inputs, dict(keywords)))
                own(*given, **named)
        except Exception:  # noqa: BLE001 - whatever the module raises
            continue
        return Tried(before != _states(own), gradients)
    return None


def _copy(x: Any) -> Any:
    """A deep copy of a module, or of its arguments. Torch copies no tensor that was computed with gradients (a state that a call
    has left in a module, say): the copy has its values."""
    import torch
    from torch.utils._pytree import tree_leaves

    with alone():
        held = [vars(part) for part in x.modules()] if isinstance(x, torch.nn.Module) else x
        computed = (t for t in tree_leaves(held) if isinstance(t, torch.Tensor) and not t.is_leaf)
        with torch.inference_mode(False):  # torch does not count what is written to a copy that is made there
            return deepcopy(x, {id(t): t.detach().clone() for t in computed})


def _states(module: Any) -> dict[str, tuple[int, int]]:
    """Which tensors a module's states are, and how often each was written to."""
    return {n: (id(t), writes(t)) for held in (module.named_parameters(), module.named_buffers()) for n, t in held}


@dataclass(eq=False, repr=False)
class PiecewiseModule(AsFunction):
    """A module whose graphs are compiled when they are called first; it is called as the module is, and returns what the module
    returns. Between the graphs the module's own Python runs. It is a copy: what is written to the module later is not seen. With
    ``gradients`` it is called with them, since it fails without."""

    module: Any
    target: Device
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    gradients: bool = False
    _ran: bool = field(default=False, init=False)
    _parameters: Sequence[int] = field(default=(), init=False)
    """How often each parameter was written to when it was called last."""
    _doors: list[Any] = field(default_factory=list, init=False)
    """Its graphs."""
    _theirs: dict[Any, Any] = field(default_factory=dict, init=False)
    """What torch's compiler makes of the module for arguments for which that is the faster, or has all of the graphs, by what
    these are like; None where our graphs stay."""
    _turns: dict[Any, Turns] = field(default_factory=dict, init=False)
    """Arguments for which that is not known yet."""
    _proven: set[Any] = field(default_factory=set, init=False)
    """Arguments with which torch's compiler has run."""
    _asked: int = field(default=0, init=False)
    _kinds: dict[Any, _Kind] = field(default_factory=dict, init=False)
    _draws: bool = field(default=False, init=False)
    """Whether it draws random numbers."""
    beside: Beside | None = field(default=None, init=False)
    """What was measured last."""

    def __post_init__(self) -> None:
        said = f"{type(self.module).__name__} is no program: {self.why}; its graphs are compiled one by one, when they are called"
        if not self.options.get("freeze", True):
            said += ", and write to the states of its .module, a copy of yours"
        warnings.warn(said, LeftToTorch, stacklevel=4)
        self.module = _copy(self.module).to(self.device)

    @cached_property
    def _run(self) -> Any:
        import torch

        if isinstance(self.module, torch.jit.ScriptModule):  # torch's own compiler has these
            return self.module
        options = {"device": "cpu" if self.device == "cpu" else None, "target": self.target, **self.options}
        return torch.compile(self.module, backend=self._door, dynamic=False, options=options)

    def _door(self, *given: Any, **named: Any) -> Any:
        self._doors.append(fuser.torch_backend(*given, **named))
        return self._doors[-1]

    @cached_property
    def _held(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Where the module's parts have their buffers and parameters: to look for the parts takes long at each call."""
        parts = list(self.module.modules())
        return [p._buffers for p in parts], [p._parameters for p in parts]

    _module = "its .module, a copy of the one that it was made of"

    def _said(self) -> str:
        return f"the compiled {type(self.module).__name__!r}"

    def _place(self) -> str | None:
        return self.device

    def _dtypes(self) -> set[str]:
        return {str(x.dtype).removeprefix("torch.") for x in (*self.module.parameters(), *self.module.buffers())}

    def __copy__(self) -> PiecewiseModule:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PiecewiseModule:
        """With a module of its own, whose graphs are compiled again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeftToTorch)
            made = PiecewiseModule(self.module, self.target, self.device, self.options, self.why, self.gradients)
        memo |= {id(self): made, id(self.module): made.module}
        return made

    def __reduce_ex__(self, _: Any) -> Any:
        what = f"{self._said()} cannot be pickled: its kernels are loaded in this process"
        raise UsageError(what, f"pickle {self._module}, and compile that there")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        like = None if self.gradients or self._run is self.module else self._kind(inputs, named)
        if like is None:
            return self._ours(like, inputs, named)
        if (turns := self._turns.get(like)) is not None and may_be_measured(self.device):
            if (found := turns.found) is None:
                name, timed = turns.begin()
                with turns.timing(name, timed):
                    return (self._by_other if name == THEIRS else self._ours)(like, inputs, named)
            self._settle(like, found)
            if turns.file is not None:
                write(turns.file, found)
        elif like not in self._theirs and self._follows:
            self._theirs[like] = self._other
        if self._theirs.get(like) is not None:
            return self._by_other(like, inputs, named)
        return self._ours(like, inputs, named)

    def _kind(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> _Kind | None:
        """The same for arguments that are alike: what they are like is long, and is looked up but once a call."""
        what = _like(inputs, named)
        found = self._kinds.get(what)
        if found is None and what is not None:
            found = self._kinds[what] = _Kind(what)
        return found

    def _by_other(self, like: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """By torch's compiler; by our graphs from then on where it fails on such arguments at first."""
        import torch

        if like in self._proven:
            if not torch.is_grad_enabled():
                return self._other(*inputs, **named)
            with torch.no_grad():
                return self._other(*inputs, **named)
        before = _Before.of(self._held, (inputs, named), copied=False)
        try:
            with torch.no_grad():
                found = self._other(*inputs, **named)
            self._proven.add(like)
            return found
        except Exception:
            self._theirs[like] = None
            self._turns.pop(like, None)
            if not before.again():
                raise
        return self._ours(like, inputs, named)  # what is wrong with the inputs is wrong here as well

    def _ours(self, like: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """By our graphs; by the module itself where its compiler stumbles."""
        import torch

        first = not self._ran
        before = None if self._run is self.module else _Before.of(self._held, (inputs, named), copied=first)
        anew = like is not None and like not in self._theirs and len(self._theirs) < MOST
        random = _random() if first or anew else []
        self._look(before)
        with torch.set_grad_enabled(self.gradients):
            try:
                found = self._run(*inputs, **named)
                self._ran = True
                self._draws |= bool(random) and not all(map(torch.equal, random, _random()))
                if before is not None and like is not None:
                    self._begin(like)
                return found
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                # the module has run on what it is called with first: it is not wrong with that
                ours = first or isinstance(error, GradientError) or _of_dynamo(error)
                if before is None or not ours or not before.again():
                    raise
                found = self.module(*inputs, **named)  # what is wrong with the inputs is wrong here as well
                what = "it asks for gradients" if isinstance(error, GradientError) else "its compiler does not take it"
                said = f"{type(self.module).__name__} runs in torch: {what} ({first_line(error)})"
                warnings.warn(said, LeftToTorch, stacklevel=3)
                self._run = self.module
                return found

    # -- beside torch's compiler, for all of the module ----------------------------------------------------------------------

    @cached_property
    def _other(self) -> Any:
        """The module by torch's compiler, with its hooks."""
        import torch

        return torch.compile(self.module, dynamic=False).forward

    @property
    def _follows(self) -> bool:
        """Whether further kinds of arguments are torch's compiler's without being tried: it was the faster last."""
        return self._asked >= ASKED and self.beside is not None and not self.beside.ours and not self._draws

    @cached_property
    def _measured(self) -> bool:
        return module_effort(self.options.get("effort"))[1] and not self.options.get("cudagraphs")

    def _begin(self, like: Any) -> None:
        """Whether such arguments are torch's compiler's, since it has all of the graphs, or was the faster before; or whether
        that is found out by the calls to come. Random numbers would be others than torch's."""
        if like in self._theirs or len(self._theirs) >= MOST:
            return
        if self._measured and self.device != "cpu" and not may_be_measured(self.device):
            return  # within a capture: the next call may tell
        self._theirs[like] = None
        if self._draws:
            return
        if all(getattr(d, "theirs", False) for d in self._doors):
            self._theirs[like] = self._other
        elif self._measured and may_be_measured(self.device):
            file = self._file(like)
            if file is not None and (before := read(file)) is not None:
                self._settle(like, before)
            elif self._asked < ASKED:
                self._asked += 1
                self._turns[like] = Turns(self.device, file)

    def _settle(self, like: Any, found: Beside) -> None:
        self.beside = found
        self._theirs[like] = None if found.ours else self._other
        self._turns.pop(like, None)

    def _file(self, like: Any) -> Path | None:
        """Where the answer is kept for such arguments."""
        if self.options.get("records") is False:
            return None
        graphs = [d.module.code for d in self._doors if hasattr(d, "module")]
        states = [(n, tuple(x.shape), x.dtype) for n, x in self.module.state_dict().items() if hasattr(x, "shape")]
        return file_of(repr((like.what, self.target, sorted(self.options.items()), graphs, states)), device=self.device)

    def _look(self, before: _Before | None) -> None:
        """Forgets the kernels of graphs that have values of parameters in them, where somebody wrote to a parameter since."""
        if before is not None and before.parameters != self._parameters:
            for door in self._doors:
                door.made.clear()
            self._parameters = before.parameters

    def __repr__(self) -> str:
        where = f"graph by graph, for {self.target.title}; runs on {self.device}"
        return f"<PiecewiseModule {type(self.module).__name__}: {where}{f'; {self.beside}' if self.beside else ''}>"


@dataclass(frozen=True, eq=False)
class _Kind:
    """Arguments that are alike."""

    what: Any


def _like(inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """How tensors lie, and numbers: equal for arguments of which a compiler makes the same. None where there are others."""
    found: list[Any] = [*named]
    known = all(_described(x, found) for x in (*inputs, *named.values()))
    return tuple(found) if known else None


def _described(x: Any, found: list[Any]) -> bool:
    """Whether it is known what an argument is like; what it is like is added to what was ``found``."""
    import torch

    if isinstance(x, torch.Tensor):
        found += x.shape, x.stride(), x.dtype, x.device
        return not x.requires_grad
    if x is None or type(x) in (int, float, bool, str):
        found += type(x), x
        return True
    if type(x) not in (list, tuple, dict):
        return False
    found += type(x), len(x), *(x if isinstance(x, dict) else ())
    return all(_described(y, found) for y in (x.values() if isinstance(x, dict) else x))


@dataclass(frozen=True)
class _Before:
    """What a call may write to, with how often that was done before: arguments and states, the ``parameters`` last. Of the first
    call (``copied``) there are copies of all but parameters, and it is known where torch's random numbers stood."""

    counts: Sequence[tuple[Any, int]]
    copies: Sequence[Any]
    random: Sequence[Any]
    parameters: Sequence[int]

    @classmethod
    def of(cls, held: Sequence[Sequence[Mapping[str, Any]]], arguments: Any, copied: bool) -> _Before:
        import torch
        from torch.utils._pytree import tree_leaves

        buffers, parameters = ([x for named in states for x in named.values() if x is not None] for states in held)
        given = (x for x in (*tree_leaves(arguments), *buffers) if isinstance(x, torch.Tensor))
        tensors = [x for x in given if not x.is_inference()]
        copies = [t.detach().clone() for t in tensors] if copied else []
        random = _random() if copied else []
        counts = [writes(t) for t in parameters]
        return cls([*((t, writes(t)) for t in tensors), *zip(parameters, counts, strict=True)], copies, random, counts)

    def again(self) -> bool:
        """Whether all is as it was; what the graphs in front of one that failed have written, or drawn, is taken back."""
        import torch

        written = [i for i, (t, count) in enumerate(self.counts) if writes(t) != count]
        if any(i >= len(self.copies) for i in written):
            return False
        with torch.no_grad():
            for i in written:
                self.counts[i][0].copy_(self.copies[i])
        if self.random:
            torch.set_rng_state(self.random[0])
            torch.cuda.set_rng_state_all(self.random[1:]) if torch.cuda.is_available() else None
        return True


def _random() -> list[Any]:
    """Where torch's random numbers stand; within a capture a GPU does not say."""
    import torch

    gpus = torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if gpus else ())]


def _of_dynamo(error: BaseException) -> bool:
    """Whether it is an error of dynamo's, or was raised while that traced: it passes on AssertionErrors of its own, too."""
    from torch._dynamo.exc import TorchDynamoException

    tracing = (frame.f_code.co_filename.endswith("convert_frame.py") for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, TorchDynamoException) or any(tracing)
