"""A program on one device, ready to be measured: input sets, a float64 reference, and the comparison with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fuser.agreement import Agreement
from fuser.agreement import agreements
from fuser.agreement import poison
from fuser.agreement import tolerance
from fuser.drawing import Draw
from fuser.drawing import drawn
from fuser.ir.program import TensorProgram
from fuser.runtime.torch_program import reference


@dataclass(frozen=True)
class Options:
    """How to measure. ``l2_factor``: inputs and outputs of all sets together are that many times the L2 cache. ``rounds``
    replays are timed (0: candidates are only checked), up to ``most_rounds`` of those whose difference to the fastest is not
    clear; one replay holds each set once, or fewer where it would last longer than ``replay_ms``. ``tolerance`` overrides the
    largest accepted Frobenius error (by default by dtype). ``inputs`` names a function ``module:name`` that draws the inputs,
    called with (program, generator, device); by default they are standard normal, times ``scale``, brought into the program's
    domain (:mod:`fuser.drawing`)."""

    seed: int = 0
    rounds: int = 11
    most_rounds: int = 0
    l2_factor: float = 2.0
    max_sets: int = 1024
    max_bytes: int = 8 << 30
    replay_ms: float = 10.0
    warm_ms: float = 20.0
    tolerance: float | None = None
    scale: float = 1.0
    inputs: str = ""


class Session:
    """One program with its input sets and its reference on one device."""

    def __init__(self, program: TensorProgram, options: Options, device: str) -> None:
        import torch

        self.program, self.options, self.device = program, options, device
        io = [program[n] for n in (*program.inputs, *program.outputs)]
        per_set = sum(t.nbytes for t in io)
        if device == "cuda":
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            self.sets = min(
                max(2, math.ceil(options.l2_factor * l2 / per_set)), options.max_sets, max(2, options.max_bytes // per_set)
            )
        else:
            self.sets = 2
        self.bytes = per_set * self.sets
        generator = torch.Generator(device=device)
        generator.manual_seed(options.seed)
        self.outputs = [self.empty() for _ in range(self.sets)]
        if options.inputs:
            module, _, name = options.inputs.partition(":")
            draw = getattr(import_module(module), name)
            self.check_inputs = draw(program, generator, device)
            self.reference = reference(program, self.check_inputs)
            self.inputs = [draw(program, generator, device) for _ in range(self.sets)]
            return

        def attempt(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
            inputs = {n: x[0] for n, x in self._draw(generator, draw).items()}
            return inputs, reference(program, inputs)

        draw, self.check_inputs, self.reference = drawn(program, attempt)
        many = self._draw(generator, draw, self.sets)
        self.inputs = [{n: x[i] for n, x in many.items()} for i in range(self.sets)]

    def _draw(self, generator: Any, draw: Draw, sets: int = 1) -> dict[str, Any]:
        import torch

        found = {}
        for name in self.program.inputs:
            t = self.program[name]
            dtype = getattr(torch, t.dtype)
            shape = (sets, *t.shape)
            if dtype.is_floating_point:
                x = torch.randn(shape, generator=generator, dtype=torch.float32, device=self.device)
                found[name] = draw.place(name, x * self.options.scale).to(dtype)
            else:
                found[name] = torch.randint(0, 2, shape, generator=generator, device=self.device).to(dtype)
        return found

    def empty(self) -> dict[str, Any]:
        import torch

        return {
            n: torch.empty(self.program[n].shape, dtype=getattr(torch, self.program[n].dtype), device=self.device)
            for n in self.program.outputs
        }

    def poisoned(self, sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs in which an element that is not written shows."""
        outputs = stored(self.empty(), sizes or {})
        for t in outputs.values():
            t.fill_(poison(self.reference))
        return outputs

    def compare(self, outputs: Mapping[str, Any]) -> Agreement:
        """How outputs for the check inputs agree with the reference, the worst over the outputs."""
        limit = self.options.tolerance or tolerance(t.dtype for t in self.program.tensors)
        return agreements(outputs, stored(self.reference, outputs), {n: self.program[n].dtype for n in self.reference}, limit)


def stored(tensors: dict[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as they lie in memory, where the ``sizes`` by name (tensors of a plan, or of torch) have longer rows: with zeros
    behind each."""
    if not sizes:
        return tensors
    from torch.nn.functional import pad

    def longer(x: Any, shape: Sequence[int]) -> Any:
        return pad(x, (0, shape[-1] - x.shape[-1])) if math.prod(shape) > x.numel() else x

    return {n: longer(x, sizes[n].shape) if n in sizes else x for n, x in tensors.items()}
