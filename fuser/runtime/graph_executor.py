"""Run a µGraph with a schedule as one callable: generated kernels and library kernels over one workspace."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.candidate import Candidate
from fuser.ir.mugraph import KernelGraph
from fuser.ir.program import Tensor
from fuser.ir.schedule import Schedule
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import compile_kernel
from fuser.runtime.again import Again
from fuser.runtime.again import Graph
from fuser.runtime.again import worth_it
from fuser.runtime.binding import Loaded
from fuser.runtime.binding import held_by_libraries
from fuser.runtime.binding import launches
from fuser.runtime.calls import Lanes
from fuser.runtime.calls import TorchGpu
from fuser.runtime.calls import in_turn
from fuser.runtime.calls import where_captured
from fuser.runtime.capture import Captured
from fuser.runtime.capture import capture_calls
from fuser.runtime.joined import Build
from fuser.runtime.joined import Original
from fuser.runtime.joined import joined
from fuser.runtime.launch import ALIGNMENT
from fuser.runtime.launch import InterpretedKernel
from fuser.runtime.launch import LoadedKernel
from fuser.runtime.launch import load
from fuser.runtime.plan import Plan
from fuser.runtime.plan import plan
from fuser.runtime.recurrent import in_one_piece
from fuser.runtime.tensors import Spec
from fuser.runtime.tensors import accept
from fuser.runtime.tensors import addresses
from fuser.runtime.tensors import check_outputs
from fuser.runtime.tensors import copier
from fuser.runtime.tensors import maker

REMEMBERED = 64
"""Most sets of addresses for which a packed call is kept."""


@dataclass(eq=False)
class _Packed:
    """A call for one set of addresses, or for any: then the caller's tensors are put into ``late`` for the time of a call. It
    keeps no tensor alive."""

    call: Callable[[], None]
    late: dict[str, Any] | None


class Executable:
    """A graph and a schedule as one callable on torch tensors, or anything with DLPack.

    The workspace is allocated once. A call allocates its outputs, and nothing where they are passed in, but what torch needs
    inside of some library kernels. (An input that is not contiguous, or not aligned to 16 bytes, is copied.)
    Addresses that come again are remembered, so that the next call on the same tensors only launches, and many launches become
    a CUDA graph of these addresses (:mod:`fuser.runtime.again`).
    ``constants`` are inputs that never change (weights): they are checked once and are not arguments. ``build`` makes kernels of
    calls of torch that follow one another (:mod:`fuser.runtime.joined`), or of the ``original`` of all; they are tried
    on ``examples`` of the inputs, by name. On ``device="cpu"`` kernels run in Triton's interpreter.

    Calls may come from several threads and streams: they share the workspace and are ordered one after another. There is no
    backward: inputs that require a gradient are refused.
    """

    def __init__(
        self,
        graph: KernelGraph | Plan,
        schedule: Schedule | None = None,
        *,
        device: str = "cuda",
        artifacts: Sequence[KernelArtifact | None] | None = None,
        constants: Mapping[str, Any] | None = None,
        build: Build | None = None,
        original: Original | None = None,
        examples: Mapping[str, Any] | None = None,
    ) -> None:
        import torch

        if isinstance(graph, KernelGraph):
            if schedule is None:
                raise UsageError(f"{graph.name!r} needs a schedule to be run", "let fuser.compile choose, or pass your own")
            graph = plan(Candidate(graph, schedule))
        self.plan, self.name = graph, graph.graph.name
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        with self._here():
            self.kernels = self._load(artifacts)
            self.workspace = torch.empty(self.plan.bytes, dtype=torch.uint8, device=self.device)
        self.intermediates = {s.tensor.name: self._place(s.offset, s.tensor) for s in self.plan.slots}
        specs = {n: Spec.of(t, self.device) for n, t in self.plan.table.items()}
        self._outputs = tuple(specs[n] for n in self.plan.graph.outputs)
        if unknown := [n for n in constants or {} if n not in self.plan.graph.inputs]:
            raise UsageError(f"{self.name!r} has no input {unknown[0]!r}", f"inputs: {', '.join(self.plan.graph.inputs)}")
        self.constants = in_one_piece(self.plan.graph, {n: accept(specs[n], x) for n, x in (constants or {}).items()})
        self._inputs = tuple(specs[n] for n in self.plan.graph.inputs if n not in self.constants)
        self.inputs, self.outputs = tuple(s.name for s in self._inputs), tuple(s.name for s in self._outputs)
        made = self.plan.adopted
        self._forms = {n: torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for n, t in self.plan.table.items()}
        lying = {**self._forms, **self.intermediates, **self.constants}
        self._pieces = joined(self.plan, lying, self.device, build, self.constants, original, examples) if build else []
        self._made = tuple(i for i, s in enumerate(self._outputs) if s.name in made)
        self._ends = (*self._inputs, *(s for s in self._outputs if s.name not in made))
        self._held = held_by_libraries(self.plan) - set(self.constants) | made
        gpu = self.device.type == "cuda"
        self._lanes = Lanes(self.plan.streams, TorchGpu(self.device)) if gpu and self.plan.streams.count > 1 else None
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._current: Callable[[], int] = functools.partial(_raw_stream(), self.device.index) if gpu else int
        self._several = gpu and torch.cuda.device_count() > 1
        self._tensor = torch.Tensor
        forms = {s.name: self._forms[s.name] for s in self._outputs}
        self._makers = tuple((lambda: None) if n in made else maker(x, self.device) for n, x in forms.items())
        self._lock = threading.Lock()
        self._packed: dict[tuple[int, ...], _Packed] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._last, self._last_handle = None, -1 if gpu else self._current()
        self._again = Again(self._graph) if gpu and worth_it(self.plan) else None
        self._autocast: Callable[[], bool] = torch.is_autocast_enabled

    def _load(self, artifacts: Sequence[KernelArtifact | None] | None) -> list[Loaded]:
        import torch

        if self.device.type != "cuda":
            return [None if s is None else InterpretedKernel(s) for s in self.plan.sources]
        major, minor = torch.cuda.get_device_capability(self.device)
        found: list[Loaded] = []
        # equal kernels share their code, which later ones find in the caches of instructions
        known: dict[tuple[bytes, int], LoadedKernel] = {}
        for i, source in enumerate(self.plan.sources):
            if source is None:
                found.append(None)
                continue
            made = (artifacts[i] if artifacts else None) or compile_kernel(source, 10 * major + minor)
            code = made.cubin, made.shared_bytes
            if code not in known:
                known[code] = load(made)
            found.append(replace(known[code], artifact=made))
        return found

    def unload(self) -> None:
        """Free the code on the device; calls and graphs must not be used any more."""
        for kernel in {k.module: k for k in self.kernels if isinstance(k, LoadedKernel)}.values():
            kernel.unload()

    def _here(self) -> AbstractContextManager[Any]:
        """Makes the executable's GPU torch's current one."""
        import torch

        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _place(self, offset: int, tensor: Tensor) -> Any:
        import torch

        raw = self.workspace[offset : offset + tensor.nbytes]
        return raw.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)

    # -- tensors ------------------------------------------------------------------------------------------------------------

    def empty_outputs(self) -> dict[str, Any]:
        """Fresh outputs by name, uninitialised."""
        return {s.name: maker(self._forms[s.name], self.device)() for s in self._outputs}

    def _empty(self) -> tuple[Any, ...]:
        """What is written; None for what torch allocates."""
        return tuple([make() for make in self._makers])

    def _named(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Inputs and outputs in order. Raises :class:`UsageError` for names that are missing or unknown."""
        if missing := [n for n in self.inputs if n not in inputs]:
            raise UsageError(f"{self.name!r} needs the inputs {', '.join(missing)}")
        if unknown := [n for n in inputs if n not in self.inputs]:
            what = "a constant of" if unknown[0] in self.constants else "no input of"
            raise UsageError(f"{unknown[0]!r} is {what} {self.name!r}", f"inputs: {', '.join(self.inputs)}")
        if outputs is None:
            return tuple(inputs[n] for n in self.inputs), self._empty()
        if set(outputs) != set(self.outputs):
            raise UsageError(f"{self.name!r} writes {', '.join(self.outputs)}, not {', '.join(outputs) or 'nothing'}")
        return tuple(inputs[n] for n in self.inputs), tuple(outputs[n] for n in self.outputs)

    def takes(self, inputs: Mapping[str, Any]) -> bool:
        """Whether these are all inputs, each as it must be."""
        return (
            set(inputs) == set(self.inputs)
            and addresses(self._inputs, [inputs[n] for n in self.inputs], self._tensor) is not None
        )

    def _checked(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """Tensors by name, inputs first, ready to be bound."""
        given = {s.name: accept(s, x) for s, x in zip(self._inputs, inputs, strict=True)}
        written = [(s, x) for s, x in zip(self._outputs, outputs, strict=True) if x is not None]
        return given | check_outputs([s for s, _ in written], [x for _, x in written], {**self.constants, **given})

    def _ready(self, spec: Spec, x: Any) -> Any:
        """An input that needs no closer look, or what comes of that."""
        place = addresses((spec,), (x,), self._tensor)
        return x if place and place[0] and not place[0] % ALIGNMENT else accept(spec, x)

    # -- running ------------------------------------------------------------------------------------------------------------

    def _bind(
        self, values: Mapping[str, Any], late: dict[str, Any] | None = None, made: dict[str, Any] | None = None
    ) -> Callable[[], None]:
        """``late``: what is looked up at every call; all inputs and outputs are where there are no ``values``. Without it a call
        writes all of ``values``' outputs, also those that torch allocates, and puts these into ``made`` where they are not
        given."""
        table = {**self._forms, **self.intermediates, **self.constants, **values}
        own = dict(values) if late is None and self.plan.adopted else late
        moving = self.plan.adopted if values else self.plan.adopted.union(s.name for s in self._ends)
        calls = launches(self.plan, self.kernels, table, self._held | moving, own, moving, self._pieces)
        call = in_turn(calls, self._current)
        if self._lanes is not None:
            library = [self.plan.sources[i] is None for i in self.plan.launched]
            beside = self._lanes.call(calls, library)
            call = where_captured(beside, call, self._capturing) if any(library) else beside
        if late is not None or own is None:
            return call

        def whole() -> None:
            call()
            for name in (self.outputs[i] for i in self._made):
                if name in values:
                    values[name].copy_(own[name])
                elif made is not None:
                    made[name] = own[name]
            for name in self.plan.adopted & own.keys():
                del own[name]

        return whole

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
        """A call without arguments over these tensors, which it keeps alive: calling it is only launching, on torch's current
        stream. Unlike other calls it is not ordered behind those on other streams or of other threads."""
        with self._here():
            values = self._checked(*self._named(inputs, outputs))
            call = self._bind(values)
        call.__dict__["keeps"] = (self, values)
        return call

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Inputs in order; returns the output, or a tuple of them. ``out``, a tensor or as many as there are outputs, is written
        in place and returned. Raises :class:`UsageError` for the wrong number, shape, dtype or device, outputs that are not
        contiguous or overlap another tensor, and inputs that require a gradient."""
        if len(inputs) != len(self._inputs):
            takes = f"{counted(len(self._inputs), 'input')} ({', '.join(self.inputs)})"
            raise UsageError(f"{self.name!r} takes {takes}, got {len(inputs)}")
        if out is None:
            outputs = self._empty()
        else:
            outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
            if len(outputs) != len(self._outputs):
                raise UsageError(f"{self.name!r} has {len(self._outputs)} outputs, {len(outputs)} were passed in")
        outputs = self._run(inputs, outputs, out is None)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name for inputs by name; ``outputs`` are written in place where given. Raises as a call does."""
        given, found = self._named(inputs, outputs)
        return dict(zip(self.outputs, self._run(given, found, outputs is None), strict=True))

    def _run(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], fresh: bool) -> tuple[Any, ...]:
        if self._several:
            with self._here():
                return self._run_here(inputs, outputs, fresh)
        return self._run_here(inputs, outputs, fresh)

    def _run_here(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], fresh: bool) -> tuple[Any, ...]:
        """``fresh``: the outputs are ours, and need no check."""
        given = outputs
        if self._made:
            if not fresh:
                self._checked(inputs, outputs)
            outputs = tuple([None if i in self._made else x for i, x in enumerate(outputs)])
        tensors = (*inputs, *(x for x in outputs if x is not None)) if self._made else (*inputs, *outputs)
        trained = not fresh and any(isinstance(x, self._tensor) and x.requires_grad for x in given)  # is refused
        key = None if trained else addresses(self._ends, tensors, self._tensor)
        if key is None or (key not in self._packed and not (fresh and all(p and not p % ALIGNMENT for p in key))):
            # what is copied here lives as long as this call; torch frees memory in the order of the stream
            if fresh:
                tensors = (*map(self._ready, self._inputs, inputs), *(x for x in outputs if x is not None))
            else:
                tensors = tuple(self._checked(inputs, outputs).values())
            key = tuple([x.data_ptr() for x in tensors])
        with self._lock:
            if self._current() != self._last_handle:
                self._order()
            if (graph := self._replayed(key, tensors)) is not None:
                graph.replay()
                return self._with_made(given, graph.made()) if self._made else given
            packed = self._packed.get(key) or self._remember(key, tensors)
            if packed.late is None:
                packed.call()
                return given
            packed.late.update([(s.name, x) for s, x in zip(self._ends, tensors, strict=True)])
            try:
                packed.call()
                return self._with_made(given, packed.late) if self._made else given
            finally:
                packed.late.clear()

    def _with_made(self, outputs: tuple[Any, ...], late: Mapping[str, Any]) -> tuple[Any, ...]:
        """The outputs with what torch allocated, which is copied where tensors were given."""
        found = list(outputs)
        for i in self._made:
            x = late[self.outputs[i]]
            found[i] = x if found[i] is None else found[i].copy_(x)
        return tuple(found)

    def _replayed(self, key: tuple[int, ...], tensors: tuple[Any, ...]) -> Graph | None:
        """What stands for a call on these tensors; nothing in a capture of the user's, or where torch computes otherwise."""
        if self._again is None or self._capturing() or self._autocast():
            return None
        return self._again.graph(key, tensors)

    def _graph(self, tensors: tuple[Any, ...]) -> Graph:
        """The call on these tensors as a CUDA graph."""
        made: dict[str, Any] = {}
        call = self._bind({s.name: x for s, x in zip(self._ends, tensors, strict=True)}, made=made)
        return Graph(capture_calls([call], warm=True).replay, copier(made))

    def _remember(self, key: tuple[int, ...], tensors: tuple[Any, ...]) -> _Packed:
        """A call for these addresses: of its own where they come again and no library needs the tensors, else the one that takes
        them as arguments."""
        again = key in self._seen
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        self._seen.add(key)
        if not again or self._held or any(isinstance(k, InterpretedKernel) for k in self.kernels):
            return self._anywhere
        packed = _Packed(self._bind({s.name: x for s, x in zip(self._ends, tensors, strict=True)}), None)
        if len(self._packed) >= REMEMBERED:
            del self._packed[next(iter(self._packed))]
        self._packed[key] = packed
        return packed

    @functools.cached_property
    def _anywhere(self) -> _Packed:
        late: dict[str, Any] = {}
        return _Packed(self._bind({}, late), late)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is launched inside comes behind all earlier calls, whatever their stream or thread: for replays of what was
        captured."""
        with self._here(), self._lock:
            if self._current() != self._last_handle:
                self._order()
            yield

    def _order(self) -> None:
        """This stream is not that of the last call: it waits for it: both use the workspace, or memory of one graph."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and (self.plan.bytes or self._again is not None):
            stream.wait_stream(self._last)
        self._last, self._last_handle = stream, stream.cuda_stream

    def capture(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, own: bool = False) -> Captured:
        """The call as a CUDA graph over fixed buffers, which are the tensors given (copies of inputs that are not contiguous):
        put new values into ``inputs``, call ``replay``, read ``outputs``. With ``own`` the buffers are copies of all inputs."""
        if self.device.type != "cuda":
            raise UsageError("a CUDA graph needs a GPU", "on the CPU call the program itself: its kernels are interpreted")
        import torch

        with self._here(), self._lock:
            values = self._checked(*self._named(inputs, outputs))
            if own:
                values |= {n: values[n].clone() for n in self.inputs}
            made: dict[str, Any] = {}
            call = self._bind(values, made=made)
            if self._current() != self._last_handle:
                self._order()  # the first run of the call uses the workspace too
            graph = capture_calls([call], warm=True)
            torch.cuda.synchronize()
        found = {n: values[n] if n in values else made[n] for n in outputs or self.outputs}
        return Captured({n: values[n] for n in inputs}, found, graph, (self, call))


def _raw_stream() -> Callable[[int], int]:
    import torch

    return torch._C._cuda_getCurrentRawStream
