"""A program on one device, ready to be measured: input sets, a float64 reference, and the comparison with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fuser.ir.program import TensorProgram
from fuser.ir.program import weight_factors
from fuser.runtime.torch_program import reference


@dataclass(frozen=True)
class Options:
    """How to measure. ``l2_factor``: inputs and outputs of all sets together are that many times the L2 cache. ``rounds``
    replays are timed (0: candidates are only checked); one replay holds each set once, or fewer where it would last longer than
    ``replay_ms``. ``tolerance`` overrides the largest accepted Frobenius error (by default by dtype). ``inputs`` names a
    function ``module:name`` that draws the inputs, called with (program, generator, device); by default they are standard
    normal, times ``scale``."""

    seed: int = 0
    rounds: int = 11
    l2_factor: float = 2.0
    max_sets: int = 1024
    max_bytes: int = 8 << 30
    replay_ms: float = 10.0
    warm_ms: float = 20.0
    tolerance: float | None = None
    scale: float = 1.0
    inputs: str = ""


TOLERANCE = {"float16": 1e-2, "bfloat16": 2e-2, "float32": 1e-3, "float64": 1e-6}
"""Largest accepted relative Frobenius error by dtype of the outputs."""


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
        factors: dict[str, float] = {}
        self.check_inputs = {n: x[0] for n, x in self._draw(generator, factors).items()}
        self.reference = reference(program, self.check_inputs)
        if self._overflows():
            factors = weight_factors(program)
            self.check_inputs = {n: x[0] for n, x in self._draw(generator, factors).items()}
            self.reference = reference(program, self.check_inputs)
        drawn = self._draw(generator, factors, self.sets)
        self.inputs = [{n: x[i] for n, x in drawn.items()} for i in range(self.sets)]

    def _draw(self, generator: Any, factors: dict[str, float], sets: int = 1) -> dict[str, Any]:
        import torch

        found = {}
        for name in self.program.inputs:
            t = self.program[name]
            dtype = getattr(torch, t.dtype)
            shape = (sets, *t.shape)
            if dtype.is_floating_point:
                x = torch.randn(shape, generator=generator, dtype=torch.float32, device=self.device)
                found[name] = (x * (self.options.scale * factors.get(name, 1.0))).to(dtype)
            else:
                found[name] = torch.randint(0, 2, shape, generator=generator, device=self.device).to(dtype)
        return found

    def _overflows(self) -> bool:
        """A result would not fit the dtype of the outputs (a deep chain of matmuls with unscaled weights)."""
        import torch

        for name, y in self.reference.items():
            dtype = getattr(torch, self.program[name].dtype)
            if not bool(torch.isfinite(y).all()) or float(y.abs().max()) > torch.finfo(dtype).max / 4:
                return True
        return False

    def empty(self) -> dict[str, Any]:
        import torch

        return {
            n: torch.empty(self.program[n].shape, dtype=getattr(torch, self.program[n].dtype), device=self.device)
            for n in self.program.outputs
        }

    def errors(self, outputs: dict[str, Any]) -> tuple[str, float, float]:
        """``(status, Frobenius error, largest error)`` of outputs for the check inputs, the worst over the outputs."""
        import torch

        worst, largest = 0.0, 0.0
        for name, ref in self.reference.items():
            out = outputs[name].double().reshape(ref.shape)
            if not bool(torch.isfinite(out).all()):
                return "nan", math.nan, math.nan
            diff = out - ref
            norm, top = float(torch.linalg.vector_norm(ref)), float(ref.abs().max())
            worst = max(worst, float(torch.linalg.vector_norm(diff)) / max(norm, 1e-30))
            largest = max(largest, float(diff.abs().max()) / max(top, 1e-30))
        dtype = self.program[self.program.outputs[0]].dtype
        limit = self.options.tolerance or TOLERANCE.get(dtype, 1e-2)
        return ("ok" if worst < limit else "wrong"), worst, largest
