"""A program with its kernels, as one callable on torch tensors: what ``fuser.compile`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from math import isnan
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING
from typing import Any

from fuser.device import Device
from fuser.errors import EnvironmentError_
from fuser.errors import UsageError
from fuser.files import counted
from fuser.ir.candidate import paired
from fuser.ir.mugraph import KernelGraph
from fuser.ir.ops import Array
from fuser.ir.program import TensorProgram
from fuser.ir.schedule import Schedule
from fuser.lower.compile import KernelArtifact
from fuser.lower.compile import save_artifact
from fuser.runtime.plan import Plan as Launches
from fuser.runtime.plan import plan
from fuser.superopt.verify.verdict import Verdict
from search.as_function import AsFunction
from search.buckets.pool import Pool
from search.buckets.pool import placed
from search.calling import Asked
from search.calling import as_module
from search.calling import copied_into
from search.calling import plain
from search.calling import real_parts
from search.calling import rearranged
from search.calling import returned
from search.calling import tensors_alone
from search.quick_calls import Giver
from search.quick_calls import Taker
from search.quick_calls import giver
from search.quick_calls import taker
from search.realise import Realised
from search.strided import Order
from search.strided import laid

if TYPE_CHECKING:
    from fuser.frontends.imported import Called
    from fuser.frontends.torch_whole import Traced
    from fuser.runtime.capture import Captured
    from fuser.runtime.graph_executor import Executable
    from search.beside import Beside
    from search.converted import Conversion
    from search.cover.model import Model
    from search.cover.plan import Plan


@dataclass(eq=False, repr=False)
class CompiledProgram(AsFunction):
    """A program with its kernels. Calling it takes torch tensors, or anything with DLPack, in the order of ``inputs`` or by name,
    and returns the output or a tuple of them; ``out=`` is written in place. As
    :class:`fuser.runtime.graph_executor.Executable` it allocates nothing then, and refuses tensors that do not fit with a
    :class:`UsageError`. What was made of a module is also called as the module is, and returns what the module returns (tuples,
    dictionaries, classes that torch's pytrees know); with ``out=`` it returns that.

    ``device`` is None where it was only compiled for ``target``.
    """

    program: TensorProgram
    target: Device
    realised: Realised
    device: str | None
    params: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    capture: bool = False
    model: Model | None = None
    """The parts of a program that is more than one region."""
    called: Called | None = None
    """How the module that it was made of is called."""
    conversion: Conversion | None = None
    """To which dtype it was converted, and the error of that."""
    pool: Pool | None = None
    """What shares weights with it."""
    orders: Mapping[str, Order] = field(default_factory=dict)
    """Dimensions of inputs that the program has in another order than the module: as the example inputs lie."""
    traced: Traced | None = field(default=None, kw_only=True)
    """Torch's graph of a module that is left to its compiler as a whole."""
    examples: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Values of the inputs by name, until kernels are loaded: with these what torch's compiler makes is tried."""
    beside: Beside | None = field(default=None, kw_only=True)
    """What was measured of it, and of what torch's compiler makes of it or of what was chosen else."""
    _replayed: Captured | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.pool is not None:
            self.params = {n: self.pool.array(x) for n, x in self.params.items()}
            self.model = self.model and replace(self.model, params=self.params)
        if self.device is not None:
            self._executable  # noqa: B018 - kernels are loaded now, not in the first call
        self.examples = None

    @property
    def found(self) -> tuple[Realised, ...]:
        """What was realised for each part of its plan."""
        return self.model.found if self.model is not None else (self.realised,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        return self.program.outputs

    @property
    def graph(self) -> KernelGraph:
        return self.realised.candidate.graph

    @property
    def schedule(self) -> Schedule:
        return self.realised.candidate.schedule

    @property
    def verdict(self) -> Verdict:
        """What the verifier says of the structure."""
        return self.realised.verdict

    @property
    def artifacts(self) -> tuple[KernelArtifact, ...]:
        """The compiled kernels, in launch order; none where they are interpreted."""
        return self.realised.artifacts

    @cached_property
    def _executable(self) -> Executable:
        if self.device is None:
            raise EnvironmentError_(
                f"{self.program.name!r} was compiled for {self.target.title} and not for this machine",
                "run it on such a GPU, or compile it with device='cpu' for Triton's interpreter",
            )
        from fuser.runtime.graph_executor import Executable
        from fuser.runtime.inductor import inductor

        artifacts = [a for _, a in paired(self.graph, self.artifacts)] if self.artifacts else None
        build = None if self.device == "cpu" else inductor
        read = {n: x for n, x in (self.examples or {}).items() if n in self.program.inputs}
        examples = laid(read, self.orders, self.program)
        original = self.traced and replace(self.traced, padded=self._as_they_come)
        more = {"build": build, "original": original, "examples": examples}
        return Executable(self._planned, device=self.device, artifacts=artifacts, constants=self._constants(), **more)

    @property
    def _as_they_come(self) -> frozenset[str]:
        """Results that are handed on as a whole to whoever calls it as the module, and of which no other result is a view."""
        results = () if self.called is None else self.called.results
        return frozenset(r.name for r in results if r.name and not r.base) - {r.base for r in results}

    @cached_property
    def _planned(self) -> Launches:
        if self.model is not None:
            return self.model.planned
        return plan(self.realised.candidate.candidate, [a.source for a in self.artifacts])

    @cached_property
    def _direct(self) -> bool:
        """Whether arguments go to the executable as they are."""
        run = self._executable
        return (
            run.inputs == self.inputs
            and run.outputs == self.outputs
            and self._flat
            and not (self.capture or self.conversion or self.orders)
        )

    @cached_property
    def _flat(self) -> bool:
        return plain(self.called, self.inputs, self.outputs)

    def _constants(self) -> dict[str, Any]:
        table, place = self.graph.table, self.pool.tensor if self.pool else placed
        return {n: place(x, table[n].dtype, str(self.device)) for n, x in self.params.items() if n in self.graph.inputs}

    # -- running ------------------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        try:
            return self._call(inputs, out, named)
        except UsageError:
            if (again := rearranged(self.called, repr(self.program.name), inputs, named)) is None:
                raise
        return self._call(again[0], out, again[1])

    def _said(self) -> str:
        return f"the compiled {self.program.name!r}"

    def _place(self) -> str | None:
        return self.device

    def _dtypes(self) -> set[str]:
        return {self.program[n].dtype for n in self.program.inputs}

    def __copy__(self) -> CompiledProgram:
        return self

    def __deepcopy__(self, _: Any) -> CompiledProgram:
        return self  # like a function: nobody writes to it

    def __reduce_ex__(self, _: Any) -> Any:
        what = f"the compiled {self.program.name!r} cannot be pickled: its kernels are loaded in this process"
        raise UsageError(what, "compile it there too: what was compiled once is in the cache folder")

    def _call(self, inputs: Sequence[Any], out: Any, named: Mapping[str, Any]) -> Any:
        run = self._executable
        if self._direct and not named and not isinstance(out, Mapping):
            return run(*inputs, out=out)
        if self._viewing:
            return self._with_views(inputs, named, out)
        values = {n: self._narrowed(n, x) for n, x in self._arguments(inputs, named).items()}
        if self.capture and run.device.type == "cuda":
            return self._results(self._replay(values, out), (inputs, named))
        return self._results(run.run(values, self._into(out)), (inputs, named))

    @cached_property
    def _viewing(self) -> bool:
        """Whether the module returns inputs of its own, or views."""
        return self.called is not None and any((r.base and not r.name) or r.complex for r in self.called.results)

    def _with_views(self, inputs: Sequence[Any], named: Mapping[str, Any], out: Any) -> Any:
        """What such a module returns; nothing runs where there are views of inputs alone."""
        assert self.called is not None
        given, run = self._given(inputs, named), self._executable
        values = {n: self._narrowed(n, x) for n, x in self._taken(given).items()}
        if all(r.base in given or not (r.name or r.base) for r in self.called.results) and run.takes(values):
            found: Mapping[str, Any] = {}
        elif self.capture and run.device.type == "cuda":
            found = self._replayed_outputs(values)
        else:
            found = run.run(values)
        give = self._giver
        results = give(found, given) if give else returned(self.called, found, (inputs, named), given)
        return results if out is None else copied_into(self.called, results, out)

    def _arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        return self._taken(self._given(inputs, named))

    def _given(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments by the program's names, with real numbers alone."""
        return real_parts(self.called, self.program, self._as_given(inputs, named), self.orders)

    def _as_given(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        if self._taker is not None and (found := self._taker(inputs, named)) is not None:
            return found
        if self.called is None or self._flat or tensors_alone(self.called, self.inputs, inputs, named):
            return self._named(inputs, named)
        return as_module(self.called, repr(self.program.name), inputs, named)

    def _taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those that the graph reads, as the program has them."""
        return laid({n: x for n, x in given.items() if n in self._executable.inputs}, self.orders, self.program)

    def by_name(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by the program's names, for inputs by name."""
        return self._executable.run(self._taken(given))

    def _narrowed(self, name: str, x: Any) -> Any:
        """An argument of a program that was converted: float32 is converted too."""
        if self.conversion is None:
            return x
        import torch

        wide = isinstance(x, torch.Tensor) and x.dtype is torch.float32
        return x.to(getattr(torch, self.program[name].dtype)) if wide else x

    def _named(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name. Raises :class:`UsageError` where some are missing, unknown or given
        twice."""
        if len(inputs) > len(self.inputs):
            raise UsageError(
                f"{self.program.name!r} takes {counted(len(self.inputs), 'input')} ({', '.join(self.inputs)}), got {len(inputs)}"
            )
        found = dict(zip(self.inputs, inputs, strict=False))
        for n, x in named.items():
            if n not in self.inputs or n in found:
                what = "is given twice" if n in found else f"is no input of {self.program.name!r}"
                raise UsageError(f"{n!r} {what}", f"inputs: {', '.join(self.inputs)}")
            found[n] = x
        if missing := [n for n in self.inputs if n not in found]:
            raise UsageError(f"{self.program.name!r} needs the inputs {', '.join(missing)}")
        return found

    def _into(self, out: Any) -> dict[str, Any] | None:
        if out is None:
            return None
        if isinstance(out, Mapping):
            if set(out) != set(self.outputs):
                raise UsageError(f"{self.program.name!r} writes {', '.join(self.outputs)}, not {', '.join(out) or 'nothing'}")
            return dict(out)
        outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
        if len(outputs) != len(self.outputs):
            raise UsageError(f"{self.program.name!r} has {counted(len(self.outputs), 'output')}, {len(outputs)} were passed in")
        return dict(zip(self.outputs, outputs, strict=True))

    @cached_property
    def _taker(self) -> Taker | None:
        return None if self.called is None or self._flat else taker(self.called)

    @cached_property
    def _giver(self) -> Giver | None:
        return None if self.called is None or self._flat else giver(self.called)

    def _results(self, found: Mapping[str, Any], asked: Asked) -> Any:
        if self._giver is not None:
            return self._giver(found, {})
        if self.called is not None and not self._flat:
            return returned(self.called, found, asked)
        values = tuple(found[n] for n in self.outputs)
        return values[0] if len(values) == 1 else values

    def _replay(self, values: Mapping[str, Any], out: Any) -> Mapping[str, Any]:
        """Copy the inputs into the buffers of the captured graph, replay it."""
        found, into = self._replayed_outputs(values), self._into(out)
        if into is None:
            return found
        for n, y in found.items():
            if into[n].shape != y.shape or into[n].dtype is not y.dtype:
                got = f"{tuple(into[n].shape)} {into[n].dtype}"
                raise UsageError(f"{n} must be {self.program[n]}, got {got}")
            into[n].copy_(y)
        return into

    def _replayed_outputs(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._replayed is None:
            self._replayed = self._executable.capture(values, own=True)
        self._replayed(*(values[n] for n in self._replayed.inputs))
        return self._replayed.outputs

    def captured(self, *inputs: Any, out: Any = None, **named: Any) -> Captured:
        """The call as a CUDA graph over these very tensors: ``replay()`` costs what torch's own replay costs. See
        :class:`fuser.runtime.capture.Captured`."""
        run = self._executable
        into = self._into(out)
        given = real_parts(self.called, self.program, self._named(inputs, named), self.orders)
        return run.capture(self._taken(given), into and {n: into[n] for n in self.outputs})

    def turn(self) -> AbstractContextManager[None]:
        """See :meth:`fuser.runtime.graph_executor.Executable.turn`."""
        return self._executable.turn()

    # -- what was made ------------------------------------------------------------------------------------------------------

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Triton source of each generated kernel, in launch order."""
        if self.device is None:
            return tuple(a.source.text for a in self.artifacts)
        return tuple(s.text for s in self._executable.plan.sources if s)

    @property
    def source(self) -> str:
        """Triton source of all generated kernels."""
        return "\n\n".join(self.sources)

    @property
    def ptx(self) -> tuple[str, ...]:
        """PTX of each generated kernel, in launch order. Raises :class:`UsageError` where kernels are interpreted."""
        if not self.artifacts and self.graph.blocks:
            raise UsageError(
                f"{self.program.name!r} is interpreted: it has no PTX", f"compile it with target={self.target.name!r}"
            )
        return tuple(a.ptx for a in self.artifacts)

    def save(self, folder: str | Path) -> list[dict[str, Any]]:
        """Write source, PTX, cubin and manifest of each kernel into a folder; returns the manifests."""
        stem = self.program.name.replace("/", "_").replace(":", "_b")
        return [save_artifact(a, Path(folder), f"{stem}_{i}") for i, a in enumerate(self.artifacts)]

    @cached_property
    def plan(self) -> Plan:
        """Its kernels: what each computes, how it leaves its results, what the model expects of it."""
        if self.model is not None:
            return self.model.plan
        from search.cover.plan import plan_of_region

        return replace(plan_of_region(self.program, self.target.title, self.realised), workspace=self._planned.workspace)

    def explain(self, kernel: str | int | None = None) -> str:
        """Why this one: structure, schedule, what the model expects of each kernel beside the runner-up, and what fell out. Of a
        program that is more than one region it is the plan, and the explanation of one ``kernel`` of it by name, glob or number,
        with the reasons why it is not fused with its neighbours."""
        from search.explained import explained_part
        from search.explained import explained_region

        head = wrap(repr(self), 80, subsequent_indent="  ", break_long_words=False)
        head += [str(self.conversion)] if self.conversion else []
        head += wrap(str(self.beside), 80, subsequent_indent="  ") if self.beside else []
        if self.model is None:
            return "\n".join([*head, "", *explained_region(self.realised, self.target)])
        if kernel is not None:
            return "\n".join(explained_part(self.plan.find(str(kernel)), self.model))
        return "\n".join([*head, "", str(self.plan), "", f"{self.verdict} (the part with the weakest evidence)"])

    def __repr__(self) -> str:
        ins = ", ".join(str(self.program[n]) for n in self.inputs)
        outs = ", ".join(str(self.program[n]) for n in self.outputs)
        kernels = len(self.graph.kernels)
        where = {None: "compiled only", "cpu": "runs in Triton's interpreter"}.get(self.device, f"runs on {self.device}")
        us = self.realised.candidate.us
        time = "" if isnan(us) else f", about {us:.1f} µs"
        bound = f", {counted(len(self.params), 'parameter')} bound" if self.params else ""
        return (
            f"<CompiledProgram {self.program.name}({ins}) -> {outs}{bound}: {counted(kernels, 'kernel')} for "
            f"{self.target.title}{time}; {where}>"
        )
